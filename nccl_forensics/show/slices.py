"""What is drawn of incidents: stretches of time in lanes, and arrows between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Lane = tuple[str, str]
"""(host; rank, GPU or 'system'), named as in the report's timeline."""
OVERVIEW = "Incidents"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """A stretch of time in one lane; µs since 1970 on the reference clock."""

    lane: Lane
    start: int
    end: int
    name: str
    category: str
    args: Mapping[str, Any]


class Drawing:
    """Slices and arrows of all incidents."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.arrows: list[tuple[str, tuple[Slice, ...]]] = []
        """(name, slices from first to last in time)."""
        self.waits: list[tuple[Slice, Slice]] = []
        """(waiter, waited)."""
        self.undrawn = 0
        """Waits that have no arrow."""

    def add(self, lane: Lane, start: int, end: int, name: str, category: str, **args: Any) -> Slice:
        known = {k: v for k, v in args.items() if v is not None}
        self.slices.append(Slice(lane=lane, start=start, end=end, name=name, category=category, args=known))
        return self.slices[-1]
