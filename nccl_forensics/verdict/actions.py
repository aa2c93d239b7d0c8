"""What to do first, from catalog/actions.toml."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_forensics import catalog
from nccl_forensics.catalog import Step
from nccl_forensics.model import Action, Hypothesis, Verdict
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import Message, filled, say
from nccl_forensics.verdict.advice import cards, kernel_logs
from nccl_forensics.verdict.case import Case

MOST_ACTIONS = 5
MOST_TO_COLLECT = 3


def actions(verdict: Verdict, top: Hypothesis | None, case: Case) -> tuple[Action, ...]:
    """What to do, first thing first; never empty. `verdict` tells already what is missing."""
    if top is None or verdict.status == "undetermined":
        return _collect(verdict.missing_evidence)
    names = _names(verdict)
    return tuple(
        Action(
            do=Message(step.do, names),
            because=Message(step.because, names),
            command=filled(step.command, names) if step.command else None,
        )
        for step in _steps(verdict, top, case)[:MOST_ACTIONS]
    )


def _collect(missing: Sequence[str]) -> tuple[Action, ...]:
    """What to do where nothing is named: get what would tell."""
    if not missing:
        keep = say("Keep all files of this run and run it again with the settings below.")
        return (Action(do=keep, because=say("The evidence is gone.")),)
    return tuple(
        Action(do=say("Collect: {what}", what=what), because=say("It would tell the likeliest explanations apart."))
        for what in missing[:MOST_TO_COLLECT]
    )


def _steps(verdict: Verdict, top: Hypothesis, case: Case) -> list[Step]:
    """The catalogue's steps to take: those for the very kind of this failure first, or instead of all others."""
    fitting = _fitting(verdict, case)
    exact = [step for step in fitting if step.detail and step.detail == top.detail]
    if any(step.instead for step in exact):
        return exact
    return exact + [step for step in fitting if not step.detail]


def _fitting(verdict: Verdict, case: Case) -> list[Step]:
    """The catalogue's steps about this cause that need nothing else than what is known."""
    card = "gpu" if verdict.gpus else "no gpu"
    log = "kernel log" if kernel_logs(verdict, case) else "no kernel log"
    return [step for step in catalog.steps() if step.cause == verdict.cause and step.needs in (None, card, log)]


def _names(verdict: Verdict) -> dict[str, str]:
    """What stands for the names in the catalogue's sentences and commands."""
    return {
        "host": phrases.listing(verdict.hosts) or say("the host"),
        **_names_of_card(verdict),
        "rank": phrases.ranks(verdict.ranks).removeprefix("rank ").removeprefix("ranks ") if verdict.ranks else "N",
        "who": phrases.ranks(verdict.ranks) if verdict.ranks else say("the missing rank"),
    }


def _names_of_card(verdict: Verdict) -> dict[str, str]:
    """The first card that has an address; a command about one that has none is to be filled in by the reader."""
    addresses = [g.pci for g in verdict.gpus if g.pci]
    if not addresses:
        return {"gpu": "ADDRESS", "at_gpu": "", "index": "INDEX"}
    index = next(g.index for g in verdict.gpus if g.pci)
    return {
        "gpu": addresses[0],
        "at_gpu": phrases.aside(cards(addresses)),
        "index": str(index) if index is not None else "INDEX",
    }
