"""What ties clocks together: which lines and records of dumps are meetings; a row for each that is or is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from short_form import BASE_NS, SECOND, events
from test_collectives import Job, Op, ddp

from nccl_forensics.model import Event
from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.when import meetings
from nccl_forensics.when.meetings import Entered


def timed(*short: dict[str, Any]) -> list[Event]:
    """Lines with the times that their own clocks show."""
    return [
        replace(
            e,
            time_ns=e.stamp.wall_ns if e.stamp is not None else None,
            uncertainty_ns=e.stamp.resolution_ns if e.stamp is not None else None,
        )
        for e in events({"events": list(short)})
    ]


def clock(event: Event) -> str:
    return event.host or "?"


def seconds(
    found: Iterable[tuple[object, str, int | None, int | None]],
) -> list[tuple[str, float | None, float | None]]:
    """(clock, entered, left), in seconds after BASE."""

    def s(ns: int | None) -> float | None:
        return None if ns is None else round((ns - BASE_NS) / SECOND, 3)

    return [(where, s(came), s(went)) for _, where, came, went in found]


def _init(host: str, at: float, phase: str = "START", comm: object = "0x1") -> dict[str, Any]:
    return {"kind": "nccl-init", "host": host, "at": at, "phase": phase, "comm_id": comm, "file": f"{host}.log"}


@pytest.mark.parametrize(
    ("lines", "met"),
    [
        ([_init("a", 1), _init("b", 3, "COMPLETE")], [("a", 1, None), ("b", None, 3)]),
        ([_init("a", 1, "DESTROY")], []),
        ([_init("a", 1, comm=None)], []),
        ([_init("a", 1, comm=7)], []),
        ([{**_init("a", 1), "kind": "nccl-info"}], []),
    ],
)
def test_a_communicator_that_is_set_up(lines: list[dict[str, Any]], met: list[Any]) -> None:
    assert seconds(meetings._set_up(timed(*lines), clock)) == met


def _loss(host: str, step: int, at: float, loss: object = None, **more: Any) -> dict[str, Any]:
    said = 1.0 / step if loss is None else loss
    return {"kind": "progress", "host": host, "step": step, "loss": said, "at": at, "file": f"{host}.log", **more}


def _both(steps: Iterable[int], **of_b: Any) -> list[dict[str, Any]]:
    return [_loss(host, n, 10 * n + (host == "b"), **(of_b if host == "b" else {})) for n in steps for host in "ab"]


@pytest.mark.parametrize(
    ("lines", "met"),
    [
        # three steps with the same loss on both; nobody enters step n before its line on step n - 1
        (
            _both([1, 2, 3]),
            [("a", None, 10), ("b", None, 11), ("a", 10, 20), ("b", 11, 21), ("a", 20, 30), ("b", 21, 31)],
        ),
        (_both([1, 2]), []),  # two may be chance
        (_both([1, 2, 3], loss=0.5), []),  # another loss on b
        (_both([1, 1, 1]), []),  # the same one again and again
        (_both([1, 3, 5]), [(h, None, 10 * n + (h == "b")) for n in (1, 3, 5) for h in "ab"]),
        ([_loss("a", n, 10 * n) for n in (1, 2, 3)], []),  # nobody else
        ([*_both([1, 2, 3]), _loss("a", 9, 90)], "as the first"),  # a step that b does not tell
        ([{**one, "kind": "setting"} for one in _both([1, 2, 3])], []),
        ([{**one, "loss": 1} for one in _both([1, 2, 3])], []),
        (
            # a's writer states step 2 again: there it was started anew, so neither step 2 nor 3 counts on its clock
            [*_both([1, 2, 3, 4]), _loss("a", 2, 99)],
            [("a", None, 10), ("b", None, 11), ("b", 11, 21), ("b", 21, 31), ("a", 30, 40), ("b", 31, 41)],
        ),
        ([*_both([1, 2, 3]), _loss("a", 2, 99, file="other.log")], "as the first"),  # another writer of the same clock
        ([*_both([1, 2, 3]), _loss("a", 2, 99, rank=7)], "as the first"),
    ],
)
def test_steps_whose_loss_is_everybodys(lines: list[dict[str, Any]], met: Any) -> None:
    if met == "as the first":
        met = seconds(meetings._steps(timed(*_both([1, 2, 3])), clock))
    assert seconds(meetings._steps(timed(*lines), clock)) == met


def _gave_up(rank: int | None, at: float, **more: Any) -> dict[str, Any]:
    return {"kind": "watchdog-timeout", "rank": rank, "host": f"n{rank}", "at": at, "seq": 1, "waited_ms": 1000, **more}


def _saw(rank: int, source: int | None, at: float) -> dict[str, Any]:
    return {"kind": "pg-dump-remote", "rank": rank, "host": f"n{rank}", "src_rank": source, "at": at}


@pytest.mark.parametrize(
    ("lines", "met"),
    [
        ([_gave_up(0, 5), _saw(1, 0, 6)], [("n0", 5, None), ("n1", None, 6)]),
        ([_gave_up(0, 8), _gave_up(0, 5), _saw(1, 0, 6)], [("n0", 5, None), ("n1", None, 6)]),
        ([_gave_up(0, 5), _gave_up(0, 8), _saw(1, 0, 6)], [("n0", 5, None), ("n1", None, 6)]),
        ([_gave_up(0, 3, repeated=True), _gave_up(0, 5), _saw(1, 0, 6)], [("n0", 5, None), ("n1", None, 6)]),
        ([_gave_up(0, 5), _saw(0, 0, 6)], []),  # its own
        ([_gave_up(0, 5), _saw(1, 2, 6)], []),  # of one that never says so
        ([_gave_up(0, 5), _saw(1, None, 6)], []),
        ([_gave_up(None, 5), _saw(1, 0, 6)], []),
        ([_gave_up(0, 5), {**_saw(1, 0, 6), "kind": "pg-observed"}], []),
    ],
)
def test_a_dump_signal_that_names_who_gave_it(lines: list[dict[str, Any]], met: list[Any]) -> None:
    assert seconds(meetings._signals(timed(*lines), clock)) == met


def test_lines_without_a_time_of_their_own_are_no_meetings() -> None:
    good = [_init("a", 1), _init("b", 2, "COMPLETE")]
    assert len(meetings.of_logs(timed(*good), clock)) == 1
    for spoilt in ({"at": None}, {"drifts": True}):
        assert meetings.of_logs(timed(good[0], {**good[1], **spoilt}), clock) == []


# --- dumps ------------------------------------------------------------------------------------------------------------

HALVES = {0: "a", 1: "a", 2: "b", 3: "b"}


def dumps(job: Job | None = None, rounds: int = 400) -> list[Dump]:
    job = job or ddp(4, 4)
    job.timing = True
    return [replace(d, completed_ns=d.completed_ns + (d.completed_ns > 0) * 5_000_000) for d in job.run(rounds)]


def held(found: list[Dump], clocks: dict[int, str] | None = None) -> list[tuple[tuple[str, ...], int]]:
    """(clocks, how many meetings) of each block."""
    blocks = meetings.of_dumps(found, clocks or HALVES)
    return [(b.clocks, b.entered.shape[1]) for b in blocks]


def _of(kind: str = "all_reduce", **more: Any) -> Job:
    job = ddp(4, 4)
    groups, programs = job.groups, [[Op(kind, "0", **more), "sync"] * 6 for _ in range(4)]
    return Job(groups, programs)


def test_collectives_that_all_finished_are_meetings() -> None:
    assert held(dumps()) == [(("a", "b"), 12)]


@pytest.mark.parametrize(
    ("kind", "meetings_"),
    [("all_reduce", 6), ("_allgather_base", 6), ("broadcast", 0), ("all_to_all", 0), ("send", 0)],
)
def test_only_what_waits_for_everybody_is_a_meeting(kind: str, meetings_: int) -> None:
    found = held(dumps(_of(kind)))
    assert [n for _, n in found] == ([meetings_] if meetings_ else [])


def test_what_has_no_data_waits_for_nobody() -> None:
    assert held(dumps(_of(size=0))) == []


def test_one_clock_has_nobody_to_meet() -> None:
    assert held(dumps(), dict.fromkeys(range(4), "a")) == []
    assert held(dumps(), {0: "a", 1: "a"}) == []
    assert held(dumps(), {0: "a", 2: "b"}) == [(("a", "b"), 12)]  # ranks of no known host are left out


def test_gloo_tells_no_end() -> None:
    job = ddp(4, 4)
    job.backend = "gloo"
    assert held(dumps(job)) == []


def test_what_took_as_long_as_its_limit_was_aborted() -> None:
    found = dumps()
    short = [replace(d, timeout_ms=np.where(np.arange(d.count) == 3, 1, d.timeout_ms)) for d in found]
    assert all(int(d.completed_ns[3] - d.created_ns[3]) > 1_000_000 for d in found)
    assert held(short) == [(("a", "b"), 11)]
    unlimited = [replace(d, timeout_ms=np.zeros_like(d.timeout_ms)) for d in found]
    assert held(unlimited) == [(("a", "b"), 12)]


def test_a_call_that_differs_is_no_meeting() -> None:
    job = ddp(4, 4)
    job.programs[2][0] = replace(job.programs[2][0], line=99)
    assert held(dumps(job)) == [(("a", "b"), 12)]  # from another line, but the same call
    found = dumps()
    other = replace(found[2], call=np.where(np.arange(found[2].count) == 0, found[2].call[1], found[2].call))
    assert held([found[0], found[1], other, found[3]]) == [(("a", "b"), 11)]


def test_what_one_dump_does_not_reach_is_no_meeting() -> None:
    found = dumps()
    keep = ["group", "seq", "p2p_seq", "op_id", "record_id", "call", "stack", "created_ns", "started_ns"]
    keep += ["completed_ns", "timeout_ms", "flags"]
    shorter = replace(found[3], **{x: getattr(found[3], x)[:7] for x in keep})
    assert held([*found[:3], shorter]) == [(("a", "b"), 7)]
    later = replace(found[3], **{x: getattr(found[3], x)[5:] for x in keep})
    assert held([*found[:3], later]) == [(("a", "b"), 12)]  # the other rank of that host tells the rest
    cut = replace(shorter, partial=True)  # what a dump lacks that is cut off says nothing
    assert held([*found[:3], cut]) == [(("a", "b"), 12)]


def test_old_recorders_count_sends_and_collectives_alike() -> None:
    for version, meetings_ in (("1.4", [12]), ("2.10", [12])):
        assert [n for _, n in held([replace(d, version=version) for d in dumps()])] == meetings_


# --- when a rank entered what its watchdog waited for -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "seq", "numel", "came"),
    [
        (0, 1, None, 1),
        (0, 1, 4096, 1),
        (0, 2, 512, 1),
        (0, 2, 4096, 0),  # another size
        (0, 99, None, 0),
        (9, 1, None, 0),
    ],
)
def test_when_a_rank_entered(rank: int, seq: int, numel: int | None, came: int) -> None:
    assert len(meetings.entered(dumps()).at(rank, seq, numel)) == came


def test_nothing_is_known_without_dumps() -> None:
    assert not Entered()
    assert meetings.entered(dumps())


def _waited(at_s: float, **more: Any) -> dict[str, Any]:
    line = {"kind": "watchdog-timeout", "rank": 0, "host": "a", "seq": 1, "waited_ms": 600_000, "at": at_s}
    return {**line, **more}


def _waits(*lines: dict[str, Any]) -> list[tuple[str, float]]:
    """(clock, by how many seconds it was set) as the watchdogs of rank 0 and 1, and their dumps, tell."""
    found = dumps()
    begun_ns = int(found[0].created_ns[0])
    moved = [replace(d, created_ns=d.created_ns - begun_ns + BASE_NS) for d in found]
    told = meetings.waits(timed(*lines), meetings.entered(moved), clock)
    return [(w.clock, round(w.set_by_ns / SECOND)) for w in told]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([_waited(600)], [("a", 0)]),
        ([_waited(601)], [("a", 1)]),
        ([_waited(640)], [("a", 40)]),
        ([_waited(560)], [("a", -40)]),
        ([_waited(640), _waited(640.1, rank=1)], [("a", 40)]),
        ([_waited(600), _waited(640, rank=1)], []),  # they disagree
        ([_waited(600), _waited(640, rank=1, host="b")], [("a", 0), ("b", 40)]),
        ([_waited(4200)], []),  # an hour off: read in another zone than it was written in
        ([_waited(600 - 5.5 * 3600)], []),
        ([_waited(600, seq=99)], []),
        ([_waited(600, seq=None)], []),
        ([_waited(600, waited_ms=None)], []),
        ([_waited(600, repeated=True)], []),
        ([_waited(600, drifts=True)], []),
        ([_waited(600, rank=None)], []),
        ([_waited(600, kind="pg-blocking")], []),
        ([{**_waited(600), "at": None}], []),
    ],
)
def test_was_a_clock_set_while_a_watchdog_waited(lines: list[dict[str, Any]], told: list[tuple[str, float]]) -> None:
    assert _waits(*lines) == told
