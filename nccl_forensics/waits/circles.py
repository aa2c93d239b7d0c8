"""Who waits for whom: the edges of the wait-for graph, and circles in it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from nccl_forensics.waits.job import Job
from nccl_forensics.waits.owed import Owed

CIRCLE_ROOTS = 64
"""From how many ranks a shortest circle of waits is looked for. A judgement."""

Edges = Mapping[int, Set[int]]
"""Waiter → those it waits for."""


def edges_of(job: Job, owed: Sequence[Owed]) -> Edges:
    """Waiter → those it waits for: members that have not entered, or owe a send or a receive."""
    edges: dict[int, set[int]] = defaultdict(set)
    for group in job.stuck:
        if waited := set(group.waited):
            for rank in group.blocked:
                edges[rank] |= waited
    for one in owed:
        edges[one.waiter].add(one.ower)
    return dict(edges)


def circle_of(edges: Edges, start: Iterable[int]) -> set[int]:
    """Ranks of a circle of waits (a strongly connected component of two or more); empty if there is none."""
    order = _in_order_of_end(edges, start)
    back: dict[int, set[int]] = defaultdict(set)
    for waiter, targets in edges.items():
        for waited in targets:
            back[waited].add(waiter)
    left = set(order)
    for root in reversed(order):
        if root in left:
            component = _reached(back, root, left)
            if len(component) > 1:
                return component
            left -= component
    return set()


def _in_order_of_end(edges: Edges, start: Iterable[int]) -> list[int]:
    """All ranks that are reached from `start`, in the order in which a depth-first search is done with them."""
    order: list[int] = []
    seen: set[int] = set()
    for root in start:
        if root in seen:
            continue
        seen.add(root)
        work: list[tuple[int, Iterator[int]]] = [(root, iter(sorted(edges.get(root, ()))))]
        while work:
            node, rest = work[-1]
            after = next((x for x in rest if x not in seen), None)
            if after is None:
                order.append(node)
                work.pop()
            else:
                seen.add(after)
                work.append((after, iter(sorted(edges.get(after, ())))))
    return order


def _reached(edges: Edges, root: int, within: Set[int]) -> set[int]:
    found, todo = {root}, [root]
    while todo:
        for after in edges.get(todo.pop(), set()):
            if after in within and after not in found:
                found.add(after)
                todo.append(after)
    return found


def shortest_circle(edges: Edges, within: Set[int]) -> list[int]:
    """The ranks of a shortest circle of waits, each waiting for the next, the lowest first; [] if there is none."""
    best: list[int] = []
    for root in sorted(within)[:CIRCLE_ROOTS]:
        circle = _shortest_through(edges, within, root)
        if circle and (not best or len(circle) < len(best)):
            best = circle
        if len(best) == 2:
            break
    return best


def _shortest_through(edges: Edges, within: Set[int], root: int) -> list[int]:
    came: dict[int, int] = {}
    todo = deque([root])
    while todo and root not in came:
        node = todo.popleft()
        for after in sorted(edges.get(node, set()) & within):
            if after not in came:
                came[after] = node
                todo.append(after)
    if root not in came:
        return []
    path = [came[root]]
    while path[-1] != root:
        path.append(came[path[-1]])
    return path[::-1]
