"""Who never came, as the watchdogs' lines tell: tests/cases/watchdogs/CASE.json (short_form.py).

`want`: `groups` in order, each with the fields that matter (times in seconds after BASE); `suspects` (ranks, cause,
`below`: the weight stays under it); `suspects_not`: causes that nobody may be suspected of; `cannot_exclude`;
`cleared`: ranks; `waits`: [waiter, waited].
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from short_form import BASE_NS, SECOND, cases, events, load, recorded, rows

from nccl_forensics.model import Event, GroupState, RankCounters, Reconstruction
from nccl_forensics.waits import watchdogs
from nccl_forensics.waits.merge import merge
from nccl_forensics.when import align
from nccl_forensics.who.roster import likely_world
from nccl_forensics.who.table import identify

CASES = cases("watchdogs")
params = pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)


def reconstructed(case: dict[str, Any], found: list[Event]) -> Reconstruction:
    its = rows(case, found)
    known = identify(its, found)
    aligned = align.align(found, its)
    return watchdogs.reconstruct(aligned.events, known)


def _field(group: GroupState, key: str) -> Any:
    if key.endswith("_arrival_s"):
        at = getattr(group, key.removesuffix("_s") + "_ns")
        return None if at is None else (at - BASE_NS) / SECOND
    value = getattr(group, key)
    return list(value) if isinstance(value, tuple) else value


@params
def test_case(path: Path) -> None:
    case = load(path)
    made, want = reconstructed(case, events(case)), case["want"]
    if "groups" in want:
        assert len(made.groups) == len(want["groups"])
        for group, fields in zip(made.groups, want["groups"], strict=True):
            assert {k: _field(group, k) for k in fields} == fields
    if "suspects" in want:
        assert [(list(s.ranks), s.cause) for s in made.suspects] == [(s["ranks"], s["cause"]) for s in want["suspects"]]
        for suspect, said in zip(made.suspects, want["suspects"], strict=True):
            assert suspect.weight < said.get("below", 99)
    assert not {s.cause for s in made.suspects} & set(want.get("suspects_not", ()))
    if "cannot_exclude" in want:
        assert list(made.cannot_exclude) == want["cannot_exclude"]
    if "cleared" in want:
        assert [rank for rank, _ in made.cleared] == want["cleared"]
    if "waits" in want:
        assert [[w.waiter, list(w.waited)] for w in made.waits] == want["waits"]


@params
def test_no_suspect_without_evidence_and_nobody_both_blamed_and_cleared(path: Path) -> None:
    case = load(path)
    made = reconstructed(case, events(case))
    named = {r for s in made.suspects for r in s.ranks}
    assert all(s.evidence and s.says for s in made.suspects)
    assert not named & {rank for rank, _ in made.cleared}
    assert not named & set(made.cannot_exclude)
    for group in made.groups:
        parts = [set(group.arrived), set(group.missing), set(group.no_data)]
        assert sum(map(len, parts)) == len(set().union(*parts))
        if group.members:
            assert set().union(*parts) == set(group.members)


@params
def test_the_order_of_files_does_not_matter(path: Path) -> None:
    """Each line in a file of its own, files in the other order: the same suspects."""
    case = load(path)
    apart = [replace(e, evidence=replace(e.evidence, source=f"f{n}.log", line=1)) for n, e in enumerate(events(case))]
    one, other = reconstructed(case, apart), reconstructed(case, apart[::-1])
    assert [(s.ranks, s.cause, s.weight) for s in one.suspects] == [
        (s.ranks, s.cause, s.weight) for s in other.suspects
    ]
    assert {g.seq for g in one.groups} == {g.seq for g in other.groups}
    assert one.cannot_exclude == other.cannot_exclude


def test_dumps_stand_before_lines() -> None:
    case = load(next(p for p in CASES if p.stem == "one-is-missing"))
    lines = reconstructed(case, events(case))
    stuck = {"seq": 42, "members": [0, 1, 2, 3]}
    dumps = recorded({"suspects": [{"ranks": [2], "cause": "gpu_stall", "weight": 3.0, "group": stuck}]})
    both = merge(dumps, lines)
    assert [(s.ranks, s.cause) for s in both.suspects] == [((2,), "gpu_stall")]
    assert both.groups == dumps.groups
    assert 2 not in {rank for rank, _ in both.cleared}
    assert {0, 1} <= {rank for rank, _ in both.cleared}


def test_healthy_dumps_do_not_hide_a_timeout_in_the_log() -> None:
    case = load(next(p for p in CASES if p.stem == "one-is-missing"))
    lines = reconstructed(case, events(case))
    both = merge(Reconstruction(healthy=True, counters=(RankCounters(rank=0),)), lines)
    assert not both.healthy
    assert both.suspects == lines.suspects


def test_without_dumps_the_lines_stand_alone() -> None:
    case = load(next(p for p in CASES if p.stem == "one-is-missing"))
    lines = reconstructed(case, events(case))
    assert merge(Reconstruction(), lines) == lines


@pytest.mark.parametrize(
    ("event", "rank"),
    [
        ({"kind": "watchdog-timeout", "rank": 3, "group_rank": 1}, 3),
        ({"kind": "watchdog-timeout", "group_rank": 1}, None),
        ({"kind": "store-barrier", "at_rank": 4}, 4),
        ({"kind": "pg-uniqueid", "waiting_rank": 2}, 2),
        ({"kind": "monitored-barrier", "missing": [1]}, 0),
        ({"kind": "pg-observed", "rank": 3}, None),
        ({"kind": "pg-abort", "rank": 3}, None),
        ({"kind": "exit", "rank": 3, "code": 1}, None),
    ],
)
def test_who_complains_is_a_reporter(event: dict[str, Any], rank: int | None) -> None:
    found = watchdogs.reporting_ranks(events({"events": [event]}))
    assert found == (() if rank is None else (rank,))


@pytest.mark.parametrize(
    ("seen", "world"),
    [
        ({0, 1, 2, 3}, 4),
        ({3}, 4),
        ({67}, 68),
        ({68}, None),
        ({999_999}, None),
        (set(range(500)) | {1023}, 1024),
        (set(range(70_000)), None),
        (set(), None),
    ],
)
def test_a_rank_far_above_those_that_are_seen_makes_no_world(seen: set[int], world: int | None) -> None:
    assert likely_world(seen) == world
