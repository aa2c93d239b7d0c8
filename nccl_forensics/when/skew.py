"""How far clocks are off against each other: rigorous bounds, by difference constraints.

A *meeting* is anything that nobody leaves before everybody has entered it: a collective (enqueued, found complete), a
rendezvous, a communicator's set-up, a training step. If host i wrote `entered` and host j wrote `left` for the same
meeting, then entered_i - o_i <= left_j - o_j for the clocks' offsets o, whatever the network did in between. The
tightest such bound over all chains of meetings is a shortest path; a cycle of negative length means that no constant
offsets fit, so that a clock was set in between. Derivation: docs/clocks.md.

Times are ns on the clocks as read (zones taken off). Offsets: a clock's reading minus the reference clock's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RATE_PPM = 100.0
"""How fast a clock may gain or lose against true time. Quartz oscillators of computers are made to within 100 ppm, and
what NTP leaves of that is less (RFC 5905 reckons with 15 ppm). Our judgement."""
MOST_WINDOWS = 24
"""Stretches of time that get bounds of their own, so that old bounds need not count where newer ones are."""
WINDOW_MEETINGS = 8
"""Meetings in a stretch, at least."""
APART_NS = 600 * 1_000_000_000
"""Meetings further apart than this never share a stretch."""
TRUSTED = 1.0
"""How long a clock is taken to keep on that is no longer watched, as a share of the time it was watched. Our
judgement."""
SMALLEST_STEP_NS = 2_000_000
"""Bounds that miss each other by less than this are rounding, not a step."""
MOST_ROUNDS = 64
"""Rounds of relaxation: a chain over more clocks than this is no bound that anybody needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Meetings (columns) and the clocks (rows) on which they were attended."""

    clocks: tuple[str, ...]
    entered: Floats
    """When this clock's last attendant entered, ns since `base_ns`; -inf: not known."""
    left: Floats
    """When this clock's first attendant left; +inf: not known."""
    base_ns: int
    ordered: bool = False
    """The columns are in the order in which the meetings took place."""


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


@dataclass(frozen=True, slots=True)
class _Cut:
    """A moment at which a clock was set, ns, and by how much."""

    at: float
    told: Told


@dataclass(slots=True)
class _Segment:
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
                grown = _drift(abs(at - self.at[knot]))
                low, high = max(low, self.low[knot] - grown), min(high, self.high[knot] + grown)
        return low, high

    def settle(self) -> None:
        """Let each knot know what all others allow at its moment."""
        for order in (range(len(self.at)), range(len(self.at) - 1, -1, -1)):
            for here, there in pairwise(order):
                grown = _drift(abs(self.at[there] - self.at[here]))
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


def _drift(elapsed_ns: float) -> float:
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

    def __init__(self) -> None:
        self.reference: str | None = None
        self.steps: tuple[Step, ...] = ()
        self._segments: dict[str, list[_Segment]] = {}
        self._base = 0

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
        chosen = segments[-1:] if newest else [s for n, s in enumerate(segments) if _covers(segments, n, reading)]
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

    def kept(self, clock: str, reading_ns: int) -> None:
        """Nobody had set `clock` between its last meeting and this reading, as another clock of its host shows."""
        segments = self._segments.get(clock)
        if segments:
            last, reading = segments[-1], float(reading_ns - self._base)
            if reading >= last.last and last.held[0] <= last.held[1]:
                last.held = last.held[0], max(last.held[1], reading - last.shift(reading))

    def set_later(self, told: Told) -> None:
        """A clock was set, for all that is known between two of its readings; later ones differ."""
        moment = self._moment(told)
        if moment is None:
            return
        last = self._segments[told.clock][-1]
        if moment <= last.end:
            return  # its meetings since then show that step, or that there was none
        new = _after(_Cut(moment, told), last, self._base)
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

    def unseen(self, told: Iterable[Told]) -> dict[str, _Cut]:
        """For a clock the first between the last meeting that binds it on both sides and its last one of any kind.

        What is known of the clock after them must not be mixed with what is known before.
        """
        found: dict[str, _Cut] = {}
        for one in told:
            moment = self._moment(one)
            if moment is None or one.clock == self.reference:
                continue
            last = self._segments[one.clock][-1]
            if last.held[0] <= last.held[1] < moment <= last.end:
                found.setdefault(one.clock, _Cut(moment, one))  # it may be told in two ways
        return found

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


def _after(cut: _Cut, before: _Segment, base: int) -> _Segment:
    """What is known of a clock since it was set, from what was known before; `before` is stretched up to then."""
    told = cut.told
    low, high = before.bounds(cut.at)
    earlier = float(told.before_ns - base)
    before.last = max(before.last, earlier)
    before.end = max(before.end, earlier - before.shift(earlier))
    new = _Segment(at=[cut.at], low=[low + told.by_ns - told.bar_ns], high=[high + told.by_ns + told.bar_ns])
    new.begin = new.end = cut.at
    new.first = new.last = float(told.after_ns - base)
    return new


def _covers(segments: Sequence[_Segment], number: int, reading: float) -> bool:
    """Can the clock have read this in that segment? Between two segments, in both."""
    own = segments[number]
    if own.first <= reading <= own.last:
        return True
    low = segments[number - 1].last if number else -np.inf
    high = segments[number + 1].first if number + 1 < len(segments) else np.inf
    if number and number + 1 < len(segments) and low > high:
        return False
    return low <= reading <= high


def block(attended: Iterable[tuple[Hashable, str, int | None, int | None]]) -> Block | None:
    """A block from (meeting, clock, entered ns, left ns); one clock may come several times. None if nobody meets."""
    rows = list(attended)
    meetings = {m: n for n, m in enumerate(dict.fromkeys(r[0] for r in rows))}
    clocks = {c: n for n, c in enumerate(dict.fromkeys(r[1] for r in rows))}
    times = [t for r in rows for t in r[2:] if t is not None]
    if len(clocks) < 2 or not times:
        return None
    base = min(times)
    entered = np.full((len(clocks), len(meetings)), -np.inf)
    left = np.full((len(clocks), len(meetings)), np.inf)
    for meeting, clock, came, went in rows:
        place = clocks[clock], meetings[meeting]
        if came is not None:
            entered[place] = max(entered[place], came - base)
        if went is not None:
            left[place] = min(left[place], went - base)
    return Block(clocks=tuple(clocks), entered=entered, left=left, base_ns=base)


@dataclass(slots=True)
class _Rows:
    """A block with its clocks as numbers, on the common base; columns are in order of time."""

    clocks: NDArray[np.int64]
    entered: Floats
    left: Floats
    when: Floats
    """About when each meeting was."""
    ordered: bool = False

    def part(self, low: int, high: int) -> _Rows:
        return replace(self, entered=self.entered[:, low:high], left=self.left[:, low:high], when=self.when[low:high])


def offsets(blocks: Sequence[Block], told: Sequence[Told] = ()) -> Offsets:
    """The offsets of all clocks that meet, against the one in the middle of the largest set that hangs together.

    `told`: clocks that were set; the reference is none of them if others are left, nor one that its own collectives
    show to go back.
    """
    used = [b for b in blocks if len(b.clocks) > 1 and b.entered.shape[1]]
    if not used:
        return Offsets()
    names = list(dict.fromkeys(sorted({c for b in used for c in b.clocks})))
    number = {name: n for n, name in enumerate(names)}
    base = min(b.base_ns for b in used)
    unsteady = {*(t.clock for t in told), *(c for b in used for c in _go_back(b))}
    busiest = _busiest(used, unsteady)
    rows = [r for b in used if (r := _rows(b, number, base, busiest)) is not None]
    if not rows:
        return Offsets()
    bounds = _solved(list(_windows(rows)), number[busiest], len(names))
    middles = _middles(bounds, len(names))
    tied = np.nonzero(np.isfinite(middles))[0]
    if len(tied) < 2:
        return Offsets()
    # The clock in the middle: most clocks are right, and one may be far off. One that was set is no measure.
    by_offset = tied[np.argsort(middles[tied], kind="stable")]
    middle = (len(by_offset) - 1) // 2
    candidates = [int(by_offset[n]) for n in sorted(range(len(by_offset)), key=lambda n: abs(n - middle))]
    chosen = next((c for c in candidates if names[c] not in unsteady), candidates[0])
    found = _against(chosen, rows, middles, names, base)
    unsteady |= {step.clock for step in found.steps if step.clock is not None}
    steady = next((c for c in candidates if names[c] not in unsteady), chosen)
    if steady != chosen:
        found = _against(steady, rows, middles, names, base)
    cuts = found.unseen(told)
    return _against(steady, rows, middles, names, base, cuts) if cuts else found


def _against(
    reference: int,
    rows: Sequence[_Rows],
    middles: Floats,
    names: Sequence[str],
    base: int,
    cuts: Mapping[str, _Cut] | None = None,
) -> Offsets:
    """The offsets against this clock. `middles`: about how far each is ahead of the one that told the time so far.

    `cuts`: for a clock when it was set, where its meetings do not show it.
    """
    cuts = cuts or {}
    found = Offsets()
    rows = [_told_by(reference, r, middles) for r in rows]
    bounds = _solved(list(_windows(rows, [cut.at for cut in cuts.values()])), reference, len(names))
    found._base = base
    found.reference = names[reference]
    segments = {name: _segments(bounds, rows, n, cuts.get(name), base) for n, name in enumerate(names)}
    found._segments = {name: s for name, s in segments.items() if s}
    found.steps = tuple(_steps(found._segments, names[reference], base))
    return found


def _told_by(reference: int, rows: _Rows, middles: Floats) -> _Rows:
    """The same meetings with their moments as the reference read them."""
    if not rows.ordered:
        return _retimed(rows, middles - middles[reference])
    own = np.nonzero(rows.clocks == reference)[0]
    if len(own) and np.isfinite(rows.entered[own[0]]).mean() > 0.5:
        return replace(rows, when=_rising(rows.entered[own[0]]))
    return replace(rows, when=rows.when + middles[reference])


def _rows(one: Block, number: Mapping[str, int], base: int, busiest: str) -> _Rows | None:
    """Only meetings that somebody entered and somebody else left."""
    entered, left = one.entered + (one.base_ns - base), one.left + (one.base_ns - base)
    came, went = np.isfinite(entered), np.isfinite(left)
    useful = (came.any(axis=0) & went.any(axis=0)) & ((came | went).sum(axis=0) > 1)
    if not useful.any():
        return None
    entered, left = entered[:, useful], left[:, useful]
    clocks = np.array([number[c] for c in one.clocks], dtype=np.int64)
    if not one.ordered:
        return _by_time(_Rows(clocks, entered, left, _about(entered, left)))
    # One clock tells the time of all, so that another one's step does not change the order.
    place = one.clocks.index(busiest) if busiest in one.clocks else int(came.sum(axis=1).argmax())
    return _Rows(clocks, entered, left, _rising(entered[place]), ordered=True)


def _rising(readings: Floats) -> Floats:
    """Moments of ordered meetings by what one clock read, -inf where it was not there; none twice."""
    when = np.maximum.accumulate(readings)
    when[np.isneginf(when)] = when[~np.isneginf(when)][:1] if np.isfinite(when).any() else 0.0
    moments: Floats = when + 1024.0 * np.arange(len(when))
    return moments


def _go_back(one: Block) -> Iterator[str]:
    """Clocks that read less at a later meeting."""
    if one.ordered:
        for clock, readings in zip(one.clocks, one.entered, strict=True):
            known = readings[np.isfinite(readings)]
            if (np.diff(known) < -SMALLEST_STEP_NS).any():
                yield clock


def _about(entered: Floats, left: Floats) -> Floats:
    """About when each meeting was: when the last had come, or else the first had gone."""
    last: Floats = entered.max(axis=0)
    about: Floats = np.where(np.isfinite(last), last, left.min(axis=0))
    return about


def _by_time(rows: _Rows) -> _Rows:
    order = np.argsort(rows.when, kind="stable")
    return replace(rows, entered=rows.entered[:, order], left=rows.left[:, order], when=rows.when[order])


def _busiest(blocks: Sequence[Block], unsteady: Collection[str]) -> str:
    """The clock with the most meetings; one that was set only if there is no other."""
    seen: dict[str, float] = defaultdict(float)
    for one in blocks:
        both = (np.isfinite(one.entered) & np.isfinite(one.left)).sum(axis=1)
        for clock, count in zip(one.clocks, both.tolist(), strict=True):
            seen[clock] += count
    return max(sorted(seen), key=lambda clock: (clock not in unsteady, seen[clock]))


def _windows(rows: Sequence[_Rows], cuts: Sequence[float] = ()) -> Iterator[tuple[float, list[_Rows]]]:
    """(moment, meetings about then): so few that a step falls between two of them, so many that bounds are tight.

    None spans one of `cuts`.
    """
    when = np.sort(np.concatenate([r.when for r in rows]))
    count = max(1, min(MOST_WINDOWS, len(when) // WINDOW_MEETINGS))
    edges = {int(x) for x in np.linspace(0, len(when), count + 1)[1:-1]}
    edges |= {int(x) + 1 for x in np.nonzero(np.diff(when) > APART_NS)[0]}
    edges |= {int(x) for x in np.searchsorted(when, cuts)}
    marks = [0, *sorted(edges - {0, len(when)}), len(when)]
    for low, high in pairwise(marks):
        first, last = when[low], when[high - 1]
        inside = [r.part(*np.searchsorted(r.when, [first, np.nextafter(last, np.inf)])) for r in rows]
        yield float((first + last) / 2), [r for r in inside if len(r.when)]


@dataclass(frozen=True, slots=True)
class _Bound:
    """low <= offset <= high at a moment, for each clock."""

    at: float
    first: float
    last: float
    """The meetings lay between these."""
    low: Floats
    high: Floats


def _solved(windows: Sequence[tuple[float, list[_Rows]]], reference: int, count: int) -> list[_Bound]:
    """Bounds for each window; one that allows no offsets is halved until it does, so that a step falls in between."""
    found: list[_Bound] = []
    waiting = list(reversed(windows))
    while waiting:
        at, inside = waiting.pop()
        bound = _solve(at, inside, reference, count)
        if bound is not None:
            found.append(bound)
            continue
        when = np.unique(np.concatenate([r.when for r in inside]))
        if len(when) > 1:
            middle = when[len(when) // 2]
            halves = []
            for low, high in ((-np.inf, middle), (middle, np.inf)):
                half = [r.part(*np.searchsorted(r.when, [low, high])) for r in inside]
                half = [r for r in half if len(r.when)]
                times = np.concatenate([r.when for r in half])
                halves.append((float((times.min() + times.max()) / 2), half))
            waiting += reversed(halves)
    return sorted(found, key=lambda b: b.at)


def _solve(at: float, rows: Sequence[_Rows], reference: int, count: int) -> _Bound | None:
    """Shortest paths from and to the reference over all these meetings; None if no offsets fit."""
    grown = []
    for r in rows:
        # A reading far from the moment says less about it. Readings differ from true time by the offsets themselves,
        # so that their spread counts as well.
        rate = RATE_PPM / 1e6
        spread = _spread(r)
        entered = r.entered - rate * (np.abs(r.entered - at) + spread)
        left = r.left + rate * (np.abs(r.left - at) + spread)
        grown.append((r.clocks, entered, left))
    high = np.full(count, np.inf)
    high[reference] = 0.0
    low = high.copy()  # the longest way back, with its sign turned
    for _ in range(MOST_ROUNDS):
        before = high.copy(), low.copy()
        for clocks, entered, left in grown:
            # o_j <= left_j + min over i of (o_i - entered_i)
            through = (high[clocks][:, None] - entered).min(axis=0)
            np.minimum.at(high, clocks, (left + through).min(axis=1))
            # -o_i <= -entered_i + min over j of (-o_j + left_j)
            through = (low[clocks][:, None] + left).min(axis=0)
            np.minimum.at(low, clocks, (through - entered).min(axis=1))
        if (high + low).min() < -SMALLEST_STEP_NS or high[reference] < -SMALLEST_STEP_NS:
            return None
        if np.array_equal(before[0], high) and np.array_equal(before[1], low):
            break
        high[reference] = low[reference] = 0.0
    when = np.concatenate([r.when for r in rows])
    return _Bound(at, float(when.min()), float(when.max()), -low, high)


def _spread(rows: _Rows) -> float:
    """How far apart the readings at one meeting usually lie."""
    finite = np.where(np.isfinite(rows.entered), rows.entered, np.nan)
    if rows.entered.shape[0] > 64:
        finite = finite[:, :: max(1, finite.shape[1] // 16)]
    counted = (~np.isnan(finite)).sum(axis=0) > 1
    if not counted.any():
        return 0.0
    return float(np.median(np.nanmax(finite[:, counted], axis=0) - np.nanmin(finite[:, counted], axis=0)))


def _middles(bounds: Sequence[_Bound], count: int) -> Floats:
    """About how far each clock is off; nan where it is not bound on both sides."""
    low, high = np.full(count, -np.inf), np.full(count, np.inf)
    for bound in bounds:
        low = np.where(np.isfinite(bound.low), bound.low, low)
        high = np.where(np.isfinite(bound.high), bound.high, high)
    known = np.isfinite(low) & np.isfinite(high)
    return np.where(known, np.where(known, low, 0.0) / 2 + np.where(known, high, 0.0) / 2, np.nan)


def _retimed(rows: _Rows, ahead: Floats) -> _Rows:
    """Meetings in the order in which they took place, now that it is known about how far each clock is off."""
    shift = np.nan_to_num(ahead[rows.clocks])[:, None]
    entered, left = rows.entered - shift, rows.left - shift
    return _by_time(replace(rows, when=_about(entered, left)))


def _segments(
    bounds: Sequence[_Bound], rows: Sequence[_Rows], clock: int, cut: _Cut | None, base: int
) -> list[_Segment]:
    """The knots of one clock, parted where the bounds before and after a moment exclude each other, and at `cut`."""
    knots = [(b.at, float(b.low[clock]), float(b.high[clock]), b.first, b.last) for b in bounds]
    knots = [k for k in knots if np.isfinite(k[1]) or np.isfinite(k[2])]
    found: list[_Segment] = []
    low, high, before = -np.inf, np.inf, 0.0
    parted: int | None = None  # number of the segment that begins at the cut
    for at, least, most, first, last in knots:
        grown = _drift(at - before)
        whole = np.isfinite(least) and np.isfinite(most)
        if cut is not None and found and found[-1].at[-1] < cut.at <= at:
            parted = len(found)
            found.append(_Segment())
            low, high = -np.inf, np.inf
        elif found and not whole and (least > high + grown or most < low - grown):
            continue  # a bound on one side alone shows no step; what it is worth is not clear
        low, high = max(low - grown, least), min(high + grown, most)
        if not found or low > high + SMALLEST_STEP_NS:
            found.append(_Segment())
            low, high = least, most
        elif low > high:
            low = high = (low + high) / 2
        before = at
        own = found[-1]
        own.begin, own.end = min(own.begin, first), max(own.end, last)
        if own.at and own.at[-1] == at:
            own.low[-1], own.high[-1] = max(own.low[-1], least), min(own.high[-1], most)
            continue
        own.at.append(at)
        own.low.append(least)
        own.high.append(most)
    for segment in found:
        segment.settle()
    if cut is not None and parted is not None:
        new = _after(cut, found[parted - 1], base)
        own = found[parted]
        own.at, own.low, own.high = new.at + own.at, new.low + own.low, new.high + own.high
        own.begin, own.first = new.begin, new.first
        own.settle()
    whole = [s for s in found if np.isfinite(s.low[0]) and np.isfinite(s.high[0])]
    if len(whole) < len(found):
        return whole if len(found) == 1 else []  # a step beside a half-known offset: not understood
    readings, both = _readings(rows, clock), _bound_moments(rows, clock)
    for segment in found:
        inside = readings[(readings[:, 0] >= segment.begin) & (readings[:, 0] <= segment.end)]
        watched = both[(both >= segment.begin) & (both <= segment.end)]
        if len(watched):
            segment.held = float(watched.min()), float(watched.max())
        segment.first = min(segment.first, segment.begin + max(segment.low), *inside[:, 1].tolist())
        segment.last = max(segment.last, segment.end + min(segment.high), *inside[:, 1].tolist())
    return found


def _readings(rows: Sequence[_Rows], clock: int) -> NDArray[Any]:
    """(moment, what this clock read) at its meetings."""
    found = [np.zeros((0, 2))]
    for r in rows:
        for place in np.nonzero(r.clocks == clock)[0].tolist():
            known = np.isfinite(r.entered[place])
            found.append(np.stack([r.when[known], r.entered[place][known]], axis=1))
    return np.concatenate(found)


def _bound_moments(rows: Sequence[_Rows], clock: int) -> Floats:
    """When this clock was at meetings that bind it on both sides."""
    found = [np.zeros(0)]
    for r in rows:
        for place in np.nonzero(r.clocks == clock)[0].tolist():
            found.append(r.when[np.isfinite(r.entered[place]) & np.isfinite(r.left[place])])
    return np.concatenate(found)


def _steps(segments: Mapping[str, Sequence[_Segment]], reference: str, base: int) -> Iterator[Step]:
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
        span = {"after_ns": int(after) + base, "before_ns": int(before) + base}
        if others > 1 and len(inside) * 2 > others and together:
            yield Step(clock=reference, by_ns=-round(float(np.median(sizes))), **span)
        elif others > 1:
            for clock, by in inside:
                yield Step(clock=clock, by_ns=round(by), **span)
        else:
            yield Step(clock=None, by_ns=round(inside[0][1]), **span)
