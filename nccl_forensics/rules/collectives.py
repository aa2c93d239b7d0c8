"""What the process groups say: who never came, who called something else, who waits in a circle."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_forensics.identify import MOST_RANKS
from nccl_forensics.model import Finding
from nccl_forensics.rules import Case, number, rule, text, weight


@rule
def suspects(case: Case) -> Iterator[Finding]:
    """The reconstruction's suspects, as findings."""
    for suspect in case.collectives.suspects:
        if not suspect.evidence:
            continue
        hosts = {case.known.ranks[r].host for r in suspect.ranks if r in case.known.ranks}
        machines = {p.host for p in case.known.ranks.values() if p.host}
        one_host = suspect.cause == "fabric_error" and len(machines) == 1  # then there is no fabric between hosts
        gpus = tuple(p.gpu for r in suspect.ranks if (p := case.known.ranks.get(r)) is not None and p.gpu is not None)
        yield Finding(
            cause=suspect.cause,
            says=suspect.says,
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
                says=f"PyTorch's monitored barrier names the ranks that never came: {', '.join(map(str, ranks))}",
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
                    says=f"{joined} of {world} ranks reached the creation of the group, and these are known by "
                    f"name; the others never came",
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
                says=f"PyTorch's desync report names ranks {', '.join(map(str, ranks))} of its group as lagging",
                weight=weight("pytorch_names_ranks"),
                ranks=tuple(int(r) for r in ranks),
                events=(event,),
            )


@rule
def fingerprints_differ(case: Case) -> Iterator[Finding]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL found two ranks in different collectives; which one is wrong is not known."""
    for event in case.of("pgw-mismatch")[:1]:
        a, b = number(event, "rank_a"), number(event, "rank_b")
        yield Finding(
            cause="collective_mismatch",
            says=f"PyTorch's fingerprint check: rank {a} was in {text(event, 'op_a') or 'one collective'}, rank {b} in "
            f"{text(event, 'op_b') or 'another'} at the same place",
            weight=weight("detail_mismatch"),
            events=(event,),
            detail="pair",
        )
