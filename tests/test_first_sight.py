"""Cases that were new when they were first run (tests/cases/sight): right, or listed with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import judged
from recorded import Run, all_runs, doc_of

SIGHT = Path(__file__).parent / "cases" / "sight"
SHORT = {
    "when-who/bx2-xid31-by-pid": "only NCCL's channel lines (7[3] -> 0[0]) tell which rank a process is",
    "when-who/clocks-forward-half-hour-timeout": "the host is named in full, the case asks for its short name",
    "when-who/fr-rank1-missing-old-dbe-in-indian-time": "only the name NAME.dmesg-T and a line of uname tell the host",
}
"""Runs that are not right yet; a run that becomes right is taken off. None may be confidently wrong."""
RUNS = all_runs(sorted(SIGHT.glob("*/*/expected.json")))


@pytest.mark.parametrize("run", [pytest.param(r, id=r.name) for r in RUNS])
def test_verdict(run: Run) -> None:
    amiss, wrong = judged(doc_of(run), run.expect, run.causes)
    assert wrong == [], "confidently wrong"
    if run.name in SHORT:
        assert amiss, "it is right now: take it off SHORT"
    else:
        assert amiss == []


def test_the_list_of_shortfalls_names_runs_that_are_there() -> None:
    assert set(SHORT) <= {r.name for r in RUNS}
