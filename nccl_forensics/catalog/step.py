"""What to do about each cause, the first thing first (actions.toml)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from nccl_forensics.catalog.cause import causes
from nccl_forensics.catalog.tables import Column, checked, load

NEEDS = ("gpu", "no gpu", "kernel log", "no kernel log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One [[action]] of actions.toml; {placeholders} in its texts are filled in by the verdict."""

    cause: str
    do: str
    because: str
    command: str | None
    detail: str | None
    """Only where the verdict is of this very kind, as 'Xid 95'."""
    instead: bool
    """It takes the place of all that is done about the cause otherwise."""
    needs: str | None
    """Only where this is known (NEEDS)."""


@cache
def steps() -> Sequence[Step]:
    """Every step in the order of the file. Raises CatalogError for one that speaks of no cause there is."""
    columns = {
        "cause": Column(str, among=causes()),
        "do": Column(str),
        "because": Column(str),
        "command": Column(str, needed=False),
        "detail": Column(str, needed=False),
        "instead": Column(bool, needed=False),
        "needs": Column(str, needed=False, among=NEEDS),
    }
    found = []
    for n, row in enumerate(load("actions")["action"], 1):
        checked("actions", f"[[action]] no. {n} ({row.get('cause')})", row, columns)
        found.append(
            Step(
                cause=row["cause"],
                do=row["do"],
                because=row["because"],
                command=row.get("command"),
                detail=row.get("detail"),
                instead=row.get("instead", False),
                needs=row.get("needs"),
            )
        )
    return tuple(found)
