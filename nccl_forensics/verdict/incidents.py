"""Weighs the causes against each other and says how sure that is.

Rules (rules/*.py) yield findings: a cause, whom it concerns, and log-odds. Here they are added up to hypotheses,
related to what the collectives say about who never came, and normalised over all hypotheses and 'something else'.
The derivation and its limits are in docs/reasoning.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.model import Event, Finding, Hypothesis, Incident, InputRow, Reconstruction, Verdict
from nccl_forensics.names import same_host, short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.verdict import advice, pulse
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.cleared import NOBODYS, cleared
from nccl_forensics.verdict.drafts import same_gpu
from nccl_forensics.verdict.ranks import ranks_table
from nccl_forensics.verdict.rules import findings
from nccl_forensics.verdict.weigh import WORTH_CITING, weigh
from nccl_forensics.waits.watchdogs import reporting_ranks, waiting_ranks
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.when.zones import SKEW_S
from nccl_forensics.who.identities import Identities

DETECTED = kinds_marked("notices")
"""Lines by which the job itself noticed."""

IDENTIFIED, SUSPECTED = 0.8, 0.4
"""The contract's limits for a verdict's status."""
WORTH_AN_INCIDENT = 0.95
"""Log-odds that a host's own lines need to be an incident without any job. Our judgement."""
SEPARATE_S = 3600
"""Without a job: failures of one host further apart than this are incidents of their own. Our judgement."""


def diagnose(
    aligned: Aligned, known: Identities, collectives: Reconstruction, rows: Sequence[InputRow]
) -> tuple[Incident, ...]:
    """The incidents in the pile, in time order: the failure of the job; where there is no job, failures of hosts."""
    case = Case(events=aligned.events, known=known, collectives=collectives, aligned=aligned, rows=tuple(rows))
    found = list(findings(case))
    if case.job:
        incident = _incident(1, found, case)
        return (incident,) if incident else ()
    ended = [e for e in case.events if e.kind == "progress" and e.details.get("what") == "finished"]
    latest: dict[str, int] = {}
    for event in case.events if ended else ():
        if event.time_ns is not None:
            latest[event.evidence.source] = max(event.time_ns, latest.get(event.evidence.source, event.time_ns))
    ends = [(e, latest.get(e.evidence.source)) for e in ended]
    found = [f for f in found if not any(_survived(f, e, at) for e, at in ends)]
    incidents = [i for n, group in enumerate(_clusters(found), 1) if (i := _incident(n, group, case))]
    incidents.sort(key=lambda i: (i.onset_ns is None, i.onset_ns or 0))
    return tuple(replace(i, id=n) for n, i in enumerate(incidents, 1))


def _survived(finding: Finding, ended: Event, ended_ns: int | None) -> bool:
    """Did a job end in order after this, for all that is known? One that had ended before says nothing of it.

    `ended_ns`: the last time in the file that says so.
    """
    first = min((e.time_ns for e in finding.events if e.time_ns is not None), default=finding.onset_ns)
    if first is None or ended_ns is None or is_dated(first) != is_dated(ended_ns):
        return True
    elsewhere = ended.host and finding.hosts and not any(same_host(ended.host, h) for h in finding.hosts)
    return not elsewhere and first <= ended_ns + SKEW_S * SECOND


def _clusters(found: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one host within an hour, or on one GPU, belong together."""
    clusters: list[list[Finding]] = []
    for finding in sorted(found, key=lambda f: (f.onset_ns is None, f.onset_ns or 0)):
        joined = [c for c in clusters if any(_together(finding, other) for other in c)]
        for cluster in joined:
            clusters.remove(cluster)
        clusters.append([f for c in joined for f in c] + [finding])
    return clusters


def _together(a: Finding, b: Finding) -> bool:
    if any(same_gpu(x, y) for x in a.gpus for y in b.gpus):
        return True
    if a.hosts and b.hosts and not any(same_host(x, y) for x in a.hosts for y in b.hosts):
        return False
    if a.onset_ns is None or b.onset_ns is None:
        return True
    return abs(a.onset_ns - b.onset_ns) <= SEPARATE_S * SECOND


def _incident(number_: int, found: Sequence[Finding], case: Case) -> Incident | None:
    hypotheses = weigh(found, case)
    collectives = case.collectives
    reporters = reporting_ranks(case.events)
    if not hypotheses and not (case.job and (collectives.groups or case.detected)):
        return None
    if not case.job and max((f.weight for f in hypotheses[0].findings), default=0.0) < WORTH_AN_INCIDENT:
        return None  # noise and doubtful lines of a host make no incident of a job that nobody mentions
    if case.job and not hypotheses and collectives.healthy:
        return None
    verdict = _verdict(hypotheses, case, reporters)
    seen = case.detected if case.job else None
    top = hypotheses[0] if hypotheses else None
    onset = None
    if top is not None and verdict.cause == top.cause:
        struck = [f.onset_ns for f in top.findings if f.onset_ns is not None and f.weight > 0 and f.cause == top.cause]
        onset = min(struck, default=None)
    if onset is None:
        onset = case.onset_ns
    last = [e.time_ns for e in case.events if e.time_ns is not None and e.kind in DETECTED | {"pg-abort", "exit"}]
    detected = seen.time_ns if seen is not None else None
    uncertainty = next(
        (e.uncertainty_ns for f in (top.findings if top else ()) for e in f.events if e.time_ns == onset), None
    )
    chosen = {id(f) for f in (top.findings if top else ())}
    contributing = tuple(
        {
            "cause": h.cause,
            "says": h.findings[0].says,
            "source": h.findings[0].events[0].evidence.source if h.findings[0].events else None,
            "line": h.findings[0].events[0].evidence.line if h.findings[0].events else None,
        }
        for h in hypotheses[1:]
        if h.cause in WORTH_A_TICKET
        and max(f.weight for f in h.findings if f.cause == h.cause) > WORTH_CITING
        and not any(id(f) in chosen for f in h.findings)
    ) + tuple(advice.settings(case))
    waited = None
    struck_on = {
        e.clock for f in (top.findings if top else ()) for e in f.events if onset is not None and e.time_ns == onset
    }
    guessed = {c for c in (*struck_on, seen.clock if seen else None) if c in case.aligned.assumed}
    if guessed and len(struck_on | ({seen.clock} if seen else set())) > 1:
        detected = None if seen is not None and seen.clock in guessed else detected
        onset = onset if not struck_on & guessed else None  # no moment in UTC from a clock whose zone is only assumed
    if detected is not None and onset is not None and detected >= onset:
        waited = (detected - onset) / SECOND
    return Incident(
        id=number_,
        onset_ns=onset,
        onset_uncertainty_ns=uncertainty,
        detected_ns=detected,
        ended_ns=max(last, default=None) if case.job else None,
        collective=collectives.groups[0] if case.job and collectives.groups else None,
        groups=collectives.groups if case.job else (),
        waits=collectives.waits if case.job else (),
        verdict=verdict,
        contributing=contributing,
        cost={
            "lost_work_s": pulse.lost_work_s(case),
            "detection_s": waited,
            "restart_s": None,
            "gpu_hours": _hours(waited, case),
        }
        if waited is not None
        else None,
        ranks=ranks_table(case, verdict),
    )


def _hours(waited_s: float | None, case: Case) -> float | None:
    """GPU-hours that the whole job stood still until somebody noticed; None if the number of ranks isn't known."""
    world = case.known.world_size
    return round(waited_s * world / 3600, 2) if waited_s is not None and world else None


WORTH_A_TICKET = frozenset(
    {
        "gpu_ecc_leak",
        "pcie_link",
        "gpu_thermal",
        "gpu_memory",
        "gpu_off_bus",
        "nic_link_down",
        "gpu_firmware",
        "storage_stall",
        "cpu_stall",
    }
)
"""Causes that deserve attention of their own even if something else stopped the job."""


def _verdict(hypotheses: Sequence[Hypothesis], case: Case, reporters: tuple[int, ...]) -> Verdict:
    top = hypotheses[0] if hypotheses else None
    sure = top is not None and top.confidence >= SUSPECTED
    cause = top.cause if top is not None and sure else "undetermined"
    status = (
        "identified" if top is not None and top.confidence >= IDENTIFIED else "suspected" if sure else "undetermined"
    )
    ranks = top.ranks if top is not None and sure else ()
    hosts = (top.hosts or _other_node(case, ranks)) if top is not None and sure else ()
    gpus = top.gpus if top is not None and sure else ()
    confidence = top.confidence if top is not None else 0.0
    evidence = (
        tuple(sorted(_unique(top.findings if top else ()), key=_chain))
        if sure
        else tuple(f for h in hypotheses[:3] for f in h.findings[:2])
    )
    alternatives = tuple((h, _why_not(h, top, case)) for h in hypotheses[1 if sure else 0 :][:6])
    cannot = set(case.collectives.cannot_exclude)
    if not ranks:  # whom the collectives suspect is not cleared by a verdict that names nobody
        cannot |= {r for s in case.collectives.suspects for r in s.ranks}
    draft = Verdict(
        status=status,  # type: ignore[arg-type]
        cause=cause,
        ranks=ranks,
        hosts=hosts,
        gpus=gpus,
        reporting_ranks=reporters,
        confidence=round(confidence, 3),
        summary="",
        evidence=evidence,
        alternatives=alternatives,
        cleared=(),
        cannot_exclude=(),
        missing_evidence=(),
        actions=(),
        posterior=top.posterior if top is not None else None,
    )
    users = set(advice.perhaps_on_gpus(draft, case))
    users = users - set(waiting_ranks(case.events)) or users
    draft = replace(
        draft,
        cleared=cleared(case, {*ranks, *users}, gpus, named_somebody=bool(ranks or hosts or gpus) or cause in NOBODYS),
        cannot_exclude=tuple(sorted((cannot | users) - set(ranks))),
    )
    return replace(
        draft,
        summary=advice.summary(draft, top, case),
        missing_evidence=advice.missing(draft, top, case),
        actions=advice.actions(draft, top, case),
    )


OTHER_NODE = say("the other node")
"""Stands for a host of two whose name no file tells."""


def _other_node(case: Case, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """The host of these ranks in words, where they are one half of the job and a single host is that of the other half.

    Launchers number the ranks of a node in a row, and start as many on each.
    """
    world = case.known.world_size or 0
    halves = (tuple(range(world // 2)), tuple(range(world // 2, world)))
    if world % 2 or ranks not in halves or len(ranks) < 2:
        return ()
    spoke = [e for e in case.events if e.rank is not None]
    hosts = {short(e.host) if e.host else None for e in spoke}
    others = {e.rank for e in spoke} == set(range(world)) - set(ranks)
    return (OTHER_NODE,) if others and len(hosts) == 1 and None not in hosts else ()


def _unique(found: Iterable[Finding]) -> list[Finding]:
    first: dict[str, Finding] = {}
    for finding in found:
        first.setdefault(finding.says, finding)
    return list(first.values())


def _chain(finding: Finding) -> tuple[bool, int]:
    times = [e.time_ns for e in finding.events if e.time_ns is not None]
    at = min(times, default=finding.onset_ns)
    return at is None, at or 0


def _why_not(h: Hypothesis, top: Hypothesis | None, case: Case) -> str:
    if top is not None and h is top:
        return say("the evidence for it is too thin to name it")
    negative = [f for f in h.findings if f.weight < 0]
    if negative:
        return negative[0].says
    if top is not None and top.ranks and h.ranks and not set(top.ranks) & set(h.ranks):
        if set(h.ranks) <= set(waiting_ranks(case.events)):
            return say("{ranks} entered the collective and waited in it", ranks=phrases.ranks(h.ranks))
        absent = {r for f in top.findings if f.cause in advice.LOCATES and f.weight > 0 for r in f.ranks}
        if set(top.ranks) & absent and not set(h.ranks) & absent:
            return say(
                "the rank that never came is {late}, not {who}",
                late=phrases.ranks(top.ranks),
                who=phrases.ranks(h.ranks),
            )
    if h.cause in advice.LOCATES:
        return say("it says who, not why")
    return say("less speaks for it") if top else say("little speaks for it")
