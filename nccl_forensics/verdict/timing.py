"""When something came relative to the job's failure, over all zones that the clocks may be in.

Where both clocks are proved there is one answer. Where one is not, each zone that is likely gives an answer, and they
are mixed by how likely each is: a fault that came hours before the wait in the likely zones, and together with it in
one that nobody would expect, counts for little; one that falls together with it in the likely zone counts for much,
since that is no chance.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_forensics.catalog import causes_marked, kinds_marked, weight
from nccl_forensics.lines.stamps import in_year_near
from nccl_forensics.model import Event, number
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.when.belief import SURE
from nccl_forensics.when.years import apart_in_any_year
from nccl_forensics.when.zones import SKEW_S

Timing = tuple[float, str | None]
"""(log-odds, words) for when an event came relative to the job's failure."""
IN_TIME: Timing = (0.0, None)
"""Nothing in its time speaks against it."""

STEP_S = 90
"""A step of the whole job that ends later than this after a fault was made without what the fault took. Our judgement:
the steps of large models take up to a minute."""
WAITED_S = 60
"""So long after the first waiter began, a fault of hardware is rather a consequence, or found late. Our judgement."""
LONG_BEFORE_S = 3600
"""A fault that kills a rank shows in the next collective, so within one step; an hour is generous. Our judgement."""
CLOSE_S = 120
"""A fault and a wait that begin within this fall together. Our judgement."""
DAY_S = 86_400
FAR_S = 2 * DAY_S + 7200
"""A day, and as much as two zones can be apart (UTC-12 and UTC+14)."""
NO_CHANCE = {True: 0.5, False: 0.2}
"""How likely a fault is to be why a job of its host stopped that day: a grave one, and another. Our judgement."""
TELLS = {True: 3.5, False: 1.0}
"""Log-odds by which falling together may make good for an unlikely zone: of a grave fault, and of another. Our
judgement."""
TAKES_THE_GPU = causes_marked("takes-the-gpu")
SHOWN_LATE = kinds_marked("slow-to-show") | kinds_marked("as-looked-at")
"""Kinds that are written later than what they tell of began."""


def margin_ns(a: Event, b: Event, slack: int) -> int:
    """How far their times must be apart for their order to be weighed; `slack`: for it to be claimed."""
    return min(slack, (a.uncertainty_ns or 0) + (b.uncertainty_ns or 0) + SKEW_S * SECOND)


@dataclass(frozen=True, slots=True)
class _Answer:
    """When an event came, if its clock is in one zone."""

    chance: float
    timing: Timing
    close: bool
    """It falls together with the beginning of the wait."""

    @property
    def in_time(self) -> bool:
        return self.timing == IN_TIME


@dataclass(frozen=True, slots=True)
class Failure:
    """When the job failed, as the clock of its logs or of its dumps tells it."""

    seen: Event
    """The first line by which the job noticed, or what stands for the dumps."""
    seen_ns: int
    onset_ns: int
    """When the first waiter began to wait."""


@dataclass(frozen=True, slots=True)
class Timings:
    """When the job failed, and what came when beside that. Times are on the reference clock."""

    aligned: Aligned
    failures: Sequence[Failure]
    """The same failure on each clock that tells it and that nothing ties to another; empty where none does."""
    steps: Sequence[int]
    """When the job ended training steps before that, sorted."""
    starts: Sequence[int]
    """When it was started anew, sorted."""
    of_hosts: frozenset[str]
    """Files that a host wrote, as against a job."""
    span_ns: tuple[int, int] | None = None
    """When the job's first and last line with a date were written."""

    def of(self, event: Event) -> Timing:
        """(log-odds, words)."""
        failure = self._failure_for(event)
        if event.time_ns is not None and self._is_of_other_days(event.time_ns):
            return weight("days_apart"), say("it came more than a day away from the job's failure")
        if failure is None or event.time_ns is None:
            return _unknown(event, say("its time against the job's cannot be shown"))
        if is_dated(event.time_ns) != is_dated(failure.seen_ns):
            if apart_in_any_year(event.time_ns, failure.seen_ns) > 2 * DAY_S * SECOND:
                return weight("days_apart"), say("it came more than a day away from the job's failure")
            return _unknown(event, say("the year of one of them is not known, so the order cannot be shown"))
        answers = list(self._answers(event, failure))
        if len(answers) == 1:
            return answers[0].timing
        declared = any(map(self.aligned.beliefs.is_declared, (event.clock, failure.seen.clock)))
        return _mixed(event, answers, grave=self._is_grave(event), said_by_user=declared)

    def _is_of_other_days(self, time_ns: int) -> bool:
        """Did it come a day and all zones before the job's first line, or after its last one: in any year, where
        nothing tells its own?"""
        if self.span_ns is None:
            return False
        first, last = self.span_ns
        moments = (time_ns,) if is_dated(time_ns) else (in_year_near(time_ns, first), in_year_near(time_ns, last))
        return not any(first - FAR_S * SECOND <= moment <= last + FAR_S * SECOND for moment in moments)

    def is_shown(self, event: Event) -> bool:
        """Do the clocks show that it came in time, or otherwise? What has no time at all claims no order, and the job's
        own lines need none."""
        if event.evidence.source not in self.of_hosts or (event.stamp is None and event.time_ns is None):
            return True
        failure = self._failure_for(event)
        if failure is None or event.time_ns is None or is_dated(event.time_ns) != is_dated(failure.seen_ns):
            return False
        answers = list(self._answers(event, failure))
        return len(answers) == 1 or _in_time(answers, grave=self._is_grave(event)) >= SURE

    def _failure_for(self, event: Event) -> Failure | None:
        """On the clock that is tied to the event's, if there is one."""
        return min(self.failures, key=lambda f: len(self.aligned.apart(event, f.seen)), default=None)

    def _is_grave(self, event: Event) -> bool:
        """Does it hardly happen without a job that stops: a card lost, a process killed, an error of the job's own?"""
        of_job = event.evidence.source not in self.of_hosts
        return of_job or event.cause in TAKES_THE_GPU or event.severity == "critical"

    def _answers(self, event: Event, failure: Failure) -> Iterator[_Answer]:
        assert event.time_ns is not None
        for apart_ns, chance in self.aligned.apart(event, failure.seen).items():
            time_ns = event.time_ns - apart_ns - (number(event, "waited_s") or 0) * SECOND
            timing = self._in_order(event, time_ns, failure, self.aligned.slack_ns(event, failure.seen, apart_ns))
            yield _Answer(chance, timing, abs(time_ns - failure.onset_ns) <= CLOSE_S * SECOND)

    def _in_order(self, event: Event, time_ns: int, failure: Failure, slack: int) -> Timing:
        """For an event whose time can be compared with when the job noticed."""
        onset = failure.onset_ns
        margin = margin_ns(event, failure.seen, slack)
        if not onset - DAY_S * SECOND - margin <= time_ns <= failure.seen_ns + DAY_S * SECOND + margin:
            return weight("days_apart"), say("it came more than a day away from the job's failure")
        if time_ns - failure.seen_ns > max(margin + 2 * SECOND, slack):
            return weight("too_late"), say("it came after the job had given up")
        if time_ns < onset - LONG_BEFORE_S * SECOND - margin:
            return weight("long_before"), say("it came long before, and the job went on")
        if (step_ns := self._steps_after(time_ns + margin + STEP_S * SECOND)) is not None:
            gone = phrases.duration((step_ns - time_ns) / SECOND)
            return weight("long_before"), say("the job still made progress {gone} after it", gone=gone)
        late = time_ns - onset - margin > WAITED_S * SECOND
        if late and event.evidence.source in self.of_hosts and event.kind not in SHOWN_LATE:
            waited = phrases.duration((time_ns - onset) / SECOND)
            return weight("while_waiting"), say("the others had already been waiting for {time}", time=waited)
        return IN_TIME

    def _steps_after(self, time_ns: int) -> int | None:
        """The last step that ended later than that, if the job wasn't started anew in between."""
        if not self.steps or self.steps[-1] <= time_ns:
            return None
        last = self.steps[-1]
        at = bisect.bisect_right(self.starts, time_ns)
        again = at < len(self.starts) and self.starts[at] < last
        return None if again else last


def _in_time(answers: Sequence[_Answer], *, grave: bool) -> float:
    """How likely it is that an event came in time, given that it falls together with the wait where it does."""
    no_chance = NO_CHANCE[grave] * DAY_S / (2 * CLOSE_S)
    for_it = sum(a.chance * (1 + no_chance * a.close) for a in answers if a.in_time)
    against = sum(a.chance for a in answers if not a.in_time)
    return for_it / (for_it + against)


def _mixed(event: Event, answers: Sequence[_Answer], *, grave: bool, said_by_user: bool) -> Timing:
    """One timing of all, where no line proves the zone. `said_by_user`: by --timezone, which is the likeliest then."""
    in_time = _in_time(answers, grave=grave)
    (_, why), chance = _likeliest(answers)
    if said_by_user and why is not None and in_time >= 0.5:
        return 0.0, say("it fits in another zone than that given with --timezone, in which {why}", why=why)
    if in_time >= SURE:
        return IN_TIME
    bonus = math.exp(TELLS[grave])
    whole = sum(a.chance * math.exp(a.timing[0]) * (bonus if a.in_time and a.close else 1.0) for a in answers)
    shift = min(0.0, math.log(whole))
    if in_time >= 0.5:
        return _unknown(event, say("its clock's zone is not known, so the order cannot be shown"), shift)
    if why is None:
        return _unknown(event, say("its clock's zone is not known, so the order cannot be shown"), shift)
    return shift, why if chance >= SURE else say("{why}, unless its clock is in another zone than it seems", why=why)


def _likeliest(answers: Sequence[_Answer]) -> tuple[Timing, float]:
    """The timing of most zones by their chances, and those added up."""
    chances: dict[Timing, float] = {}
    for answer in answers:
        chances[answer.timing] = chances.get(answer.timing, 0.0) + answer.chance
    return max(chances.items(), key=lambda x: x[1])


def _unknown(event: Event, why: str, shift: float | None = None) -> Timing:
    """For an event whose order cannot be shown."""
    if event.boot is not None and event.boot < 0:
        return weight("earlier_boot"), say("it is from an earlier boot, and {why}", why=why)
    return weight("order_unknown") if shift is None else shift, why
