"""Which rank a process is, by its number on its host, and what lines that name only the process tell of that rank.

The driver's Xid, NCCL's head and torchrun's words to its children name a process and one more thing of it, mostly not
its rank. Lines that name both join them. A container can count its own processes: there a number is another process's
than on the node. And a number is one process's for a time only: what lies on other days is not joined.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nccl_forensics.model import Event, number
from nccl_forensics.names import short
from nccl_forensics.who.claims import Claim, Speaker
from nccl_forensics.who.files import UNTOLD, OfFiles
from nccl_forensics.who.identities import Place
from nccl_forensics.who.in_order import all_in_order, in_step
from nccl_forensics.who.lifetimes import Lifetime, Process, lifetimes, on_hosts
from nccl_forensics.who.nodes import number_of_nodes

NCCL_HEAD = re.compile(r"[\w.-]{1,255}:\d{1,9}:\d{1,9} \[(\d{1,3})\] ")
"""`host:pid:tid [device]`; the device is the calling thread's, and helpers often say 0 (parsers/nccl_library.py)."""


class Ranked(NamedTuple):
    """A line and what it claims of a rank."""

    event: Event
    claim: Claim


@dataclass(frozen=True, slots=True)
class Seats:
    """Where the ranks are, as far as lines and names tell."""

    ranks: Mapping[int, Place]
    hosts: Mapping[str, Sequence[int]]
    """Short name of a host → the ranks on it, rising."""
    a_host: int | None
    """How many each host has: as a launcher was told, else the whole job's by the number of hosts that are named."""
    is_sure: bool
    """So many were told to start, or no host can be missing."""

    @classmethod
    def of(cls, ranks: Mapping[int, Place], world: int | None, started: int | None) -> Seats:
        """`world`: how many ranks the job has; `started`: how many a launcher was told to start on each host."""
        hosts: dict[str, list[int]] = defaultdict(list)
        for rank, place in sorted(ranks.items()):
            if place.host:
                hosts[short(place.host)].append(rank)
        by_hosts = world // len(hosts) if world and hosts and world % len(hosts) == 0 else None
        everyone = world is not None and sum(map(len, hosts.values())) >= world
        is_sure = started is not None or everyone or number_of_nodes(ranks, world) == len(hosts)
        return cls(ranks, hosts, started or by_hosts, is_sure)


@dataclass(frozen=True, slots=True)
class Processes:
    """What the pile tells of processes."""

    ranks: Mapping[Process, int | None]
    """None: lines name several ranks for one number."""
    lived: Mapping[Process, Lifetime]
    apart: frozenset[str]
    """Short names of hosts on which the job's processes have numbers of their own, in a container."""
    first_ranks: Mapping[str, int]
    """Short name of a host → the rank that uses its device 0, where two ranks or more show it and none denies it."""
    claims: tuple[Claim, ...]
    """What that comes to for ranks."""


def processes(events: Sequence[Event], ranked: Sequence[Ranked], files: OfFiles, seats: Seats) -> Processes:
    """`ranked`: lines that name a rank; `seats`: what these come to."""
    numbers = _Numbers.of(events, ranked, files)
    first_ranks = _first_ranks(ranked)
    drivers = [named for named in numbers.drivers if named.process.host not in numbers.apart]
    ranks = dict(numbers.ranks)
    seated: list[_Seated] = []
    for more in (
        _started(events, numbers, files, seats),
        _at_devices(events, ranks, first_ranks, seats),
        _in_step(drivers, ranks, seats),
    ):
        found = [one for one in more if one.process not in ranks]
        seated += found
        ranks |= {one.process: one.rank for one in found}
    claims = (
        *_numbered(seated, numbers),
        *_cards(drivers, ranks, numbers),
        *_cards_in_order(numbers, seats),
        *_local_ranks(ranked, first_ranks),
    )
    there = on_hosts(numbers.lived)
    lived = {one.process: there[one.process.host] for one in seated if one.process.host in there}
    return Processes(ranks, {**lived, **numbers.lived}, numbers.apart, first_ranks, claims)


class _Seated(NamedTuple):
    """A process whose rank follows from where it stands among others."""

    process: Process
    rank: int
    local_rank: int | None


class _Named(NamedTuple):
    """A process that a line names."""

    process: Process
    event: Event


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Which numbers lines name."""

    ranks: Mapping[Process, int | None]
    """Those of ranks; None: of several."""
    in_files: Mapping[str, Collection[Process]]
    """File → those of ranks that its lines name."""
    lived: Mapping[Process, Lifetime]
    names: Mapping[str, str]
    """Short name of a host → its name."""
    drivers: Sequence[_Named]
    """Lines of a driver that name a process and its card while it can have lived."""
    apart: frozenset[str]

    @classmethod
    def of(cls, events: Sequence[Event], ranked: Sequence[Ranked], files: OfFiles) -> _Numbers:
        said: dict[Process, dict[int, Speaker]] = defaultdict(dict)
        lines: dict[Process, list[Event]] = defaultdict(list)
        in_files: dict[str, set[Process]] = defaultdict(set)
        inside: set[str] = set()
        names: dict[str, str] = {}
        for event, claim in ranked:
            if claim.pid is None or (host := claim.host or _wrote(event, files)) is None:
                continue
            process = Process(short(host), claim.pid)
            names.setdefault(short(host), host)
            said[process][claim.rank] = max(claim.by, said[process].get(claim.rank, claim.by))
            lines[process].append(event)
            in_files[event.evidence.source].add(process)
            if "container" in event.details:
                inside.add(short(host))
        ranks = {process: _surest(of) for process, of in said.items()}
        lived = lifetimes(events, lines)
        there = on_hosts(lived)
        drivers = [
            one
            for one in _by_drivers(events, files)
            if (lifetime := lived.get(one.process) or there.get(one.process.host)) is None or lifetime.holds(one.event)
        ]
        return cls(ranks, in_files, lived, names, drivers, frozenset(_numbered_apart(inside, ranks, drivers)))


def _surest(ranks: Mapping[int, Speaker]) -> int | None:
    """The rank that who knows best names; None if that is two. `ranks`: each with who names it."""
    best = max(ranks.values())
    of = [rank for rank, speaker in ranks.items() if speaker == best]
    return of[0] if len(of) == 1 else None


def _wrote(event: Event, files: OfFiles) -> str | None:
    """The host of a line's writer."""
    return event.host or (None if event.relayed else files.get(event.evidence.source, UNTOLD).host)


def _by_drivers(events: Iterable[Event], files: OfFiles) -> Iterator[_Named]:
    """Lines that name a process by its number together with the address of a card, and no rank."""
    for event in events:
        if event.kind != "xid" or event.pid is None or event.gpu_pci is None:
            continue
        if (host := _wrote(event, files)) is not None:
            yield _Named(Process(short(host), event.pid), event)


def _numbered_apart(inside: Iterable[str], ranks: Mapping[Process, object], drivers: Iterable[_Named]) -> Iterator[str]:
    """Of the hosts with a container those whose driver names none of its numbers: they count apart."""
    for host in inside:
        named = {one.process for one in drivers if one.process.host == host}
        if named and named.isdisjoint(ranks):
            yield host


def _started(events: Iterable[Event], numbers: _Numbers, files: OfFiles, seats: Seats) -> Iterator[_Seated]:
    """The children of launchers that told of all that they had: their numbers rise with their ranks."""
    for source, pids in _children(events):
        hosts = {process.host for process in numbers.in_files.get(source, ()) if process.pid in pids}
        if not hosts and (written := files.get(source, UNTOLD).host) is not None:
            hosts = {short(written)}
        if len(hosts) != 1 or len(pids) != seats.a_host:
            continue
        (host,) = hosts
        known = {pid: rank for pid in pids if (rank := numbers.ranks.get(Process(host, pid))) is not None}
        place = {pid: n for n, pid in enumerate(sorted(pids))}
        begins = {rank - place[pid] for pid, rank in known.items()}
        if len(begins) == 1 and (begin := begins.pop()) >= 0 and begin % len(pids) == 0:
            for pid, rank in all_in_order(pids, range(begin, begin + len(pids)), known).items():
                yield _Seated(Process(host, pid), rank, rank - begin)


def _children(events: Iterable[Event]) -> Iterator[tuple[str, frozenset[int]]]:
    """(File, the processes) of which each launcher told as it ended them or saw them end, start by start.

    A launcher is known by its number; where none is written, by its task and its file.
    """
    told: dict[tuple[str, int, int | None, int | None], set[int]] = defaultdict(set)
    starts: dict[str, int] = defaultdict(int)
    for event in events:
        source = event.evidence.source
        starts[source] += event.kind in ("restart", "rendezvous")
        if event.kind == "sigterm-sent" and (child := number(event, "target_pid")) is not None:
            told[source, starts[source], event.pid, event.task].add(child)
        elif event.kind == "exit" and "agent" in event.details and event.pid is not None:
            told[source, starts[source], number(event, "agent"), event.task].add(event.pid)
    for (source, *_), pids in told.items():
        yield source, frozenset(pids)


def _in_step(drivers: Iterable[_Named], ranks: Mapping[Process, int | None], seats: Seats) -> Iterator[_Seated]:
    """Processes that the driver names, whose numbers lie on the line through those of the other ranks there."""
    here: dict[str, dict[int, int]] = defaultdict(dict)
    for process, rank in ranks.items():
        if rank is not None:
            here[process.host][process.pid] = rank
    for process in {named.process for named in drivers} - ranks.keys():
        known = here.get(process.host, {})
        if len(set(known.values())) == len(known) and (rank := in_step(process.pid, known)) is not None:
            taken = rank in known.values() or _is_elsewhere(rank, process.host, seats)
            if not taken and (min(known.values()) < rank < max(known.values()) or _is_in_block(rank, known, seats)):
                yield _Seated(process, rank, None)


def _is_elsewhere(rank: int, host: str, seats: Seats) -> bool:
    place = seats.ranks.get(rank, Place())
    return place.host is not None and short(place.host) != host


def _is_in_block(rank: int, known: Mapping[int, int], seats: Seats) -> bool:
    """Is a rank one of those that a host has together with these, where each has equally many in a row?"""
    length = seats.a_host if seats.is_sure else None
    return length is not None and {rank // length} == {other // length for other in known.values()}


def _first_ranks(ranked: Iterable[Ranked]) -> dict[str, int]:
    """By the devices that NCCL's own lines of members state: one device each, as far from 0 as the rank from the
    first."""
    firsts: dict[str, dict[int, int]] = defaultdict(dict)
    denied: set[str] = set()
    for event, claim in ranked:
        device = number(event, "cuda_dev")
        if claim.by != Speaker.COMMUNICATOR or device is None or claim.host is None:
            continue
        host = short(claim.host)
        if firsts[host].setdefault(claim.rank, claim.rank - device) != claim.rank - device:
            denied.add(host)
    return {
        host: next(iter(of.values()))
        for host, of in firsts.items()
        if host not in denied and len(of) > 1 and len(set(of.values())) == 1
    }


def _at_devices(
    events: Iterable[Event], ranks: Mapping[Process, int | None], first_ranks: Mapping[str, int], seats: Seats
) -> Iterator[_Seated]:
    """Processes of which only NCCL's heads are there, by their device."""
    found: dict[Process, set[int]] = defaultdict(set)
    for event in events:
        if event.pid is None or not event.host or short(event.host) not in first_ranks:
            continue
        head = NCCL_HEAD.match(event.evidence.text)
        process = Process(short(event.host), event.pid)
        if head is not None and int(head[1]) and process not in ranks:
            found[process].add(first_ranks[process.host] + int(head[1]))
    taken = {(process.host, rank) for process, rank in ranks.items()}
    claimed = Counter((process.host, rank) for process, of in found.items() for rank in of)
    for process, of in found.items():
        seat = process.host, min(of)
        alone = len(of) == 1 and claimed[seat] == 1 and seat not in taken
        if alone and not _is_elsewhere(min(of), process.host, seats):
            yield _Seated(process, min(of), min(of) - first_ranks[process.host])


def _numbered(seated: Iterable[_Seated], numbers: _Numbers) -> Iterator[Claim]:
    for process, rank, local_rank in seated:
        host = numbers.names.get(process.host, process.host)
        yield Claim(rank, Speaker.CONVENTION, host, local_rank, process.pid)


def _cards(drivers: Iterable[_Named], ranks: Mapping[Process, int | None], numbers: _Numbers) -> Iterator[Claim]:
    """The card on which a driver names a rank's process; nothing of a process that it names on several."""
    cards: dict[Process, set[str]] = defaultdict(set)
    for process, event in drivers:
        if event.gpu_pci is not None:
            cards[process].add(event.gpu_pci)
    for process, addresses in cards.items():
        rank = ranks.get(process)
        if rank is not None and len(addresses) == 1:
            yield Claim(rank, Speaker.DRIVER, numbers.names.get(process.host), pid=process.pid, pci=addresses.pop())


def _cards_in_order(numbers: _Numbers, seats: Seats) -> Iterator[Claim]:
    """Where the driver names as many processes as its host has ranks, a card each, and the job knows other numbers."""
    cards: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for process, event in numbers.drivers:
        if event.gpu_pci is not None:
            cards[process.host][process.pid].add(event.gpu_pci)
    own = {process.host for process in numbers.ranks}
    for host, named in cards.items():
        if host in own and host not in numbers.apart:
            continue  # the job's own numbers are the node's: these are somebody else's
        here = seats.hosts.get(host, ())
        a_card_each = len({card for of in named.values() for card in of}) == sum(map(len, named.values())) == len(named)
        in_a_row = len(here) > 0 and here[-1] - here[0] + 1 == len(here)
        if not a_card_each or not in_a_row or len(here) != seats.a_host:
            continue
        ordered = all_in_order(named, here, {})
        if all(seats.ranks[rank].pci in (None, *named[pid]) for pid, rank in ordered.items()):
            for pid, rank in ordered.items():
                yield Claim(rank, Speaker.CONVENTION, numbers.names.get(host), pci=next(iter(named[pid])))


def _local_ranks(ranked: Iterable[Ranked], first_ranks: Mapping[str, int]) -> Iterator[Claim]:
    """Devices count as local ranks do where they are as far from 0 as the ranks from the first."""
    for rank, host in {(claim.rank, claim.host) for _, claim in ranked if claim.by == Speaker.COMMUNICATOR}:
        if host is not None and (first := first_ranks.get(short(host))) is not None:
            yield Claim(rank, Speaker.CONVENTION, host, local_rank=rank - first)
