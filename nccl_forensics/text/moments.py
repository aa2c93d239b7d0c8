"""Moments of the reference clock: ns since 1970 in UTC, or in 1972 where nothing in the pile tells the year."""

from __future__ import annotations

from datetime import datetime, timezone

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


def moment(ns: int | None) -> str | None:
    """For sentences: '2026-04-22 01:14:17 UTC'; '22 April 01:14:17 (year not known)'."""
    if ns is None:
        return None
    when = datetime.fromtimestamp(ns // SECOND, timezone.utc)
    if is_dated(ns):
        return f"{when:%Y-%m-%d %H:%M:%S} UTC"
    return say(
        "{day} {month} {time} (year not known)", day=when.day, month=MONTHS[when.month - 1], time=f"{when:%H:%M:%S}"
    )
