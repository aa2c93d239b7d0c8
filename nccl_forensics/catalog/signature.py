"""Signatures of kernels, drivers and system reports (kernel.toml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from nccl_forensics.catalog.cause import causes
from nccl_forensics.catalog.tables import CatalogError, Column, checked, load, marks, types_of
from nccl_forensics.model import Role, Severity

ROLES: Mapping[str, Role] = {
    "cause": "cause",
    "symptom": "symptom",
    "consequence": "consequence",
    "informational": "context",
}
"""How the catalogues call the roles of the event model."""
SEVERITIES: Mapping[str, Severity] = {"fatal": "critical", "error": "error", "warning": "warning", "info": "info"}
"""How the catalogues call its severities."""
OF_EVERY_SIGNATURE: Mapping[str, str] = {"early": "bool", "pci": "str"}
"""Details that any signature's event can have: in the first minute of a boot; the device that neighbours tell."""
INDICTS = ("cpu", "device", "dimm", "disk", "fabric", "gpu", "host", "nic", "none", "pid", "psu", "storage-server")
"""What a line can accuse; 'device' is any PCI function."""


@dataclass(frozen=True, kw_only=True)
class KernelEntry:
    """One [[entry]] of kernel.toml. Its regexes are compiled when a line first needs them: few piles need many."""

    id: str
    title: str | None
    """What the report calls such an event, in few words; None: its id without hyphens."""
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
    meaning: str
    marks: frozenset[str]
    """What else is said of it in one word (marks.toml)."""
    over: str | None
    """Id of the entry that tells that what this one tells is over."""
    fields: Mapping[str, frozenset[str]]
    """Details that the parser adds to the groups of the regex: name → types (tables.py)."""
    again_s: int | None
    """Seconds within which the kernel mostly says it again as long as it lasts."""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def harmless(self) -> re.Pattern[str] | None:
        """A line that matches it too is only context."""
        return re.compile(self.harmless_pattern) if self.harmless_pattern is not None else None


@cache
def kernel_entries() -> tuple[KernelEntry, ...]:
    """The kernel catalogue in its own order: where several match one line, the first wins.

    Raises CatalogError for an entry that cannot mean anything.
    """
    rows = load("kernel")["entry"]
    ids = frozenset(row.get("id") for row in rows)
    columns = {
        "id": Column(str),
        "title": Column(str, needed=False),
        "marks": Column(list, needed=False, among=marks("kinds")),
        "over": Column(str, needed=False, among=ids),
        "again_s": Column(int, needed=False),
        "fields": Column(dict, needed=False),
        "family": Column(str),
        "log": Column(str),
        "needles": Column(list),
        "regex": Column(str),
        "example": Column(list),
        "meaning": Column(str),
        "role": Column(str, among=ROLES),
        "indicts": Column(str, among=INDICTS),
        "subject": Column(str),
        "severity": Column(str, among=SEVERITIES),
        "cause": Column(str, among=("", *causes())),
        "advice": Column(str),
        "seen": Column(str, among=("real", "source", "formed")),
        "harmless": Column(str, needed=False),
        "at_boot": Column(bool, needed=False),
    }
    found: dict[str, KernelEntry] = {}
    for row in rows:
        checked("kernel", f"entry {row.get('id')!r}", row, columns)
        if row["id"] in found:
            raise CatalogError(f"kernel.toml, entry {row['id']!r}: there are two of this id")
        found[row["id"]] = KernelEntry(
            id=row["id"],
            title=row.get("title"),
            family=row["family"],
            log=row["log"],
            needles=tuple(x.encode() for x in row["needles"]),
            pattern=row["regex"],
            role=ROLES[row["role"]],
            severity=SEVERITIES[row["severity"]],
            indicts=row["indicts"],
            subject=row["subject"],
            cause=row["cause"] or None,
            harmless_pattern=row.get("harmless"),
            at_boot=row.get("at_boot", False),
            examples=tuple(row["example"]),
            meaning=row["meaning"],
            marks=frozenset(row.get("marks", ())),
            over=row.get("over"),
            again_s=row.get("again_s"),
            fields=types_of("kernel", f"entry {row['id']!r}", row.get("fields", {})),
        )
    return tuple(found.values())


@cache
def kernel_noise() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(id, regex) of lines that look alarming and mean nothing."""
    return tuple((one["id"], re.compile(one["regex"])) for one in load("kernel")["noise"])
