"""What is known about causes, Xids and kernel messages, as data; read once."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from nccl_forensics.model import Role, Severity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def load(name: str) -> dict[str, Any]:
    """The table `name`.toml of this folder."""
    table: dict[str, Any] = tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    return table


_ROLES: Mapping[str, Role] = {
    "cause": "cause",
    "symptom": "symptom",
    "consequence": "consequence",
    "informational": "context",
}
_SEVERITIES: Mapping[str, Severity] = {"fatal": "critical", "error": "error", "warning": "warning", "info": "info"}


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEntry:
    """What an Xid number means: one [[xid]] of xid.toml in the words of the event model."""

    number: int
    short: str
    role: Role
    severity: Severity
    cause: str | None
    """Id in causes.toml."""
    category: str
    scope: str
    """What it takes down: 'process', 'gpu', 'fabric' or 'node'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SxidEntry:
    """What an NVSwitch error number means: one [[sxid]] of xid.toml, with its class filled in."""

    number: int
    name: str
    severity_class: str
    """'nonfatal', 'fatal', 'always_fatal' or 'other'."""
    role: Role
    severity: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEntry:
    """One [[entry]] of kernel.toml."""

    id: str
    family: str
    log: str
    """Where such lines occur: 'kernel', 'journal', 'syslog', 'job', 'nvidia-smi', 'lspci', 'proc', 'ibstat', 'sel' …"""
    needles: tuple[bytes, ...]
    """Every line that `regex` matches holds one of them."""
    regex: re.Pattern[str]
    role: Role
    severity: Severity
    indicts: str
    subject: str
    """Named group of `regex` that says who is accused; empty if none."""
    cause: str | None
    harmless: re.Pattern[str] | None
    """A line that matches it too is only context."""
    at_boot: bool
    """Keeps its role in the first minute of a boot."""
    examples: tuple[str, ...]


@cache
def xids() -> Mapping[int, XidEntry]:
    """Every Xid number that the catalogue knows."""
    return {
        one["number"]: XidEntry(
            number=one["number"],
            short=one["short"],
            role=_ROLES[one["role"]],
            severity=_SEVERITIES[one["severity"]],
            cause=one.get("supports"),
            category=one["category"],
            scope=one["scope"],
        )
        for one in load("xid")["xid"]
    }


@cache
def sxids() -> Mapping[int, SxidEntry]:
    """Every SXid number that the catalogue knows."""
    table = load("xid")
    classes = {one["class"]: one for one in table["sxid_class"]}
    return {
        one["number"]: SxidEntry(
            number=one["number"],
            name=one["name"],
            severity_class=one["class"],
            role=_ROLES[one.get("role", classes[one["class"]]["role"])],
            severity=_SEVERITIES[one.get("severity", classes[one["class"]]["severity"])],
        )
        for one in table["sxid"]
    }


@cache
def kernel_entries() -> tuple[KernelEntry, ...]:
    """The kernel catalogue in its own order: where several match one line, the first wins."""
    return tuple(
        KernelEntry(
            id=one["id"],
            family=one["family"],
            log=one["log"],
            needles=tuple(x.encode() for x in one["needles"]),
            regex=re.compile(one["regex"]),
            role=_ROLES[one["role"]],
            severity=_SEVERITIES[one["severity"]],
            indicts=one["indicts"],
            subject=one["subject"],
            cause=one["cause"] or None,
            harmless=re.compile(one["harmless"]) if "harmless" in one else None,
            at_boot=one.get("at_boot", False),
            examples=tuple(one["example"]),
        )
        for one in load("kernel")["entry"]
    )


@cache
def kernel_noise() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(id, regex) of lines that look alarming and mean nothing."""
    return tuple((one["id"], re.compile(one["regex"])) for one in load("kernel")["noise"])
