"""GPUs, their boards, links and firmware: Xid and SXid lines, PCIe errors, and what they have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, Gpu, number, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case, at
from nccl_forensics.verdict.rules import rule

BURST_S = 120
"""Lines of one GPU failure follow within seconds; hung requests repeat every 45 s (Xid 119). Our judgement."""
TOGETHER_S = 2
"""GPUs lost within this time share a cause (xid.toml, pattern multi-79-shared-power)."""
LOST = frozenset({79})
LOST_KINDS = frozenset({"nvrm-fallen", "nvrm-fallen-probe"})
MEMORY = frozenset({48, 64, 94, 95, 140, 161, 171, 172})
MEMORY_NOTED = frozenset({63})
FIRMWARE = frozenset({61, 62, 119, 120, 122})
NVLINK = frozenset({74, 144, 145, 146, 147, 148, 149, 150})
APPLICATION = frozenset({13, 31, 69})
PEER_ACCESS_SXID = frozenset({12028, 11004})
"""SXids of a misdirected or vanished peer access (xid.toml, sxid_class nonfatal): they do not indict the switch."""
DESKTOP = ("xorg", "xwayland", "gnome-shell", "kwin", "mutter", "firefox", "chrome", "plasmashell", "compiz")
"""Programs that no training job runs."""
FLOOD = 8
"""Corrected link errors on one port, within a minute, that make a flood. Our judgement."""
MINUTE = 60 * SECOND
ECC_STORMS = 4
"""Xid 92 lines on one card that make a trend. Our judgement."""


@dataclass(slots=True)
class Burst:
    """GPU lines of one host that belong together in time."""

    host: str | None
    boot: int | None
    events: list[Event] = field(default_factory=list)

    def xids(self, *numbers: int) -> list[Event]:
        return [e for e in self.events if e.kind == "xid" and number(e, "xid") in numbers]

    def lost(self) -> dict[str, Event]:
        """PCI address → the first line that says this GPU is gone."""
        found: dict[str, Event] = {}
        for event in self.events:
            gone = (event.kind == "xid" and number(event, "xid") in LOST) or event.kind in LOST_KINDS
            if gone and event.gpu_pci:
                found.setdefault(event.gpu_pci, event)
        return found


def bursts(case: Case) -> list[Burst]:
    """Xid, SXid and kindred lines, by host, boot and time; sorts all of them, so ask `case.once` for it."""
    streams: dict[tuple[str | None, int | None], list[Event]] = defaultdict(list)
    for event in case.events:
        if event.kind in ("xid", "sxid") or event.kind in LOST_KINDS or event.kind in BESIDE:
            key_boot = event.boot if event.time_ns is None else None
            streams[event.host or event.evidence.source, key_boot].append(event)
    found: list[Burst] = []
    for (_, boot), inside in streams.items():
        inside.sort(key=lambda e: (at(e), e.evidence.line or 0))
        last: Event | None = None
        for event in inside:
            if last is None or at(event) - at(last) > BURST_S * SECOND:
                found.append(Burst(event.host, boot, []))
            found[-1].events.append(event)
            last = event
    return found


LINK = frozenset({"aer-uncorrected", "aer-bit-surprise-down", "pciehp-link", "dpc-containment", "pci-retrain"})
"""Lines of the port above a card."""
BESIDE = (
    LINK
    | {"nvrm-rminit-failed", "nvrm-rm-init-adapter", "nvrm-pmu-halted", "nvrm-needs-open", "nvrm-power-cables"}
    | {"pci-bar-fail"}
)
"""Kernel lines that belong into the same picture."""
DOUBTFUL = frozenset({"nvrm-rminit-failed", "pci-bar-fail"})
"""Lines of a card that did not start; they do not tell why, nor whether it ever did."""


def _same_board(case: Case, host: str | None, addresses: Iterable[str]) -> list[list[str]]:
    """Addresses, grouped by board: two functions with one serial are one dual-GPU board (K80)."""
    boards: dict[str, list[str]] = defaultdict(list)
    for pci in addresses:
        serial = case.known.gpu(host, pci).serial
        boards[serial if serial and serial.strip("0") else pci].append(pci)
    return list(boards.values())


def _gpus(case: Case, host: str | None, addresses: Iterable[str]) -> tuple[Gpu, ...]:
    return tuple(case.known.gpu(host, pci) for pci in sorted(addresses))


def _ranks(case: Case, gpus: Iterable[Gpu], events: Iterable[Event] = ()) -> tuple[int, ...]:
    """The ranks on these GPUs: as a file states it, or by index where the collectives miss that very rank."""
    absent = {r for g in case.collectives.groups for r in (*g.missing, *g.no_data)} | set(
        case.collectives.cannot_exclude
    )
    found = {e.rank for e in events}
    for gpu in gpus:
        rank = case.known.rank_of_gpu(gpu.host, gpu.pci)
        likely = case.known.likely_rank_of_gpu(gpu.host, gpu.pci) if rank is None else None
        found.add(rank if rank is not None else likely if likely in absent else None)
    return tuple(sorted(r for r in found if r is not None))


def _finding(
    case: Case,
    cause: str,
    says: str,
    value: float,
    events: Sequence[Event],
    host: str | None,
    gpus: tuple[Gpu, ...],
    detail: str | None = None,
    ranks: tuple[int, ...] | None = None,
) -> Finding:
    shift, why = case.timing(events[0])
    if gpus and case.whole and all(case.known.unused(g.host or host, g.pci) for g in gpus):
        shift, why = shift + weight("gpu_unused"), say("no rank of the job ran on it")
    return Finding(
        cause=cause,
        says=says + phrases.aside(why),
        weight=value + shift,
        ranks=_ranks(case, gpus) if ranks is None else ranks,
        hosts=(host,) if host else (),
        gpus=gpus,
        events=tuple(events),
        detail=detail,
        onset_ns=events[0].time_ns,
    )


@rule
def gpu_lines(case: Case) -> Iterator[Finding]:
    """The first fault of each burst is its cause; what follows on the same host is its echo."""
    inside = case.once(bursts)
    somewhere = any(burst.lost() for burst in inside)
    for burst in inside:
        host, lost = burst.host, burst.lost()
        if lost:
            yield from _lost(case, burst, lost)
            continue
        told = list(_not_lost(case, burst, host))
        yield from told or _without_xid(case, burst, somewhere)


def _lost(case: Case, burst: Burst, lost: dict[str, Event]) -> Iterator[Finding]:
    host = burst.host
    first = min(at(e) for e in lost.values())
    together = {p: e for p, e in lost.items() if at(e) - first <= TOGETHER_S * SECOND}
    where = say(" in {host}", host=host) if host else ""
    boards = _same_board(case, host, together)
    if len(boards) > 1:
        uptimes = [e.stamp.boot_ns for e in together.values() if e.stamp is not None and e.stamp.boot_ns is not None]
        spread_s = (max(at(e) for e in together.values()) - first) / SECOND
        if len(uptimes) == len(together):
            spread_s = (max(uptimes) - min(uptimes)) / SECOND
        exact = all(
            e.stamp is not None and (e.stamp.boot_ns is not None or e.stamp.resolution_ns < SECOND)
            for e in together.values()
        )
        within = (
            say("within {time}", time=f"{spread_s * 1000:.1f} ms")
            if exact and spread_s < 1
            else say("within {time}", time=f"{max(spread_s, 1):.0f} s")
        )
        gpus = _gpus(case, host, together)
        yield _finding(
            case,
            "psu_rail_loss",
            say(
                "{n} GPUs{where} ({names}) were lost {within} of each other: they share something that failed",
                n=len(together),
                where=where,
                names=phrases.listing(sorted(together)),
                within=within,
            ),
            weight("shared_power"),
            sorted(together.values(), key=at),
            host,
            gpus,
            "several cards",
        )
    else:
        (addresses,) = boards
        event = together[addresses[0]]
        link = [e for e in burst.events if e.kind in LINK and at(e) <= at(event)]
        name = "GPU " + phrases.listing(addresses)
        board = say(" (both on one board)") if len(addresses) > 1 else ""
        code = "Xid 79" if event.kind == "xid" else say("no answer on the bus")
        yield _finding(
            case,
            "gpu_off_bus",
            say("{name}{board}{where} fell off the PCIe bus ({code})", name=name, board=board, where=where, code=code),
            weight("xid_fatal"),
            [event, *[e for p, e in together.items() if p != addresses[0]]],
            host,
            _gpus(case, host, addresses),
            "link" if link else "bus",
        )
        if link:
            yield _finding(
                case,
                "gpu_off_bus",
                say("its link went down first: {short}", short=_short(link[0])),
                0.3,
                link[:2],
                host,
                _gpus(case, host, addresses),
                "link",
            )
    for pci, event in together.items():
        noise = [e for e in case.on(host, "aer-corrected") if _above(text(e, "pci"), pci)]
        noise = [e for e in noise if 0 <= at(event) - at(e) <= NOISE_S * SECOND]
        if noise:
            yield Finding(
                cause="psu_rail_loss" if len(boards) > 1 else "gpu_off_bus",
                says=say(
                    "{errors} on port {port}, next above GPU {pci}, in the {time} before",
                    errors=phrases.count(len(noise), "corrected link error"),
                    port=text(noise[0], "pci"),
                    pci=pci,
                    time=phrases.duration((at(event) - at(noise[0])) / SECOND),
                ),
                weight=weight("link_noise_before"),
                hosts=(host,) if host else (),
                gpus=_gpus(case, host, [pci]),
                events=(noise[0],),
                inference=True,
            )
    later = {p: e for p, e in lost.items() if p not in together}
    for pci, event in later.items():
        yield _finding(
            case,
            "gpu_off_bus",
            say("GPU {pci}{where} fell off the PCIe bus later in the same burst", pci=pci, where=where),
            1.0,
            [event],
            host,
            _gpus(case, host, [pci]),
            "bus",
        )


NOISE_S = 3600
"""Link errors this long before a loss belong to the story. Our judgement."""


def _above(port: str | None, gpu: str) -> bool:
    """Is this port the one that leads to the GPU's bus? By bus numbers: a bridge's own bus comes just before."""
    if port is None or port.split(":")[0] != gpu.split(":")[0]:
        return False
    return int(gpu.split(":")[1], 16) - int(port.split(":")[1], 16) == 1


def _short(event: Event) -> str:
    return event.evidence.text[:160]


def _switch(event: Event) -> str:
    """The switch as the line names it: its number, its PCI address, or neither."""
    index = number(event, "switch")
    name = text(event, "switch_pci") if index is None else index
    return say("An NVSwitch") if name is None else say("NVSwitch {name}", name=name)


def _not_lost(case: Case, burst: Burst, host: str | None) -> Iterator[Finding]:
    where = say(" in {host}", host=host) if host else ""
    by_gpu: dict[str, list[Event]] = defaultdict(list)
    for event in burst.events:
        if event.kind == "xid" and event.gpu_pci:
            by_gpu[event.gpu_pci].append(event)
    peer = [e for e in burst.events if e.kind == "sxid" and number(e, "sxid") in PEER_ACCESS_SXID] + burst.xids(137)
    fatal_switch = [
        e for e in burst.events if e.kind == "sxid" and e.role == "cause" and number(e, "sxid") not in PEER_ACCESS_SXID
    ]
    links = burst.xids(*NVLINK)
    real_links = [e for e in links if e.role == "cause" or number(e, "xid") == 74]
    if real_links or fatal_switch:
        first = min([*real_links, *fatal_switch], key=at)
        gpus = _gpus(case, host, {e.gpu_pci for e in links if e.gpu_pci})
        what = (
            say("{switch} reports fatal SXid {sxid}", switch=_switch(first), sxid=number(first, "sxid"))
            if first.kind == "sxid"
            else say("NVLink error Xid {xid} on GPU {gpu_pci}", xid=number(first, "xid"), gpu_pci=first.gpu_pci)
        )
        yield _finding(
            case,
            "nvlink",
            what + where + (say("; {gpus} saw it", gpus=phrases.count(len(gpus), "GPU")) if len(gpus) > 1 else ""),
            weight("xid_fatal"),
            [first, *[e for e in sorted([*real_links, *fatal_switch], key=at) if e is not first][:3]],
            host,
            gpus,
            ranks=() if len(gpus) > 1 else None,
        )
        return
    for pci, inside in by_gpu.items():
        inside.sort(key=lambda e: (at(e), e.evidence.line or 0))
        gpus = _gpus(case, host, [pci])
        numbers = {n for e in inside if (n := number(e, "xid")) is not None}
        memory = [e for e in inside if number(e, "xid") in MEMORY]
        noted = [e for e in inside if number(e, "xid") in MEMORY_NOTED]
        firmware = [e for e in inside if number(e, "xid") in FIRMWARE]
        program = [e for e in inside if number(e, "xid") in APPLICATION]
        if memory:
            only_contained = {number(e, "xid") for e in memory} == {94}
            if only_contained and peer and not noted:
                yield _finding(
                    case,
                    "gpu_memory",
                    say(
                        "GPU {pci}{where} met a contained error (Xid 94) in the same second as a failed access "
                        "between peers: poisoned data from another GPU looks the same as broken memory here",
                        pci=pci,
                        where=where,
                    ),
                    0.2,
                    [memory[0], peer[0]],
                    host,
                    gpus,
                    "peer access",
                )
                continue
            others = [str(n) for n in sorted((numbers & (MEMORY | MEMORY_NOTED)) - {number(memory[0], "xid")}, key=str)]
            yield _finding(
                case,
                "gpu_memory",
                say(
                    "GPU {pci}{where} had an uncorrectable memory error (Xid {xid}",
                    pci=pci,
                    where=where,
                    xid=number(memory[0], "xid"),
                )
                + (say(", then {others}", others=phrases.listing(others)) if others else "")
                + ")",
                weight("xid_fatal"),
                [*memory[:2], *noted[:1]],
                host,
                gpus,
                "row remapped" if noted else "uncorrectable",
            )
        elif firmware:
            hung = [e for e in firmware if number(e, "xid") in (62, 119, 120)] or firmware
            names = {t for e in firmware if (t := text(e, "name"))}
            yield _finding(
                case,
                "gpu_firmware",
                say(
                    "GPU {pci}{where}: its own processor stopped answering (Xid {numbers})",
                    pci=pci,
                    where=where,
                    numbers=phrases.listing(str(n) for n in sorted(n for n in numbers & FIRMWARE if n)),
                )
                + (say("; {names} only asked", names=phrases.listing(sorted(names)[:3])) if names else ""),
                weight("xid_fatal")
                if any(e.role == "cause" for e in hung) or len(firmware) > 1
                else weight("firmware_hung"),
                hung[:3],
                host,
                gpus,
            )
            if program and at(program[0]) < at(firmware[0]):
                yield _finding(
                    case,
                    "gpu_app_fault",
                    say(
                        "a fault of the program on GPU {pci} came just before (Xid {xid})",
                        pci=pci,
                        xid=number(program[0], "xid"),
                    ),
                    weight("fault_before_firmware"),
                    program[:2],
                    host,
                    gpus,
                )
        elif program:
            names = {t for e in program if (t := text(e, "name"))}
            desktop = any(n.lower().startswith(DESKTOP) for n in names)
            yield _finding(
                case,
                "gpu_app_fault",
                say(
                    "a program on GPU {pci}{where} made an illegal access (Xid {xid}",
                    pci=pci,
                    where=where,
                    xid=number(program[0], "xid"),
                )
                + (f", {phrases.listing(sorted(names)[:2])}" if names else "")
                + ")",
                weight("xid_application") - (4.0 if desktop and (case.job or case.has_job_log) else 0.0),
                program[:3],
                host,
                gpus,
                "desktop" if desktop else None,
                ranks=() if desktop else None,
            )
        else:
            other = [e for e in inside if e.role == "cause"]
            if other:
                yield _finding(
                    case,
                    other[0].cause or "gpu_other",
                    say("GPU {pci}{where}: Xid {xid}", pci=pci, where=where, xid=number(other[0], "xid"))
                    + (say(" ({short})", short=text(other[0], "short")) if text(other[0], "short") else ""),
                    weight("xid_other"),
                    other[:3],
                    host,
                    gpus,
                )


def _without_xid(case: Case, burst: Burst, lost_elsewhere: bool) -> Iterator[Finding]:
    """What ports and the driver state by themselves, where no Xid tells it better."""
    seen: set[tuple[str | None, str | None]] = set()
    for event in burst.events:
        place = event.gpu_pci or text(event, "pci")
        if event.kind not in BESIDE | LOST_KINDS or event.role != "cause" or (event.cause, place) in seen:
            continue
        if event.kind in LINK and lost_elsewhere:
            continue
        seen.add((event.cause, place))
        mild = event.kind in DOUBTFUL or text(event, "fatal") == "Non-Fatal"
        yield _finding(
            case,
            event.cause or "gpu_other",
            (f"{burst.host}: " if burst.host else "") + _short(event),
            weight("kernel_symptom") + (weight("symptom_beside_job") if case.job else 0.0)
            if mild
            else weight("kernel_cause"),
            [event],
            burst.host,
            () if event.kind in LINK or event.gpu_pci is None else _gpus(case, burst.host, [event.gpu_pci]),
        )


@rule
def same_card_in_many_ways(case: Case) -> Iterator[Finding]:
    """A card whose faults change their kind over boots or programs is the card."""
    seen: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in case.of("xid"):
        if event.gpu_pci and number(event, "xid") in APPLICATION | FIRMWARE | {32, 8, 25}:
            seen[event.host, event.gpu_pci].append(event)
    for (host, pci), inside in seen.items():
        kinds = {
            "program" if number(e, "xid") in APPLICATION else "firmware" if number(e, "xid") in FIRMWARE else "stream"
            for e in inside
        }
        days = {at(e) // (3600 * SECOND) for e in inside}
        programs = {e.pid for e in inside if e.pid is not None}
        if len(kinds) > 1 and len(days) > 1 and len(programs) > 1:
            numbers = sorted({n for e in inside if (n := number(e, "xid"))})
            yield _finding(
                case,
                "gpu_other",
                say(
                    "GPU {pci} failed in several ways (Xid {numbers}) with {programs} different programs: the card "
                    "rather than the programs",
                    pci=pci,
                    numbers=phrases.listing(map(str, numbers)),
                    programs=len(programs),
                ),
                weight("same_card_many_ways"),
                [inside[0], inside[-1]],
                host,
                _gpus(case, host, [pci]),
            )


@rule
def corrected_errors_rising(case: Case) -> Iterator[Finding]:
    """Xid 92 again and again, at shorter and shorter distance."""
    seen: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in case.of("xid"):
        if number(event, "xid") == 92 and event.gpu_pci:
            seen[event.host, event.gpu_pci].append(event)
    for (host, pci), inside in seen.items():
        times = sorted(at(e) for e in inside)
        gaps = [b - a for a, b in pairwise(times)]
        if len(inside) < ECC_STORMS:
            continue
        half = len(gaps) // 2
        rising = (
            sorted(gaps[half:])[len(gaps[half:]) // 2] < sorted(gaps[:half])[len(gaps[:half]) // 2] / 2
            if half
            else False
        )
        words_gap = (
            say(
                "the gaps shrank from {longest} to {shortest}",
                longest=phrases.duration(max(gaps[:half]) / SECOND),
                shortest=phrases.duration(min(gaps[half:]) / SECOND),
            )
            if rising
            else say("without a clear trend")
        )
        yield Finding(
            cause="gpu_ecc_leak",
            says=say(
                "GPU {pci}: {n} storms of corrected memory errors (Xid 92) in {time}; {gaps}",
                pci=pci,
                n=len(inside),
                time=phrases.duration((times[-1] - times[0]) / SECOND),
                gaps=words_gap,
            ),
            weight=weight("ecc_beside" if case.job else "ecc_trend" if rising else "ecc_storms"),
            ranks=_ranks(case, [case.known.gpu(host, pci)]),
            hosts=(host,) if host else (),
            gpus=_gpus(case, host, [pci]),
            events=(inside[0], inside[-1]),
            onset_ns=inside[0].time_ns,
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
    for (host, port), inside in ports.items():
        times = sorted(at(e) for e in inside)
        most = _most_within(times, MINUTE) if times[-1] else len(times)
        if most < FLOOD:
            continue
        # Beside a failed job they are a warning, not what stopped it: corrected errors cost no packet.
        yield _finding(
            case,
            "pcie_link",
            say(
                "PCIe port {port} reported {errors}, {most} within a minute",
                port=port,
                errors=phrases.count(len(inside), "corrected link error"),
                most=most,
            ),
            0.2 if case.job else weight("link_flood"),
            [inside[0], inside[-1]],
            host,
            (),
            "flood",
            ranks=(),
        )
