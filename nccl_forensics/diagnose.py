"""Weighs the causes against each other and says how sure that is.

Rules (rules/*.py) yield findings: a cause, whom it concerns, and log-odds. Here they are added up to hypotheses,
related to what the collectives say about who never came, and normalised over all hypotheses and 'something else'.
The derivation and its limits are in docs/reasoning.md.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import nsmallest

from nccl_forensics import advice, catalog, words
from nccl_forensics.clocks import SKEW_S, Aligned
from nccl_forensics.identify import Identities, same_host, short
from nccl_forensics.messages import joined, numbered, say
from nccl_forensics.model import (
    Cleared,
    Event,
    Evidence,
    Finding,
    Gpu,
    Hypothesis,
    Incident,
    InputRow,
    Rank,
    RankState,
    Reconstruction,
    Verdict,
)
from nccl_forensics.rules import DETECTED, SECOND, Case, findings, number, pulse, text, weight
from nccl_forensics.sniff import HOST_FORMATS
from nccl_forensics.watchdogs import reporting_ranks, waiting_ranks
from nccl_forensics.words import is_dated

IDENTIFIED, SUSPECTED = 0.8, 0.4
"""The contract's limits for a verdict's status."""
SUREST = 0.98
"""No log proves more than this. Our judgement."""
SPEAKS_FOR_ALL = frozenset({"fabric_error", "nccl_setup", "store_lost", "preempted", "storage_stall", "nvlink"})
"""Causes that strike more ranks than one, so that one late rank neither proves nor refutes them."""
SAME_STORY = {
    "python_exception": frozenset(
        {
            "cuda_oom",
            "storage_write_failed",
            "dataloader_failure",
            "gpu_app_fault",
            "gpu_memory",
            "gpu_off_bus",
            "shm_full",
        }
        | {"collective_mismatch", "nccl_setup", "store_lost", "gpu_other", "fabric_error"}
    ),
    "process_signal": frozenset({"host_oom_kill", "node_lost", "shm_full"}),
    "process_missing": frozenset({"process_signal", "node_lost", "host_oom_kill", "python_exception", "cuda_oom"}),
    "dataloader_failure": frozenset({"shm_full", "host_oom_kill"}),
    "node_lost": frozenset({"psu_rail_loss"}),
    "store_lost": frozenset(
        {"node_lost", "python_exception", "gpu_app_fault", "process_signal", "process_missing", "gpu_memory"}
    ),
    "fabric_error": frozenset({"nic_link_down", "nccl_setup", "node_lost"}),
    "pcie_link": frozenset({"gpu_off_bus", "psu_rail_loss"}),
    "gpu_off_bus": frozenset({"psu_rail_loss"}),
    "gpu_app_fault": frozenset({"gpu_off_bus", "gpu_memory"}),
    "rank_busy": frozenset({"storage_stall"}),
}
"""What the same failure also looks like: the hypothesis on the left gives way to one on the right, on one subject."""
PROVED = frozenset({("dataloader_failure", "host_oom_kill"), ("node_lost", "psu_rail_loss")})
"""Pairs of those in which the right one must be stated by a line, not only inferred."""
STANDS_ALONE = 1.5
"""Log-odds of its own lines from which on a cause gains by its place without reserve. Our judgement."""
WORTH_CITING = 0.5
"""Log-odds below which a finding of a swallowed hypothesis is not shown as evidence. Our judgement."""
EXPLAINS = 0.7
"""Log-odds from which on a hypothesis may take another one's findings over. Our judgement."""
WORTH_AN_INCIDENT = 0.95
"""Log-odds that a host's own lines need to be an incident without any job. Our judgement."""
SEPARATE_S = 3600
"""Without a job: failures of one host further apart than this are incidents of their own. Our judgement."""


@dataclass(slots=True)
class _Draft:
    """A hypothesis while its findings are being collected."""

    cause: str
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    gpus: list[Gpu] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    bonus: float = 0.0
    borrowed: list[Finding] = field(default_factory=list)
    """Findings of others that support this one."""
    _own: float | None = None
    """What `own` has answered since the last finding came."""

    def own(self) -> float:
        """Log-odds of its findings; each further one counts half of the one before, for they are not independent."""
        if self._own is None:
            ordered = sorted((f.weight for f in self.findings), reverse=True)
            positive = [w for w in ordered if w > 0]
            against = sum(w for w in ordered if w <= 0)
            self._own = sum((w / float(2**i) for i, w in enumerate(positive)), 0.0) + against
        return self._own

    def total(self) -> float:
        return self.own() + self.bonus + prior(self.cause)

    def touches(self, f: Finding) -> bool:
        if f.ranks and self.ranks:
            return bool(self.ranks & set(f.ranks))
        if f.gpus and self.gpus:
            return any(_same_gpu(g, mine) for g in f.gpus for mine in self.gpus)
        if f.hosts and self.hosts:
            return any(same_host(a, b) for a in f.hosts for b in self.hosts)
        return not (f.ranks or f.gpus or f.hosts) or not (self.ranks or self.gpus or self.hosts)

    def add(self, f: Finding) -> None:
        self.findings.append(f)
        self._own = None
        self.ranks |= set(f.ranks)
        for host in f.hosts:
            if not any(same_host(host, h) for h in self.hosts):
                self.hosts.add(host)
        for gpu in f.gpus:
            self.add_gpu(gpu)

    def add_gpu(self, gpu: Gpu) -> None:
        if not any(_same_gpu(gpu, mine) for mine in self.gpus):
            self.gpus.append(gpu)


def _same_gpu(a: Gpu, b: Gpu) -> bool:
    mine, other = (a.pci, b.pci) if a.pci or b.pci else (a.index, b.index)
    return mine is not None and mine == other and same_host(a.host, b.host)


@cache
def prior(cause: str) -> float:
    """Tie-breaker from published failure statistics (catalog/priors.toml)."""
    table = catalog.load("priors")
    share = float(table["share"].get(cause, table["rest"]))
    return 0.25 * math.log(share / float(table["rest"]))


def _drafts(found: Sequence[Finding]) -> list[_Draft]:
    drafts: list[_Draft] = []
    of_cause: dict[str, list[int]] = defaultdict(list)
    without_ranks: dict[str, set[int]] = defaultdict(set)
    first_with: dict[tuple[str, int], int] = {}
    for finding in sorted(found, key=lambda f: -f.weight):
        cause = finding.cause
        several_late = cause in advice.LOCATES and finding.inference and finding.weight > 0
        places: Iterable[int] = of_cause[cause]
        if finding.ranks and not several_late:  # drafts of other ranks are not touched
            mine = {place for rank in finding.ranks if (place := first_with.get((cause, rank))) is not None}
            places = sorted(mine | without_ranks[cause])
        for place in places:
            if several_late or drafts[place].touches(finding):
                break
        else:
            place = len(drafts)
            drafts.append(_Draft(cause))
            of_cause[cause].append(place)
        drafts[place].add(finding)
        if drafts[place].ranks:
            without_ranks[cause].discard(place)
        else:
            without_ranks[cause].add(place)
        for rank in finding.ranks:
            first_with[cause, rank] = min(place, first_with.get((cause, rank), place))
    return drafts


def _late(drafts: Iterable[_Draft]) -> tuple[frozenset[int], float, list[Finding]]:
    """(ranks that the collectives say never came, how sure that is, the findings)."""
    best = [d for d in drafts if d.cause in advice.LOCATES and d.ranks]
    if not best:
        return frozenset(), 0.0, []
    top = max(best, key=lambda d: d.own())
    return frozenset(top.ranks), top.own(), top.findings


def _same_subject(a: _Draft, b: _Draft) -> bool:
    if a.ranks and b.ranks:
        return bool(a.ranks & b.ranks)
    if a.gpus and b.gpus:
        return any(_same_gpu(x, y) for x in a.gpus for y in b.gpus)
    if a.hosts and b.hosts:
        return any(same_host(x, y) for x in a.hosts for y in b.hosts)
    return True


TAKES_THE_GPU = frozenset({"gpu_off_bus", "psu_rail_loss", "gpu_firmware", "gpu_memory", "pcie_link", "gpu_other"})
"""Causes after which a GPU computes no more, whatever program uses it."""


STOPS_NO_JOB = frozenset({"gpu_ecc_leak"})
"""Causes that keep no rank from coming: worth a ticket of their own, and nothing gained by a late rank."""
STRIKES_MANY = frozenset(
    {"python_exception", "cuda_oom", "storage_write_failed", "shm_full", "nccl_setup", "dataloader_failure"}
)
"""Causes that every rank meets where the program, its settings or what all share is wrong."""
STRIKES_HOSTS = frozenset({"storage_stall", "node_lost", "psu_rail_loss", "fabric_error", "nic_link_down"})
"""Causes that several hosts meet at once where what they share fails: a server, a switch, the power of a rack."""
AT_ONCE_S = 60
"""Within this time ranks tell of one failure; later ones may follow from the first. Our judgement."""
FIGURES = re.compile(r"[\d.]+")


def _of_many(drafts: Sequence[_Draft], late: frozenset[int], waited: set[int]) -> list[_Draft]:
    """Drafts, with one for the ranks or hosts that tell the same at once: a failure of all, not one for each."""
    kept: list[_Draft] = []
    first: dict[tuple[object, ...], list[_Draft]] = defaultdict(list)
    for draft in drafts:
        story = _story(draft)
        many = draft.ranks and draft.cause in STRIKES_MANY and not draft.ranks & waited - late
        whole = draft.hosts and not (draft.ranks or draft.gpus) and draft.cause in STRIKES_HOSTS and _timed(draft)
        if story is None or not (many or whole):
            kept.append(draft)
            continue
        key = (draft.cause, bool(whole), draft.ranks <= late, *story)
        twin = next((other for other in first[key] if _at_once(other, draft)), None)
        if twin is None:
            first[key].append(draft)
            kept.append(draft)
        else:
            for finding in draft.findings:
                twin.add(finding)
    return kept


def _story(draft: _Draft) -> tuple[str, str] | None:
    """(kind, words without figures) of the line that speaks loudest for a draft."""
    top = max(draft.findings, key=lambda f: f.weight)
    if top.weight <= 0 or not top.events:
        return None
    event = top.events[0]
    said = next((s for key in ("message", "error", "detail") if (s := text(event, key))), "")
    return event.kind, FIGURES.sub("", said)


def _timed(draft: _Draft) -> bool:
    return any(f.onset_ns is not None for f in draft.findings)


def _at_once(a: _Draft, b: _Draft) -> bool:
    one, other = (min((f.onset_ns for f in d.findings if f.onset_ns is not None), default=None) for d in (a, b))
    return one is None or other is None or abs(one - other) <= AT_ONCE_S * SECOND


def _in_this_job(finding: Finding, case: Case) -> Finding:
    """The finding, weighed down if its host is none on which the job ran, as far as the placed ranks tell."""
    if finding.ranks or not finding.hosts or finding.weight <= 0:
        return finding
    known = case.known
    places = {p.host for p in known.ranks.values() if p.host}
    if not places or any(same_host(h, p) for h in finding.hosts for p in places):
        return finding
    if known.world_size is None and not known.stated:
        return finding  # more ranks than are known may have run
    if any(r.format == "job-log" and r.host and same_host(r.host, h) for r in case.rows for h in finding.hosts):
        return finding  # the job logged there
    members = set(known.ranks) | set(range(known.world_size or 0))
    late = {r for s in case.collectives.suspects for r in s.ranks} or members
    if any((place := known.ranks.get(r)) is None or place.host is None for r in late):
        return finding
    # Containers have names of their own: only where some host's own file agrees with a place do the names mean hosts.
    # So they do where the host is named in the places' fashion: n07 beside n01 and n02.
    fashions = {FIGURES.sub("#", short(p)) for p in places}
    alike = (
        known.stated
        or any(r.host and r.format in HOST_FORMATS and any(same_host(r.host, p) for p in places) for r in case.rows)
        or all("#" in f and f in fashions for h in finding.hosts for f in (FIGURES.sub("#", short(h)),))
    )
    sure = alike and all((place := known.ranks.get(r)) is not None and place.host for r in members)
    why = say("every rank of this job ran elsewhere") if sure else say("no rank of this job is known to have run there")
    return replace(
        finding,
        weight=min(finding.weight, 1.0) + weight("not_in_job")
        if sure
        else finding.weight + weight("perhaps_not_in_job"),
        says=say("{says} ({why})", says=finding.says, why=why),
    )


def _relate(drafts: list[_Draft], case: Case) -> list[_Draft]:
    """Let the collectives speak for or against each hypothesis; drop those that another one explains."""
    late, sure, shown = _late(drafts)
    waited = set(waiting_ranks(case.events))
    drafts = _of_many(drafts, late, waited)
    placed = {r for r, p in case.known.ranks.items() if p.host}
    lost_gpus = [d for d in drafts if d.cause in TAKES_THE_GPU and d.gpus and not d.ranks and d.own() > 1.5]
    unseen = set(case.collectives.cannot_exclude)
    ranks_on = cache(case.known.ranks_on)
    for draft in drafts:
        if draft.cause in STOPS_NO_JOB and case.job:
            draft.bonus += weight("stops_no_job")
            continue
        on_host = {r for h in draft.hosts for r in ranks_on(h)}
        alone = len(lost_gpus) == 1 and draft is lost_gpus[0]
        alike = alone and len(draft.gpus) == len(unseen)
        if alike and not late and unseen <= on_host:
            draft.ranks |= unseen  # as many GPUs were lost on that host as ranks of it left nothing
        if not late and draft.cause == "node_lost" and not draft.ranks and len(on_host) < len(case.known.ranks):
            draft.ranks |= on_host  # they went with their host
        if draft.cause in advice.LOCATES or not late:
            innocent = waited if draft.cause in advice.LOCATES else waited - late
            if draft.ranks and draft.ranks <= innocent and draft.cause not in SPEAKS_FOR_ALL and _waits(draft):
                draft.bonus += weight("reported_itself")
            continue
        if draft.own() <= 0:
            continue  # what its own lines speak against, a late rank does not make true
        if draft.ranks:
            if draft.ranks & late and _only_from(draft, shown):
                draft.borrowed += shown  # that very evidence, in other words
            elif draft.ranks & late:
                share = len(draft.ranks & late) / len(draft.ranks | late)
                draft.bonus += (sure * weight("place_same_rank") + weight("same_rank")) * share * _stands(draft)
                draft.borrowed += shown
            elif draft.cause not in SPEAKS_FOR_ALL and _program(draft):
                draft.bonus += max(weight("other_rank"), -sure - 1.0)
            elif draft.cause in SPEAKS_FOR_ALL:
                draft.bonus += weight("other_rank") / 2  # it strikes many, and does not tell why that one is missing
        elif draft.cause in SPEAKS_FOR_ALL:
            if on_host and late <= on_host and not draft.gpus:
                draft.ranks |= late  # it may strike many, and it struck this one
                draft.bonus += sure * weight("place_of_many") * _stands(draft)
                draft.borrowed += shown
        elif (users := _likely_ranks(draft, case)) and not users & late:
            draft.bonus += weight("other_rank") / 2  # as far as anything tells, others ran on these cards
        elif on_host and late <= on_host:
            if not draft.gpus or len(draft.gpus) == len(late):
                # If the same story is told of one of them (a SIGKILL beside the kernel's OOM kill), it is that one.
                told = {r for d in drafts if draft.cause in SAME_STORY.get(d.cause, ()) for r in d.ranks & late}
                draft.ranks |= told or late
            draft.bonus += sure * weight("place_on_host") * _stands(draft)
            draft.borrowed += shown
        elif on_host and not (late & on_host) and late <= placed:
            draft.bonus += weight("other_rank") / 2
        elif alone and len(draft.gpus) == len(late) and not late & (placed | case.known.disputed):
            # Exactly as many GPUs were lost as ranks never came: the map is missing, the story is one.
            draft.ranks |= late
            draft.bonus += sure * weight("place_by_count") * _stands(draft)
            draft.borrowed += shown
    kept: list[_Draft] = []
    strong: dict[str, list[_Draft]] = defaultdict(list)
    on_rank: dict[int, list[_Draft]] = defaultdict(list)
    for draft in drafts:
        if draft.total() > EXPLAINS:
            strong[draft.cause].append(draft)
            for rank in draft.ranks:
                on_rank[rank].append(draft)
    for draft in sorted(drafts, key=lambda d: -d.total()):
        beside = [other for cause in sorted(SAME_STORY.get(draft.cause, ())) for other in strong[cause]]
        if draft.cause in advice.LOCATES:
            beside += [other for rank in sorted(draft.ranks) for other in on_rank[rank]]
        explained = [
            other
            for other in beside
            if other is not draft
            and _same_subject(draft, other)
            and (
                (other.cause in SAME_STORY.get(draft.cause, ()) and _may_explain(other, draft))
                or (draft.cause in advice.LOCATES and other.cause not in advice.LOCATES and (draft.ranks & other.ranks))
            )
        ]
        if explained:
            best = max(explained, key=lambda o: o.total())
            if draft.cause not in advice.LOCATES:
                best.borrowed += [f for f in draft.findings if f.weight >= WORTH_CITING]
                best.ranks |= draft.ranks if not best.ranks else set()
                if not best.hosts:
                    best.hosts |= draft.hosts
            continue
        kept.append(draft)
    return kept


def _may_explain(other: _Draft, draft: _Draft) -> bool:
    return (draft.cause, other.cause) not in PROVED or any(not f.inference and f.weight > 0 for f in other.findings)


def _likely_ranks(draft: _Draft, case: Case) -> set[int]:
    """Who ran on its cards, as far as their numbers hint at it."""
    likely = {case.known.likely_rank_of_gpu(g.host, g.pci) for g in draft.gpus}
    return {r for r in likely if r is not None}


def _only_from(draft: _Draft, shown: Sequence[Finding]) -> bool:
    """Is all that speaks for it concluded from the evidence of these findings?"""
    known = {e for f in shown for e in f.evidence}
    return all(f.inference and not f.events and known.issuperset(f.evidence) for f in draft.findings if f.weight > 0)


def _waits(draft: _Draft) -> bool:
    """Would this cause have kept the rank from reporting?"""
    return draft.cause in (
        "rank_busy",
        "python_exception",
        "process_signal",
        "dataloader_failure",
        "rank_not_arrived",
        "process_missing",
    )


def _stands(draft: _Draft) -> float:
    """How much the place can add, 0–1: that a weak sign is on the late rank makes it no cause."""
    return min(1.0, draft.own() / STANDS_ALONE)


def _program(draft: _Draft) -> bool:
    return draft.cause not in ("collective_mismatch", "collective_skipped", "uneven_inputs", "deadlock", "gpu_stall")


def _calibrated(posterior: float) -> float:
    """How often a job's hypothesis of this posterior is true, by the slope of its log-odds: our judgement.

    One that is as likely as not stays so, and two that exclude each other still add up to one.
    """
    slope = weight("confidence_slope")
    for_it, against = math.pow(posterior, slope), math.pow(1.0 - posterior, slope)
    return for_it / (for_it + against)


def weigh(found: Sequence[Finding], case: Case) -> list[Hypothesis]:
    """Hypotheses, most likely first, with posteriors over all of them and 'something else'."""
    if case.job:
        found = [_in_this_job(f, case) for f in found]
    drafts = _relate(_drafts(found), case)
    odds = [min(max(d.total(), -8.0), 8.0) for d in drafts]
    whole = 1.0 + sum(math.exp(o) for o in odds)  # 1 = exp(0): something else
    hypotheses = []
    for draft, o in zip(drafts, odds, strict=True):
        hosts = set(draft.hosts)
        for rank in draft.ranks:
            place = case.known.ranks.get(rank)
            if place is not None:
                if place.host and not any(same_host(place.host, h) for h in hosts):
                    hosts.add(place.host)
                if place.gpu is not None and place.gpu.pci and len(draft.ranks) <= 64:
                    draft.add_gpu(place.gpu)
        posterior = math.exp(o) / whole
        details = [f.detail for f in sorted(draft.findings, key=lambda f: -f.weight) if f.detail]
        hypotheses.append(
            Hypothesis(
                cause=draft.cause,
                ranks=tuple(sorted(draft.ranks)),
                hosts=tuple(sorted(hosts)),
                gpus=tuple(sorted(draft.gpus, key=lambda g: (g.host or "", g.pci or ""))),
                log_odds=o,
                confidence=min(_calibrated(posterior) if case.job else posterior, SUREST),
                findings=tuple(draft.findings + [b for b in draft.borrowed if b not in draft.findings]),
                detail=details[0] if details else None,
                posterior=posterior,
            )
        )
    return sorted(hypotheses, key=lambda h: (-h.confidence, h.cause, h.ranks))


# --- incidents ------------------------------------------------------------------------------------------------------


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
    if any(_same_gpu(x, y) for x in a.gpus for y in b.gpus):
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
        cleared=_cleared(case, {*ranks, *users}, gpus, named_somebody=bool(ranks or hosts or gpus) or cause in NOBODYS),
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
            return say("{ranks} entered the collective and waited in it", ranks=words.ranks(h.ranks))
        absent = {r for f in top.findings if f.cause in advice.LOCATES and f.weight > 0 for r in f.ranks}
        if set(top.ranks) & absent and not set(h.ranks) & absent:
            return say(
                "the rank that never came is {late}, not {who}",
                late=words.ranks(top.ranks),
                who=words.ranks(h.ranks),
            )
    if h.cause in advice.LOCATES:
        return say("it says who, not why")
    return say("less speaks for it") if top else say("little speaks for it")


NOBODYS = frozenset({"preempted", "nccl_setup", "fabric_error", "storage_stall", "store_lost"})
"""Causes for which no rank is to blame, so that all who waited are cleared."""
WITNESS = say("told of the failure, and of nothing of its own that failed before: a witness until shown otherwise")
VICTIM = say("entered the collective and waited in it: whoever reports a timeout is a victim until shown otherwise")


def _cleared(case: Case, ranks: Collection[int], gpus: Sequence[Gpu], *, named_somebody: bool) -> tuple[Cleared, ...]:
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
                who=words.ranks(alike).capitalize(),
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
                    numbers=words.listing(sorted({str(number(e, "xid")) for e in other})),
                    why=reasons[0],
                )
            ]
            if other
            else []
        )
        if echo:
            only = words.listing(str(n) for n in sorted(n for n in echo if n is not None))
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


MOST_WAITED = 64
"""Ranks that are listed as those that one rank waits for."""


def ranks_table(case: Case, verdict: Verdict) -> tuple[Rank, ...]:
    """One row for each rank that is known of, with what it was doing at the end."""
    collectives = case.collectives
    counters = {c.rank: c for c in collectives.counters}
    group = collectives.groups[0] if collectives.groups else None
    waits: dict[int, set[int]] = defaultdict(set)
    lowest: dict[int, list[int]] = {}  # many edges share one tuple of ranks
    for edge in collectives.waits:
        if id(edge.waited) not in lowest:
            lowest[id(edge.waited)] = nsmallest(MOST_WAITED, edge.waited)
        waits[edge.waiter].update(lowest[id(edge.waited)])
    exits: dict[int, str] = {}
    dead: set[int] = set()
    for event in case.of("exit"):
        if event.rank is not None:
            code = number(event, "code")
            exits.setdefault(event.rank, text(event, "signal") or say("exit {code}", code=code))
            if code in (-9, -11, -7, -4, 137, 139):
                dead.add(event.rank)
    spoke = {e.rank for e in case.events if e.rank is not None}
    everyone = set(case.known.ranks) | set(counters) | spoke | set(collectives.ranks_seen)
    for g in collectives.groups:
        everyone |= set(g.members)
    everyone |= set(verdict.ranks) | set(verdict.reporting_ranks)
    everyone |= set(range(min(case.known.world_size or case.known.at_least, 65_536)))
    arrived = {r for g in collectives.groups for r in g.arrived}
    rows = []
    for rank in sorted(r for r in everyone if r is not None):
        place = case.known.ranks.get(rank)
        state: RankState
        if rank in verdict.ranks:
            state, note = "culprit", say("named as the cause")
        elif rank in dead and rank not in verdict.reporting_ranks:
            state, note = "dead", say("ended by {how}", how=exits[rank])
        elif group is not None and rank in group.arrived:
            state, note = "waiting", say("entered the collective and waited")
        elif rank in verdict.reporting_ranks or rank in arrived:
            state, note = "blocked" if waits.get(rank) else "waiting", say("waited in another group or reported itself")
        elif group is not None and rank in group.completed:
            state, note = "completed", say("had finished the collective")
        elif rank in counters or rank in spoke:
            state, note = (
                ("blocked", say("waits for others"))
                if waits.get(rank)
                else ("completed", say("nothing of its own was overdue"))
            )
        else:
            state, note = "no-data", say("no dump and no line of it is in the pile")
        counter = counters.get(rank)
        rows.append(
            Rank(
                rank=rank,
                host=place.host if place else (counter.host if counter else None),
                local_rank=place.local_rank if place else None,
                pid=place.pid if place else None,
                gpu=place.gpu if place else None,
                state=state,
                waiting_on=tuple(sorted(waits.get(rank, ())))[:MOST_WAITED],
                last_enqueued=counter.last_enqueued if counter else _status(case, rank, "enqueued"),
                last_started=counter.last_started if counter else None,
                last_completed=counter.last_completed if counter else _status(case, rank, "completed"),
                exit=exits.get(rank),
                note=note,
            )
        )
    return tuple(rows)


def no_incident_ranks(
    aligned: Aligned, known: Identities, collectives: Reconstruction, rows: Sequence[InputRow]
) -> tuple[Rank, ...]:
    """The ranks that are known of where nothing failed."""
    case = Case(events=aligned.events, known=known, collectives=collectives, aligned=aligned, rows=tuple(rows))
    nobody = Verdict(
        status="undetermined",
        cause="undetermined",
        ranks=(),
        hosts=(),
        gpus=(),
        reporting_ranks=(),
        confidence=0.0,
        summary="",
        evidence=(),
        alternatives=(),
        cleared=(),
        cannot_exclude=(),
        missing_evidence=(),
        actions=(),
    )
    return ranks_table(case, nobody)


def _status(case: Case, rank: int, key: str) -> int | None:
    event = case.once(_first_status).get(rank)
    return number(event, key) if event is not None else None


def _first_status(case: Case) -> dict[int, Event]:
    """Rank → the first line in which its watchdog counted its work."""
    found: dict[int, Event] = {}
    for event in case.of("pg-status"):
        if event.rank is not None:
            found.setdefault(event.rank, event)
    return found
