"""Hosts as their kernels and reports see them: out of memory, panics, stalls, storage, links, power, broken memory."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from nccl_forensics.catalog import kernel_entries, kinds_marked, weight
from nccl_forensics.fields import TextField
from nccl_forensics.model import Event, Finding, Gpu, text
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case, at
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.gpu import bursts
from nccl_forensics.verdict.rules.host_processes import (
    is_strangers,
    killed_no_rank,
    pids_known,
    ranks_named,
    seen_killed,
    without_strangers,
)
from nccl_forensics.verdict.timing import margin_ns

WITH_ITS_CARD = kinds_marked("with-its-card")
"""Signatures that rules/gpu.py weighs together with the Xids of their card, or only tells beside them."""
SIGNATURES = {entry.id: entry for entry in kernel_entries()}
GONE_WORDS = {
    "proc-vbios-unknown": say("the driver has no VBIOS version of it"),
    "smi-lost": say("nvidia-smi cannot open it"),
    "lspci-gone": say("lspci reads nothing but ff"),
}
GONE = frozenset(GONE_WORDS)
"""Signs in a report that a card does not answer any more."""
AFTERWARDS = (weight("too_late"), weight("while_waiting"))
"""What `Case.timing` says of a report that was written after the failure, as reports are."""
ASIDE = kinds_marked("aside")
"""States in a report that are worth a look and stop no job."""


@rule
def kernel_states_it(case: Case) -> Iterator[Finding]:
    """Kernel lines with role cause or symptom, by cause and host: the first one tells, the rest is counted."""
    for (cause, host), lines in _by_cause_and_host(case).items():
        if cause == "host_oom_kill" and (case.job or case.has_job_log):
            lines = without_strangers(case, lines)
            if not any(e.role == "cause" for e in lines):
                continue
        story = _Story(case, cause, host, lines)
        if story.is_of_many_hosts:
            continue  # rules/network.py tells it, once for all hosts
        yield _no_longer_there(story) if story.kinds <= GONE else _stated(story)


def _by_cause_and_host(case: Case) -> dict[tuple[str, str | None], list[Event]]:
    """The lines that speak for a cause and are weighed here."""
    groups: dict[tuple[str, str | None], list[Event]] = defaultdict(list)
    for event in case.events:
        cause = event.cause
        if event.kind not in SIGNATURES or cause is None or event.role not in ("cause", "symptom"):
            continue
        of_a_card = event.kind in WITH_ITS_CARD
        on_purpose = event.kind in ON_PURPOSE and not (case.job or case.has_job_log)
        if of_a_card or on_purpose or (event.kind in BAD_MEMORY and _passed_on(case, event)):
            continue
        groups[_of_what(case, event, cause), event.host].append(event)
    return groups


def _of_what(case: Case, event: Event, cause: str) -> str:
    """A host that got no mains and came up again was lost, not a rail in it; one that tells of lost cards lived."""
    if cause != "psu_rail_loss" or event.host is None or SIGNATURES[event.kind].indicts == "gpu":
        return cause
    dark = [e for e in case.on(event.host, *MAINS) if e.role == "cause"]
    went_down = any(_can_follow(boot, e) for boot in case.on(event.host, "boot-start") for e in dark)
    cards_lost = any(burst.lost() for burst in case.once(bursts) if burst.host == event.host)
    return "node_lost" if went_down and not cards_lost else cause


def _can_follow(later: Event, event: Event) -> bool:
    return later.time_ns is None or event.time_ns is None or later.time_ns > event.time_ns - SEL_S * SECOND


_Shift = tuple[float, str | None]
"""(log-odds, words): what stands for or against lines beside what they say, as `Case.timing` gives it."""


@dataclass(frozen=True)
class _Story:
    """What the kernel of one host says of one cause, and what is known about that."""

    case: Case
    cause: str
    host: str | None
    lines: Sequence[Event]

    @cached_property
    def near(self) -> Sequence[Event]:
        """Those that do not lie long before the job's failure, or after it; all where all do."""
        return [e for e in self.lines if self.case.timing(e)[0] > -3] or self.lines

    @cached_property
    def telling(self) -> Sequence[Event]:
        """Those of them that state the cause, else those that hint at it."""
        return [e for e in self.near if e.role == "cause"] or self.near

    @property
    def first(self) -> Event:
        return self.telling[0]

    @property
    def is_stated(self) -> bool:
        return self.first.role == "cause"

    @cached_property
    def kinds(self) -> frozenset[str]:
        return frozenset(e.kind for e in self.near)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The cards that these lines accuse; that of a port or another device is none."""
        accused = {e.gpu_pci for e in self.telling if e.gpu_pci and SIGNATURES[e.kind].indicts == "gpu"}
        return tuple(self.case.known.gpu(self.host, pci) for pci in sorted(accused))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return ranks_named(self.case, self.host, self.lines)

    @property
    def is_of_a_link(self) -> bool:
        return self.cause == "nic_link_down"

    @property
    def is_of_many_hosts(self) -> bool:
        """Did links of other hosts go down at the same moment?"""
        return self.is_of_a_link and any(self.first is e for e in self.case.once(fell_together))

    @cached_property
    def link_came_back(self) -> bool:
        return self.is_of_a_link and recovered_link(self.case, self.first)

    @cached_property
    def link_only_felt_a_stall(self) -> bool:
        """Does the adapter complain only because its driver was not scheduled?"""
        only_keep_alive = {e.kind for e in self.telling} <= KEEP_ALIVE
        return self.is_of_a_link and only_keep_alive and _stalled_before(self.case, self.first)

    @cached_property
    def stall_was_felt(self) -> bool:
        """Did an adapter complain that its driver was not scheduled?"""
        complaints = self.case.on(self.host, *KEEP_ALIVE) if self.cause == "cpu_stall" else ()
        return any(_stalled_before(self.case, e) for e in complaints)


def _shift(story: _Story) -> _Shift:
    """When it came, whose it was, and whether it did any harm."""
    shift, why = _timing(story)
    if story.stall_was_felt:
        shift += 1.0
    if (foreign := _of_another_process(story)) is not None:
        shift, why = shift + foreign[0], foreign[1]
    if (unused := _link_not_used(story)) is not None:
        return shift + weight("no_network"), unused
    if (over := _over(story.case, story.near)) is not None:
        return over
    if _said_but_once(story):
        return shift + weight("only_once"), say("once, and nothing here shows that it stopped a job")
    return shift, why


def _timing(story: _Story) -> _Shift:
    """When its first line came. A kill is in time where the launcher saw that very process end so."""
    shift, why = story.case.timing(story.first)
    if shift < 0 and story.cause == "host_oom_kill" and seen_killed(story.case, story.ranks):
        return 0.0, None
    return shift, why


def _of_another_process(story: _Story) -> tuple[float, str] | None:
    """(log-odds, words) where it struck a process that is no rank's."""
    case, host = story.case, story.host
    if story.ranks:
        return None
    if story.cause == "host_oom_kill" and case.job and killed_no_rank(case, story.lines, host):
        return weight("foreign_pid"), say("its process id is none of the ranks'")
    if story.first.kind in OF_PROCESSES and all(is_strangers(case, e) for e in story.near):
        if pids_known(case, host):
            return weight("foreign_pid"), say("the process is none of the ranks'")
        if not (case.job or case.has_job_log) and story.cause == "storage_stall":
            return None  # a disk that stops answering is a fault of the host, whoever waits for it
        return weight("foreign_pid") * 0.5, say("its name is none of a training job's")
    return None


def _link_not_used(story: _Story) -> str | None:
    """Why the job did not need this link, in words."""
    if not story.is_of_a_link:
        return None
    if _one_machine(story.case):
        return say("all ranks of the job ran on this host")
    if all(_not_used(story.case, e) for e in story.near):
        return say("NCCL did not use this port")
    return None


def _said_but_once(story: _Story) -> bool:
    """Without a job: did a kernel that says such a thing again while it lasts say it once, and nothing felt it?"""
    once = len(story.near) == 1 and story.first.kind in AGAIN_S
    return once and not story.case.job and not story.stall_was_felt


def _own_weight(story: _Story) -> float:
    """Log-odds of what the lines say. Symptoms of several kinds add up; states in a report stop no job."""
    if story.kinds <= ASIDE:
        return 0.4
    if story.is_stated:
        return weight("kernel_cause")
    value = weight("kernel_symptom") + 0.35 * min(len(story.kinds) - 1, 3)
    return value + (weight("symptom_beside_job") if story.case.job else 0.0)


AMD = "AMD"
"""Detail of what cards of AMD's meet: NVIDIA's tools are of no use there (actions.toml)."""


def _stated(story: _Story) -> Finding:
    case, host, first = story.case, story.host, story.first
    shift, why = _shift(story)
    more = len(story.lines) - 1
    harmless = story.link_came_back or story.link_only_felt_a_stall
    return Finding(
        cause=story.cause,
        says=f"{host + ': ' if host else ''}{first.evidence.text[:170]}"
        + (say(" (and {lines})", lines=phrases.count(more, "more line")) if more else "")
        + phrases.aside(why)
        + (say(" – it came back") if story.link_came_back else "")
        + (say(" – the kernel of this host had stalled just before") if story.link_only_felt_a_stall else ""),
        weight=_own_weight(story) + shift - (3.0 if harmless else 0.0),
        ranks=story.ranks,
        hosts=if_known(host),
        gpus=story.gpus,
        events=(*story.telling[:4], *_broken(case, first)),
        onset_ns=None if first.kind in OF_THE_LAST_BOOT else first.time_ns,
        detail=AMD if SIGNATURES[first.kind].family == "amd" else first.kind,
    )


def _no_longer_there(story: _Story) -> Finding:
    """Cards that a report shows not to answer any more. Reports are written afterwards: that does not count."""
    case, host = story.case, story.host
    cards = sorted({e.gpu_pci for e in story.near if e.gpu_pci})
    shift, _ = _shift(story)
    return Finding(
        cause=story.cause,
        says=say("Afterwards {cards} no longer answered: ", cards=phrases.listing(cards) or say("a card"))
        + phrases.listing(sorted(GONE_WORDS[kind] for kind in story.kinds)),
        weight=weight("no_longer_there") + (0.0 if shift in AFTERWARDS else min(shift, 0.0)),
        hosts=if_known(host),
        gpus=tuple(case.known.gpu(host, pci) for pci in cards),
        events=tuple(story.near[:2]),
        detail="gone",
    )


MAINS = kinds_marked("of-the-mains")
"""Lines that tell that a host got no power from outside."""
SEL_S = 3600
"""A BMC's clock may be so far off a host's. Our judgement."""
ON_PURPOSE = kinds_marked("on-purpose")
"""Somebody, or a service, shut the host down in order: a failure only for a job that ran there."""
BAD_MEMORY = kinds_marked("bad-memory")
"""How the kernel and firmware report a word of memory that can't be read any more."""
PASSED_ON = kinds_marked("page-handled")
"""How the kernel tells that it dealt with the page: the process that used it pays, and the host runs on."""
PASSED_ON_S = 60
"""The kernel deals with a broken page at once; stamps are of whole seconds. Our judgement."""


def _passed_on(case: Case, event: Event) -> bool:
    """Did the kernel take the broken page out of use, so that the host outlived it?"""
    dealt_ns = _first_from(case.once(_taken_out).get((event.host, event.boot), ()), at(event))
    return dealt_ns is not None and dealt_ns <= at(event) + PASSED_ON_S * SECOND


def _first_from(times: Sequence[int], begin: int) -> int | None:
    """The first of these times, sorted, that is not before `begin`."""
    place = bisect_left(times, begin)
    return times[place] if place < len(times) else None


def _taken_out(case: Case) -> dict[tuple[str | None, int | None], list[int]]:
    """(Host as it is written, boot) → when its kernel dealt with pages, sorted."""
    found: dict[tuple[str | None, int | None], list[int]] = defaultdict(list)
    for event in case.of(*PASSED_ON):
        if event.details.get("result") not in ("Ignored", "Failed"):
            found[event.host, event.boot].append(at(event))
    return {where: sorted(times) for where, times in found.items()}


def _broken(case: Case, event: Event) -> list[Event]:
    """The memory error for which the kernel ended this process."""
    if event.kind not in PASSED_ON:
        return []
    errors = case.on(event.host, *BAD_MEMORY)
    return [e for e in errors if e.boot == event.boot and 0 <= at(event) - at(e) <= PASSED_ON_S * SECOND][:1]


OF_THE_LAST_BOOT = kinds_marked("of-last-boot")
"""Lines of a start that tell why the boot before it ended: the loss came earlier than they stand."""
KEEP_ALIVE = kinds_marked("keep-alive")
"""Adapters whose driver was not scheduled in time complain in these words."""


def _stalled_before(case: Case, event: Event) -> bool:
    """Did this host's CPU stall within two minutes before? Then the adapter is only the messenger."""
    stalled_ns = _first_from(case.once(_stalls).get(event.host, ()), at(event) - 120 * SECOND)
    return stalled_ns is not None and stalled_ns <= at(event)


def _stalls(case: Case) -> dict[str | None, list[int]]:
    """Host → when its CPU stalled, sorted."""
    found: dict[str | None, list[int]] = defaultdict(list)
    for event in case.events:
        if event.cause == "cpu_stall" and event.kind not in KEEP_ALIVE:
            found[event.host].append(at(event))
    return {host: sorted(times) for host, times in found.items()}


RECOVERED_S = 600
"""A link that is back within ten minutes flapped. Our judgement."""
HARMED_S = 300
"""NCCL gives up on a dead path within minutes: a flap further from the failure did no harm. Our judgement."""
PORT_DOWN = kinds_marked("port-down")
TOGETHER_S, TOGETHER_HOSTS = 10, 3
"""Ports of so many hosts that go down within this time have one cause outside of them. Our judgement."""


def fell_together(case: Case) -> tuple[Event, ...]:
    """The lines, one for each host, by which ports of several hosts went down at the same moment; else none."""
    fell = sorted((e for e in case.of(*PORT_DOWN) if _may_fall_with_others(case, e)), key=lambda e: e.time_ns or 0)
    most: dict[str, Event] = {}
    begin = 0
    for end, event in enumerate(fell):
        while at(event) - at(fell[begin]) > TOGETHER_S * SECOND:
            begin += 1
        if end - begin >= len(most):
            hosts = _first_of_each_host(fell[begin : end + 1])
            most = hosts if len(hosts) > len(most) else most
    return tuple(most.values()) if len(most) >= TOGETHER_HOSTS else ()


def _may_fall_with_others(case: Case, down: Event) -> bool:
    """Is it a fault of a link at a known place and time, about when the job failed, on a port that NCCL may use?"""
    if down.cause != "nic_link_down" or down.role not in ("cause", "symptom"):
        return False
    placed = bool(down.host) and down.time_ns is not None
    return placed and case.timing(down)[0] > -3 and not _not_used(case, down)


def _first_of_each_host(events: Iterable[Event]) -> dict[str, Event]:
    found: dict[str, Event] = {}
    for event in events:
        found.setdefault(short(event.host or ""), event)
    return found


def recovered_link(case: Case, down: Event) -> bool:
    """A link that came up again on the same device soon, and not just before the job failed."""
    back = any(_is_back(down, up) for up in case.on(down.host, "link-up"))
    if not back or not case.job:
        return back
    seen, onset = case.detected, case.onset_ns
    if seen is None or seen.time_ns is None or down.time_ns is None:
        return True
    begin = onset if onset is not None else seen.time_ns
    return not begin - HARMED_S * SECOND <= down.time_ns <= seen.time_ns


def _is_back(down: Event, up: Event) -> bool:
    """Does this line say, soon after the other and of the same device, that it is up?"""
    later = (at(down), down.evidence.line or 0) < (at(up), up.evidence.line or 0)
    soon = at(up) - at(down) <= RECOVERED_S * SECOND
    return later and soon and text(up, "dev") == text(down, "dev")


OF_PROCESSES = kinds_marked("of-a-process")
"""Kinds that are about one process, which they name."""
ENDS = {entry.id: entry.over for entry in kernel_entries() if entry.over is not None}
"""A disturbance → the kernel's line that it is over."""
AGAIN_S = {entry.id: entry.again_s for entry in kernel_entries() if entry.again_s is not None}
"""Seconds within which the kernel mostly says it again as long as it lasts: the softlockup watchdog tells after 20 s,
then every 20 (before 5.14 not always: kernel/watchdog.c, soft_watchdog_warn), RCU after 21 s and then after three times
that, hung tasks are looked for every 120 s (kernel.hung_task_timeout_secs), block devices time out after 30 s."""
MOST_HUNG = 10
"""Reports of hung tasks after which the kernel says no more (kernel.hung_task_warnings)."""
NAMES: tuple[TextField, ...] = ("server", "target", "ctrl", "dev")
"""Details by which two lines can be seen to be about different things."""


def _over(case: Case, near: Sequence[Event]) -> tuple[float, str] | None:
    """(log-odds, words) for a disturbance that held up none, for it had ended before any rank began to wait.

    None: it had not, or there is no telling. Without a job, only what the kernel itself says to be over is.
    """
    end = _last_end(case, near)
    if end is None:
        return None
    if case.job:
        return _over_before_the_wait(case, near, end)
    if not end.is_said:
        return None
    time = phrases.duration((end.at_ns - at(near[0])) / SECOND)
    return weight("long_before"), say("it was over after {time}", time=time)


@dataclass(frozen=True, slots=True)
class _End:
    """When a disturbance was over."""

    at_ns: int
    is_said: bool
    """By the kernel itself; else its silence tells."""


def _last_end(case: Case, near: Sequence[Event]) -> _End | None:
    """When the last of these lines' disturbances was over; None where one of them goes on, for all that is known."""
    if sum(e.kind == "hung-task" for e in near) >= MOST_HUNG:
        return None
    ends_ns: list[int] = []
    is_said = True
    for event in near:
        if event.time_ns is None:
            return None
        end_ns = _end(case, event)
        if end_ns is None and event.kind in AGAIN_S:
            end_ns, is_said = event.time_ns + AGAIN_S[event.kind] * SECOND, False
        if end_ns is None:
            return None
        ends_ns.append(end_ns)
    return _End(max(ends_ns), is_said)


def _over_before_the_wait(case: Case, near: Sequence[Event], end: _End) -> tuple[float, str] | None:
    seen = case.detected
    if seen is None or seen.time_ns is None:
        return None
    if len(case.aligned.apart(near[0], seen)) > 1:
        return None  # by hours, for all that is known
    slack = case.aligned.slack_ns(near[0], seen)
    begin = case.onset_ns if case.onset_ns is not None else seen.time_ns
    if end.at_ns + margin_ns(near[0], seen, slack) >= begin:
        return None
    if end.is_said:
        time = phrases.duration((begin - end.at_ns) / SECOND)
        return weight("long_before"), say("it was over {time} before the first rank began to wait", time=time)
    latest = phrases.duration((begin - max(at(e) for e in near)) / SECOND)
    return weight("not_said_again"), say(
        "the kernel did not say it again in the {time} before the first rank began to wait", time=latest
    )


def _end(case: Case, event: Event) -> int | None:
    """When the kernel said that this very disturbance was over."""
    about = next(_names(event), None)
    return _first_from(case.once(_ends).get((event.host, ENDS.get(event.kind), about), ()), at(event))


def _names(event: Event) -> Iterator[str]:
    """What the line names as the thing that it is about."""
    return (name for key in NAMES if (name := text(event, key)))


def _ends(case: Case) -> dict[tuple[str | None, str | None, str | None], list[int]]:
    """(host, kind, what it is about; None: whatever it is about) → when it was over, sorted."""
    found: dict[tuple[str | None, str | None, str | None], set[int]] = defaultdict(set)
    for event in case.of(*ENDS.values()):
        if event.time_ns is not None:
            for name in (None, *_names(event)):
                found[event.host, event.kind, name].add(event.time_ns)
    return {key: sorted(times) for key, times in found.items()}


def _one_machine(case: Case) -> bool:
    """Did all ranks of the job run on one host?"""
    hosts = {p.host for p in case.known.ranks.values()}
    return case.whole and len(hosts) == 1 and None not in hosts and len(case.known.ranks) > 1


PLAIN_DRIVERS = frozenset({"igb", "igc", "e1000", "e1000e", "r8169", "tg3", "atlantic", "virtio_net"})
"""Drivers of adapters that have no RDMA: NCCL uses these only as interfaces."""
PHYSICAL = re.compile(r"(?:eth|en[opsx]|em|ib)\w*$")
"""Names of ports themselves, as against bonds, teams, bridges and VLANs, behind which any port may stand."""


def _not_used(case: Case, event: Event) -> bool:
    """Is it about a port of which NCCL's own lines on that host show that it used others?"""
    dev = text(event, "dev") or text(event, "dev2")
    used = case.nccl_used.get(short(event.host)) if event.host is not None else None
    if dev is None or used is None or not used.interfaces or dev in used.interfaces:
        return False
    if not all(PHYSICAL.match(name) for name in used.interfaces):
        return False
    # NCCL does not tell the interfaces of its adapters
    return not used.adapters or text(event, "driver") in PLAIN_DRIVERS


def other_matter(case: Case, event: Event) -> bool:
    """A fault that cannot be why it stops: a stranger killed for memory, a link that came back, one long before."""
    return (
        (event.cause == "host_oom_kill" and is_strangers(case, event))
        or (event.cause == "nic_link_down" and recovered_link(case, event))
        or case.timing(event)[0] <= weight("long_before")
    )


PROCESS_TELLS = kinds_marked("tells-itself")
"""Lines by which a process of the host says itself what happened: then the launcher took the rest of the host along."""
LAUNCHER_TELLS = kinds_marked("launcher-tells")
"""Lines of a launcher about a process of its own host: whoever writes them outlived that process, so the host did."""
