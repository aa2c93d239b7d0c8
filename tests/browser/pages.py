"""Pages in a real browser: Debian's Chromium, driven by Playwright, which brings no browser of its own here."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_S = 15

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
        page.set_default_timeout(1000 * PATIENCE_S)
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


def until(page: Page, expression: str, arg: Any = None) -> None:
    """Waits until `expression` holds. (Playwright's own way evaluates later on, which the page's policy forbids.)"""
    began = time.monotonic()
    while not page.evaluate(expression, arg):
        assert time.monotonic() - began < PATIENCE_S, expression
        page.wait_for_timeout(20)
