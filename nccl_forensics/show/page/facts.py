"""The facts of an incident, as its page and the ticket tell them: who, what, when, how sure, what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.sentences import collective_words, culprit_words, sure_words
from nccl_forensics.show.page.words import (
    Doc,
    cause_title,
    clean,
    confidence_word,
    duration_words,
    gpu_words,
    numbers_of,
    plus_minus,
    ranks_words,
    zoned,
)
from nccl_forensics.text.language import _, said
from nccl_forensics.text.messages import upper_first
from nccl_forensics.text.moments import micros, timestamp

MAX_NAMED_GPUS = 8
WORTH_SAYING = 0.05
"""Confidence from which another explanation is named, and GPU hours from which they are counted. Our judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Each in words; '' for what there is nothing to tell of."""

    who: str
    job: str
    what: str
    when: str
    sure: str
    cost: str

    def rows(self) -> Iterator[tuple[str, str]]:
        """(label, text)"""
        labelled = (
            (_("Who"), self.who),
            (_("Job"), self.job),
            (_("What"), self.what),
            (_("When"), self.when),
            (_("How sure"), self.sure),
            (_("Cost"), self.cost),
        )
        return ((label, text) for label, text in labelled if text)


def facts_of(incident: Doc, lookup: Lookup) -> Facts:
    return Facts(
        who=who_words(incident["verdict"], lookup),
        job=job_words(incident),
        what=collective_words(incident),
        when=when_words(incident, lookup),
        sure=certainty_words(incident["verdict"]),
        cost=cost_words(incident.get("cost") or {}),
    )


def who_words(verdict: Doc, lookup: Lookup) -> str:
    """'Rank 3 on node-a (GPU 3 at 0000:4b:00.0), NVIDIA H100, serial 165…', 'Nobody is named'."""
    who, gpus = culprit_words(verdict, lookup.host_of), verdict["culprit_gpus"]
    if not who:
        return _("Nobody is named")
    if len(gpus) == 1:
        who = ", ".join([who, *_card_words(gpus[0])])
    elif gpus:
        who += ": " + ", ".join(gpu_words(g) for g in gpus[:MAX_NAMED_GPUS])
    return upper_first(who)


def _card_words(gpu: Doc) -> Iterator[str]:
    """By what else than its place a card is known."""
    if gpu.get("model"):
        yield clean(gpu["model"], 60)
    for key, word in (("serial", _("serial")), ("uuid", "UUID")):
        if gpu.get(key):
            yield f"{word} {clean(gpu[key], 60)}"


def start_words(incident: Doc) -> str:
    """Which start of which job failed; nothing where the pile tells of one job that was started once."""
    parts = [clean(said(incident["job"]), 120)] if incident.get("job") else []
    if incident.get("attempt") is not None:
        parts.append(_("start no. {n}").format(n=incident["attempt"] + 1))
    return upper_first(", ".join(parts))


def job_words(incident: Doc) -> str:
    """The same, and what was found of all its starts together."""
    told = [f"{start}."] if (start := start_words(incident)) else []
    told += [clean(said(c["says"])) for c in incident.get("contributing") or () if c.get("kind") == "restarts"]
    return " ".join(told)


def when_words(incident: Doc, lookup: Lookup) -> str:
    """'2026-04-22 03:14:17.000 UTC ± 20 ms; noticed 30 min later'."""
    onset, detected = micros(incident["onset"]), micros(incident["detected"])
    if onset is None:
        if detected is None:
            written = incident.get("onset_written")
            return clean(said(written)) if written else _("No time of the failure is in these files")
        noticed = zoned(timestamp(detected), incident)
        if written := incident.get("onset_written"):
            return _("{onset}; noticed {time}").format(onset=clean(said(written)), time=noticed)
        return _("Onset not known; noticed {time}").format(time=noticed)
    error = incident.get("onset_uncertainty_s")
    text = f"{zoned(timestamp(onset, error), incident)} {plus_minus(error)}"
    if error is not None and len(set(lookup.host_of.values())) > 1:
        text += _(", as its own host's clock reads")  # the error is that of reading; hosts disagree by more
    if detected is not None and detected > onset:
        text += _("; noticed {time} later").format(time=duration_words((detected - onset) / 1e6))
    return text


def onset_words(incident: Doc) -> str:
    """When it began, or was noticed where that is not known, in few words."""
    onset, detected = micros(incident["onset"]), micros(incident["detected"])
    if onset is not None:
        return zoned(timestamp(onset, incident.get("onset_uncertainty_s")), incident)
    if detected is not None:
        return _("noticed {time}").format(time=zoned(timestamp(detected), incident))
    written = incident.get("onset_written")
    return clean(said(written)) if written else _("time not known")


def certainty_words(verdict: Doc) -> str:
    """'High, 0.96 of 1; the next best explanation, “CUDA out of memory”, has 0.12'."""
    if verdict["status"] == "undetermined":
        text = upper_first(sure_words(verdict))
    else:
        word = upper_first(confidence_word(verdict["confidence"]))
        text = _("{word}, {number} of 1").format(word=word, number=f"{verdict['confidence']:.2f}")
    return text + _next_best_words(verdict)


def _next_best_words(verdict: Doc) -> str:
    """Nothing where no other explanation counts for much, or where it is the same one of nobody in particular."""
    other = max(verdict["alternatives"], key=lambda a: float(a["confidence"]), default=None)
    if other is None or other["confidence"] < WORTH_SAYING:
        return ""
    if other["cause"] == verdict["cause"] and not other["culprit_ranks"]:
        return ""
    who = f" ({ranks_words(numbers_of(other['culprit_ranks']))})" if other["culprit_ranks"] else ""
    return _("; the next best explanation, {title}, has {number}").format(
        title=f"“{cause_title(other['cause'])}”{who}", number=f"{other['confidence']:.2f}"
    )


def cost_words(cost: Doc) -> str:
    """'6.8 GPU hours; waiting for the watchdog 30 min'."""
    labelled = {
        "lost_work_s": _("work since the last checkpoint"),
        "detection_s": _("waiting for the watchdog"),
        "restart_s": _("restart"),
    }
    parts = [f"{words} {duration_words(cost[key])}" for key, words in labelled.items() if cost.get(key)]
    if (cost.get("gpu_hours") or 0) >= WORTH_SAYING:
        parts.insert(0, _("{n} GPU hours").format(n=f"{cost['gpu_hours']:,.1f}"))
    return upper_first("; ".join(parts))
