"""Flight Recorder dumps, in the form that each version of PyTorch writes (formats/fr-format.md, section 1)."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from . import cpickle
from .cluster import MS, Member
from .scenario import Scenario
from .training import Run, Work

NUMBERS = {"2.2": None, "2.3": "1.4", "2.4": "2.1", "2.5": "2.4", "2.6": "2.4", "2.7": "2.4", "2.8": "2.9"}
LIBRARY = {"2.2": "2.19.3", "2.3": "2.20.5", "2.4": "2.20.5", "2.5": "2.21.5", "2.6": "2.21.5", "2.7": "2.26.2"}


def minor(version: str) -> int:
    """'2.10' → 10."""
    return int(version.split(".")[1])


def nccl_version(version: str) -> str:
    return LIBRARY.get(version, "2.27.5" if minor(version) >= 8 else "2.14.3")


def dump_version(version: str) -> str | None:
    """None: a bare list of entries (2.2)."""
    return NUMBERS.get(version, "2.10")


def file_name(version: str, rank: int) -> str:
    return f"{'comm_lib' if minor(version) >= 9 else 'nccl'}_trace_rank_{rank}"


def _frames(work: Work) -> list[cpickle.Frame]:
    return [cpickle.Frame(name=name, filename=file, line=line) for name, file, line in work.call.frames]


def _entry(
    scenario: Scenario, work: Work, at_ns: int, member: Member, ids: dict[int, int], rng: Random
) -> dict[str, Any]:
    call, version = work.call, minor(scenario.torch)

    def wall(ns: int) -> int:
        return member.host.clock.wall(ns)

    done = work.completed_ns is not None and work.completed_ns <= at_ns
    started = scenario.timing and work.started_ns is not None and work.started_ns <= at_ns
    state = "completed" if done else "started" if started else "scheduled"
    noticed = wall(work.completed_ns + rng.randrange(MS, 100 * MS)) if done and work.completed_ns else None
    began = wall(work.started_ns + rng.randrange(MS, 100 * MS)) if started and work.started_ns else None
    if began is not None and noticed is not None:
        began = min(began, noticed)
    name = f"nccl:{call.op}"
    if call.peer is not None:
        me, you = call.group.members.index(work.rank), call.group.members.index(call.peer)
        name += f" {me}->{you}" if call.op == "send" else f" {me}<-{you}"
    sizes = {"input_sizes": [[call.numel_in]], "output_sizes": [[call.numel_out]]}
    frames = {"frames": _frames(work)} if scenario.frames else {}
    pg = {"pg_id": ids[call.group.index]}
    if version == 2:
        return {
            **pg,
            "seq_id": work.seq,
            "profiling_name": name,
            "time_created_us": wall(work.created_ns) // 1000,
            **sizes,
            "state": state,
            "retired": done,
            **frames,
        }
    times = {"time_created_ns": wall(work.created_ns)}
    if scenario.timing and done and work.started_ns and work.completed_ns:
        duration = {"duration_ms": (work.completed_ns - work.started_ns) / MS}
    else:
        duration = {}
    discovered = {"time_discovered_started_ns": began, "time_discovered_completed_ns": noticed}
    if version == 3:
        return {
            "record_id": work.record,
            **pg,
            "seq_id": work.seq + work.p2p_seq,
            "op_id": work.op_id,
            "profiling_name": name,
            **times,
            **duration,
            **sizes,
            "state": state,
            **discovered,
            "retired": done,
            **frames,
        }
    thread = {"thread_name": call.thread, "thread_id": str(140_131_000_000_000 + 4096 * (len(call.thread)))}
    timeout = {"timeout_ms": timeout_ms(scenario)} if version >= 5 else {}
    return {
        **frames,
        "record_id": work.record,
        **pg,
        "process_group": (call.group.name, call.group.desc),
        **(thread if version >= 8 else {}),
        "collective_seq_id": work.seq,
        "p2p_seq_id": work.p2p_seq,
        "op_id": work.op_id,
        "profiling_name": name,
        **times,
        **duration,
        "input_sizes": sizes["input_sizes"],
        "input_dtypes": [call.dtype],
        "output_sizes": sizes["output_sizes"],
        "output_dtypes": [call.dtype],
        "state": state,
        **discovered,
        "retired": done,
        **timeout,
        "is_p2p": call.peer is not None,
    }


def timeout_ms(scenario: Scenario) -> int:
    return scenario.timeout_ms or (600_000 if minor(scenario.torch) >= 2 else 1_800_000)


def dump(scenario: Scenario, run: Run, member: Member, at_ns: int, rng: Random) -> tuple[bytes, bytes]:
    """(pickle, JSON) of one rank's recorder at `at_ns` (true UTC)."""
    rank, version = member.rank, minor(scenario.torch)
    mine = run.of(rank)
    ids = {group.index: number for number, group in enumerate(mine)}  # numbered by each process for itself
    recorded = [work for work in run.works[rank] if work.created_ns <= at_ns][-scenario.ring :]
    entries = [_entry(scenario, work, at_ns, member, ids, rng) for work in recorded]
    used = [group for group in mine if any(work.call.group is group for work in run.works[rank])]
    number = dump_version(scenario.torch)
    if number is None:
        return cpickle.dumps(entries), json.dumps(entries).encode()
    status = {
        str(ids[group.index]): dict(
            zip(
                ("last_enqueued_collective", "last_started_collective", "last_completed_collective"),
                (e, s if scenario.timing else -1, c),
                strict=True,
            )
        )
        for group in used
        for e, s, c in (run.counters(rank, group, at_ns),)
    }
    value: dict[str, Any]
    if version == 3:
        config: dict[Any, Any] = {ids[group.index]: list(group.members) for group in used}
        value = {"entries": entries, "version": number, "pg_config": config}
    else:
        config = {
            group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.members))} for group in used
        }
        value = {"version": number, "pg_config": config}
        if version >= 8:
            value["nccl_version" if version == 8 else "comm_lib_version"] = nccl_version(scenario.torch)
        if version >= 5:
            value["pg_status"] = status
        value["entries"] = entries
    plain = [
        {
            key: 0 if item is None and key.startswith("time_discovered") else item
            for key, item in entry.items()
            if key != "frames"
        }
        for entry in entries
    ]
    spelled = {**value, "entries": plain, "nccl_comm_state": {}}
    if "pg_status" in value:
        spelled["pg_status"] = {pg: {key: str(n) for key, n in row.items()} for pg, row in status.items()}
    return cpickle.dumps(value), json.dumps(spelled, sort_keys=True, separators=(",", ":")).encode()
