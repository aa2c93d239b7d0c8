"""One row for each rank: what it was doing at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nsmallest

from nccl_forensics.fields import NumberField
from nccl_forensics.model import (
    Event,
    GroupState,
    InputRow,
    Rank,
    RankCounters,
    RankState,
    Reconstruction,
    Verdict,
    Wait,
    number,
    text,
)
from nccl_forensics.names import MOST_RANKS
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who.identities import Identities

MOST_WAITED = 64
"""Ranks that are listed as those that one rank waits for."""
KILLED = frozenset({-9, -11, -7, -4, 137, 139})
"""Exit codes of processes that SIGKILL, SIGSEGV, SIGBUS or SIGILL ended, as launchers and as shells write them."""


def ranks_table(case: Case, verdict: Verdict) -> tuple[Rank, ...]:
    """One row for each rank that is known of, with what it was doing at the end."""
    return _rows(_end_of(case, frozenset(verdict.ranks), frozenset(verdict.reporting_ranks)))


def no_incident_ranks(
    aligned: Aligned, known: Identities, collectives: Reconstruction, rows: Sequence[InputRow]
) -> tuple[Rank, ...]:
    """The ranks that are known of where nothing failed."""
    case = Case(events=aligned.events, known=known, collectives=collectives, aligned=aligned, rows=tuple(rows))
    return _rows(_end_of(case, frozenset(), frozenset()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """What is known of all ranks at the end of the job."""

    case: Case
    named: frozenset[int]
    """By the verdict."""
    reporters: frozenset[int]
    exits: Mapping[int, Event]
    """Rank → the first line that tells of its end."""
    killed: frozenset[int]
    """Ranks that a signal ended."""
    spoke: frozenset[int]
    """Ranks of which there is a line."""
    counters: Mapping[int, RankCounters]
    """Of those that left a dump."""
    in_collective: frozenset[int]
    """Ranks that entered the collective that holds up the others."""
    through_collective: frozenset[int]
    in_any: frozenset[int]
    """Ranks that entered a collective of any group that hangs."""
    waits: Mapping[int, Set[int]]
    """Rank → for whom it waits."""

    def state(self, rank: int) -> tuple[RankState, str]:
        """(what it was doing, why we think so)."""
        blocked = bool(self.waits.get(rank))
        if rank in self.named:
            return "culprit", say("named as the cause")
        if rank in self.killed and rank not in self.reporters:
            return "dead", say("ended by {how}", how=_how_it_ended(self.exits[rank]))
        if rank in self.in_collective:
            return "waiting", say("entered the collective and waited")
        if rank in self.reporters or rank in self.in_any:
            return "blocked" if blocked else "waiting", say("waited in another group or reported itself")
        if rank in self.through_collective:
            return "completed", say("had finished the collective")
        if rank not in self.counters and rank not in self.spoke:
            return "no-data", say("no dump and no line of it is in the pile")
        if blocked:
            return "blocked", say("waits for others")
        return "completed", say("nothing of its own was overdue")

    def everyone(self) -> set[int]:
        """Every rank of which anything is known, and those that there must have been."""
        case = self.case
        seen = {*case.known.ranks, *self.counters, *self.spoke, *case.collectives.ranks_seen}
        members = {rank for group in case.collectives.groups for rank in group.members}
        stated = range(min(case.known.world_size or case.known.at_least, MOST_RANKS))
        return {*seen, *members, *self.named, *self.reporters, *stated}


def _end_of(case: Case, named: frozenset[int], reporters: frozenset[int]) -> _End:
    collectives = case.collectives
    group = collectives.groups[0] if collectives.groups else GroupState(name=None)
    exits = [(e.rank, e) for e in case.of("exit") if e.rank is not None]
    return _End(
        case=case,
        named=named,
        reporters=reporters,
        exits=dict(reversed(exits)),  # the first line counts
        killed=frozenset(rank for rank, event in exits if number(event, "code") in KILLED),
        spoke=frozenset(e.rank for e in case.events if e.rank is not None),
        counters={c.rank: c for c in collectives.counters},
        in_collective=frozenset(group.arrived),
        through_collective=frozenset(group.completed),
        in_any=frozenset(rank for g in collectives.groups for rank in g.arrived),
        waits=_waits(collectives.waits),
    )


def _waits(edges: Sequence[Wait]) -> dict[int, set[int]]:
    """Rank → for whom it waits; of many in one collective only the lowest."""
    found: dict[int, set[int]] = defaultdict(set)
    lowest: dict[int, list[int]] = {}  # many edges share one tuple of ranks
    for edge in edges:
        if id(edge.waited) not in lowest:
            lowest[id(edge.waited)] = nsmallest(MOST_WAITED, edge.waited)
        found[edge.waiter].update(lowest[id(edge.waited)])
    return dict(found)


def _how_it_ended(end: Event) -> str:
    return text(end, "signal") or say("exit {code}", code=number(end, "code"))


def _rows(end: _End) -> tuple[Rank, ...]:
    return tuple(_row(rank, end) for rank in sorted(end.everyone()))


def _row(rank: int, end: _End) -> Rank:
    place, counter = end.case.known.ranks.get(rank), end.counters.get(rank)
    state, note = end.state(rank)
    return Rank(
        rank=rank,
        host=place.host if place is not None else counter.host if counter is not None else None,
        local_rank=place.local_rank if place is not None else None,
        pid=place.pid if place is not None else None,
        gpu=place.gpu if place is not None else None,
        state=state,
        waiting_on=tuple(sorted(end.waits.get(rank, ())))[:MOST_WAITED],
        last_enqueued=counter.last_enqueued if counter is not None else _status(end.case, rank, "enqueued"),
        last_started=counter.last_started if counter is not None else None,
        last_completed=counter.last_completed if counter is not None else _status(end.case, rank, "completed"),
        exit=_how_it_ended(end.exits[rank]) if rank in end.exits else None,
        note=note,
    )


def _status(case: Case, rank: int, key: NumberField) -> int | None:
    event = case.once(_first_status).get(rank)
    return number(event, key) if event is not None else None


def _first_status(case: Case) -> dict[int, Event]:
    """Rank → the first line in which its watchdog counted its work."""
    found: dict[int, Event] = {}
    for event in case.of("pg-status"):
        if event.rank is not None:
            found.setdefault(event.rank, event)
    return found
