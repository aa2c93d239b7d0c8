"""Phrases that several steps write the same way: lengths of time, sizes, ranks, lists, counts.

Each is English that remembers how it was made (messages.py); the page says it in its own language with `language.said`.
What a sentence spells out, a cell of a table or a row of facts says in its `brief` form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nccl_forensics.text.messages import Message, joined, pair, say, shaped, upper_first


def duration(seconds: float, *, brief: bool = False) -> str:
    """'12.0 s', '30 min 0 s', '2 h 5 min', '3.0 days'; brief: '0.5 ms', '12 s', '30 min', '2.1 h', '3 days'."""
    return _rounded(seconds) if brief else _in_two_units(seconds)


def _in_two_units(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 172_800:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return say("{n} days", n=f"{seconds / 86_400:.1f}")


def _rounded(seconds: float) -> str:
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.0095:
        return f"{seconds * 1000:.2g} ms"
    if size < 1:
        return f"{seconds * 1000:.0f} ms"
    if size < 120:
        return f"{_tenths(seconds)} s"
    if size < 7200:
        return f"{_tenths(seconds / 60)} min"
    if size < 172_800:
        return f"{_tenths(seconds / 3600)} h"
    return say("{n} days", n=_tenths(seconds / 86_400))


def _tenths(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def size(count: int) -> str:
    """Bytes: '512 B', '1.2 MB'."""
    for unit, one in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count} B"


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run without a gap: 0, 1, 2 and 5 are (0, 2) and (5, 5)."""
    found: list[tuple[int, int]] = []
    for n in sorted(set(numbers)):
        if found and n == found[-1][1] + 1:
            found[-1] = (found[-1][0], n)
        else:
            found.append((n, n))
    return found


def _run(first: int, last: int) -> list[str]:
    """'3'; '3', '4'; '3–5'."""
    return [str(n) for n in range(first, last + 1)] if last - first < 2 else [f"{first}–{last}"]


def ranges(numbers: Iterable[int], most: int = 12) -> str:
    """'0–2, 5'; at most `most` runs, then how many numbers are left: '0–2, 5 and 512 more'."""
    found = runs(numbers)
    shown = ", ".join(part for run in found[:most] for part in _run(*run))
    left = sum(last - first + 1 for first, last in found[most:])
    return shown + say(" and {n} more", n=f"{left:,}") if left else shown


def rank(number: int) -> str:
    """'rank 3'."""
    return say("rank {numbers}", numbers=number)


MOST_PARTS = 9
"""Numbers and ranges that a sentence names. Our judgement of what a reader follows."""
COUNTED_FROM = 5
"""So many ranks are counted behind their ranges, in the brief form."""


def ranks(numbers: Iterable[int], *, brief: bool = False) -> str:
    """'rank 3', 'ranks 0–2 and 5', '512 ranks between 0 and 1022'; brief: 'ranks 0–2, 5', 'ranks 0–511 (512 ranks)'."""
    found = sorted(set(numbers))
    if not found:
        return say("no rank")
    if len(found) == 1:
        return rank(found[0])
    if brief:
        how_many = count(len(found), "rank") if len(found) >= COUNTED_FROM else None
        return say("ranks {numbers}", numbers=ranges(found)) + aside(how_many)
    parts = [part for run in runs(found) for part in _run(*run)]
    if len(parts) > MOST_PARTS:
        return say("{n} ranks between {first} and {last}", n=f"{len(found):,}", first=found[0], last=found[-1])
    return say("ranks {numbers}", numbers=listing(parts))


def sentence(text: str) -> str:
    """With a capital at the start, unless the first word is a name: 'gpu-41: the log stops' stays as it is."""
    return shaped(
        text, lambda t: t if (first := t.split(" ", 1)[0]).endswith(":") or not first.isalpha() else upper_first(t)
    )


def listing(parts: Iterable[str], *, most: int | None = None, brief: bool = False) -> str:
    """'a', 'a and b', 'a, b and c'; brief: 'a, b, c'. Beyond `most` they are counted: 'a, b, c and 4 more'."""
    words = list(parts)
    if most is not None and len(words) > most:
        return joined(words[:most], ", ") + say(" and {n} more", n=f"{len(words) - most:,}")
    if brief or len(words) < 2:
        return joined(words, ", ")
    return say("{some} and {last}", some=joined(words[:-1], ", "), last=words[-1])


def aside(why: str | None) -> str:
    """' (why)', or nothing."""
    return say(" ({why})", why=why) if why else ""


NOUNS: Mapping[str, str] = dict(
    (
        *(pair("rank", "ranks"), pair("known rank", "known ranks"), pair("host", "hosts")),
        *(pair("other host", "other hosts"), pair("GPU", "GPUs"), pair("more GPU", "more GPUs")),
        *(
            pair("clock", "clocks"),
            pair("file", "files"),
            pair("problem", "problems"),
            pair("wording", "wordings"),
            pair("day", "days"),
        ),
        *(pair("event", "events"), pair("more event", "more events"), pair("key event", "key events")),
        *(pair("line", "lines"), pair("more line", "more lines"), pair("step", "steps"), pair("group", "groups")),
        *(pair("failure", "failures"), pair("sentence", "sentences"), pair("suspect", "suspects")),
        *(pair("finding", "findings"), pair("process", "processes"), pair("completion", "completions")),
        *(pair("corrected link error", "corrected link errors"), pair("wrong value", "wrong values")),
    )
)
"""One of what is counted → many of it: all that the report counts. What only a terminal shows needs no row here."""


def noun(number: int, one: str, many: str | None = None) -> str:
    """The form of `one` that goes with `number`; `many` where NOUNS has no row and an 's' does not do."""
    return Message(one, {}, (many or NOUNS.get(one) or one + "s", number))


def count(number: int, one: str, many: str | None = None) -> str:
    """'1 GPU', '1,024 GPUs'."""
    return Message("{n} {noun}", {"n": f"{number:,}", "noun": noun(number, one, many)})
