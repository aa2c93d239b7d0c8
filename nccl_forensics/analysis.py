"""What one run gives: all that a report shows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from nccl_forensics.model import Event, Incident, InputRow, Problem, Rank, Reconstruction
from nccl_forensics.verdict import rates
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who import identities


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that the report shows."""

    rows: tuple[InputRow, ...]
    events: tuple[Event, ...]
    known: identities.Identities
    clocks: tuple[Any, ...]
    incidents: tuple[Incident, ...]
    primary: int | None
    """Incident.id of the one that the ticket and `ranks` are about: the newest where the job was started again."""
    ranks: tuple[Rank, ...]
    collectives: Reconstruction
    problems: tuple[Problem, ...]
    rates: rates.Rates | None = None
    """How often the machines fail; None where no log covers a week."""
    aligned: Aligned | None = None
    """How the clocks were read, for who wants to ask about an order."""


def fingerprints(analysis: Analysis) -> Analysis:
    """The same with a sha256 for each file on disk that the verdict cites; members stand for their archive."""
    cited = {
        place.source
        for i in analysis.incidents
        for f in i.verdict.evidence
        for place in (*(e.evidence for e in f.events), *f.evidence)
    }
    known: dict[str, str] = {}
    for top in sorted({c.split("!", 1)[0] for c in cited}):
        path = Path(top)
        try:
            if path.is_file() and path.stat().st_size <= HASHED_BYTES:
                with path.open("rb") as file:
                    known[top] = _sha256(file)
        except OSError:
            continue
    rows = tuple(replace(r, sha256=known.get(r.path.split("!", 1)[0])) if r.path in cited else r for r in analysis.rows)
    return replace(analysis, rows=rows)


HASHED_BYTES = 2 << 30
"""Larger files are not read a second time only to be hashed."""


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()
