"""ISO stamps, and the collectors (CRI, docker) that write them before each piece of a line."""

from __future__ import annotations

import re
from typing import Final

from nccl_forensics.lines import stamps
from nccl_forensics.lines.prefixes.loggers import after_stamp
from nccl_forensics.lines.prefixes.peeled import Peeled, after_blank, decode, give
from nccl_forensics.lines.prefixes.system import SYSLOG_TAIL, remember_node, syslog_tail
from nccl_forensics.lines.window import RawLine
from nccl_forensics.model import Stamp

_GUEST = re.compile(r"[|\w():. -]{1,60}?Guest: ")
CRI_HEAD = re.compile(r" (stdout|stderr) ([FP])(?::\S{1,40})? ")
CRI_PIECES: Final = 8
"""The runtime cuts lines at 16 KiB; more pieces than this are no message (a judgement)."""
CRI_TAIL: Final = 4096
"""Characters of the pieces behind that are joined: as much as any message has."""


def iso_stamp(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """A line that starts with an ISO date: rsyslog, journalctl, dmesg, CRI, a collector, the program's own logger."""
    found = stamps.iso(text)
    if found is None:
        return None
    stamp, end = found
    # dmesg --time-format iso writes a decimal comma *and* a zone, which no logger does.
    if stamp.zone_s is not None and text[19:20] == ",":
        give(peeled, Stamp(wall_ns=stamp.wall_ns, zone_s=stamp.zone_s, resolution_ns=stamp.resolution_ns, drifts=True))
        peeled.program, peeled.final = "kernel", True
        return after_blank(text, end)
    give(peeled, stamp)
    if stamp.zone_s is not None and text[10] == "T" and (rest := _collected(text, end, peeled, line)) is not None:
        return rest
    return after_stamp(text, end, peeled)


def _collected(text: str, end: int, peeled: Peeled, line: RawLine) -> str | None:
    """What a collector wrote behind its stamp, which ends at `end`; None: the program's own logger wrote that."""
    if m := CRI_HEAD.match(text, end):
        return _cri_text(text, m, peeled, line)
    if text.startswith(("|", " In(", " Wa(", " Er("), end) and (m := _GUEST.match(text, end)):
        return text[m.end() :]
    m = SYSLOG_TAIL.match(text, end)
    # `word word: ` may be any program's line: a system log's has the kernel or a pid, or the host of such a line.
    state = line.window.state
    if m is not None and m[1] and (m[2] == "kernel" or m[3] or m[1] in state.get("nodes", ())):
        rest = syslog_tail(text, m, peeled, line)
        if rest is not None:
            remember_node(m[1], line)
        return rest
    return None


def _cri_text(text: str, head: re.Match[str], peeled: Peeled, line: RawLine) -> str:
    """The text behind a runtime's head, with the pieces that follow it where it is the first of a line that was cut."""
    if (first := _cri_head(line, head[1])) is not None:
        _of_whole(peeled, first.peeled)
        return text[head.end() :]
    if head[2] == "P":
        return text[head.end() :] + _cri_rest(line, head[1])
    return text[head.end() :]


def _cri_piece(raw: bytes) -> tuple[str, str, str] | None:
    """(stream, flag, text) of a line that a container's runtime wrote."""
    text = decode(raw)
    found = stamps.iso(text)
    m = CRI_HEAD.match(text, found[1]) if found else None
    return None if m is None else (m[1], m[2], text[m.end() :])


def _cri_rest(line: RawLine, stream: str) -> str:
    """What follows a partial line (`P`): the next pieces of the same stream, to the full one."""
    joined = ""
    for other in line.after(CRI_PIECES):
        piece = _cri_piece(other.raw)
        if piece is not None and piece[0] == stream:
            joined += piece[2]
            if piece[1] == "F" or len(joined) >= CRI_TAIL:
                break
    return joined[:CRI_TAIL]


def _cri_head(line: RawLine, stream: str) -> RawLine | None:
    """The first piece of the message of which `line` is a later piece of the same stream; None: it begins one."""
    head = None
    for other in line.before(CRI_PIECES):
        piece = _cri_piece(other.raw)
        if piece is None:
            break
        if piece[0] == stream:
            if piece[1] == "F":
                break
            head = other
    return head


def _of_whole(peeled: Peeled, head: Peeled) -> None:
    """What the first piece of a cut line says of its writer holds for the piece `peeled`; the time of writing too."""
    if head.outer is not None:
        give(peeled, head.stamp)
    peeled.rank, peeled.local_rank, peeled.task = head.rank, head.local_rank, head.task
    peeled.host, peeled.pid, peeled.program = head.host, head.pid, head.program
    peeled.final = True
