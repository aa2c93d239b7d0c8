"""Who holds up a collective, from who reports it and who does not: pure judgements over the ranks' lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics import catalog
from nccl_forensics.model import Evidence, Suspect, number, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.waits.reports import Attendance, Reports, Stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one judgement says of one collective."""

    suspects: tuple[Suspect, ...] = ()
    cannot_exclude: frozenset[int] = frozenset()


def judge(reports: Reports, one: Attendance) -> Answer:
    """Who made another call, and the first answer to who never came."""
    different = () if one.stuck.is_mixed else different_calls(one.stuck)
    answers = (question(reports, one) for question in QUESTIONS)
    absent = next((x for x in answers if x is not None), Answer())
    return replace(absent, suspects=(*different, *absent.suspects))


# --- who never came


def one_call_more(reports: Reports, one: Attendance) -> Answer | None:
    """One reporter, and every other rank that is known of finished its work in order."""
    if len(reports.reporters) != 1 or len(one.stuck.reports) != 1:
        return None
    (rank,) = one.stuck.reports
    finished = reports.finished - {rank}
    if not finished or not finished >= set(range(reports.world or 0)) - {rank}:
        return None
    says = say(
        "Only rank {rank} waits in {what}, and the other ranks had ended their work: rank {rank} "
        "made one call that nobody else makes.",
        rank=rank,
        what=one.what,
    )
    suspect = Suspect(
        ranks=(rank,),
        cause="collective_skipped",
        weight=catalog.weight("lone_waiter"),
        says=says,
        group=one.state,
        evidence=one.stuck.evidence,
        details={"extra": True},
    )
    return Answer(suspects=(suspect,))


def all_are_apart(reports: Reports, one: Attendance) -> Answer | None:
    """Every member waits in the group, some at a later number than the rest: these have left it, though others are
    still inside, so the ranks did not make the same calls. Which of both is wrong the numbers don't tell."""
    here = one.stuck
    if here.is_mixed or here.seq is None or not one.absent:
        return None
    ahead = {
        rank: other
        for other in reports.stuck
        if (other.name, other.desc) == (here.name, here.desc) and (other.seq or 0) > here.seq
        for rank in other.reports
    }
    if not ahead.keys() >= set(one.absent):
        return None
    furthest = max((ahead[r] for r in one.absent), key=lambda x: x.seq or 0)
    says = say(
        "{reporters} wait in {what}, and {ahead} beyond it, in number {seq}: the ranks made different calls.",
        reporters=phrases.ranks(here.reports).capitalize(),
        what=one.what,
        ahead=phrases.ranks(one.absent),
        seq=furthest.seq,
    )
    suspect = Suspect(
        ranks=(),
        cause="collective_mismatch",
        weight=catalog.weight("reports_apart"),
        says=says,
        group=one.state,
        evidence=(*furthest.evidence[:1], *here.evidence[:2]),
    )
    return Answer(suspects=(suspect,), cannot_exclude=frozenset(one.absent))


def too_many_for_gloo(_: Reports, one: Attendance) -> Answer | None:
    """It says neither where it waits nor whether in a send or a collective."""
    if one.state.backend != "gloo" or len(one.absent) <= one.few:
        return None
    return Answer(cannot_exclude=frozenset(one.state.members))


def some_are_silent(_: Reports, one: Attendance) -> Answer | None:
    """Half a job that says nothing is a partition, not a list of culprits."""
    missing, silent = one.state.missing, one.state.no_data
    if not (missing and silent) or len(missing) + len(silent) <= one.few:
        return None
    return Answer(cannot_exclude=frozenset({*missing, *silent}))


def never_came(reports: Reports, one: Attendance) -> Answer | None:
    """Members whose log is here without a report; where there are none, a few members without any line."""
    missing, silent = one.state.missing, one.state.no_data
    if not missing and not 0 < len(silent) <= one.few:
        return None
    blame = missing or silent
    answers = [reports.answered[r].evidence for r in blame if r in reports.answered]
    says = say(
        "{reports} waited in {what}; {blame} never entered it ({sign}).",
        reports=phrases.ranks(one.stuck.reports).capitalize(),
        what=one.what,
        blame=phrases.ranks(blame),
        sign=_sign(reports, one, blame, bool(answers)),
    )
    suspect = Suspect(
        ranks=blame,
        cause="rank_not_arrived",
        weight=_weight(reports, one, blame, bool(answers)),
        says=says,
        group=one.state,
        evidence=(*answers[:2], *one.stuck.evidence[:2]),
        details={"silent": not missing},
    )
    return Answer(suspects=(suspect,), cannot_exclude=frozenset(silent) - set(blame))


def _weight(reports: Reports, one: Attendance, blame: Sequence[int], answered: bool) -> float:
    """What speaks for it, and what takes from that. `answered`: some of them answered the dump signal."""
    missing, silent = one.state.missing, one.state.no_data
    weight = catalog.weight("late_and_told" if answered else "late_and_logged" if missing else "late_and_silent")
    if not missing and not reports.world_stated and not _started(reports, blame):
        weight += catalog.weight("world_guessed")
    if missing and silent and not answered:
        weight += catalog.weight("others_silent")
    if not missing and len(blame) > 1:
        weight += catalog.weight("log_not_collected")
    if len(blame) > one.few:
        weight += catalog.weight("too_many_late")
    return weight


def _sign(reports: Reports, one: Attendance, blame: Sequence[int], answered: bool) -> str:
    """What shows of those that never came."""
    if answered:
        return say("alive: the dump signal was answered, and nothing of its own was overdue")
    if one.state.missing:
        return _log_goes_on(blame, reports.late) + say(", without such a report")
    if len(blame) == 1 and not reports.world_stated and _started(reports, blame):
        return say("no line of it was found, though it was started")
    return say_many("no line of it was found", "no line of them was found", len(blame))


def _started(reports: Reports, ranks: Sequence[int]) -> bool:
    return all(reports.known.existed(r) for r in ranks)


def _log_goes_on(ranks: Sequence[int], late: frozenset[int]) -> str:
    one = len(ranks) == 1
    if late >= set(ranks):
        return say("its log goes on") if one else say("their logs go on")
    return say("its log is here") if one else say("their logs are here")


def many_are_silent(_: Reports, one: Attendance) -> Answer | None:
    """More than a few members without any line: their logs were not collected, as likely as not."""
    return Answer(cannot_exclude=frozenset(one.state.no_data)) if one.state.no_data else None


def only_one_answered(reports: Reports, one: Attendance) -> Answer | None:
    """Of a group whose members no log tells: who answered the dump signal without a timeout of its own."""
    if one.state.members:
        return None
    waiting = reports.answered.keys() - reports.reporters
    perhaps_members = [r for r in sorted(waiting) if one.stuck.could_have(r)]
    if len(perhaps_members) != 1 or len(reports.reporters) < 3:
        return Answer(cannot_exclude=frozenset(waiting))
    (rank,) = perhaps_members
    says = say(
        "{reporters} timed out; rank {rank} alone answered their dump signal without a timeout of "
        "its own: alive, and late.",
        reporters=phrases.ranks(reports.reporters).capitalize(),
        rank=rank,
    )
    suspect = Suspect(
        ranks=(rank,),
        cause="rank_not_arrived",
        weight=catalog.weight("only_one_told"),
        says=says,
        group=one.state,
        evidence=(reports.answered[rank].evidence, *one.stuck.evidence[:2]),
    )
    return Answer(suspects=(suspect,))


QUESTIONS: tuple[Callable[[Reports, Attendance], Answer | None], ...] = (
    one_call_more,
    all_are_apart,
    too_many_for_gloo,
    some_are_silent,
    never_came,
    many_are_silent,
    only_one_answered,
)
"""In the order in which they are asked: the first that answers ends the questioning."""


# --- who came with another call


def different_calls(stuck: Stuck) -> tuple[Suspect, ...]:
    """All came, but not with the same call: the minority by operation or size. What a line does not tell is no call."""
    reports = stuck.reports.items()
    rows: tuple[tuple[str, Mapping[int, object]], ...] = (
        (say("operation"), {r: text(e, "op") for r, e in reports}),
        (say("size"), {r: number(e, "numel_in") for r, e in reports}),
        (say("size"), {r: number(e, "numel_out") for r, e in reports}),
    )
    told = ((word, {r: value for r, value in values.items() if value is not None}) for word, values in rows)
    return next((_minority(stuck, word, values) for word, values in told if len(set(values.values())) > 1), ())


def _minority(stuck: Stuck, word: str, values: Mapping[int, object]) -> tuple[Suspect, ...]:
    """`values`: reporter → what its line says of the call."""
    counts = Counter(values.values())
    (usual, most), (_, next_most), *_ = counts.most_common()
    odd = tuple(sorted(r for r, value in values.items() if value != usual))
    is_tied = most == next_most or len(values) < 3
    listed = joined((phrases.ranks(r for r in values if values[r] == v) + f": {v}" for v in counts), "; ")
    says = say("All reporters wait at the same place, but not in the same {word} ({listed}).", word=word, listed=listed)
    evidence = tuple(stuck.reports[r].evidence for r in odd[:2]) + stuck.evidence[:1]
    by = None if is_tied else _shift(stuck, odd)
    if by is not None:
        return (_shifted(odd, by, says, evidence),)
    wrong = Suspect(
        ranks=() if is_tied else odd,
        cause="collective_mismatch",
        weight=catalog.weight("reports_tied" if is_tied else "reports_differ"),
        says=says,
        evidence=evidence,
        details={"tie": is_tied},
    )
    if stuck.enqueued and not is_tied:  # the counters are there and equal: one call is wrong, none is missing
        return (wrong,)
    # Without counters, or between two, a call that was left out looks the same.
    return wrong, replace(wrong, cause="collective_skipped", weight=catalog.weight("reports_perhaps_shifted"))


def _shift(stuck: Stuck, odd: Sequence[int]) -> int | None:
    """By how many calls these ranks are off the others' count, if it is one and all are counted; else None."""
    others = [n for r, n in stuck.enqueued.items() if r not in odd]
    own = [n for r, n in stuck.enqueued.items() if r in odd]
    if len(others) < 2 or len(own) < len(odd) or len(set(others)) > 1 or len(set(own)) > 1:
        return None
    by = own[0] - others[0]
    return by if abs(by) == 1 else None


def _shifted(odd: tuple[int, ...], by: int, says: str, evidence: tuple[Evidence, ...]) -> Suspect:
    fewer = say("left one call out") if by < 0 else say("made one call more")
    says = say(
        "{says} {odd} {fewer}: the number of calls made differs by one.",
        says=says,
        odd=phrases.ranks(odd).capitalize(),
        fewer=fewer,
    )
    return Suspect(
        ranks=odd,
        cause="collective_skipped",
        weight=catalog.weight("reports_shifted"),
        says=says,
        evidence=evidence,
    )
