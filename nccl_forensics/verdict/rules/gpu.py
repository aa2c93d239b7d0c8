"""GPUs, their boards, links and firmware: bursts of Xid and SXid lines, and what the kernel says beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nccl_forensics.catalog import kinds_marked, weight
from nccl_forensics.catalog.xid import xids
from nccl_forensics.model import Event, Finding, Gpu, number, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case, at
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.gpu_subjects import GpuHost, ranks_on
from nccl_forensics.waits.watchdogs import waiting_ranks

BURST_S = 120
"""Lines of one GPU failure follow within seconds; hung requests repeat every 45 s (Xid 119). Our judgement."""
TOGETHER_S = 2
"""GPUs lost within this time share a cause (xid.toml, pattern multi-79-shared-power)."""
LOST = frozenset({79})
LOST_KINDS = kinds_marked("card-lost")
MEMORY = frozenset({48, 64, 94, 95, 140, 161, 171, 172})
MEMORY_NOTED = frozenset({63})
FIRMWARE = frozenset({61, 62, 119, 120, 122})
NVLINK = frozenset({74, 144, 145, 146, 147, 148, 149, 150})
APPLICATION = frozenset({13, 31, 69})
OF_A_PEER = (137,)
"""Xids of an access that another card refused: they do not indict their own."""
PEER_ACCESS_SXID = frozenset({12028, 11004})
"""SXids of a misdirected or vanished peer access (xid.toml, sxid_class nonfatal): they do not indict the switch."""
DESKTOP = ("xorg", "xwayland", "gnome-shell", "kwin", "mutter", "firefox", "chrome", "plasmashell", "compiz")
"""Programs that no training job runs."""


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
    return [burst for (_, boot), inside in streams.items() for burst in _by_time(boot, inside)]


def _by_time(boot: int | None, lines: Iterable[Event]) -> list[Burst]:
    """One host's lines, with a new burst after each silence."""
    found: list[Burst] = []
    last: Event | None = None
    for event in sorted(lines, key=_by_line):
        if last is None or at(event) - at(last) > BURST_S * SECOND:
            found.append(Burst(event.host, boot, []))
        found[-1].events.append(event)
        last = event
    return found


def _by_line(event: Event) -> tuple[int, int]:
    """For sorting lines of one host."""
    return at(event), event.evidence.line or 0


LINK = kinds_marked("port-above")
"""Lines of the port above a card."""
BESIDE = kinds_marked("beside-xid")
"""Kernel lines that belong into the same picture."""
DOUBTFUL = kinds_marked("doubtful-start")
"""Lines of a card that did not start; they do not tell why, nor whether it ever did."""


@rule
def gpu_lines(case: Case) -> Iterator[Finding]:
    """The first fault of each burst is its cause; what follows on the same host is its echo."""
    inside = case.once(bursts)
    somewhere = any(burst.lost() for burst in inside)
    for burst in inside:
        host, lost = GpuHost(case, burst.host), burst.lost()
        if lost:
            yield from _lost(host, burst, lost)
            continue
        told = list(_not_lost(host, burst))
        yield from told or _without_xid(host, burst, somewhere)


# --- cards that were lost -------------------------------------------------------------------------------------------


def _lost(host: GpuHost, burst: Burst, lost: Mapping[str, Event]) -> Iterator[Finding]:
    """Cards that fell off the bus, by address: those at once share a cause, the others came later."""
    first = min(at(event) for event in lost.values())
    together = {pci: event for pci, event in lost.items() if at(event) - first <= TOGETHER_S * SECOND}
    boards = host.boards(together)
    if len(boards) > 1:
        yield _several_boards(host, together, alone=len(boards) == 2)
    else:
        yield from _one_board(host, burst, [together[pci] for pci in boards[0]], boards[0])
    cause = "psu_rail_loss" if len(boards) > 1 else "gpu_off_bus"
    for pci, event in together.items():
        yield from _noise_before(host, cause, pci, event)
    for pci, event in lost.items():
        if pci not in together:
            yield host.finding(
                cause="gpu_off_bus",
                says=say("GPU {pci}{where} fell off the PCIe bus later in the same burst", pci=pci, where=host.where),
                weight=1.0,
                events=[event],
                gpus=host.gpus([pci]),
                detail="bus",
            )


def _several_boards(host: GpuHost, together: Mapping[str, Event], *, alone: bool) -> Finding:
    """Cards that share nothing but their supply; two `alone` may also share a riser, a switch or a port."""
    return host.finding(
        cause="psu_rail_loss",
        says=say(
            "{n} GPUs{where} ({names}) were lost {within} of each other: they share something that failed",
            n=len(together),
            where=host.where,
            names=phrases.listing(sorted(together)),
            within=_within(list(together.values())),
        ),
        weight=weight("shared_power"),
        identifies=not alone,
        events=sorted(together.values(), key=at),
        gpus=host.gpus(together),
        detail="several cards",
    )


def _within(events: Sequence[Event]) -> str:
    """'within 3.1 ms', by the kernel's own clock where all lines have its stamp."""
    times = [at(event) for event in events]
    stamps = [event.stamp for event in events if event.stamp is not None]
    uptimes = [stamp.boot_ns for stamp in stamps if stamp.boot_ns is not None]
    if len(uptimes) == len(events):
        times = uptimes
    spread_s = (max(times) - min(times)) / SECOND
    exact = len(stamps) == len(events) and all(s.boot_ns is not None or s.resolution_ns < SECOND for s in stamps)
    if exact and spread_s < 1:
        return say("within {time}", time=f"{spread_s * 1000:.1f} ms")
    return say("within {time}", time=f"{max(spread_s, 1):.0f} s")


def _one_board(host: GpuHost, burst: Burst, events: Sequence[Event], addresses: Sequence[str]) -> Iterator[Finding]:
    """One card, or the two of one board; and its link, where that went down first."""
    first = events[0]
    link = [e for e in burst.events if e.kind in LINK and at(e) <= at(first)]
    yield host.finding(
        cause="gpu_off_bus",
        says=say(
            "{name}{board}{where} fell off the PCIe bus ({code})",
            name="GPU " + phrases.listing(addresses),
            board=say(" (both on one board)") if len(addresses) > 1 else "",
            where=host.where,
            code="Xid 79" if first.kind == "xid" else say("no answer on the bus"),
        ),
        weight=weight("xid_fatal"),
        events=events,
        gpus=host.gpus(addresses),
        detail="link" if link else "bus",
    )
    if link:
        yield host.finding(
            cause="gpu_off_bus",
            says=say("its link went down first: {short}", short=_short(link[0])),
            weight=0.3,
            events=link[:2],
            gpus=host.gpus(addresses),
            detail="link",
        )


def _noise_before(host: GpuHost, cause: str, pci: str, lost: Event) -> Iterator[Finding]:
    """Corrected errors of the link above a card, before the card was lost."""
    above = [e for e in host.case.on(host.name, "aer-corrected") if _above(text(e, "pci"), pci)]
    noise = [e for e in above if 0 <= at(lost) - at(e) <= NOISE_S * SECOND]
    if noise:
        yield Finding(
            cause=cause,
            says=say(
                "{errors} on port {port}, next above GPU {pci}, in the {time} before",
                errors=phrases.count(len(noise), "corrected link error"),
                port=text(noise[0], "pci"),
                pci=pci,
                time=phrases.duration((at(lost) - at(noise[0])) / SECOND),
            ),
            weight=weight("link_noise_before"),
            hosts=if_known(host.name),
            gpus=host.gpus([pci]),
            events=(noise[0],),
            inference=True,
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


# --- cards that are still there -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Card:
    """The Xids of one card in a burst, in their order."""

    host: GpuHost
    pci: str
    xids: Sequence[Event]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.host.gpus([self.pci])

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(n for e in self.xids if (n := number(e, "xid")) is not None)

    def of(self, numbers: Collection[int]) -> list[Event]:
        return [e for e in self.xids if number(e, "xid") in numbers]


def _cards(host: GpuHost, burst: Burst) -> Iterator[_Card]:
    by_gpu: dict[str, list[Event]] = defaultdict(list)
    for event in burst.events:
        if event.kind == "xid" and event.gpu_pci:
            by_gpu[event.gpu_pci].append(event)
    for pci, lines in by_gpu.items():
        yield _Card(host, pci, sorted(lines, key=_by_line))


def _not_lost(host: GpuHost, burst: Burst) -> Iterator[Finding]:
    """What the Xids of a burst say: of the links between cards, else of each card the fault that tells most."""
    between_cards = _nvlink(host, burst)
    if between_cards is not None:
        yield between_cards
        return
    sxids = [e for e in burst.events if e.kind == "sxid"]
    peer_access = [e for e in sxids if number(e, "sxid") in PEER_ACCESS_SXID] + burst.xids(137)
    for card in _cards(host, burst):
        if memory := card.of(MEMORY):
            yield _poisoned(card, memory, peer_access) or _memory(card, memory)
        elif firmware := card.of(FIRMWARE):
            yield from _firmware(card, firmware)
        elif program := card.of(APPLICATION):
            yield _program(card, program)
        elif other := [e for e in card.xids if e.role == "cause"]:
            yield _other(card, other)
        elif felt := _felt(card):
            yield _by_bucket(card, felt)


def _nvlink(host: GpuHost, burst: Burst) -> Finding | None:
    """NVLink errors and fatal errors of the switch: the first of them is the fault, cards only saw it."""
    links = burst.xids(*NVLINK)
    faults = [e for e in links if e.role == "cause" or number(e, "xid") == 74]
    faults += [
        e for e in burst.events if e.kind == "sxid" and e.role == "cause" and number(e, "sxid") not in PEER_ACCESS_SXID
    ]
    if not faults:
        return None
    first, *others = sorted(faults, key=at)
    gpus = host.gpus({e.gpu_pci for e in links if e.gpu_pci})
    what = (
        say("{switch} reports fatal SXid {sxid}", switch=_switch(first), sxid=number(first, "sxid"))
        if first.kind == "sxid"
        else say("NVLink error Xid {xid} on GPU {gpu_pci}", xid=number(first, "xid"), gpu_pci=first.gpu_pci)
    )
    several = len(gpus) > 1
    return host.finding(
        cause="nvlink",
        says=what + host.where + (say("; {gpus} saw it", gpus=phrases.count(len(gpus), "GPU")) if several else ""),
        weight=weight("xid_fatal"),
        events=[first, *others[:3]],
        gpus=gpus,
        ranks=() if several else None,
    )


def _poisoned(card: _Card, memory: Sequence[Event], peer_access: Sequence[Event]) -> Finding | None:
    """A contained error beside a failed access between peers need not be this card's memory."""
    only_contained = all(number(e, "xid") == 94 for e in memory)
    if not only_contained or not peer_access or card.of(MEMORY_NOTED):
        return None
    return card.host.finding(
        cause="gpu_memory",
        says=say(
            "GPU {pci}{where} met a contained error (Xid 94) in the same second as a failed access "
            "between peers: poisoned data from another GPU looks the same as broken memory here",
            pci=card.pci,
            where=card.host.where,
        ),
        weight=0.2,
        events=[memory[0], peer_access[0]],
        gpus=card.gpus,
        detail="peer access",
    )


def _memory(card: _Card, memory: Sequence[Event]) -> Finding:
    noted = card.of(MEMORY_NOTED)
    first = number(memory[0], "xid")
    others = sorted(str(n) for n in card.numbers & (MEMORY | MEMORY_NOTED) if n != first)
    return card.host.finding(
        cause="gpu_memory",
        says=say(
            "GPU {pci}{where} had an uncorrectable memory error (Xid {xid}",
            pci=card.pci,
            where=card.host.where,
            xid=first,
        )
        + (say(", then {others}", others=phrases.listing(others)) if others else "")
        + ")",
        weight=weight("xid_fatal"),
        events=[*memory[:2], *noted[:1]],
        gpus=card.gpus,
        detail="row remapped" if noted else "uncorrectable",
    )


def _names(events: Iterable[Event]) -> list[str]:
    """The programs that the lines name."""
    return sorted({name for e in events if (name := text(e, "name"))})


def _firmware(card: _Card, firmware: Sequence[Event]) -> Iterator[Finding]:
    """A card's own processor that no longer answers; a fault of the program may have come before."""
    hung = [e for e in firmware if number(e, "xid") in (62, 119, 120)] or firmware
    names = _names(firmware)
    sure = len(firmware) > 1 or any(e.role == "cause" for e in hung)
    yield card.host.finding(
        cause="gpu_firmware",
        says=say(
            "GPU {pci}{where}: its own processor stopped answering (Xid {numbers})",
            pci=card.pci,
            where=card.host.where,
            numbers=phrases.listing(str(n) for n in sorted(card.numbers & FIRMWARE)),
        )
        + (say("; {names} only asked", names=phrases.listing(names[:3])) if names else ""),
        weight=weight("xid_fatal") if sure else weight("firmware_hung"),
        events=hung[:3],
        gpus=card.gpus,
    )
    program = card.of(APPLICATION)
    if program and at(program[0]) < at(firmware[0]):
        yield card.host.finding(
            cause="gpu_app_fault",
            says=say(
                "a fault of the program on GPU {pci} came just before (Xid {xid})",
                pci=card.pci,
                xid=number(program[0], "xid"),
            ),
            weight=weight("fault_before_firmware"),
            events=program[:2],
            gpus=card.gpus,
        )


def _program(card: _Card, program: Sequence[Event]) -> Finding:
    """An illegal access; one of the desktop's programs tells nothing of the job."""
    case, names = card.host.case, _names(program)
    desktop = any(name.lower().startswith(DESKTOP) for name in names)
    beside_a_job = desktop and (case.job or case.has_job_log)
    return card.host.finding(
        cause="gpu_app_fault",
        says=say(
            "a program on GPU {pci}{where} made an illegal access (Xid {xid}",
            pci=card.pci,
            where=card.host.where,
            xid=number(program[0], "xid"),
        )
        + (f", {phrases.listing(names[:2])}" if names else "")
        + ")",
        weight=weight("xid_application") - (4.0 if beside_a_job else 0.0),
        events=program[:3],
        gpus=card.gpus,
        detail="desktop" if desktop else None,
        ranks=() if desktop else None,
    )


def _other(card: _Card, events: Sequence[Event]) -> Finding:
    """Any other Xid that states a fault."""
    first = events[0]
    short = text(first, "short")
    return card.host.finding(
        cause=first.cause or "gpu_other",
        says=say("GPU {pci}{where}: Xid {xid}", pci=card.pci, where=card.host.where, xid=number(first, "xid"))
        + (say(" ({short})", short=short) if short else ""),
        weight=weight("xid_other"),
        events=events[:3],
        gpus=card.gpus,
    )


def _felt(card: _Card) -> list[Event]:
    """Xids that are no cause by themselves and end what runs on the card, or of which the catalogue knows nothing.

    None where the ranks of the card entered the collective and waited: what ran there had not ended.
    """
    users = set(ranks_on(card.host.case, card.gpus))
    if users and users <= set(waiting_ranks(card.host.case.events)):
        return []
    entries = xids()
    told = [(e, entries.get(number(e, "xid") or 0)) for e in card.xids if e.role == "symptom"]
    return [e for e, entry in told if (entry is None or entry.kills) and number(e, "xid") not in OF_A_PEER]


def _is_of_the_late(card: _Card) -> bool:
    """Did only ranks that never came run on it? Then that card is why."""
    late = {rank for suspect in card.host.case.collectives.suspects for rank in suspect.ranks}
    users = set(ranks_on(card.host.case, card.gpus))
    return bool(users) and users <= late


def _by_bucket(card: _Card, felt: Sequence[Event]) -> Finding:
    """By what NVIDIA says to do: what asks for a reset of the card says so by itself; what only ends a program may be
    the program's."""
    first = next(filter(_asks_for_reset, felt), felt[0])
    resets = _asks_for_reset(first)
    short = text(first, "short")
    by_itself = weight("xid_other") if resets else weight("xid_by_itself")
    return card.host.finding(
        cause=first.cause or "gpu_other",
        says=say("GPU {pci}{where}: Xid {xid}", pci=card.pci, where=card.host.where, xid=number(first, "xid"))
        + (say(" ({short})", short=short) if short else ""),
        weight=weight("xid_on_the_late") if _is_of_the_late(card) else by_itself,
        events=[first, *(e for e in felt if e is not first)][:3],
        gpus=card.gpus,
        identifies=resets,
    )


def _asks_for_reset(event: Event) -> bool:
    entry = xids().get(number(event, "xid") or 0)
    return entry is not None and entry.asks_for_reset


def _without_xid(host: GpuHost, burst: Burst, lost_elsewhere: bool) -> Iterator[Finding]:
    """What ports and the driver state by themselves, where no Xid tells it better."""
    seen: set[tuple[str | None, str | None]] = set()
    for event in burst.events:
        what = event.cause, event.gpu_pci or text(event, "pci")
        by_a_loss = event.kind in LINK and lost_elsewhere
        if event.kind in BESIDE | LOST_KINDS and event.role == "cause" and what not in seen and not by_a_loss:
            seen.add(what)
            yield _line_beside(host, event)


def _line_beside(host: GpuHost, event: Event) -> Finding:
    mild = event.kind in DOUBTFUL or text(event, "fatal") == "Non-Fatal"
    symptom = weight("kernel_symptom") + (weight("symptom_beside_job") if host.case.job else 0.0)
    of_a_card = event.gpu_pci is not None and event.kind not in LINK
    return host.finding(
        cause=event.cause or "gpu_other",
        says=(f"{host.name}: " if host.name else "") + _short(event),
        weight=symptom if mild else weight("kernel_cause"),
        events=[event],
        gpus=host.gpus(if_known(event.gpu_pci)) if of_a_card else (),
    )
