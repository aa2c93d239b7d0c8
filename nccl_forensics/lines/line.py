"""One candidate line as parsers see it: its prefixes taken off, its neighbours within reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nccl_forensics.lines.prefixes.peel import peel
from nccl_forensics.lines.prefixes.peeled import Peeled
from nccl_forensics.lines.window import NEAR, RawLine, Window
from nccl_forensics.model import Detail, Event, Evidence, Role, Severity, Stamp
from nccl_forensics.text.visible import CONTEXT, CONTEXT_SHOWN, visible


class Line(RawLine):
    """One candidate line. Use it, and its neighbours, only inside the parser that was given it."""

    __slots__ = ("_peeled",)

    def __init__(self, window: Window, number: int, start: int, end: int, hits: frozenset[bytes] = frozenset()) -> None:
        super().__init__(window, number, start, end, hits)
        self._peeled: Peeled | None = None

    def detached(self) -> Line:
        """A copy that stays good after the scan has gone on; it has no neighbours."""
        return alone(self.path, self.window.state, self.number, self.raw, self.hits)

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

    def _above(self) -> bytes:
        """The stretch of `CONTEXT` lines before it, as `Evidence` keeps it."""
        buffer, start = self.window.buffer, self.start
        at, low = start, max(0, start - 2 * NEAR)
        for _ in range(CONTEXT + 1):
            at = buffer.rfind(b"\n", low, at)
            if at < 0:
                break
        if at >= 0 or low == 0:
            return bytes(buffer[at + 1 : start])
        return _shortened(reversed(self.before(CONTEXT)))  # long lines

    def _below(self) -> bytes:
        """The stretch of `CONTEXT` lines behind it."""
        buffer, end = self.window.buffer, self.end
        high = min(self.window.end, end + 2 * NEAR)
        first = end + (buffer[end : end + 1] == b"\r") + 1
        at = first - 2
        for _ in range(CONTEXT + 1):
            at = buffer.find(b"\n", at + 1, high)
            if at < 0:
                break
        if buffer[first - 1 : first] == b"\n" and (at >= 0 or high == self.window.end):
            return bytes(buffer[first : at + 1 if at >= 0 else high])
        return _shortened(self.after(CONTEXT))

    def evidence(self, *, context: bool = True) -> Evidence:
        above, below = (self._above(), self._below()) if context else (b"", b"")
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
            "boot_id": peeled.boot_id,
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


def _shortened(lines: Iterable[RawLine]) -> bytes:
    return b"".join(x.raw[: 4 * CONTEXT_SHOWN] + b"\n" for x in lines)


def alone(path: str, state: dict[str, Any], number: int, raw: bytes, hits: frozenset[bytes]) -> Line:
    window = Window(path, 0)
    window.buffer, window.end, window.state = bytearray(raw), len(raw), state
    return Line(window, number, 0, len(raw), hits)
