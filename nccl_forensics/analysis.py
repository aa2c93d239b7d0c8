"""What one run gives: all that a report shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from nccl_forensics.model import Event, Incident, InputRow, Problem, Rank, Reconstruction
from nccl_forensics.starts import jobs
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict import rates
from nccl_forensics.when.aligned import Aligned, ordered
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


def of_several_jobs(
    made: Sequence[tuple[jobs.Job, Analysis]],
    failed: AbstractSet[str],
    rows: Sequence[InputRow],
    said: Sequence[Problem],
) -> Analysis:
    """The analyses of several jobs as one; what they share, such as hosts' logs, as the newest failure reads it."""
    told = [(i, n) for n, (job, its) in enumerate(made) if job.sources & failed for i in its.incidents]
    told.sort(key=lambda x: next((t for t in (x[0].onset_ns, x[0].detected_ns, x[0].ended_ns) if t is not None), 0))
    incidents = tuple(replace(i, id=k, job=made[n][0].name) for k, (i, n) in enumerate(told, 1))
    of = told[-1][1] if told else len(made) - 1
    newest = made[of][1]
    problems = [*said, *newest.problems]
    read: dict[str, InputRow] = {}
    events = list(newest.events)
    ticks = {c.clock: c for c in newest.clocks}
    gpus = dict(newest.known.gpus)
    for n, (job, its) in enumerate(made):
        read |= {r.path: r for r in its.rows if r.path in job.sources or (n == of and r.path not in read)}
        if n != of:
            events += [e for e in its.events if e.evidence.source in job.sources]
            problems += its.problems
            ticks = {**{c.clock: c for c in its.clocks}, **ticks}
            gpus = {**its.known.gpus, **gpus}
        if job.name is not None and not job.sources & failed:
            says = say("{job} shows no failure: it is no incident.", job=phrases.sentence(job.name))
            problems.append(Problem(says=says))
    return replace(
        newest,
        rows=tuple(read.get(r.path, r) for r in rows),
        events=tuple(ordered(events)),
        known=replace(newest.known, gpus=gpus),
        clocks=tuple(ticks[key] for key in sorted(ticks)),
        incidents=incidents,
        primary=len(incidents) or None,
        ranks=incidents[-1].ranks if incidents else newest.ranks,
        problems=tuple(dict.fromkeys(problems)),
    )


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
