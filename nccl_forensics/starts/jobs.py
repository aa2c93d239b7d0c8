"""Several jobs in one pile, kept apart: each is analyzed by itself, with its own ranks and the hosts' logs.

Files belong together by a Slurm job, a communicator's id, a process or a rendezvous that both tell of. Different Slurm
jobs are different jobs. Other files are, where ranks of both run in two places at once and an id tells them apart, too.
What nothing tells apart stays together, as one job.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from nccl_forensics.catalog import kinds_by, kinds_marked
from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, InputRow, Problem, number, text
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.text.moments import SECOND
from nccl_forensics.when.years import with_year
from nccl_forensics.who.files import hosts_of_files
from nccl_forensics.who.numbered_files import numbered

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump

JOB_KINDS = kinds_marked("of-failure")
"""Lines that a failing training job writes, as against a kernel."""


MOST_JOBS = 12
"""Jobs that are analyzed, the newest; the others are counted."""
OVERLAP_S = 60
"""A rank that is in two places for longer than this is a rank of two jobs: clocks differ by less. Our judgement."""
NEAR_S = 600
"""A file belongs to the job that ran when it was written, give or take this. Our judgement."""
FEWEST = 2
"""So many ranks must be in two places: one alone may be a misread line. Our judgement."""
MOST_PLACES = 64
"""Places of one rank that are held against each other: a hostile pile could name thousands."""
SLURM_FILE = re.compile(r"(?:^|[/!])slurm-(?:(?P<whole>\d{1,12})_)?(?P<last>\d{1,12})(?=[._-]|$)")
"""sbatch's default, slurm-%j.out, and slurm-%A_%a.out for arrays; so look slurm-%t.out and slurm-%j_%t.out of tasks."""
MOST_TASKS = 4096
"""A number from here on is a job's, unless it is that of the only rank in the file. Our judgement."""
TOGETHER_S = 60
"""Members of one operation report its timeout within this, so that their files are of one job. Our judgement."""
POD = re.compile(r"(?P<job>[a-z0-9][a-z0-9.-]{0,200})-(?:master|worker|launcher|chief)(?:-\d{1,5})?(?:-[a-z0-9]{5})?")
"""Pods of Kubeflow's operators: JOB-worker-3."""
OWN_WORK = kinds_by("job")
"""Kinds that only a job's own files hold."""
SLURM = kinds_marked("names-its-job")
"""Kinds that tell the number of their own job."""
Label = tuple[str, str]
Window = tuple[int, int]
"""First and last time, as written."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the pile."""

    name: str | None
    """As people call it; None: files of which nothing tells the job."""
    sources: frozenset[str]
    """Its own files. Those of no job, such as a kernel's log, are seen by all."""
    kept: bool = True
    """It is one of the newest."""


@dataclass(slots=True)
class _Part:
    """Files that belong to one job for sure."""

    sources: list[str] = field(default_factory=list)
    labels: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    hosts: set[str] = field(default_factory=set)
    worlds: set[int] = field(default_factory=set)
    times: dict[bool, Window] = field(default_factory=dict)
    """Whether the year is known → when it wrote."""
    places: dict[tuple[int, str, bool], Window] = field(default_factory=dict)
    """(Rank, host, whether the year is known) → when it was there."""
    seats: set[int] = field(default_factory=set)
    """Ranks whose host is told, whether or not their time is."""
    cards: dict[tuple[int, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """(Rank, host) → PCI addresses."""

    def order(self) -> tuple[int, str]:
        return min((w[0] for w in self.times.values()), default=0), self.sources[0]

    def differs(self, other: _Part) -> bool:
        """Is there an id that both have, and not the same?"""
        mine = {**self.labels, "world": {str(w) for w in self.worlds}}
        its = {**other.labels, "world": {str(w) for w in other.worlds}}
        return any(mine[kind] and its.get(kind) and not mine[kind] & its[kind] for kind in mine)


def apart(
    rows: Sequence[InputRow], events: Sequence[Event], dumps: Sequence[Dump]
) -> tuple[list[Job], tuple[Problem, ...]]:
    """(the jobs of the pile, what has to be said of them); no jobs where all is one. `events` as parsed."""
    hosts = {r.path for r in rows if r.format in OF_ONE_HOST}
    own = {e.evidence.source for e in events if e.kind in OWN_WORK} - hosts
    of_files = hosts_of_files(rows, events)
    parts = _parts(rows, [e for e in events if e.evidence.source in own], of_files)
    clashes = _clashes(parts)
    told = {pair for pair in clashes if parts[pair[0]].differs(parts[pair[1]])}
    jobs = _jobs(parts, told)
    if len(jobs) < 2:
        doubted = {rank for pair in clashes.keys() - told for rank in clashes[pair]}
        return [], tuple(_doubt(doubted) if doubted else _perhaps(parts))
    near = _Near(jobs)
    rest: set[str] = set()
    inside: list[set[str]] = [{x for p in job for x in p.sources} for job in jobs]
    taken = set().union(*inside)
    for part in parts:
        if part.sources[0] not in taken:
            n = near.of(part.sources, part.hosts, part.times)
            (rest if n is None else inside[n]).update(part.sources)
    for dump in dumps:
        n = near.of_dump(dump)
        (rest if n is None else inside[n]).add(dump.path)
    made = [Job(near.name(n), frozenset(sources), kept=n >= len(jobs) - MOST_JOBS) for n, sources in enumerate(inside)]
    if rest:
        made.append(Job(None, frozenset(rest)))
    return made, tuple(_said(made, rest))


def _said(jobs: Sequence[Job], rest: Collection[str]) -> Iterator[Problem]:
    number_ = sum(j.name is not None or not rest for j in jobs)
    yield Problem(says=say("The pile holds {n} jobs, which were analyzed apart.", n=number_))
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
            "apart. Analyze each alone.",
            ranks=phrases.ranks(ranks).capitalize(),
        )
        yield Problem(says=says)


def _perhaps(parts: Sequence[_Part]) -> Iterator[Problem]:
    """Of the first two parts that may be two jobs: other communicators and hosts, the same ranks, and times that do not
    lie apart."""
    for a, b in combinations([p for p in parts if p.seats and p.labels["comm"]][:MOST_PLACES], 2):
        ranks = a.seats & b.seats
        same = a.labels["comm"] & b.labels["comm"] or a.hosts & b.hosts
        both = a.times.keys() & b.times.keys()
        meet = not both or any(_overlap(a.times[dated], b.times[dated]) > OVERLAP_S * SECOND for dated in both)
        if len(ranks) >= FEWEST and meet and not same:
            says = say(
                "{ranks} are in two places in communicators that differ, and nothing tells whether at the same time: "
                "these may be the logs of two jobs. If so, analyze each alone.",
                ranks=phrases.ranks(ranks).capitalize(),
            )
            yield Problem(says=says)
            return


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


class _Sets:
    """Files joined by what they tell of."""

    def __init__(self, sources: Iterable[str]) -> None:
        self.above = {source: source for source in sources}
        self.slurm: dict[str, set[str]] = defaultdict(set)

    def top(self, source: str) -> str:
        while (up := self.above[source]) != source:
            self.above[source] = up = self.above[up]
            source = up
        return source

    def join(self, a: str, b: str, *, surely: bool) -> None:
        """Files of different Slurm jobs are joined by a communicator only (heterogeneous jobs)."""
        a, b = self.top(a), self.top(b)
        mine, its = self.slurm[a], self.slurm[b]
        if a == b or (not surely and mine and its and not mine & its):
            return
        self.above[b] = a
        self.slurm[a] = mine | its


def _slurm_numbers(rows: Sequence[InputRow], events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """(file, number of its Slurm job in its name). Numbers that count the tasks or nodes of a job are none."""
    named_for = numbered((r.path for r in rows if r.format not in OF_ONE_HOST), events)
    wrote: dict[str, set[int]] = defaultdict(set)
    waited: dict[str, dict[tuple[object, ...], int]] = defaultdict(dict)
    for event in events:
        source, stamp = event.evidence.source, event.stamp
        if event.rank is not None:
            wrote[source].add(event.rank)
        if event.kind == "watchdog-timeout" and stamp is not None and stamp.wall_ns is not None:
            waited[source][tuple(event.details.get(key) for key in ("pg_id", "seq", "op", "numel_in"))] = stamp.wall_ns
    alike: dict[tuple[str, str | None], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    of_tasks = set()
    for path in {e.evidence.source: None for e in events}:
        if found := SLURM_FILE.search(path):
            alike[path[: found.start()], found["whole"]][int(found["last"])].append(path)
            if path in named_for and found.start("last") in named_for[path].places:
                of_tasks.add(path)

    def one(before: int, after: int, files: Mapping[int, list[str]]) -> bool:
        """Do other ranks in the file of the next number wait in the same operation at the same time?"""
        return any(
            wrote[a].isdisjoint(wrote[b]) and abs(at - waited[b][operation]) <= TOGETHER_S * SECOND
            for a in files[before]
            for b in files[after]
            for operation, at in waited[a].items()
            if operation in waited[b]
        )

    for (_, whole), files in alike.items():
        tasks = {n for n, paths in files.items() if of_tasks.issuperset(paths)}
        small = sorted(n for n in files if n < MOST_TASKS)
        tasks |= {n for a, b in pairwise(small) if b - a == 1 and one(a, b, files) for n in (a, b)}
        if whole is None and 0 in files:  # no job's number
            tasks |= set(small)
        for n, paths in files.items():
            job = whole if n in tasks else f"{whole}_{n}" if whole else str(n)
            if job is not None:
                yield from ((path, job) for path in paths)


def _parts(rows: Sequence[InputRow], events: Sequence[Event], of_files: Mapping[str, str | None]) -> list[_Part]:
    """The files of jobs, joined, in the order of their first times."""
    sources = dict.fromkeys(e.evidence.source for e in events)
    sets = _Sets(sources)
    labels: dict[Label, dict[str, None]] = defaultdict(dict)
    for path, job in _slurm_numbers(rows, events):
        labels["slurm", job][path] = None
    for event in events:
        for label in _labels(event):
            labels[label][event.evidence.source] = None
    for (kind, value), inside in labels.items():
        if kind == "slurm":
            for source in inside:
                sets.slurm[source].add(value)
    for kinds in (("slurm", "comm"), ("process", "rendezvous")):
        for (kind, _), inside in labels.items():
            first, *others = inside
            for other in others if kind in kinds else ():
                sets.join(first, other, surely=kind == "comm")
    parts: dict[str, _Part] = defaultdict(_Part)
    for source in sources:
        parts[sets.top(source)].sources.append(source)
    for (kind, value), inside in labels.items():
        for source in inside if kind != "process" else ():
            parts[sets.top(source)].labels[kind].add(value)
    of_part: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        of_part[sets.top(event.evidence.source)].append(event)
    years = _years(events)
    for top, told in of_part.items():
        part = parts[top]
        part.worlds = {n for e in told if (n := number(e, "world_size")) is not None}
        worlds = part.worlds or _widest(told)
        for event in told:
            source = event.evidence.source
            _take(part, event, of_files.get(source), worlds, years.get(source))
    return sorted(parts.values(), key=_Part.order)


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


def _take(part: _Part, event: Event, of_file: str | None, worlds: Collection[int], year: int | None) -> None:
    host = event.host or of_file
    if host is not None:
        part.hosts.add(short(host))
        if pod := POD.fullmatch(host):
            part.labels["pods"].add(pod["job"])
    rank = event.rank
    if rank is None and event.kind == "nccl-init" and number(event, "nranks") in worlds:
        rank = number(event, "comm_rank")
    if rank is not None and host is not None:
        part.seats.add(rank)
    if rank is not None and host is not None and event.gpu_pci is not None:
        part.cards[rank, short(host)].add(event.gpu_pci)
    if event.stamp is None or event.stamp.wall_ns is None:
        return
    at, dated = event.stamp.wall_ns, event.stamp.has_year
    if not dated and year is not None:
        at, dated = with_year(at, year), True
    since = at - max(number(event, "waited_ms") or 0, 0) * 1_000_000 if event.kind == "watchdog-timeout" else at
    for time in (since, at):
        part.times[dated] = _wider(part.times.get(dated), time)
        if rank is not None and host is not None:
            place = rank, short(host), dated
            part.places[place] = _wider(part.places.get(place), time)


def _wider(window: Window | None, at: int) -> Window:
    return (min(at, window[0]), max(at, window[1])) if window else (at, at)


def _clashes(parts: Sequence[_Part]) -> dict[tuple[int, int], set[int]]:
    """Pairs of parts, by number → the ranks that are in both at the same time, in two places."""
    places: dict[tuple[int, bool], list[tuple[int, str, Window]]] = defaultdict(list)
    for n, part in enumerate(parts):
        for (rank, host, dated), when in part.places.items():
            places[rank, dated].append((n, host, when))
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for (rank, _), rows in places.items():
        for (n, host, when), (m, other, then) in combinations(rows[:MOST_PLACES], 2):
            mine, its = parts[n].cards[rank, host], parts[m].cards[rank, other]
            apart = host != other or (len(mine) == len(its) == 1 and mine != its)
            if n != m and apart and _overlap(when, then) > OVERLAP_S * SECOND:
                found[min(n, m), max(n, m)].add(rank)
    return {pair: ranks for pair, ranks in found.items() if len(ranks) >= FEWEST}


def _overlap(a: Window, b: Window) -> int:
    """Nanoseconds for which both last; negative: those between them."""
    return min(a[1], b[1]) - max(a[0], b[0])


def _jobs(parts: Sequence[_Part], clashes: Collection[tuple[int, int]]) -> list[list[_Part]]:
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


def _folders(path: str) -> list[str]:
    """The folders above a file, the nearest first."""
    parts = re.split(r"(?<=[/!])", path)
    return ["".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


class _Near:
    """What speaks for one job and no other, of files that tell no id of theirs."""

    def __init__(self, jobs: Sequence[Sequence[_Part]]) -> None:
        self.jobs = jobs
        self.in_folder: dict[str, set[int]] = defaultdict(set)
        for n, job in enumerate(jobs):
            for folder in {f for part in job for source in part.sources for f in _folders(source)}:
                self.in_folder[folder].add(n)
        self.hosts = [{h for part in job for h in part.hosts} for job in jobs]
        self.worlds = [{w for part in job for w in part.worlds} for job in jobs]

    def _by_folder(self, sources: Iterable[str]) -> set[int]:
        """The jobs of the nearest folder above that has any."""
        found: set[int] = set()
        for source in sources:
            found |= next((inside for f in _folders(source) if (inside := self.in_folder.get(f))), set())
        return found

    def of(self, sources: Sequence[str], hosts: Collection[str], times: Mapping[bool, Window]) -> int | None:
        """The only job in the nearest folder, else the only one on these hosts, else the only one at that time."""
        by_host = {n for n, mine in enumerate(self.hosts) if mine & set(hosts)}
        by_time = {
            n
            for n, job in enumerate(self.jobs)
            for part in job
            for dated, when in part.times.items()
            if dated in times and _overlap(when, times[dated]) > -NEAR_S * SECOND
        }
        return next(
            (n for found in (self._by_folder(sources), by_host, by_time) for n in found if len(found) == 1), None
        )

    def of_dump(self, dump: Dump) -> int | None:
        members = {max(g.members) + 1 for g in dump.groups if g.members}
        by_world = {n for n, sizes in enumerate(self.worlds) if members and max(members) in sizes}
        return next((n for found in (self._by_folder([dump.path]), by_world) for n in found if len(found) == 1), None)

    def name(self, number_: int) -> str | None:
        """As people call the job: its Slurm number, its folder, or its hosts."""
        job = self.jobs[number_]
        if ids := sorted({x for part in job for x in part.labels["slurm"]}):
            return ", ".join(f"slurm-{x}" for x in ids[:3])  # as its file is called: --redact knows that form
        shared = [set(_folders(source)) for part in job for source in part.sources]
        alone = [f for f in set.intersection(*shared) if self.in_folder[f] == {number_}]
        if alone:
            return say("the job in {folder}", folder=max(alone, key=len).rstrip("/!").rpartition("/")[2])
        mine = self.hosts[number_]
        others = [h for n, h in enumerate(self.hosts) if n != number_]
        if mine and not any(mine & its for its in others):
            some = sorted(mine)
            more = [say("{n} more", n=len(some) - 3)] if len(some) > 4 else []
            return say("the job on {hosts}", hosts=phrases.listing([*some[: 3 if more else 4], *more]))
        return None
