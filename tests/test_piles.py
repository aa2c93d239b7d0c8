"""Small piles as people send them, each with the answer that a careful reader gives (tests/cases/piles.toml)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from judging import judged

from nccl_forensics import document, pipeline

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PILES: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "cases" / "piles.toml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", PILES)
def test_verdict(name: str, tmp_path: Path) -> None:
    pile = PILES[name]
    for file, written in pile["files"].items():
        (tmp_path / file).write_text(written.lstrip("\n"), encoding="utf-8")
    doc = document.build(pipeline.analyze([str(tmp_path)]))
    expect = {key: pile[key] for key in ("ranks", "gpus", "open", "must_not_blame") if key in pile}
    if pile.get("healthy"):
        expect["incident"] = False
    if pile.get("causes") and "ranks" not in pile:
        expect["ranks"] = None
    amiss, wrong = judged(doc, expect, set(pile["causes"]) if "causes" in pile else None)
    assert (amiss, wrong) == ([], [])
    hosts = {host for incident in doc["incidents"] for host in incident["verdict"]["culprit_hosts"]}
    assert set(pile.get("hosts", ())) <= hosts
