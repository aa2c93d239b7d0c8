"""Obvious suspects that are innocent, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from nccl_forensics.catalog import causes_marked
from nccl_forensics.model import Cleared, Event, Evidence, Gpu, number
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, numbered, say
from nccl_forensics.verdict.case import Case
from nccl_forensics.waits.watchdogs import reporting_ranks, waiting_ranks

NOBODYS = causes_marked("nobodys-fault")
"""Causes for which no rank is to blame, so that all who waited are cleared."""
WITNESS = say("told of the failure, and of nothing of its own that failed before: a witness until shown otherwise")
VICTIM = say("entered the collective and waited in it: whoever reports a timeout is a victim until shown otherwise")
COMPLAINTS = ("watchdog-timeout", "pg-async", "pg-blocking")
"""Lines by which a rank's watchdog reports what it saw."""
ECHOES = frozenset({43, 45, 154})
"""Xids that follow the failure of a process or of another card."""
NOT_THE_CAUSE = -2
"""Log-odds of an event's time up to which it has nothing to do with the job's failure. Our judgement."""
MOST_CLEARED = 60


def cleared(case: Case, ranks: Collection[int], gpus: Sequence[Gpu], *, named_somebody: bool) -> tuple[Cleared, ...]:
    """Who is innocent beside those named: `ranks` and `gpus`, and whoever can be among them."""
    found: list[Cleared] = []
    if named_somebody:
        found += _waited_or_told(case, ranks)
    found += _first_for_torchrun(case, ranks)
    found += _cards_with_echoes(case, gpus)
    return tuple(found[:MOST_CLEARED])


def _waited_or_told(case: Case, ranks: Collection[int]) -> Iterator[Cleared]:
    """Ranks that waited, or told of the failure and of nothing of their own: the first to complain, then by reason."""
    reasons = _reasons(case, ranks)
    complained = _first_complaints(case)
    first = _first_to_complain(case, complained, reasons)
    if first is not None:
        why = reasons.pop(first)
        who = say("Rank {n}, the first to complain", n=first)
        yield Cleared(who=who, rank=first, why=why, evidence=complained[first])
    by_reason: dict[str, list[int]] = defaultdict(list)
    for rank, why in reasons.items():
        by_reason[why].append(rank)
    for why, alike in by_reason.items():
        yield Cleared(
            who=phrases.ranks(alike).capitalize(),
            rank=alike[0] if len(alike) == 1 else None,
            ranks=tuple(alike),
            why=numbered(why, len(alike)),
            evidence=next((complained[r] for r in alike if r in complained), None),
        )


def _reasons(case: Case, ranks: Collection[int]) -> dict[int, str]:
    """Innocent rank → why, by rank: the collectives' own reason first."""
    doubtful = set(ranks) | set(case.collectives.cannot_exclude)
    waited = set(waiting_ranks(case.events))
    failed = {e.rank for e in case.events if e.role == "cause"}
    witnesses = set(reporting_ranks(case.events)) - failed
    reasons = (
        dict.fromkeys(waited, VICTIM) | dict.fromkeys(witnesses - waited, WITNESS) | dict(case.collectives.cleared)
    )
    return {rank: reasons[rank] for rank in sorted(reasons) if rank not in doubtful}


def _first_complaints(case: Case) -> dict[int, Evidence]:
    """Rank → its first line of complaint, in the order of these lines."""
    found: dict[int, Evidence] = {}
    for event in case.of(*COMPLAINTS):
        if event.rank is not None:
            found.setdefault(event.rank, event.evidence)
    return found


def _first_to_complain(case: Case, complained: Iterable[int], innocent: Collection[int]) -> int | None:
    """The first innocent rank of several; None where several clocks told the time, for nobody can be called first."""
    clocks = {e.clock for e in case.of(*COMPLAINTS) if e.clock}
    if len(innocent) < 2 or len(clocks) != 1:
        return None
    return next((rank for rank in complained if rank in innocent), None)


def _first_for_torchrun(case: Case, ranks: Collection[int]) -> Iterator[Cleared]:
    """The 'root cause' of torchrun's report, where it is none of those named."""
    for event in case.of("exit"):
        if event.details.get("first") and event.rank is not None and event.rank not in ranks:
            yield Cleared(
                who=say("Rank {n}, torchrun's 'root cause'", n=event.rank),
                rank=event.rank,
                why=say(
                    "torchrun names the first process that it saw end on that node, in whole seconds; often a survivor"
                ),
                evidence=event.evidence,
            )


def _cards_with_echoes(case: Case, gpus: Sequence[Gpu]) -> Iterator[Cleared]:
    """Cards whose Xids followed another failure, or came at another time."""
    named = {g.pci for g in gpus}
    of_card: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in case.of("xid"):
        if event.gpu_pci and event.gpu_pci not in named:
            of_card[event.host, event.gpu_pci].append(event)
    for (host, pci), xids in sorted(of_card.items(), key=lambda x: (x[0][0] or "", x[0][1])):
        reasons = _reasons_of_card(case, xids)
        if reasons:
            yield Cleared(
                who=say("GPU {pci}", pci=pci) + (say(" in {host}", host=host) if host else ""),
                why=joined(reasons, "; "),
                gpu_pci=pci,
                rank=case.known.rank_of_gpu(host, pci),
                evidence=xids[0].evidence,
            )


def _reasons_of_card(case: Case, xids: Sequence[Event]) -> list[str]:
    """Why all Xids of one card mean nothing; [] if one of them can be the cause."""
    echoes = [e for e in xids if number(e, "xid") in ECHOES]
    others = [e for e in xids if number(e, "xid") not in ECHOES]
    at_another_time = _why_at_another_time(case, others)
    if others and at_another_time is None:
        return []
    reasons = [at_another_time] if at_another_time is not None else []
    if echoes:
        numbers = phrases.listing(str(n) for n in sorted({number(e, "xid") or 0 for e in echoes}))
        reasons.append(
            say("Xid {numbers}: the echo of a process or another card that had already failed", numbers=numbers)
        )
    return reasons


def _why_at_another_time(case: Case, xids: Sequence[Event]) -> str | None:
    """Why none of these Xids came when the job failed; None if one of them can have."""
    timings = [case.timing(e) for e in xids]
    when = next((why for _, why in timings if why), None)
    if when is None or any(shift > NOT_THE_CAUSE for shift, _ in timings):
        return None
    numbers = phrases.listing(sorted({str(number(e, "xid")) for e in xids}))
    return say("Xid {numbers}: {why}", numbers=numbers, why=when)
