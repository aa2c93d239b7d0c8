"""Ranks of one group that made different calls at one sequence number, and who of them departed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nccl_forensics.model import Detail, Evidence, GroupState
from nccl_forensics.recorder.dumps import COMPLETED, STARTED, Call
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.waits.picture import Job, Member, Standing, numel, rank_list

PARTING = 2000
"""How many collectives back a shift against the peers is looked for. A judgement."""
CLEAN, GAPS, WEAK = 3.5, 2.0, 1.0
"""Log-odds of a finding: all dumps are there and agree; some are missing or cut; a hint. Judgements."""


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


def dump_evidence(member: Member, row: int | None, says: str) -> Evidence:
    at = f"entry {int(member.dump.record_id[row])}: " if row is not None and member.dump.count else ""
    return Evidence(source=member.dump.path, line=None, text=f"rank {member.rank}, {at}{says}"[:2000])


def witness_evidence(group: Standing, seq: int, ranks: Iterable[int]) -> tuple[Evidence, ...]:
    """What up to four ranks say of `seq`."""
    rows = []
    for rank in list(ranks)[:4]:
        member = group.members[rank]
        row = member.row(seq)
        if row is not None:
            state = (
                "completed"
                if member.is_over(seq)
                else "started"
                if member.dump.flags[row] & STARTED
                else "not completed"
            )
            call = member.calls(seq)[-1]
            text = f"group {group.label}, collective {seq}: {call_shape(call)}, {state}{call_place(member.stack(seq))}"
        else:
            last = f"last enqueued {said_of_call(member.enqueued)}, last completed {said_of_call(member.completed)}"
            text = f"group {group.label}: {last}"
        rows.append(dump_evidence(member, row, text))
    return tuple(rows)


def said_of_call(number: int | None) -> str:
    return "unknown" if number is None else "none" if number <= 0 else str(number)


def group_state(group: Standing, note: str | None = None) -> GroupState:
    """The group's row of the report."""
    seq = group.seq
    call = group.op(seq) if seq is not None else None
    first = last = timeout = None
    frames: tuple[str, ...] = ()
    started: list[int] = []
    completed: list[int] = []
    if seq is not None:
        times = [t for x in group.arrived if (t := group.members[x].created_ns(seq)) is not None]
        first, last = (min(times), max(times)) if times else (None, None)
        for rank in group.arrived:
            member = group.members[rank]
            row = member.row(seq)
            if row is None:
                continue
            if member.is_over(seq):
                completed.append(rank)
            if member.dump.flags[row] & (STARTED | COMPLETED) and member.timed:
                started.append(rank)
            frames = frames or member.stack(seq)
            timeout = timeout or int(member.dump.timeout_ms[row]) or None
    return GroupState(
        name=group.name,
        description=group.description or None,
        backend=call.backend or None if call else None,
        members=group.ranks,
        members_at_least=not group.key[0],
        op=call.op if call else None,
        seq=seq,
        numel_in=numel(call.sizes_in) if call else None,
        numel_out=numel(call.sizes_out) if call else None,
        timeout_ms=timeout,
        arrived=group.arrived,
        started=tuple(started),
        completed=tuple(completed),
        missing=group.missing,
        no_data=tuple(sorted({*group.no_data, *group.unknown, *group.stale})),
        first_arrival_ns=first,
        last_arrival_ns=last,
        frames=frames,
        note=note,
    )


@dataclass(slots=True)
class _Parting:
    """The rank's calls are its peers' calls, shifted from `seq` on."""

    seq: int
    by: int
    """+1: the rank left one out (its n is their n+1); -1: it made one more."""
    matched: int
    theirs: tuple[str, ...]
    own: tuple[str, ...]


def call_words(member: Member, since: int, numbers: dict[Any, int]) -> dict[int, int]:
    """What the member called from number `since` on, and from where, as numbers; equal calls have equal ones."""
    dump = member.dump
    signatures = [x.signature for x in dump.calls]
    twins = [x.backend == "c10d" for x in dump.calls]
    start = int(np.searchsorted(member.all_seqs, since))
    rows = member.all_rows[start:]
    entries: dict[int, list[tuple[int, int]]] = {}
    listed = (member.all_seqs[start:].tolist(), dump.call[rows].tolist(), dump.stack[rows].tolist())
    for seq, call, stack in zip(*listed, strict=True):
        entries.setdefault(seq, []).append((call, stack))
    known: dict[tuple[tuple[int, int], ...], int] = {}
    words = {}
    for seq, several in entries.items():
        key = tuple(several)
        if key not in known:
            calls = [c for c, _ in several if not twins[c]] or [c for c, _ in several]
            stack = several[-1][1]
            word = tuple(signatures[c] for c in calls), dump.stacks[stack] if stack >= 0 else ()
            known[key] = numbers.setdefault(word, len(numbers))
        words[seq] = known[key]
    return words


def _parting(group: Standing, rank: int, peers: Sequence[int]) -> _Parting | None:
    """Where `rank` left its peers' sequence by one call and then ran beside it, shifted; by stacks, sizes and types."""
    member = group.members[rank]
    others = [group.members[x] for x in peers if x != rank][:7]
    if not others or not len(member.all_seqs):
        return None

    since = int(member.all_seqs[-1]) - PARTING
    numbers: dict[Any, int] = {}
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for one in others:
        for seq, word in call_words(one, since, numbers).items():
            votes[seq][word] += 1
    reference: dict[int, int] = {}
    for seq, counted in votes.items():
        (word, most), *_ = counted.most_common(1)
        if most * 2 > counted.total():
            reference[seq] = word
    own = call_words(member, since, numbers)
    both = sorted(own.keys() & reference.keys())
    first = next((seq for seq in both if own[seq] != reference[seq]), None)
    if first is None:
        return None
    for by in (1, -1):
        start = first if by > 0 else first + 1
        pairs = [(own[s], reference[s + by]) for s in sorted(own) if s >= start and s + by in reference]
        straight = [own[s] == reference[s] for s in both if s >= start]
        matched = sum(a == b for a, b in pairs)
        if matched >= 2 and matched >= 0.8 * len(pairs) and matched > sum(straight) + 1:
            stacks = [next((x.stack(first) for x in others if x.rows(first)), ()), member.stack(first)]
            return _Parting(first, by, matched, *stacks)
    return None


def _expected_next(group: Standing, ranks: Sequence[int], seq: int) -> set[Any]:
    """Signatures that have followed the group's call at `seq` after the same two calls before."""
    found: set[Any] = set()
    for rank in ranks[:4]:
        member = group.members[rank]
        here = [member.signature(x) for x in (seq - 2, seq - 1, seq)]
        if None in here:
            continue
        for old in member.seqs[:-1]:
            if old < seq and [member.signature(x) for x in (old - 2, old - 1, old)] == here:
                following = member.signature(old + 1)
                if following is not None:
                    found.add(following)
    return found


@dataclass(slots=True)
class Mismatch:
    group: Standing
    ranks: tuple[int, ...]
    """Who differs; () where neither side has the majority."""
    cause: str
    says: str
    detail: dict[str, Detail]
    weight: float


def mismatches_of(job: Job) -> Iterator[Mismatch]:
    """Groups whose members entered the stuck place with different calls."""
    for group in job.stuck:
        seq = group.seq
        assert seq is not None
        votes: dict[Any, list[int]] = defaultdict(list)
        for rank in group.arrived:
            signature = group.members[rank].signature(seq)
            if signature is not None:
                votes[signature].append(rank)
        if len(votes) < 2:
            continue
        ordered = sorted(votes.values(), key=lambda x: (-len(x), x))
        most, rest = ordered[0], sorted(x for side in ordered[1:] for x in side)
        tie = len(most) == len(ordered[1]) or len(most) < len(rest)
        if tie:
            usual = usual_call(job, group, seq, votes)
            if usual is not None:
                most = votes[usual]
                rest = sorted(x for side in votes.values() if side is not most for x in side)
                tie = False
            else:
                departing = [x for x in group.arrived if departs_at(job, group, x, seq)]
                if departing and len(departing) < len(group.arrived) and len(departing) * 2 <= len(group.arrived):
                    rest = departing
                    most = [x for x in group.arrived if x not in departing and group.members[x].signature(seq)]
                    tie = not most
        sides = joined(
            (rank_list(x) + ": " + call_shape(group.members[x[0]].calls(seq)[-1]) for x in ordered[:4]), "; "
        )
        if tie:
            says = say(
                "In group {label} the members called different things as collective {seq} ({sides}), and "
                "neither side has a majority.",
                label=group.label,
                seq=seq,
                sides=sides,
            )
            yield Mismatch(group, (), "collective_mismatch", says, {"first_divergence_seq": seq}, GAPS)
            continue
        yield _judged(job, group, seq, most, rest)


def departs_at(job: Job, group: Standing, rank: int, seq: int) -> bool:
    row = group.members[rank].row(seq)
    return row is not None and job.departs(rank, row) == row


def departs_by(job: Job, group: Standing, rank: int, seq: int) -> bool:
    """The rank's calls leave its habits between the group's collective before `seq` and that one."""
    row, before = group.members[rank].row(seq), group.members[rank].row(seq - 1)
    if row is None:
        return False
    where = job.departs(rank, before + 1 if before is not None else row)
    return where is not None and where <= row


def usual_call(job: Job, group: Standing, seq: int, votes: Mapping[Any, list[int]]) -> Any:
    """The signature that sister groups (same description and size) have at `seq`; None if they do not decide."""
    sisters: Counter[Any] = Counter()
    for other in job.groups.values():
        if other is not group and other.description == group.description and len(other.ranks) == len(group.ranks):
            for member in other.members.values():
                signature = member.signature(seq)
                if signature is not None:
                    sisters[signature] += 1
    ours = [x for x in sisters if x in votes]
    return ours[0] if len(ours) == 1 and sisters[ours[0]] * 2 > sum(sisters.values()) else None


def _judged(job: Job, group: Standing, seq: int, most: Sequence[int], rest: Sequence[int]) -> Mismatch:
    """The minority `rest` called something else at `seq`: something wrong, or the right thing a place early or late."""
    who = rest[0]
    member, peer = group.members[who], group.members[most[0]]
    own, theirs = member.calls(seq), peer.calls(seq)
    weight = (CLEAN if not job.gaps else GAPS) if len(most) > len(rest) else GAPS
    detail: dict[str, Detail] = {"first_divergence_seq": seq}
    plain = say(
        "In group {label}, collective {seq}, {rest} called {shape}{place}, where {most} called "
        "{other_shape}{other_place}.",
        label=group.label,
        seq=seq,
        rest=rank_list(rest),
        shape=call_shape(own[-1]),
        place=call_place(member.stack(seq)),
        most=rank_list(most),
        other_shape=call_shape(theirs[-1]),
        other_place=call_place(peer.stack(seq)),
    )
    parting = _parting(group, who, most)
    if parting is not None:
        return Mismatch(
            group,
            tuple(rest),
            "collective_skipped",
            _shifted(group, rest, parting) + " " + plain,
            {"first_divergence_seq": parting.seq},
            weight,
        )
    later = [x for x in (seq + 1, seq + 2, seq + 3) if member.rows(x)]
    if later and all(member.signature(x) == peer.signature(x) for x in later if peer.rows(x)):
        straight = any(peer.rows(x) for x in later)
    else:
        straight = False
    if not straight:
        following = _expected_next(group, most, seq)
        if peer.signature(seq + 1) is not None:
            following = {peer.signature(seq + 1)}
        if member.signature(seq) in following:
            says = say(
                "{plain} That is the call that follows there: {rest} left one out.", plain=plain, rest=rank_list(rest)
            )
            return Mismatch(group, tuple(rest), "collective_skipped", says, detail, weight)
        if later and peer.signature(seq) == member.signature(seq + 1):
            says = say(
                "{plain} What the others called comes next there: {rest} made one call more.",
                plain=plain,
                rest=rank_list(rest),
            )
            return Mismatch(group, tuple(rest), "collective_skipped", says, detail, weight)
    if _is_barrier(own[-1]) and not _is_barrier(theirs[-1]):
        if all(_left(job, group, x, seq) for x in rest) and short_of(job, group, who, seq, most) > 1:
            says = say_many(
                "{plain} {rest} had never called that before and called nothing after it: it had left the loop in "
                "which the others still are.",
                "{plain} {rest} had never called that before and called nothing after it: they had left the loop in "
                "which the others still are.",
                len(rest),
                plain=plain,
                rest=rank_list(rest).capitalize(),
            )
            return Mismatch(group, tuple(rest), "uneven_inputs", says, detail, weight - 0.5)
        if own[-1].kind == "barrier" and member.stack(seq):
            says = say(
                "{plain} {rest} had left the loop in which the others still are.",
                plain=plain,
                rest=rank_list(rest).capitalize(),
            )
            return Mismatch(group, tuple(rest), "uneven_inputs", says, detail, weight - 1)
        if own[-1].kind == "barrier":
            says = say(
                "{plain} {rest} reached a barrier with fewer calls than the others have made.",
                plain=plain,
                rest=rank_list(rest).capitalize(),
            )
            return Mismatch(group, tuple(rest), "collective_skipped", says, detail, weight - 1)
    return Mismatch(group, tuple(rest), "collective_mismatch", plain, detail, weight)


def _is_barrier(call: Call) -> bool:
    """A barrier, also where the all_reduce of one byte or number that carries it out is recorded instead."""
    return "barrier" in call.kind or (
        call.kind == "allreduce"
        and call.sizes_in == ((1,),)
        and {"Byte", "Int"} >= {x for x in call.dtypes if x != "|"}
    )


def _left(job: Job, group: Standing, rank: int, seq: int) -> bool:
    """The rank's call at `seq` is its newest of all, and in its whole history the only one of its kind."""
    dump, row = job.dumps[rank], group.members[rank].row(seq)
    if row is None or dump.partial or int(dump.call[row + 1 :].size) > 0:
        return False
    kind = dump.calls[dump.call[row]]
    alike = [i for i, x in enumerate(dump.calls) if (x.kind, x.signature) == (kind.kind, kind.signature)]
    places = dump.group == dump.group[row]
    return int(np.count_nonzero(np.isin(dump.call, alike) & places)) == len(group.members[rank].rows(seq))


def short_of(job: Job, group: Standing, rank: int, seq: int, peers: Sequence[int]) -> int:
    """How many of its peers' calls from `seq` on the rank has not made; one may have been left out by mistake."""
    here = max((sum(x >= seq for x in group.members[peer].seqs[-8:]) for peer in peers), default=0)
    return here + sum(rank in x.missing for x in job.stuck if x is not group)


def _shifted(group: Standing, ranks: Sequence[int], parting: _Parting) -> str:
    theirs, own = call_place(parting.theirs), call_place(parting.own)
    beside = ""
    if theirs and own and theirs != own:
        beside = say(" (there the others were{theirs}, {who}{own})", theirs=theirs, who=rank_list(ranks), own=own)
    values = {"who": rank_list(ranks).capitalize(), "label": group.label, "seq": parting.seq}
    values |= {"beside": beside, "matched": parting.matched}
    if parting.by > 0:
        return say(
            "{who} left out a collective of group {label} at or before number {seq}{beside}: from then on {matched} of "
            "its calls equal its peers' calls one place later.",
            **values,
        )
    return say(
        "{who} made one collective more of group {label} at or before number {seq}{beside}: from then on {matched} of "
        "its calls equal its peers' calls one place earlier.",
        **values,
    )
