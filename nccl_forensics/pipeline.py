"""The whole way on one page: paths → collect → scan → parse → identify → align → reconstruct → diagnose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import tzinfo
from pathlib import Path
from typing import Any, BinaryIO

from nccl_forensics.analysis import Analysis
from nccl_forensics.intake.limits import Limits
from nccl_forensics.lines.read import Parsed, read
from nccl_forensics.model import Event, Incident, InputRow, Problem, Reconstruction
from nccl_forensics.recorder.timed import Timed
from nccl_forensics.starts import jobs, runs
from nccl_forensics.steps import Told
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.phrases import count
from nccl_forensics.verdict import rates
from nccl_forensics.verdict.incidents import diagnose
from nccl_forensics.verdict.ranks import no_incident_ranks
from nccl_forensics.waits import watchdogs
from nccl_forensics.waits.inspector import with_lateness
from nccl_forensics.when import align
from nccl_forensics.when.aligned import Aligned, Arrival, ordered
from nccl_forensics.when.repeats import merge_repeats
from nccl_forensics.when.window import Limited, Window
from nccl_forensics.who import attribute, containers, identities
from nccl_forensics.who.table import identify, read_hosts_file


def analyze(
    paths: Sequence[str],
    *,
    stdin: BinaryIO | None = None,
    zone: tzinfo | None = None,
    year: int | None = None,
    hosts: Path | None = None,
    limits: Limits | None = None,
    progress: Callable[[str, int], None] | None = None,
    workers: int = 1,
    window: Window | None = None,
) -> Analysis:
    """From paths to incidents, read by `workers` threads. Raises InputError for what the user can mend."""
    places = read_hosts_file(hosts) if hosts is not None else None
    parsed = read(paths, stdin=stdin, limits=limits, progress=progress, workers=workers)
    return conclude(parsed, zone=zone, year=year, places=places, window=window)


def conclude(
    parsed: Sequence[Parsed],
    *,
    zone: tzinfo | None = None,
    year: int | None = None,
    places: Mapping[int, identities.Place] | None = None,
    window: Window | None = None,
) -> Analysis:
    """From what the files gave to incidents: the part that needs all files at once. Several jobs are taken one by one.

    `window` limits what is reconstructed and weighed; who is who and what the clocks read is learned from all lines.
    """

    def one(pile: Sequence[Parsed]) -> Analysis:
        return _one_job(pile, zone=zone, year=year, places=places, window=window)

    events = [e for p in parsed for e in p.events]
    dumps = [v for p in parsed for v in p.values if not isinstance(v, Timed)]
    found, said = jobs.apart([p.row for p in parsed], events, dumps) if places is None else ([], ())
    failed = {e.evidence.source for e in events if runs.fails(e)} | {d.path for d in dumps}
    if not any(job.kept and job.sources & failed for job in found):
        made = one(parsed)
        return replace(made, problems=(*made.problems, *said)) if said and not found else made
    taken = frozenset().union(*(job.sources for job in found))
    piles = [[p for p in parsed if p.row.path in job.sources or p.row.path not in taken] for job in found]
    made_of = [(job, one(pile)) for job, pile in zip(found, piles, strict=True) if job.kept]
    return _several(made_of, failed, [p.row for p in parsed], said)


def _several(
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


def _one_job(
    parsed: Sequence[Parsed],
    *,
    zone: tzinfo | None,
    year: int | None,
    places: Mapping[int, identities.Place] | None,
    window: Window | None,
) -> Analysis:
    """As `conclude`, for one job."""
    told = Told("identify")
    rows: Sequence[InputRow] = [p.row for p in parsed]
    events: Sequence[Event] = [e for p in parsed for e in p.events]
    events, placed = containers.joined(rows, events)
    known = identify(rows, events, places)
    events, rows = attribute.attribute(events, rows, known)
    events = runs.with_attempts(events)
    values = [v for p in parsed for v in p.values]
    timed = [v for v in values if isinstance(v, Timed)]
    dumps = [v for v in values if not isinstance(v, Timed)]
    told(f"{count(len(known.ranks), 'rank')}", "dumps")
    recorded = _from_dumps(dumps, known)
    members = {r for g in recorded.groups for r in g.members} | set(recorded.ranks_seen)
    known = identify(rows, events, places, members)  # prefixes that have become ranks tell hosts and pids
    told(f"{count(len(dumps), 'dump')}, {count(len(recorded.groups), 'group')}", "align")
    events = merge_repeats(events)
    arrivals = [
        Arrival(g.seq, g.first_arrival_ns, g.last_arrival_ns or g.first_arrival_ns)
        for g in recorded.groups
        if g.first_arrival_ns is not None
    ]
    hosts_of_ranks = {rank: place.host for rank, place in known.ranks.items()}
    aligned = align.align(events, rows, zone=zone, year=year, arrivals=arrivals, dumps=dumps, places=hosts_of_ranks)
    told(f"{count(len(aligned.events), 'event')} on {count(len(aligned.clocks), 'clock')}", "reconstruct")
    inside = window.limit(aligned.events, dumps) if window else Limited(events=aligned.events, dumps=tuple(dumps))
    if len(inside.dumps) < len(dumps):
        recorded = _from_dumps(inside.dumps, known)
    spans = runs.spans(replace(aligned, events=inside.events), inside.dumps, rows)
    if len(spans) == 1:
        collectives = watchdogs.merge(recorded, watchdogs.reconstruct(inside.events, known))
        collectives = with_lateness(collectives, timed, known)
        told(f"{count(len(inside.events), 'event')}, {count(len(collectives.groups), 'group')}", "diagnose")
        incidents = diagnose(replace(aligned, events=inside.events), known, collectives, rows)
        said = [*known.problems, *collectives.problems]
    else:
        told(f"{count(len(spans), 'start')} of the job", "diagnose")
        incidents, known, collectives, said = _by_span(spans, aligned, known, timed, rows, places)
    told(f"{count(len(incidents), 'incident')}")
    failing = rates.rates(inside.events, rows, known)
    incidents = rates.with_offenders(incidents, failing)
    rows = _spans(rows, aligned.events)
    problems = [*inside.problems, *(q for p in parsed for q in p.problems), *placed, *said]
    of_run = replace(aligned, events=spans[-1].events)
    primary = incidents[0 if len(spans) == 1 else -1] if incidents else None
    ranks = primary.ranks if primary else no_incident_ranks(of_run, known, collectives, rows)
    return Analysis(
        rows=tuple(rows),
        events=inside.events,
        known=known,
        clocks=aligned.clocks,
        incidents=incidents,
        primary=primary.id if primary else None,
        ranks=ranks,
        collectives=collectives,
        rates=failing,
        problems=tuple(dict.fromkeys(problems)),
        aligned=aligned,
    )


def _by_span(
    spans: Sequence[runs.Span],
    aligned: Aligned,
    whole: identities.Identities,
    timed: Sequence[Timed],
    rows: Sequence[InputRow],
    places: Mapping[int, identities.Place] | None,
) -> tuple[tuple[Incident, ...], identities.Identities, Reconstruction, list[Problem]]:
    """Each start of the job by itself: (incidents, the newest one's ranks and groups, problems)."""
    spans = list(spans)
    kept = [n for n, span in enumerate(spans) if span.kept]
    own = runs.places([identify(rows, spans[n].events, places) for n in kept], whole)
    incidents: list[Incident] = []
    of: list[runs.Span] = []
    problems: list[Problem] = []
    newest, groups = own[-1], Reconstruction()
    for n, known in zip(kept, own, strict=True):
        span = spans[n]
        found = watchdogs.merge(_from_dumps(span.dumps, known), watchdogs.reconstruct(span.events, known))
        if n == len(spans) - 1:
            found = with_lateness(found, timed, known)
        if not span.failed and not found.suspects and (found.healthy or not found.groups):
            continue
        spans[n] = span = replace(span, failed=True)
        problems += [*known.problems, *found.problems]
        for incident in diagnose(replace(aligned, events=span.events), known, found, rows):
            made = replace(incident, id=len(incidents) + 1, attempt=span.attempt)
            incidents.append(runs.cost(made, span, spans[n + 1] if n + 1 < len(spans) else None))
            of.append(span)
            newest, groups = known, found
    return tuple(runs.together(incidents, of, spans[-1])), newest, groups, [*problems, *runs.left_out(spans)]


def _from_dumps(dumps: Sequence[Any], known: identities.Identities) -> Reconstruction:
    if not dumps:
        return Reconstruction()
    from nccl_forensics.waits import dumped  # numpy: only when there are dumps

    return dumped.reconstruct(dumps, expected_world=known.size())


def _spans(rows: Sequence[InputRow], events: Sequence[Event]) -> list[InputRow]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for event in events:
        if event.time_ns is not None:
            path = event.evidence.source
            first[path] = min(first.get(path, event.time_ns), event.time_ns)
            last[path] = max(last.get(path, event.time_ns), event.time_ns)
    return [replace(r, first_ns=first.get(r.path), last_ns=last.get(r.path)) for r in rows]
