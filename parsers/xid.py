"""NVIDIA's kernel driver: an Xid for each error of a GPU, an SXid for each error of an NVSwitch.

Written by open-gpu-kernel-modules src/nvidia/src/kernel/platform/p2p and nv_error (`nvErrorLog`) and by the nvswitch
driver, into the kernel log. Time: the kernel log's. Examples (one line each):
NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 45, pid=24561, name=pt_main_thread, Ch 00000008 caused by previous Xid 94
NVRM: Xid (0000:03:00): 14, Channel 00000001
nvidia-nvswitch2: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up

What a number means is data: xid.toml, with its sources. Here is only what a line says beyond its number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nccl_forensics.catalog import SxidEntry, XidEntry, load, sxids, xids
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event, Role, Severity

from ._kernel import LONGEST_MESSAGE, is_quoted, pci_address
from .kubernetes import condition_moment, described_node

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

XID = re.compile(load("xid")["meta"]["line_regex"])
SXID = re.compile(load("xid")["meta"]["sxid_regex"])
CAUSED_BY = re.compile(load("xid")["meta"]["caused_by_regex"])
INJECTED = re.compile(r"\binject(?:ed|ion)\b", re.IGNORECASE)
WAITED = re.compile(r"Timeout after (\d{1,4})s of waiting for RPC")
"""Of 119 and 120: the fault is so much older than the line."""
LINK = re.compile(r"\bLink (\d{1,3})\b", re.IGNORECASE)
RECOVERY = re.compile(
    r"recovery action changed from (?P<old>0x[0-9a-f]+) \([^)]*\) to (?P<new>0x[0-9a-f]+)(?: \((?P<word>[^)]*)\))?"
)
NVLINK5 = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/]+)\s+(?P<fatal>Fatal|Nonfatal|Non-fatal)\s+XC(?P<xc>[01])\s+i(?P<injected>[01])\s+"
    r"Link (?P<link>-?\d+)\s+\((?P<words>0x[0-9a-f]{8}(?:,? 0x[0-9a-f]{8})*)",
    re.IGNORECASE,
)
"""Form of 144 to 150, from NVIDIA's Xid catalogue, sheet '144-150 Decode'."""

HARMLESS_64 = re.compile(r"already pending")
"""A second request to remap the same row: nothing failed."""
MONITORS = frozenset({"node-problem-detector", "gpud", "dcgm-exporter", "nvidia-dcgm", "nv-hostengine", "kubelet"})
"""Programs that repeat Xid lines in messages of their own."""
GPUD = re.compile(r"\[(?:XID found|nvidia xid|SXID found|nvidia sxid)\] \(")
"""How `gpud scan` lists what it found, each line in quotes."""
NVLINK5_XIDS = range(144, 151)
RECOVERY_XID = 154
NEW_UNITS = 575
"""Driver branch from which on the unit of an NVLink 5 error has 7 bits and not 10 (xid.toml)."""
DRIVER_LOAD_SXID = 22013
"""Printed in bursts when the driver loads."""


def _plain(value: str | None) -> str | None:
    """`value` without quotes; None for the driver's '<unknown>'."""
    text = (value or "").strip().strip("'\"")
    return None if not text or text == "<unknown>" else text


def _subunit(xid: int, unit: str, word: int, branch: int | None) -> str | None:
    """The finer unit that the first register tells, where the line's own word for it agrees.

    It stands in the low 10 bits before driver R575, in the low 7 bits from R575 on (xid.toml). `branch` is the driver
    that the same file says was loaded; without one both layouts are tried.
    """
    found = None
    for one in load("xid")["nvlink5_unit"]:
        old = f"{word & 0x3FF:010b}" == one["v1_low10"]
        new = f"{word & 0x7F:07b}" == one["v2_low7"]
        fits = (old or new) if branch is None else (new if branch >= NEW_UNITS else old)
        if one["xid"] == xid and fits and unit.upper() in one["unit"].split("/"):
            found = one["unit"]
    return found


def _link_down(unit: str, word: int) -> dict[str, Detail]:
    """Why a link went down, and where to look for it: bits 20 to 25 of the first register of some units."""
    if unit.upper() not in ("NETIR_LINK_EVT", "NETIR_LINK_DOWN"):
        return {}
    reason = word >> 20 & 0x3F
    advice = [one["look_at"] for one in load("xid")["nvlink5_link_down_reason"] if one["code"] == reason]
    return {"link_down_reason": reason, **({"look_at": advice[-1]} if advice else {})}


def _nvlink5(xid: int, text: str, branch: int | None) -> dict[str, Detail]:
    """What the registers of an NVLink 5 error (144 to 150) say: unit, link, whether fatal, link-down reason."""
    found = NVLINK5.search(text)
    if found is None:
        return {}
    words = [int(x, 16) for x in re.findall(r"0x[0-9a-f]{8}", found["words"], re.IGNORECASE)]
    details: dict[str, Detail] = {
        "unit": found["unit"],
        "fatal": found["fatal"].lower() == "fatal",
        "kills_context": found["xc"] == "1",
        "injected": found["injected"] == "1",
    }
    if int(found["link"]) >= 0:  # -1: no link in particular
        details["link"] = int(found["link"])
    if len(words) > 1:
        details["error_status"] = words[1]
    if subunit := _subunit(xid, found["unit"], words[0], branch):
        details["subunit"] = subunit
    return {**details, **_link_down(found["unit"], words[0])}


def _recovery(text: str) -> dict[str, Detail]:
    """Which recovery the driver asks for (154). The words differ by branch and are trusted over the number."""
    found = RECOVERY.search(text)
    if found is None:
        return {}
    table = load("xid")
    word = found["word"] or table["recovery_action"].get(str(int(found["new"], 16)))
    if word is None:
        return {}
    advice = table["recovery_action_text"].get(word)
    return {"recovery": word, **({"recovery_advice": advice} if advice else {})}


def _xid(line: Line, found: re.Match[str]) -> Event:
    number, pid = int(found["xid"]), _plain(found["pid"])
    entry = xids().get(number)
    message = (found["text"] or "").strip()
    pci = pci_address(found["pci"])
    details: dict[str, Detail] = {
        "xid": number,
        "pci": pci or found["pci"].lower(),
        "text": message[:500],
        "short": entry.short if entry else "not in the catalogue",
        **_xid_fields(found, message),
    }
    if number in NVLINK5_XIDS:
        version: str | None = line.window.state.get("driver.version")
        details.update(_nvlink5(number, message, int(version.split(".")[0]) if version else None))
    elif number == RECOVERY_XID:
        details.update(_recovery(message))
    role, severity = _xid_role(entry, number, message, details)
    return line.event(
        "xid",
        role=role,
        severity=severity,
        cause=entry.cause if entry else None,
        details=details,
        gpu_pci=pci,
        pid=int(pid) if pid and pid.isdigit() and int(pid) else None,
        repeats=line.peeled.repeats,
    )


def _xid_fields(found: re.Match[str], message: str) -> dict[str, Detail]:
    """What any Xid may say beyond its number: program, MIG instance, the Xid before, link, whether it was injected, how
    long the driver had waited."""
    fields: dict[str, Detail] = {}
    if name := _plain(found["name"]):
        fields["name"] = name[:64]
    for key in ("gi", "ci"):
        if found[key]:
            fields[key] = int(found[key])
    if caused_by := CAUSED_BY.search(message):
        fields["caused_by"] = int(caused_by["prev"])
    if link := LINK.search(message):
        fields["link"] = int(link[1])
    if INJECTED.search(message):
        fields["injected"] = True
    if waited := WAITED.match(message):
        fields["waited_s"] = int(waited[1])
    return fields


def _xid_role(
    entry: XidEntry | None, number: int, message: str, details: Mapping[str, Detail]
) -> tuple[Role, Severity]:
    """The catalogue's, unless the line itself says that it is harmless or less."""
    if details.get("injected") or (number == 64 and HARMLESS_64.search(message)):
        return "context", "info"
    if entry is None:
        return "symptom", "error"
    if details.get("fatal") is False and entry.role == "cause":
        return "symptom", "warning"
    if details.get("fatal") is True and entry.role == "symptom":
        return "cause", "critical"
    return entry.role, entry.severity


def _sxid(line: Line, found: re.Match[str]) -> Event:
    """The driver prints three lines an error: what, severity and registers. Only the first one speaks."""
    number, message = int(found["sxid"]), found["text"].strip()
    entry = sxids().get(number)
    details: dict[str, Detail] = {"sxid": number, "switch": int(found["switch"]), "text": message[:500]}
    if pci := pci_address(found["pci"]):
        details["switch_pci"] = pci
    if entry:
        details["short"] = entry.name
        details["class"] = entry.severity_class
    if link := LINK.search(message):
        details["link"] = int(link[1])
    written = message.split(",", 1)[0].strip().lower()
    if severity_class := _sxid_class(entry, written):
        details["class"] = severity_class
    else:
        details["part"] = "registers" if message.startswith("Data") else "severity"
    role, severity = _sxid_role(entry, written)
    return line.event(
        "sxid",
        role="context" if number == DRIVER_LOAD_SXID else role,
        severity=severity,
        cause="nvlink" if details.get("class") in ("fatal", "always_fatal") else None,
        details=details,
        pid=None,
        repeats=line.peeled.repeats,
    )


def _sxid_class(entry: SxidEntry | None, written: str) -> str | None:
    """What the first of the three lines says; None for the others."""
    if written == "fatal":
        return "always_fatal" if entry and entry.severity_class == "always_fatal" else "fatal"
    return "nonfatal" if written == "non-fatal" else None


def _sxid_role(entry: SxidEntry | None, written: str) -> tuple[Role, Severity]:
    """The catalogue's, unless the line says worse or better of this very error."""
    if written not in ("fatal", "non-fatal"):
        return "context", "info"
    if entry is None:
        return "symptom", "warning"
    nothing_grave = entry.role not in ("cause", "symptom") or entry.severity_class == "nonfatal"
    if written == "fatal" and nothing_grave:
        return "cause", "critical"
    if written == "non-fatal" and entry.role == "cause":
        return "symptom", "warning"
    return entry.role, entry.severity


def _second_hand(event: Event, program: str) -> Event:
    """What a monitor repeats of the kernel log, at a time of its own: true, but no witness of when."""
    role: Role = "symptom" if event.role == "cause" else event.role
    return replace(event, role=role, details={**event.details, "reported_by": program})


def _of_condition(event: Event, line: Line) -> Event:
    """With node and time, where the line is quoted in a condition of `kubectl describe node`."""
    if event.stamp is not None or (stamp := condition_moment(line.text[:LONGEST_MESSAGE])) is None:
        return event
    return replace(event, stamp=stamp, host=described_node(line) or event.host)


def of_monitor(line: Line, number: int, pci: str | None, uuid: str | None, **known: Any) -> Event:
    """An Xid as a monitor words it, without the kernel's own line. `known`: host and stamp, where it tells them."""
    entry = xids().get(number)
    details: dict[str, Detail] = {
        "xid": number,
        "pci": pci,
        "text": line.text[:500],
        "short": entry.short if entry else "not in the catalogue",
        "reported_by": "monitor",
        **({"uuid": uuid} if uuid else {}),
    }
    role, severity = _xid_role(entry, number, "", details)
    cause = entry.cause if entry else None
    return line.event("xid", role=role, severity=severity, cause=cause, details=details, gpu_pci=pci, pid=None, **known)


@parser(title="NVIDIA Xid and SXid", literals=["Xid (", "Xid("])
def nvidia_xid(line: Line) -> Iterator[Event]:
    text, program = line.text[:LONGEST_MESSAGE], line.peeled.program
    if program == "NVRM":  # a collector that leaves 'kernel:' out makes the driver's own tag look like a program
        text = f"NVRM: {text}"
    found, make = XID.search(text), _xid
    if found is None:
        found, make = SXID.search(text), _sxid
    if found is None:
        return
    if not is_quoted(line, text, found.start()):
        yield _of_condition(make(line, found), line)
    elif program in MONITORS:
        yield _second_hand(make(line, found), program)
    elif GPUD.match(text):
        yield _second_hand(make(line, found), "gpud")
