"""Hosts that were lost: logs that stop in mid-flow, and ranks that never came and are all of one host."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, Suspect, flag
from nccl_forensics.names import same_host
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import ONE_START, Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.host import LAUNCHER_TELLS, PROCESS_TELLS, other_matter

SHUTDOWN_LINES = 400
"""Lines between a shutdown sequence and the next start's first line. Our judgement."""


@dataclass(frozen=True, slots=True)
class _Boot:
    """The end of a boot in one file: the start after it, and what stands before that from the start before on."""

    next_start: Event
    lines: Sequence[Event]
    """In the order of the case's events."""


def _boots(case: Case) -> Iterator[_Boot]:
    """The boots that a file shows the end of, file by file."""
    starts = _starts(case)
    written = _written(case, starts)
    for source, by_line in starts.items():
        rows = written[source]
        numbers = [line for line, _, _ in rows]
        for previous, line in pairwise([0, *sorted(by_line)]):
            if line - previous < ONE_START:
                continue  # the banner, the command line and the like of one and the same start
            between = rows[bisect_left(numbers, previous) : bisect_left(numbers, line)]
            if between and _is_one_boot(between[-1][2], by_line[line]):
                continue
            yield _Boot(by_line[line], [event for _, _, event in sorted(between, key=lambda row: row[1])])


def _is_one_boot(before: Event, start: Event) -> bool:
    """Does the journal's id of the boot stand on both?"""
    return start.boot_id is not None and start.boot_id == before.boot_id


def _starts(case: Case) -> dict[str, dict[int, Event]]:
    """File → line → the start of a boot that stands there."""
    found: dict[str, dict[int, Event]] = defaultdict(dict)
    reports = {r.path for r in case.rows if r.format == "nvidia-bug-report"}
    for event in case.of("boot-start"):
        if flag(event, "refuted") or flag(event, "by_id"):  # no boot; or one of which nothing tells how it began
            continue
        if event.evidence.source not in reports:  # a report holds excerpts of several boots one after the other
            found[event.evidence.source][event.evidence.line or 0] = event
    return found


def _written(case: Case, sources: Collection[str]) -> dict[str, list[tuple[int, int, Event]]]:
    """File → (line, place among the case's events, event) of all that it tells, by line; of these files."""
    found: dict[str, list[tuple[int, int, Event]]] = defaultdict(list)
    for place, event in enumerate(case.events if sources else ()):
        if event.evidence.source in sources:
            found[event.evidence.source].append((event.evidence.line or 0, place, event))
    for rows in found.values():
        rows.sort(key=lambda row: row[:2])
    return found


def _ends_for_no_reason(case: Case, boot: _Boot) -> bool:
    """Does neither a shutdown in order nor a fault of its own tell why the boot ended?"""
    start = boot.next_start
    begin = (start.evidence.line or 0) - SHUTDOWN_LINES
    orderly = any(e.kind == "shutdown-seq" and (e.evidence.line or 0) > begin for e in boot.lines)
    if orderly or start.details.get("orderly"):
        return False
    return not any(e.role == "cause" and not other_matter(case, e) for e in boot.lines)


@rule
def log_stops(case: Case) -> Iterator[Finding]:
    """A boot whose log ends in mid-flow, followed by a new boot: power or reset, when nothing else says why."""
    for boot in _boots(case):
        if not _ends_for_no_reason(case, boot):
            continue
        start = boot.next_start
        shift, why = case.timing(start)
        if boot.lines and case.timing(boot.lines[-1])[1] != why:
            shift, why = 0.0, None  # it stopped somewhere between its last line and this start, so perhaps in time
        order_unknown = shift > weight("long_before") and not case.order_is_shown(start)
        yield Finding(
            cause="node_lost",
            says=say(
                "{host}: the log stops in mid-flow without a shutdown sequence and a new boot follows: power "
                "loss or a hardware reset",
                host=start.host or start.evidence.source,
            )
            + phrases.aside(None if order_unknown else why),
            weight=weight("log_stops") + (0.0 if order_unknown else min(shift, 0.0)),
            hosts=if_known(start.host),
            events=(start,),
            inference=True,
            onset_ns=None,
            detail="power",
        )


def job_log_of(case: Case, host: str, ranks: Sequence[int | None]) -> bool:
    """Is what the job wrote on this host, or by these ranks, in the pile, beyond NCCL's lines at start?"""
    return any(
        (e.rank in ranks or (e.host and same_host(e.host, host))) and e.evidence.source not in case.of_hosts
        for e in case.events
        if e.kind != "nccl-init"
    ) or any(r.format == "job-log" and r.host and same_host(r.host, host) for r in case.rows)


@rule
def whole_host_missing(case: Case) -> Iterator[Finding]:
    """The ranks that never came are all the ranks of one host, and it has several: the host rather than the ranks."""
    for suspect in case.collectives.suspects:
        absent = suspect.cause in ("rank_not_arrived", "process_missing")
        if not absent or len(suspect.ranks) < 2 or not suspect.evidence:
            continue
        if _shows_life(case, set(suspect.ranks)):
            continue
        places = [place for rank in suspect.ranks if (place := case.known.ranks.get(rank)) is not None]
        for host in sorted({place.host for place in places if place.host}):
            spoke = case.on(host, "nccl-ib-event", "nccl-ib-error", "nccl-closed")
            if case.known.ranks_on(host) == suspect.ranks and not spoke:
                yield _all_of_one_host(case, suspect, host)


def _shows_life(case: Case, ranks: Collection[int]) -> bool:
    """Did one of these ranks answer the others, tell what happened to it, or a launcher beside it outlive it?"""
    answers = case.of("pg-observed", "pg-dump-remote", "nccl-ib-event", "nccl-ib-error")
    if any(e.rank in ranks for e in answers):
        return True
    own_words = [e for e in case.of(*PROCESS_TELLS) if e.rank in ranks and e.role == "cause"]
    if any(case.timing(e)[0] > -3 for e in own_words):
        return True
    return any(e.rank in ranks and not case.went_on(e) for e in case.of(*LAUNCHER_TELLS))


def _all_of_one_host(case: Case, suspect: Suspect, host: str) -> Finding:
    may_be_cut = job_log_of(case, host, suspect.ranks)
    return Finding(
        cause="node_lost",
        says=say("The ranks that never came are all {n} ranks of {host}", n=len(suspect.ranks), host=host),
        weight=weight("whole_host") + (weight("log_may_be_cut") if may_be_cut else 0.0),
        ranks=suspect.ranks,
        hosts=(host,),
        evidence=suspect.evidence[:2],
        inference=True,
        onset_ns=suspect.group.first_arrival_ns if suspect.group else None,
    )
