"""The catalogues' files, read once, and their columns checked: what is misspelt is an error that names the entry."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

try:
    import tomli as tomllib  # its wheels are compiled: four times as fast
except ImportError:
    import tomllib  # type: ignore[import-not-found,no-redef]


class CatalogError(ValueError):
    """An entry of a catalogue that cannot mean anything: which file, which entry, which column, and what it may be."""


@cache
def load(name: str) -> dict[str, Any]:
    """The table `name`.toml of this folder, as it is written."""
    table: dict[str, Any] = tomllib.loads((pkgutil.get_data(__name__, f"{name}.toml") or b"").decode("utf-8"))
    return table


@dataclass(frozen=True, slots=True)
class Column:
    """What may stand in one column of a catalogue."""

    type: type
    needed: bool = True
    among: Collection[object] | None = None
    """The only values there are; of a list, its members'."""


def checked(file: str, entry: str, row: Mapping[str, Any], columns: Mapping[str, Column]) -> Mapping[str, Any]:
    """`row` itself. Raises CatalogError where a column is missing, unknown, of another type or none of its values."""
    for name, value in row.items():
        column = columns.get(name)
        if column is None:
            raise CatalogError(f"{file}.toml, {entry}: there is no column {name!r}; there are {', '.join(columns)}")
        if type(value) is not column.type:
            raise CatalogError(f"{file}.toml, {entry}: {name} = {value!r} is no {column.type.__name__}")
        if column.among is not None:
            for one in value if isinstance(value, list) else (value,):
                if one not in column.among:
                    known = ", ".join(map(repr, sorted(column.among, key=str)))
                    raise CatalogError(f"{file}.toml, {entry}: {name} = {one!r} is none of {known}")
    for name, column in columns.items():
        if column.needed and name not in row:
            raise CatalogError(f"{file}.toml, {entry}: the column {name!r} is missing")
    return row


@cache
def marks(of: str) -> frozenset[str]:
    """The marks that may stand at 'causes' or 'kinds' (marks.toml)."""
    return frozenset(load("marks")[of])


TYPES = ("int", "float", "bool", "str", "ints", "strs")
"""Types of an event's detail; `ints` and `strs` are tuples, a `float` may be whole."""


def types_of(file: str, entry: str, fields: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    """Name of a detail → its TYPES, written with | between them. Raises CatalogError for any other type."""
    found = {name: frozenset(types.split(" | ")) for name, types in fields.items()}
    for name, types in found.items():
        if not types <= frozenset(TYPES):
            raise CatalogError(f"{file}.toml, {entry}: fields.{name} = {fields[name]!r} is none of {', '.join(TYPES)}")
    return found
