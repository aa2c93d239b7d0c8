"""Tickets in folders of their own: folders side by side whose ranks are the same and whose jobs are not.

Folders are joined by the ids that their files share (a communicator, a Slurm job, a rendezvous, a rank's process) and
by being attempts of one launcher. Two that nothing joins are told apart where they were written days apart, or where
the same ranks speak in both (or left their dumps in both) and something differs for which one job has one value. One
job's files, sorted into folders by host or by kind, clash in no rank or differ in nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.lines.stamps import DAY
from nccl_forensics.model import Event
from nccl_forensics.starts.parts import Part, Window, folders_above, overlap, wider
from nccl_forensics.starts.sets import Sets

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump

FEWEST = 2
"""So many ranks must have failed otherwise: one alone may have failed twice. Our judgement."""
DAYS_APART = 26 * DAY // 24
"""Stamps further apart than this are, whatever zones they are in: two lie at most 26 h apart (UTC−12, UTC+14)."""
MOST_FOLDERS = 128
"""Folders that are held against each other."""
ATTEMPT = re.compile(r"(?:^|/)attempt_\d{1,6}/$")
"""A folder of torchrun's --log-dir."""
OF_OTHERS = kinds_marked("told-by-another")
FAILURES = kinds_marked("notices") - OF_OTHERS
"""Lines by which a rank itself tells that it failed."""


@dataclass(slots=True)
class Folder:
    """What lies under one of the folders side by side."""

    paths: frozenset[str]
    """More than one where ids join them."""
    depth: int
    """How many folders are above each."""
    parts: list[Part] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    told: Part = field(default_factory=Part)
    """What all its files tell of their job."""
    speakers: set[int] = field(default_factory=set)
    """Ranks that wrote lines."""
    failures: dict[tuple[int, str], set[Hashable]] = field(default_factory=lambda: defaultdict(set))
    """(Rank, kind) → what its lines of failure tell."""
    times: Window | None = None
    """When its lines with a year and its dumps were written, in whatever zones."""

    @property
    def recorded(self) -> set[int]:
        """Ranks that left their dumps."""
        return {d.rank for d in self.dumps if d.rank is not None}

    def holds(self, path: str) -> bool:
        """Does a file lie in it, of a job or not?"""
        return _below(path, self.depth) in self.paths

    def everything(self) -> list[Part]:
        """Its files as those of one job."""
        dumps = Part(sources=[d.path for d in self.dumps])
        if self.times:
            dumps.times[True] = self.times
        return [*self.parts, *([dumps] if self.dumps else [])]

    @property
    def sizes(self) -> set[int]:
        """Of its jobs, as lines and dumps tell them."""
        return self.told.worlds | _makers(self.dumps).get("size", set())

    def clashes(self, other: Folder) -> bool:
        """Are ranks of both the same, in lines or in dumps, or is one beyond the other's size?"""
        if self.speakers & other.speakers or self.recorded & other.recorded:
            return True
        return self._has_beyond(other) or other._has_beyond(self)

    def _has_beyond(self, other: Folder) -> bool:
        ranks = self.speakers | self.recorded
        return bool(ranks and other.sizes) and max(ranks) >= max(other.sizes)

    def is_days_from(self, other: Folder) -> bool:
        return self.times is not None and other.times is not None and -overlap(self.times, other.times) > DAYS_APART

    def is_another_job(self, other: Folder) -> bool:
        """Does something differ that is one for all files of a job?"""
        if self.told.is_another_job(other.told) or self.is_days_from(other):
            return True
        if self._has_beyond(other) or other._has_beyond(self):
            return True
        return self._recorded_otherwise(other) or self._failed_otherwise(other)

    def _recorded_otherwise(self, other: Folder) -> bool:
        """Were the dumps written by other libraries, or by jobs of other sizes?"""
        mine, its = (_makers(f.dumps) for f in (self, other))
        return any(mine[what] and its[what] and not mine[what] & its[what] for what in mine.keys() & its.keys())

    def _failed_otherwise(self, other: Folder) -> bool:
        """Do ranks of both tell of failures of one kind, and never of the same? Not of two hosts at one time: there the
        ranks of one job may have changed places."""
        if self._ran_elsewhere_then(other):
            return False
        both = self.failures.keys() & other.failures.keys()
        ranks = {rank for rank, _ in both}
        return len(ranks) >= FEWEST and not any(self.failures[told] & other.failures[told] for told in both)

    def is_elsewhere(self, other: Folder) -> bool:
        """Did it run on other hosts?"""
        mine, its = self.told.hosts, other.told.hosts
        return bool(mine and its) and not mine & its

    def _ran_elsewhere_then(self, other: Folder) -> bool:
        at_once = self.times is None or other.times is None or overlap(self.times, other.times) > 0
        return self.is_elsewhere(other) and at_once


def _makers(dumps: Iterable[Dump]) -> Mapping[str, set[Any]]:
    found: dict[str, set[Any]] = defaultdict(set)
    for dump in dumps:
        found["library"].add(dump.library)
        found["version"].add(dump.version)
        sizes = [len(g.members) for g in dump.groups if g.members]
        if sizes:
            found["size"].add(max(sizes))
    return {what: values - {None} for what, values in found.items()}


def apart(folders: Sequence[Folder]) -> list[Folder]:
    """The tickets among folders side by side; none where all is one.

    Where two are told apart, a folder beside them that clashes with each is one, too.
    """
    told: set[int] = set()
    for (n, a), (m, b) in combinations(enumerate(folders[:MOST_FOLDERS]), 2):
        if a.is_days_from(b) or (a.clashes(b) and a.is_another_job(b)):
            told |= {n, m}
    tickets = [folders[n] for n in sorted(told)]
    for n, folder in enumerate(folders) if tickets else ():
        if n not in told and all(folder.clashes(t) for t in tickets):
            tickets.append(folder)
    return tickets


def perhaps_apart(folders: Sequence[Folder]) -> tuple[Folder, Folder] | None:
    """The first two whose ranks are the same, on other hosts, and of which nothing tells whether they are one job's."""
    pairs = combinations(folders[:MOST_FOLDERS], 2)
    return next(((a, b) for a, b in pairs if a.speakers & b.speakers and a.is_elsewhere(b)), None)


def side_by_side(parts: Sequence[Part], dumps: Sequence[Dump], events: Iterable[Event]) -> list[Folder]:
    """The folders in the lowest one that holds all files of jobs; those that one job's ids join are one."""
    paths = [*(source for part in parts for source in part.sources), *(d.path for d in dumps)]
    depth = _depth(paths)
    joined = _joined(parts, depth)
    inside: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        inside[joined.top(_below(path, depth))].add(_below(path, depth))
    found = {name: Folder(frozenset(folders), depth) for name, folders in inside.items()}
    of_file = {path: found[joined.top(_below(path, depth))] for path in paths}
    for part in parts:
        home = of_file[part.sources[0]]
        home.parts.append(part)
        home.told.take_all(part)
        home.speakers |= part.seats
        if dated := part.times.get(True):
            home.times = wider(wider(home.times, dated[0]), dated[1])
    for dump in dumps:
        home = of_file[dump.path]
        home.dumps.append(dump)
        if dump.newest_ns:
            home.times = wider(home.times, dump.newest_ns)
    for event in events:
        rank = event.rank if event.rank is not None else event.task  # srun's label counts over all nodes
        if rank is not None and event.kind not in OF_OTHERS:
            home = of_file[event.evidence.source]
            home.speakers.add(rank)
            if event.kind in FAILURES:
                told = tuple(sorted((k, str(v)) for k, v in event.details.items()))
                home.failures[rank, event.kind].add(told)
    return list(found.values())


def _depth(paths: Sequence[str]) -> int:
    """How many folders all of them share."""
    folders = [folders_above(path)[::-1] for path in paths]
    shared = [len(set(level)) == 1 for level in zip(*folders, strict=False)]
    return shared.index(False) if False in shared else len(shared)


def _below(path: str, depth: int) -> str:
    """The folder at this depth in which a file lies; '' for one that lies in none."""
    folders = folders_above(path)[::-1]
    return folders[depth] if len(folders) > depth else ""


def _joined(parts: Sequence[Part], depth: int) -> Sets:
    """Folders of one job, by the ids of their files, or as attempts of one launcher."""
    by_name: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for n, part in enumerate(parts):
        folders = dict.fromkeys(_below(source, depth) for source in part.sources)
        by_name["part", str(n)] |= folders
        for kind, values in part.labels.items():
            for value in values:
                by_name[kind, value] |= folders
        by_name["attempts", ""] |= {f: None for f in folders if ATTEMPT.search(f)}
    joined = Sets(dict.fromkeys(f for inside in by_name.values() for f in inside))
    for inside in by_name.values():
        first, *others = [*inside] or [""]
        for other in others:
            joined.join(first, other)
    return joined
