"""The host of ranks of which no file states it, by the ranks beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from nccl_forensics.names import same_host, short
from nccl_forensics.who.identities import Place


@dataclass(frozen=True, slots=True)
class _Placed:
    """The ranks whose host is known."""

    hosts: Mapping[int, str]
    """Rank → host."""
    local_ranks: Mapping[int, int]
    """Rank → local rank, where that is known, too."""

    @classmethod
    def of(cls, ranks: Mapping[int, Place]) -> _Placed:
        hosts = {rank: place.host for rank, place in ranks.items() if place.host is not None}
        local_ranks = {rank: local for rank in hosts if (local := ranks[rank].local_rank) is not None}
        return cls(hosts, local_ranks)

    def are_on_one_node(self) -> bool:
        """They share a host, and their local ranks count through from 0."""
        counts_through = all(rank == local for rank, local in self.local_ranks.items())
        return counts_through and len({short(h) for h in self.hosts.values()}) == 1

    def ranks_a_node(self) -> int | None:
        """How many ranks each node has, if launchers numbered nodes in blocks: rank = node × L + local rank."""
        starts = {rank - local for rank, local in self.local_ranks.items()}
        length = min((b - a for a, b in pairwise(sorted(starts))), default=0)
        fits = length > 0 and all(start % length == 0 for start in starts)
        return length if fits and all(local < length for local in self.local_ranks.values()) else None


def beside(
    ranks: Mapping[int, Place],
    everyone: Collection[int],
    spoken_of: Collection[str],
    number_of_cards: Callable[[str], int],
) -> dict[int, Place]:
    """The ranks of `everyone` without a host that must be where others are, with it.

    Holds only if every rank that is known fits. `spoken_of`: hosts of which anything in the pile speaks;
    `number_of_cards`: how many GPUs a host has, as far as files tell.
    """
    placed = _Placed.of(ranks)
    missing = set(everyone) - set(placed.hosts)
    if not placed.hosts:
        return {}
    if placed.are_on_one_node():
        host = next(iter(placed.hosts.values()))
        alone = all(same_host(host, other) for other in spoken_of)
        seats = _on_the_node(placed, missing, host, number_of_cards(host) if alone else 0)
    elif (length := placed.ranks_a_node()) is not None:
        seats = _in_blocks(placed, missing, length)
    else:
        seats = _between(placed, missing)
    found = {}
    for rank, host, local_rank in seats:
        known = ranks.get(rank, Place())
        found[rank] = replace(known, host=host, local_rank=known.local_rank if local_rank is None else local_rank)
    return found


_Seat = tuple[int, str, int | None]
"""Rank, host, and local rank; None: what was known of that stays."""


def _on_the_node(placed: _Placed, missing: Collection[int], host: str, cards: int) -> Iterator[_Seat]:
    """Of one node, as far as local ranks are known; behind that, as far as it has GPUs (`cards`)."""
    if placed.local_ranks:
        seats = max(*placed.local_ranks.values(), cards, 0)
        yield from ((rank, host, rank) for rank in missing if rank < seats)


def _in_blocks(placed: _Placed, missing: Collection[int], length: int) -> Iterator[_Seat]:
    """Of nodes with `length` ranks each, if each block has one host and each host one block."""
    hosts: dict[int, set[str]] = defaultdict(set)
    for rank, host in placed.hosts.items():
        hosts[rank // length].add(short(host))
    owners = {block: next(iter(inside)) for block, inside in hosts.items() if len(inside) == 1}
    if len(owners) < len(hosts) or len(set(owners.values())) < len(owners):
        return
    names = {short(host): host for host in placed.hosts.values()}
    for rank in missing:
        if (owner := owners.get(rank // length)) is not None:
            yield rank, names[owner], rank % length


def _between(placed: _Placed, missing: Collection[int]) -> Iterator[_Seat]:
    """Between two ranks of one host, where no two hosts' ranks overlap."""
    spans: dict[str, tuple[int, int]] = {}
    for rank, host in placed.hosts.items():
        low, high = spans.get(short(host), (rank, rank))
        spans[short(host)] = (min(low, rank), max(high, rank))
    if any(before[1] >= after[0] for before, after in pairwise(sorted(spans.values()))):
        return
    names = {short(host): host for host in placed.hosts.values()}
    for rank in missing:
        for host, (low, high) in spans.items():
            if low < rank < high:
                yield rank, names[host], None


def in_rows(ranks: Mapping[int, Place], world: int | None) -> dict[int, Place]:
    """Those without a local rank, with the place that they have in the row of their host's ranks.

    Holds only where every rank of the job has a host, each host a row as long as the others', and each local rank that
    is known is that place.
    """
    rows: dict[str, list[int]] = defaultdict(list)
    for rank, place in sorted(ranks.items()):
        if place.host is not None:
            rows[short(place.host)].append(rank)
    length = len(ranks) // len(rows) if rows else 0
    starts = {rank: row[0] for row in rows.values() for rank in row}
    if not length or set(starts) != set(range(world or 0)) or starts.keys() != ranks.keys():
        return {}
    in_a_row = all(row == [*range(row[0], row[0] + length)] for row in rows.values())
    agree = all(place.local_rank in (None, rank - starts[rank]) for rank, place in ranks.items())
    if not in_a_row or not agree:
        return {}
    return {rank: replace(place, local_rank=rank - starts[rank]) for rank, place in ranks.items()}


def number_of_nodes(ranks: Mapping[int, Place], world: int | None) -> int | None:
    """How many nodes the job has, if launchers numbered them in blocks and a known local rank tells how long these are.

    Rank 15 with the local rank 7: before its node there are 8 ranks, and it has 8 or more; blocks are of 8.
    """
    local_ranks = {rank: place.local_rank for rank, place in ranks.items() if place.local_rank is not None}
    seats = [(rank - local, local) for rank, local in local_ranks.items()]
    if world is None or all(start <= 0 for start, _ in seats):
        return None
    most = min(start for start, _ in seats if start > 0)
    lengths = [
        length
        for length in range(1, most + 1)
        if world % length == 0 and all(start % length == 0 and local < length for start, local in seats)
    ]
    return world // lengths[0] if len(lengths) == 1 else None
