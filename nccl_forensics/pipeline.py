"""The whole way on one page: paths → collect → scan → parse → identify → align → reconstruct → diagnose."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from nccl_forensics import clocks, containers, diagnose, identify, inspector, jobs, rates, runs, sniff, watchdogs, words
from nccl_forensics.clocks import Aligned
from nccl_forensics.collect import File, Limits, Source, _Totals, collect, files, sources
from nccl_forensics.messages import say
from nccl_forensics.model import Event, Incident, InputRow, Problem, Rank, Reconstruction
from nccl_forensics.plugins import Parser, Parsers, Stream, parsers
from nccl_forensics.scan import UNREAD, Line, Often, Scanner
from nccl_forensics.window import Limited, Window
from nccl_forensics.words import count

log = logging.getLogger(__name__)
"""What each step did; `--verbose` shows it."""
KEPT = 20_000
"""Events of one kind kept from the start of one file; of the rest the newest `KEPT_LAST`; the others are counted.
Enough for a thousand ranks that each write twenty lines of a kind. Our judgement."""
KEPT_LAST = 2_000
FLOOD, FLOOD_WORDED, FLOOD_LAST = 20_000, 1_000, 2_000
"""Lines with the same literals that are read from the start of a file; behind them, those of one wording; and from its
end. Our judgement."""
MOST_FLOODS, LONGEST_WAITING = 16, 4096
"""So many floods, and bytes of a line, wait for the end of a file: a hostile one must not fill the memory."""
LONGEST_WORDING = 400
"""Bytes of a line that are held against others."""
_DIGITS = b"0123456789abcdefABCDEF"
MOST_SETS = 4096
"""Sets of literals that are told apart in one file: a hostile one could make millions."""
PULSE_FIRST, PULSE_LAST = 200, 800
"""Lines of progress (which can be every line of a log) that are read from the start and the end of a file."""
PULSE = frozenset({"progress"})
"""Parsers whose lines are only a pulse."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one file gave."""

    row: InputRow
    events: tuple[Event, ...] = ()
    values: tuple[Any, ...] = ()
    """What file parsers yield besides events: Flight Recorder dumps, and how long collectives took."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that the report shows."""

    rows: tuple[InputRow, ...]
    events: tuple[Event, ...]
    known: identify.Identities
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


class _Kept:
    """The first and last events of each kind of one file."""

    def __init__(self) -> None:
        self.first: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.last: dict[str, deque[Event]] = {}

    def add(self, event: Event) -> None:
        self.counts[event.kind] += 1
        if self.counts[event.kind] <= KEPT:
            self.first.append(event)
        else:
            self.last.setdefault(event.kind, deque(maxlen=KEPT_LAST)).append(event)

    def dropped(self) -> dict[str, int]:
        return {k: n - KEPT - KEPT_LAST for k, n in self.counts.items() if n > KEPT + KEPT_LAST}

    def events(self) -> tuple[Event, ...]:
        if not self.last:
            return tuple(self.first)
        return tuple(
            sorted(self.first + [e for d in self.last.values() for e in d], key=lambda e: e.evidence.line or 0)
        )


class _Flood:
    """Which parsers a line goes to, and which lines wait for the end of the file because too many are like them.

    Lines with the same literals are alike. Behind the first `FLOOD` of them come only the first `FLOOD_WORDED` of each
    wording (the line without its digits, so that another message is not lost among many), or none if nothing that was
    alike has told anything; and in the end the last `FLOOD_LAST`.
    """

    def __init__(self, known: Parsers) -> None:
        self._known = known
        self._readers: dict[frozenset[bytes], tuple[Parser, ...]] = {}
        self._seen: dict[frozenset[bytes], int] = {}
        self._told: set[frozenset[bytes]] = set()
        self._worded: dict[int, int] = {}
        self._waiting: dict[frozenset[bytes], deque[Line]] = {}
        self._waited: Counter[frozenset[bytes]] = Counter()

    def _readers_of(self, hits: frozenset[bytes]) -> tuple[Parser, ...]:
        found = self._readers.get(hits)
        if found is None:
            if len(self._readers) >= MOST_SETS:
                self._readers.clear()
            by_literal = self._known.by_literal
            found = tuple(dict.fromkeys(p for hit in sorted(hits) for p in by_literal[hit]))
            self._readers[hits] = found
        return found

    def readers(self, line: Line) -> tuple[Parser, ...] | None:
        """In a stable order; None if the line waits."""
        hits = line.hits
        seen = self._seen.get(hits, 0)
        if seen < FLOOD:
            if seen or len(self._seen) < MOST_SETS:
                self._seen[hits] = seen + 1
            return self._readers_of(hits)
        raw = line.raw
        if hits in self._told:
            wording = hash((hits, raw[:LONGEST_WORDING].translate(None, _DIGITS)))
            before = self._worded.get(wording, 0)
            if before < FLOOD_WORDED and (before or len(self._worded) < MOST_SETS):
                self._worded[wording] = before + 1
                return self._readers_of(hits)
        self._waited[hits] += 1
        if len(raw) <= LONGEST_WAITING:
            waiting = self._waiting.get(hits)
            if waiting is None and len(self._waiting) < MOST_FLOODS:
                waiting = self._waiting[hits] = deque(maxlen=FLOOD_LAST)
            if waiting is not None:
                waiting.append(line)
        return None

    def told(self, line: Line) -> None:
        """The line has become an event."""
        self._told.add(line.hits)

    def last(self) -> Iterator[tuple[Line, tuple[Parser, ...]]]:
        for hits, lines in self._waiting.items():
            for line in lines:
                yield line.detached(), self._readers_of(hits)

    def problems(self, path: str) -> Iterator[Problem]:
        for hits, waited in sorted(self._waited.items(), key=lambda x: sorted(x[0])):
            if (number := waited - len(self._waiting.get(hits, ()))) > 0:
                shown = " and ".join(repr(x.decode("utf-8", "replace")) for x in sorted(hits)[:3])
                says = f"{number:,} more lines with {shown} were counted and not read, being like those before them"
                yield Problem(says=says, source=path)


def read_source(source: Source, known: Parsers, scanner: Scanner) -> Parsed:
    """Everything that the parsers find in one file. Never raises for what is in the file."""
    row = InputRow(path=source.path, mtime_ns=source.mtime_ns)
    if source.stream is None:
        return Parsed(
            replace(row, status=source.status, reason=source.reason, format=sniff.by_name(source.name) or "unknown")
        )
    head = source.head(4096)
    if sniff.is_own(head):
        return Parsed(replace(row, status="skipped", format="report", reason="written by this tool: no evidence"))
    for one in known.files:
        if one.claims(head, source.name):
            return _structured(source, row, one.name, one.read(cast("Stream", source)))
    kept, titles = _Kept(), Counter[str]()
    flood, newest, late = _Flood(known), 0, False
    often = Often(_pulse_literals(known.lines), PULSE_FIRST, PULSE_LAST)
    state: Mapping[str, Any] = {}
    for line in scanner.lines(source.path, source.stream, often):
        state = line.window.state
        late = late or line.number < newest  # the last lines of progress come behind all others
        newest = line.number
        readers = flood.readers(line)
        if readers is not None and _give(line, readers, kept, titles):
            flood.told(line)
    for line, readers in flood.last():
        late = True
        _give(line, readers, kept, titles)
    problems = list(flood.problems(source.path))
    for kind, number in sorted(kept.dropped().items()):
        problems.append(
            Problem(says=f"{number:,} more lines of kind {kind} were counted and not kept", source=source.path)
        )
    for what, number in state.get(UNREAD, {}).items():
        says = f"{number:,} more lines, tables or blocks of kind {what} were not read: those before them fill the bound"
        problems.append(Problem(says=says, source=source.path))
    events = kept.events()
    if late:
        events = tuple(sorted(events, key=lambda e: e.evidence.line or 0))
    format_ = sniff.sniff(head, source.name) or ("job-log" if titles else "unknown")
    status, reason = source.status, source.reason
    if format_ == "unknown" and not events and status == "read":
        status, reason = "skipped", "nothing in it was recognised; it is listed so that you know it was looked at"
    return Parsed(
        replace(row, status=status, reason=reason, format=format_, bytes=source.bytes_read, events=len(events)),
        events,
        (),
        tuple(problems),
    )


def _give(line: Line, readers: Iterable[Parser], kept: _Kept, titles: Counter[str]) -> bool:
    """Whether any of the readers took something from the line."""
    took = False
    for one in readers:
        for event in one.read(line):
            kept.add(event)
            titles[one.name] += 1
            took = True
    return took


@cache
def _pulse_literals(lines: tuple[Parser, ...]) -> frozenset[bytes]:
    """Literals that only parsers of a pulse ask for."""
    others = {x for p in lines if p.name not in PULSE for x in p.literals}
    return frozenset(x for p in lines if p.name in PULSE for x in p.literals if x not in others)


def _structured(source: Source, row: InputRow, format_: str, found: Iterable[Any]) -> Parsed:
    events: list[Event] = []
    values: list[Any] = []
    problems: list[Problem] = []
    for item in found:
        if isinstance(item, Event):
            events.append(item)
        elif isinstance(item, Problem):
            problems.append(item)
        else:
            values.append(item)
    status, reason = source.status, source.reason
    if status == "read" and problems:
        status = "partial" if values or events else "failed"
        reason = problems[0].says
    return Parsed(
        replace(
            row,
            status=status,
            reason=reason,
            format=format_.replace("_", "-"),
            bytes=source.bytes_read,
            events=len(events),
        ),
        tuple(events),
        tuple(values),
        tuple(problems),
    )


SHARED_BYTES = 8 << 20
"""Piles smaller than this are read by one worker: they take a few hundredths of a second."""


def read(
    paths: Sequence[str],
    *,
    stdin: BinaryIO | None = None,
    limits: Limits | None = None,
    progress: Callable[[str, int], None] | None = None,
    workers: int = 1,
) -> list[Parsed]:
    """Every file of the pile, members of archives included, in the order of `paths` and then of names.

    `workers` threads share the files on disk; `progress` is always called from the calling thread. Raises InputError
    for a path that isn't there.
    """
    known = parsers()
    limits = limits or Limits()
    told = _Told("read")
    found = _read(paths, known, stdin, limits, progress, workers)
    size = sum(p.row.bytes for p in found)
    told(f"{count(len(found), 'file')}, {size / 1e6:,.1f} MB, {count(sum(len(p.events) for p in found), 'event')}")
    return found


class _Told:
    """Tells the log (`--verbose`) what a step did and how long it took."""

    def __init__(self, step: str) -> None:
        self.step, self.began = step, time.perf_counter()

    def __call__(self, did: str, then: str = "") -> None:
        """The step `did` this; the one that begins now is `then`."""
        now = time.perf_counter()
        log.info("%-12s%7.2f s  %s", self.step, now - self.began, did)
        self.step, self.began = then, now


def _read(
    paths: Sequence[str],
    known: Parsers,
    stdin: BinaryIO | None,
    limits: Limits,
    progress: Callable[[str, int], None] | None,
    workers: int,
) -> list[Parsed]:
    if workers > 1:
        pile = list(files(paths, limits=limits))
        size = sum(f.size or 0 for f in pile)
        if 1 < len(pile) <= limits.members and size >= SHARED_BYTES:
            return _shared(
                pile, known, Scanner(known.by_literal, expected_bytes=size), stdin, limits, progress, workers
            )
    scanner = Scanner(known.by_literal, expected_bytes=_size(paths))
    found = []
    for source in collect(paths, stdin=stdin, limits=limits):
        found.append(read_source(source, known, scanner))
        if progress is not None:
            progress(source.path, found[-1].row.bytes)
    return found


PACKED = (".gz", ".tgz", ".zst", ".xz", ".bz2", ".zip")
PACKED_RATIO = 8
"""Bytes of log in a packed byte: 9 to 15 were measured. It only chooses how the literals are compiled."""


def _size(paths: Sequence[str]) -> int:
    """Bytes of text in those that are files, guessed from their names and their size on disk."""
    size = 0
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            status = Path(path).stat()
            if stat.S_ISREG(status.st_mode):
                size += status.st_size * (PACKED_RATIO if path.endswith(PACKED) else 1)
    return size


def _shared(
    pile: Sequence[File],
    known: Parsers,
    scanner: Scanner,
    stdin: BinaryIO | None,
    limits: Limits,
    progress: Callable[[str, int], None] | None,
    workers: int,
) -> list[Parsed]:
    """The files read by threads, the largest first; what they gave, in the order of `pile`."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    totals = _Totals()  # its sums are rough when threads share it, which no limit minds

    def one(file: File) -> list[Parsed]:
        drawn = sources(file, stdin=stdin, limits=limits, totals=totals)
        return [read_source(source, known, scanner) for source in drawn]

    with ThreadPoolExecutor(workers) as pool:
        largest = sorted(range(len(pile)), key=lambda i: -(pile[i].size or 0))
        jobs = {pool.submit(one, pile[i]): i for i in largest}
        try:
            for job in as_completed(jobs):
                if progress is not None:
                    for parsed in job.result():
                        progress(parsed.row.path, parsed.row.bytes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [parsed for job in sorted(jobs, key=jobs.__getitem__) for parsed in job.result()]


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
    places = identify.read_hosts_file(hosts) if hosts is not None else None
    parsed = read(paths, stdin=stdin, limits=limits, progress=progress, workers=workers)
    return conclude(parsed, zone=zone, year=year, places=places, window=window)


def conclude(
    parsed: Sequence[Parsed],
    *,
    zone: tzinfo | None = None,
    year: int | None = None,
    places: Mapping[int, identify.Place] | None = None,
    window: Window | None = None,
) -> Analysis:
    """From what the files gave to incidents: the part that needs all files at once. Several jobs are taken one by one.

    `window` limits what is reconstructed and weighed; who is who and what the clocks read is learned from all lines.
    """

    def one(pile: Sequence[Parsed]) -> Analysis:
        return _one_job(pile, zone=zone, year=year, places=places, window=window)

    events = [e for p in parsed for e in p.events]
    dumps = [v for p in parsed for v in p.values if not isinstance(v, inspector.Timed)]
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
            says = say("{job} shows no failure: it is no incident.", job=words.sentence(job.name))
            problems.append(Problem(says=says))
    return replace(
        newest,
        rows=tuple(read.get(r.path, r) for r in rows),
        events=tuple(clocks.ordered(events)),
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
    places: Mapping[int, identify.Place] | None,
    window: Window | None,
) -> Analysis:
    """As `conclude`, for one job."""
    told = _Told("identify")
    rows: Sequence[InputRow] = [p.row for p in parsed]
    events: Sequence[Event] = [e for p in parsed for e in p.events]
    events, placed = containers.joined(rows, events)
    known = identify.identify(rows, events, places)
    events, rows = identify.attribute(events, rows, known)
    events = runs.with_attempts(events)
    values = [v for p in parsed for v in p.values]
    timed = [v for v in values if isinstance(v, inspector.Timed)]
    dumps = [v for v in values if not isinstance(v, inspector.Timed)]
    told(f"{count(len(known.ranks), 'rank')}", "dumps")
    recorded = _from_dumps(dumps, known)
    members = {r for g in recorded.groups for r in g.members} | set(recorded.ranks_seen)
    known = identify.identify(rows, events, places, members)  # prefixes that have become ranks tell hosts and pids
    told(f"{count(len(dumps), 'dump')}, {count(len(recorded.groups), 'group')}", "align")
    events = merge_repeats(events)
    arrivals = [
        clocks.Arrival(g.seq, g.first_arrival_ns, g.last_arrival_ns or g.first_arrival_ns)
        for g in recorded.groups
        if g.first_arrival_ns is not None
    ]
    hosts_of_ranks = {rank: place.host for rank, place in known.ranks.items()}
    aligned = clocks.align(events, rows, zone=zone, year=year, arrivals=arrivals, dumps=dumps, places=hosts_of_ranks)
    told(f"{count(len(aligned.events), 'event')} on {count(len(aligned.clocks), 'clock')}", "reconstruct")
    inside = window.limit(aligned.events, dumps) if window else Limited(events=aligned.events, dumps=tuple(dumps))
    if len(inside.dumps) < len(dumps):
        recorded = _from_dumps(inside.dumps, known)
    spans = runs.spans(replace(aligned, events=inside.events), inside.dumps, rows)
    if len(spans) == 1:
        collectives = watchdogs.merge(recorded, watchdogs.reconstruct(inside.events, known))
        collectives = inspector.with_lateness(collectives, timed, known)
        told(f"{count(len(inside.events), 'event')}, {count(len(collectives.groups), 'group')}", "diagnose")
        incidents = diagnose.diagnose(replace(aligned, events=inside.events), known, collectives, rows)
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
    ranks = primary.ranks if primary else diagnose.no_incident_ranks(of_run, known, collectives, rows)
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
    whole: identify.Identities,
    timed: Sequence[inspector.Timed],
    rows: Sequence[InputRow],
    places: Mapping[int, identify.Place] | None,
) -> tuple[tuple[Incident, ...], identify.Identities, Reconstruction, list[Problem]]:
    """Each start of the job by itself: (incidents, the newest one's ranks and groups, problems)."""
    spans = list(spans)
    kept = [n for n, span in enumerate(spans) if span.kept]
    own = runs.places([identify.identify(rows, spans[n].events, places) for n in kept], whole)
    incidents: list[Incident] = []
    of: list[runs.Span] = []
    problems: list[Problem] = []
    newest, groups = own[-1], Reconstruction()
    for n, known in zip(kept, own, strict=True):
        span = spans[n]
        found = watchdogs.merge(_from_dumps(span.dumps, known), watchdogs.reconstruct(span.events, known))
        if n == len(spans) - 1:
            found = inspector.with_lateness(found, timed, known)
        if not span.failed and not found.suspects and (found.healthy or not found.groups):
            continue
        spans[n] = span = replace(span, failed=True)
        problems += [*known.problems, *found.problems]
        for incident in diagnose.diagnose(replace(aligned, events=span.events), known, found, rows):
            made = replace(incident, id=len(incidents) + 1, attempt=span.attempt)
            incidents.append(runs.cost(made, span, spans[n + 1] if n + 1 < len(spans) else None))
            of.append(span)
            newest, groups = known, found
    return tuple(runs.together(incidents, of, spans[-1])), newest, groups, [*problems, *runs.left_out(spans)]


def _from_dumps(dumps: Sequence[Any], known: identify.Identities) -> Reconstruction:
    if not dumps:
        return Reconstruction()
    from nccl_forensics import collectives  # numpy: only when there are dumps

    return collectives.reconstruct(dumps, expected_world=known.size())


def merge_repeats(events: Sequence[Event]) -> list[Event]:
    """One row for what several files print: the same line at the same uptime, or in the same second of two files.

    The first printing that has a wall-clock time stays, `repeats` counts them. The n-th printing in one file is only
    ever merged with the n-th of another, so that a line that really came twice stays twice; in one file, only rows
    with the same uptime are one (a bug report holds its kernel log three times over).
    """
    kept: dict[tuple[object, ...], int] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    out: list[Event] = []
    for event in events:
        stamp, source = event.stamp, event.evidence.source
        if stamp is None or event.role == "context":
            out.append(event)
            continue
        what = (event.kind, event.host, event.rank, event.gpu_pci, event.evidence.text[-160:])
        keys: list[tuple[object, ...]] = []
        if stamp.boot_ns is not None:
            keys.append((*what, "boot", stamp.boot_ns // 1000))
        if stamp.wall_ns is not None:
            second = (*what, "wall", stamp.wall_ns // 1_000_000_000, stamp.has_year, stamp.zone_s)
            here = (*second, source)
            if not any(k in kept for k in keys):
                seen[here] += 1
            keys.append((*second, seen[here]))
        at = next((kept[k] for k in keys if k in kept), None)
        if at is None or (out[at].evidence.source == source and keys[0] not in kept):
            at = len(out)
            out.append(event)
        else:
            first = out[at]
            assert first.stamp is not None
            if first.stamp.wall_ns is None and stamp.wall_ns is not None:
                out[at] = replace(event, repeats=first.repeats + 1)
            elif first.stamp.boot_ns is None and stamp.boot_ns is not None:
                both = replace(first.stamp, boot_ns=stamp.boot_ns)
                out[at] = replace(first, stamp=both, repeats=first.repeats + 1)
            else:
                out[at] = replace(first, repeats=first.repeats + 1)
        for key in keys:
            kept.setdefault(key, at)
    return out


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


def _spans(rows: Sequence[InputRow], events: Sequence[Event]) -> list[InputRow]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for event in events:
        if event.time_ns is not None:
            path = event.evidence.source
            first[path] = min(first.get(path, event.time_ns), event.time_ns)
            last[path] = max(last.get(path, event.time_ns), event.time_ns)
    return [replace(r, first_ns=first.get(r.path), last_ns=last.get(r.path)) for r in rows]
