"""Who comes last again and again: made spans and made dumps, with near misses."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from recorded import RECORDED
from test_collectives import ddp, folder, mesh, verdict

from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.waits import dumped
from nccl_forensics.waits.lateness import Late, Spans, chronic, culprit

SECOND = 10**9


def spans(
    late: dict[int, float], *, world: int = 4, count: int = 40, since: int = 0, seed: int = 1
) -> dict[int, Spans]:
    """Ranks that come up to 60 ms apart, each on a clock of its own; `late`: seconds, from collective `since` on."""
    rng = random.Random(seed)
    came = np.array([[rng.uniform(0, 0.06) for _ in range(count)] for _ in range(world)])
    for rank, by in late.items():
        came[rank, since:] += by
    began = np.arange(count) * 5 + came
    ended = began.max(axis=0) + 0.01
    made = {}
    for rank in range(world):
        clock = rng.randrange(10**6) * SECOND
        noticed = ended + np.array([rng.uniform(0, 0.1) for _ in range(count)])
        columns = [(x * SECOND).astype(np.int64) + clock + SECOND for x in (began[rank], noticed)]
        made[rank] = Spans(np.arange(1, count + 1), columns[0], np.zeros(count, np.int64), columns[1])
    return made


def test_a_chronic_straggler() -> None:
    found = chronic(spans({2: 1.5}))
    assert found is not None
    assert (found.rank, found.since_seq, found.side) == (2, 1, "cpu")
    assert found.by_ns / SECOND == pytest.approx(1.5, abs=0.2)


def test_since_when() -> None:
    found = chronic(spans({1: 2.0}, count=60, since=25))
    assert found is not None
    assert (found.rank, found.since_seq) == (1, 26)


@pytest.mark.parametrize(
    "near",
    [
        {"late": {}},
        {"late": {2: 0.12}},  # within what a watchdog takes to notice
        {"late": {1: 1.0, 2: 1.0}},  # two of four
        {"late": {2: 1.5}, "count": 15},  # too few
        {"late": {2: 1.5}, "since": 30},  # only lately
        {"late": {1: 1.5}, "world": 2},  # of two ranks each is the other's outlier
    ],
)
def test_near_misses(near: dict[str, object]) -> None:
    for seed in range(5):
        assert chronic(spans(**near, seed=seed)) is None  # type: ignore[arg-type]


def test_another_rank_each_time_is_nobody() -> None:
    made = [spans({r: 1.5}, count=12, seed=r) for r in range(4)]
    joined = {
        r: Spans(
            np.arange(1, 49),
            *(np.concatenate([getattr(m[r], x) for m in made]) for x in ("created_ns", "started_ns", "completed_ns")),
        )
        for r in range(4)
    }
    assert chronic(joined) is None


def test_a_gpu_that_starts_late() -> None:
    made = spans({2: 1.5})
    cpu = spans({})
    moved = {
        r: replace(
            one, started_ns=one.created_ns, created_ns=one.completed_ns - (cpu[r].completed_ns - cpu[r].created_ns)
        )
        for r, one in made.items()
    }
    found = chronic(moved)
    assert found is not None
    assert (found.rank, found.side) == (2, "gpu")


def test_who_waits_for_a_late_rank_is_late_elsewhere() -> None:
    late = {r: Late(r, 1, 0, 30, SECOND, "cpu") for r in range(8)}
    tp = {"tp": (late[1], [0, 1, 2, 3])}
    dp = {f"dp{r}": (late[r], [r, r + 4, r + 8]) for r in range(4)}
    found = culprit({**tp, **dp})
    assert found is not None
    assert found[1].rank == 1
    assert culprit({"a": (late[0], [0, 1, 2]), "b": (late[5], [4, 5, 6])}) is None
    assert culprit({"a": (late[0], [0, 1, 2]), "b": (late[1], [0, 1, 3])}) is None


def slowed(dumps: list[Dump], rank: int) -> list[Dump]:
    """A second between calls, and this rank's come most of it late."""
    made = []
    for dump in dumps:
        created = dump.seq * SECOND + 10**18 + (700_000_000 if dump.rank == rank else 0)
        made.append(replace(dump, created_ns=created, completed_ns=dump.seq * SECOND + 10**18 + 750_000_000))
    return made


def test_in_a_job_that_runs() -> None:
    dumps = slowed(ddp(4, 12).run(400), 3)
    made = dumped.reconstruct(dumps)
    assert verdict(made) == ((3,), "rank_slow")
    assert "from number 1 on" in made.suspects[0].says
    assert made.suspects[0].says.endswith("It called them late.")
    assert dumped.reconstruct(slowed(ddp(4, 12).run(400), 99)).suspects == ()


def test_a_hang_stands_before_lateness() -> None:
    job = mesh(2, 4)
    job.programs[5].insert(-8, "hang")
    assert verdict(dumped.reconstruct(slowed(job.run(400), 2))) == ((5,), "rank_not_arrived")


def test_recorded_jobs_that_are_well() -> None:
    for path in RECORDED.glob("fr/*healthy*/fr"):
        assert dumped.reconstruct(folder(path)).suspects == ()
