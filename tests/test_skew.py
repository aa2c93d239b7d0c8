"""Bounds between clocks from meetings: against offsets that are known, with drift, a step, chains, and too little."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_forensics.model import ClockRow
from nccl_forensics.when import align, skew
from nccl_forensics.when.bounds import Block, block
from nccl_forensics.when.jumps import Told
from nccl_forensics.when.offsets import Offsets, Segment

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import clocks as benchmark

S = 1_000_000_000
BASE = 1_700_000_000 * S


def attended(
    offsets_s: list[float], meetings: int, rng: np.random.Generator, *, drift_ppm: list[float], step: tuple[int, float]
) -> Block:
    """Collectives every 0.3 s; the last clock is set by `step` (s) at that meeting."""
    at = np.arange(meetings) * 0.3 * S
    came = at + rng.uniform(0, 0.02 * S, (len(offsets_s), meetings))
    went = came.max(axis=0) + 4e6 + rng.uniform(1e6, 1e8, came.shape)
    ahead = np.array(offsets_s)[:, None] * S + np.array(drift_ppm)[:, None] * 1e-6 * at
    ahead[-1] += np.where(np.arange(meetings) >= step[0], step[1] * S, 0)
    names = tuple(f"n{i}" for i in range(len(offsets_s)))
    return Block(clocks=names, entered=came + ahead, left=went + ahead, base_ns=BASE, ordered=True)


def ahead_of_reference(found: Offsets, offsets_s: list[float], clock: int) -> float:
    assert found.reference is not None
    return offsets_s[clock] - offsets_s[int(found.reference[1:])]


@settings(max_examples=40, deadline=None)
@given(
    offsets_s=st.lists(st.floats(-90, 90), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
    meetings=st.integers(1, 120),
)
def test_the_true_offset_lies_within_the_bar(offsets_s: list[float], seed: int, meetings: int) -> None:
    rng = np.random.default_rng(seed)
    drift = list(rng.uniform(-50, 50, len(offsets_s)))
    found = skew.offsets([attended(offsets_s, meetings, rng, drift_ppm=drift, step=(10**6, 0))])
    assert set(found.clocks) == {f"n{i}" for i in range(len(offsets_s))}
    assert found.steps == ()
    assert found.reference is not None
    reference = int(found.reference[1:])
    for clock, offset_s in enumerate(offsets_s):
        for meeting in (0, meetings // 2, meetings - 1):
            true_ns = meeting * 0.3 * S
            reading = BASE + round(true_ns + offset_s * S + drift[clock] * 1e-6 * true_ns)
            offset = found.at(f"n{clock}", reading)
            assert offset is not None
            drifted = (drift[clock] - drift[reference]) * 1e-6 * true_ns
            true = (offset_s - offsets_s[reference]) * S + drifted
            assert abs(true - offset.shift_ns) <= offset.bar_ns + 100_000
            assert offset.bar_ns < 0.3 * S


@pytest.mark.parametrize("by", [-12.0, 7.5])
def test_a_clock_that_was_set_is_named_with_when(by: float) -> None:
    offsets_s = [3.0, -20.0, 41.0, 88.0]
    rng = np.random.default_rng(3)
    found = skew.offsets([attended(offsets_s, 300, rng, drift_ppm=[0.0] * 4, step=(100, by))])
    (step,) = found.steps
    assert step.clock == "n3"
    assert abs(step.by_ns / S - by) < 0.2
    assert found.reference is not None
    moved = 100 * 0.3 + offsets_s[int(found.reference[1:])]
    slack = abs(by) + 1 if found.reference == "n3" else 1  # set back, its own readings come twice
    assert step.after_ns / S - slack <= BASE / S + moved <= step.before_ns / S + slack
    early = found.at("n3", BASE + round((10 + 88.0) * S))
    late = found.at("n3", BASE + round((80 + 88.0 + by) * S))
    assert early is not None
    assert late is not None
    assert abs(early.shift_ns / S - ahead_of_reference(found, offsets_s, 3)) <= early.bar_ns / S < 0.2
    assert abs(late.shift_ns / S - ahead_of_reference(found, offsets_s, 3) - by) <= late.bar_ns / S < 0.2
    for owner in ("n0", "n3"):
        row = ClockRow(clock="c", host=owner, offset_s=0.0, uncertainty_s=0.0, basis="reference")
        assert ("was set" in (align._row(row, {"c": owner}, found).note or "")) == (owner == "n3")


def test_two_clocks_do_not_tell_which_was_set() -> None:
    rng = np.random.default_rng(5)
    found = skew.offsets([attended([0.0, 5.0], 200, rng, drift_ppm=[0.0, 0.0], step=(90, 20.0))])
    assert [step.clock for step in found.steps] == [None]


def test_clocks_that_never_meet_are_bound_through_a_third() -> None:
    first = block([(n, c, n * S + o, n * S + o + 1000) for n in range(9) for c, o in (("a", 0), ("b", 5 * S))])
    second = block([(n, c, n * S + o, n * S + o + 1000) for n in range(9) for c, o in (("b", 5 * S), ("c", -S))])
    assert first is not None
    assert second is not None
    found = skew.offsets([first, second])
    assert set(found.clocks) == {"a", "b", "c"}
    a, c = found.at("a", 4 * S), found.at("c", 3 * S)
    assert a is not None
    assert c is not None
    assert abs(c.shift_ns - a.shift_ns + S) <= a.bar_ns + c.bar_ns < 5_000_000


def test_a_bound_on_one_side_binds_nothing() -> None:
    one_sided = block([("signal", "a", 10 * S, None), ("signal", "b", None, 12 * S)])
    assert one_sided is not None
    found = skew.offsets([one_sided])
    assert found.clocks == ()
    assert found.at("a", 10 * S) is None


def test_nobody_meets_alone() -> None:
    assert block([("x", "a", 1, 2)]) is None
    assert skew.offsets([]).clocks == ()


@pytest.mark.slow
def test_simulated_hosts_with_bad_clocks() -> None:
    """The small form of benchmarks/clocks.py."""
    scores = [benchmark.run(seed) for seed in range(5000, 5012)]
    assert [w for score in scores for w in score.wrong] == []
    assert sum(score.claims for score in scores) > 500
    offsets = sum(score.offsets for score in scores)
    assert offsets > 8
    assert sum(score.inside for score in scores) >= 0.95 * offsets
    bars = sorted(bar for score in scores for bar in score.bars_s)
    assert bars[len(bars) // 2] < 0.5


def test_meetings_that_nobody_is_known_to_have_left_tie_nothing() -> None:
    nobody = np.full((2, 3), np.inf)
    block = Block(clocks=("a", "b"), entered=np.zeros((2, 3)), left=nobody, base_ns=BASE)
    assert skew.offsets([block]).clocks == ()


@pytest.mark.parametrize("clocks", [2, 3])
def test_a_clock_that_goes_back_is_no_measure_for_the_others(clocks: int) -> None:
    """The first by name would tell the time if it had not been set back."""
    rng = np.random.default_rng(8)
    block = attended([0.0, 40.0, 41.0][-clocks:], 200, rng, drift_ppm=[0.0] * clocks, step=(120, -30.0))
    names = block.clocks
    turned = Block(
        clocks=(names[-1], *names[1:-1], names[0]),
        entered=block.entered,
        left=block.left,
        base_ns=block.base_ns,
        ordered=True,
    )
    found = skew.offsets([turned])
    assert found.reference != "n0"
    assert found.reference is not None
    (step,) = found.steps
    at_s = 120 * 0.3 + [0.0, 40.0, 41.0][-clocks:][turned.clocks.index(found.reference)]
    assert step.after_ns / S - 1 <= BASE / S + at_s <= step.before_ns / S + 1


def test_a_reference_that_is_set_gives_way_to_one_that_is_not() -> None:
    rng = np.random.default_rng(9)
    block = attended([0.0, 60.0, 30.0], 200, rng, drift_ppm=[0.0] * 3, step=(100, 20.0))  # the last is in the middle
    found = skew.offsets([block])
    assert found.reference in ("n0", "n1")
    assert [step.clock for step in found.steps] == ["n2"]
    told = skew.offsets([attended([0.0, 60.0], 1, rng, drift_ppm=[0.0] * 2, step=(9, 0.0))], [was_set("n0", 3600, 5.0)])
    assert told.reference == "n1"


def was_set(clock: str, read_s: float, by_s: float) -> Told:
    """As the time service writes it, at once."""
    after = BASE + round(read_s * S)
    return Told(clock=clock, before_ns=after - round(by_s * S) - S, after_ns=after, by_ns=round(by_s * S), bar_ns=2 * S)


@pytest.mark.parametrize("by_s", [-30.0, 30.0])
@pytest.mark.parametrize("later_s", [45, 420])
def test_a_told_step_counts_where_only_bounds_on_one_side_lie_behind_it(by_s: float, later_s: float) -> None:
    ahead = {"n0": 0.0, "n1": 42.0, "n2": -20.0}
    rows: list[tuple[str, str, int | None, int | None]] = []
    for clock, ahead_s in ahead.items():
        at = BASE + round((10 + ahead_s) * S)
        rows.append(("set-up", clock, at, at + S // 20))
    for clock in ("n1", "n2"):  # n0's signal is seen a second later
        off_s = ahead[clock] + (by_s if clock == "n1" else 0.0)
        rows.append((f"signal to {clock}", "n0", BASE + later_s * S, None))
        rows.append((f"signal to {clock}", clock, None, BASE + round((later_s + 1 + off_s) * S)))
    met = block(rows)
    assert met is not None
    read_s = 40 + ahead["n1"] + by_s
    told = was_set("n1", read_s, by_s)
    found = skew.offsets([met], [told])
    found.set_later(told)
    assert found.reference != "n1"
    reference_s = ahead[str(found.reference)]
    (step,) = found.steps
    assert step.clock == "n1"
    assert abs(step.by_ns / S - by_s) < 1
    for true_s, off_s in ((15, 42.0), (later_s + 30, 42.0 + by_s)):
        offset = found.at("n1", BASE + round((true_s + off_s) * S))
        assert offset is not None
        assert abs(offset.shift_ns / S - (off_s - reference_s)) <= offset.bar_ns / S
        assert offset.bar_ns < 4 * S
    assert not found.holds("n1", BASE + 300 * S)


def test_a_clock_is_trusted_for_as_long_as_it_was_watched() -> None:
    rng = np.random.default_rng(4)
    once = skew.offsets([attended([0.0, 50.0], 1, rng, drift_ppm=[0.0] * 2, step=(9, 0.0))])
    assert not once.holds("n1", BASE + 60 * S)
    long = skew.offsets([attended([0.0, 50.0], 300, rng, drift_ppm=[0.0] * 2, step=(999, 0.0))])  # 90 s
    for at_s, holds in ((45, True), (170, True), (-80, True), (300, False), (-200, False)):
        assert long.holds("n1", BASE + at_s * S) is holds, at_s
    long.kept("n1", BASE + (200 + 50) * S, BASE + (400 + 50) * S)
    assert not long.holds("n1", BASE + 300 * S)  # it may have been set before that wait began
    long.kept("n1", BASE + (90 + 50) * S, BASE + (400 + 50) * S)
    assert long.holds("n1", BASE + 300 * S)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=5),
    st.integers(-50, 150),
    st.booleans(),
)
def test_every_reading_has_an_offset(ranges: list[tuple[int, int]], at_s: int, newest: bool) -> None:
    """Clocks that were set back several times have read the same several times, or never."""
    segments = []
    for first, last in ranges:
        low, high = sorted((first, last))
        one = Segment(at=[low * S], low=[-S], high=[S])
        one.first, one.last = low * S, high * S
        segments.append(one)
    found = Offsets("a", {"b": segments}).at("b", at_s * S, newest=newest)
    assert found is not None
    assert found.bar_ns > 0
