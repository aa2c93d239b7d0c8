"""NCCL's Inspector, a profiler plugin: a line of JSON for each collective that a rank has completed.

Written by NVIDIA/nccl, plugins/profiler/inspector (2.28 and 2.29: ext-profiler/inspector), formats v4.0 to v4.2, one
file for each process, HOST-pidPID.log. Times: `dump_timestamp_us` is the epoch (UTC) of the host when the line was
written, up to a dump interval after the collective; `coll_exec_time_us` is how long the kernel ran. `coll_sn` counts
the collectives of one kind in one communicator, `rank` is the rank in it. v4.0 keeps only the newest of an interval,
later ones a ring that can overflow, so numbers may be missing in between. Example (one line):

{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.0",
"git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1748030377748202,"hostname":"node-1",
"pid":1639453},"coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,
"coll_exec_time_us":61974,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":277.2,"coll_busbw_gbs":485.1}}
"""

from __future__ import annotations

import json
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from nccl_forensics.lines.plugins import Stream, file_parser
from nccl_forensics.model import Event, Evidence, Problem, Stamp
from nccl_forensics.names import MOST_RANKS
from nccl_forensics.recorder.timed import KEPT, Timed
from nccl_forensics.text.phrases import count
from nccl_forensics.text.visible import visible

FIRST, LAST = 256 << 20, 64 << 20
"""Bytes that are read from the start and from the end of a file. A record has about 400."""
PIECE = 1 << 20
LONGEST = 1 << 16
"""Bytes of a record: with the trace of 64 channels it has 12,000."""
COMMUNICATORS = 20_000
"""Communicators and ranks of one file that are told apart."""
KINDS = 16
"""Kinds of collectives of one of them; NCCL has ten."""
MARK = b'"inspector_output_format_version"'
NAME = re.compile(r"\w{1,40}")


def claims(head: bytes, name: str) -> bool:
    return MARK in head and any(x in head for x in (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"'))


Key = tuple[str, int, int, str, int]
"""Communicator, rank in it, its size, host and process."""


Record = tuple[Key, int, "dict[str, Any] | None"]
"""Whose it is, when it was written (epoch, microseconds), what was completed; None: a send, a receive, counters."""


@dataclass(slots=True)
class _Member:
    """One process's rank in one communicator."""

    comm: str
    rank: int
    size: int
    host: str
    pid: int
    line: int = 0
    time_us: int = 0
    ops: dict[str, tuple[array[int], array[int]]] = field(default_factory=dict)
    """Kind → sequence numbers, rising, and how long each took in microseconds."""

    def add(self, perf: dict[str, Any]) -> bool:
        op, seq, took_us = perf.get("coll"), perf.get("coll_sn"), perf.get("coll_exec_time_us")
        if type(op) is not str or not NAME.fullmatch(op) or not _fits(seq) or not _fits(took_us):
            return False
        numbers = self.ops.get(op)
        if numbers is None:
            if len(self.ops) >= KINDS:
                return False
            numbers = self.ops[op] = array("q"), array("q")
        seqs, took = numbers
        if not seqs or seq > seqs[-1]:
            seqs.append(seq)
            took.append(took_us)
            if len(seqs) >= 2 * KEPT:
                del seqs[:KEPT], took[:KEPT]
        return True


def _fits(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 53


@dataclass(slots=True)
class _File:
    """What was read of one file."""

    members: dict[Key, _Member] = field(default_factory=dict)
    odd: int = 0
    """Whole lines that are no records."""
    left_out: int = 0
    """Records of more communicators and ranks than are told apart."""
    cut: bool = False
    """The last line is no whole record."""

    def read(self, lines: Iterable[tuple[int, bytes]]) -> None:
        for number, raw in lines:
            record = _record(raw)
            if record is not None:
                self._add(number, record)
            elif raw.endswith(b"\n"):
                self.odd += 1
            else:
                self.cut = True

    def _add(self, number: int, record: Record) -> None:
        key, time_us, perf = record
        member = self.members.get(key)
        if member is None:
            if len(self.members) >= COMMUNICATORS:
                self.left_out += 1
                return
            member = self.members[key] = _Member(*key)
        if perf is None or member.add(perf):
            member.line, member.time_us = number, max(member.time_us, time_us)
        else:
            self.odd += 1

    def problems(self) -> Iterator[str]:
        if self.cut:
            yield "the last record is cut: what this process completed after it is not known"
        if self.odd:
            verb = "is" if self.odd == 1 else "are"
            yield f"{count(self.odd, 'line')} that {verb} no record of NCCL's Inspector"
        if self.left_out:
            records = count(self.left_out, "record")
            yield f"{records} of more than {COMMUNICATORS:,} communicators and ranks were not read"


@file_parser(title="NCCL Inspector", claims=claims)
def inspector(file: Stream) -> Iterator[Event | Problem | Timed]:
    """For each rank in each communicator an `inspector-comm` with its newest numbers, and a `Timed` for each kind."""
    lines, read = _Lines(file), _File()
    read.read(lines)
    for says in read.problems():
        yield Problem(says=says, source=file.path)
    if lines.skipped_bytes:
        says = f"{lines.skipped_bytes:,} bytes between the first and the last records were not read"
        yield Problem(says=says, source=file.path)
    for member in filter(lambda x: x.line, read.members.values()):
        yield _event(member, file.path, read.cut)
        yield from _timed(member, file.path)


def _timed(member: _Member, path: str) -> Iterator[Timed]:
    comm, rank, size, host, pid = member.comm, member.rank, member.size, member.host, member.pid
    for op, (seqs, took) in member.ops.items():
        yield Timed(path, host, pid, comm, rank, size, op, seqs[-KEPT:], took[-KEPT:])


def _event(member: _Member, path: str, cut: bool) -> Event:
    told = ", ".join(f"{op} {seqs[-1]:,}" for op, (seqs, _) in member.ops.items())
    said = f"communicator {member.comm}, rank {member.rank} of {member.size}: newest completed {told or 'unknown'}"
    return Event(
        kind="inspector-comm",
        role="context",
        evidence=Evidence(source=path, line=member.line, text=visible(said)),
        stamp=Stamp(wall_ns=member.time_us * 1000, zone_s=0, resolution_ns=1000) if member.time_us else None,
        host=member.host,
        pid=member.pid,
        details={
            "comm": member.comm,
            "comm_rank": member.rank,
            "nranks": member.size,
            "ops": tuple(member.ops),
            "completed": tuple(seqs[-1] for seqs, _ in member.ops.values()),
            "cut": cut,
        },
    )


def _record(raw: bytes) -> Record | None:
    """The record in a line; None if it is none that makes sense."""
    if len(raw) > LONGEST:
        return None
    try:
        data = json.loads(raw)
        head, about = data["header"], data["metadata"]
        key = head["id"], head["rank"], head["n_ranks"], about["hostname"], about["pid"]
        time_us, perf = about["dump_timestamp_us"], data.get("coll_perf")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not _sound(key) or not _fits(time_us) or (perf is not None and type(perf) is not dict):
        return None
    return key, time_us, perf


def _sound(key: tuple[Any, ...]) -> TypeGuard[Key]:
    comm, rank, size, host, pid = key
    if not (type(comm) is str is type(host) and _fits(rank) and _fits(size) and _fits(pid)):
        return False
    return rank < size <= MOST_RANKS and len(comm) <= 64 and 0 < len(host) <= 255


class _Lines:
    """(number, line) of the file, as far as it is read; blank lines are passed over."""

    def __init__(self, file: Stream) -> None:
        self.file = file
        self.skipped_bytes = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number, rest = 0, b""
        for piece in self._pieces():
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()[-2 * LONGEST :]
            for line in lines:
                number += 1
                if line.strip():
                    yield number, line + b"\n"
        if rest.strip():
            yield number + 1, rest

    def _pieces(self) -> Iterator[bytes]:
        read, given = self.file.stream.read, 0
        last: deque[bytes] = deque(maxlen=LAST // PIECE)
        while piece := read(PIECE):
            if given < FIRST:
                given += len(piece)
                yield piece
                continue
            if len(last) == last.maxlen:
                self.skipped_bytes += len(last[0])
            last.append(piece)
        if self.skipped_bytes:
            yield b"\n"  # the line before ends nowhere, and the next begins in its middle
        yield from last
