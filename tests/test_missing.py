"""What is asked for: a kernel's log that cannot tell of the failure is as good as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_forensics.pipeline import analyze

INIT = (
    "{host}:41{rank}:43{rank} [{rank}] NCCL INFO ncclCommInitRankConfig comm 0x55d00 rank {rank} nranks 4 cudaDev "
    "{rank} nvmlDev {rank} busId {rank}1000 commId 0x9f3a77b2c1d0 - Init COMPLETE\n"
)
TIMEOUT = (
    "[rank{rank}]:[E310 21:27:09.028000007 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=842, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for "
    "600042 milliseconds before timing out.\n"
)
JOB = (
    "".join(INIT.format(host="ws1", rank=r) for r in range(4))
    + "2026-03-10 21:17:05,000 INFO step 99 | loss 2.3\n"
    + "".join(TIMEOUT.format(rank=r) for r in range(3))
)
BOOT = "{time}+0000 {host} kernel: Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP\n"
LATER = "{time}+0000 {host} kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15\n"
BEFORE, AFTER = "2026-03-09T08:00:00.000000", "2026-03-13T08:00:00.000000"


def asked_for(folder: Path, kernel: str | None) -> bool:
    (folder / "train.log").write_text(JOB, encoding="utf-8")
    if kernel is not None:
        (folder / "kernel.log").write_text(kernel, encoding="utf-8")
    (incident,) = analyze([str(folder)]).incidents
    return any("the kernel log of" in what for what in incident.verdict.missing_evidence)


@pytest.mark.parametrize(
    ("kernel", "asked"),
    [
        (None, True),
        (BOOT.format(time=BEFORE, host="ws1") + LATER.format(time=BEFORE, host="ws1"), False),
        (BOOT.format(time=BEFORE, host="other7") + LATER.format(time=BEFORE, host="other7"), True),
        (BOOT.format(time=AFTER, host="ws1") + LATER.format(time=AFTER, host="ws1"), True),
    ],
    ids=["none", "its own", "another host's", "begun after the failure"],
)
def test_the_kernel_log_is_asked_for(kernel: str | None, asked: bool, tmp_path: Path) -> None:
    assert asked_for(tmp_path, kernel) is asked
