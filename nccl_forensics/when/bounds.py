"""The tightest bounds on clocks' offsets that meetings allow, by shortest paths. skew.py says what they mean.

Times are ns on the clocks as read (zones taken off). Offsets: a clock's reading minus the reference clock's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nccl_forensics.when.offsets import RATE_PPM

Floats = NDArray[np.float64]
MOST_WINDOWS = 24
"""Stretches of time that get bounds of their own, so that old bounds need not count where newer ones are."""
WINDOW_MEETINGS = 8
"""Meetings in a stretch, at least."""
APART_NS = 600 * 1_000_000_000
"""Meetings further apart than this never share a stretch."""
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
class Meetings:
    """A block with its clocks as numbers, on the common base; columns are in order of time."""

    clocks: NDArray[np.int64]
    entered: Floats
    left: Floats
    when: Floats
    """About when each meeting was."""
    ordered: bool = False

    def part(self, low: int, high: int) -> Meetings:
        return replace(self, entered=self.entered[:, low:high], left=self.left[:, low:high], when=self.when[low:high])


def told_by(reference: int, rows: Meetings, middles: Floats) -> Meetings:
    """The same meetings with their moments as the reference read them."""
    if not rows.ordered:
        return _retimed(rows, middles - middles[reference])
    own = np.nonzero(rows.clocks == reference)[0]
    if len(own) and np.isfinite(rows.entered[own[0]]).mean() > 0.5:
        return replace(rows, when=_rising(rows.entered[own[0]]))
    return replace(rows, when=rows.when + middles[reference])


def meetings_of(one: Block, number: Mapping[str, int], base: int, busiest: str) -> Meetings | None:
    """Only meetings that somebody entered and somebody else left."""
    entered, left = one.entered + (one.base_ns - base), one.left + (one.base_ns - base)
    came, went = np.isfinite(entered), np.isfinite(left)
    useful = (came.any(axis=0) & went.any(axis=0)) & ((came | went).sum(axis=0) > 1)
    if not useful.any():
        return None
    entered, left = entered[:, useful], left[:, useful]
    clocks = np.array([number[c] for c in one.clocks], dtype=np.int64)
    if not one.ordered:
        return _by_time(Meetings(clocks, entered, left, _about(entered, left)))
    # One clock tells the time of all, so that another one's step does not change the order.
    place = one.clocks.index(busiest) if busiest in one.clocks else int(came.sum(axis=1).argmax())
    return Meetings(clocks, entered, left, _rising(entered[place]), ordered=True)


def _rising(readings: Floats) -> Floats:
    """Moments of ordered meetings by what one clock read, -inf where it was not there; none twice."""
    when = np.maximum.accumulate(readings)
    when[np.isneginf(when)] = when[~np.isneginf(when)][:1] if np.isfinite(when).any() else 0.0
    moments: Floats = when + 1024.0 * np.arange(len(when))
    return moments


def going_back(one: Block) -> Iterator[str]:
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


def _by_time(rows: Meetings) -> Meetings:
    order = np.argsort(rows.when, kind="stable")
    return replace(rows, entered=rows.entered[:, order], left=rows.left[:, order], when=rows.when[order])


def busiest_clock(blocks: Sequence[Block], unsteady: Collection[str]) -> str:
    """The clock with the most meetings; one that was set only if there is no other."""
    seen: dict[str, float] = defaultdict(float)
    for one in blocks:
        both = (np.isfinite(one.entered) & np.isfinite(one.left)).sum(axis=1)
        for clock, count in zip(one.clocks, both.tolist(), strict=True):
            seen[clock] += count
    return max(sorted(seen), key=lambda clock: (clock not in unsteady, seen[clock]))


def windows_of(rows: Sequence[Meetings], cuts: Sequence[float] = ()) -> Iterator[tuple[float, list[Meetings]]]:
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
class Bound:
    """low <= offset <= high at a moment, for each clock."""

    at: float
    first: float
    last: float
    """The meetings lay between these."""
    low: Floats
    high: Floats


def solved(windows: Sequence[tuple[float, list[Meetings]]], reference: int, count: int) -> list[Bound]:
    """Bounds for each window; one that allows no offsets is halved until it does, so that a step falls in between."""
    found: list[Bound] = []
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


def _solve(at: float, rows: Sequence[Meetings], reference: int, count: int) -> Bound | None:
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
    return Bound(at, float(when.min()), float(when.max()), -low, high)


def _spread(rows: Meetings) -> float:
    """How far apart the readings at one meeting usually lie."""
    finite = np.where(np.isfinite(rows.entered), rows.entered, np.nan)
    if rows.entered.shape[0] > 64:
        finite = finite[:, :: max(1, finite.shape[1] // 16)]
    counted = (~np.isnan(finite)).sum(axis=0) > 1
    if not counted.any():
        return 0.0
    return float(np.median(np.nanmax(finite[:, counted], axis=0) - np.nanmin(finite[:, counted], axis=0)))


def middles_of(bounds: Sequence[Bound], count: int) -> Floats:
    """About how far each clock is off; nan where it is not bound on both sides."""
    low, high = np.full(count, -np.inf), np.full(count, np.inf)
    for bound in bounds:
        low = np.where(np.isfinite(bound.low), bound.low, low)
        high = np.where(np.isfinite(bound.high), bound.high, high)
    known = np.isfinite(low) & np.isfinite(high)
    return np.where(known, np.where(known, low, 0.0) / 2 + np.where(known, high, 0.0) / 2, np.nan)


def _retimed(rows: Meetings, ahead: Floats) -> Meetings:
    """Meetings in the order in which they took place, now that it is known about how far each clock is off."""
    shift = np.nan_to_num(ahead[rows.clocks])[:, None]
    entered, left = rows.entered - shift, rows.left - shift
    return _by_time(replace(rows, when=_about(entered, left)))
