"""Finds the lines that some parser asked for, in one pass over the bytes, for all parsers at once.

No Python runs per line: one compiled literal database (hyperscan; `re` where it is missing) finds the literals in
regions of a megabyte, and only the lines that hold one are cut out. A line ends at '\\n' or '\\r' (progress bars have
no other end); line numbers count '\\n', as an editor does. Around each region 64 KiB before and behind stay in memory,
so that a parser can look at the neighbours of its line (`Line.before`, `Line.after`).

Progress can be every line of a log. Where it is, its literals are left out of the scan, and only the end of what has
gone by is searched for them (`Often`).

Memory is flat: one buffer of about 1.2 MB, and up to 24 regions more in a log full of progress, whatever the file's
size. Threads may scan different files with one Scanner. docs/performance.md has the measurements.
"""

from __future__ import annotations

import functools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from nccl_forensics.model import Detail, Event, Evidence, Role, Severity, Stamp
from nccl_forensics.prefixes import Peeled, peel
from nccl_forensics.visible import CONTEXT, CONTEXT_SHOWN, visible

REGION = 1 << 20
"""Bytes scanned at a time: 256 KiB to 4 MiB are equally fast, less and more are slower in our measurements."""
NEIGHBOURS = 1 << 16
"""Bytes kept before and behind a region."""
LONGEST = 1 << 14
"""Bytes of one line that are looked at on either side of a literal."""
NEAR = 1 << 9
"""Bytes in which a line's ends are looked for first: nearly all lines are shorter."""
GROUP = 130
"""Literals in one database to begin with. 649 of them compile in 0.04 s in five databases, in 0.08 s in three and in
0.11 s in one, which scans 2.5 times as fast as the five (3.6, 1.6 and 1.1 ms for a megabyte)."""
GROUPED_BYTES = 40 << 20
"""Scanned with several small databases before one large database is compiled, which then has paid for itself."""
COUNTED_BYTES = 192 << 20
"""Searched for line ends with bytes.count (1.4 GB/s) before numpy (7 GB/s) is imported for it (0.1 s)."""
BACKLOG = 24
"""Regions that wait to be searched for the last lines of progress: most never are."""
PIECE = 1 << 16
"""Bytes of such a region searched at a time, from its end."""

UNREAD = "unread"
"""Key of `Window.state`: what parsers left unread, and how often."""


class Window:
    """The part of a file that is in memory. Valid only while its region is worked on."""

    __slots__ = ("buffer", "end", "path", "returns", "state")

    def __init__(self, path: str, size: int = NEIGHBOURS + REGION + NEIGHBOURS) -> None:
        self.path = path
        self.buffer = bytearray(size)
        self.end = 0
        self.returns = True
        """Whether a '\\r' may be in the buffer; most logs have none, and then it need not be looked for."""
        self.state: dict[str, Any] = {}
        """For prefixes.py: what it learned about this file's lines (their shape), from one line to the next."""

    def bounds(self, at: int) -> tuple[int, int]:
        """Start and end of the line that holds the byte at `at`."""
        buffer = self.buffer
        near = NEAR if NEAR < LONGEST else LONGEST
        low = at - near if at > near else 0
        if not self.returns:
            start, end = buffer.rfind(b"\n", low, at) + 1, buffer.find(b"\n", at, at + near)
            if start and 0 <= end < self.end:
                return start, end
        start = buffer.rfind(b"\n", low, at)
        start = max(start, buffer.rfind(b"\r", start if start > 0 else low, at)) + 1
        if not start:
            low = max(0, at - LONGEST)
            start = max(buffer.rfind(b"\n", low, at), buffer.rfind(b"\r", low, at)) + 1 or low
        high = min(self.end, at + near)
        end = buffer.find(b"\n", at, high)
        cr = buffer.find(b"\r", at, high if end < 0 else end)
        if cr >= 0:
            return start, cr
        if end < 0:
            high = min(self.end, at + LONGEST)
            end = buffer.find(b"\n", at, high)
            end = high if end < 0 else end
            cr = buffer.find(b"\r", at, end)
            end = end if cr < 0 else cr
        return start, end


class Line:
    """One candidate line. Use it, and its neighbours, only inside the parser that was given it."""

    __slots__ = ("_peeled", "end", "hits", "number", "path", "raw", "start", "window")

    def __init__(self, window: Window, number: int, start: int, end: int, hits: frozenset[bytes] = frozenset()) -> None:
        self.window = window
        self.path = window.path
        self.number = number
        """1-based."""
        self.start, self.end = start, end
        self.hits = hits
        """The literals that were found in it."""
        self.raw = bytes(window.buffer[start:end])
        self._peeled: Peeled | None = None

    def detached(self) -> Line:
        """A copy that stays good after the scan has gone on; it has no neighbours."""
        return _alone(self.path, self.window.state, self.number, self.raw, self.hits)

    @property
    def peeled(self) -> Peeled:
        """The line's layers of prefix, taken off."""
        found = self._peeled
        if found is None:
            found = self._peeled = peel(self)
        return found

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

    @property
    def unfinished(self) -> bool:
        """No line end follows: the file was cut in the middle of it, or its writer was."""
        return self.end >= self.window.end

    def holds_before(self, literal: bytes, reach: int) -> bool:
        """Does it stand in the `reach` bytes before this line, as far as they are in memory?"""
        return self.window.buffer.rfind(literal, max(0, self.start - reach), self.start) >= 0

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

    def _around(self) -> tuple[bytes, bytes]:
        """The stretches of `CONTEXT` lines before and behind, as `Evidence` keeps them."""
        buffer, start, end = self.window.buffer, self.start, self.end
        at, low = start, max(0, start - 2 * NEAR)
        for _ in range(CONTEXT + 1):
            at = buffer.rfind(b"\n", low, at)
            if at < 0:
                break
        if at >= 0 or low == 0:
            above = bytes(buffer[at + 1 : start])
        else:  # long lines
            above = b"".join(x.raw[: 4 * CONTEXT_SHOWN] + b"\n" for x in reversed(self.before(CONTEXT)))
        at, high = end, min(self.window.end, end + 2 * NEAR)
        first = end + (buffer[end : end + 1] == b"\r") + 1
        at = first - 2
        for _ in range(CONTEXT + 1):
            at = buffer.find(b"\n", at + 1, high)
            if at < 0:
                break
        if buffer[first - 1 : first] == b"\n" and (at >= 0 or high == self.window.end):
            below = bytes(buffer[first : at + 1 if at >= 0 else high])
        else:
            below = b"".join(x.raw[: 4 * CONTEXT_SHOWN] + b"\n" for x in self.after(CONTEXT))
        return above, below

    def leave_out(self, what: str) -> None:
        """Say that a parser's bound left this line's block of kind `what` unread: nothing vanishes in silence."""
        unread: dict[str, int] = self.window.state.setdefault(UNREAD, {})
        unread[what] = unread.get(what, 0) + 1

    def evidence(self, *, context: bool = True) -> Evidence:
        above, below = self._around() if context else (b"", b"")
        return Evidence(source=self.path, line=self.number, text=visible(self.text), above=above, below=below)

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
            **known,
        }
        return Event(
            kind=kind,
            role=role,
            severity=severity,
            cause=cause,
            evidence=self.evidence(context=role != "context"),
            details=details or {},
            **fields,
        )


def _alone(path: str, state: dict[str, Any], number: int, raw: bytes, hits: frozenset[bytes]) -> Line:
    window = Window(path, 0)
    window.buffer, window.end, window.state = bytearray(raw), len(raw), state
    return Line(window, number, 0, len(raw), hits)


# --- engines --------------------------------------------------------------------------------------------------------

Matcher = Callable[[memoryview], Sequence[tuple[int, int]]]
"""A region → (literal's number, offset of its last byte + 1), by rising offset."""


def _database(literals: Sequence[tuple[int, bytes]]) -> Callable[[memoryview], list[tuple[int, int]]]:
    """One compiled database. Each thread that scans with it gets a scratch space of its own."""
    import hyperscan

    database = hyperscan.Database()
    numbers, expressions = [i for i, _ in literals], [x for _, x in literals]
    database.compile(expressions=expressions, ids=numbers, flags=0, literal=True)
    own = threading.local()

    def scan(region: memoryview) -> list[tuple[int, int]]:
        scratch = getattr(own, "scratch", None)
        if scratch is None:
            scratch = own.scratch = hyperscan.Scratch(database)
        found: list[tuple[int, int]] = []
        add = found.append
        database.scan(cast("bytes", region), match_event_handler=lambda i, _s, e, _f, _c: add((i, e)), scratch=scratch)
        return found

    return scan


def hyperscan_matcher(literals: Sequence[bytes], *, expected_bytes: int = 0) -> Matcher | None:
    """Vectorscan's literal engine; None where the package has no wheel.

    Many literals are compiled in groups, which is quick, and once more all in one when a lot has been scanned, or at
    once where a lot is `expected_bytes`.
    """
    try:
        import hyperscan  # noqa: F401
    except ImportError:
        return None
    numbered = list(enumerate(literals))
    size = len(numbered) if expected_bytes > GROUPED_BYTES else GROUP
    groups = [_database(numbered[at : at + size]) for at in range(0, len(numbered), size or 1)]
    if len(groups) < 2:
        return groups[0] if groups else lambda region: ()
    lock, scanned_bytes = threading.Lock(), 0

    def match(region: memoryview) -> Sequence[tuple[int, int]]:
        nonlocal groups, scanned_bytes
        scanned_bytes += len(region)
        if len(groups) > 1 and scanned_bytes > GROUPED_BYTES:
            with lock:
                if len(groups) > 1:
                    groups = [_database(numbered)]
        found = [hits for one in groups if (hits := one(region))]
        if len(found) < 2:
            return found[0] if found else ()
        return sorted((x for hits in found for x in hits), key=_stop)

    return match


def _stop(hit: tuple[int, int]) -> int:
    return hit[1]


def re_matcher(literals: Sequence[bytes]) -> Matcher:
    """The same hits from the standard library, about a hundred times slower."""
    order = {literal: i for i, literal in enumerate(literals)}
    # A lookahead makes overlapping hits visible; longest first, each shorter one that is its prefix is added by hand.
    pattern = re.compile(b"(?=(" + b"|".join(re.escape(x) for x in sorted(literals, key=lambda x: -len(x))) + b"))")
    inside = {x: tuple(y for y in literals if y != x and x.startswith(y)) for x in literals}

    def match(region: memoryview) -> Sequence[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for hit in pattern.finditer(region):
            text = hit[1]
            for literal in (text, *inside[bytes(text)]):
                found.append((order[bytes(literal)], hit.start() + len(literal)))
        return sorted(found, key=_stop)

    return match


def matcher(literals: Sequence[bytes], *, expected_bytes: int = 0) -> Matcher:
    """The fastest engine that is installed."""
    return hyperscan_matcher(literals, expected_bytes=expected_bytes) or re_matcher(literals)


class _LineEnds:
    """Counts '\\n'."""

    def __init__(self, expected_bytes: int) -> None:
        self._seen_bytes = COUNTED_BYTES if expected_bytes > 2 * COUNTED_BYTES else 0
        self._numpy: Any = None

    def __call__(self, buffer: bytearray, start: int, end: int) -> int:
        self._seen_bytes += end - start
        if self._seen_bytes < COUNTED_BYTES:
            return buffer.count(b"\n", start, end)
        if self._numpy is None:
            import numpy  # late: its import costs as much as counting 200 MB

            self._numpy = numpy
        np = self._numpy
        block = np.frombuffer(buffer, np.uint8, end - start, start)
        step = 1 << 16  # what comes of the comparison stays in the cache
        return sum(int(np.count_nonzero(block[at : at + step] == 0x0A)) for at in range(0, len(block), step))


# --- the scan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Often:
    """Literals that can stand in every line of a log. Of the lines that hold no others, only some are wanted."""

    literals: frozenset[bytes]
    first: int
    """So many from the start of a file, and from then on only …"""
    last: int
    """… so many from its end."""


_Span = tuple[int, int, tuple[int, ...]]
"""Start and end of a line in the buffer, and its literals' numbers."""
_Saved = tuple[int, bytes, tuple[int, ...]]
"""A line's number, its bytes, its literals' numbers."""


def _spans(window: Window, hits: Iterable[tuple[int, int]], lengths: Sequence[int], begin: int) -> Iterator[_Span]:
    """The lines in which hits are, each once. `hits` count from `begin`."""
    start = end = -1
    found: list[int] = []
    for literal, stop in hits:
        at = begin + stop
        if at <= end and at - lengths[literal] >= start:
            found.append(literal)
            continue
        if found:
            yield start, end, tuple(found)
        start, end = window.bounds(at - 1)
        found = [literal]
    if found:
        yield start, end, tuple(found)


class _Tail:
    """The last lines of one file that hold only `often` literals, behind the first ones."""

    def __init__(self, often: Often, match: Matcher, lengths: Sequence[int]) -> None:
        self.dense = False
        """So many of them that most are never looked at: regions are given whole, to `put`."""
        self._often, self._match, self._lengths = often, match, lengths
        self._kept: deque[_Saved] = deque(maxlen=often.last)
        self._waiting: list[tuple[bytes, int, frozenset[int]]] = []

    def add(self, window: Window, spans: Sequence[_Span], number: int, limit: int) -> None:
        """The lines of one region, which ends at `limit`, in line `number`."""
        saved: list[_Saved] = []
        at = limit
        for start, end, hits in reversed(spans[-self._often.last :]):
            number -= window.buffer.count(b"\n", start, at)
            at = start
            saved.append((number, bytes(window.buffer[start:end]), hits))
        self._kept.extend(reversed(saved))
        self.dense = len(spans) >= self._often.last

    def put(self, region: memoryview, number: int, others: Iterable[int]) -> None:
        """A region that has not been searched for them, and where in it the lines with other literals start."""
        self._waiting.append((bytes(region), number, frozenset(others)))
        if len(self._waiting) >= BACKLOG:
            self._search()

    def _search(self) -> None:
        """Search what waits, from its end, until there are enough."""
        found: list[list[_Saved]] = []
        missing = self._often.last
        for region, number, others in reversed(self._waiting):
            if missing <= 0:
                break
            high = len(region)
            window = Window("", 0)
            window.buffer, window.end = bytearray(region), high
            while high > 0 and missing > 0:
                low = max(0, high - PIECE)
                if low:
                    low = max(region.rfind(b"\n", 0, low), region.rfind(b"\r", 0, low)) + 1
                hits = self._match(memoryview(region)[low:high])
                spans = [x for x in _spans(window, hits, self._lengths, low) if x[0] not in others]
                at, saved = high, []
                for start, end, ids in reversed(spans):
                    number -= region.count(b"\n", start, at)
                    at = start
                    saved.append((number, region[start:end], ids))
                number -= region.count(b"\n", low, at)
                found.append(saved[:missing][::-1])
                missing -= len(saved)
                high = low
        self._waiting.clear()
        for some in reversed(found):
            self._kept.extend(some)
        self.dense = missing <= 0

    def lines(self) -> Iterable[_Saved]:
        """All that were kept, at the end of the file."""
        self._search()
        return self._kept


class Scanner:
    """A set of literals, compiled once, and the scan of one file after another.

    `expected_bytes`: as far as is known at the start; a lot makes a slower start, and a faster scan, worth while.
    """

    def __init__(
        self,
        literals: Iterable[bytes],
        engine: Callable[[Sequence[bytes]], Matcher] | None = None,
        *,
        expected_bytes: int = 0,
    ) -> None:
        self.literals = tuple(sorted(set(literals)))
        if engine is None:
            engine = functools.partial(matcher, expected_bytes=expected_bytes)
        self._engine = engine
        self._match = engine(self.literals)
        self._lengths = tuple(map(len, self.literals))
        self._overlap = max(self._lengths, default=1) - 1
        self._count = _LineEnds(expected_bytes)
        self._parts: dict[tuple[frozenset[int], bool], Matcher] = {}
        self._sets: dict[tuple[int, ...], frozenset[bytes]] = {}
        self._lock = threading.Lock()

    def _part(self, numbers: frozenset[int], *, rest: bool = False) -> Matcher:
        """A matcher for these literals, or for all but these. It gives their numbers in `literals`."""
        found = self._parts.get((numbers, rest))
        if found is None:
            with self._lock:
                order = [i for i in range(len(self.literals)) if (i in numbers) != rest]
                match = self._engine([self.literals[i] for i in order])
                found = self._parts[numbers, rest] = lambda region: [(order[i], e) for i, e in match(region)]
        return found

    def _hits(self, numbers: tuple[int, ...]) -> frozenset[bytes]:
        found = self._sets.get(numbers)
        if found is None:
            if len(self._sets) > 4096:
                self._sets.clear()
            found = self._sets[numbers] = frozenset(self.literals[i] for i in numbers)
        return found

    def lines(self, path: str, stream: BinaryIO, often: Often | None = None) -> Iterator[Line]:
        """Every line of `stream` that holds a literal, in order. Reads to the end; `stream` need not be seekable.

        A yielded Line is good until the next one is asked for. With `often`, lines that hold only its literals are
        given up to its `first`; the `last` ones of those behind come after all other lines, detached.
        """
        window = Window(path)
        buffer, view = window.buffer, memoryview(window.buffer)
        readinto = getattr(stream, "readinto", None)
        count, lengths = self._count, self._lengths
        common = frozenset(i for i, x in enumerate(self.literals) if often and x in often.literals)
        tail: _Tail | None = None
        early = 0  # lines with nothing but `often` literals
        have = done = 0  # valid bytes; bytes whose hits have been worked on
        ignore = 0  # hits that end at or before this were seen by the region before
        number = 1  # of the line that holds the byte at `done`
        ended = False
        while not ended or done < have:
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
            window.returns = buffer.find(b"\r", 0, have) >= 0
            if ended:
                limit = have
            else:
                limit = have - NEIGHBOURS
                cut = buffer.rfind(b"\n", done, limit)
                cut = max(cut, buffer.rfind(b"\r", max(cut, done), limit)) + 1
                limit = cut or limit
            begin = max(done - self._overlap, 0) if ignore else done
            dense = tail is not None and tail.dense
            match = self._part(common, rest=True) if dense else self._match
            hits = match(view[begin:limit])
            if ignore:
                hits = [x for x in hits if begin + x[1] > ignore]
            counted = done
            others: list[int] = []
            late: list[_Span] = []
            for start, end, ids in _spans(window, hits, lengths, begin):
                if dense:
                    ids += tuple(i for i, _ in self._part(common)(view[start:end]))
                    others.append(start - done)
                elif common and common.issuperset(ids):
                    early += 1
                    if often is not None and early > often.first:
                        late.append((start, end, ids))
                        continue
                if start > counted:
                    number += (
                        buffer.count(b"\n", counted, start) if start - counted < NEAR else count(buffer, counted, start)
                    )
                    counted = start
                yield Line(window, number, start, end, self._hits(ids))
            number += count(buffer, counted, limit)
            if tail is not None and dense:
                tail.put(view[done:limit], number, others)
            elif often is not None and late:
                tail = tail or _Tail(often, self._part(common), lengths)
                tail.add(window, late, number, limit)
            ignore = 0 if buffer[limit - 1] in b"\r\n" else limit
            keep = max(0, limit - NEIGHBOURS)
            if not ended:
                view[: have - keep] = view[keep:have]
                have, done, ignore = have - keep, limit - keep, max(0, ignore - keep)
            else:
                done = limit
        for number, raw, ids in tail.lines() if tail is not None else ():
            yield _alone(path, window.state, number, raw, self._hits(ids))
