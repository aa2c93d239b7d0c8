"""NVIDIA Fabric Manager's log (/var/log/fabricmanager.log): what it was told of NVSwitch errors.

Written by nv-fabricmanager. Time: local, no zone, 1 s; continuation lines have none. Example (one line):
[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id
00000000:86:00.0 physical id 3 port 33
The same error stands in the kernel log as an SXid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nccl_forensics.catalog import sxids
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._kernel import LONGEST_MESSAGE, is_quoted, pci_address

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

SWITCH_ERROR = re.compile(
    r"detected NVSwitch (?P<severity>fatal|non-fatal) error (?P<sxid>\d{1,6}) on fid (?P<fid>\d{1,4}) on NVSwitch "
    r"pci bus id (?P<pci>[0-9A-Fa-f:.]{7,16}) physical id (?P<physical>\d{1,4}) port (?P<port>\d{1,4})"
)


@parser(title="NVIDIA Fabric Manager", literals=["detected NVSwitch"])
def fabric_manager(line: Line) -> Iterator[Event]:
    text = line.text[:LONGEST_MESSAGE]
    found = SWITCH_ERROR.search(text)
    if found is None or is_quoted(line, text, found.start()):
        return
    number, fatal = int(found["sxid"]), found["severity"] == "fatal"
    entry = sxids().get(number)
    severity_class = "fatal" if fatal else "nonfatal"
    if fatal and entry and entry.severity_class == "always_fatal":
        severity_class = "always_fatal"
    details: dict[str, Detail] = {
        "sxid": number,
        "switch_pci": pci_address(found["pci"]),
        "link": int(found["port"]),
        "port": int(found["port"]),
        "fid": int(found["fid"]),
        "physical_id": int(found["physical"]),
        "class": severity_class,
        "text": text[found.start() :][:500],
        "reported_by": "fabricmanager",
    }
    if entry:
        details["short"] = entry.name
    yield line.event(
        "sxid",
        role="cause" if fatal else "symptom",
        severity="critical" if fatal else "warning",
        cause="nvlink" if fatal else None,
        details=details,
        pid=None,
    )
