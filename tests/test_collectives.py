"""The reconstruction, held against recorded dumps and against a small model of jobs whose fault is known."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from nccl_forensics.parsers import flight_recorder as parser

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import removal
from recorded import RECORDED, answers

from nccl_forensics.model import Problem, Reconstruction
from nccl_forensics.recorder.dumps import Dump, dump_of
from nccl_forensics.waits import detectors, dumped, judgement

WITHOUT_LOGS = {"rank_not_arrived", "process_missing", "rank_busy"}
"""What dumps alone can say where the log has the reason."""
UNDECIDABLE = {
    # Two ranks left no dump, and nothing in the other two tells them apart.
    "sigkill-dump-missing": {1, 3},
    # Hook dumps name no peers and JSON has no stacks: a send to and a receive from the wrong rank look alike.
    "p2p-recv-wrong-peer/fr-json": {1, 2, 3},
}

# --- recorded cases -------------------------------------------------------------------------------------------------


@dataclass
class File:
    path: str
    name: str
    size: int | None
    mtime_ns: int | None
    stream: Any


def read(path: Path, name: str | None = None) -> list[Any]:
    with path.open("rb") as stream:
        return list(parser.flight_recorder.read(File(str(path), name or path.name, None, None, stream)))


def folder(path: Path) -> list[Dump]:
    return [x for one in sorted(path.iterdir()) for x in read(one) if not isinstance(x, Problem)]


def runs() -> list[Any]:
    found = []
    for path in answers("fr", "fr-nvrx"):
        expect = json.loads(path.read_text(encoding="utf-8"))["expect"]
        for one in ("fr", "fr-json", "input"):
            if (path.parent / one).is_dir():
                found.append(pytest.param(path.parent / one, expect, id=f"{path.parent.name}-{one}"))
    return found


RUNS = runs()


def verdict(made: Reconstruction) -> tuple[tuple[int, ...], str | None]:
    first = made.suspects[0] if made.suspects else None
    return (first.ranks, first.cause) if first else ((), None)


@pytest.mark.parametrize(("path", "expect"), RUNS)
def test_recorded(path: Path, expect: dict[str, Any]) -> None:
    made = dumped.reconstruct(folder(path))
    ranks, cause = verdict(made)
    if expect.get("incident") is False:
        assert made.healthy
        assert made.suspects == ()
        return
    assert not made.healthy
    open_to = UNDECIDABLE.get(path.parent.name) or UNDECIDABLE.get(f"{path.parent.name}/{path.name}")
    if open_to:
        assert ranks == ()
        assert set(made.cannot_exclude) == open_to
        return
    accepted = set(expect["causes"])
    if accepted & {"python_exception", "process_signal"}:
        accepted |= WITHOUT_LOGS
    assert list(ranks) == expect["ranks"]
    assert cause in accepted
    if expect.get("seq") is not None:
        assert made.groups[0].seq == expect["seq"]
    assert not set(ranks) & {x for x, _ in made.cleared}


@pytest.mark.parametrize(("path", "expect"), RUNS)
def test_recorded_whatever_the_order(path: Path, expect: dict[str, Any]) -> None:
    dumps = folder(path)
    wanted = dumped.reconstruct(dumps)
    for seed in range(3):
        random.Random(seed).shuffle(dumps)
        assert dumped.reconstruct(dumps) == wanted


@pytest.mark.parametrize(
    "path", [x for x in sorted((RECORDED / "fr").iterdir()) if (x / "fr-json").is_dir()], ids=lambda x: x.name
)
def test_both_forms_of_a_rank_are_one_rank(path: Path) -> None:
    both = dumped.reconstruct(folder(path / "fr") + folder(path / "fr-json"))
    assert verdict(both) == verdict(dumped.reconstruct(folder(path / "fr")))


def shifted(dump: Dump, by_ns: int) -> Dump:
    """The dump of a host whose clock is wrong."""
    return replace(
        dump,
        created_ns=dump.created_ns + by_ns,
        started_ns=dump.started_ns + (dump.started_ns > 0) * by_ns,
        completed_ns=dump.completed_ns + (dump.completed_ns > 0) * by_ns,
    )


@pytest.mark.parametrize(("path", "expect"), RUNS)
def test_recorded_whatever_the_clocks(path: Path, expect: dict[str, Any]) -> None:
    dumps = folder(path)
    made = dumped.reconstruct([shifted(x, (x.rank or 0) * 37 * 10**9) for x in dumps])
    assert verdict(made) == verdict(dumped.reconstruct(dumps))


@pytest.mark.slow
def test_dumps_removed_at_random() -> None:
    """The small form of benchmarks/removal.py: who is named is guilty, the guilty are named or open."""
    found = [draw for case in removal.cases() for draw in removal.draws(case, range(2))]
    assert sum(len(x.named) for x in found) > 100
    assert [x for x in found if x.wrong] == []
    assert [x for x in found if x.lost] == []
    assert [x for x in found if x.unjudged] == []


# --- a model of jobs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    kind: str
    group: str
    size: int = 1024
    dtype: str = "Float"
    line: int = 10
    peer: int | None = None
    """Rank inside the group."""


@dataclass
class Job:
    """Ranks that call operations in order; an operation ends when all members have reached it with equal calls.

    One queue for each rank's GPU; a rank's CPU runs ahead to the next "sync". Time is counted in rounds.
    """

    groups: dict[str, tuple[str, list[int]]]
    programs: list[list[Any]]
    backend: str = "nccl"
    timing: bool = False
    stacks: bool = True
    ring: int = 2000
    only_active: bool = False
    version: str = "2.10"
    dead: set[int] = field(default_factory=set)
    round_ns: int = 10**7

    def run(self, rounds: int, skew: dict[int, int] | None = None) -> list[Dump]:
        """The dumps after `rounds`, or of each rank at its own round (`skew`)."""
        world = len(self.programs)
        at, queue = [0] * world, [[] for _ in range(world)]  # type: ignore[var-annotated]
        counts: list[dict[Any, int]] = [defaultdict(int) for _ in range(world)]
        meetings: dict[Any, dict[int, dict[str, Any]]] = defaultdict(dict)
        head = [0] * world
        stuck_gpu: set[int] = set()
        frozen: dict[int, Dump] = {}
        for now in range(rounds):
            for rank, program in enumerate(self.programs):
                budget = 3
                while at[rank] < len(program) and budget:
                    step = program[at[rank]]
                    if step == "sync" and head[rank] < len(queue[rank]):
                        break
                    if step in ("hang", "die"):
                        if step == "die":
                            self.dead.add(rank)
                        break
                    at[rank] += 1
                    if step == "gpu":
                        stuck_gpu.add(rank)
                    elif isinstance(step, Op):
                        queue[rank].append(self._enqueue(rank, step, counts[rank], meetings, now, rank in stuck_gpu))
                        budget -= 1
            for rank in range(world):
                if head[rank] < len(queue[rank]):
                    one = queue[rank][head[rank]]
                    if not one["stuck"] and one["start"] is None:
                        one["start"] = now
            for rank in range(world):
                if head[rank] < len(queue[rank]):
                    one = queue[rank][head[rank]]
                    met = meetings[one["key"]]
                    calls = {
                        (x["op"].kind if x["op"].peer is None else "p2p", x["op"].size, x["op"].dtype)
                        for x in met.values()
                    }
                    if (
                        len(met) == one["needs"]
                        and len(calls) == 1
                        and all(x["start"] is not None for x in met.values())
                    ):
                        for x in met.values():
                            x["end"] = now
            for rank in range(world):
                while head[rank] < len(queue[rank]) and queue[rank][head[rank]]["end"] is not None:
                    head[rank] += 1
            for rank, when in (skew or {}).items():
                if when == now:
                    frozen[rank] = self._dump(rank, queue[rank])
        return [frozen.get(r) or self._dump(r, queue[r]) for r in range(world) if r not in self.dead]

    def _enqueue(
        self, rank: int, op: Op, count: dict[Any, int], meetings: dict[Any, Any], now: int, stuck: bool
    ) -> dict[str, Any]:
        members = self.groups[op.group][1]
        count[op.group, "op"] += 1
        if op.peer is None:
            count[op.group, "seq"] += 1
            key: Any = (op.group, count[op.group, "seq"])
            needs = len(members)
        else:
            count[op.group, "p2p"] += 1
            me = members.index(rank)
            pair = (me, op.peer) if op.kind == "send" else (op.peer, me)
            count[op.group, op.kind, pair] += 1
            key = (op.group, pair, count[op.group, op.kind, pair])
            needs = 2
        one = {
            "op": op, "key": key, "needs": needs, "start": None, "end": None, "stuck": stuck, "at": now,
            "seq": count[op.group, "seq"], "p2p": count[op.group, "p2p"], "op_id": count[op.group, "op"],
        }  # fmt: skip
        meetings[key][rank] = one
        return one

    def _dump(self, rank: int, queue: list[dict[str, Any]]) -> Dump:
        t0 = 1_800_000_000 * 10**9
        local: dict[str, int] = {}
        entries: list[dict[str, Any]] = []
        status: dict[str, dict[str, int]] = {}
        lenient = self.backend == "gloo"
        for number, one in enumerate(queue):
            op = one["op"]
            members = self.groups[op.group][1]
            pg = local.setdefault(op.group, len(local))
            over = one["end"] is not None
            name = f"{self.backend}:{op.kind}"
            if op.peer is not None:
                me = members.index(rank)
                name += f" {me}->{op.peer}" if op.kind == "send" else f" {me}<-{op.peer}"
            counters = status.setdefault(
                str(pg),
                {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
            )
            number_now = one["seq"] if op.peer is None else one["p2p"]
            counters["last_enqueued_collective"] = number_now
            if over:
                counters["last_completed_collective"] = number_now
            state = "scheduled"
            if not lenient:
                state = "completed" if over else "started" if self.timing and one["start"] is not None else "scheduled"
            began = t0 + one["start"] * self.round_ns if self.timing and one["start"] is not None else None
            entry = {
                "record_id": number, "pg_id": pg, "process_group": (op.group, self.groups[op.group][0]),
                "collective_seq_id": one["seq"], "p2p_seq_id": one["p2p"], "op_id": one["op_id"],
                "profiling_name": name,
                "time_created_ns": t0 + one["at"] * self.round_ns + number, "input_sizes": [[op.size]],
                "output_sizes": [[op.size]],
                "input_dtypes": [op.dtype], "output_dtypes": [op.dtype], "state": state,
                "time_discovered_started_ns": began,
                "time_discovered_completed_ns": t0 + one["end"] * self.round_ns if over and not lenient else None,
                "retired": over, "timeout_ms": 600000, "is_p2p": op.peer is not None,
            }  # fmt: skip
            if self.stacks:
                entry["frames"] = [{"name": "step", "filename": "train.py", "line": op.line}]
            if not (self.only_active and over):
                entries.append(entry)
        config = {
            g: {"name": g, "desc": self.groups[g][0], "ranks": str(self.groups[g][1])}
            for g in self.groups
            if g in local
        }
        content = {"version": self.version, "pg_config": config, "pg_status": status, "entries": entries[-self.ring :]}
        dump, _ = dump_of(content, path=f"dump{rank}", form="pickle", name_rank=rank)
        assert dump.rank == rank
        return dump


def ddp(world: int, steps: int = 8) -> Job:
    body: list[Any] = [
        Op("all_reduce", "0", 4096, line=1),
        Op("all_reduce", "0", 512, line=2),
        Op("all_reduce", "0", 1, line=3),
    ]
    return Job({"0": ("default_pg", list(range(world)))}, [[*body, "sync"] * steps for _ in range(world)])


def mesh(dp: int, tp: int, steps: int = 8, *, names: bool = True) -> Job:
    """Tensor and data parallel: TP all_reduce in each layer, DP reduce_scatter, and one world all_reduce in a step."""
    world = dp * tp
    groups = {"0": ("default_pg", list(range(world)))}
    for i in range(tp):
        groups[f"{1 + i}" if names else f"{hash((i, 'dp')) & 0xFFFFFFFF:x}d"] = ("mesh_dp", list(range(i, world, tp)))
    for i in range(dp):
        groups[f"{1 + tp + i}" if names else f"{hash((i, 'tp')) & 0xFFFFFFFF:x}t"] = (
            "mesh_tp",
            list(range(i * tp, i * tp + tp)),
        )
    programs = []
    for rank in range(world):
        mine = {desc: name for name, (desc, ranks) in groups.items() if rank in ranks}
        body: list[Any] = [Op("all_reduce", mine["mesh_tp"], 2048, line=20 + i) for i in range(3)]
        body += [Op("_reduce_scatter_base", mine["mesh_dp"], 8192, line=30), Op("all_reduce", "0", 1, line=40), "sync"]
        programs.append(body * steps)
    return Job(groups, programs)


def pipeline(stages: int, dp: int, steps: int = 8, micro: int = 3) -> Job:
    """Stages send forward and gradients back; DP all_reduce of each stage at the end of a step."""
    world = stages * dp
    groups: dict[str, tuple[str, list[int]]] = {"0": ("default_pg", list(range(world)))}
    for i in range(dp):
        groups[str(10 + i)] = ("PIPELINE_MODEL_PARALLEL_GROUP", list(range(i, world, dp)))
    for i in range(stages):
        groups[str(50 + i)] = ("DATA_PARALLEL_GROUP", list(range(i * dp, i * dp + dp)))
    programs = []
    for rank in range(world):
        stage, pp, dpg = rank // dp, str(10 + rank % dp), str(50 + rank // dp)
        body: list[Any] = []
        for _ in range(micro):
            if stage:
                body.append(Op("recv", pp, 64, peer=stage - 1, line=50))
            if stage < stages - 1:
                body.append(Op("send", pp, 64, peer=stage + 1, line=51))
        for _ in range(micro):
            if stage < stages - 1:
                body.append(Op("recv", pp, 64, peer=stage + 1, line=52))
            if stage:
                body.append(Op("send", pp, 64, peer=stage - 1, line=53))
        body += [Op("all_reduce", dpg, 4096, line=54), Op("all_reduce", "0", 1, line=55), "sync"]
        programs.append(body * steps)
    return Job(groups, programs)


def experts(dp: int, ep: int, steps: int = 8) -> Job:
    """Expert parallel: all_to_all with sizes of its own on every rank."""
    world = dp * ep
    groups = {"0": ("default_pg", list(range(world)))}
    for i in range(dp):
        groups[str(1 + i)] = ("EXPERT_MODEL_PARALLEL_GROUP", list(range(i * ep, i * ep + ep)))
    programs = []
    for rank in range(world):
        ranks = str(1 + rank // ep)
        body: list[Any] = [
            Op("all_to_all", ranks, 4096, line=60), Op("all_to_all", ranks, 4096, line=61),
            Op("all_reduce", "0", 256, line=62),
            "sync",
        ]  # fmt: skip
        programs.append(body * steps)
    return Job(groups, programs)


LAYOUTS = {
    "ddp4": lambda: ddp(4),
    "ddp3": lambda: ddp(3),
    "ddp16": lambda: ddp(16),
    "mesh2x4": lambda: mesh(2, 4),
    "mesh4x2": lambda: mesh(4, 2),
    "mesh-hashed": lambda: mesh(2, 4, names=False),
    "mesh8x8": lambda: mesh(8, 8, 5),
    "pipeline4": lambda: pipeline(4, 1),
    "pipeline4x2": lambda: pipeline(4, 2),
    "experts2x4": lambda: experts(2, 4),
}


def spot(job: Job, rng: random.Random, want: Any) -> tuple[int, int]:
    """A rank and the place of one of its steps in the middle of its program."""
    while True:
        rank = rng.randrange(len(job.programs))
        program = job.programs[rank]
        at = rng.randrange(len(program) // 2, len(program) - 8)
        if isinstance(program[at], Op) and want(program[at]):
            return rank, at


def collective(op: Op) -> bool:
    return op.peer is None


def fault(kind: str, job: Job, rng: random.Random) -> set[int]:
    """Put the fault in, give the culprits."""
    p2p = kind in ("missing_send", "missing_recv", "wrong_peer")
    names = {"missing_send": "send", "missing_recv": "recv"}
    rank, at = spot(
        job, rng, (lambda x: x.peer is not None and x.kind == names.get(kind, x.kind)) if p2p else collective
    )
    program = list(job.programs[rank])
    op = program[at]
    big = [x for x in range(len(program) // 2, len(program) - 8)
           if isinstance(program[x], Op) and program[x].peer is None
           and len(job.groups[program[x].group][1]) > 2]  # fmt: skip
    if kind in ("wrong_op", "wrong_size", "wrong_dtype", "extra", "skip"):
        if not big:
            return set()
        if kind == "wrong_size":  # all_to_all has sizes of its own on every rank: nothing could tell
            big = [x for x in big if program[x].kind != "all_to_all"]
        at = rng.choice(big)
        op = program[at]
    if kind == "hang":
        program.insert(rng.choice([at, at, rng.randrange(len(program) // 2, len(program))]), "hang")
    elif kind == "die":
        program.insert(at, "die")
    elif kind == "gpu":
        program.insert(at, "gpu")
        job.timing = True
    elif kind == "wrong_op":
        program[at] = replace(op, kind="_all_gather_base", line=77)
    elif kind == "wrong_size":
        program[at] = replace(op, size=op.size + 1)
    elif kind == "wrong_dtype":
        program[at] = replace(op, dtype="BFloat16")
    elif kind == "extra":
        program.insert(at, replace(op, kind="all_reduce", size=7, line=78))
    elif kind in ("skip", "missing_send", "missing_recv"):
        del program[at]
    elif kind == "wrong_peer":
        others = [x for x in range(len(job.groups[op.group][1])) if x != op.peer and job.groups[op.group][1][x] != rank]
        program[at] = replace(op, peer=rng.choice(others))
    job.programs[rank] = program
    return {rank}


FAULTS = {
    "hang": {"rank_not_arrived"},
    "die": {"process_missing"},
    "gpu": {"gpu_stall"},
    "wrong_op": {"collective_mismatch"},
    "wrong_size": {"collective_mismatch"},
    "wrong_dtype": {"collective_mismatch"},
    "extra": {"collective_skipped", "collective_mismatch"},
    "skip": {"collective_skipped", "collective_mismatch"},
    "missing_send": {"deadlock", "rank_not_arrived", "collective_mismatch"},
    "missing_recv": {"deadlock", "rank_not_arrived", "collective_mismatch"},
    "wrong_peer": {"deadlock", "collective_mismatch"},
}


def made_job(kind: str, layout: str, seed: int) -> tuple[Job, set[int]]:
    rng = random.Random(f"{kind}-{layout}-{seed}")
    job = LAYOUTS[layout]()
    if kind == "gpu" and "pipeline" in layout:
        return job, set()
    if kind in ("missing_send", "missing_recv", "wrong_peer") and "pipeline" not in layout:
        return job, set()
    guilty = fault(kind, job, rng)
    job.timing = job.timing or rng.random() < 0.3
    job.stacks = rng.random() < 0.6
    job.ring = rng.choice([2000, 2000, 40])
    job.backend = rng.choice(["nccl", "nccl", "nccl", "gloo"]) if "pipeline" not in layout and kind != "gpu" else "nccl"
    job.only_active = rng.random() < 0.2 and kind == "hang" and job.backend == "nccl"
    return job, guilty


def tally(kind: str, layouts: list[str], seeds: range, lose: float = 0.0) -> dict[str, Any]:
    score: dict[str, Any] = {"jobs": 0, "right": 0, "named": 0, "wrong": [], "lost": [], "cause": []}
    for layout in layouts:
        for seed in seeds:
            job, guilty = made_job(kind, layout, seed)
            if not guilty:
                continue
            dumps = job.run(400)
            rng = random.Random(seed)
            if lose:
                dumps = [x for x in dumps if rng.random() >= lose] or dumps[:1]
            made = dumped.reconstruct(dumps, expected_world=len(job.programs))
            ranks, cause = verdict(made)
            score["jobs"] += 1
            score["named"] += bool(ranks)
            score["right"] += set(ranks) == guilty
            where = f"{layout}/{seed}"
            if set(ranks) - guilty:
                score["wrong"].append(where)
            if guilty - {*ranks, *made.cannot_exclude} and (made.suspects or made.healthy):
                score["lost"].append(where)
            if set(ranks) == guilty and not lose and cause not in FAULTS[kind]:
                score["cause"].append((where, cause))
    return score


SOME = ["ddp4", "mesh2x4", "pipeline4", "experts2x4"]


@pytest.mark.parametrize("kind", FAULTS)
def test_modelled(kind: str) -> None:
    score = tally(kind, SOME, range(3))
    assert score["jobs"] >= 3
    assert score["wrong"] == []
    assert score["cause"] == []
    assert score["right"] >= 0.9 * score["jobs"]


def test_modelled_with_dumps_lost() -> None:
    named = wrong = lost = jobs = 0
    for kind in FAULTS:
        score = tally(kind, ["ddp4", "mesh2x4", "pipeline4"], range(2), lose=0.3)
        named, wrong, lost = named + score["named"], wrong + len(score["wrong"]), lost + len(score["lost"])
        jobs += score["jobs"]
    assert jobs > 40
    assert named > 10
    assert wrong <= 0.05 * named
    assert lost <= 0.05 * jobs


@pytest.mark.parametrize("layout", ["ddp4", "mesh2x4", "pipeline4", "experts2x4"])
def test_a_running_job_is_healthy(layout: str) -> None:
    """Dumps of different moments: the later ones show what the earlier ones went on to."""
    for seed in range(3):
        rng = random.Random(seed)
        job = LAYOUTS[layout]()
        skew = {rank: 8 + rng.randrange(8) for rank in range(len(job.programs))}
        made = dumped.reconstruct(job.run(30, skew))
        assert all(x.weight <= judgement.WEAK for x in made.suspects)


def test_a_finished_job_is_healthy() -> None:
    made = dumped.reconstruct(ddp(4).run(400))
    assert made.healthy
    assert made.suspects == ()
    assert made.cannot_exclude == ()


def _hangs_at_last(rank: int) -> Job:
    job = ddp(4, 12)
    job.round_ns = 60 * 10**9
    job.programs[rank][-3:] = ["hang"]
    return job


def test_a_dump_of_long_before_says_nothing_of_the_hang() -> None:
    """Its peers went on with that rank for minutes: the file was copied, or its successor lost, at another time."""
    made = dumped.reconstruct(_hangs_at_last(2).run(200, {2: 9}))
    assert [p.says for p in made.problems if "rank 2 is older" in p.says]
    assert not any(x.ranks or x.weight > 0 for x in made.suspects)
    assert made.cannot_exclude == (2,)


def test_a_dump_of_the_hang_names_who_is_behind() -> None:
    """Near miss: the same job, and the rank's dump is as new as the others'."""
    made = dumped.reconstruct(_hangs_at_last(2).run(200))
    assert [x.ranks for x in made.suspects] == [(2,)]


def _pair(rank: int, *, over: int, late_ns: int = 0) -> Dump:
    """The dump of a rank of a job of two pairs, which has seen the ends of `over` of five collectives."""
    group, members = ("1", [0, 1]) if rank < 2 else ("2", [2, 3])
    entries = [
        {
            "record_id": n, "pg_id": 1, "process_group": (group, "tp"), "collective_seq_id": n, "p2p_seq_id": 0,
            "op_id": n, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_800_000_000 * 10**9 + n * 10**8 + late_ns,
            "input_sizes": [[64]], "output_sizes": [[64]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "state": "completed" if n <= over else "scheduled", "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None, "retired": n <= over, "timeout_ms": 600000, "is_p2p": False,
        }
        for n in range(1, 6)
    ]  # fmt: skip
    counted = {"last_enqueued_collective": 5, "last_started_collective": -1, "last_completed_collective": over}
    groups = {"0": ("default_pg", "[0, 1, 2, 3]"), group: ("tp", str(members))}
    content = {
        "version": "2.10", "pg_status": {"1": counted}, "entries": entries,
        "pg_config": {g: {"name": g, "desc": desc, "ranks": ranks} for g, (desc, ranks) in groups.items()},
    }  # fmt: skip
    dump, _ = dump_of(content, path=f"dump{rank}", form="pickle", name_rank=rank)
    return dump


def test_work_of_this_moment_is_no_hang() -> None:
    """One rank has seen the end that its peer is about to see: the job ran, and so did the other pair."""
    made = dumped.reconstruct([_pair(0, over=4), _pair(1, over=5), _pair(2, over=4), _pair(3, over=4)])
    assert made.healthy
    assert made.suspects == ()


@pytest.mark.parametrize(("first", "late_ns"), [(4, 0), (5, 0), (4, 600 * 10**9)])
def test_work_that_waits_is_a_hang(first: int, late_ns: int) -> None:
    """Near misses: no end is under way; or one is, of a call that came ten minutes after those that wait."""
    second = 5 if late_ns else first
    pairs = [_pair(0, over=first, late_ns=late_ns), _pair(1, over=second, late_ns=late_ns)]
    made = dumped.reconstruct([*pairs, _pair(2, over=4), _pair(3, over=4)])
    assert not made.healthy
    assert {x.cause for x in made.suspects} == {"fabric_error", "gpu_stall"}


def test_groups_entered_in_different_order_are_a_deadlock() -> None:
    job = mesh(2, 2, 4)
    tp, dp = Op("all_reduce", "3", 64, line=90), Op("all_reduce", "1", 64, line=91)
    job.programs[0][12:12] = [tp, "sync", dp, "sync"]
    job.programs[1][12:12] = [tp]
    job.programs[2][12:12] = [dp]
    job.programs[0][12:16] = [dp, "sync", tp, "sync"]
    job.programs[2][12:12] = ["hang"]
    made = dumped.reconstruct(job.run(200))
    assert made.suspects[0].ranks == (2,)  # no deadlock: rank 2 never came


def test_a_circle_of_waits() -> None:
    groups = {"0": ("default_pg", [0, 1]), "1": ("a", [0, 1]), "2": ("b", [0, 1])}
    a, b = Op("all_reduce", "1", 8), Op("all_reduce", "2", 8)
    job = Job(
        groups,
        [[a, "sync", b, "sync"] * 3 + [a, "sync", b, "sync"], [a, "sync", b, "sync"] * 3 + [b, "sync", a, "sync"]],
    )
    job.stacks = False
    made = dumped.reconstruct(job.run(100))
    assert made.suspects[0].cause in ("deadlock", "collective_skipped")
    assert len(made.suspects[0].ranks) <= 1
    assert not made.healthy


def ring(orders: dict[int, str], size: int = 2, steps: int = 6, usual: bool = False) -> Job:
    """Groups a, b, … that all ranks of `orders` share; rank r queues them as `orders[r]` says in the last step.

    In the steps before, all have the alphabetical order, or with `usual` the order of the last one.
    """
    names = sorted({x for order in orders.values() for x in order})
    ranks = {x: [r for r, order in orders.items() if x in order] for x in names}
    groups = {"0": ("default_pg", sorted(orders)), **{x: (f"group {x}", ranks[x]) for x in names}}
    programs = []
    for order in orders.values():

        def calls(text: str) -> list[Any]:
            return [Op("all_reduce", x, 64, line=ord(x)) for x in text]

        body: list[Any] = [*calls("".join(sorted(order))), Op("all_reduce", "0", 1, line=5), "sync"]
        last = [*calls(order), Op("all_reduce", "0", 1, line=5), "sync"]
        programs.append((last if usual else body) * steps + last)
    return Job(groups, programs)


RINGS = {
    "two-ranks": {0: "ab", 1: "ba"},
    "two-groups-of-four": {0: "ab", 1: "ab", 2: "ba", 3: "ab"},
    "three-groups": {0: "ab", 1: "bc", 2: "ca"},
    "four-groups": {0: "ab", 1: "bc", 2: "cd", 3: "da"},
}


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize("timing", [False, True])
def test_queues_in_opposite_order_are_a_deadlock(name: str, timing: bool) -> None:
    job = ring(RINGS[name])
    job.timing = timing
    made = dumped.reconstruct(job.run(200))
    (first,) = made.suspects
    assert (first.ranks, first.cause) == ((), "deadlock")
    assert first.weight >= judgement.GAPS
    assert "opposite orders" in first.says
    assert "train.py:97" in first.says
    assert made.groups[0] == first.group
    assert made.groups[0].description != "default_pg"
    assert not made.groups[0].missing
    created = {g.description: g.first_arrival_ns for g in made.groups if g.description != "default_pg"}
    assert made.groups[0].first_arrival_ns == min(x for x in created.values() if x is not None)


@pytest.mark.parametrize("orders", [{0: "ab", 1: "ab"}, {0: "ab", 1: "bc", 2: "ac"}, {0: "ba", 1: "ba", 2: "ba"}])
def test_queues_of_one_order_are_no_deadlock(orders: dict[int, str]) -> None:
    """The same groups, and a GPU that never comes: nobody stands in a circle."""
    job = ring(orders, usual=True)
    job.programs[0][-4:-4] = ["gpu"]
    made = dumped.reconstruct(job.run(200))
    assert made.groups
    assert all(x.cause != "deadlock" for x in made.suspects)


def test_an_order_that_always_worked_is_no_deadlock() -> None:
    """Streams of their own: opposite orders at every step, finished before, so they do not explain the hang."""
    job = ring({0: "ab", 1: "ab"}, usual=True)
    dumps = job.run(200)
    job.programs[0][-4:-4] = ["gpu"]
    dumps = job.run(200)
    swapped = []
    for dump in dumps:
        if dump.rank == 1:  # what was queued second is recorded first, in every step
            at = [i for i in range(dump.count) if dump.groups[dump.group[i]].name == "a"]
            order = list(range(dump.count))
            for i in at:
                order[i], order[i + 1] = i + 1, i
            columns = ["group", "seq", "p2p_seq", "op_id", "call", "stack", "created_ns", "flags"]
            dump = replace(dump, **{x: getattr(dump, x)[order] for x in columns})
        swapped.append(dump)
    made = dumped.reconstruct(swapped)
    assert made.groups
    assert all(x.cause != "deadlock" for x in made.suspects)


def crossed(first: str, second: str, steps: int = 6, blocking: bool = False) -> Job:
    """Ranks 0 and 1 send, receive and reduce with each other: r, s, a in the last step's order, as it should be before.

    With `blocking` each call waits for its end.
    """
    calls = {
        "s": Op("send", "p", 64, peer=1, line=71),
        "r": Op("recv", "p", 64, peer=0, line=72),
        "a": Op("all_reduce", "a", 64, line=73),
    }

    def body(order: str) -> list[Any]:
        made = [x for c in order for x in ([calls[c], "sync"] if blocking else [calls[c]])]
        return [*made, Op("all_reduce", "0", 1, line=5), "sync"]

    groups = {"0": ("default_pg", [0, 1, 2]), "p": ("pp", [0, 1]), "a": ("dp", [0, 1])}
    programs = [body("sa") * steps + body(first), body("ra") * steps + body(second), body("") * (steps + 1)]
    return Job(groups, programs)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(("first", "second", "odd"), [("sa", "ar", 1), ("as", "ra", 0)])
def test_a_send_and_a_collective_in_opposite_order_are_a_deadlock(
    first: str, second: str, odd: int, blocking: bool
) -> None:
    made = dumped.reconstruct(crossed(first, second, blocking=blocking).run(200))
    (one,) = made.suspects
    assert (one.ranks, one.cause) == ((), "deadlock")
    assert one.details["circle"] == (0, 1)
    assert f"In earlier steps rank {odd} had another order" in one.says
    for line in (71 if first == "sa" else 72, 73):
        assert f"train.py:{line} (step)" in one.says
    assert made.cannot_exclude == (0, 1)


def test_two_that_both_receive_first_are_told_with_both_places() -> None:
    receive = [Op("recv", "p", 64, peer=1 - rank, line=80 + rank) for rank in range(2)]
    send = [Op("send", "p", 64, peer=1 - rank, line=90 + rank) for rank in range(2)]
    groups = {"0": ("default_pg", [0, 1]), "p": ("pp", [0, 1])}
    job = Job(groups, [[receive[rank], "sync", send[rank], "sync"] for rank in range(2)])
    (one,) = dumped.reconstruct(job.run(50)).suspects
    assert (one.ranks, one.cause) == ((), "deadlock")
    assert "rank 0 called a receive from rank 1 at train.py:80 (step) and has not called a send to rank 1" in one.says
    assert "rank 1 called a receive from rank 0 at train.py:81 (step) and has not called a send to rank 0" in one.says


def test_who_waits_for_the_dead_is_in_no_deadlock() -> None:
    job = crossed("sa", "ra", blocking=True)
    job.programs[1].insert(-5, "die")
    made = dumped.reconstruct(job.run(200))
    assert verdict(made) == ((1,), "process_missing")


def test_sends_beside_collectives_without_a_history_are_no_deadlock() -> None:
    """Both have called everything, and nothing tells that one order was the wrong one: streams of their own."""
    made = dumped.reconstruct(crossed("sa", "ar", steps=0).run(200))
    assert all(x.cause != "deadlock" for x in made.suspects)


@pytest.mark.parametrize("layout", ["pipeline4", "pipeline4x2"])
def test_a_running_pipeline_is_in_no_deadlock(layout: str) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        job = LAYOUTS[layout]()
        skew = {rank: 8 + rng.randrange(8) for rank in range(len(job.programs))}
        assert all(x.cause != "deadlock" for x in dumped.reconstruct(job.run(30, skew)).suspects)


FINISH = Op("all_reduce", "0", 1, "Byte", line=99)
"""The barrier behind the loop."""


@pytest.mark.parametrize("stacks", [True, False])
def test_who_ran_out_of_data_has_left_the_loop(stacks: bool) -> None:
    job = ddp(4)
    job.stacks = stacks
    for rank in range(4):
        job.programs[rank] += [FINISH, "sync"]
    job.programs[2] = [*job.programs[2][:-6], FINISH, "sync"]  # one step fewer
    made = dumped.reconstruct(job.run(200))
    assert verdict(made) == ((2,), "uneven_inputs")
    assert made.groups[0].seq == 22
    assert "had left the loop" in made.suspects[0].says


def test_who_left_the_loop_of_several_groups() -> None:
    """What it left undone first is in its tensor parallel group, the barrier in that of all."""
    job = mesh(2, 4)
    for rank in range(8):
        job.programs[rank] += [FINISH, "sync"]
    job.programs[5] = [*job.programs[5][:-8], FINISH, "sync"]
    made = dumped.reconstruct(job.run(200))
    assert verdict(made) == ((5,), "uneven_inputs")
    assert made.groups[0].description == "mesh_tp"
    assert made.groups[0].missing == (5,)


def test_a_barrier_of_every_step_is_not_the_end_of_the_loop() -> None:
    """Near miss: the rank left out two calls, and comes to the barrier that all steps have."""
    job = ddp(4)
    body = [*job.programs[0][:3], FINISH, "sync"]
    job.programs = [body * 8 for _ in range(4)]
    job.programs[2] = [*body * 5, body[0], *body[3:], *body * 2]
    made = dumped.reconstruct(job.run(200))
    assert verdict(made)[0] == (2,)
    assert verdict(made)[1] in ("collective_skipped", "collective_mismatch")


def test_one_call_short_at_the_last_barrier_is_a_call_left_out() -> None:
    """Near miss: whose peers wait in the very last call before the barrier."""
    job = ddp(4)
    for rank in range(4):
        job.programs[rank] += [FINISH, "sync"]
    job.programs[1] = [*job.programs[1][:-4], FINISH, "sync"]
    for rank in (0, 2, 3):
        job.programs[rank][-3:-3] = ["sync"]
    made = dumped.reconstruct(job.run(200))
    assert verdict(made)[0] == (1,)
    assert verdict(made)[1] in ("collective_skipped", "collective_mismatch")


def test_extra_healthy_groups_change_nothing() -> None:
    job, guilty = made_job("hang", "mesh2x4", 1)
    before = verdict(dumped.reconstruct(job.run(400)))
    job.groups["side"] = ("side", [2, 3])
    for rank in (2, 3):
        job.programs[rank] = [Op("all_reduce", "side", 5, line=99), *job.programs[rank]]
    assert verdict(dumped.reconstruct(job.run(400))) == before
    assert set(before[0]) == guilty


def test_every_detector_is_asked_once() -> None:
    """A detector is a public function of a file in detectors/ that gives a judgement or None."""
    found = [
        function
        for info in pkgutil.iter_modules(detectors.__path__)
        for module in [importlib.import_module(f"{detectors.__name__}.{info.name}")]
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]
    asked = [question.ask for question in detectors.QUESTIONS]
    assert sorted(asked, key=repr) == sorted(found, key=repr)
    assert {x.__annotations__["return"] for x in found} == {"Judgement | None"}


def test_no_dumps() -> None:
    made = dumped.reconstruct([])
    assert made == Reconstruction()


def test_nonsense_does_not_raise() -> None:
    """Dumps that contradict each other, themselves and their format still give a reconstruction."""
    rng = random.Random(7)
    folders = [x.values[0] for x in RUNS]
    for _ in range(int(os.environ.get("NONSENSE", "150"))):
        dumps = []
        for dump in folder(rng.choice(folders)):
            n = dump.count
            for _ in range(rng.randrange(3) if n else 0):
                column = rng.choice(
                    ["seq", "p2p_seq", "flags", "call", "group", "record_id", "created_ns", "op_id", "stack"]
                )
                values = getattr(dump, column).copy()
                highest = {"call": len(dump.calls), "group": len(dump.groups), "stack": max(1, len(dump.stacks))}
                for _ in range(rng.choice([1, 3, n])):
                    values[rng.randrange(n)] = rng.randrange(highest.get(column, 16))
                dump = replace(dump, **{column: values})
            if rng.random() < 0.2:
                dump = replace(dump, rank=rng.randrange(5), partial=rng.random() < 0.5)
            if rng.random() < 0.2 and n:
                keep = slice(0, rng.randrange(n))
                columns = ["group", "seq", "p2p_seq", "op_id", "record_id", "call", "stack", "created_ns", "started_ns"]
                columns += ["completed_ns", "timeout_ms", "flags"]
                dump = replace(dump, **{x: getattr(dump, x)[keep] for x in columns})
            if rng.random() < 0.8:
                dumps.append(dump)
        dumped.reconstruct(dumps, expected_world=rng.choice([None, 2, 40]))


def test_a_batch_that_one_rank_never_posts() -> None:
    """Batched sends and receives: the parts are never over by themselves, the closing entry is."""
    dumps = []
    for rank in range(3):
        entries: list[dict[str, Any]] = []
        for batch in range(1, 3 if rank == 1 else 5):
            for name in (f"send {rank}->{(rank + 1) % 3}", f"recv {rank}<-{(rank - 1) % 3}", "coalesced"):
                over = batch < 3 and name == "coalesced"
                entries.append({
                    "record_id": len(entries), "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 0,
                    "p2p_seq_id": batch, "op_id": len(entries), "profiling_name": f"nccl:{name}", "is_p2p": True,
                    "time_created_ns": 10**18, "state": "completed" if over else "scheduled", "retired": over,
                })  # fmt: skip
        content = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}}
        dumps.append(dump_of({**content, "entries": entries}, path=f"d{rank}", form="pickle", name_rank=rank)[0])
    made = dumped.reconstruct(dumps)
    assert verdict(made) == ((1,), "rank_not_arrived")
    assert made.groups[0].op in ("send", "recv")


def _gloo(rank: int, ops: list[str]) -> Dump:
    """The dump of a rank of four whose gloo has retired all of these calls."""
    entries = [
        {
            "record_id": n, "pg_id": 0, "process_group": ("", "default_pg"), "collective_seq_id": n, "p2p_seq_id": 0,
            "op_id": n, "profiling_name": f"gloo:{op}", "time_created_ns": 1_800_000_000 * 10**9 + n * 10**8,
            "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "state": "scheduled", "retired": True, "timeout_ms": 15000, "is_p2p": False,
        }
        for n, op in enumerate(ops, 1)
    ]  # fmt: skip
    content = {
        "version": "2.10", "pg_config": {"": {"name": "", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "entries": entries,
    }  # fmt: skip
    return dump_of(content, path=f"dump{rank}", form="pickle", name_rank=rank)[0]


def test_gloo_retires_calls_that_cannot_have_been_one() -> None:
    """Different operations at the last number of all: nobody completed it, whatever `retired` says."""
    same, other = ["all_reduce", "all_reduce"], ["all_reduce", "barrier"]
    made = dumped.reconstruct([*(_gloo(rank, same) for rank in range(3)), _gloo(3, other)])
    assert not made.healthy
    assert made.suspects[0].ranks == (3,)
    assert made.groups[0].seq == 2


def test_gloo_that_retired_the_same_calls_is_done() -> None:
    """Near miss: all stand at one number, with the same operation."""
    made = dumped.reconstruct([_gloo(rank, ["barrier", "all_reduce"]) for rank in range(4)])
    assert made.suspects == ()
