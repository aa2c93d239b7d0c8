"""What is said of every Xid of the catalogue: alone in a kernel's log, and on the card of the rank that never came."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_forensics.catalog.xid import XidEntry, xids
from nccl_forensics.model import Verdict
from nccl_forensics.pipeline import analyze

CARD = "0000:c1:00.0"
FATAL = {
    145: "RLW Fatal XC1 i0 Link 03 (0x00000001 0x00000002 0x00000000 0x00000000 0x00000000 0x00000000)",
    146: "TLW Fatal XC1 i0 Link 03 (0x00000001 0x00000002 0x00000000 0x00000000 0x00000000 0x00000000)",
}
"""NVLink 5 errors say themselves whether they are fatal."""
BY_THEIR_RECORD = {92, 122, 160, 171, 172}
"""Context by itself; what these tell of a card's memory or its records is told by rules of their own."""


SURE_BY_THEIR_RULES = {61, 69}
"""Symptoms that rules of their own know: the card's firmware, and a program's illegal access."""


OF_A_PEER = {137}
"""An access that another card refused."""


def kernel(number: int) -> str:
    said = FATAL.get(number, "Ch 00000008")
    return (
        "2026-11-25T08:00:00.000000+00:00 node-1 kernel: usb 1-1: new high-speed USB device number 4 using xhci_hcd\n"
        f"2026-11-25T10:09:58.000000+00:00 node-1 kernel: NVRM: Xid (PCI:{CARD[:-2]}): {number}, pid=4103, "
        f"name=python3, {said}\n"
    )


def verdicts(folder: Path) -> list[Verdict]:
    return [incident.verdict for incident in analyze([str(folder)]).incidents]


def asks_for_reset(number: int, entry: XidEntry) -> bool:
    return entry.role == "cause" or entry.asks_for_reset or number in (FATAL.keys() | SURE_BY_THEIR_RULES)


def says_nothing(number: int, entry: XidEntry) -> bool:
    return entry.role in ("context", "consequence") or not entry.kills or number in OF_A_PEER


@pytest.mark.parametrize("number", xids())
def test_alone(number: int, tmp_path: Path) -> None:
    """A fault is an incident; what only ends a program is suspected; what ends nothing is none."""
    entry = xids()[number]
    (tmp_path / "kern.log").write_text(kernel(number))
    found = verdicts(tmp_path)
    if says_nothing(number, entry):
        assert not found or number in BY_THEIR_RECORD
        return
    (verdict,) = found
    assert [gpu.pci for gpu in verdict.gpus] == [CARD]
    assert verdict.status == ("identified" if asks_for_reset(number, entry) else "suspected")


JOB = "".join(
    f"node-1:{4100 + rank}:{4200 + rank} [{rank}] NCCL INFO comm 0x55d0{rank} rank {rank} nranks 4 cudaDev {rank} "
    f"busId {bus}000 commId 0x9f3a77b2c1d0 - Init COMPLETE\n"
    for rank, bus in enumerate(("01", "41", "81", "c1"))
) + "".join(
    f"2026-11-25T10:20:00.00000{rank}Z node-1 trainer[{4100 + rank}]: [rank{rank}]:[E1125 10:20:00.{rank:06d}000 "
    f"ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=842, "
    "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600018 milliseconds before timing out.\n"
    for rank in range(3)
)


@pytest.mark.parametrize("number", xids())
def test_on_the_card_of_the_rank_that_never_came(number: int, tmp_path: Path) -> None:
    """It is why that rank did not come, as surely as its own bucket says; a hint names nothing but the rank."""
    entry = xids()[number]
    (tmp_path / "kern.log").write_text(kernel(number))
    (tmp_path / "job.log").write_text(JOB)
    (verdict,) = verdicts(tmp_path)
    assert verdict.ranks == (3,)
    if says_nothing(number, entry):
        assert verdict.cause == "rank_not_arrived" or number in BY_THEIR_RECORD
        return
    assert verdict.cause != "rank_not_arrived"
    assert CARD in {gpu.pci for gpu in verdict.gpus}
    assert any(event.kind == "xid" for finding in verdict.evidence for event in finding.events)
    if asks_for_reset(number, entry):
        assert verdict.status == "identified"
