"""What kernels and system loggers put before a message: dmesg in its many forms, syslog, kmsg.

Shapes: util-linux dmesg.c, rsyslog, RFC 5424.
"""

from __future__ import annotations

import re
from typing import Final

from nccl_forensics.lines import stamps
from nccl_forensics.lines.prefixes.peeled import RECORD, Peeled, after_blank, give
from nccl_forensics.lines.window import RawLine
from nccl_forensics.model import Stamp

CALLER = re.compile(r"\[ {0,6}[TC] {0,6}\d{1,8}\] ?", re.ASCII)  # CONFIG_PRINTK_CALLER
_NEXT_PROGRAM = re.compile(r"(?:([\w.-]{1,64}) )?kernel: ?|([\w.-]{1,64}) ([\w./@-]{1,64})\[(\d{1,9})\]: ", re.ASCII)
SYSLOG_TAIL = re.compile(
    r" +(?:([^\s:\[\]<>(){}\"=,]{1,255}|[0-9a-fA-F:]{3,45}) )?([^\s:\[\]]{1,100})(?:\[(\d{1,10})\])?: ?"
)
_SYSLOG_REPEAT = re.compile(r"message repeated (\d{1,9}) times: \[ ?", re.ASCII)
_LEVEL_WORDS = frozenset(("TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"))
_NO_STAMP: Final = Stamp()


def kernel_message(text: str, peeled: Peeled) -> str:
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
                boot_id=old.boot_id,
            )
            text = after_blank(text, m.end())
        if text.startswith("[") and (m := CALLER.match(text)):
            text = text[m.end() :]
    return text


def syslog_tail(text: str, m: re.Match[str] | None, peeled: Peeled) -> str | None:
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
        return kernel_message(rest, peeled)
    if rest.startswith("message repeated") and (repeat := _SYSLOG_REPEAT.match(rest)):
        peeled.repeats = max(1, int(repeat[1]))
        rest = rest[repeat.end() :].removesuffix("]")
    return rest


def syslog(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`Mar  4 10:19:54 host program[pid]: `, months in any language."""
    found = stamps.syslog(text)
    if found is None:
        # No such day, or a month in a language that we cannot read: host and program are there all the same.
        m = stamps.SYSLOG.match(text)
        tail = SYSLOG_TAIL.match(text, m.end()) if m else None
        return syslog_tail(text, tail, peeled) if tail and tail[1] else None
    give(peeled, found[0])
    rest = syslog_tail(text, SYSLOG_TAIL.match(text, found[1]), peeled)
    return text[found[1] :].lstrip(" ") if rest is None else rest


def printk(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[191234.567013] `: dmesg, consoles, pstore; with ` host kernel: ` behind it journalctl -o short-monotonic."""
    found = stamps.boot(text)
    if found is None:
        return None
    give(peeled, found[0])
    rest = after_blank(text, found[1])
    if rest.startswith("[") and (caller := CALLER.match(rest)):
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


def dmesg_ctime(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[Wed Mar  4 10:19:54 2026] ` (dmesg -T): wall time computed from uptime, in the caller's zone."""
    found = stamps.ctime(text, 1, drifts=True)
    if found is None or (m := _BRACKET_CTIME_GAP.match(text, found[1])) is None:
        return None
    give(peeled, found[0])
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


def dmesg_minute(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[Mar 4 10:19] `: dmesg -H and -e, at each new minute."""
    found = _minute_stamp(text)
    if found is None:
        return None
    minute_ns, end = found
    line.window.state["minute"] = (line.number, minute_ns, 0)
    give(peeled, _within_minute(minute_ns, 0))
    peeled.program, peeled.final = "kernel", True
    return text[end:]


def dmesg_gap(text: str, peeled: Peeled, line: RawLine) -> str | None:
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
        give(peeled, _within_minute(minute_ns, gap_ns))
    return text[m.end() :]


def dmesg_gap_only(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[<    0.000009>] ` (dmesg -d): gaps alone tell no time."""
    m = _GAP_ONLY.match(text)
    if m is None:
        return None
    peeled.program, peeled.final = "kernel", True
    return text[m.end() :]


_PRIORITY = re.compile(r"<\d{1,3}>(1 (?=\d{4}-)| 1 (?=\d{4}-))?", re.ASCII)
_RFC5424 = re.compile(r" (\S{1,255}) (\S{1,48}) (\S{1,128}) \S{1,32} (?:-|(?:\[[^\]\n]{0,2000}\])+) ?")


def priority(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`<3>` before a printk or syslog stamp, or `<3>1 ISO host app procid msgid sd ` (RFC 5424)."""
    m = _PRIORITY.match(text)
    if m is None:
        return None
    if m[1] is None:
        return text[m.end() :].lstrip(" ") if text.startswith((" ", "["), m.end()) else text[m.end() :]
    return _rfc5424(text, m.end(), peeled)


def _rfc5424(text: str, at: int, peeled: Peeled) -> str:
    """The text behind `ISO host app procid msgid sd `, which starts at `at`; what does not look so stays in it."""
    found = stamps.iso(text, at)
    head = _RFC5424.match(text, found[1]) if found else None
    if found is None or head is None:
        return text[at:]
    give(peeled, found[0])
    host, app, procid = head.groups()
    peeled.host = host if host != "-" else peeled.host
    peeled.program = app if app != "-" else None
    peeled.pid = int(procid) if procid.isdecimal() and len(procid) < 11 else peeled.pid
    rest = text[head.end() :].removeprefix("\ufeff")
    return kernel_message(rest, peeled) if app == "kernel" else rest


_FACILITY = re.compile(
    r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *:\w{3,6} *: ?", re.ASCII
)
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2}){1,400}")
"""What /dev/kmsg does with line ends, backslashes and all that is not ASCII (kernel/printk/printk.c)."""
_KMSG = re.compile(r"\d{1,4},\d{1,12},(\d{1,16}),[^;\s]{1,40};", re.ASCII)
_TALOS = re.compile(r"(\S{1,255}): {1,2}\w{3,8}: {1,12}\w{3,7}: \[", re.ASCII)
_OPENWRT = re.compile(r" \w{2,8}\.\w{3,7} ([^\s:\[\]]{1,64})(?:\[(\d{1,9})\])?: ")


def dmesg_facility(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`kern  :err   : ` (dmesg -x)."""
    m = _FACILITY.match(text)
    return None if m is None else text[m.end() :]


def kmsg(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`3,1234,191234567013,-;`: /dev/kmsg, microseconds since boot."""
    m = _KMSG.match(text)
    if m is None:
        return None
    give(peeled, Stamp(boot_ns=int(m[1]) * 1000))
    peeled.program, peeled.final = "kernel", True
    rest = text[m.end() :]
    return _ESCAPED.sub(_unescape, rest) if "\\x" in rest else rest


def _unescape(m: re.Match[str]) -> str:
    return bytes.fromhex(m[0].replace("\\x", "")).decode("utf-8", "backslashreplace")


def talos(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`192.0.2.19: kern:     err: [2026-04-22T21:27:51.291660856Z]: ` (talosctl dmesg)."""
    m = _TALOS.match(text)
    found = stamps.iso(text, m.end()) if m else None
    if m is None or found is None or not text.startswith("]", found[1]):
        return None
    give(peeled, found[0])
    peeled.host = m[1]
    peeled.program, peeled.final = "kernel", True
    return text[found[1] + 1 :].removeprefix(":").removeprefix(" ")


def weekday(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`Wed 2026-03-04 10:19:54 UTC host kernel: ` (journalctl); `Mon Jul 28 10:19:15 2025 kern.crit kernel: `."""
    if found := stamps.weekday_iso(text):
        give(peeled, found[0])
        rest = syslog_tail(text, SYSLOG_TAIL.match(text, found[1]), peeled)
        return text[found[1] :].lstrip(" ") if rest is None else rest
    found = stamps.ctime(text)
    if found is None:
        return None
    give(peeled, found[0])
    m = _OPENWRT.match(text, found[1])
    if m is None:
        return text[found[1] :].lstrip(" ")
    rest = text[m.end() :]
    if m[1] == "kernel":
        return kernel_message(rest, peeled)
    peeled.program = m[1]
    peeled.pid = int(m[2]) if m[2] else peeled.pid
    return rest


def unix_seconds(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`1772619594.567013 host kernel: ` (journalctl -o short-unix)."""
    found = stamps.unix(text)
    if found is None:
        return None
    give(peeled, found[0])
    rest = syslog_tail(text, SYSLOG_TAIL.match(text, found[1]), peeled)
    return text[found[1] :].lstrip(" ") if rest is None else rest
