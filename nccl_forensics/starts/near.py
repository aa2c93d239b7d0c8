"""To which job files belong that tell no id of theirs: by what speaks for one job and no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nccl_forensics.starts.parts import Part, Window, folders_above, overlap
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump

NEAR_S = 600
"""A file belongs to the job that ran when it was written, give or take this. Our judgement."""


class Near:
    """Jobs by their folders, hosts, sizes and times."""

    def __init__(self, jobs: Sequence[Sequence[Part]]) -> None:
        self.jobs = jobs
        self.hosts = [{host for part in job for host in part.hosts} for job in jobs]
        self.worlds = [{size for part in job for size in part.worlds} for job in jobs]
        self.in_folder: dict[str, set[int]] = defaultdict(set)
        for n, job in enumerate(jobs):
            for folder in {folder for source in _sources(job) for folder in folders_above(source)}:
                self.in_folder[folder].add(n)

    def of(self, sources: Sequence[str], hosts: Collection[str], times: Mapping[bool, Window]) -> int | None:
        """The only job in the nearest folder, else the only one on these hosts, else the only one at that time."""
        return _first_only(self._by_folder(sources), self._by_host(hosts), self._by_time(times))

    def of_dump(self, dump: Dump) -> int | None:
        """The only job in the nearest folder, else the only one of that size."""
        return _first_only(self._by_folder([dump.path]), self._by_members(dump))

    def _by_folder(self, sources: Iterable[str]) -> set[int]:
        """The jobs of the nearest folder above that has any."""
        found: set[int] = set()
        for source in sources:
            found |= next((inside for f in folders_above(source) if (inside := self.in_folder.get(f))), set())
        return found

    def _by_host(self, hosts: Collection[str]) -> set[int]:
        return {n for n, mine in enumerate(self.hosts) if mine & set(hosts)}

    def _by_time(self, times: Mapping[bool, Window]) -> set[int]:
        return {n for n, job in enumerate(self.jobs) if any(_wrote_about_then(part, times) for part in job)}

    def _by_members(self, dump: Dump) -> set[int]:
        highest = max((max(group.members) for group in dump.groups if group.members), default=None)
        return {n for n, sizes in enumerate(self.worlds) if highest is not None and highest + 1 in sizes}

    def name(self, number_: int) -> str | None:
        """As people call the job: its Slurm number, its folder, or its hosts."""
        return self._slurm_number(number_) or self._own_folder(number_) or self._own_hosts(number_)

    def _slurm_number(self, number_: int) -> str | None:
        """As its file is called: --redact knows that form."""
        ids = sorted({x for part in self.jobs[number_] for x in part.labels["slurm"]})
        return ", ".join(f"slurm-{x}" for x in ids[:3]) if ids else None

    def _own_folder(self, number_: int) -> str | None:
        """The lowest folder that holds all of its files and nobody else's."""
        shared = set.intersection(*(set(folders_above(source)) for source in _sources(self.jobs[number_])))
        alone = [folder for folder in shared if self.in_folder[folder] == {number_}]
        if not alone:
            return None
        return say("the job in {folder}", folder=max(alone, key=len).rstrip("/!").rpartition("/")[2])

    def _own_hosts(self, number_: int) -> str | None:
        """Its hosts, if no other job ran on one of them."""
        mine = self.hosts[number_]
        if not mine or any(mine & its for n, its in enumerate(self.hosts) if n != number_):
            return None
        some = sorted(mine)
        more = [say("{n} more", n=len(some) - 3)] if len(some) > 4 else []
        return say("the job on {hosts}", hosts=phrases.listing([*some[: 3 if more else 4], *more]))


def _sources(job: Iterable[Part]) -> list[str]:
    return [source for part in job for source in part.sources]


def _wrote_about_then(part: Part, times: Mapping[bool, Window]) -> bool:
    both = part.times.keys() & times.keys()
    return any(overlap(part.times[dated], times[dated]) > -NEAR_S * SECOND for dated in both)


def _first_only(*candidates: Collection[int]) -> int | None:
    """The first that is the only one."""
    return next((n for found in candidates for n in found if len(found) == 1), None)
