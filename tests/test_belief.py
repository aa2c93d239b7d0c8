"""How likely zones are that no line writes, and what may be said of an order then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_forensics.model import Event, Evidence, InputRow, Stamp
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.timing import IN_TIME, Failure, Timings
from nccl_forensics.when.align import align
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.when.belief import COMMON, HOUR, SHOWN, SURE, Beliefs, ZoneOf

NOON_NS = 1_795_608_000 * SECOND
"""2026-11-25 12:00:00 as written."""
WAITED_NS = 600 * SECOND
HOSTS = frozenset({"kern.log"})

zones = st.builds(
    ZoneOf,
    host=st.sampled_from(["n1", "n2", None]),
    of_host=st.booleans(),
    east_ns=st.sampled_from([0, HOUR, -5 * HOUR]),
    proved=st.booleans(),
    declared=st.booleans(),
).map(lambda z: replace(z, declared=z.declared and not z.proved))


@given(st.lists(zones, min_size=2, max_size=5))
def test_chances_add_up_and_turn_round(of: list[ZoneOf]) -> None:
    beliefs = Beliefs({str(n): z for n, z in enumerate(of)})
    for one in beliefs.of:
        for other in beliefs.of:
            apart = beliefs.apart(one, other)
            assert sum(apart.values()) == pytest.approx(1.0, abs=0.01)
            back = beliefs.apart(other, one)
            assert {-gap: pytest.approx(chance, abs=1e-9) for gap, chance in back.items()} == dict(apart)
            if beliefs.of[one].proved and beliefs.of[other].proved:
                assert apart == SHOWN


def test_how_common_zones_are_adds_up() -> None:
    assert sum(COMMON.values()) == pytest.approx(1.0)


def of(clock: str, *, host: bool, zone_s: int | None = None) -> tuple[str, str, int | None]:
    return clock, "kernel" if host else "job-log", zone_s


def pair(first: tuple[str, str, int | None], other: tuple[str, str, int | None], gap_s: int, **k: object) -> Aligned:
    """A fault in the first file, and `gap_s` later, as written, a wait's end in the other; both of one host."""
    made = []
    for n, (path, _, zone_s) in enumerate((first, other)):
        stamp = Stamp(wall_ns=NOON_NS + n * gap_s * SECOND, zone_s=zone_s, resolution_ns=SECOND)
        place = Evidence(source=path, line=1, text="x")
        kind, cause = (("watchdog-timeout", None), ("xid", "gpu_off_bus"))[n == 0]
        made.append(Event(kind=kind, role="symptom", cause=cause, evidence=place, stamp=stamp, host="n1"))
    rows = [InputRow(path=path, format=format) for path, format, _ in (first, other)]
    return align(made, rows, **k)  # type: ignore[arg-type]


def timing(made: Aligned) -> tuple[Timings, Event]:
    fault = next(e for e in made.events if e.kind == "xid")
    seen = next(e for e in made.events if e.kind == "watchdog-timeout")
    assert seen.time_ns is not None
    return Timings(made, (Failure(seen, seen.time_ns, seen.time_ns - WAITED_NS),), (), (), HOSTS), fault


KERNEL, JOB = of("kern.log", host=True), of("job.log", host=False)


def test_in_one_likely_zone_a_fault_and_a_wait_that_fall_together_are_in_time() -> None:
    timings, fault = timing(pair(KERNEL, JOB, 601))
    assert timings.of(fault) == IN_TIME
    assert timings.is_shown(fault)


@pytest.mark.parametrize("hours", [1, 2, 9])
def test_together_only_in_a_zone_that_nothing_speaks_for_is_possible_and_not_shown(hours: int) -> None:
    timings, fault = timing(pair(KERNEL, JOB, 601 + hours * 3600))
    shift, why = timings.of(fault)
    assert -3 < shift <= 0
    assert why is not None
    assert not timings.is_shown(fault)


@pytest.mark.parametrize(("waited_s", "is_late"), [(0, True), (6, False)])
def test_a_line_that_says_how_long_it_waited_tells_of_what_began_so_long_before(waited_s: int, is_late: bool) -> None:
    """Xid 119 is written six seconds after the request that was not answered, and the job may have failed by then."""
    here = of("kern.log", host=True, zone_s=0)
    made = pair(here, of("job.log", host=False, zone_s=0), -5)
    events = [replace(e, details={"waited_s": waited_s}, uncertainty_ns=0) for e in made.events]
    timings, fault = timing(replace(made, events=tuple(events)))
    seen = timings.failures[0]
    timings = replace(timings, failures=(replace(seen, onset_ns=seen.seen_ns),))
    assert (timings.of(fault) != IN_TIME) is is_late


def test_hours_before_in_all_likely_zones_and_by_no_whole_zone_together_is_long_before() -> None:
    timings, fault = timing(pair(KERNEL, JOB, 601 + 3 * 3600 + 420))
    shift, why = timings.of(fault)
    assert shift < -2
    assert why is not None
    assert "long before" in why


@pytest.mark.parametrize("days", [-700, -2, 2, 30, 365])
def test_days_apart_are_apart_in_every_zone(days: int) -> None:
    timings, fault = timing(pair(KERNEL, JOB, 601 + days * 86_400))
    assert timings.of(fault)[0] < -3
    assert timings.is_shown(fault) is True or timings.of(fault)[1] is not None


def test_a_job_in_utc_beside_a_host_that_writes_its_zone() -> None:
    """The job's stamps, read as UTC, fall together with the fault of a host an hour east of it."""
    timings, fault = timing(pair(of("kern.log", host=True, zone_s=3600), JOB, 601 - 3600))
    shift, _ = timings.of(fault)
    assert shift > -0.5


def test_a_job_that_writes_its_zone_tells_where_its_host_stands() -> None:
    """Nine hours east, as the job: there the fault and the wait fall together. A job in UTC would not tell it."""
    local = pair(KERNEL, of("job.log", host=False, zone_s=9 * 3600), 601)
    timings, fault = timing(local)
    assert timings.of(fault) == IN_TIME
    assert timings.is_shown(fault)
    in_utc = pair(KERNEL, of("job.log", host=False, zone_s=0), 601 - 9 * 3600)
    timings, fault = timing(in_utc)
    assert not timings.is_shown(fault)


def test_a_clock_that_counts_from_the_boot_tells_no_zone_of_its_host() -> None:
    known = ZoneOf(host="n1", of_host=True, east_ns=0, proved=True)
    bare = ZoneOf(host="n1", of_host=True, east_ns=0, proved=False)
    sure = Beliefs({"wall": bare, "other": known}).apart("wall", None)
    open_ = Beliefs({"wall": bare, "kernel": replace(known, by_uptime=True)}).apart("wall", None)
    assert sure[0] > open_[0]
    assert open_ == Beliefs({"wall": bare}).apart("wall", None)


def test_what_ties_two_clocks_orders_them_and_what_is_like_one_of_them() -> None:
    host = ZoneOf(host="n1", of_host=True, east_ns=0, proved=False)
    job = ZoneOf(host="n1", of_host=False, east_ns=0, proved=False)
    beliefs = Beliefs({"wall": host, "job": job, "job 2": replace(job, host="n2")}, {("wall", "job"): 9 * HOUR})
    assert beliefs.apart("wall", "job") == {9 * HOUR: 1.0}
    assert beliefs.apart("job", "wall") == {-9 * HOUR: 1.0}
    assert beliefs.apart("wall", "job 2")[9 * HOUR] > 0.9
    assert beliefs.apart("job 2", "wall")[-9 * HOUR] > 0.9


def test_the_users_word_orders_what_nothing_proves() -> None:
    zone = timezone(timedelta(hours=5))
    made = pair(of("kern.log", host=True, zone_s=0), JOB, 601 + 5 * 3600, zone=zone)
    timings, fault = timing(made)
    assert timings.of(fault) == IN_TIME
    assert timings.is_shown(fault)


def test_where_the_users_word_makes_a_fault_too_late_that_is_said_and_turns_nothing_round() -> None:
    made = pair(of("kern.log", host=True, zone_s=0), JOB, 601, zone=timezone(timedelta(hours=-6)))
    timings, fault = timing(made)
    shift, why = timings.of(fault)
    assert shift > -0.5
    assert why is not None
    assert "--timezone" in why


def test_an_order_by_days_needs_no_zone_and_one_by_minutes_does() -> None:
    far = pair(KERNEL, of("job.log", host=False, zone_s=0), 3 * 86_400)
    near = pair(KERNEL, of("job.log", host=False, zone_s=0), 900)
    assert far.before(*(timing(far)[1], timing(far)[0].failures[0].seen)) is True
    assert near.before(*(timing(near)[1], timing(near)[0].failures[0].seen)) is None


def test_a_shown_order_is_nearly_sure() -> None:
    assert SURE > 0.95
