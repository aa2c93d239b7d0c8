"""Networks between hosts: links, adapters, peers that went away, set-up that never worked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from nccl_forensics.catalog import kinds_marked, weight
from nccl_forensics.model import Event, Finding, flag, number, text
from nccl_forensics.names import same_host, short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import ONE_START, Case
from nccl_forensics.verdict.rules import if_known, rule
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
            hosts=if_known(host),
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


TELL_THEMSELVES = ("nccl-warn-cuda", "nccl-shm", "nccl-ib-event")
"""Kinds that name what failed in a process, whatever NCCL says of its set-up besides."""
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
    own_ports = case.of("nccl-ib-event")
    if case.of("nccl-init") and not _got_through(case) and not own_ports:
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
    peers = Counter(peer for e in errors if (peer := _peer(e)))
    if peers:
        peer, times = peers.most_common(1)[0]
        yield _failed_towards(peer, times, errors, _one_rail(case, errors))
    else:
        yield Finding(
            cause="fabric_error",
            says=say("Work requests failed in the adapter") + _one_rail(case, errors),
            weight=weight("adapter_unnamed"),
            events=errors[:2],
        )


def _got_through(case: Case) -> bool:
    """Did the job make progress, or does a collective wait that is not among the first?"""
    waiting = case.of("watchdog-timeout", "pg-async")
    return bool(case.of("progress")) or any((number(e, "seq") or 0) > FIRST_CALLS for e in waiting)


def _one_rail(case: Case, errors: Iterable[Event]) -> str:
    """', all of them on adapter mlx5_3 of 4 hosts: one rail', or nothing."""
    struck: dict[str, set[str]] = defaultdict(set)
    for event in errors:
        struck[short(event.host or "")].add(text(event, "device") or "")
    rail = rail_of(struck, {host: used.adapters for host, used in case.nccl_used.items() if used.adapters})
    return say(", all of them on adapter {device} of {n} hosts: one rail", device=rail, n=len(struck)) if rail else ""


def _failed_towards(peer: str, times: int, errors: tuple[Event, ...], among: str) -> Finding:
    """`among`: what the adapters that failed have in common, in words."""
    witnesses = {e.host or e.pid for e in errors if _peer(e) == peer}
    several = len(witnesses) > 1
    complains_itself = any(e.host == peer for e in errors)
    return Finding(
        cause="fabric_error",
        says=say("{n} failed towards {peer}", n=phrases.count(times, "completion"), peer=peer)
        + (say(", named by several hosts") if several else "")
        + among,
        weight=weight("fabric_completion") + (0.0 if several else weight("one_witness")),
        hosts=(peer,) if several and not complains_itself else (),
        events=errors[:3],
    )


@rule
def peer_went_away(case: Case) -> Iterator[Finding]:
    """The host that survivors name, and that says nothing afterwards; the agent's store gone too means the node."""
    named = _lost_peers(case)
    if not named:
        return
    short_name, lines = max(named.items(), key=lambda x: len(x[1]))
    host = _peer(lines[0]) or short_name
    end = _went_without_a_word(case, host, lines) if _is_in_the_pile(case, short_name) else _nothing_of_it(case)
    if end is None:
        return
    yield Finding(
        cause=end.cause,
        says=say(
            "{witnesses} lost the connection to {full}{says}", witnesses=_witnesses(lines), full=host, says=end.says
        ),
        weight=weight("peer_gone") + end.weight,
        identifies=_are_several(lines),
        ranks=case.known.ranks_on(host),
        hosts=(host,),
        events=(lines[0], *end.events),
        inference=True,
        onset_ns=lines[0].time_ns,
    )


def _lost_peers(case: Case) -> dict[str, list[Event]]:
    """Short name of a host that others lost the connection to → their lines."""
    named: dict[str, list[Event]] = defaultdict(list)
    for event in case.of("pg-async", "nccl-closed", "gloo-closed", "nccl-ib-error"):
        peer = _peer(event)
        if not peer or peer.startswith(("127.", "[", "localhost")):
            continue
        if not (event.host and same_host(peer, event.host)):
            named[short(peer)].append(event)
    return named


def _is_in_the_pile(case: Case, host: str) -> bool:
    """Is there a file of this host, or a line of it beyond NCCL's at start? By its short name."""
    files = (r.host for r in case.rows)
    lines = (e.host for e in case.events if e.kind != "nccl-init")
    return any(short(name) == host for name in chain(files, lines) if name)


def _are_several(lines: Sequence[Event]) -> bool:
    """Did more than one process tell it? NCCL's line of a host need not be of another one than its rank's."""
    ranks = {e.rank for e in lines if e.rank is not None}
    hosts = {e.host for e in lines if e.rank is not None}
    others = {(e.host, e.pid) for e in lines if e.rank is None and e.host not in hosts}
    return len(ranks) + len(others) > 1


def _witnesses(lines: Sequence[Event]) -> str:
    """Who tells it: ranks by number, or how many hosts."""
    ranks = {e.rank for e in lines if e.rank is not None}
    hosts = {e.host for e in lines if e.rank is None and e.host}
    return phrases.ranks(ranks).capitalize() if ranks else phrases.count(len(hosts) or 1, "host")


@dataclass(frozen=True, slots=True)
class _End:
    """How a host ended that others lost the connection to."""

    cause: str
    says: str
    """Follows on 'ranks 0–2 lost the connection to node-b'."""
    weight: float
    """Log-odds beside those of a peer that is gone."""
    events: tuple[Event, ...] = ()


def _nothing_of_it(case: Case) -> _End:
    """Nothing of it is in the pile: where the launcher's store is gone, too, all of it vanished."""
    lost_store = tuple(e for e in case.of("rdzv-heartbeat", "rdzv-error") if e.role != "context")
    gone = say(", whose launcher went away too: everything there vanished, the host or its processes")
    return _End(
        cause="node_lost" if lost_store else "process_missing",
        says=say("{gone}; nothing of that host is in the pile", gone=gone if lost_store else ""),
        weight=weight("launcher_gone" if lost_store else "peer_unexplained"),
        events=lost_store[:1],
    )


def _went_without_a_word(case: Case, host: str, lines: Iterable[Event]) -> _End | None:
    """Logs of it are here and tell nothing of an end that all others saw."""
    ranks = case.known.ranks_on(host)
    theirs = [e for e in case.events if e.host and same_host(e.host, host)]
    witnesses = {e.rank for e in lines if e.rank is not None}
    store = [e for e in case.of("store-broken") if (named := text(e, "store_host")) and same_host(named, host)]
    if (len(witnesses) < 2 and not store) or _tells_an_end(case, theirs, ranks):
        return None
    starts = [e for e in theirs if _is_a_restart(case, e)]
    if starts:
        says = say(", whose processes stopped without a word of their own, and the host started anew")
        return _End("node_lost", says, weight("whole_host"), tuple(starts[:1]))
    if job_log_of(case, host, ranks):  # it may live, and only its log be cut
        says = say(", whose processes stopped without a word of their own")
        return _End("node_lost", says, weight("log_may_be_cut"))
    says = say("; what the job wrote there is not in the pile")
    if store:  # a network that lost traffic closes no socket
        says = say(", whose store went away too; what the job wrote there is not in the pile")
    return _End("process_missing", says, weight("launcher_gone" if store else "peer_unexplained"), tuple(store[:1]))


def _tells_an_end(case: Case, theirs: Sequence[Event], ranks: tuple[int, ...]) -> bool:
    """Does a line of this host, or of a rank on it, say that something failed there?"""
    return (
        any(e.kind in JOB_KINDS and e.role != "context" for e in theirs)
        or any(e.rank in ranks and e.role in ("cause", "symptom") for e in case.events)
        or any(e.role == "cause" and not other_matter(case, e) and case.timing(e)[0] > -2 for e in theirs)
    )


def _is_a_restart(case: Case, event: Event) -> bool:
    """A start that no shutdown in order came before, and that has lines of an earlier boot in front of it."""
    unordered = event.kind == "boot-start" and event.details.get("orderly") is not True
    return unordered and not flag(event, "refuted") and not _first(case, event)


def _first(case: Case, start: Event) -> bool:
    """Is nothing of an earlier boot in front of this one in its file? Then it need not be a restart."""
    line = start.evidence.line or 0
    return line < ONE_START or not any(
        e.evidence.source == start.evidence.source and (e.evidence.line or 0) < line for e in case.events
    )


@rule
def store_or_setup(case: Case) -> Iterator[Finding]:
    """NCCL or the rendezvous never got going."""
    told = {(e.host, e.pid) for e in case.of(*TELL_THEMSELVES) if e.role == "cause" and e.pid is not None}
    for event in [e for e in case.of("nccl-bootstrap") if (e.host, e.pid) not in told][:1]:
        yield Finding(
            cause="nccl_setup",
            says=say(
                "NCCL could not set up its communicator: {text}",
                text=(text(event, "text") or event.evidence.text)[:140],
            ),
            weight=weight("set_up"),
            hosts=if_known(event.host),
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
    if broken := case.of("store-broken"):
        hosts = Counter(h for e in broken if (h := text(e, "store_host")))
        host = hosts.most_common(1)[0][0] if hosts else None
        yield Finding(
            cause="store_lost",
            says=say("The process that held the TCPStore on {host} was gone", host=host)
            if host
            else say("The process that held the TCPStore was gone"),
            weight=weight("store_gone"),
            hosts=if_known(host),
            events=broken[:1],
        )
