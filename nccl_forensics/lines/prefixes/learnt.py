"""Prefixes that nobody has described: learnt from what stands before messages that are known.

A traceback, a frame, an exception's class, PyTorch's and NCCL's heads begin a message wherever they stand. What is
before them in a line, and stands before most lines around it too, is a launcher's tag or a logger's head. It is split
into times, numbers, names and what is between them; from then on it is taken off all lines of the file that have it.
A number or name with a key before it (`rank=3`, `pid 4103`, `host=n1`) tells who wrote the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nccl_forensics.lines import stamps
from nccl_forensics.lines.prefixes.launchers import VOTERS
from nccl_forensics.lines.prefixes.layers import layers
from nccl_forensics.lines.prefixes.loggers import LEVEL
from nccl_forensics.lines.prefixes.peeled import Peeled, decode, give
from nccl_forensics.lines.window import RawLine

LONGEST: Final = 200
"""Characters before a message in which a prefix is looked for. Our judgement: the longest seen has 120."""
MOST_PARTS: Final = 48
MOST_TRIES: Final = 16
"""How often in a file an unknown prefix is looked at."""
MOST_KNOWN: Final = 4
"""Prefixes of one file, for each program that writes into it."""
SHARE: Final = 0.6
"""Of the lines around that must have the prefix too. Our judgement."""
LEAST: Final = 2
"""So many lines around must have it."""
CONSTANT: Final = 6
"""A word without digits that is the same in so many lines is a part of the prefix, and no name. Our judgement."""

_BEGINS: Final = re.compile(
    r"Traceback \(most recent call last\):"
    r'|  File "[^"\n]{1,300}", line \d'
    r"|\[rank\d{1,7}\]:"
    r"|\[[EWIF]\d{3,4} \d\d:\d\d:\d\d\."
    r"|\[(?:Rank \d{1,7}|PG [^\]\n]{1,120})\] (?=[^\n]{0,200}(?:Watchdog|watchdog|NCCL|ProcessGroup|collective))"
    r"|(?<![\w.:/-])[A-Za-z][\w.-]{0,100}:\d{1,9}:\d{1,9} \[\d{1,4}\] (?=[^\n]{0,80}NCCL )"
    r"|(?<![\w.])(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit)(?=: |$)"
)
"""What begins a message wherever it stands."""
_IN_EVERY: Final = (
    "Error",
    "Traceback",
    "[rank",
    '", line ',
    "NCCL",
    "Exception",
    "Interrupt",
    "Exit",
    "[E",
    "[W",
    "[I",
    "[F",
)
"""One of these stands in whatever `_BEGINS` finds: a cheap look first."""
_FIRST_LOOK: Final = (b"Traceback (most recent call last):", b'  File "', b"Error: ")
"""By which a file's first region is searched for lines with an unknown prefix."""
_SAYS_SOMETHING: Final = re.compile(
    r"fail|caught|rais|got|retr|attempt|because|due to|with|during|step|epoch|iter|loss|it/s|%|[\"'`]|exit|ended",
    re.IGNORECASE,
)
"""Words of messages: what holds one is no prefix but the first half of a sentence, or of a program's progress."""
_LEVEL: Final = re.compile(rf"{LEVEL}|[EWIFDC]")
_NAME: Final = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[^\W\d]\w*(?:[.@+-]\w+)*)"
_PART: Final = re.compile(
    r"(?P<clock>\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?)|(?P<blank> +)"
    rf"|(?P<name>(?i:rank)(?=\d)|{_NAME})|(?P<number>\d+)|(?P<other>.)"
)
_DIGITS_OR_WORDS: Final = re.compile(r"(?P<digits>\d+)|(?P<word>[^\W\d_]+)|(?P<blank> +)|(?P<other>.)")


class _Part(NamedTuple):
    """A piece of a prefix."""

    form: str
    """'time' with a date, 'clock' without, 'blank', 'number', 'name', 'other'."""
    text: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before the lines of a file."""

    pattern: re.Pattern[str]
    columns: tuple[tuple[str, str], ...]
    """(Group of `pattern`, what it tells: 'stamp', 'rank', 'local_rank', 'task', 'pid', 'host')."""

    def take_off(self, text: str, peeled: Peeled) -> str | None:
        """The rest behind it, and what it tells of the writer; None where the text does not begin with it."""
        found = self.pattern.match(text)
        if found is None:
            return None
        for group, tells in self.columns:
            self._tell(tells, found[group], peeled)
        return text[found.end() :]

    @staticmethod
    def _tell(tells: str, value: str, peeled: Peeled) -> None:
        if tells == "stamp":
            written = stamps.parse(value)
            give(peeled, written[0] if written else None)
        elif tells == "host":
            peeled.host = peeled.host or value
        elif getattr(peeled, tells) is None and len(value) <= 9:
            setattr(peeled, tells, int(value))


def without_learnt(text: str, peeled: Peeled, line: RawLine) -> str:
    """The text without a prefix that this file's lines are known to have, or now show to have."""
    state = line.window.state
    if "learnt" not in state:
        state["learnt"] = []
        _look_ahead(line)
    known: list[Prefix] = state["learnt"]
    for prefix in known:
        rest = prefix.take_off(text, peeled)
        if rest is not None:
            return layers(rest, peeled, line)
    learnt = _learn(text, line) if len(known) < MOST_KNOWN else None
    rest = learnt.take_off(text, peeled) if learnt is not None else None
    if learnt is None or rest is None:
        return text
    known.append(learnt)
    return layers(rest, peeled, line)


def _look_ahead(line: RawLine) -> None:
    """Learn from the first messages in memory, so that the lines before them are read like those behind."""
    window = line.window
    known: list[Prefix] = window.state["learnt"]
    for begin in _FIRST_LOOK:
        at = window.buffer.find(begin, 0, window.end)
        if at < 0:
            continue
        start, end = window.bounds(at)
        if at == start:
            continue
        there = RawLine(window, 0, start, end)
        text = layers(decode(there.raw), Peeled(""), there)
        learnt = None if any(prefix.pattern.match(text) for prefix in known) else _learn(text, there)
        if learnt is not None:
            known.append(learnt)


def _learn(text: str, line: RawLine) -> Prefix | None:
    """The prefix of this line, if a known message stands behind it and the lines around have it too."""
    state = line.window.state
    if state.get("tries", 0) >= MOST_TRIES or not any(map(text.__contains__, _IN_EVERY)) or _BEGINS.match(text):
        return None
    found = _BEGINS.search(text, 1, LONGEST + 100)
    if found is None or found.start() > LONGEST or "\n" in text[: found.start()]:
        return None
    state["tries"] = state.get("tries", 0) + 1
    parts = tuple(_parts(text[: found.start()]))
    if not _is_prefix(parts):
        return None
    around = [
        layers(decode(near.raw), Peeled(""), near)
        for near in (*line.before(VOTERS), *line.after(VOTERS))
        if near.raw.strip()
    ]
    pattern = _pattern(parts, frozenset())
    same = [m for near in around if (m := pattern.match(near))]
    if len(same) < max(LEAST, SHARE * len(around)):
        return None
    fixed = frozenset(n for n, part in enumerate(parts) if part.text.isalpha() and _is_constant(same, n))
    return Prefix(_pattern(parts, fixed), tuple(_columns(parts)))


def _is_constant(same: Sequence[re.Match[str]], place: int) -> bool:
    return len(same) >= CONSTANT and len({m[f"p{place}"] for m in same}) == 1


def _parts(head: str) -> Iterator[_Part]:
    at = 0
    while at < len(head):
        written = stamps.parse(head[at:]) if head[at].isalnum() and (at == 0 or not head[at - 1].isalnum()) else None
        if written is not None and head[at : at + written[1]].strip():
            yield _Part("time", head[at : at + written[1]])
            at += written[1]
            continue
        found = _PART.match(head, at)
        assert found is not None
        yield _Part(found.lastgroup or "other", found[0])
        at = found.end()


def _is_prefix(parts: Sequence[_Part]) -> bool:
    """Is it built like one: brackets, times, numbers, keys, bars; and no words of a sentence?"""
    if not parts or len(parts) > MOST_PARTS:
        return False
    head = "".join(part.text for part in parts)
    if _SAYS_SOMETHING.search(head):
        return False
    built = any(part.form in ("time", "clock", "number") or part.text in "[](){}<>|=" for part in parts)
    left = head.strip() and all(part.form in ("blank", "other") for part in parts)  # behind a tag that was taken off
    built = built or bool(left)
    return built and head[-1] in " >]):|}" and _plain_words(parts) <= 1


def _plain_words(parts: Sequence[_Part]) -> int:
    """Words outside of brackets that are neither a level, a key before a number, nor a column between bars."""
    depth = words = 0
    for n, part in enumerate(parts):
        depth += (part.text in "[({<") - (part.text in "])}>" and depth > 0) if part.form == "other" else 0
        if part.form == "name" and depth == 0 and part.text.isalpha() and not _LEVEL.fullmatch(part.text):
            behind = "".join(other.text for other in parts[n + 1 : n + 3]).lstrip(" ")
            words += not behind or (behind[0] not in "=|/-" and not behind[0].isdigit())
    return words


def _pattern(parts: Sequence[_Part], fixed: frozenset[int]) -> re.Pattern[str]:
    """Numbers and times by their shape, names as such or, where `fixed`, as they are. Groups are named by place."""
    last = len(parts) - 1
    out = []
    for n, part in enumerate(parts):
        if part.form in ("time", "clock"):
            out.append(f"(?P<p{n}>{_shape(part.text)})")
        elif part.form == "number":
            out.append(f"(?P<p{n}>\\d+)")
        elif part.form == "name":
            any_name = "[A-Z]{1,9}" if _LEVEL.fullmatch(part.text) else _NAME
            out.append(f"(?P<p{n}>{re.escape(part.text) if n in fixed else any_name})")
        elif part.form == "blank" and n != last:
            out.append(" +")
        else:
            out.append(re.escape(part.text))
    return re.compile("".join(out))


def _shape(written: str) -> str:
    """A time as it may look in other lines."""
    out = []
    for found in _DIGITS_OR_WORDS.finditer(written):
        kind = found.lastgroup
        out.append({"digits": r"\d+", "word": r"[^\W\d_]+", "blank": " +"}.get(kind or "") or re.escape(found[0]))
    return "".join(out)


_KEYS: Final = {
    **dict.fromkeys(("rank", "global_rank", "globalrank", "world_rank", "rank_id"), "rank"),
    **dict.fromkeys(("local_rank", "localrank"), "local_rank"),
    **dict.fromkeys(("task", "worker", "replica", "proc", "process", "trainer"), "task"),
    "pid": "pid",
}
"""What the number behind such a word is."""
_HOST_KEYS: Final = frozenset({"host", "hostname", "node", "ip"})


def _columns(parts: Sequence[_Part]) -> Iterator[tuple[str, str]]:
    """(Group, what it tells). Of several times the innermost is the writer's own."""
    told: set[str] = set()
    for n, part in enumerate(parts):
        key = _key_before(parts, n)
        tells = None
        if part.form == "time":
            tells = "stamp"
        elif part.form == "number":
            tells = _KEYS.get(key)
        elif part.form == "name" and key in _HOST_KEYS:
            tells = "host"
        if tells is not None and (tells == "stamp" or tells not in told):
            told.add(tells)
            yield f"p{n}", tells


def _key_before(parts: Sequence[_Part], place: int) -> str:
    """The word that stands right before, with no more than a blank or one of `=:#` in between."""
    at = place - 1
    while at >= 0 and (parts[at].form == "blank" or parts[at].text in "=:"):
        at -= 1
    return parts[at].text.lower() if at >= 0 and place - at <= 3 and parts[at].form == "name" else ""
