"""Several jobs in one pile, kept apart: each is analyzed by itself, with its own ranks and the hosts' logs.

Files belong together by a Slurm job, a communicator's id, a process or a rendezvous that both tell of. Different Slurm
jobs are different jobs. Other files are, where ranks of both run in two places at once and an id tells them apart, too.
What nothing tells apart stays together, as one job.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import combinations
from typing import TYPE_CHECKING

from nccl_forensics.catalog import kinds_by, kinds_marked
from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, InputRow, Problem, number, text
from nccl_forensics.names import short
from nccl_forensics.starts import folders
from nccl_forensics.starts.near import Near
from nccl_forensics.starts.parts import Part, Window, overlap
from nccl_forensics.starts.sets import Sets
from nccl_forensics.starts.slurm_names import slurm_numbers
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.text.moments import SECOND
from nccl_forensics.who.files import hosts_of_files

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump

JOB_KINDS = kinds_marked("of-failure")
"""Lines that a failing training job writes, as against a kernel."""


MOST_JOBS = 12
"""Jobs that are analyzed, the newest; the others are counted."""
OVERLAP_S = 60
"""A rank that is in two places for longer than this is a rank of two jobs: clocks differ by less. Our judgement."""
FEWEST = 2
"""So many ranks must be in two places: one alone may be a misread line. Our judgement."""
MOST_PLACES = 64
"""Places of one rank that are held against each other: a hostile pile could name thousands."""
OWN_WORK = kinds_by("job")
"""Kinds that only a job's own files hold."""
SLURM = kinds_marked("names-its-job")
"""Kinds that tell the number of their own job."""
Label = tuple[str, str]
"""What kind of id it is, and the id."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the pile."""

    name: str | None
    """As people call it; None: files of which nothing tells the job."""
    sources: frozenset[str]
    """Its own files. Those of no job, such as a kernel's log, are seen by all, but for those of other tickets."""
    beside: frozenset[str] = frozenset()
    """Files of no job in the folder of its ticket: no job of another ticket sees them."""
    kept: bool = True
    """It is one of the newest."""

    @property
    def files(self) -> frozenset[str]:
        """Those that no job of another ticket sees."""
        return self.sources | self.beside


def apart(
    rows: Sequence[InputRow], events: Sequence[Event], dumps: Sequence[Dump]
) -> tuple[list[Job], tuple[Problem, ...]]:
    """(the jobs of the pile, what has to be said of them); no jobs where all is one. `events` as parsed."""
    lines = _lines_of_jobs(rows, events)
    parts = _parts(rows, events, lines)
    clashes = _clashes(parts)
    told = {pair for pair in clashes if parts[pair[0]].is_another_job(parts[pair[1]])}
    side_by_side = folders.side_by_side(parts, dumps, lines)
    tickets = folders.apart(side_by_side)
    of = [(job, ticket) for ticket in tickets for job in _jobs_of(ticket, parts, told)]
    jobs = [job for job, _ in of] or _jobs(parts, told)
    if len(jobs) < 2:
        doubted = {rank for pair in clashes.keys() - told for rank in clashes[pair]}
        said = [*(_doubt(doubted) if doubted else _perhaps(parts))] or [*_perhaps_tickets(side_by_side)]
        return [], tuple(said)
    near = Near(jobs)
    inside, rest = _shared_out(near, parts, dumps)
    taken = frozenset().union(*inside)
    beside = [frozenset(r.path for r in rows if ticket.holds(r.path)) - taken for _, ticket in of] or [
        frozenset()
    ] * len(jobs)
    made = [
        Job(near.name(n), frozenset(sources), beside[n], kept=n >= len(jobs) - MOST_JOBS)
        for n, sources in enumerate(inside)
    ]
    if rest:
        made.append(Job(None, frozenset(rest)))
    return made, tuple(_said(made, rest))


def _jobs_of(ticket: folders.Folder, parts: Sequence[Part], told: Collection[tuple[int, int]]) -> list[list[Part]]:
    """The jobs of one ticket. `told`: pairs of `parts`, by number, that are not of one job."""
    mine = [n for n, part in enumerate(parts) if any(part is own for own in ticket.parts)]
    place = {n: k for k, n in enumerate(mine)}
    inside = _jobs(ticket.parts, [(place[a], place[b]) for a, b in told if a in place and b in place])
    return inside if len(inside) > 1 else [ticket.everything()]


def _shared_out(near: Near, parts: Iterable[Part], dumps: Iterable[Dump]) -> tuple[list[set[str]], set[str]]:
    """(For each job its own files and those near to it and to no other, those that are near to none)."""
    inside: list[set[str]] = [{source for part in job for source in part.sources} for job in near.jobs]
    rest: set[str] = set()
    taken = set().union(*inside)
    for part in parts:
        if part.sources[0] not in taken:
            n = near.of(part.sources, part.hosts, part.times)
            (rest if n is None else inside[n]).update(part.sources)
    for dump in dumps:
        n = near.of_dump(dump)
        (rest if n is None else inside[n]).add(dump.path)
    return inside, rest


def _said(jobs: Sequence[Job], rest: Collection[str]) -> Iterator[Problem]:
    number_ = sum(j.name is not None or not rest for j in jobs)
    yield Problem(says=say("The pile holds {n} jobs, or runs of a job, which were analyzed apart.", n=number_))
    if old := sum(not j.kept for j in jobs):
        yield Problem(
            says=say_many(
                "{n} older job was left out: the analysis is about the newest {most}.",
                "{n} older jobs were left out: the analysis is about the newest {most}.",
                old,
                n=old,
                most=MOST_JOBS,
            )
        )
    if rest:
        first = min(rest)
        yield Problem(
            says=say_many(
                "Nothing tells to which job {file} belongs: it was analyzed by itself.",
                "Nothing tells to which job {n} files belong ({file} among them): they were analyzed by themselves.",
                len(rest),
                n=len(rest),
                file=first,
            ),
            source=first,
        )


def _doubt(ranks: Collection[int]) -> Iterator[Problem]:
    if len(ranks) >= FEWEST:
        says = say(
            "{ranks} are in two places at the same time: these may be the logs of two jobs, and nothing tells them "
            "apart. Analyze each alone (--each, where each has a folder).",
            ranks=phrases.ranks(ranks).capitalize(),
        )
        yield Problem(says=says)


def _perhaps(parts: Sequence[Part]) -> Iterator[Problem]:
    """Of the first two parts that may be two jobs: other communicators and hosts, the same ranks, and times that do not
    lie apart."""
    for a, b in combinations([p for p in parts if p.seats and p.labels["comm"]][:MOST_PLACES], 2):
        ranks = a.seats & b.seats
        same = a.labels["comm"] & b.labels["comm"] or a.hosts & b.hosts
        if len(ranks) >= FEWEST and not same and _can_have_met(a, b):
            says = say(
                "{ranks} are in two places in communicators that differ, and nothing tells whether at the same time: "
                "these may be the logs of two jobs. If so, analyze each alone (--each, where each has a folder).",
                ranks=phrases.ranks(ranks).capitalize(),
            )
            yield Problem(says=says)
            return


def _perhaps_tickets(side_by_side: Sequence[folders.Folder]) -> Iterator[Problem]:
    pair = folders.perhaps_apart(side_by_side)
    if pair is not None:
        a, b = pair
        says = say(
            "{ranks} write in {a} and in {b}, which name no host and no job in common: these may be two jobs. If so, "
            "analyze each alone (--each).",
            ranks=phrases.ranks(a.speakers & b.speakers).capitalize(),
            a=min(a.paths),
            b=min(b.paths),
        )
        yield Problem(says=says)


def _can_have_met(a: Part, b: Part) -> bool:
    """Do their times not lie apart, as far as they compare?"""
    both = a.times.keys() & b.times.keys()
    return not both or any(overlap(a.times[dated], b.times[dated]) > OVERLAP_S * SECOND for dated in both)


def _labels(event: Event) -> Iterator[Label]:
    """Ids of its job in a line. The same id means the same job, but for a rendezvous and a process number."""
    if event.kind == "nccl-init":
        if (number(event, "nranks") or 0) > 1 and (comm := text(event, "comm_id")):
            yield "comm", comm
    elif event.kind == "rendezvous" and (master := text(event, "master")):
        yield "rendezvous", master
    elif event.kind in SLURM and (job := text(event, "job")):
        yield "slurm", re.split(r"[.+]", job)[0]
    if event.kind in ("nccl-init", "rank-identity") and event.host and event.pid is not None:
        yield "process", f"{short(event.host)} {event.pid}"


class _Files:
    """Files joined by what they tell of."""

    def __init__(self, sources: Iterable[str]) -> None:
        self.sets = Sets(sources)
        self.slurm: dict[str, set[str]] = defaultdict(set)

    def join(self, a: str, b: str, *, surely: bool) -> None:
        """Files of different Slurm jobs are joined by a communicator only (heterogeneous jobs)."""
        a, b = self.sets.top(a), self.sets.top(b)
        mine, its = self.slurm[a], self.slurm[b]
        if a == b or (not surely and mine and its and not mine & its):
            return
        self.slurm[self.sets.join(a, b)] = mine | its


def _parts(rows: Sequence[InputRow], events: Sequence[Event], lines: Sequence[Event]) -> list[Part]:
    """The files of jobs, joined, in the order of their first times. `lines`: the events of these files."""
    of_files = hosts_of_files(rows, events)
    labels = _labels_of_files(rows, lines)
    sets = _joined(dict.fromkeys(e.evidence.source for e in lines), labels)
    parts: dict[str, Part] = defaultdict(Part)
    for source in sets:
        parts[sets.top(source)].sources.append(source)
    for (kind, value), inside in labels.items():
        for source in inside if kind != "process" else ():
            parts[sets.top(source)].labels[kind].add(value)
    told: dict[str, list[Event]] = defaultdict(list)
    for event in lines:
        told[sets.top(event.evidence.source)].append(event)
    years = _years(lines)
    for top, part in parts.items():
        part.worlds = {n for e in told[top] if (n := number(e, "world_size")) is not None}
        worlds = part.worlds or _widest(told[top])
        for event in told[top]:
            source = event.evidence.source
            part.take(event, of_files.get(source), worlds, years.get(source))
    return sorted(parts.values(), key=Part.order)


def _lines_of_jobs(rows: Sequence[InputRow], events: Sequence[Event]) -> list[Event]:
    """Those of files that only a job writes."""
    hosts = {r.path for r in rows if r.format in OF_ONE_HOST}
    own = {e.evidence.source for e in events if e.kind in OWN_WORK} - hosts
    return [e for e in events if e.evidence.source in own]


_Labels = Mapping[Label, Mapping[str, None]]
"""Label → the files that tell it, in order."""


def _labels_of_files(rows: Sequence[InputRow], events: Sequence[Event]) -> _Labels:
    labels: dict[Label, dict[str, None]] = defaultdict(dict)
    for path, job in slurm_numbers(rows, events):
        labels["slurm", job][path] = None
    for event in events:
        for label in _labels(event):
            labels[label][event.evidence.source] = None
    return labels


def _joined(sources: Iterable[str], labels: _Labels) -> Sets:
    """Files that tell the same id, the surest ids first."""
    sets = _Files(sources)
    for (kind, value), inside in labels.items():
        if kind == "slurm":
            for source in inside:
                sets.slurm[source].add(value)
    for kinds in (("slurm", "comm"), ("process", "rendezvous")):
        for (kind, _), inside in labels.items():
            first, *others = inside
            for other in others if kind in kinds else ():
                sets.join(first, other, surely=kind == "comm")
    return sets.sets


def _widest(events: Sequence[Event]) -> set[int]:
    """The size of the widest communicator, where ranks speak and none of them is beyond it: it may hold all of them."""
    ranks = {e.rank for e in events if e.rank is not None}
    widest = max((number(e, "nranks") or 0 for e in events if e.kind == "nccl-init"), default=0)
    return {widest} if ranks and max(ranks) < widest else set()


def _years(events: Sequence[Event]) -> dict[str, int]:
    """File → the year of all its stamps that tell one, for those that do not."""
    found: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.stamp is not None and event.stamp.wall_ns is not None and event.stamp.has_year:
            found[event.evidence.source].add(datetime.fromtimestamp(event.stamp.wall_ns // SECOND, timezone.utc).year)
    return {source: years.pop() for source, years in found.items() if len(years) == 1}


def _clashes(parts: Sequence[Part]) -> dict[tuple[int, int], set[int]]:
    """Pairs of parts, by number → the ranks that are in both at the same time, in two places."""
    places: dict[tuple[int, bool], list[tuple[int, str, Window]]] = defaultdict(list)
    for n, part in enumerate(parts):
        for (rank, host, dated), when in part.places.items():
            places[rank, dated].append((n, host, when))
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for (rank, _), rows in places.items():
        for (n, host, when), (m, other, then) in combinations(rows[:MOST_PLACES], 2):
            mine, its = parts[n].cards[rank, host], parts[m].cards[rank, other]
            cards = len(mine) == len(its) == 1 and mine != its
            apart = host != other or cards or parts[n].launched_apart(parts[m], host)
            if n != m and apart and overlap(when, then) > OVERLAP_S * SECOND:
                found[min(n, m), max(n, m)].add(rank)
    return {pair: ranks for pair, ranks in found.items() if len(ranks) >= FEWEST}


def _jobs(parts: Sequence[Part], clashes: Collection[tuple[int, int]]) -> list[list[Part]]:
    """The parts that are jobs of their own: those of a Slurm job each, and those that clash with another."""
    apart: dict[int, set[int]] = defaultdict(set)
    for n, m in clashes:
        apart[n].add(m)
        apart[m].add(n)
    jobs: list[list[int]] = [[n] for n, part in enumerate(parts) if part.labels["slurm"]]
    for n in sorted(apart):
        if parts[n].labels["slurm"]:
            continue
        kin = [job for job in jobs if not apart[n] & set(job) and any(parts[n].hosts & parts[m].hosts for m in job)]
        if len(kin) == 1:
            kin[0].append(n)
        else:
            jobs.append([n])
    return [[parts[n] for n in sorted(job)] for job in sorted(jobs, key=min)]
