"""Clocks that were set while they wrote, as logs show it: the time service's own lines, and uptimes beside wall times.

Until it was set the clock was off by as much, and nothing tells since when: what it wrote before is moved, and its
error bar reaches back to what it read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.model import ClockRow, Event
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, moment
from nccl_forensics.when.boots import INGESTED_NS
from nccl_forensics.when.drift import grown
from nccl_forensics.when.jumps import Step, Told, same_step

TIME_SET = kinds_marked("time-set")
SETS_NS = 5 * SECOND
"""How far wall time and uptime must jump apart between two lines: syslog's lines come seconds late. Our judgement."""
FURTHEST_S = 14 * 3600
"""From UTC that any zone in use lies."""
ALIKE_NS = 2 * SECOND
"""How far two lines on one side of such a jump may disagree. Our judgement."""


@dataclass(frozen=True, slots=True)
class Shown:
    """That a clock was set; places are those of events in the sequence that it was found in."""

    clock: str
    """Whose."""
    last: int | None
    """The last line before, where that is known."""
    first: int
    """The line that tells it, just after; else the first one after."""
    by_ns: int
    """How far it jumped."""

    def told(self, events: Sequence[Event]) -> Told:
        """As readings of the clock."""
        after_ns = _time_ns(events[self.first])
        before_ns = after_ns - self.by_ns - SECOND if self.last is None else _time_ns(events[self.last])
        return Told(clock=self.clock, before_ns=before_ns, after_ns=after_ns, by_ns=self.by_ns, bar_ns=2 * SECOND)

    def step(self, events: Sequence[Event]) -> Step:
        """Between the times of these events."""
        before_ns = _time_ns(events[self.first])
        after_ns = before_ns - abs(self.by_ns)
        if self.last is not None:
            after_ns = min(after_ns, _time_ns(events[self.last]))
        return Step(clock=self.clock, after_ns=after_ns, before_ns=before_ns, by_ns=self.by_ns)


def of_any_zone(step: Step, event: Event) -> Step | None:
    """The same for the host's clock, where the line that tells it is on one whose zone is not known."""
    if event.host is None or step.clock == short(event.host):
        return None
    far = FURTHEST_S * SECOND
    return replace(
        step,
        clock=short(event.host),
        after_ns=step.after_ns - far,
        before_ns=step.before_ns + far,
        moment_known=False,
    )


def _time_ns(event: Event) -> int:
    assert event.time_ns is not None
    return event.time_ns


def shown(events: Sequence[Event], whose: Callable[[Event], str]) -> list[Shown]:
    """Each step once, in the order of the events that tell it."""
    found: dict[tuple[str, int], Shown] = {}
    for place, event in enumerate(events):
        if event.kind in TIME_SET and event.time_ns is not None and (by_ns := _set_by_ns(event)):
            owner = whose(event)
            found.setdefault((owner, by_ns), Shown(owner, None, place, by_ns))
    lines = list(found.values())
    for jump in _by_uptime(events, whose):
        step = jump.step(events)
        if not any(same_step(line.step(events), step) for line in lines):
            lines.append(jump)
    return lines


def _set_by_ns(event: Event) -> int:
    """By how much a clock was set; 0 where the line tells none that can be read."""
    by = next((v for k in ("step", "step2") if (v := event.details.get(k)) is not None), None)
    try:
        return round(float(by) * SECOND) if isinstance(by, (str, int, float)) else 0
    except ValueError:
        return 0


def _by_uptime(events: Sequence[Event], whose: Callable[[Event], str]) -> Iterator[Shown]:
    """Where wall time and uptime jump apart from one line of a boot to the next, and stay apart.

    Not where the machine slept, for printk's clock stands still then, nor where local time may have changed to summer
    time or back.
    """
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    slept: set[tuple[str, int]] = set()
    for place, event in enumerate(events):
        stamp = event.stamp
        if stamp is None or event.boot is None or event.time_ns is None:
            continue
        if event.kind == "suspend":
            slept.add((event.evidence.source, event.boot))
        if stamp.wall_ns is not None and stamp.boot_ns is not None and stamp.boot_ns > INGESTED_NS and not stamp.drifts:
            groups[event.evidence.source, event.boot].append(place)
    for key, places in groups.items():
        if key in slept:
            continue
        places.sort(key=lambda n: (_uptime_ns(events[n]), n))
        offsets = [_time_ns(events[n]) - _uptime_ns(events[n]) for n in places]
        for at, by_ns in _jumps(offsets, [_uptime_ns(events[n]) for n in places]):
            last, first = places[at], places[at + 1]
            stamp = events[first].stamp
            zoned = stamp is not None and stamp.zone_s is not None
            if zoned or by_ns % (1800 * SECOND) not in range(2 * ALIKE_NS):
                yield Shown(whose(events[first]), last, first, by_ns)


def _jumps(offsets: Sequence[int], uptimes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(Place before, by how much) of the jumps with two lines that agree on each side."""
    for at in range(1, len(offsets) - 2):
        by_ns = offsets[at + 1] - offsets[at]
        sure = abs(by_ns) > SETS_NS + grown(uptimes[at + 1] - uptimes[at])
        if sure and _agree(offsets, uptimes, at - 1) and _agree(offsets, uptimes, at + 1):
            yield at, by_ns


def _agree(offsets: Sequence[int], uptimes: Sequence[int], at: int) -> bool:
    apart, elapsed = abs(offsets[at + 1] - offsets[at]), uptimes[at + 1] - uptimes[at]
    return apart <= ALIKE_NS + grown(elapsed)


def _uptime_ns(event: Event) -> int:
    assert event.stamp is not None
    assert event.stamp.boot_ns is not None
    return event.stamp.boot_ns


class Unwatched:
    """Steps that no meeting shows from both sides: what was written before them was written on a clock that was off."""

    def __init__(self, events: Sequence[Event], steps: Iterable[Shown], whose: Callable[[Event], str]) -> None:
        self._whose = whose
        self._of: dict[str, list[tuple[Shown, Told, Event]]] = defaultdict(list)
        """Whose → (step, its readings, the line that tells it), the last step first."""
        for step in steps:
            self._of[step.clock].append((step, step.told(events), events[step.first]))
        for own in self._of.values():
            own.sort(key=lambda one: -one[1].after_ns)

    def moved(self, event: Event, read_ns: int) -> Event:
        """The event, which its clock dates `read_ns`, as that clock would have read since it was set the last time."""
        if event.time_ns is None or event.clock is None or (event.stamp is not None and event.stamp.drifts):
            return event
        time_ns, bar_ns = event.time_ns, event.uncertainty_ns or 0
        for step, told, line in self._of.get(self._whose(event), ()):
            before = _is_before(event, read_ns, told, line)
            if before is not False:
                time_ns += step.by_ns if before else 0
                bar_ns += abs(step.by_ns)
        if bar_ns == (event.uncertainty_ns or 0):
            return event
        return replace(event, time_ns=time_ns, uncertainty_ns=bar_ns)

    def rows(self, clocks: Mapping[str, ClockRow], owners: Mapping[str, str]) -> Iterator[ClockRow]:
        """For each of these clocks a row of what it was off before each step. `owners`: clock → whose it is."""
        for name, row in clocks.items():
            by_ns = bar_ns = 0
            for step, told, _ in self._of.get(owners.get(name, ""), ()) if row.basis != "boot-time" else ():
                by_ns, bar_ns = by_ns + step.by_ns, bar_ns + abs(step.by_ns)
                way = "forward" if step.by_ns > 0 else "back"
                when = moment(told.after_ns)
                yield replace(
                    row,
                    clock=f"{name}, before {when}",
                    offset_s=None if row.offset_s is None else row.offset_s + by_ns / SECOND,
                    uncertainty_s=None if row.uncertainty_s is None else row.uncertainty_s + bar_ns / SECOND,
                    note=f"it was set {way} by {abs(step.by_ns) / SECOND:.1f} s then; off since when is not told",
                )


def _is_before(event: Event, read_ns: int, told: Told, line: Event) -> bool | None:
    """Was it written before the clock was set? None: the clock read this twice, or it was set between two lines."""
    here, there = event.evidence, line.evidence
    old_ns = told.after_ns - told.by_ns
    low, high = min(told.before_ns, old_ns, told.after_ns), max(told.after_ns, old_ns)
    if here.source == there.source and here.line is not None and there.line is not None:
        if here.line >= there.line:
            return False
        if old_ns - told.before_ns <= 2 * SECOND or read_ns <= told.before_ns:
            return True  # the line stands just behind the step, or this one before the last line before it
    if read_ns < low:
        return True
    return False if read_ns >= high else None
