"""What schedulers remember of jobs and nodes: Slurm's accounting and node states, Kubernetes' pods and nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import same_host
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule

JOB_IN_NAME = re.compile(r"(?:slurm|job|jobid)[-_.]?(\d{3,12})(?!\d)", re.IGNORECASE)


def _job_ids(case: Case) -> set[str]:
    """Slurm job numbers that logs and file names speak of."""
    found = {m[1] for r in case.rows for m in JOB_IN_NAME.finditer(r.path.rsplit("/", 1)[-1])}
    for event in case.of("slurm-cancel", "slurm-time-limit", "preempted"):
        if job := text(event, "job"):
            found.add(re.split(r"[.+]", job)[0])
    return found


def _strange(case: Case, host: str | None) -> bool:
    """Is this a host on which the job, as far as it is known, had nothing?"""
    used = {p.host for p in case.known.ranks.values() if p.host}
    return host is not None and bool(used) and not any(same_host(host, h) for h in used)


def _by_host(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.host:
            found[event.host].append(event)
    return found


@rule
def scheduler_remembers(case: Case) -> Iterator[Finding]:
    """How Slurm says the job ended, and which nodes it could not reach. People cancel jobs that hang already."""
    silent = [e for e in case.of("slurm-node") if e.role == "symptom" and e.cause and not _strange(case, e.host)]
    ending = next((e for e in _ends_of_this_job(case) if not _stopped_for_it_hung(case, e)), None)
    if ending is not None:
        yield _slurms_record(ending, silent)
    for host, lines in _by_host(silent).items():
        first = lines[0]
        shift, why = case.timing(first)
        yield Finding(
            cause="node_lost",
            says=say(
                "Slurm lost contact with {host} ({reason})",
                host=host,
                reason=text(first, "reason") or text(first, "state"),
            )
            + phrases.aside(why),
            weight=weight("node_silent") + shift,
            hosts=(host,),
            events=tuple(lines[:2]),
            onset_ns=first.time_ns,
        )


def _ends_of_this_job(case: Case) -> list[Event]:
    """Slurm's rows of a bad end: of jobs that the logs speak of, else of the only job that it lists."""
    listed = {text(e, "job") for e in case.of("slurm-state")}
    rows = [e for e in case.of("slurm-state") if e.role == "cause"]
    if spoken_of := _job_ids(case) & listed:
        return [e for e in rows if text(e, "job") in spoken_of]
    return rows if len(listed) == 1 else []


def _stopped_for_it_hung(case: Case, event: Event) -> bool:
    """Was the job stopped after it had failed, or at no time that is known to be before?"""
    seen = case.detected
    return event.cause == "preempted" and seen is not None and case.aligned.before(event, seen) is not True


def _slurms_record(event: Event, silent: Sequence[Event]) -> Finding:
    """The row of Slurm that says how the job ended, with the nodes that it could not reach where one was lost."""
    lost, stopped = event.cause == "node_lost", event.cause == "preempted"
    hosts = () if stopped else if_known(event.host)
    if lost and not hosts:
        hosts = tuple(sorted({e.host for e in silent if e.host}))[:4]
    return Finding(
        cause=event.cause or "preempted",
        says=say("Slurm's record of job {job}: {state}", job=text(event, "job"), state=text(event, "state")),
        weight=weight("scheduler_remembers"),
        hosts=hosts,
        events=(event, *(silent[:2] if lost else ())),
        detail=text(event, "what"),
        onset_ns=event.time_ns if stopped else None,
    )


@rule
def cluster_remembers(case: Case) -> Iterator[Finding]:
    """Kubernetes: containers killed at their memory limit, nodes whose kubelet went silent."""
    for event in case.of("k8s-pod-ended"):
        if event.cause is not None and event.role != "context":
            yield from _pod_ended(case, event, event.cause)
    lost = [e for e in case.of("k8s-node-not-ready") if not _strange(case, e.host)]
    for host, lines in _by_host(lost).items():
        timed = [e for e in lines if e.time_ns is not None] or lines
        shift, why = case.timing(timed[0])
        yield Finding(
            cause="node_lost",
            says=say("Kubernetes: node {host} is not ready", host=host) + phrases.aside(why),
            weight=weight("node_silent") + shift,
            hosts=(host,),
            events=tuple(timed[:2]),
            onset_ns=timed[0].time_ns,
        )


def _pod_ended(case: Case, event: Event, cause: str) -> Iterator[Finding]:
    """A container of the job's that was ended; ranks are placed by the name of their pod or of its node."""
    pod, node = text(event, "pod"), text(event, "node")
    in_pod = case.known.ranks_on(pod)
    ranks = in_pod or case.known.ranks_on(node)
    host = pod if in_pod else event.host or pod
    if not ranks and _strange(case, host):
        return
    shift, why = case.timing(event)
    code = number(event, "exit_code")
    yield Finding(
        cause=cause,
        says=say("Kubernetes: a container of pod {pod} ended with {reason}", pod=pod, reason=text(event, "reason"))
        + (say(" (exit code {code})", code=code) if code is not None else "")
        + (say(" on {node}", node=node) if node else "")
        + phrases.aside(why),
        weight=(weight("cluster_states_it") if event.role == "cause" else 1.2) + shift,
        ranks=ranks if pod and len(ranks) == 1 else (),
        hosts=if_known(host),
        events=(event,),
        onset_ns=event.time_ns,
    )
