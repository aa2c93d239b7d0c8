"""Whole incidents, as a customer would mail them, with the right answer in expected.json. All names and numbers are
invented; make.py writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOT_SENT = frozenset({"expected.json", "README.txt", "__pycache__"})
"""What belongs to us and not to the customer's bundle."""


def bundle(folder: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(what to analyze, options to give) of the sample in `folder`."""
    inputs = tuple(str(p) for p in sorted(folder.iterdir()) if p.name not in NOT_SENT)
    args = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["expect"].get("args", [])
    options: dict[str, Any] = dict(zip((a.removeprefix("--") for a in args[::2]), args[1::2], strict=True))
    if "year" in options:
        options["year"] = int(options["year"])
    return inputs, options
