"""The page in a real browser: no request, no console message, nothing that axe finds, nothing wider than the window.

Needs chromium and node, and `npm install` in this folder; skipped where one is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import report_docs  # noqa: E402

from nccl_forensics import report  # noqa: E402

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and shutil.which("node") and (HERE / "node_modules" / "axe-core").is_dir()),
    reason="needs chromium, node and `npm install` in tests/browser",
)


def test_pages_in_a_browser(tmp_path: Path) -> None:
    """Pages that hold every part, one in German with packed data; all made-up ones with BROWSER_PAGES=all."""
    names = (
        sorted(report_docs.ALL)
        if os.environ.get("BROWSER_PAGES") == "all"
        else ["workstation", "two-incidents", "hostile"]
    )
    for name in names:
        (tmp_path / f"{name}.html").write_text(report.html(report_docs.ALL[name]()), encoding="utf-8")
    (tmp_path / "packed.html").write_text(report.html(report_docs.large(64), "de"), encoding="utf-8")
    done = subprocess.run(
        ["node", str(HERE / "check.mjs"), *map(str, sorted(tmp_path.glob("*.html")))],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "CHROMIUM": str(CHROMIUM)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == []
