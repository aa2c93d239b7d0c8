"""The training steps that one writer tells, and whether they begin again."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_forensics.model import Event
from nccl_forensics.text.moments import SECOND

SETTLED_S = 2
"""Steps that rise for so long by their own times are made then; late lines come out of a buffer at once. Our
judgement."""


@dataclass(slots=True)
class Climb:
    """The steps of one writer."""

    highest: int
    ahead: int = 1
    """Of the one before it. A writer whose lines are still to come may tell every step, and be so much further."""
    newest_ns: int | None = None
    """The latest time that one of them states."""

    def add(self, step: int, stated_ns: int | None) -> None:
        if step > self.highest:
            self.ahead, self.highest = step - self.highest, step
        if stated_ns is not None:
            self.newest_ns = max(stated_ns, self.newest_ns or stated_ns)


@dataclass(slots=True)
class Back:
    """Steps of a writer that lie behind its highest, after the end of a process: of a new start, or lines come late."""

    first: Event
    climbed: Climb
    """Before them."""
    step: int
    """The highest of those that rise."""
    since_ns: int | None = None
    """From when on they have risen, by the times they state."""

    def goes_on(self, step: int, stated_ns: int | None, slack: int) -> bool:
        """Do they pass the old ones, or rise for a while after them?"""
        old = self.climbed
        at = stated_ns if stated_ns is not None and stated_ns > (old.newest_ns or 0) else None
        rises = step > self.step
        if at is None or self.since_ns is None or step < self.step - slack:
            self.since_ns, self.step = at, step
        self.step = max(self.step, step)
        lasts = at is not None and self.since_ns is not None and at - self.since_ns >= SETTLED_S * SECOND
        return step > old.highest + old.ahead or (lasts and rises)
