"""Small phrases that several steps write the same way."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_forensics.text.messages import Message, joined, pair, say, shaped, upper_first


def duration(seconds: float) -> str:
    """'12.0 s', '30 min 0 s', '2 h 5 min'."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 172_800:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return say("{n} days", n=f"{seconds / 86_400:.1f}")


def ranks(numbers: Iterable[int]) -> str:
    """'rank 3', 'ranks 0–2 and 5', '512 ranks between 0 and 1022'."""
    found = sorted(set(numbers))
    if not found:
        return say("no rank")
    if len(found) == 1:
        return say("rank {numbers}", numbers=found[0])
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
        return say("{n} ranks between {first} and {last}", n=f"{len(found):,}", first=found[0], last=found[-1])
    return say("ranks {numbers}", numbers=listing(parts))


def sentence(text: str) -> str:
    """With a capital at the start, unless the first word is a name: 'gpu-41: the log stops' stays as it is."""
    return shaped(
        text, lambda t: t if (first := t.split(" ", 1)[0]).endswith(":") or not first.isalpha() else upper_first(t)
    )


def listing(parts: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    words = list(parts)
    if len(words) < 2:
        return words[0] if words else ""
    return say("{some} and {last}", some=joined(words[:-1], ", "), last=words[-1])


def aside(why: str | None) -> str:
    """' (why)', or nothing."""
    return say(" ({why})", why=why) if why else ""


NOUNS = (
    *(pair("host", "hosts"), pair("GPU", "GPUs"), pair("more GPU", "more GPUs"), pair("other host", "other hosts")),
    *(pair("failure", "failures"), pair("day", "days")),
    *(pair("more line", "more lines"), pair("process", "processes"), pair("completion", "completions")),
    *(pair("corrected link error", "corrected link errors"), pair("wrong value", "wrong values")),
)
"""What `count` counts in sentences of the report."""


def count(number: int, singular: str, plural: str | None = None) -> str:
    """'1 GPU', '1,024 GPUs'."""
    noun = Message(singular, {}, (plural or singular + "s", number))
    return Message("{n} {noun}", {"n": f"{number:,}", "noun": noun})
