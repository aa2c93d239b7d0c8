"""Bounds for a file that says the same thing a million times: what is read, what is kept, what is only counted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import Parser, Parsers
from nccl_forensics.model import Event, Problem

KEPT = 20_000
"""Events of one kind kept from the start of one file; of the rest the newest `KEPT_LAST`; the others are counted.
Enough for a thousand ranks that each write twenty lines of a kind. Our judgement."""
KEPT_LAST = 2_000
FLOOD, FLOOD_WORDED, FLOOD_LAST = 20_000, 1_000, 2_000
"""Lines with the same literals that are read from the start of a file; behind them, those of one wording; and from its
end. Our judgement."""
MOST_FLOODS, LONGEST_WAITING = 16, 4096
"""So many floods, and bytes of a line, wait for the end of a file: a hostile one must not fill the memory."""
LONGEST_WORDING = 400
"""Bytes of a line that are held against others."""
_DIGITS = b"0123456789abcdefABCDEF"
MOST_SETS = 4096
"""Sets of literals that are told apart in one file: a hostile one could make millions."""


class Kept:
    """The first and last events of each kind of one file."""

    def __init__(self) -> None:
        self.first: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.last: dict[str, deque[Event]] = {}

    def add(self, event: Event) -> None:
        self.counts[event.kind] += 1
        if self.counts[event.kind] <= KEPT:
            self.first.append(event)
        else:
            self.last.setdefault(event.kind, deque(maxlen=KEPT_LAST)).append(event)

    def dropped(self) -> dict[str, int]:
        return {k: n - KEPT - KEPT_LAST for k, n in self.counts.items() if n > KEPT + KEPT_LAST}

    def events(self) -> tuple[Event, ...]:
        if not self.last:
            return tuple(self.first)
        return tuple(
            sorted(self.first + [e for d in self.last.values() for e in d], key=lambda e: e.evidence.line or 0)
        )


class Flood:
    """Which parsers a line goes to, and which lines wait for the end of the file because too many are like them.

    Lines with the same literals are alike. Behind the first `FLOOD` of them come only the first `FLOOD_WORDED` of each
    wording (the line without its digits, so that another message is not lost among many), or none if nothing that was
    alike has told anything; and in the end the last `FLOOD_LAST`.
    """

    def __init__(self, known: Parsers) -> None:
        self._known = known
        self._readers: dict[frozenset[bytes], tuple[Parser, ...]] = {}
        self._seen: dict[frozenset[bytes], int] = {}
        self._told: set[frozenset[bytes]] = set()
        self._worded: dict[int, int] = {}
        self._waiting: dict[frozenset[bytes], deque[Line]] = {}
        self._waited: Counter[frozenset[bytes]] = Counter()

    def _readers_of(self, hits: frozenset[bytes]) -> tuple[Parser, ...]:
        found = self._readers.get(hits)
        if found is None:
            if len(self._readers) >= MOST_SETS:
                self._readers.clear()
            by_literal = self._known.by_literal
            found = tuple(dict.fromkeys(p for hit in sorted(hits) for p in by_literal[hit]))
            self._readers[hits] = found
        return found

    def readers(self, line: Line) -> tuple[Parser, ...] | None:
        """In a stable order; None if the line waits."""
        hits = line.hits
        seen = self._seen.get(hits, 0)
        if seen < FLOOD:
            if seen or len(self._seen) < MOST_SETS:
                self._seen[hits] = seen + 1
            return self._readers_of(hits)
        if hits in self._told and self._is_rare_wording(line):
            return self._readers_of(hits)
        self._wait(line)
        return None

    def _is_rare_wording(self, line: Line) -> bool:
        """Whether the line's wording is among those of which few have been seen; it is counted then."""
        wording = hash((line.hits, line.raw[:LONGEST_WORDING].translate(None, _DIGITS)))
        before = self._worded.get(wording, 0)
        rare = before < FLOOD_WORDED and (before > 0 or len(self._worded) < MOST_SETS)
        if rare:
            self._worded[wording] = before + 1
        return rare

    def _wait(self, line: Line) -> None:
        """Keep the line until the end of the file, if it is not too long nor of one flood too many."""
        hits = line.hits
        self._waited[hits] += 1
        if len(line.raw) > LONGEST_WAITING:
            return
        waiting = self._waiting.get(hits)
        if waiting is None and len(self._waiting) < MOST_FLOODS:
            waiting = self._waiting[hits] = deque(maxlen=FLOOD_LAST)
        if waiting is not None:
            waiting.append(line)

    def told(self, line: Line) -> None:
        """The line has become an event."""
        self._told.add(line.hits)

    def last(self) -> Iterator[tuple[Line, tuple[Parser, ...]]]:
        for hits, lines in self._waiting.items():
            for line in lines:
                yield line.detached(), self._readers_of(hits)

    def problems(self, path: str) -> Iterator[Problem]:
        for hits, waited in sorted(self._waited.items(), key=lambda x: sorted(x[0])):
            if (number := waited - len(self._waiting.get(hits, ()))) > 0:
                shown = " and ".join(repr(x.decode("utf-8", "replace")) for x in sorted(hits)[:3])
                says = f"{number:,} more lines with {shown} were counted and not read, being like those before them"
                yield Problem(says=says, source=path)
