"""Where a rank left its peers' sequence of calls by one call, and then ran beside it, shifted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.text.messages import say
from nccl_forensics.waits.member import Member
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_place, rank_list

PARTING = 2000
"""How many collectives back a shift against the peers is looked for. A judgement."""
PEERS = 7
"""How many peers' calls a rank's calls are held against. A judgement."""
ALIKE = 0.8
"""Share of the rank's later calls that must equal its peers' shifted calls. A judgement."""

Entries = tuple[tuple[int, int], ...]
"""The entries of one sequence number, in order: (index of the call, index of the stack, -1 for none)."""
Words = dict[int, int]
"""Sequence number → what was called, from where, as a number; equal calls have equal ones."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The rank's calls are its peers' calls, shifted from `seq` on."""

    seq: int
    by: int
    """+1: the rank left one out (its n is their n+1); -1: it made one more."""
    matched: int
    theirs: tuple[str, ...]
    own: tuple[str, ...]
    """Stacks of the calls at `seq`."""


def parting_of(group: Standing, rank: int, peers: Sequence[int]) -> Parting | None:
    """Where `rank` left its peers' sequence by one call and then ran beside it, shifted; by stacks, sizes and types."""
    member = group.members[rank]
    others = [group.members[x] for x in peers if x != rank][:PEERS]
    if not others or not len(member.all_seqs):
        return None
    since = int(member.all_seqs[-1]) - PARTING
    numbers: dict[Any, int] = {}
    reference = _majority([_call_words(one, since, numbers) for one in others])
    own = _call_words(member, since, numbers)
    first = next((seq for seq in sorted(own.keys() & reference.keys()) if own[seq] != reference[seq]), None)
    if first is None:
        return None
    for by in (1, -1):
        matched = _matched_shifted(own, reference, first, by)
        if matched is not None:
            theirs = next((x.stack(first) for x in others if x.rows(first)), ())
            return Parting(first, by, matched, theirs, member.stack(first))
    return None


def shifted_sentence(group: Standing, ranks: Sequence[int], parting: Parting) -> str:
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


def _majority(several: Sequence[Words]) -> Words:
    """What more than half of those that still hold a number called there."""
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for words in several:
        for seq, word in words.items():
            votes[seq][word] += 1
    leading = {seq: counted.most_common(1)[0] for seq, counted in votes.items()}
    return {seq: word for seq, (word, most) in leading.items() if most * 2 > votes[seq].total()}


def _matched_shifted(own: Words, reference: Words, first: int, by: int) -> int | None:
    """How many calls from `first` on equal the peers' calls `by` places on; None: too few for a shift."""
    start = first if by > 0 else first + 1
    later = [seq for seq in own if seq >= start]
    shifted = [own[seq] == reference[seq + by] for seq in later if seq + by in reference]
    straight = sum(own[seq] == reference[seq] for seq in later if seq in reference)
    matched = sum(shifted)
    return matched if matched >= 2 and matched >= ALIKE * len(shifted) and matched > straight + 1 else None


def _call_words(member: Member, since: int, numbers: dict[Any, int]) -> Words:
    """What the member called from number `since` on, and from where; `numbers` has the number of every word so far."""
    entries = _entries(member, since)
    words = {several: _word(member.dump, several) for several in dict.fromkeys(entries.values())}
    numbered = {several: numbers.setdefault(word, len(numbers)) for several, word in words.items()}
    return {seq: numbered[several] for seq, several in entries.items()}


def _entries(member: Member, since: int) -> dict[int, Entries]:
    """Sequence number → its entries, as indices of call and stack."""
    start = int(np.searchsorted(member.all_seqs, since))
    rows = member.all_rows[start:]
    listed = (member.all_seqs[start:].tolist(), member.dump.call[rows].tolist(), member.dump.stack[rows].tolist())
    found: dict[int, list[tuple[int, int]]] = {}
    for seq, call, stack in zip(*listed, strict=True):
        found.setdefault(seq, []).append((call, stack))
    return {seq: tuple(several) for seq, several in found.items()}


def _word(dump: Dump, several: Entries) -> tuple[Any, ...]:
    """Signatures, without the twin that FlightRecorderHook records, and the stack."""
    calls = [dump.calls[call] for call, _ in several]
    own = [x for x in calls if x.backend != "c10d"] or calls
    stack = several[-1][1]
    return tuple(x.signature for x in own), dump.stacks[stack] if stack >= 0 else ()
