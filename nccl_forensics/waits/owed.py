"""What each rank still owes its peers: sends and receives that were posted and never met."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.waits.job import Job
from nccl_forensics.waits.standing import Standing

Posts = Mapping[str, list[int]]
"""'send' → the sender's entries, 'recv' → the receiver's, of one pair of ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Owed:
    """A send or receive that was posted and whose counterpart was not."""

    waiter: int
    ower: int
    group: Standing
    row: int
    """The waiter's entry."""
    passed: int | None
    """The ower's first entry after the last collective that both agree on, if it went on without the counterpart."""


def owed_by(job: Job) -> Iterator[Owed]:
    """Posted p2p operations without a counterpart, where the names say who the peer is and the ower's dump is whole."""
    for group in job.groups.values():
        open_posts = _open_posts(job, group)
        whole = {rank for rank, x in group.members.items() if not x.dump.partial and from_the_start(x.dump)}
        for (sender, receiver), posts in open_posts.items():
            if {sender, receiver} <= whole and _paired(group, sender, receiver):
                continue
            one = _owed_between(job, group, sender, receiver, posts)
            if one is not None:
                yield one


def _open_posts(job: Job, group: Standing) -> Mapping[tuple[int, int], Posts]:
    """(sender, receiver) → what they have posted for each other and is not over."""
    posts: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: {"send": [], "recv": []})
    for rank, member in group.members.items():
        over = job.histories[rank].over
        for row in member.p2p[~over[member.p2p]].tolist():
            call = job.histories[rank].call(row)
            peer = group.peer_of(call)
            if call.kind in ("send", "recv") and peer is not None and peer != rank:
                posts[pair_of(call.kind, rank, peer)][call.kind].append(row)
    return posts


def pair_of(kind: str, rank: int, peer: int) -> tuple[int, int]:
    """(sender, receiver) of a rank's send to, or receive from, a peer."""
    return (rank, peer) if kind == "send" else (peer, rank)


def _owed_between(job: Job, group: Standing, sender: int, receiver: int, posts: Posts) -> Owed | None:
    sends, receives = posts["send"], posts["recv"]
    if len(sends) == len(receives):
        return None
    waiter, ower, rows = (sender, receiver, sends) if len(sends) > len(receives) else (receiver, sender, receives)
    row = rows[min(len(sends), len(receives))]
    if ower not in group.members:
        return Owed(waiter, ower, group, row, None)
    if group.members[ower].dump.partial:
        return None
    return Owed(waiter, ower, group, row, passed_by(job, waiter, row, ower))


def from_the_start(dump: Dump) -> bool:
    """Its ring still holds the first operation, and those that are over."""
    return dump.count > 0 and int(dump.record_id[0]) == 0 and int(dump.record_id[-1]) == dump.count - 1


def posted_by(group: Standing, rank: int, kind: str, peer: int) -> list[int]:
    """The rank's entries of sends to, or receives from, another member."""
    member = group.members[rank]
    fitting = [i for i, x in enumerate(member.dump.calls) if x.kind == kind and group.peer_of(x) == peer]
    return list(map(int, member.p2p[np.isin(member.dump.call[member.p2p], fitting)]))


def _paired(group: Standing, sender: int, receiver: int) -> bool:
    """As many sends as receives were ever posted between the two."""
    return len(posted_by(group, sender, "send", receiver)) == len(posted_by(group, receiver, "recv", sender))


def older_by_p2p(job: Job) -> bool:
    """Somebody completed a send or receive whose counterpart the peer's dump lacks: that was written earlier."""
    return any(
        _completed_more(job, group, rank, peer)
        for group in job.groups.values()
        for rank, peer in _pairs_from_the_start(group)
    )


def _pairs_from_the_start(group: Standing) -> Iterator[tuple[int, int]]:
    """Members whose dumps hold all sends and receives, with those of them that these name as peers."""
    whole = {r for r, x in group.members.items() if len(x.p2p) and x.strict and not x.dump.partial}
    whole = {x for x in whole if from_the_start(group.members[x].dump)}
    for rank in whole:
        member = group.members[rank]
        used = set(member.dump.call[member.p2p].tolist())
        for peer in whole & {group.peer_of(member.dump.calls[x]) for x in used}:
            yield rank, peer


def _completed_more(job: Job, group: Standing, rank: int, peer: int) -> bool:
    """The rank has completed more sends to, or receives from, the peer than the peer's dump has counterparts."""
    for kind, other in (("send", "recv"), ("recv", "send")):
        over = np.count_nonzero(job.histories[rank].over[posted_by(group, rank, kind, peer)])
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
