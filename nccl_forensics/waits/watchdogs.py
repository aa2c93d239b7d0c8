"""Who never came, from what the ranks wrote to their logs: where there are no Flight Recorder dumps, and beside them.

Only a rank that has entered a collective can report it, so reporters are witnesses and the members that did not report
are the suspects. A rank that only "observed" another rank's dump signal is alive and has nothing
overdue itself. A silent rank is a suspect only if it is known to exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.model import Event, Reconstruction, Suspect, Wait, number, text
from nccl_forensics.text.messages import say
from nccl_forensics.waits.absence import judge
from nccl_forensics.waits.reports import (
    Attendance,
    Reports,
    attendance,
    reporter,
    started_ns,
    stuck_in,
    waiting_lines,
)
from nccl_forensics.who.identities import Identities

SPOKE = kinds_marked("complains")
"""Kinds in which a rank complains: victims until shown otherwise."""


def reporting_ranks(events: Iterable[Event]) -> tuple[int, ...]:
    """Ranks that complained, sorted."""
    found = set()
    for event in events:
        if event.kind in SPOKE:
            rank = reporter(event)
            for key in ("at_rank", "waiting_rank", "reached_rank"):
                if rank is None:
                    rank = number(event, key)
            if rank is None and event.kind == "pgw-mismatch":
                rank = number(event, "rank_a")
            if rank is None and event.kind == "monitored-barrier":
                rank = 0  # only rank 0 writes that line
            if rank is not None:
                found.add(rank)
    return tuple(sorted(found))


def waiting_ranks(events: Iterable[Event]) -> tuple[int, ...]:
    """Ranks that timed out in a collective before anything of their own went wrong, sorted: these are cleared by it."""
    waited: set[int] = set()
    failed: set[int] = set()
    for event in events:
        rank = reporter(event)
        if rank is None:
            continue
        if event.kind in ("watchdog-timeout", "pg-blocking", "gloo-wait", "store-wait") and rank not in failed:
            waited.add(rank)
        elif event.role == "cause":
            failed.add(rank)
    return tuple(sorted(waited))


WITNESS = say("entered the collective and waited in it: a reporter is a witness")


def reconstruct(events: Sequence[Event], known: Identities) -> Reconstruction:
    """Groups, suspects and waits as far as the lines tell. `events` are attributed and aligned."""
    reports = _reports(events, known)
    attended = [attendance(reports, stuck) for stuck in reports.stuck]
    answers = [judge(reports, one) for one in attended]
    suspects = tuple(suspect for answer in answers for suspect in answer.suspects)
    named = {r for s in suspects for r in s.ranks}
    witnesses, unsure = _witnesses(attended, suspects)
    open_to = unsure.union(*(answer.cannot_exclude for answer in answers))
    return Reconstruction(
        groups=tuple(one.state for one in attended),
        suspects=suspects,
        waits=tuple(wait for one in attended for wait in _waits(one)),
        cannot_exclude=tuple(sorted(open_to - named)),
        cleared=tuple((r, WITNESS) for r in sorted(witnesses - named)),
        ranks_seen=tuple(sorted(reports.logged)),
    )


def _reports(events: Sequence[Event], known: Identities) -> Reports:
    lines = waiting_lines(events)
    stuck = tuple(sorted(stuck_in(events, lines), key=lambda x: x.place))
    world, stated = _world(events, lines, known)
    own = [e for e in events if e.rank is not None]
    return Reports(
        stuck=stuck,
        reporters=frozenset(rank for one in stuck for rank in one.reports),
        known=known,
        world=world,
        world_stated=stated,
        logged=frozenset(_ranks(e for e in own if e.kind != "inspector-comm" and not e.relayed)),
        late=frozenset(_spoke_late(events)),
        answered={e.rank: e for e in events if e.kind in ("pg-observed", "pg-dump-remote") and e.rank is not None},
        finished=frozenset(_ranks(e for e in own if e.kind == "progress" and text(e, "what") == "finished")),
    )


def _ranks(events: Iterable[Event]) -> Iterator[int]:
    return (e.rank for e in events if e.rank is not None)


def _world(events: Iterable[Event], lines: Iterable[Event], known: Identities) -> tuple[int | None, bool]:
    """(number of ranks, does a log state it?). Without a statement: one more than the highest rank that is seen.

    None where the ranks that are seen are too few to tell (Identities.size).
    """
    if known.world_size:
        return known.world_size, True
    seen = {*_ranks(events), *(reporter(e) for e in lines)}
    return known.size(r for r in seen if r is not None), False


def _waits(one: Attendance) -> Iterator[Wait]:
    """Those that report a collective wait for its members that do not."""
    stuck, absent = one.stuck, one.absent
    if absent:
        why = say("waits in {what}", what=one.what)
        for rank in stuck.reports:
            yield Wait(waiter=rank, waited=absent, why=why, group=stuck.name or stuck.desc, seq=stuck.seq)


def _witnesses(attended: Iterable[Attendance], suspects: Sequence[Suspect]) -> tuple[set[int], set[int]]:
    """(those whom their report clears, those whom it does not: gloo's tells too little where nobody is suspected)."""
    witnesses: set[int] = set()
    unsure: set[int] = set()
    for one in attended:
        tells = one.state.backend != "gloo" or suspects
        (witnesses if tells else unsure).update(one.state.arrived)
    return witnesses, unsure


START_KINDS = kinds_marked("at-start")
"""Lines of a process's start, which tell nothing of how it ended."""


def _spoke_late(events: Sequence[Event]) -> set[int]:
    """Ranks of which a line stands behind, or is later than, the first report of a wait."""
    first = next((e for e in events if e.kind == "watchdog-timeout"), None)
    if first is None:
        return set()
    telling = [e for e in events if e.kind not in START_KINDS]
    return set(_ranks(e for e in telling if _is_later(e, first)))


def _is_later(event: Event, report: Event) -> bool:
    """By time later than when the reporter began to wait; without a time, further down in the report's file."""
    began = started_ns(report)
    if event.time_ns is not None and began is not None:
        return event.time_ns > began
    here, there = event.evidence, report.evidence
    return here.source == there.source and (here.line or 0) > (there.line or 0)
