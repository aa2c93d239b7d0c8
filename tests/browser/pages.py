"""Pages in a real browser: Debian's Chromium, driven by Playwright, which brings no browser of its own here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
"""Nothing that Chromium would do by itself; without a sandbox it runs as root, too."""


@contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_QUIET))
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and what it did that a page of ours never does."""

    page: Page
    wrong: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Browser, file: Path, *, width: int = 1440, height: int = 900, **more: Any) -> Iterator[Opened]:
    """`file` in a window of its own; `more` as Browser.new_context takes it, `hash` for a link into the page."""
    at = more.pop("hash", "")
    permissions = more.pop("permissions", None)
    context = browser.new_context(viewport={"width": width, "height": height}, **more)
    context.grant_permissions(permissions or [])
    try:
        page = context.new_page()
        page.set_default_timeout(15_000)
        shown = Opened(page)
        page.on("console", lambda message: shown.wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: shown.wrong.append(f"error: {error}"))
        page.on("request", lambda request: shown.wrong.append(f"request: {request.url}"))
        page.on("dialog", lambda dialog: (shown.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(file.as_uri() + at)
        shown.wrong.remove(f"request: {file.as_uri()}")
        yield shown
    finally:
        context.close()
