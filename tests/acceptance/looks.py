"""The report in a real browser: drawn, measured, and left as pictures for a person to look at.

What it is: `python -m tests.acceptance.looks`, what `make docs-check` runs: light and dark, as wide as a
phone and as a desk.
What it must not know: how the page is made.

Invariants:
    What is measured is the page as it is shipped, with a probe behind it that only reads.
    A browser that is missing is fetched from the system's own packages, or it is said how.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any

from dedup.catalog.memory import MemoryStore
from delivery.watch.kills import Kill
from delivery.watch.page import page
from tests.unit.house import House
from tests.unit.watch_kit import busy, indexed, observed

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium-headless-shell"
PLACE = Path(".cache") / "looks"
#: Width, height of the window.
WINDOWS = {"phone": (390, 844), "desk": (1280, 900)}
SCHEMES = {"light": 1, "dark": 0}
#: Letters that are smaller on the screen cannot be read on a phone.
LETTERS_PX_MIN = 9.0
BROWSER_SECONDS_MAX = 60

#: Reads where everything is, and leaves it in an element that the browser dumps.
PROBE = """
<script>
addEventListener("load", () => {
  const box = one => { const r = one.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] };
  const hit = (a, b) => a[0] < b[2] - 1 && b[0] < a[2] - 1 && a[1] < b[3] - 1 && b[1] < a[3] - 1;
  const clashes = [], outside = [];
  let letters = 1e9, texts = 0;
  for (const svg of document.querySelectorAll("svg")) {
    const frame = box(svg), words = [...svg.querySelectorAll("text")];
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    words.forEach((word, at) => {
      texts += 1;
      letters = Math.min(letters, parseFloat(getComputedStyle(word).fontSize) * scale);
      const mine = box(word);
      if (mine[0] < frame[0] - 4 || mine[2] > frame[2] + 4) outside.push(word.textContent);
      words.slice(at + 1).forEach(other => { if (hit(mine, box(other)))
        clashes.push(word.textContent + " / " + other.textContent) });
    });
  }
  const colour = name => getComputedStyle(document.body).getPropertyValue(name);
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify({
    wide: document.documentElement.scrollWidth, window: innerWidth, clashes, outside, letters, texts,
    tall: document.documentElement.scrollHeight,
    figures: [...document.querySelectorAll("figure")].filter(one => one.offsetHeight > 30).length,
    behind: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
  });
  document.body.append(told);
});
</script>
"""


def browser() -> str:
    """Return a headless browser, fetched if this machine lets us."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        for step in (("update",), ("install", "--yes", "--no-install-recommends", PACKAGE)):
            subprocess.run(["apt-get", "--quiet", "--quiet", *step], check=True)
        found = shutil.which(PACKAGE)
    if found is None:
        sys.exit(
            f"There is no browser: install one of {', '.join(BROWSERS)} (Debian: apt-get install "
            f"{PACKAGE}), and run it again."
        )
    return found


def run(command: str, *options: str, file: Path) -> str:
    """Run the browser on a file and return what it prints."""
    return subprocess.run(
        [
            *(command, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *options,
            file.absolute().as_uri(),
        ],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=BROWSER_SECONDS_MAX,
    ).stdout


def measured(command: str, file: Path, *options: str) -> dict[str, Any]:
    """Return what the probe found."""
    dumped = run(command, "--dump-dom", *options, file=file)
    told = re.search(r'<pre id="told">(.*?)</pre>', dumped, re.DOTALL)
    if told is None:
        sys.exit("The browser ran no probe: its version may want other options.")
    found = json.loads(unescape(told[1]))
    assert isinstance(found, dict)
    return found


def faults(found: dict[str, Any], scheme: str, figures: int) -> list[str]:
    """Name what is wrong with one look."""
    wrong = []
    if found["wide"] > found["window"]:
        wrong.append(f"it is {found['wide']} wide in a window of {found['window']}")
    if found["figures"] != figures:
        wrong.append(f"{found['figures']} of {figures} figures have a height")
    if found["dark"] != (scheme == "dark"):
        wrong.append("the scheme is not the one that was asked for")
    if found["letters"] < LETTERS_PX_MIN or not found["texts"]:
        wrong.append(f"the smallest letters of a drawing are {found['letters']:.1f} px")
    wrong += [f"words lie on each other: {pair}" for pair in found["clashes"]]
    wrong += [f"words leave their drawing: {word}" for word in found["outside"]]
    return wrong


def shown() -> str:
    """Return a page on which there is something to see in every part."""
    house = House(MemoryStore())
    busy(house)
    house.write("late", timestamp_ms=house.now - 200_000)
    with tempfile.TemporaryDirectory() as home:
        indexed(house, Path(home))
        seen = observed(house, home=Path(home))
    # Beside those of this house one that is too full, and one with a name that has no room.
    (fine,) = seen.filters
    full = replace(fine, lane="shop/ship/0", origin="internal", rate=0.0031, saturated=True)
    long = replace(fine, lane="warehouse/reconciliation/orders.confirmed-11", rate=0.0009)
    seen = replace(seen, filters=(fine, full, long))
    began, span = seen.history.since_ms, seen.history.until_ms - seen.history.since_ms
    return page(
        seen, [Kill(began + span * at // 5, "the job with all below it") for at in range(1, 5)]
    )


def main() -> int:
    """Draw, measure, say what is wrong."""
    command = browser()
    text = shown()
    figures = text.count("<figure>")
    PLACE.mkdir(parents=True, exist_ok=True)
    shipped, probed = PLACE / "report.html", PLACE / "probed.html"
    shipped.write_text(text)
    # The page itself forbids every script, the probe's too.
    probed.write_text(
        re.sub(r"<meta http-equiv=[^>]*>", "", text).replace("</body>", f"{PROBE}</body>")
    )
    wrong: list[str] = []
    behind = {}
    for (name, (width, height)), (scheme, number) in product(WINDOWS.items(), SCHEMES.items()):
        look = f"{name}-{scheme}"
        options = (f"--blink-settings=preferredColorScheme={number}",)
        found = measured(command, probed, f"--window-size={width},{height}", *options)
        wrong += [f"{look}: {fault}" for fault in faults(found, scheme, figures)]
        behind[scheme] = found["behind"]
        picture = PLACE / f"{look}.png"
        tall = found["tall"]
        run(
            command,
            f"--window-size={width},{tall}",
            f"--screenshot={picture.absolute()}",
            *options,
            file=shipped,
        )
        print(f"{picture}: {width}x{tall}, smallest letters {found['letters']:.1f} px")  # noqa: T201  it talks to whoever ran make
    if behind["light"] == behind["dark"]:
        wrong.append("light and dark are the same")
    for fault in wrong:
        print(fault, file=sys.stderr)  # noqa: T201  see above
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
