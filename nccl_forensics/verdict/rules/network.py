"""Networks between hosts: links, adapters, peers that went away, set-up that never worked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from nccl_forensics.catalog import kinds_marked, weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import same_host, short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import ONE_START, Case
from nccl_forensics.verdict.rules import rule
from nccl_forensics.verdict.rules.host import fell_together, other_matter, recovered_link
from nccl_forensics.verdict.rules.host_lost import job_log_of
from nccl_forensics.who.layout import rail_of, shared_by

JOB_KINDS = kinds_marked("of-failure")
"""Lines that a failing training job writes, as against a kernel."""


@rule
def own_port(case: Case) -> Iterator[Finding]:
    """The adapter of one host reported an event of its own port to every process on that host."""
    hosts: dict[str | None, list[Event]] = defaultdict(list)
    for event in case.of("nccl-ib-event"):
        if event.role == "cause":
            hosts[event.host].append(event)
    for host, inside in hosts.items():
        yield Finding(
            cause="nic_link_down",
            says=phrases.count(len(inside), "process", "processes")
            + (say(" on {host}", host=host) if host else "")
            + say(" saw their own InfiniBand port fail ({what})", what=text(inside[0], "what") or say("port error")),
            weight=weight("link_event"),
            hosts=(host,) if host else (),
            events=tuple(inside[:2]),
            onset_ns=inside[0].time_ns,
        )


@rule
def links_together(case: Case) -> Iterator[Finding]:
    """Ports of several hosts that went down at once: what they share rather than one adapter."""
    down = case.once(fell_together)
    if not down:
        return
    first = down[0]
    shift, why = case.timing(first)
    names = sorted(short(e.host or "") for e in down)
    hosts = phrases.listing(names) if len(names) <= MOST_NAMED else phrases.count(len(names), "host")
    behind = shared_by(names, case.known)
    yield Finding(
        cause="fabric_error",
        says=say(
            "The links of {hosts} went down at the same moment: what they share failed (a switch, its power), not one "
            "adapter",
            hosts=hosts,
        )
        + (say("; all of them are behind {switch}", switch=behind) if behind else "")
        + phrases.aside(why),
        weight=weight("kernel_cause") + shift - (3.0 if all(recovered_link(case, e) for e in down) else 0.0),
        events=down[:4],
        onset_ns=first.time_ns,
        detail="switch",
    )


MOST_NAMED = 8
"""Hosts that a sentence names before it counts them. Our judgement."""
FIRST_CALLS = 3
"""A collective with a higher number is not the first traffic: earlier ones got through. Our judgement."""


def _peer(event: Event) -> str | None:
    peer = text(event, "peer")
    return peer.split("<", 1)[0] if peer else None


@rule
def completions(case: Case) -> Iterator[Finding]:
    """Work requests that failed: at first traffic it is the set-up; later the peer that everybody names."""
    errors = case.of("nccl-ib-error")
    if not errors:
        return
    peers = Counter(p for e in errors if (p := _peer(e)))
    reporters = {e.host for e in errors if e.host}
    starts = case.of("nccl-init")
    progressed = any(e.kind == "progress" for e in case.events) or any(
        (number(e, "seq") or 0) > FIRST_CALLS for e in case.of("watchdog-timeout", "pg-async")
    )
    own = {e.host for e in case.of("nccl-ib-event")}
    if starts and not progressed and not own:
        yield Finding(
            cause="nccl_setup",
            says=say(
                "Retries ran out on the first traffic after set-up: these adapters cannot talk to each other as "
                "configured (GID index, routing, flow control)"
            ),
            weight=weight("set_up") + (weight("first_traffic") if len(errors) > 1 else weight("one_witness")),
            events=errors[:2],
            detail="roce",
            inference=True,
        )
    struck: dict[str, set[str]] = defaultdict(set)
    for event in errors:
        struck[short(event.host or "")].add(text(event, "device") or "")
    rail = rail_of(struck, {host: used.adapters for host, used in case.nccl_used.items() if used.adapters})
    among = say(", all of them on adapter {device} of {n} hosts: one rail", device=rail, n=len(struck)) if rail else ""
    for peer, n in peers.most_common(1):
        several = len({e.host or e.pid for e in errors if _peer(e) == peer}) > 1
        yield Finding(
            cause="fabric_error",
            says=say("{n} failed towards {peer}", n=phrases.count(n, "completion"), peer=peer)
            + (say(", named by several hosts") if several else "")
            + among,
            weight=weight("fabric_completion") if several else weight("fabric_completion") + weight("one_witness"),
            hosts=(peer,) if several and peer not in reporters else (),
            events=errors[:3],
        )
    if not peers:
        yield Finding(
            cause="fabric_error",
            says=say("Work requests failed in the adapter") + among,
            weight=weight("adapter_unnamed"),
            events=errors[:2],
        )


@rule
def peer_went_away(case: Case) -> Iterator[Finding]:
    """The host that survivors name, and that says nothing afterwards; the agent's store gone too means the node."""
    named: dict[str, list[Event]] = defaultdict(list)
    for event in case.of("pg-async", "nccl-closed", "gloo-closed", "nccl-ib-error"):
        peer = _peer(event)
        if (
            peer
            and not (event.host and same_host(peer, event.host))
            and not peer.startswith(("127.", "[", "localhost"))
        ):
            named[short(peer)].append(event)
    logs = {short(r.host) for r in case.rows if r.host}
    spoke = {short(e.host) for e in case.events if e.host and e.kind != "nccl-init"}
    lost_store = [e for e in case.of("rdzv-heartbeat", "rdzv-error") if e.role != "context"]
    if not named:
        return
    host, inside = max(named.items(), key=lambda x: len(x[1]))
    full = _peer(inside[0]) or host
    ranks = {e.rank for e in inside if e.rank is not None}
    others = {e.host for e in inside if e.rank is None and e.host}
    witnesses = phrases.ranks(ranks).capitalize() if ranks else phrases.count(len(others) or 1, "host")
    ranks_there = case.known.ranks_on(full)
    if host in logs or host in spoke:
        cause, says, more, shown = _went_without_a_word(case, full, inside, ranks_there) or (None, "", 0.0, [])
    else:
        cause, shown = ("node_lost" if lost_store else "process_missing"), lost_store[:1]
        gone = say(", whose launcher went away too: everything there vanished, the host or its processes")
        says = say("{gone}; nothing of that host is in the pile", gone=gone if lost_store else "")
        more = weight("launcher_gone" if lost_store else "peer_unexplained")
    if cause is None:
        return
    yield Finding(
        cause=cause,
        says=say("{witnesses} lost the connection to {full}{says}", witnesses=witnesses, full=full, says=says),
        weight=weight("peer_gone") + more,
        ranks=ranks_there,
        hosts=(full,),
        events=(inside[0], *shown),
        inference=True,
        onset_ns=inside[0].time_ns,
    )


@rule
def store_or_setup(case: Case) -> Iterator[Finding]:
    """NCCL or the rendezvous never got going."""
    for event in case.of("nccl-bootstrap")[:1]:
        yield Finding(
            cause="nccl_setup",
            says=say("NCCL's bootstrap failed: {text}", text=event.evidence.text[:140]),
            weight=weight("set_up"),
            hosts=(event.host,) if event.host else (),
            events=(event,),
            detail="bootstrap",
        )
    for event in case.of("store-connect", "store-bind", "store-clients")[:1]:
        joined, expected = number(event, "joined"), number(event, "expected")
        yield Finding(
            cause="store_lost" if event.kind == "store-connect" else "nccl_setup",
            says=say("The rendezvous failed: {joined} of {expected} processes joined", joined=joined, expected=expected)
            if joined is not None
            else say("The rendezvous failed: {text}", text=event.evidence.text[:140]),
            weight=weight("set_up"),
            events=(event,),
        )
    broken = case.of("store-broken")
    if broken:
        hosts = Counter(h for e in broken if (h := text(e, "store_host")))
        host = hosts.most_common(1)[0][0] if hosts else None
        yield Finding(
            cause="store_lost",
            says=say("The process that held the TCPStore on {host} was gone", host=host)
            if host
            else say("The process that held the TCPStore was gone"),
            weight=weight("store_gone"),
            hosts=(host,) if host else (),
            events=broken[:1],
        )


def _went_without_a_word(
    case: Case, host: str, inside: list[Event], ranks: tuple[int, ...]
) -> tuple[str, str, float, list[Event]] | None:
    """(cause, words, log-odds, lines) of a host whose logs are here and tell nothing of an end that all others saw."""
    theirs = [e for e in case.events if e.host and same_host(e.host, host)]
    if (
        len({e.rank for e in inside if e.rank is not None}) < 2
        or any(e.kind in JOB_KINDS and e.role != "context" for e in theirs)
        or any(e.rank in ranks and e.role in ("cause", "symptom") for e in case.events)
        or any(e.role == "cause" and not other_matter(case, e) and case.timing(e)[0] > -2 for e in theirs)
    ):
        return None
    starts = [
        e for e in theirs if e.kind == "boot-start" and e.details.get("orderly") is not True and not _first(case, e)
    ]
    if starts:
        says = say(", whose processes stopped without a word of their own, and the host started anew")
        return "node_lost", says, weight("whole_host"), starts[:1]
    if job_log_of(case, host, ranks):  # it may live, and only its log be cut
        says = say(", whose processes stopped without a word of their own")
        return "node_lost", says, weight("log_may_be_cut"), []
    says = say("; what the job wrote there is not in the pile")
    return "process_missing", says, weight("peer_unexplained"), []


def _first(case: Case, start: Event) -> bool:
    """Is nothing of an earlier boot in front of this one in its file? Then it need not be a restart."""
    line = start.evidence.line or 0
    return line < ONE_START or not any(
        e.evidence.source == start.evidence.source and (e.evidence.line or 0) < line for e in case.events
    )
