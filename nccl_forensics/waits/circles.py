"""Who waits for whom: the edges of the wait-for graph, and circles in it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.recorder.dumps import P2P, Call
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.waits.owed import Owed
from nccl_forensics.waits.picture import Job, Standing, rank_list

CIRCLE_ROOTS = 64
"""From how many ranks a shortest circle of waits is looked for. A judgement."""


def wait_for(ranks: Collection[int]) -> str:
    return say_many("{ranks} waits", "{ranks} wait", len(ranks), ranks=rank_list(ranks))


def towards_peers(call: Call, peer: int) -> str:
    return say(" to rank {peer}", peer=peer) if call.kind == "send" else say(" from rank {peer}", peer=peer)


def edges_of(job: Job, owed: Sequence[Owed]) -> dict[int, set[int]]:
    """Waiter → those it waits for: members that have not entered, or owe a send or a receive."""
    edges: dict[int, set[int]] = defaultdict(set)
    for group in job.stuck:
        if waited := set(group.waited):
            for rank in group.blocked:
                edges[rank] |= waited
    for one in owed:
        edges[one.waiter].add(one.ower)
    return edges


def circle_of(edges: Mapping[int, set[int]], start: Iterable[int]) -> set[int]:
    """Ranks of a circle of waits (a strongly connected component of two or more); empty if there is none."""
    order: list[int] = []
    seen: set[int] = set()
    for root in start:
        if root in seen:
            continue
        seen.add(root)
        work: list[tuple[int, Iterator[int]]] = [(root, iter(sorted(edges.get(root, ()))))]
        while work:
            node, rest = work[-1]
            for after in rest:
                if after not in seen:
                    seen.add(after)
                    work.append((after, iter(sorted(edges.get(after, ())))))
                    break
            else:
                order.append(node)
                work.pop()
    back: dict[int, set[int]] = defaultdict(set)
    for a, targets in edges.items():
        for b in targets:
            back[b].add(a)
    taken: set[int] = set()
    for root in reversed(order):
        if root in taken:
            continue
        component, todo = set(), [root]
        taken.add(root)
        while todo:
            node = todo.pop()
            component.add(node)
            for before in back.get(node, ()):
                if before not in taken and before in seen:
                    taken.add(before)
                    todo.append(before)
        if len(component) > 1:
            return component
    return set()


def shortest_circle(edges: Mapping[int, set[int]], within: set[int]) -> list[int]:
    """The ranks of a shortest circle of waits, each waiting for the next, the lowest first; [] if there is none."""
    best: list[int] = []
    for root in sorted(within)[:CIRCLE_ROOTS]:
        came: dict[int, int] = {}
        todo = deque([root])
        while todo and root not in came:
            node = todo.popleft()
            for after in sorted(edges.get(node, set()) & within):
                if after not in came:
                    came[after] = node
                    todo.append(after)
        if root in came:
            path = [came[root]]
            while path[-1] != root:
                path.append(came[path[-1]])
            if not best or len(path) < len(best):
                best = path[::-1]
        if len(best) == 2:
            break
    return best


@dataclass(slots=True)
class Head:
    """A rank's oldest operation that is not over: what its queue, or its program, stands in."""

    group: Standing
    row: int
    peer: int | None = None
    """Of a send or receive: the rank at its other end."""
    pair: tuple[int, int] | None = None
    """Of a send or receive: (sender, receiver)."""

    def is_of(self, other: Head) -> bool:
        """Do both ranks stand in the same operation?"""
        return self.group is other.group and self.pair == other.pair


def heads_of(job: Job) -> dict[int, Head]:
    """Rank → its oldest operation that is not over, if its group is stuck in that, or it is a send or receive."""
    heads: dict[int, Head] = {}
    for rank, dump in job.dumps.items():
        row = job.first_pending(rank)
        if row >= dump.count:
            continue
        group = job.groups[job.index[rank][int(dump.group[row])]]
        call = dump.calls[dump.call[row]]
        if not dump.flags[row] & P2P:
            if group.seq == int(dump.seq[row]) and rank in group.arrived:
                heads[rank] = Head(group, row)
        elif call.kind in ("send", "recv") and call.peer is not None and call.peer < len(group.ranks):
            peer = group.ranks[call.peer]
            if peer != rank:
                heads[rank] = Head(group, row, peer, (rank, peer) if call.kind == "send" else (peer, rank))
    return heads
