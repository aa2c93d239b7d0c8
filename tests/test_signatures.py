"""Each form in which a message is written leads to the verdict that its plainest form leads to (signatures.toml)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nccl_forensics.pipeline import analyze

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "cases" / "signatures.toml").read_text(encoding="utf-8")
)
RANKS = range(8)


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    others = [r for r in RANKS if r != case.get("silent", 5)] if "each" in case else []
    lines = [f"2026-11-29 09:50:00,000 [rank{r}]: INFO starting" for r in RANKS]
    lines += case.get("before", [])
    lines += [case["each"].strip("\n").replace("{r}", str(r)) for r in others]
    lines += case.get("lines", [])
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (incident,) = analyze([str(tmp_path)]).incidents
    verdict = incident.verdict
    assert (verdict.cause, list(verdict.ranks)) == (case["cause"], case.get("ranks", [5]))
    assert list(verdict.reporting_ranks) == case.get("reporting", others)
    assert (incident.collective.seq if incident.collective else None) == case.get("seq")
