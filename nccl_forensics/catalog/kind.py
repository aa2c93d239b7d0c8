"""Kinds of events and what they mean: those of parsers (kinds.toml) and of signatures (kernel.toml), in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nccl_forensics.catalog.signature import kernel_entries
from nccl_forensics.catalog.tables import CatalogError, Column, checked, load, marks, types_of

WRITERS = ("job", "host", "report", "any")
"""Who writes such lines: a job (and nobody else), a host, a tool's report; or several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of event."""

    id: str
    title: str
    """What the report calls it, in few words."""
    by: str
    """One of WRITERS."""
    marks: frozenset[str]
    """What else is said of it in one word (marks.toml)."""
    fields: Mapping[str, frozenset[str]]
    """Name of a detail → its types (tables.py); all may be absent. A signature has the groups of its regex besides."""


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind by its id. Raises CatalogError for an entry that cannot mean anything."""
    columns = {
        "title": Column(str),
        "by": Column(str, among=WRITERS),
        "marks": Column(list, needed=False, among=marks("kinds")),
        "fields": Column(dict, needed=False),
    }
    found: dict[str, Kind] = {}
    for id_, row in load("kinds").items():
        checked("kinds", f"[{id_}]", row, columns)
        found[id_] = Kind(
            id=id_,
            title=row["title"],
            by=row["by"],
            marks=frozenset(row.get("marks", ())),
            fields=types_of("kinds", f"[{id_}]", row.get("fields", {})),
        )
    for entry in kernel_entries():
        if entry.id in found:
            raise CatalogError(f"kinds.toml, [{entry.id}]: kernel.toml has an entry of this id")
        found[entry.id] = Kind(
            id=entry.id,
            title=entry.title or entry.id.replace("-", " "),
            by="job" if entry.log == "job" else "host",
            marks=entry.marks,
            fields=entry.fields,
        )
    return found


@cache
def kinds_marked(mark: str) -> frozenset[str]:
    """The ids of the kinds of which marks.toml's `mark` is said. Raises CatalogError for a mark that is not there."""
    if mark not in marks("kinds"):
        raise CatalogError(f"marks.toml, [kinds]: there is no mark {mark!r}")
    return frozenset(id_ for id_, kind in kinds().items() if mark in kind.marks)


@cache
def kinds_by(writer: str) -> frozenset[str]:
    """The ids of the kinds that only this one of WRITERS writes."""
    if writer not in WRITERS:
        raise CatalogError(f"kinds.toml: nobody is called {writer!r}; there are {', '.join(WRITERS)}")
    return frozenset(id_ for id_, kind in kinds().items() if kind.by == writer)
