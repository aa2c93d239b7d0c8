"""The part of a file that is in memory, and the raw lines in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nccl_forensics.lines.prefixes.peeled import Peeled

if TYPE_CHECKING:
    from typing_extensions import Self

REGION = 1 << 20
"""Bytes scanned at a time: 256 KiB to 4 MiB are equally fast, less and more are slower in our measurements."""
NEIGHBOURS = 1 << 16
"""Bytes kept before and behind a region."""
LONGEST = 1 << 14
"""Bytes of one line that are looked at on either side of a literal."""
NEAR = 1 << 9
"""Bytes in which a line's ends are looked for first: nearly all lines are shorter."""
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
        """For the prefixes: what it learned about this file's lines (their shape), from one line to the next."""

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


class RawLine:
    """One physical line, and its neighbours as far as they are in memory. What parsers get is a `Line` (line.py)."""

    __slots__ = ("end", "hits", "number", "path", "raw", "start", "window")

    def __init__(self, window: Window, number: int, start: int, end: int, hits: frozenset[bytes] = frozenset()) -> None:
        self.window = window
        self.path = window.path
        self.number = number
        """1-based."""
        self.start, self.end = start, end
        self.hits = hits
        """The literals that were found in it."""
        self.raw = bytes(window.buffer[start:end])

    @property
    def peeled(self) -> Peeled:
        """The line's layers of prefix, taken off."""
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """No line end follows: the file was cut in the middle of it, or its writer was."""
        return self.end >= self.window.end

    def holds_before(self, literal: bytes, reach: int) -> bool:
        """Does it stand in the `reach` bytes before this line, as far as they are in memory?"""
        return self.window.buffer.rfind(literal, max(0, self.start - reach), self.start) >= 0

    def before(self, most: int) -> list[Self]:
        """Up to `most` physical lines before this one, nearest first, as far as they are in memory."""
        found: list[Self] = []
        at, number = self.start, self.number
        while at > 0 and len(found) < most:
            number -= self.window.buffer[at - 1] == 0x0A
            at -= 1
            if at > 0 and self.window.buffer[at] == 0x0A and self.window.buffer[at - 1] == 0x0D:
                at -= 1  # CRLF is one end
            start, _ = self.window.bounds(at)
            found.append(type(self)(self.window, number, start, at))
            at = start
        return found

    def after(self, most: int) -> list[Self]:
        """Up to `most` physical lines behind this one, in order, as far as they are in memory."""
        found: list[Self] = []
        buffer, at, number = self.window.buffer, self.end, self.number
        while at < self.window.end and len(found) < most:
            if buffer[at] == 0x0D and at + 1 < self.window.end and buffer[at + 1] == 0x0A:
                at += 1
            number += buffer[at] == 0x0A
            at += 1
            if at >= self.window.end:
                break
            _, end = self.window.bounds(at)
            found.append(type(self)(self.window, number, at, end))
            at = end
        return found

    def leave_out(self, what: str) -> None:
        """Say that a parser's bound left this line's block of kind `what` unread: nothing vanishes in silence."""
        unread: dict[str, int] = self.window.state.setdefault(UNREAD, {})
        unread[what] = unread.get(what, 0) + 1
