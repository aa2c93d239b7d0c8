"""Who is who: rank ↔ host ↔ local rank ↔ pid ↔ GPU, put together from every statement in the pile.

Statements are trusted in this order: the user's `--hosts` file, torchrun's failure block and rendezvous result, NCCL's
own init lines, what a process says of itself, the driver's Xids, prefixes of the lines themselves with file and folder
names, and last what launchers do by rule (claims.py). A later statement fills gaps and never overrides; where two of
the same weight disagree, both are reported and neither is used. What lines say of a process, a device or a card is
joined to its rank by number, order and address (processes.py).

Three name spaces are kept apart: `[rankN]:` is global, `[Rank r]` lies inside a process group, `[defaultN]:` is local
to a node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, InputRow, number
from nccl_forensics.names import MOST_RANKS, short
from nccl_forensics.who.alike import as_elsewhere
from nccl_forensics.who.cards import (
    cards_by_host,
    devices_chosen,
    mentioned_addresses,
    mentioned_card,
    number_of_cards,
    visible_cards,
)
from nccl_forensics.who.claims import Claim, Speaker, contradictions, counted, decided
from nccl_forensics.who.files import UNTOLD, OfFiles, of_sources
from nccl_forensics.who.host_names import HostNames
from nccl_forensics.who.identities import Identities, Place, cards_by_short_name
from nccl_forensics.who.local_ranks import local_ranks
from nccl_forensics.who.nodes import beside, in_rows
from nccl_forensics.who.processes import Ranked, Seats, processes
from nccl_forensics.who.roster import at_least, likely_world, ranks_a_host, stated_world

STATES_MEMBER = kinds_marked("states-member")
"""Kinds that state a process's rank in a communicator of a stated size."""


def identify(
    rows: Sequence[InputRow],
    events: Sequence[Event],
    listed: Mapping[int, Place] | None = None,
    also: Iterable[int] = (),
) -> Identities:
    """The table of ranks and GPUs from all that the files say.

    `events` as parsed, `listed` from `--hosts`, `also`: ranks that dumps speak of.
    """
    listed = listed or {}
    hosts = HostNames.in_events(events)
    files = of_sources(rows, events)
    gpus = cards_by_host(events, hosts)
    machines = frozenset(short(host) for r in rows if r.format in OF_ONE_HOST and (host := files[r.path].host))
    widest = _widest_communicator(events)

    ranked = list(_of_lines(events, widest, files, hosts))
    claims = [*_of_user(listed), *(claim for _, claim in ranked), *_of_names(rows, files, hosts)]
    world_size = stated_world(events, widest) or _listed_world(listed)
    stated = decided(counted(claims), (), cards_by_short_name(gpus)).ranks
    seats = Seats.of(stated, world_size, ranks_a_host(events))
    joined = processes(events, ranked, files, seats)

    votes = counted((*claims, *joined.claims))
    against_user = tuple(contradictions(votes, listed, machines))
    outcome = decided(votes, against_user, cards_by_short_name(gpus))

    ranks = dict(outcome.ranks)
    ranks |= _last_one(ranks, events, widest, hosts)
    ranks |= _of_files(ranks, events, files, world_size)
    spoken_of = {host for host in (*(r.host for r in rows), *(e.host for e in events)) if host}
    everyone = _everyone(ranks, events, also, widest)
    ranks |= beside(ranks, everyone, spoken_of, partial(number_of_cards, gpus))
    ranks |= in_rows(ranks, world_size)
    left_open = outcome.disputed | {c.rank for c in against_user}
    settled = {rank: place for rank, place in ranks.items() if rank not in left_open}
    ranks |= as_elsewhere(settled, partial(mentioned_card, gpus, mentioned_addresses(events)))
    return Identities(
        ranks=ranks,
        gpus=gpus,
        world_size=world_size,
        at_least=at_least(events),
        stated=bool(listed),
        devices_chosen=devices_chosen(events),
        visible=visible_cards(events, files, hosts),
        disputed=outcome.disputed,
        machines=machines,
        behind=_behind(events),
        processes=joined.ranks,
        lived=joined.lived,
        apart=joined.apart,
        first_ranks=joined.first_ranks,
        problems=(*(c.problem for c in against_user), *outcome.problems),
    )


def _widest_communicator(events: Iterable[Event]) -> int | None:
    """How many ranks the widest has: in it, a rank's number is its global one; in others they count from 0 again."""
    sizes = [size for e in events if e.kind in STATES_MEMBER and (size := number(e, "nranks")) is not None]
    return max((size for size in sizes if size <= MOST_RANKS), default=None)


def _of_user(listed: Mapping[int, Place]) -> Iterator[Claim]:
    for rank, place in listed.items():
        pci, index = (place.gpu.pci, place.gpu.index) if place.gpu else (None, None)
        yield Claim(rank, Speaker.USER, place.host, place.local_rank, pci=pci, gpu_index=index)


def _of_lines(events: Iterable[Event], widest: int | None, files: OfFiles, hosts: HostNames) -> Iterator[Ranked]:
    """What each line claims: of the rank that it names, else of that which its process has in a communicator."""
    for event in events:
        number_inside = number(event, "comm_rank")
        if event.rank is None and number_inside is None:
            continue
        host = hosts.spelled(event.host)
        if number_inside is not None and event.kind in STATES_MEMBER and number(event, "nranks") == widest:
            yield Ranked(event, _by_membership(event, number_inside, host))
        elif event.kind == "inspector-comm":
            continue
        elif event.rank is not None:
            yield from (Ranked(event, claim) for claim in _by_rank(event, event.rank, host, files, hosts))
        elif number_inside is not None and event.pid is not None:
            yield Ranked(event, _by_warning(event, number_inside, host))


def _by_membership(event: Event, rank: int, host: str | None) -> Claim:
    """A member of the widest communicator, as NCCL sets it up. In a smaller one ranks count from 0 again."""
    return Claim(rank, Speaker.COMMUNICATOR, host, pid=event.pid, pci=event.gpu_pci)


def _by_warning(event: Event, rank: int, host: str | None) -> Claim:
    """A WARN line names its rank in some communicator: better than nothing, weaker than any other statement."""
    return Claim(rank, Speaker.MENTION, host, pid=event.pid)


def _by_rank(event: Event, rank: int, host: str | None, files: OfFiles, hosts: HostNames) -> Iterator[Claim]:
    """A line that names a global rank: the launcher's when it ended, the process's own, or any other."""
    if event.kind == "exit":
        yield Claim(rank, Speaker.LAUNCHER, host, event.local_rank, event.pid)
        return
    wrote = host if host is not None or event.relayed else files.get(event.evidence.source, UNTOLD).host
    yield Claim(rank, Speaker.MENTION, hosts.spelled(wrote), event.local_rank)
    if event.kind in ("rank-identity", "spawned", "rank-placed"):
        yield Claim(rank, Speaker.PROCESS, host, pid=event.pid, pci=event.gpu_pci)


def _of_names(rows: Iterable[InputRow], files: OfFiles, hosts: HostNames) -> Iterator[Claim]:
    """A file that is about one rank, and of which a host is known."""
    for row in rows:
        file = files[row.path]
        if file.rank is not None and file.host is not None:
            yield Claim(file.rank, Speaker.MENTION, hosts.spelled(file.host), file.local_rank)


def _listed_world(ranks: Collection[int]) -> int | None:
    """How many ranks a list has that leaves none out; None for a list of some."""
    return len(ranks) if ranks and set(ranks) == set(range(len(ranks))) else None


def _last_one(
    ranks: Mapping[int, Place], events: Sequence[Event], nranks: int | None, hosts: HostNames
) -> dict[int, Place]:
    """If one rank of the job has no process and one process no rank, they belong together."""
    if nranks is None or len(ranks) + 1 != nranks:
        return {}
    taken = {(short(p.host), p.pid) for p in ranks.values() if p.host and p.pid is not None}
    missing = set(range(nranks)) - ranks.keys()
    free = _processes_beside(taken, events, hosts)
    if len(missing) != 1 or len(free) != 1 or len(taken) != len(ranks):
        return {}
    host, pid = free.pop()
    return {missing.pop(): Place(host=host, pid=pid)}


def _processes_beside(
    taken: Collection[tuple[str, int]], events: Iterable[Event], hosts: HostNames
) -> set[tuple[str | None, int]]:
    """(Host, pid) of those that use NCCL and are not among these."""
    spoke = {(e.host, e.pid) for e in events if e.kind.startswith("nccl-") and e.host and e.pid is not None}
    return {(hosts.spelled(host), pid) for host, pid in spoke if (short(host), pid) not in taken}


def _of_files(
    ranks: Mapping[int, Place], events: Sequence[Event], files: OfFiles, world_size: int | None
) -> dict[int, Place]:
    """Ranks of which there is no more than a file or a folder: they existed."""
    by_local_rank = local_ranks(events, files, Identities(ranks=ranks)).ranks
    found: dict[int, Place] = {}
    for path, file in files.items():
        rank = file.rank if file.rank is not None else by_local_rank.get((path, file.local_rank))
        if rank is not None and rank < (world_size or MOST_RANKS) and rank not in ranks:
            found.setdefault(rank, Place(host=file.host, local_rank=file.local_rank))
    return found


def _everyone(ranks: Mapping[int, Place], events: Iterable[Event], also: Iterable[int], nranks: int | None) -> set[int]:
    """All ranks that must exist: whoever is mentioned, and everybody below."""
    seen = {*ranks, *also, *(e.rank for e in events if e.rank is not None)}
    return seen | set(range(max(min(nranks or 0, MOST_RANKS), likely_world(seen) or 0)))


def _behind(events: Iterable[Event]) -> dict[tuple[str, str], frozenset[str]]:
    """What several tables say of a switch counts together: each lists the ports that were up."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in events:
        if event.kind == "switch" and isinstance(hosts := event.details.get("node"), tuple):
            named = str(event.details.get("what")), str(event.details.get("switch"))
            found[named] |= {short(str(host)) for host in hosts}
    return {named: frozenset(hosts) for named, hosts in found.items()}
