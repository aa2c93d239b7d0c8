"""Small phrases that several steps write the same way."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

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


def moment(ns: int | None) -> str | None:
    """For sentences: '2026-04-22 01:14:17 UTC'; '22 April 01:14:17 (year not known)'."""
    if ns is None:
        return None
    when = datetime.fromtimestamp(ns // SECOND, timezone.utc)
    if is_dated(ns):
        return f"{when:%Y-%m-%d %H:%M:%S} UTC"
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    return f"{when.day} {months[when.month - 1]} {when:%H:%M:%S} (year not known)"


def duration(seconds: float) -> str:
    """'12.0 s', '30 min 0 s', '2 h 5 min'."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 172_800:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{seconds / 86_400:.1f} days"


def ranks(numbers: Iterable[int]) -> str:
    """'rank 3', 'ranks 0–2 and 5', '512 ranks between 0 and 1022'."""
    found = sorted(set(numbers))
    if not found:
        return "no rank"
    if len(found) == 1:
        return f"rank {found[0]}"
    runs: list[list[int]] = []
    for n in found:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    parts: list[str] = []
    for run in runs:
        parts += [str(n) for n in run] if len(run) < 3 else [f"{run[0]}–{run[-1]}"]
    if len(parts) > 9:
        return f"{len(found):,} ranks between {found[0]} and {found[-1]}"
    return f"ranks {listing(parts)}"


def sentence(text: str) -> str:
    """With a capital at the start, unless the first word is a name: 'gpu-41: the log stops' stays as it is."""
    first = text.split(" ", 1)[0]
    return text if first.endswith(":") or not first.isalpha() else text[:1].upper() + text[1:]


def listing(parts: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    words = list(parts)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}" if words else ""


def count(number: int, singular: str, plural: str | None = None) -> str:
    """'1 GPU', '1,024 GPUs'."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
