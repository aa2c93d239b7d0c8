"""Who comes last to completed collectives again and again: from how long each rank waited, on its own clock.

A collective ends for all at once, so whoever waited least came last, by as much as the others waited longer. That
compares spans, never moments of different hosts' clocks. Spans end where a watchdog noticed the end, up to a tenth of a
second late, so less than a quarter of a second proves nothing. Asynchronous calls hide short delays: a CPU that runs
ahead is never late. Source of the idea: REASONING.md 17 (all GPUs look slow together; the culprit waits least).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
FLOOR_NS = 250_000_000
"""Less is the noise of noticing: watchdogs look every 100 ms (kWatchdogThreadSleepMillis). A judgement."""
APART = 3
"""How many times later than the next latest. A judgement."""
OFTEN = 0.8
"""Share of the collectives. A judgement."""
FEWEST = 20
"""Collectives that all members have completed and still hold. A judgement."""


@dataclass(frozen=True, slots=True)
class Late:
    rank: int
    since_seq: int
    since_ns: int
    """When it enqueued that collective, on its own host's clock."""
    count: int
    by_ns: int
    """Median."""
    side: str
    """'cpu': it called late; 'gpu': it called in time, and its GPU started late."""


@dataclass(frozen=True, slots=True)
class Spans:
    """One rank's completed collectives in one group, as rising sequence numbers with columns."""

    seq: Ints
    created_ns: Ints
    started_ns: Ints
    """0: not known."""
    completed_ns: Ints


def chronic(members: Mapping[int, Spans], *, floor_ns: int = FLOOR_NS) -> Late | None:
    """The one member that comes last in most collectives that all hold; None: there is none, or too little is known.

    `floor_ns`: less is the noise of these spans.
    """
    ranks = sorted(members)
    seqs = _held_by_all(members) if len(ranks) > 2 else np.zeros(0, np.int64)
    if len(seqs) < FEWEST:
        return None
    rows = [np.searchsorted(members[r].seq, seqs) for r in ranks]
    ended = _columns([members[r].completed_ns for r in ranks], rows)
    for side in ("cpu", "gpu"):
        began = _columns([members[r].created_ns if side == "cpu" else members[r].started_ns for r in ranks], rows)
        if not (began > 0).all():
            return None
        found = _last(ranks, seqs, ended - began, floor_ns)
        if found is not None:
            rank, first, count, by_ns = found
            row = int(rows[ranks.index(rank)][first])
            return Late(rank, int(seqs[first]), int(members[rank].created_ns[row]), count, by_ns, side)
    return None


def _held_by_all(members: Mapping[int, Spans]) -> Ints:
    """Sequence numbers of the collectives that all members hold, rising."""
    return np.array(sorted(set.intersection(*(set(x.seq.tolist()) for x in members.values()))), np.int64)


def _columns(several: Sequence[Ints], rows: Sequence[NDArray[np.intp]]) -> Ints:
    """One row of the result for each member: its column at its own rows."""
    return np.stack([column[own] for column, own in zip(several, rows, strict=True)])


def _last(ranks: Sequence[int], seqs: Ints, waited: Ints, floor_ns: int) -> tuple[int, int, int, int] | None:
    """(rank, index of the first collective, number, median ns) of who waited least again and again up to the end."""
    late: Any = np.median(waited, axis=0) - waited
    order = np.sort(late, axis=0)
    who = np.argmax(late, axis=0)
    clear = (order[-1] >= floor_ns) & (order[-1] >= APART * np.maximum(order[-2], 0))
    for index in sorted(set(who[clear].tolist())):
        hit = clear & (who == index)
        share = np.cumsum(hit[::-1])[::-1] / np.arange(len(seqs), 0, -1)
        starts = np.flatnonzero(hit & (share >= OFTEN))
        if len(starts) and int(hit[starts[0] :].sum()) >= FEWEST:
            first = int(starts[0])
            rows = np.flatnonzero(hit[first:]) + first
            return ranks[index], first, len(rows), int(np.median(late[index][rows]))
    return None


def culprit(found: Mapping[Any, tuple[Late, Sequence[int]]]) -> tuple[Any, Late] | None:
    """The group and rank behind all lateness: `found` has each group's late rank and its members.

    Who waits for a late rank in one group comes late to all its others, a victim. None where several are left.
    """
    victims = {r for late, ranks in found.values() for r in ranks if r != late.rank}
    left = {late.rank for late, _ in found.values()} - victims
    if len(left) != 1:
        return None
    (rank,) = left
    mine = [(key, late) for key, (late, _) in found.items() if late.rank == rank]
    return max(mine, key=lambda x: (x[1].by_ns, x[1].count, str(x[0])))
