"""A kernel's log that begins after the failure tells nothing of it, and is asked for again."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_forensics.pipeline import analyze

JOB = "".join(
    f"2026-11-25T10:20:00.00000{rank}Z node-1 trainer[{900 + rank}]: [rank{rank}]:[E1125 10:20:00.{rank:06d}000 "
    f"ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
    "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600018 milliseconds before timing out.\n"
    for rank in (0, 1, 3)
)
USB = "usb 1-1: new high-speed USB device number 4 using xhci_hcd"
LINK = "mlx5_core 0000:1a:00.0 ib0: Link up"


def kernel(*lines: tuple[str, str]) -> str:
    return "".join(f"{at} node-1 kernel: {said}\n" for at, said in lines)


ASKED = {
    "long before": (kernel(("2026-11-25T08:00:00+00:00", USB), ("2026-11-25T12:00:00+00:00", USB)), False),
    "after": (kernel(("2026-11-25T12:00:00+00:00", USB), ("2026-11-25T12:10:00+00:00", USB)), True),
    "after, with an event": (kernel(("2026-11-25T12:00:00+00:00", USB), ("2026-11-25T12:10:00+00:00", LINK)), True),
    "before, its event after": (kernel(("2026-11-25T08:00:00+00:00", USB), ("2026-11-25T12:10:00+00:00", LINK)), False),
    "in another zone": (kernel(("2026-11-25T12:15:00+03:00", USB), ("2026-11-25T12:50:00+03:00", USB)), False),
    "uptimes, its event after": (
        f"[    5.000000] {USB}\n[   99.000000] {LINK}\n",
        False,
    ),
    "no year": (kernel(("Nov 25 12:00:00", USB), ("Nov 25 12:10:00", USB)), False),  # in which zone, nothing tells
    "no year, two days after": (kernel(("Nov 27 12:00:00", USB), ("Nov 27 12:10:00", USB)), True),
}


@pytest.mark.parametrize(("log", "asked"), ASKED.values(), ids=ASKED)
def test_a_log_that_begins_after_the_failure_is_asked_for(log: str, asked: bool, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(JOB)
    (tmp_path / "node-1.kern.log").write_text(log)
    (incident,) = analyze([str(tmp_path)]).incidents
    assert any("kernel log of every host" in wanted for wanted in incident.verdict.missing_evidence) is asked


def test_lines_that_only_begin_a_log_are_no_events(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(JOB)
    alone = analyze([str(tmp_path)])
    (tmp_path / "node-1.kern.log").write_text(ASKED["after"][0])
    beside = analyze([str(tmp_path)])
    assert [e.kind for e in beside.events] == [e.kind for e in alone.events]
    assert beside.clocks == alone.clocks
    assert [row.events for row in beside.rows] == [3, 0]
