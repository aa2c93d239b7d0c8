"""Jobs that were stopped from outside: time limits, preemption, cancellation, the memory limit of a task or pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case, ranks_of
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.host import PROCESS_TELLS
from nccl_forensics.waits.watchdogs import waiting_ranks


@rule
def stopped(case: Case) -> Iterator[Finding]:
    """A scheduler or a person ended the job, and nothing had failed before."""
    told = case.of("slurm-time-limit", "preempted", "k8s-evicted", "agent-death", "slurm-cancel")
    event = next((e for e in sorted(told, key=_may_not_know_why) if _ends_the_job(case, e)), None)
    if event is None:
        return
    failed_before = _failed_before(case, event)
    value = weight("stopped") - (3.0 if failed_before else 0.0) - (3.0 if _failed_in_other_files(case, event) else 0.0)
    if event.kind == "slurm-cancel" and event.cause == "node_lost":
        yield Finding(
            cause="node_lost",
            says=say("Slurm cancelled the job because a node had failed"),
            weight=value,
            events=(event,),
            onset_ns=event.time_ns,
        )
        return
    launcher = next((e for e in told if e is not event and e.kind == "agent-death"), None)
    timed = launcher if event.time_ns is None and launcher is not None else event
    yield Finding(
        cause="preempted",
        says=_what(event) + (say(", but something had failed before") if failed_before else ""),
        weight=value - _doubt(event),
        events=(event, *if_known(launcher)),
        hosts=if_known(event.host),
        detail=event.kind,
        onset_ns=timed.time_ns,
    )


def _doubt(event: Event) -> float:
    """Log-odds against a line that need not mean it: a cancelled step least of all."""
    if event.role == "cause":
        return 0.0
    return 1.6 if event.kind == "slurm-cancel" else 0.8


def _may_not_know_why(event: Event) -> bool:
    """A launcher that is told to stop does not know why; whoever took the pod away does."""
    return not (event.kind in ("preempted", "k8s-evicted") and event.role == "cause")


def _ends_the_job(case: Case, event: Event) -> bool:
    """Is it an end in its own right? Slurm cancels a step, too, whose first task failed."""
    if event.kind == "slurm-cancel":
        return event.cause == "node_lost" or not _ended_badly(case)
    return event.role in ("cause", "symptom")


def _ended_badly(case: Case) -> bool:
    """Did a task end otherwise than by the signal that cancels it, or did ranks wait?"""
    ends = [e for e in case.of("srun-exit", "slurm-oom", "exit", "ds-exit") if e.role in ("cause", "symptom")]
    return bool(ends or case.collectives.suspects or case.of(*PROCESS_TELLS))


def _failures(case: Case) -> tuple[Event, ...]:
    return case.of("watchdog-timeout", "exit", "python-exception", "cuda-oom", "pg-watchdog-cuda")


def _failed_before(case: Case, event: Event) -> bool:
    """Had something of the job failed before, by its time or further up in the file?"""
    failures = [e for e in _failures(case) if e.role != "consequence"]
    return any(case.aligned.before(e, event) or _above(e, event) for e in failures)


def _above(a: Event, b: Event) -> bool:
    return a.evidence.source == b.evidence.source and (a.evidence.line or 0) < (b.evidence.line or 0)


def _failed_in_other_files(case: Case, event: Event) -> bool:
    """Do lines of failures stand in other files only? Then it need not be that job that was stopped."""
    failures = _failures(case)
    return bool(failures) and all(e.evidence.source != event.evidence.source for e in failures)


def _what(event: Event) -> str:
    """Who stopped the job, in words."""
    return {
        "slurm-time-limit": say("Slurm ended the job at its time limit"),
        "preempted": say("The scheduler took the nodes away (preemption)"),
        "k8s-evicted": say("Kubernetes evicted the pod"),
        "agent-death": say("The launcher was told to stop ({signal})", signal=text(event, "signal") or say("a signal")),
        "slurm-cancel": say("The job was cancelled"),
    }[event.kind]


AT_ONCE_S = 60
"""Tasks that went over their limit within this time failed together; later ones may follow. Our judgement."""


@rule
def container_out_of_memory(case: Case) -> Iterator[Finding]:
    """Slurm and Kubernetes name the task or pod that was over its memory limit, Ray the node."""
    together = _tasks_at_once(case)
    if together is not None:
        yield together
    several = together is not None and len(together.ranks) > 1
    one_by_one = () if several else case.of("slurm-oom")
    for event in (*one_by_one, *case.of("k8s-oom", "ray-oom"))[:2]:
        yield Finding(
            cause="host_oom_kill",
            says=_over_its_limit(event),
            weight=weight("kernel_cause"),
            ranks=if_known(event.rank),
            hosts=if_known(event.host),
            events=(event,),
            onset_ns=event.time_ns,
        )


def _over_its_limit(event: Event) -> str:
    if event.kind == "ray-oom":
        on_host = say(" on {host}", host=event.host) if event.host else ""
        return say("Ray's memory monitor ended a worker{on_host}: the node was low on memory", on_host=on_host)
    return say("{host}: a process was killed at the job's memory limit", host=event.host or say("The scheduler"))


def _tasks_at_once(case: Case) -> Finding | None:
    """Several tasks of Slurm's that were over their limit together, each on its line or all on one."""
    told = _first_over_their_limit(case)
    ranks = tuple(sorted({r for e in told for r in ranks_of(e)}))
    if len(ranks) < 2:
        return None
    waited = set(waiting_ranks(case.events))
    ranks = tuple(r for r in ranks if r not in waited) or ranks
    hosts = tuple(sorted({e.host for e in told if e.host}))
    return Finding(
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
        onset_ns=_first_ns(told),
    )


def _first_over_their_limit(case: Case) -> list[Event]:
    """Slurm's lines that name tasks, but for those that come later than the first and may follow from it."""
    told = [e for e in case.of("slurm-oom") if ranks_of(e)]
    first = _first_ns(told)
    return [e for e in told if first is None or e.time_ns is None or e.time_ns - first <= AT_ONCE_S * SECOND]


def _first_ns(events: Iterable[Event]) -> int | None:
    return min((e.time_ns for e in events if e.time_ns is not None), default=None)
