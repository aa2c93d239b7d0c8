"""What lines about GPUs and their links say together, over days: one card in many ways, storms, floods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median_high

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case, at
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.gpu import APPLICATION, FIRMWARE, bursts
from nccl_forensics.verdict.rules.gpu_subjects import GpuHost, ranks_on

FLOOD = 8
"""Corrected link errors on one port, within a minute, that make a flood. Our judgement."""
MINUTE = 60 * SECOND
ECC_STORMS = 4
"""Xid 92 lines on one card that make a trend. Our judgement."""


def _by_card(events: Iterable[Event]) -> dict[tuple[str | None, str], list[Event]]:
    """(host as it is written, address) → its lines."""
    found: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.gpu_pci:
            found[event.host, event.gpu_pci].append(event)
    return found


def _way(event: Event) -> str:
    """In which way a card failed."""
    if number(event, "xid") in APPLICATION:
        return "program"
    return "firmware" if number(event, "xid") in FIRMWARE else "stream"


@rule
def same_card_in_many_ways(case: Case) -> Iterator[Finding]:
    """A card whose faults change their kind over boots or programs is the card."""
    telling = (e for e in case.of("xid") if number(e, "xid") in APPLICATION | FIRMWARE | {32, 8, 25})
    for (name, pci), xids in _by_card(telling).items():
        ways = {_way(e) for e in xids}
        hours = {at(e) // (3600 * SECOND) for e in xids}
        programs = {e.pid for e in xids if e.pid is not None}
        if len(ways) > 1 and len(hours) > 1 and len(programs) > 1:
            host = GpuHost(case, name)
            numbers = sorted({n for e in xids if (n := number(e, "xid"))})
            yield host.finding(
                cause="gpu_other",
                says=say(
                    "GPU {pci} failed in several ways (Xid {numbers}) with {programs} different programs: the card "
                    "rather than the programs",
                    pci=pci,
                    numbers=phrases.listing(map(str, numbers)),
                    programs=len(programs),
                ),
                weight=weight("same_card_many_ways"),
                events=[xids[0], xids[-1]],
                gpus=host.gpus([pci]),
            )


@rule
def corrected_errors_rising(case: Case) -> Iterator[Finding]:
    """Xid 92 again and again, at shorter and shorter distance."""
    for (name, pci), storms in _by_card(e for e in case.of("xid") if number(e, "xid") == 92).items():
        if len(storms) < ECC_STORMS:
            continue
        times = sorted(at(e) for e in storms)
        gaps = [b - a for a, b in pairwise(times)]
        early, late = gaps[: len(gaps) // 2], gaps[len(gaps) // 2 :]
        rising = median_high(late) < median_high(early) / 2
        gpus = GpuHost(case, name).gpus([pci])
        yield Finding(
            cause="gpu_ecc_leak",
            says=say(
                "GPU {pci}: {n} storms of corrected memory errors (Xid 92) in {time}; {gaps}",
                pci=pci,
                n=len(storms),
                time=phrases.duration((times[-1] - times[0]) / SECOND),
                gaps=say(
                    "the gaps shrank from {longest} to {shortest}",
                    longest=phrases.duration(max(early) / SECOND),
                    shortest=phrases.duration(min(late) / SECOND),
                )
                if rising
                else say("without a clear trend"),
            ),
            weight=weight("ecc_beside" if case.job else "ecc_trend" if rising else "ecc_storms"),
            ranks=ranks_on(case, gpus),
            hosts=if_known(name),
            gpus=gpus,
            events=(storms[0], storms[-1]),
            onset_ns=storms[0].time_ns,
            detail="trend" if rising else None,
        )


def _most_within(times: Sequence[int], span: int) -> int:
    """How many of these times, sorted, lie within one such span at most, both its ends included."""
    most = first = 0
    for place, time in enumerate(times):
        while time - times[first] > span:
            first += 1
        most = max(most, place - first + 1)
    return most


@rule
def link_errors(case: Case) -> Iterator[Finding]:
    """A flood of corrected PCIe errors on one port, with no GPU lost behind it."""
    if any(b.lost() for b in case.once(bursts)):
        return
    ports: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in case.of("aer-corrected"):
        ports[event.host, text(event, "source") or text(event, "pci") or "?"].append(event)
    for (name, port), errors in ports.items():
        times = sorted(at(e) for e in errors)
        most = _most_within(times, MINUTE) if times[-1] else len(times)
        if most < FLOOD:
            continue
        # Beside a failed job they are a warning, not what stopped it: corrected errors cost no packet.
        flood = phrases.count(len(errors), "corrected link error")
        yield GpuHost(case, name).finding(
            cause="pcie_link",
            says=say("PCIe port {port} reported {errors}, {most} within a minute", port=port, errors=flood, most=most)
            if times[-1]
            else say("PCIe port {port} reported {errors}", port=port, errors=flood),
            weight=0.2 if case.job else weight("link_flood"),
            events=[errors[0], errors[-1]],
            detail="flood",
            ranks=(),
        )
