"""Which lines show that a job was started anew, by itself or by its launcher: a row for each way to tell."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from short_form import BASE_NS, SECOND, events, rows
from test_parts_of_jobs import part, window

from nccl_forensics.lines.stamps import with_year
from nccl_forensics.model import Event, GroupState, Reconstruction
from nccl_forensics.starts import jobs, runs, slurm_names
from nccl_forensics.starts.near import Near
from nccl_forensics.verdict import summary
from nccl_forensics.verdict.case import Case
from nccl_forensics.when import years
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who.attribute import attribute
from nccl_forensics.who.table import identify


def timed(*short: dict[str, Any]) -> list[Event]:
    return [
        replace(
            e,
            time_ns=e.stamp.wall_ns if e.stamp is not None else None,
            time_basis="stamp" if e.stamp is not None else "none",
            clock="job",
        )
        for e in events({"events": list(short)})
    ]


def told(*short: dict[str, Any]) -> list[tuple[float | None, int | None, bool]]:
    """(from when on, which attempt, another run?) of each start that lines tell of."""
    return [
        (None if s.at_ns is None else (s.at_ns - BASE_NS) / SECOND, s.attempt, s.run) for s in runs._told(timed(*short))
    ]


def step(n: int, at: float | None, **more: Any) -> dict[str, Any]:
    return {"kind": "progress", "what": "training step", "step": n, "at": at, "rank": 0, **more}


def restart(at: float | None, attempt: int | None = None, file: str = "a.log", **more: Any) -> dict[str, Any]:
    return {"kind": "restart", "at": at, "attempt": attempt, "file": file, **more}


def init(at: float, rank: int = 0, pid: int | None = None, nranks: int = 2, **more: Any) -> dict[str, Any]:
    return {"kind": "nccl-init", "at": at, "rank": rank, "pid": pid, "nranks": nranks, "host": "n1", **more}


END: dict[str, Any] = {"kind": "exit", "code": 1, "at": 100, "rank": 0}
GAVE_UP: dict[str, Any] = {"kind": "watchdog-timeout", "rank": 0, "at": 100, "seq": 1, "waited_ms": 1000}
HOUR = 3600


@pytest.mark.parametrize(
    ("lines", "starts"),
    [
        ([step(1, 0), step(2, 10)], []),
        # a launcher's word
        ([step(1, 0), restart(50)], [(50, 1, False)]),
        ([step(1, 0), restart(50), step(1, 60), restart(90, 1)], [(50, 1, False), (90, 2, False)]),
        ([restart(50), restart(52, file="b.log")], [(52, 1, False)]),  # another node's word on the same start
        ([restart(50), restart(None, file="b.log")], [(50, 1, False)]),
        ([restart(50), step(1, 55), restart(60, file="b.log")], [(50, 1, False)]),  # late, after work had begun
        ([restart(50), restart(60)], [(50, 1, False), (60, 1, False)]),  # it counts from the beginning again
        ([restart(50, 1), restart(60), restart(70, file="b.log")], [(50, 2, False), (70, 1, False)]),
        ([restart(None)], [(None, 1, False)]),
        # processes of a start that the launcher told of are no start of their own
        ([init(0, pid=1), restart(50, file="job.log"), init(60, pid=2)], [(60, 1, False)]),
        # a process that begins again after the job gave up
        ([init(0, pid=1), GAVE_UP, init(200, pid=2)], [(200, None, False)]),
        ([init(0, pid=1), GAVE_UP, init(200, pid=1)], []),  # the same process
        ([init(0, pid=1), init(200, pid=2)], []),  # nothing had failed
        ([init(0, pid=1), GAVE_UP, init(200, rank=1, pid=2)], []),  # another rank, which begins late
        ([init(0, pid=1), GAVE_UP, init(200, pid=2, nranks=1)], []),  # a group of its own
        ([init(0), GAVE_UP, init(200)], []),  # without a number: only after the end of processes
        ([init(0), END, init(200)], [(200, None, False)]),
        ([init(0, pid=1), GAVE_UP, init(50, pid=2, file="b.log")], []),  # written before that
        ([init(0, pid=1), GAVE_UP, init(150, pid=2, file="b.log")], [(150, None, False)]),
        ([init(0, pid=1), {**GAVE_UP, "role": "context"}, init(200, pid=2)], []),
        ([init(0, pid=1), {"kind": "slurm-cancel", "at": 100}, init(200, pid=2)], [(200, None, False)]),
        # hours later it is another run
        ([init(0, pid=1), GAVE_UP, init(100 + 6 * HOUR, pid=2)], [(100 + 6 * HOUR, None, False)]),
        ([init(0, pid=1), GAVE_UP, init(101 + 6 * HOUR, pid=2)], [(101 + 6 * HOUR, None, True)]),
        ([init(0, pid=1), {**GAVE_UP, "at": None}, init(101 + 6 * HOUR, pid=2)], [(101 + 6 * HOUR, None, False)]),
        # steps that begin again
        ([step(7, 0), END, step(1, 200), step(2, 210), step(3, 220)], [(200, None, False)]),
        ([step(7, 0), END, step(8, 200), step(9, 210)], []),
        ([step(7, 0), step(1, 200), step(2, 210), step(3, 220)], []),  # nothing had ended
        ([step(7, 0), GAVE_UP, step(1, 200), step(2, 210), step(3, 220)], []),
        ([step(7, 0), END, step(6, 200)], []),  # output that comes late
        ([step(7, 0), END, init(150, rank=1), step(6, 200)], [(200, None, False)]),
        ([step(7, 0), END, step(1, 200, rank=1), step(2, 210, rank=1)], []),  # another rank's own
    ],
)
def test_starts_that_lines_tell_of(
    lines: list[dict[str, Any]], starts: list[tuple[float | None, int | None, bool]]
) -> None:
    assert told(*lines) == starts


@pytest.mark.parametrize(
    ("left", "of", "said"),
    [(3, 3, (2, 3)), (1, 3, (0, 3)), (None, 3, None), (3, None, None)],
)
def test_how_many_starts_are_left(left: int | None, of: int | None, said: tuple[int, int] | None) -> None:
    (event,) = timed(restart(5, left=left, of=of))
    assert runs._Start(event, 5).restarts() == said
    (other,) = timed(step(1, 5, left=left, of=of))
    assert runs._Start(other, 5).restarts() is None


def _starts(*told: tuple[float | None, int | None]) -> list[runs._Start]:
    (event,) = timed(step(1, 0))
    return [runs._Start(event, None if at is None else int(at), attempt=attempt) for at, attempt in told]


@pytest.mark.parametrize(
    ("starts", "order"),
    [
        ([(30, 1), (10, 2), (20, 3)], [2, 3, 1]),  # by time
        ([(30, 3), (None, 1), (20, 2)], [1, 2, 3]),  # by number
        ([(30, 3), (None, None), (20, 2)], [3, None, 2]),  # as they came
    ],
)
def test_the_order_of_starts(starts: list[tuple[float | None, int | None]], order: list[int | None]) -> None:
    assert [s.attempt for s in runs._in_order(_starts(*starts))] == order


@pytest.mark.parametrize(
    ("lines", "known", "found"),
    [
        ([step(1, 5, attempt=0), step(1, 50, attempt=1)], set(), [(1, 50)]),
        ([step(1, 5, attempt=1), step(1, 50, attempt=2)], set(), [(2, 50)]),  # the first that is there
        ([step(1, 5, attempt=0), step(1, 50, attempt=1)], {1}, []),
        ([step(1, 5, attempt=0), step(1, None, attempt=1), step(2, 60, attempt=1)], set(), [(1, 60)]),
        ([step(1, 5, attempt=0), step(1, None, attempt=1)], set(), [(1, None)]),
        ([step(1, 5, attempt=0), restart(50, attempt=1)], set(), []),
        ([step(1, 5)], set(), []),
    ],
)
def test_starts_that_only_numbers_of_files_tell_of(
    lines: list[dict[str, Any]], known: set[int | None], found: list[tuple[int, float | None]]
) -> None:
    made = runs._numbered(timed(*lines), known)
    assert [(s.attempt, None if s.at_ns is None else (s.at_ns - BASE_NS) / SECOND) for s in made] == found


def _failed(at: float, **more: Any) -> dict[str, Any]:
    return {**GAVE_UP, "at": at, **more}


@pytest.mark.parametrize(
    ("lines", "apart"),
    [
        ([_failed(0), _failed(6 * HOUR)], []),
        ([_failed(0), step(1, HOUR), _failed(6 * HOUR + 1)], [(0, 6 * HOUR + 1, HOUR)]),
        ([_failed(0), _failed(7 * HOUR)], []),  # no work between them, and not a day
        ([_failed(0), _failed(24 * HOUR)], [(0, 24 * HOUR, 24 * HOUR - 1)]),  # since when it waited
        ([_failed(0), _failed(24 * HOUR - 1)], []),
        ([_failed(0), _failed(24 * HOUR, waited_ms=25 * HOUR * 1000)], []),  # it has waited since before that
        ([step(1, -5), _failed(0), _failed(7 * HOUR), step(2, 8 * HOUR)], []),
    ],
)
def test_failures_far_apart_are_of_two_runs(
    lines: list[dict[str, Any]], apart: list[tuple[float, float, float]]
) -> None:
    def s(ns: int | None) -> float:
        return ((ns or 0) - BASE_NS) / SECOND

    assert [(s(old), s(new), s(begun.time_ns)) for old, new, begun in runs._apart(timed(*lines))] == apart


def test_a_gap_that_a_start_lies_in_is_no_second_start() -> None:
    lines = [_failed(0), init(7 * HOUR, pid=1), init(7 * HOUR, rank=1, pid=2), _failed(15 * HOUR)]
    assert [s.run for s in runs._starts(timed(*lines))] == [True]
    again = [init(-9, pid=1), _failed(0), init(7 * HOUR, pid=2), _failed(15 * HOUR)]
    assert [s.run for s in runs._starts(timed(*again))] == [True]


def test_a_launcher_that_counts_from_the_beginning_was_itself_started_anew() -> None:
    lines = [init(0, pid=1), GAVE_UP, init(200, pid=2), restart(300, file="job.log")]
    assert [(s.attempt, s.run) for s in runs._starts(timed(*lines))] == [(None, True), (1, False)]
    later = [init(0, pid=1), GAVE_UP, init(200, pid=2), restart(300, 1, file="job.log")]
    assert [(s.attempt, s.run) for s in runs._starts(timed(*later))] == [(None, False), (2, False)]


def test_files_show_where_their_starts_begin() -> None:
    first, second = timed(restart(5), restart(9))
    starts = [runs._Start(first, 5, {"a.log": 7, "b.log": 3}, 1), runs._Start(second, 9, {"a.log": 2}, 2)]
    assert runs._marks(starts) == {"a.log": [(2, 2), (7, 1)], "b.log": [(3, 1)]}


@pytest.mark.parametrize(("line", "lines"), [(3, {"job.log": 3}), (None, {})])
def test_a_start_by_itself_begins_with_its_first_line(line: int | None, lines: dict[str, int]) -> None:
    (event,) = timed(init(0))
    event = replace(event, evidence=replace(event.evidence, line=line))
    assert runs._again(event, None).lines == lines


# --- numbers in files' names ------------------------------------------------------------------------------------------


def _names(*lines: dict[str, Any]) -> list[tuple[str, str]]:
    case = {"events": list(lines)}
    found = events(case)
    return sorted(slurm_names.slurm_numbers(rows(case, found), found))


def _of(file: str, rank: int | None = 0, at: float = 5, **more: Any) -> dict[str, Any]:
    return {"kind": "watchdog-timeout", "file": file, "rank": rank, "at": at, "seq": 42, "waited_ms": 1000, **more}


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ([_of("slurm-4711.out")], [("slurm-4711.out", "4711")]),
        ([_of("p/slurm-4711_3.out")], [("p/slurm-4711_3.out", "4711_3")]),  # of an array
        ([_of("train.log")], []),
        # tasks of one job, which waited in the same operation
        ([_of("slurm-11.out", 0), _of("slurm-12.out", 1)], []),
        ([_of("slurm-7_1.out", 0), _of("slurm-7_2.out", 1)], [("slurm-7_1.out", "7"), ("slurm-7_2.out", "7")]),
        # near misses: another operation, another time, the same rank, numbers apart, numbers of jobs
        ([_of("slurm-11.out", 0), _of("slurm-12.out", 1, seq=43)], [("slurm-11.out", "11"), ("slurm-12.out", "12")]),
        ([_of("slurm-11.out", 0), _of("slurm-12.out", 1, at=66)], [("slurm-11.out", "11"), ("slurm-12.out", "12")]),
        ([_of("slurm-11.out", 3), _of("slurm-12.out", 3)], [("slurm-11.out", "11"), ("slurm-12.out", "12")]),
        ([_of("slurm-11.out", 0), _of("slurm-13.out", 1)], [("slurm-11.out", "11"), ("slurm-13.out", "13")]),
        (
            [_of("slurm-5011.out", 0), _of("slurm-5012.out", 1)],
            [("slurm-5011.out", "5011"), ("slurm-5012.out", "5012")],
        ),
        # there is no job 0
        ([_of("slurm-0.out", None), _of("slurm-2.out", None, seq=43)], []),
    ],
)
def test_the_job_in_a_files_name(lines: list[dict[str, Any]], numbers: list[tuple[str, str]]) -> None:
    assert _names(*lines) == numbers


# --- files near to no job, attempts, years ----------------------------------------------------------------------------


def test_files_that_are_near_to_no_job_stay_by_themselves() -> None:
    first = part("p/a/x.log", hosts=["n1"], worlds=[8], times={True: window(0, 10)})
    second = part("p/b/x.log", hosts=["n2"], worlds=[16], times={True: window(90_000, 90_010)})
    loose = [part("p/a/y.log"), part("p/z.log", hosts=["n9"]), part("p/w.log", hosts=["n2"])]
    dumps: list[Any] = [
        SimpleNamespace(path="p/dump_0", groups=[SimpleNamespace(members=tuple(range(8)))]),
        SimpleNamespace(path="p/dump_1", groups=[SimpleNamespace(members=(0, 1))]),
    ]
    inside, rest = jobs._shared_out(Near([[first], [second]]), [first, second, *loose], dumps)
    assert inside == [{"p/a/x.log", "p/a/y.log", "p/dump_0"}, {"p/b/x.log", "p/w.log"}]
    assert rest == {"p/z.log", "p/dump_1"}


@pytest.mark.parametrize(("own", "attempt"), [(None, 2), (1, 1), (0, 0)])
def test_a_lines_own_attempt_stands_before_its_folders(own: int | None, attempt: int) -> None:
    case = {"events": [{"kind": "python-exception", "file": "run/attempt_2/5/stderr.log", "attempt": own}]}
    found = events(case)
    its = rows(case, found)
    (event,), _ = attribute(found, its, identify(its, found))
    assert event.attempt == attempt
    assert event.local_rank == 5


@pytest.mark.parametrize(("days", "apart"), [(0, 0), (10, 10), (200, 165), (365, 0), (-10, 10)])
def test_how_far_times_are_apart_in_any_year(days: int, apart: int) -> None:
    day = 86_400 * SECOND
    undated = with_year(BASE_NS, years.NO_YEAR)
    dated = BASE_NS + days * day
    assert round(years.apart_in_any_year(undated, dated) / day) == apart
    assert years.apart_in_any_year(dated, undated) == years.apart_in_any_year(undated, dated)


def test_who_perhaps_ran_on_a_named_card_is_no_mere_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(
        events=(),
        known=identify([], []),
        collectives=Reconstruction(groups=(GroupState(name="0"),)),
        aligned=Aligned((), (), frozenset()),
    )
    verdict: Any = SimpleNamespace(ranks=(), reporting_ranks=(0, 1, 2), cannot_exclude=(1,))
    monkeypatch.setattr(summary, "perhaps_on_gpus", lambda *_: (1, 2))
    assert summary._victims(verdict, case) == [0, 2]
    monkeypatch.setattr(summary, "perhaps_on_gpus", lambda *_: ())
    assert summary._victims(verdict, case) == [0, 1, 2]
    verdict.ranks = (1,)
    assert summary._victims(verdict, case) == [0, 2]
    verdict.ranks = (1, 2)
    assert summary._victims(verdict, case) == []
