"""Where whole incidents with their right answers lie: in tests/cases/recorded, and some beside the checkout."""

from __future__ import annotations

from pathlib import Path

RECORDED = Path(__file__).resolve().parent / "cases" / "recorded"
LABELLED_DUMPS = Path(__file__).resolve().parents[2] / "shared" / "cases" / "fr-nvrx"
"""Another project's labelled dumps, which may not be copied. Read where they are there."""


def answers(*families: str) -> list[Path]:
    """Every expected.json of these families (all, if none is named), by family and name."""
    found = [p for p in RECORDED.glob("*/*/expected.json") if not families or p.parent.parent.name in families]
    if not families or LABELLED_DUMPS.name in families:
        found += LABELLED_DUMPS.glob("*/expected.json")
    return sorted(found, key=lambda p: (p.parent.parent.name, p.parent.name))
