"""Small piles as people send them, each with the answer that a careful reader gives (tests/cases/piles.toml)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from judging import judged

from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = Path(__file__).parent / "cases"
PILES: dict[str, dict[str, Any]] = tomllib.loads((CASES / "piles.toml").read_text(encoding="utf-8"))
STARTS: dict[str, dict[str, Any]] = tomllib.loads((CASES / "starts.toml").read_text(encoding="utf-8"))


def write(pile: dict[str, Any], folder: Path) -> None:
    for file, written in pile["files"].items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(written.lstrip("\n"), encoding="utf-8")


@pytest.mark.parametrize("name", PILES)
def test_verdict(name: str, tmp_path: Path) -> None:
    pile = PILES[name]
    write(pile, tmp_path)
    doc = document.build(analyze([str(tmp_path)]))
    expect = {key: pile[key] for key in ("ranks", "gpus", "open", "must_not_blame") if key in pile}
    if pile.get("healthy"):
        expect["incident"] = False
    if pile.get("causes") and "ranks" not in pile:
        expect["ranks"] = None
    amiss, wrong = judged(doc, expect, set(pile["causes"]) if "causes" in pile else None)
    assert (amiss, wrong) == ([], [])
    if "ranks_known" in pile:
        assert [row["rank"] for row in doc["ranks"]] == pile["ranks_known"]
    hosts = {host for incident in doc["incidents"] for host in incident["verdict"]["culprit_hosts"]}
    assert set(pile.get("hosts", ())) <= hosts
    shown = json.dumps([incident["verdict"] for incident in doc["incidents"]], ensure_ascii=False)
    assert [text for text in pile.get("says", ()) if text not in shown] == []
    assert [text for text in pile.get("says_not", ()) if text in shown] == []


@pytest.mark.parametrize("name", STARTS)
def test_each_start_of_a_job_is_judged_by_itself(name: str, tmp_path: Path) -> None:
    pile = STARTS[name]
    write(pile, tmp_path)
    doc = document.build(analyze([str(tmp_path)]))
    found = [
        {
            **({"attempt": i["attempt"]} if "attempt" in i else {}),
            "causes": [i["verdict"]["cause"]],
            "ranks": i["verdict"]["culprit_ranks"],
        }
        for i in doc["incidents"]
    ]
    assert found == pile["incidents"]
    if "hosts" in pile:
        assert [i["verdict"]["culprit_hosts"] for i in doc["incidents"]] == pile["hosts"]
    told = [c["says"] for i in doc["incidents"] for c in i["contributing"]] + [p["says"] for p in doc["problems"]]
    for says in pile.get("says", ()):
        assert any(text.startswith(says) for text in told), told
