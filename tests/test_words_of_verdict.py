"""The words and figures around a verdict: who is meant, where it stopped, what fills a command, what fell how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from short_form import events, group

from nccl_forensics.model import Finding, Gpu, Hypothesis, InputRow, Reconstruction, Verdict
from nccl_forensics.verdict import actions, advice, pulse, rates, summary
from nccl_forensics.verdict.case import Case
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who.identities import Identities, Place

NOBODY = Verdict(
    status="identified",
    cause="rank_busy",
    ranks=(),
    hosts=(),
    gpus=(),
    reporting_ranks=(),
    confidence=0.9,
    summary="",
    evidence=(),
    alternatives=(),
    cleared=(),
    cannot_exclude=(),
    missing_evidence=(),
    actions=(),
)
CARD, OTHER, NAMELESS = Gpu(host="n1", pci="0000:c1:00.0", index=3), Gpu(host="n1", pci="0000:c8:00.0"), Gpu(host="n1")


def case(*short: dict[str, Any], rows: tuple[InputRow, ...] = (), **collectives: Any) -> Case:
    timed = [
        replace(e, time_ns=e.stamp.wall_ns if e.stamp is not None else None) for e in events({"events": list(short)})
    ]
    return Case(
        events=tuple(timed),
        known=Identities(ranks={0: Place("n0"), 1: Place("n1")}, world_size=2),
        collectives=Reconstruction(**collectives),
        aligned=Aligned(tuple(timed), (), frozenset()),
        rows=rows,
    )


@pytest.mark.parametrize(
    ("named", "who"),
    [
        ({}, ""),
        ({"ranks": (6,)}, "rank 6"),
        ({"hosts": ("n1",)}, "host n1"),
        ({"ranks": (6,), "hosts": ("n1", "n2")}, "rank 6 on n1 and n2"),
        ({"hosts": ("n1", "n2", "n3", "n4")}, "host n1, n2, n3 and n4"),
        ({"hosts": ("n1", "n2", "n3", "n4", "n5")}, "5 hosts"),
        ({"cause": "gpu_off_bus", "gpus": (CARD,)}, "GPU 0000:c1:00.0"),
        ({"cause": "gpu_off_bus", "gpus": (CARD, OTHER)}, "GPUs 0000:c1:00.0 and 0000:c8:00.0"),
        ({"cause": "gpu_off_bus", "gpus": (NAMELESS,), "ranks": (6,)}, "rank 6"),
        ({"cause": "gpu_off_bus", "gpus": (CARD,) * 9, "ranks": (6,)}, "rank 6"),
        ({"cause": "rank_busy", "gpus": (CARD,), "ranks": (6,)}, "rank 6"),  # no matter of the card
        ({"cause": "gpu_off_bus", "gpus": (CARD,), "ranks": (6,), "hosts": ("n1",)}, "rank 6, GPU 0000:c1:00.0 on n1"),
    ],
)
def test_who_is_meant(named: dict[str, Any], who: str) -> None:
    assert advice.who(replace(NOBODY, **named)) == who


@pytest.mark.parametrize(
    ("stood", "said"),
    [
        ({"op": None}, None),
        ({"op": "all_reduce"}, "all_reduce"),
        ({"op": "all_reduce", "seq": 42}, "all_reduce number 42"),
        ({"op": "all_reduce", "seq": 42, "description": "default_pg"}, "all_reduce number 42"),
        ({"op": "all_reduce", "seq": 42, "name": "undefined"}, "all_reduce number 42"),
        ({"op": "all_reduce", "seq": 42, "name": "3"}, "all_reduce number 42 of group 3"),
        ({"op": "all_reduce", "seq": 42, "name": "3", "description": "tp"}, "all_reduce number 42 of group tp"),
    ],
)
def test_the_collective_in_words(stood: dict[str, Any], said: str | None) -> None:
    assert advice.collective(group(stood)) == said
    assert advice.collective(None) is None


@pytest.mark.parametrize(
    ("version", "made", "says"),
    [
        ("2.8.0+cu126", (2, 8), ["TORCH_FR_BUFFER_SIZE"]),
        ("2.10.1", (2, 10), ["TORCH_FR_BUFFER_SIZE"]),
        ("2.7.1", (2, 7), ["TORCH_NCCL_TRACE_BUFFER_SIZE"]),
        ("1.13", (1, 13), ["TORCH_NCCL_TRACE_BUFFER_SIZE"]),
        ("2.x", None, ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"]),
        ("v.1", None, ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"]),
        ("2", None, ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"]),
    ],
)
def test_the_switch_of_the_recorder_is_that_of_the_version(
    version: str, made: tuple[int, int] | None, says: list[str]
) -> None:
    its = case({"kind": "torch-version", "version": version})
    assert advice.torch_version(its) == made
    told = advice.recorder_setting(its)
    assert [name in told for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")] == [
        name in says for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
    ]
    assert ("older" in told) == (made is None)


@pytest.mark.parametrize(
    ("hosts", "logs", "there"),
    [
        (("n1",), [("kernel", "n1")], True),
        (("n1",), [("kernel", "n1.example.net")], True),
        (("n1",), [("kernel", "n2")], False),
        (("n1",), [("job-log", "n1")], False),
        (("n1",), [("kernel", None)], False),
        (("n1", "n2"), [("kernel", "n1")], False),
        (("n1", "n2"), [("kernel", "n1"), ("syslog", "n2")], True),
        ((), [("kernel", "n1")], False),
    ],
)
def test_are_the_kernels_logs_there(hosts: tuple[str, ...], logs: list[tuple[str, str | None]], there: bool) -> None:
    rows = tuple(InputRow(path=f"{n}.log", format=form, host=host) for n, (form, host) in enumerate(logs))
    assert advice.kernel_logs(replace(NOBODY, hosts=hosts), case(rows=rows)) is there


@pytest.mark.parametrize(
    ("named", "names"),
    [
        ({}, {"host": "the host", "gpu": "ADDRESS", "index": "INDEX", "rank": "N", "who": "the missing rank"}),
        ({"ranks": (6,), "hosts": ("n1",)}, {"host": "n1", "rank": "6", "who": "rank 6"}),
        ({"ranks": (6, 7)}, {"rank": "6 and 7", "who": "ranks 6 and 7"}),
        ({"gpus": (CARD,)}, {"gpu": "0000:c1:00.0", "index": "3", "at_gpu": " (GPU 0000:c1:00.0)"}),
        ({"gpus": (OTHER,)}, {"gpu": "0000:c8:00.0", "index": "INDEX"}),
        ({"gpus": (NAMELESS, CARD)}, {"gpu": "0000:c1:00.0", "index": "3"}),
        ({"gpus": (NAMELESS,)}, {"gpu": "ADDRESS", "index": "INDEX", "at_gpu": ""}),
    ],
)
def test_what_fills_a_command(named: dict[str, Any], names: dict[str, str]) -> None:
    filled = actions._names(replace(NOBODY, **named))
    assert {k: filled[k] for k in names} == names


# --- the summary ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranks", "becomes"),
    [
        ("Rank 3 fell. Then rank 5 fell", (3,), "Rank 3 fell. Then rank 5 fell"),  # short enough
        ("Rank 3 fell. " + "x" * 400, (3,), "Rank 3 fell"),
        ("Somebody fell. " + "x" * 400 + " rank 3", (3,), None),  # only the rest names it
        ("Rank 3 fell. " + "x" * 400 + " rank 3", (3,), "Rank 3 fell"),
        ("Somebody fell. " + "x" * 400 + " rank 4", (3,), "Somebody fell"),
    ],
)
def test_a_long_lead_is_cut_where_that_hides_nobody(text: str, ranks: tuple[int, ...], becomes: str | None) -> None:
    assert summary._cut(text, ranks) == (text if becomes is None else becomes)


def _finding(cause: str, says: str, weight: float = 1.0, **more: Any) -> Finding:
    (event,) = events({"events": [{"kind": "exit"}]})
    return Finding(cause=cause, says=says, weight=weight, events=(event,), **more)


def _top(*findings: Finding, cause: str = "gpu_off_bus") -> Hypothesis:
    return Hypothesis(cause=cause, ranks=(), hosts=(), gpus=(), log_odds=1.0, confidence=0.9, findings=findings)


@pytest.mark.parametrize(
    ("findings", "lead"),
    [
        ([("gpu_off_bus", "a", 1.0), ("gpu_off_bus", "b", 2.0)], "b"),
        ([("gpu_off_bus", "a", 1.0), ("rank_busy", "b", 2.0)], "a"),
        ([("gpu_off_bus", "a", -1.0), ("rank_busy", "b", 2.0)], "GPU lost (fell off the PCIe bus) (rank 6)"),
    ],
)
def test_what_speaks_loudest_leads(findings: list[tuple[str, str, float]], lead: str) -> None:
    top = _top(*(_finding(*one) for one in findings))
    said = summary._lead(replace(NOBODY, cause="gpu_off_bus", ranks=(6,)), top)
    assert said == (lead if len(lead) == 1 else f"{advice.title('gpu_off_bus')} (rank 6)")
    if len(lead) > 1:  # and nobody in brackets where nobody is named
        assert summary._lead(replace(NOBODY, cause="gpu_off_bus"), top) == advice.title("gpu_off_bus")


def test_only_positive_findings_on_the_late_support_a_cause() -> None:
    late, other = _finding("rank_not_arrived", "late"), _finding("cuda_oom", "oom")
    against = _finding("rank_not_arrived", "no", -1.0)
    assert summary._said_of_the_late(_top(late, other, against)) == [late]
    assert summary._said_of_the_late(_top(late, cause="rank_not_arrived")) == []


def test_the_onset_is_that_of_the_causes_own_findings() -> None:
    own = (
        _finding("gpu_off_bus", "a", onset_ns=5),
        _finding("gpu_off_bus", "b", onset_ns=3),
        _finding("gpu_off_bus", ""),
    )
    assert summary._onset(_top(*own, _finding("rank_busy", "c", onset_ns=1))) == 3
    assert summary._onset(_top(_finding("rank_busy", "c", onset_ns=1))) is None


# --- figures ----------------------------------------------------------------------------------------------------------

GIB = 2**30


def _progress(at: float | None, file: str = "job.log", **more: Any) -> dict[str, Any]:
    return {"kind": "progress", "at": at, "file": file, **more}


def test_readings_by_rank_before_the_job_gave_up() -> None:
    its = case(
        _progress(1, rank=1, gpu_used_bytes=1),
        _progress(2, gpu_used_bytes=2),
        _progress(3, rank=1, step=3),
        _progress(9, rank=1, gpu_used_bytes=3),
        _progress(None, rank=1, gpu_used_bytes=4),
        {"kind": "watchdog-timeout", "rank": 0, "at": 5, "seq": 1, "waited_ms": 1000},
    )
    found = pulse.series(its, "gpu_used_bytes")
    assert {who: [e.details["gpu_used_bytes"] for e in its] for who, its in found.items()} == {
        1: [1, 4],
        "job.log": [2],
    }


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((100, 400), "from 40.0 GiB to 71.0 GiB between steps 100 and 400"),
        ((None, 400), "from 40.0 GiB to 71.0 GiB"),
        ((100, None), "from 40.0 GiB to 71.0 GiB"),
    ],
)
def test_a_rise_in_words(steps: tuple[int | None, int | None], said: str) -> None:
    rows = [_progress(n, gpu_used_bytes=g * GIB, step=s) for n, g, s in ((1, 40, steps[0]), (2, 71, steps[1]))]
    first, last = case(*rows).events
    assert pulse.risen(first, last, "gpu_used_bytes") == said


@pytest.mark.parametrize(
    ("rows", "times"),
    [
        ([_progress(0, step=1), _progress(10, step=3)], [5000.0]),
        ([_progress(0, step=1), _progress(10, step=1)], []),  # no step between
        ([_progress(10, step=1), _progress(10, step=2)], []),  # no time between
        ([_progress(0, step=1), _progress(10)], []),
        ([_progress(0, step=1), _progress(None, step=2), _progress(30, step=4)], [10000.0]),
        ([_progress(0, step=1), _progress(10, file="b.log", step=3)], []),
        ([_progress(0, step=1, step_ms=700), _progress(10, step=3)], [700.0]),
        ([_progress(None, step=1, step_ms=700)], [700.0]),
    ],
)
def test_how_long_a_step_took(rows: list[dict[str, Any]], times: list[float]) -> None:
    assert [ms for _, ms in pulse.step_times(case(*rows).events)] == times


@pytest.mark.parametrize(
    ("count", "draws", "share", "chance"),
    [(0, 5, 0.2, 1.0), (1, 1, 0.2, 0.2), (2, 2, 0.5, 0.25), (3, 4, 0.5, 0.3125), (1, 5, 0.0, 0.0), (1, 5, 1.0, 1.0)],
)
def test_as_many_by_chance(count: int, draws: int, share: float, chance: float) -> None:
    assert rates.at_least(count, draws, share) == pytest.approx(chance)


def test_as_many_of_many_by_chance() -> None:
    """The sum may only be cut off where what follows is nothing."""
    assert rates.at_least(1, 4000, 0.01) == pytest.approx(1.0)
    assert rates.at_least(40, 4000, 0.01) == pytest.approx(0.5217, abs=1e-3)


def test_chances_of_many_are_adjusted_in_their_order() -> None:
    assert rates.adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert rates.adjusted([]) == []


@pytest.mark.parametrize(
    ("offender", "blamed"),
    [
        (rates.Offender(host="n1", gpu_pci=None, failures=3, q=0.01, says=""), True),
        (rates.Offender(host="n2", gpu_pci=None, failures=3, q=0.01, says=""), False),
        (rates.Offender(host="n1", gpu_pci="0000:c1:00.0", failures=3, q=0.01, says=""), True),
        (rates.Offender(host="n1", gpu_pci="0000:c8:00.0", failures=3, q=0.01, says=""), False),
    ],
)
def test_does_a_verdict_blame_who_failed_before(offender: rates.Offender, blamed: bool) -> None:
    assert rates._blames(replace(NOBODY, hosts=("n1",), gpus=(CARD,)), offender) is blamed
