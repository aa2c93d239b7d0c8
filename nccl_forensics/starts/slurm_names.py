"""The numbers of Slurm jobs in the names of their files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, InputRow
from nccl_forensics.text.moments import SECOND
from nccl_forensics.who.numbered_files import Numbered, numbered

SLURM_FILE = re.compile(r"(?:^|[/!])slurm-(?:(?P<whole>\d{1,12})_)?(?P<last>\d{1,12})(?=[._-]|$)")
"""sbatch's default, slurm-%j.out, and slurm-%A_%a.out for arrays; so look slurm-%t.out and slurm-%j_%t.out of tasks."""
MOST_TASKS = 4096
"""A number from here on is a job's, unless it is that of the only rank in the file. Our judgement."""
TOGETHER_S = 60
"""Members of one operation report its timeout within this, so that their files are of one job. Our judgement."""


def slurm_numbers(rows: Sequence[InputRow], events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """(file, number of its Slurm job in its name). Numbers that count the tasks or nodes of a job are none."""
    counts = numbered((r.path for r in rows if r.format not in OF_ONE_HOST), events)
    waited = _Waited.by(events)
    for whole, files in _alike(dict.fromkeys(e.evidence.source for e in events)):
        tasks = _tasks(whole, files, counts, waited)
        for n, paths in files.items():
            job = whole if n in tasks else f"{whole}_{n}" if whole else str(n)
            if job is not None:
                yield from ((path, job) for path in paths)


_Files = Mapping[int, Sequence[str]]
"""The last number in their names → files."""


def _alike(paths: Iterable[str]) -> Iterator[tuple[str | None, _Files]]:
    """Files in one folder that are named alike but for the last number, and the number before it, if there is one."""
    alike: dict[tuple[str, str | None], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        if found := SLURM_FILE.search(path):
            alike[path[: found.start()], found["whole"]][int(found["last"])].append(path)
    for (_, whole), files in alike.items():
        yield whole, files


def _tasks(whole: str | None, files: _Files, counts: Mapping[str, Numbered], waited: _Waited) -> set[int]:
    """The numbers that count tasks or nodes of one job."""
    tasks = {n for n, paths in files.items() if all(_counts_ranks(path, counts) for path in paths)}
    small = sorted(n for n in files if n < MOST_TASKS)
    if whole is None and 0 in files:  # no job's number
        tasks |= set(small)
    for before, after in pairwise(small):
        if after - before == 1 and any(waited.together(a, b) for a in files[before] for b in files[after]):
            tasks |= {before, after}
    return tasks


def _counts_ranks(path: str, counts: Mapping[str, Numbered]) -> bool:
    """Is the last number that of the rank that alone writes in the file?"""
    found = SLURM_FILE.search(path)
    return found is not None and path in counts and found.start("last") in counts[path].places


@dataclass(frozen=True, slots=True)
class _Waited:
    """Who wrote in each file, and in which operations they waited."""

    wrote: Mapping[str, set[int]]
    """File → ranks."""
    operations: Mapping[str, Mapping[tuple[object, ...], int]]
    """File → operation → when its timeout was reported, ns as written."""

    @classmethod
    def by(cls, events: Iterable[Event]) -> _Waited:
        wrote: dict[str, set[int]] = defaultdict(set)
        operations: dict[str, dict[tuple[object, ...], int]] = defaultdict(dict)
        for event in events:
            source, stamp = event.evidence.source, event.stamp
            if event.rank is not None:
                wrote[source].add(event.rank)
            if event.kind == "watchdog-timeout" and stamp is not None and stamp.wall_ns is not None:
                operation = tuple(event.details.get(key) for key in ("pg_id", "seq", "op", "numel_in"))
                operations[source][operation] = stamp.wall_ns
        return cls(wrote, operations)

    def together(self, a: str, b: str) -> bool:
        """Do other ranks in one file than in the other wait in the same operation at the same time?"""
        if not self.wrote.get(a, set()).isdisjoint(self.wrote.get(b, set())):
            return False
        its = self.operations.get(b, {})
        return any(
            operation in its and abs(at - its[operation]) <= TOGETHER_S * SECOND
            for operation, at in self.operations.get(a, {}).items()
        )
