"""What may not change a verdict on Flight Recorder dumps: order, file names, numbering, clocks, healthy groups."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from test_collectives import RINGS, RUNS, Job, Op, crossed, folder, made_job, read, ring, shifted

from nccl_forensics.model import Gpu, GroupState, Problem, Reconstruction
from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.waits import dumped
from nccl_forensics.who.identities import Identities, Place
from nccl_forensics.who.layout import shape

KINDS = ("hang", "die", "wrong_op", "skip", "gpu", "wrong_peer")
JOBS = [(k, x) for k in KINDS for x in ("ddp4", "mesh2x4", "pipeline4x2") if (k == "wrong_peer") == ("pipe" in x)]


def said(made: Reconstruction) -> Any:
    """Who is suspected of what and how much, and who is open."""
    return [(s.ranks, s.cause, s.weight) for s in made.suspects], made.cannot_exclude, made.healthy


def judged(dumps: list[Dump], job: Job) -> Any:
    return said(dumped.reconstruct(dumps, expected_world=len(job.programs)))


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


CIRCLES = {
    **{name: ring(orders) for name, orders in RINGS.items()},
    "send-and-collective": crossed("sa", "ar"),
    "receive-and-collective": crossed("as", "ra"),
}


def circle(dumps: list[Dump], job: Job) -> Any:
    """Of the one suspect: what it is, how surely, and who stands in the circle; and who is open."""
    made = dumped.reconstruct(dumps, expected_world=len(job.programs))
    (one,) = made.suspects
    return one.cause, one.ranks, one.weight, sorted(one.details["circle"]), sorted(made.cannot_exclude)


@pytest.mark.parametrize("name", CIRCLES)
def test_a_circle_stays_one(name: str) -> None:
    """In any order of the dumps, by any clock of a host, with any numbers of the ranks, beside groups that are well."""
    job = CIRCLES[name]
    dumps = job.run(200)
    wanted = circle(dumps, job)
    assert wanted[:2] == ("deadlock", ())
    world = len(job.programs)
    for seed in range(3):
        rng = random.Random(seed)
        mixed = rng.sample(dumps, len(dumps))
        assert circle(mixed, job) == wanted
        by_ns = rng.choice([-7200, 5, 86_400]) * 10**9
        assert circle([shifted(x, by_ns) if (x.rank or 0) >= world // 2 else x for x in mixed], job) == wanted
        new = rng.sample(range(world), world)
        if all(step.peer is None for program in job.programs for step in program if isinstance(step, Op)):
            other = renumbered(job, new)
            *same, inside, unsure = wanted
            *moved, inside_then, unsure_then = circle(other.run(200), other)
            assert moved == same
            # Of ranks that called the same, any may stand for them.
            for then, before in ((inside_then, inside), (unsure_then, unsure)):
                assert sorted(repr(other.programs[r]) for r in then) == sorted(repr(job.programs[r]) for r in before)
    beside = {f"side{n}": (f"side {n}", [n, n + 1]) for n in range(world - 1)}
    programs = [
        [*(Op("all_reduce", one, 5, line=9) for one, (_, ranks) in beside.items() if rank in ranks), "sync", *program]
        for rank, program in enumerate(job.programs)
    ]
    more = replace(job, groups={**job.groups, **beside}, programs=programs, dead=set())
    assert circle(more.run(220), more) == wanted


@pytest.mark.parametrize("seed", range(5))
def test_a_set_is_the_same_by_other_numbers(seed: int) -> None:
    """Host, rail, switch and group are told by who is where, whatever number a rank has."""
    new = random.Random(seed).sample(range(64), 64)
    behind = {("switch", "leaf"): frozenset({"n0", "n1", "n2", "n3"})}
    groups = [GroupState(name=f"{i}", description="ep", members=tuple(range(i, i + 8))) for i in (4, 12)]
    sets = (range(8, 16), range(3, 64, 8), range(32), range(4, 12), range(5, 13), (3, 11, 19))

    def told(number: list[int]) -> list[str]:
        places = {number[r]: Place(f"n{r // 8}", r % 8, None, Gpu(index=r % 8)) for r in range(64)}
        known = Identities(ranks=places, world_size=64, behind=behind)
        members = [replace(g, members=tuple(sorted(number[r] for r in g.members))) for g in groups]
        return [shape([number[r] for r in ranks], known, members) for ranks in sets]

    assert told(new) == told([*range(64)])
    assert [bool(x) for x in told(new)] == [True, True, True, True, False, False]


@pytest.mark.parametrize(("path", "expect"), RUNS)
def test_the_names_of_files(path: Any, expect: Any) -> None:
    """Another prefix and ending; where the content tells the rank, any name at all."""
    plain = folder(path)
    tells = all(x.rank_from == "content" for x in plain)
    renamed: list[Dump] = []
    for n, one in enumerate(sorted(path.iterdir(), reverse=True)):
        digits = str(n + 900) if tells else one.stem.rpartition("_")[2]
        renamed += [x for x in read(one, f"node7-of-9.dump_{digits}.trace") if not isinstance(x, Problem)]
    assert said(dumped.reconstruct(renamed)) == said(dumped.reconstruct(plain))
