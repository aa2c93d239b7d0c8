"""The timeline cut where a job was started anew: an attempt of its launcher, a requeue, or another run of another day.

Each span is reconstructed and diagnosed by itself, as if it were alone in the pile. docs/reasoning.md tells the rules.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from nccl_forensics.catalog import causes_marked, kinds_marked
from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.lines.stamps import DAY
from nccl_forensics.model import Event, InputRow, number
from nccl_forensics.names import same_host
from nccl_forensics.starts import launches
from nccl_forensics.starts.climbs import Back, Climb
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who.attribute import NOBODY

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump

DETECTED = kinds_marked("notices")
"""Lines by which the job itself noticed."""
JOB_KINDS = kinds_marked("of-failure")
"""Lines that a failing training job writes, as against a kernel."""


APART_S = 6 * 3600
"""Failures further apart than this, with work done in between, belong to two runs even if no start shows. Our
judgement."""
ALONE_S = 24 * 3600
"""Failures further apart than this are of two runs even if no line of work stands between them. Our judgement."""
LINGER_S = 30
"""So long after a start, lines of the attempt before may still come from files that show no start: torchrun gives
workers 30 s to end before it kills them (PContext.close, `timeout`)."""
MOST_SPANS = 12
"""Failed attempts that are diagnosed, the newest; the others are counted. As many as the page shows."""
STARTS = kinds_marked("begins")
"""Lines that a process writes when it begins."""
ENDED = kinds_marked("ends")
"""Lines that tell the end of a process of the job."""
GAVE_UP = ENDED | kinds_marked("gives-up")
"""Lines after which a process with a new number is a new start."""
FOR_ALL = NOBODY | kinds_marked("for-every-start")
"""What holds for every attempt, whenever it was written."""
STAYS = causes_marked("outlasts-a-start")
"""Causes that no new start of a job mends: the card is gone until the machine is started anew."""


@dataclass(slots=True)
class _Start:
    """Where the job was started anew."""

    event: Event
    """The line that shows it."""
    at_ns: int | None
    """From when on lines belong to it, on the reference clock."""
    lines: dict[str, int] = field(default_factory=dict)
    """File → its first line, where the file shows the start."""
    attempt: int | None = None
    """As the launcher counts, from 0."""
    run: bool = False
    """Another run, not another attempt of the same."""

    def not_before(self, time_ns: int) -> None:
        """Lines up to then are of the attempt before."""
        self.at_ns = max(time_ns, self.at_ns or time_ns)

    def restarts(self) -> tuple[int, int] | None:
        """(Starts left once it began, starts allowed), where the launcher tells."""
        if self.event.kind != "restart":
            return None
        left, allowed = number(self.event, "left"), number(self.event, "of")
        return (left - 1, allowed) if left is not None and allowed is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What belongs to one start of the job."""

    events: tuple[Event, ...] = ()
    """None where the span is not kept."""
    dumps: tuple[Dump, ...] = ()
    began: Event | None = None
    """The line that shows its start; None for the first."""
    began_ns: int | None = None
    stepped_ns: int | None = None
    """Its first step."""
    attempt: int | None = None
    """Which start of this run by its launcher, from 0; None where there is only one."""
    failed: bool = True
    kept: bool = True
    """It is to be looked at: one of the newest that failed or left dumps, or the last one."""
    restarts: tuple[int, int] | None = None
    """(starts left when it began, starts allowed), where the launcher tells."""


def spans(aligned: Aligned, dumps: Sequence[Dump], rows: Sequence[InputRow]) -> list[Span]:
    """The aligned events, start by start, in time order; one span with everything where the job was started once.

    A line of the job belongs to one span: by the attempt that its file or launcher names, by the place of a start in
    its own file, else by its time, else to that of the line before it. A dump belongs to the span of its newest call.
    A host's line belongs to the span that it falls into, and also to the next if the job was down; what is no failure,
    what stays broken, and what no clock can place is seen by all.
    """
    hosts = {r.path for r in rows if r.format in OF_ONE_HOST}
    of_job = {e.evidence.source for e in aligned.events if e.kind in JOB_KINDS or e.kind in STARTS} - hosts
    starts = _starts([e for e in aligned.events if e.evidence.source in of_job])
    if not starts:
        return [Span(events=aligned.events, dumps=tuple(dumps))]
    places = _Places(starts, aligned, of_job)
    own, belong = _lines_of_job(aligned.events, of_job, places)
    recorded: list[list[Dump]] = [[] for _ in own]
    for dump in dumps:
        recorded[places.of_dump(dump)].append(dump)
    before: list[_Start | None] = [None, *starts]
    failed = [_failed(events, start) for events, start in zip(own, before, strict=True)]
    kept = _kept(failed, recorded)
    ends = [_last_ns(events) for events in own]
    of_process = _spans_of_processes(own)
    seen = (
        of if of is not None else of_process(event) or places.of_host(event, event.evidence.source in hosts, ends)
        for event, of in zip(aligned.events, belong, strict=True)
    )
    inside = _events_of(kept, zip(aligned.events, seen, strict=True))
    made = [
        Span(
            events=tuple(inside.get(n, ())),
            dumps=tuple(recorded[n]),
            stepped_ns=_first_step(own[n]),
            attempt=attempt,
            failed=failed[n],
            kept=n in inside,
        )
        for n, attempt in enumerate(_attempts(starts))
    ]
    return [made[0], *(_begun(span, start) for span, start in zip(made[1:], starts, strict=True))]


def _spans_of_processes(own: Sequence[Iterable[Event]]) -> Callable[[Event], range | None]:
    """The spans that see a host's line, by the process that it names; None where the job tells of it in none or more.

    `own`: for each span its lines of the job.
    """
    told: dict[int, set[tuple[int, str | None]]] = defaultdict(set)
    for n, events in enumerate(own):
        for event in events:
            if event.pid is not None and (event.rank is not None or event.local_rank is not None):
                told[event.pid].add((n, event.host))

    def of_process(event: Event) -> range | None:
        spans = {n for n, host in told.get(event.pid, ()) if same_host(host, event.host)} if event.pid else set()
        if len(spans) != 1:
            return None
        (n,) = spans
        return range(n, len(own) if event.cause in STAYS else n + 1)

    return of_process


def _kept(failed: Sequence[bool], recorded: Sequence[Sequence[Dump]]) -> list[int]:
    """The newest spans that failed or left dumps, and the last one."""
    newest = [n for n in range(len(failed)) if failed[n] or recorded[n]][-MOST_SPANS:]
    return sorted({*newest, len(failed) - 1})


def _begun(span: Span, start: _Start) -> Span:
    return replace(span, began=start.event, began_ns=start.at_ns, restarts=start.restarts())


def _events_of(kept: Sequence[int], seen: Iterable[tuple[Event, range]]) -> dict[int, list[Event]]:
    """Of each span that is kept the events that it sees. `kept`: rising; `seen`: (event, the spans that see it)."""
    inside: dict[int, list[Event]] = {n: [] for n in kept}
    for event, of in seen:
        for n in kept[bisect.bisect_left(kept, of.start) : bisect.bisect_left(kept, of.stop)]:
            inside[n].append(event)
    return inside


def _lines_of_job(
    events: Sequence[Event], of_job: AbstractSet[str], places: _Places
) -> tuple[list[list[Event]], list[range | None]]:
    """(For each span its lines of the job, for each event the spans that see it; None for a host's)."""
    own: list[list[Event]] = [[] for _ in range(places.last + 1)]
    belong: list[range | None] = []
    for event in events:
        if event.kind in FOR_ALL:
            belong.append(range(len(own)))
        elif event.evidence.source in of_job:
            n = places.of_job(event)
            own[n].append(event)
            belong.append(range(n, n + 1))
        else:
            belong.append(None)
    return own, belong


def _last_ns(events: Iterable[Event]) -> int | None:
    return max((e.time_ns for e in events if e.time_ns is not None), default=None)


def _first_step(events: Iterable[Event]) -> int | None:
    return min((e.time_ns for e in events if e.time_ns is not None and _step(e) is not None), default=None)


def _attempts(starts: Sequence[_Start]) -> Iterator[int]:
    """Which start of its run each is, the first line of the pile included."""
    attempt = next((s.attempt - 1 for s in starts if s.attempt), 0)
    yield attempt
    for start in starts:
        attempt = 0 if start.run else start.attempt if start.attempt is not None else attempt + 1
        yield attempt


def _failed(events: Sequence[Event], start: _Start | None) -> bool:
    """Does the job tell of a failure, other than the last words of the attempt before?"""
    worked = False
    for event in events:
        worked = worked or event.kind in STARTS or _step(event) is not None
        if not fails(event):
            continue
        if start is None or event.evidence.source in start.lines or worked:
            return True
        if event.time_ns is None or start.at_ns is None or event.time_ns > start.at_ns + LINGER_S * SECOND:
            return True
    return False


def fails(event: Event) -> bool:
    """Is this a line of a job that failed?"""
    if event.role == "context" and event.kind not in ENDED:
        return False  # it was caught
    return event.kind in JOB_KINDS and (event.kind in DETECTED or event.kind in GAVE_UP or event.role == "cause")


def _step(event: Event) -> int | None:
    return number(event, "step") if event.kind == "progress" else None


def _starts(events: Sequence[Event]) -> list[_Start]:
    """In time order. `events`: those of the job's files, aligned."""
    found = _told(events)
    found += _after_ends(events, found)
    for old, new, begun in _apart(events):
        if not any(s.at_ns is not None and old < s.at_ns <= new for s in found):
            found.append(_Start(begun, begun.time_ns, {}, run=True))
    if not any(s.run for s in found):
        found += _numbered(events, {s.attempt for s in found})
    found = _in_order(found)
    for before, start in pairwise(found):  # a launcher that counts from 0 again was itself started anew
        if start.attempt == 1 and before.attempt is None:
            before.run = True
    return found


def _after_ends(events: Sequence[Event], known: Sequence[_Start]) -> list[_Start]:
    """Starts that only the ends of processes show, where no line of `known` tells of them."""
    found: list[_Start] = []
    for told in launches.begun(events):
        since, until = told.after_ns, told.until_ns
        if since is None or until is None or told.event.time_ns is None:
            continue
        if not any(s.at_ns is not None and since < s.at_ns <= until for s in (*known, *found)):
            marks = {told.event.evidence.source: told.line}
            found.append(_Start(told.event, told.event.time_ns, marks, run=told.other_agent))
    return found


def _in_order(starts: list[_Start]) -> list[_Start]:
    """By their times if all have one, else by their numbers if all have those, else as they came."""
    if all(s.at_ns is not None for s in starts):
        return sorted(starts, key=lambda s: s.at_ns or 0)
    if all(s.attempt is not None for s in starts):
        return sorted(starts, key=lambda s: s.attempt or 0)
    return starts


def _numbered(events: Sequence[Event], known: Collection[int | None]) -> Iterator[_Start]:
    """Starts that only the numbers of files and folders tell of: RUN/attempt_1/0/stderr.log."""
    first: dict[int, Event] = {}
    for event in events:
        if event.attempt is not None and event.kind != "restart":
            old = first.setdefault(event.attempt, event)
            if not _timed(old) and _timed(event):
                first[event.attempt] = event
    for attempt in sorted(first)[1:]:
        if attempt not in known:
            event = first[attempt]
            yield _Start(event, event.time_ns if _timed(event) else None, {}, attempt)


def _timed(event: Event) -> bool:
    return event.time_ns is not None and event.time_basis != "neighbour"


class _Since:
    """What has been seen since the last start."""

    def __init__(self) -> None:
        self.began: set[object] = set()
        """Who wrote lines of a start: a rank, or a launcher's file."""
        self.pids: set[tuple[object, int]] = set()
        self.steps: dict[tuple[str, int | None], Climb] = {}
        """By (file, rank)."""
        self.back: dict[tuple[str, int | None], Back] = {}
        """The same, where they may be of a new start."""
        self.begun: Event | None = None
        """The last line of a start."""
        self.worked = False
        self.gave_up: Event | None = None
        self.ended: Event | None = None


def _who(event: Event) -> object:
    """Whose start a line tells: that of a rank, else of the launcher that writes this file."""
    if event.kind == "rendezvous":
        return event.evidence.source
    rank = event.rank if event.rank is not None else number(event, "comm_rank")
    return rank if rank is not None else event.evidence.source


def _told(events: Sequence[Event]) -> list[_Start]:
    """Starts that lines tell of: a launcher's word, a process that begins again, steps that do so after an end."""
    widest = max((n for e in events if e.kind == "nccl-init" and (n := number(e, "nranks"))), default=None)
    reader = _Reader(widest)
    for event in events:
        reader.read(event)
    return reader.found


class _Reader:
    """Finds starts in the lines of a job, which it reads in their order."""

    def __init__(self, widest: int | None) -> None:
        """`widest`: the size of the widest communicator."""
        self.found: list[_Start] = []
        self._widest = widest
        self._by_attempt: dict[int, _Start] = {}
        self._since = _Since()

    def read(self, event: Event) -> None:
        if event.kind == "restart":
            self._read_restart(event)
        elif event.kind in STARTS:
            self._read_begin(event)
        elif (step := _step(event)) is not None:
            self._read_step(event, step)
        elif (event.kind in GAVE_UP and event.role != "context") or event.kind == "slurm-cancel":
            self._since.gave_up = event
            if event.kind in ENDED:
                self._since.ended = event
        if self._since.back and fails(event):
            self._since.back.clear()

    def _begin_anew(self, start: _Start) -> None:
        self.found.append(start)
        self._since = _Since()

    def _read_restart(self, event: Event) -> None:
        """A launcher's word, which counts once for all the nodes that repeat it."""
        source, line, attempt = event.evidence.source, event.evidence.line, (event.attempt or 0) + 1
        start = self._by_attempt.get(attempt)
        if start is not None and source not in start.lines:  # another node's word on the same start
            if event.time_ns is not None and start is self.found[-1] and not self._since.worked:
                start.not_before(event.time_ns)
        else:
            if start is not None:
                self._by_attempt.clear()  # it counts from the beginning again
            start = self._by_attempt[attempt] = _Start(event, event.time_ns, {}, attempt)
            self._begin_anew(start)
        if line is not None:
            start.lines[source] = line + 1

    def _read_begin(self, event: Event) -> None:
        """A process begins: of a start that a launcher told of, or by itself of a new one."""
        if event.kind == "nccl-init" and number(event, "nranks") != self._widest:
            return  # a group of its own: also made in the midst of work
        if self.found and not self._since.worked and event.time_ns is not None:
            self.found[-1].not_before(event.time_ns)
        elif _begins_again(event, self._since):
            self._begin_anew(_again(event, self._since.gave_up))
        self._since.began.add(_who(event))
        self._since.begun = event
        self._since.worked = True
        if event.pid is not None:
            self._since.pids.add((event.host, event.pid))

    def _read_step(self, event: Event, step: int) -> None:
        if (first := _steps_again(event, step, self._since)) is not None:
            self._begin_anew(_again(first, self._since.ended))
        writer = (event.evidence.source, event.rank)
        self._since.steps.setdefault(writer, Climb(step)).add(step, _stated_ns(event))
        self._since.worked = True


def _stated_ns(event: Event) -> int | None:
    """The time that the line itself states."""
    return event.time_ns if event.time_basis == "stamp" else None


def _steps_again(event: Event, step: int, since: _Since) -> Event | None:
    """The first of the steps that began again after the end of processes, once it shows that they are of a new start.

    Standard output comes late where it is buffered, and bars lag: steps behind others are no start by themselves. A
    process that began since shows it, or what these steps do before the job fails again.
    """
    writer, slack = (event.evidence.source, event.rank), int(event.rank is None)  # without names, they write in turns
    climbed, ended = since.steps.get(writer), since.ended
    if climbed is None or ended is None or not _later(event, ended):
        return None
    stated = _stated_ns(event)
    if (back := since.back.get(writer)) is not None:
        return next(iter(since.back.values())).first if back.goes_on(step, stated, slack) else None
    if step < climbed.highest - slack:
        if since.begun is not None and _later(since.begun, ended):
            return event
        back = since.back[writer] = Back(event, replace(climbed), step)
        back.goes_on(step, stated, slack)
    return None


def _again(event: Event, failed: Event | None) -> _Start:
    """A start that its first line shows; of another run where that comes long after the failure."""
    line, old = event.evidence.line, failed.time_ns if failed is not None else None
    apart = old is not None and event.time_ns is not None and event.time_ns - old > APART_S * SECOND
    return _Start(event, event.time_ns, {} if line is None else {event.evidence.source: line}, run=apart)


def _begins_again(event: Event, since: _Since) -> bool:
    """A process that had begun before, after the job gave up: with another number, or after the end of processes."""
    if _who(event) not in since.began or since.gave_up is None or not _later(event, since.gave_up):
        return False
    if event.pid is not None:
        return (event.host, event.pid) not in since.pids
    return since.ended is not None and _later(event, since.ended)


def _later(event: Event, other: Event) -> bool:
    if event.evidence.source == other.evidence.source and event.evidence.line and other.evidence.line:
        return event.evidence.line > other.evidence.line
    return event.time_ns is not None and other.time_ns is not None and event.time_ns > other.time_ns


def _apart(events: Sequence[Event]) -> Iterator[tuple[int, int, Event]]:
    """(last failure of a run, first of the next, where the next run's work begins) for failures that lie far apart.

    Gaps count within one clock only: between two, hours can be zones that nobody wrote down.
    """
    detected = [e for e in events if e.kind in DETECTED and e.time_ns is not None]
    gaps = _gaps(detected)
    clock = max(gaps, key=lambda c: (gaps[c][-1][1], gaps[c][-1][0]), default=None)
    if clock not in gaps:
        return
    work = _work(events)
    times = [e.time_ns or 0 for e in work]
    for old, new in gaps[clock]:
        at = bisect.bisect_right(times, old)
        if at < len(work) and times[at] < new:
            yield old, new, work[at]
        elif new - old >= ALONE_S * SECOND:
            begun = _since_when([e for e in detected if e.clock == clock and e.time_ns == new], new)
            if begun.time_ns is not None and begun.time_ns > old:
                yield old, new, begun


def _work(events: Iterable[Event]) -> list[Event]:
    """The lines that show a job at work, by time."""
    work = [e for e in events if e.time_ns is not None and (e.kind in STARTS or _step(e) is not None)]
    return sorted(work, key=lambda e: e.time_ns or 0)


def _since_when(failed: Sequence[Event], at_ns: int) -> Event:
    """The first of these failures, which were told at one moment, at the time since when the longest of them waited."""
    waited_ms = max(number(e, "waited_ms") or 0 for e in failed)
    return replace(failed[0], time_ns=at_ns - waited_ms * 1_000_000)


def _gaps(detected: Iterable[Event]) -> dict[str | None, list[tuple[int, int]]]:
    """Clock → (last failure before, first behind) of each of its gaps, in order; clocks without a gap are left out."""
    by_clock: dict[str | None, list[int]] = defaultdict(list)
    for event in detected:
        if event.time_ns is not None and is_dated(event.time_ns):
            by_clock[event.clock].append(event.time_ns)
    gaps = {
        clock: [(old, new) for old, new in pairwise(sorted(times)) if new - old > APART_S * SECOND]
        for clock, times in by_clock.items()
    }
    return {clock: found for clock, found in gaps.items() if found}


class _Places:
    """Which span a line or a dump belongs to. Lines of a file are asked for in the order of the aligned events."""

    def __init__(self, starts: Sequence[_Start], aligned: Aligned, of_job: Collection[str]) -> None:
        self.last = len(starts)
        self.aligned = aligned
        self.timed = next((s.event for s in starts if s.at_ns is not None), None)
        self.times = _times(starts)
        self.dated = any(is_dated(t) for t in self.times)
        self.marks = _marks(starts)
        self.of_attempt = _spans_of_attempts(starts)
        of_job_ns = (e.time_ns for e in aligned.events if e.time_ns is not None and e.evidence.source in of_job)
        self.first_ns = min((at for at in of_job_ns if is_dated(at)), default=None)
        """When the job's first line with a date was written."""
        self.before: dict[str, int] = {}
        """File → the span of the line before; at first that of its first line with a time."""
        for event in aligned.events:
            if event.time_ns is not None and event.evidence.source in of_job:
                self.before.setdefault(event.evidence.source, self._at(event.time_ns))

    def _at(self, time_ns: int) -> int:
        return bisect.bisect_right(self.times, time_ns)

    def of_job(self, event: Event) -> int:
        source = event.evidence.source
        if event.attempt is not None and event.attempt in self.of_attempt:
            found = self.of_attempt[event.attempt]
        elif event.time_ns is not None:
            found = self._at(event.time_ns)
        else:
            found = self.before.get(source, self.last)
        low, high = self._between_marks(source, event.evidence.line)
        found = min(max(found, low), high)
        self.before[source] = found
        return found

    def _between_marks(self, source: str, line: int | None) -> tuple[int, int]:
        """The first and the last span that this line can be of, by the starts that its own file shows."""
        marks = self.marks.get(source, ())
        if line is None or not marks:
            return 0, self.last
        at = bisect.bisect_right(marks, (line, self.last))
        return marks[at - 1][1] if at else 0, marks[at][1] - 1 if at < len(marks) else self.last

    def of_host(self, event: Event, hosts_own: bool, ends: Sequence[int | None]) -> range:
        """`ends`: the last line of the job in each span."""
        every = range(self.last + 1)
        if event.role == "context":
            return every
        if event.time_ns is None:
            return every if hosts_own else range(self.last, self.last + 1)
        near = self.timed
        if near is None or near.time_ns is None or is_dated(near.time_ns) != is_dated(event.time_ns):
            return every
        if len(self.aligned.apart(event, near)) > 1:
            return every  # its clock's zone is not known
        found = self._at(event.time_ns)
        if event.cause in STAYS:
            return range(found, self.last + 1)
        if self.first_ns is not None and event.time_ns < self.first_ns - DAY:
            return range(0)  # of no start of this job
        end = ends[found]
        down = event.role == "cause" and end is not None and event.time_ns > end
        return range(found, min(found + 1 + down, self.last + 1))

    def of_dump(self, dump: Dump) -> int:
        newest = dump.newest_ns
        return self._at(newest) if newest and self.dated else self.last


def _times(starts: Iterable[_Start]) -> list[int]:
    """When each began; one without a time is as late as the one before it."""
    times: list[int] = []
    for start in starts:
        times.append(max(start.at_ns or 0, times[-1] if times else 0))
    return times


def _marks(starts: Iterable[_Start]) -> Mapping[str, Sequence[tuple[int, int]]]:
    """File → (its first line of a span, the span), in order."""
    marks: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for n, start in enumerate(starts, 1):
        for source, line in start.lines.items():
            marks[source].append((line, n))
    return {source: sorted(inside) for source, inside in marks.items()}


def _spans_of_attempts(starts: Sequence[_Start]) -> Mapping[int, int]:
    """A launcher's number of a start → the span; none where several runs count each from 0."""
    found: dict[int, int] = {}
    if any(s.run for s in starts):
        return found
    for n, start in enumerate(starts, 1):
        if start.attempt is not None:
            found.setdefault(start.attempt, n)
            found.setdefault(start.attempt - 1, n - 1)
    return found


def with_attempts(events: Sequence[Event]) -> list[Event]:
    """The events with `attempt` filled in from torchrun's restarts in the same file, in the order of its lines.

    A file that tells of no restart is left alone. `restart` closes an attempt, `rendezvous` says which one begins.
    """
    begins = _begins_of_attempts(events)
    out = []
    for event in events:
        line, told = event.evidence.line, begins.get(event.evidence.source)
        if event.attempt is None and line is not None and told:
            begun = [attempt for first, attempt in told if first <= line]
            event = replace(event, attempt=begun[-1] if begun else max(told[0][1] - 1, 0))
        out.append(event)
    return out


def _begins_of_attempts(events: Iterable[Event]) -> Mapping[str, Sequence[tuple[int, int]]]:
    """File → (first line of an attempt, attempt), in order."""
    begins: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        line = event.evidence.line
        if event.attempt is None or line is None:
            continue
        if event.kind == "rendezvous":
            begins[event.evidence.source].append((line, event.attempt))
        elif event.kind == "restart":
            begins[event.evidence.source].append((line + 1, event.attempt + 1))
    return {source: sorted(told) for source, told in begins.items()}
