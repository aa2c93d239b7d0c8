"""What the process groups say: who never came, who called something else, who waits in a circle."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from nccl_forensics import words
from nccl_forensics.identify import MOST_RANKS
from nccl_forensics.messages import say
from nccl_forensics.model import Event, Finding
from nccl_forensics.rules import Case, number, rule, text, weight
from nccl_forensics.watchdogs import reporter


@rule
def suspects(case: Case) -> Iterator[Finding]:
    """The reconstruction's suspects, as findings. One whose watchdog answers the others' signal has not disappeared."""
    answered = {e.rank for e in case.of("pg-observed", "pg-dump-remote") if e.rank is not None}
    for suspect in case.collectives.suspects:
        if not suspect.evidence:
            continue
        hosts = {case.known.ranks[r].host for r in suspect.ranks if r in case.known.ranks}
        machines = {p.host for p in case.known.ranks.values() if p.host}
        one_host = suspect.cause == "fabric_error" and len(machines) == 1  # then there is no fabric between hosts
        gpus = tuple(p.gpu for r in suspect.ranks if (p := case.known.ranks.get(r)) is not None and p.gpu is not None)
        heard = suspect.cause == "process_missing" and set(suspect.ranks) <= answered
        yield Finding(
            cause="rank_not_arrived" if heard else suspect.cause,
            says=say(
                "{says} The watchdog of {ranks} still answered the others.",
                says=suspect.says,
                ranks=words.ranks(suspect.ranks),
            )
            if heard
            else suspect.says,
            weight=suspect.weight - (2.0 if one_host else 0.0),
            ranks=suspect.ranks,
            hosts=tuple(sorted(h for h in hosts if h)),
            gpus=gpus,
            evidence=suspect.evidence,
            inference=True,
            detail=str(suspect.details["detail"]) if suspect.details.get("detail") else None,
            onset_ns=suspect.group.first_arrival_ns if suspect.group else None,
        )


@rule
def pytorch_names_them(case: Case) -> Iterator[Finding]:
    """monitoredBarrier, the store barrier and the desync report name or count the ranks that did not come."""
    for event in case.of("monitored-barrier")[:1]:
        ranks = event.details.get("ranks")
        if isinstance(ranks, tuple) and ranks:
            yield Finding(
                cause="rank_not_arrived",
                says=say(
                    "PyTorch's monitored barrier names the ranks that never came: {numbers}",
                    numbers=", ".join(map(str, ranks)),
                ),
                weight=weight("pytorch_names_ranks"),
                ranks=tuple(int(r) for r in ranks),
                events=(event,),
            )
    barriers = case.of("store-barrier")
    if barriers:
        arrived = {r for e in barriers if (r := number(e, "at_rank")) is not None}
        world, joined = number(barriers[0], "world_size"), number(barriers[0], "joined")
        if world and world <= MOST_RANKS and joined is not None:
            missing = tuple(r for r in range(world) if r not in arrived)
            if len(arrived) == joined and missing:
                yield Finding(
                    cause="rank_not_arrived",
                    says=say(
                        "{joined} of {world} ranks reached the creation of the group, and these are known by name; "
                        "the others never came",
                        joined=joined,
                        world=world,
                    ),
                    weight=weight("counted_out"),
                    ranks=missing,
                    events=barriers[:2],
                    inference=True,
                )
    for event in case.of("pg-desync")[:1]:
        ranks = event.details.get("ranks")
        if isinstance(ranks, tuple) and ranks:
            yield Finding(
                cause="rank_not_arrived",
                says=say(
                    "PyTorch's desync report names ranks {numbers} of its group as lagging",
                    numbers=", ".join(map(str, ranks)),
                ),
                weight=weight("pytorch_names_ranks"),
                ranks=tuple(int(r) for r in ranks),
                events=(event,),
            )


GLOO_KEY = re.compile(r"//cpu//\d{1,9}/(?P<rank>\d{1,7})$")
"""Where ProcessGroupGloo looks for the address of a peer: its rank in the group stands last."""
LOST = re.compile(r"(?i)connection (?:reset|refused|closed)|broken pipe|failed to recv")
"""The store went away, rather than that a key was not set in time."""


@rule
def waited_for_one(case: Case) -> Iterator[Finding]:
    """In set-up a rank waits for a certain other: for rank 0 and its unique id with NCCL, for each peer's address with
    Gloo. Where ranks of the group and of the job do not agree, it is a group of some, and nobody is named."""
    waits: dict[int, dict[int, Event]] = defaultdict(dict)
    for event in case.of("pg-uniqueid", "store-wait"):
        who = reporter(event) if event.rank is not None else number(event, "waiting_rank")
        key = GLOO_KEY.search(text(event, "key") or "")
        if event.kind == "pg-uniqueid" and who is not None and number(event, "waiting_rank") == who:
            waits[0].setdefault(who, event)
        elif key and who is not None:
            waits[int(key["rank"])].setdefault(who, event)
    complained = {e.rank for e in case.of("watchdog-timeout", "pg-uniqueid", "store-wait", "python-exception")}
    for rank, waiting in waits.items():
        world = case.known.world_size or max((*waiting, *case.known.ranks, rank)) + 1
        everyone = len(waiting) == world - 1
        if rank in waiting or rank in complained or len(waits) > 1 or case.of("watchdog-timeout"):
            continue
        lost = any(LOST.search(text(e, "error") or "") for e in waiting.values())
        sure = everyone and len(waiting) > 1 and not lost
        yield Finding(
            cause="process_missing" if lost else "rank_not_arrived",
            says=say(
                "{waiting} waited in set-up for rank {rank}, ", waiting=words.ranks(waiting).capitalize(), rank=rank
            )
            + (
                say("and the connection to the store, which rank 0 or its launcher keeps, broke")
                if lost
                else say("which never answered")
            ),
            weight=weight("counted_out") if sure else weight("counted_out") - 0.8,
            ranks=(rank,),
            events=tuple(waiting.values())[:3],
            inference=True,
        )


@rule
def one_watchdog_stuck(case: Case) -> Iterator[Finding]:
    """Only one rank's own watchdog hung in a CUDA or NCCL call (or for Python's lock), and nobody reported a wait."""
    stuck = {e.rank: e for e in case.of("pg-heartbeat") if e.rank is not None and number(e, "stuck_s") is not None}
    alone = len(stuck) == 1 and bool(set(case.known.ranks) - set(stuck))
    if not alone or any(e.rank in stuck for e in case.of("watchdog-timeout")):
        return
    ((rank, event),) = stuck.items()
    yield Finding(
        cause="gpu_stall",
        says=say(
            "Of all ranks only rank {rank} says that its own watchdog hung in a call to CUDA or NCCL, or "
            "waited for Python's lock",
            rank=rank,
        ),
        weight=weight("stuck_watchdog"),
        ranks=(rank,),
        events=(event,),
        inference=True,
        onset_ns=event.time_ns,
    )


@rule
def fingerprints_differ(case: Case) -> Iterator[Finding]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL found two ranks in different collectives; which one is wrong is not known."""
    for event in case.of("pgw-mismatch")[:1]:
        a, b = number(event, "rank_a"), number(event, "rank_b")
        yield Finding(
            cause="collective_mismatch",
            says=say(
                "PyTorch's fingerprint check: rank {a} was in {op_a}, rank {b} in {op_b} at the same place",
                a=a,
                op_a=text(event, "op_a") or say("one collective"),
                b=b,
                op_b=text(event, "op_b") or say("another"),
            ),
            weight=weight("detail_mismatch"),
            events=(event,),
            detail="pair",
        )
