"""The frozen rows of the page, ready to print: templates only place them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nccl_forensics.show import pictures, wait_graph
from nccl_forensics.show.page.tables import Table


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
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    picture: pictures.Timeline | None
    ticks: tuple[Tick, ...]
    day: str
    table: Table
    untimed: Some


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCell:
    """A rank in the map."""

    rank: int
    state: str
    letter: str
    reporter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCells:
    name: str
    stage: str
    """Heading of the first host of a pipeline's stage; '' for the others."""
    cells: tuple[MapCell, ...]
    counts: tuple[tuple[str, str, int], ...]
    """(state, letter, how many), where there is no cell for each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    total: int
    legend: tuple[tuple[str, str, str, int], ...]
    """(state, letter, word, how many)"""
    hosts: tuple[HostCells, ...]
    compressed: bool
    spoken: str
    """The map in words."""
    table: Table
    reporters: bool
    """Some cell is marked as a reporter's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    picture: wait_graph.Graph
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    do: str
    because: str
    command: str | None


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
    weights: Table | None
    """None: no step weighs anything."""
    timeline: TimelineView
    ranks: RanksView
    groups: Table
    edges: Some
    graph: GraphView | None
    alternatives: Table
    cleared: Table
    contributing: Some


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesView:
    says: str
    offenders: tuple[str, ...]
    failures: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmView:
    """A line that looks like an error and that nothing here understands."""

    text: str
    where: str
    count: int
    files: int
    why: str
    """What is odd about it; '' for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    readable: bool
    alarmed: bool
    """There is no incident, and yet nobody may say that nothing failed."""
    alarms: tuple[AlarmView, ...]
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
    gpus: Table
    rates: RatesView | None
    clocks: Table
    inputs: Table
    inputs_summary: str
    problems: Some
    events: Table
    events_total: int
    hosts_total: int
