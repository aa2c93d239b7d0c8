"""Moments of the reference clock: ns since 1970 in UTC, or in 1972 where nothing in the pile tells the year."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from nccl_forensics.text.messages import say

SECOND = 1_000_000_000
DATED_FROM_NS = 315_532_800 * SECOND
"""1980-01-01: earlier times are those whose year nobody told (clocks.NO_YEAR)."""


def is_dated(ns: int | None) -> bool:
    """Is this a real time, and not one whose year nobody told?"""
    return ns is not None and ns >= DATED_FROM_NS


def rfc3339(ns: int | None) -> str | None:
    """'2026-04-22T01:14:17.000000Z'; None for no time and for a time without a year."""
    if ns is None or not is_dated(ns):
        return None
    seconds, rest = divmod(ns, SECOND)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(time: object) -> int | None:
    """`rfc3339` read again: a document's time as microseconds since 1970, UTC; None for anything else."""
    if not isinstance(time, str):
        return None
    try:
        return (datetime.fromisoformat(time.replace("Z", "+00:00")) - EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError):
        return None


def calendar(at_us: int) -> datetime:
    """Microseconds since 1970 as a date and a time of day, UTC."""
    return EPOCH + timedelta(microseconds=at_us)


MONTHS = (
    say("January"),
    say("February"),
    say("March"),
    say("April"),
    say("May"),
    say("June"),
    say("July"),
    say("August"),
    say("September"),
    say("October"),
    say("November"),
    say("December"),
)


def moment(ns: int | None, *, zone_known: bool = True) -> str | None:
    """For sentences: '2026-04-22 01:14:17 UTC'; '… (zone not written)'; '22 April 01:14:17 (year not known)'."""
    if ns is None:
        return None
    when = calendar(ns // 1000)
    if is_dated(ns):
        time = f"{when:%Y-%m-%d %H:%M:%S}"
        return f"{time} UTC" if zone_known else say("{time} (zone not written)", time=time)
    return say(
        "{day} {month} {time} (year not known)", day=when.day, month=MONTHS[when.month - 1], time=f"{when:%H:%M:%S}"
    )


TO_THE_SECOND = 1.0
"""An error bar, in seconds, that leaves no digits behind a second."""


def timestamp(at_us: int, error_s: float | None = None) -> str:
    """For cells: '2026-04-22 03:14:17.250', no more digits than the error bar leaves, no year where none is known."""
    when = calendar(at_us)
    text = f"{when:%Y-%m-%d %H:%M:%S}" if is_dated(at_us * 1000) else f"{when:%m-%d %H:%M:%S}"
    finer = error_s < TO_THE_SECOND if error_s is not None else at_us % 1_000_000 != 0
    return f"{text}.{at_us % 1_000_000 // 1000:03d}" if finer else text
