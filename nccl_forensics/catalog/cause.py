"""Causes that a verdict may name, and what each of them means (causes.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nccl_forensics.catalog.tables import CatalogError, Column, checked, load, marks

FAMILIES = ("gpu", "power", "program", "host", "storage", "network", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One [cause] of causes.toml."""

    id: str
    title: str
    family: str
    near: tuple[str, ...]
    """Causes that a careful reader could confuse with it."""
    shared: bool
    """It may lie with several; False: with one rank, GPU or host, also where no file tells with which."""
    marks: frozenset[str]
    """What else is said of it in one word (marks.toml)."""
    gives_way_to: frozenset[str]
    """The same failure also looks like this one: it gives way to these, on one subject."""
    gives_way_if_stated: frozenset[str]
    """Those of `gives_way_to` that must be stated by a line, not only inferred."""


@cache
def causes() -> Mapping[str, Cause]:
    """Every cause by its id. Raises CatalogError for an entry that cannot mean anything."""
    table = load("causes")
    ids = table.keys()
    columns = {
        "title": Column(str),
        "family": Column(str, among=FAMILIES),
        "near": Column(list, among=ids),
        "shared": Column(bool, needed=False),
        "marks": Column(list, needed=False, among=marks("causes")),
        "gives_way_to": Column(list, needed=False, among=ids),
        "gives_way_if_stated": Column(list, needed=False, among=ids),
    }
    found: dict[str, Cause] = {}
    for id_, row in table.items():
        checked("causes", f"[{id_}]", row, columns)
        cause = Cause(
            id=id_,
            title=row["title"],
            family=row["family"],
            near=tuple(row["near"]),
            shared=row.get("shared", True),
            marks=frozenset(row.get("marks", ())),
            gives_way_to=frozenset(row.get("gives_way_to", ())),
            gives_way_if_stated=frozenset(row.get("gives_way_if_stated", ())),
        )
        if id_ in cause.gives_way_to or not cause.gives_way_if_stated <= cause.gives_way_to:
            raise CatalogError(f"causes.toml, [{id_}]: it gives way to itself, or only if stated to one it never does")
        found[id_] = cause
    return found


@cache
def causes_marked(mark: str) -> frozenset[str]:
    """The ids of the causes of which marks.toml's `mark` is said. Raises CatalogError for a mark that is not there."""
    if mark not in marks("causes"):
        raise CatalogError(f"marks.toml, [causes]: there is no mark {mark!r}")
    return frozenset(id_ for id_, cause in causes().items() if mark in cause.marks)
