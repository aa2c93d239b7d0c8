"""The small form of benchmarks/accuracy.py: some dozens of simulated incidents, to see a rule that spoils others."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import pytest
from accuracy import Outcome, run, tables

SEEDS = range(5000, 5036)


@cache
def outcomes() -> tuple[Outcome, ...]:
    return tuple(run(seed) for seed in SEEDS)


def test_nearly_all_are_right_and_no_victim_is_blamed() -> None:
    found = outcomes()
    amiss = [f"{seed}: {o.cause}: {o.amiss}" for seed, o in zip(SEEDS, found, strict=True) if not o.named_right]
    assert len(amiss) <= 4, amiss
    assert not [o for o in found if o.blamed]
    assert sum(o.sure_and_wrong for o in found) <= 2, amiss


def test_nothing_is_named_where_nothing_can_be_told() -> None:
    for outcome in outcomes():
        if outcome.cause in ("healthy", "hopeless"):
            assert not outcome.sure_and_wrong, outcome


def test_the_tables_count_every_incident() -> None:
    assert f"| **all** | {len(SEEDS)} |" in "\n".join(tables(outcomes()))


@pytest.mark.parametrize("seed", [50027, 50103, 50143, 50289])
def test_ranks_whose_host_sent_no_log_are_not_named(seed: int) -> None:
    assert run(seed).abstained


@pytest.mark.parametrize("seed", [50468, 50766])
def test_a_gpu_that_hangs_is_not_blamed_on_the_network(seed: int) -> None:
    assert run(seed).abstained


@pytest.mark.parametrize("seed", [50045, 50136])
def test_of_two_ranks_that_differ_no_sure_word_is_said(seed: int) -> None:
    outcome = run(seed)
    assert outcome.confidence is not None
    assert not outcome.sure_and_wrong
    assert outcome.confidence < 0.6
