"""What the process groups say: who never came, who called something else, who waits in a circle."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, Suspect, number, text
from nccl_forensics.names import MOST_RANKS
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.verdict.case import Case, listed
from nccl_forensics.verdict.rules import rule
from nccl_forensics.waits.reports import DEFAULT, OUTLIERS, reporter
from nccl_forensics.who.layout import shape


@rule
def suspects(case: Case) -> Iterator[Finding]:
    """The reconstruction's suspects, as findings. One whose watchdog answers the others' signal has not disappeared."""
    answered = {e.rank for e in case.of("pg-observed", "pg-dump-remote") if e.rank is not None}
    for suspect in case.collectives.suspects:
        if suspect.evidence:
            heard = suspect.cause == "process_missing" and answered.issuperset(suspect.ranks)
            yield _suspected(case, suspect, heard=heard)


def _suspected(case: Case, suspect: Suspect, *, heard: bool) -> Finding:
    places = [place for rank in suspect.ranks if (place := case.known.ranks.get(rank)) is not None]
    in_common = shape(suspect.ranks, case.known, case.collectives.members)
    says = suspect.says
    if heard:
        answers = phrases.ranks(suspect.ranks)
        says = say("{says} The watchdog of {ranks} still answered the others.", says=says, ranks=answers)
    if in_common:
        says = say("{what} – {says}", what=phrases.sentence(in_common), says=says)
    detail = suspect.details.get("detail")
    return Finding(
        cause="rank_not_arrived" if heard else suspect.cause,
        says=says,
        weight=_weight(case, suspect, in_common),
        ranks=suspect.ranks,
        hosts=tuple(sorted({place.host for place in places if place.host})),
        gpus=tuple(place.gpu for place in places if place.gpu is not None),
        evidence=suspect.evidence,
        inference=True,
        detail=str(detail) if detail else None,
        onset_ns=suspect.group.first_arrival_ns if suspect.group else None,
    )


def _weight(case: Case, suspect: Suspect, in_common: str | None) -> float:
    """`in_common`: what all of the ranks are, and a random set of as many would not be."""
    value = suspect.weight
    if suspect.cause == "fabric_error" and _is_on_one_host(case):
        value -= 2.0  # then there is no fabric between hosts
    if in_common:
        value += weight("one_group")
    circle = suspect.details.get("circle")
    if isinstance(circle, tuple) and any(_failed(case, e) for e in case.events if e.rank in circle):
        value += weight("circle_broken")
    return value


def _is_on_one_host(case: Case) -> bool:
    return len({place.host for place in case.known.ranks.values() if place.host}) == 1


def arrived(case: Case) -> set[int]:
    """The ranks that entered a collective in which somebody waits."""
    return {rank for group in case.collectives.groups for rank in group.arrived}


ENDED = frozenset({-4, -7, -8, -9, -11, 132, 135, 136, 137, 139})
"""Exit codes of a process that SIGILL, SIGBUS, SIGFPE, SIGKILL or SIGSEGV ended, as torchrun and shells give them."""


def _failed(case: Case, event: Event) -> bool:
    """Did its rank fail for itself, before or as the others began to wait?"""
    ended = event.kind == "exit" and number(event, "code") in ENDED
    return (ended or (event.role == "cause" and event.cause != "collective_mismatch")) and case.timing(event)[0] > -2


@rule
def pytorch_names_them(case: Case) -> Iterator[Finding]:
    """monitoredBarrier and the store barrier name or count the ranks that did not come."""
    yield from _monitored_barrier(case)
    yield from _store_barrier(case)


def _monitored_barrier(case: Case) -> Iterator[Finding]:
    """The first that names ranks of the job, less those that other lines show to have come."""
    reached = {number(e, "reached_rank") for e in case.of("gloo-reached")}
    for event in case.of("monitored-barrier"):
        ranks = tuple(r for r in listed(event) if r not in reached)
        # Rank 0 of the group writes it: if that is not rank 0 of the job, the numbers are those of some other group.
        fits = event.rank in (None, 0) and max(ranks, default=0) < (case.known.world_size or MOST_RANKS)
        if ranks and fits and not case.went_on(event):
            yield Finding(
                cause="rank_not_arrived",
                says=say(
                    "PyTorch's monitored barrier names the ranks that never came: {numbers}",
                    numbers=", ".join(map(str, ranks)),
                ),
                weight=weight("pytorch_names_ranks"),
                ranks=ranks,
                events=(event,),
            )
            return


def _store_barrier(case: Case) -> Iterator[Finding]:
    """It counts who came: where lines name as many, the others are known, too."""
    barriers = case.of("store-barrier")
    if not barriers:
        return
    came = {r for e in barriers if (r := number(e, "at_rank")) is not None}
    world, joined = number(barriers[0], "world_size"), number(barriers[0], "joined")
    if not world or world > MOST_RANKS or len(came) != joined:
        return
    missing = tuple(r for r in range(world) if r not in came)
    if missing:
        yield Finding(
            cause="rank_not_arrived",
            says=say(
                "{joined} of {world} ranks reached the creation of the group, and these are known by name; "
                "the others never came",
                joined=joined,
                world=world,
            ),
            weight=weight("counted_out"),
            ranks=missing,
            events=barriers[:2],
            inference=True,
        )


@rule
def desync_report_names_them(case: Case) -> Iterator[Finding]:
    """PyTorch's desync report (TORCH_NCCL_DESYNC_DEBUG) lists who stands furthest behind, by ranks in its group.

    Every rank that timed out writes one of its own: they have to agree. Where all stand alike the reporter is in the
    list, and nobody is apart.
    """
    named, shown = _named_by_all(case)
    if not named:
        return
    stuck = text(shown[0], "stood") == "joined"
    many = len(named) > max(1, OUTLIERS * (case.known.world_size or 0))
    yield Finding(
        cause="gpu_other" if stuck else "rank_not_arrived",
        says=say_many(
            "PyTorch's desync report: {ranks} is furthest behind ({words})",
            "PyTorch's desync report: {ranks} are furthest behind ({words})",
            len(named),
            ranks=phrases.ranks(named),
            words=text(shown[0], "says"),
        ),
        weight=weight("desync_joined" if stuck else "pytorch_names_ranks") + (weight("too_many_late") if many else 0.0),
        ranks=tuple(sorted(named)),
        events=tuple(shown[:3]),
    )


def _named_by_all(case: Case) -> tuple[set[int], list[Event]]:
    """(ranks of the job whom every report about the first group names, the lines that list them)."""
    named: list[set[int]] = []
    shown: list[Event] = []
    for report in _desync_reports(case):
        behind, event = _furthest_behind(report)
        if shown and text(event, "pg_name") != text(shown[0], "pg_name"):
            continue  # the first group's; another one's may wait for that
        ranks = _in_the_job(case, event, behind)
        if text(event, "stood") != "joined":
            seq = number(event, "at_seq")
            ranks -= {reporter(e) for e in case.of("watchdog-timeout") if seq is not None and number(e, "seq") == seq}
        named.append(ranks)
        shown.append(event)
    return set.intersection(*named) if named else set(), shown


def _desync_reports(case: Case) -> Iterable[list[Event]]:
    """The lines of each report: a rank writes one for the collective that timed out."""
    reports: dict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in case.of("pg-desync"):
        if not case.went_on(event):
            who = event.rank if event.rank is not None else number(event, "group_rank")
            reports[event.evidence.source, who, number(event, "at_seq")].append(event)
    return reports.values()


def _furthest_behind(report: Sequence[Event]) -> tuple[set[int], Event]:
    """(ranks in the group, the line that lists them) of one report; no ranks where it tells nobody apart."""
    by_state: dict[str, Event] = {}
    for event in report:
        by_state.setdefault(text(event, "stood") or "", event)
    joined, finished = by_state.get("joined"), by_state.get("finished")
    event = by_state.get("never") or joined or finished or report[0]
    ranks = set(listed(event))
    if event is joined and finished is not None and len(ranks) > max(1, OUTLIERS * len({*ranks, *listed(finished)})):
        return set(), event  # a root that is done, and those that still wait for their part
    return (set() if number(event, "group_rank") in ranks else ranks), event


def _in_the_job(case: Case, event: Event, ranks: set[int]) -> set[int]:
    """These ranks of the group that the line is about, as ranks of the job; none where no line tells which they are."""
    highest = max(ranks, default=0)
    members = _members(case, text(event, "pg_name"))
    if members is not None:
        return {members[r] for r in ranks} if highest < len(members) else set()
    possible = highest < (case.known.world_size or MOST_RANKS)
    return set(ranks) if possible and _is_the_whole_job(case, event) else set()


def _members(case: Case, group: str | None) -> tuple[int, ...] | None:
    """All members of the first group of this name, where a log states them."""
    for one in case.collectives.groups:
        if group is not None and one.name == group and one.members and not one.members_at_least:
            return one.members
    return None


def _is_the_whole_job(case: Case, event: Event) -> bool:
    """Is the group that the line is about the job's, by its name; without one, by what ranks call themselves there?"""
    name, description = text(event, "pg_name"), text(event, "pg_desc")
    if name is not None or description is not None:
        return description == "default_pg" or name in DEFAULT
    headers = [(e.rank, number(e, "group_rank")) for e in case.of("watchdog-timeout", "pg-status")]
    return all(None in (a, b) or a == b for a, b in headers)


GLOO_KEY = re.compile(r"//cpu//\d{1,9}/(?P<rank>\d{1,7})$")
"""Where ProcessGroupGloo looks for the address of a peer: its rank in the group stands last."""
LOST = re.compile(r"(?i)connection (?:reset|refused|closed)|broken pipe|failed to recv")
"""The store went away, rather than that a key was not set in time."""


@rule
def waited_for_one(case: Case) -> Iterator[Finding]:
    """In set-up a rank waits for a certain other: for rank 0 and its unique id with NCCL, for each peer's address with
    Gloo. Where ranks of the group and of the job do not agree, it is a group of some, and nobody is named."""
    awaited = _awaited_in_set_up(case)
    if len(awaited) != 1 or case.of("watchdog-timeout"):
        return
    ((rank, waiting),) = awaited.items()
    complained = {e.rank for e in case.of("pg-uniqueid", "store-wait", "python-exception")}
    if rank in waiting or rank in complained:
        return
    world = case.known.world_size or max((*waiting, *case.known.ranks, rank)) + 1
    everyone = len(waiting) == world - 1
    lost = any(LOST.search(text(e, "error") or "") for e in waiting.values())
    sure = everyone and len(waiting) > 1 and not lost
    yield Finding(
        cause="process_missing" if lost else "rank_not_arrived",
        says=say("{waiting} waited in set-up for rank {rank}, ", waiting=phrases.ranks(waiting).capitalize(), rank=rank)
        + (
            say("and the connection to the store, which rank 0 or its launcher keeps, broke")
            if lost
            else say("which never answered")
        ),
        weight=weight("counted_out") if sure else weight("counted_out") - 0.8,
        ranks=(rank,),
        events=tuple(waiting.values())[:3],
        inference=True,
    )


def _awaited_in_set_up(case: Case) -> dict[int, dict[int, Event]]:
    """Whom ranks wait for in set-up → who waits → the first line that says so."""
    waits: dict[int, dict[int, Event]] = defaultdict(dict)
    for event in case.of("pg-uniqueid", "store-wait"):
        who = reporter(event) if event.rank is not None else number(event, "waiting_rank")
        if who is None:
            continue
        key = GLOO_KEY.search(text(event, "key") or "")
        if event.kind == "pg-uniqueid" and number(event, "waiting_rank") == who:
            waits[0].setdefault(who, event)
        elif key:
            waits[int(key["rank"])].setdefault(who, event)
    return waits


@rule
def one_watchdog_stuck(case: Case) -> Iterator[Finding]:
    """Only one rank's own watchdog hung in a CUDA or NCCL call (or for Python's lock), and nobody reported a wait."""
    stuck = {e.rank: e for e in case.of("pg-heartbeat") if e.rank is not None and e.details.get("stuck") is True}
    if len(stuck) != 1 or not _others_wrote(case, set(stuck)):
        return
    ((rank, event),) = stuck.items()
    if any(e.rank == rank for e in case.of("watchdog-timeout")):
        return
    yield Finding(
        cause="gpu_stall",
        says=say(
            "Of all ranks only rank {rank} says that its own watchdog hung in a call to CUDA or NCCL, or "
            "waited for Python's lock",
            rank=rank,
        ),
        weight=weight("stuck_watchdog"),
        ranks=(rank,),
        events=(event,),
        inference=True,
        onset_ns=event.time_ns,
    )


def _others_wrote(case: Case, ranks: set[int]) -> bool:
    """Is there any line of another rank? Where one rank's log is all there is, nobody knows what the others said."""
    return any(e.rank is not None and e.rank not in ranks for e in case.events)


@rule
def python_lock_held(case: Case) -> Iterator[Finding]:
    """One rank alone holds Python's lock for so long that its monitor says so, and it does not wait in a collective.

    Who waits in a collective gives the lock away: a thread that keeps it stands somewhere else.
    """
    held = {e.rank: e for e in case.of("pg-gil") if not case.went_on(e)}
    if len(held) != 1:
        return
    ((rank, event),) = held.items()
    if rank is None or rank in arrived(case) or not _others_wrote(case, {rank}):
        return
    if any(reporter(e) == rank for e in case.of("watchdog-timeout", "pg-blocking")):
        return
    yield Finding(
        cause="rank_busy",
        says=say(
            "Of all ranks only rank {rank} says that it could not get Python's lock: a thread of it keeps it", rank=rank
        ),
        weight=weight("python_lock"),
        ranks=(rank,),
        events=(event,),
        inference=True,
    )


@rule
def fingerprints_differ(case: Case) -> Iterator[Finding]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL found ranks in different collectives.

    Each report tells of two ranks; which of them is wrong is known only where the reports of others show what most do.
    """
    reports = case.of("pgw-mismatch")
    if odd := _few_of_many(reports):
        yield _odd_ones(odd, reports)
    elif reports:
        yield _a_pair(reports[0])


def _few_of_many(reports: Sequence[Event]) -> set[int]:
    """The ranks whose call most others' reports show to be another one; none where it is even or a subgroup's ranks."""
    own = [(e.rank, number(e, "rank_a")) for e in reports if e.rank is not None]
    if not own or any(a != b for a, b in own):
        return set()  # ranks of a group need not be the job's
    calls = _calls(reports)
    if len(set(calls.values())) < 2:
        return set()
    most, n = Counter(calls.values()).most_common(1)[0]
    odd = {rank for rank, call in calls.items() if call != most}
    return odd if n > 2 and n >= 2 * len(odd) else set()


def _calls(reports: Sequence[Event]) -> dict[int, tuple[object, ...]]:
    """Rank → its call, by its own report where it wrote one; else as another's has it, if that is told in full.

    Of a peer whose call takes no tensor PyTorch reads a wrong operation and number (`SequenceNumber=0OpType=REDUCE`):
    that differs, whatever it was.
    """
    calls = {rank: _call(event, "a") for event in reports if (rank := number(event, "rank_a")) is not None}
    for event in reports:
        rank = number(event, "rank_b")
        if rank is not None:
            calls.setdefault(rank, _call(event, "b"))
    return calls


def _call(event: Event, side: Literal["a", "b"]) -> tuple[object, ...]:
    """What a fingerprint tells of one rank's call."""
    if side == "a":
        return text(event, "op_a"), number(event, "seq_a"), text(event, "shape_a"), text(event, "dtype_a")
    return text(event, "op_b"), number(event, "seq_b"), text(event, "shape_b"), text(event, "dtype_b")


def _is_garbled(event: Event) -> bool:
    """Is the peer's side told without tensors and with number 0? Then its operation is not the one that was called.

    Releases before 2.1 tell no tensors of a peer either, but its operation (pytorch/pytorch#100213).
    """
    return text(event, "shape_b") is None and number(event, "seq_b") == 0


def _in_words(event: Event, side: Literal["a", "b"]) -> str | None:
    """'ALLREDUCE' or, where the operations are the same, with what differs: 'ALLREDUCE of [64] Double'."""
    if side == "b" and _is_garbled(event):
        return None
    (op, _, shape, dtype), (other, *_) = _call(event, side), _call(event, "b" if side == "a" else "a")
    if op is None or op != other:
        return None if op is None else str(op)
    return say("{op} of [{shape}] {dtype}", op=op, shape=shape or "", dtype=dtype or "").rstrip()


def _odd_ones(odd: set[int], reports: Sequence[Event]) -> Finding:
    told = next(e for e in reports if odd & {number(e, "rank_a"), number(e, "rank_b")})
    own = "a" if number(told, "rank_a") in odd else "b"
    theirs, others = (_in_words(told, "a"), _in_words(told, "b"))[:: 1 if own == "a" else -1]
    return Finding(
        cause="collective_mismatch",
        says=say(
            "PyTorch's fingerprint check: {odd} in {op}, most ranks in {other} at the same place",
            odd=phrases.ranks(odd),
            op=theirs or say("one collective"),
            other=others or say("another"),
        ),
        weight=weight("detail_mismatch"),
        ranks=tuple(sorted(odd)),
        events=(told, *[e for e in reports if e is not told][:2]),
        detail="pair",
    )


def _a_pair(report: Event) -> Finding:
    return Finding(
        cause="collective_mismatch",
        says=say(
            "PyTorch's fingerprint check: rank {a} was in {op_a}, rank {b} in {op_b} at the same place",
            a=number(report, "rank_a"),
            op_a=_in_words(report, "a") or say("one collective"),
            b=number(report, "rank_b"),
            op_b=_in_words(report, "b") or say("another"),
        ),
        weight=weight("detail_mismatch"),
        events=(report,),
        detail="pair",
    )
