"""Takes off, layer by layer, what collectors, launchers and loggers put before a message; each layer gives its time
and identity.

One line can hold all of these, from the outside in: a collector's stamp (CRI, docker, syslog, the journal), a
launcher's tag (kubectl, pdsh, srun, mpirun, torchrun, Ray), PyTorch's `[rankN]:`, a logger's head, and a progress bar
to which the message was glued. A layer is a function that gets the text and returns the rest behind its own prefix, or
None if the text does not start with it; the first character says which layers can. What the signatures' regexes look
for stays in the text: `[Rank 3]` and `[PG ID 2 …]` (ranks inside a group), `NVRM:`, NCCL's `host:pid:tid [0]`.

Shapes: util-linux dmesg.c, systemd logs-show.c, rsyslog, RFC 5424, c10/util/Logging.cpp, torch.distributed.elastic, and
the samples in tests/cases/prefixes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from nccl_forensics import stamps
from nccl_forensics.model import Stamp

if TYPE_CHECKING:
    from nccl_forensics.scan import Line

MOST_LAYERS: Final = 12
"""More prefixes than this on one line are not prefixes (a judgement; the longest chain seen has six)."""
RECORD: Final = 1 << 16
"""Bytes on either side of a line in which its journal record's other fields are looked for."""
VOTERS: Final = 16
"""Neighbours on either side that are asked whether `word: ` is a host's name here."""


@dataclass(slots=True)
class Peeled:
    """A line without its prefixes, and what they said."""

    text: str
    """The message; ANSI colours are gone."""
    stamp: Stamp | None = None
    """The innermost time before the message: the clock of the program that wrote it."""
    outer: Stamp | None = None
    """The collector's own time (CRI, docker, syslog relay), where there is one besides."""
    rank: int | None = None
    """Global rank: only from `[rankN]:` of PyTorch >= 2.2, Ray/vLLM's rank= and the like."""
    local_rank: int | None = None
    """From torchrun's `[defaultN]:`."""
    task: int | None = None
    """From `srun --label` or mpirun's tags: a global rank only with one process per task."""
    host: str | None = None
    pid: int | None = None
    program: str | None = None
    """Syslog identifier ('kernel', 'systemd') or the like."""
    pod: str | None = None
    repeats: int = 1
    """How often syslog says that the message was repeated (`message repeated 7 times: [ … ]`)."""
    cut: bool = False
    """A pager cut the line off (`>` at its end)."""
    boot_id: str | None = None
    """The journal's _BOOT_ID."""
    final: bool = False
    """The message itself has been reached: nothing more is taken off."""


Layer = Callable[[str, Peeled, "Line"], "str | None"]


def _give(peeled: Peeled, stamp: Stamp | None) -> None:
    """The next stamp, further inside than those before."""
    if stamp is None:
        return
    if peeled.stamp is not None and peeled.outer is None:
        peeled.outer = peeled.stamp
    peeled.stamp = stamp


# --- kernel and system logs -------------------------------------------------------------------------------------------

_CALLER = re.compile(r"\[ {0,6}[TC] {0,6}\d{1,8}\] ?", re.ASCII)  # CONFIG_PRINTK_CALLER
_NEXT_PROGRAM = re.compile(r"(?:([\w.-]{1,64}) )?kernel: ?|([\w.-]{1,64}) ([\w./@-]{1,64})\[(\d{1,9})\]: ", re.ASCII)
_SYSLOG_TAIL = re.compile(
    r" +(?:([^\s:\[\]<>(){}\"=,]{1,255}|[0-9a-fA-F:]{3,45}) )?([^\s:\[\]]{1,100})(?:\[(\d{1,10})\])?: ?"
)
_SYSLOG_REPEAT = re.compile(r"message repeated (\d{1,9}) times: \[ ?", re.ASCII)
_LEVEL_WORDS = frozenset(("TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"))


_NO_STAMP: Final = Stamp()


def _kernel_message(text: str, peeled: Peeled) -> str:
    """The text behind `kernel: `: the printk stamp belongs to the same Stamp as the syslog's."""
    peeled.program, peeled.final = "kernel", True
    peeled.pid = None
    if text.startswith("message repeated") and (m := _SYSLOG_REPEAT.match(text)):
        peeled.repeats = max(1, int(m[1]))
        text = text[m.end() :].removesuffix("]")
    if text.startswith("["):
        if m := stamps.BOOT.match(text):
            old = peeled.stamp or _NO_STAMP
            peeled.stamp = Stamp(
                wall_ns=old.wall_ns,
                has_year=old.has_year,
                zone_s=old.zone_s,
                boot_ns=int(m[1]) * stamps.SECOND + int(m[2]) * 1000,
                resolution_ns=old.resolution_ns,
                drifts=old.drifts,
            )
            text = _after_blank(text, m.end())
        if text.startswith("[") and (m := _CALLER.match(text)):
            text = text[m.end() :]
    return text


def _after_blank(text: str, at: int) -> str:
    """The text from `at`, without the one blank that stands there."""
    return text[at + 1 :] if text.startswith(" ", at) else text[at:]


def _syslog_tail(text: str, m: re.Match[str] | None, peeled: Peeled) -> str | None:
    """`host program[pid]: ` behind a system log's stamp, as _SYSLOG_TAIL matched it."""
    if m is None:
        return None
    host, program, pid = m.groups()
    if host in _LEVEL_WORDS or (host is None and program in _LEVEL_WORDS):
        return None
    rest = text[m.end() :]
    peeled.host = host or peeled.host
    peeled.program = program
    peeled.pid = int(pid) if pid else peeled.pid
    if rest.endswith(">") and "<" not in rest[-60:]:
        peeled.cut = True
        rest = rest[:-1]
    if program == "kernel":
        return _kernel_message(rest, peeled)
    if rest.startswith("message repeated") and (repeat := _SYSLOG_REPEAT.match(rest)):
        peeled.repeats = max(1, int(repeat[1]))
        rest = rest[repeat.end() :].removesuffix("]")
    return rest


def _syslog(text: str, peeled: Peeled, line: Line) -> str | None:
    """`Mar  4 10:19:54 host program[pid]: `, months in any language."""
    found = stamps.syslog(text)
    if found is None:
        # No such day, or a month in a language that we cannot read: host and program are there all the same.
        m = stamps.SYSLOG.match(text)
        tail = _SYSLOG_TAIL.match(text, m.end()) if m else None
        return _syslog_tail(text, tail, peeled) if tail and tail[1] else None
    _give(peeled, found[0])
    rest = _syslog_tail(text, _SYSLOG_TAIL.match(text, found[1]), peeled)
    return text[found[1] :].lstrip(" ") if rest is None else rest


def _printk(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[191234.567013] `: dmesg, consoles, pstore; with ` host kernel: ` behind it journalctl -o short-monotonic."""
    found = stamps.boot(text)
    if found is None:
        return None
    _give(peeled, found[0])
    rest = _after_blank(text, found[1])
    if rest.startswith("[") and (caller := _CALLER.match(rest)):
        rest = rest[caller.end() :]
    if m := _NEXT_PROGRAM.match(rest):
        peeled.host = m[1] or m[2] or peeled.host
        rest = rest[m.end() :]
        if m[3]:
            peeled.program, peeled.pid = m[3], int(m[4])
            return rest
    peeled.program, peeled.final = "kernel", True
    return rest


_BRACKET_CTIME_GAP = re.compile(r"(?: <[ \d.]{1,20}>)?\] ?")


def _dmesg_ctime(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[Wed Mar  4 10:19:54 2026] ` (dmesg -T): wall time computed from uptime, in the caller's zone."""
    found = stamps.ctime(text, 1, drifts=True)
    if found is None or (m := _BRACKET_CTIME_GAP.match(text, found[1])) is None:
        return None
    _give(peeled, found[0])
    peeled.program, peeled.final = "kernel", True
    return text[m.end() :]


_MINUTE = re.compile(rf"\[({stamps.MONTH_NAME}) {{0,2}}(\d{{1,2}}) (\d\d):(\d\d)\] ?")
_GAP = re.compile(r"\[ *\+ *(\d{1,9})\.(\d{6})\] ?", re.ASCII)
_GAP_ONLY = re.compile(r"\[< *\d{1,9}\.\d{6}>\] ?", re.ASCII)
_REL_HEAD = re.compile(rb"\[(?: *\+ *(\d{1,9})\.(\d{6})|([^\]\[\n]{5,20}))\]")


def _minute_stamp(text: str) -> tuple[int, int] | None:
    """`[Mar 4 10:19] ` → (ns in 1972, where the text goes on)."""
    m = _MINUTE.match(text)
    if m is None or (number := stamps.month(m[1])) is None:
        return None
    stamp = stamps.wall(None, number, m[2], m[3], m[4], "00")
    return None if stamp is None or stamp.wall_ns is None else (stamp.wall_ns, m.end())


def _within_minute(minute_ns: int, gap_ns: int) -> Stamp:
    """dmesg prints a new minute only when it begins: what has no stamp of its own lies in the minute named last."""
    gap_ns = min(gap_ns, stamps.MINUTE - 1)
    return Stamp(wall_ns=minute_ns + gap_ns, has_year=False, resolution_ns=stamps.MINUTE - gap_ns, drifts=True)


def _dmesg_minute(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[Mar 4 10:19] `: dmesg -H and -e, at each new minute."""
    found = _minute_stamp(text)
    if found is None:
        return None
    minute_ns, end = found
    line.window.state["minute"] = (line.number, minute_ns, 0)
    _give(peeled, _within_minute(minute_ns, 0))
    peeled.program, peeled.final = "kernel", True
    return text[end:]


def _dmesg_gap(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[  +0.000009] `: the gap to the line before; summed up since the last minute stamp."""
    m = _GAP.match(text)
    if m is None:
        return None
    peeled.program, peeled.final = "kernel", True
    state = line.window.state
    known = state.get("minute")
    block = bytes(line.window.buffer[max(0, line.start - RECORD) : line.end])
    lines = block.split(b"\n")
    minute_ns: int | None = None
    gap_ns = 0
    if known is not None and 0 <= line.number - known[0] < len(lines):
        _, minute_ns, gap_ns = known
        lines = lines[len(lines) - (line.number - known[0]) :]
    for raw in lines:
        head = _REL_HEAD.search(raw[:48])
        if head is None:
            continue
        if head[1] is not None:
            gap_ns += int(head[1]) * stamps.SECOND + int(head[2]) * 1000
        elif found := _minute_stamp(head[0].decode("utf-8", "replace")):
            minute_ns, gap_ns = found[0], 0
    if minute_ns is not None:
        state["minute"] = (line.number, minute_ns, gap_ns)
        _give(peeled, _within_minute(minute_ns, gap_ns))
    return text[m.end() :]


def _dmesg_gap_only(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[<    0.000009>] ` (dmesg -d): gaps alone tell no time."""
    m = _GAP_ONLY.match(text)
    if m is None:
        return None
    peeled.program, peeled.final = "kernel", True
    return text[m.end() :]


_PRIORITY = re.compile(r"<\d{1,3}>(1 (?=\d{4}-)| 1 (?=\d{4}-))?", re.ASCII)
_RFC5424 = re.compile(r" (\S{1,255}) (\S{1,48}) (\S{1,128}) \S{1,32} (?:-|(?:\[[^\]\n]{0,2000}\])+) ?")


def _priority(text: str, peeled: Peeled, line: Line) -> str | None:
    """`<3>` before a printk or syslog stamp, or `<3>1 ISO host app procid msgid sd ` (RFC 5424)."""
    m = _PRIORITY.match(text)
    if m is None:
        return None
    if m[1] is None:
        return text[m.end() :].lstrip(" ") if text.startswith((" ", "["), m.end()) else text[m.end() :]
    found = stamps.iso(text, m.end())
    head = _RFC5424.match(text, found[1]) if found else None
    if found is None or head is None:
        return text[m.end() :]
    _give(peeled, found[0])
    host, app, procid = head.groups()
    peeled.host = host if host != "-" else peeled.host
    peeled.program = app if app != "-" else None
    peeled.pid = int(procid) if procid.isdecimal() and len(procid) < 11 else peeled.pid
    rest = text[head.end() :].removeprefix("\ufeff")
    return _kernel_message(rest, peeled) if app == "kernel" else rest


_FACILITY = re.compile(
    r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *:\w{3,6} *: ?", re.ASCII
)
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2}){1,400}")
"""What /dev/kmsg does with line ends, backslashes and all that is not ASCII (kernel/printk/printk.c)."""
_KMSG = re.compile(r"\d{1,4},\d{1,12},(\d{1,16}),[^;\s]{1,40};", re.ASCII)
_TALOS = re.compile(r"(\S{1,255}): {1,2}\w{3,8}: {1,12}\w{3,7}: \[", re.ASCII)
_OPENWRT = re.compile(r" \w{2,8}\.\w{3,7} ([^\s:\[\]]{1,64})(?:\[(\d{1,9})\])?: ")
_GUEST = re.compile(r"[|\w():. -]{1,60}?Guest: ")
_CRI = re.compile(r" (stdout|stderr) ([FP])(?::\S{1,40})? ")
CRI_PIECES: Final = 8
"""The runtime cuts lines at 16 KiB; more pieces than this are no message (a judgement)."""
CRI_TAIL: Final = 4096
"""Characters of the pieces behind that are joined: as much as any message has."""


def _dmesg_facility(text: str, peeled: Peeled, line: Line) -> str | None:
    """`kern  :err   : ` (dmesg -x)."""
    m = _FACILITY.match(text)
    return None if m is None else text[m.end() :]


def _kmsg(text: str, peeled: Peeled, line: Line) -> str | None:
    """`3,1234,191234567013,-;`: /dev/kmsg, microseconds since boot."""
    m = _KMSG.match(text)
    if m is None:
        return None
    _give(peeled, Stamp(boot_ns=int(m[1]) * 1000))
    peeled.program, peeled.final = "kernel", True
    rest = text[m.end() :]
    return _ESCAPED.sub(_unescape, rest) if "\\x" in rest else rest


def _unescape(m: re.Match[str]) -> str:
    return bytes.fromhex(m[0].replace("\\x", "")).decode("utf-8", "backslashreplace")


def _talos(text: str, peeled: Peeled, line: Line) -> str | None:
    """`192.0.2.19: kern:     err: [2026-04-22T21:27:51.291660856Z]: ` (talosctl dmesg)."""
    m = _TALOS.match(text)
    found = stamps.iso(text, m.end()) if m else None
    if m is None or found is None or not text.startswith("]", found[1]):
        return None
    _give(peeled, found[0])
    peeled.host = m[1]
    peeled.program, peeled.final = "kernel", True
    return text[found[1] + 1 :].removeprefix(":").removeprefix(" ")


def _weekday(text: str, peeled: Peeled, line: Line) -> str | None:
    """`Wed 2026-03-04 10:19:54 UTC host kernel: ` (journalctl); `Mon Jul 28 10:19:15 2025 kern.crit kernel: `."""
    if found := stamps.weekday_iso(text):
        _give(peeled, found[0])
        rest = _syslog_tail(text, _SYSLOG_TAIL.match(text, found[1]), peeled)
        return text[found[1] :].lstrip(" ") if rest is None else rest
    found = stamps.ctime(text)
    if found is None:
        return None
    _give(peeled, found[0])
    m = _OPENWRT.match(text, found[1])
    if m is None:
        return text[found[1] :].lstrip(" ")
    rest = text[m.end() :]
    if m[1] == "kernel":
        return _kernel_message(rest, peeled)
    peeled.program = m[1]
    peeled.pid = int(m[2]) if m[2] else peeled.pid
    return rest


def _unix(text: str, peeled: Peeled, line: Line) -> str | None:
    """`1772619594.567013 host kernel: ` (journalctl -o short-unix)."""
    found = stamps.unix(text)
    if found is None:
        return None
    _give(peeled, found[0])
    rest = _syslog_tail(text, _SYSLOG_TAIL.match(text, found[1]), peeled)
    return text[found[1] :].lstrip(" ") if rest is None else rest


# --- loggers of programs ----------------------------------------------------------------------------------------------

_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SUCCESS|EXCEPTION)"
_LOGGER_TAIL = re.compile(
    r" ?(?:"
    rf"- [^\s|]{{1,100}} - {_LEVEL} +- ?"  # logging: - root - INFO -
    rf"|- {_LEVEL} +- (?:\w*[._]\w[\w.]* +-+ ?)?"  # transformers: - INFO - __main__ -
    rf"|\| *{_LEVEL} *\| (?:[\w.<>-]{{1,100}}:[\w.<>-]{{1,100}}:\d+ - )?"  # loguru
    rf"|[\w.]{{1,100}}: \[{_LEVEL}\] ?"  # torchrun 2.1 - 2.3
    rf"|\[[\w.:-]{{1,100}}\]\[{_LEVEL}\] ?-? ?"  # hydra
    rf"|\[{_LEVEL} *\]:? "  # DeepSpeed
    rf"|{_LEVEL}:? +"
    r"|>> "  # transformers
    r"|- (?=\S)"
    r"|: (?=\S)"
    r")"
)
_DEEPSPEED_RANK = re.compile(r"\[[\w.]+:\d+:log_dist\] \[Rank (\d{1,7})\] ", re.ASCII)


def _after_stamp(text: str, at: int, peeled: Peeled) -> str:
    """The text behind a logger's stamp, without the logger's name and level."""
    m = _LOGGER_TAIL.match(text, at)
    rest = text[m.end() :] if m else _after_blank(text, at)
    if rest.startswith("[") and (rank := _DEEPSPEED_RANK.match(rest)):
        peeled.rank = int(rank[1])
    return rest


def _iso(text: str, peeled: Peeled, line: Line) -> str | None:
    """A line that starts with an ISO date: rsyslog, journalctl, dmesg, CRI, a collector, the program's own logger."""
    found = stamps.iso(text)
    if found is None:
        return None
    stamp, end = found
    # dmesg --time-format iso writes a decimal comma *and* a zone, which no logger does.
    if stamp.zone_s is not None and text[19:20] == ",":
        _give(peeled, Stamp(wall_ns=stamp.wall_ns, zone_s=stamp.zone_s, resolution_ns=stamp.resolution_ns, drifts=True))
        peeled.program, peeled.final = "kernel", True
        return _after_blank(text, end)
    _give(peeled, stamp)
    if stamp.zone_s is not None and text[10] == "T":
        if m := _CRI.match(text, end):
            if (head := _cri_head(line, m[1])) is not None:
                _of_whole(peeled, head.peeled)
                return text[m.end() :]
            if m[2] == "P":
                return text[m.end() :] + _cri_rest(line, m[1])
            return text[m.end() :]
        if text.startswith(("|", " In(", " Wa(", " Er("), end) and (m := _GUEST.match(text, end)):
            return text[m.end() :]
        m = _SYSLOG_TAIL.match(text, end)
        # `word word: ` may be any program's line: a system log's has the kernel or a pid, or the host of such a line.
        state = line.window.state
        if m is not None and m[1] and (m[2] == "kernel" or m[3] or state.get("node") == m[1]):
            state["node"] = m[1]
            rest = _syslog_tail(text, m, peeled)
            if rest is not None:
                return rest
    return _after_stamp(text, end, peeled)


def _cri_piece(raw: bytes) -> tuple[str, str, str] | None:
    """(stream, flag, text) of a line that a container's runtime wrote."""
    text = _decode(raw)
    found = stamps.iso(text)
    m = _CRI.match(text, found[1]) if found else None
    return None if m is None else (m[1], m[2], text[m.end() :])


def _cri_rest(line: Line, stream: str) -> str:
    """What follows a partial line (`P`): the next pieces of the same stream, to the full one."""
    joined = ""
    for other in line.after(CRI_PIECES):
        piece = _cri_piece(other.raw)
        if piece is not None and piece[0] == stream:
            joined += piece[2]
            if piece[1] == "F" or len(joined) >= CRI_TAIL:
                break
    return joined[:CRI_TAIL]


def _cri_head(line: Line, stream: str) -> Line | None:
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
        _give(peeled, head.stamp)
    peeled.rank, peeled.local_rank, peeled.task = head.rank, head.local_rank, head.task
    peeled.host, peeled.pid, peeled.program = head.host, head.pid, head.program
    peeled.final = True


def _us_date(text: str, peeled: Peeled, line: Line) -> str | None:
    """`12/09 06:49:23 - mmengine - INFO - `, `05/28/2024 10:11:12 - INFO - __main__ - `."""
    found = stamps.slashed(text)
    if found is None:
        return None
    _give(peeled, found[0])
    return _after_stamp(text, found[1], peeled)


_GLOG_TAIL = re.compile(r" +(\d{1,20}) ([^\s\]]{1,300}):(\d{1,7})\] ?", re.ASCII)
_LEVEL_FIRST = re.compile(rf"\[?({_LEVEL})\]?(?:\|[^\]\s]{{1,200}}\])?[: ] *(?=\d\d)")


def _glog(text: str, peeled: Peeled, line: Line) -> str | None:
    """`W1129 11:56:59.150000 12345 torch/run.py:792] `: torchrun from 2.4 (pid); glog, absl, klog (thread)."""
    found = stamps.glog(text)
    m = _GLOG_TAIL.match(text, found[1]) if found else None
    if found is None or m is None:
        return None
    _give(peeled, found[0])
    if m[2].startswith("torch/") and len(m[1]) < 10:
        peeled.pid = int(m[1])
    return text[m.end() :]


def _level_first(text: str, peeled: Peeled, line: Line) -> str | None:
    """`INFO 01-29 08:52:43 file.py:12] ` (vLLM), `[INFO] 2021-12-08 12:28:26,050 run: `, `[INFO|a.py:2] 2024-…`."""
    m = _LEVEL_FIRST.match(text)
    if m is None:
        return None
    found = stamps.iso(text, m.end()) or stamps.dashed(text, m.end()) or stamps.slashed(text, m.end())
    if found is None:
        return None
    _give(peeled, found[0])
    return _after_stamp(text, found[1], peeled)


_LOGRUS = re.compile(r'time="?([^"\s]{19,40}|\d{4}-\d\d-\d\d [^"]{8,30})"? (?:level=\w+ )?(?:msg=)?')


def _logrus(text: str, peeled: Peeled, line: Line) -> str | None:
    """`time="2026-03-04T10:19:54Z" level=info msg=`."""
    m = _LOGRUS.match(text)
    found = stamps.iso(m[1]) if m else None
    if m is None or found is None:
        return None
    _give(peeled, found[0])
    return text[m.end() :]


# --- brackets: launchers, PyTorch, dates ------------------------------------------------------------------------------

_RANK = re.compile(r"\[(?:rank(\d{1,7})\]: ?|(?:rank|RANK)[ :=]{0,2}(\d{1,7})\]:? ?)", re.ASCII)
_ROLE = re.compile(r"\[([A-Za-z_](?:[\w-]{0,40}[A-Za-z_-])?)(\d{1,6})\]:", re.ASCII)
_ROLE_OF_HOST = ("node", "host", "nid", "server", "machine")
_MPI = re.compile(r"\[(?:[^\]\s,@]{1,200}@)?\d{1,9},(\d{1,7})\]<(?:stdout|stderr|stddiag)>: ?", re.ASCII)
_POD = re.compile(r"\[pod/([^\]/\s]{1,253})(?:/[^\]\s]{1,253})?\] ?")
_C10 = re.compile(
    r"\[([EWIF])(?:(\d{3,4}) (\d\d):(\d\d):(\d\d)\.(\d{6,9}))?(?: \d{1,20})? [^\s\]]{1,300}\.[a-zA-Z]{1,4}:\d{1,7}\] ?",
    re.ASCII,
)
_NUMBERED = re.compile(r"\[(\d{1,9})\]:? (?=\[|\d{4}-\d\d-\d\d|[EWIF]\d{4} )", re.ASCII)
_NUMBERED_TIGHT = re.compile(r"\[(\d{1,7})\]:(?=\S)", re.ASCII)
_BRACKET_TAIL = re.compile(r"(?: ([EWIDC]) (\d{1,9}) (\d{1,9})| [^\]\[]{1,80})?\] ?", re.ASCII)
_NAMED = re.compile(rf"\[(?!rank|Rank|PG )([\w.:|-]{{1,60}})\] (?=\d{{4}}-\d\d-\d\d[ T]|{_LEVEL} )", re.IGNORECASE)
_NEMO = re.compile(r"\[NeMo [A-Z] ")
_LOST_COLOUR = re.compile(r"\[\d{1,2}(?:;\d{1,3}){0,4}m", re.ASCII)


def _rank(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[rank3]:` (PyTorch from 2.2), `[RANK 3] `. `[Rank 3]` is another thing: the rank inside a process group."""
    m = _RANK.match(text)
    if m is None:
        return None
    peeled.rank = int(m[1] or m[2])
    return text[m.end() :]


def _c10(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[E1125 10:21:33.000421007 ProcessGroupNCCL.cpp:629] `; up to torch 2.3 without the time."""
    m = _C10.match(text)
    if m is None:
        return None
    _, date, hour, minute, second, fraction = m.groups()
    if date is not None:
        _give(peeled, stamps.wall(None, date[:-2], date[-2:], hour, minute, second, fraction))
    peeled.final = True
    return text[m.end() :]


def _role(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[default3]:` (torchrun --tee)."""
    m = _ROLE.match(text)
    if m is None:
        return None
    name = m[1].lower()
    if name == "rank":
        peeled.rank = int(m[2])
    elif name.startswith(_ROLE_OF_HOST):
        peeled.host = m[1] + m[2]
    else:
        peeled.local_rank = int(m[2])
    return text[m.end() :]


def _pod(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[pod/name/container] ` (kubectl logs --prefix)."""
    m = _POD.match(text)
    if m is None:
        return None
    peeled.pod = m[1]
    return text[m.end() :]


def _mpi(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[1,12]<stdout>:` (mpirun --tag-output)."""
    m = _MPI.match(text)
    if m is None:
        return None
    peeled.task = int(m[1])
    return text[m.end() :]


def _bracket_date(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[2026-04-22 21:34:20] `, also with a tail ` TP5]` (SGLang), ` E 12 34] ` (Ray), ` d2.engine]: `."""
    found = stamps.iso(text, 1) or stamps.slashed(text, 1) or stamps.syslog(text, 1)
    m = _BRACKET_TAIL.match(text, found[1]) if found else None
    if found is None or m is None:
        return None
    _give(peeled, found[0])
    if m[2]:
        peeled.pid = int(m[2])
    return _after_stamp(text, m.end() - (text[m.end() - 1] == " "), peeled)


def _numbered(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[80746] ` before another prefix: a viewer's line counter or an MPI rank, nobody knows. `[3]:text` is torchrun's
    `--log-line-prefix-template` (a rank of unknown kind)."""
    if m := _NUMBERED.match(text):
        return text[m.end() :]
    if m := _NUMBERED_TIGHT.match(text):
        peeled.task = int(m[1])
        return text[m.end() :]
    return None


def _named(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[titan] ` before a date, `[NeMo I 2024-05-28 10:11:12 file:12] `."""
    if m := _NAMED.match(text):
        return text[m.end() :]
    if m := _NEMO.match(text):
        found = stamps.iso(text, m.end())
        if found and (tail := _BRACKET_TAIL.match(text, found[1])):
            _give(peeled, found[0])
            return text[tail.end() :]
    return None


def _lost_colour(text: str, peeled: Peeled, line: Line) -> str | None:
    """`[36m`: a colour whose escape character was lost in copying."""
    m = _LOST_COLOUR.match(text)
    return None if m is None else text[m.end() :]


# --- round brackets: Ray and its like ---------------------------------------------------------------------------------

_ACTOR = re.compile(r"\(((?:[\w:.+-]{1,80}[ ,])?[^()\n]{0,160}?\b(?:pid|ip|rank)=[^()\n]{1,160})\)(?:\x1b?\[0m)? ?")
_ACTOR_FIELD = re.compile(r"\b(pid|ip|rank)=([\w.:-]{1,64})")
_PLAIN_ACTOR = re.compile(r"\((?:[a-z_]\w{0,30}|raylet|autoscaler[^)]{0,20})\) (?=\[?\d{4}-\d\d-\d\d|\[rank)")


def _actor(text: str, peeled: Peeled, line: Line) -> str | None:
    """`(RayTrainWorker pid=1, ip=10.0.0.1) `, `(VllmWorker rank=1 pid=2) `, `(ns) ` before a date."""
    m = _ACTOR.match(text)
    if m is None:
        m = _PLAIN_ACTOR.match(text)
        return None if m is None else text[m.end() :]
    for key, value in _ACTOR_FIELD.findall(m[1]):
        if key == "ip":
            peeled.host = value.rstrip(".:,")
        elif value.isdecimal() and len(value) < 11:
            if key == "pid":
                peeled.pid = int(value)
            else:
                peeled.rank = int(value)
    return text[m.end() :]


# --- JSON and journal records -----------------------------------------------------------------------------------------

_MESSAGE_KEYS = ("MESSAGE", "log", "msg", "message", "event", "textPayload", "line", "text")
_TIME_KEYS = ("time", "timestamp", "@timestamp", "ts", "asctime", "date", "created")
_SURE_KEYS = frozenset(("MESSAGE", "log", "msg", "message", "textPayload"))
"""Keys that only loggers use; samples of training data have a `text` or `line` too, but neither time nor level."""
_LOG_KEYS = frozenset(
    (*_TIME_KEYS, "level", "levelname", "severity", "stream", "logger", "rank", "__REALTIME_TIMESTAMP")
)
_JSON_MESSAGE = re.compile(r'"(?:log|MESSAGE|msg|message)" ?: ?"((?:[^"\\]|\\.){1,16000})')
_JSON_TIME = re.compile(r'"(?:time|timestamp|@timestamp|ts)" ?: ?"([^"]{10,40})"')


def _number(value: object) -> int | None:
    """A whole number written as digits or as a number; None for all else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 1 << 63 else None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    return None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 255 else None


def _message(value: object) -> str | None:
    """A journal's MESSAGE: text, bytes as numbers, or several values of either kind."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    if (text := _bytes(value)) is not None:
        return text
    return "\n".join(text for x in value[:64] if (text := x if isinstance(x, str) else _bytes(x)) is not None) or None


def _bytes(value: object) -> str | None:
    """Text that the journal writes as a list of byte values, because it is not UTF-8."""
    if not isinstance(value, list) or not all(isinstance(x, int) and 0 <= x < 256 for x in value):
        return None
    return bytes(value).decode("utf-8", "backslashreplace")


def _journal(fields: dict[str, Any], peeled: Peeled) -> None:
    """Time and identity of one journal record.

    `__REALTIME_TIMESTAMP` and `__MONOTONIC_TIMESTAMP` are the journal's receipt, `_SOURCE_MONOTONIC_TIMESTAMP` is
    printk's time (µs all): the wall time of the message is the receipt minus the delay between the monotonic ones.
    """
    received = _number(fields.get("__REALTIME_TIMESTAMP"))
    if received is not None:
        printk_us = _number(fields.get("_SOURCE_MONOTONIC_TIMESTAMP"))
        monotonic_us = _number(fields.get("__MONOTONIC_TIMESTAMP"))
        happened = _number(fields.get("_SOURCE_REALTIME_TIMESTAMP")) or received
        if printk_us is not None and monotonic_us is not None and 0 <= monotonic_us - printk_us < 600_000_000:
            happened = received - (monotonic_us - printk_us)
        boot_ns = None if printk_us is None else printk_us * 1000
        _give(peeled, Stamp(wall_ns=happened * 1000, zone_s=0, boot_ns=boot_ns, resolution_ns=1000))
    peeled.host = _word(fields.get("_HOSTNAME")) or peeled.host
    peeled.program = _word(fields.get("SYSLOG_IDENTIFIER")) or _word(fields.get("_COMM")) or peeled.program
    peeled.pid = _number(fields.get("_PID")) or _number(fields.get("SYSLOG_PID")) or peeled.pid
    peeled.boot_id = _word(fields.get("_BOOT_ID")) or peeled.boot_id
    peeled.pod = _word(fields.get("CONTAINER_NAME")) or peeled.pod
    peeled.final = peeled.program == "kernel"


def _json_fields(fields: dict[str, Any], raw: str, peeled: Peeled) -> str | None:
    """One JSON object as a log line: docker, fluent-bit, the journal, or a program's own JSON logger."""
    for key in _MESSAGE_KEYS:
        if key in fields and (text := _message(fields[key])) is not None and (key in _SURE_KEYS or _is_log(fields)):
            break
    else:
        if "__REALTIME_TIMESTAMP" not in fields:
            return None
        _journal(fields, peeled)
        peeled.final = True
        return raw
    if "__REALTIME_TIMESTAMP" in fields:
        _journal(fields, peeled)
        return text
    for key in _TIME_KEYS:
        if (stamp := stamps.epoch(fields.get(key))) is not None:
            _give(peeled, stamp)
            break
    rank = _number(fields.get("rank"))
    peeled.rank = rank if rank is not None else peeled.rank
    local = _number(fields.get("local_rank"))
    peeled.local_rank = local if local is not None else peeled.local_rank
    peeled.host = _word(fields.get("host")) or _word(fields.get("hostname")) or peeled.host
    pid = _number(fields.get("pid"))
    peeled.pid = pid if pid is not None else peeled.pid
    pods = fields.get("kubernetes")
    if isinstance(pods, dict):
        peeled.pod = _word(pods.get("pod_name")) or peeled.pod
        peeled.host = _word(pods.get("host")) or peeled.host
    return text.rstrip("\r\n")


def _is_log(fields: dict[str, Any]) -> bool:
    return not _LOG_KEYS.isdisjoint(fields)


def _loads(text: str | bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _json(text: str, peeled: Peeled, line: Line) -> str | None:
    """`{"log": …, "time": …}`, journalctl -o json, JSON loggers; a cut object gives what can be read of it."""
    fields = _loads(text.rstrip(" ,"))
    if fields is not None:
        return _json_fields(fields, text, peeled)
    if m := _JSON_MESSAGE.search(text):
        whole = _loads('{"x":"' + m[1] + '"}')
        if (time := _JSON_TIME.search(text)) and (stamp := stamps.epoch(time[1])):
            _give(peeled, stamp)
        return str(whole["x"]).rstrip("\r\n") if whole else m[1]
    return None


_PRETTY = re.compile(r'\t{1,2}(?:"(\w{1,64})" : )?(".*|[\d\[].*)', re.DOTALL)


def _json_pretty(text: str, peeled: Peeled, line: Line) -> str | None:
    """`\\t"MESSAGE" : "…",`, or a value of a list, inside a record of journalctl -o json-pretty."""
    m = _PRETTY.match(text)
    if m is None:
        return None
    buffer = line.window.buffer
    low, high = max(0, line.start - RECORD), min(line.window.end, line.end + RECORD)
    start = buffer.rfind(b"{", low, line.start)
    while start > low and buffer[start - 1] not in b"\n\r":
        start = buffer.rfind(b"{", low, start)
    end = buffer.find(b"\n}", line.end - 1, high)
    fields = _loads(bytes(buffer[start : end + 2])) if 0 <= start < end else None
    value = m[2].rstrip(" ,")
    own = _loads('{"x":' + value + "}")
    shown = _message(own["x"]) if own else None
    if fields is None:
        return shown
    _journal(fields, peeled)
    return shown if shown is not None else _message(fields.get(m[1] or "MESSAGE"))


_EXPORT_KEY = re.compile(r"([A-Z_][A-Z0-9_]{0,63})=")
_EXPORT_FIELDS = (
    "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP",
    "_HOSTNAME", "SYSLOG_IDENTIFIER", "_COMM", "_PID", "SYSLOG_PID", "_BOOT_ID", "CONTAINER_NAME",
)  # fmt: skip


def _export_record(peeled: Peeled, line: Line) -> bool:
    """The other fields of this line's record in `journalctl -o export`: from its `__CURSOR=` to the next one's."""
    buffer = line.window.buffer
    low, high = max(0, line.start - RECORD), min(line.window.end, line.end + RECORD)
    start = max(buffer.rfind(b"__CURSOR=", low, line.start + 9), low)
    end = buffer.find(b"\n__CURSOR=", line.end, high)
    end = high if end < 0 else end
    fields: dict[str, Any] = {}
    for name in _EXPORT_FIELDS:
        key = b"\n" + name.encode() + b"="
        at = buffer.find(key, start, end)
        if at >= 0:
            stop = buffer.find(b"\n", at + 1, min(end, at + 400))
            if stop > 0:
                fields[name] = bytes(buffer[at + len(key) : stop]).decode("utf-8", "replace").rstrip("\r")
    if "__REALTIME_TIMESTAMP" not in fields:
        return False
    _journal(fields, peeled)
    return True


def _export(text: str, peeled: Peeled, line: Line) -> str | None:
    """`MESSAGE=…` of journalctl -o export."""
    m = _EXPORT_KEY.match(text)
    if m is None or not _export_record(peeled, line):
        return None
    line.window.state["records"] = "export"
    if m[1] == "MESSAGE":
        return text[m.end() :]
    peeled.final = True
    return text


_NOT_INDENTED = re.compile(rb"\n(?! {2})")


def _verbose(text: str, peeled: Peeled, line: Line) -> str | None:
    """`    MESSAGE=…` of journalctl -o verbose, and the indented lines behind it."""
    buffer = line.window.buffer
    low = max(0, line.start - RECORD)
    at = buffer.rfind(b" [s=", low, line.start)
    if at < 0:
        return None
    start = max(buffer.rfind(b"\n", low, at), low - 1) + 1
    found = stamps.weekday_iso(bytes(buffer[start:at]).decode("utf-8", "replace"))
    if found is None:
        return None
    # Fields may follow too: to the next record's head, which is the next line that is not indented.
    following = _NOT_INDENTED.search(buffer, line.end, min(line.window.end, line.end + RECORD))
    record = bytes(buffer[at : following.start() if following else min(line.window.end, line.end + RECORD)])
    fields = {
        key.decode(): value.decode("utf-8", "replace").rstrip("\r")
        for key, value in re.findall(rb"\n {4}([A-Z_][A-Z0-9_]{0,63})=([^\n]{0,300})", record)
    }
    cursor = re.search(rb";m=([0-9a-f]{1,16});t=([0-9a-f]{1,16})", record[:400])
    if cursor:
        fields["__MONOTONIC_TIMESTAMP"] = str(int(cursor[1], 16))
        fields["__REALTIME_TIMESTAMP"] = str(int(cursor[2], 16))
        _journal(fields, peeled)
    else:
        _give(peeled, found[0])
    line.window.state["records"] = "verbose"
    body = text.strip(" ")
    m = _EXPORT_KEY.match(body)
    return body[m.end() :] if m and m[1] == "MESSAGE" else body


# --- launchers that write `word: ` ------------------------------------------------------------------------------------

_WORD = re.compile(r"([A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?): ?", re.ASCII)
_TASK = re.compile(r" {0,6}(\d{1,6}): ", re.ASCII)
_HOSTLIKE = re.compile(r"[\w.]*[a-zA-Z][\w.]*(?:-[\w.-]+|\d[\w.-]*)|\d{1,3}(?:\.\d{1,3}){3}", re.ASCII)
_DEVICE = re.compile(
    r"(?:nvme|ata|eth|en[opsx]|veth|docker|br|bond|wlan|ib|mlx\d|bnxt|sd[a-z]|md|dm|loop|usb|cpu|gpu|irq|nvidia|i2c|hid|input|"
    r"rank|step|epoch|iter|layer|attempt|node_rank|localrank|level|utf|sha|fp|bf|int|float|python|cuda|nccl|val|train|test|loss|"
    r"lm|eval|avg|max|min|num|n_|lr|top|acc|batch|seq|grad|global|local|micro|world|learning|weight)[\d_-]",
    re.IGNORECASE,
)
_NOT_HOSTS = """
    error warning warn info debug critical fatal note notice srun sbatch salloc slurmstepd slurmd slurmctld
    traceback nvrm kernel exception wandb root host time rank exitcode epoch step iter loss file line frame ray
    torchrun deepspeed accelerate audit tsc bash sh python python3 mpirun prterun orted pdsh clush ssh scp http
    https usage hint help runtimeerror valueerror oserror raise return what args config model train training eval
    validation test data rng
    mce nfs nfs4 lockd rpc dmar edac acpi ghes bert erst hest amd-vi ext4-fs xfs btrfs jbd2 lustre lustreerror lnet
    lneterror libceph ceph watchdog rcu sched clocksource tsc tcp scsi traps random workqueue cgroup oom_reaper systemd
    pci pcieport usb hub acpiphp pciehp aer dpc nvidia nvidia-nvlink nvidia-nvswitch nvidia-modeset nvidia-uvm
    nvidia-peermem mlx5_core mlx4_core ib_core infiniband bnxt_en ixgbe igb i40e ice kvm x86 cpu smp numa memory
    call code rip rsp modules thermal perf hrtimer input device-mapper loop squashfs iommu selinux apparmor
"""
_NO_HOSTS = frozenset(_NOT_HOSTS.split())
_BAR_HEAD = re.compile(r" {0,3}\d{1,3}%\||\d{1,12}it \[", re.ASCII)
"""tqdm writes what it counts before its bar: `Evaluating:  43%|`."""
_VALUE = re.compile(r"[-+]?\d[\d.e+-]*(?:\s*$|\s*[|,;])")


def _agree(
    line: Line, pattern: re.Pattern[str], share: float, word: str | None, *, alone: bool = True, least: int = 2
) -> bool:
    """Do the lines around carry such a prefix too?

    Lines of a progress bar and blank ones have no vote. A word has to stand before `least` lines or more; if there are
    no more than two lines, one is enough for a word that may stand `alone`.
    """
    yes = voters = same = 0
    for near in (line, *line.before(VOTERS), *line.after(VOTERS)):
        text = _decode(near.raw[:300]).lstrip("\x00")
        if text[:2] in ("19", "20") and (
            found := stamps.iso(text)
        ):  # a collector's stamp outside of the launcher's tag
            cri = _CRI.match(text, found[1])
            text = text[cri.end() :] if cri else text[found[1] :].removeprefix(" ")
        m = pattern.match(text)
        if m is None and (not text.strip() or "%|" in text or text.startswith((" ", "\t", "#", "Traceback"))):
            continue
        if m is not None and pattern is _WORD and _BAR_HEAD.match(text, m.end()) and _HOSTLIKE.fullmatch(m[1]) is None:
            continue
        voters += 1
        if m is not None and (pattern is _TASK or _may_be_host(m[1], text[m.end() :])):
            yes += 1
            same += m[1] == word
    return yes >= share * voters and (word is None or same >= least or (alone and voters <= 2))


def _may_be_host(word: str, rest: str) -> bool:
    lower = word.lower()
    return not (
        lower in _NO_HOSTS
        or lower.endswith(("error", "exception", "warning"))
        or _DEVICE.match(word)
        or _VALUE.match(rest)
    )


def _launcher_host(text: str, peeled: Peeled, line: Line) -> str | None:
    """`g002: ` (pdsh, dsh, clush): only where the neighbours are written so too."""
    m = _WORD.match(text)
    if (
        m is None
        or m[1].isdecimal()
        or not text.startswith(" ", m.end() - 1)
        or not _may_be_host(m[1], text[m.end() :])
    ):
        return None
    known: dict[str, int] = line.window.state.get("hosts", {})
    if _BAR_HEAD.match(text, m.end()) and _HOSTLIKE.fullmatch(m[1]) is None and known.get(m[1]) != 1:
        return None
    if not _is_host(m[1], line):
        return None
    peeled.host = m[1]
    return text[m.end() :]


def _is_host(word: str, line: Line) -> bool:
    """Is `word: ` a launcher's host prefix in this file? Asked of the neighbours, at most four times a word."""
    known: dict[str, int] = line.window.state.setdefault("hosts", {})
    seen = known.get(word, 0)
    if seen == 1:
        return True
    if seen <= -4 or (seen == 0 and len(known) >= 4096):
        return False
    like = _HOSTLIKE.fullmatch(word) is not None
    sure = _agree(line, _WORD, 0.5 if like else 0.8, word, alone=like)
    known[word] = 1 if sure else seen - 1
    return sure


_QUOTE = re.compile(r"(?:> ?){1,4}")
_QUOTED = 4
"""So many lines in a row that a mail quotes are a log that was sent on. One alone is what somebody says of a log. Our
judgement."""


def _mail_quote(text: str, peeled: Peeled, line: Line) -> str | None:
    """`> `: a mail program's, before each line of a log that somebody answered or sent on."""
    m = _QUOTE.match(text)
    if m is None:
        return None
    around = (line.before(_QUOTED - 1), line.after(_QUOTED - 1))
    rows = 1 + sum(1 for side in around for _ in takewhile(lambda near: near.raw.startswith(b">"), side))
    return text[m.end() :] if rows >= _QUOTED else None


def _launcher_task(text: str, peeled: Peeled, line: Line) -> str | None:
    """` 3: ` (srun --label)."""
    m = _TASK.match(text)
    if m is None:
        return None
    state = line.window.state
    seen = state.get("tasks", 0)
    if seen < 1:
        if seen <= -8 or not _agree(line, _TASK, 0.6, None):
            state["tasks"] = seen - 1
            return None
        state["tasks"] = 1
    peeled.task = int(m[1])
    return text[m.end() :]


_GREP = re.compile(r"(?:[\w./@+~-]{1,200}[:-])?(?:\d{1,9}[:-])?(?=[A-Z\[<{]|\d{4}-\d\d-\d\d|\d{9,10}\.\d|[^\W\d_]{2})")
_GREP_BEFORE = re.compile(
    r"(?:^|/)[\w.@+~-]{0,100}(?:log|dmesg|messages|syslog|kern|journal|txt|out|err)[\w.@+~-]{0,40}[:-]", re.IGNORECASE
)
_COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,62}[A-Za-z0-9]) {1,40}\| ", re.ASCII)


def _grep(text: str, peeled: Peeled, line: Line) -> str | None:
    """`kern.log:12:` and `12:` of grep -n and -H, `-` in lines of context: only before a stamp or a bracket."""
    m = _GREP.match(text)
    if m is None or not m[0]:
        return None
    rest = text[m.end() :]
    if stamps.parse(rest) is None and not (rest.startswith("[") and _GREP_BEFORE.match(m[0])):
        return None
    return rest


def _compose(text: str, peeled: Peeled, line: Line) -> str | None:
    """`trainer-1  | ` (docker compose logs): only where the neighbours are written so too."""
    m = _COMPOSE.match(text)
    if m is None or not _may_be_host(m[1], text[m.end() :]):
        return None
    known: dict[str, int] = line.window.state.setdefault("services", {})
    seen = known.get(m[1], 0)
    if seen < 1:
        if seen <= -4 or (seen == 0 and len(known) >= 4096):
            return None
        numbered = m[1][-1].isdecimal()  # compose counts the containers of a service
        sure = _agree(line, _COMPOSE, 0.8, None if numbered else m[1], alone=False)
        known[m[1]] = 1 if sure else seen - 1
        if not sure:
            return None
    peeled.pod = m[1]
    return text[m.end() :]


_MILABENCH = re.compile(r"([\w.-]{1,120}) \[(?:stdout|stderr)\] ", re.ASCII)
_NCCL = re.compile(r"([\w.-]{1,255}):(\d{1,9}):\d{1,9} \[-?\d{1,4}\] ", re.ASCII)
_LOGIN = re.compile(r"([\w.-]{1,64}) login: (?=\[ *\d+\.\d{6}\])", re.ASCII)


def _milabench(text: str, peeled: Peeled, line: Line) -> str | None:
    """`llama.node1.nolog [stderr] `."""
    m = _MILABENCH.match(text)
    return None if m is None else text[m.end() :]


def _login(text: str, peeled: Peeled, line: Line) -> str | None:
    """A serial console's prompt with a kernel message behind it."""
    m = _LOGIN.match(text)
    if m is None:
        return None
    peeled.host = m[1]
    return text[m.end() :]


def _margin(text: str, peeled: Peeled, line: Line) -> str | None:
    """Megatron's blank before a bracket."""
    return text[1:] if text.startswith(" [") else None


# --- which layers can start with a character --------------------------------------------------------------------------


def _words(text: str, peeled: Peeled, line: Line) -> str | None:
    """All that starts with a letter; most lines that do have no prefix, so cheap looks come first."""
    if " | " in text[:104] and (rest := _compose(text, peeled, line)) is not None:
        return rest
    colons = text.count(":", 0, 48)
    if colons == 0:
        return _milabench(text, peeled, line) if " [std" in text[:140] else None
    if colons > 1:
        for layer in (_syslog, _weekday, _dmesg_facility, _talos, _grep):
            if (rest := layer(text, peeled, line)) is not None:
                return rest
    if (rest := _launcher_host(text, peeled, line)) is not None:
        return rest
    if " [std" in text[:140]:
        return _milabench(text, peeled, line)
    return _login(text, peeled, line) if " login: [" in text[:100] else None


def _bracket(text: str, peeled: Peeled, line: Line) -> str | None:
    second = text[1:2]
    for layer in _BY_SECOND.get(second, _BRACKET_WORD):
        if (rest := layer(text, peeled, line)) is not None:
            return rest
    return None


_BRACKET_WORD: Final[tuple[Layer, ...]] = (
    _role,
    _pod,
    _mpi,
    _dmesg_ctime,
    _dmesg_minute,
    _bracket_date,
    _named,
    _level_first,
)
_BRACKET_DIGIT: Final[tuple[Layer, ...]] = (
    _printk,
    _bracket_date,
    _mpi,
    _dmesg_ctime,
    _dmesg_minute,
    _numbered,
    _lost_colour,
)
_BRACKET_BLANK: Final[tuple[Layer, ...]] = (_printk, _dmesg_gap, _dmesg_ctime, _dmesg_minute)
_BY_SECOND: Final[dict[str, tuple[Layer, ...]]] = {
    **dict.fromkeys("0123456789", _BRACKET_DIGIT),
    " ": _BRACKET_BLANK,
    "+": (_dmesg_gap,),
    "<": (_dmesg_gap_only,),
    "r": (_rank, *_BRACKET_WORD),
    "R": (_rank, *_BRACKET_WORD),
    **dict.fromkeys("EWIF", (_c10, *_BRACKET_WORD)),
}
_DIGIT: Final[tuple[Layer, ...]] = (
    _iso,
    _launcher_task,
    _us_date,
    _unix,
    _kmsg,
    _talos,
    _syslog,
    _grep,
    _launcher_host,
)
_LETTER: Final[tuple[Layer, ...]] = (_words,)
_FIRST: Final[dict[str, tuple[Layer, ...]]] = {
    "[": (_bracket,),
    "<": (_priority,),
    ">": (_mail_quote,),
    "{": (_json,),
    "(": (_actor,),
    "\t": (_json_pretty,),
    "_": (_export,),
    " ": (_margin, _syslog, _launcher_task),
    **dict.fromkeys("0123456789", _DIGIT),
    **dict.fromkeys("EWIFDC", (_glog, _level_first, *_LETTER)),
    **dict.fromkeys("TNS", (_level_first, *_LETTER)),
    "M": (_export, *_LETTER),
    "t": (_logrus, *_LETTER),
}


def _layers(text: str, peeled: Peeled, line: Line) -> str:
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


# --- the commonest chains, in one regex each --------------------------------------------------------------------------

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


_SHAPES: Final = (_kernel_line, _printk_line, _rank_line)
_LESSONS: Final = 32
"""How often in a file a chain may be looked for anew, when a line is not of the shape that was seen last."""


def _unwrap(text: str, peeled: Peeled, line: Line) -> str:
    """All layers off: by the shape of this file's last line if it fits, else layer by layer."""
    state = line.window.state
    shape = state.get("shape")
    if shape is not None and text and (quick := shape(text, peeled)) is not None:
        return str(quick)
    rest = _layers(text, peeled, line)
    lessons = state.get("lessons", 0)
    if peeled.final and lessons < _LESSONS:
        state["lessons"] = lessons + 1
        for candidate in _SHAPES:
            trial = Peeled(text)
            if candidate(text, trial) == rest and trial == peeled:  # it must say the same as the layers did
                state["shape"] = candidate
                break
    return rest


# --- glue -------------------------------------------------------------------------------------------------------------

_ANSI = re.compile(
    r"(?:\x1b|\^\[|#033)(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cDEHMZ])"
)
_INNER = re.compile(
    r"\[rank\d{1,7}\]: ?(?:\[[EWIF][^\]\n]{3,240}:\d{1,7}\] |Traceback \(most recent call last\):)?"
    r"|\[[EWIF](?:\d{3,4} \d\d:\d\d:\d\d\.\d{6,9})? [\w./+-]{1,200}\.(?:cpp|cc|cu|cuh|hpp|h):\d{1,7}\] "
    r"|Traceback \(most recent call last\):",
    re.ASCII,
)
_INNER_NCCL = re.compile(
    r"(?<![\w.:/-])[A-Za-z][\w.-]{0,100}:\d{1,9}:\d{1,9} \[\d{1,4}\] "
    r"(?=[\w./]{0,60}(?::\d{1,6} )?(?:\([\w]{1,60}\) )?NCCL )",
    re.ASCII,
)
_BAR = re.compile(
    r"\d\S{0,12}/\S{1,12} \[[\d:]{4,12}<[^\]\[\n]{1,300}\]"
    r"|%\|[^|\n]{0,200}\|[^\[\n]{0,80}\[[\d:]{4,12}<[^\]\[\n]{1,300}\]"
)
_BEFORE_INNER = re.compile(r"(?:^|[\]\s.;])([A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?): $", re.ASCII)


def _hit(text: str, line: Line) -> int:
    """Where in `text` the first of the scanner's literals stands; its end if there is none."""
    found = [at for hit in line.hits if (at := text.find(hit.decode("utf-8", "replace"))) >= 0]
    return min(found, default=len(text))


_TAG_BEFORE = re.compile(r"\[default(\d{1,5})\]: ?$")
"""torchrun's tag right before a glued message (torch/distributed/elastic/multiprocessing/tail_log.py)."""


def _unglue(text: str, peeled: Peeled, line: Line) -> str:
    """The message that was glued to a progress bar or to another message, instead of the whole line.

    Of several, the one in which the scanner's literal stands: what is before it was written by somebody else.
    """
    # A traceback is quoted in prose too ("hit an exception: Traceback …"): only behind a bar was it glued.
    bar = text.find("%|") if "%|" in text else text.find("it/s")
    starts = [m.start() for m in _INNER.finditer(text) if m.start() == 0 or m[0][0] != "T" or 0 <= bar < m.start()]
    if "NCCL " in text:
        starts = sorted(starts + [m.start() for m in _INNER_NCCL.finditer(text)])
    if starts and starts[-1] > 0:
        hit = _hit(text, line) if line.hits else starts[0] or starts[1]
        begin = max((at for at in starts if at <= hit), default=0)
        end = min((at for at in starts if at > hit), default=len(text))
        if begin == 0:
            return text[:end] if text[:end].strip() else text
        word = _BEFORE_INNER.search(text[max(0, begin - 80) : begin])
        if word and _may_be_host(word[1], "") and _is_host(word[1], line):
            peeled.host = word[1]
        peeled.rank, peeled.final = None, False
        tag = _TAG_BEFORE.search(text[max(0, begin - 24) : begin])
        peeled.local_rank = int(tag[1]) if tag else None  # the one at the line's head wrote the bar
        # The collector's stamp holds for the whole line; that of the message before does not.
        peeled.stamp, peeled.outer = peeled.outer or peeled.stamp, None
        if peeled.stamp is not None and peeled.stamp.zone_s is None:
            peeled.stamp = None
        return _layers(text[begin:end], peeled, line)
    if "[" in text and (bars := list(_BAR.finditer(text))):
        rest = text[bars[-1].end() :]
        if rest.strip() and bars[-1].end() <= _hit(text, line):
            peeled.final = False
            return _layers(rest.lstrip(" "), peeled, line)
    return text


# --- what stands on other lines ---------------------------------------------------------------------------------------


def _from_line_head(peeled: Peeled, line: Line) -> None:
    """A piece behind a carriage return has no prefix of its own: the launcher's stands at the head of the line."""
    buffer = line.window.buffer
    start = buffer.rfind(b"\n", max(0, line.start - (1 << 14)), line.start) + 1
    if start == 0 and line.start > 1 << 14:
        return
    head = _decode(bytes(buffer[start : min(start + 300, line.start)]).split(b"\r", 1)[0])
    other = Peeled(head)
    _layers(head, other, line)
    peeled.host, peeled.pod, peeled.task = other.host, other.pod, other.task
    peeled.local_rank = other.local_rank
    peeled.stamp = other.outer or (other.stamp if other.stamp and other.stamp.zone_s is not None else None)


_RULE = rb"-{15,16}\r?\n"
_HEADINGS: Final = (
    # dshbak (pdsh) has 16 dashes, clush -b 15; several hosts with the same lines stand as n[1-3]
    (b"\n---------------", re.compile(_RULE + rb"(?P<host>[^\n]{1,255}?) *\r?\n" + _RULE)),
    (b" >>\n", re.compile(rb"(?P<host>[^\s|]{1,255}) \| [A-Z]{3,20}!? \| rc=-?\d{1,4} >>\n")),  # ansible
)
"""(what stands in each, the whole) of headings above the lines of one host."""
_LONGEST_HEADING: Final = 320
_NAME = re.compile(rb"[\w.-]{1,255}", re.ASCII)


def _of_heading(peeled: Peeled, line: Line) -> None:
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


def _form_of_headings(line: Line) -> int | bool:
    """Which form of headings the file begins with; False: none, or its beginning isn't in memory any more."""
    buffer = line.window.buffer
    if buffer.count(b"\n", 0, line.start) != line.number - 1:
        return False
    head = bytes(buffer[: min(line.window.end, _LONGEST_HEADING)]).lstrip(b"\0\r\n ")
    return next((n for n, (_, whole) in enumerate(_HEADINGS) if whole.match(head)), False)


_CONTINUED: Final = " " * 10
"""dmesg and journalctl indent a record's further lines by the width of the stamp, 14 blanks or more."""
_RECORD_LINES: Final = 6
"""The driver's longest multi-line print has three (a judgement: twice that)."""


def _continue(peeled: Peeled, line: Line) -> None:
    """An indented line without a stamp is the rest of the kernel record above it (the driver's multi-line prints)."""
    for above in line.before(_RECORD_LINES):
        raw = _decode(above.raw)
        other = Peeled(raw)
        text = _layers(raw, other, line)
        if not text.startswith(_CONTINUED) or (other.stamp is not None and other.stamp.boot_ns is not None):
            if other.program == "kernel":
                peeled.stamp, peeled.host, peeled.program = other.stamp, other.host, other.program
                peeled.outer = peeled.outer or other.outer
            return


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "backslashreplace")
    if "\x1b" in text or "#033" in text or "^[" in text:
        text = _ANSI.sub("", text)
    return text


def _binary_field(raw: bytes) -> bytes | None:
    """A journal export's binary field: 8 bytes of little-endian length before the first line; None if it is none."""
    zeros = raw.rfind(b"\0", 0, 8)
    return raw[zeros + 1 :] if zeros >= 3 and raw[max(0, zeros - 3) : zeros + 1].count(0) >= 3 else None


def peel(line: Line) -> Peeled:
    """Everything that stands before the message of `line`, taken off and read.

    Never raises; what does not look like a prefix stays in the text. `line.window.state` remembers what a file's lines
    look like (host names of a launcher, the last minute of `dmesg -H`, the record format of a journal).
    """
    raw = line.raw
    state = line.window.state
    if raw[:1] in (b"\0", b"\xef", b"\xff") or b"\0\0\0" in raw[:8]:
        body = _binary_field(raw)
        if body is not None and _exported(line):
            peeled = Peeled(_decode(body))
            _export_record(peeled, line)
            return peeled
        raw = raw.lstrip(b"\0").removeprefix(b"\xef\xbb\xbf")
    text = _decode(raw)
    peeled = Peeled(text)
    start = line.start
    if start and line.window.buffer[start - 1] == 0x0D:
        _from_line_head(peeled, line)
    rest = _unwrap(text, peeled, line) if peeled.stamp is None else _layers(text, peeled, line)
    if rest is text and (text.startswith("    ") or "records" in state):
        if text.startswith("    ") and state.get("verbose", 0) < 8:
            if (body_text := _verbose(text, peeled, line)) is not None:
                peeled.text = body_text
                return peeled
            state["verbose"] = state.get("verbose", 0) + 1
        elif state.get("records") == "export" and peeled.stamp is None:
            _export_record(peeled, line)
            return peeled
    if rest.startswith(_CONTINUED) and (peeled.stamp is None or peeled.stamp.boot_ns is None):
        _continue(peeled, line)
        if peeled.program == "kernel":
            rest = rest.lstrip(" ")
    if peeled.program != "kernel":
        nccl = "NCCL " in rest
        if nccl and (m := _NCCL.match(rest)) and "[rank" not in rest:
            peeled.host, peeled.pid = peeled.host or m[1], int(m[2])
        elif nccl or "[rank" in rest or "%|" in rest or "it/s" in rest or (".cpp:" in rest and "[E" in rest):
            rest = _unglue(rest, peeled, line)
            if nccl and (m := _NCCL.match(rest)):
                peeled.host, peeled.pid = peeled.host or m[1], int(m[2])
    if peeled.host is None:
        _of_heading(peeled, line)
    peeled.text = rest
    return peeled


def _exported(line: Line) -> bool:
    return line.window.buffer.rfind(b"__REALTIME_TIMESTAMP=", max(0, line.start - RECORD), line.start) >= 0
