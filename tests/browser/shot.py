"""python shot.py PAGE.html OUT.png WIDTH HEIGHT [light|dark] [full]: a picture of a page, for the eye and for docs/."""

from __future__ import annotations

import sys
from pathlib import Path

import pages


def main(page: str, out: str, width: str, height: str, scheme: str = "light", full: str = "") -> None:
    with (
        pages.chromium() as browser,
        pages.opened(browser, Path(page).resolve(), width=int(width), height=int(height), color_scheme=scheme) as shown,
    ):
        shown.page.screenshot(path=out, full_page=full == "full")


if __name__ == "__main__":
    main(*sys.argv[1:])
