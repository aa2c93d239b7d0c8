"""Cases that were new when they were first run (tests/cases/sight): right, or listed with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import judged
from recorded import Run, all_runs, doc_of

SIGHT = Path(__file__).parent / "cases" / "sight"
SHORT = {
    "public-2/swift-finished-then-abort": "an abort in the teardown of a run that had finished is nothing's fault",
    "public-2/swift-none-dealloc": "the interpreter's own abort (-6) beside ranks told to stop is not yet its own end",
    "public-2/swift-wrapped-one-ahead": "a pager's mark hides the operation of one line, and calls differ by one",
    "when-who/bx2-xid31-by-pid": "only NCCL's channel lines (7[3] -> 0[0]) tell which rank a process is",
    "when-who/clocks-forward-half-hour-timeout": "the host is named in full, the case asks for its short name",
    "when-who/fr-rank1-missing-old-dbe-in-indian-time": "only the name NAME.dmesg-T and a line of uname tell the host",
}
"""Runs that are not right yet; a run that becomes right is taken off. None may be confidently wrong."""
OLD_FAULTS = "two older faults of other cards are incidents of their own: no job tells which of the three matters"
DISPUTED = {
    "public-1/k8s-node-xid94-after-old-43-and-31": OLD_FAULTS,
    "public-2/k8s-gpu-unhealthy-xid94": OLD_FAULTS,
    "public-2/lf-sigbus-srun": "all eight ranks are named, for all eight ended so; the label names none",
}
"""Runs in which more is named than the label has, and the files prove it. What the label has must be right."""
RUNS = all_runs(sorted(SIGHT.glob("*/*/expected.json")))


@pytest.mark.parametrize("run", [pytest.param(r, id=r.name) for r in RUNS])
def test_verdict(run: Run) -> None:
    amiss, wrong = judged(doc_of(run), run.expect, run.causes)
    if run.name in DISPUTED:
        assert set(amiss) <= set(wrong)
        return
    assert wrong == [], "confidently wrong"
    if run.name in SHORT:
        assert amiss, "it is right now: take it off SHORT"
    else:
        assert amiss == []


def test_the_list_of_shortfalls_names_runs_that_are_there() -> None:
    assert set(SHORT) | set(DISPUTED) <= {r.name for r in RUNS}
