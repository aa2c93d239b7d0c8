"""Lines that look like errors and tell nothing (noise.toml)."""

from __future__ import annotations

import re
from functools import cache

from nccl_forensics.catalog.tables import CatalogError, Column, checked, load


@cache
def noise() -> re.Pattern[str]:
    """Finds what stands in such lines. Raises CatalogError for an entry that cannot mean anything."""
    columns = {"in": Column(str, needed=False), "regex": Column(str, needed=False), "why": Column(str)}
    found = []
    for number, row in enumerate(load("noise")["noise"], 1):
        entry = f"[[noise]] {number}"
        checked("noise", entry, row, columns)
        if ("in" in row) == ("regex" in row):
            raise CatalogError(f"noise.toml, {entry}: one of 'in' and 'regex' must be there, and only one")
        found.append(row["regex"] if "regex" in row else re.escape(row["in"]))
    return re.compile("|".join(found))
