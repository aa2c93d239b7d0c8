"""What the run's pulse and its settings add beside the verdict; each with a near miss."""

from __future__ import annotations

from typing import Any

import pytest
from short_form import analyzed

from nccl_forensics.analysis import Analysis
from nccl_forensics.model import Event, Evidence
from nccl_forensics.starts import runs
from nccl_forensics.verdict import pulse
from nccl_forensics.verdict.case import Case
from nccl_forensics.when.aligned import Aligned

GIB = 2**30
Short = dict[str, Any]
HANG: list[Short] = [
    {
        "kind": "watchdog-timeout",
        "ranks": [0, 1, 2, 3, 4, 6, 7],
        "at": 1800,
        "seq": 42,
        "waited_ms": 600_000,
        "pg_desc": "default_pg",
    },
    {"kind": "pg-observed", "rank": 5, "at": 1800.5},
]
"""Rank 5 never came; the others began to wait at 1200."""
OOM: Short = {"kind": "cuda-oom", "rank": 5, "at": 1195, "requested_bytes": 2 * GIB, "detail": "growth"}


def found(events: list[Short], **more: Any) -> Analysis:
    return analyzed({"per_host": 4, "world_size": 8, "events": [*events, *HANG], **more})


def said(events: list[Short], kind: str, **more: Any) -> list[str]:
    (incident,) = found(events, **more).incidents
    return [str(row["says"]) for row in incident.contributing if row.get("kind") == kind]


def case_of(events: list[Short]) -> Case:
    whole = found(events)
    aligned = Aligned(whole.events, whole.clocks, frozenset())
    return Case(events=whole.events, known=whole.known, collectives=whole.collectives, aligned=aligned)


def steps(
    count: int, key: str | None = None, values: Any = None, *, rank: int | None = 0, each_s: float = 2
) -> list[Short]:
    """One line for each step, the last of them at 1198; `values` gives `key` for step number 0 to `count` - 1."""
    made: list[Short] = []
    for i in range(count):
        line: Short = {"kind": "progress", "what": "training step", "rank": rank, "step": 100 + i}
        line["at"] = 1198 - each_s * (count - 1 - i)
        if key is not None:
            line[key] = values(i)
        made.append(line)
    return made


# --- memory -----------------------------------------------------------------------------------------------------------


def rising(i: int) -> int:
    return (40 + i) * GIB


def warming_up(i: int) -> int:
    return min(40 + 5 * i, 60) * GIB


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        (steps(30, "gpu_used_bytes", rising, rank=5), "leak"),
        (steps(30, "gpu_used_bytes", rising, rank=0), "leak"),  # only rank 0 writes such lines
        (steps(30, "gpu_used_bytes", warming_up, rank=5), "growth"),
        (steps(5, "gpu_used_bytes", rising, rank=5), "growth"),  # too few to tell
        (steps(30, "gpu_used_bytes", lambda i: (40 + i % 7) * GIB, rank=5), "growth"),
        (steps(30, "sequence", lambda i: 8192 if i == 29 else 2048, rank=5), "growth"),
        ([], "growth"),
    ],
)
def test_memory_that_only_rose_is_a_leak(lines: list[Short], detail: str) -> None:
    (incident,) = found([*lines, OOM]).incidents
    assert (incident.verdict.cause, incident.verdict.ranks) == ("cuda_oom", (5,))
    best = next(f for f in incident.verdict.evidence if f.cause == "cuda_oom")
    assert best.detail == detail
    first = incident.verdict.actions[0]
    assert ("keeps tensors alive" in first.do) == (detail == "leak")


@pytest.mark.parametrize("detail", ["peer process", "fragmentation"])
def test_what_the_error_itself_says_comes_before_the_trend(detail: str) -> None:
    (incident,) = found([*steps(30, "gpu_used_bytes", rising, rank=5), {**OOM, "detail": detail}]).incidents
    assert next(f for f in incident.verdict.evidence if f.cause == "cuda_oom").detail == detail


def test_a_long_batch_is_told() -> None:
    lines = steps(30, "sequence", lambda i: 8192 if i == 29 else 2048, rank=5)
    (incident,) = found([*lines, OOM]).incidents
    assert any("8,192 tokens" in f.says for f in incident.verdict.evidence)


def test_host_memory_that_rises_is_told_beside_the_verdict() -> None:
    assert any("Host memory" in x for x in said(steps(30, "host_rss_bytes", rising), "pulse"))
    assert said(steps(30, "host_rss_bytes", warming_up), "pulse") == []


def test_a_kill_while_host_memory_rose_is_likely_the_kernels() -> None:
    killed = {
        "kind": "exit",
        "rank": 5,
        "at": 1199,
        "code": -9,
        "signal": "SIGKILL",
        "pid": 7,
        "role": "cause",
        "cause": "process_signal",
    }
    for values, likely in ((rising, True), (warming_up, False)):
        (incident,) = found([*steps(30, "host_rss_bytes", values, rank=5), killed]).incidents
        named = {h.cause for h, _ in incident.verdict.alternatives} | {f.cause for f in incident.verdict.evidence}
        assert ("host_oom_kill" in named) == likely
        assert incident.verdict.ranks == (5,)


# --- steps and loss ---------------------------------------------------------------------------------------------------


def test_steps_that_became_slow_are_told() -> None:
    slow = said(steps(40, "step_ms", lambda i: 9000.0 if i >= 36 else 2000.0), "pulse")
    assert slow == ["Steps of rank 0 became slow before the end: 9.0 s instead of 2.0 s."]


@pytest.mark.parametrize(
    "values",
    [
        lambda i: 9000.0 if i == 36 else 2000.0,  # one slow step: a checkpoint
        lambda i: 5000.0 if i >= 36 else 2000.0,  # not three times
        lambda i: 9000.0,  # always so
    ],
)
def test_a_single_slow_step_is_no_slow_down(values: Any) -> None:
    assert said(steps(40, "step_ms", values), "pulse") == []


def test_slow_steps_are_seen_in_the_stamps_too() -> None:
    lines = steps(40)
    for i in range(5):
        lines[35 + i]["at"] = 1198 - 20 * (4 - i)
    for i in range(35):
        lines[i]["at"] -= 20 * 5
    assert any("became slow" in x for x in said(lines, "pulse"))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (lambda i: 2.0 + i / 1000, True),
        (lambda i: 2.0 - i / 1000, False),
    ],
)
def test_a_loss_that_does_not_fall_is_told(values: Any, told: bool) -> None:
    assert any("did not fall" in x for x in said(steps(250, "loss", values, each_s=1), "pulse")) == told


def test_a_loss_is_not_judged_by_a_few_steps() -> None:
    assert said(steps(90, "loss", lambda i: 2.0, each_s=1), "pulse") == []


def test_the_first_nan_is_told() -> None:
    lines = steps(40)
    lines[30]["loss_says"] = "nan"
    assert said(lines, "pulse") == ["The loss was nan at step 130: what was trained from there on is lost."]


# --- signs of life, checkpoints, attempts -----------------------------------------------------------------------------


def saved(at: float, what: str = "done") -> Short:
    return {"kind": "checkpoint", "rank": 0, "at": at, "what": what, "step": 90}


def test_lost_work_counts_from_the_last_whole_checkpoint_to_the_onset() -> None:
    assert pulse.lost_work_s(case_of([saved(600), saved(900), saved(1100, "start")])) == pytest.approx(300, abs=1)


def test_lost_work_is_unknown_without_a_checkpoint_before_the_onset() -> None:
    assert pulse.lost_work_s(case_of([saved(1300)])) is None
    assert pulse.lost_work_s(case_of([saved(600, "start")])) is None


def event(kind: str, line: int, attempt: int | None = None, file: str = "a") -> Event:
    return Event(
        kind=kind, role="context", evidence=Evidence(source=file, line=line, text=kind), attempt=attempt, details={}
    )


def test_attempts_are_filled_in_from_restarts_of_the_same_file() -> None:
    told = runs.with_attempts(
        [
            event("progress", 1),
            event("restart", 5, 0),
            event("rendezvous", 7, 1),
            event("progress", 9),
            event("exit", 10, 4),
            event("progress", 3, file="b"),
        ]
    )
    assert [e.attempt for e in told] == [0, 0, 1, 1, 4, None]


# --- settings ---------------------------------------------------------------------------------------------------------


def setting(name: str, value: str | None, **more: Any) -> Short:
    return {"kind": "setting", "name": name, "value": value, "at": 1, **more}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([setting("flight_recorder", "off")], "Flight Recorder was off"),
        ([setting("TORCH_NCCL_TRACE_BUFFER_SIZE", "0")], "keeps the Flight Recorder off"),
        ([setting("TORCH_FR_BUFFER_SIZE", "20")], "TORCH_FR_BUFFER_SIZE=2000"),
        ([setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")], "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
        ([setting("NCCL_ASYNC_ERROR_HANDLING", "1")], "old name"),
        ([setting("NCCL_ASYNC_ERROR_HANDLING", None, new="TORCH_NCCL_ASYNC_ERROR_HANDLING")], "old name"),
        ([setting("NCCL_P2P_DISABLE", "1")], "unset NCCL_P2P_DISABLE"),
        ([setting("NCCL_DEBUG", "TRACE")], "NCCL_DEBUG=WARN"),
        ([setting("NCCL_ALGO", "Ring")], "NCCL_ALGO=Ring"),
        (
            [setting("NCCL_IB_TIMEOUT", "22", host="node-0"), setting("NCCL_IB_TIMEOUT", "18", host="node-1")],
            "NCCL_IB_TIMEOUT differs between hosts: 18 on node-1 and 22 on node-0",
        ),
        (
            [
                {"kind": "nccl-version", "host": "node-0", "version": "2.21.5", "at": 1},
                {"kind": "nccl-version", "host": "node-1", "version": "2.20.3", "at": 1},
            ],
            "NCCL differs between hosts",
        ),
    ],
)
def test_a_setting_is_told_once_with_the_line_to_change(events: list[Short], words: str) -> None:
    told = said([*events, *events], "setting")
    assert len(told) == 1
    assert words in told[0]


@pytest.mark.parametrize(
    "events",
    [
        [setting("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")],
        [setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")],
        [setting("NCCL_P2P_DISABLE", "0")],
        [setting("NCCL_DEBUG", "INFO")],
        [setting("NCCL_IB_TIMEOUT", "22", host="node-0"), setting("NCCL_IB_TIMEOUT", "22", host="node-1")],
        [
            {"kind": "nccl-version", "host": "node-0", "version": "2.21.5+cuda12.4", "at": 1},
            {"kind": "nccl-version", "host": "node-1", "version": "2.21.5", "at": 1},
        ],
        # between two runs, on both hosts
        [setting("NCCL_IB_TIMEOUT", v, host=f"node-{n}") for v in ("18", "22") for n in (0, 1)],
        [setting("CUDA_VISIBLE_DEVICES", "0,1", host="node-0"), setting("CUDA_VISIBLE_DEVICES", "2,3", host="node-1")],
        [
            {"kind": "torch-version", "version": "2.1.2", "at": 1, "host": "node-0"},
            setting("NCCL_ASYNC_ERROR_HANDLING", "1"),
        ],
    ],
)
def test_a_setting_that_is_right_is_not_told(events: list[Short]) -> None:
    assert said(events, "setting") == []


def sub_group(limit_ms: int) -> Short:
    group = {"name": "3", "description": "tp", "timeout_ms": limit_ms, "op": "all_reduce", "seq": 7}
    return {"ranks": [5], "cause": "rank_not_arrived", "weight": 2.0, "group": {**group, "members": [4, 5]}}


@pytest.mark.parametrize(
    ("limit_ms", "chosen", "told"), [(600_000, "7200", 1), (600_000, "600", 0), (7_200_000, "7200", 0)]
)
def test_a_limit_that_new_group_did_not_inherit_is_told(limit_ms: int, chosen: str, told: int) -> None:
    says = said([setting("ddp_timeout", chosen)], "setting", suspects=[sub_group(limit_ms)])
    assert len([x for x in says if "timedelta(seconds=7200)" in x]) == told
