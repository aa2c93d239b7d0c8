"""What is known of how far each clock is off, stretch by stretch, once its meetings are solved (skew.py).

Times are ns on the clocks as read (zones taken off). Offsets: a clock's reading minus the reference clock's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from nccl_forensics.when.jumps import Step, Told

RATE_PPM = 100.0
"""How fast a clock may gain or lose against true time. Quartz oscillators of computers are made to within 100 ppm, and
what NTP leaves of that is less (RFC 5905 reckons with 15 ppm). Our judgement."""
TRUSTED = 1.0
"""How long a clock is taken to keep on that is no longer watched, as a share of the time it was watched. Our
judgement."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment at which a clock was set, ns, and by how much."""

    at: float
    told: Told


@dataclass(slots=True)
class Segment:
    """A stretch in which a clock ran without being set."""

    at: list[float] = field(default_factory=list)
    """Moments, ns."""
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    begin: float = np.inf
    end: float = -np.inf
    """When its first and last meetings were."""
    first: float = np.inf
    last: float = -np.inf
    """What the clock read then."""
    held: tuple[float, float] = (np.inf, -np.inf)
    """Between these moments something bound it on both sides, so that setting it would have shown."""

    def bounds(self, at: float) -> tuple[float, float]:
        """The interval of the offset at a moment, from the knots on both sides."""
        place = bisect_right(self.at, at)
        low, high = -np.inf, np.inf
        for knot in (place - 1, place):
            if 0 <= knot < len(self.at):
                grown = drift(abs(at - self.at[knot]))
                low, high = max(low, self.low[knot] - grown), min(high, self.high[knot] + grown)
        return low, high

    def settle(self) -> None:
        """Let each knot know what all others allow at its moment."""
        for order in (range(len(self.at)), range(len(self.at) - 1, -1, -1)):
            for here, there in pairwise(order):
                grown = drift(abs(self.at[there] - self.at[here]))
                self.low[there] = max(self.low[there], self.low[here] - grown)
                self.high[there] = min(self.high[there], self.high[here] + grown)

    def shift(self, at: float) -> float:
        """What to take off a reading: 0 if that fits all the time, one number if one does, else with the drift.

        Continuous, and never so steep that the order of two readings changes.
        """
        low, high = max(self.low), min(self.high)
        if low <= high:
            return 0.0 if low <= 0 <= high else (low + high) / 2
        middles = [(a + b) / 2 for a, b in zip(self.low, self.high, strict=True)]
        return float(np.interp(at, self.at, middles))


def drift(elapsed_ns: float) -> float:
    """How much two clocks can drift apart in that time."""
    return 2 * RATE_PPM * elapsed_ns / 1e6


@dataclass(frozen=True, slots=True)
class Offset:
    """Reading minus reference."""

    shift_ns: int
    """The value to take off a reading."""
    bar_ns: int
    """The true offset lies within this of `shift_ns`."""


class Offsets:
    """What the meetings tell of every clock."""

    def __init__(
        self,
        reference: str | None = None,
        segments: Mapping[str, list[Segment]] | None = None,
        steps: Iterable[Step] = (),
        base: int = 0,
    ) -> None:
        """`segments`: of each clock that is tied to the reference, in order; their moments count from `base`."""
        self.reference = reference
        self.steps = tuple(steps)
        self._segments = dict(segments or {})
        self._base = base

    @property
    def clocks(self) -> tuple[str, ...]:
        """Those that are tied to the reference, itself included."""
        return tuple(self._segments)

    def at(self, clock: str, reading_ns: int, *, newest: bool = False) -> Offset | None:
        """The offset when `clock` read this; None if nothing ties it to the reference.

        `newest`: the reading was worked out later, with the clock as it stood then (`dmesg -T`).
        """
        segments = self._segments.get(clock)
        if not segments:
            return None
        reading = float(reading_ns - self._base)
        chosen = segments[-1:] if newest else _covering(segments, reading)
        main = chosen[-1]
        moment = reading - main.shift(reading)
        shift = main.shift(moment)
        bounds = [s.bounds(moment) for s in chosen]
        low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
        return Offset(round(shift), int(max(high - shift, shift - low)) + 1)

    def holds(self, clock: str, at_ns: int) -> bool:
        """Would it show if `clock` had been set about this moment of the reference clock?

        Between meetings it would. Behind the last one and before the first, a clock that was watched and kept is
        trusted for as long again.
        """
        at = float(at_ns - self._base)
        for segment in self._segments.get(clock, ()):
            low, high = segment.held
            reach = TRUSTED * (high - low)
            if low - reach <= at <= high + reach:
                return True
        return False

    def kept(self, clock: str, since_ns: int, until_ns: int) -> None:
        """Nobody had set `clock` between these two readings, as another clock of its host shows.

        It is watched until then if it was trusted up to the first: it may have been set between its last meeting and a
        wait that began minutes later.
        """
        segments = self._segments.get(clock)
        if segments:
            last, since, until = segments[-1], float(since_ns - self._base), float(until_ns - self._base)
            reach = TRUSTED * (last.held[1] - last.held[0])
            begun = since - last.shift(since)
            if until >= last.last and last.held[0] <= last.held[1] and begun <= last.held[1] + reach:
                last.held = last.held[0], max(last.held[1], until - last.shift(until))

    def set_later(self, told: Told) -> None:
        """A clock was set, for all that is known between two of its readings; later ones differ."""
        moment = self._moment(told)
        if moment is None:
            return
        last = self._segments[told.clock][-1]
        if moment <= last.end:
            return  # its meetings since then show that step, or that there was none
        new = after_cut(Cut(moment, told), last, self._base)
        self._segments[told.clock].append(new)
        step = Step(
            clock=told.clock,
            after_ns=int(last.end) + self._base,
            before_ns=int(moment) + self._base,
            by_ns=told.by_ns,
        )
        self.steps = (*self.steps, step)

    def _moment(self, told: Told) -> float | None:
        """When that was, if it was in or behind the clock's last segment."""
        segments = self._segments.get(told.clock)
        if not segments or any(s.first > told.before_ns - self._base for s in segments):
            return None
        reading = float(told.after_ns - self._base)
        return reading - told.by_ns - segments[-1].shift(reading)

    def unseen(self, told: Iterable[Told]) -> dict[str, Cut]:
        """For a clock the first between the last meeting that binds it on both sides and its last one of any kind.

        What is known of the clock after them must not be mixed with what is known before.
        """
        found: dict[str, Cut] = {}
        for one in told:
            moment = self._moment(one)
            if moment is None or one.clock == self.reference:
                continue
            last = self._segments[one.clock][-1]
            if last.held[0] <= last.held[1] < moment <= last.end:
                found.setdefault(one.clock, Cut(moment, one))  # it may be told in two ways
        return found

    def began_ns(self, clock: str) -> int | None:
        """What `clock` read at its first meeting; None if nothing ties it to the reference."""
        segments = self._segments.get(clock)
        return int(segments[0].first) + self._base if segments and np.isfinite(segments[0].first) else None

    def earlier(self, clock: str) -> Iterator[tuple[Offset, int]]:
        """The offsets before each time that `clock` was set, and the last meeting before it, on the reference clock."""
        for segment in self._segments.get(clock, ())[:-1]:
            moment = segment.at[-1]
            low, high = segment.bounds(moment)
            shift = segment.shift(moment)
            yield Offset(round(shift), int(max(high - shift, shift - low)) + 1), int(segment.end) + self._base

    def newest(self, clock: str) -> tuple[Offset, int] | None:
        """The offset at the clock's last meeting, and when that was, on the reference clock."""
        segments = self._segments.get(clock)
        if not segments:
            return None
        last = segments[-1]
        moment = last.at[-1]
        low, high = last.bounds(moment)
        shift = last.shift(moment)
        return Offset(round(shift), int(max(high - shift, shift - low)) + 1), int(moment) + self._base


def after_cut(cut: Cut, before: Segment, base: int) -> Segment:
    """What is known of a clock since it was set, from what was known before; `before` is stretched up to then."""
    told = cut.told
    low, high = before.bounds(cut.at)
    earlier = float(told.before_ns - base)
    before.last = max(before.last, earlier)
    before.end = max(before.end, earlier - before.shift(earlier))
    new = Segment(at=[cut.at], low=[low + told.by_ns - told.bar_ns], high=[high + told.by_ns + told.bar_ns])
    new.begin = new.end = cut.at
    new.first = new.last = float(told.after_ns - base)
    return new


def _covering(segments: Sequence[Segment], reading: float) -> list[Segment]:
    """The segments in which the clock can have read this, in order; never empty.

    Readings of a clock that was set back more than once can lie in none of them: then those on both sides count.
    """
    covering = [s for n, s in enumerate(segments) if _covers(segments, n, reading)]
    if covering:
        return covering
    nearest = sorted(range(len(segments)), key=lambda n: max(segments[n].first - reading, reading - segments[n].last))
    return [segments[n] for n in sorted(nearest[:2])]


def _covers(segments: Sequence[Segment], number: int, reading: float) -> bool:
    """Can the clock have read this in that segment? Between two segments, in both."""
    own = segments[number]
    if own.first <= reading <= own.last:
        return True
    low = segments[number - 1].last if number else -np.inf
    high = segments[number + 1].first if number + 1 < len(segments) else np.inf
    if number and number + 1 < len(segments) and low > high:
        return False
    return low <= reading <= high
