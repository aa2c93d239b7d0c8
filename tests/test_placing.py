"""Which rank ran on the card that failed: whole piles, from text to verdict: tests/cases/placing/CASE.json.

`files`: path → lines, in short words that are written out as the programs write them (`FORMS`); anything else stands as
it is. `hosts`: the text of a `--hosts` file. `want`: `ranks` (the verdict's, exactly), `innocent` (ranks that are not
named, nor shown on the failed card), `apart` (no rank is named for the card), `hosts`, `gpus` (addresses), `problem`
(words that a problem row holds), `says` (words of the summary; "": no word of who may have run on the card),
`attributed` (rank of the first Xid 79's row, or null), `placed` (rank → the address of its card in the table, or null).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from short_form import cases, load

from nccl_forensics.analysis import Analysis
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document

CASES = cases("placing")
UUID = "GPU-5a3c{:04d}-1e3e-04d9-9043-43b29419cdb8"


def _init(rank: str, size: str, host: str, pid: str, device: str, bus: str) -> str:
    number = f"{int(bus[5:].replace(':', '').replace('.', ''), 16):x}"
    return (
        f"{host}:{pid}:{pid} [{device}] NCCL INFO ncclCommInitRankConfig comm 0x55d0000{rank}1000 rank {rank} nranks "
        f"{size} cudaDev {device} nvmlDev {device} busId {number} commId 0x9e3779b97f4a7c15 - Init COMPLETE"
    )


def _timeout(rank: str) -> str:
    return (
        f"[rank{rank}]:[E1125 10:21:33.00042100{int(rank) % 10} ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog "
        "caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, "
        "Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
    )


def _kernel(host: str, *words: str) -> str:
    return f"2026-11-25T10:11:30.000000+00:00 {host} kernel: {' '.join(words)}"


def _xid(host: str, number: str, bus: str, pid: str = "'<unknown>'") -> str:
    name = "<unknown>" if pid.startswith("'") else "python3"
    said = {"79": "GPU has fallen off the bus.", "31": "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"}[number]
    return _kernel(host, f"NVRM: Xid (PCI:{bus}): {number}, pid={pid}, name={name}, {said}")


def _uuid(host: str, bus: str, number: str) -> str:
    return _kernel(host, f"NVRM: GPU at PCI:{bus}: {UUID.format(int(number))}")


def _smi(index: str, number: str) -> str:
    return f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {UUID.format(int(number))})"


def _query(index: str, number: str, bus: str) -> str:
    return f"{index}, NVIDIA H100 80GB HBM3, {UUID.format(int(number))}, {bus}"


def _seat(rank: str, size: str, host: str, pid: str, local: str) -> str:
    said = f"rank {rank}/{size} on {host} pid {pid} local_rank {local}, torch 2.6.0+cu124"
    return f"2026-11-25 10:10:{rank.zfill(2)},042 - pretrain - INFO - {said}"


FORMS = {
    "init": _init,
    "timeout": _timeout,
    "kernel": _kernel,
    "xid": _xid,
    "uuid": _uuid,
    "smi": _smi,
    "query": _query,
    "seat": _seat,
}


def _written(line: str) -> str:
    form, *words = line.split()
    return FORMS[form](*words) if form in FORMS else line.replace("UUID", UUID.format(0)[:8])


def laid(case: dict[str, Any], folder: Path) -> Analysis:
    """The analysis of the case's pile, written into folder/pile."""
    pile = folder / "pile"
    for name, lines in case["files"].items():
        (pile / name).parent.mkdir(parents=True, exist_ok=True)
        (pile / name).write_text("".join(f"{_written(line)}\n" for line in lines), encoding="utf-8")
    hosts = None
    if "hosts" in case:
        hosts = folder / "hosts"
        hosts.write_text("\n".join(case["hosts"]), encoding="utf-8")
    return analyze([str(pile)], hosts=hosts, year=2026)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path, tmp_path: Path) -> None:
    case = load(path)
    doc: dict[str, Any] = json.loads(json.dumps(document.build(laid(case, tmp_path))))
    want, verdict = case["want"], doc["incidents"][0]["verdict"]
    lost = {e["gpu_pci"]: e for e in reversed(doc["events"]) if e["kind"] == "xid" and e["fields"]["xid"] == 79}
    if "ranks" in want:
        assert verdict["culprit_ranks"] == want["ranks"], verdict["summary"]
    for rank in want.get("innocent", ()):
        assert rank not in verdict["culprit_ranks"], verdict["summary"]
        assert all(e["rank"] != rank for e in lost.values())
    if "hosts" in want:
        assert verdict["culprit_hosts"] == want["hosts"]
    if "gpus" in want:
        assert sorted({g["pci"] for g in verdict["culprit_gpus"]}) == want["gpus"]
    if "attributed" in want:
        assert next(iter(lost.values()))["rank"] == want["attributed"]
    if "placed" in want:
        cards = {r["rank"]: r["gpu"]["pci"] for r in doc["ranks"] if r["gpu"] is not None}
        assert {rank: cards.get(int(rank)) for rank in want["placed"]} == want["placed"]
    if "problem" in want:
        assert any(want["problem"] in p["says"] for p in doc["problems"]), doc["problems"]
    if "says" in want:
        assert want["says"] in verdict["summary"]
        assert ("Which rank ran on it" in verdict["summary"]) == bool(want["says"])
    if want.get("apart"):  # the card is not the named rank's
        assert verdict["cause"] != "gpu_off_bus" or not verdict["culprit_ranks"], verdict["summary"]
