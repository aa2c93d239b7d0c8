"""Findings of all rules made into hypotheses, and those weighed against each other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache

from nccl_forensics.catalog import causes, causes_marked, weight
from nccl_forensics.model import Finding, Hypothesis, text
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict import advice
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.drafts import Change, Draft, collected
from nccl_forensics.verdict.elsewhere import FIGURES, of_this_job
from nccl_forensics.waits.watchdogs import waiting_ranks

SUREST = 0.98
"""No log proves more than this. Our judgement."""
NOT_SHOWN = 0.79
"""The surest that may be said of a cause that no clock shows to come in time, of a host that nothing ties to a job, or
of what another cause would show as well: suspected, not identified."""
SPEAKS_FOR_ALL = causes_marked("strikes-all")
"""Causes that strike more ranks than one, so that one late rank neither proves nor refutes them."""
OF_PROGRAMS = causes_marked("of-the-program")
_GIVES_WAY = {id_: cause.gives_way_to for id_, cause in causes().items()}
"""Cause → those to which it gives way by itself."""


def _deeper(cause: str) -> frozenset[str]:
    """All to which a cause gives way, also through hardware on the way: what a program says of its end can be an echo
    of anything."""
    found: set[str] = set()
    ahead = [*_GIVES_WAY[cause]]
    while ahead:
        other = ahead.pop()
        if other not in found:
            found.add(other)
            ahead += () if other in OF_PROGRAMS else _GIVES_WAY.get(other, ())
    return frozenset(found - {cause})


_ALL_DEEPER = {id_: _deeper(id_) for id_ in _GIVES_WAY}
SAME_STORY = {
    id_: frozenset(_GIVES_WAY[id_]) | {other for other in deeper if id_ not in _ALL_DEEPER[other]}
    for id_, deeper in _ALL_DEEPER.items()
    if deeper
}
"""What the same failure also looks like: the hypothesis on the left gives way to one on the right, on one subject."""
_IF_STATED = {id_: cause.gives_way_if_stated for id_, cause in causes().items()}
PROVED = frozenset(
    (id_, other)
    for id_, others in SAME_STORY.items()
    for other in others
    if other in _IF_STATED[id_]
    or (other not in _GIVES_WAY[id_] and any(other in _IF_STATED[between] for between in others))
)
"""Pairs of those in which the right one must be stated by a line, not only inferred."""
STANDS_ALONE = 1.5
"""Log-odds of its own lines from which on a cause gains by its place without reserve. Our judgement."""
WORTH_CITING = 0.5
"""Log-odds below which a finding of a swallowed hypothesis is not shown as evidence. Our judgement."""
SURELY_LOST = 1.5
"""Log-odds of its own lines above which a draft about lost cards is taken for a loss. Our judgement."""
EXPLAINS = 0.7
"""Log-odds from which on a hypothesis may take another one's findings over. Our judgement."""
TAKES_THE_GPU = causes_marked("takes-the-gpu")
"""Causes after which a GPU computes no more, whatever program uses it."""
STOPS_NO_JOB = causes_marked("stops-no-job")
"""Causes that keep no rank from coming: worth a ticket of their own, and nothing gained by a late rank."""
CATCH_ALL = causes_marked("catch-all")
"""What is left where no other cause of a card fits."""
STRIKES_MANY = causes_marked("may-strike-every-rank")
"""Causes that every rank meets where the program, its settings or what all share is wrong."""
STRIKES_HOSTS = causes_marked("may-strike-hosts")
"""Causes that several hosts meet at once where what they share fails: a server, a switch, the power of a rack."""
AT_ONCE_S = 60
"""Within this time ranks tell of one failure; later ones may follow from the first. Our judgement."""


def _of_many(drafts: Iterable[Draft], late: frozenset[int], waited: frozenset[int]) -> list[Draft]:
    """Drafts, with one for the ranks or hosts that tell the same at once: a failure of all, not one for each."""
    kept: list[Draft] = []
    tell_it: dict[tuple[object, ...], list[Draft]] = defaultdict(list)
    for draft in drafts:
        story = _story_of_many(draft, late, waited)
        twin = next((other for other in tell_it.get(story, ()) if _at_once(other, draft)), None) if story else None
        if twin is not None:
            for finding in draft.findings:
                twin.add(finding)
            continue
        kept.append(draft)
        if story:
            tell_it[story].append(draft)
    return kept


def _story_of_many(draft: Draft, late: frozenset[int], waited: frozenset[int]) -> tuple[object, ...] | None:
    """What drafts that are one failure have in common; None if it strikes a single rank or host."""
    of_ranks = bool(draft.ranks) and draft.cause in STRIKES_MANY and not draft.ranks & (waited - late)
    of_hosts = _names_only_hosts(draft) and draft.cause in STRIKES_HOSTS and _timed(draft)
    story = _story(draft) if of_ranks or of_hosts else None
    return (draft.cause, of_hosts, draft.ranks <= late, *story) if story is not None else None


def _names_only_hosts(draft: Draft) -> bool:
    return bool(draft.hosts) and not draft.ranks and not draft.gpus


def _story(draft: Draft) -> tuple[str, str] | None:
    """(kind, words without figures) of the line that speaks loudest for a draft."""
    top = max(draft.findings, key=lambda f: f.weight)
    if top.weight <= 0 or not top.events:
        return None
    event = top.events[0]
    said = next((s for key in ("message", "error", "detail") if (s := text(event, key))), "")
    return event.kind, FIGURES.sub("", said)


def _timed(draft: Draft) -> bool:
    return any(f.onset_ns is not None for f in draft.findings)


def _at_once(a: Draft, b: Draft) -> bool:
    one, other = (min((f.onset_ns for f in d.findings if f.onset_ns is not None), default=None) for d in (a, b))
    return one is None or other is None or abs(one - other) <= AT_ONCE_S * SECOND


def _relate(drafts: list[Draft], case: Case) -> list[Draft]:
    """Let the collectives speak for or against each hypothesis; drop those that another one explains."""
    scene = _seen_from(drafts, case)
    for draft in scene.drafts:  # one after the other: whom one is laid to can count for those that follow
        _place_without_late(draft, scene)
        draft.change(_what_is_said_to(draft, scene))
    return _unexplained(scene.drafts)


@dataclass(frozen=True, slots=True)
class _Late:
    """Who never came, as the collectives say."""

    ranks: frozenset[int]
    """Nobody in particular if empty."""
    sure: float
    """Log-odds."""
    shown: tuple[Finding, ...]
    """By which findings."""


def _late(drafts: Iterable[Draft]) -> _Late:
    who = [d for d in drafts if d.cause in advice.LOCATES and d.ranks]
    if not who:
        return _Late(frozenset(), 0.0, ())
    surest = max(who, key=lambda d: d.own())
    return _Late(frozenset(surest.ranks), surest.own(), tuple(surest.findings))


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is known when the collectives speak to each draft."""

    case: Case
    drafts: list[Draft]
    late: _Late
    waited: frozenset[int]
    """Ranks that reported that they waited."""
    placed: frozenset[int]
    """Ranks whose host is known."""
    unseen: frozenset[int]
    """Ranks that left nothing, so that the collectives can't exclude them."""
    only_loss: Draft | None
    """The draft about lost cards of ranks that nobody knows, if there is only one."""
    ranks_on_hosts: Callable[[frozenset[str]], frozenset[int]]

    def on_hosts_of(self, draft: Draft) -> frozenset[int]:
        """The ranks that ran on the hosts of a draft."""
        return self.ranks_on_hosts(frozenset(draft.hosts))

    def struck_hosts_of_late(self, draft: Draft) -> bool:
        """Did all who are late run on the hosts of this draft?"""
        on_host = self.on_hosts_of(draft)
        return bool(on_host) and self.late.ranks <= on_host

    def lost_as_many_cards_as(self, draft: Draft, ranks: frozenset[int]) -> bool:
        """Is it the only draft about lost cards, of as many cards as these ranks are? Then the story is one."""
        return draft is self.only_loss and len(draft.gpus) == len(ranks)


def _seen_from(drafts: list[Draft], case: Case) -> _Scene:
    late = _late(drafts)
    waited = frozenset(waiting_ranks(case.events))
    drafts = _of_many(drafts, late.ranks, waited)
    lost = [d for d in drafts if d.cause in TAKES_THE_GPU and d.gpus and not d.ranks and d.own() > SURELY_LOST]

    @cache
    def ranks_on_hosts(hosts: frozenset[str]) -> frozenset[int]:
        return frozenset(rank for host in hosts for rank in case.known.ranks_on(host))

    return _Scene(
        case=case,
        drafts=drafts,
        late=late,
        waited=waited,
        placed=frozenset(rank for rank, place in case.known.ranks.items() if place.host),
        unseen=frozenset(case.collectives.cannot_exclude),
        only_loss=lost[0] if len(lost) == 1 else None,
        ranks_on_hosts=ranks_on_hosts,
    )


def _place_without_late(draft: Draft, scene: _Scene) -> None:
    """Lay a fault to the ranks that it must have taken, where the collectives name nobody."""
    if scene.late.ranks or _stops_no_job(draft, scene):
        return
    if scene.lost_as_many_cards_as(draft, scene.unseen) and scene.unseen <= scene.on_hosts_of(draft):
        draft.ranks |= scene.unseen  # as many GPUs were lost on that host as ranks of it left nothing
    elif draft.cause == "node_lost" and not draft.ranks:
        on_host = scene.on_hosts_of(draft)
        if len(on_host) < len(scene.case.known.ranks):
            draft.ranks |= on_host  # they went with their host
    elif _names_only_hosts(draft) and draft.own() > 0 and draft.cause not in SPEAKS_FOR_ALL:
        on_host = scene.on_hosts_of(draft)
        if on_host and on_host <= scene.unseen and scene.waited >= scene.case.known.ranks.keys() - on_host:
            draft.ranks |= on_host  # nobody there said anything, and all others waited


Relation = Callable[[Draft, _Scene], Change | None]
"""What is said to a draft; None where this does not concern it."""


def _what_is_said_to(draft: Draft, scene: _Scene) -> Change:
    """By the first relation that holds."""
    said = (relation(draft, scene) for relation in _relations(draft, scene))
    return next((change for change in said if change is not None), Change())


def _relations(draft: Draft, scene: _Scene) -> tuple[Relation, ...]:
    """Those that are asked of this draft, in their order."""
    if _stops_no_job(draft, scene):
        return (_stopped_nothing,)
    if draft.cause in advice.LOCATES or not scene.late.ranks:
        return (_reported_itself,)
    if draft.own() <= 0:
        return ()  # what its own lines speak against, a late rank does not make true
    if draft.ranks:
        return SAID_OF_RANKS
    return SAID_OF_MANY if draft.cause in SPEAKS_FOR_ALL else SAID_OF_PLACES


def _stops_no_job(draft: Draft, scene: _Scene) -> bool:
    return draft.cause in STOPS_NO_JOB and scene.case.job


def _stopped_nothing(draft: Draft, scene: _Scene) -> Change:
    return Change(weight("stops_no_job"))


def _reported_itself(draft: Draft, scene: _Scene) -> Change | None:
    """Its ranks all entered and waited, which this cause would have kept them from."""
    waited = bool(draft.ranks) and draft.ranks <= scene.waited
    if waited and draft.cause not in SPEAKS_FOR_ALL and _keeps_from_reporting(draft):
        return Change(weight("reported_itself"))
    return None


def _is_the_same_evidence(draft: Draft, scene: _Scene) -> Change | None:
    """It says of a late rank, in other words, what already shows that it is late: nothing is gained."""
    if draft.ranks & scene.late.ranks and _only_from(draft, scene.late.shown):
        return Change(borrowed=scene.late.shown)
    return None


def _struck_a_late_rank(draft: Draft, scene: _Scene) -> Change | None:
    late = scene.late
    both = draft.ranks & late.ranks
    if not both:
        return None
    share = len(both) / len(draft.ranks | late.ranks)
    gained = (late.sure * weight("place_same_rank") + weight("same_rank")) * share * _stands(draft)
    return Change(gained, borrowed=late.shown)


def _struck_another_rank(draft: Draft, scene: _Scene) -> Change | None:
    """Whom it names is not late, and would be."""
    if draft.cause not in SPEAKS_FOR_ALL and _keeps_from_coming(draft):
        return Change(max(weight("other_rank"), -scene.late.sure - 1.0))
    return None


def _struck_many_others(draft: Draft, scene: _Scene) -> Change | None:
    """It strikes many, and does not tell why that one is missing."""
    return Change(weight("other_rank") / 2) if draft.cause in SPEAKS_FOR_ALL else None


def _struck_the_late_among_many(draft: Draft, scene: _Scene) -> Change | None:
    """It may strike many, and it struck the host of the late ones."""
    late = scene.late
    if draft.gpus or not scene.struck_hosts_of_late(draft):
        return None
    return Change(late.sure * weight("place_of_many") * _stands(draft), late.ranks, late.shown)


def _struck_cards_of_others(draft: Draft, scene: _Scene) -> Change | None:
    """As far as anything tells, others than the late ones ran on these cards."""
    users = _likely_ranks(draft, scene.case)
    return Change(weight("other_rank") / 2) if users and not users & scene.late.ranks else None


def _struck_the_host_of_the_late(draft: Draft, scene: _Scene) -> Change | None:
    late = scene.late
    if not scene.struck_hosts_of_late(draft):
        return None
    gained = late.sure * weight("place_on_host") * _stands(draft)
    can_be_all = not draft.gpus or len(draft.gpus) == len(late.ranks)
    return Change(gained, _whom_the_host_lost(draft, scene) if can_be_all else frozenset(), late.shown)


def _whom_the_host_lost(draft: Draft, scene: _Scene) -> Set[int]:
    """The late ones; if the same story is told of one of them (a SIGKILL beside the kernel's OOM kill), that one."""
    twins = (other for other in scene.drafts if draft.cause in SAME_STORY.get(other.cause, ()))
    return {rank for other in twins for rank in other.ranks & scene.late.ranks} or scene.late.ranks


def _struck_another_host(draft: Draft, scene: _Scene) -> Change | None:
    """All late ones are known to have run elsewhere."""
    on_host = scene.on_hosts_of(draft)
    elsewhere = not (scene.late.ranks & on_host) and scene.late.ranks <= scene.placed
    return Change(weight("other_rank") / 2) if on_host and elsewhere else None


def _lost_the_cards_of_the_late(draft: Draft, scene: _Scene) -> Change | None:
    """Exactly as many GPUs were lost as ranks never came: the map is missing, the story is one."""
    late = scene.late
    mapped = late.ranks & (scene.placed | scene.case.known.disputed)
    if mapped or not scene.lost_as_many_cards_as(draft, late.ranks):
        return None
    return Change(late.sure * weight("place_by_count") * _stands(draft), late.ranks, late.shown)


SAID_OF_RANKS: tuple[Relation, ...] = (
    _is_the_same_evidence,
    _struck_a_late_rank,
    _struck_another_rank,
    _struck_many_others,
)
"""What late ranks say to a draft that names ranks."""
SAID_OF_MANY: tuple[Relation, ...] = (_struck_the_late_among_many,)
"""To one without ranks, of a cause that strikes many."""
SAID_OF_PLACES: tuple[Relation, ...] = (
    _struck_cards_of_others,
    _struck_the_host_of_the_late,
    _struck_another_host,
    _lost_the_cards_of_the_late,
)
"""To one without ranks, of a cause that strikes a host or a card."""


def _unexplained(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts that no other explains, likeliest first; who explains one takes over what it shows."""
    explainers = _explainers(drafts)
    kept: list[Draft] = []
    for draft in sorted(drafts, key=lambda d: -d.total()):
        deeper = [
            other
            for other in explainers.beside(draft)
            if other is not draft
            and draft.shares_subject(other) is not False
            and (_tells_the_same_story(draft, other) or _tells_why_it_is_late(draft, other))
        ]
        if deeper:
            _take_over(max(deeper, key=lambda other: other.total()), draft)
        else:
            kept.append(draft)
    return kept


@dataclass(frozen=True, slots=True)
class _Explainers:
    """The drafts that are likely enough to explain others."""

    of_cause: Mapping[str, Sequence[Draft]]
    of_rank: Mapping[int, Sequence[Draft]]

    def beside(self, draft: Draft) -> Iterator[Draft]:
        """Those that can explain this one, by their causes and ranks alone; some twice."""
        for cause in sorted(SAME_STORY.get(draft.cause, ())):
            yield from self.of_cause.get(cause, ())
        if draft.cause in advice.LOCATES:
            for rank in sorted(draft.ranks):
                yield from self.of_rank.get(rank, ())


def _explainers(drafts: Iterable[Draft]) -> _Explainers:
    of_cause: dict[str, list[Draft]] = defaultdict(list)
    of_rank: dict[int, list[Draft]] = defaultdict(list)
    for draft in drafts:
        if draft.total() > EXPLAINS:
            of_cause[draft.cause].append(draft)
            for rank in draft.ranks:
                of_rank[rank].append(draft)
    return _Explainers(of_cause, of_rank)


def _tells_the_same_story(draft: Draft, other: Draft) -> bool:
    """Is the draft what the other one's failure also looks like?"""
    return other.cause in SAME_STORY.get(draft.cause, ()) and _may_explain(other, draft)


def _may_explain(other: Draft, draft: Draft) -> bool:
    tells_its_own_reason = draft.cause in OF_PROGRAMS and draft.cause not in advice.GPU_CAUSES
    if tells_its_own_reason and not any(f.tied and f.weight > 0 for f in other.findings):
        return False
    if draft.cause in CATCH_ALL and draft.gpus:
        return False  # a card's own lines tell it; only what programs say of a GPU is an echo
    return (draft.cause, other.cause) not in PROVED or any(not f.inference and f.weight > 0 for f in other.findings)


def _tells_why_it_is_late(draft: Draft, other: Draft) -> bool:
    """Does the draft only say who, while the other one says why of one of them?"""
    return draft.cause in advice.LOCATES and other.cause not in advice.LOCATES and bool(draft.ranks & other.ranks)


def _take_over(deeper: Draft, draft: Draft) -> None:
    """What is worth citing goes to the draft that explains this one, and whom this one names if that names nobody."""
    if draft.cause in advice.LOCATES:
        return
    deeper.borrowed += [f for f in draft.findings if f.weight >= WORTH_CITING]
    if not deeper.ranks:
        deeper.ranks |= draft.ranks
    if not deeper.hosts:
        deeper.hosts |= draft.hosts


def _likely_ranks(draft: Draft, case: Case) -> set[int]:
    """Who ran on its cards, as far as their numbers hint at it."""
    likely = {case.known.likely_rank_of_gpu(g.host, g.pci) for g in draft.gpus}
    return {r for r in likely if r is not None}


def _only_from(draft: Draft, shown: Sequence[Finding]) -> bool:
    """Is all that speaks for it concluded from the evidence of these findings?"""
    known = {e for f in shown for e in f.evidence}
    return all(f.inference and not f.events and known.issuperset(f.evidence) for f in draft.findings if f.weight > 0)


def _keeps_from_reporting(draft: Draft) -> bool:
    """Would this cause have kept the rank from reporting?"""
    return draft.cause in (
        "rank_busy",
        "python_exception",
        "process_signal",
        "dataloader_failure",
        "rank_not_arrived",
        "process_missing",
    )


def _stands(draft: Draft) -> float:
    """How much the place can add, 0–1: that a weak sign is on the late rank makes it no cause."""
    return min(1.0, draft.own() / STANDS_ALONE)


def _keeps_from_coming(draft: Draft) -> bool:
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
        found = of_this_job(found, case)
    drafts = _relate(collected(found), case)
    odds = [min(max(d.total(), -8.0), 8.0) for d in drafts]
    whole = 1.0 + sum(math.exp(o) for o in odds)  # 1 = exp(0): something else
    hypotheses = [_hypothesis(draft, o, math.exp(o) / whole, case) for draft, o in zip(drafts, odds, strict=True)]
    return sorted(hypotheses, key=lambda h: (-h.confidence, h.cause, h.ranks))


def _at_most(draft: Draft, hosts: Iterable[str], case: Case) -> float:
    """How sure one may be of a draft: less where nothing shows that its cause came in time, is of this job, and is no
    other that would show the same."""
    own = [f for f in draft.findings if f.weight > WORTH_CITING and f.cause == draft.cause]
    if own and not any(f.identifies for f in own):
        return NOT_SHOWN
    if not case.job or draft.cause in advice.LOCATES:
        return SUREST
    speaking = [e for f in own for e in f.events[:1]]
    in_time = not speaking or any(map(case.order_is_shown, speaking))
    of_this_job = bool(draft.ranks) or all(map(case.is_of_the_job, hosts))
    return SUREST if in_time and of_this_job else NOT_SHOWN


def _hypothesis(draft: Draft, log_odds: float, posterior: float, case: Case) -> Hypothesis:
    hosts, gpus = draft.places(case.known)
    strongest_first = sorted(draft.findings, key=lambda f: -f.weight)
    return Hypothesis(
        cause=draft.cause,
        ranks=tuple(sorted(draft.ranks)),
        hosts=tuple(sorted(hosts)),
        gpus=tuple(sorted(gpus, key=lambda g: (g.host or "", g.pci or ""))),
        log_odds=log_odds,
        confidence=min(_calibrated(posterior) if case.job else posterior, _at_most(draft, hosts, case)),
        findings=(*draft.findings, *(b for b in draft.borrowed if b not in draft.findings)),
        detail=next((f.detail for f in strongest_first if f.detail), None),
        posterior=posterior,
    )
