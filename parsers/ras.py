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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
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
MANY = re.compile(r"^\s*(?P<count>\d{1,7}) ranks have (?:launched up to operation (?P<at>\d{1,18})|not launched any)")
ALONE = re.compile(
    r"^\s*Rank (?P<rank>\d{1,10}) has (?:launched up to operation (?P<at>\d{1,18})|not launched any operations) -- "
    + _NODE
)
LISTED = re.compile(rf"^\s*Rank (?P<rank>\d{{1,10}}) -- {_NODE}")
MISSING = re.compile(r"^\s*The missing ranks?: (?P<ranks>[\d, -]{1,4000})$")
LOST = re.compile(r"^\s*Process (?P<pid>\d{1,9}) on node (?P<node>\S{1,100}) managing GPUs? (?P<gpu>[\d,]{1,40})")
ADDRESS = re.compile(r"[\d.]+|[\da-fA-F:]*:[\da-fA-F:.]*")
"""An IP address: it does not say which of the hosts known by name it is."""
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


def _apart(
    path: str, line: int | None, said: str, comm: str, size: int, world: int | None, op: str,
    counts: Mapping[int, int], behind: tuple[int, ...] | None,
) -> Event | Problem:  # fmt: skip
    """`counts`: operation → how many ranks stand there; `behind`: those that have launched fewest, if named."""
    total = sum(counts.values())
    if size > MOST_RANKS or total > size or (behind and max(behind) >= size):
        return Problem(says=f"a RAS report whose counts make no sense for a communicator of {size} ranks", source=path)
    low, high = min(counts), max(counts)
    return Event(
        kind="ras-apart",
        role="symptom",
        severity="warning",
        evidence=Evidence(source=path, line=line, text=visible(said)[:2000]),
        details={
            "comm": comm, "comm_ranks": size, "whole_job": world is not None and size == world, "op": op,
            "fewest": low, "most": high, "ranks_at_fewest": counts[low], "behind": behind or (),
        },
    )  # fmt: skip


def _text(lines: Iterable[tuple[int, str]], path: str) -> Iterator[Event | Problem]:
    sizes: dict[str, int] = {}
    world: int | None = None
    comm, op, section = "", "", ""
    counts: dict[int, int] = {}
    named: dict[int, list[int]] = {}
    at, began, said = 0, 0, ""

    def done() -> Iterator[Event | Problem]:
        size = sizes.get(comm.partition("-")[0])
        if op and len(counts) > 1 and size is not None:
            low = min(counts)
            behind = tuple(sorted(named.get(low, ())))
            whole = behind if len(behind) == counts[low] else None
            yield _apart(path, began, said, comm, size, world, op, counts, whole)

    for number, line in lines:
        if found := GROUP.match(line):
            sizes[found[1]] = int(found[3] or found[2])
        elif found := TOTAL.match(line):
            world = int(found[1])
        elif found := COMM.match(line):
            yield from done()
            comm, op, counts, named = f"{found['group']}-{found['hash']}", "", {}, {}
            section = found["what"]
        elif found := COUNTS.search(line):
            yield from done()
            op, counts, named, began, said = found["op"], {}, {}, number, line.strip()
        elif op and (found := MANY.match(line)):
            at = int(found["at"] or 0)
            counts[at] = counts.get(at, 0) + int(found["count"])
            said += "; " + line.strip()
        elif op and (found := ALONE.match(line)):
            at = int(found["at"] or 0)
            counts[at] = counts.get(at, 0) + 1
            named.setdefault(at, []).append(int(found["rank"]))
            said += "; " + line.strip()
        elif op and (found := LISTED.match(line)):
            named.setdefault(at, []).append(int(found["rank"]))
        elif found := LOST.match(line):
            yield from done()
            op = ""
            dead = section == "DEAD"
            yield _lost(path, number, line, found["node"], int(found["pid"]), dead, None)
        elif found := MISSING.match(line):
            size = sizes.get(comm.partition("-")[0])
            ranks = tuple(int(x) for x in re.findall(r"\d{1,7}", found["ranks"]))
            if ranks and size is not None and size == world and max(ranks) < size:
                yield _lost(path, number, line, None, None, section == "DEAD", ranks)
        elif line.strip() in ("DEAD", "INCOMPLETE", "TIMEOUT", "Errors", "Warnings"):
            yield from done()
            op, section = "", line.strip()
    yield from done()


def _lost(
    path: str, line: int | None, said: str, host: str | None, pid: int | None, dead: bool, ranks: tuple[int, ...] | None
) -> Event:
    return Event(
        kind="ras-lost",
        role="symptom",
        severity="error",
        evidence=Evidence(source=path, line=line, text=visible(said.strip())),
        host=host if host and not ADDRESS.fullmatch(host) else None,
        pid=pid,
        details={"dead": dead, "lost": ranks or (), "node": host},
    )


def _json(text: str, path: str) -> Iterator[Event | Problem]:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        yield Problem(says="a RAS report in JSON that is cut or malformed", source=path)
        return
    comms = [x for x in _list(data, "communicators") if isinstance(x, dict)]
    pids = {
        (_text_of(r, "host"), _int(r, "pid"))
        for x in comms
        for key in ("ranks", "missing_ranks")
        for r in _list(x, key)
    }
    for comm in comms:
        size = _int(comm, "size")
        ranks = {r: x for x in _list(comm, "ranks") if (r := _int(x, "rank")) is not None}
        label, lost = _text_of(comm, "hash") or "", _list(comm, "missing_ranks")
        if size is None or not ranks or len(ranks) > size:
            yield Problem(says="a RAS communicator without a size that fits its ranks was left out", source=path)
            continue
        # One process for each rank: then the communicator of as many as there are processes is that of all.
        world = len(pids)
        for op in sorted({op for x in ranks.values() for op in _counts(x)}):
            stands = {r: c for r, x in ranks.items() if (c := _counts(x).get(op)) is not None}
            counts: dict[int, int] = {}
            for count in stands.values():
                counts[count] = counts.get(count, 0) + 1
            if len(counts) > 1:
                low = min(counts)
                behind = tuple(sorted(r for r, c in stands.items() if c == low))
                told = ", ".join(f"{n} ranks at {c}" for c, n in sorted(counts.items())[:8])
                said = f"communicator {label}: {op} counts differ: {told}"
                yield _apart(path, None, said, label, size, world, op, counts, behind)
        for one in lost:
            status = one.get("status") if isinstance(one, dict) else None
            status = status if isinstance(status, dict) else {}
            rank = _int(one, "rank")
            said = f"communicator {label}: rank {rank} is missing ({_text_of(one, 'host')}, process {_int(one, 'pid')})"
            if status.get("unresponsive") is True or status.get("considered_dead") is True:
                known = (rank,) if rank is not None and size == world and rank < size else None
                dead = status.get("considered_dead") is True
                yield _lost(path, None, said, _text_of(one, "host"), _int(one, "pid"), dead, known)


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
