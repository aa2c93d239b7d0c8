"""What one run gives: all that a report shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from nccl_forensics.model import ClockRow, Event, Incident, InputRow, Problem, Rank, Reconstruction
from nccl_forensics.starts import jobs
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict import rates
from nccl_forensics.verdict.oddities import Oddity
from nccl_forensics.when.aligned import Aligned, ordered
from nccl_forensics.who import identities

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that the report shows."""

    rows: tuple[InputRow, ...]
    events: tuple[Event, ...]
    known: identities.Identities
    clocks: tuple[ClockRow, ...]
    incidents: tuple[Incident, ...]
    primary: int | None
    """Incident.id of the one that the ticket and `ranks` are about: the newest where the job was started again."""
    ranks: tuple[Rank, ...]
    collectives: Reconstruction
    problems: tuple[Problem, ...]
    rates: rates.Rates | None = None
    """How often the machines fail; None where no log covers a week."""
    oddities: tuple[Oddity, ...] = ()
    """Lines that look like errors and that nothing here understands, the most telling first."""
    aligned: Aligned | None = None
    """How the clocks were read, for who wants to ask about an order."""


def of_several_jobs(
    made: Sequence[tuple[jobs.Job, Analysis]],
    failed: AbstractSet[str],
    rows: Sequence[InputRow],
    said: Sequence[Problem],
) -> Analysis:
    """The analyses of several jobs as one; what they share, such as hosts' logs, as the newest failure reads it.

    `failed`: files that tell of a failure. `said`: what has to be said of the jobs themselves.
    """
    told = [(incident, n) for n, (job, its) in enumerate(made) if job.sources & failed for incident in its.incidents]
    told.sort(key=lambda x: _when(x[0]))
    incidents = tuple(replace(i, id=k, job=made[n][0].name) for k, (i, n) in enumerate(told, 1))
    of = told[-1][1] if told else len(made) - 1
    newest = made[of][1]
    others = [(job, its) for n, (job, its) in enumerate(made) if n != of]
    own = _unseen(made[of], others)
    return replace(
        newest,
        rows=_rows(made, of, rows),
        events=tuple(ordered([*newest.events, *own])),
        known=replace(newest.known, gpus=_first_of_all([newest.known.gpus, *(its.known.gpus for _, its in others)])),
        clocks=_clocks([newest, *(its for _, its in others)]),
        incidents=incidents,
        primary=len(incidents) or None,
        ranks=incidents[-1].ranks if incidents else newest.ranks,
        problems=tuple(dict.fromkeys([*said, *newest.problems, *_problems(made, of, failed)])),
    )


def _unseen(newest: tuple[jobs.Job, Analysis], others: Sequence[tuple[jobs.Job, Analysis]]) -> Iterator[Event]:
    """Events of the other jobs' files, each file as the first job reads it that it belongs to."""
    job, _ = newest
    seen = set(job.files)
    for job, its in others:
        yield from (e for e in its.events if e.evidence.source in job.files - seen)
        seen |= job.files


def _when(incident: Incident) -> int:
    """The earliest that is known of it, on the reference clock; 0 where nothing is."""
    times = (incident.onset_ns, incident.detected_ns, incident.ended_ns)
    return next((t for t in times if t is not None), 0)


def _rows(made: Sequence[tuple[jobs.Job, Analysis]], of: int, rows: Sequence[InputRow]) -> tuple[InputRow, ...]:
    """Each file as its own job reads it, those of no job as the job number `of` does."""
    read: dict[str, InputRow] = {}
    for n, (job, its) in enumerate(made):
        read |= {r.path: r for r in its.rows if r.path in job.files or (n == of and r.path not in read)}
    return tuple(read.get(r.path, r) for r in rows)


def _first_of_all(tables: Sequence[Mapping[K, V]]) -> dict[K, V]:
    """All that the tables tell; where several do, the first of them."""
    found: dict[K, V] = {}
    for table in reversed(tables):
        found |= table
    return found


def _clocks(analyses: Sequence[Analysis]) -> tuple[ClockRow, ...]:
    ticks = _first_of_all([{c.clock: c for c in its.clocks} for its in analyses])
    return tuple(ticks[key] for key in sorted(ticks))


def _problems(made: Sequence[tuple[jobs.Job, Analysis]], of: int, failed: AbstractSet[str]) -> Iterator[Problem]:
    """Those of the other jobs, and which jobs show no failure."""
    for n, (job, its) in enumerate(made):
        if n != of:
            yield from its.problems
        if job.name is not None and not job.sources & failed:
            yield Problem(says=say("{job} shows no failure: it is no incident.", job=phrases.sentence(job.name)))


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
