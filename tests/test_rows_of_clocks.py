"""Years of rotated files, stretches that a user asks for, clocks that were set: a row for each way to decide."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from short_form import BASE_NS, SECOND, events
from test_meetings import timed

from nccl_forensics.lines.stamps import with_year
from nccl_forensics.model import Event
from nccl_forensics.when import align, belief, host_zones, steps, years
from nccl_forensics.when.jumps import Step, same_step
from nccl_forensics.who import roster


def by_source(**files: list[str | None]) -> dict[str, list[Event]]:
    """File (`_` for a dot) → its lines, by what they write as their time."""
    lines = [
        {"kind": "xid", "xid": 79, "file": f.replace("_", "."), "at": at} for f, ats in files.items() for at in ats
    ]
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events({"events": lines}):
        found[event.evidence.source].append(event)
    return dict(found)


OLD, MIDDLE, NEW = ["03-01 10:00:00", "03-08 10:00:00"], ["03-08 10:00:30", "03-15 10:00:00"], ["03-15 10:00:01"]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"kern_log": NEW, "kern_log_1": MIDDLE, "kern_log_2": OLD}, [["kern.log.2", "kern.log.1", "kern.log"]]),
        ({"kern_log": NEW, "kern_log_2_gz": OLD}, [["kern.log.2.gz", "kern.log"]]),
        ({"kern_log_1": OLD, "kern_log_1_gz": OLD}, [["kern.log.1"], ["kern.log.1.gz"]]),  # copies
        ({"kern_log": OLD, "kern_log_1": MIDDLE}, [["kern.log.1"], ["kern.log"]]),  # not what followed
        ({"kern_log": ["01-02 10:00:00"], "kern_log_1": ["12-30 10:00:00"]}, [["kern.log.1", "kern.log"]]),
        ({"kern_log": NEW, "messages_1": OLD}, [["kern.log"], ["messages.1"]]),
        ({"kern_log": [None], "kern_log_1": [None]}, [["kern.log.1", "kern.log"]]),
        ({"kern_log": NEW, "kern_log_1": [None]}, [["kern.log.1"], ["kern.log"]]),
    ],
)
def test_rotated_files_of_one_log(files: dict[str, list[str | None]], found: list[list[str]]) -> None:
    assert sorted(years.chains(by_source(**files))) == sorted(found)


@pytest.mark.parametrize(
    ("known", "declared", "found"),
    [
        ({"kern.log": 2026}, None, {"kern.log": 2026, "kern.log.1": 2025, "kern.log.2": 2025}),
        ({"kern.log.2": 2025}, None, {"kern.log": 2026, "kern.log.1": 2025, "kern.log.2": 2025}),
        ({"kern.log": 2026, "kern.log.2": 2019}, None, {"kern.log": 2026, "kern.log.1": 2025, "kern.log.2": 2019}),
        ({"kern.log": 2026, "kern.log.2": 2019}, 2026, {"kern.log": 2026, "kern.log.1": 2025, "kern.log.2": 2025}),
        ({}, None, {"kern.log": None, "kern.log.1": None, "kern.log.2": None}),
    ],
)
def test_the_year_of_a_rotated_file(known: dict[str, int], declared: int | None, found: dict[str, int | None]) -> None:
    need = by_source(kern_log=["01-02 10:00:00"], kern_log_1=["12-20 10:00:00"], kern_log_2=["12-01 10:00:00"])
    assert years._with_rotated_years({**dict.fromkeys(need), **known}, need, declared) == found


NOON = with_year(by_source(a=["03-10 12:00:00"])["a"][0].stamp.wall_ns, 1972)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("source", "year"),
    [
        ("kern.log-20260315", 2026),
        ("kern.log-20260310", 2026),
        ("kern.log-20260309", 2025),  # its last line is younger: of the year before
        ("logs-20260315/kern.log", None),
        ("b.tar!kern.log-20260315.gz", 2026),
        ("kern.log.1", None),
    ],
)
def test_the_year_in_a_rotated_files_name(source: str, year: int | None) -> None:
    assert years._by_rotation(NOON, source) == year


@pytest.mark.parametrize(
    ("since", "until", "year"),
    [(2026, 2026, 2026), (2025, 2026, None), (2026, 2027, None)],
)
def test_a_year_between_a_journals_ends(since: int, until: int, year: int | None) -> None:
    begin = with_year(by_source(a=["03-01 00:00:00"])["a"][0].stamp.wall_ns, since)  # type: ignore[union-attr, arg-type]
    end = with_year(by_source(a=["03-20 00:00:00"])["a"][0].stamp.wall_ns, until)  # type: ignore[union-attr, arg-type]
    assert years._between_ends(NOON, begin, end) == year


def test_a_wall_time_in_the_year_of_a_moment() -> None:
    assert host_zones._in_year_of(BASE_NS, BASE_NS - 5) == BASE_NS - 5
    undated = with_year(BASE_NS, 1972)
    assert host_zones._in_year_of(BASE_NS, undated) == BASE_NS


def test_chances_of_zones_where_nothing_tells() -> None:
    found = belief.common()
    assert sum(found.values()) == pytest.approx(1.0)
    assert found[0] == belief.UTC_AT_ALL
    assert len(found) == 1 + 24 + len(belief.FRACTIONS)
    assert found[belief.HOUR] == found[-belief.HOUR] > found[round(5.5 * belief.HOUR)] > 0


# --- clocks that were set ---------------------------------------------------------------------------------------------


def step(clock: str | None = "a", after: float = 0, before: float = 10, by: float = 60) -> Step:
    return Step(clock=clock, after_ns=int(after * SECOND), before_ns=int(before * SECOND), by_ns=int(by * SECOND))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (step(), True),
        (step(clock=None), True),  # one of several, and nothing tells which
        (step(clock="b"), False),
        (step(by=65), True),
        (step(by=67), False),
        (step(by=-60), False),
        (step(after=70, before=90), True),
        (step(after=72, before=90), False),
        (step(after=-200, before=-50), True),
        (step(after=-200, before=-52), False),
    ],
)
def test_one_step_told_and_shown(other: Step, same: bool) -> None:
    assert same_step(step(), other) is same


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"step": "-3.5"}, -3.5),
        ({"step": 2}, 2),
        ({"step2": 1.5}, 1.5),
        ({"step": None, "step2": 1.5}, 1.5),
        ({"step": 4, "step2": 1.5}, 4),
        ({"step": "soon"}, 0),
        ({}, 0),
    ],
)
def test_by_how_much_the_time_service_set_a_clock(said: dict[str, Any], seconds: float) -> None:
    (event,) = timed({"kind": "chrony-step", **said})
    assert steps._set_by_ns(event) == seconds * SECOND


def test_what_a_clocks_row_says_of_steps() -> None:
    told: Any = SimpleNamespace(steps=(step("a", by=60), step(None, by=-2.5), step("b")))
    own, perhaps = align._set("a", told)
    assert own.startswith("it was set forward by about 60.0 s between ")
    assert perhaps.startswith("it, or the one it is held against, was set back by about 2.5 s between ")
    assert len(align._set("b", told)) == 2
    assert len(align._set("c", told)) == 1


# --- how many ranks there are -----------------------------------------------------------------------------------------


def _setting(**more: Any) -> dict[str, Any]:
    return {"kind": "setting", **more}


@pytest.mark.parametrize(
    ("lines", "widest", "world"),
    [
        ([_setting(world_size=8)], None, 8),
        ([_setting(world_size=8), _setting(world_size=16), _setting(world_size=16)], None, 16),
        ([_setting(world_size=8)], 16, 16),
        ([*[_setting(world_size=8)] * 11], 16, 8),
        ([_setting(world_size=0), _setting(world_size=10**9)], None, None),
        ([_setting(nodes=2, local_world=4)], None, 8),
        ([_setting(nodes=2, local_world=4), _setting(nodes=3, local_world=4)], None, None),
        ([_setting(nodes=2)], None, None),
        ([_setting(nodes=0, local_world=4)], None, None),
        ([_setting(nodes=10**6, local_world=10**3)], None, None),
        ([], None, None),
    ],
)
def test_the_size_of_a_job_by_most_statements(
    lines: list[dict[str, Any]], widest: int | None, world: int | None
) -> None:
    assert roster.stated_world(events({"events": lines}), widest) == world


@pytest.mark.parametrize(
    ("lines", "least"),
    [
        ([_setting(local_world=4)], 4),
        ([_setting(local_world=4), _setting(local_world=8)], 0),  # two jobs, or two kinds of nodes
        ([_setting(local_world=4), {"kind": "setting", "world_size": 8}], 4),
        ([], 0),
    ],
)
def test_as_many_ranks_as_a_launcher_proves(lines: list[dict[str, Any]], least: int) -> None:
    assert roster.at_least(events({"events": lines})) == least
