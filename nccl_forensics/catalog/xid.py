"""What Xid and SXid numbers mean (xid.toml), in the words of the event model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nccl_forensics.catalog.cause import causes
from nccl_forensics.catalog.signature import ROLES, SEVERITIES
from nccl_forensics.catalog.tables import CatalogError, load
from nccl_forensics.model import Role, Severity

SCOPES = ("process", "gpu", "fabric", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEntry:
    """What an Xid number means: one [[xid]] of xid.toml."""

    number: int
    short: str
    role: Role
    severity: Severity
    cause: str | None
    """Id in causes.toml."""
    category: str
    scope: str
    """What it takes down: one of SCOPES."""
    bucket: str | None
    """What NVIDIA says to do first (`nvidia_bucket`: RESET_GPU, RESTART_APP, IGNORE …); None: not in its catalogue."""
    kills: bool
    """The process on that GPU does not go on, or may not."""

    @property
    def asks_for_reset(self) -> bool:
        """Is the card itself not fit for use until it is reset?"""
        return self.bucket == "RESET_GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class SxidEntry:
    """What an NVSwitch error number means: one [[sxid]] of xid.toml, with its class filled in."""

    number: int
    name: str
    severity_class: str
    """'nonfatal', 'fatal', 'always_fatal' or 'other'."""
    role: Role
    severity: Severity


def _judged(entry: str, role: str, severity: str) -> tuple[Role, Severity]:
    for column, value, known in (("role", role, ROLES), ("severity", severity, SEVERITIES)):
        if value not in known:
            raise CatalogError(f"xid.toml, {entry}: {column} = {value!r} is none of {', '.join(known)}")
    return ROLES[role], SEVERITIES[severity]


@cache
def xids() -> Mapping[int, XidEntry]:
    """Every Xid number that the catalogue knows. Raises CatalogError for an entry that cannot mean anything."""
    found: dict[int, XidEntry] = {}
    for one in load("xid")["xid"]:
        entry = f"xid {one.get('number')}"
        role, severity = _judged(entry, one["role"], one["severity"])
        for column, value, known in (
            ("supports", one.get("supports"), (None, *causes())),
            ("scope", one["scope"], SCOPES),
        ):
            if value not in known:
                raise CatalogError(f"xid.toml, {entry}: {column} = {value!r} is none of {', '.join(map(str, known))}")
        if one["number"] in found:
            raise CatalogError(f"xid.toml, {entry}: there are two of this number")
        found[one["number"]] = XidEntry(
            number=one["number"],
            short=one["short"],
            role=role,
            severity=severity,
            cause=one.get("supports"),
            category=one["category"],
            scope=one["scope"],
            bucket=one.get("nvidia_bucket"),
            kills=one.get("kills_job") != "false",
        )
    return found


@cache
def sxids() -> Mapping[int, SxidEntry]:
    """Every SXid number that the catalogue knows. Raises CatalogError for an entry that cannot mean anything."""
    table = load("xid")
    classes = {one["class"]: one for one in table["sxid_class"]}
    found: dict[int, SxidEntry] = {}
    for one in table["sxid"]:
        entry = f"sxid {one.get('number')}"
        if one["class"] not in classes:
            raise CatalogError(f"xid.toml, {entry}: class = {one['class']!r} is none of {', '.join(classes)}")
        of_class = classes[one["class"]]
        role, severity = _judged(entry, one.get("role", of_class["role"]), one.get("severity", of_class["severity"]))
        found[one["number"]] = SxidEntry(
            number=one["number"], name=one["name"], severity_class=one["class"], role=role, severity=severity
        )
    return found
