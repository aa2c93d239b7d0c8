"""Tags of launchers that do not exist, put before the lines of real logs: what `tests/test_invented_tags.py` asks of
them is that the verdict stays that of the bare logs.

A tag is drawn from a grammar of brackets, words, numbers and times. What stands in it is told by the line's writer (its
rank, host and process) and by when it was written, so it is as true as a launcher's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from random import Random


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a line."""

    rank: int | None
    host: str
    pid: int


Part = Callable[[Writer, datetime, Random], str]
Tag = Callable[[str, Writer, datetime, Random], str]
"""Line, its writer, when it was written → the line with its tag."""

WORDS = ("trainer", "Worker", "proc", "actor", "replica", "engine", "stage_a", "main", "runner", "pod")
LEVELS = ("INFO", "WARNING", "ERROR")
FILES = ("launch_utils.py", "executor.py", "worker_base", "core.client")
BRACKETS = ("[]", "()", "<>", "{}")
BEHIND = (" ", ": ", " | ", " - ", "> ")
BETWEEN = (" ", "|", " | ", " - ", ":", "/")


def _time(random: Random) -> Part:
    form = random.choice(
        ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%H:%M:%S", "%m-%d %H:%M:%S", "%Y/%m/%d %H:%M:%S", "%b %d %H:%M:%S")
    )
    millis = form.endswith("S") and random.random() < 0.5
    return lambda writer, at, _: at.strftime(form) + (f".{at.microsecond // 1000:03}" if millis else "")


def _number(random: Random) -> Part:
    """The rank by a key that says so, or a number that says nothing."""
    key = random.choice(("rank=", "rank ", "RANK:", "r", "#", "pid=", "pid ", "tid="))
    if key.lower().startswith(("rank", "r", "#")):
        return lambda writer, at, _: f"{key}{writer.rank if writer.rank is not None else 0}"
    return lambda writer, at, _: f"{key}{writer.pid}"


def _word(random: Random) -> Part:
    kind = random.randrange(5)
    word = random.choice(WORDS)
    if kind == 0:
        return lambda writer, at, _: writer.host
    if kind == 1:
        return lambda writer, at, _: word
    if kind == 2:
        return lambda writer, at, random: random.choice(LEVELS)
    if kind == 3:
        file = random.choice(FILES)
        return lambda writer, at, random: f"{file}:{random.randrange(20, 900)}"
    return lambda writer, at, _: f"{word}-{writer.rank if writer.rank is not None else 0}"


def _field(random: Random) -> Part:
    return random.choice((_time, _number, _word))(random)


def _group(random: Random) -> Part:
    """One to three fields, in a pair of brackets or with a bar between them."""
    fields = [_field(random) for _ in range(random.choice((1, 1, 2, 2, 3)))]
    between = random.choice(BETWEEN)
    pair = random.choice((*BRACKETS, ""))
    begin, end = (pair[0], pair[1]) if pair else ("", "")
    return lambda writer, at, random: begin + between.join(f(writer, at, random) for f in fields) + end


def draw(seed: int) -> Tag:
    """A tag that nobody has written yet."""
    random = Random(f"tags/{seed}")
    groups = [_group(random) for _ in range(random.choice((1, 1, 2, 2, 3)))]
    between = random.choice((" ", " ", ""))
    behind = random.choice(BEHIND)

    def tag(line: str, writer: Writer, at: datetime, lines: Random) -> str:
        return between.join(group(writer, at, lines) for group in groups) + behind + line

    return tag


def tagged(text: str, tag: Tag, writer: Writer, when: Callable[[str], datetime], seed: int) -> str:
    """Each line of one process's log behind the tag. `when`: line → when it was written."""
    random = Random(f"lines/{seed}")
    lines = text.split("\n")
    last = lines.pop()
    return "\n".join([*(tag(line, writer, when(line), random) for line in lines), last])


def example(seed: int) -> str:
    at = datetime(2026, 3, 4, 10, 19, 54, 567000, tzinfo=timezone.utc)
    return draw(seed)("Traceback (most recent call last):", Writer(3, "node-1", 4103), at, Random(0))
