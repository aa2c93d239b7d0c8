"""Obvious suspects that are innocent, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from nccl_forensics.model import Cleared, Event, Evidence, Gpu, number
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, numbered, say
from nccl_forensics.verdict.case import Case
from nccl_forensics.waits.watchdogs import reporting_ranks, waiting_ranks

NOBODYS = frozenset({"preempted", "nccl_setup", "fabric_error", "storage_stall", "store_lost"})
"""Causes for which no rank is to blame, so that all who waited are cleared."""
WITNESS = say("told of the failure, and of nothing of its own that failed before: a witness until shown otherwise")
VICTIM = say("entered the collective and waited in it: whoever reports a timeout is a victim until shown otherwise")


def cleared(case: Case, ranks: Collection[int], gpus: Sequence[Gpu], *, named_somebody: bool) -> tuple[Cleared, ...]:
    found: list[Cleared] = []
    said = dict(case.collectives.cleared) if named_somebody else {}
    first_line: dict[int, Evidence] = {}
    for event in case.of("watchdog-timeout", "pg-async", "pg-blocking"):
        rank = event.rank if event.rank is not None else number(event, "group_rank")
        if rank is not None:
            first_line.setdefault(rank, event.evidence)
    doubtful = set(ranks) | set(case.collectives.cannot_exclude)
    waited = set(waiting_ranks(case.events)) if named_somebody else set()
    failed = {e.rank for e in case.events if e.role == "cause"}
    told = set(reporting_ranks(case.events)) - failed if named_somebody else set()
    innocent = [r for r in sorted(waited | told | set(said)) if r not in doubtful]
    said = dict.fromkeys(told - waited, WITNESS) | said
    clocks = {e.clock for e in case.of("watchdog-timeout", "pg-async", "pg-blocking") if e.clock}
    first = next((r for r in first_line if r in innocent), None)
    if first is not None and len(innocent) > 1 and len(clocks) == 1:  # across hosts nobody can be called the first
        found.append(
            Cleared(
                who=say("Rank {n}, the first to complain", n=first),
                rank=first,
                why=said.get(first, VICTIM),
                evidence=first_line[first],
            )
        )
        innocent.remove(first)
    by_reason: dict[str, list[int]] = defaultdict(list)
    for rank in innocent:
        by_reason[said.get(rank, VICTIM)].append(rank)
    for why, alike in by_reason.items():
        found.append(
            Cleared(
                who=phrases.ranks(alike).capitalize(),
                rank=alike[0] if len(alike) == 1 else None,
                ranks=tuple(alike),
                why=numbered(why, len(alike)),
                evidence=next((first_line[r] for r in alike if r in first_line), None),
            )
        )
    for event in case.of("exit"):
        if event.details.get("first") and event.rank is not None and event.rank not in ranks:
            found.append(
                Cleared(
                    who=say("Rank {n}, torchrun's 'root cause'", n=event.rank),
                    rank=event.rank,
                    why=say(
                        "torchrun names the first process that it saw end on that node, in whole seconds; often "
                        "a survivor"
                    ),
                    evidence=event.evidence,
                )
            )
    named = {g.pci for g in gpus}
    echoes: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in case.of("xid"):
        if event.gpu_pci and event.gpu_pci not in named:
            echoes[event.host, event.gpu_pci].append(event)
    for (host, pci), inside in sorted(echoes.items(), key=lambda x: (x[0][0] or "", x[0][1])):
        numbers = {number(e, "xid") for e in inside}
        echo, other = numbers & {43, 45, 154}, [e for e in inside if number(e, "xid") not in (43, 45, 154)]
        reasons = list(dict.fromkeys(r for e in other if (r := case.timing(e)[1]) and case.timing(e)[0] <= -2))
        if other and not (reasons and all(case.timing(e)[0] <= -2 for e in other)):
            continue
        said_of = (
            [
                say(
                    "Xid {numbers}: {why}",
                    numbers=phrases.listing(sorted({str(number(e, "xid")) for e in other})),
                    why=reasons[0],
                )
            ]
            if other
            else []
        )
        if echo:
            only = phrases.listing(str(n) for n in sorted(n for n in echo if n is not None))
            said_of.append(
                say("Xid {numbers}: the echo of a process or another card that had already failed", numbers=only)
            )
        why = joined(said_of, "; ")
        found.append(
            Cleared(
                who=say("GPU {pci}", pci=pci) + (say(" in {host}", host=host) if host else ""),
                why=why,
                gpu_pci=pci,
                rank=case.known.rank_of_gpu(host, pci),
                evidence=inside[0].evidence,
            )
        )
    return tuple(found[:60])
