"""NCCL's RAS report (`ncclras`, NCCL 2.24 and newer), as a file or in a log: which ranks have launched how much.

Written by NCCL's src/ras/client_support.cc (documented in its user guide, "RAS"); text, or from 2.28 on JSON. Time:
none in the text, local wall clock in the JSON. Ranks are those of the communicator. The text lists by name whatever
set of ranks is small, be it ahead or behind; who lags is worked out here. Example:

#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import Stream, file_parser, parser
from nccl_forensics.model import Event, Evidence, Problem
from nccl_forensics.names import MOST_RANKS
from nccl_forensics.text.visible import visible

from ._blocks import may_read

LARGEST = 64 << 20
"""Bytes. 1,000 ranks in 80 communicators take about 30 MB of JSON."""
_NODE = r"GPUs? (?P<gpu>[\d,]{1,40}) managed by process (?P<pid>\d{1,9}) on node (?P<node>\S{1,100})"
COMM = re.compile(r"^\s*#(?P<group>\d{1,6})-\d{1,6} \((?P<hash>[0-9a-f]{8,20})\) (?P<what>\w+)")
GROUP = re.compile(
    r"^\s+(\d{1,6})\s+\d{1,6}\s+[\d-]+\s+[\d-]+\s+(\d{1,7})(?:-(\d{1,7}))?\s+\d{1,8}\s+[A-Z,]+\s+[A-Z,]+\s*$"
)
COUNTS = re.compile(r"ranks have different (?P<op>\w{1,30}) operation counts")
MANY = re.compile(
    r"^\s*(?P<count>\d{1,7}) ranks? ha(?:ve|s) (?:launched up to operation (?P<at>\d{1,18})|not launched any)"
)
ALONE = re.compile(
    r"^\s*Rank (?P<rank>\d{1,10}) has (?:launched up to operation (?P<at>\d{1,18})|not launched any operations) -- "
    + _NODE
)
LISTED = re.compile(rf"^\s*Rank (?P<rank>\d{{1,10}}) -- {_NODE}")
MISSING = re.compile(r"^\s*The missing ranks?: (?P<ranks>[\d, -]{1,4000})$")
LOST = re.compile(r"^\s*Process (?P<pid>\d{1,9}) on node (?P<node>\S{1,100}) managing GPUs? (?P<gpu>[\d,]{1,40})")
ADDRESS = re.compile(r"[\d.]+|[\da-fA-F:]*:[\da-fA-F:.]*")
"""An IP address: it does not say which of the hosts known by name it is."""
SECTIONS = frozenset({"DEAD", "INCOMPLETE", "TIMEOUT", "Errors", "Warnings"})
TOTAL = re.compile(r"^\s+\d{1,6}\s+[\d-]{1,9}\s+[\d-]{1,9}\s+\d{1,7}\s+(\d{1,7})\s*$")


def claims(head: bytes, name: str) -> bool:
    if head.lstrip()[:1] == b"{":
        return b'"communicators"' in head and b'"nccl_version"' in head
    return b"Job summary\n===========" in head and (b"Communicators..." in head or b"(total)" in head)


@file_parser(title="NCCL RAS report", claims=claims)
def ras(file: Stream) -> Iterator[Event | Problem]:
    """For each communicator and operation whose ranks are apart a `ras-apart`, for each lost process a `ras-lost`."""
    data = file.stream.read(LARGEST)
    text = data.decode("utf-8", "replace")
    if text.lstrip()[:1] == "{":
        yield from _json(text, file.path)
    else:
        yield from _text(enumerate(text.splitlines(), 1), file.path)


REACH = 2000
"""Lines of a log behind a report's head that are looked at. A judgement: a report lists only small sets of ranks."""
STARTS = "Job summary"
READ = "ras.read"
"""Key of `Window.state`: the last line of this file that a report reaches to."""


@parser(title="NCCL RAS report in a log", literals=[STARTS])
def ras_in_log(line: Line) -> Iterator[Event]:
    """The same for a report that stands in the job's log, where a script or a framework asked for it."""
    if line.text.strip() != STARTS or not may_read(line, "RAS reports"):
        return
    peeled, report = line.peeled, [line]
    for other in line.after(REACH):
        if (other.peeled.rank, other.peeled.host, other.peeled.pid) != (peeled.rank, peeled.host, peeled.pid):
            continue
        if other.text.strip() == STARTS:
            break
        report.append(other)
    found = list(_text(((x.number, x.text) for x in report), line.path))
    if any(x.text.startswith("Communicators...") for x in report):
        line.window.state[READ] = report[-1].number
        for event in found:
            if isinstance(event, Event):
                yield replace(event, details={**event.details, "report": line.number}, stamp=line.stamp)


def in_report(line: Line) -> bool:
    """Whether a whole report that has been read holds this line."""
    return line.number <= int(line.window.state.get(READ, 0))


@dataclass(frozen=True, slots=True)
class _Communicator:
    """One communicator of a report."""

    name: str
    size: int
    whole_job: bool

    def apart(
        self, at: Evidence, op: str, counts: Mapping[int, int], behind: tuple[int, ...] | None
    ) -> Event | Problem:
        """`counts`: operation → how many ranks stand there; `behind`: those that have launched fewest, if named."""
        size, total = self.size, sum(counts.values())
        if size > MOST_RANKS or total > size or (behind and max(behind) >= size):
            says = f"a RAS report whose counts make no sense for a communicator of {size} ranks"
            return Problem(says=says, source=at.source)
        low, high = min(counts), max(counts)
        return Event(
            kind="ras-apart",
            role="symptom",
            severity="warning",
            evidence=at,
            details={
                "comm": self.name,
                "comm_ranks": size,
                "whole_job": self.whole_job,
                "op": op,
                "fewest": low,
                "most": high,
                "ranks_at_fewest": counts[low],
                "behind": behind or (),
            },
        )


def _lost(
    at: Evidence, *, dead: bool, host: str | None = None, pid: int | None = None, ranks: tuple[int, ...] = ()
) -> Event:
    """A process that does not answer; `dead`: NCCL has given it up."""
    return Event(
        kind="ras-lost",
        role="symptom",
        severity="error",
        evidence=at,
        host=host if host and not ADDRESS.fullmatch(host) else None,
        pid=pid,
        details={"dead": dead, "lost": ranks, "node": host},
    )


# --- text -------------------------------------------------------------------------------------------------------------


def _text(lines: Iterable[tuple[int, str]], path: str) -> Iterator[Event | Problem]:
    report = _Report(path)
    for number, line in lines:
        yield from report.line(number, line)
    yield from report.close()


@dataclass(slots=True)
class _Report:
    """What was read so far of a report in text."""

    path: str
    sizes: dict[str, int] = field(default_factory=dict)
    """Number of a group of communicators → ranks in each of them."""
    world: int | None = None
    """Ranks of the job."""
    comm: str = ""
    section: str = ""
    """'MISMATCH', 'DEAD' …"""
    op: str = ""
    """The operation of which the ranks of `comm` are apart, while they are told."""
    began: int = 0
    said: str = ""
    at: int = 0
    """Up to which operation the ranks have launched that the newest line told of."""
    counts: dict[int, int] = field(default_factory=dict)
    named: dict[int, list[int]] = field(default_factory=dict)
    """The same, by their number and by name."""

    def line(self, number: int, line: str) -> Iterator[Event | Problem]:
        if found := GROUP.match(line):
            self.sizes[found[1]] = int(found[3] or found[2])
        elif found := TOTAL.match(line):
            self.world = int(found[1])
        elif found := COMM.match(line):
            yield from self.close()
            self.comm, self.section = f"{found['group']}-{found['hash']}", found["what"]
        elif found := COUNTS.search(line):
            yield from self.close()
            self.op, self.began, self.said = found["op"], number, line.strip()
            self.counts, self.named = {}, {}
        elif self.op and self._counted(line):
            pass
        elif found := LOST.match(line):
            yield from self.close()
            yield _lost(self._evidence(number, line), dead=self.dead, host=found["node"], pid=int(found["pid"]))
        elif found := MISSING.match(line):
            yield from self._missing(number, line, found["ranks"])
        elif line.strip() in SECTIONS:
            yield from self.close()
            self.section = line.strip()

    @property
    def dead(self) -> bool:
        return self.section == "DEAD"

    @property
    def size(self) -> int | None:
        """Ranks of the communicator of which the report speaks."""
        return self.sizes.get(self.comm.partition("-")[0])

    def _evidence(self, number: int, said: str) -> Evidence:
        return Evidence(source=self.path, line=number, text=visible(said.strip()))

    def _counted(self, line: str) -> bool:
        """Whether the line tells how far some ranks are with the operation."""
        if found := MANY.match(line):
            self._launched(found["at"], int(found["count"]), line)
        elif found := ALONE.match(line):
            self._launched(found["at"], 1, line)
            self.named.setdefault(self.at, []).append(int(found["rank"]))
        elif found := LISTED.match(line):
            self.named.setdefault(self.at, []).append(int(found["rank"]))
        return found is not None

    def _launched(self, operation: str | None, ranks: int, line: str) -> None:
        self.at = int(operation or 0)
        self.counts[self.at] = self.counts.get(self.at, 0) + ranks
        self.said += "; " + line.strip()

    def close(self) -> Iterator[Event | Problem]:
        """The mismatch that was told, now that all of its ranks were."""
        op, size = self.op, self.size
        self.op = ""
        if not op or len(self.counts) < 2 or size is None:
            return
        low = min(self.counts)
        behind = tuple(sorted(self.named.get(low, ())))
        at = Evidence(source=self.path, line=self.began, text=visible(self.said)[:2000])
        whole = behind if len(behind) == self.counts[low] else None
        yield _Communicator(self.comm, size, size == self.world).apart(at, op, self.counts, whole)

    def _missing(self, number: int, line: str, written: str) -> Iterator[Event]:
        """Ranks of the job of which NCCL knows nothing; those of a part of it name no rank of the job."""
        size = self.size
        ranks = tuple(int(x) for x in re.findall(r"\d{1,7}", written))
        if ranks and size is not None and size == self.world and max(ranks) < size:
            yield _lost(self._evidence(number, line), dead=self.dead, ranks=ranks)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json(text: str, path: str) -> Iterator[Event | Problem]:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        yield Problem(says="a RAS report in JSON that is cut or malformed", source=path)
        return
    comms = [x for x in _list(data, "communicators") if isinstance(x, dict)]
    # One process for each rank: then the communicator of as many as there are processes is that of all.
    world = len(_processes(comms))
    for comm in comms:
        size = _int(comm, "size")
        ranks = {r: x for x in _list(comm, "ranks") if (r := _int(x, "rank")) is not None}
        if size is None or not ranks or len(ranks) > size:
            yield Problem(says="a RAS communicator without a size that fits its ranks was left out", source=path)
            continue
        communicator = _Communicator(_text_of(comm, "hash") or "", size, size == world)
        yield from _mismatches(communicator, ranks, path)
        yield from _missing_ranks(communicator, _list(comm, "missing_ranks"), path)


def _processes(comms: Iterable[Any]) -> set[tuple[str | None, int | None]]:
    """(host, pid) of all ranks, those that are missing among them."""
    ranks = (x for comm in comms for key in ("ranks", "missing_ranks") for x in _list(comm, key))
    return {(_text_of(x, "host"), _int(x, "pid")) for x in ranks}


def _mismatches(comm: _Communicator, ranks: Mapping[int, Any], path: str) -> Iterator[Event | Problem]:
    """For each operation that not all ranks have launched equally often."""
    launched = {rank: _counts(told) for rank, told in ranks.items()}
    for op in sorted({op for counts in launched.values() for op in counts}):
        stands = {rank: counts[op] for rank, counts in launched.items() if op in counts}
        counts = dict(Counter(stands.values()))
        if len(counts) < 2:
            continue
        low = min(counts)
        behind = tuple(sorted(rank for rank, count in stands.items() if count == low))
        told = ", ".join(f"{n} ranks at {count}" for count, n in sorted(counts.items())[:8])
        said = f"communicator {comm.name}: {op} counts differ: {told}"
        yield comm.apart(Evidence(source=path, line=None, text=visible(said)[:2000]), op, counts, behind)


def _missing_ranks(comm: _Communicator, missing: Iterable[Any], path: str) -> Iterator[Event]:
    """Those that do not answer or that NCCL has given up; others may only have left in order."""
    for one in missing:
        status = one.get("status") if isinstance(one, dict) else None
        status = status if isinstance(status, dict) else {}
        dead = status.get("considered_dead") is True
        if not dead and status.get("unresponsive") is not True:
            continue
        rank, host, pid = _int(one, "rank"), _text_of(one, "host"), _int(one, "pid")
        said = f"communicator {comm.name}: rank {rank} is missing ({host}, process {pid})"
        known = (rank,) if rank is not None and comm.whole_job and rank < comm.size else ()
        yield _lost(
            Evidence(source=path, line=None, text=visible(said.strip())), dead=dead, host=host, pid=pid, ranks=known
        )


def _list(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found[:MOST_RANKS] if isinstance(found, list) else []


def _int(value: Any, key: str) -> int | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if type(found) is int and 0 <= found < 1 << 53 else None


def _text_of(value: Any, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found[:200] if isinstance(found, str) and found else None


def _counts(rank: Any) -> dict[str, int]:
    counts = rank.get("collective_counts") if isinstance(rank, dict) else None
    return {k: v for k, v in counts.items() if type(v) is int and 0 <= v < 1 << 62} if isinstance(counts, dict) else {}
