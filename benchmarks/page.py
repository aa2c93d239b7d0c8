"""How long a report takes to open and to answer in Chromium: python benchmarks/page.py [RANKS ...] [--rounds N].

Needs Chromium and `pip install -e '.[browser]'`. Milliseconds since the navigation began, and CPU seconds of the page's
process; the median of the rounds. `filter` is from a word typed to the next frame, `zoom` the same of the timeline.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

import pages  # noqa: E402
import report_docs  # noqa: E402

from nccl_forensics.show.report import html  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COLUMNS = ("first paint", "loaded", "CPU s", "filter", "zoom")
FILTER = """() => new Promise((done) => {
  document.querySelector("#events details").open = true;
  const box = document.querySelector("#events input"), began = performance.now();
  box.value = "watchdog rank:5";
  box.dispatchEvent(new Event("input", { bubbles: true }));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""
ZOOM = """() => new Promise((done) => {
  const began = performance.now();
  document.querySelectorAll(".zoom button")[1].click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""


def measured(browser: Browser, file: Path) -> tuple[float, ...]:
    with pages.opened(browser, file) as shown:
        page = shown.page
        pages.until(page, "performance.getEntriesByName('first-contentful-paint').length")
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        return painted, loaded, metrics["ProcessTime"], page.evaluate(FILTER), page.evaluate(ZOOM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[8, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{'ranks':>6} {'kB':>6} " + " ".join(f"{name:>12}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder, pages.chromium() as browser:
        for ranks in given.ranks:
            file = Path(folder) / f"{ranks}.html"
            file.write_text(html(report_docs.large(ranks)), encoding="utf-8")
            rounds = [measured(browser, file) for _ in range(given.rounds)]
            middle = [statistics.median(column) for column in zip(*rounds, strict=True)]
            size = file.stat().st_size / 1000
            print(f"{ranks:>6} {size:>6.0f} " + " ".join(f"{value:>12.{2 if value < 10 else 0}f}" for value in middle))


if __name__ == "__main__":
    main()
