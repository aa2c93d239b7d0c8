"""Events with the rank and the host that their prefix, their file and their process tell together."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.model import Event, InputRow
from nccl_forensics.names import short
from nccl_forensics.who.files import of_sources
from nccl_forensics.who.identities import Identities


def canonical_hosts(events: Iterable[Event]) -> dict[str, str]:
    """Short name → the longest spelling that any file uses."""
    best: dict[str, str] = {}
    for event in events:
        for name in (event.host, event.details.get("name") if event.kind == "host-name" else None):
            if isinstance(name, str) and name and len(name) > len(best.get(short(name), "")):
                best[short(name)] = name
    return best


def attribute(
    events: Sequence[Event], rows: Sequence[InputRow], known: Identities
) -> tuple[list[Event], list[InputRow]]:
    """Fill in rank and host where the table, a neighbour or the file's name tells them; unknown stays None."""
    canonical = canonical_hosts(events)
    sources = of_sources(rows, events)
    by_local = local_ranks(events, sources, known)
    tasks_are_ranks = _tasks_are_ranks(events, known.world_size)
    out: list[Event] = []
    for event in events:
        where, named, attempt, local_in_name = sources.get(event.evidence.source, (None, None, None, None))
        if event.relayed:
            where = named = local_in_name = None
        host = event.host or where
        host = canonical.get(short(host), host) if host else None
        local = event.local_rank if event.local_rank is not None else local_in_name
        rank = event.rank
        if rank is None and event.kind not in NOBODY:
            if local is not None:
                rank = by_local.rank(event, host, local)
            if rank is None and event.task is not None and event.evidence.source in tasks_are_ranks:
                rank = event.task
            if rank is None:
                rank = named
            if rank is None and event.gpu_pci is not None:
                rank = known.rank_of_gpu(host, event.gpu_pci)
            if rank is None and event.pid is not None and host is not None:
                rank = known.rank_of_pid(host, event.pid)
        if host is None and rank is not None and rank in known.ranks:
            host = known.ranks[rank].host
        if rank is None and event.evidence.source in tasks_are_ranks and len(tasks := _tasks(event)) > 1:
            event = replace(event, details={**event.details, "ranks": tasks})
        if (rank, host, local, attempt) != (event.rank, event.host, event.local_rank, event.attempt):
            event = replace(
                event,
                rank=rank,
                host=host,
                local_rank=local,
                attempt=event.attempt if event.attempt is not None else attempt,
            )
        out.append(event)
    ranks_in: dict[str, set[int]] = defaultdict(set)
    for event in out:
        if event.rank is not None and not event.relayed:
            ranks_in[event.evidence.source].add(event.rank)
    named_rows = []
    for row in rows:
        where, rank, _, local = sources[row.path]
        inside = ranks_in.get(row.path, set())
        if rank is None:
            rank = next(iter(inside)) if len(inside) == 1 else by_local.ranks.get((row.path, local), row.rank)
        named_rows.append(replace(row, host=canonical.get(short(where), where) if where else row.host, rank=rank))
    return out, named_rows


NOBODY = frozenset({"host-name", "gpu-info", "driver-version", "clock-anchor", "boot-start", "setting"})
"""Kinds that belong to a host or a file, not to a rank."""


def _tasks(event: Event) -> tuple[int, ...]:
    """The tasks of a launcher that a line is about."""
    if event.task is not None:
        return (event.task,)
    tasks = event.details.get("tasks")
    return tuple(n for n in tasks if isinstance(n, int)) if isinstance(tasks, tuple) else ()


def _tasks_are_ranks(events: Sequence[Event], world: int | None) -> set[str]:
    """Files in which a launcher's task number is the global rank: wherever both stand in one line, they agree.

    Releases up to 2.1 write no global rank; there the rank in the widest communicator, or in the group of a timeout,
    has to agree for two tasks or more. Where no line has both, a task number in the upper half of the world proves it:
    tasks that start two ranks each or more are half as many as ranks at most. So do two tasks that srun saw end on one
    node: a launcher that starts a node's ranks is one task there.
    """
    agree: dict[str, set[bool]] = defaultdict(set)
    also: dict[str, set[tuple[int, int]]] = defaultdict(set)
    widest = max((int(n) for e in events if isinstance(n := e.details.get("nranks"), int)), default=None)
    for event in events:
        if event.task is None:
            continue
        inside = event.details.get("group_rank" if event.kind == "watchdog-timeout" else "comm_rank")
        if event.rank is not None:
            agree[event.evidence.source].add(event.task == event.rank)
        elif isinstance(inside, int) and (
            event.kind == "watchdog-timeout" or (event.kind == "nccl-init" and event.details.get("nranks") == widest)
        ):
            also[event.evidence.source].add((event.task, inside))
    for source, pairs in also.items():
        if len({task for task, _ in pairs}) > 1:
            agree[source] |= {task == rank for task, rank in pairs}
    for event in events:
        if world and any(world <= 2 * task < 2 * world for task in _tasks(event)):
            agree[event.evidence.source].add(True)
    on_node: dict[tuple[str, str], set[int]] = defaultdict(set)
    for event in events:
        if event.kind in ("srun-exit", "slurm-oom") and event.host:
            on_node[event.evidence.source, event.host] |= set(_tasks(event))
    for (source, _), found in on_node.items():
        if len(found) > 1:
            agree[source].add(True)
    return {source for source, said in agree.items() if said == {True}}


@dataclass(frozen=True, slots=True)
class _Locals:
    """Which global rank a local rank is: on a host, of a launcher's task, in a file of one host."""

    ranks: Mapping[tuple[object, ...], int]
    mixed: frozenset[str]
    """Files in which several hosts write."""
    rendezvous: Mapping[str, Sequence[tuple[int, tuple[object, ...]]]]
    """File → (line, global ranks by local rank) in the order of its lines, where an agent met others several times."""

    def rank(self, event: Event, host: str | None, local: int) -> int | None:
        source = event.evidence.source
        if met := self._met(event):
            said = met[local] if local < len(met) else None
            return said if isinstance(said, int) else None
        keys: list[tuple[object, ...]] = []
        if event.task is not None:
            keys.append((source, event.task, local))
        if event.host is not None:
            keys.append((host, local))
        if source not in self.mixed:
            keys += [(source, local), (host, local)]
        return next((self.ranks[key] for key in keys if key in self.ranks), None)

    def _met(self, event: Event) -> tuple[object, ...]:
        """What the last rendezvous before this line said: at each, a node may be given other ranks."""
        met = self.rendezvous.get(event.evidence.source, ())
        before = bisect.bisect_right(met, event.evidence.line or 0, key=lambda m: m[0])
        return met[before - 1][1] if before else ()


def local_ranks(
    events: Sequence[Event],
    sources: Mapping[str, tuple[str | None, int | None, int | None, int | None]],
    known: Identities,
) -> _Locals:
    found: dict[tuple[object, ...], int] = {}
    met: dict[str, list[tuple[int, tuple[object, ...]]]] = defaultdict(list)
    speakers: dict[str, set[object]] = defaultdict(set)
    for event in events:
        if event.local_rank is not None and event.task is not None:
            speakers[event.evidence.source].add(event.task)
        elif event.local_rank is not None and event.kind == "exit" and event.host:
            speakers[event.evidence.source].add(short(event.host))
    for event in events:
        source = event.evidence.source
        if event.kind == "rendezvous" and isinstance(globals_ := event.details.get("global_ranks"), tuple):
            met[source].append((event.evidence.line or 0, globals_))
            for local, rank in enumerate(globals_):
                if isinstance(rank, int):
                    found.setdefault((source, local), rank)
                    if host := sources.get(source, (None,))[0]:
                        found.setdefault((host, local), rank)
        elif event.rank is not None and event.local_rank is not None:
            found.setdefault((source, event.local_rank), event.rank)
            if event.task is not None:
                found.setdefault((source, event.task, event.local_rank), event.rank)
            if event.host:
                found.setdefault((event.host, event.local_rank), event.rank)
    for rank, place in known.ranks.items():
        if place.host is not None and place.local_rank is not None:
            found.setdefault((place.host, place.local_rank), rank)
    hosts = {short(p.host) for p in known.ranks.values() if p.host} | {short(s[0]) for s in sources.values() if s[0]}
    told = {g for e in events if isinstance(g := e.details.get("global_ranks"), tuple) and g}
    if len(hosts) <= 1 and len(told) == 1:  # one agent's rendezvous: it speaks for all files of that machine
        (globals_,) = told
        for source in sources:
            for local, rank in enumerate(globals_):
                if isinstance(rank, int):
                    found.setdefault((source, local), rank)
    locals_ = {e.local_rank for e in events if e.local_rank is not None} | {
        s[3] for s in sources.values() if s[3] is not None
    }
    globals_seen = {e.rank for e in events if e.rank is not None and e.kind != "watchdog-timeout"} | set(known.ranks)
    fits = max(globals_seen, default=0) <= max(locals_, default=0) and not globals_seen - set(
        range(max(locals_, default=0) + 1)
    )
    if len(hosts) <= 1 and not told and fits:  # one machine: its local ranks are the job's ranks
        for event in events:
            if event.local_rank is not None:
                found.setdefault((event.evidence.source, event.local_rank), event.local_rank)
        for path, (_, _, _, in_name) in sources.items():
            if in_name is not None:
                found.setdefault((path, in_name), in_name)
    mixed = frozenset(source for source, who in speakers.items() if len(who) > 1)
    often = {source: rows for source, rows in met.items() if source not in mixed and len({m[1] for m in rows}) > 1}
    return _Locals(found, mixed, often)
