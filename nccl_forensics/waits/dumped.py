"""What every process group was doing when the job stopped: its ranks' Flight Recorder dumps held against each other.

A group is known by its members and description, never by its process-local id; operations are aligned by
`collective_seq_id`, never by record_id; nothing is concluded from clocks of different hosts.

The way: dumps → one per rank → per group a `_Standing` (which operation is stuck, who entered, who did not) → waits →
the ranks at the end of the chains → suspects. A dump holds no time of its own, so a hang looks like a moment of a
running job; they are told apart by a peer that has completed what another rank's dump does not hold yet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from nccl_forensics import catalog
from nccl_forensics.model import Detail, Evidence, GroupState, Problem, RankCounters, Reconstruction, Suspect, Wait
from nccl_forensics.recorder.dumps import COMPLETED, P2P, STARTED, Dump
from nccl_forensics.recorder.groups import OLD_FILE_NS, Key, choose
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.waits import lateness
from nccl_forensics.waits.circles import Head, circle_of, edges_of, heads_of, shortest_circle, towards_peers, wait_for
from nccl_forensics.waits.mismatch import (
    CLEAN,
    GAPS,
    WEAK,
    Mismatch,
    _parting,
    _shifted,
    call_place,
    call_shape,
    departs_at,
    departs_by,
    dump_evidence,
    group_state,
    mismatches_of,
    witness_evidence,
)
from nccl_forensics.waits.owed import blind_tail, older_by_p2p, owed_by, passed_by, posted_by
from nccl_forensics.waits.picture import LENIENT, Job, Standing, is_default, job_of, numel, rank_list, spans

ONE_MOMENT_NS = 10**9
"""The watchdog looks every 100 ms for what has ended: what began within this time before is no hang. A judgement."""
SHOWN = 8
"""How many ranks a sentence names before it counts the rest."""
OUTLIERS = 0.25
"""Ranks behind the others mean something while they are few; NCCL's own reports (RAS) draw the line at a quarter."""


def reconstruct(dumps: Sequence[Dump], *, expected_world: int | None = None) -> Reconstruction:
    """Who entered, who did not, and on whom the others wait, from the dumps of a job's ranks.

    `expected_world`: how many ranks the job had, where something else tells it. Independent of the order of `dumps`.
    """
    problems: list[Problem] = []
    chosen = choose(dumps, problems)
    if not chosen:
        return Reconstruction(problems=tuple(problems))
    job = job_of(chosen, expected_world, problems)
    old = _left_over(job)
    if old:
        for rank in old:
            says = say("the dump of rank {rank} is older than what its peers went on to; it is left out", rank=rank)
            problems.append(Problem(says=says, source=chosen[rank].path))
        rest = {rank: dump for rank, dump in chosen.items() if rank not in old}
        job = job_of(rest, max(expected_world or 0, len(job.world)), problems)
        job.older = frozenset(old)
    verdict = _Verdict(job)
    verdict.judge()
    return verdict.result()


def _left_over(job: Job) -> set[int]:
    """Ranks whose dump is of an earlier moment than all others', by minutes."""
    found: set[int] = set()
    for group in job.groups.values():
        times = [t for x in group.members.values() if (t := x.dump.newest_ns) is not None and x.rank not in group.stale]
        for rank in group.stale:
            newest = group.members[rank].dump.newest_ns
            if times and newest is not None and float(np.median(times)) - newest > OLD_FILE_NS:
                found.add(rank)
    return found if len(found) * 2 < len(job.dumps) else set()


class _Verdict:
    """Collects suspects, waits and acquittals of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.suspects: list[Suspect] = []
        self.cannot_exclude: set[int] = set()
        self.top: list[Standing] = []
        self.healthy = False
        self.owed = owed_by(job)
        self.edges = edges_of(job, self.owed)
        self._next: dict[int, set[int]] = {}

    def judge(self) -> None:
        self._judge()
        if not self.suspects:
            self._always_late()

    def _judge(self) -> None:
        job = self.job
        if any(group.stale for group in job.groups.values()) or older_by_p2p(job):
            # Peers completed what these ranks' dumps don't hold: the job moved on while they were written.
            self.healthy = True
            return
        if not job.stuck and not self.owed:
            # What the absent ranks did nobody knows: their peers may have left, or be about to wait for them.
            self.healthy = not job.no_data
            if job.no_data and not self._posts_that_never_pair():
                self._nobody_waits()
            return
        found = list(mismatches_of(job))
        if found:
            self._mismatched(found)
            return
        if self._went_on() or self._posts_that_never_pair() or self._never_started():
            return
        if self._never_entered() or self._opposite_order():
            return
        self._all_joined()

    # The order is that of how much a finding explains: a wrong call makes everybody wait, also those that never arrive.

    def _mismatched(self, found: Sequence[Mismatch]) -> None:
        job = self.job
        named: dict[tuple[int, ...], Mismatch] = {}
        for one in self._by_program([x.group for x in found]):
            mismatch = next(x for x in found if x.group is one)
            named.setdefault(mismatch.ranks, mismatch)
        for mismatch in named.values():
            seq = mismatch.group.seq
            assert seq is not None
            peers = [x for x in mismatch.group.arrived if x not in mismatch.ranks]
            witnesses = witness_evidence(mismatch.group, seq, [*mismatch.ranks[:2], *peers[:2]])
            if mismatch.cause == "uneven_inputs":  # what it left undone first may be in a smaller group
                undone = [x for x in job.stuck if set(mismatch.ranks) & set(x.missing)]
                self.top += self._by_program(undone)
            self.top.append(mismatch.group)
            self._add(
                mismatch.ranks,
                mismatch.cause,
                mismatch.weight,
                mismatch.says,
                mismatch.group,
                witnesses,
                mismatch.detail,
            )
            if not mismatch.ranks:
                self.cannot_exclude |= set(mismatch.group.arrived)
            break

    def _posts_that_never_pair(self) -> bool:
        """Sends and receives whose counterpart will not come, because its rank has gone on without it."""
        owed = [x for x in self.owed if x.passed is not None]
        late = {x for group in self.job.stuck for x in group.missing} if self.job.stuck else set(self.job.dumps)
        blind = {x: row for x in sorted(late) if (row := blind_tail(self.job, x)) is not None}
        if not owed and len(blind) < 2:
            return False
        if owed:
            involved = {x.waiter for x in owed} | {x.ower for x in owed}
            since = {x: self.job.first_pending(x) for x in involved}
            for one in owed:  # a post left out shows where the collective stands in its place
                since[one.ower] = min(since[one.ower], one.passed or 0)
        else:
            sure = [x for group in self.job.stuck for x in group.missing if x not in blind and not self.edges.get(x)]
            if sure:
                return False
            involved = set(blind)
            for group in self.job.stuck:
                involved |= set(group.arrived)
            since = {x: max(0, self.job.dumps[x].count - 16) for x in involved}
        departing = {x: row for x in sorted(involved) if (row := self.job.departs(x, since[x])) is not None}
        both = {x.waiter for x in owed} & {x.ower for x in owed}
        weight = GAPS if self.job.gaps else CLEAN - 0.5
        culprit: int | None = None
        if len(departing) == 1:
            (culprit,) = departing
        elif len(both & set(departing)) == 1:
            (culprit,) = both & set(departing)
        elif len(both) == 1 and not departing:
            (culprit,) = both
            weight = GAPS
        stuck = self._by_program(self.job.stuck) or [x for x in self.job.groups.values() if set(blind) & set(x.members)]
        group = owed[0].group if owed else stuck[0]
        self.top.append(group)
        if culprit is None:
            names = involved if owed else set(blind)
            says = say(
                "Sends and receives of {names} never pair, and the dumps do not tell whose post is wrong.",
                names=rank_list(names),
            )
            weight = GAPS if owed else 1.5
            if not owed and not self.job.stuck:
                says = say(
                    "The last calls of {names} are sends and receives, which may or may not be over.",
                    names=rank_list(names),
                )
                weight = 0.0
            self._add((), "deadlock", weight, says, group, ())
            self.cannot_exclude |= names
            return True
        dump = self.job.dumps[culprit]
        row = departing.get(culprit)
        own = [x for x in owed if x.waiter == culprit]
        row = row if row is not None else own[0].row if own else None
        says = say("The sends and receives of rank {culprit} do not fit its peers' program.", culprit=culprit)
        witnesses: tuple[Evidence, ...] = ()
        detail: dict[str, Detail] = {}
        if row is not None:
            call = dump.calls[dump.call[row]]
            stack = dump.stacks[dump.stack[row]] if dump.stack[row] >= 0 else ()
            peer = self._global(culprit, row)
            towards = towards_peers(call, peer) if peer is not None else ""
            says += say(
                " Where its own earlier steps had another call, it posted {op}{towards}{place}.",
                op=call.op,
                towards=towards,
                place=call_place(stack),
            )
            if call.kind in ("send", "recv"):
                detail["p2p_seq"] = int(dump.p2p_seq[row])
            text = f"entry {int(dump.record_id[row])}: {call.op}{towards}"
            witnesses = (Evidence(source=dump.path, line=None, text=f"rank {culprit}, {text}"),)
        for one in owed[:3]:
            member = one.group.members[one.waiter]
            call = member.dump.calls[member.dump.call[one.row]]
            text = (
                f"posted {call.op} {'to' if call.kind == 'send' else 'from'} rank {one.ower}, which has no counterpart"
            )
            witnesses += (dump_evidence(member, one.row, text),)
        cause = "deadlock"
        if row is not None and culprit in departing:
            kinds = {dump.calls[dump.call[row]].kind, *self.job.usual(culprit, row)}
            if not kinds & {"send", "recv", "coalesced"} or not self.job.usual(culprit, row) & {"send", "recv"}:
                cause = "collective_skipped"
        self._add((culprit,), cause, weight, says, group, witnesses, detail)
        return True

    def _nobody_waits(self) -> None:
        """In the dumps that are here; gloo and the hook call over what has failed, too."""
        job = self.job
        unsure = [x for x, dump in job.dumps.items() if dump.count and dump.calls[dump.call[-1]].backend in LENIENT]
        for group in sorted(job.groups.values(), key=lambda x: (-len(x.ranks), x.key)):
            if set(unsure) & set(group.members):
                says = say(
                    "The newest calls of {unsure} are over or have failed, which their dumps do not tell, and "
                    "{no_data} left no dump.",
                    unsure=rank_list(unsure),
                    no_data=rank_list(job.no_data),
                )
                self._add((), "rank_not_arrived", 0.0, says, group, ())
                return

    def _global(self, rank: int, row: int) -> int | None:
        dump = self.job.dumps[rank]
        peer = dump.calls[dump.call[row]].peer
        for group in self.job.groups.values():
            member = group.members.get(rank)
            if member is not None and row in member.p2p and peer is not None and peer < len(group.ranks):
                return int(group.ranks[peer])
        return None

    def _went_on(self) -> bool:
        """Ranks that entered a later collective of their peers' program without the one in which those wait."""
        for group in self._by_program(self.job.stuck):
            seq = group.seq
            assert seq is not None
            passed: dict[int, int] = {}
            for rank in group.missing:
                for waiter in group.arrived:
                    row = group.members[waiter].row(seq)
                    start = passed_by(self.job, waiter, row, rank) if row is not None else None
                    if start is not None:
                        passed[rank] = start
                        break
            if not passed:
                continue
            job = self.job
            ranks: tuple[int, ...] = tuple(sorted(passed))
            call = call_shape(group.op(seq))
            says = say(
                "{ranks} went on to later collectives without number {seq} of group {label} ({call}), in "
                "which {waiters}.",
                ranks=rank_list(ranks).capitalize(),
                seq=seq,
                label=group.label,
                call=call,
                waiters=wait_for(group.arrived),
            )
            if len(passed) >= len(group.arrived):
                odd = [x for x in ranks if job.departs(x, passed[x]) is not None]
                more = [x for x in group.arrived if departs_by(job, group, x, seq)]
                ranks = tuple(odd) if odd and not more else tuple(more) if more and not odd else ()
                if more and ranks == tuple(more):
                    says = say(
                        "{more} called collective {seq} of group {label} ({call}) where its earlier steps had none, "
                        "and {passed} went on without it.",
                        more=rank_list(more).capitalize(),
                        seq=seq,
                        label=group.label,
                        call=call,
                        passed=rank_list(passed),
                    )
            weight = (GAPS if job.gaps else CLEAN) if ranks else GAPS
            self.top.append(group)
            where = seq
            parting = _parting(group, ranks[0], group.arrived) if len(ranks) == 1 else None
            if parting is not None:
                where = parting.seq
                says = _shifted(group, ranks, parting) + " " + says
            detail: dict[str, Detail] = {"first_divergence_seq": where}
            witnesses = witness_evidence(group, seq, [*list(passed)[:2], *group.arrived[:2]])
            self._add(ranks, "collective_skipped", weight, says, group, witnesses, detail)
            if not ranks:
                self.cannot_exclude |= {*passed, *group.arrived}
            return True
        return False

    def _never_entered(self) -> bool:
        """Ranks that others wait for and that wait for nobody themselves."""
        job = self.job
        waited = {x for targets in self.edges.values() for x in targets}
        blocked = self._blocked()
        late = {x for group in job.stuck for x in group.missing} | {x.ower for x in self.owed}
        sinks = sorted(x for x in waited & late if x in job.dumps and x not in blocked and not self._unsure(x))
        behind = self._behind()
        absent = sorted(x for x in waited if x not in job.dumps)
        unknown = sorted({x for group in job.stuck for x in group.unknown})
        if not waited:
            return False
        if not sinks:
            # A rank whose GPU hangs keeps its later operations pending, and looks as if it waited.
            sinks = [x for x in behind if x in waited]
        if not sinks:
            return self._nobody_with_a_dump(waited, absent, unknown)
        groups = [x for x in job.stuck if set(x.missing) & set(sinks)]
        groups = self._by_program(groups)
        if not groups:
            self._never_posted(sinks)
            return True
        top = groups[0]
        self.top += groups
        if self._one_call_more(top, sinks):
            return True
        ranks = tuple(sorted({*sinks, *(x for x in behind if x not in sinks and self._is_behind(x))}))
        clean = not top.no_data and not top.unknown and not job.gaps
        weight = CLEAN if clean else GAPS
        missing = [x for x in ranks if x in top.missing] or list(ranks)
        if len(missing) > len(top.arrived) and len(missing) > 1:
            weight = min(weight, WEAK + 0.5)
        if len(ranks) > 2 and len(ranks) * 2 >= len(job.world):
            weight = min(weight, WEAK)  # half of the job behind: as likely their dumps are merely older
        call = top.op(top.seq or 0)
        wait = wait_for(top.arrived)
        says = say_many(
            "{missing} never entered collective {seq} of group {label} ({shape}), in which {wait}; it had finished "
            "all its earlier calls.",
            "{missing} never entered collective {seq} of group {label} ({shape}), in which {wait}; they had finished "
            "all their earlier calls.",
            len(missing),
            missing=rank_list(missing).capitalize(),
            seq=top.seq,
            label=top.label,
            shape=call_shape(call),
            wait=wait,
        )
        extra = [x for x in ranks if x not in missing]
        if extra:
            says += say(
                " {extra} fell behind in a collective that the peers completed, or never entered another one.",
                extra=rank_list(extra).capitalize(),
            )
        cause, detail = "rank_not_arrived", {}
        parting = (
            next((p for x in ranks if (p := _parting(top, x, top.arrived)) is not None), None)
            if len(ranks) == 1
            else None
        )
        if parting is not None:
            cause, says = "collective_skipped", _shifted(top, ranks, parting) + " " + says
            detail = {"first_divergence_seq": parting.seq}
        witnesses = witness_evidence(
            top, top.seq or 0, [*[x for x in missing if x in top.members][:2], *top.arrived[:2]]
        )
        self._add(ranks, cause, weight, says, top, witnesses, detail)
        return True

    def _blocked(self) -> set[int]:
        """Ranks that do not get on: they wait for somebody, or stand in what nobody has completed."""
        waiting = {x for x, targets in self.edges.items() if targets}
        return waiting | {x for group in self.job.stuck for x in group.blocked}

    def _never_posted(self, sinks: Sequence[int]) -> None:
        """Ranks that owe a send or receive, and wait for nobody: like a collective never entered, between two."""
        owed = [x for x in self.owed if x.ower in sinks]
        waiters = tuple(sorted({x.waiter for x in owed} or {x for x, to in self.edges.items() if to & set(sinks)}))
        says = say(
            "{sinks} never posted the sends and receives that {waiters} wait for.",
            sinks=rank_list(sinks).capitalize(),
            waiters=rank_list(waiters),
        )
        state, evidence = None, []
        for one in owed[:4]:
            member = one.group.members[one.waiter]
            call = member.dump.calls[member.dump.call[one.row]]
            text = (
                f"posted {call.op} {'to' if call.kind == 'send' else 'from'} rank {one.ower}, which has no counterpart"
            )
            evidence.append(dump_evidence(member, one.row, text))
            state = state or replace(
                group_state(one.group), op=call.op, numel_in=numel(call.sizes_in), arrived=waiters, missing=tuple(sinks)
            )
        weight = GAPS if self.job.gaps else CLEAN - 0.5
        self.suspects.append(
            Suspect(
                ranks=tuple(sinks),
                cause="rank_not_arrived",
                weight=weight,
                says=says,
                group=state,
                evidence=tuple(evidence),
            )
        )

    def _is_behind(self, rank: int) -> bool:
        """Lags in a group where peers finished, and noticing late (100 ms) cannot explain it: somebody is missing."""
        return rank in self._behind()

    def _unsure(self, rank: int) -> bool:
        """It may be blocked in a send or receive that its backend does not show as pending."""
        return blind_tail(self.job, rank) is not None

    def _one_call_more(self, top: Standing, sinks: Sequence[int]) -> bool:
        """A few ranks wait in a call that most of the group never made: theirs may be the one too many."""
        missing = [x for x in top.missing if x in sinks]
        seq = top.seq
        if seq is None or len(missing) < len(top.arrived) or len(top.ranks) < 3 or len(top.arrived) > 2:
            return False
        level = {top.members[x].enqueued for x in missing}
        if level != {seq - 1}:
            return False
        odd = [x for x in top.arrived if departs_at(self.job, top, x, seq)]
        partings = {x: p for x in top.arrived if (p := _parting(top, x, missing)) is not None and p.by < 0}
        if set(odd) | set(partings) != set(top.arrived):
            return False
        says = say(
            "{waiters} in collective {seq} of group {label} ({shape}), a call that its earlier "
            "steps did not have there and that {missing} never made.",
            waiters=wait_for(top.arrived).capitalize(),
            seq=seq,
            label=top.label,
            shape=call_shape(top.op(seq)),
            missing=rank_list(missing),
        )
        where = min((p.seq for p in partings.values()), default=seq)
        weight = GAPS if self.job.gaps else CLEAN - 1
        detail: dict[str, Detail] = {"first_divergence_seq": where}
        witnesses = witness_evidence(top, seq, [*top.arrived, *missing])
        self._add(top.arrived, "collective_skipped", weight, says, top, witnesses, detail)
        return True

    def _nobody_with_a_dump(self, waited: set[int], absent: Sequence[int], unknown: Sequence[int]) -> bool:
        """Everybody with a dump waits, or may wait: for ranks without one, in a circle, or in something unrecorded."""
        job = self.job
        dark = sorted({*absent, *unknown})
        if self._opposite_order():
            self.cannot_exclude |= set(dark)
            return True
        if dark:
            self._perhaps_the_absent(dark, sorted({*job.no_data, *unknown}))
            return True
        circle = circle_of(self.edges, sorted(self.edges))
        unsure = sorted(x for x in waited if self._unsure(x))
        groups = self._by_program(job.stuck)
        self.top += groups
        top = groups[0] if groups else next(iter(job.groups.values()))
        if circle:
            since = {x: job.first_pending(x) for x in circle}
            departing = [x for x in sorted(circle) if job.departs(x, since[x]) is not None]
            ranks = tuple(departing) if len(departing) == 1 else ()
            says = say(
                "{circle} wait for each other in a circle: {steps}.",
                circle=rank_list(circle).capitalize(),
                steps=self._round(circle),
            )
            self._add(
                ranks,
                "deadlock",
                CLEAN - 0.5 if not ranks else GAPS,
                says,
                top,
                witness_evidence(top, top.seq or 0, top.arrived),
                {"circle": tuple(sorted(circle))},
            )
            if not ranks:
                self.cannot_exclude |= circle
            return True
        if len(unsure) == 1:
            says = say(
                "Rank {unsure} never entered collective {seq} of group {label}, in which {arrived} wait; its "
                "last recorded call is a send or receive that may or may not be over.",
                unsure=unsure[0],
                seq=top.seq,
                label=top.label,
                arrived=rank_list(top.arrived),
            )
            self._add(
                tuple(unsure),
                "rank_not_arrived",
                GAPS,
                says,
                top,
                witness_evidence(top, top.seq or 0, [*unsure, *top.arrived]),
            )
            return True
        self.cannot_exclude |= set(unsure) or waited
        return True

    def _perhaps_the_absent(self, dark: Sequence[int], everybody: Sequence[int]) -> None:
        """Everybody waits, some of them for ranks that left no dump: those, or one whose GPU fell behind.

        `everybody`: all of whom nothing is known, whether somebody waits for them or not.
        """
        job = self.job
        groups = self._by_program([x for x in job.stuck if set(dark) & set(x.waited)])
        top = (groups or self._by_program(job.stuck) or list(job.groups.values()))[0]
        self.top += groups
        self.cannot_exclude |= set(everybody)
        behind = self._behind()
        if behind and not self._settled():
            self.cannot_exclude |= set(behind)  # operations were still completing: a running job looks like this, too
        elif behind:
            group = next(x for x in self._by_program(list(job.groups.values())) if set(behind) & set(x.lagging))
            says = say_many(
                "{behind} has not seen the end of collectives of group {label} that the peers completed (up to "
                "{agreed}); of {everybody}, for whom others wait, there is no dump.",
                "{behind} have not seen the end of collectives of group {label} that the peers completed (up to "
                "{agreed}); of {everybody}, for whom others wait, there is no dump.",
                len(behind),
                behind=rank_list(behind).capitalize(),
                label=group.label,
                agreed=group.agreed,
                everybody=rank_list(everybody),
            )
            at = [x for x in behind if x in group.members]
            self._add(
                behind, "gpu_other", GAPS, says, group, witness_evidence(group, group.agreed, [*at, *group.arrived])
            )
        elif len(everybody) == 1 and top.seq is not None and job.older & set(everybody):
            # It did not stop writing dumps: this file was copied, or its newest one overwritten, at another moment.
            says = say(
                "Every member of group {label} with a dump of this moment stands in collective {seq} ({shape}); the "
                "dump of {older} is of an earlier one, and tells nothing of it.",
                label=top.label,
                seq=top.seq,
                shape=call_shape(top.op(top.seq)),
                older=rank_list(everybody),
            )
            self._add((), "rank_not_arrived", -1.0, says, top, witness_evidence(top, top.seq, top.arrived))
        elif len(everybody) == 1 and top.seq is not None:
            (rank,) = everybody
            says = say(
                "Rank {rank} left no dump, and every member of group {label} that did stands in collective "
                "{seq} ({shape}).",
                rank=rank,
                label=top.label,
                seq=top.seq,
                shape=call_shape(top.op(top.seq)),
            )
            witnesses = witness_evidence(top, top.seq, top.arrived)
            self._add((rank,), "process_missing", GAPS, says, top, witnesses, {"undumped": True})

    def _behind(self) -> tuple[int, ...]:
        """Ranks that have not seen the end of what all their peers completed."""
        return tuple(sorted({x for group in self.job.groups.values() for x in group.lagging}))

    def _settled(self) -> bool:
        """Few are behind: had operations still been completing, each rank would have seen another part of them."""
        return len(self.job.dumps) > 2 and len(self._behind()) <= max(1, OUTLIERS * len(self.job.dumps))

    def _opposite_order(self) -> bool:
        """Ranks that wait in a circle because they put the same operations into their queues in different orders.

        All may have entered everything: a rank's GPU gets to an operation only after the one that stands before it.
        """
        job = self.job
        heads = heads_of(job)
        blocking: dict[int, set[int]] = defaultdict(set)
        for rank, head in heads.items():
            others = (*head.group.arrived, *head.group.missing) if head.peer is None else (head.peer,)
            for other in others:
                if other not in heads or heads[other].is_of(head) or self._runs(head, other):
                    continue
                if head.pair is None or self._lacks(head, other) or self._row(head, other) is not None:
                    blocking[rank].add(other)
        circle = shortest_circle(blocking, circle_of(blocking, sorted(blocking)))
        if not circle or all(heads[x].peer is not None for x in circle):
            return False
        departing = [x for x in circle if job.departs(x, heads[x].row) is not None]
        if not departing and all(job.usual(x, heads[x].row) for x in circle):
            return False  # they always had this order, and it worked: their operations do not stand in one queue
        if not departing and self._behind():
            return False
        pairs = list(zip(circle[-1:] + circle[:-1], circle, strict=True))
        beside = any(heads[x].peer is not None for x in circle)  # sends and receives may run beside collectives
        if not departing and beside and not all(self._lacks(heads[one], after) for one, after in pairs):
            return False
        groups = list({id(heads[x].group): heads[x].group for x in circle if heads[x].peer is None}.values())
        groups.sort(
            key=lambda x: (min((t for r in x.arrived if (t := x.members[r].created_ns(x.seq or 0))), default=0), x.key)
        )
        self.top += groups
        steps = [self._order(heads, one, after) for one, after in pairs]
        says = say(
            "{circle} wait for each other in a circle, because their calls come in opposite orders: {steps}{more}.",
            circle=rank_list(circle).capitalize(),
            steps=joined(steps[:SHOWN], "; "),
            more="; …" if len(steps) > SHOWN else "",
        )
        if departing:
            says += say(" In earlier steps {departing} had another order.", departing=rank_list(departing))
        weight = GAPS if job.gaps or not departing else GAPS + 0.5
        witnesses = tuple(
            dump_evidence(
                head.group.members[x],
                head.row,
                f"{self._operation(x, head)}, waits as the first of its queue{self._place_of(x, head.row)}",
            )
            for x in circle[:4]
            for head in (heads[x],)
        )
        self._add((), "deadlock", weight, says, groups[0], witnesses, {"circle": tuple(sorted(circle))})
        self.cannot_exclude |= set(circle)
        return True

    def _round(self, circle: set[int]) -> str:
        """How each of a shortest circle of waits holds up the one before it, with the places of their calls."""
        heads, around = heads_of(self.job), shortest_circle(self.edges, circle)
        if not around or not heads.keys() >= set(around):
            return say("each stands in a group that another is missing in")
        pairs = zip(around[-1:] + around[:-1], around, strict=True)
        steps = [self._order(heads, one, after) for one, after in pairs]
        return joined(steps[:SHOWN], "; ") + ("; …" if len(steps) > SHOWN else "")

    def _order(self, heads: Mapping[int, Head], waiter: int, waited: int) -> str:
        """How `waited` came to hold up the operation that `waiter` stands in."""
        wanted, first = heads[waiter], heads[waited]
        shape = call_shape(first.group.op(first.group.seq or 0)) if first.peer is None else ""
        text = say(
            "rank {waited} called {what}{shape}{place}",
            waited=waited,
            what=self._operation(waited, first),
            shape=f" ({shape})" if shape else "",
            place=self._place_of(waited, first.row),
        )
        what = self._operation(waited, wanted)
        if self._lacks(wanted, waited):
            return say("{text} and has not called {what}", text=text, what=what)
        return say(
            "{text} before {what}{place}", text=text, what=what, place=self._place_of(waited, self._row(wanted, waited))
        )

    def _operation(self, rank: int, head: Head) -> str:
        """A head as it is called on this rank, one end of it: 'collective 3 of group tp', 'a send to rank 1'."""
        if head.pair is None:
            return say("collective {seq} of group {label}", seq=head.group.seq, label=head.group.label)
        sender, receiver = head.pair
        if rank == sender:
            return say("a send to rank {peer}", peer=receiver)
        return say("a receive from rank {peer}", peer=sender)

    def _row(self, head: Head, rank: int) -> int | None:
        """The rank's own entry of that operation; of a send or receive the oldest that is not over."""
        if head.pair is None:
            return head.group.members[rank].row(head.group.seq or 0) if rank in head.group.members else None
        sender, receiver = head.pair
        kind, peer = ("send", receiver) if rank == sender else ("recv", sender)
        posted = posted_by(head.group, rank, kind, peer) if rank in head.group.members else []
        return next((x for x in posted if not self.job.done[rank][x]), None)

    def _lacks(self, head: Head, rank: int) -> bool:
        """The rank has not called the operation at all."""
        if head.pair is None:
            return rank in head.group.missing
        return any(x.ower == rank and x.waiter in head.pair and x.group is head.group for x in self.owed)

    def _runs(self, head: Head, rank: int) -> bool:
        """The rank's GPU has started that operation, whatever stands before it."""
        row = self._row(head, rank)
        return row is not None and bool(self.job.dumps[rank].flags[row] & (STARTED | COMPLETED))

    def _place_of(self, rank: int, row: int | None) -> str:
        dump = self.job.dumps[rank]
        return call_place(dump.stacks[dump.stack[row]]) if row is not None and dump.stack[row] >= 0 else ""

    def _joint(self) -> list[Standing]:
        """Groups in which every member has entered the stuck operation."""
        return [x for x in self.job.stuck if not x.waited and len(x.arrived) > 1]

    def _never_started(self) -> bool:
        """With timing on: all that have a dump entered, most GPUs started the operation, and some GPUs did not."""
        for group in self._by_program([x for x in self.job.stuck if not x.missing and len(x.arrived) > 1]):
            seq = group.seq
            assert seq is not None
            timed = [x for x in group.arrived if group.members[x].timed]
            running = [x for x in group.arrived if self._flag(group, x, seq)]
            idle = [x for x in group.arrived if x not in running and self._is_oldest(group, x, seq)]
            if len(timed) == len(group.arrived) and idle and len(idle) <= len(running):
                says = say_many(
                    "All of {arrived} enqueued collective {seq} of group {label} ({shape}), and the GPUs of "
                    "{running} started it; that of {idle} never did.",
                    "All of {arrived} enqueued collective {seq} of group {label} ({shape}), and the GPUs of "
                    "{running} started it; those of {idle} never did.",
                    len(idle),
                    arrived=rank_list(group.arrived),
                    seq=seq,
                    label=group.label,
                    shape=call_shape(group.op(seq)),
                    running=rank_list(running),
                    idle=rank_list(idle),
                )
                self.top += [group]
                weight = GAPS if self.job.gaps else GAPS + 0.5
                witnesses = witness_evidence(group, seq, [*idle[:2], *running[:2]])
                self._add(tuple(idle), "gpu_stall", weight, says, group, witnesses)
                return True
        return False

    def _all_joined(self) -> None:
        """Every member has entered and none has completed: a GPU that never starts, one that never ends, or all."""
        joint = self._by_program(self._joint())
        behind = self._one_behind()
        if behind is not None:
            group, rank = behind
            self.top += [group]
            says = say(
                "Rank {rank} has not seen the end of collectives of group {label} that all its peers "
                "completed (up to {agreed}): its GPU took part in it and never reported back.",
                rank=rank,
                label=group.label,
                agreed=group.agreed,
            )
            self._add(
                (rank,),
                "gpu_other",
                WEAK + 0.5,
                says,
                group,
                witness_evidence(group, group.agreed, [rank, *group.arrived]),
            )
            return
        progress = {m.completed for group in joint for m in group.members.values()}
        if not joint or len(progress) > len(joint) or self._behind() or self._under_way(joint):
            # Some have seen more ends than others: operations were still completing when the dumps were written.
            self.healthy = True
            return
        group = joint[0]
        self.top += joint
        says = say(
            "All {arrived} members of group {label} entered collective {seq} ({shape}) and none "
            "completed it; the dumps tell nobody from the others.",
            arrived=len(group.arrived),
            label=group.label,
            seq=group.seq,
            shape=call_shape(group.op(group.seq or 0)),
        )
        shown = witness_evidence(group, group.seq or 0, group.arrived)
        # One GPU that hangs and the way between them look the same.
        self._add((), "fabric_error", catalog.weight("nobody_apart_fabric"), says, group, shown)
        self._add((), "gpu_stall", catalog.weight("nobody_apart_gpu"), says, group, shown)

    def _under_way(self, joint: Sequence[Standing]) -> bool:
        """Had an operation just ended when the dumps were written, and had all that is pending begun at that moment?

        Its end is seen by some members and not yet by others, who are in none of the groups that wait: a GPU that hangs
        would hold those up.
        """
        waiting = {x for group in joint for x in group.members}
        ending = [
            when
            for group in self.job.groups.values()
            if group.seq is None
            for rank, member in group.members.items()
            if member.strict and rank not in waiting
            for seq in member.pending
            if seq <= group.agreed and (when := member.created_ns(int(seq))) is not None
        ]
        begun = [m.created_ns(g.seq) for g in joint if g.seq is not None for m in g.members.values()]
        return bool(ending and begun) and all(t is not None and max(ending) - t <= ONE_MOMENT_NS for t in begun)

    def _always_late(self) -> None:
        """Nobody holds the others up for good, but one rank comes last again and again."""
        found: dict[Key, tuple[lateness.Late, tuple[int, ...]]] = {}
        for key, group in self.job.groups.items():
            if set(group.members) == set(group.ranks) and all(x.strict for x in group.members.values()):
                late = lateness.chronic({rank: spans(member) for rank, member in group.members.items()})
                if late is not None:
                    found[key] = late, group.ranks
        culprit = lateness.culprit(found) if found else None
        if culprit is None:
            return
        group, late = self.job.groups[culprit[0]], culprit[1]
        side = (
            say("It called them late")
            if late.side == "cpu"
            else say("It called them in time, and its GPU started them late")
        )
        says = say(
            "Rank {rank} came last to {count} collectives of group {label}, from number {since_seq} on, "
            "{time} after the others (median). {side}.",
            rank=late.rank,
            count=f"{late.count:,}",
            label=group.label,
            since_seq=f"{late.since_seq:,}",
            time=phrases.duration(late.by_ns / 1e9),
            side=side,
        )
        member = group.members[late.rank]
        text = say(
            "group {label}, collective {since_seq}: from here on it comes last",
            label=group.label,
            since_seq=late.since_seq,
        )
        witnesses = (dump_evidence(member, member.row(late.since_seq), text),)
        detail: dict[str, Detail] = {"late_ms": late.by_ns // 10**6, "side": late.side, "since_seq": late.since_seq}
        self._add((late.rank,), "rank_slow", WEAK + 0.5, says, group, witnesses, detail)

    def _flag(self, group: Standing, rank: int, seq: int) -> bool:
        row = group.members[rank].row(seq)
        return row is not None and bool(group.members[rank].dump.flags[row] & (STARTED | COMPLETED))

    def _is_oldest(self, group: Standing, rank: int, seq: int) -> bool:
        row = group.members[rank].row(seq)
        return row is not None and row <= self.job.first_pending(rank)

    def _one_behind(self) -> tuple[Standing, int] | None:
        found: dict[int, Standing] = {}
        for group in self.job.groups.values():
            rest = {group.members[x].completed for x in group.members if x not in group.lagging}
            if len(group.lagging) == 1 and len(rest) == 1 and len(group.members) > 2:
                found.setdefault(group.lagging[0], group)
            elif group.lagging:
                return None
        if len(found) != 1:
            return None
        rank, group = next(iter(found.items()))
        return group, rank

    def _by_program(self, groups: Sequence[Standing]) -> list[Standing]:
        """The groups with the one first whose stuck operation comes first in the members' programs.

        A group comes before another if a rank that stands in both, or in sister groups of them, called it first.
        """
        order: Counter[tuple[str, str]] = Counter()
        wanted = {x.description or x.name for x in groups}
        sisters = [x for x in self.job.stuck if (x.description or x.name) in wanted]
        called: dict[int, dict[str, int]] = defaultdict(dict)
        for group in sisters:
            what = group.description or group.name
            for rank in group.arrived:
                row = group.members[rank].row(group.seq or 0)
                if row is not None:
                    called[rank][what] = min(called[rank].get(what, row), row)
        for rows in called.values():
            listed = sorted(rows, key=lambda x: rows[x])
            for n, one in enumerate(listed):
                for other in listed[n + 1 :]:
                    order[one, other] += 1
        beaten = {x: sum(order[y, x] > order[x, y] for y in wanted) for x in wanted}

        coming = self._coming()

        def when(group: Standing) -> int:
            times = [
                t for x in group.arrived if group.seq is not None and (t := group.members[x].created_ns(group.seq))
            ]
            return min(times, default=0)

        return sorted(
            groups,
            key=lambda x: (
                beaten[x.description or x.name],
                not (x.missing or x.no_data or x.perhaps),
                x.key not in coming,
                len(x.ranks),
                when(x),
                x.key,
            ),
        )

    def _coming(self) -> set[Key]:
        """Groups in which a rank that is missing there, and waits for nobody, would have made its next call."""
        found: set[Key] = set()
        late = {x for group in self.job.stuck for x in group.missing if not self.edges.get(x)}
        for rank in sorted(late)[:16]:
            if rank not in self._next:
                self._next[rank] = self.job.next_groups(rank)
            for index in self._next[rank]:
                found.add(self.job.index[rank][index])
        return found

    def _add(
        self,
        ranks: Sequence[int],
        cause: str,
        weight: float,
        says: str,
        group: Standing,
        evidence: tuple[Evidence, ...],
        details: Mapping[str, Detail] | None = None,
    ) -> None:
        self.suspects.append(
            Suspect(
                ranks=tuple(sorted(ranks)),
                cause=cause,
                weight=weight,
                says=says,
                group=group_state(group),
                evidence=evidence,
                details=dict(details or {}),
            )
        )

    # --- what goes out

    def result(self) -> Reconstruction:
        job = self.job
        guilty = {x for one in self.suspects for x in one.ranks}
        hung = not self.healthy
        if hung:
            self.cannot_exclude |= self._uncleared(guilty)
        ordered: list[Standing] = []
        if hung:
            for group in [*self.top, *self._by_program(job.stuck)]:
                if group not in ordered and group.seq is not None:
                    ordered.append(group)
        top = ordered[0] if ordered else None
        return Reconstruction(
            groups=tuple(map(group_state, ordered)) or tuple(x.group for x in self.suspects[:1] if x.group is not None),
            suspects=tuple(self.suspects),
            waits=tuple(self._waits()) if hung else (),
            cannot_exclude=tuple(sorted(self.cannot_exclude - guilty)) if hung else (),
            cleared=tuple(self._cleared(guilty)) if hung and self.suspects else (),
            counters=tuple(self._counters(top)),
            ranks_seen=tuple(sorted(job.dumps)),
            members=tuple(
                GroupState(name=x.name, description=x.description or None, members=x.ranks)
                for x in sorted(job.groups.values(), key=lambda x: x.key)
                if x.key[0]
            ),
            healthy=self.healthy,
            problems=tuple(job.problems),
        )

    def _uncleared(self, guilty: set[int]) -> set[int]:
        """Ranks that no wait of theirs clears: without a dump, with one that cannot tell, outside of all groups.

        Who waits by a send or receive for a rank without a dump may itself be the one with the wrong peer.
        """
        job = self.job
        found = {*job.no_data, *self._behind(), *(x for group in job.stuck for x in group.unknown)}
        blocked = self._blocked()
        found |= {x for group in job.stuck for x in group.missing} - blocked
        if guilty or not job.no_data:
            return found
        found |= job.dumps.keys() - blocked - {x for group in job.stuck for x in group.arrived}
        for rank, dump in job.dumps.items():
            posts = np.nonzero(~job.done[rank] & ((dump.flags & P2P) > 0))[0]
            if len(posts) and (not job.usual(rank, int(posts[0])) or job.departs(rank, int(posts[0])) is not None):
                found.add(rank)
        return found

    def _waits(self) -> Iterator[Wait]:
        for group in self.job.stuck:
            why = say("entered collective {seq} of group {label}", seq=group.seq, label=group.label)
            waited = group.waited
            for rank in group.blocked if waited else ():
                yield Wait(waiter=rank, waited=waited, why=why, group=group.label, seq=group.seq)
        for one in self.owed:
            dump = self.job.dumps[one.waiter]
            call = dump.calls[dump.call[one.row]]
            why = say("posted a {op}{towards}", op=call.op, towards=towards_peers(call, one.ower))
            yield Wait(waiter=one.waiter, waited=(one.ower,), why=why, group=one.group.label)

    def _cleared(self, guilty: set[int]) -> Iterator[tuple[int, str]]:
        stands: dict[int, tuple[Standing, str]] = {}
        for group in self._by_program(self.job.stuck):
            waited = group.waited
            for rank in group.arrived if waited else ():
                stands.setdefault(rank, (group, rank_list(waited)))
        for rank in sorted(self.job.dumps):
            if rank in guilty or rank in self.cannot_exclude:
                continue
            if rank in stands:
                group, names = stands[rank]
                why = say_many(
                    "waits in collective {seq} of group {label} for {names}",
                    "wait in collective {seq} of group {label} for {names}",
                    1,
                    seq=group.seq,
                    label=group.label,
                    names=names,
                )
                yield rank, why
            elif self.edges.get(rank):
                yield rank, say_many("waits for {names}", "wait for {names}", 1, names=rank_list(self.edges[rank]))

    def _counters(self, top: Standing | None) -> Iterator[RankCounters]:
        job = self.job
        default = next((x for x in job.groups.values() if is_default(x.key)), None)
        for rank, dump in sorted(job.dumps.items()):
            member = None
            for group in (top, default):
                if group is not None and member is None:
                    member = group.members.get(rank)
            frames = dump.stacks[dump.stack[-1]] if dump.count and dump.stack[-1] >= 0 else ()
            started = None
            if member is not None and member.timed:
                ran = member.all_seqs[(dump.flags[member.all_rows] & (STARTED | COMPLETED)) > 0]
                started = int(ran[-1]) if len(ran) else None
            yield RankCounters(
                rank=rank,
                source=dump.path,
                last_enqueued=_positive(member.enqueued) if member else None,
                last_started=started,
                last_completed=_positive(member.completed) if member else None,
                frames=frames,
                last_created_ns=dump.newest_ns,
            )


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None
