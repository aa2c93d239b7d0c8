"""How dumps are quoted in sentences and evidence: ranks, calls and their places, and a group's row of the report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from nccl_forensics.model import Evidence, GroupState
from nccl_forensics.recorder.dumps import STARTED, Call
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.waits.member import Member
from nccl_forensics.waits.owed import Owed
from nccl_forensics.waits.standing import Standing


def rank_list(ranks: Collection[int]) -> str:
    return phrases.ranks(ranks) if ranks else say("nobody")


def wait_for(ranks: Collection[int]) -> str:
    return say_many("{ranks} waits", "{ranks} wait", len(ranks), ranks=rank_list(ranks))


def towards_peers(call: Call, peer: int) -> str:
    return say(" to rank {peer}", peer=peer) if call.kind == "send" else say(" from rank {peer}", peer=peer)


def call_shape(call: Call | None) -> str:
    if call is None:
        return say("an operation that its ring no longer holds")
    sizes = "×".join(map(str, call.sizes_in[0])) if len(call.sizes_in) == 1 else f"{len(call.sizes_in)} tensors"
    kind = next((x for x in call.dtypes if x != "|"), "")
    return f"{call.op}({sizes} {kind})".replace(" )", ")") if call.sizes_in else call.op


def call_place(stack: Sequence[str]) -> str:
    """The innermost frame outside of torch, for a sentence: ' at train.py:96 (train_step)'; '' without a stack."""
    for frame in stack:
        name, _, where = frame.partition(" ")
        if "site-packages" not in where and "dist-packages" not in where and "torch/distributed" not in where:
            return say(" at {where} ({name})", where=where, name=name)
    return ""


def numel(sizes: tuple[tuple[int, ...], ...]) -> int | None:
    if not sizes:
        return None
    total = 0
    for size in sizes:
        product = 1
        for n in size:
            product *= n
        total += product
    return total if 0 <= total < 1 << 63 else None


def dump_evidence(member: Member, row: int | None, says: str) -> Evidence:
    at = f"entry {int(member.dump.record_id[row])}: " if row is not None and member.dump.count else ""
    return Evidence(source=member.dump.path, line=None, text=f"rank {member.rank}, {at}{says}"[:2000])


def witness_evidence(group: Standing, seq: int, ranks: Iterable[int]) -> tuple[Evidence, ...]:
    """What up to four ranks say of `seq`."""
    return tuple(_witness(group, seq, group.members[rank]) for rank in list(ranks)[:4])


def _witness(group: Standing, seq: int, member: Member) -> Evidence:
    row = member.row(seq)
    if row is None:
        last = f"last enqueued {_counted(member.enqueued)}, last completed {_counted(member.completed)}"
        return dump_evidence(member, None, f"group {group.label}: {last}")
    shape, place = call_shape(member.calls(seq)[-1]), call_place(member.stack(seq))
    return dump_evidence(
        member, row, f"group {group.label}, collective {seq}: {shape}, {_state(member, seq, row)}{place}"
    )


def _state(member: Member, seq: int, row: int) -> str:
    if member.is_over(seq):
        return "completed"
    return "started" if member.dump.flags[row] & STARTED else "not completed"


def _counted(number: int | None) -> str:
    return "unknown" if number is None else "none" if number <= 0 else str(number)


def owed_evidence(one: Owed) -> Evidence:
    """What the waiter posted."""
    member = one.group.members[one.waiter]
    call = member.dump.calls[member.dump.call[one.row]]
    towards = "to" if call.kind == "send" else "from"
    return dump_evidence(member, one.row, f"posted {call.op} {towards} rank {one.ower}, which has no counterpart")


def group_state(group: Standing) -> GroupState:
    """The group's row of the report."""
    state = GroupState(
        name=group.name,
        description=group.description or None,
        members=group.ranks,
        members_at_least=not group.key[0],
        seq=group.seq,
        arrived=group.arrived,
        missing=group.missing,
        no_data=tuple(sorted({*group.no_data, *group.unknown, *group.stale})),
    )
    if group.seq is None:
        return state
    call = group.op(group.seq)
    return _with_entries(state if call is None else _with_call(state, call), group, group.seq)


def _with_call(state: GroupState, call: Call) -> GroupState:
    return replace(
        state,
        backend=call.backend or None,
        op=call.op,
        numel_in=numel(call.sizes_in),
        numel_out=numel(call.sizes_out),
    )


def _with_entries(state: GroupState, group: Standing, seq: int) -> GroupState:
    """The row with what the entries of those that have entered say."""
    entered = [(group.members[x], row) for x in group.arrived if (row := group.members[x].row(seq)) is not None]
    called_ns = [t for member, row in entered if (t := int(member.dump.created_ns[row]))]
    return replace(
        state,
        timeout_ms=next((t for member, row in entered if (t := int(member.dump.timeout_ms[row]))), None),
        started=tuple(member.rank for member, _ in entered if member.timed and member.ran(seq)),
        completed=tuple(member.rank for member, _ in entered if member.is_over(seq)),
        first_arrival_ns=min(called_ns, default=None),
        last_arrival_ns=max(called_ns, default=None),
        frames=next((stack for member, _ in entered if (stack := member.stack(seq))), ()),
    )
