"""Samples of metrics, and the text in which Prometheus reads them.

What it is: `Samples`, which holds every sample to the registry, and its two forms.
What it must not know: how a value is found, who asks.

Invariants:
    A metric that is not in the registry, or a sample without exactly its labels, is a mistake of
    ours, and is found where it is made.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from delivery.watch.registry import METRICS
from delivery.watch.tally import Histogram

__all__ = ["CONTENT_TYPE", "Samples"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Samples:
    """What one look found."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[dict[str, str], float | Histogram]]] = {}

    def add(self, name: str, value: float | Histogram | None, **labels: str) -> None:
        """Take a sample; one that is unknown is left out."""
        metric = METRICS[name]
        assert tuple(labels) == metric.labels, f"{name} has the labels {metric.labels}"
        assert value is None or isinstance(value, Histogram) == (metric.kind == "histogram"), name
        if value is not None:
            self._found.setdefault(name, []).append((labels, value))

    def text(self) -> str:
        """Return Prometheus' text format."""
        lines: list[str] = []
        for name, samples in self._found.items():
            metric = METRICS[name]
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            for labels, value in samples:
                if isinstance(value, Histogram):
                    lines += _histogram(name, labels, value)
                else:
                    lines.append(f"{name}{_labels(labels)} {_number(value)}")
        return "\n".join([*lines, ""])

    def document(self) -> dict[str, Any]:
        """Return them as plain data."""
        return {
            name: [{"labels": labels, **_plain(value)} for labels, value in samples]
            for name, samples in self._found.items()
        }


def _histogram(name: str, labels: dict[str, str], value: Histogram) -> list[str]:
    bounds = [*(_number(bound) for bound in value.bounds), "+Inf"]
    counts = list(accumulate(value.counts))
    return [
        *(
            f"{name}_bucket{_labels(labels | {'le': bound})} {count}"
            for bound, count in zip(bounds, counts, strict=True)
        ),
        f"{name}_sum{_labels(labels)} {_number(value.sum)}",
        f"{name}_count{_labels(labels)} {counts[-1]}",
    ]


def _plain(value: float | Histogram) -> dict[str, Any]:
    if isinstance(value, Histogram):
        return {"bounds": list(value.bounds), "counts": value.counts, "sum": value.sum}
    return {"value": value}


def _labels(labels: dict[str, str]) -> str:
    inside = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
