"""One file or member as a forward stream of bytes that never raises.

From disk, from a pipe, from memory, or a part of another."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from nccl_forensics.intake.limits import Meter, amount
from nccl_forensics.model import Status

HEAD = 4096
"""Bytes that `Source.head` shows: every magic number and every file parser's first look fits."""
STEP = 1 << 16
"""Most bytes that a decompressor is asked for at once: bounds what a bomb can make of it."""


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
        reader: Reader | None = None,
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


class Reader(io.RawIOBase):
    """A forward-only stream that never raises for bad input: it ends, and `trouble` says why."""

    def __init__(self) -> None:
        super().__init__()
        self._held = b""
        self._at = 0
        self._count = 0
        self.trouble: str | None = None
        """Why less came than there should be."""
        self.remark: str | None = None
        self.meter: Meter | None = None
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


class Disk(Reader):
    """A file on disk, up to the size that it had when it was opened: a log that is still written to has no end."""

    def __init__(self, raw: io.FileIO, meter: Meter, status: os.stat_result) -> None:
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
            self.trouble = f"reading failed after {amount(self._from)}: {said(error)}. Copy the file again"
            return 0
        if not n and self.size is not None:
            self.trouble = (
                f"shrank from {amount(self.size)} to {amount(self._from)} while it was read. "
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
                f"grew from {amount(self.size)} to {amount(now)} while it was read, and only the first part was. "
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
            self.trouble = f"reading failed: {said(error)}. Copy the file again"
            return 0
        self._of.disk_bytes += n
        return n

    def restart(self) -> None:
        """Read forwards from the first byte again."""
        self._raw.seek(0)
        self._held, self._at, self._from, self._count, self._data_end = b"", 0, 0, 0, 0


class Pipe(Reader):
    """Standard input."""

    def __init__(self, stream: BinaryIO, meter: Meter) -> None:
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
            self.trouble = f"reading failed: {said(error)}"
            return 0
        self._of.disk_bytes += n
        return n


class Memory(Reader):
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


class Slice(Reader):
    """`size` bytes from `offset` of something that can be read anywhere."""

    def __init__(self, table: Disk | Memory, offset: int, size: int) -> None:
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


class Part(Reader):
    """The next `size` bytes of a stream that goes on behind them."""

    def __init__(self, parent: Reader, size: int) -> None:
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
    return f"the archive breaks off here: {amount(got)} of {amount(size)} are left. Copy it again"


def said(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


class Through(Reader):
    """Another reader's bytes: closing this one leaves that one usable."""

    def __init__(self, parent: Reader) -> None:
        super().__init__()
        self._parent = parent

    def _fill(self, view: memoryview) -> int:
        n = self._parent.readinto(view)
        self.trouble, self.remark = self._parent.trouble, self._parent.remark
        return n
