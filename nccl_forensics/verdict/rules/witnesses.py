"""What was asked of the job while it hung: NCCL's RAS reports, its Inspector's records and stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.collectives import arrived
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


def _outliers(ranks: Collection[int], size: int) -> bool:
    """Are they few enough of so many to be the ones that lag, and not the others the ones that ran ahead?"""
    return len(ranks) <= max(1, OUTLIERS * size)


def _job_failed(case: Case) -> bool:
    """Do ranks wait, by their watchdogs or by what the collectives say?"""
    return bool(case.of("watchdog-timeout", "pg-heartbeat", "pg-blocking") or case.collectives.suspects)


@rule
def ras_shows_who_lags(case: Case) -> Iterator[Finding]:
    """Ranks that have launched fewer operations than all others, in the communicator of the whole job.

    One report of a running job shows such a thing, too; so it counts where the job failed, or where a second report
    shows the same ranks at the same operation; and a little where nothing else tells of the job: somebody had reason
    to ask. Operations that name different ranks cancel each other.
    """
    lines = [e for e in case.of("ras-apart") if e.details.get("whole_job") is True and not case.went_on(e)]
    ranks = _behind_in_all(lines)
    size = max((number(e, "comm_ranks") or 0 for e in lines), default=0)
    if not ranks or not _outliers(ranks, size):
        return
    still = _stand_still(lines)
    # the ranks' own words stand before a count that was taken at some other moment
    if not (still or _job_failed(case) or _nothing_else(case)) or not arrived(case).isdisjoint(ranks):
        return
    first = lines[0]
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
        weight=weight("ras_stands_still" if still else "ras_behind" if _job_failed(case) else "ras_alone"),
        ranks=ranks,
        events=tuple(lines[:3]),
    )


def _nothing_else(case: Case) -> bool:
    """Is a single report all there is: no log of the job that could tell how it went on?"""
    reports = {_report(e) for e in case.of("ras-apart")}
    return len(reports) == 1 and not case.has_job_log and not case.of("progress") and _is_a_file(case)


def _is_a_file(case: Case) -> bool:
    """Do the reports stand in files of their own?"""
    return all(number(e, "report") is None for e in case.of("ras-apart"))


def _report(event: Event) -> tuple[str, int | None]:
    """Which report a line of RAS stands in."""
    return event.evidence.source, number(event, "report")


def _behind_in_all(lines: Sequence[Event]) -> tuple[int, ...]:
    """The ranks that every operation of every report shows behind; none where they differ."""
    named = {_ranks(event, "behind") for event in lines}
    return named.pop() if len(named) == 1 else ()


def _stand_still(lines: Sequence[Event]) -> bool:
    """Does every report tell the same of the same operations, and is there more than one?"""
    reports = {_report(event) for event in lines}
    places = {(text(e, "comm"), text(e, "op"), number(e, "fewest")) for e in lines}
    return len(reports) > 1 and len(places) * len(reports) == len(lines)


@rule
def ras_lost_a_process(case: Case) -> Iterator[Finding]:
    """A process that no other could reach any more; its rank by number, or by host and process id."""
    lost = [e for e in case.of("ras-lost") if not case.went_on(e)]
    named = _unreached(case, lost)
    size = case.known.world_size or max((*case.known.ranks, *named), default=0) + 1
    if not named or not _outliers(named, size) or not arrived(case).isdisjoint(named):
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


def _unreached(case: Case, lost: Iterable[Event]) -> dict[int, list[Event]]:
    """Rank → the lines that name it, or its process."""
    places: dict[tuple[str | None, int | None], int] = {
        (p.host, p.pid): r for r, p in case.known.ranks.items() if p.host and p.pid is not None
    }
    named: dict[int, list[Event]] = defaultdict(list)
    for event in lost:
        for rank in _ranks(event, "lost") or if_known(places.get((event.host, event.pid))):
            named[rank].append(event)
    return named


@dataclass(frozen=True, slots=True)
class _Lag:
    """Ranks of one communicator whose newest collective of one kind all others have left behind."""

    ranks: tuple[int, ...]
    size: int
    op: str
    fewest: int
    most: int
    """Numbers of the newest that the last of them completed, and that the others did."""
    witnesses: tuple[Event, Event]


_Stand = tuple[int, Event]
"""The number of the newest collective that a rank completed, and the line that tells."""


@rule
def inspector_shows_who_lags(case: Case) -> Iterator[Finding]:
    """Ranks of which NCCL's Inspector wrote no more while all their peers completed further collectives.

    A collective that some have completed all have entered: who is behind was stopped inside, or its process was. All
    communicators and kinds that show a difference have to show the same ranks, each behind peers that agree.
    """
    events = case.of("inspector-comm")
    if not _job_failed(case) or any(e.details.get("cut") is True for e in events):
        return
    lags = [lag for (_, size, op), stands in _newest(events).items() if (lag := _lag_in(size, op, stands)) is not None]
    if any(lag.size < 3 or not _outliers(lag.ranks, lag.size) for lag in lags):
        return
    if len({lag.ranks for lag in lags}) != 1 or not arrived(case).isdisjoint(lags[0].ranks):
        return
    widest = max(lags, key=lambda lag: lag.most - lag.fewest)
    yield Finding(
        cause="rank_not_arrived",
        says=say(
            "NCCL's Inspector: the newest {op} that {ranks} completed has number {fewest}, and all others in the "
            "communicator went on to {most}",
            op=widest.op,
            ranks=phrases.ranks(widest.ranks),
            fewest=f"{widest.fewest:,}",
            most=f"{widest.most:,}",
        ),
        weight=weight("inspector_behind"),
        ranks=widest.ranks,
        events=widest.witnesses,
        inference=True,
    )


def _newest(events: Iterable[Event]) -> dict[tuple[str | None, int | None, str], dict[int, _Stand]]:
    """(communicator, its size, kind of collective) → rank → where it stands."""
    newest: dict[tuple[str | None, int | None, str], dict[int, _Stand]] = defaultdict(dict)
    for event in events:
        ops, completed = event.details.get("ops"), event.details.get("completed")
        if isinstance(ops, tuple) and isinstance(completed, tuple) and event.rank is not None:
            for op, seq in zip(map(str, ops), map(int, completed), strict=True):
                if op not in ONE_SIDED:
                    newest[text(event, "comm"), number(event, "nranks"), op][event.rank] = seq, event
    return newest


def _lag_in(size: int | None, op: str, stands: Mapping[int, _Stand]) -> _Lag | None:
    """Who lags in this communicator; None where none does, or not all of its ranks are seen."""
    most = max(seq for seq, _ in stands.values())
    late = {rank: seq for rank, (seq, _) in stands.items() if seq < most}
    if not late or size is None or len(stands) != size:
        return None
    peer = next(event for seq, event in stands.values() if seq == most)
    return _Lag(tuple(sorted(late)), size, op, min(late.values()), most, (stands[min(late)][1], peer))


@rule
def stack_stands_apart(case: Case) -> Iterator[Finding]:
    """Stacks of several ranks: most wait for the others or for the GPU, a few do something else. One stack is enough
    of a rank that is late as the collectives tell."""
    stacks = _newest_stacks(case)
    apart, waiting = _doing(stacks, "works"), _doing(stacks, "waits")
    late = {r for s in case.collectives.suspects for r in s.ranks}
    are_late = bool(apart) and late.issuperset(apart)
    stand_apart = len(waiting) > 1 and _outliers(apart, len(stacks))
    if not apart or not (are_late or stand_apart) or not arrived(case).isdisjoint(apart):
        return
    classes = _classes(stacks)
    shown = [ranks[0] for _, ranks in classes if set(ranks) <= set(apart)][:2]
    more = len(classes) - CLASSES
    yield Finding(
        cause="rank_busy",
        says=say("Stacks: {classes}", classes=joined((what for what, _ in classes[:CLASSES]), "; "))
        + (say_many("; and {n} more place", "; and {n} more places", more, n=more) if more > 0 else ""),
        weight=weight("stack_apart") + (weight("stack_of_the_late") if are_late else 0.0),
        ranks=tuple(apart),
        events=tuple(stacks[r] for r in [*shown, *waiting[:1]]),
        inference=True,
    )


def _newest_stacks(case: Case) -> dict[int, Event]:
    """Rank → the newest stack of it that is no crash's, and after which the job did not go on."""
    having: dict[tuple[int | None, str | None], list[int]] = defaultdict(list)
    for rank, place in case.known.ranks.items():
        if place.pid is not None:
            having[place.pid, place.host].append(rank)
    stacks: dict[int, Event] = {}
    for event in case.of("process-stack"):
        if case.went_on(event) or (text(event, "crash") or ABORTED) != ABORTED:
            continue
        of_process = having.get((event.pid, event.host), [])
        if event.rank is not None:
            stacks[event.rank] = event
        elif len(of_process) == 1:
            stacks[of_process[0]] = event
    return stacks


def _doing(stacks: Mapping[int, Event], what: str) -> list[int]:
    """The ranks that do this, by their stacks."""
    return [rank for rank, event in sorted(stacks.items()) if text(event, "doing") == what]


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
