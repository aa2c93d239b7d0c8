"""The frozen rows of the page, ready to print: templates only place them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nccl_forensics.show import pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    """A list that was cut for the page."""

    rows: tuple[Any, ...]
    more: int


def some(rows: Iterable[Any], limit: int) -> Some:
    whole = tuple(rows)
    return Some(rows=whole[:limit], more=max(0, len(whole) - limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A line of a log that a step rests on."""

    anchor: str
    when: str
    error: str
    place: str
    """host, rank, GPU as far as known."""
    where: str
    """file:line"""
    file: str
    """Anchor of the file's row under Inputs; '' where it has none."""
    sha256: str
    """The first digits of the file's hash; '' where it was not taken."""
    before: tuple[str, ...]
    text: str | None
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One link of the evidence chain."""

    says: str
    lines: tuple[Raw, ...]
    more: int
    """Lines that say the same and are left off."""
    inference: bool
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One key event, in the timeline's table."""

    number: int
    anchor: str
    href: str
    when: str
    error: str
    basis: str
    host: str
    who: str
    role: str
    what: str
    means: str
    where: str
    order: str
    """Which earlier one it cannot be ordered against, if any."""
    drawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    picture: pictures.Timeline | None
    ticks: tuple[Tick, ...]
    day: str
    rows: tuple[Occurrence, ...]
    untimed: Some
    more: int
    outside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    rank: int
    state: str
    letter: str
    reporter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCells:
    name: str
    stage: str
    """Heading of the first host of a pipeline's stage; '' for the others."""
    cells: tuple[Cell, ...]
    counts: tuple[tuple[str, str, int], ...]
    """(state, letter, how many), where there is no cell for each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    rank: int
    anchor: str
    state: str
    letter: str
    word: str
    host: str
    gpu: str
    pci: str
    local: str
    pid: str
    enqueued: str
    started: str
    completed: str
    exit: str
    waits: str
    stage: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    total: int
    legend: tuple[tuple[str, str, str, int], ...]
    """(state, letter, word, how many)"""
    hosts: tuple[HostCells, ...]
    compressed: bool
    spoken: str
    """The map in words."""
    table: Some
    notes: bool
    stages: bool
    """A group tells which rank is in which stage of a pipeline."""
    reporters: bool
    """Some cell is marked as a reporter's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    name: str
    description: str
    backend: str
    op: str
    seq: str
    timeout: str
    expected: str
    arrived: str
    started: str
    completed: str
    missing: str
    no_data: str
    bar: tuple[pictures.Share, ...]
    spoken: str
    """The bar in words."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    picture: pictures.Graph
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    do: str
    because: str
    command: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    title: str
    cause: str
    who: str
    confidence: str
    why_not: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedRow:
    who: str
    why: str
    where: str
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentView:
    id: int
    anchor: str
    status: str
    status_word: str
    headline: str
    start: str
    """Which start of which job; empty where there was one."""
    sure: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    first: ActionRow | None
    actions: tuple[ActionRow, ...]
    not_to_blame: tuple[tuple[str, str], ...]
    not_to_blame_more: int
    nobody_cleared: str
    unknown: tuple[str, ...]
    cannot_exclude: str
    onset: str
    steps: Some
    weights: bool
    timeline: TimelineView
    ranks: RanksView
    groups: Some
    edges: Some
    graph: GraphView | None
    alternatives: tuple[Alternative, ...]
    cleared: Some
    contributing: Some


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    host: str
    index: str
    pci: str
    rank: str
    model: str
    uuid: str
    serial: str
    seen: tuple[str, ...]
    """What was logged about it: 'Xid 79: 1 ×, 2026-04-22 03:14:17'."""
    details: tuple[tuple[str, str], ...]
    trends: tuple[tuple[str, pictures.Spark], ...]
    """(in words, the line) of what was read of it more than once."""
    suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    when: str
    error: str
    host: str
    rank: str
    gpu: str
    role: str
    severity: str
    what: str
    where: str
    text: str
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputView:
    anchor: str
    path: str
    format: str
    status: str
    reason: str
    size: str
    events: str
    host: str
    rank: str
    first: str
    last: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockView:
    clock: str
    host: str
    offset: str
    error: str
    basis: str
    note: str
    reach: pictures.Reach | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesView:
    says: str
    offenders: tuple[str, ...]
    failures: tuple[tuple[str, str, str, str, str], ...]
    """(when, host, GPU, what, where), the newest first."""
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    readable: bool
    version: str
    command: str
    zone: str
    redacted: bool
    aliases: str
    coverage: str
    digest: str
    base: str
    incidents: tuple[IncidentView, ...]
    incidents_more: int
    ranks: RanksView | None
    gpus: Some
    gpus_details: bool
    gpus_trends: bool
    rates: RatesView | None
    clocks: Some
    clocks_scale: str
    """How many seconds to either side the clocks' drawing shows; '' for no drawing."""
    inputs: Some
    inputs_summary: str
    problems: Some
    events: Some
    events_total: int
    hosts_total: int
