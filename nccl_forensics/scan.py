"""Finds the lines that some parser asked for, in one pass over the bytes, for all parsers at once.

No Python runs per line: one compiled literal database (hyperscan; `re` where it is missing) finds the literals in
regions of a megabyte, and only the lines that hold one are cut out. A line ends at '\\n' or '\\r' (progress bars have no
other end); line numbers count '\\n', as an editor does. Around each region 64 KiB before and behind stay in memory, so
that a parser can look at the neighbours of its line (`Line.before`, `Line.after`).

Memory is flat: one buffer of about 1.2 MB, whatever the file's size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, BinaryIO, cast

from nccl_forensics.model import Detail, Event, Evidence, Role, Severity, Stamp
from nccl_forensics.prefixes import Peeled, peel

REGION = 1 << 20
"""Bytes scanned at a time: 256 KiB to 4 MiB are equally fast, less and more are slower (DESIGN.md §5)."""
NEIGHBOURS = 1 << 16
"""Bytes kept before and behind a region."""
LONGEST = 1 << 14
"""Bytes of one line that are looked at on either side of a literal."""
SHOWN = 2000
"""Characters of a line that an event carries (the contract's limit)."""
CONTEXT = 3
"""Lines kept before and behind a line that becomes evidence."""

_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """`text` with control, direction and zero-width characters written as escapes, cut at `SHOWN` characters."""
    text = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return _INVISIBLE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


class Window:
    """The part of a file that is in memory. Valid only while its region is worked on."""

    __slots__ = ("buffer", "end", "path", "state")

    def __init__(self, path: str, size: int = NEIGHBOURS + REGION + NEIGHBOURS) -> None:
        self.path = path
        self.buffer = bytearray(size)
        self.end = 0
        self.state: dict[str, Any] = {}
        """For prefixes.py: what it learned about this file's lines (their shape), from one line to the next."""

    def bounds(self, at: int) -> tuple[int, int]:
        """Start and end of the line that holds the byte at `at`."""
        buffer, low, high = self.buffer, max(0, at - LONGEST), min(self.end, at + LONGEST)
        start = max(buffer.rfind(b"\n", low, at), buffer.rfind(b"\r", low, at)) + 1
        end = buffer.find(b"\n", at, high)
        end = high if end < 0 else end
        cr = buffer.find(b"\r", at, end)
        return max(start, low), end if cr < 0 else cr


class Line:
    """One candidate line. Use it, and its neighbours, only inside the parser that was given it."""

    def __init__(self, window: Window, number: int, start: int, end: int, hits: frozenset[bytes] = frozenset()) -> None:
        self.window = window
        self.path = window.path
        self.number = number
        """1-based."""
        self.start, self.end = start, end
        self.hits = hits
        """The literals that were found in it."""
        self.raw = bytes(window.buffer[start:end])

    def detached(self) -> Line:
        """A copy that stays good after the scan has gone on; it has no neighbours."""
        window = Window(self.path, len(self.raw))
        window.buffer[:] = self.raw
        window.end = len(self.raw)
        window.state = self.window.state
        return Line(window, self.number, 0, window.end, self.hits)

    @cached_property
    def peeled(self) -> Peeled:
        """The line's layers of prefix, taken off."""
        return peel(self)

    @property
    def text(self) -> str:
        """The message itself, without prefixes."""
        return self.peeled.text

    @property
    def stamp(self) -> Stamp | None:
        """The innermost time that stands before the message."""
        return self.peeled.stamp

    @property
    def rank(self) -> int | None:
        """Global rank, where a prefix says it."""
        return self.peeled.rank

    @property
    def host(self) -> str | None:
        return self.peeled.host

    def before(self, most: int) -> list[Line]:
        """Up to `most` physical lines before this one, nearest first, as far as they are in memory."""
        found: list[Line] = []
        at, number = self.start, self.number
        while at > 0 and len(found) < most:
            number -= self.window.buffer[at - 1] == 0x0A
            at -= 1
            if at > 0 and self.window.buffer[at] == 0x0A and self.window.buffer[at - 1] == 0x0D:
                at -= 1  # CRLF is one end
            start, _ = self.window.bounds(at)
            found.append(Line(self.window, number, start, at))
            at = start
        return found

    def after(self, most: int) -> list[Line]:
        """Up to `most` physical lines behind this one, in order, as far as they are in memory."""
        found: list[Line] = []
        buffer, at, number = self.window.buffer, self.end, self.number
        while at < self.window.end and len(found) < most:
            if buffer[at] == 0x0D and at + 1 < self.window.end and buffer[at + 1] == 0x0A:
                at += 1
            number += buffer[at] == 0x0A
            at += 1
            if at >= self.window.end:
                break
            _, end = self.window.bounds(at)
            found.append(Line(self.window, number, at, end))
            at = end
        return found

    def evidence(self, *, context: bool = True) -> Evidence:
        show = (
            [visible(x.raw.decode("utf-8", "backslashreplace"))[:300] for x in self.before(CONTEXT)] if context else []
        )
        tail = (
            [visible(x.raw.decode("utf-8", "backslashreplace"))[:300] for x in self.after(CONTEXT)] if context else []
        )
        return Evidence(
            source=self.path, line=self.number, text=visible(self.text), before=tuple(reversed(show)), after=tuple(tail)
        )

    def event(
        self,
        kind: str,
        *,
        role: Role,
        severity: Severity = "info",
        cause: str | None = None,
        details: dict[str, Detail] | None = None,
        **known: Any,
    ) -> Event:
        """An event at this line, with all that its prefix tells; `known` overrides (rank=, host=, pid=, gpu_pci= …)."""
        peeled = self.peeled
        fields: dict[str, Any] = {
            "stamp": peeled.stamp,
            "rank": peeled.rank,
            "local_rank": peeled.local_rank,
            "task": peeled.task,
            "host": peeled.host,
            "pid": peeled.pid,
        }
        fields.update(known)
        return Event(
            kind=kind,
            role=role,
            severity=severity,
            cause=cause,
            evidence=self.evidence(context=role != "context"),
            details=details or {},
            **fields,
        )


# --- engines --------------------------------------------------------------------------------------------------------

Matcher = Callable[[memoryview], Sequence[tuple[int, int]]]
"""A region → (literal's number, offset of its last byte + 1), by rising offset."""


def hyperscan_matcher(literals: Sequence[bytes]) -> Matcher | None:
    """Vectorscan's literal engine; None where the package has no wheel."""
    try:
        import hyperscan
    except ImportError:
        return None
    database = hyperscan.Database()
    database.compile(expressions=list(literals), ids=list(range(len(literals))), flags=0, literal=True)

    def match(region: memoryview) -> Sequence[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        add = found.append
        database.scan(cast("bytes", region), match_event_handler=lambda i, _s, e, _f, _c: add((i, e)))
        return found

    return match


def re_matcher(literals: Sequence[bytes]) -> Matcher:
    """The same hits from the standard library, about a hundred times slower."""
    order = {literal: i for i, literal in enumerate(literals)}
    # A lookahead makes overlapping hits visible; longest first, and each shorter one that is its prefix is added by hand.
    pattern = re.compile(b"(?=(" + b"|".join(re.escape(x) for x in sorted(literals, key=lambda x: -len(x))) + b"))")
    inside = {x: tuple(y for y in literals if y != x and x.startswith(y)) for x in literals}

    def match(region: memoryview) -> Sequence[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for hit in pattern.finditer(region):
            text = hit[1]
            for literal in (text, *inside[bytes(text)]):
                found.append((order[bytes(literal)], hit.start() + len(literal)))
        return sorted(found, key=lambda x: x[1])

    return match


def matcher(literals: Sequence[bytes]) -> Matcher:
    """The fastest engine that is installed."""
    return hyperscan_matcher(literals) or re_matcher(literals)


def _newlines(buffer: bytearray, start: int, end: int) -> int:
    return buffer.count(b"\n", start, end)


class Scanner:
    """A set of literals, compiled once, and the scan of one file after another."""

    def __init__(self, literals: Iterable[bytes], engine: Callable[[Sequence[bytes]], Matcher] = matcher) -> None:
        self.literals = tuple(sorted(set(literals)))
        self._match = engine(self.literals)
        self._overlap = max(map(len, self.literals), default=1) - 1

    def lines(self, path: str, stream: BinaryIO) -> Iterator[Line]:
        """Every line of `stream` that holds a literal, in order. Reads to the end; `stream` need not be seekable.

        A yielded Line is good until the next one is asked for.
        """
        window = Window(path)
        buffer, view = window.buffer, memoryview(window.buffer)
        readinto = getattr(stream, "readinto", None)
        have = done = 0  # valid bytes; bytes whose hits have been worked on
        ignore = 0  # hits that end at or before this were seen by the region before
        number, counted = 1, 0  # number of the line that holds the byte at `counted`
        ended = False
        while True:
            while have < len(buffer) and not ended:
                if readinto is not None:
                    got = readinto(view[have:])
                else:
                    piece = stream.read(len(buffer) - have)
                    got = len(piece)
                    view[have : have + got] = piece
                ended = not got
                have += got or 0
            window.end = have
            if ended:
                limit = have
            else:
                limit = have - NEIGHBOURS
                cut = max(buffer.rfind(b"\n", done, limit), buffer.rfind(b"\r", done, limit)) + 1
                limit = cut or limit
            begin = max(done - self._overlap, 0) if ignore else done
            pending: tuple[int, int] | None = None
            hits: list[int] = []
            for literal, stop in self._match(view[begin:limit]):
                at = begin + stop
                if at <= ignore:
                    continue
                if pending is not None and pending[0] <= at - len(self.literals[literal]) and at <= pending[1]:
                    hits.append(literal)
                    continue
                if pending is not None:
                    number += _newlines(buffer, counted, pending[0])
                    counted = pending[0]
                    yield Line(window, number, *pending, frozenset(self.literals[i] for i in hits))
                pending, hits = window.bounds(at - 1), [literal]
            if pending is not None:
                number += _newlines(buffer, counted, pending[0])
                counted = pending[0]
                yield Line(window, number, *pending, frozenset(self.literals[i] for i in hits))
            if ended:
                return
            whole = buffer[limit - 1] in b"\r\n"
            ignore = 0 if whole else limit
            done = limit
            keep = max(0, done - NEIGHBOURS)
            if keep > counted:
                number += _newlines(buffer, counted, keep)
                counted = keep
            view[: have - keep] = view[keep:have]
            have, done, counted = have - keep, done - keep, counted - keep
            ignore = max(0, ignore - keep)
