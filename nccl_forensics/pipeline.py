"""The order of the steps: paths → read → identify → align → starts → waits → verdict → analysis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from typing import BinaryIO

from nccl_forensics.analysis import Analysis, of_several_jobs
from nccl_forensics.intake.limits import Limits
from nccl_forensics.lines.copies import without_copies, without_quotations
from nccl_forensics.lines.read import Parsed, read
from nccl_forensics.model import ALARM, Event, Incident, InputRow, Problem, Reconstruction
from nccl_forensics.recorder.pile import Pile
from nccl_forensics.starts import jobs, outcome, runs
from nccl_forensics.steps import Told
from nccl_forensics.text.phrases import count
from nccl_forensics.verdict import rates
from nccl_forensics.verdict.incidents import diagnose
from nccl_forensics.verdict.oddities import oddities, wordings
from nccl_forensics.verdict.ranks import no_incident_ranks
from nccl_forensics.waits.reconstruct import from_all, from_dumps
from nccl_forensics.when.align import align, arrivals_of
from nccl_forensics.when.aligned import Aligned, covered
from nccl_forensics.when.beside import of_its_file
from nccl_forensics.when.repeats import merge_repeats
from nccl_forensics.when.window import Limited, Window
from nccl_forensics.who import containers
from nccl_forensics.who.attribute import attribute
from nccl_forensics.who.coincidences import with_coincidences
from nccl_forensics.who.hosts_file import read_hosts_file
from nccl_forensics.who.identities import Identities, Place
from nccl_forensics.who.table import identify


def analyze(
    paths: Sequence[str],
    *,
    stdin: BinaryIO | None = None,
    zone: tzinfo | None = None,
    year: int | None = None,
    hosts: Path | None = None,
    good_run: Sequence[str] = (),
    limits: Limits | None = None,
    progress: Callable[[str, int], None] | None = None,
    workers: int = 1,
    window: Window | None = None,
) -> Analysis:
    """From paths to incidents, read by `workers` threads. Raises InputError for what the user can mend.

    `good_run`: paths of logs of a run that went well; what looks like an error in these, too, is no alarm.
    """
    places = read_hosts_file(hosts) if hosts is not None else None
    parsed = read(paths, stdin=stdin, limits=limits, progress=progress, workers=workers)
    good = wordings(e for p in read(good_run, limits=limits, workers=workers) for e in p.alarms) if good_run else ()
    return conclude(parsed, zone=zone, year=year, places=places, window=window, good=good)


def conclude(
    parsed: Sequence[Parsed],
    *,
    zone: tzinfo | None = None,
    year: int | None = None,
    places: Mapping[int, Place] | None = None,
    window: Window | None = None,
    good: Collection[str] = (),
) -> Analysis:
    """From what the files gave to incidents: the part that needs all files at once. Several jobs are taken one by one.

    `window` limits what is reconstructed and weighed; who is who and what the clocks read is learned from all lines.
    `good`: wordings of a good run, which are no alarms.
    """
    declared = _Declared(zone, year, places, window, good)
    parsed = without_quotations(without_copies(parsed))
    whole = Pile.of(parsed)
    found, said = jobs.apart(whole.rows, whole.events, whole.dumps) if places is None else ([], ())
    failed = {e.evidence.source for e in whole.events if runs.fails(e)} | {d.path for d in whole.dumps}
    if not any(job.kept and job.sources & failed for job in found):
        made = _one_job(whole, declared)
        return replace(made, problems=(*made.problems, *said)) if said and not found else made
    taken = frozenset().union(*(job.files for job in found))
    piles = [Pile.of(p for p in parsed if p.row.path in job.files or p.row.path not in taken) for job in found]
    made_of = [(job, _one_job(pile, declared)) for job, pile in zip(found, piles, strict=True) if job.kept]
    return of_several_jobs(made_of, failed, whole.rows, said)


@dataclass(frozen=True, slots=True)
class _Declared:
    """What the user says besides the files."""

    zone: tzinfo | None
    year: int | None
    places: Mapping[int, Place] | None
    window: Window | None
    good: Collection[str]
    """Wordings of a good run."""


def _one_job(pile: Pile, declared: _Declared) -> Analysis:
    """As `conclude`, for one job."""
    told = Told("identify")
    events, placed = containers.joined(pile.rows, pile.events)
    known = identify(pile.rows, events, declared.places)
    events, rows = attribute(events, pile.rows, known)
    events = runs.with_attempts(events)
    told(f"{count(len(known.ranks), 'rank')}", "dumps")
    recorded = from_dumps(pile.dumps, known)
    members = {r for g in recorded.groups for r in g.members} | set(recorded.ranks_seen)
    known = identify(rows, events, declared.places, members)  # prefixes that have become ranks tell hosts and pids
    told(f"{count(len(pile.dumps), 'dump')}, {count(len(recorded.groups), 'group')}", "align")
    aligned = align(
        merge_repeats(events),
        rows,
        zone=declared.zone,
        year=declared.year,
        arrivals=arrivals_of(recorded.groups),
        dumps=pile.dumps,
        places={rank: place.host for rank, place in known.ranks.items()},
        asides=[*pile.begins, *pile.alarms],
    )
    known = with_coincidences(known, aligned.events)
    told(f"{count(len(aligned.events), 'event')} on {count(len(aligned.clocks), 'clock')}", "reconstruct")
    inside = Limited(events=aligned.events, dumps=tuple(pile.dumps))
    if declared.window is not None:
        inside = declared.window.limit(aligned.events, pile.dumps)
    if len(inside.dumps) < len(pile.dumps):
        recorded = from_dumps(inside.dumps, known)
    spans = runs.spans(replace(aligned, events=inside.events), inside.dumps, rows)
    if len(spans) == 1:
        collectives = from_all(recorded, inside.events, pile.timed, known)
        told(f"{count(len(inside.events), 'event')}, {count(len(collectives.groups), 'group')}", "diagnose")
        incidents = diagnose(replace(aligned, events=inside.events), known, collectives, rows)
        primary = incidents[0] if incidents else None
        said = [*known.problems, *collectives.problems]
    else:
        told(f"{count(len(spans), 'start')} of the job", "diagnose")
        incidents, known, collectives, said = _each_start(spans, aligned, known, replace(pile, rows=rows), declared)
        primary = incidents[-1] if incidents else None
    told(f"{count(len(incidents), 'incident')}")
    failing = rates.rates(inside.events, rows, known)
    rows = covered(rows, aligned.events)
    of_newest = replace(aligned, events=spans[-1].events)
    shown = replace(aligned, events=inside.events)
    if inside.dumps:
        from nccl_forensics.when.recorded import with_dumps  # numpy: only when there are dumps

        shown = with_dumps(shown, inside.dumps, {rank: place.host for rank, place in known.ranks.items()})
    return Analysis(
        rows=tuple(rows),
        events=shown.events,
        known=known,
        clocks=shown.clocks,
        incidents=rates.with_offenders(incidents, failing),
        primary=primary.id if primary else None,
        ranks=primary.ranks if primary else no_incident_ranks(of_newest, known, collectives, rows),
        collectives=collectives,
        rates=failing,
        oddities=tuple(oddities(_alarms(aligned, rows), rows, incidents, declared.good)),
        problems=tuple(dict.fromkeys([*inside.problems, *pile.problems, *placed, *said])),
        aligned=aligned,
    )


def _alarms(aligned: Aligned, rows: Sequence[InputRow]) -> list[Event]:
    """The alarms, with the rank and host of their files where they tell none."""
    by_path = {row.path: row for row in rows}
    return [of_its_file(e, by_path) for e in aligned.asides if e.kind == ALARM]


def _each_start(
    spans: Sequence[runs.Span], aligned: Aligned, whole: Identities, pile: Pile, declared: _Declared
) -> tuple[tuple[Incident, ...], Identities, Reconstruction, list[Problem]]:
    """Each start of the job by itself: (incidents, the newest one's ranks and groups, problems)."""
    spans = list(spans)
    kept = [n for n, span in enumerate(spans) if span.kept]
    starts = (spans[n].events for n in kept)
    own = [with_coincidences(identify(pile.rows, events, declared.places), events) for events in starts]
    own = outcome.places(own, whole)
    incidents: list[Incident] = []
    of: list[runs.Span] = []
    problems: list[Problem] = []
    newest, groups = own[-1], Reconstruction()
    for n, known in zip(kept, own, strict=True):
        span = spans[n]
        timed = pile.timed if n == len(spans) - 1 else ()
        found = from_all(from_dumps(span.dumps, known), span.events, timed, known)
        if not span.failed and not found.suspects and (found.healthy or not found.groups):
            continue
        spans[n] = span = replace(span, failed=True)
        problems += [*known.problems, *found.problems]
        for incident in diagnose(replace(aligned, events=span.events), known, found, pile.rows):
            made = replace(incident, id=len(incidents) + 1, attempt=span.attempt)
            incidents.append(outcome.cost(made, span, spans[n + 1] if n + 1 < len(spans) else None))
            of.append(span)
            newest, groups = known, found
    return tuple(outcome.together(incidents, of, spans[-1])), newest, groups, [*problems, *outcome.left_out(spans)]
