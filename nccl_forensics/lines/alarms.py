"""Lines that look like errors and that no parser knows: counted by wording, the first of each kept.

They are no events, for nobody has said what they mean; but over such a pile nobody may say that nothing failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nccl_forensics.catalog.noise import noise
from nccl_forensics.lines.line import Line
from nccl_forensics.lines.prefixes.loggers import LEVEL
from nccl_forensics.model import ALARM, Event

WORDS = tuple(
    word.encode()
    for word in (
        *("ERROR", "Error", "error", "FATAL", "Fatal", "fatal", "CRITICAL", "Critical", "PANIC", "panic", "xception"),
        *("FAIL", "Fail", "fail", "Abort", "abort", "Crash", "crash", "egmentation", "core dumped", "illed", "died"),
        *("imed out", "imeout", "refused", "nreachable", "nable to", "annot ", "orrupt", "signal ", "exit code"),
        *("NCCL WARN", "talled"),
    )
)
"""What such lines hold; the scanner looks for them besides the parsers' literals."""
_GRAVE = re.compile(
    r"\b(?:FATAL|[Ff]atal(?: error)?|CRITICAL|PANIC|[Pp]anic|[Ss]egmentation fault|core dumped|[Aa]bort(?:ed|ing)"
    r"|crash(?:ed)?)\b"
)
_ALARM = re.compile(
    r"\b(?:ERROR|ERR|FAIL(?:ED|URE)?|[Ff]ail(?:ed|ure|s)|[Ee]rror|[\w.]{1,80}(?:Error|Exception)"
    r"|NCCL WARN|[Ss]talled"
    r"|[Kk]illed|[Dd]ied|[Tt]imed out|[Tt]imeout|refused|[Uu]nreachable|[Uu]nable to|[Cc]annot|[Cc]orrupt(?:ed|ion)?"
    r"|exit(?:ed)?(?: with)? (?:code|status)[ :=]{0,2}-?[1-9]\d{0,4}|signal \d{1,2})\b"
)
_NONE = re.compile(
    r"\b(?:no|without|0|zero|ignor\w{2,4}|if|when|any|on|handle\w{0,2}|retr\w{1,5}|max\w{0,8}|num\w{0,8}) "
    r"(?:\w{1,20} )?(?:errors?|failures?|exceptions?|timeouts?)\b"
    r"|(?:timeout|error|fail\w{0,4})\w{0,12} ?[=:] ?(?:-?\d|None|null|False|True|\[\]|\{\}|'')"
    r"|--?[\w-]{0,30}(?:timeout|error|fail)",
    re.IGNORECASE,
)
"""Settings and counts: a limit, `0 errors`, an option of a command line."""
_CALM = re.compile(r"\b(?:DEBUG|TRACE|INFO|(?<!NCCL )WARN(?:ING)?|[IW]\d{4})\b")
_NCCL_SAYS = re.compile(r"NCCL (?:INFO|TRACE) ")
_DIGITS = b"0123456789"
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", re.IGNORECASE)
MOST_WORDINGS = 4096
"""Wordings of one file that are told apart: a hostile one could make millions."""
MOST_KEPT = 64
"""Alarms of one file."""
FEWEST_WORDS = 2
LEVEL_IN = 24
"""Characters of a message in which its level may stand."""
LONGEST = 400
"""Bytes of a line that are held against others."""


@dataclass(slots=True)
class _Told:
    """A wording that is an alarm."""

    event: Event
    count: int = 1


class Alarms:
    """Those of one file."""

    def __init__(self) -> None:
        self._known: dict[int, _Told | None] = {}
        """Hash of a wording, as the bytes without digits → its alarm; None: it is none."""
        self._kept = 0

    def see(self, line: Line) -> None:
        """A line of which no parser took anything."""
        wording = hash(line.raw[:LONGEST].translate(None, _DIGITS))
        if wording in self._known:
            told = self._known[wording]
            if told is not None:
                told.count += 1
        elif len(self._known) < MOST_WORDINGS:
            event = _alarm(line) if self._kept < MOST_KEPT else None
            self._known[wording] = _Told(event) if event is not None else None
            self._kept += event is not None

    def found(self) -> Iterator[Event]:
        """One for each wording, at its first line."""
        for told in self._known.values():
            if told is not None:
                yield replace(told.event, repeats=told.count)


def _alarm(line: Line) -> Event | None:
    """What a line tells that looks like an error; None: it does not, by its words as a whole."""
    text = line.text
    if _NCCL_SAYS.search(text):
        return None
    if text.startswith(("  ", "\t", "frame #", "#")) or len(text.split()) < FEWEST_WORDS or noise().search(text):
        return None  # the middle of a traceback or of a stack, a table, a dump of settings; or what everybody prints
    head = line.raw[:LONGEST].decode("utf-8", "replace").removesuffix(text)
    said = head, _NONE.sub("", text)
    if any(map(_GRAVE.search, said)):
        return line.event(ALARM, role="context", severity="critical")
    is_calm = _GRAVE.search(text) or _CALM.search(head + text[:LEVEL_IN])
    return None if is_calm or not any(map(_ALARM.search, said)) else line.event(ALARM, role="context", severity="error")


_STATED = re.compile(rf"\W{{0,3}}(?:{LEVEL}\b|[\w.]{{1,80}}(?:Error|Exception)\b)")


def is_logged(alarm: Event) -> bool:
    """Does a log's time, identity, level or class stand at its head? Prose that speaks of errors has none of these."""
    identified = (alarm.stamp, alarm.rank, alarm.local_rank, alarm.task, alarm.pid)
    return any(known is not None for known in identified) or _STATED.match(alarm.evidence.text) is not None


def masked(text: str) -> str:
    """A line's wording: without its numbers and addresses, so that those of two ranks are one."""
    return _NUMBER.sub("#", text.strip())[:LONGEST]
