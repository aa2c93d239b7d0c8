"""Ranks that wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nccl_forensics.model import Evidence, Suspect
from nccl_forensics.text.messages import joined, say
from nccl_forensics.waits.circles import circle_of, shortest_circle
from nccl_forensics.waits.history import History
from nccl_forensics.waits.judgement import CLEAN, GAPS, Judgement
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.queues import Head, Queues
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_place, call_shape, dump_evidence, group_state, rank_list, witness_evidence

SHOWN = 8
"""How many ranks a sentence names before it counts the rest."""


def opposite_order(picture: Picture) -> Judgement | None:
    """Ranks that wait in a circle because they put the same operations into their queues in different orders.

    All may have entered everything: a rank's GPU gets to an operation only after the one that stands before it.
    """
    circle = _circle_of_queues(picture.queues)
    departing = [x for x in circle if _departs(picture.job.histories[x])]
    if not circle or not (departing or _is_no_habit(picture, circle)):
        return None
    groups = _groups_by_first_call(picture.queues, circle)
    says = say(
        "{circle} wait for each other in a circle, because their calls come in opposite orders: {steps}{more}.",
        circle=rank_list(circle).capitalize(),
        steps=joined(_steps(picture.queues, circle)[:SHOWN], "; "),
        more="; …" if len(circle) > SHOWN else "",
    )
    if departing:
        says += say(" In earlier steps {departing} had another order.", departing=rank_list(departing))
    suspect = Suspect(
        ranks=(),
        cause="deadlock",
        weight=GAPS + 0.5 if departing and not picture.job.gaps else GAPS,
        says=says,
        group=group_state(groups[0]),
        evidence=tuple(_first_of_queue(picture.queues, x) for x in circle[:4]),
        details={"circle": tuple(sorted(circle))},
    )
    return Judgement(suspects=(suspect,), groups=groups, cannot_exclude=frozenset(circle))


def _circle_of_queues(queues: Queues) -> list[int]:
    """A shortest circle of ranks whose first operation stands behind another of the next one's; [] if there is none.

    One of sends and receives alone is none: it says nothing of the order of calls.
    """
    blocking = {rank: {x for x in _needed(head) if queues.holds_up(x, head)} for rank, head in queues.heads.items()}
    circle = shortest_circle(blocking, circle_of(blocking, sorted(blocking)))
    return circle if any(queues.heads[x].peer is None for x in circle) else []


def _needed(head: Head) -> tuple[int, ...]:
    """Who must come to the operation, too."""
    return (*head.group.arrived, *head.group.missing) if head.peer is None else (head.peer,)


def _departs(history: History) -> bool:
    """From what stands first in its queue on, the rank called something that its earlier steps did not have there."""
    return history.departs(history.first_pending) is not None


def _is_no_habit(picture: Picture, circle: Sequence[int]) -> bool:
    """Nobody departs from what it always did; is the order still what holds them up?"""
    queues, histories = picture.queues, picture.job.histories
    if all(histories[x].usual(histories[x].first_pending) for x in circle):
        return False  # they always had this order, and it worked: their operations do not stand in one queue
    if picture.behind:
        return False
    with_p2p = any(queues.heads[x].peer is not None for x in circle)  # sends and receives may run beside collectives
    return not with_p2p or all(queues.lacks(queues.heads[one], after) for one, after in _around(circle))


def _around(circle: Sequence[int]) -> list[tuple[int, int]]:
    """Each with the next one, which it waits for; the first pair closes the circle."""
    return list(zip((*circle[-1:], *circle[:-1]), circle, strict=True))


def _groups_by_first_call(queues: Queues, circle: Sequence[int]) -> tuple[Standing, ...]:
    """The groups of the circle's collectives."""
    groups = dict.fromkeys(queues.heads[x].group for x in circle if queues.heads[x].peer is None)
    return tuple(sorted(groups, key=lambda x: (x.first_called_ns, x.key)))


def circle_of_waits(picture: Picture) -> Judgement | None:
    """Each waits for somebody in the circle, in whatever order they called."""
    circle = circle_of(picture.edges, sorted(picture.edges))
    if not circle:
        return None
    departing = [x for x in sorted(circle) if _departs(picture.job.histories[x])]
    ranks = tuple(departing) if len(departing) == 1 else ()
    top = picture.stuck[0] if picture.stuck else next(iter(picture.job.groups.values()))
    says = say(
        "{circle} wait for each other in a circle: {steps}.",
        circle=rank_list(circle).capitalize(),
        steps=_round(picture, circle),
    )
    suspect = Suspect(
        ranks=ranks,
        cause="deadlock",
        weight=GAPS if ranks else CLEAN - 0.5,
        says=says,
        group=group_state(top),
        evidence=witness_evidence(top, top.seq or 0, top.arrived),
        details={"circle": tuple(sorted(circle))},
    )
    return Judgement(
        suspects=(suspect,),
        groups=picture.stuck,
        cannot_exclude=frozenset() if ranks else frozenset(circle),
    )


def _round(picture: Picture, circle: Collection[int]) -> str:
    """How each of a shortest circle of waits holds up the one before it, with the places of their calls."""
    around = shortest_circle(picture.edges, set(circle))
    if not around or not picture.queues.heads.keys() >= set(around):
        return say("each stands in a group that another is missing in")
    return joined(_steps(picture.queues, around)[:SHOWN], "; ") + ("; …" if len(around) > SHOWN else "")


def _steps(queues: Queues, circle: Sequence[int]) -> list[str]:
    """How each holds up the one before it."""
    return [_step(queues, waiter, waited) for waiter, waited in _around(circle)]


def _step(queues: Queues, waiter: int, waited: int) -> str:
    """How `waited` came to hold up the operation that `waiter` stands in."""
    wanted, first = queues.heads[waiter], queues.heads[waited]
    history = queues.job.histories[waited]
    shape = call_shape(first.group.op(first.group.seq or 0)) if first.peer is None else ""
    text = say(
        "rank {waited} called {what}{shape}{place}",
        waited=waited,
        what=_operation(waited, first),
        shape=f" ({shape})" if shape else "",
        place=_place(history, first.row),
    )
    what = _operation(waited, wanted)
    if queues.lacks(wanted, waited):
        return say("{text} and has not called {what}", text=text, what=what)
    return say("{text} before {what}{place}", text=text, what=what, place=_place(history, queues.row(wanted, waited)))


def _operation(rank: int, head: Head) -> str:
    """A head as it is called on this rank, one end of it: 'collective 3 of group tp', 'a send to rank 1'."""
    if head.pair is None:
        return say("collective {seq} of group {label}", seq=head.group.seq, label=head.group.label)
    sender, receiver = head.pair
    if rank == sender:
        return say("a send to rank {peer}", peer=receiver)
    return say("a receive from rank {peer}", peer=sender)


def _place(history: History, row: int | None) -> str:
    return call_place(history.stack(row)) if row is not None else ""


def _first_of_queue(queues: Queues, rank: int) -> Evidence:
    head = queues.heads[rank]
    place = _place(queues.job.histories[rank], head.row)
    text = f"{_operation(rank, head)}, waits as the first of its queue{place}"
    return dump_evidence(head.group.members[rank], head.row, text)
