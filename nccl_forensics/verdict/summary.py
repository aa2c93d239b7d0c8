"""The summary of a verdict: one or two plain sentences that say who, what, when, and what the others saw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nccl_forensics.model import Finding, Hypothesis, Verdict
from nccl_forensics.text import moments, phrases
from nccl_forensics.text.messages import Message, joined, say, say_many, shaped
from nccl_forensics.verdict.advice import LOCATES, collective, perhaps_on_gpus, title, undumped, who
from nccl_forensics.verdict.case import Case

LONG_LEAD = 160
"""Characters of a summary's first sentence that leave no room for more. Our judgement of what is read at a glance."""


def summary(verdict: Verdict, top: Hypothesis | None, case: Case) -> str:
    """`top`: the likeliest hypothesis, whether or not the verdict names it."""
    if verdict.status == "undetermined" or top is None:
        return say(
            "These files do not say what caused it.{what}{who_waits}{rest} Collect what is listed below.",
            what=_what_was_seen(top) or _where_it_stopped(case),
            who_waits=_who_reported(verdict),
            rest=_who_is_open(verdict, case),
        )
    when = moments.moment(_onset(top), zone_known=_zone_is_known(top, case))
    begin = when + ": " if when else ""
    said = joined(map(phrases.sentence, _what_is_named(verdict, top, case)), " ")
    doubt = "" if verdict.status == "identified" else say(" This is likely, not proved.")
    return begin + said + _what_others_saw(verdict, top, case) + doubt


def _zone_is_known(top: Hypothesis, case: Case) -> bool:
    """Is the zone known of the clock that shows the onset? What no line shows is told by dumps, which write UTC."""
    onset_ns = _onset(top)
    clocks = (e.clock for f in top.findings for e in f.events if e.time_ns == onset_ns)
    fallback = case.detected.clock if case.detected is not None and not case.has_dumps else None
    return case.aligned.beliefs.is_known(next(clocks, fallback))


def _what_was_seen(top: Hypothesis | None) -> str:
    """What is concluded of the job as a whole."""
    seen = next((f.says for f in (top.findings if top else ()) if f.inference and not f.ranks), "")
    return " " + _closed(seen) if seen else ""


def _where_it_stopped(case: Case) -> str:
    stuck = _stuck_collective(case)
    return say(" The job stopped in {stuck}.", stuck=stuck) if stuck else ""


def _stuck_collective(case: Case) -> str | None:
    return collective(case.collectives.groups[0]) if case.collectives.groups else None


def _who_reported(verdict: Verdict) -> str:
    if not verdict.reporting_ranks:
        return ""
    reporters = phrases.ranks(verdict.reporting_ranks)
    return say(" {who} reported it; reporting is not guilt.", who=reporters.capitalize())


def _who_is_open(verdict: Verdict, case: Case) -> str:
    """Who cannot be excluded, and that nothing is known of them where that is so."""
    open_ = verdict.cannot_exclude
    if not open_:
        return ""
    nothing = say_many(": nothing of it is in the files", ": nothing of them is in the files", len(open_))
    silent = set(undumped(open_, case)) - {e.rank for e in case.events} - {r.rank for r in case.rows}
    why = nothing if silent == set(open_) else ""
    return say(" {who} cannot be excluded{why}.", who=phrases.ranks(open_).capitalize(), why=why)


def _what_is_named(verdict: Verdict, top: Hypothesis, case: Case) -> list[str]:
    """The sentences about the cause, whom the collectives name, and who may have run on the cards."""
    lead = _lead(verdict, top)
    late = _said_of_the_late(top)
    said = [_closed(_cut(lead, verdict.ranks))]
    if late and len(lead) <= LONG_LEAD:
        said.append(_closed(max(late, key=lambda f: f.weight).says))
    if users := perhaps_on_gpus(verdict, case):
        said.append(
            say_many(
                "Which rank ran on it is not in these files: one of {ranks}, if any did.",
                "Which ranks ran on them is not in these files: some of {ranks}, if any did.",
                len(verdict.gpus),
                ranks=phrases.ranks(users),
            )
        )
    return said


def _lead(verdict: Verdict, top: Hypothesis) -> str:
    """What speaks loudest for the cause; its title where only others' findings speak for it."""
    own = [f for f in top.findings if f.cause == top.cause and f.weight > 0]
    if own:
        return max(own, key=lambda f: f.weight).says
    whom = who(verdict)
    named = Message(title(verdict.cause), {})
    return say("{title} ({who})", title=named, who=whom) if whom else named


def _said_of_the_late(top: Hypothesis) -> list[Finding]:
    """The findings on who never came that support a cause."""
    return [f for f in top.findings if f.cause != top.cause and f.cause in LOCATES and f.weight > 0]


def _cut(lead: str, ranks: Sequence[int]) -> str:
    """The first sentence of a long lead, for the rest stands in the evidence; all of it where that names the ranks."""
    if len(lead) <= LONG_LEAD or _named_later(lead, ranks):
        return lead
    return shaped(lead, lambda text: text.partition(". ")[0])


def _named_later(text: str, ranks: Iterable[int]) -> bool:
    """Is one of the ranks named after the first sentence, and not in it?"""
    first, _, rest = text.partition(". ")
    earlier, later = (set(re.findall(r"\d+", part)) for part in (first, rest))
    return any(str(rank) in later - earlier for rank in ranks)


def _closed(text: str) -> str:
    """With one full stop at the end."""
    return shaped(text, lambda t: t.rstrip(".") + ".")


def _what_others_saw(verdict: Verdict, top: Hypothesis, case: Case) -> str:
    """Who only reported it, or where the job stopped; nothing where the sentences on the late ranks tell it already."""
    if top.cause in LOCATES or _said_of_the_late(top):
        return ""
    victims = _victims(verdict, case)
    if victims:
        return _only_reported(victims, _stuck_collective(case))
    return "" if verdict.ranks else _where_it_stopped(case)


def _victims(verdict: Verdict, case: Case) -> list[int]:
    """Reporters that are neither named nor perhaps those who ran on the named cards; of a single culprit only."""
    if len(verdict.ranks) > 1:
        return []
    reporters = (r for r in verdict.reporting_ranks if r not in verdict.ranks)
    if perhaps_on_gpus(verdict, case):
        return [r for r in reporters if r not in verdict.cannot_exclude]
    return list(reporters)


def _only_reported(victims: Sequence[int], stuck: str | None) -> str:
    them = phrases.ranks(victims).capitalize()
    if stuck:
        return say(" {who} only reported it while waiting in {stuck}.", who=them, stuck=stuck)
    return say(" {who} only reported it.", who=them)


def _onset(top: Hypothesis) -> int | None:
    return min((f.onset_ns for f in top.findings if f.onset_ns is not None and f.cause == top.cause), default=None)
