"""The application's pulse: its steps, their time and memory, its loss and its checkpoints, up to the failure.

None of it is a cause by itself. It tells causes of one kind apart (a leak from one long batch), says what went wrong
before anybody noticed, and how much work was lost. Lines of progress are kept at both ends of a file only
(pipeline.PULSE_FIRST, PULSE_LAST), so nothing here counts on a line for each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from nccl_forensics.model import Event, number, text
from nccl_forensics.text import moments, phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case

RISES = 8
"""Readings in a row, none below the one before, that make a rise. Our judgement."""
RISEN = 1.1
"""By which factor they must have grown in all. Our judgement."""
SETTLES = 0.25
"""Share of a rise that must lie in its second half: memory that warms up and settles is no leak. Our judgement."""
WOBBLE = 0.995
"""A reading this much below the one before is still no fall (rounding). Our judgement."""
SLOW = 3.0
"""Times the median step; the factor from which others call a rank a straggler, too. Our judgement."""
LAST_STEPS = 5
"""Steps at the end that are held against all before. Our judgement."""
FLAT_STEPS = 100
"""Steps over which a loss should fall, on average. Our judgement."""
LONGER = 1.5
"""A batch with so many times the usual tokens is a long one. Our judgement."""


def measured(event: Event, key: str) -> float | None:
    """A number that the line states, or None."""
    value = event.details.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def series(case: Case, key: str) -> dict[int | str, list[Event]]:
    """Lines of progress that state `key`, before the job gave up, by rank; by file where no rank is known."""
    found: dict[int | str, list[Event]] = defaultdict(list)
    seen = case.detected
    for event in case.of("progress"):
        if measured(event, key) is None:
            continue
        if seen is not None and event.time_ns is not None and seen.time_ns is not None and event.time_ns > seen.time_ns:
            continue
        found[event.rank if event.rank is not None else event.evidence.source].append(event)
    for events in found.values():
        events.sort(key=lambda e: (e.evidence.source, e.evidence.line or 0))
    return found


def rise(events: Sequence[Event], key: str) -> tuple[Event, Event] | None:
    """(first, last) of the readings at the end that only rise, if they go on rising; None if they settle or fall."""
    values = [measured(e, key) or 0.0 for e in events]
    begin = len(values) - 1
    while begin > 0 and values[begin - 1] * WOBBLE <= values[begin]:
        begin -= 1
    ridge = values[begin:]
    if len(ridge) < RISES or ridge[0] <= 0 or ridge[-1] < ridge[0] * RISEN:
        return None
    late = ridge[-1] - ridge[len(ridge) // 2]
    return (events[begin], events[-1]) if late >= SETTLES * (ridge[-1] - ridge[0]) else None


def memory_rise(case: Case, key: str, rank: int | None) -> tuple[Event, Event] | None:
    """The rise of `key` on this rank; where it writes none, of any other: all run the same program."""
    found = series(case, key)
    if rank is not None and rank in found:
        return rise(found[rank], key)
    return next((r for events in found.values() if (r := rise(events, key))), None)


def long_batch(case: Case, rank: int | None) -> tuple[Event, float] | None:
    """(the line of the last batch, the usual number of tokens) if that batch was much longer than usual."""
    for who, events in series(case, "sequence").items():
        if rank is not None and who != rank:
            continue
        values = [measured(e, "sequence") or 0.0 for e in events]
        if len(values) > LAST_STEPS and values[-1] >= LONGER * median(values[:-1]):
            return events[-1], median(values[:-1])
    return None


def gib(value: float) -> str:
    """'40.0 GiB'."""
    return f"{value / 2**30:.1f} GiB"


def risen(first: Event, last: Event, key: str) -> str:
    """'from 40.0 GiB to 71.0 GiB between steps 100 and 400'."""
    said = say("from {first} to {last}", first=gib(measured(first, key) or 0), last=gib(measured(last, key) or 0))
    begun, ended = number(first, "step"), number(last, "step")
    return (
        say("{said} between steps {begun} and {ended}", said=said, begun=begun, ended=ended)
        if begun is not None and ended is not None
        else said
    )


def step_times(events: Sequence[Event]) -> list[tuple[Event, float]]:
    """(line, ms for each step): as the line says, else from the time and the step number of the line before."""
    found: list[tuple[Event, float]] = []
    before: Event | None = None
    for event in events:
        said = measured(event, "step_ms")
        if said is not None:
            found.append((event, said))
        elif event.time_ns is not None and number(event, "step") is not None:
            each = _ms_each(before, event) if before is not None else None
            if each is not None:
                found.append((event, each))
            before = event
    return found


def _ms_each(before: Event, event: Event) -> float | None:
    """ms for each step between two lines of one file, which both have a time."""
    if event.time_ns is None or before.time_ns is None or before.evidence.source != event.evidence.source:
        return None
    steps = (number(event, "step") or 0) - (number(before, "step") or 0)
    forward = steps > 0 and event.time_ns > before.time_ns
    return (event.time_ns - before.time_ns) / 1e6 / steps if forward else None


def slow_down(times: Sequence[tuple[Event, float]]) -> tuple[Event, float, float] | None:
    """(first slow line, its ms, the usual ms) if the last steps took `SLOW` times the median of those before."""
    if len(times) < 3 * LAST_STEPS:
        return None
    usual = median(ms for _, ms in times[:-LAST_STEPS])
    slow = [(e, ms) for e, ms in times[-LAST_STEPS:] if ms >= SLOW * usual]
    if usual <= 0 or len(slow) < 2 or times[-1][1] < SLOW * usual:
        return None
    return (*slow[0], usual)


def flat_loss(events: Sequence[Event]) -> tuple[Event, float, float] | None:
    """(line, mean loss of the last FLAT_STEPS steps, of those before) if the loss did not fall over them."""
    stepped = [(step, event) for event in events if (step := number(event, "step")) is not None]
    if not stepped:
        return None
    end = stepped[-1][0]
    late = [event for step, event in stepped if step > end - FLAT_STEPS]
    early = [event for step, event in stepped if end - 2 * FLAT_STEPS < step <= end - FLAT_STEPS]
    if len(late) < RISES or len(early) < RISES:
        return None
    new, old = _mean_loss(late), _mean_loss(early)
    return (late[0], new, old) if new >= old else None


def _mean_loss(events: Sequence[Event]) -> float:
    return fmean(measured(event, "loss") or 0.0 for event in events)


def lost_work_s(case: Case) -> float | None:
    """Seconds from the last checkpoint that was complete to the onset; None where the logs do not tell."""
    onset = case.onset_ns
    if onset is None and case.detected is not None:
        onset = case.detected.time_ns
    if onset is None:
        return None
    saved = [e.time_ns for e in case.of("checkpoint") if text(e, "what") == "done" and e.time_ns is not None]
    before = [time for time in saved if time <= onset and moments.is_dated(time) == moments.is_dated(onset)]
    return (onset - max(before)) / SECOND if before else None


def _row(cause: str, says: str, event: Event) -> dict[str, object]:
    return {
        "cause": cause,
        "kind": "pulse",
        "says": says,
        "source": event.evidence.source,
        "line": event.evidence.line,
    }


def contributing(case: Case) -> Iterator[dict[str, object]]:
    """What the pulse showed before the failure: each thing once, from the first rank or file that shows it."""
    if found := _first_rise(case, "host_rss_bytes"):
        who, first, last = found
        how = risen(first, last, "host_rss_bytes")
        says = say("Host memory of {name} only rose, {how}: a leak on the CPU side.", name=_name(who), how=how)
        yield _row("host_oom_kill", says, last)
    if not case.of("cuda-oom") and (found := _first_rise(case, "gpu_used_bytes")):
        who, first, last = found
        how = risen(first, last, "gpu_used_bytes")
        says = say("GPU memory of {name} only rose, {how}: a leak.", name=_name(who), how=how)
        yield _row("cuda_oom", says, last)
    yield from _slow_steps(case)
    yield from _loss(case)


def _first_rise(case: Case, key: str) -> tuple[int | str, Event, Event] | None:
    """(rank or file, first and last line) of the first series of `key` that only rises."""
    for who, events in series(case, key).items():
        if found := rise(events, key):
            return who, *found
    return None


def _slow_steps(case: Case) -> Iterator[dict[str, object]]:
    for who, events in (series(case, "step") or series(case, "step_ms")).items():
        if slow := slow_down(step_times(events)):
            event, ms, usual = slow
            says = say(
                "Steps of {name} became slow before the end: {time} instead of {usual}.",
                name=_name(who),
                time=phrases.duration(ms / 1000),
                usual=phrases.duration(usual / 1000),
            )
            yield _row("rank_slow", says, event)
            break


def _loss(case: Case) -> Iterator[dict[str, object]]:
    broken = next((e for e in case.of("progress") if text(e, "loss_says")), None)
    if broken is not None:
        step = number(broken, "step")
        at = say(" at step {step}", step=step) if step is not None else ""
        says = say(
            "The loss was {loss_says}{at}: what was trained from there on is lost.",
            loss_says=text(broken, "loss_says"),
            at=at,
        )
        yield _row("undetermined", says, broken)
        return
    for who, events in series(case, "loss").items():
        if flat := flat_loss(events):
            event, new, old = flat
            says = say(
                "The loss of {name} did not fall over the last {flat_steps} steps (mean {new}, before {old}).",
                name=_name(who),
                flat_steps=FLAT_STEPS,
                new=f"{new:.4g}",
                old=f"{old:.4g}",
            )
            yield _row("undetermined", says, event)
            break


def _name(who: int | str) -> str:
    return say("rank {numbers}", numbers=who) if isinstance(who, int) else say("the job")
