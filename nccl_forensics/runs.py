"""Logs that hold several runs one after the other: the last one is what the ticket is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise

from nccl_forensics.model import Event, Problem
from nccl_forensics.rules import DETECTED, JOB_KINDS, SECOND
from nccl_forensics.words import is_dated

APART_S = 6 * 3600
"""Failures further apart than this, with work done in between, belong to two runs: attempts of one run follow each
other within minutes. Our judgement."""

ALONE_S = 24 * 3600
"""Failures further apart than this are of two runs even if no line of work stands between them. Our judgement."""


def last_run(events: Sequence[Event]) -> tuple[tuple[Event, ...], tuple[Problem, ...]]:
    """The events without those that a job logged in an earlier run, and a word on what was left aside.

    What hosts logged stays: its time speaks for itself. `events` are aligned. A line without a time belongs to the
    run of the lines after it in its file.
    """
    begin = _begin(events)
    if begin is None:
        return tuple(events), ()
    cut: dict[str, int] = {}  # source → its first line of the last run
    for event in events:
        if event.time_ns is not None and event.time_ns >= begin and _of_a_job(event):
            line = event.evidence.line or 0
            cut[event.evidence.source] = min(line, cut.get(event.evidence.source, line))
    before = {e.evidence.source for e in events if e.time_ns is not None and e.time_ns < begin and _of_a_job(e)}

    def earlier(event: Event) -> bool:
        source = event.evidence.source
        if not _of_a_job(event) or source not in before:
            return False
        if event.time_ns is not None:
            return event.time_ns < begin
        return source not in cut or (event.evidence.line or 0) < cut[source]

    left = [e for e in events if earlier(e)]
    failed = [e for e in left if e.kind in DETECTED]
    ended = max((e.time_ns for e in failed if e.time_ns is not None), default=begin)
    first = failed[0] if failed else left[0]
    said = Problem(
        says=f"{len(left)} lines of an earlier run, which failed at "
        f"{datetime.fromtimestamp(ended // SECOND, timezone.utc):%Y-%m-%d %H:%M:%S} UTC, are left out of the verdict: "
        f"it is about the last run. Give the earlier lines (line {first.evidence.line} on) alone to analyze them.",
        source=first.evidence.source,
    )
    gone = {id(e) for e in left}
    return tuple(e for e in events if id(e) not in gone), (said,)


def _of_a_job(event: Event) -> bool:
    return event.kind in JOB_KINDS or event.kind in ("progress", "nccl-init", "rank-identity")


def _begin(events: Sequence[Event]) -> int | None:
    """When the work of the last run is first seen, if an earlier run failed long before. On the reference clock.

    Gaps count within one clock only: between two, hours can be zones that nobody wrote down.
    """
    by_clock: dict[str | None, list[int]] = defaultdict(list)
    for event in events:
        if event.kind in DETECTED and event.time_ns is not None and is_dated(event.time_ns):
            by_clock[event.clock].append(event.time_ns)
    gaps = [
        (old, new, clock)
        for clock, failed in by_clock.items()
        for old, new in pairwise(sorted(failed))
        if new - old > APART_S * SECOND
    ]
    if not gaps:
        return None
    old, new, clock = max(gaps, key=lambda x: (x[1], x[0]))
    work = [
        e.time_ns
        for e in events
        if e.time_ns is not None
        and old < e.time_ns < new
        and (e.kind in ("nccl-init", "rank-identity") or (e.kind == "progress" and e.details.get("step") is not None))
    ]
    if work:
        return min(work)
    if new - old < ALONE_S * SECOND:
        return None
    waited = [
        e.details.get("waited_ms")
        for e in events
        if e.kind == "watchdog-timeout" and e.time_ns == new and e.clock == clock
    ]
    begun = new - max((w for w in waited if isinstance(w, int)), default=0) * 1_000_000
    return begun if begun > old else None


def with_attempts(events: Sequence[Event]) -> list[Event]:
    """The events with `attempt` filled in from torchrun's restarts in the same file, in the order of its lines.

    A file that tells of no restart is left alone. `restart` closes an attempt, `rendezvous` says which one begins.
    """
    marks: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        line = event.evidence.line
        if event.attempt is None or line is None:
            continue
        if event.kind == "rendezvous":
            marks[event.evidence.source].append((line, event.attempt))
        elif event.kind == "restart":
            marks[event.evidence.source].append((line + 1, event.attempt + 1))
    for rows in marks.values():
        rows.sort()
    out = []
    for event in events:
        rows = marks.get(event.evidence.source, [])
        line = event.evidence.line
        if event.attempt is None and rows and line is not None:
            begun = [attempt for start, attempt in rows if start <= line]
            event = replace(event, attempt=begun[-1] if begun else max(rows[0][1] - 1, 0))
        out.append(event)
    return out
