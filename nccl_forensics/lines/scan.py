"""Finds the lines that some parser asked for, in one pass over the bytes, for all parsers at once.

No Python runs per line: one compiled literal database (hyperscan; `re` where it is missing) finds the literals in
regions of a megabyte, and only the lines that hold one are cut out. A line ends at '\n' or '\r' (progress bars have
no other end); line numbers count '\n', as an editor does. Around each region 64 KiB before and behind stay in memory,
so that a parser can look at the neighbours of its line (`Line.before`, `Line.after`).

Progress can be every line of a log. Where it is, its literals are left out of the scan, and only the end of what has
gone by is searched for them (`Often`).

Memory is flat: one buffer of about 1.2 MB, and up to 24 regions more in a log full of progress, whatever the file's
size. Threads may scan different files with one Scanner. docs/performance.md has the measurements.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from nccl_forensics.lines.line import Line, alone
from nccl_forensics.lines.matchers import Matcher, matcher
from nccl_forensics.lines.window import NEAR, NEIGHBOURS, Window

COUNTED_BYTES = 192 << 20
"""Searched for line ends with bytes.count (1.4 GB/s) before numpy (7 GB/s) is imported for it (0.1 s)."""
BACKLOG = 24
"""Regions that wait to be searched for the last lines of progress: most never are."""
PIECE = 1 << 16
"""Bytes of such a region searched at a time, from its end."""


NOISY = 2_000
"""Lines of progress in one dense region that hold a vague literal: from there on it tells nothing. Our judgement."""
NOT_LOOKED_FOR = "vague from"
"""Key of `Window.state`: the line from which on vague literals were left out."""


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


@dataclass(frozen=True, slots=True)
class _Region:
    """The stretch of a stream that is worked on: places in the window's buffer."""

    begin: int
    """Searched from here: a literal may begin in what was worked on before."""
    done: int
    """The first byte that has not been worked on."""
    limit: int
    """The end of its last line, as far as lines end at all."""
    seen: int
    """Hits that end at or before this were seen in the region before; 0: none were."""

    def unseen(self, hits: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        return [x for x in hits if self.begin + x[1] > self.seen] if self.seen else hits


def _regions(window: Window, stream: BinaryIO, overlap: int) -> Iterator[_Region]:
    """A stream to its end, region by region in the window's buffer, with up to `NEIGHBOURS` bytes of what lies around.

    The next one overwrites the one before. `overlap`: bytes before a region in which a literal may begin.
    """
    buffer, view = window.buffer, memoryview(window.buffer)
    readinto = _readinto(stream)
    have = done = seen = 0
    ended = False
    while True:
        while have < len(buffer) and not ended:
            got = readinto(view[have:]) or 0
            ended = not got
            have += got
        window.end = have
        window.returns = buffer.find(b"\r", 0, have) >= 0
        limit = have if ended else _last_end(buffer, done, have - NEIGHBOURS)
        yield _Region(max(done - overlap, 0) if seen else done, done, limit, seen)
        if ended:
            return
        seen = 0 if buffer[limit - 1] in b"\r\n" else limit
        keep = max(0, limit - NEIGHBOURS)
        view[: have - keep] = view[keep:have]
        have, done, seen = have - keep, limit - keep, max(0, seen - keep)


def _last_end(buffer: bytearray, start: int, limit: int) -> int:
    """The end of the last whole line that starts at `start` or behind and ends before `limit`, else `limit`."""
    cut = buffer.rfind(b"\n", start, limit)
    return max(cut, buffer.rfind(b"\r", max(cut, start), limit)) + 1 or limit


def _readinto(stream: BinaryIO) -> Callable[[memoryview], int | None]:
    """How bytes are read from a stream into memory, also from one that has nothing but `read`."""
    own: Callable[[memoryview], int | None] | None = getattr(stream, "readinto", None)
    if own is not None:
        return own

    def readinto(view: memoryview) -> int:
        piece = stream.read(len(view))
        view[: len(piece)] = piece
        return len(piece)

    return readinto


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

    `expected_bytes`: as far as is known at the start; a lot makes a slower start, and a faster scan, worth while. Lines
    with nothing but `vague` literals are given without hits, and no line has these among its hits.
    """

    def __init__(
        self,
        literals: Iterable[bytes],
        engine: Callable[[Sequence[bytes]], Matcher] | None = None,
        *,
        expected_bytes: int = 0,
        vague: Iterable[bytes] = (),
    ) -> None:
        known = set(literals)
        self._vague = frozenset(vague) - known
        self.literals = tuple(sorted(known | self._vague))
        if engine is None:
            engine = functools.partial(matcher, expected_bytes=expected_bytes)
        self._vague_numbers = frozenset(i for i, x in enumerate(self.literals) if x in self._vague)
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
            found = self._sets[numbers] = frozenset(self.literals[i] for i in numbers) - self._vague
        return found

    def _numbers(self, often: Often | None) -> frozenset[int]:
        """The numbers of the literals that stand often."""
        return frozenset(i for i, x in enumerate(self.literals) if often and x in often.literals)

    def _is_often(self, ids: tuple[int, ...], common: frozenset[int]) -> bool:
        """Does a line hold one of the literals that stand often, and besides them only vague ones?"""
        return not common.isdisjoint(ids) and all(i in common or i in self._vague_numbers for i in ids)

    def lines(self, path: str, stream: BinaryIO, often: Often | None = None) -> Iterator[Line]:
        """Every line of `stream` that holds a literal, in order. Reads to the end; `stream` need not be seekable.

        A yielded Line is good until the next one is asked for. With `often`, lines that hold only its literals are
        given up to its `first`; the `last` ones of those behind come after all other lines, detached.
        """
        window = Window(path)
        buffer, view = window.buffer, memoryview(window.buffer)
        count, lengths = self._count, self._lengths
        common = self._numbers(often)
        tail: _Tail | None = None
        early = 0  # lines with nothing but `often` literals
        number = 1  # of the line that holds the first byte that has not been worked on
        left_out: frozenset[int] = frozenset()
        for region in _regions(window, stream, self._overlap):
            dense = tail is not None and tail.dense
            skipped = (common if dense else frozenset()) | left_out
            match = self._part(skipped, rest=True) if skipped else self._match
            noisy = 0  # often lines that hold a vague literal
            hits = region.unseen(match(view[region.begin : region.limit]))
            counted = region.done
            others: list[int] = []
            late: list[_Span] = []
            for start, end, ids in _spans(window, hits, lengths, region.begin):
                if dense:
                    ids += tuple(i for i, _ in self._part(common)(view[start:end]))
                    if self._is_often(ids, common):
                        noisy += 1
                        continue
                    others.append(start - region.done)
                elif common and self._is_often(ids, common):
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
            number += count(buffer, counted, region.limit)
            if noisy > NOISY and not left_out:
                left_out, window.state[NOT_LOOKED_FOR] = self._vague_numbers, number
            if tail is not None and dense:
                tail.put(view[region.done : region.limit], number, others)
            elif often is not None and late:
                tail = tail or _Tail(often, self._part(common), lengths)
                tail.add(window, late, number, region.limit)
        for number, raw, ids in tail.lines() if tail is not None else ():
            yield alone(path, window.state, number, raw, self._hits(ids))
