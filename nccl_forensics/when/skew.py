"""How far clocks are off against each other: rigorous bounds, by difference constraints.

A *meeting* is anything that nobody leaves before everybody has entered it: a collective (enqueued, found complete), a
rendezvous, a communicator's set-up, a training step. If host i wrote `entered` and host j wrote `left` for the same
meeting, then entered_i - o_i <= left_j - o_j for the clocks' offsets o, whatever the network did in between. The
tightest such bound over all chains of meetings is a shortest path; a cycle of negative length means that no constant
offsets fit, so that a clock was set in between. Derivation: docs/clocks.md.

Times are ns on the clocks as read (zones taken off). Offsets: a clock's reading minus the reference clock's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_forensics.when.bounds import (
    SMALLEST_STEP_NS,
    Block,
    Bound,
    Floats,
    Meetings,
    busiest_clock,
    going_back,
    meetings_of,
    middles_of,
    solved,
    told_by,
    windows_of,
)
from nccl_forensics.when.jumps import Step, Told
from nccl_forensics.when.offsets import Cut, Offsets, Segment, after_cut, drift


def offsets(blocks: Sequence[Block], told: Sequence[Told] = ()) -> Offsets:
    """The offsets of all clocks that meet, against the one in the middle of the largest set that hangs together.

    `told`: clocks that were set; the reference is none of them if others are left, nor one that its own collectives
    show to go back.
    """
    used = [b for b in blocks if len(b.clocks) > 1 and b.entered.shape[1]]
    if not used:
        return Offsets()
    unsteady = {*(t.clock for t in told), *(c for b in used for c in going_back(b))}
    meetings = _AllMeetings.of(used, busiest_clock(used, unsteady))
    candidates = meetings.from_the_middle()
    if len(candidates) < 2:
        return Offsets()
    first = next((clock for clock in candidates if clock not in unsteady), candidates[0])
    found = meetings.against(first)
    unsteady |= {step.clock for step in found.steps if step.clock is not None}
    steady = next((clock for clock in candidates if clock not in unsteady), first)
    if steady != first:
        found = meetings.against(steady)
    cuts = found.unseen(told)
    return meetings.against(steady, cuts) if cuts else found


@dataclass(frozen=True, slots=True)
class _AllMeetings:
    """All meetings of all clocks, and about how far each clock is ahead of the busiest."""

    names: tuple[str, ...]
    """Of the clocks, by number."""
    blocks: tuple[Meetings, ...]
    base_ns: int
    """Moments count from here."""
    middles: Floats
    """nan: not bound on both sides."""

    @classmethod
    def of(cls, blocks: Sequence[Block], busiest: str) -> _AllMeetings:
        names = tuple(sorted({clock for b in blocks for clock in b.clocks}))
        number = {name: n for n, name in enumerate(names)}
        base_ns = min(b.base_ns for b in blocks)
        meetings = tuple(m for b in blocks if (m := meetings_of(b, number, base_ns, busiest)) is not None)
        bounds = solved(list(windows_of(meetings)), number[busiest], len(names)) if meetings else []
        return cls(names, meetings, base_ns, middles_of(bounds, len(names)))

    def from_the_middle(self) -> list[str]:
        """The clocks that are bound, those in the middle first: most are right, and one may be far off."""
        bound = np.nonzero(np.isfinite(self.middles))[0]
        by_offset = bound[np.argsort(self.middles[bound], kind="stable")]
        middle = (len(by_offset) - 1) // 2
        return [self.names[by_offset[n]] for n in sorted(range(len(by_offset)), key=lambda n: abs(n - middle))]

    def against(self, reference: str, cuts: Mapping[str, Cut] | None = None) -> Offsets:
        """The offsets against this clock. `cuts`: for a clock when it was set, where its meetings do not show it."""
        cuts = cuts or {}
        number = self.names.index(reference)
        blocks = [told_by(number, block, self.middles) for block in self.blocks]
        bounds = solved(list(windows_of(blocks, [cut.at for cut in cuts.values()])), number, len(self.names))
        segments = {
            name: _segments(bounds, blocks, n, cuts.get(name), self.base_ns) for n, name in enumerate(self.names)
        }
        tied = {name: own for name, own in segments.items() if own}
        return Offsets(reference, tied, _steps(tied, reference, self.base_ns), self.base_ns)


@dataclass(frozen=True, slots=True)
class _Knot:
    """What one window tells of one clock: its offset lies between `low` and `high` at a moment."""

    at: float
    low: float
    high: float
    first: float
    last: float
    """The meetings lay between these."""

    @property
    def is_whole(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What the knots so far allow of an offset, at the moment of the last one."""

    low: float = -np.inf
    high: float = np.inf
    at: float = 0.0

    def excludes(self, knot: _Knot) -> bool:
        grown = drift(knot.at - self.at)
        return knot.low > self.high + grown or knot.high < self.low - grown

    def narrowed(self, knot: _Knot) -> _Allowed | None:
        """By one more; None: nothing fits them all, so that the clock was set in between."""
        grown = drift(knot.at - self.at)
        low, high = max(self.low - grown, knot.low), min(self.high + grown, knot.high)
        if low > high + SMALLEST_STEP_NS:
            return None
        if low > high:
            low = high = (low + high) / 2
        return _Allowed(low, high, knot.at)


def _segments(
    bounds: Sequence[Bound], blocks: Sequence[Meetings], clock: int, cut: Cut | None, base: int
) -> list[Segment]:
    """The knots of one clock, parted where the bounds before and after a moment exclude each other, and at `cut`."""
    knots = [_Knot(b.at, float(b.low[clock]), float(b.high[clock]), b.first, b.last) for b in bounds]
    found, parted = _parted([k for k in knots if np.isfinite(k.low) or np.isfinite(k.high)], cut)
    for segment in found:
        segment.settle()
    if cut is not None and parted is not None:
        _go_on(found[parted], after_cut(cut, found[parted - 1], base))
    whole = [s for s in found if np.isfinite(s.low[0]) and np.isfinite(s.high[0])]
    if len(whole) < len(found):
        return whole if len(found) == 1 else []  # a step beside a half-known offset: not understood
    readings, both = _readings(blocks, clock), _bound_moments(blocks, clock)
    for segment in found:
        _watch(segment, readings, both)
    return found


def _parted(knots: Iterable[_Knot], cut: Cut | None) -> tuple[list[Segment], int | None]:
    """The segments, and the number of the one that begins at `cut`."""
    found: list[Segment] = []
    parted: int | None = None
    allowed = _Allowed()
    for knot in knots:
        if cut is not None and found and found[-1].at[-1] < cut.at <= knot.at:
            parted = len(found)
            found.append(Segment())
            allowed = _Allowed()
        elif found and not knot.is_whole and allowed.excludes(knot):
            continue  # a bound on one side alone shows no step; what it is worth is not clear
        narrowed = allowed.narrowed(knot) if found else None
        if narrowed is None:
            found.append(Segment())
            narrowed = _Allowed(knot.low, knot.high, knot.at)
        allowed = narrowed
        _add(found[-1], knot)
    return found, parted


def _add(segment: Segment, knot: _Knot) -> None:
    segment.begin, segment.end = min(segment.begin, knot.first), max(segment.end, knot.last)
    if segment.at and segment.at[-1] == knot.at:
        segment.low[-1], segment.high[-1] = max(segment.low[-1], knot.low), min(segment.high[-1], knot.high)
    else:
        segment.at.append(knot.at)
        segment.low.append(knot.low)
        segment.high.append(knot.high)


def _go_on(segment: Segment, new: Segment) -> None:
    """With what is known of the clock since the cut before it (`new`)."""
    segment.at, segment.low, segment.high = new.at + segment.at, new.low + segment.low, new.high + segment.high
    segment.begin, segment.first = new.begin, new.first
    segment.settle()


def _watch(segment: Segment, readings: NDArray[Any], both: Floats) -> None:
    """Fill in what the clock read at its ends, and when it was bound on both sides (`both`)."""
    inside = readings[(readings[:, 0] >= segment.begin) & (readings[:, 0] <= segment.end)]
    watched = both[(both >= segment.begin) & (both <= segment.end)]
    if len(watched):
        segment.held = float(watched.min()), float(watched.max())
    segment.first = min(segment.first, segment.begin + max(segment.low), *inside[:, 1].tolist())
    segment.last = max(segment.last, segment.end + min(segment.high), *inside[:, 1].tolist())


def _readings(blocks: Sequence[Meetings], clock: int) -> NDArray[Any]:
    """(moment, what this clock read) at its meetings."""
    found = [np.zeros((0, 2))]
    for r in blocks:
        for place in np.nonzero(r.clocks == clock)[0].tolist():
            known = np.isfinite(r.entered[place])
            found.append(np.stack([r.when[known], r.entered[place][known]], axis=1))
    return np.concatenate(found)


def _bound_moments(blocks: Sequence[Meetings], clock: int) -> Floats:
    """When this clock was at meetings that bind it on both sides."""
    found = [np.zeros(0)]
    for r in blocks:
        for place in np.nonzero(r.clocks == clock)[0].tolist():
            found.append(r.when[np.isfinite(r.entered[place]) & np.isfinite(r.left[place])])
    return np.concatenate(found)


def _steps(segments: Mapping[str, Sequence[Segment]], reference: str, base: int) -> Iterator[Step]:
    """Who was set, and when. If most others jump together against the reference, it was the reference itself."""
    jumps: dict[tuple[float, float], list[tuple[str, float]]] = defaultdict(list)
    for clock, own in segments.items():
        for a, b in pairwise(own):
            by = b.shift(b.at[0]) - a.shift(a.at[-1])
            jumps[a.end, b.begin].append((clock, by))
    others = len(segments) - 1
    for (after, before), inside in sorted(jumps.items()):
        sizes = [by for _, by in inside]
        together = len(inside) > 1 and max(sizes) - min(sizes) < max(abs(x) for x in sizes) / 2
        after_ns, before_ns = int(after) + base, int(before) + base
        if others > 1 and len(inside) * 2 > others and together:
            yield Step(clock=reference, by_ns=-round(float(np.median(sizes))), after_ns=after_ns, before_ns=before_ns)
        elif others > 1:
            for clock, by in inside:
                yield Step(clock=clock, by_ns=round(by), after_ns=after_ns, before_ns=before_ns)
        else:
            yield Step(clock=None, by_ns=round(inside[0][1]), after_ns=after_ns, before_ns=before_ns)
