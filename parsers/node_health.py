"""Xids that a monitor of the cluster tells: node conditions, health events, device plugins.

Written by NVSentinel (its conditions in `kubectl describe node`, its events as JSON), by DCGM's health checks that it
runs, and by NVIDIA's device plugin. They tell the number, mostly the card's address and the node, and when the state
changed; the kernel's own line, where it is quoted as it was, is read by xid.py, with the node and time told here.
Examples:

  GpuMemWatch  True  Tue, 17 Feb 2026 05:23:32 -0800  Wed, 11 Feb 2026 16:22:57 -0800  GpuMemWatchIsNotHealthy
  ErrorCode:DCGM_FR_XID_ERROR GPU:4 PCI:0000:c4:00.0 GPU_UUID:GPU-e0816eb1-… Detected XID 31 for GPU 4 …
{"checkName":"GpuMemWatch","isFatal":true,"message":"GPU had an uncontained error (XID 95) …","entitiesImpacted":
[{"entityType":"PCI","entityValue":"0002:00:00.0"}],"nodeName":"gpu-w-04"}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._kernel import pci_address
from ._lines import near
from .kubernetes import condition_moment, described_node
from .xid import of_monitor

NUMBER = re.compile(r"\bXID[ =:]{1,2}(?P<number>\d{1,3})\b|\(XID (?P<bracketed>\d{1,3})\)", re.IGNORECASE)
CARD = re.compile(
    r"\bPCI:(?P<plain>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"|\"entityType\": ?\"PCI\", ?\"entityValue\": ?\"(?P<json>[0-9a-fA-F:.]{7,16})\""
)
NODE = re.compile(r"\"nodeName\": ?\"(?P<name>[\w.-]{1,253})\"")
UUID = re.compile(r"\bGPU-[0-9a-f]{8}-[0-9a-f-]{27}")
HEALTHY = re.compile(r"IsHealthy\b|\"isHealthy\": ?true|No Health Failures")


@parser(
    title="A monitor of the cluster tells an Xid",
    literals=["DCGM_FR_", "entitiesImpacted", "XidCriticalError", "GpuXid", "Detected XID"],
)
def monitored(line: Line) -> Iterator[Event]:
    text = line.raw[:8000].decode("utf-8", "backslashreplace")
    number = NUMBER.search(text)
    if number is None or HEALTHY.search(text) or "Xid (" in text or r"\"" in text[: number.start()]:
        return  # quoted once more in an annotation, or the kernel's own line
    card, node, uuid = CARD.search(text), NODE.search(text), UUID.search(text)
    known: dict[str, Any] = {"host": (node["name"] if node else described_node(line)) or line.host}
    if (stamp := condition_moment(near(line))) is not None:
        known["stamp"] = stamp
    yield of_monitor(
        line,
        int(number["number"] or number["bracketed"]),
        pci_address(card["plain"] or card["json"]) if card else None,
        uuid[0] if uuid else None,
        **known,
    )
