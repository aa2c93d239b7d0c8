"""--since and --until: the stretch of time that an analysis is limited to, on the reference clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING

from nccl_forensics.errors import InputError
from nccl_forensics.model import Event, Problem
from nccl_forensics.text.moments import SECOND, is_dated, moment
from nccl_forensics.text.phrases import count
from nccl_forensics.when.zones import parse_zone

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump


LONGEST_TIMEOUT_S = 1800
"""How long after its newest call a dump may have been written, where it tells no timeout: PyTorch's
`default_pg_timeout` of every backend but NCCL (torch/distributed/constants.py)."""
_BOUND = re.compile(
    r"""(?xi)
    (?P<date>\d{4}-\d\d-\d\d)?
    (?:
        (?:^|[T\ ]+) (?P<time>\d\d?:\d\d(?::\d\d)?) (?:[.,](?P<part>\d{1,9}))?
        \ ?(?P<zone>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?
    )?
    """
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One end of the stretch as the user wrote it."""

    option: str
    text: str
    day: date | None
    """None: a time of day; of the day when the newest line that counts was written."""
    time: time
    part_ns: int
    """Nanoseconds behind the second."""
    zone: tzinfo

    def ns(self, newest_ns: int | None) -> int | None:
        """Nanoseconds since 1970, UTC; None for a time of day when nothing tells the day."""
        day = self.day
        if day is None:
            if newest_ns is None:
                return None
            day = (_EPOCH + timedelta(seconds=newest_ns // SECOND)).astimezone(self.zone).date()
        at = datetime.combine(day, self.time, self.zone)
        return (at - _EPOCH) // timedelta(seconds=1) * SECOND + self.part_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    events: tuple[Event, ...]
    dumps: tuple[Dump, ...]
    problems: tuple[Problem, ...] = ()
    """What was left out."""


@dataclass(frozen=True, slots=True)
class Window:
    since: Bound | None = None
    until: Bound | None = None

    def limit(self, events: Sequence[Event], dumps: Sequence[Dump]) -> Limited:
        """What lies in the window, error bars included. What has no time that compares stays.

        A line without a time is out if the lines about it in its file are; a dump, if its newest call is later or its
        job must have ended earlier.
        """
        stretch = self._stretch(events)
        sides, dump_sides = stretch.sides(events), [stretch.side_of_dump(dump) for dump in dumps]
        kept = tuple(e for e, side in zip(events, sides, strict=True) if side == 0)
        says = [
            f"{count(sides.count(side), 'event')} and {count(dump_sides.count(side), 'dump')} "
            f"{word} {moment(at)} ({bound.option} {bound.text})"
            for side, word, at, bound in (
                (-1, "before", stretch.low, self.since),
                (1, "after", stretch.high, self.until),
            )
            if bound is not None
        ]
        untimed = sum(e.time_ns is None for e in kept)
        text = f"Left out of the analysis: {'; '.join(says)}. In it are {count(len(kept), 'event')}"
        text += f", {untimed:,} of them without a time of their own." if untimed else "."
        return Limited(
            events=kept,
            dumps=tuple(d for d, side in zip(dumps, dump_sides, strict=True) if side == 0),
            problems=(Problem(says=text),),
        )

    def _stretch(self, events: Sequence[Event]) -> _Stretch:
        newest = _newest(e for e in events if e.role != "context")
        if newest is None:
            newest = _newest(events)
        low = self.since.ns(newest) if self.since else None
        high = self.until.ns(newest) if self.until else None
        if low is not None and high is not None and high < low and self.since and self.since.day is None:
            low -= 86_400 * SECOND  # from the evening before
        return _Stretch(low, high)


def _newest(events: Iterable[Event]) -> int | None:
    return max((e.time_ns for e in events if e.time_ns is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Between two moments of the reference clock, ns; None: without an end."""

    low: int | None
    high: int | None

    def side(self, event: Event) -> int | None:
        """-1: before; 0: inside, or no telling; 1: after; None: no time."""
        if event.time_ns is None:
            return None
        bar = event.uncertainty_ns or 0
        if self.low is not None and is_dated(self.low) == is_dated(event.time_ns) and event.time_ns + bar < self.low:
            return -1
        if self.high is not None and is_dated(self.high) == is_dated(event.time_ns) and event.time_ns - bar > self.high:
            return 1
        return 0

    def sides(self, events: Sequence[Event]) -> list[int]:
        """Each event's; a line without a time has that of the line before it if that is late, or after it if early."""
        sides = [self.side(e) for e in events]
        by_file: dict[str, list[int]] = {}
        for n, event in enumerate(events):
            if event.evidence.line is not None:
                by_file.setdefault(event.evidence.source, []).append(n)
        for places in by_file.values():
            places.sort(key=lambda n: events[n].evidence.line or 0)
            for way, late in ((places, 1), (places[::-1], -1)):
                last: int | None = None
                for n in way:
                    if events[n].time_ns is not None:
                        last = sides[n]
                    elif last == late and sides[n] is None:
                        sides[n] = late
        return [s or 0 for s in sides]

    def side_of_dump(self, dump: Dump) -> int:
        newest = dump.newest_ns
        if not newest:
            return 0
        wait_ns = int(dump.timeout_ms.max()) * 1_000_000 or LONGEST_TIMEOUT_S * SECOND
        if self.low is not None and is_dated(self.low) and newest + wait_ns < self.low:
            return -1
        return 1 if self.high is not None and is_dated(self.high) and newest > self.high else 0


def window(since: str | None, until: str | None, zone: tzinfo | None) -> Window | None:
    """From '2026-03-10T21:17:09Z', '2026-03-10 21:17+01:00', '2026-03-10' or '21:17'; None for no bound at all.

    `zone` is that of stamps without one (None: UTC). A date alone takes in the whole day.
    Raises InputError for anything else, and for an end before the start.
    """
    if since is None and until is None:
        return None
    low = _bound("--since", since, zone) if since is not None else None
    high = _bound("--until", until, zone) if until is not None else None
    if low and high and low.day and high.day and (low.ns(None) or 0) > (high.ns(None) or 0):
        raise InputError(f"--until {until} is before --since {since}.")
    return Window(low, high)


def _bound(option: str, text: str, zone: tzinfo | None) -> Bound:
    found = _BOUND.fullmatch(text.strip())
    try:
        if found is None or not (found["date"] or found["time"]):
            raise ValueError
        day = date.fromisoformat(found["date"]) if found["date"] else None
        clock = time.fromisoformat(_two_digits(found["time"])) if found["time"] else None
    except ValueError:
        raise InputError(
            f"{option} {text!r} is no time. Write 2026-03-10T21:17:09Z, '2026-03-10 21:17', 2026-03-10 or 21:17."
        ) from None
    part = int((found["part"] or "").ljust(9, "0"))
    if clock is None:
        clock, part = (time(23, 59, 59), SECOND - 1) if option == "--until" else (time(0), 0)
    own = parse_zone(found["zone"]) if found["zone"] else zone or timezone.utc
    return Bound(option=option, text=text.strip(), day=day, time=clock, part_ns=part, zone=own)


def _two_digits(written: str) -> str:
    """'9:17' → '09:17'."""
    return written if written[2] == ":" else f"0{written}"
