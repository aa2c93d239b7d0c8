"""Which layers a line can begin with, by its first characters; and the whole heads of the commonest lines at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from nccl_forensics.lines import stamps
from nccl_forensics.lines.prefixes.collectors import iso_stamp
from nccl_forensics.lines.prefixes.launchers import (
    actor,
    c10,
    compose,
    grep,
    indented,
    launcher_host,
    launcher_task,
    login,
    mail_quote,
    milabench,
    mpi,
    numbered,
    pod,
    torch_rank,
    torchrun_role,
)
from nccl_forensics.lines.prefixes.loggers import (
    bracket_date,
    glog,
    level_first,
    logrus,
    lost_colour,
    named_rank,
    us_date,
)
from nccl_forensics.lines.prefixes.peeled import MOST_LAYERS, Peeled
from nccl_forensics.lines.prefixes.records import export, json_pretty, json_record
from nccl_forensics.lines.prefixes.system import (
    dmesg_ctime,
    dmesg_facility,
    dmesg_gap,
    dmesg_gap_only,
    dmesg_minute,
    kmsg,
    printk,
    priority,
    syslog,
    talos,
    unix_seconds,
    weekday,
)
from nccl_forensics.lines.window import RawLine
from nccl_forensics.model import Stamp

Layer = Callable[[str, Peeled, RawLine], "str | None"]
"""Gets the text, and returns the rest behind its own prefix, or None if the text does not start with it."""


def _words(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """All that starts with a letter; most lines that do have no prefix, so cheap looks come first."""
    if " | " in text[:104] and (rest := compose(text, peeled, line)) is not None:
        return rest
    colons = text.count(":", 0, 48)
    if colons == 0:
        return milabench(text, peeled, line) if " [std" in text[:140] else None
    if colons > 1:
        for layer in (syslog, weekday, dmesg_facility, talos, grep):
            if (rest := layer(text, peeled, line)) is not None:
                return rest
    if (rest := launcher_host(text, peeled, line)) is not None:
        return rest
    if " [std" in text[:140]:
        return milabench(text, peeled, line)
    return login(text, peeled, line) if " login: [" in text[:100] else None


def _bracket(text: str, peeled: Peeled, line: RawLine) -> str | None:
    second = text[1:2]
    for layer in _BY_SECOND.get(second, _BRACKET_WORD):
        if (rest := layer(text, peeled, line)) is not None:
            return rest
    return None


_BRACKET_WORD: Final[tuple[Layer, ...]] = (
    torchrun_role,
    pod,
    mpi,
    dmesg_ctime,
    dmesg_minute,
    bracket_date,
    named_rank,
    level_first,
)
_BRACKET_DIGIT: Final[tuple[Layer, ...]] = (
    printk,
    bracket_date,
    mpi,
    dmesg_ctime,
    dmesg_minute,
    numbered,
    lost_colour,
)
_BRACKET_BLANK: Final[tuple[Layer, ...]] = (printk, dmesg_gap, dmesg_ctime, dmesg_minute)
_BY_SECOND: Final[dict[str, tuple[Layer, ...]]] = {
    **dict.fromkeys("0123456789", _BRACKET_DIGIT),
    " ": _BRACKET_BLANK,
    "+": (dmesg_gap,),
    "<": (dmesg_gap_only,),
    "r": (torch_rank, *_BRACKET_WORD),
    "R": (torch_rank, *_BRACKET_WORD),
    **dict.fromkeys("EWIF", (c10, *_BRACKET_WORD)),
}
_DIGIT: Final[tuple[Layer, ...]] = (
    iso_stamp,
    launcher_task,
    us_date,
    unix_seconds,
    kmsg,
    talos,
    syslog,
    grep,
    launcher_host,
)
_LETTER: Final[tuple[Layer, ...]] = (_words,)
_FIRST: Final[dict[str, tuple[Layer, ...]]] = {
    "[": (_bracket,),
    "<": (priority,),
    ">": (mail_quote,),
    "{": (json_record,),
    "(": (actor,),
    "\t": (json_pretty,),
    "_": (export,),
    " ": (indented, syslog, launcher_task),
    **dict.fromkeys("0123456789", _DIGIT),
    **dict.fromkeys("EWIFDC", (glog, level_first, *_LETTER)),
    **dict.fromkeys("TNS", (level_first, *_LETTER)),
    "M": (export, *_LETTER),
    "t": (logrus, *_LETTER),
}


def layers(text: str, peeled: Peeled, line: RawLine) -> str:
    """Peel until no layer fits, or the kernel's or PyTorch's C++ header is off: behind it stands the message."""
    for _ in range(MOST_LAYERS):
        if not text:
            break
        for layer in _FIRST.get(text[0], _LETTER):
            rest = layer(text, peeled, line)
            if rest is not None:
                break
        else:
            break
        text = rest
        if peeled.final:
            break
    return text


_KERNEL_TAIL = re.compile(
    r" ([\w.-]{1,255}) kernel: (?:\[ *(\d{1,10})\.(\d{6})\] )?(?![\[ ]|message repeated)", re.ASCII
)
_PRINTK = re.compile(
    r"\[ *(\d{1,10})\.(\d{6})\] (?!\[|kernel:|[\w.-]{1,64} (?:kernel:|[\w./@-]{1,64}\[\d{1,9}\]: ))", re.ASCII
)
_RANK_C10 = re.compile(
    r"(?:\[default(\d{1,6})\]:)?\[rank(\d{1,7})\]: ?\[[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6,9})"
    r"(?: \d{1,20})? [^\s\]]{1,300}\.[a-zA-Z]{1,4}:\d{1,7}\] ?",
    re.ASCII,
)


def _kernel_line(text: str, peeled: Peeled) -> str | None:
    """`Mar  4 10:19:54 host kernel: [191234.567013] ` and the same behind an ISO time."""
    found = stamps.iso(text) if text[0] in "12" else stamps.syslog(text)
    m = _KERNEL_TAIL.match(text, found[1]) if found else None
    if found is None or m is None or text[-1] == ">":
        return None
    stamp = found[0]
    host, seconds, micros = m.groups()
    if seconds is not None:
        stamp = Stamp(
            wall_ns=stamp.wall_ns,
            has_year=stamp.has_year,
            zone_s=stamp.zone_s,
            boot_ns=int(seconds) * stamps.SECOND + int(micros) * 1000,
            resolution_ns=stamp.resolution_ns,
        )
    peeled.stamp, peeled.host, peeled.program, peeled.final = stamp, host, "kernel", True
    return text[m.end() :]


def _printk_line(text: str, peeled: Peeled) -> str | None:
    """`[191234.567013] `."""
    m = _PRINTK.match(text)
    if m is None:
        return None
    peeled.stamp = Stamp(boot_ns=int(m[1]) * stamps.SECOND + int(m[2]) * 1000)
    peeled.program, peeled.final = "kernel", True
    return text[m.end() :]


def _rank_line(text: str, peeled: Peeled) -> str | None:
    """`[default3]:[rank11]:[E321 10:21:33.000421007 ProcessGroupNCCL.cpp:629] `, with or without the first."""
    m = _RANK_C10.match(text)
    if m is None:
        return None
    local, rank, month, day, hour, minute, second, fraction = m.groups()
    stamp = stamps.wall(None, month, day, hour, minute, second, fraction)
    if stamp is None:
        return None
    peeled.stamp, peeled.rank, peeled.final = stamp, int(rank), True
    if local is not None:
        peeled.local_rank = int(local)
    return text[m.end() :]


SHAPES: Final = (_kernel_line, _printk_line, _rank_line)
_LESSONS: Final = 32
"""How often in a file a chain may be looked for anew, when a line is not of the shape that was seen last."""


def unwrap(text: str, peeled: Peeled, line: RawLine) -> str:
    """All layers off: by the shape of this file's last line if it fits, else layer by layer."""
    state = line.window.state
    shape = state.get("shape")
    if shape is not None and text and (quick := shape(text, peeled)) is not None:
        return str(quick)
    rest = layers(text, peeled, line)
    lessons = state.get("lessons", 0)
    if peeled.final and lessons < _LESSONS:
        state["lessons"] = lessons + 1
        for candidate in SHAPES:
            trial = Peeled(text)
            if candidate(text, trial) == rest and trial == peeled:  # it must say the same as the layers did
                state["shape"] = candidate
                break
    return rest
