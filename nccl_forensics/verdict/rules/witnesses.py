"""What was asked of the job while it hung: NCCL's RAS reports, its Inspector's records and stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import rule
from nccl_forensics.waits.inspector import ONE_SIDED

OUTLIERS = 0.25
"""NCCL's own reports call ranks outliers only up to a quarter of the communicator (RAS)."""


def _ranks(event: Event, key: str) -> tuple[int, ...]:
    found = event.details.get(key)
    return tuple(x for x in found if isinstance(x, int)) if isinstance(found, tuple) else ()


ABORTED = "Aborted"
"""A crash that says nothing of the program: the watchdog and NCCL take their process down by SIGABRT."""
CLASSES = 4
"""Different stacks that a sentence tells."""


@rule
def ras_shows_who_lags(case: Case) -> Iterator[Finding]:
    """Ranks that have launched fewer operations than all others, in the communicator of the whole job.

    One report of a running job shows such a thing, too; so it counts where the job failed, or where a second report
    shows the same ranks at the same operation. Operations that name different ranks cancel each other.
    """
    apart = [e for e in case.of("ras-apart") if e.details.get("whole_job") is True and not case.went_on(e)]
    if not apart:
        return
    by_report: dict[tuple[str, int | None], list[Event]] = defaultdict(list)
    for event in apart:
        by_report[event.evidence.source, number(event, "report")].append(event)
    agreed: dict[tuple[str, int | None], tuple[int, ...]] = {}
    for report, events in by_report.items():
        sets = {_ranks(e, "behind") for e in events}
        if len(sets) == 1 and () not in sets:
            (agreed[report],) = sets
    if len(agreed) < len(by_report) or len(set(agreed.values())) != 1:
        return
    ranks = next(iter(agreed.values()))
    size = max(number(e, "comm_ranks") or 0 for e in apart)
    places = {(text(e, "comm"), text(e, "op"), number(e, "fewest")) for e in apart}
    still = len(by_report) > 1 and len(places) * len(by_report) == len(apart)
    failed = bool(case.of("watchdog-timeout", "pg-heartbeat", "pg-blocking")) or bool(case.collectives.suspects)
    if len(ranks) > max(1, OUTLIERS * size) or not (still or failed):
        return
    waits = {r for g in case.collectives.groups for r in g.arrived}
    if waits & set(ranks):
        return  # the ranks' own words stand before a count that was taken at some other moment
    first = apart[0]
    yield Finding(
        cause="rank_not_arrived",
        says=say_many(
            "NCCL's RAS report: {ranks} has launched {fewest} {op} operations, most others {most}",
            "NCCL's RAS report: {ranks} have launched {fewest} {op} operations, most others {most}",
            len(ranks),
            ranks=phrases.ranks(ranks),
            fewest=f"{number(first, 'fewest'):,}",
            op=text(first, "op"),
            most=f"{number(first, 'most'):,}",
        )
        + (say(", in every report alike") if still else ""),
        weight=weight("ras_stands_still" if still else "ras_behind"),
        ranks=ranks,
        events=tuple(apart[:3]),
    )


@rule
def ras_lost_a_process(case: Case) -> Iterator[Finding]:
    """A process that no other could reach any more; its rank by number, or by host and process id."""
    lost = [e for e in case.of("ras-lost") if not case.went_on(e)]
    places: dict[tuple[str | None, int | None], int] = {
        (p.host, p.pid): r for r, p in case.known.ranks.items() if p.host and p.pid is not None
    }
    named: dict[int, list[Event]] = defaultdict(list)
    for event in lost:
        rank = places.get((event.host, event.pid))
        for one in _ranks(event, "lost") or ((rank,) if rank is not None else ()):
            named[one].append(event)
    size = case.known.world_size or max((*case.known.ranks, *named), default=0) + 1
    waited = {r for g in case.collectives.groups for r in g.arrived}
    if not named or len(named) > max(1, OUTLIERS * size) or set(named) & waited:
        return
    events = tuple(e for several in named.values() for e in several)
    dead = any(e.details.get("dead") is True for e in lost)
    yield Finding(
        cause="process_missing",
        says=say("NCCL's RAS report: {ranks} ", ranks=phrases.ranks(named))
        + (say("considered dead: nobody reaches the process") if dead else say("did not answer the other processes")),
        weight=weight("ras_dead" if dead else "ras_silent"),
        ranks=tuple(sorted(named)),
        events=events[:3],
    )


@rule
def inspector_shows_who_lags(case: Case) -> Iterator[Finding]:
    """Ranks of which NCCL's Inspector wrote no more while all their peers completed further collectives.

    A collective that some have completed all have entered: who is behind was stopped inside, or its process was. All
    communicators and kinds that show a difference have to show the same ranks, each behind peers that agree.
    """
    failed = bool(case.of("watchdog-timeout", "pg-heartbeat", "pg-blocking")) or bool(case.collectives.suspects)
    events = case.of("inspector-comm")
    if not failed or any(e.details.get("cut") is True for e in events):
        return
    newest: dict[tuple[str | None, int | None, str], dict[int, tuple[int, Event]]] = defaultdict(dict)
    for event in events:
        ops, completed = event.details.get("ops"), event.details.get("completed")
        if isinstance(ops, tuple) and isinstance(completed, tuple) and event.rank is not None:
            for op, seq in zip(map(str, ops), map(int, completed), strict=True):
                if op not in ONE_SIDED:
                    newest[text(event, "comm"), number(event, "nranks"), op][event.rank] = seq, event
    behind: set[tuple[int, ...]] = set()
    shown: list[tuple[int, int, str, list[Event]]] = []
    for (_, size, op), stands in newest.items():
        most = max(seq for seq, _ in stands.values())
        late = {rank: seq for rank, (seq, _) in stands.items() if seq < most}
        if late and size is not None and len(stands) == size:
            behind.add(tuple(sorted(late)))
            peer = next(event for seq, event in stands.values() if seq == most)
            shown.append((min(late.values()), most, op, [stands[min(late)][1], peer]))
            if len(late) > max(1, OUTLIERS * size) or size < 3:
                return
    waits = {r for g in case.collectives.groups for r in g.arrived}
    if len(behind) != 1 or waits & set(next(iter(behind))):
        return
    ((ranks,), (fewest, most, op, witnesses)) = behind, max(shown, key=lambda x: x[1] - x[0])
    yield Finding(
        cause="rank_not_arrived",
        says=say(
            "NCCL's Inspector: the newest {op} that {ranks} completed has number {fewest}, and all others in the "
            "communicator went on to {most}",
            op=op,
            ranks=phrases.ranks(ranks),
            fewest=f"{fewest:,}",
            most=f"{most:,}",
        ),
        weight=weight("inspector_behind"),
        ranks=ranks,
        events=tuple(witnesses),
        inference=True,
    )


@rule
def stack_stands_apart(case: Case) -> Iterator[Finding]:
    """Stacks of several ranks: most wait for the others or for the GPU, a few do something else."""
    known: dict[tuple[int | None, str | None], list[int]] = defaultdict(list)
    for rank, place in case.known.ranks.items():
        if place.pid is not None:
            known[place.pid, place.host].append(rank)
    stacks: dict[int, Event] = {}
    for event in case.of("process-stack"):
        if case.went_on(event) or (text(event, "crash") or ABORTED) != ABORTED:
            continue
        fitting = known.get((event.pid, event.host), [])
        rank_of = event.rank if event.rank is not None else fitting[0] if len(fitting) == 1 else None
        if rank_of is not None:
            stacks[rank_of] = event  # the newest of several
    doing: dict[str, list[int]] = defaultdict(list)
    for rank, event in sorted(stacks.items()):
        doing[text(event, "doing") or "unsure"].append(rank)
    apart, waiting = doing["works"], doing["waits"]
    waited = {r for g in case.collectives.groups for r in g.arrived}
    if not apart or len(waiting) < 2 or len(apart) > max(1, OUTLIERS * len(stacks)) or waited & set(apart):
        return
    late = {r for s in case.collectives.suspects for r in s.ranks}
    classes = _classes(stacks)
    shown = [ranks[0] for _, ranks in classes if set(ranks) <= set(apart)][:2]
    yield Finding(
        cause="rank_busy",
        says=say("Stacks: {classes}", classes=joined((what for what, _ in classes[:CLASSES]), "; "))
        + (
            say_many("; and {n} more place", "; and {n} more places", more, n=more)
            if (more := len(classes) - CLASSES) > 0
            else ""
        ),
        weight=weight("stack_apart") + (weight("stack_of_the_late") if set(apart) <= late else 0.0),
        ranks=tuple(apart),
        events=tuple(stacks[r] for r in [*shown, waiting[0]]),
        inference=True,
    )


def _classes(stacks: Mapping[int, Event]) -> list[tuple[str, list[int]]]:
    """(what they do, ranks) of those whose stacks tell the same; whoever works first, then the larger classes."""
    alike: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rank, event in sorted(stacks.items()):
        alike[text(event, "doing") or "unsure", text(event, "call") or "", text(event, "place") or "?"].append(rank)

    def order(item: tuple[tuple[str, str, str], list[int]]) -> tuple[bool, int, list[int]]:
        (doing, _, _), ranks = item
        return doing != "works", -len(ranks), ranks

    told: list[tuple[str, list[int]]] = []
    for (doing, call, at), ranks in sorted(alike.items(), key=order):
        place = say("{call}, called from {place}", call=call, place=at) if call and call != at.partition(" ")[0] else at
        what = (
            say_many(
                "{ranks} waits in {place}",
                "{ranks} wait in {place}",
                len(ranks),
                ranks=phrases.ranks(ranks),
                place=place,
            )
            if doing == "waits"
            else say_many(
                "{ranks} is in {place}", "{ranks} are in {place}", len(ranks), ranks=phrases.ranks(ranks), place=place
            )
        )
        told.append((what, ranks))
    return told
