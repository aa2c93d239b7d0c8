"""Ports of network adapters as reports show them: down where they should be up, and counters that rose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case, Used
from nccl_forensics.verdict.rules import rule
from nccl_forensics.verdict.rules.evidence_rises import rise_of_files
from nccl_forensics.verdict.rules.evidence_subjects import Subjects


@dataclass(slots=True)
class _Port:
    """What reports say of one port of one host."""

    host: str
    """As its first line writes it."""
    dev: str
    up: list[Event] = field(default_factory=list)
    down: list[Event] = field(default_factory=list)


def _ports(case: Case, who: Subjects) -> dict[tuple[str, str], _Port]:
    """(short name of the host, device) → the port."""
    names: dict[str, str] = {}
    found: dict[tuple[str, str], _Port] = {}
    for event in case.of("port-state"):
        host, dev = who.host(event), text(event, "dev") or text(event, "netdev")
        if host is not None and dev is not None:
            name = names.setdefault(short(host), host)
            port = found.setdefault((short(host), dev), _Port(name, dev))
            (port.up if text(event, "state") == "up" else port.down).append(event)
    return found


@rule
def port_down_here(case: Case) -> Iterator[Finding]:
    """A port that is down where it was up, that NCCL used, or that others have up. Unused ports are down as well."""
    ports = _ports(case, case.once(Subjects.of))
    for (host, dev), port in ports.items():
        if not port.down:
            continue
        elsewhere = [other for (h, d), other in ports.items() if d == dev and h != host]
        used = case.nccl_used.get(host, Used()).adapters
        witness = _was_up(port, used, elsewhere)
        if witness is not None:
            yield _should_be_up(case, port, *witness)
        elif (unused := _not_in_use(port, used, elsewhere)) is not None and _only_reported(case, host):
            yield Finding(
                cause="nic_link_down",
                says=unused,
                weight=weight("port_unused"),
                refutes=True,
                hosts=(port.host,),
                events=(port.down[0], *list(used.values())[:1]),
            )


def _was_up(port: _Port, used: Mapping[str, Event], elsewhere: list[_Port]) -> tuple[Event, str] | None:
    """(a line, its words) that shows that this port should be up; None if nothing does."""
    if port.up:
        return port.up[0], say("was up in another report of the same host")
    if port.dev in used:
        return used[port.dev], say("was up when the job began, for NCCL used it")
    up_there = [other.up[0] for other in elsewhere if other.up and not other.down]
    if up_there and len(up_there) * 2 > len(elsewhere):
        return up_there[0], say("is up on {up_there}", up_there=phrases.count(len(up_there), "other host"))
    return None


def _should_be_up(case: Case, port: _Port, witness: Event, says: str) -> Finding:
    down = port.down[0]
    shift, why = case.timing(down) if down.time_ns is not None else (0.0, None)
    recommended = text(down, "recommendation")
    return Finding(
        cause="nic_link_down",
        says=say(
            "Port {dev} of {names} is {state} and {says}",
            dev=port.dev,
            names=port.host,
            state=text(down, "state"),
            says=says,
        )
        + (say(" ({recommended})", recommended=recommended) if recommended else "")
        + phrases.aside(why),
        weight=weight("port_down") + shift,
        hosts=(port.host,),
        events=(down, witness),
        onset_ns=down.time_ns,
    )


def _only_reported(case: Case, host: str) -> bool:
    """Do reports of its state alone speak against this host's links?"""
    seen = [e for e in case.events if e.cause == "nic_link_down" and short(e.host or host) == host]
    return bool(seen) and all(e.kind == "ibstat-down" for e in seen)


def _not_in_use(port: _Port, used: Mapping[str, Event], elsewhere: list[_Port]) -> str | None:
    """Why a port that is down need not be up, in words."""
    if elsewhere:
        return say(
            "Port {dev} is down on {names} as on the other hosts: it is not in use", dev=port.dev, names=port.host
        )
    if used:
        return say(
            "Port {dev} is down on {names}, and NCCL did not use it from the start", dev=port.dev, names=port.host
        )
    return None


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
    who = case.once(Subjects.of)
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
        rise = rise_of_files([(value, e) for e in looks.values() if (value := number(e, "value")) is not None])
        if rise is None or rise.by < least or (host, cause) in told:
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
