"""Measurements and reports beside the logs: heat, diagnostics, counters, listings, ports, file systems, schedulers.

Most of them are states at the moment somebody looked, before or after the failure, and most states are harmless. So
each rule asks for a second thing that makes a state matter: the late rank, a write that failed there, the same port up
elsewhere, the same card listed elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.catalog import weight
from nccl_forensics.fields import NumberField
from nccl_forensics.model import Event, Finding, Gpu, number, text
from nccl_forensics.names import same_host, short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case, Used
from nccl_forensics.verdict.rules import rule
from nccl_forensics.verdict.rules.host import other_matter

_Card = tuple[str | None, str]
"""Host and what tells a card from the others there."""


def _key(gpu: Gpu) -> _Card:
    return (
        short(gpu.host) if gpu.host else None,
        gpu.pci or gpu.uuid or gpu.serial or f"index {gpu.index}",
    )


@dataclass(frozen=True, slots=True)
class _Who:
    """Which host, card and rank an event is about."""

    case: Case
    lone: str | None
    """The only machine that the pile speaks of; None if there are several."""
    late: frozenset[int]
    """Ranks that the collectives miss or suspect."""
    by_name: Mapping[str, Gpu]
    """UUID or serial → card."""
    by_index: Mapping[tuple[str, int], str]
    """(host, nvidia-smi's index) → address, as NCCL's own lines state it (nvmlDev, busId)."""

    @classmethod
    def of(cls, case: Case) -> _Who:
        hosts = {short(h): h for e in case.events if (h := e.host)}
        hosts |= {short(h): h for p in case.known.ranks.values() if (h := p.host)}
        groups = case.collectives.groups
        late = {r for g in groups for r in (*g.missing, *g.no_data)} | set(case.collectives.cannot_exclude)
        late |= {r for s in case.collectives.suspects for r in s.ranks}
        cards = [g for gpus in case.known.gpus.values() for g in gpus]
        by_name = {name: g for g in cards for name in (g.uuid, g.serial) if name}
        stated: dict[tuple[str, int], set[str]] = defaultdict(set)
        for event in case.of("nccl-init"):
            index = number(event, "nvml_dev")
            if event.host is not None and event.gpu_pci is not None and index is not None:
                stated[short(event.host), index].add(event.gpu_pci)
        by_index = {key: next(iter(found)) for key, found in stated.items() if len(found) == 1}
        lone = next(iter(hosts.values())) if len(hosts) == 1 else None
        return cls(case, lone, frozenset(late), by_name, by_index)

    def host(self, event: Event) -> str | None:
        return event.host if event.host is not None else self.lone

    def gpu(self, event: Event) -> Gpu | None:
        """The card that an event names by address, UUID, serial number or index; None if it names none."""
        host = self.host(event)
        if event.gpu_pci is not None:
            return self.case.known.gpu(host, event.gpu_pci)
        uuid, serial, index = text(event, "uuid"), text(event, "serial"), number(event, "index")
        for name in (uuid, serial):
            if name is not None and name in self.by_name:
                return self.by_name[name]
        address = self.by_index.get((short(host), index)) if host is not None and index is not None else None
        if address is not None:
            card = self.case.known.gpu(host, address)
            return replace(card, index=index, uuid=card.uuid or uuid, serial=card.serial or serial)
        if index is None:
            return Gpu(host=host, uuid=uuid, serial=serial) if uuid or serial else None
        if host is not None and not (uuid or serial):
            for name, cards in self.case.known.gpus.items():
                here = [g for g in cards if g.index == index] if name and same_host(name, host) else []
                if len(here) == 1:
                    return here[0]
        return Gpu(host=host, index=index, uuid=uuid, serial=serial)

    def rank(self, gpu: Gpu) -> int | None:
        """The rank on this card: as a file states it; else the late rank whose local rank is the card's index."""
        known = self.case.known
        rank = known.rank_of_gpu(gpu.host, gpu.pci) if gpu.pci else None
        if rank is not None:
            return rank
        likely = known.likely_rank_of_gpu(gpu.host, gpu.pci) if gpu.pci else None
        if likely is None and gpu.index is not None and gpu.host is not None and not known.devices_chosen:
            found = [
                r
                for r in known.ranks_on(gpu.host)
                if (place := known.ranks[r]).local_rank == gpu.index and (place.gpu is None or not place.gpu.pci)
            ]
            likely = found[0] if len(found) == 1 else None
        return likely if likely in self.late else None

    def cards(self, events: Iterable[Event]) -> dict[_Card, tuple[Gpu, list[Event]]]:
        """The events, by the card that they name."""
        found: dict[_Card, tuple[Gpu, list[Event]]] = {}
        for event in events:
            gpu = self.gpu(event)
            if gpu is not None:
                found.setdefault(_key(gpu), (gpu, []))[1].append(event)
        return found


def _name(gpu: Gpu) -> str:
    """'GPU 3 (0000:c1:00.0) in node-a'."""
    said = (
        say("GPU {index}", index=gpu.index)
        if gpu.index is not None
        else say("GPU {pci}", pci=gpu.pci or gpu.uuid or gpu.serial)
    )
    if gpu.index is not None and gpu.pci:
        said += say(" ({pci})", pci=gpu.pci)
    return said + (say(" in {host}", host=gpu.host) if gpu.host else "")


def _aside(case: Case, *, sure: bool = False) -> bool:
    """Is this worth showing, but no ground to call anybody the culprit?

    The engine weighs up whatever struck the late rank's host. A state that may be as old as the machine must not gain
    by that, so beside a job's failure it is told of without a subject.
    """
    return case.job and not sure


def _named(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Cards that the engine can hold apart: it compares addresses, so one without may only stand alone."""
    with_address = tuple(g for g in gpus if g.pci)
    return with_address if with_address else tuple(gpus) if len(gpus) == 1 else ()


LASTING_S = 300
"""Five minutes: a shorter spell makes no rank minutes late. Our judgement."""


def _says_heat(event: Event) -> bool:
    if event.kind == "gpu-metric":
        return text(event, "metric") == "temperature_c"
    return event.kind in ("gpu-hot", "gpu-throttled", "smi-thermal") and event.role != "context"


def _until(case: Case, event: Event) -> Event:
    """The event at the part of its spell that is nearest to the failure."""
    lasted_s, onset = number(event, "lasted_s"), case.onset_ns
    if onset is None and case.detected is not None:
        onset = case.detected.time_ns
    if event.time_ns is None or lasted_s is None or onset is None:
        return event
    return replace(event, time_ns=max(event.time_ns, min(event.time_ns + lasted_s * SECOND, onset)))


def _heat(gpu: Gpu, inside: Sequence[Event]) -> str:
    hot = [e for e in inside if e.kind == "gpu-hot"]
    slow = [e for e in inside if e.kind in ("gpu-throttled", "smi-thermal")]
    parts = []
    if hot:
        lasted_s, peak = max(number(e, "lasted_s") or 0 for e in hot), max(number(e, "peak_c") or 0 for e in hot)
        parts.append(
            say(
                "was above {limit_c} °C for {time} (up to {peak} °C)",
                limit_c=number(hot[0], "limit_c"),
                time=phrases.duration(lasted_s),
                peak=peak,
            )
        )
    if slow:
        lasted_s = max(number(e, "lasted_s") or 0 for e in slow)
        parts.append(
            say("slowed down because of heat")
            + (say(" for {time}", time=phrases.duration(lasted_s)) if lasted_s else "")
        )
    if not parts:
        peak = max((number(e, "value") or 0 for e in inside if text(e, "metric") == "temperature_c"), default=0)
        parts.append(say("was at {peak} °C", peak=peak))
    return _name(gpu) + " " + phrases.listing(parts)


def _explained(case: Case, rank: int, gpu: Gpu) -> bool:
    """Does some line of this matter state another cause on this rank, its card, or its host?"""
    for event in case.events:
        if event.role != "cause" or event.cause in (None, "gpu_thermal"):
            continue
        if other_matter(case, event):
            continue
        if event.rank == rank:
            return True
        here = event.host is not None and gpu.host is not None and same_host(event.host, gpu.host)
        if here and event.rank is None and event.gpu_pci in (None, gpu.pci):
            return True
    return False


@rule
def gpu_hot(case: Case) -> Iterator[Finding]:
    """Heat slows a card down. It counts where the slow card's rank is the late one and its neighbours are cooler."""
    who = _Who.of(case)
    cards = who.cards(e for e in case.events if _says_heat(e))
    hosts = Counter(host for host, _ in cards)
    aside: list[Finding] = []
    for (host, _), (gpu, inside) in cards.items():
        shift, why = max((case.timing(_until(case, e)) for e in inside), key=lambda x: x[0])
        rank = who.rank(gpu)
        known = sum(len(g) for name, g in case.known.gpus.items() if name and host and same_host(name, host))
        all_hot = hosts[host] > 2 and hosts[host] * 2 > known
        lasting = any((number(e, "lasted_s") or 0) >= LASTING_S for e in inside)
        late = rank is not None and rank in who.late and lasting and shift > -1
        counts = late and not all_hot and not (rank is not None and _explained(case, rank, gpu))
        named = counts or not case.job
        alone = not case.job and lasting and not all_hot and any(e.kind == "gpu-throttled" for e in inside)
        finding = Finding(
            cause="gpu_thermal",
            says=_heat(gpu, inside)
            + (say(" while its rank {rank} was late", rank=rank) if counts else "")
            + phrases.aside(why)
            + (say(" – like most GPUs there") if all_hot else ""),
            weight=weight("hot_and_late" if counts else "hot_alone" if alone else "hot_besides") + shift,
            ranks=(rank,) if rank is not None and named else (),
            hosts=(gpu.host,) if gpu.host and named else (),
            gpus=_named([gpu]) if named else (),
            events=tuple(inside[:3]),
            onset_ns=inside[0].time_ns,
        )
        if named:
            yield finding
        else:
            aside.append(finding)
    if aside:
        first = max(aside, key=lambda f: f.weight)
        more = say("; {gpus} in the same way", gpus=phrases.count(len(aside) - 1, "more GPU")) if len(aside) > 1 else ""
        yield replace(first, says=first.says + more)


SPECIFIC_FIRST = ("gpu_off_bus", "gpu_memory", "nvlink", "pcie_link", "gpu_thermal", "gpu_other")
"""Of what one card fails in, the test that says most."""


@rule
def diagnostic_failed(case: Case) -> Iterator[Finding]:
    """A test of the card alone, made for this question, failed: DCGM's diagnostic, gpu-burn."""
    who = _Who.of(case)
    cards = who.cards(e for e in case.of("dcgm-fail", "gpu-burn-faulty") if e.role == "cause" and e.cause)
    same_host_and_cause: Counter[tuple[str | None, str]] = Counter()
    chosen = []
    for (host, _), (gpu, inside) in cards.items():
        inside.sort(key=lambda e: SPECIFIC_FIRST.index(e.cause) if e.cause in SPECIFIC_FIRST else len(SPECIFIC_FIRST))
        same_host_and_cause[host, inside[0].cause or ""] += 1
        chosen.append((host, gpu, inside))
    for host, gpu, inside in chosen:
        first, rank = inside[0], who.rank(gpu)
        tests = list(dict.fromkeys(text(e, "test") or "gpu-burn" for e in inside))
        says = text(first, "says")
        alone = same_host_and_cause[host, first.cause or ""] == 1
        yield Finding(
            cause=first.cause or "gpu_other",
            says=say("{name} failed {tests}", name=_name(gpu), tests=phrases.listing(tests))
            + (f": {says[:140]}" if says else ""),
            weight=weight("diagnostic_failed"),
            ranks=(rank,) if rank is not None else (),
            hosts=(gpu.host,) if gpu.host else (),
            gpus=_named([gpu]) if alone or gpu.pci else (),
            events=tuple(inside[:3]),
            detail="diagnostic",
        )


@rule
def exporter_keeps_last_xid(case: Case) -> Iterator[Finding]:
    """The exporter's gauge has the number of the last Xid only, from whenever; the kernel log would have the story."""
    who = _Who.of(case)
    logged = {(number(e, "xid"), e.gpu_pci) for e in case.of("xid")}
    for gpu, inside in who.cards(e for e in case.of("exporter-xid") if e.role == "symptom").values():
        first = inside[0]
        xid = number(first, "value")
        if first.cause is None or (xid, gpu.pci) in logged:
            continue
        rank = who.rank(gpu)
        new = number(first, "before") is not None
        shift, why = case.timing(first) if new else (0.0, None)
        aside = _aside(case, sure=new or rank in who.late)
        yield Finding(
            cause=first.cause,
            says=say(
                "dcgm-exporter shows Xid {xid} ({short}) as the last one of {name}",
                xid=xid,
                short=text(first, "short"),
                name=_name(gpu),
            )
            + (say("; the scrape before did not") if new else say("; when it came is not known"))
            + phrases.aside(why),
            weight=weight("beside") if aside else weight("last_xid") + (0.6 if new else 0.0) + shift,
            ranks=(rank,) if rank is not None and not aside else (),
            hosts=(gpu.host,) if gpu.host and not aside else (),
            gpus=() if aside else _named([gpu]),
            events=(first,),
            inference=not new,
            onset_ns=first.time_ns,
        )


RISES: Mapping[NumberField, tuple[str, int, str]] = {
    "ecc_volatile_corrected": ("gpu_ecc_leak", 10, say("corrected memory errors")),
    "ecc_aggregate_corrected": ("gpu_ecc_leak", 10, say("corrected memory errors")),
    "remapped_corrected": ("gpu_ecc_leak", 1, say("memory rows remapped for corrected errors")),
    "ecc_volatile_uncorrected": ("gpu_memory", 1, say("uncorrectable memory errors")),
    "ecc_aggregate_uncorrected": ("gpu_memory", 1, say("uncorrectable memory errors")),
    "remapped_uncorrected": ("gpu_memory", 1, say("memory rows remapped for uncorrectable errors")),
}
"""Counter → (cause, smallest rise that means something, words). The rise of ten is our judgement."""


@dataclass(frozen=True, slots=True)
class _Rise:
    before: int
    after: int
    events: tuple[Event, ...]


def _rise(inside: Sequence[tuple[int, Event]]) -> _Rise | None:
    """The largest rise of one counter: inside a file as its scrapes show it, between files by their times."""
    best: _Rise | None = None
    for value, event in inside:
        before = number(event, "before")
        if before is not None and value > before and (best is None or value - before > best.after - best.before):
            best = _Rise(before, value, (event,))
    timed = sorted([x for x in inside if x[1].time_ns is not None], key=lambda x: x[1].time_ns or 0)
    if len({e.time_ns for _, e in timed}) > 1:
        (low, first), (high, last) = timed[0], timed[-1]
        if high > low and (best is None or high - low > best.after - best.before):
            best = _Rise(low, high, (first, last))
    return best


@rule
def counters_rose(case: Case) -> Iterator[Finding]:
    """Memory errors counted between two looks at the same card. One look proves nothing: counters never go down."""
    who = _Who.of(case)
    series: dict[tuple[_Card, NumberField], tuple[Gpu, list[tuple[int, Event]]]] = {}
    for event in case.of("gpu-metric", "gpu-info"):
        metric = text(event, "metric")
        if event.kind == "gpu-metric":
            values = {k: number(event, "value") for k in RISES if k == metric}
        else:
            values = {k: number(event, k) for k in RISES if event.time_ns is not None}
        counted = [(name, value) for name, value in values.items() if value is not None]
        gpu = who.gpu(event) if counted else None
        for name, value in counted:
            if gpu is not None:
                series.setdefault((_key(gpu), name), (gpu, []))[1].append((value, event))
    told: set[tuple[_Card, str]] = set()
    for (card, name), (gpu, inside) in series.items():
        cause, least, what = RISES[name]
        rise = _rise(inside)
        if rise is None or rise.after - rise.before < least or (card, cause) in told:
            continue
        told.add((card, cause))
        shift, why = case.timing(rise.events[-1])
        rank = who.rank(gpu)
        yield Finding(
            cause=cause,
            says=say(
                "{name}: {what} rose from {before} to {after}",
                name=_name(gpu),
                what=what,
                before=f"{rise.before:,}",
                after=f"{rise.after:,}",
            )
            + phrases.aside(why),
            weight=weight("counter_rose") + (0.6 if cause == "gpu_memory" else 0.0) + max(shift, -0.5),
            ranks=(rank,) if rank is not None else (),
            hosts=(gpu.host,) if gpu.host else (),
            gpus=_named([gpu]),
            events=rise.events,
            onset_ns=rise.events[0].time_ns,
            detail="trend" if cause == "gpu_ecc_leak" else None,
        )


MOST_GONE = 2
"""Cards missing from a listing. More of them is rather another view of the machine. Our judgement."""


@dataclass(slots=True)
class _Listing:
    """The cards that one run of one tool saw, by address, or by UUID where only that is known."""

    tool: str
    source: str
    time_ns: int | None
    cards: dict[str, Event]

    def what(self) -> str:
        return {"smi": "nvidia-smi", "lspci": "lspci", "proc": "/proc/driver/nvidia"}[self.tool]


def _tool(event: Event) -> str | None:
    said = event.evidence.text
    if "NVRM" in said or "[nvidia-drm]" in said or "Initialized nvidia-drm" in said:
        return None  # single lines of the kernel log, no listing
    if "Bus Location" in said:
        return "proc"
    return "lspci" if "NVIDIA Corporation" in said else "smi"


def _listings(case: Case, who: _Who) -> dict[str, list[_Listing]]:
    """Host → listings. A card that comes again in one file begins another listing."""
    jobs = {e.evidence.source for e in case.of("nccl-init", "watchdog-timeout", "progress", "torch-version")}
    address = {g.uuid: g.pci for gpus in case.known.gpus.values() for g in gpus if g.uuid and g.pci}
    open_: dict[tuple[str, str, str], _Listing] = {}
    found: dict[str, list[_Listing]] = defaultdict(list)
    for event in sorted(case.of("gpu-info"), key=lambda e: (e.evidence.source, e.evidence.line or 0)):
        host, tool, source = who.host(event), _tool(event), event.evidence.source
        uuid = text(event, "uuid")
        pci = event.gpu_pci or (address.get(uuid, uuid) if uuid else None)
        if host is None or tool is None or pci is None or source in jobs or event.details.get("excluded"):
            continue
        key = (short(host), tool, source)
        listing = open_.get(key)
        if listing is None or pci in listing.cards:
            listing = open_[key] = _Listing(tool, source, event.time_ns, {})
            found[short(host)].append(listing)
        listing.cards[pci] = event
    return found


def _gone(larger: _Listing, smaller: _Listing) -> list[str]:
    """Cards of one listing that the other lacks, if the other is a listing of the same machine's like cards."""
    missing = sorted(set(larger.cards) - set(smaller.cards))
    if not missing or len(missing) > MOST_GONE or not set(smaller.cards) <= set(larger.cards):
        return []
    if len(smaller.cards) < 2 or len(smaller.cards) < len(missing) * 2:
        return []
    others = {text(larger.cards[p], "model") for p in smaller.cards}
    # a card of another make may be there for the screen, and not for the driver
    return missing if all(text(larger.cards[p], "model") in others for p in missing) else []


@rule
def gpu_no_longer_listed(case: Case) -> Iterator[Finding]:
    """A card that one listing of a host has and another has not: gone, without any message."""
    who = _Who.of(case)
    for event in case.of("gpu-vanished"):
        gpu = who.gpu(event)
        if gpu is None:
            continue
        shift, why = case.timing(event)
        rank = who.rank(gpu)
        yield Finding(
            cause="gpu_off_bus",
            says=say(
                "{name} gave no more samples while {others} others went on",
                name=_name(gpu),
                others=number(event, "others"),
            )
            + phrases.aside(why),
            weight=weight("no_longer_listed") + shift,
            ranks=(rank,) if rank is not None else (),
            hosts=(gpu.host,) if gpu.host else (),
            gpus=_named([gpu]),
            events=(event,),
            inference=True,
            onset_ns=event.time_ns,
        )
    for listings in _listings(case, who).values():
        best: tuple[float, list[str], _Listing, _Listing, str] | None = None
        for larger in listings:
            for smaller in listings:
                if larger is smaller or not (missing := _gone(larger, smaller)):
                    continue
                how: str
                value, how = weight("no_longer_listed") - 0.5, say("another listing of the same host")
                if larger.time_ns is not None and smaller.time_ns is not None and larger.time_ns != smaller.time_ns:
                    later = smaller.time_ns > larger.time_ns
                    value = weight("no_longer_listed") - (0.0 if later else 1.0)
                    how = say("a later listing") if later else say("an earlier listing")
                elif larger.tool == "lspci" and smaller.tool != "lspci":
                    value, how = weight("no_longer_listed") - 0.4, say("the driver's own listing")
                if best is None or value > best[0]:
                    best = (value, missing, larger, smaller, how)
        if best is None:
            continue
        value, missing, larger, smaller, how = best
        host = who.host(larger.cards[missing[0]])
        gpus = tuple(g for p in missing if (g := who.gpu(larger.cards[p])) is not None)
        ranks = {r for g in gpus if (r := who.rank(g)) is not None}
        yield Finding(
            cause="gpu_off_bus",
            says=say(
                "GPU {missing} stands in {what} ({cards} GPUs) and is missing from {how} ({other}, "
                "{others} GPUs) of {host}",
                missing=phrases.listing(missing),
                what=larger.what(),
                cards=len(larger.cards),
                how=how,
                other=smaller.what(),
                others=len(smaller.cards),
                host=host,
            ),
            weight=value,
            ranks=tuple(sorted(ranks)),
            hosts=(host,) if host else (),
            gpus=_named(gpus),
            events=(*(larger.cards[p] for p in missing), next(iter(smaller.cards.values()))),
            inference=True,
            detail="bus",
        )


@rule
def port_down_here(case: Case) -> Iterator[Finding]:
    """A port that is down where it was up, that NCCL used, or that others have up. Unused ports are down as well."""
    who = _Who.of(case)
    ports: dict[tuple[str, str], dict[bool, list[Event]]] = defaultdict(lambda: {True: [], False: []})
    names: dict[str, str] = {}
    for event in case.of("port-state"):
        host, dev = who.host(event), text(event, "dev") or text(event, "netdev")
        if host is not None and dev is not None:
            names.setdefault(short(host), host)
            ports[short(host), dev][text(event, "state") == "up"].append(event)
    for (host, dev), states in ports.items():
        if not states[False]:
            continue
        down = states[False][0]
        used = case.nccl_used.get(host, Used()).adapters
        elsewhere = [(h, s) for (h, d), s in ports.items() if d == dev and h != host]
        up_there = [s[True][0] for _, s in elsewhere if s[True] and not s[False]]
        shift, why = case.timing(down) if down.time_ns is not None else (0.0, None)
        if states[True]:
            other, says = states[True][0], say("was up in another report of the same host")
        elif dev in used:
            other, says = used[dev], say("was up when the job began, for NCCL used it")
        elif up_there and len(up_there) * 2 > len(elsewhere):
            other, says = up_there[0], say("is up on {up_there}", up_there=phrases.count(len(up_there), "other host"))
        else:
            seen = [e for e in case.events if e.cause == "nic_link_down" and short(e.host or host) == host]
            report_only = seen and all(e.kind == "ibstat-down" for e in seen)
            unused = None
            if elsewhere:
                unused = say(
                    "Port {dev} is down on {names} as on the other hosts: it is not in use", dev=dev, names=names[host]
                )
            elif used:
                unused = say(
                    "Port {dev} is down on {names}, and NCCL did not use it from the start", dev=dev, names=names[host]
                )
            if unused is not None and report_only:
                yield Finding(
                    cause="nic_link_down",
                    says=unused,
                    weight=weight("port_unused"),
                    hosts=(names[host],),
                    events=(down, *list(used.values())[:1]),
                )
            continue
        yield Finding(
            cause="nic_link_down",
            says=say(
                "Port {dev} of {names} is {state} and {says}",
                dev=dev,
                names=names[host],
                state=text(down, "state"),
                says=says,
            )
            + (
                say(" ({recommended})", recommended=recommended)
                if (recommended := text(down, "recommendation"))
                else ""
            )
            + phrases.aside(why),
            weight=weight("port_down") + shift,
            hosts=(names[host],),
            events=(down, other),
            onset_ns=down.time_ns,
        )


PORT_RISES = {
    "link_downs": ("nic_link_down", 1, say("times that the link went down")),
    "link_recoveries": ("nic_link_down", 1, say("times that the link had to recover")),
    "crc_errors": ("fabric_error", 10, say("frames with a wrong checksum")),
    "symbol_errors": ("fabric_error", 10, say("symbol errors")),
    "ack_timeouts": ("fabric_error", 10, say("answers that never came")),
}
"""Counter of a port → (cause, smallest rise that means something, words). The rises of ten are our judgement; symbol
errors before correction (pcs_symbol_errors) rise on healthy links."""


@rule
def port_counters_rose(case: Case) -> Iterator[Finding]:
    """A port's counters between two looks at it. One look proves nothing: they count from the load of the driver."""
    who = _Who.of(case)
    series: dict[tuple[str, str, str], dict[str, Event]] = defaultdict(dict)
    names: dict[str, str] = {}
    for event in case.of("nic-counter"):
        host, dev, counter = who.host(event), text(event, "dev"), text(event, "counter")
        if host is not None and dev is not None and counter in PORT_RISES:
            names.setdefault(short(host), host)
            series[short(host), dev, counter].setdefault(event.evidence.source, event)
    told: set[tuple[str, str]] = set()
    for (host, dev, counter), looks in series.items():
        cause, least, what = PORT_RISES[counter]
        rise = _rise_of_looks([(value, e) for e in looks.values() if (value := number(e, "value")) is not None])
        if rise is None or rise.after - rise.before < least or (host, cause) in told:
            continue
        told.add((host, cause))
        timed = rise.events[-1].time_ns is not None
        shift, why = case.timing(rise.events[-1]) if timed else (0.0, None)
        yield Finding(
            cause=cause,
            says=say(
                "Port {port} of {host}: the count of {what} rose from {before} to {after} between two looks",
                port=dev,
                host=names[host],
                what=what,
                before=f"{rise.before:,}",
                after=f"{rise.after:,}",
            )
            + phrases.aside(why),
            weight=weight("port_counter_rose") + shift,
            hosts=(names[host],),
            events=rise.events,
            inference=not timed,
        )


def _rise_of_looks(inside: Sequence[tuple[int, Event]]) -> _Rise | None:
    """Between files: by their times, or, where they tell none, from the smaller to the larger: counters only rise."""
    if any(e.time_ns is not None for _, e in inside):
        return _rise(inside)
    if len(inside) < 2:
        return None
    (low, first), *_, (high, last) = sorted(inside, key=lambda x: x[0])
    return _Rise(low, high, (first, last))


FITS = {
    "no space": ("space", "inodes"),
    "inodes": ("inodes", "space"),
    "quota": ("quota of space", "quota of inodes"),
    "read-only": ("read-only",),
    "write failed": ("space", "inodes", "quota of space", "read-only"),
}
"""How a write failed → the states of a file system that explain it. No inodes left says ENOSPC, too."""


def _under(path: str, mount: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount.rstrip("/") + "/")


@rule
def file_system_full(case: Case) -> Iterator[Finding]:
    """The file system that a write failed on is full, read-only, or out of quota: the two confirm each other."""
    who = _Who.of(case)
    states = case.of("file-system")
    for error in case.of("storage-error"):
        detail, path = text(error, "detail") or "", text(error, "path")
        fits = FITS.get(detail, ())
        host = who.host(error)
        here = [s for s in states if s.host is None or host is None or same_host(s.host, host)]
        here = [s for s in here if text(s, "what") in fits]
        under = [s for s in here if path and _under(path, text(s, "mount") or "?")]
        if path is None and len({text(s, "mount") for s in here}) == 1:
            under = here
        if not under or error.role not in ("cause", "symptom"):
            continue
        state = max(under, key=lambda s: len(text(s, "mount") or ""))
        mount, what = text(state, "mount"), text(state, "what")
        full = number(state, "used_percent")
        how = {
            "read-only": say("is mounted read-only"),
            "inodes": say("has used {full} of its inodes", full=f"{full} %"),
        }.get(
            what or "",
            say("is {full} full", full=f"{full} %") if full is not None else say("has its {what} used up", what=what),
        )
        yield Finding(
            cause="shm_full" if mount == "/dev/shm" else "storage_write_failed",
            says=say("{mount}, on which the write failed, {how}", mount=mount, how=how),
            weight=weight("full_where_written") - (0.0 if path else 0.6),
            ranks=(error.rank,) if error.rank is not None else (),
            hosts=(host,) if host else (),
            events=(state, error),
            detail={"space": "no space", "read-only": "read-only", "inodes": "no space"}.get(what or "", "quota"),
        )
        break


JOB_IN_NAME = re.compile(r"(?:slurm|job|jobid)[-_.]?(\d{3,12})(?!\d)", re.IGNORECASE)


def _job_ids(case: Case) -> set[str]:
    """Slurm job numbers that logs and file names speak of."""
    found = {m[1] for r in case.rows for m in JOB_IN_NAME.finditer(r.path.rsplit("/", 1)[-1])}
    for event in case.of("slurm-cancel", "slurm-time-limit", "preempted"):
        if job := text(event, "job"):
            found.add(re.split(r"[.+]", job)[0])
    return found


def _strange(case: Case, host: str | None) -> bool:
    """Is this a host on which the job, as far as it is known, had nothing?"""
    used = {p.host for p in case.known.ranks.values() if p.host}
    return host is not None and bool(used) and not any(same_host(host, h) for h in used)


@rule
def scheduler_remembers(case: Case) -> Iterator[Finding]:
    """How Slurm says the job ended, and which nodes it could not reach. People cancel jobs that hang already."""
    rows = [e for e in case.of("slurm-state") if e.role == "cause"]
    ids = _job_ids(case) & {text(e, "job") or "" for e in case.of("slurm-state")}
    listed = {text(e, "job") for e in case.of("slurm-state")}
    rows = [e for e in rows if text(e, "job") in ids] if ids else rows if len(listed) == 1 else []
    silent = [e for e in case.of("slurm-node") if e.role == "symptom" and e.cause and not _strange(case, e.host)]
    for event in rows:
        hosts: tuple[str, ...] = (event.host,) if event.host else ()
        if event.cause == "node_lost":
            hosts = hosts or tuple(sorted({e.host for e in silent if e.host}))[:4]
        elif event.cause == "preempted":
            seen = case.detected
            if seen is not None and case.aligned.before(event, seen) is not True:
                continue  # it was stopped because it hung
            hosts = ()
        yield Finding(
            cause=event.cause or "preempted",
            says=say("Slurm's record of job {job}: {state}", job=text(event, "job"), state=text(event, "state")),
            weight=weight("scheduler_remembers"),
            hosts=hosts,
            events=(event, *(silent[:2] if event.cause == "node_lost" else ())),
            detail=text(event, "what"),
            onset_ns=event.time_ns if event.cause == "preempted" else None,
        )
        break
    for host, inside in _by_host(silent).items():
        shift, why = case.timing(inside[0])
        yield Finding(
            cause="node_lost",
            says=say(
                "Slurm lost contact with {host} ({reason})",
                host=host,
                reason=text(inside[0], "reason") or text(inside[0], "state"),
            )
            + phrases.aside(why),
            weight=weight("node_silent") + shift,
            hosts=(host,),
            events=tuple(inside[:2]),
            onset_ns=inside[0].time_ns,
        )


def _by_host(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.host:
            found[event.host].append(event)
    return found


@rule
def cluster_remembers(case: Case) -> Iterator[Finding]:
    """Kubernetes: containers killed at their memory limit, nodes whose kubelet went silent."""
    for event in case.of("k8s-pod-ended"):
        pod, node = text(event, "pod"), text(event, "node")
        ranks = case.known.ranks_on(pod) or case.known.ranks_on(node)
        host = pod if case.known.ranks_on(pod) else event.host or pod
        if event.cause is None or event.role == "context" or (not ranks and _strange(case, host)):
            continue
        shift, why = case.timing(event)
        yield Finding(
            cause=event.cause,
            says=say("Kubernetes: a container of pod {pod} ended with {reason}", pod=pod, reason=text(event, "reason"))
            + (say(" (exit code {code})", code=code) if (code := number(event, "exit_code")) is not None else "")
            + (say(" on {node}", node=node) if node else "")
            + phrases.aside(why),
            weight=(weight("cluster_states_it") if event.role == "cause" else 1.2) + shift,
            ranks=ranks if pod and len(ranks) == 1 else (),
            hosts=(host,) if host else (),
            events=(event,),
            onset_ns=event.time_ns,
        )
    lost = [e for e in case.of("k8s-node-not-ready") if not _strange(case, e.host)]
    for host, inside in _by_host(lost).items():
        timed = [e for e in inside if e.time_ns is not None] or inside
        shift, why = case.timing(timed[0])
        yield Finding(
            cause="node_lost",
            says=say("Kubernetes: node {host} is not ready", host=host) + phrases.aside(why),
            weight=weight("node_silent") + shift,
            hosts=(host,),
            events=tuple(timed[:2]),
            onset_ns=timed[0].time_ns,
        )


@rule
def board_sensors(case: Case) -> Iterator[Finding]:
    """The board's controller shows a critical temperature, fan, voltage or supply at the moment it was asked."""
    who = _Who.of(case)
    groups: dict[tuple[str, str | None], list[Event]] = defaultdict(list)
    for event in case.of("bmc-sensor"):
        if event.role == "symptom" and event.cause:
            groups[event.cause, who.host(event)].append(event)
    for (cause, host), inside in groups.items():
        names = phrases.listing([text(e, "sensor") or "a sensor" for e in inside][:4])
        yield Finding(
            cause=cause,
            says=say(
                "The BMC{of_host} shows {names} beyond its limits ({text})",
                of_host=say(" of {host}", host=host) if host else "",
                names=names,
                text=inside[0].evidence.text[:100].strip(),
            ),
            weight=weight("beside") if _aside(case) else weight("board_limit"),
            hosts=(host,) if host and not _aside(case) else (),
            events=tuple(inside[:3]),
        )


@rule
def links_measured(case: Case) -> Iterator[Finding]:
    """nccl-tests and the topology matrix: links that are slower or fewer than they should be."""
    who = _Who.of(case)
    for event in case.of("topology-odd"):
        gpu = who.gpu(event)
        if gpu is None:
            continue
        yield Finding(
            cause="nvlink",
            says=say(
                "{name} has {links} NVLinks to the others, its like have {usual}",
                name=_name(gpu),
                links=number(event, "links"),
                usual=number(event, "usual"),
            ),
            weight=weight("beside") if _aside(case) else weight("fewer_links"),
            hosts=(gpu.host,) if gpu.host and not _aside(case) else (),
            gpus=() if _aside(case) else _named([gpu]),
            events=(event,),
        )
    for event in case.of("nccl-test", "nccl-test-wrong"):
        if event.role != "symptom" or event.cause is None:
            continue
        host = who.host(event)
        wrong = number(event, "wrong")
        yield Finding(
            cause=event.cause,
            says=say(
                "nccl-tests{on_host}: {wrong}",
                on_host=say(" on {host}", host=host) if host else "",
                wrong=phrases.count(wrong, "wrong value"),
            )
            if wrong is not None
            else say(
                "nccl-tests on {host}: {peak_gb_s} GB/s of bus bandwidth, {expected_gb_s} or more are usual",
                host=host,
                peak_gb_s=event.details.get("peak_gb_s"),
                expected_gb_s=event.details.get("expected_gb_s"),
            ),
            weight=weight("beside") if _aside(case) else weight("slow_links") + (0.4 if wrong is not None else 0.0),
            hosts=(host,) if host and not _aside(case) else (),
            events=(event,),
        )
