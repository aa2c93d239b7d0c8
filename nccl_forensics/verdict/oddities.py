"""Lines that look like errors and that no parser knows, the most telling first.

What only one rank or host wrote, what was new just before the others began to wait, and what a good run of the same
job does not have is odd (as L4 ranks lines, Jiang et al., FSE 2025). Such a line points at whoever wrote it, and says
no more.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.lines.alarms import masked
from nccl_forensics.model import Event, Incident, InputRow
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND, is_dated

FEW = 3
"""Of fewer writers it is no wonder that only one wrote a line."""
BEFORE_S, AFTER_S = 600, 60
"""How long before and after the others began to wait a new line is telling. Our judgement."""
ALONE, NEW, GRAVE, RARE = 2.0, 1.5, 1.0, 0.5
"""What each adds to a line's place in the list. Our judgement."""
OF_THE_JOBS_HARDWARE = re.compile(
    r"nvidia|nvrm|nvlink|nvswitch|amdgpu|\bgpu|cuda|\bxid|\bdrm\b|pcie|mlx\d|infiniband|\bib\d|\befa|bnxt|nccl|rccl|\brdma",
    re.IGNORECASE,
)
"""What a training job uses; of what else a host's log complains, a laptop's does at every boot."""
OFTEN = 100
"""A line that was written so often was not new when the job stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity:
    """One wording."""

    first: Event
    """Its first line, by time where that is known."""
    count: int
    """How many lines."""
    files: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    why: tuple[str, ...]
    """What is odd about it."""
    weight: float
    """By which it is placed."""
    telling: bool
    """It may be why a job failed: a job's own line, a grave one, or one about what jobs use."""


def oddities(
    alarms: Iterable[Event], rows: Sequence[InputRow], incidents: Sequence[Incident], good: Collection[str] = ()
) -> list[Oddity]:
    """All wordings, the most telling first. `good`: the wordings of a good run, which are none."""
    by_wording: dict[str, list[Event]] = defaultdict(list)
    for alarm in alarms:
        wording = masked(alarm.evidence.text)
        if wording not in good:
            by_wording[wording].append(alarm)
    writers = _writers(rows)
    onsets = [i.onset_ns for i in incidents if i.onset_ns is not None]
    of_hosts = {row.path for row in rows if row.format in HOST_FORMATS}
    found = [_oddity(inside, writers, onsets, of_hosts) for inside in by_wording.values()]
    return sorted(found, key=_place)


def wordings(alarms: Iterable[Event]) -> frozenset[str]:
    """What these lines say, without their numbers."""
    return frozenset(masked(alarm.evidence.text) for alarm in alarms)


def _place(odd: Oddity) -> tuple[bool, float, str, int]:
    at = odd.first.evidence
    return not odd.telling, -odd.weight, at.source, at.line or 0


def _writers(rows: Sequence[InputRow]) -> frozenset[str]:
    """Who wrote the files."""
    return frozenset(_writer(row.rank, row.host, row.path) for row in rows if row.status in ("read", "partial"))


def _writer(rank: int | None, host: str | None, path: str) -> str:
    """The rank, the host, or the file itself."""
    if rank is not None:
        return f"rank {rank}"
    return short(host) if host else path


def _oddity(
    inside: Sequence[Event], writers: frozenset[str], onsets: Sequence[int], of_hosts: Collection[str]
) -> Oddity:
    timed = [e for e in inside if e.time_ns is not None]
    first = min(timed, key=lambda e: e.time_ns or 0) if timed else inside[0]
    count = sum(e.repeats for e in inside)
    ranks = tuple(sorted({e.rank for e in inside if e.rank is not None}))
    hosts = tuple(sorted({short(e.host) for e in inside if e.host}))
    why: list[str] = []
    weight = GRAVE if any(e.severity == "critical" for e in inside) else 0.0
    weight += RARE if count <= FEW else 0.0
    wrote = {_writer(e.rank, e.host, e.evidence.source) for e in inside}
    if len(wrote) == 1 and len(writers) + (not wrote <= writers) >= FEW:
        weight += ALONE
        why.append(_only(first, ranks, hosts))
    if count < OFTEN and (gap_s := _just_before(first, onsets)) is not None:
        weight += NEW
        why.append(
            say("first {gap} before the others began to wait", gap=phrases.duration(gap_s))
            if gap_s > 0
            else say("first {gap} after the others began to wait", gap=phrases.duration(-gap_s))
        )
    return Oddity(
        first=first,
        count=count,
        files=len({e.evidence.source for e in inside}),
        ranks=ranks,
        hosts=hosts,
        why=tuple(why),
        weight=weight,
        telling=first.severity == "critical"
        or first.evidence.source not in of_hosts
        or OF_THE_JOBS_HARDWARE.search(first.evidence.text) is not None,
    )


def _only(first: Event, ranks: Sequence[int], hosts: Sequence[str]) -> str:
    if ranks:
        return say("only {who} wrote it", who=phrases.ranks(ranks))
    if hosts:
        return say("only {who} wrote it", who=hosts[0])
    return say("only one file has it")


def _just_before(first: Event, onsets: Iterable[int]) -> float | None:
    """Seconds from its first line to the beginning of the wait, negative behind it; None where it is not near one."""
    if first.time_ns is None or not is_dated(first.time_ns):
        return None
    gaps = [(onset - first.time_ns) / SECOND for onset in onsets]
    return min((g for g in gaps if -AFTER_S <= g <= BEFORE_S), key=abs, default=None)
