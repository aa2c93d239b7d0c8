"""Who is covered by what: kernel log, bug report and nvidia-smi of each host, log and dump of each rank."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from nccl_forensics.intake.sniff import KERNEL_FORMATS
from nccl_forensics.names import short
from nccl_forensics.who.files import OF_OTHERS

if TYPE_CHECKING:
    from nccl_forensics.analysis import Analysis
    from nccl_forensics.model import Event, InputRow

DUMP = "flight-recorder"
BUG_REPORT = "nvidia-bug-report"
NVIDIA_SMI = "nvidia-smi"
NO_LOG_OF_A_RANK = (DUMP, "error-json")
"""Formats that belong to a rank and are not its log."""
MOST_FILES = 50
"""Paths that are listed for one host."""


class RankCoverage(TypedDict):
    """Numbers of ranks, sorted."""

    expected: list[int]
    with_log: list[int]
    with_dump: list[int]
    with_gpu: list[int]
    with_host: list[int]


class HostCoverage(TypedDict):
    host: str
    ranks: list[int]
    kernel_log: bool
    kernel_files: list[str]
    bug_report: bool
    nvidia_smi: bool
    logs: list[int]
    """Of its ranks, those with a log."""
    dumps: list[int]


class Coverage(TypedDict):
    """JSON-ready."""

    world_size: int | None
    job_logs: int
    ranks: RankCoverage
    hosts: list[HostCoverage]
    kernel_logs_of_unknown_host: list[str]


@dataclass(frozen=True, slots=True)
class _HostFiles:
    """Host → its files of one kind; None: no file tells whose they are."""

    kernel_logs: Mapping[str | None, list[str]]
    bug_reports: Mapping[str | None, list[str]]
    nvidia_smi: Mapping[str | None, list[str]]

    def hosts(self) -> list[str]:
        return [h for files in (self.kernel_logs, self.bug_reports, self.nvidia_smi) for h in files if h]


def coverage_of(analysis: Analysis, rows: Sequence[InputRow], by_file: Mapping[str, Sequence[Event]]) -> Coverage:
    """`rows`: what could be read, at least in part; `by_file`: path → its events."""
    known = analysis.known
    dumps, logs = _with_dump(analysis, rows), _with_log(analysis, rows)
    seen = {r.rank for r in analysis.ranks}.union(
        known.ranks, logs, dumps, *(group.members for group in analysis.collectives.groups)
    )
    expected = set(range(known.world_size or known.at_least)) | seen
    placed = {rank: place.host for rank, place in known.ranks.items() if place.host}
    files = _files_of_hosts(rows, by_file)
    names = longest_names([*placed.values(), *files.hosts(), *(e.host for e in analysis.events if e.host)])
    return {
        "world_size": known.world_size,
        "job_logs": sum(r.format == "job-log" and r.events > 0 for r in rows),
        "ranks": {
            "expected": sorted(expected),
            "with_log": sorted(logs & expected),
            "with_dump": sorted(dumps & expected),
            "with_gpu": sorted(r for r, p in known.ranks.items() if p.gpu is not None and (p.gpu.pci or p.gpu.uuid)),
            "with_host": sorted(placed),
        },
        "hosts": _of_hosts(names, placed, files, logs, dumps),
        "kernel_logs_of_unknown_host": files.kernel_logs.get(None, [])[:MOST_FILES],
    }


def _with_dump(analysis: Analysis, rows: Sequence[InputRow]) -> set[int]:
    """Ranks that a Flight Recorder dump belongs to, by its name or by what is in it."""
    dumps = {r.path for r in rows if r.format == DUMP}
    by_name = {r.rank for r in rows if r.format == DUMP and r.rank is not None}
    return by_name | {c.rank for c in analysis.collectives.counters if c.source in dumps}


def _with_log(analysis: Analysis, rows: Sequence[InputRow]) -> set[int]:
    """Ranks that a line of a log is by, and those that a file is named for."""
    no_log = {r.path for r in rows if r.format == DUMP or r.format in KERNEL_FORMATS}
    wrote = {
        e.rank
        for e in analysis.events
        if e.rank is not None and e.kind not in OF_OTHERS and e.evidence.source not in no_log
    }
    return wrote | {r.rank for r in rows if r.rank is not None and r.format not in NO_LOG_OF_A_RANK}


def _files_of_hosts(rows: Sequence[InputRow], by_file: Mapping[str, Sequence[Event]]) -> _HostFiles:
    kernel_logs: dict[str | None, list[str]] = defaultdict(list)
    bug_reports: dict[str | None, list[str]] = defaultdict(list)
    nvidia_smi: dict[str | None, list[str]] = defaultdict(list)
    for row in rows:
        host = row.host or next((e.host for e in by_file.get(row.path, ()) if e.host), None)
        if row.format in KERNEL_FORMATS:
            kernel_logs[host].append(row.path)
        if row.format == BUG_REPORT:
            bug_reports[host].append(row.path)
        if row.format == NVIDIA_SMI:
            nvidia_smi[host].append(row.path)
    return _HostFiles(kernel_logs, bug_reports, nvidia_smi)


def _of_hosts(
    names: Sequence[str], placed: Mapping[int, str], files: _HostFiles, logs: set[int], dumps: set[int]
) -> list[HostCoverage]:
    ranks_on: dict[str, list[int]] = defaultdict(list)
    for rank, host in placed.items():
        ranks_on[short(host)].append(rank)
    kernel_files: dict[str, list[str]] = defaultdict(list)
    for where, paths in files.kernel_logs.items():
        if where:
            kernel_files[short(where)] += paths
    reported, listed = ({short(h) for h in found if h} for found in (files.bug_reports, files.nvidia_smi))
    return [
        {
            "host": name,
            "ranks": sorted(ranks_on[key]),
            "kernel_log": bool(kernel_files[key]),
            "kernel_files": kernel_files[key][:MOST_FILES],
            "bug_report": key in reported,
            "nvidia_smi": key in listed,
            "logs": sorted(logs.intersection(ranks_on[key])),
            "dumps": sorted(dumps.intersection(ranks_on[key])),
        }
        for name in names
        for key in [short(name)]
    ]


def longest_names(found: Iterable[str]) -> list[str]:
    """Each machine once, by its longest name, in the order in which people count."""
    kept: dict[str, str] = {}
    for name in found:
        key = short(name)
        if len(name) > len(kept.get(key, "")):
            kept[key] = name
    return sorted(kept.values(), key=lambda n: [int(x) if x.isdecimal() else x for x in re.split(r"(\d{1,9})", n)])
