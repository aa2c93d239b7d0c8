"""Hosts: out of memory, panics, power, stalls, shared memory, and jobs that were stopped from outside."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

from nccl_forensics import catalog
from nccl_forensics.catalog import weight
from nccl_forensics.fields import TextField
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import same_host, short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import ONE_START, Case, at, ranks_of
from nccl_forensics.verdict.rules import rule
from nccl_forensics.waits.watchdogs import waiting_ranks

GPU_FAMILIES = frozenset({"pcie", "nvidia"})
"""Families of kernel.toml that rules/gpu.py weighs."""
OF_CARDS = frozenset({"gpu_off_bus", "gpu_firmware", "gpu_other", "pcie_link", "psu_rail_loss"})
"""Causes in those families that it weighs; theirs of other causes are weighed here."""
GONE_WORDS = {
    "proc-vbios-unknown": say("the driver has no VBIOS version of it"),
    "smi-lost": say("nvidia-smi cannot open it"),
    "lspci-gone": say("lspci reads nothing but ff"),
}
GONE = frozenset(GONE_WORDS)
"""Signs in a report that a card does not answer any more."""
AFTERWARDS = (weight("too_late"), weight("while_waiting"))
"""What `Case.timing` says of a report that was written after the failure, as reports are."""
ASIDE = frozenset({"lspci-width", "lspci-speed", "smi-link", "smi-throttle"})
"""States in a report that are worth a look and stop no job."""


@cache
def _families() -> dict[str, str]:
    return {e["id"]: e["family"] for e in catalog.load("kernel")["entry"]}


@rule
def kernel_states_it(case: Case) -> Iterator[Finding]:
    """Kernel lines with role cause or symptom, by cause and host: the first one tells, the rest is counted."""
    groups: dict[tuple[str, str | None], list[Event]] = defaultdict(list)
    for event in case.events:
        family = _families().get(event.kind)
        if family is None or event.role not in ("cause", "symptom") or event.cause is None:
            continue
        if family in GPU_FAMILIES and event.cause in OF_CARDS:
            continue
        if event.kind in ON_PURPOSE and not (case.job or case.has_job_log):
            continue
        if not (event.kind in BAD_MEMORY and _passed_on(case, event)):
            groups[event.cause, event.host].append(event)
    for (cause, host), inside in groups.items():
        if cause == "host_oom_kill" and (case.job or case.has_job_log):
            strangers = [e for e in inside if _stranger(case, e)]
            victims, theirs = {number(e, "pid") or e.pid for e in strangers}, {id(e) for e in strangers}
            inside = [e for e in inside if (number(e, "pid") or e.pid) not in victims and id(e) not in theirs]
            if not [e for e in inside if e.role == "cause"]:
                continue
        near = [e for e in inside if case.timing(e)[0] > -3] or inside
        strong = [e for e in near if e.role == "cause"]
        first = (strong or near)[0]
        shift, why = case.timing(first)
        ranks: set[int] = set()
        for event in inside:
            pid = number(event, "pid") or event.pid
            if event.rank is not None:
                ranks.add(event.rank)
            elif pid is not None and (rank := case.known.rank_of_pid(host, pid)) is not None:
                ranks.add(rank)
            elif pid is not None:
                ranks |= _loader_of(case, host, pid)
        if cause == "host_oom_kill" and any(
            e.rank in ranks and number(e, "code") in (-9, 137) for e in case.of("exit")
        ):
            shift, why = max(shift, 0.0), None if shift < 0 else why  # the launcher saw that very process end so
        if cause == "nic_link_down" and any(first is e for e in case.once(fell_together)):
            continue  # rules/network.py tells it, once for all hosts
        recovered = cause == "nic_link_down" and recovered_link(case, first)
        echo = (
            cause == "nic_link_down" and {e.kind for e in strong or near} <= KEEP_ALIVE and _stalled_before(case, first)
        )
        felt = cause == "cpu_stall" and any(_stalled_before(case, e) for e in case.on(host, *KEEP_ALIVE))
        shift += 1.0 if felt else 0.0
        foreign = cause == "host_oom_kill" and not ranks and case.job and _no_rank(case, inside, host)
        if foreign:
            shift, why = shift + weight("foreign_pid"), say("its process id is none of the ranks'")
        elif first.kind in OF_PROCESSES and not ranks and all(_stranger(case, e) for e in near):
            told = _pids_known(case, host)
            shift += weight("foreign_pid") * (1.0 if told else 0.5)
            why = say("the process is none of the ranks'") if told else say("its name is none of a training job's")
        if cause == "nic_link_down" and _one_machine(case):
            shift, why = shift + weight("no_network"), say("all ranks of the job ran on this host")
        elif cause == "nic_link_down" and all(_not_used(case, e) for e in near):
            shift, why = shift + weight("no_network"), say("NCCL did not use this port")
        elif (gone := _over(case, near)) is not None:
            shift, why = gone
        elif not case.job and len(near) == 1 and first.kind in AGAIN_S and not felt:
            shift, why = shift + weight("only_once"), say("once, and nothing here shows that it stopped a job")
        kinds = {e.kind for e in near}
        if all(_families()[e.kind] == "report" and e.kind in ASIDE for e in near):
            value = 0.4
        else:
            value = weight("kernel_cause") if strong else weight("kernel_symptom") + 0.35 * min(len(kinds) - 1, 3)
            value += weight("symptom_beside_job") if case.job and not strong else 0.0
        if kinds <= GONE:
            cards = sorted({e.gpu_pci for e in near if e.gpu_pci})
            yield Finding(
                cause=cause,
                says=say("Afterwards {cards} no longer answered: ", cards=phrases.listing(cards) or say("a card"))
                + phrases.listing(sorted(GONE_WORDS[k] for k in kinds)),
                weight=weight("no_longer_there") + (0.0 if shift in AFTERWARDS else min(shift, 0.0)),
                hosts=(host,) if host else (),
                gpus=tuple(case.known.gpu(host, pci) for pci in cards),
                events=(near[0], *near[1:2]),
                detail="gone",
            )
            continue
        yield Finding(
            cause=cause,
            says=f"{host + ': ' if host else ''}{first.evidence.text[:170]}"
            + (say(" (and {lines})", lines=phrases.count(len(inside) - 1, "more line")) if len(inside) > 1 else "")
            + phrases.aside(why)
            + (say(" – it came back") if recovered else "")
            + (say(" – the kernel of this host had stalled just before") if echo else ""),
            weight=value + shift - (3.0 if recovered or echo else 0.0),
            ranks=tuple(sorted(ranks)),
            hosts=(host,) if host else (),
            events=tuple([first, *[e for e in (strong or near) if e is not first]][:4] + _broken(case, first)),
            onset_ns=None if first.kind in OF_THE_LAST_BOOT else first.time_ns,
            detail=first.kind,
        )


ON_PURPOSE = frozenset({"power-button"})
"""Somebody, or a service, shut the host down in order: a failure only for a job that ran there."""
BAD_MEMORY = frozenset({"edac-ue", "mce", "ghes"})
"""How the kernel and firmware report a word of memory that can't be read any more."""
PASSED_ON = frozenset({"memory-failure", "memory-failure-action"})
"""How the kernel tells that it dealt with the page: the process that used it pays, and the host runs on."""
PASSED_ON_S = 60
"""The kernel deals with a broken page at once; stamps are of whole seconds. Our judgement."""


def _passed_on(case: Case, event: Event) -> bool:
    """Did the kernel take the broken page out of use, so that the host outlived it?"""
    times = case.once(_taken_out).get((event.host, event.boot), [])
    place = bisect_left(times, at(event))
    return place < len(times) and times[place] <= at(event) + PASSED_ON_S * SECOND


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


OF_THE_LAST_BOOT = frozenset({"amd-reset-reason", "bert"})
"""Lines of a start that tell why the boot before it ended: the loss came earlier than they stand."""
KEEP_ALIVE = frozenset({"ena-keepalive", "nic-tx-timeout"})
"""Adapters whose driver was not scheduled in time complain in these words."""


def _stalled_before(case: Case, event: Event) -> bool:
    """Did this host's CPU stall within two minutes before? Then the adapter is only the messenger."""
    times = case.once(_stalls).get(event.host, [])
    place = bisect_left(times, at(event) - 120 * SECOND)
    return place < len(times) and times[place] <= at(event)


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
PORT_DOWN = frozenset({"link-down", "lost-carrier", "bond-down", "ib-port"})
TOGETHER_S, TOGETHER_HOSTS = 10, 3
"""Ports of so many hosts that go down within this time have one cause outside of them. Our judgement."""


def fell_together(case: Case) -> tuple[Event, ...]:
    """The lines, one for each host, by which ports of several hosts went down at the same moment; else none."""
    fell = [
        e
        for e in case.of(*PORT_DOWN)
        if e.cause == "nic_link_down" and e.role in ("cause", "symptom") and e.host and e.time_ns is not None
    ]
    fell = sorted((e for e in fell if case.timing(e)[0] > -3 and not _not_used(case, e)), key=lambda e: e.time_ns or 0)
    best: dict[str, Event] = {}
    begin = 0
    for end, event in enumerate(fell):
        while at(event) - at(fell[begin]) > TOGETHER_S * SECOND:
            begin += 1
        if end - begin >= len(best):
            hosts: dict[str, Event] = {}
            for one in fell[begin : end + 1]:
                hosts.setdefault(short(one.host or ""), one)
            best = hosts if len(hosts) > len(best) else best
    return tuple(best.values()) if len(best) >= TOGETHER_HOSTS else ()


def recovered_link(case: Case, down: Event) -> bool:
    """A link that came up again on the same device soon, and not just before the job failed."""
    dev = text(down, "dev")
    back = any(
        text(e, "dev") == dev
        and (at(down), down.evidence.line or 0) < (at(e), e.evidence.line or 0)
        and at(e) - at(down) <= RECOVERED_S * SECOND
        for e in case.on(down.host, "link-up", "bond-up", "ib-port-up")
    )
    if not back or not case.job:
        return back
    seen, onset = case.detected, case.onset_ns
    if seen is None or seen.time_ns is None or down.time_ns is None:
        return True
    begin = onset if onset is not None else seen.time_ns
    return not begin - HARMED_S * SECOND <= down.time_ns <= seen.time_ns


JOB_PROGRAMS = ("python", "pt_", "torchrun", "ray", "train", "deepspeed", "srun", "slurmstepd", "mpirun", "nccl")
"""How the processes of a training job are called in the kernel's eyes (comm, 15 characters)."""


def _stranger(case: Case, event: Event) -> bool:
    """Is it about somebody else's process? Its name is known and is no training job's, its pid no rank's."""
    comm = text(event, "comm") or text(event, "task")
    pid = number(event, "pid") or event.pid
    if comm is None or comm.lower().startswith(JOB_PROGRAMS) or comm.endswith(".py"):
        return False
    if event.kind == "hung-task" and comm.lower().startswith(FOR_ALL):
        return False
    return case.known.rank_of_pid(event.host, pid) is None


OF_PROCESSES = frozenset({"segfault", "trap", "arm-fault", "audit-abend", "coredump", "hung-task"})
"""Kinds that are about one process, which they name."""
THREADS = """
    jbd2 kworker xfs flush nfsd nfsv4 rpciod kjournald md dm ext4 btrfs kswapd khugepaged kcompactd ptlrpcd ll_ ldlm
    ceph cifsd txg_ z_ spl_ mmfsd beegfs weka systemd init cuda- nvidia nv_
"""
FOR_ALL = tuple(THREADS.split())
"""Beginnings of the names of threads and services that all processes of a host, or of a card, depend on."""
ENDS = {"nfs-not-responding": "nfs-ok", "lustre-lost": "lustre-restored", "nvme-timeout": "nvme-abort-ok"}
"""A disturbance → the kernel's line that it is over."""
AGAIN_S = {
    "soft-lockup": 60,
    "workqueue-lockup": 90,
    "blk-io-error": 90,
    "nvme-timeout": 90,
    "rcu-stall": 300,
    "rcu-starved": 300,
    "hung-task": 300,
}
"""Seconds within which the kernel mostly says it again as long as it lasts: the softlockup watchdog tells after 20 s,
then every 20 (before 5.14 not always: kernel/watchdog.c, soft_watchdog_warn), RCU after 21 s and then after three times
that, hung tasks are looked for every 120 s (kernel.hung_task_timeout_secs), block devices time out after 30 s."""
MOST_HUNG = 10
"""Reports of hung tasks after which the kernel says no more (kernel.hung_task_warnings)."""
NAMES: tuple[TextField, ...] = ("server", "target", "ctrl", "dev")
"""Details by which two lines can be seen to be about different things."""


def _over(case: Case, near: list[Event]) -> tuple[float, str] | None:
    """(log-odds, words) for a disturbance that held up none, for it had ended before any rank began to wait.

    None: it had not, or there is no telling. Without a job, only what the kernel itself says to be over is.
    """
    last, said = 0, True
    if sum(e.kind == "hung-task" for e in near) >= MOST_HUNG:
        return None
    for event in near:
        if event.time_ns is None:
            return None
        end = _end(case, event)
        if end is None:
            if event.kind not in AGAIN_S:
                return None
            end, said = event.time_ns + AGAIN_S[event.kind] * SECOND, False
        last = max(last, end)
    if not case.job:
        time = phrases.duration((last - at(near[0])) / SECOND)
        return (weight("long_before"), say("it was over after {time}", time=time)) if said else None
    seen = case.detected
    begin = case.onset_ns if case.onset_ns is not None else seen.time_ns if seen is not None else None
    slack = case.aligned.slack_ns(near[0], seen) if seen is not None and seen.time_ns is not None else None
    if seen is None or begin is None or slack is None or last + case.margin_ns(near[0], seen, slack) >= begin:
        return None
    time = phrases.duration((begin - last) / SECOND)
    if said:
        return weight("long_before"), say("it was over {time} before the first rank began to wait", time=time)
    latest = phrases.duration((begin - max(at(e) for e in near)) / SECOND)
    return weight("not_said_again"), say(
        "the kernel did not say it again in the {time} before the first rank began to wait", time=latest
    )


def _end(case: Case, event: Event) -> int | None:
    """When the kernel said that this very disturbance was over."""
    kind = ENDS.get(event.kind)
    times = case.once(_ends).get((event.host, kind, next((n for k in NAMES if (n := text(event, k))), None)), [])
    place = bisect_left(times, at(event))
    return times[place] if place < len(times) else None


def _ends(case: Case) -> dict[tuple[str | None, str | None, str | None], list[int]]:
    """(host, kind, what it is about; None: whatever it is about) → when it was over, sorted."""
    found: dict[tuple[str | None, str | None, str | None], set[int]] = defaultdict(set)
    for event in case.of(*ENDS.values()):
        if event.time_ns is not None:
            for name in (None, *(n for k in NAMES if (n := text(event, k)))):
                found[event.host, event.kind, name].add(event.time_ns)
    return {key: sorted(times) for key, times in found.items()}


def _pids_known(case: Case, host: str | None) -> bool:
    """Are the process ids of all ranks on this host known? Then another one is none of theirs, or a container's."""
    mine = case.known.ranks_on(host)
    return case.whole and bool(mine) and all(case.known.ranks[r].pid is not None for r in mine)


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
    dev, driver = text(event, "dev") or text(event, "dev2"), text(event, "driver")
    used = case.nccl_used.get(short(event.host)) if event.host is not None else None
    if dev is None or used is None or not used.interfaces or dev in used.interfaces:
        return False
    if not all(PHYSICAL.match(name) for name in used.interfaces):
        return False
    return not used.adapters or driver in PLAIN_DRIVERS  # NCCL does not tell the interfaces of its adapters


SHUTDOWN_LINES = 400
"""Lines between a shutdown sequence and the next start's first line. Our judgement."""


@rule
def log_stops(case: Case) -> Iterator[Finding]:
    """A boot whose log ends in mid-flow, followed by a new boot: power or reset, when nothing else says why."""
    by_source: dict[str, list[int]] = defaultdict(list)
    starts = {}
    reports = {r.path for r in case.rows if r.format == "nvidia-bug-report"}
    for event in case.of("boot-start"):
        if event.evidence.source in reports:
            continue  # a report holds excerpts of several boots one after the other
        line = event.evidence.line or 0
        by_source[event.evidence.source].append(line)
        starts[event.evidence.source, line] = event
    everything: dict[str, list[tuple[int, int, Event]]] = defaultdict(list)
    for place, event in enumerate(case.events):
        if event.evidence.source in by_source:
            everything[event.evidence.source].append((event.evidence.line or 0, place, event))
    for source, lines in by_source.items():
        written = sorted(everything[source], key=lambda x: x[:2])
        numbers = [line for line, _, _ in written]
        for previous, line in zip([0, *sorted(lines)], sorted(lines), strict=False):
            if line - previous < ONE_START:
                continue  # the banner, the command line and the like of one and the same start
            event = starts[source, line]
            between = written[bisect_left(numbers, previous) : bisect_left(numbers, line)]
            before = [e for _, _, e in sorted(between, key=lambda x: x[1])]
            orderly = any(e.kind == "shutdown-seq" and line - (e.evidence.line or 0) < SHUTDOWN_LINES for e in before)
            explained = [e for e in before if e.role == "cause" and not other_matter(case, e)]
            if orderly or explained or event.details.get("orderly"):
                continue
            shift, why = case.timing(event)
            if before and case.timing(before[-1])[1] != why:
                shift, why = 0.0, None  # it stopped somewhere between its last line and this start, so perhaps in time
            yield Finding(
                cause="node_lost",
                says=say(
                    "{host}: the log stops in mid-flow without a shutdown sequence and a new boot follows: power "
                    "loss or a hardware reset",
                    host=event.host or source,
                )
                + phrases.aside(why if why and "cannot" not in why else None),
                weight=weight("log_stops") + min(shift, 0.0) * (0.0 if why and "cannot" in why else 1.0),
                hosts=(event.host,) if event.host else (),
                events=(event,),
                inference=True,
                onset_ns=None,
                detail="power",
            )


def _loader_of(case: Case, host: str | None, pid: int) -> set[int]:
    """The ranks that say that this process was their data loader's worker."""
    return {
        e.rank
        for e in case.of("dataloader-killed")
        if e.rank is not None and number(e, "worker_pid") == pid and same_host(e.host, host)
    }


def _no_rank(case: Case, inside: list[Event], host: str | None) -> bool:
    """Are all ranks' process ids there known, and none was killed? Containers count their own, so only a hint."""
    mine = [p for p in case.known.ranks.values() if p.host is None or host is None or same_host(p.host, host)]
    killed = {pid for e in inside if (pid := number(e, "pid") or e.pid) is not None}
    if any(number(e, "code") in (-9, 137) and (not host or same_host(e.host, host)) for e in case.of("exit")):
        return False  # a rank there did end by SIGKILL: that it has another number in its container means nothing
    told = {number(e, "worker_pid") for e in case.of("dataloader-killed")}
    return (
        bool(mine and killed) and all(p.pid is not None for p in mine) and not killed & (told | {p.pid for p in mine})
    )


def other_matter(case: Case, event: Event) -> bool:
    """A fault that cannot be why it stops: a stranger killed for memory, a link that came back, one long before."""
    return (
        (event.cause == "host_oom_kill" and _stranger(case, event))
        or (event.cause == "nic_link_down" and recovered_link(case, event))
        or case.timing(event)[0] <= weight("long_before")
    )


def job_log_of(case: Case, host: str, ranks: Sequence[int | None]) -> bool:
    """Is what the job wrote on this host, or by these ranks, in the pile, beyond NCCL's lines at start?"""
    return any(
        (e.rank in ranks or (e.host and same_host(e.host, host))) and e.evidence.source not in case.of_hosts
        for e in case.events
        if e.kind != "nccl-init"
    ) or any(r.format == "job-log" and r.host and same_host(r.host, host) for r in case.rows)


PROCESS_TELLS = frozenset(
    {
        "exit",
        "python-exception",
        "cuda-oom",
        "cuda-error",
        "pg-watchdog-cuda",
        "storage-error",
        "dataloader-killed",
        "nccl-shm",
    }
    | {"oom-killed", "nccl-warn-cuda", "segfault"}
)
"""Lines by which a process of the host says itself what happened: then the launcher took the rest of the host along."""
LAUNCHER_TELLS = frozenset({"exit", "sigterm-sent"})
"""Lines of a launcher about a process of its own host: whoever writes them outlived that process, so the host did."""


@rule
def whole_host_missing(case: Case) -> Iterator[Finding]:
    """The ranks that never came are all the ranks of one host, and it has several: the host rather than the ranks."""
    for suspect in case.collectives.suspects:
        if (
            suspect.cause not in ("rank_not_arrived", "process_missing")
            or len(suspect.ranks) < 2
            or not suspect.evidence
        ):
            continue
        alive = {e.rank for e in case.of("pg-observed", "pg-dump-remote", "nccl-ib-event", "nccl-ib-error")}
        told = [
            e
            for e in case.events
            if e.rank in suspect.ranks
            and (
                (e.role == "cause" and e.kind in PROCESS_TELLS and case.timing(e)[0] > -3)
                or (e.kind in LAUNCHER_TELLS and not case.went_on(e))
            )
        ]
        if alive & set(suspect.ranks) or told:
            continue
        for host in sorted({h for r in suspect.ranks if (p := case.known.ranks.get(r)) is not None and (h := p.host)}):
            spoke = any(
                e.host == host and e.kind in ("nccl-ib-event", "nccl-ib-error", "nccl-closed") for e in case.events
            )
            if case.known.ranks_on(host) == suspect.ranks and not spoke:
                yield Finding(
                    cause="node_lost",
                    says=say("The ranks that never came are all {n} ranks of {host}", n=len(suspect.ranks), host=host),
                    weight=weight("whole_host")
                    + (weight("log_may_be_cut") if job_log_of(case, host, suspect.ranks) else 0.0),
                    ranks=suspect.ranks,
                    hosts=(host,),
                    evidence=suspect.evidence[:2],
                    inference=True,
                    onset_ns=suspect.group.first_arrival_ns if suspect.group else None,
                )


@rule
def stopped(case: Case) -> Iterator[Finding]:
    """A scheduler or a person ended the job, and nothing had failed before."""
    told = case.of("slurm-time-limit", "preempted", "k8s-evicted", "agent-death", "slurm-cancel")
    # a launcher that is told to stop does not know why; whoever took the pod away does
    why = [e for e in told if e.kind in ("preempted", "k8s-evicted") and e.role == "cause"]
    for event in (*why, *(e for e in told if e not in why)):
        cancelled = event.kind == "slurm-cancel"
        if event.role not in ("cause", "symptom") and not cancelled:
            continue
        failed_first = [
            e
            for e in case.events
            if e.kind in ("watchdog-timeout", "exit", "python-exception", "cuda-oom", "pg-watchdog-cuda")
        ]
        earlier = [
            e for e in failed_first if e.role != "consequence" and (case.aligned.before(e, event) or _above(e, event))
        ]
        separate = failed_first and not any(e.evidence.source == event.evidence.source for e in failed_first)
        value = weight("stopped") - (3.0 if earlier else 0.0) - (3.0 if separate else 0.0)
        if cancelled and event.cause == "node_lost":
            yield Finding(
                cause="node_lost",
                says=say("Slurm cancelled the job because a node had failed"),
                weight=value,
                events=(event,),
                onset_ns=event.time_ns,
            )
            break
        heard = [e for e in told if e is not event and e.kind == "agent-death"][:1]
        if cancelled and _ended_badly(case):
            continue  # Slurm cancels a step, too, whose first task failed
        what = {
            "slurm-time-limit": say("Slurm ended the job at its time limit"),
            "preempted": say("The scheduler took the nodes away (preemption)"),
            "k8s-evicted": say("Kubernetes evicted the pod"),
            "agent-death": say(
                "The launcher was told to stop ({signal})", signal=text(event, "signal") or say("a signal")
            ),
            "slurm-cancel": say("The job was cancelled"),
        }[event.kind]
        yield Finding(
            cause="preempted",
            says=what + (say(", but something had failed before") if earlier else ""),
            weight=value if event.role == "cause" else value - (1.6 if cancelled else 0.8),
            events=(event, *heard),
            hosts=(event.host,) if event.host else (),
            detail=event.kind,
            onset_ns=event.time_ns if event.time_ns is not None or not heard else heard[0].time_ns,
        )
        break


def _ended_badly(case: Case) -> bool:
    """Did a task end otherwise than by the signal that cancels it, or did ranks wait?"""
    ends = [e for e in case.of("srun-exit", "slurm-oom", "exit", "ds-exit") if e.role in ("cause", "symptom")]
    return bool(ends or case.collectives.suspects or case.of(*PROCESS_TELLS))


def _above(a: Event, b: Event) -> bool:
    return a.evidence.source == b.evidence.source and (a.evidence.line or 0) < (b.evidence.line or 0)


AT_ONCE_S = 60
"""Tasks that went over their limit within this time failed together; later ones may follow. Our judgement."""


@rule
def container_out_of_memory(case: Case) -> Iterator[Finding]:
    """Slurm and Kubernetes name the task or pod that was over its memory limit."""
    told = [e for e in case.of("slurm-oom") if ranks_of(e)]
    first = min((e.time_ns for e in told if e.time_ns is not None), default=None)
    told = [e for e in told if first is None or e.time_ns is None or e.time_ns - first <= AT_ONCE_S * SECOND]
    ranks = tuple(sorted({r for e in told for r in ranks_of(e)}))
    if len(ranks) > 1:  # their tasks, each on its line or all on one
        waited = set(waiting_ranks(case.events))
        ranks = tuple(r for r in ranks if r not in waited) or ranks
        hosts = tuple(sorted({e.host for e in told if e.host}))
        yield Finding(
            cause="host_oom_kill",
            says=say(
                "{hosts}: {ranks} were killed at the job's memory limit",
                hosts=phrases.listing(hosts) or say("The scheduler"),
                ranks=phrases.ranks(ranks),
            ),
            weight=weight("kernel_cause"),
            ranks=ranks,
            hosts=hosts,
            events=tuple(told[:4]),
            onset_ns=first,
        )
    one_by_one = () if len(ranks) > 1 else case.of("slurm-oom")
    for event in (*one_by_one, *case.of("k8s-oom", "ray-oom"))[:2]:
        ranks = (event.rank,) if event.rank is not None else ()
        yield Finding(
            cause="host_oom_kill",
            says=say("{host}: a process was killed at the job's memory limit", host=event.host or say("The scheduler")),
            weight=weight("kernel_cause"),
            ranks=ranks,
            hosts=(event.host,) if event.host else (),
            events=(event,),
            onset_ns=event.time_ns,
        )
