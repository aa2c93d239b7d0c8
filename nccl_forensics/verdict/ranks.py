"""One row for each rank: what it was doing at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import nsmallest

from nccl_forensics.fields import NumberField
from nccl_forensics.model import Event, InputRow, Rank, RankState, Reconstruction, Verdict, number, text
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who.identities import Identities

MOST_WAITED = 64
"""Ranks that are listed as those that one rank waits for."""


def ranks_table(case: Case, verdict: Verdict) -> tuple[Rank, ...]:
    """One row for each rank that is known of, with what it was doing at the end."""
    collectives = case.collectives
    counters = {c.rank: c for c in collectives.counters}
    group = collectives.groups[0] if collectives.groups else None
    waits: dict[int, set[int]] = defaultdict(set)
    lowest: dict[int, list[int]] = {}  # many edges share one tuple of ranks
    for edge in collectives.waits:
        if id(edge.waited) not in lowest:
            lowest[id(edge.waited)] = nsmallest(MOST_WAITED, edge.waited)
        waits[edge.waiter].update(lowest[id(edge.waited)])
    exits: dict[int, str] = {}
    dead: set[int] = set()
    for event in case.of("exit"):
        if event.rank is not None:
            code = number(event, "code")
            exits.setdefault(event.rank, text(event, "signal") or say("exit {code}", code=code))
            if code in (-9, -11, -7, -4, 137, 139):
                dead.add(event.rank)
    spoke = {e.rank for e in case.events if e.rank is not None}
    everyone = set(case.known.ranks) | set(counters) | spoke | set(collectives.ranks_seen)
    for g in collectives.groups:
        everyone |= set(g.members)
    everyone |= set(verdict.ranks) | set(verdict.reporting_ranks)
    everyone |= set(range(min(case.known.world_size or case.known.at_least, 65_536)))
    arrived = {r for g in collectives.groups for r in g.arrived}
    rows = []
    for rank in sorted(r for r in everyone if r is not None):
        place = case.known.ranks.get(rank)
        state: RankState
        if rank in verdict.ranks:
            state, note = "culprit", say("named as the cause")
        elif rank in dead and rank not in verdict.reporting_ranks:
            state, note = "dead", say("ended by {how}", how=exits[rank])
        elif group is not None and rank in group.arrived:
            state, note = "waiting", say("entered the collective and waited")
        elif rank in verdict.reporting_ranks or rank in arrived:
            state, note = "blocked" if waits.get(rank) else "waiting", say("waited in another group or reported itself")
        elif group is not None and rank in group.completed:
            state, note = "completed", say("had finished the collective")
        elif rank in counters or rank in spoke:
            state, note = (
                ("blocked", say("waits for others"))
                if waits.get(rank)
                else ("completed", say("nothing of its own was overdue"))
            )
        else:
            state, note = "no-data", say("no dump and no line of it is in the pile")
        counter = counters.get(rank)
        rows.append(
            Rank(
                rank=rank,
                host=place.host if place else (counter.host if counter else None),
                local_rank=place.local_rank if place else None,
                pid=place.pid if place else None,
                gpu=place.gpu if place else None,
                state=state,
                waiting_on=tuple(sorted(waits.get(rank, ())))[:MOST_WAITED],
                last_enqueued=counter.last_enqueued if counter else _status(case, rank, "enqueued"),
                last_started=counter.last_started if counter else None,
                last_completed=counter.last_completed if counter else _status(case, rank, "completed"),
                exit=exits.get(rank),
                note=note,
            )
        )
    return tuple(rows)


def no_incident_ranks(
    aligned: Aligned, known: Identities, collectives: Reconstruction, rows: Sequence[InputRow]
) -> tuple[Rank, ...]:
    """The ranks that are known of where nothing failed."""
    case = Case(events=aligned.events, known=known, collectives=collectives, aligned=aligned, rows=tuple(rows))
    nobody = Verdict(
        status="undetermined",
        cause="undetermined",
        ranks=(),
        hosts=(),
        gpus=(),
        reporting_ranks=(),
        confidence=0.0,
        summary="",
        evidence=(),
        alternatives=(),
        cleared=(),
        cannot_exclude=(),
        missing_evidence=(),
        actions=(),
    )
    return ranks_table(case, nobody)


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
