"""Writes the sample incidents with the simulator in tests/: `python samples/make.py` puts every file in its place.

The same files come out each time (tests/test_samples.py holds them against what is checked in).
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from simulator import Decoys, Degrade, Scenario, Zone, simulate  # noqa: E402

COPENHAGEN = Zone(name="Europe/Copenhagen", abbreviation="CET", seconds=3600)
CHICAGO = Zone(name="America/Chicago", abbreviation="CST", seconds=-6 * 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    scenario: Scenario
    seed: int
    story: tuple[str, ...]
    """README.txt."""
    xids: tuple[tuple[int, str], ...] = ()
    """Kernel events that must be found: (Xid, PCI address)."""


SAMPLES = {
    "riser-xid79": Sample(
        scenario=Scenario(
            cause="gpu_off_bus",
            detail="riser",
            per_node=8,
            torch="2.6",
            model="rtx4090",
            hosts=("oxide-ws2",),
            steps=420,
            fault_step=337,
            step_s=2.6,
            start="2026-03-10T21:04:00",
            culprit=6,
            ring=60,
            host_zone=COPENHAGEN,
            container=True,
            kernel_form="dmesg",
            extra_forms=("journal",),
            bug_report=True,
            per_rank_files=True,
            decoys=Decoys(store_noise=True),
        ),
        seed=8,
        story=(
            "An eight-card workstation (RTX 4090 on risers, two power supplies) trains in a container, PyTorch 2.6.",
            "The job stops. Rank 3 is the first to complain of a timeout, and torchrun calls rank 0 the root cause.",
            "Both are victims: the card of rank 6 fell off the bus ten minutes earlier, after some link errors on its",
            "port. The other cards report errors too, but only as echoes. Kernel logs are in local time (Copenhagen),",
            "the job's log is in UTC, and process ids differ inside and outside of the container.",
        ),
        xids=((79, "0000:c1:00.0"), (154, "0000:01:00.0")),
    ),
    "two-rails-psu": Sample(
        scenario=Scenario(
            cause="psu_rail_loss",
            per_node=8,
            torch="2.3",
            model="rtx4090",
            hosts=("millrace",),
            cards=tuple(f"0000:{bus}:00.0" for bus in ("01", "02", "21", "22", "41", "42", "61", "62")),
            psu_cards=(2, 3, 6, 7),
            steps=300,
            fault_step=261,
            step_s=3.1,
            start="2026-02-17T03:40:00",
            timeout_ms=1_800_000,
            culprit=2,
            ring=0,
            host_zone=CHICAGO,
            job_zone=CHICAGO,
            kernel_form="kern.log",
            bug_report=True,
            application="trainer",
            degrade=Degrade(cut_bug_report=True),
        ),
        seed=0,
        story=(
            "Eight RTX 4090 on two power supplies, PyTorch 2.3, no Flight Recorder. Four cards vanish within three",
            "milliseconds. They hang on two different root complexes, so no shared PCIe switch explains it: what they",
            "share is the second power supply. Ranks 0, 1, 4 and 5 live on and complain half an hour later, without a",
            "time in their lines, as this PyTorch writes them. The bug report was cut short: its script hung on a dead",
            "card and was killed.",
        ),
        xids=tuple((79, f"0000:{bus}:00.0") for bus in ("21", "22", "61", "62")),
    ),
    "skipped-collective": Sample(
        scenario=Scenario(
            cause="collective_skipped",
            nodes=2,
            per_node=4,
            torch="2.9",
            model="rtx4090",
            hosts=("lab-north", "lab-south"),
            steps=200,
            fault_step=164,
            step_s=2.2,
            start="2026-01-22T12:15:00",
            culprit=5,
            ring=90,
            clock_offsets_s=(-11.0, 36.0),
            kernel_form="journal",
            application="titan",
            decoys=Decoys(old_boot_xid=True, old_boot_rank=2, link_flap=True),
        ),
        seed=0,
        story=(
            "Two nodes with four cards each, PyTorch 2.9. Nothing is broken: on rank 5 a branch of the program leaves",
            "out one all_reduce (the balance loss), and from then on it is one operation ahead of everybody else.",
            "All eight ranks time out, the guilty one with them. The stack frames in the dumps show the difference.",
            "The clocks of the nodes differ by 47 seconds. The one GPU error in a kernel log is from the boot before",
            "and belongs to a desktop program.",
        ),
    ),
}


def build(name: str) -> dict[str, bytes]:
    """The files of a sample: path in its folder → bytes."""
    sample = SAMPLES[name]
    bundle = simulate(sample.scenario, sample.seed)
    expect = bundle.truth.expect()
    if sample.xids:
        expect["xids"] = [{"xid": xid, "pci": pci} for xid, pci in sample.xids]
    expect["args"] = []
    answer = {"source": "invented, written by samples/make.py", "story": " ".join(sample.story), "expect": expect}
    files = dict(bundle.files)
    files["expected.json"] = (json.dumps(answer, indent=1) + "\n").encode()
    files["README.txt"] = ("\n".join(sample.story) + "\n").encode()
    return files


def main() -> None:
    for name in SAMPLES:
        shutil.rmtree(HERE / name, ignore_errors=True)
        for path, data in build(name).items():
            target = HERE / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


if __name__ == "__main__":
    main()
