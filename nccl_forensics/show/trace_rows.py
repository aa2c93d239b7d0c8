"""A drawing in the JSON object form of Chrome's Trace Event Format (Catapult project).

Phases: M (names), X (slices), i (instants), s/t/f (arrows). A process is a host; a thread is a rank, or what has no
rank on that host: a GPU, the system. Times are µs since `otherData.origin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.words import NO_HOST, Doc, clean, kind_words
from nccl_forensics.show.slices import OVERVIEW, Drawing, Lane, Slice
from nccl_forensics.text.moments import rfc3339

_ORDER = {"i": 0, "X": 1, "s": 2, "t": 2, "f": 2}
"""Rows of one time: an arrow needs its slice before it."""
TraceRow = dict[str, Any]
"""One trace event, JSON-ready."""


def rows_of(drawing: Drawing, shown: Sequence[tuple[int, Doc]], lookup: Lookup, origin: int) -> list[TraceRow]:
    """Names of processes and threads, then all that has a time, in its order."""
    depth = _spread(drawing.slices)
    used = {(s.lane, depth[s]) for s in drawing.slices} | {(lookup.place(e), 0) for _, e in shown}
    names, threads = _named(used, rfc3339(origin * 1000))
    layers = _Layers(origin, depth, threads)
    timed = [
        *(layers.instant(at, event, lookup) for at, event in shown),
        *(layers.stretch(s) for s in drawing.slices),
        *layers.flows([("waits for", pair) for pair in drawing.waits] + drawing.arrows),
    ]
    # Of slices that begin together the longer is the outer one.
    return names + sorted(timed, key=lambda r: (r["ts"], _ORDER[r["ph"]], -r.get("dur", 0)))


Thread = tuple[Lane, int]
"""(lane, which of its threads)"""


def _named(used: set[Thread], origin: str | None) -> tuple[list[TraceRow], dict[Thread, dict[str, int]]]:
    """(the rows that name processes and threads; thread → its ids)"""
    rows: list[TraceRow] = []
    threads: dict[Thread, dict[str, int]] = {}
    hosts = sorted({host for (host, _), _ in used}, key=lambda h: (h != OVERVIEW, h == NO_HOST, h))
    for pid, host in enumerate(hosts, 1):
        label = f"{host} (0 is {origin})" if host == OVERVIEW else host
        rows += _name("process", label, pid, {"pid": pid, "tid": 0})
        own = sorted((key for key in used if key[0][0] == host), key=_thread_order)
        for n, key in enumerate(own, 1):
            (_, who), depth = key
            threads[key] = {"pid": pid, "tid": pid * THREADS + n}
            rows += _name("thread", f"{who} ({depth + 1})" if depth else who, n, threads[key])
    return rows, threads


@dataclass(frozen=True, slots=True)
class _Layers:
    """Where and when each thing lies in the trace."""

    origin: int
    depth: Mapping[Slice, int]
    threads: Mapping[Thread, Mapping[str, int]]

    def _thread(self, s: Slice) -> Mapping[str, int]:
        return self.threads[s.lane, self.depth[s]]

    def instant(self, at: int, event: Doc, lookup: Lookup) -> TraceRow:
        about = {k: event.get(k) for k in ("time", "time_uncertainty_s", "time_basis", "role", "severity", "gpu_pci")}
        about |= {"where": lookup.where_of(event), "text": clean(event.get("text") or "")}
        row = {"ph": "i", "s": "t", "name": kind_words(event), "cat": f"event,{event['role']}", "ts": at - self.origin}
        args = {k: v for k, v in about.items() if v is not None}
        return {**row, **self.threads[lookup.place(event), 0], "args": args}

    def stretch(self, s: Slice) -> TraceRow:
        row = {"ph": "X", "name": s.name, "cat": s.category, "ts": s.start - self.origin, "dur": s.end - s.start}
        return {**row, **self._thread(s), "args": dict(s.args)}

    def flows(self, arrows: Sequence[tuple[str, tuple[Slice, ...]]]) -> Iterator[TraceRow]:
        for n, (name, way) in enumerate(arrows, 1):
            for step, s in enumerate(way):
                phase = {"ph": "s"} if step == 0 else {"ph": "f", "bp": "e"} if s is way[-1] else {"ph": "t", "bp": "e"}
                row = {**phase, "name": name, "cat": "flow", "id": n, "ts": s.start - self.origin}
                yield {**row, **self._thread(s)}


THREADS = 1_000_000
"""Thread ids of one process: ids of two processes must differ, too."""


def _name(what: str, name: str, order: int, where: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": f"{what}_name", **where, "args": {"name": name}},
        {"ph": "M", "name": f"{what}_sort_index", **where, "args": {"sort_index": order}},
    ]


def _thread_order(key: tuple[Lane, int]) -> tuple[bool, int, str, int]:
    """Numbered lanes (ranks, incidents) first, by number."""
    (_, name), depth = key
    number = name.partition(" ")[2]
    return not number.isdecimal(), int(number) if number.isdecimal() else 0, name, depth


def _spread(slices: Sequence[Slice]) -> dict[Slice, int]:
    """On which thread of its lane each slice lies, from 0: on one thread they must lie in one another or apart."""
    depth: dict[Slice, int] = {}
    open_: dict[Lane, list[list[int]]] = {}
    order = {s: n for n, s in enumerate(slices)}
    for s in sorted(slices, key=lambda s: (s.start, -s.end, order[s])):
        threads = open_.setdefault(s.lane, [])
        for ends in threads:
            while ends and ends[-1] <= s.start:
                ends.pop()
        depth[s] = next((n for n, ends in enumerate(threads) if not ends or s.end <= ends[-1]), len(threads))
        if depth[s] == len(threads):
            threads.append([])
        threads[depth[s]].append(s.end)
    return depth
