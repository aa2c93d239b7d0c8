"""Findings of all rules made into hypotheses, and those weighed against each other."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from nccl_forensics import catalog
from nccl_forensics.catalog import weight
from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.model import Finding, Gpu, Hypothesis, text
from nccl_forensics.names import same_host, short
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict import advice
from nccl_forensics.verdict.case import Case
from nccl_forensics.waits.watchdogs import waiting_ranks

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
            return any(same_gpu(g, mine) for g in f.gpus for mine in self.gpus)
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
        if not any(same_gpu(gpu, mine) for mine in self.gpus):
            self.gpus.append(gpu)


def same_gpu(a: Gpu, b: Gpu) -> bool:
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
        return any(same_gpu(x, y) for x in a.gpus for y in b.gpus)
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
