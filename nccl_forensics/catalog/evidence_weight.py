"""How strongly each kind of evidence speaks (weights.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from nccl_forensics.catalog.tables import CatalogError, load


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
    try:
        return weights()[name].value
    except KeyError:
        raise CatalogError(f"weights.toml: there is no weight {name!r}") from None
