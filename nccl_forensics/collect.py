"""Opens everything in a pile of files: folders, compressed files, archives in archives; nothing is written to disk.

    for source in collect(["case-4711/", "more.tar.xz"]):
        if source.stream is None:
            print(source.path, source.status, source.reason)
        else:
            scan(source.path, source.stream)  # source.status and source.reason are final afterwards

What a file is, its first bytes tell, never its name. Streams are unpacked as they are read, a tar is walked forwards, a
zip is read by its table where that can be reached and forwards where not, so memory is flat: some 100 KiB a layer, and
`Limits.memory_bytes` for a zip inside something else. What is cut or damaged gives what comes before the damage, and
behind it where the format has landmarks (gzip members, tar headers), and is `partial`, with the reason.

Input is hostile. Names of members are only shown, never used as names of files; links are not followed; devices and
pipes in a folder are not opened; every loop is bounded by `Limits`. What is not read is a Source with its reason.

Formats: RFC 1951 and 1952 (deflate, gzip), RFC 8878 (zstd), POSIX.1-2017 pax and the GNU tar manual's "Basic Tar
Format", PKWARE's APPNOTE.TXT 6.3.10 (zip). Threads may read Sources of different `File`s at the same time, not of one.
"""

from __future__ import annotations

import bz2
import codecs
import dataclasses
import io
import itertools
import lzma
import os
import re
import stat
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from nccl_forensics.model import InputError, Status

Progress = Callable[[str, int], None]
"""(path of a file on disk, bytes of it read so far): called every few megabytes and at its end."""

HEAD = 4096
"""Bytes that `Source.head` shows: every magic number and every file parser's first look fits."""
STEP = 1 << 16
"""Most bytes that a decompressor is asked for at once: bounds what a bomb can make of it (PERFORMANCE.md §3)."""
FEED = 1 << 15
"""Most compressed bytes given to a decompressor at once."""
FIRST_FEED = 1 << 10
"""Given to a new stream: what is left over at its end is copied, and there may be hundreds of thousands of streams."""
LONGEST_NAME = 400
"""Characters of a member's name that are shown. Our judgement; PATH_MAX is 4096, a hostile pax header has no bound."""
LZMA_MEMORY = 100 << 20
"""Bytes. `xz -9` needs 65 MiB (xz(1), table of presets)."""
ZSTD_WINDOW = 1 << 27
"""Bytes: `zstd --long`'s default, and the most that `zstd -d` takes without being told (zstd(1))."""
RESTARTS = 1000
"""How often a damaged gzip or tar is searched for its next landmark. Our judgement."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one run goes with files from strangers. The numbers are judgements; the reasons stand beside them."""

    members: int = 200_000
    """Rows in all. A must-gather of a large cluster has some 50,000 files."""
    total_bytes: int = 256 << 30
    """Bytes unpacked in all: a few minutes of gzip. Files that lie unpacked on disk don't count."""
    ratio: int = 250
    """Bytes unpacked from one file on disk, all layers together, over its size. Logs reach 10–50, gzip at most 1032."""
    ratio_from_bytes: int = 1 << 30
    """The ratio counts only beyond this: a small file of one repeated line or of NULs is no attack, and cheap."""
    depth: int = 8
    """Layers: x.tar.gz is two. A bug report inside a zip inside a tar.gz is four."""
    memory_bytes: int = 16 << 20
    """Up to this size a zip inside an archive is held in memory and read by its table; a larger one, forwards."""
    seconds: int = 3600
    """Unpacking one file on disk, without the time of whoever reads. 20 GB of text take 80 s in xz, the slowest."""


def option(name: str) -> str:
    """How the command line calls a field of `Limits`."""
    return "--max-" + name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file on disk, found but not opened. Small, and can be pickled."""

    path: str
    """As given, or below the folder as it was given; fit to be shown."""
    real: str | None
    """For open(); None for standard input."""
    named: bool
    """The user named it, rather than a folder that holds it."""
    size: int | None = None
    mtime_ns: int | None = None
    reason: str | None = None
    """Why it can't be opened; then `status` says whether that is a failure."""
    status: Status = "read"


class Source:
    """One file or member. Good until the next one is drawn; it may be left unread.

    `stream` is a forward-only binary stream, unpacked, UTF-16 and UTF-32 turned into UTF-8, without byte order mark;
    None if it is not to be read. It has readinto, read, readline and peek; for many small reads, wrap it in
    io.BufferedReader. Reading never raises: damage ends the stream and shows in `status` and `reason`.
    """

    __slots__ = ("_reader", "_reason", "_status", "mtime_ns", "name", "path", "size", "stream")

    def __init__(
        self,
        path: str,
        name: str,
        *,
        size: int | None = None,
        mtime_ns: int | None = None,
        reader: _Reader | None = None,
        status: Status = "read",
        reason: str | None = None,
    ) -> None:
        self.path = path
        """As given; members as ARCHIVE!member, nested ones with more '!'."""
        self.name = name
        """The last part of the path."""
        self.size = size
        """Bytes on disk or in the archive's table, before decompression; None if not known."""
        self.mtime_ns = mtime_ns
        """Modification time, ns UTC; None where the archive gives none, or one without a zone (old zips)."""
        self.stream: BinaryIO | None = cast(BinaryIO, reader) if reader is not None else None
        self._reader = reader
        self._status: Status = status
        self._reason = reason

    def __repr__(self) -> str:
        return f"Source({self.path!r}, {self.status}, {self.reason!r})"

    @property
    def bytes_read(self) -> int:
        """Uncompressed bytes taken from the stream so far, as the file has them (before UTF-16 becomes UTF-8)."""
        return self._reader.taken if self._reader is not None else 0

    @property
    def status(self) -> Status:
        """Final when the stream has been read to its end."""
        if self._reader is not None and self._reader.trouble:
            return "partial" if self._reader.taken or self._reader.holds else "failed"
        return self._status

    @property
    def reason(self) -> str | None:
        """Why partial, skipped or failed, and what to try; with status 'read' a remark."""
        if self._reader is not None:
            return self._reader.trouble or self._reader.remark or self._reason
        return self._reason

    def head(self, n: int = HEAD) -> bytes:
        """The next `n` bytes (at most 64 KiB), which stay in the stream. Call it before reading."""
        return self._reader.peek(n)[:n] if self._reader is not None else b""


# --- what it costs --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Totals:
    """What all files together have cost."""

    members: int = 0
    unpacked_bytes: int = 0


class _Meter:
    """What one file on disk has cost, and whether a limit is reached."""

    def __init__(
        self, path: str, size: int | None, limits: Limits, totals: _Totals, progress: Progress | None = None
    ) -> None:
        self.path, self.size, self.limits, self.totals, self.progress = path, size, limits, totals, progress
        self.disk_bytes = 0
        self.unpacked_bytes = 0
        self._told = 0
        self._used_s = 0.0
        self._since: float | None = None
        self._over: str | None = None

    def enter(self) -> bool:
        """Start the clock. False if it runs already."""
        if self._since is not None:
            return False
        self._since = time.perf_counter()
        return True

    def leave(self) -> None:
        if self._since is not None:
            self._used_s += time.perf_counter() - self._since
            self._since = None
        if self.progress and self.disk_bytes - self._told >= 1 << 22:
            self.tell()

    def tell(self) -> None:
        if self.progress:
            self._told = self.disk_bytes
            self.progress(self.path, self.disk_bytes)

    def unpacked(self, n: int) -> None:
        self.unpacked_bytes += n
        self.totals.unpacked_bytes += n

    def over(self) -> str | None:
        """The limit that is reached, in words; it stays reached."""
        if self._over:
            return self._over
        limits = self.limits
        used_s = self._used_s + (time.perf_counter() - self._since if self._since is not None else 0.0)
        disk = max(self.size or self.disk_bytes, 1)
        if self.totals.unpacked_bytes > limits.total_bytes:
            self._over = f"stopped: more than {_amount(limits.total_bytes)} unpacked in all ({option('total_bytes')})"
        elif self.unpacked_bytes > limits.ratio_from_bytes and self.unpacked_bytes > limits.ratio * disk:
            self._over = (
                f"stopped: unpacks to more than {limits.ratio} times its {_amount(disk)}, as a decompression bomb does "
                f"({option('ratio')}). If it is genuine, unpack it and give the folder"
            )
        elif used_s > limits.seconds:
            self._over = f"stopped: unpacking took longer than {limits.seconds} s ({option('seconds')})"
        return self._over


def _amount(n: int) -> str:
    if n < 10_000:
        return f"{n:,} bytes"
    size, units = n / 1000, ["kB", "MB", "GB", "TB", "PB", "EB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}"


# --- readers: each takes bytes from the one below ---------------------------------------------------------------------


class _Reader(io.RawIOBase):
    """A forward-only stream that never raises for bad input: it ends, and `trouble` says why."""

    def __init__(self) -> None:
        super().__init__()
        self._held = b""
        self._at = 0
        self._count = 0
        self.trouble: str | None = None
        """Why less came than there should be."""
        self.remark: str | None = None
        self.meter: _Meter | None = None
        """Set on the outermost reader: whose clock runs while it works."""

    def _fill(self, view: memoryview) -> int:
        """Put 1 to len(view) bytes into `view`; 0 at the end, for ever."""
        raise NotImplementedError

    @property
    def taken(self) -> int:
        """Bytes handed out."""
        return self._count

    @property
    def holds(self) -> bool:
        """Whether bytes wait that were looked at already."""
        return self._at < len(self._held)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.closed:
            raise ValueError("this source was closed when the next one was drawn")
        view = memoryview(buffer)
        if view.format != "B":
            view = view.cast("B")
        if self._at < len(self._held):
            n = min(len(self._held) - self._at, len(view))
            view[:n] = memoryview(self._held)[self._at : self._at + n]
            self._at += n
            if self._at == len(self._held):
                self._held, self._at = b"", 0
        else:
            n = self._pull(view)
        self._count += n
        return n

    def _pull(self, view: memoryview) -> int:
        if not len(view):
            return 0
        if self.meter is None or not self.meter.enter():
            return self._fill(view)
        try:
            return self._fill(view)
        finally:
            self.meter.leave()

    def read(self, size: int | None = -1, /) -> bytes:
        """`size` bytes, fewer only at the end."""
        if size is None or size < 0:
            return self.readall()
        whole, piece = bytearray(), memoryview(bytearray(min(size, STEP)))
        while n := self.readinto(piece[: size - len(whole)]):
            whole += piece[:n]
        return bytes(whole)

    def readall(self) -> bytes:
        return self.read(sys.maxsize)

    def peek(self, size: int = HEAD, /) -> bytes:
        """At least `size` bytes (at most 64 KiB) that stay in the stream; fewer only at the end."""
        size = min(size, STEP)
        if len(self._held) - self._at < size and not self.closed:
            piece = bytearray(size)
            held = bytearray(self._held[self._at :])
            while len(held) < size:
                n = self._pull(memoryview(piece)[: size - len(held)])
                if not n:
                    break
                held += piece[:n]
            self._held, self._at = bytes(held), 0
        return self._held[self._at :] if self._at else self._held

    def readline(self, size: int | None = -1, /) -> bytes:
        most = sys.maxsize if size is None or size < 0 else size
        pieces: list[bytes] = []
        while most > 0:
            if self._at == len(self._held):
                piece = bytearray(STEP)
                self._held, self._at = bytes(piece[: self._pull(memoryview(piece))]), 0
                if not self._held:
                    break
            end = self._held.find(b"\n", self._at, self._at + most) + 1
            end = end or min(len(self._held), self._at + most)
            pieces.append(self._held[self._at : end])
            most -= end - self._at
            self._count += end - self._at
            self._at = end
            if pieces[-1].endswith(b"\n"):
                break
        return b"".join(pieces)

    def unread(self, data: bytes) -> None:
        """Give back bytes that were read too many."""
        if data:
            self._held, self._at = data + self._held[self._at :], 0
            self._count -= len(data)

    def skip(self, n: int) -> int:
        """Read `n` bytes for nothing; how many there were."""
        left, waste = n, bytearray(min(n, STEP))
        while left:
            got = self.readinto(memoryview(waste)[: min(left, STEP)])
            if not got:
                break
            left -= got
        return n - left


class _Disk(_Reader):
    """A file on disk, up to the size that it had when it was opened: a log that is still written to has no end."""

    def __init__(self, raw: io.FileIO, meter: _Meter, status: os.stat_result) -> None:
        super().__init__()
        self._raw, self._of = raw, meter
        self._from = 0  # of the file
        self.size: int | None = status.st_size or None  # /proc and pipes say 0
        blocks = getattr(status, "st_blocks", None)
        self._sparse = blocks is not None and hasattr(os, "SEEK_DATA") and blocks * 512 < status.st_size
        self._data_end = 0

    def _fill(self, view: memoryview) -> int:
        try:
            if self._sparse and self._from >= self._data_end and not self._next_data():
                return 0
            if self.size is not None:
                end = self._data_end if self._sparse else self.size
                view = view[: max(end - self._from, 0)]
                if not len(view):
                    self._ended()
                    return 0
            n = self._raw.readinto(view) or 0
        except OSError as error:
            self.trouble = f"reading failed after {_amount(self._from)}: {_said(error)}. Copy the file again"
            return 0
        if not n and self.size is not None:
            self.trouble = (
                f"shrank from {_amount(self.size)} to {_amount(self._from)} while it was read. "
                "Copy it when nothing writes to it, with the rotated files beside it"
            )
            self.size = self._from
        self._from += n
        self._of.disk_bytes += n
        return n

    def _next_data(self) -> bool:
        """Go to the next part that is no hole: holes are NULs, and a small file can have terabytes of them."""
        try:
            self._from = os.lseek(self._raw.fileno(), self._from, os.SEEK_DATA)
            self._data_end = min(os.lseek(self._raw.fileno(), self._from, os.SEEK_HOLE), self.size or 0)
            os.lseek(self._raw.fileno(), self._from, os.SEEK_SET)
        except OSError:  # ENXIO: only holes are left
            return False
        return self._from < self._data_end

    def _ended(self) -> None:
        now = os.fstat(self._raw.fileno()).st_size
        if self.size is not None and now > self.size and not self.trouble:
            self.trouble = (
                f"grew from {_amount(self.size)} to {_amount(now)} while it was read, and only the first part was. "
                "Run it again when nothing writes to it"
            )

    def skip(self, n: int) -> int:
        if self.size is None or self._sparse or self.holds:
            held = min(n, len(self._held) - self._at)
            if self.size is None or self._sparse or held == n:
                return super().skip(n)
            return super().skip(held) + self.skip(n - held)
        n = min(n, self.size - self._from)
        self._from = self._raw.seek(self._from + n)
        self._of.disk_bytes += n
        self._count += n
        return n

    def read_at(self, offset: int, view: memoryview) -> int:
        """Bytes from anywhere. Don't mix with reading forwards, but for `restart`."""
        try:
            self._raw.seek(offset)
            n = self._raw.readinto(view) or 0
        except (OSError, ValueError, OverflowError) as error:
            self.trouble = f"reading failed: {_said(error)}. Copy the file again"
            return 0
        self._of.disk_bytes += n
        return n

    def restart(self) -> None:
        """Read forwards from the first byte again."""
        self._raw.seek(0)
        self._held, self._at, self._from, self._count, self._data_end = b"", 0, 0, 0, 0


class _Pipe(_Reader):
    """Standard input."""

    def __init__(self, stream: BinaryIO, meter: _Meter) -> None:
        super().__init__()
        self._stream, self._of = stream, meter
        self._readinto = getattr(stream, "readinto", None)

    def _fill(self, view: memoryview) -> int:
        try:
            if self._readinto is not None:
                n = self._readinto(view) or 0
            else:
                piece = self._stream.read(len(view)) or b""
                n = len(piece)
                view[:n] = piece
        except (OSError, ValueError) as error:
            self.trouble = f"reading failed: {_said(error)}"
            return 0
        self._of.disk_bytes += n
        return n


class _Memory(_Reader):
    """Bytes that are held already."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = memoryview(data)
        self._from = 0
        self.size: int | None = len(data)

    def _fill(self, view: memoryview) -> int:
        n = self.read_at(self._from, view)
        self._from += n
        return n

    def read_at(self, offset: int, view: memoryview) -> int:
        piece = self._data[offset : offset + len(view)]
        view[: len(piece)] = piece
        return len(piece)

    def restart(self) -> None:
        self._held, self._at, self._from, self._count = b"", 0, 0, 0


class _Slice(_Reader):
    """`size` bytes from `offset` of something that can be read anywhere."""

    def __init__(self, table: _Disk | _Memory, offset: int, size: int) -> None:
        super().__init__()
        self._table, self._from, self._left, self._size = table, offset, size, size

    def _fill(self, view: memoryview) -> int:
        if not self._left:
            return 0
        n = self._table.read_at(self._from, view[: self._left])
        self._from += n
        self._left -= n
        if not n:
            self.trouble = self._table.trouble or _breaks_off(self._size - self._left, self._size)
            self._left = 0
        return n


class _Part(_Reader):
    """The next `size` bytes of a stream that goes on behind them."""

    def __init__(self, parent: _Reader, size: int) -> None:
        super().__init__()
        self._parent, self._size = parent, size
        self.left = size

    def _fill(self, view: memoryview) -> int:
        if not self.left:
            return 0
        n = self._parent.readinto(view[: self.left])
        self.left -= n
        if not n:
            self.trouble = self._parent.trouble or _breaks_off(self._size - self.left, self._size)
        return n

    def drain(self) -> bool:
        """Go to the end; False if the stream ends first."""
        self.left -= self._parent.skip(self.left)
        return not self.left


def _breaks_off(got: int, size: int) -> str:
    return f"the archive breaks off here: {_amount(got)} of {_amount(size)} are left. Copy it again"


Engine = Callable[[memoryview, int], "tuple[bytes, int, bytes | None]"]
"""(compressed bytes, most bytes wanted) → (bytes; how many of the compressed ones were taken; at the end of the stream
those that were taken too many, before it None)."""


def _inflater() -> tuple[Callable[[], Engine], Callable[[Any, int], int], tuple[type[BaseException], ...]]:
    """Raw deflate, its CRC-32, and its errors: isal's, or the standard library's where isal has no wheel."""
    try:
        from isal import igzip_lib, isal_zlib

        library: Any = isal_zlib
        errors: Any = (isal_zlib.error, igzip_lib.error, zlib.error)
    except ImportError:
        library, errors = zlib, (zlib.error,)

    def start() -> Engine:
        one = library.decompressobj(wbits=-15)

        def step(feed: memoryview, most: int) -> tuple[bytes, int, bytes | None]:
            out = one.decompress(feed, most)
            if one.eof:  # unconsumed_tail may then be an old one
                return out, len(feed) - len(one.unused_data), b""
            return out, len(feed) - len(one.unconsumed_tail), None

        return step

    return start, library.crc32, errors


def _buffered(make: Callable[[], Any]) -> Callable[[], Engine]:
    """An engine of a decompressor that keeps what it was given (bz2, lzma, compression.zstd)."""

    def start() -> Engine:
        one = make()

        def step(feed: memoryview, most: int) -> tuple[bytes, int, bytes | None]:
            used = len(feed) if one.needs_input else 0
            out = one.decompress(feed if used else b"", most)
            return out, used, one.unused_data if one.eof else None

        return step

    return start


class _Unpack(_Reader):
    """One compressed stream behind the other, as bz2 and xz have them; gzip and zip build upon it."""

    name = "compressed"
    tool = "the tool that made it"
    errors: tuple[type[BaseException], ...] = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error)
    magics: tuple[bytes, ...] = ()
    padding = 0
    """Zero bytes may stand between streams, in multiples of this; 0: none."""

    def __init__(self, parent: _Reader, meter: _Meter, start: Callable[[], Engine]) -> None:
        super().__init__()
        self._parent, self._of, self._start = parent, meter, start
        self._buffer = bytearray(2 * FEED)  # the half is read at once, and a whole feed may come back
        self._view = memoryview(self._buffer)
        self._low = self._high = 0
        self._engine: Engine | None = None
        self._feed = FIRST_FEED
        self._over = False
        self._streams = 0
        self._given = 0

    def _more(self, want: int) -> bool:
        """Have at least `want` compressed bytes in the buffer; False if there are fewer."""
        while self._high - self._low < want:
            if self._low:
                rest = self._high - self._low
                self._view[:rest] = bytes(self._view[self._low : self._high])
                self._low, self._high = 0, rest
            n = self._parent.readinto(self._view[self._high : self._high + FEED])
            if not n:
                return False
            self._high += n
        return True

    def _back(self, data: bytes) -> None:
        """Put bytes that the engine took too many before the rest."""
        rest = data + bytes(self._view[self._low : self._high])
        self._view[: len(rest)] = rest
        self._low, self._high = 0, len(rest)

    def _fill(self, view: memoryview) -> int:
        got = idle = 0
        while got < len(view) and not self._over:
            if over := self._of.over():
                self._stop(over)
                break
            if self._engine is None:
                if not self._next():
                    self._over = True
                    break
                self._feed = FIRST_FEED
            if self._low == self._high:
                self._more(1)
            feed = self._view[self._low : min(self._high, self._low + self._feed)]
            try:
                assert self._engine is not None
                out, used, left = self._engine(feed, min(STEP, len(view) - got))
            except self.errors as error:
                got += self._damaged(str(error), view[got:])
                continue
            self._low += used
            self._feed = min(self._feed * 2, FEED)
            n = len(out)
            view[got : got + n] = out
            got += n
            self._given += n
            self._seen(out)
            idle = 0 if n or used else idle + 1
            if left is not None:
                self._back(left)
                self._engine = None
                self._streams += 1
                self._finish()
            elif idle and not len(feed):
                self._stop(self._parent.trouble or self._cut())
            elif idle > 2:
                got += self._damaged("it doesn't get on", view[got:])
        self._of.unpacked(got)
        return got

    def _cut(self) -> str:
        return f"the {self.name} stream breaks off; {_amount(self._given)} of text come before the cut. Copy it again"

    def _stop(self, why: str) -> None:
        self._over, self._engine = True, None
        self.trouble = self.trouble or why

    def _damaged(self, why: str, view: memoryview) -> int:
        """What to do about damage; how many bytes were put into `view`."""
        if why == "Memory usage limit exceeded":  # liblzma's words
            self._stop(f"needs more than {_amount(LZMA_MEMORY)} of memory to unpack: unpack it with {self.tool}")
            return 0
        self._stop(
            f"the {self.name} stream is damaged after {_amount(self._given)} of text ({why}). "
            f"Copy it again in binary mode, or try {self.tool}"
        )
        return 0

    def _seen(self, out: bytes) -> None:
        """`out` was unpacked."""

    def _finish(self) -> None:
        """A stream has ended well."""

    def _zeros(self) -> None:
        while self._more(1):
            rest = bytes(self._view[self._low : self._high])
            nulls = len(rest) - len(rest.lstrip(b"\0"))
            self._low += nulls
            if nulls < len(rest):
                break

    def _next(self) -> bool:
        """Start the next stream; False at the end."""
        if self._streams and self.padding:
            self._zeros()
        if not self._more(1):
            if self._parent.trouble:
                self._stop(self._parent.trouble)
            elif not self._streams:
                self._stop(self._cut())
            return False
        self._more(6)
        if self._streams and not bytes(self._view[self._low : self._high][:6]).startswith(self.magics):
            self._remark()
            return False
        self._engine = self._start()
        return True

    def _remark(self) -> None:
        self.remark = f"what follows the end of the {self.name} stream is not {self.name} and was left out"


class _Bzip2(_Unpack):
    name, tool, magics = "bzip2", "bzip2recover", (b"BZh",)

    def __init__(self, parent: _Reader, meter: _Meter) -> None:
        super().__init__(parent, meter, _buffered(bz2.BZ2Decompressor))


class _Xz(_Unpack):
    name, tool, magics, padding = "xz", "xz -dc, which gives what can be read", (b"\xfd7zXZ\0",), 4

    def __init__(self, parent: _Reader, meter: _Meter) -> None:
        super().__init__(parent, meter, _buffered(lambda: lzma.LZMADecompressor(lzma.FORMAT_AUTO, LZMA_MEMORY)))


class _Deflate(_Unpack):
    """One raw deflate stream, as zip has them."""

    name, tool = "deflate", "zip -FF"

    def __init__(self, parent: _Reader, meter: _Meter) -> None:
        start, _, errors = _inflater()
        super().__init__(parent, meter, start)
        self.errors = errors

    def _next(self) -> bool:
        if self._streams:
            return False
        self._engine = self._start()
        return True

    def drain(self) -> bool:
        """Go to the end and give back to the parent what lies behind; False if the end was not found."""
        self._held, self._at = b"", 0
        while self._fill(memoryview(bytearray(STEP))):
            pass
        self._parent.unread(bytes(self._view[self._low : self._high]))
        self._low = self._high
        return self._streams == 1


class _Gzip(_Unpack):
    """gzip members one behind the other: a real nvidia-bug-report.log.gz has hundreds. Damaged ones are left out."""

    name, tool = "gzip", "gzip -dc, which gives what can be read"

    def __init__(self, parent: _Reader, meter: _Meter) -> None:
        start, self._crc32, errors = _inflater()
        super().__init__(parent, meter, start)
        self.errors = errors
        self._crc = self._length = 0
        self._restarts = 0
        self._glue = False

    def _seen(self, out: bytes) -> None:
        self._crc = self._crc32(out, self._crc)
        self._length += len(out)

    def _finish(self) -> None:
        if not self._more(8):
            self._low = self._high
            self._stop(self._parent.trouble or self._cut())
            return
        crc, length = struct.unpack_from("<II", self._view, self._low)
        self._low += 8
        if (crc, length) != (self._crc, self._length & 0xFFFFFFFF):
            self.trouble = self.trouble or (
                f"the gzip checksum is wrong after {_amount(self._given)} of text: some of it is damaged. "
                "Copy it again in binary mode"
            )

    def _next(self) -> bool:
        if self._streams:
            self._zeros()
        if not self._more(1):
            if self._parent.trouble:
                self._stop(self._parent.trouble)
            return False
        if not self._at_member():
            self._more(4)
            rest = bytes(self._view[self._low : self._high])
            if len(rest) < 4 and b"\x1f\x8b\x08".startswith(rest[:3]):
                self._stop(self._parent.trouble or self._cut())
                return False
            before = self._given
            if not self._resync():
                if self._streams:
                    self._remark()
                else:
                    self._stop("it starts like gzip, but isn't. Copy it again in binary mode")
                return False
            self.trouble = self.trouble or f"damaged after {_amount(before)} of text: a part is no gzip member"
        if not self._header():
            self._stop(self._parent.trouble or self._cut())
            return False
        self._engine, self._crc, self._length = self._start(), 0, 0
        return True

    def _at_member(self) -> bool:
        """Whether a member starts here: magic, method 8, no reserved flag (RFC 1952 §2.3)."""
        return (
            self._more(4)
            and bytes(self._view[self._low : self._low + 3]) == b"\x1f\x8b\x08"
            and not self._view[self._low + 3] & 0xE0
        )

    def _resync(self) -> bool:
        """Go to the next place where a member seems to start."""
        if self._restarts >= RESTARTS:
            return False
        self._restarts += 1
        self._low += 1
        while self._more(4):
            if self._of.over():
                return False
            found = self._buffer.find(b"\x1f\x8b\x08", self._low, self._high)
            if found < 0:
                self._low = max(self._high - 3, self._low + 1)
                continue
            self._low = found
            if self._at_member():
                return True
            self._low += 1
        return False

    def _damaged(self, why: str, view: memoryview) -> int:
        self.trouble = self.trouble or (
            f"the gzip stream is damaged after {_amount(self._given)} of text ({why}); whole members behind the damage "
            f"are used. Copy it again in binary mode, or try {self.tool}"
        )
        self._engine = None
        self._streams += 1  # what follows may be anything
        if not self._resync():
            self._over = True
        elif len(view):
            view[:1] = b"\n"  # half a line must not become one with the next member's first
            return 1
        return 0

    def _header(self) -> bool:
        """Pass over a member's header (RFC 1952 §2.3); False if it is cut."""
        if not self._more(10):
            return False
        flags = self._view[self._low + 3]
        self._low += 10
        if flags & 4:
            if not self._more(2):
                return False
            extra = int.from_bytes(self._view[self._low : self._low + 2], "little")
            self._low += 2
            while extra:
                if not self._more(1):
                    return False
                step = min(extra, self._high - self._low)
                self._low += step
                extra -= step
        for flag in (8, 16):  # name and comment, each ends in a NUL
            if not flags & flag:
                continue
            while True:
                if not self._more(1) or self._of.over():
                    return False
                end = self._buffer.find(b"\0", self._low, self._high)
                self._low = self._high if end < 0 else end + 1
                if end >= 0:
                    break
        if flags & 2:
            if not self._more(2):
                return False
            self._low += 2
        return True


class _ZstdFrames:
    """Follows a zstd stream's frames from header to header (RFC 8878 §3.1): zstandard doesn't tell that one is cut.

    It stands between the compressed stream and zstandard's reader and gives it whole frames only, as far as they go.
    """

    def __init__(self, parent: _Reader, meter: _Meter) -> None:
        self._parent, self._of = parent, meter
        self.foreign = False
        """Something that is no frame follows."""
        self.frames = 0
        self._stage = "magic"
        self._small = bytearray()
        self._want = 4
        self._pass = 0
        self._checksum = False

    @property
    def whole(self) -> bool:
        """At a frame's end."""
        return self._stage == "magic" and not self._small and not self._pass

    def read(self, size: int = -1) -> bytes:
        if self.foreign or self._of.over():
            return b""
        piece = bytearray(FEED if size < 0 else min(size, FEED))
        n = self._parent.readinto(piece)
        return bytes(piece[: self._follow(memoryview(piece)[:n])])

    def _follow(self, data: memoryview) -> int:
        """How many bytes of `data` belong to frames."""
        at = 0
        while at < len(data):
            if self._pass:
                step = min(self._pass, len(data) - at)
                self._pass -= step
                at += step
                continue
            step = min(self._want - len(self._small), len(data) - at)
            self._small += data[at : at + step]
            at += step
            if len(self._small) == self._want and not self._step(bytes(self._small)):
                self.foreign = True
                return max(at - self._want, 0)
        return at

    def _to(self, stage: str, want: int, leap: int = 0) -> bool:
        self._stage, self._want, self._pass = stage, want, leap
        self._small.clear()
        return True

    def _step(self, small: bytes) -> bool:
        if self._stage == "magic":
            if small == b"\x28\xb5\x2f\xfd":
                return self._to("descriptor", 1)
            return small[1:] == b"\x2a\x4d\x18" and small[0] >> 4 == 5 and self._to("skippable", 4)
        if self._stage == "skippable":
            return self._to("magic", 4, int.from_bytes(small, "little"))
        if self._stage == "descriptor":
            flags = small[0]
            single = flags >> 5 & 1
            self._checksum = bool(flags & 4)
            size = (single, 2, 4, 8)[flags >> 6]
            return self._to("block", 3, (not single) + (0, 1, 2, 4)[flags & 3] + size)
        head = int.from_bytes(small, "little")
        length = 1 if head >> 1 & 3 == 1 else head >> 3
        if not head & 1:
            return self._to("block", 3, length)
        self.frames += 1
        return self._to("magic", 4, length + 4 * self._checksum)


class _Zstd(_Reader):
    """zstd frames by the zstandard package."""

    def __init__(self, parent: _Reader, meter: _Meter) -> None:
        import zstandard

        super().__init__()
        self._parent, self._of = parent, meter
        self._frames = _ZstdFrames(parent, meter)
        self._error = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(
            cast(Any, self._frames), read_size=FEED, read_across_frames=True
        )
        self._given = 0

    def _fill(self, view: memoryview) -> int:
        got = 0
        while got < len(view) and not self.trouble:
            if over := self._of.over():
                self.trouble = over
                break
            try:
                n = self._stream.readinto(view[got : got + 2 * STEP])  # a block at most
            except self._error as error:
                why = str(error).removeprefix("zstd decompress error: ")
                self.trouble = (
                    f"the zstd stream cannot be read after {_amount(self._given)} of text ({why}). "
                    "Copy it again in binary mode, or unpack it with zstd -d --long=31"
                )
                break
            got += n
            self._given += n
            if not n:
                self._ended()
                break
        self._of.unpacked(got)
        return got

    def _ended(self) -> None:
        over = self._of.over() or self._parent.trouble
        if over or (not self._frames.whole and not self._frames.foreign):
            self.trouble = over or (
                f"the zstd stream breaks off; {_amount(self._given)} of text come before the cut. Copy it again"
            )
        elif self._frames.foreign:
            self.remark = "what follows the end of the zstd stream is not zstd and was left out"


class _StdlibZstd(_Unpack):
    """zstd frames by the standard library (Python 3.14 and later)."""

    name, tool, magics = (
        "zstd",
        "zstd -d",
        (b"\x28\xb5\x2f\xfd", *(bytes((x, 0x2A, 0x4D, 0x18)) for x in range(80, 96))),
    )

    def __init__(self, parent: _Reader, meter: _Meter, module: Any) -> None:
        def make() -> Any:
            return module.ZstdDecompressor(options={module.DecompressionParameter.window_log_max: 27})

        super().__init__(parent, meter, _buffered(make))
        self.errors = (*_Unpack.errors, module.ZstdError)


def _zstd(parent: _Reader, meter: _Meter) -> _Reader | None:
    """A zstd reader; None if nothing that reads zstd is installed."""
    try:
        return _Zstd(parent, meter)
    except ImportError:
        pass
    try:
        from importlib import import_module

        return _StdlibZstd(parent, meter, import_module("compression.zstd"))
    except ImportError:
        return None


class _Recode(_Reader):
    """UTF-16 or UTF-32 text as UTF-8. What is no character becomes U+FFFD."""

    def __init__(self, parent: _Reader, encoding: str) -> None:
        super().__init__()
        self._parent = parent
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._out = memoryview(b"")
        self._piece = bytearray(STEP)

    @property
    def taken(self) -> int:
        return self._parent.taken

    def _fill(self, view: memoryview) -> int:
        while not len(self._out):
            n = self._parent.readinto(self._piece)
            self._out = memoryview(self._decoder.decode(self._piece[:n]).encode())
            if not n:
                self.trouble, self.remark = self._parent.trouble, self._parent.remark
                break
        n = min(len(self._out), len(view))
        view[:n] = self._out[:n]
        self._out = self._out[n:]
        return n


class _Checked(_Reader):
    """A zip member, held against the CRC-32 and the size that the archive's table gives."""

    def __init__(self, parent: _Reader, crc: int, size: int) -> None:
        super().__init__()
        self._parent, self._want, self._size = parent, crc, size
        self._crc32 = _inflater()[1]
        self._crc = self._given = 0

    def _fill(self, view: memoryview) -> int:
        n = self._parent.readinto(view)
        if n:
            self._crc = self._crc32(view[:n], self._crc)
            self._given += n
            return n
        self.trouble, self.remark = self._parent.trouble, self._parent.remark
        if not self.trouble and (self._crc, self._given) != (self._want, self._size):
            self.trouble = "the zip checksum or size is wrong: some of it is damaged. Copy the archive again"
        return 0


# --- what a file is -------------------------------------------------------------------------------------------------

_CONVERT: tuple[tuple[int, bytes, str], ...] = (
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it (7z x FILE) and give the folder"),
    (0, b"Rar!\x1a\x07", "a rar archive: unpack it (unrar x FILE, or 7z x FILE) and give the folder"),
    (0, b"\x04\x22\x4d\x18", "lz4: unpack it (lz4 -d FILE) and give the result"),
    (0, b"\x1f\x9d", "an old compress file (.Z): unpack it (gzip -d FILE) and give the result"),
    (0, b"LZIP", "lzip: unpack it (lzip -d FILE) and give the result"),
    (0, b"\x89LZO\0\r\n", "lzop: unpack it (lzop -d FILE) and give the result"),
    (0, b"070701", "a cpio archive: unpack it (cpio -id < FILE) and give the folder"),
    (0, b"070702", "a cpio archive: unpack it (cpio -id < FILE) and give the folder"),
    (0, b"070707", "a cpio archive: unpack it (cpio -id < FILE) and give the folder"),
    (0, b"MSCF\0\0\0\0", "a Windows cabinet: unpack it (7z x FILE) and give the folder"),
    (0, b"!<arch>\n", "an ar archive or .deb: unpack it (ar x FILE) and give the folder"),
    (0, b"\xed\xab\xee\xdb", "an rpm package: no log"),
    (
        0,
        b"LPKSHHRH",
        "a binary systemd journal: convert it (unpack it first if it is compressed) with "
        "journalctl --file FILE -o short-iso-precise > FILE.log, and give that",
    ),
    (0, b"ElfFile\0", "a Windows event log: convert it (wevtutil qe FILE /lf /f:text > FILE.log) and give that"),
    (0, b"KDUMP   ", "a kernel crash dump: take its log out (makedumpfile --dump-dmesg FILE FILE.log) and give that"),
    (0, b"\x89PNG\r\n\x1a\n", "an image: copy the text itself out of the terminal or log viewer"),
    (0, b"\xff\xd8\xff", "an image: copy the text itself out of the terminal or log viewer"),
    (0, b"GIF8", "an image: copy the text itself out of the terminal or log viewer"),
    (0, b"II*\0", "an image: copy the text itself out of the terminal or log viewer"),
    (8, b"WEBPVP8", "an image: copy the text itself out of the terminal or log viewer"),
    (4, b"ftyp", "a video or image: copy the text itself out of the terminal or log viewer"),
    (0, b"%PDF-", "a PDF: convert it (pdftotext -layout FILE FILE.txt) and give that"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document or mail: save its text as a .txt file"),
    (0, b"SQLite format 3\0", "an SQLite database: export what it holds as text"),
    (0, b"PERFILE2", "a perf recording: convert it (perf script -i FILE > FILE.txt) if it matters"),
    (0, b"\xd4\xc3\xb2\xa1", "a packet capture: no log"),
    (0, b"\x0a\x0d\x0d\x0a", "a packet capture: no log"),
    (0, b"\x93NUMPY", "a NumPy array: no log"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file: no log"),
    (0, b"PAR1", "a Parquet file: convert it to CSV or JSON if it holds logs"),
    (0, b"\xca\xfe\xba\xbe", "a compiled program: no log"),
    (0, b"MZ\x90\0", "a Windows program: if it unpacks itself, run it and give what comes out"),
)


_AT_START = tuple(magic for offset, magic, _ in _CONVERT if not offset)


def _cannot(head: bytes, name: str) -> str | None:
    """Why a file that starts like this is not analysed, and what to do about it."""
    first = head.startswith(_AT_START)
    for offset, magic, reason in _CONVERT:
        if (first or offset) and head.startswith(magic, offset):
            name = re.sub(r"\.(?:gz|bz2|xz|zst)$", "", name)
            return reason.replace("FILE", name if re.fullmatch(r"\w[\w.,+-]*", name) else "FILE")
    if head.startswith(b"\x7fELF"):
        core = len(head) > 18 and int.from_bytes(head[16:18], "big" if head[5] == 2 else "little") == 4
        if not core:
            return "a compiled program: no log"
        return "a core dump: write its stacks down (gdb -batch -ex 'thread apply all bt' PROGRAM CORE > bt.txt)"
    if head.startswith(b"PK\x03\x04"):
        length = int.from_bytes(head[26:28], "little")
        member = head[30 : 30 + length]
        if member == b"[Content_Types].xml":
            return "an Office document: save its text as a .txt file and give that"
        if member.endswith(b"/data.pkl"):
            return "a PyTorch checkpoint: no log"
    return None


_PRINTABLE = bytes((*b"\t\r\n\x1b", *range(32, 127)))


def _encoding(head: bytes) -> tuple[str | None, int]:
    """Encoding that is not UTF-8, or None, and the length of the byte order mark."""
    if head.startswith(codecs.BOM_UTF8):
        return None, 3
    if head.startswith(codecs.BOM_UTF32_LE):
        return "utf-32-le", 4
    if head.startswith(codecs.BOM_UTF32_BE):
        return "utf-32-be", 4
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le", 2
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be", 2
    # The tail of a UTF-16 file has no mark: nearly every second byte is NUL, the others are printable ASCII.
    some = head[: min(len(head), 512) & ~1]
    if len(some) >= 16:
        for first, encoding in ((0, "utf-16-le"), (1, "utf-16-be")):
            text, nulls = some[first::2], some[1 - first :: 2]
            if nulls.count(0) >= 0.9 * len(nulls) and len(text.translate(None, _PRINTABLE)) <= 0.1 * len(text):
                return encoding, 0
    return None, 0


def _shown(name: str | bytes, most: int = LONGEST_NAME) -> str:
    """A name fit to be shown: valid Unicode, nothing that cannot be printed or turns the line round, not too long."""
    if isinstance(name, str):
        try:
            raw = name.encode("utf-8", "surrogateescape")  # as Python holds file names that are not UTF-8
        except UnicodeEncodeError:
            raw = name.encode("utf-8", "backslashreplace")
    else:
        raw = name
    text = raw[: 16 * most].decode("utf-8", "backslashreplace")
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-most // 2 :]}"
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else _escaped(ord(x)) for x in text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _last(path: str) -> str:
    return re.split(r"[/!\\]" if os.sep == "\\" else "[/!]", path.rstrip("/"))[-1] or path


def _said(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


# --- one file and all that is in it ---------------------------------------------------------------------------------

EMPTY = "empty (0 bytes): was the job's log still buffered when it was copied, or the disk full?"


@dataclass(slots=True)
class _Place:
    """Where a stream was found."""

    path: str
    depth: int = 0
    size: int | None = None
    mtime_ns: int | None = None
    seen: dict[int, int] = field(default_factory=dict)
    """Of an archive: hash of a member's name → how often it was there."""

    def refused(self, reason: str, status: Status = "skipped") -> Source:
        return Source(self.path, _last(self.path), size=self.size, mtime_ns=self.mtime_ns, status=status, reason=reason)

    def member(self, name: bytes, size: int | None, mtime_ns: int | None) -> _Place:
        """A member of this archive. A name that was there before gets a number, so that paths stay unlike."""
        shown = _shown(name).removeprefix("./") or "(no name)"
        times = self.seen[hash(name)] = self.seen.get(hash(name), 0) + 1
        if times > 1:
            shown += f" ({times})"
        return _Place(f"{self.path}!{shown}", self.depth, size, mtime_ns)


def _sources(reader: _Reader, place: _Place, meter: _Meter) -> Iterator[Source]:
    """What is in a stream: itself, or the members of the archive that it is."""
    meter.totals.members += 1
    if meter.totals.members > meter.limits.members:
        return  # the loop that drew this one says so
    head = reader.peek(HEAD)
    if not head:
        yield place.refused(reader.trouble or EMPTY, "failed" if reader.trouble else "skipped")
        return
    layer = _layer(head)
    if layer is not None:
        if place.depth >= meter.limits.depth:
            deep = f"more than {meter.limits.depth} layers of archives ({option('depth')}): unpack it, give the folder"
            yield place.refused(deep)
            return
        meter.totals.members -= 1
        place.depth += 1
        yield from layer(reader, place, meter)
        return
    if reason := _cannot(head, _last(place.path)):
        yield place.refused(reason)
        return
    encoding, mark = _encoding(head)
    if mark:
        reader.read(mark)
    if encoding:
        reader = _Recode(reader, encoding)
    if not reader.peek(1):
        yield place.refused(reader.trouble or EMPTY, "failed" if reader.trouble else "skipped")
        return
    source = Source(place.path, _last(place.path), size=place.size, mtime_ns=place.mtime_ns, reader=reader)
    reader.meter = meter
    meter.leave()
    try:
        yield source
    finally:
        reader.meter = None
        meter.enter()
        if not isinstance(reader, _Disk):
            reader.close()


Layer = Callable[[_Reader, _Place, _Meter], Iterator[Source]]


def _layer(head: bytes) -> Layer | None:
    """What opens a compressed stream or an archive that starts like this."""
    if head.startswith(b"\x1f\x8b\x08"):
        return _unpacked(_Gzip)
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return _unpacked(_Bzip2)
    if head.startswith(b"\xfd7zXZ\0") or (head.startswith(b"\x5d\0\0") and head[5:13] == b"\xff" * 8):
        return _unpacked(_Xz)
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return _unpacked(_zstd)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")) and not _cannot(head, ""):
        return _zip
    if _tar_header(head[:512]) is not None:
        return _tar
    return None


def _unpacked(make: Callable[[_Reader, _Meter], _Reader | None]) -> Layer:
    def layer(reader: _Reader, place: _Place, meter: _Meter) -> Iterator[Source]:
        inner = make(reader, meter)
        if inner is None:
            yield place.refused("zstd: install the reader (pip install zstandard), or unpack it (zstd -d FILE)")
            return
        yield from _sources(inner, place, meter)

    return layer


def _members(n: int) -> str:
    return "1 member" if n == 1 else f"{n:,} members"


def _full(place: _Place, meter: _Meter) -> Source | None:
    """The row that ends an archive, if a limit does."""
    if meter.totals.members >= meter.limits.members:
        return place.refused(
            f"stopped: more than {meter.limits.members:,} files in all ({option('members')}); the rest was not read",
            "partial",
        )
    return None


# --- tar ------------------------------------------------------------------------------------------------------------

PAX_BYTES = 1 << 20
"""Most bytes of an extended header that are looked at. Our judgement: names end at 4 kB."""


@dataclass(slots=True)
class _TarHeader:
    name: bytes
    size: int
    mtime_s: int
    kind: bytes
    link: bytes
    more: bool
    """Old GNU sparse: a block with more of the map follows."""


def _number(field_: bytes) -> int | None:
    """A tar number: octal digits, or base 256 where the first bit is set (GNU tar manual, "Basic Tar Format")."""
    if field_[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field_[1:], "big") if field_[0] == 0x80 else None
    digits = field_.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else None


def _tar_header(block: bytes) -> _TarHeader | None:
    """A header with a right checksum, of any tar since 1979; None for anything else."""
    if len(block) < 512:
        return None
    said = _number(block[148:156])
    if not said:
        return None
    rest = block[:148] + b" " * 8 + block[156:]
    if said not in (sum(rest), sum(rest) - 256 * sum(x > 127 for x in rest)):  # some old tars summed signed bytes
        return None
    size, mtime = _number(block[124:136]), _number(block[136:148])
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":  # not GNU's "ustar ": it has other things there
        prefix = block[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    if size is None or size >= 1 << 62:
        return None
    kind, link = block[156:157], block[157:257].split(b"\0", 1)[0]
    return _TarHeader(name, size, mtime or 0, kind, link, kind == b"S" and block[482] == 1)


def _pax(data: bytes) -> dict[bytes, bytes]:
    """The records "LENGTH KEY=VALUE\\n" of an extended header, as far as they can be read."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        length = re.compile(rb"(\d{1,9}) ").match(data, at)
        if not length or int(length[1]) <= len(length[0]) or at + int(length[1]) > len(data):
            break
        end = at + int(length[1])
        key, equals, value = data[length.end() : end - 1].partition(b"=")
        if equals:
            found[key] = value
        at = end
    return found


_KINDS = {
    b"3": "a device: not a file",
    b"4": "a device: not a file",
    b"6": "a named pipe: not a file",
    b"M": "a part of a multi-volume tar: put the volumes together (tar -xM) and give the folder",
}


def _tar(reader: _Reader, archive: _Place, meter: _Meter) -> Iterator[Source]:
    """The members of a tar, read forwards. Damaged headers are skipped to the next good one."""
    pax_all: dict[bytes, bytes] = {}
    pax: dict[bytes, bytes] = {}
    long_name: bytes | None = None
    long_link: bytes | None = None
    found = 0
    zeros = damaged = 0
    while True:
        if full := _full(archive, meter):
            yield full
            return
        if over := meter.over():
            yield archive.refused(over, "partial")
            return
        block = reader.read(512)
        if len(block) < 512:
            if reader.trouble or block or not zeros:
                why = reader.trouble or "the tar has no end mark: it breaks off. Copy it again"
                yield archive.refused(f"{why} ({_members(found)} before it)", "partial" if found else "failed")
            break
        if not block.strip(b"\0"):
            zeros += 1
            continue
        header = _tar_header(block)
        if header is None:
            if zeros:
                break  # padding behind the end mark
            damaged += 1
            skipped = _to_header(reader, meter) if damaged <= RESTARTS else None
            rest = "the rest was not read" if skipped is None else f"{_amount(skipped + 512)} were left out"
            yield archive.refused(
                f"a tar header is damaged after {_members(found)}: {rest}. Copy the archive again in binary mode",
                "partial" if found or skipped is not None else "failed",
            )
            if skipped is None:
                break
            continue
        zeros = 0
        size = _number_or(pax.get(b"size") or pax_all.get(b"size"), header.size)
        if header.kind in b"123456":  # these have no data, whatever they say
            size = 0
        body = _Part(reader, size)
        if header.kind in b"xXgLK":
            data = body.read(min(size, PAX_BYTES))
            if header.kind == b"g":
                pax_all = _pax(data)
            elif header.kind in b"xX":
                pax = _pax(data)
            elif header.kind == b"L":
                long_name = data.split(b"\0", 1)[0]
            else:
                long_link = data.split(b"\0", 1)[0]
            body.drain()
            reader.skip(-size % 512)
            continue
        name = pax.get(b"GNU.sparse.name") or pax.get(b"path") or long_name or pax_all.get(b"path") or header.name
        link = pax.get(b"linkpath") or long_link or header.link
        mtime_ns = _time_ns(pax.get(b"mtime"), header.mtime_s)
        more = header.more
        while more:
            block = reader.read(512)
            more = len(block) == 512 and block[504] == 1
        kind = header.kind
        if kind == b"5" or (kind in b"0\0" and name.endswith(b"/")) or kind in b"VD":
            pass
        elif kind in b"12":
            found += 1
            meter.totals.members += 1
            target = _shown(link)
            says = (
                f"another name of {target}, which is read under that name"
                if kind == b"1"
                else f"link to {target}: not followed. If that is missing here, pack it with tar -h"
            )
            yield archive.member(name, size, mtime_ns).refused(says)
        elif kind in b"346M":
            found += 1
            meter.totals.members += 1
            yield archive.member(name, size, mtime_ns).refused(_KINDS[kind])
        else:
            found += 1
            if pax.get(b"GNU.sparse.major") == b"1":
                _sparse_map(body)
            yield from _sources(body, archive.member(name, size, mtime_ns), meter)
        pax, long_name, long_link = {}, None, None
        if body.drain():
            reader.skip(-size % 512)
    if not found and not damaged and zeros:
        yield archive.refused("an archive without a file in it")


def _number_or(digits: bytes | None, otherwise: int) -> int:
    return int(digits) if digits and re.fullmatch(rb"\d{1,18}", digits) else otherwise


def _time_ns(pax: bytes | None, header_s: int) -> int | None:
    """Modification time, ns UTC; None for one before 1980 or after 2200: then nobody set it."""
    whole, fraction = header_s, 0
    if pax and (parts := re.fullmatch(rb"(\d{1,12})(?:\.(\d{1,20}))?", pax)):
        whole, fraction = int(parts[1]), int((parts[2] or b"").ljust(9, b"0")[:9])
    return whole * 10**9 + fraction if 315_532_800 <= whole < 7_258_118_400 else None


def _to_header(reader: _Reader, meter: _Meter) -> int | None:
    """Go to the next good header; the bytes passed over, None if there is none."""
    passed = 0
    while not meter.over():
        block = reader.peek(512)
        if len(block) < 512:
            return None
        if block[257:262] == b"ustar" and _tar_header(block[:512]) is not None:
            return passed
        reader.skip(512)
        passed += 512
    return None


def _sparse_map(body: _Part) -> None:
    """Pass over the map before a sparse file's data (GNU tar manual, "PAX Format, Version 1.0"). Holes stay out."""
    block = body.read(512)
    count = _number_or(block.split(b"\n", 1)[0], 0)
    lines = block.count(b"\n")
    while lines < 2 * count + 1:
        block = body.read(512)
        if not block:
            return
        lines += block.count(b"\n")


# --- zip ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ZipEntry:
    """A member as the table, or the header before its data, describes it (APPNOTE 4.3.7, 4.3.12)."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int | None
    """Unix file mode, where the archive tells."""
    offset: int
    mtime_ns: int | None


def _zip_extra(extra: bytes, entry: _ZipEntry, offset_too: bool) -> None:
    """Take 64-bit sizes (id 1, APPNOTE 4.5.3) and the UTC time (id 0x5455, Info-ZIP extrafld.txt) from the field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        data = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind == 1:
            values = iter([x[0] for x in struct.iter_unpack("<Q", data[: len(data) & ~7])])
            if entry.size == 0xFFFFFFFF:
                entry.size = next(values, entry.size)
            if entry.packed == 0xFFFFFFFF:
                entry.packed = next(values, entry.packed)
            if offset_too and entry.offset == 0xFFFFFFFF:
                entry.offset = next(values, entry.offset)
        elif kind == 0x5455 and len(data) >= 5 and data[0] & 1:
            entry.mtime_ns = _time_ns(None, int.from_bytes(data[1:5], "little"))


def _zip_name(name: bytes, flags: int) -> bytes:
    """UTF-8 where it is, else code page 437, as APPNOTE's appendix D has it; Windows' own slashes turned."""
    if not flags & 0x800:
        try:
            name.decode()
        except UnicodeDecodeError:
            name = name.decode("cp437").encode()
    return name if b"/" in name else name.replace(b"\\", b"/")


def _zip(reader: _Reader, archive: _Place, meter: _Meter) -> Iterator[Source]:
    """The members of a zip: by its table where all of it can be reached, else forwards from header to header."""
    table: _Disk | _Memory
    if isinstance(reader, _Disk) and reader.size is not None:
        table = reader
    else:
        data = reader.read(meter.limits.memory_bytes + 1)
        if len(data) > meter.limits.memory_bytes:
            reader.unread(data)
            yield from _zip_forwards(reader, archive, meter, "")
            return
        table = _Memory(data)
        table.trouble = reader.trouble
    where = _zip_table(table)
    if where is not None:
        yield from _zip_by_table(table, *where, archive, meter)
        return
    table.restart()
    cut = table.trouble or "the zip has no table at its end: it breaks off, or is one part of several. Copy it again"
    yield from _zip_forwards(table, archive, meter, cut)


def _bytes_at(table: _Disk | _Memory, offset: int, n: int) -> bytes:
    """Up to `n` bytes; fewer at the end."""
    if offset < 0:
        return b""
    piece = bytearray(n)
    got = 0
    while got < n and (more := table.read_at(offset + got, memoryview(piece)[got:])):
        got += more
    return bytes(piece[:got])


def _zip_table(table: _Disk | _Memory) -> tuple[int, int, int] | None:
    """Start of the table, its end, and what must be added to the offsets in it; None if there is none."""
    size = table.size or 0
    tail_at = max(0, size - 65_557)
    tail = _bytes_at(table, tail_at, min(size, 65_557))
    at = len(tail)
    while (at := tail.rfind(b"PK\x05\x06", 0, at)) >= 0:
        if at + 22 <= len(tail):
            length, start = struct.unpack_from("<II", tail, at + 12)
            end = tail_at + at
            locator = _bytes_at(table, end - 20, 20)
            if locator.startswith(b"PK\x06\x07"):
                record_at = int.from_bytes(locator[8:16], "little")
                for place in (record_at, end - 20 - 56):
                    record = _bytes_at(table, place, 56)
                    if record.startswith(b"PK\x06\x06"):
                        length, start = struct.unpack_from("<QQ", record, 40)
                        end = place
                        break
            shift = end - length - start
            first = _bytes_at(table, start + shift, 4)
            if shift >= 0 and (first == b"PK\x01\x02" or not length):
                return start + shift, end, shift
    return None


def _zip_by_table(
    table: _Disk | _Memory, start: int, end: int, shift: int, archive: _Place, meter: _Meter
) -> Iterator[Source]:
    at, found = start, 0
    while at + 46 <= end:
        if (full := _full(archive, meter)) or (over := meter.over()):
            yield full or archive.refused(over or "", "partial")
            return
        head = _bytes_at(table, at, 46)
        if not head.startswith(b"PK\x01\x02") or len(head) < 46:
            yield archive.refused(f"the zip's table is damaged after {_members(found)}. Copy it again", "partial")
            return
        flags, method = struct.unpack_from("<HH", head, 8)
        crc, packed, size, name_n, extra_n, comment_n = struct.unpack_from("<IIIHHH", head, 16)
        attributes, offset = struct.unpack_from("<II", head, 38)
        more = _bytes_at(table, at + 46, name_n + extra_n)
        unix = head[5] == 3 and attributes >> 16
        entry = _ZipEntry(more[:name_n], flags, method, crc, packed, size, unix or None, offset, None)
        _zip_extra(more[name_n:], entry, True)
        at += 46 + name_n + extra_n + comment_n
        if entry.name.endswith((b"/", b"\\")) and not entry.size:
            continue
        found += 1
        place = archive.member(_zip_name(entry.name, flags), entry.size, entry.mtime_ns)
        if reason := _zip_refused(entry):
            meter.totals.members += 1
            yield place.refused(reason)
            continue
        local = _bytes_at(table, entry.offset + shift, 30)
        if not local.startswith(b"PK\x03\x04") or len(local) < 30:
            yield place.refused("its data is not where the zip's table says. Copy the archive again", "failed")
            continue
        data_at = entry.offset + shift + 30 + sum(struct.unpack_from("<HH", local, 26))
        body = _zip_method(_Slice(table, data_at, entry.packed), entry, meter)
        yield from _zip_member(body, entry, place, meter)
    if not found:
        yield archive.refused("an archive without a file in it")


def _zip_refused(entry: _ZipEntry) -> str | None:
    if entry.mode is not None and stat.S_ISLNK(entry.mode):
        return "a link: not followed. If what it points to is missing here, pack it without zip -y"
    if entry.mode is not None and stat.S_IFMT(entry.mode) not in (0, stat.S_IFREG):
        return "a device, pipe or folder: not a file"
    if entry.flags & 1 or entry.method == 99:
        return "encrypted: unpack the zip with its password and give the folder"
    if entry.method == 9:
        return "packed with deflate64 (Windows does so above 2 GB): unpack the zip (7z x) and give the folder"
    if entry.method not in (0, 8, 12, 14, 93, 95):
        return f"packed in a way that is not supported (method {entry.method}): unpack the zip (7z x), give the folder"
    return None


def _zip_lzma(packed: _Reader, meter: _Meter) -> _Reader:
    """LZMA in a zip: version, length of the properties, properties, raw stream (APPNOTE 5.8)."""
    head = packed.read(9)
    if len(head) < 9 or head[2:4] != b"\x05\0" or head[4] >= 225 or int.from_bytes(head[5:9], "little") > LZMA_MEMORY:
        nothing = _Memory(b"")
        nothing.trouble = (
            packed.trouble or "its LZMA header is damaged, or wants too much memory: unpack the zip (7z x)"
        )
        return nothing
    lc, rest = head[4] % 9, head[4] // 9
    filters = [
        {
            "id": lzma.FILTER_LZMA1,
            "dict_size": max(int.from_bytes(head[5:9], "little"), 4096),
            "lc": lc,
            "lp": rest % 5,
            "pb": rest // 5,
        }
    ]
    one = _Xz(packed, meter)
    one.name, one.magics = "lzma", (b"\0none",)
    one._start = _buffered(lambda: lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters))
    return one


def _zip_method(packed: _Reader, entry: _ZipEntry, meter: _Meter) -> _Reader | None:
    """The member's bytes, unpacked; None if nothing that reads zstd is installed."""
    if entry.method == 8:
        return _Deflate(packed, meter)
    if entry.method == 12:
        return _Bzip2(packed, meter)
    if entry.method == 14:
        return _zip_lzma(packed, meter)
    if entry.method == 93:
        return _zstd(packed, meter)
    if entry.method == 95:
        return _Xz(packed, meter)
    return packed


def _zip_member(body: _Reader | None, entry: _ZipEntry, place: _Place, meter: _Meter) -> Iterator[Source]:
    if body is None:
        yield place.refused("packed with zstd: install the reader (pip install zstandard), or unpack the zip")
    else:
        # LZMA without an end mark ends where its size says; the others end by themselves.
        whole: _Reader = _Part(body, entry.size) if entry.method == 14 else body
        yield from _sources(_Checked(whole, entry.crc, entry.size), place, meter)


def _zip_forwards(reader: _Reader, archive: _Place, meter: _Meter, cut: str) -> Iterator[Source]:
    """Members from header to header, for a zip whose table is out of reach or missing (then `cut` says so)."""
    found = 0
    while True:
        if (full := _full(archive, meter)) or (over := meter.over()):
            yield full or archive.refused(over or "", "partial")
            return
        mark = reader.peek(4)[:4]
        if mark == b"PK\x07\x08" and not found:
            reader.skip(4)  # a zip that was meant for several disks and fits on one
            continue
        if mark != b"PK\x03\x04":
            break
        head = reader.read(30)
        if len(head) < 30:
            break
        flags, method = struct.unpack_from("<HH", head, 6)
        crc, packed, size, name_n, extra_n = struct.unpack_from("<IIIHH", head, 14)
        name, extra = reader.read(name_n), reader.read(extra_n)
        if len(extra) < extra_n:
            break
        later = bool(flags & 8) and not packed
        entry = _ZipEntry(name, flags, method, crc, packed, size, None, 0, None)
        _zip_extra(extra, entry, False)
        later = later or (bool(flags & 8) and not entry.packed)
        if name.endswith((b"/", b"\\")) and not entry.size and not later:
            reader.skip(entry.packed)
            continue
        found += 1
        place = archive.member(_zip_name(name, flags), None if later else entry.size, entry.mtime_ns)
        reason = _zip_refused(entry)
        if not later:
            part = _Part(reader, entry.packed)
            if reason:
                meter.totals.members += 1
                yield place.refused(reason)
            else:
                yield from _zip_member(_zip_method(part, entry, meter), entry, place, meter)
            if not part.drain():
                cut = cut or reader.trouble or "the zip breaks off here. Copy it again"
                break
            continue
        if reason or method != 8:
            meter.totals.members += 1
            yield place.refused(reason or "its length stands nowhere before it: unpack the zip and give the folder")
            cut = "a member's end cannot be found, and what follows was not read. Unpack the zip and give the folder"
            break
        body = _Deflate(reader, meter)
        yield from _sources(_Through(body), place, meter)
        if not body.drain() or not _zip_descriptor(reader):
            cut = cut or reader.trouble or body.trouble or "the zip breaks off or is damaged here. Copy it again"
            break
    else:  # pragma: no cover
        return
    if not cut and reader.peek(4)[:4] not in (b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x08"):
        cut = reader.trouble or "the zip breaks off or is damaged here. Copy it again"
    if cut:
        yield archive.refused(f"{cut} ({_members(found)} found)", "partial" if found else "failed")
    elif not found:
        yield archive.refused("an archive without a file in it")


class _Through(_Reader):
    """Another reader's bytes: closing this one leaves that one usable."""

    def __init__(self, parent: _Reader) -> None:
        super().__init__()
        self._parent = parent

    def _fill(self, view: memoryview) -> int:
        n = self._parent.readinto(view)
        self.trouble, self.remark = self._parent.trouble, self._parent.remark
        return n


def _zip_descriptor(reader: _Reader) -> bool:
    """Pass over the CRC and sizes behind a member (APPNOTE 4.3.9): 12 or 20 bytes, and a mark that may be missing."""
    some = reader.peek(28)[:28]
    for length in (16, 24) if some.startswith(b"PK\x07\x08") else (12, 20):
        if some[length : length + 4] in (b"PK\x03\x04", b"PK\x01\x02", b"PK\x06\x08"):
            reader.skip(length)
            return True
    return False


# --- the pile -------------------------------------------------------------------------------------------------------


def files(paths: Sequence[str | Path], *, limits: Limits = Limits()) -> Iterator[File]:
    """Every file in `paths`, folders walked in the order of their names, none opened: work to share out.

    Raises InputError, before it gives anything, for a path that doesn't exist.
    """
    for path in paths:
        if str(path) == "-":
            continue
        try:
            Path(path).stat()
        except FileNotFoundError:
            hint = " Did the shell leave a pattern as it is?" if set(str(path)) & set("*?[") else ""
            broken = " (a link to nothing)" if Path(path).is_symlink() else ""
            raise InputError(
                f"{_shown(str(path))} does not exist{broken}. Is it spelt right, and quoted if it has spaces?{hint}"
            ) from None
        except (OSError, ValueError):
            pass  # becomes a row
    several = len(paths) > 1
    found = itertools.chain.from_iterable(_walk(path, limits, several) for path in paths)
    return itertools.islice(_once(found), limits.members + 1)  # one more, so that `sources` can say that it is too many


Inode = tuple[int, int]


def _once(found: Iterable[tuple[File, Inode | None]]) -> Iterator[File]:
    """Each file once: the user may name a folder and a file in it, and a file may have two names."""
    seen: dict[Inode, str] = {}
    stdin = False
    for one, inode in found:
        if one.real is None and stdin:
            yield _refused(one, "standard input is read only once")
        elif inode in seen:
            yield _refused(one, f"the same file as {seen[inode]}, which is read under that name")
        else:
            stdin = stdin or one.real is None
            if inode is not None:
                seen[inode] = one.path
            yield one


def _refused(file: File, reason: str, status: Status = "skipped") -> File:
    return dataclasses.replace(file, reason=reason, status=status)


_UNREADABLE = "copy it as a user who may read it (sudo), or mend its rights with chmod"


def _walk(path: str | Path, limits: Limits, several: bool) -> Iterator[tuple[File, Inode | None]]:
    """The file at `path`, or the files below it, and what tells a file met before. Links below it are not followed."""
    if str(path) == "-":
        yield File(path="-", real=None, named=True), None
        return
    stack = [(str(path), True)]
    while stack:
        real, named = stack.pop()
        here = File(path=_shown(real, 4096), real=real, named=named)
        try:
            status = Path(real).stat() if named else Path(real).lstat()
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(real) as entries:
                    names = sorted((x.name for x in itertools.islice(entries, limits.members + 1)), reverse=True)
                if not names and named:
                    yield _refused(here, "an empty folder"), None
                below = real if real.endswith(("/", os.sep)) else real + os.sep
                stack += [(below + name, False) for name in names]
                continue
            target = _shown(str(Path(real).readlink())) if stat.S_ISLNK(status.st_mode) else None
        except (OSError, ValueError) as error:
            yield _refused(here, f"cannot be read: {_said(error)}; {_UNREADABLE}", "failed"), None
            continue
        if target is not None:
            says = f"link to {target}: not followed. If that is missing here, copy with cp -rL or name the file itself"
            yield _refused(here, says), None
        elif stat.S_ISREG(status.st_mode):
            here = dataclasses.replace(here, size=status.st_size, mtime_ns=status.st_mtime_ns)
            again = status.st_ino and (several or status.st_nlink > 1)
            yield here, (status.st_dev, status.st_ino) if again else None
        elif stat.S_ISFIFO(status.st_mode):
            yield here if named else _refused(here, "a named pipe: not a file"), None
        else:
            yield _refused(here, "a device or socket: not a file"), None


def _opened(file: File) -> io.FileIO:
    """The file, open for reading. A pipe without a writer doesn't block, a link that slipped in is refused."""
    flags = os.O_RDONLY
    for name in ("O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK", "O_BINARY", "" if file.named else "O_NOFOLLOW"):
        flags |= getattr(os, name, 0) if name else 0
    assert file.real is not None
    descriptor = os.open(file.real, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) and file.named:
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(mode):
            raise OSError("no longer a file")
        return io.FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def sources(
    file: File,
    *,
    stdin: BinaryIO | None = None,
    limits: Limits = Limits(),
    progress: Progress | None = None,
    totals: _Totals | None = None,
) -> Iterator[Source]:
    """All that is in one file: itself, or the members of the archive that it is. Never raises for what is in it."""
    totals = totals if totals is not None else _Totals()
    place = _Place(file.path, size=file.size, mtime_ns=file.mtime_ns)
    if file.reason:
        totals.members += 1
        yield place.refused(file.reason, file.status)
        return
    if full := _full(place, meter := _Meter(file.path, file.size, limits, totals, progress)):
        yield full
        return
    raw: io.FileIO | None = None
    reader: _Reader
    try:
        if file.real is None:
            reader = _Pipe(stdin if stdin is not None else sys.stdin.buffer, meter)
        else:
            raw = _opened(file)
            status = os.fstat(raw.fileno())
            reader = _Disk(raw, meter, status)
            if reader.size is not None:
                place.size = meter.size = reader.size
    except (OSError, ValueError) as error:
        totals.members += 1
        yield place.refused(f"cannot be read: {_said(error)}; {_UNREADABLE}", "failed")
        return
    try:
        meter.enter()
        yield from _sources(reader, place, meter)
        meter.leave()
        meter.tell()
    finally:
        reader.close()
        if raw is not None:
            raw.close()


def collect(
    paths: Sequence[str | Path],
    *,
    stdin: BinaryIO | None = None,
    limits: Limits = Limits(),
    progress: Progress | None = None,
) -> Iterator[Source]:
    """Everything in the pile, one Source after the other, in the order of `paths` and then of names.

    `-` is standard input (`stdin`, if given). A Source is good until the next one is drawn, and may be left unread.
    What isn't read is a Source without a stream and with a reason. Raises InputError, at once, for a path that
    doesn't exist.
    """
    found = files(paths, limits=limits)
    totals = _Totals()
    return _collected(found, stdin, limits, progress, totals)


def _collected(
    found: Iterable[File], stdin: BinaryIO | None, limits: Limits, progress: Progress | None, totals: _Totals
) -> Iterator[Source]:
    for file in found:
        full = totals.members >= limits.members
        yield from sources(file, stdin=stdin, limits=limits, progress=progress, totals=totals)
        if full:
            return
