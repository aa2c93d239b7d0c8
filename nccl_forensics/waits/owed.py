"""What each rank still owes its peers: sends and receives that were posted and never met."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.waits.picture import LENIENT, Job, Standing


@dataclass(slots=True)
class Owed:
    """A send or receive that was posted and whose counterpart was not."""

    waiter: int
    ower: int
    group: Standing
    row: int
    """The waiter's entry."""
    passed: int | None
    """The ower's first entry after the last collective that both agree on, if it went on without the counterpart."""


def owed_by(job: Job) -> list[Owed]:
    """Posted p2p operations without a counterpart, where the names say who the peer is and both have a dump."""
    found: list[Owed] = []
    for group in job.groups.values():
        posts: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: {"send": [], "recv": []})
        for rank, member in group.members.items():
            for row in member.p2p.tolist():
                if job.done[rank][row]:
                    continue
                call = member.dump.calls[member.dump.call[row]]
                if call.kind not in ("send", "recv") or call.peer is None or call.peer >= len(group.ranks):
                    continue
                peer = group.ranks[call.peer]
                if peer == rank:
                    continue
                posts[(rank, peer) if call.kind == "send" else (peer, rank)][call.kind].append(row)
        whole = {rank for rank, x in group.members.items() if not x.dump.partial and from_the_start(x.dump)}
        for (sender, receiver), both in posts.items():
            sends, receives = both["send"], both["recv"]
            if len(sends) == len(receives) or ({sender, receiver} <= whole and paired(group, sender, receiver)):
                continue
            waiter, ower = (sender, receiver) if len(sends) > len(receives) else (receiver, sender)
            rows = sends if waiter == sender else receives
            row = rows[min(len(sends), len(receives))]
            other = group.members.get(ower)
            if other is not None and other.dump.partial:
                continue
            passed = passed_by(job, waiter, row, ower) if other is not None else None
            found.append(Owed(waiter, ower, group, row, passed))
    return found


def from_the_start(dump: Dump) -> bool:
    """Its ring still holds the first operation, and those that are over."""
    return dump.count > 0 and int(dump.record_id[0]) == 0 and int(dump.record_id[-1]) == dump.count - 1


def posted_by(group: Standing, rank: int, kind: str, peer: int) -> list[int]:
    """The rank's entries of sends to, or receives from, another member."""
    member = group.members[rank]
    calls = member.dump.calls
    wanted = [i for i, x in enumerate(calls) if x.kind == kind and x.peer is not None and x.peer < len(group.ranks)]
    fitting = [i for i in wanted if group.ranks[calls[i].peer or 0] == peer]
    return list(map(int, member.p2p[np.isin(member.dump.call[member.p2p], fitting)]))


def paired(group: Standing, sender: int, receiver: int) -> bool:
    """As many sends as receives were ever posted between the two."""
    return len(posted_by(group, sender, "send", receiver)) == len(posted_by(group, receiver, "recv", sender))


def older_by_p2p(job: Job) -> bool:
    """Somebody completed a send or receive whose counterpart the peer's dump lacks: that was written earlier."""
    for group in job.groups.values():
        whole = [r for r, x in group.members.items() if len(x.p2p) and x.strict and not x.dump.partial]
        whole = [x for x in whole if from_the_start(group.members[x].dump)]
        peers: set[tuple[int, int]] = set()
        for rank in whole:
            member = group.members[rank]
            for index in set(member.dump.call[member.p2p].tolist()):
                peer = member.dump.calls[index].peer
                if peer is not None and peer < len(group.ranks) and group.ranks[peer] in whole:
                    peers.add((rank, group.ranks[peer]))
        for rank, peer in peers:
            for kind, other in (("send", "recv"), ("recv", "send")):
                over = sum(bool(job.done[rank][x]) for x in posted_by(group, rank, kind, peer))
                if over > len(posted_by(group, peer, other, rank)):
                    return True
    return False


def passed_by(job: Job, waiter: int, row: int, other: int) -> int | None:
    """Whether `other` has entered a collective that `waiter` called after its entry `row`.

    Gives `other`'s first entry after the last collective before that; None: it has not.

    Whatever `waiter` waits for at `row`, `other` will not do it any more, or does it in another order.
    """
    since = None
    for group in job.groups.values():
        mine, theirs = group.members.get(waiter), group.members.get(other)
        if mine is None or theirs is None or theirs.enqueued is None:
            continue
        after = mine.after(row)
        if after is not None and theirs.enqueued >= after:
            before = theirs.row(after - 1)
            start = before + 1 if before is not None else 0
            since = start if since is None else max(since, start)
    return since


def blind_tail(job: Job, rank: int) -> int | None:
    """The rank's newest entry, if it is a send or receive of a hook, which looks finished even when it blocks."""
    dump = job.dumps[rank]
    if dump.partial or not dump.count:
        return None
    call = dump.calls[dump.call[-1]]
    return dump.count - 1 if call.kind in ("send", "recv") and call.backend in LENIENT else None
