"""Which sets of ranks are a host, a rail, a stage or a group, and which are not."""

from __future__ import annotations

import math
import random

import pytest

from nccl_forensics.model import Gpu, GroupState
from nccl_forensics.who.identities import Identities, Place
from nccl_forensics.who.layout import CHANCE, rail_of, shape, shared_by

PER_HOST, HOSTS = 8, 4
WORLD = PER_HOST * HOSTS
TENSOR = [GroupState(name=f"{i}", description="tp", members=(i, i + 1)) for i in range(0, WORLD, 2)]
PIPELINE = [GroupState(name=f"p{i}", description="pipeline_parallel", members=(i, i + 16)) for i in range(16)]


def job(local: bool = True, **more: object) -> Identities:
    places = {r: Place(f"node-{r // PER_HOST}", r % PER_HOST if local else None) for r in range(WORLD)}
    return Identities(ranks=places, world_size=WORLD, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (range(8, 16), "all ranks of host node-1"),
        (range(3, WORLD, 8), "all of rail 3: GPU 3 of each of 4 hosts"),
        (range(16, 32), "all of pipeline stage 1"),
        ((6, 7), ""),  # a pair of 16 among 496
        (range(WORLD), ""),
        ((3, 11, 19), ""),  # three of a rail's four
        ((3, 11, 19, 26), ""),
        (range(8, 15), ""),
        ((5,), ""),
        ((), ""),
    ],
)
def test_sets(ranks: range | tuple[int, ...], words: str) -> None:
    assert shape(ranks, job(), TENSOR + PIPELINE) == words


def test_a_group_that_is_a_host_is_told_as_both() -> None:
    groups = [GroupState(name=f"{i}", description="tp", members=tuple(range(8 * i, 8 * i + 8))) for i in range(4)]
    assert shape(range(8), job(), groups) == "all ranks of host node-0, which is all of group 0 (tp)"


def test_a_rail_goes_by_gpus_before_local_ranks_and_places() -> None:
    places = {r: Place(f"node-{r // 8}", r % 8, None, Gpu(index=7 - r % 8)) for r in range(WORLD)}
    assert "rail 4" in shape(range(3, WORLD, 8), Identities(ranks=places, world_size=WORLD), ())
    assert "rail 3" in shape(range(3, WORLD, 8), job(local=False), ())
    assert shape(range(3, WORLD, 8), job(local=False, devices_chosen=True), ()) == ""


def test_a_host_of_an_unplaced_rank_names_nothing() -> None:
    places = {r: Place(f"node-{r // 8}", r % 8) for r in range(WORLD - 1)}
    assert shape(range(8), Identities(ranks=places, world_size=WORLD), ()) == ""
    assert shape(range(8), Identities(ranks=places), ()) == ""


def test_pipelines_that_do_not_part_the_job_have_no_stages() -> None:
    assert shape(range(16, 32), job(), PIPELINE[:-1]) == ""
    guessed = [
        GroupState(name=g.name, description=g.description, members=g.members, members_at_least=True) for g in PIPELINE
    ]
    assert shape(range(16, 32), job(), guessed) == ""


def test_random_sets_are_hardly_ever_named() -> None:
    dice = random.Random(4)
    known, groups = job(), TENSOR + PIPELINE
    for size in (2, 4, 8, 16):
        named = sum(bool(shape(dice.sample(range(WORLD), size), known, groups)) for _ in range(1000))
        assert named <= 1000 * CHANCE + 3 * math.sqrt(1000 * CHANCE)


def test_failures_on_one_adapter_of_many_hosts_are_a_rail() -> None:
    eight = {f"mlx5_{n}" for n in range(8)}
    ports = {f"node-{n}": eight for n in range(4)}
    assert rail_of({f"node-{n}": {"mlx5_3"} for n in range(3)}, ports) == "mlx5_3"
    assert rail_of({f"node-{n}": {"mlx5_3"} for n in range(2)}, ports) is None  # one time in eight by chance
    assert rail_of({f"node-{n}": {f"mlx5_{n}"} for n in range(3)}, ports) is None
    assert rail_of({f"node-{n}": {"mlx5_0"} for n in range(3)}, {f"node-{n}": {"mlx5_0"} for n in range(4)}) is None
    assert rail_of({f"node-{n}": {"mlx5_3"} for n in range(3)}, {}) is None


def test_ranks_behind_one_switch() -> None:
    places = {r: Place(f"n{r // 4}", r % 4) for r in range(64)}
    leaves = {("switch", f"leaf{k}"): frozenset(f"n{i}" for i in range(4 * k, 4 * k + 4)) for k in range(3)}
    block = {("block", "b3"): frozenset({"n12", "n13", "n14", "n15", "elsewhere"})}
    known = Identities(ranks=places, world_size=64, behind={**leaves, **block})
    assert shape(range(16, 32), known, ()) == "all ranks behind switch leaf1"
    assert shape(range(48, 64), known, ()) == "all ranks behind block b3"
    assert shape(range(16, 31), known, ()) == ""
    assert shape(range(8, 24), known, ()) == ""
    two = {("switch", "a"): frozenset({"node-0", "node-1"}), ("switch", "b"): frozenset({"node-2", "node-3"})}
    assert shape(range(16), job(behind=two), ()) == ""  # of four hosts two fall: a leaf's in one of three
    rails = {("switch", f"rail{k}"): leaves["switch", "leaf1"] for k in range(4)}
    assert shape(range(16, 32), Identities(ranks=places, world_size=64, behind=rails), ()) == ""
    assert shared_by(["n4", "n5", "n6", "n7"], Identities(ranks=places, behind=rails)) == ""


def test_hosts_behind_one_switch() -> None:
    names = [f"n{i}" for i in range(16)]
    places = {r: Place(f"{name}.cluster") for r, name in enumerate(names)}
    leaves = {("switch", f"leaf{k}"): frozenset(names[4 * k : 4 * k + 4]) for k in range(4)}
    known = Identities(ranks=places, behind={**leaves, ("switch", "management"): frozenset(names)})
    assert shared_by(names[4:8], known) == "switch leaf1"
    assert shared_by(names[4:7], known) == ""  # three of four, in one of four leaves: 16 of 560
    assert shared_by(names[3:7], known) == ""
    few = Identities(ranks={r: places[r] for r in range(7)}, behind=leaves)
    assert shared_by(names[:4], few) == "switch leaf0"  # a whole leaf, if one of 35 sets
    assert shared_by(names[:1], known) == ""
    assert shared_by([*names[4:7], "elsewhere"], known) == ""
    both = {**leaves, ("switch", "plane-b"): frozenset(names[4:8])}
    assert shared_by(names[4:8], Identities(ranks=places, behind=both)) == "switch leaf1, switch plane-b"
