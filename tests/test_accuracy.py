"""The small form of benchmarks/accuracy.py: some dozens of simulated incidents, to see a rule that spoils others."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import pytest
from accuracy import Outcome, run, slope, tables

from nccl_forensics.verdict import weigh

pytestmark = pytest.mark.slow

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


def test_the_slope_is_fitted_on_what_the_present_one_does_not_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = outcomes()[:6]
    monkeypatch.setattr(weigh, "_calibrated", lambda posterior: posterior)
    other = [run(seed) for seed in SEEDS[:6]]
    assert [o.confidence for o in other] != [o.confidence for o in now]
    assert [o.posterior for o in other] == [o.posterior for o in now]
    assert slope(other) == slope(now)


@pytest.mark.parametrize(
    ("seed", "cause"),
    [(50027, "hopeless"), (50103, "hopeless"), (50143, "python_exception"), (50289, "cuda_oom")],
)
def test_ranks_whose_host_sent_no_log_are_not_named(seed: int, cause: str) -> None:
    assert run(seed, cause).abstained


@pytest.mark.parametrize("seed", [50468, 50766])
def test_a_gpu_that_hangs_is_not_blamed_on_the_network(seed: int) -> None:
    assert run(seed, "gpu_stall").abstained


@pytest.mark.parametrize("seed", [50045, 50136])
def test_of_two_ranks_that_differ_no_sure_word_is_said(seed: int) -> None:
    outcome = run(seed, "collective_skipped")
    assert outcome.confidence is not None
    assert not outcome.sure_and_wrong
    assert outcome.confidence < 0.6


@pytest.mark.parametrize(
    ("seed", "cause"),
    [
        (80042, "rank_not_arrived"),  # torchrun's own exception, cut in the middle of its name
        (80225, "process_signal"),  # both ranks of a host are late, and its launcher tells why
        (80433, "rank_busy"),  # no dump of the late rank, and its watchdog answers
        (1001, "gpu_thermal"),  # an old link flap and a stranger's end on the hot card's host
        (1004, "nccl_setup"),  # NCCL's warning stands in Python's error only
        (60098, "process_missing"),  # corrected memory errors on another card of the late rank's host
        (90095, "cpu_stall"),  # both logs of a host are there, and its ranks never came
    ],
)
def test_what_was_once_named_wrongly(seed: int, cause: str) -> None:
    outcome = run(seed, cause)
    assert not outcome.sure_and_wrong, outcome
    assert outcome.named_right, outcome
