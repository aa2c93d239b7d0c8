"""The job itself: a discrete-event model of ranks that launch collectives and of GPUs that run them.

Each rank has a CPU that walks through the program and enqueues operations ahead of its GPU, up to the next point where
it needs a result; and a GPU that runs them in order. A collective runs when it has come to the front on the GPUs of all
members, and ends at the same moment everywhere. Point-to-point operations pair up. Nothing here knows of logs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from .cluster import MS, S
from .scenario import Scenario

Where = tuple[str, str, int]
"""Function, file, line."""

SITE = "/opt/venv/lib/python3.11/site-packages/torch/distributed"
APP = "/srv/train/pretrain.py"
MOE = "/srv/train/moe.py"

TORCH_FRAMES: dict[str, tuple[Where, ...]] = {
    op: ((name, f"{SITE}/distributed_c10d.py", line), ("wrapper", f"{SITE}/c10d_logger.py", 81))
    for op, name, line in (
        ("all_reduce", "all_reduce", 2931),
        ("_all_gather_base", "all_gather_into_tensor", 3904),
        ("_reduce_scatter_base", "reduce_scatter_tensor", 4332),
        ("all_to_all", "all_to_all_single", 4480),
        ("broadcast", "broadcast", 2711),
        ("send", "send", 2399),
        ("recv", "recv", 2450),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    index: int
    name: str
    """What all members call it."""
    desc: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One line of the program that starts an operation."""

    group: Group
    op: str
    """PyTorch's profiling name without backend."""
    numel_in: int
    numel_out: int
    dtype: str = "BFloat16"
    thread: str = "pt_main_thread"
    where: tuple[Where, ...] = ()
    peer: int | None = None
    """Global rank at the other end of a send or recv."""
    lasts_ns: int = 4 * MS
    label: str = ""
    """What it is for, in one word; faults aim by it."""

    @property
    def signature(self) -> tuple[str, int, int, str]:
        return self.op, self.numel_in, self.numel_out, self.dtype

    @property
    def frames(self) -> tuple[Where, ...]:
        return TORCH_FRAMES[self.op] + self.where


@dataclass(slots=True, kw_only=True)
class Work:
    """One operation of one rank. Times are true UTC ns; None: not yet."""

    call: Call
    rank: int
    record: int
    seq: int
    """Collective sequence number in its group; of the last collective for send and recv."""
    p2p_seq: int
    op_id: int
    created_ns: int
    started_ns: int | None = None
    completed_ns: int | None = None
    stalled: bool = False


Kind = Literal["stop", "skip", "swap", "extra", "stall", "leave", "reorder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What one rank does differently."""

    rank: int
    kind: Kind
    step: int
    label: str
    """The call before or instead of which it happens (the first of that label in the step)."""
    call: Call | None = None
    """For swap and extra."""
    lag_ns: int = 0
    """By so much it comes later to that call in every step before, too."""


@dataclass(slots=True, kw_only=True)
class Run:
    """The job's history up to the point where nothing moves any more."""

    groups: tuple[Group, ...]
    works: list[list[Work]]
    """By rank, in program order."""
    struck_ns: dict[int, int] = field(default_factory=dict)
    """When each faulty rank came to its fault."""
    pulse: list[tuple[int, int]] = field(default_factory=list)
    """(step, ns) as the printing rank saw it end."""
    blocked: dict[int, str] = field(default_factory=dict)
    """What each rank's CPU was doing at the end: 'stopped', 'waiting', 'done'."""
    ended_ns: int = 0

    def pending(self, rank: int, group: Group, at_ns: int) -> Work | None:
        """The oldest operation of `rank` in `group` that was enqueued and not complete at `at_ns`."""
        for work in self.works[rank]:
            if work.call.group is not group or work.created_ns > at_ns:
                continue
            if work.completed_ns is None or work.completed_ns > at_ns:
                return work
        return None

    def counters(self, rank: int, group: Group, at_ns: int) -> tuple[int, int, int]:
        """(last enqueued, last started, last completed) sequence number of `rank` in `group`; -1: never."""
        enqueued = started = completed = -1
        for work in self.works[rank]:
            if work.call.group is not group or work.created_ns > at_ns:
                continue
            number = work.seq if work.call.peer is None else work.p2p_seq
            enqueued = number
            if work.started_ns is not None and work.started_ns <= at_ns:
                started = number
            if work.completed_ns is not None and work.completed_ns <= at_ns:
                completed = number
        return enqueued, started, completed

    def of(self, rank: int) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if rank in g.members)


def layout(scenario: Scenario) -> tuple[Group, ...]:
    """The process groups of the job: the world, and data, tensor, pipeline and expert parallel ones where they exist.

    Ranks are laid out tensor-parallel first, then pipeline, then data parallel.
    """
    world = scenario.nodes * scenario.per_node
    groups = [Group(index=0, name="0", desc="default_pg", members=tuple(range(world)))]

    def add(desc: str, sets: list[tuple[int, ...]]) -> None:
        for members in sets:
            if len(members) > 1:
                groups.append(Group(index=len(groups), name=str(len(groups)), desc=desc, members=members))

    tensor, stages = scenario.tensor, scenario.pipeline
    data = world // (tensor * stages)
    if tensor > 1:
        sets = [tuple(range(first, first + tensor)) for first in range(0, world, tensor)]
        add("TENSOR_MODEL_PARALLEL_GROUP", sets)
    if stages > 1:
        block = tensor * stages
        sets = [tuple(d * block + s * tensor + t for s in range(stages)) for d in range(data) for t in range(tensor)]
        add("PIPELINE_MODEL_PARALLEL_GROUP", sets)
    if tensor * stages > 1 and data > 1:
        block = tensor * stages
        add("DATA_PARALLEL_GROUP", [tuple(range(first, world, block)) for first in range(block)])
    if scenario.expert > 1:  # the members of one share a pipeline stage
        size = scenario.expert
        for stage in range(stages):
            ranks = [rank for rank in range(world) if rank // tensor % stages == stage]
            sets = [tuple(ranks[first : first + size]) for first in range(0, len(ranks), size)]
            add("EXPERT_MODEL_PARALLEL_GROUP", sets)
    return tuple(groups)


def program(scenario: Scenario, groups: tuple[Group, ...], rank: int) -> list[Call]:
    """The calls of one training step on one rank."""
    mine = {g.desc: g for g in groups if rank in g.members}
    world, main = groups[0], (("train_step", APP, 212), ("main", APP, 341))
    calls: list[Call] = []

    def tensor_calls(name: str, line: int) -> None:
        if tp := mine.get("TENSOR_MODEL_PARALLEL_GROUP"):
            for layer in range(2):
                where = (("_reduce", "/srv/train/layers.py", line), (name, APP, 190 + layer), *main)
                calls.append(
                    Call(group=tp, op="all_reduce", numel_in=8388608, numel_out=8388608, where=where, label="tp")
                )

    def peers(op: str, step: int, line: int) -> None:
        if pp := mine.get("PIPELINE_MODEL_PARALLEL_GROUP"):
            at = pp.members.index(rank) + step
            if 0 <= at < len(pp.members):
                where = ((f"{op}_tensor", "/srv/train/pipeline.py", line), *main)
                peer = pp.members[at]
                calls.append(
                    Call(group=pp, op=op, numel_in=4194304, numel_out=4194304, where=where, peer=peer, label=op)
                )

    peers("recv", -1, 71)
    tensor_calls("forward", 61)
    if ep := mine.get("EXPERT_MODEL_PARALLEL_GROUP"):
        for name, line in (("dispatch", 118), ("combine", 164)):
            where = ((name, MOE, line), ("forward", MOE, 201), *main)
            calls.append(Call(group=ep, op="all_to_all", numel_in=2097152, numel_out=2097152, where=where, label="ep"))
    peers("send", 1, 84)
    peers("recv", 1, 97)
    tensor_calls("backward", 77)
    peers("send", -1, 109)
    dp = world if scenario.tensor * scenario.pipeline == 1 else mine.get("DATA_PARALLEL_GROUP")
    if dp is not None and len(dp.members) > 1:
        aux = (("balance_loss", MOE, 233), ("compute_loss", APP, 174), *main)
        calls.append(Call(group=dp, op="all_reduce", numel_in=64, numel_out=64, dtype="Float", where=aux, label="aux"))
        for bucket, numel in enumerate((26214400, 13107200, 4194304)):
            where = (("reduce_bucket", APP, 131 + bucket), ("backward", APP, 148), *main)
            calls.append(
                Call(
                    group=dp,
                    op="all_reduce",
                    numel_in=numel,
                    numel_out=numel,
                    thread="pt_autograd_0",
                    where=where,
                    label=f"bucket{bucket}",
                )
            )
    loss = (("log_loss", APP, 244), *main)
    calls.append(Call(group=world, op="all_reduce", numel_in=1, numel_out=1, dtype="Float", where=loss, label="loss"))
    return calls


def train(scenario: Scenario, groups: tuple[Group, ...], faults: tuple[Fault, ...], start_ns: int, rng: Random) -> Run:
    """Run the job until it is done or until nothing moves."""
    world = len(groups[0].members)
    run = Run(groups=groups, works=[[] for _ in range(world)])
    programs = [program(scenario, groups, rank) for rank in range(world)]
    by_rank = {fault.rank: fault for fault in faults}
    seqs: list[dict[int, int]] = [defaultdict(int) for _ in range(world)]
    p2p_seqs: list[dict[int, int]] = [defaultdict(int) for _ in range(world)]
    op_ids: list[dict[int, int]] = [defaultdict(int) for _ in range(world)]
    pair_counts: list[dict[tuple[int, int, int], int]] = [defaultdict(int) for _ in range(world)]
    head = [0] * world  # first work that is not complete
    at_front: dict[object, dict[int, int]] = defaultdict(dict)  # operation → rank → when its GPU was ready
    keys: dict[int, object] = {}
    waiting: set[int] = set()
    events: list[tuple[int, int, str, int]] = []
    order = 0
    barrier = Call(
        group=groups[0],
        op="all_reduce",
        numel_in=1,
        numel_out=1,
        dtype="Byte",
        where=(("finish", APP, 402), ("main", APP, 355)),
        label="barrier",
    )

    def push(at_ns: int, what: str, rank: int) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (at_ns, order, what, rank))

    def enqueue(rank: int, call: Call, at_ns: int, stalled: bool) -> None:
        group = call.group.index
        op_ids[rank][group] += 1
        key: object
        if call.peer is None:
            seqs[rank][group] += 1
            key = (group, seqs[rank][group])
        else:
            p2p_seqs[rank][group] += 1
            ends = (group, rank, call.peer) if call.op == "send" else (group, call.peer, rank)
            pair_counts[rank][ends] += 1
            key = (*ends, pair_counts[rank][ends])
        work = Work(
            call=call,
            rank=rank,
            record=len(run.works[rank]),
            seq=seqs[rank][group],
            p2p_seq=p2p_seqs[rank][group],
            op_id=op_ids[rank][group],
            created_ns=at_ns,
            stalled=stalled,
        )
        run.works[rank].append(work)
        keys[id(work)] = key
        if head[rank] == len(run.works[rank]) - 1:
            ready(work, at_ns + rng.randrange(20_000, 90_000))

    def ready(work: Work, at_ns: int) -> None:
        """`work` is at the front of its GPU."""
        if work.stalled:
            run.struck_ns.setdefault(work.rank, at_ns)
            return
        work.started_ns = at_ns
        key = keys[id(work)]
        here = at_front[key]
        here[work.rank] = at_ns
        call = work.call
        need = call.group.members if call.peer is None else (work.rank, call.peer)
        if len(here) < len(need):
            return
        parties = [run.works[r][head[r]] for r in need]
        if call.peer is None and len({w.call.signature for w in parties}) > 1:
            return  # NCCL pairs them by order; it hangs or breaks, and here it hangs
        end = max(here.values()) + call.lasts_ns + rng.randrange(0, MS)
        for party in parties:
            party.completed_ns = end
            push(end, "gpu", party.rank)

    walkers: dict[int, Iterator[tuple[str, int]]] = {}

    def walk(rank: int) -> Iterator[tuple[str, int]]:
        """What the CPU of a rank does, as ('compute', ns), ('wait', 0) or ('stop', 0)."""
        fault = by_rank.get(rank)
        for step in range(1, scenario.steps + 1):
            here = fault if fault is not None and fault.step == step else None
            calls = programs[rank]
            if here is not None and here.kind == "leave":
                run.struck_ns[rank] = clock[rank]
                enqueue(rank, barrier, clock[rank], False)
                yield "wait", 0
                return
            share = int(scenario.step_s * S * 0.9 / max(len(programs[rank]), 1))
            if here is not None and here.kind == "reorder":
                calls = reordered(calls, here.label)
            done = False
            for call in calls:
                # The first call of a step costs most of its time; the rest is enqueued in a burst.
                first = call is calls[0]
                yield "compute", int(share * len(programs[rank]) * 0.5) if first else rng.randrange(200_000, 3_000_000)
                stalled = False
                if fault is not None and fault.lag_ns and step < fault.step and call.label == fault.label:
                    yield "compute", fault.lag_ns
                if here is not None and not done and call.label == here.label:
                    done = True
                    if here.kind != "stall":
                        run.struck_ns[rank] = clock[rank]
                    if here.kind == "stop":
                        yield "stop", 0
                    elif here.kind == "skip":
                        continue
                    elif here.kind == "swap":
                        assert here.call is not None
                        call = here.call
                    elif here.kind == "extra":
                        assert here.call is not None
                        enqueue(rank, here.call, clock[rank], False)
                        yield "compute", 400_000
                    stalled = here.kind == "stall"
                enqueue(rank, call, clock[rank], stalled)
            yield "wait", 0
            if rank == printer:
                run.pulse.append((step, clock[rank]))
            yield "compute", int(scenario.step_s * S * 0.4 * rng.uniform(0.97, 1.03))
        enqueue(rank, barrier, clock[rank], False)
        yield "wait", 0

    printer = world - 1 if scenario.application == "megatron" else 0
    clock = [start_ns + rng.randrange(0, 40 * MS) for _ in range(world)]
    for rank in range(world):
        walkers[rank] = walk(rank)
        push(clock[rank], "cpu", rank)

    def idle(rank: int) -> bool:
        return head[rank] >= len(run.works[rank])

    while events:
        at_ns, _, what, rank = heapq.heappop(events)
        run.ended_ns = max(run.ended_ns, at_ns)
        if what == "gpu":
            head[rank] += 1
            if not idle(rank):
                ready(run.works[rank][head[rank]], at_ns + rng.randrange(5_000, 30_000))
            elif rank in waiting:
                waiting.discard(rank)
                push(at_ns + rng.randrange(30_000, 200_000), "cpu", rank)
            continue
        clock[rank] = at_ns
        action, ns = next(walkers[rank], ("done", 0))
        if action == "compute":
            push(at_ns + int(ns * rng.uniform(0.98, 1.02)), "cpu", rank)
        elif action == "wait":
            run.blocked[rank] = "waiting"
            if idle(rank):
                push(at_ns, "cpu", rank)
            else:
                waiting.add(rank)
        elif action == "stop":
            run.blocked[rank] = "stopped"
        else:
            run.blocked[rank] = "done"
    return run


def reordered(calls: list[Call], label: str) -> list[Call]:
    """`calls` with the last one of that label and its successor exchanged."""
    at = max(i for i, call in enumerate(calls[:-1]) if call.label == label)
    return [*calls[:at], calls[at + 1], calls[at], *calls[at + 2 :]]


def wrong_call(call: Call, how: str) -> Call:
    """`call` as a rank with a bug makes it: another size or another operation."""
    if how == "size":
        return replace(call, numel_in=call.numel_in - 4096, numel_out=call.numel_out - 4096)
    world = len(call.group.members)
    return replace(call, op="_all_gather_base", numel_out=call.numel_in * world)
