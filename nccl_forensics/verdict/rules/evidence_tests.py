"""Links between cards as they were measured: nccl-tests and the topology matrix."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.evidence_subjects import Subjects, card_name, only_beside, told_apart


@rule
def links_measured(case: Case) -> Iterator[Finding]:
    """nccl-tests and the topology matrix: links that are slower or fewer than they should be."""
    yield from _fewer_links(case)
    yield from _slow_or_wrong(case)


def _fewer_links(case: Case) -> Iterator[Finding]:
    """A card with fewer NVLinks than its like."""
    who = case.once(Subjects.of)
    aside = only_beside(case)
    for event in case.of("topology-odd"):
        gpu = who.gpu(event)
        if gpu is None:
            continue
        yield Finding(
            cause="nvlink",
            says=say(
                "{name} has {links} NVLinks to the others, its like have {usual}",
                name=card_name(gpu),
                links=number(event, "links"),
                usual=number(event, "usual"),
            ),
            weight=weight("beside") if aside else weight("fewer_links"),
            hosts=() if aside else if_known(gpu.host),
            gpus=() if aside else told_apart([gpu]),
            events=(event,),
        )


def _slow_or_wrong(case: Case) -> Iterator[Finding]:
    """nccl-tests that moved data too slowly, or wrong."""
    who = case.once(Subjects.of)
    aside = only_beside(case)
    for event in case.of("nccl-test", "nccl-test-wrong"):
        if event.role != "symptom" or event.cause is None:
            continue
        host, wrong = who.host(event), number(event, "wrong")
        yield Finding(
            cause=event.cause,
            says=_wrong_values(host, wrong) if wrong is not None else _bandwidth(host, event),
            weight=weight("beside" if aside else "slow_links" if wrong is None else "wrong_values"),
            hosts=() if aside else if_known(host),
            events=(event,),
        )


def _wrong_values(host: str | None, wrong: int) -> str:
    return say(
        "nccl-tests{on_host}: {wrong}",
        on_host=say(" on {host}", host=host) if host else "",
        wrong=phrases.count(wrong, "wrong value"),
    )


def _bandwidth(host: str | None, event: Event) -> str:
    return say(
        "nccl-tests on {host}: {peak_gb_s} GB/s of bus bandwidth, {expected_gb_s} or more are usual",
        host=host,
        peak_gb_s=event.details.get("peak_gb_s"),
        expected_gb_s=event.details.get("expected_gb_s"),
    )
