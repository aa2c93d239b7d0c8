"""What may not change a verdict on Flight Recorder dumps: order, file names, numbering, clocks, healthy groups."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from test_collectives import RUNS, Job, Op, folder, made_job, needs_cases, read, shifted

from nccl_forensics import collectives
from nccl_forensics.dumps import Dump
from nccl_forensics.model import Problem, Reconstruction

KINDS = ("hang", "die", "wrong_op", "skip", "gpu", "wrong_peer")
JOBS = [(k, x) for k in KINDS for x in ("ddp4", "mesh2x4", "pipeline4x2") if (k == "wrong_peer") == ("pipe" in x)]


def said(made: Reconstruction) -> Any:
    """Who is suspected of what and how much, and who is open."""
    return [(s.ranks, s.cause, s.weight) for s in made.suspects], made.cannot_exclude, made.healthy


def judged(dumps: list[Dump], job: Job) -> Any:
    return said(collectives.reconstruct(dumps, expected_world=len(job.programs)))


def renumbered(job: Job, new: list[int]) -> Job:
    """The same job with rank r called new[r]; a peer's place in its group follows."""
    groups = {name: (desc, sorted(new[r] for r in ranks)) for name, (desc, ranks) in job.groups.items()}

    def step(one: Any) -> Any:
        if not isinstance(one, Op) or one.peer is None:
            return one
        return replace(one, peer=groups[one.group][1].index(new[job.groups[one.group][1][one.peer]]))

    programs: list[list[Any]] = [[] for _ in new]
    for rank, program in enumerate(job.programs):
        programs[new[rank]] = [step(x) for x in program]
    return replace(job, groups=groups, programs=programs, dead=set())


@pytest.mark.parametrize(("kind", "layout"), JOBS)
@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_files(kind: str, layout: str, seed: int) -> None:
    job, _ = made_job(kind, layout, seed)
    dumps = job.run(400)
    wanted = judged(dumps, job)
    random.Random(seed).shuffle(dumps)
    assert judged(dumps, job) == wanted


@pytest.mark.parametrize(("kind", "layout"), JOBS)
@pytest.mark.parametrize("seed", range(2))
def test_the_numbers_of_ranks(kind: str, layout: str, seed: int) -> None:
    job, guilty = made_job(kind, layout, seed)
    new = list(range(len(job.programs)))
    random.Random(seed).shuffle(new)
    (suspects, unsure, healthy), (moved, unsure_then, healthy_then) = (
        judged(x.run(400), x) for x in (job, renumbered(job, new))
    )
    assert guilty
    assert [(sorted(new[r] for r in ranks), cause) for ranks, cause, _ in suspects] == [
        (sorted(ranks), cause) for ranks, cause, _ in moved
    ]
    assert sorted(new[r] for r in unsure) == sorted(unsure_then)
    assert healthy == healthy_then


@pytest.mark.parametrize(("kind", "layout"), JOBS)
@pytest.mark.parametrize("by_s", [-7200, 5, 86_400 * 30])
def test_the_clock_of_one_host(kind: str, layout: str, by_s: int) -> None:
    """Half of the ranks run on a host whose clock is wrong by a constant."""
    job, _ = made_job(kind, layout, 0)
    dumps = job.run(400)
    half = len(job.programs) // 2
    assert judged([shifted(x, by_s * 10**9) if (x.rank or 0) >= half else x for x in dumps], job) == judged(dumps, job)


@pytest.mark.parametrize(("kind", "layout"), JOBS)
def test_groups_that_are_well(kind: str, layout: str) -> None:
    job, _ = made_job(kind, layout, 0)
    wanted = judged(job.run(400), job)
    beside = {f"side{n}": (f"side {n}", [n, n + 1]) for n in range(len(job.programs) - 1)}
    programs = [
        [
            *(Op("all_reduce", name, 5, line=99) for name, (_, ranks) in beside.items() if rank in ranks),
            "sync",
            *program,
        ]
        for rank, program in enumerate(job.programs)
    ]
    more = replace(job, groups={**job.groups, **beside}, programs=programs, dead=set())
    assert judged(more.run(420), more) == wanted


@needs_cases
@pytest.mark.parametrize(("path", "expect"), RUNS)
def test_the_names_of_files(path: Any, expect: Any) -> None:
    """Another prefix and ending; where the content tells the rank, any name at all."""
    plain = folder(path)
    tells = all(x.rank_from == "content" for x in plain)
    renamed: list[Dump] = []
    for n, one in enumerate(sorted(path.iterdir(), reverse=True)):
        digits = str(n + 900) if tells else one.stem.rpartition("_")[2]
        renamed += [x for x in read(one, f"node7-of-9.dump_{digits}.trace") if not isinstance(x, Problem)]
    assert said(collectives.reconstruct(renamed)) == said(collectives.reconstruct(plain))
