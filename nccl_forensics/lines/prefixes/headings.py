"""Headings of dshbak, clush and Ansible that name the host of the lines below them."""

from __future__ import annotations

import re
from typing import Final

from nccl_forensics.lines.prefixes.peeled import Peeled
from nccl_forensics.lines.window import RawLine

_RULE = rb"-{15,16}\r?\n"
_HEADINGS: Final = (
    # dshbak (pdsh) has 16 dashes, clush -b 15; several hosts with the same lines stand as n[1-3]
    (b"\n---------------", re.compile(_RULE + rb"(?P<host>[^\n]{1,255}?) *\r?\n" + _RULE)),
    (b" >>\n", re.compile(rb"(?P<host>[^\s|]{1,255}) \| [A-Z]{3,20}!? \| rc=-?\d{1,4} >>\n")),  # ansible
)
"""(what stands in each, the whole) of headings above the lines of one host."""
_LONGEST_HEADING: Final = 320
_NAME = re.compile(rb"[\w.-]{1,255}", re.ASCII)


def of_heading(peeled: Peeled, line: RawLine) -> None:
    """The host in the last heading above, in a file that begins with one. A heading of several hosts names none."""
    state, buffer = line.window.state, line.window.buffer
    form = state.get("headings")
    if form is None:
        form = state["headings"] = _form_of_headings(line)
    if form is False:
        return
    marker, whole = _HEADINGS[form]
    at = line.start
    while (at := buffer.rfind(marker, 0, at)) >= 0:
        end = at + len(marker)
        block = bytes(buffer[max(0, at - _LONGEST_HEADING) : min(end + 4, line.start)])
        found = [m for m in whole.finditer(block) if m.end() >= len(block) - 4]
        if found:
            name = found[-1]["host"]
            peeled.host = name.decode("ascii") if _NAME.fullmatch(name) else None
            return


def _form_of_headings(line: RawLine) -> int | bool:
    """Which form of headings the file begins with; False: none, or its beginning isn't in memory any more."""
    buffer = line.window.buffer
    if buffer.count(b"\n", 0, line.start) != line.number - 1:
        return False
    head = bytes(buffer[: min(line.window.end, _LONGEST_HEADING)]).lstrip(b"\0\r\n ")
    return next((n for n, (_, whole) in enumerate(_HEADINGS) if whole.match(head)), False)
