"""Compressed streams, unpacked as they are read.

What is damaged gives what comes before the damage, and behind it where the format has
landmarks.

Formats: RFC 1951 and 1952 (deflate, gzip), RFC 8878 (zstd).
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any, cast

from nccl_forensics.intake.limits import Meter, amount
from nccl_forensics.intake.readers import STEP, Reader

FEED = 1 << 15
"""Most compressed bytes given to a decompressor at once."""
FIRST_FEED = 1 << 10
"""Given to a new stream: what is left over at its end is copied, and there may be hundreds of thousands of streams."""
LZMA_MEMORY = 100 << 20
"""Bytes. `xz -9` needs 65 MiB (xz(1), table of presets)."""
ZSTD_WINDOW = 1 << 27
"""Bytes: `zstd --long`'s default, and the most that `zstd -d` takes without being told (zstd(1))."""
RESTARTS = 1000
"""How often a damaged gzip or tar is searched for its next landmark. Our judgement."""
HEADER_CRC, EXTRA, NAME, COMMENT = 2, 4, 8, 16
"""Flags of a gzip member: what stands in its header behind the first 10 bytes (RFC 1952 §2.3.1)."""
Engine = Callable[[memoryview, int], "tuple[bytes, int, bytes | None]"]
"""(compressed bytes, most bytes wanted) → (bytes; how many of the compressed ones were taken; at the end of the stream
those that were taken too many, before it None)."""


def inflater() -> tuple[Callable[[], Engine], Callable[[Any, int], int], tuple[type[BaseException], ...]]:
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


def buffered(make: Callable[[], Any]) -> Callable[[], Engine]:
    """An engine of a decompressor that keeps what it was given (bz2, lzma, compression.zstd)."""

    def start() -> Engine:
        one = make()

        def step(feed: memoryview, most: int) -> tuple[bytes, int, bytes | None]:
            used = len(feed) if one.needs_input else 0
            out = one.decompress(feed if used else b"", most)
            return out, used, one.unused_data if one.eof else None

        return step

    return start


class Unpack(Reader):
    """One compressed stream behind the other, as bz2 and xz have them; gzip and zip build upon it."""

    name = "compressed"
    tool = "the tool that made it"
    errors: tuple[type[BaseException], ...] = (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error)
    magics: tuple[bytes, ...] = ()
    padding = 0
    """Zero bytes may stand between streams, in multiples of this; 0: none."""

    def __init__(self, parent: Reader, meter: Meter, start: Callable[[], Engine]) -> None:
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
            if self._engine is None and not self._begin():
                break
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

    def _begin(self) -> bool:
        """Start the next stream; False, for ever, if there is none."""
        self._feed = FIRST_FEED
        self._over = self._over or not self._next()
        return not self._over

    def _cut(self) -> str:
        return f"the {self.name} stream breaks off; {amount(self._given)} of text come before the cut. Copy it again"

    def _stop(self, why: str) -> None:
        self._over, self._engine = True, None
        self.trouble = self.trouble or why

    def _damaged(self, why: str, view: memoryview) -> int:
        """What to do about damage; how many bytes were put into `view`."""
        if why == "Memory usage limit exceeded":  # liblzma's words
            self._stop(f"needs more than {amount(LZMA_MEMORY)} of memory to unpack: unpack it with {self.tool}")
            return 0
        self._stop(
            f"the {self.name} stream is damaged after {amount(self._given)} of text ({why}). "
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


class Bzip2(Unpack):
    name, tool, magics = "bzip2", "bzip2recover", (b"BZh",)

    def __init__(self, parent: Reader, meter: Meter) -> None:
        super().__init__(parent, meter, buffered(bz2.BZ2Decompressor))


class Xz(Unpack):
    name, tool, magics, padding = "xz", "xz -dc, which gives what can be read", (b"\xfd7zXZ\0",), 4

    def __init__(self, parent: Reader, meter: Meter) -> None:
        super().__init__(parent, meter, buffered(lambda: lzma.LZMADecompressor(lzma.FORMAT_AUTO, LZMA_MEMORY)))


class Deflate(Unpack):
    """One raw deflate stream, as zip has them."""

    name, tool = "deflate", "zip -FF"

    def __init__(self, parent: Reader, meter: Meter) -> None:
        start, _, errors = inflater()
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


class Gzip(Unpack):
    """gzip members one behind the other: a real nvidia-bug-report.log.gz has hundreds. Damaged ones are left out."""

    name, tool = "gzip", "gzip -dc, which gives what can be read"

    def __init__(self, parent: Reader, meter: Meter) -> None:
        start, self._crc32, errors = inflater()
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
                f"the gzip checksum is wrong after {amount(self._given)} of text: some of it is damaged. "
                "Copy it again in binary mode"
            )

    def _next(self) -> bool:
        if self._streams:
            self._zeros()
        if not self._more(1):
            if self._parent.trouble:
                self._stop(self._parent.trouble)
            return False
        if not self._at_member() and not self._to_member():
            return False
        if not self._header():
            self._stop(self._parent.trouble or self._cut())
            return False
        self._engine, self._crc, self._length = self._start(), 0, 0
        return True

    def _to_member(self) -> bool:
        """Go past what is no member to the next one; False if there is none, and then it is said why."""
        self._more(4)
        rest = bytes(self._view[self._low : self._high])
        if len(rest) < 4 and b"\x1f\x8b\x08".startswith(rest[:3]):
            self._stop(self._parent.trouble or self._cut())
            return False
        before = self._given
        if self._resync():
            self.trouble = self.trouble or f"damaged after {amount(before)} of text: a part is no gzip member"
            return True
        if self._streams:
            self._remark()
        else:
            self._stop("it starts like gzip, but isn't. Copy it again in binary mode")
        return False

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
            f"the gzip stream is damaged after {amount(self._given)} of text ({why}); whole members behind the damage "
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
        return (
            (not flags & EXTRA or self._pass_extra())
            and (not flags & NAME or self._pass_text())
            and (not flags & COMMENT or self._pass_text())
            and (not flags & HEADER_CRC or self._pass(2))
        )

    def _pass(self, left: int) -> bool:
        """Pass over so many bytes; False if there are fewer."""
        while left:
            if not self._more(1):
                return False
            step = min(left, self._high - self._low)
            self._low += step
            left -= step
        return True

    def _pass_extra(self) -> bool:
        """Pass over a field that begins with its length; False if it is cut."""
        if not self._more(2):
            return False
        length = int.from_bytes(self._view[self._low : self._low + 2], "little")
        self._low += 2
        return self._pass(length)

    def _pass_text(self) -> bool:
        """Pass over a text that ends in a NUL; False if it is cut, or too long for the limits."""
        while self._more(1) and not self._of.over():
            end = self._buffer.find(b"\0", self._low, self._high)
            self._low = self._high if end < 0 else end + 1
            if end >= 0:
                return True
        return False


class _ZstdFrames:
    """Follows a zstd stream's frames from header to header (RFC 8878 §3.1): zstandard doesn't tell that one is cut.

    It stands between the compressed stream and zstandard's reader and gives it whole frames only, as far as they go.
    """

    def __init__(self, parent: Reader, meter: Meter) -> None:
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


class _Zstd(Reader):
    """zstd frames by the zstandard package."""

    def __init__(self, parent: Reader, meter: Meter) -> None:
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
                    f"the zstd stream cannot be read after {amount(self._given)} of text ({why}). "
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
                f"the zstd stream breaks off; {amount(self._given)} of text come before the cut. Copy it again"
            )
        elif self._frames.foreign:
            self.remark = "what follows the end of the zstd stream is not zstd and was left out"


class _StdlibZstd(Unpack):
    """zstd frames by the standard library (Python 3.14 and later)."""

    name, tool, magics = (
        "zstd",
        "zstd -d",
        (b"\x28\xb5\x2f\xfd", *(bytes((x, 0x2A, 0x4D, 0x18)) for x in range(80, 96))),
    )

    def __init__(self, parent: Reader, meter: Meter, module: Any) -> None:
        def make() -> Any:
            return module.ZstdDecompressor(options={module.DecompressionParameter.window_log_max: 27})

        super().__init__(parent, meter, buffered(make))
        self.errors = (*Unpack.errors, module.ZstdError)


def zstd(parent: Reader, meter: Meter) -> Reader | None:
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


class Checked(Reader):
    """A zip member, held against the CRC-32 and the size that the archive's table gives."""

    def __init__(self, parent: Reader, crc: int, size: int) -> None:
        super().__init__()
        self._parent, self._want, self._size = parent, crc, size
        self._crc32 = inflater()[1]
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
