"""That a clock was set: when, by how much, and how that is told."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_forensics.text.moments import SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A clock that was set, as far as its bounds show."""

    clock: str | None
    """None: one of several, and nothing tells which."""
    after_ns: int
    before_ns: int
    """It happened between these, on the reference clock."""
    by_ns: int
    """How far it jumped, about."""
    moment_known: bool = True
    """False: it is told on a clock whose zone nothing proves, and the moments reach over all zones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """That a clock was set, as something other than its meetings tells: the time service, or a watchdog's wait."""

    clock: str
    before_ns: int
    """What it read before it was set."""
    after_ns: int
    """What it read once it was."""
    by_ns: int
    bar_ns: int


def same_step(a: Step, b: Step) -> bool:
    """Is it one and the same, told by the time service and shown by the collectives?"""
    near = abs(a.by_ns - b.by_ns) <= max(SECOND, abs(a.by_ns) // 10)
    reach = abs(a.by_ns) + SECOND
    return near and b.clock in (a.clock, None) and b.after_ns - reach <= a.before_ns <= b.before_ns + reach
