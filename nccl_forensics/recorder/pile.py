"""What all files of a pile gave, put together by what it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nccl_forensics.lines.read import Parsed
from nccl_forensics.model import Event, InputRow, Problem
from nccl_forensics.recorder.timed import Timed


@dataclass(frozen=True, slots=True)
class Pile:
    """All that was read, in the order of the files."""

    rows: list[InputRow]
    events: list[Event]
    dumps: list[Any]
    """Flight Recorder dumps (dumps.Dump)."""
    timed: list[Timed]
    """How long collectives took, from NCCL's Inspector."""
    problems: list[Problem]
    begins: list[Event]
    """The first line with a time of each kernel's log."""
    alarms: list[Event]
    """Lines that look like errors and that no parser knows."""

    @classmethod
    def of(cls, parsed: Iterable[Parsed]) -> Pile:
        parsed = list(parsed)
        values = [v for p in parsed for v in p.values]
        return cls(
            rows=[p.row for p in parsed],
            events=[e for p in parsed for e in p.events],
            dumps=[v for v in values if not isinstance(v, Timed)],
            timed=[v for v in values if isinstance(v, Timed)],
            problems=[q for p in parsed for q in p.problems],
            begins=[p.begin for p in parsed if p.begin is not None],
            alarms=[e for p in parsed for e in p.alarms],
        )
