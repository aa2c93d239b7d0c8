"""The ticket's When never says less of the onset than its summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_forensics.pipeline import analyze
from nccl_forensics.show.document import build
from nccl_forensics.show.ticket import ticket

WAITED = (
    "[rank{n}]:[E0104 09:20:05.{n}00421007 ProcessGroupNCCL.cpp:629] [Rank {n}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=100, NumelOut=100, Timeout(ms)=600000) ran for 600021 "
    "milliseconds before timing out.\n"
)
XID = "n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("stamp", "said"),
    [
        ("Jan  4 09:10:00", "4 January 09:10:00 (year not known)"),
        ("2026-01-04 09:10:00", "2026-01-04 09:10:00 (zone not written)"),
    ],
)
def test_an_onset_on_a_clock_of_no_known_zone_is_told_as_written(tmp_path: Path, stamp: str, said: str) -> None:
    (tmp_path / "kern.log").write_text(f"{stamp} {XID}", encoding="utf-8")
    waits = "".join(WAITED.format(n=n) for n in (1, 2, 3))
    (tmp_path / "job.log").write_text(f"{waits}n1: rank 0 started on n1 pid 4242\n", encoding="utf-8")
    made = ticket(build(analyze([str(tmp_path)])))
    lines = {line.partition(":")[0]: line.partition(":")[2].strip() for line in made.splitlines()}
    assert lines["Summary"].startswith(said)
    assert lines["When"].startswith(said)
