"""Weighs the causes against each other and says how sure that is.

Rules (rules/*.py) yield findings: a cause, whom it concerns, and log-odds. Here they are added up to hypotheses,
related to what the collectives say about who never came, and normalised over all hypotheses and 'something else'.
The derivation and its limits are in docs/reasoning.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from nccl_forensics.catalog import causes_marked, kinds_marked
from nccl_forensics.model import Event, Finding, Hypothesis, Incident, InputRow, Reconstruction, Verdict, text
from nccl_forensics.names import same_host, short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND, is_dated, moment
from nccl_forensics.verdict import advice, pulse, settings
from nccl_forensics.verdict.actions import actions
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.cleared import NOBODYS, cleared
from nccl_forensics.verdict.drafts import same_gpu
from nccl_forensics.verdict.missing import missing
from nccl_forensics.verdict.ranks import ranks_table
from nccl_forensics.verdict.rules import findings
from nccl_forensics.verdict.summary import summary
from nccl_forensics.verdict.weigh import WORTH_CITING, weigh
from nccl_forensics.waits.watchdogs import reporting_ranks, waiting_ranks
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.when.belief import SHOWN
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
PERHAPS = 0.01
"""How likely a zone must be for two failures to be taken for one in it. Our judgement."""
MOST_ALTERNATIVES = 6


def diagnose(
    aligned: Aligned, known: Identities, collectives: Reconstruction, rows: Sequence[InputRow]
) -> tuple[Incident, ...]:
    """The incidents in the pile, in time order: the failure of the job; where there is no job, failures of hosts."""
    case = Case(events=aligned.events, known=known, collectives=collectives, aligned=aligned, rows=tuple(rows))
    found = list(findings(case))
    if case.job:
        incident = _incident(found, case)
        return (incident,) if incident else ()
    incidents = [i for group in _clusters(_not_survived(found, case), aligned) if (i := _incident(group, case))]
    incidents.sort(key=lambda i: (i.onset_ns is None, i.onset_ns or 0))
    return tuple(replace(i, id=n) for n, i in enumerate(incidents, 1))


def _not_survived(found: Sequence[Finding], case: Case) -> list[Finding]:
    """The findings after which no job is known to have ended in order."""
    ended = [e for e in case.of("progress") if text(e, "what") == "finished"]
    if not ended:
        return list(found)
    latest: dict[str, int] = {}
    for event in case.events:
        if event.time_ns is not None:
            latest[event.evidence.source] = max(event.time_ns, latest.get(event.evidence.source, event.time_ns))
    ends = [(e, latest.get(e.evidence.source)) for e in ended]
    return [f for f in found if not any(_survived(f, e, last_ns) for e, last_ns in ends)]


def _survived(finding: Finding, ended: Event, ended_ns: int | None) -> bool:
    """Did a job end in order after this, for all that is known? One that had ended before says nothing of it.

    `ended_ns`: the last time in the file that says so.
    """
    first = min((e.time_ns for e in finding.events if e.time_ns is not None), default=finding.onset_ns)
    if first is None or ended_ns is None or is_dated(first) != is_dated(ended_ns):
        return True
    elsewhere = ended.host and finding.hosts and not any(same_host(ended.host, h) for h in finding.hosts)
    return not elsewhere and first <= ended_ns + SKEW_S * SECOND


def _clusters(found: Sequence[Finding], aligned: Aligned) -> list[list[Finding]]:
    """Findings of one host within an hour, or on one GPU, belong together."""
    clusters: list[list[Finding]] = []
    for finding in sorted(found, key=lambda f: (f.onset_ns is None, f.onset_ns or 0)):
        joined = [c for c in clusters if any(_together(finding, other, aligned) for other in c)]
        for cluster in joined:
            clusters.remove(cluster)
        clusters.append([f for c in joined for f in c] + [finding])
    return clusters


def _together(a: Finding, b: Finding, aligned: Aligned) -> bool:
    """Are these of one failure? Where neither host nor time joins them, one file must."""
    if any(same_gpu(x, y) for x in a.gpus for y in b.gpus):
        return True
    if a.hosts and b.hosts and not any(same_host(x, y) for x in a.hosts for y in b.hosts):
        return False
    if a.onset_ns is None or b.onset_ns is None:
        return bool(a.hosts) == bool(b.hosts) or not _sources(a).isdisjoint(_sources(b))
    apart = aligned.apart(a.events[0], b.events[0]) if a.events and b.events else SHOWN
    likely = [by_ns for by_ns, chance in apart.items() if chance >= PERHAPS]
    return any(abs(a.onset_ns - b.onset_ns - by_ns) <= SEPARATE_S * SECOND for by_ns in likely)


def _sources(finding: Finding) -> set[str]:
    return {e.evidence.source for e in finding.events}


def _incident(found: Sequence[Finding], case: Case) -> Incident | None:
    """What these findings make of the case; None if that is no incident. Its number is that of the first."""
    hypotheses = weigh(found, case)
    if not _deserves_an_incident(hypotheses, case):
        return None
    verdict = _verdict(hypotheses, case)
    moments = _moments(hypotheses, verdict, case)
    groups = case.collectives.groups if case.job else ()
    return Incident(
        id=1,
        onset_ns=moments.onset_ns,
        onset_uncertainty_ns=moments.uncertainty_ns,
        detected_ns=moments.detected_ns,
        zone_known=moments.zone_known,
        onset_written=moments.onset_written,
        ended_ns=_ended_ns(case) if case.job else None,
        collective=groups[0] if groups else None,
        groups=groups,
        waits=case.collectives.waits if case.job else (),
        verdict=verdict,
        contributing=(*_other_troubles(hypotheses), *_settings(case), *pulse.contributing(case)),
        cost=_cost(moments.waited_s, case),
        ranks=ranks_table(case, verdict),
    )


def _deserves_an_incident(hypotheses: Sequence[Hypothesis], case: Case) -> bool:
    """A job that failed does; noise and doubtful lines of a host make no incident of a job that nobody mentions."""
    if not case.job:
        strongest = max((f.weight for h in hypotheses[:1] for f in h.findings), default=0.0)
        return bool(hypotheses) and strongest >= WORTH_AN_INCIDENT
    collectives = case.collectives
    shown = bool(collectives.groups or case.detected) and not collectives.healthy
    return bool(hypotheses) or shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """When it struck and when the job noticed, on the reference clock; None where that can't be told."""

    onset_ns: int | None
    uncertainty_ns: int | None
    """Half-width of the error bar of the line that shows the onset."""
    detected_ns: int | None
    onset_written: str | None = None
    """When it struck as its own clock writes it, where that gives no moment in UTC."""
    zone_known: bool = True
    """The onset, or without one when it was noticed, was read on a clock whose zone is known."""

    @property
    def waited_s(self) -> float | None:
        """Seconds between the two."""
        if self.detected_ns is None or self.onset_ns is None or self.detected_ns < self.onset_ns:
            return None
        return (self.detected_ns - self.onset_ns) / SECOND


def _moments(hypotheses: Sequence[Hypothesis], verdict: Verdict, case: Case) -> _Moments:
    top = hypotheses[0] if hypotheses else UNDETERMINED
    struck_ns = _struck_ns(top) if top.cause == verdict.cause else None
    onset_ns = struck_ns if struck_ns is not None else case.onset_ns
    showing = [e for f in top.findings for e in f.events if e.time_ns == onset_ns]
    found = _Moments(
        onset_ns=onset_ns,
        uncertainty_ns=showing[0].uncertainty_ns if showing else None,
        detected_ns=case.detected.time_ns if case.job and case.detected is not None else None,
    )
    struck_on = {e.clock for e in showing if onset_ns is not None}
    found = _without_guessed_zones(found, struck_on, case)
    return replace(found, zone_known=all(map(case.aligned.beliefs.is_known, _clocks_of(found, struck_on, case))))


def _clocks_of(found: _Moments, struck_on: Set[str | None], case: Case) -> Iterator[str | None]:
    """The clocks on which the onset was read, else those of when it was noticed; dumps write UTC."""
    seen = case.detected if case.job else None
    if found.onset_ns is not None and (struck_on or case.has_dumps):
        yield from struck_on
    elif seen is not None:
        yield seen.clock


def _struck_ns(top: Hypothesis) -> int | None:
    """The earliest onset that the hypothesis' own findings know."""
    own = (f for f in top.findings if f.weight > 0 and f.cause == top.cause)
    return min((f.onset_ns for f in own if f.onset_ns is not None), default=None)


def _without_guessed_zones(found: _Moments, struck_on: Set[str | None], case: Case) -> _Moments:
    """The moments that lie on clocks of known zones: one whose zone is only assumed gives no moment in UTC.

    Where all lie on one such clock they stay, for the time between them is right. `struck_on`: clocks of the onset.
    """
    seen = case.detected if case.job else None
    noticed_on = {seen.clock} if seen is not None else set()
    guessed = (struck_on | noticed_on) & case.aligned.assumed
    if not guessed or len(struck_on | noticed_on) < 2:
        return found
    return replace(
        found,
        onset_ns=None if struck_on & guessed else found.onset_ns,
        onset_written=moment(found.onset_ns, zone_known=False) if struck_on & guessed else None,
        detected_ns=None if noticed_on & guessed else found.detected_ns,
    )


def _ended_ns(case: Case) -> int | None:
    """The last line by which the job noticed or ended."""
    last = (e.time_ns for e in case.events if e.time_ns is not None and e.kind in DETECTED | {"pg-abort", "exit"})
    return max(last, default=None)


def _other_troubles(hypotheses: Sequence[Hypothesis]) -> Iterator[dict[str, object]]:
    """What deserves a ticket of its own beside the likeliest hypothesis, and is no evidence of it.

    That one, too, where it is of a host that is none of the job's.
    """
    likeliest = [h for h in hypotheses[:1] if any(f.weight_alone is None for f in h.findings)]
    cited = {id(f) for h in likeliest for f in h.findings}
    for hypothesis in hypotheses[len(likeliest) :]:
        if _deserves_a_ticket(hypothesis) and not any(id(f) in cited for f in hypothesis.findings):
            first = hypothesis.findings[0]
            place = first.events[0].evidence if first.events else None
            yield {
                "cause": hypothesis.cause,
                "says": first.says,
                "source": place.source if place is not None else None,
                "line": place.line if place is not None else None,
            }


def _deserves_a_ticket(hypothesis: Hypothesis) -> bool:
    own = (max(f.weight, f.weight_alone or f.weight) for f in hypothesis.findings if f.cause == hypothesis.cause)
    return hypothesis.cause in WORTH_A_TICKET and max(own) > WORTH_CITING


def _settings(case: Case) -> Iterable[dict[str, object]]:
    """Settings that hid evidence or hurt."""
    return settings.contributing(case, advice.torch_version(case), advice.recorder_setting(case))


def _cost(waited_s: float | None, case: Case) -> dict[str, float | None] | None:
    """What the failure took, as far as it is known; None where nobody knows how long it went unnoticed."""
    if waited_s is None:
        return None
    return {
        "lost_work_s": pulse.lost_work_s(case),
        "detection_s": waited_s,
        "restart_s": None,
        "gpu_hours": _hours(waited_s, case),
    }


def _hours(waited_s: float, case: Case) -> float | None:
    """GPU-hours that the whole job stood still until somebody noticed; None if the number of ranks isn't known."""
    world = case.known.world_size
    return round(waited_s * world / 3600, 2) if world else None


WORTH_A_TICKET = causes_marked("worth-a-ticket")
"""Causes that deserve attention of their own even if something else stopped the job."""


UNDETERMINED = Hypothesis(cause="undetermined", ranks=(), hosts=(), gpus=(), log_odds=0.0, confidence=0.0, findings=())
"""What stands for the likeliest hypothesis where there is none, and for the named one where none is likely enough."""


def _verdict(hypotheses: Sequence[Hypothesis], case: Case) -> Verdict:
    top = hypotheses[0] if hypotheses else None
    verdict = _with_the_cleared(_named(hypotheses, case), case)
    verdict = replace(verdict, missing_evidence=missing(verdict, top, case))
    return replace(verdict, summary=summary(verdict, top, case), actions=actions(verdict, top, case))


def _named(hypotheses: Sequence[Hypothesis], case: Case) -> Verdict:
    """Who and what is named, and the evidence; the words, and who is cleared, are still to come."""
    top = hypotheses[0] if hypotheses else UNDETERMINED
    named = top if top.confidence >= SUSPECTED else UNDETERMINED
    others = hypotheses if named is UNDETERMINED else hypotheses[1:]
    return Verdict(
        status=_status(top),
        cause=named.cause,
        ranks=named.ranks,
        hosts=named.hosts or _other_node(case, named.ranks),
        gpus=named.gpus,
        reporting_ranks=reporting_ranks(case.events),
        confidence=round(top.confidence, 3),
        summary="",
        evidence=_signs_of(hypotheses) if named is UNDETERMINED else _chain_of(named),
        alternatives=tuple((h, _why_not(h, top, case)) for h in others[:MOST_ALTERNATIVES]),
        cleared=(),
        cannot_exclude=(),
        missing_evidence=(),
        actions=(),
        posterior=top.posterior,
    )


def _status(top: Hypothesis) -> Literal["identified", "suspected", "undetermined"]:
    if top.confidence < SUSPECTED:
        return "undetermined"
    return "identified" if top.confidence >= IDENTIFIED else "suspected"


def _signs_of(hypotheses: Sequence[Hypothesis]) -> tuple[Finding, ...]:
    """What stands as evidence where nothing is named: the first findings of the likeliest."""
    return tuple(f for h in hypotheses[:3] for f in h.findings[:2])


def _chain_of(hypothesis: Hypothesis) -> tuple[Finding, ...]:
    """Its findings by time, those without one last; each sentence once."""
    said: dict[str, Finding] = {}
    for finding in hypothesis.findings:
        said.setdefault(finding.says, finding)
    return tuple(sorted(said.values(), key=_when))


def _with_the_cleared(verdict: Verdict, case: Case) -> Verdict:
    """The verdict with those that are innocent, and those that can't be excluded."""
    users = set(advice.perhaps_on_gpus(verdict, case))
    users = users - set(waiting_ranks(case.events)) or users
    open_ = set(case.collectives.cannot_exclude) | users
    if not verdict.ranks:  # whom the collectives suspect is not cleared by a verdict that names nobody
        open_ |= {rank for suspect in case.collectives.suspects for rank in suspect.ranks}
    somebody = bool(verdict.ranks or verdict.hosts or verdict.gpus) or verdict.cause in NOBODYS
    return replace(
        verdict,
        cleared=cleared(case, {*verdict.ranks, *users}, verdict.gpus, named_somebody=somebody),
        cannot_exclude=tuple(sorted(open_ - set(verdict.ranks))),
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
    only_the_other_half_spoke = {e.rank for e in spoke} == set(range(world)) - set(ranks)
    on_one_host = len(hosts) == 1 and None not in hosts
    return (OTHER_NODE,) if only_the_other_half_spoke and on_one_host else ()


def _when(finding: Finding) -> tuple[bool, int]:
    times = [e.time_ns for e in finding.events if e.time_ns is not None]
    at = min(times, default=finding.onset_ns)
    return at is None, at or 0


def _why_not(h: Hypothesis, top: Hypothesis, case: Case) -> str:
    """Why this hypothesis is not the verdict."""
    if h is top:
        return say("the evidence for it is too thin to name it")
    against = next((f for f in h.findings if f.weight < 0), None)
    if against is not None:
        return against.says
    if (it_is_another := _it_is_another_rank(h, top, case)) is not None:
        return it_is_another
    if h.cause in advice.LOCATES:
        return say("it says who, not why")
    return say("less speaks for it") if top is not UNDETERMINED else say("little speaks for it")


def _it_is_another_rank(h: Hypothesis, top: Hypothesis, case: Case) -> str | None:
    """Why it is none of the ranks of `h`; None if they are not known to be innocent."""
    if not top.ranks or not h.ranks or set(top.ranks) & set(h.ranks):
        return None
    if set(h.ranks) <= set(waiting_ranks(case.events)):
        return say("{ranks} entered the collective and waited in it", ranks=phrases.ranks(h.ranks))
    absent = {r for f in top.findings if f.cause in advice.LOCATES and f.weight > 0 for r in f.ranks}
    if set(top.ranks) & absent and not set(h.ranks) & absent:
        return say(
            "the rank that never came is {late}, not {who}",
            late=phrases.ranks(top.ranks),
            who=phrases.ranks(h.ranks),
        )
    return None
