"""What is said of each case is what tests/snapshots says; `python tests/snapshot.py` writes that anew."""

from __future__ import annotations

import pytest
import snapshot
from snapshot import CASES, Case

ANEW = "if it is meant: python tests/snapshot.py, then read the difference"


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c.family}-{c.name}") for c in CASES])
def test_what_is_said_of_a_case(case: Case) -> None:
    kept = snapshot.kept(case.family).get(case.name)
    if kept is None and snapshot.is_beside(case.family):
        pytest.skip("a case beside the checkout that was not there when the snapshots were written")
    assert case.told() == kept, ANEW


@pytest.mark.parametrize("family", sorted(p.stem for p in snapshot.FOLDER.glob("*.txt")))
def test_no_snapshot_of_a_case_that_is_gone(family: str) -> None:
    cases = {c.name for c in CASES if c.family == family}
    if not cases and snapshot.is_beside(family):
        pytest.skip("these cases are kept beside the checkout, in ../shared, which is not there")
    assert set(snapshot.kept(family)) == cases, ANEW
