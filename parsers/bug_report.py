"""nvidia-bug-report.log, uname, hostnamectl and the like: whose files these are, and when they were made.

The report's sections themselves (kernel logs, nvidia-smi, lspci …) are read by the parsers of those formats; its
base64 blocks hold nothing for anybody. Written by nvidia-bug-report.sh. Time: `Date:` is `date` in the user's
language; `*** ls:` lines give year and zone in digits. Examples (one line each):
Date: Di 19. Mai 09:58:01 CEST 2026
uname: Linux ws-8x4090 6.8.0-52-generic #53-Ubuntu SMP PREEMPT_DYNAMIC Sat Jan 11 00:06:25 UTC 2025 x86_64 GNU/Linux
*** ls: -r--r--r-- 1 root root 4096 2025-09-13 09:48:06.807900522 +0000 /proc/driver/nvidia/version
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nccl_forensics.lines.plugins import parser
from nccl_forensics.lines.stamps import SECOND, parse_date_line
from nccl_forensics.model import Detail, Event

from ._kernel import build_date

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
UNAME = re.compile(rf"^(?:uname: )?Linux (?P<name>{NAME}) (?P<kernel>\d+\.\d+\S*) #.*GNU/Linux\s*$")
UNAME_PLAIN = re.compile(rf"^uname: Linux (?P<name>{NAME}) \d")
HOSTNAMECTL = re.compile(rf"^\s*(?:Static|Transient) hostname: (?P<name>{NAME})\s*$")
SYSTEMD = re.compile(rf"(?:Set hostname to|Hostname set to) <(?P<name>{NAME})>")
NOBODY = frozenset({"localhost", "localhost.localdomain", "none", "unset", "n"})
"""Names that a machine has before it is given one."""

VERSION = r"(?P<version>\d{3}\.\d{1,3}(?:\.\d{1,3})?)"
NVRM_VERSION = re.compile(rf"^NVRM version:\s+NVIDIA UNIX (?P<open>Open )?.*?\s{VERSION}\s")
SMI_VERSION = re.compile(rf"\bDriver Version\s*: {VERSION}\b")
LS = re.compile(r"^\*\*\* ls: .*?(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9} [+-]\d{4}) ")
REPORT_VERSION = re.compile(r"nvidia-bug-report\.sh Version: (?P<version>\d{1,12})")


@parser(
    title="Host names in reports",
    literals=[
        "GNU/Linux",
        "uname: Linux ",
        "tatic hostname:",
        "ransient hostname:",
        "Set hostname to <",
        "ostname set to <",
    ],
)
def host_name(line: Line) -> Iterator[Event]:
    text = line.text[:1000]
    for source, pattern in (
        ("uname", UNAME),
        ("uname", UNAME_PLAIN),
        ("hostnamectl", HOSTNAMECTL),
        ("systemd", SYSTEMD),
    ):
        if found := pattern.search(text):
            name = found["name"]
            if name.lower() not in NOBODY:
                yield line.event("host-name", role="context", details={"name": name, "source": source}, pid=None)
            return


@parser(title="NVIDIA driver version", literals=["NVRM version:", "Driver Version"])
def driver_version(line: Line) -> Iterator[Event]:
    """The version of the module that is loaded (/proc/driver/nvidia/version) or of nvidia-smi's header."""
    text = line.text[:300]
    if found := NVRM_VERSION.search(text):
        details: dict[str, Detail] = {"version": found["version"], "flavour": "open" if found["open"] else "closed"}
        details.update(build_date(text))
    elif found := SMI_VERSION.search(text):
        details = {"version": found["version"]}
    else:
        return
    line.window.state["driver.version"] = found["version"]
    yield line.event("driver-version", role="context", details=details, pid=None)


@parser(title="nvidia-bug-report.log: when it was made", literals=["nvidia-bug-report.sh Version:", "*** ls: "])
def bug_report_time(line: Line) -> Iterator[Event]:
    """A clock-anchor from `Date:` and one from a file's first `*** ls:` line: UTC, and what the host calls its zone.

    `zone_s` is the host's offset east of UTC at that moment, where it is written.
    """
    text = line.text[:500]
    if found := REPORT_VERSION.search(text):
        yield from _date_below(line, int(found["version"]))
    elif "bug-report.ls" not in line.window.state and (found := LS.match(text)):
        yield from _first_ls(line, found["time"])


def _date_below(line: Line, script_version: int) -> Iterator[Event]:
    for behind in line.after(3):
        written = behind.raw.decode("utf-8", "replace")
        if not written.startswith("Date:"):
            continue
        if (stamp := parse_date_line(written[5:])) and stamp.wall_ns is not None:
            details: dict[str, Detail] = {"what": "date", "script_version": script_version}
            if stamp.zone_s is not None:
                details["epoch_ns"] = stamp.wall_ns - stamp.zone_s * SECOND
                details["zone_s"] = stamp.zone_s
            yield behind.event("clock-anchor", role="context", details=details, stamp=stamp, pid=None)
        return


def _first_ls(line: Line, written: str) -> Iterator[Event]:
    stamp = parse_date_line(written)
    if stamp is not None and stamp.wall_ns is not None and stamp.zone_s is not None:
        line.window.state["bug-report.ls"] = True
        epoch_ns = stamp.wall_ns - stamp.zone_s * SECOND
        details: dict[str, Detail] = {"what": "ls", "zone_s": stamp.zone_s, "epoch_ns": epoch_ns}
        yield line.event("clock-anchor", role="context", details=details, stamp=stamp, pid=None)
