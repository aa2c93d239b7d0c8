"""Which global rank a local rank is: on a host, of a launcher's task, in a file of one host."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from nccl_forensics.model import Event
from nccl_forensics.names import short
from nccl_forensics.who.files import UNTOLD, OfFiles
from nccl_forensics.who.identities import Identities

Seat = tuple[object, ...]
"""(File or host, local rank), or (file, a launcher's task, local rank)."""
Members = tuple[int, ...] | tuple[str, ...]
"""Global ranks by local rank; text where a launcher wrote no number."""


@dataclass(frozen=True, slots=True)
class LocalRanks:
    """What is known of local ranks."""

    ranks: Mapping[Seat, int]
    mixed: frozenset[str]
    """Files in which several hosts write."""
    rendezvous: Mapping[str, Sequence[tuple[int, Members]]]
    """File → (line, members) in the order of its lines, where an agent met others several times."""

    def rank(self, event: Event, host: str | None, local: int) -> int | None:
        """The global rank of a line that tells its local rank."""
        source = event.evidence.source
        if met := self._met(event):
            said = met[local] if local < len(met) else None
            return said if isinstance(said, int) else None
        seats: list[Seat] = []
        if event.task is not None:
            seats.append((source, event.task, local))
        if event.host is not None:
            seats.append((host, local))
        if source not in self.mixed:
            seats += [(source, local), (host, local)]
        return next((self.ranks[seat] for seat in seats if seat in self.ranks), None)

    def _met(self, event: Event) -> Members:
        """What the last rendezvous before this line said: at each, a node may be given other ranks."""
        met = self.rendezvous.get(event.evidence.source, ())
        before = bisect.bisect_right(met, event.evidence.line or 0, key=lambda m: m[0])
        return met[before - 1][1] if before else ()


def local_ranks(events: Sequence[Event], files: OfFiles, known: Identities) -> LocalRanks:
    """What all lines and names tell. Of several statements on one seat the first counts."""
    statements = [_by_lines(events, files), _by_table(known)]
    if len(_hosts(files, known)) <= 1:
        told = _told_members(events)
        statements.append(_by_only_agent(told, files) if told else _by_only_machine(events, files, known))
    ranks: dict[Seat, int] = {}
    for seat, rank in chain.from_iterable(statements):
        ranks.setdefault(seat, rank)
    mixed = _of_several_nodes(events)
    return LocalRanks(ranks, mixed, _met_often(events, mixed))


def _hosts(files: OfFiles, known: Identities) -> set[str]:
    return {short(p.host) for p in known.ranks.values() if p.host} | {short(f.host) for f in files.values() if f.host}


Statements = Iterator[tuple[Seat, int]]


def _by_lines(events: Iterable[Event], files: OfFiles) -> Statements:
    """Lines that tell both ranks, in their order: the agent's after a rendezvous, and those with both in a prefix."""
    for event in events:
        if (members := _given_at_rendezvous(event)) is not None:
            yield from _by_rendezvous(event, members, files.get(event.evidence.source, UNTOLD).host)
        elif event.rank is not None and event.local_rank is not None:
            yield from _by_prefix(event, event.rank, event.local_rank)


def _by_rendezvous(event: Event, members: Members, host: str | None) -> Statements:
    """An agent tells which global ranks it was given."""
    for local, rank in enumerate(members):
        if isinstance(rank, int):
            yield (event.evidence.source, local), rank
            if host:
                yield (host, local), rank


def _by_prefix(event: Event, rank: int, local: int) -> Statements:
    """A line that tells its global and its local rank."""
    yield (event.evidence.source, local), rank
    if event.task is not None:
        yield (event.evidence.source, event.task, local), rank
    if event.host:
        yield (event.host, local), rank


def _by_table(known: Identities) -> Statements:
    for rank, place in known.ranks.items():
        if place.host is not None and place.local_rank is not None:
            yield (place.host, place.local_rank), rank


def _by_only_agent(told: Collection[Members], files: OfFiles) -> Statements:
    """On one machine: one agent's rendezvous speaks for all of its files."""
    for members in told if len(told) == 1 else ():
        for source in files:
            for local, rank in enumerate(members):
                if isinstance(rank, int):
                    yield (source, local), rank


def _by_only_machine(events: Sequence[Event], files: OfFiles, known: Identities) -> Statements:
    """On one machine, where no agent tells: its local ranks are the job's ranks, unless one is beyond them."""
    in_lines = [(e.evidence.source, e.local_rank) for e in events if e.local_rank is not None]
    in_names = [(path, file.local_rank) for path, file in files.items() if file.local_rank is not None]
    highest = max((local for _, local in (*in_lines, *in_names)), default=0)
    if _is_all_on_one_host(known):
        highest = max(highest, len(known.ranks) - 1)
    seen = {e.rank for e in events if e.rank is not None and e.kind != "watchdog-timeout"} | set(known.ranks)
    if all(0 <= rank <= highest for rank in seen):
        yield from ((seat, seat[1]) for seat in (*in_lines, *in_names))


def _is_all_on_one_host(known: Identities) -> bool:
    """Is every rank of the job known to have run on the same host?"""
    hosts = {short(place.host) if place.host else None for place in known.ranks.values()}
    return len(known.ranks) == known.world_size and len(hosts) == 1 and None not in hosts


def _members(event: Event) -> Members | None:
    """The global ranks that an agent was given, by local rank."""
    told = event.details.get("global_ranks")
    return told if isinstance(told, tuple) else None


def _given_at_rendezvous(event: Event) -> Members | None:
    return _members(event) if event.kind == "rendezvous" else None


def _told_members(events: Iterable[Event]) -> set[Members]:
    return {members for e in events if (members := _members(e))}


def _of_several_nodes(events: Iterable[Event]) -> frozenset[str]:
    """Files in which several tasks, or the launchers of several hosts, tell local ranks."""
    speakers: dict[str, set[object]] = defaultdict(set)
    for event in events:
        if event.local_rank is not None and event.task is not None:
            speakers[event.evidence.source].add(event.task)
        elif event.local_rank is not None and event.kind == "exit" and event.host:
            speakers[event.evidence.source].add(short(event.host))
    return frozenset(source for source, who in speakers.items() if len(who) > 1)


def _met_often(events: Iterable[Event], mixed: frozenset[str]) -> dict[str, list[tuple[int, Members]]]:
    """File of one agent → its rendezvous, where they gave it different ranks."""
    met: dict[str, list[tuple[int, Members]]] = defaultdict(list)
    for event in events:
        if (members := _given_at_rendezvous(event)) is not None and event.evidence.source not in mixed:
            met[event.evidence.source].append((event.evidence.line or 0, members))
    return {source: all_ for source, all_ in met.items() if len({members for _, members in all_}) > 1}
