"""The report: what was observed, on one page for people who would rather look than read.

What it is: `page`, a whole HTML document.
What it must not know: how anything was found.

Invariants:
    The page is one file: it loads nothing and runs nothing, so it opens without a network and can
    be sent to anybody.
    Names come from topics and users: every one of them is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from delivery.watch.charts import Axis, bars, figure, lines, short, stacks
from delivery.watch.distances import LABELS, Distances
from delivery.watch.filters import Health
from delivery.watch.guarantee import StageGuarantee
from delivery.watch.history import SLICES, History, StageHistory
from delivery.watch.kills import Kill
from delivery.watch.lag import StageLag
from delivery.watch.observed import Observed
from delivery.watch.style import SHEET

__all__ = ["page"]

#: Lanes that a chart shows, those that read most; stages and filters that one shows, the worst.
LANES_MAX = 12
#: Kills that are listed, the latest; charts show all of them.
KILLS_MAX = 40
_WORDS = {"exact": "PROTECTED", "degraded": "DEGRADED", "unknown": "UNKNOWN"}
_TIMES = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def page(seen: Observed, kills: Sequence[Kill] = ()) -> str:
    """Return the document.

    Args:
        seen: what was observed.
        kills: who was killed meanwhile, if somebody was.
    """
    past = seen.history
    marks = [(float(one.at_ms), f"killed: {one.what}") for one in kills]
    axis = Axis(past.since_ms, max(past.until_ms, past.since_ms + 1), SLICES, marks)
    stages = "".join(
        _stage(one, axis, past, seen.distances.get(one.name), with_kafka=seen.with_kafka)
        for one in past.stages
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Delivery: {escape(seen.catalog)}</title><style>{SHEET}</style></head><body><main>"
        f"{_head(seen)}{_tiles(seen)}{_now(seen)}{_advice(seen)}{_kills(kills)}"
        f'<h2 id="stages">Stage by stage</h2>{stages or "<p>No stage ever ran on it.</p>"}'
        f"{_filters(seen)}{_foot(seen)}</main></body></html>\n"
    )


def _head(seen: Observed) -> str:
    past = seen.history
    span = (
        f"seals of {_when(past.since_ms)} to {_when(past.until_ms)}"
        if past.until_ms
        else "no seal can be read"
    )
    return (
        f"<header><h1>Exactly-once delivery</h1><p><code>{escape(seen.catalog)}</code></p>"
        f'<p class="soft">As of {_when(seen.now_ms)}; {span}. All times are UTC.</p></header>'
    )


def _tiles(seen: Observed) -> str:
    total = {
        name: sum(one.total(name) for one in seen.history.stages)
        for name in ("fresh", "duplicate", "remnant", "abandoned", "seals", "dead_letter")
    }
    dropped = total["duplicate"] + total["remnant"] + total["abandoned"]
    letters = total["dead_letter"]
    ages = [one.late_ms for one in seen.lag.stages if one.late_ms is not None]
    oldest = _ago(max(ages, default=None))
    held = seen.lag.holdup
    tiles = (
        (_WORDS[seen.guarantee.state], "guarantee, the worst stage", seen.guarantee.state),
        (f"{total['fresh']:,}", "records that took effect", ""),
        *([(f"{letters:,}", "of them as dead letters", "degraded")] if letters else []),
        (f"{dropped:,}", "repeats dropped", ""),
        (oldest, f"waits longest, in {held.stage}" if held else "waits longest", ""),
        (f"{total['seals']:,}", "seals", ""),
    )
    return (
        '<h2>At a glance</h2><div class="tiles">'
        + "".join(
            f'<div class="tile"><b class="{kind}">{escape(value)}</b><span>{escape(said)}</span></div>'
            for value, said, kind in tiles
        )
        + "</div>"
    )


def _now(seen: Observed) -> str:
    judged = {one.name: one for one in seen.guarantee.stages}
    rows = [_now_row(one, judged[one.name], seen.now_ms) for one in seen.lag.stages]
    titles = ("stage", "guarantee", "behind", "waiting", "pending", "last seal")
    held = seen.lag.holdup
    said = (
        f"{held.pipeline}/{held.stage} holds things up, by {_ago(held.late_ms)}: {held.why}; {held.advice}."
        if held
        else "Nothing holds things up."
    )
    reasons = "".join(
        f"<li><b>{escape(one.name)}</b>: "
        f"{escape('' if reason.subject == one.name else f'{reason.subject}: ')}"
        f"{escape(reason.text)}; "
        f"{escape(reason.advice)}.</li>"
        for one in seen.guarantee.stages
        for reason in one.reasons
    )
    listed = f'<ul class="plain">{reasons}</ul>' if reasons else ""
    return (
        f'<h2 id="now">Now</h2><div class="box"><div class="scroll">{_table(titles, rows, 2)}</div>'
        f"<p>{escape(said)}</p>{listed}</div>{_lag(seen.lag.stages)}"
    )


def _lag(stages: Sequence[StageLag]) -> str:
    if not stages:
        return ""
    age = (
        "Of each stage the oldest record that it has not sealed, or seal that is not acknowledged."
    )
    behind = "Records, by offsets, that no seal of the stage covers."
    cards = (
        _by_stage("The oldest that waits", age, [(one.name, one.late_ms) for one in stages], _aged),
        _by_stage("Records behind", behind, [(one.name, one.behind) for one in stages], short),
    )
    return f'<div class="cards below">{"".join(cards)}</div>'


def _by_stage(
    title: str, said: str, found: Sequence[tuple[str, int | None]], words: Callable[[float], str]
) -> str:
    known = [(name, float(value)) for name, value in found if value is not None]
    worst = sorted(known, key=lambda one: -one[1])[:LANES_MAX]
    if unknown := len(found) - len(known):
        said += f" Stages of which it is not known: {unknown:,}."
    if left := len(known) - len(worst):
        said += f" Stages that are less far behind, and left out: {left:,}."
    # In the order of the flow.
    shown = [one for one in known if one in worst]
    return bars(title, said, shown, words) if shown else figure(title, said, "", [])


def _now_row(one: StageLag, judged: StageGuarantee, now_ms: int) -> list[str]:
    state = f'<span class="{judged.state}">{_WORDS[judged.state]}</span>'
    sealed = None if one.sealed_ms is None else max(0, now_ms - one.sealed_ms)
    return [
        escape(one.name),
        state,
        "-" if one.behind is None else f"{one.behind:,}",
        _ago(one.waiting_ms),
        f"{one.pending:,}" + (f" ({_ago(one.pending_ms)})" if one.pending else ""),
        _ago(sealed),
    ]


def _advice(seen: Observed) -> str:
    items = "".join(
        f"<li><b>{escape(one.stage)}</b>, {escape(one.topic)}: {escape(one.seen)}. "
        f"{escape(f'{one.change}.' if one.change else 'Nothing to change.')}</li>"
        for one in seen.advice
    )
    said = items or "<li>Too little was seen to say anything.</li>"
    return f'<h2 id="advice">Advice</h2><div class="box"><ul class="plain">{said}</ul></div>'


def _kills(kills: Sequence[Kill]) -> str:
    if not kills:
        return ""
    counts = Counter(one.what for one in kills)
    said = ", ".join(f"{escape(what)} ({count:,})" for what, count in counts.most_common())
    rows = [[_when(one.at_ms), escape(one.what)] for one in kills[-KILLS_MAX:]]
    older = len(kills) - len(rows)
    left = f" The oldest {older:,} are not listed." if older else ""
    return (
        f'<h2 id="kills">Kills</h2><div class="box"><p>{len(kills):,} killed: {said}; a broken line in '
        f'each chart over time.{left}</p><div class="scroll">{_table(("when", "who"), rows, 2)}</div>'
        "</div>"
    )


def _stage(
    one: StageHistory, axis: Axis, past: History, found: Distances | None, *, with_kafka: bool
) -> str:
    a_second = past.slice_seconds
    reads, outputs = (list(one.sums[name] / a_second) for name in ("read", "outputs"))
    middle, late = (list(column / 1000) for column in one.delay_ms)
    bundles = list(
        zip(
            (*(f"up to {bound:,.0f}" for bound in one.bundles.bounds), "more"),
            one.bundles.counts,
            strict=True,
        )
    )
    lanes = sorted(one.lanes.items(), key=lambda lane: -lane[1])[:LANES_MAX]
    losers = sum(one.losers.values())
    cards = [
        lines(
            "Records a second",
            f"{one.total('read'):,} read, {one.total('outputs'):,} outputs{_letters(one)}.",
            axis,
            [("read", reads), ("outputs", outputs)],
        ),
        lines(
            "Seal delay",
            "From the newest timestamp that a lane had sealed to its seal.",
            axis,
            [("median", middle), ("99th percentile", late)],
            _seconds,
        ),
        _dropped(one, axis),
        _distances(one, found, with_kafka=with_kafka),
        bars(
            "Records in a bundle",
            f"{sum(one.bundles.counts):,} bundles that read something.",
            [(label, float(count)) for label, count in bundles if count],
        ),
        bars(
            "Records by lane",
            f"Lanes: {len(one.lanes):,}. Attempts that lost a race and left a digest: {losers:,}.",
            [(lane.removeprefix(f"{one.name}/"), float(count)) for lane, count in lanes],
        ),
    ]
    return (
        f'<section><h3>{escape(one.name)}</h3><div class="cards">{"".join(cards)}</div></section>'
    )


def _letters(one: StageHistory) -> str:
    count = one.total("dead_letter")
    return f", {count:,} of them dead letters" if count else ""


def _dropped(one: StageHistory, axis: Axis) -> str:
    title = "Repeats dropped, by reason"
    dropped = [(name, list(one.sums[name])) for name in ("duplicate", "remnant", "abandoned")]
    count = sum(one.total(name) for name, _ in dropped)
    if not count:
        return figure(title, "There were no repeats.", "", [])
    return stacks(
        title,
        f"{count:,} of {one.total('read'):,} records; {one.total('conflict'):,} with another payload.",
        axis,
        dropped,
    )


def _distances(one: StageHistory, found: Distances | None, *, with_kafka: bool) -> str:
    title = "How late repeats come"
    if not one.total("duplicate"):
        return figure(title, "There were no repeats of ids.", "", [])
    if not with_kafka or found is None:
        return figure(title, "Kafka was not asked: name the brokers with --kafka.", "", [])
    if not found.found_ms:
        said = f"Of {found.sampled:,} repeats no original could be looked up."
        return figure(title, said, "", [])
    return bars(
        title,
        f"{len(found.found_ms):,} of {found.sampled:,} sampled repeats; the latest came "
        f"{_ago(found.found_ms[-1])} after its original.",
        [(label, float(count)) for label, count in zip(LABELS, found.classes, strict=True)],
    )


def _filters(seen: Observed) -> str:
    if not seen.filters:
        return ""
    titles = ("lane", "ids of", "ids", "size", "bits set", "false hits", "state")
    rows = [
        [
            escape(one.lane),
            one.origin,
            f"{one.ids:,}",
            f"{short(one.size)}B",
            f"{one.fill:.1%}",
            f"{one.rate:.3%}",
            "saturated" if one.saturated else "fine",
        ]
        for one in seen.filters
    ]
    return (
        '<h2 id="filters">Filters of this host</h2><div class="box"><div class="scroll">'
        f'{_table(titles, rows, 2)}</div></div><div class="cards below">{_rates(seen.filters)}</div>'
    )


def _rates(filters: Sequence[Health]) -> str:
    """Return a chart of the worst filter that a lane has for each kind of ids."""
    worst: dict[str, Health] = {}
    for one in sorted(filters, key=lambda one: one.rate / one.target):
        worst[f"{one.lane}, {one.origin}"] = one
    shown = sorted(worst.items(), key=lambda one: -one[1].rate / one[1].target)[:LANES_MAX]
    said = "To be expected of the fullest filter of each lane; the line is the rate that was asked for."
    if left := len(worst) - len(shown):
        said += f" Further below theirs, and left out: {left:,}."
    values = [(name, one.rate) for name, one in shown]
    return bars("False hits", said, values, _share, [one.target for _, one in shown])


def _foot(seen: Observed) -> str:
    asked = "" if seen.with_kafka else " Kafka was not asked, so what only it knows is left out."
    return (
        '<p class="soft">Of seals that were collected nothing is shown.'
        f"{asked} The proof that every record counted once is <code>delivery audit</code>.</p>"
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """Return a table whose cells are HTML; the first `texts` columns are words, the rest figures."""
    head = "".join(
        f"<th{'' if at < texts else ' class=n'}>{escape(title)}</th>"
        for at, title in enumerate(titles)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{'' if at < texts else ' class=n'}>{cell}</td>" for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _ago(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    for unit, length in _TIMES:
        if milliseconds >= 2 * length:
            return f"{milliseconds // length} {unit}"
    return f"{milliseconds / 1000:.1f} s" if milliseconds else "0"


def _aged(milliseconds: float) -> str:
    return _ago(round(milliseconds))


def _share(value: float) -> str:
    return f"{100 * value:.2g}%"


def _seconds(value: float) -> str:
    return _ago(round(value * 1000)) if value >= 1 else f"{value * 1000:.3g} ms"
