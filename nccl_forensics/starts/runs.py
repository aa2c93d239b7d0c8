"""The timeline cut where a job was started anew: an attempt of its launcher, a requeue, or another run of another day.

Each span is reconstructed and diagnosed by itself, as if it were alone in the pile. docs/reasoning.md tells the rules.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nccl_forensics.catalog import causes_marked, kinds_marked
from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, Incident, InputRow, Problem, number, text
from nccl_forensics.names import same_host
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.text.moments import SECOND, is_dated, moment
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who.attribute import NOBODY
from nccl_forensics.who.identities import Identities, Place

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
SETTLED_S = 2
"""Steps that rise for so long by their own times are made then; late lines come out of a buffer at once. Our
judgement."""
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
    found = _starts([e for e in aligned.events if e.evidence.source in of_job])
    if not found:
        return [Span(events=aligned.events, dumps=tuple(dumps))]
    place = _Places(found, aligned, of_job)
    own: list[list[Event]] = [[] for _ in range(len(found) + 1)]
    whose: list[range | None] = []
    for event in aligned.events:
        whose.append(None)
        if event.kind in FOR_ALL:
            whose[-1] = range(len(own))
        elif event.evidence.source in of_job:
            n = place.of_job(event)
            whose[-1] = range(n, n + 1)
            own[n].append(event)
    ends = [max((e.time_ns for e in events if e.time_ns is not None), default=None) for events in own]
    recorded: list[list[Dump]] = [[] for _ in own]
    for dump in dumps:
        recorded[place.of_dump(dump)].append(dump)
    failed = [_failed(events, found[n - 1] if n else None) for n, events in enumerate(own)]
    newest = [n for n in range(len(own)) if failed[n] or recorded[n]][-MOST_SPANS:]
    kept = sorted({*newest, len(own) - 1})
    inside: dict[int, list[Event]] = {n: [] for n in kept}
    for event, which in zip(aligned.events, whose, strict=True):
        seen = which if which is not None else place.of_host(event, event.evidence.source in hosts, ends)
        for n in kept[bisect.bisect_left(kept, seen.start) : bisect.bisect_left(kept, seen.stop)]:
            inside[n].append(event)
    return [
        Span(
            events=tuple(inside.get(n, ())),
            dumps=tuple(recorded[n]),
            stepped_ns=_first_step(own[n]),
            failed=failed[n],
            kept=n in inside,
            attempt=attempt,
            **(_begun(found[n - 1]) if n else {}),
        )
        for n, attempt in enumerate(_numbers(found))
    ]


def _begun(start: _Start) -> dict[str, Any]:
    said = start.event if start.event.kind == "restart" else None
    left, of = (number(said, "left"), number(said, "of")) if said is not None else (None, None)
    restarts = (left - 1, of) if left is not None and of is not None else None
    return {"began": start.event, "began_ns": start.at_ns, "restarts": restarts}


def _numbers(starts: Sequence[_Start]) -> Iterator[int]:
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
    for old, new, begun in _apart(events):
        if not any(s.at_ns is not None and old < s.at_ns <= new for s in found):
            found.append(_Start(begun, begun.time_ns, {}, run=True))
    if not any(s.run for s in found):
        found += _numbered(events, {s.attempt for s in found})
    times = [s.at_ns for s in found if s.at_ns is not None]
    if len(times) == len(found):
        found.sort(key=lambda s: s.at_ns or 0)
    elif all(s.attempt is not None for s in found):
        found.sort(key=lambda s: s.attempt or 0)
    for before, start in pairwise(found):  # a launcher that counts from 0 again was itself started anew
        if start.attempt == 1 and before.attempt is None:
            before.run = True
    return found


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


@dataclass(slots=True)
class _Climb:
    """The steps of one writer."""

    highest: int
    ahead: int = 1
    """Of the one before it. A writer whose lines are still to come may tell every step, and be so much further."""
    newest_ns: int | None = None
    """The latest time that one of them states."""

    def add(self, step: int, stated_ns: int | None) -> None:
        if step > self.highest:
            self.ahead, self.highest = step - self.highest, step
        if stated_ns is not None:
            self.newest_ns = max(stated_ns, self.newest_ns or stated_ns)


@dataclass(slots=True)
class _Back:
    """Steps of a writer that lie behind its highest, after the end of a process: of a new start, or lines come late."""

    first: Event
    climbed: _Climb
    """Before them."""
    step: int
    """The highest of those that rise."""
    since_ns: int | None = None
    """From when on they have risen, by the times they state."""

    def goes_on(self, step: int, stated_ns: int | None, slack: int) -> bool:
        """Do they pass the old ones, or rise for a while after them?"""
        old = self.climbed
        at = stated_ns if stated_ns is not None and stated_ns > (old.newest_ns or 0) else None
        rises = step > self.step
        if at is None or self.since_ns is None or step < self.step - slack:
            self.since_ns, self.step = at, step
        self.step = max(self.step, step)
        lasts = at is not None and self.since_ns is not None and at - self.since_ns >= SETTLED_S * SECOND
        return step > old.highest + old.ahead or (lasts and rises)


class _Since:
    """What has been seen since the last start."""

    def __init__(self) -> None:
        self.began: set[object] = set()
        """Who wrote lines of a start: a rank, or a launcher's file."""
        self.pids: set[tuple[object, int]] = set()
        self.steps: dict[tuple[str, int | None], _Climb] = {}
        """By (file, rank)."""
        self.back: dict[tuple[str, int | None], _Back] = {}
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
    """Starts that lines tell of: a launcher's word, a process that begins again, steps that begin again after an end.

    A launcher's word counts once for all the nodes that repeat it.
    """
    found: list[_Start] = []
    by_attempt: dict[int, _Start] = {}
    since = _Since()
    widest = max((n for e in events if e.kind == "nccl-init" and (n := number(e, "nranks"))), default=None)
    for event in events:
        source, line = event.evidence.source, event.evidence.line
        if event.kind == "restart":
            tried = (event.attempt or 0) + 1
            start = by_attempt.get(tried)
            if start is not None and source not in start.lines:  # another node's word on the same start
                if event.time_ns is not None and start is found[-1] and not since.worked:
                    start.at_ns = max(event.time_ns, start.at_ns or event.time_ns)
            else:
                if start is not None:
                    by_attempt.clear()  # it counts from the beginning again
                start = by_attempt[tried] = _Start(event, event.time_ns, {}, tried)
                found.append(start)
                since = _Since()
            if line is not None:
                start.lines[source] = line + 1
        elif event.kind in STARTS:
            if event.kind == "nccl-init" and number(event, "nranks") != widest:
                continue  # a group of its own: also made in the midst of work
            if found and not since.worked and event.time_ns is not None:
                found[-1].at_ns = max(event.time_ns, found[-1].at_ns or event.time_ns)
            elif _begins_again(event, since):
                found.append(_again(event, since.gave_up))
                since = _Since()
            since.began.add(_who(event))
            since.begun = event
            since.worked = True
            if event.pid is not None:
                since.pids.add((event.host, event.pid))
        elif (step := _step(event)) is not None:
            if (first := _steps_again(event, step, since)) is not None:
                found.append(_again(first, since.ended))
                since = _Since()
            stated = event.time_ns if event.time_basis == "stamp" else None
            since.steps.setdefault((source, event.rank), _Climb(step)).add(step, stated)
            since.worked = True
        elif (event.kind in GAVE_UP and event.role != "context") or event.kind == "slurm-cancel":
            since.gave_up = event
            since.ended = event if event.kind in ENDED else since.ended
        if since.back and fails(event):
            since.back.clear()
    return found


def _steps_again(event: Event, step: int, since: _Since) -> Event | None:
    """The first of the steps that began again after the end of processes, once it shows that they are of a new start.

    Standard output comes late where it is buffered, and bars lag: steps behind others are no start by themselves. A
    process that began since shows it, or what these steps do before the job fails again.
    """
    writer, slack = (event.evidence.source, event.rank), int(event.rank is None)  # without names, they write in turns
    climbed, ended = since.steps.get(writer), since.ended
    if climbed is None or ended is None or not _later(event, ended):
        return None
    stated = event.time_ns if event.time_basis == "stamp" else None
    if (back := since.back.get(writer)) is not None:
        return next(iter(since.back.values())).first if back.goes_on(step, stated, slack) else None
    if step < climbed.highest - slack:
        if since.begun is not None and _later(since.begun, ended):
            return event
        back = since.back[writer] = _Back(event, replace(climbed), step)
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
    by_clock: dict[str | None, list[int]] = defaultdict(list)
    for event in events:
        if event.kind in DETECTED and event.time_ns is not None and is_dated(event.time_ns):
            by_clock[event.clock].append(event.time_ns)
    gaps = {
        clock: [(old, new) for old, new in pairwise(sorted(times)) if new - old > APART_S * SECOND]
        for clock, times in by_clock.items()
    }
    clock = max((c for c in gaps if gaps[c]), key=lambda c: (gaps[c][-1][1], gaps[c][-1][0]), default=None)
    if not gaps.get(clock):
        return
    work = [e for e in events if e.time_ns is not None and (e.kind in STARTS or _step(e) is not None)]
    work.sort(key=lambda e: e.time_ns or 0)
    times = [e.time_ns or 0 for e in work]
    first: dict[int, Event] = {}
    waited: dict[int, int] = {}
    for event in events:
        if event.time_ns is not None and event.kind in DETECTED and event.clock == clock:
            first.setdefault(event.time_ns, event)
            waited[event.time_ns] = max(number(event, "waited_ms") or 0, waited.get(event.time_ns, 0))
    for old, new in gaps[clock]:
        at = bisect.bisect_right(times, old)
        begun = new - waited[new] * 1_000_000
        if at < len(work) and times[at] < new:
            yield old, new, work[at]
        elif new - old >= ALONE_S * SECOND and begun > old:
            yield old, new, replace(first[new], time_ns=begun)


class _Places:
    """Which span a line or a dump belongs to. Lines of a file are asked for in the order of the aligned events."""

    def __init__(self, starts: Sequence[_Start], aligned: Aligned, of_job: Collection[str]) -> None:
        self.last = len(starts)
        self.aligned = aligned
        self.timed = next((s.event for s in starts if s.at_ns is not None), None)
        self.times: list[int] = []
        for start in starts:  # a start without a time is as late as the one before it
            self.times.append(max(start.at_ns or 0, self.times[-1] if self.times else 0))
        self.dated = bool(self.times) and any(is_dated(t) for t in self.times)
        self.marks: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for n, start in enumerate(starts, 1):
            for source, line in start.lines.items():
                self.marks[source].append((line, n))
        for marks in self.marks.values():
            marks.sort()
        self.of_attempt: dict[int, int] = {}
        if not any(s.run for s in starts):
            for n, start in enumerate(starts, 1):
                if start.attempt is not None:
                    self.of_attempt.setdefault(start.attempt, n)
                    self.of_attempt.setdefault(start.attempt - 1, n - 1)
        self.before: dict[str, int] = {}
        """File → the span of the line before; at first that of its first line with a time."""
        for event in aligned.events:
            if event.time_ns is not None and event.evidence.source in of_job:
                self.before.setdefault(event.evidence.source, self._at(event.time_ns))

    def _at(self, time_ns: int) -> int:
        return bisect.bisect_right(self.times, time_ns)

    def of_job(self, event: Event) -> int:
        source, line = event.evidence.source, event.evidence.line
        low, high = 0, self.last
        marks = self.marks.get(source, [])
        if line is not None and marks:
            at = bisect.bisect_right(marks, (line, self.last))
            low = marks[at - 1][1] if at else 0
            high = marks[at][1] - 1 if at < len(marks) else self.last
        if event.attempt is not None and event.attempt in self.of_attempt:
            found = self.of_attempt[event.attempt]
        elif event.time_ns is not None:
            found = self._at(event.time_ns)
        else:
            found = self.before.get(source, self.last)
        found = min(max(found, low), high)
        self.before[source] = found
        return found

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
        if self.aligned.slack_ns(event, near) is None:
            return every  # its clock's zone is not known
        found = self._at(event.time_ns)
        if event.cause in STAYS:
            return range(found, self.last + 1)
        end = ends[found]
        down = event.role == "cause" and end is not None and event.time_ns > end
        return range(found, min(found + 1 + down, self.last + 1))

    def of_dump(self, dump: Dump) -> int:
        newest = dump.newest_ns
        return self._at(newest) if newest and self.dated else self.last


def places(own: Sequence[Identities], whole: Identities) -> list[Identities]:
    """The table of each span, with what only the whole pile tells of ranks that stayed where they were.

    Launchers may give a rank to another node at each start; process numbers are new at each.
    """
    at: dict[int, list[str]] = defaultdict(list)
    for known in own:
        for rank, place in known.ranks.items():
            if place.host:
                at[rank].append(place.host)
    stayed = {r for r in whole.ranks if all(same_host(a, b) for a, b in pairwise(at[r]))}
    made = []
    for known in own:
        ranks = dict(known.ranks)
        for rank in sorted(stayed):
            mine, other = ranks.get(rank, Place()), whole.ranks[rank]
            host = mine.host or other.host
            if same_host(host, other.host):
                local = mine.local_rank if mine.local_rank is not None else other.local_rank
                ranks[rank] = Place(host, local, mine.pid, mine.gpu or other.gpu)
        size = known.world_size or whole.world_size
        made.append(replace(known, ranks=ranks, world_size=size, gpus=whole.gpus))
    return made


def left_out(spans: Sequence[Span]) -> list[Problem]:
    """A word on the starts that make no incident, but for one behind an incident, which `together` tells of."""
    said = []
    old = [s for s in spans if s.failed and not s.kept]
    if old:
        says = say_many(
            "{n} earlier failure of the job was left out: the analysis is about the newest {most}. `--until` takes you "
            "back to it.",
            "{n} earlier failures of the job were left out: the analysis is about the newest {most}. `--until` takes "
            "you back to them.",
            len(old),
            n=len(old),
            most=MOST_SPANS,
        )
        said.append(Problem(says=says))
    ran_on = spans[-1] if any(s.failed for s in spans) else None
    for span in [s for s in spans if not s.failed and s.began is not None and s is not ran_on][-MOST_SPANS:]:
        when = say(", at {time},", time=moment(span.began_ns)) if span.began_ns is not None else ""
        says = say("A start of the job{when} shows no failure: it is no incident.", when=when)
        said.append(Problem(says=says, source=span.began.evidence.source if span.began else None))
    return said


def cost(incident: Incident, span: Span, after: Span | None) -> Incident:
    """The incident with what a new start costs: the time until the job made a step again, and the work since the last.

    `after`: the span behind it. An attempt that saved no checkpoint of its own lost all that it did, and waits for what
    broke before it began from its own beginning.
    """
    known: dict[str, float | None] = dict.fromkeys(("lost_work_s", "detection_s", "restart_s", "gpu_hours"))
    known |= incident.cost or {}
    onset, detected = incident.onset_ns, incident.detected_ns
    if after is not None and after.attempt != 0 and after.began is not None:
        ended = incident.ended_ns if incident.ended_ns is not None else detected
        ended = after.began.time_ns if after.began.kind == "restart" else ended
        known["restart_s"] = _between(ended, after.stepped_ns)
    if known["lost_work_s"] is None and span.attempt:
        known["lost_work_s"] = _between(span.stepped_ns, onset if onset is not None else detected)
    if (waited := known["detection_s"]) and (own := _between(span.began_ns, detected)) is not None and own < waited:
        hours = known["gpu_hours"]
        known |= {"detection_s": own, "gpu_hours": None if hours is None else round(hours * own / waited, 2)}
    return replace(incident, cost=known) if any(v is not None for v in known.values()) else incident


def _first_step(events: Iterable[Event]) -> int | None:
    return min((e.time_ns for e in events if e.time_ns is not None and _step(e) is not None), default=None)


def _between(old: int | None, new: int | None) -> float | None:
    """Seconds, where both are known and in order."""
    if old is None or new is None or new < old or is_dated(old) != is_dated(new):
        return None
    return (new - old) / SECOND


def together(incidents: Sequence[Incident], spans: Sequence[Span], end: Span) -> list[Incident]:
    """The incidents, the last one with a word on the others and on what came after it.

    Was it one cause each time, is no start left, did the job run on? `incidents` and `spans` belong together, one by
    one; `end` is the last span, failed or not.
    """
    made = list(incidents)
    if not made:
        return made
    first = len(made) - 1
    while first and spans[first].attempt != 0:
        first -= 1
    mine, last = made[first:], spans[-1]
    alike = {_named(i) for i in mine}
    one = len(alike) == 1 and None not in alike
    says: list[str] = []
    if last.restarts is not None and last.restarts[0] == 0:
        of = last.restarts[1]
        says.append(say_many("The one restart was used up.", "All {n} restarts were used up.", of, n=of))
    if len(mine) > 1 and one:
        says.append(
            say(
                "The job failed {n} times, each time for the same cause: what broke it stays until it is mended.",
                n=len(mine),
            )
        )
    elif len(mine) > 1 and alike == {None}:
        says.append(say("The job failed {n} times; the logs do not tell why.", n=len(mine)))
    elif len(mine) > 1:
        says.append(say("The job failed {n} times, and not each time for the same cause.", n=len(mine)))
    if not end.failed:
        when = say(", at {time},", time=moment(end.began_ns)) if end.began_ns is not None else ""
        says.append(say("Its last start{when} shows no failure.", when=when))
    if says:
        row: dict[str, Any] = {"cause": mine[-1].verdict.cause if one else "undetermined", "kind": "restarts"}
        shown = last.began if end.failed else end.began
        place = shown.evidence if shown is not None else None
        row |= {"says": joined(says, " "), "source": place and place.source, "line": place and place.line}
        made[-1] = replace(made[-1], contributing=(*made[-1].contributing, row))
    return made


def _named(incident: Incident) -> object | None:
    """What a verdict blames: the cause, and the cards, else the ranks and hosts; None if it names nothing."""
    verdict = incident.verdict
    if verdict.cause == "undetermined":
        return None
    cards = tuple(sorted(f"{g.host} {g.pci}" for g in verdict.gpus if g.pci))
    raised = [e for f in verdict.evidence for e in f.events if e.kind == "python-exception"]
    words = _words(raised[0]) if raised and verdict.cause == "python_exception" else ""
    return verdict.cause, cards or (verdict.ranks, () if words else verdict.hosts), words


def _words(event: Event) -> str:
    """What an exception says, without figures, which differ from one time to the next."""
    return re.sub(r"[\d.]+", "", f"{text(event, 'type')} {text(event, 'message')}")


def with_attempts(events: Sequence[Event]) -> list[Event]:
    """The events with `attempt` filled in from torchrun's restarts in the same file, in the order of its lines.

    A file that tells of no restart is left alone. `restart` closes an attempt, `rendezvous` says which one begins.
    """
    marks: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        line = event.evidence.line
        if event.attempt is None or line is None:
            continue
        if event.kind == "rendezvous":
            marks[event.evidence.source].append((line, event.attempt))
        elif event.kind == "restart":
            marks[event.evidence.source].append((line + 1, event.attempt + 1))
    for rows in marks.values():
        rows.sort()
    out = []
    for event in events:
        rows = marks.get(event.evidence.source, [])
        line = event.evidence.line
        if event.attempt is None and rows and line is not None:
            begun = [attempt for start, attempt in rows if start <= line]
            event = replace(event, attempt=begun[-1] if begun else max(rows[0][1] - 1, 0))
        out.append(event)
    return out
