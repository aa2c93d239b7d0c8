"""Ranks that a framework's own check names as missing: Horovod, JAX's coordination service, DeepEP, Ray, vLLM, Gloo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, numbers, text
from nccl_forensics.names import MOST_RANKS
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.waits.reports import OUTLIERS

TOGETHER_NS = 2_000_000_000
"""JAX's service looks once a second (CheckStaleness): what it finds within two belongs together. Our judgement."""


def _too_many(missing: Sequence[int], world: int) -> float:
    return weight("too_many_late") if len(missing) > max(1, OUTLIERS * world) else 0.0


@rule
def horovod_names_them(case: Case) -> Iterator[Finding]:
    """Horovod's coordinator lists who has not submitted tensors for which the others wait.

    A rank that submitted something nobody else has is ahead of them, and one that submits other tensors than the rest
    is no late one: then the ranks called different collectives.
    """
    reports = [e for e in case.of("horovod-stall") if not case.went_on(e)]
    if not reports:
        return
    last = reports[-1]
    if last.details.get("tensors_differ") is True:
        yield _other_tensors(last)
        return
    missing, world = _missing(case, reports), _world(case, last)
    came = world - len(missing)
    if not missing or came < 1:
        return
    if came == 1 and world > 2:
        yield _alone(last, next(r for r in range(world) if r not in missing))
        return
    yield Finding(
        cause="rank_not_arrived",
        says=say(
            "Horovod waits for {ranks}: all others have submitted {tensor}",
            ranks=phrases.ranks(missing),
            tensor=(text(last, "tensor") or say("a tensor"))[:120],
        )
        + (say(", as told {n} times", n=len(reports)) if reports[1:] else ""),
        weight=weight("framework_names_ranks") + _too_many(missing, world),
        ranks=missing,
        events=(reports[0], *reports[1:][-1:]),
    )


def _world(case: Case, report: Event) -> int:
    """Ranks of the job: as a log states, else one more than the highest that is told; one of them at least has come."""
    missing = numbers(report, "missing")
    named = (*missing, *numbers(report, "ready"), *case.known.ranks)
    return case.known.world_size or max(max(named, default=-1) + 1, len(missing) + 1)


def _missing(case: Case, reports: Sequence[Event]) -> tuple[int, ...]:
    """The ranks that every report misses. Where only those that came are told, the others up to the highest of them."""
    found: list[set[int]] = []
    for report in reports:
        world = _world(case, report)
        if 0 < world <= MOST_RANKS:
            ready = set(numbers(report, "ready"))
            found.append(set(numbers(report, "missing")) or ({*range(world)} - ready if ready else set()))
    return tuple(sorted(set.intersection(*found))) if found else ()


def _other_tensors(report: Event) -> Finding:
    return Finding(
        cause="collective_mismatch",
        says=say("Horovod's ranks wait for each other: each has submitted tensors that the others have not"),
        weight=weight("reports_tied"),
        events=(report,),
    )


def _alone(report: Event, rank: int) -> Finding:
    return Finding(
        cause="collective_skipped",
        says=say("Horovod: only rank {rank} submitted this tensor; no other did", rank=rank),
        weight=weight("lone_waiter") + weight("reports_perhaps_shifted"),
        ranks=(rank,),
        events=(report,),
        inference=True,
    )


@rule
def jax_lost_a_process(case: Case) -> Iterator[Finding]:
    """JAX's coordination service hears no more of some processes: they ended, or their hosts can't answer."""
    lost = [e for e in case.of("jax-lost") if not case.went_on(e)]
    if not lost:
        return
    first = lost[0]
    gone = set(numbers(first, "lost"))
    for event in lost[1:]:
        if event.time_ns is None or first.time_ns is None or event.time_ns - first.time_ns <= TOGETHER_NS:
            gone.update(numbers(event, "lost"))
    world = case.known.world_size or max((*case.known.ranks, *gone)) + 1
    yield Finding(
        cause="process_missing",
        says=say(
            "JAX's coordination service: {ranks} stopped sending heartbeats: ended, or unable to answer",
            ranks=phrases.ranks(gone),
        ),
        weight=weight("heartbeat_lost") + _too_many(tuple(gone), max(world, 4)),
        ranks=tuple(sorted(gone)),
        events=tuple(lost[:3]),
    )


@rule
def jax_barrier_names_them(case: Case) -> Iterator[Finding]:
    """A barrier of JAX's coordination service names the processes that did not come; what most missed tells little."""
    for event in case.of("jax-barrier"):
        missing, joined = numbers(event, "missing"), number(event, "joined")
        world = number(event, "world_size") or case.known.world_size
        if not missing or event.details.get("complete") is not True or case.went_on(event):
            continue
        if joined is not None and len(missing) >= joined:
            continue
        yield Finding(
            cause="rank_not_arrived",
            says=say(
                "JAX's barrier {barrier} names the processes that never came: {numbers}",
                barrier=text(event, "barrier"),
                numbers=", ".join(map(str, missing)),
            ),
            weight=weight("framework_names_ranks") + (_too_many(missing, world) if world else 0.0),
            ranks=missing,
            events=(event,),
        )
        return


@rule
def deepep_names_them(case: Case) -> Iterator[Finding]:
    """DeepEP's barrier shows whose signal none of the waiting GPUs has, by numbers in the group.

    These are ranks of the job only where the group is as large as the job.
    """
    checks = [e for e in case.of("deepep-barrier") if not case.went_on(e)]
    waiting = {n for e in checks if (n := number(e, "at_member")) is not None}
    size = len({number(e, "peer_member") for e in checks})
    peers = set.intersection(*(_peers(checks, who, came=False) for who in waiting)) - waiting if waiting else set[int]()
    if not peers or len(peers) > max(1, OUTLIERS * size):
        return
    shown = [e for e in checks if number(e, "peer_member") in peers]
    yield Finding(
        cause="rank_not_arrived",
        says=say(
            "DeepEP's barrier: {waiting} waited for {peers} of their group; the launch failure behind it is the trap "
            "that ends this wait",
            waiting=phrases.listing(map(str, sorted(waiting))),
            peers=phrases.listing(map(str, sorted(peers))),
        ),
        weight=weight("framework_names_ranks"),
        ranks=tuple(sorted(peers)) if case.known.world_size == size else (),
        events=tuple(shown[:3]),
    )


def _peers(checks: Iterable[Event], who: int, *, came: bool) -> set[int]:
    """The peers that came to this member, or that did not."""
    return {
        peer
        for e in checks
        if number(e, "at_member") == who
        and e.details.get("came") is came
        and (peer := number(e, "peer_member")) is not None
    }


@rule
def gloo_sizes_differ(case: Case) -> Iterator[Finding]:
    """Gloo got more bytes than its own call takes: two ranks made different calls; which is wrong it can't tell."""
    told = [e for e in case.of("gloo-size") if not case.went_on(e)]
    if not told:
        return
    first = told[0]
    yield Finding(
        cause="collective_mismatch",
        says=say(
            "Gloo on {where} received {received} bytes where its own call takes {expected}: the ranks' calls differ",
            where=phrases.ranks((first.rank,)) if first.rank is not None else say("a rank"),
            received=number(first, "received_bytes"),
            expected=number(first, "expected_bytes"),
        ),
        weight=weight("detail_mismatch"),
        events=tuple(told[:3]),
    )


@rule
def engines_worker_died(case: Case) -> Iterator[Finding]:
    """A serving engine saw one of its workers end first, and no process says why; told to end, workers end, too."""
    told = case.of("worker-died")
    raised = [e for e in case.of("python-exception", "cuda-oom", "cuda-error") if e.role == "cause"]
    stopped = [e for e in case.of("python-exception") if text(e, "type") in ("SystemExit", "KeyboardInterrupt")]
    if not told or raised or stopped or case.went_on(told[0]):
        return
    first = told[0]
    yield Finding(
        cause="process_missing",
        says=say(
            "The engine saw the process of worker {n} end first, without a message of its own",
            n=number(first, "worker"),
        ),
        weight=weight("framework_names_ranks"),
        ranks=if_known(first.rank),
        events=(first,),
        onset_ns=first.time_ns,
    )


@rule
def ray_lost_a_node(case: Case) -> Iterator[Finding]:
    """Ray hears no more of a node: it went away, or its raylet can't answer."""
    seen: set[str | None] = set()
    for event in case.of("ray-node-died"):
        address = text(event, "address")
        if address in seen or case.went_on(event):
            continue
        seen.add(address)
        shift, why = case.timing(event)
        yield Finding(
            cause="node_lost",
            says=say("Ray hears no more of the node with the address {address}", address=address) + phrases.aside(why),
            weight=weight("heartbeat_lost") + shift,
            hosts=if_known(event.host),
            events=(event,),
            onset_ns=event.time_ns,
        )
