"""What is known about causes, Xids and kernel messages, as data; read once."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from nccl_forensics.model import Role, Severity

try:
    import tomli as tomllib  # its wheels are compiled: four times as fast
except ImportError:
    import tomllib  # type: ignore[import-not-found,no-redef]


@cache
def load(name: str) -> dict[str, Any]:
    """The table `name`.toml of this folder."""
    table: dict[str, Any] = tomllib.loads((pkgutil.get_data(__name__, f"{name}.toml") or b"").decode("utf-8"))
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


@dataclass(frozen=True, kw_only=True)
class KernelEntry:
    """One [[entry]] of kernel.toml. Its regexes are compiled when a line first needs them: few piles need many."""

    id: str
    family: str
    log: str
    """Where such lines occur: 'kernel', 'journal', 'syslog', 'job', 'nvidia-smi', 'lspci', 'proc', 'ibstat', 'sel' …"""
    needles: tuple[bytes, ...]
    """Every line that `regex` matches holds one of them."""
    pattern: str
    role: Role
    severity: Severity
    indicts: str
    subject: str
    """Named group of `regex` that says who is accused; empty if none."""
    cause: str | None
    harmless_pattern: str | None
    at_boot: bool
    """Keeps its role in the first minute of a boot."""
    examples: tuple[str, ...]

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def harmless(self) -> re.Pattern[str] | None:
        """A line that matches it too is only context."""
        return re.compile(self.harmless_pattern) if self.harmless_pattern is not None else None


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
            pattern=one["regex"],
            role=_ROLES[one["role"]],
            severity=_SEVERITIES[one["severity"]],
            indicts=one["indicts"],
            subject=one["subject"],
            cause=one["cause"] or None,
            harmless_pattern=one.get("harmless"),
            at_boot=one.get("at_boot", False),
            examples=tuple(one["example"]),
        )
        for one in load("kernel")["entry"]
    )


@cache
def kernel_noise() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(id, regex) of lines that look alarming and mean nothing."""
    return tuple((one["id"], re.compile(one["regex"])) for one in load("kernel")["noise"])


@dataclass(frozen=True, slots=True)
class Weight:
    """How strongly one kind of evidence speaks: one entry of weights.toml."""

    value: float
    """Log-odds, or a factor where `why` says so."""
    why: str
    source: str


@cache
def weights() -> Mapping[str, Weight]:
    """Every weight by its name."""
    return {k: Weight(float(v["value"]), v["why"], v["source"]) for k, v in load("weights").items()}


def weight(name: str) -> float:
    """The log-odds of this kind of evidence."""
    return weights()[name].value
