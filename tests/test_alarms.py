"""Lines that look like errors and that no parser knows: what counts as one, and which are told first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_forensics.catalog.noise import noise
from nccl_forensics.cli import main
from nccl_forensics.lines.read import read
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.show.page.sentences import NOT_RECOGNISED, NOTHING_FAILED, nothing_found

STEP = "step 10 loss 2.31\n"


def alarms(text: str, folder: Path, name: str = "job.log") -> list[tuple[int | None, int, str]]:
    (folder / name).write_text(text)
    (parsed,) = read([str(folder / name)])
    return [(e.evidence.line, e.repeats, e.severity) for e in parsed.alarms]


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("2026-03-04 10:19:54 ERROR frobnicator: link 3 is gone", "error"),
        ("FATAL: the fabric daemon has left us", "critical"),
        ("frobd[812]: failed to bring up lane 2", "error"),
        ("acme.FabricException: lane 2 went away", "error"),
        ("worker 3 exited with exit code 17", "error"),
        ("frobnicator crashed", "critical"),
        ("Stalled lanes: 3", "error"),
    ],
)
def test_what_looks_like_an_error(line: str, severity: str, tmp_path: Path) -> None:
    assert alarms(f"{STEP}{line}\nbye\n", tmp_path) == [(2, 1, severity)]


@pytest.mark.parametrize(
    "line",
    [
        "0 errors, 0 failures",
        "no errors found",
        "error_rate: 0.03",
        "timeout=1800 fail_on_nan=False",
        "python train.py --timeout 1800 --fail-fast",
        "2026-03-04 10:19:54 INFO retrying the download, it failed",
        "WARNING: unable to run with batch size 64",
        "host:1:2 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v4 symbol.",
        "    raise RuntimeError(text)",
        "frame #3: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "epoch 3 done",
    ],
)
def test_what_does_not(line: str, tmp_path: Path) -> None:
    assert alarms(f"{STEP}{line}\nbye\n", tmp_path) == []


def test_one_wording_is_one_alarm(tmp_path: Path) -> None:
    text = STEP + "".join(f"frobd[{n}]: failed to bring up lane {n % 7}\n" for n in range(500))
    assert alarms(text, tmp_path) == [(2, 500, "error")]


def test_prose_that_speaks_of_errors_is_no_log(tmp_path: Path) -> None:
    assert alarms("The job failed on Monday.\nIt had been killed before.\n", tmp_path, "notes.txt") == []


def test_what_a_parser_knows_is_none(tmp_path: Path) -> None:
    text = "Nov 25 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus. failed\n"
    assert alarms(text, tmp_path, "kern.log") == []


def test_noise_has_reasons() -> None:
    assert noise().search("Root Cause (first observed failure):")


def pile(folder: Path, *, odd: int) -> None:
    """Eight ranks that wait from 10:10; all complain of lane 1 all the time, rank `odd` of lane 9 at 10:09."""
    for rank in range(8):
        said = [f"2026-11-25 09:0{n}:00Z frobd: failed to poll lane 1" for n in range(9)]
        if rank == odd:
            said.append("2026-11-25 10:09:50Z frobd: unable to open the lane's mailbox")
        else:
            said.append(
                f"[rank{rank}]:[E1125 10:20:00.{rank:06d}000 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught "
                "collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, "
                "Timeout(ms)=600000) ran for 600018 milliseconds before timing out."
            )
        (folder / f"rank{rank}.log").write_text("\n".join(said) + "\n")


@pytest.mark.parametrize("odd", [0, 3, 7])
def test_what_one_rank_wrote_just_before_comes_first(odd: int, tmp_path: Path) -> None:
    pile(tmp_path, odd=odd)
    doc = document.build(analyze([str(tmp_path)]))
    first, second = doc["alarms"]
    assert (first["ranks"], first["count"]) == ([odd], 1)
    assert len(first["why"]) == 2
    assert (second["count"], second["files"], second["why"]) == (72, 8, [])


def test_what_a_good_run_says_too_is_none(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.mkdir()
    good.mkdir()
    pile(bad, odd=3)
    (good / "rank0.log").write_text("2026-11-24 10:00:00Z frobd: failed to poll lane 4\n" * 9)
    out = tmp_path / "out.json"
    done = CliRunner().invoke(
        main, ["analyze", str(bad), "--good-run", str(good), "--json", str(out), "-o", str(tmp_path / "o.html")]
    )
    assert done.exit_code == 0, done.output
    assert [alarm["ranks"] for alarm in json.loads(out.read_text())["alarms"]] == [[3]]


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("job.log", "step 10 loss 2.3\nstep 20 loss 2.2\n", NOTHING_FAILED),
        ("job.log", "step 10 loss 2.3\nfrobd: failed to bring up lane 2\nstep 20 loss 2.2\n", NOT_RECOGNISED),
        ("kern.log", "Nov 25 10:00:00 n1 kernel: usb 1-1: device descriptor read/64, error -71\n", NOTHING_FAILED),
        ("kern.log", "Nov 25 10:00:00 n1 kernel: nvidia-frob 0000:c1:00.0: lane training failed\n", NOT_RECOGNISED),
    ],
)
def test_only_what_is_understood_can_be_without_a_failure(name: str, text: str, answer: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert nothing_found(document.build(analyze([str(tmp_path)]))) == answer
