"""`inspect` answers in ten seconds: what is there, what is missing, and how to get it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recorded import RECORDED

from nccl_forensics.cli import main
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document, inventory, printed

SAMPLE = Path(__file__).parents[1] / "samples" / "riser-xid79"
KERNEL = ("dmesg.txt", "journal.txt", "nvidia-bug-report.log.gz")
DUMPS = "fr/nccl_trace_rank_"


def pile(folder: Path, *without: str) -> Path:
    """The bundled incident of eight ranks on one host, without the files that match."""
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("README.txt", "expected.json"))
    for pattern in without:
        for path in sorted(folder.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


def surveyed(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The document and the lines of the text."""
    analysis = analyze([str(path)])
    doc = document.build(analysis) | inventory.survey(analysis)
    assert json.loads(json.dumps(doc)) == doc
    return doc, printed.text(doc).split("\n")


def line_of(lines: list[str], start: str) -> str:
    return next(x for x in lines if x.startswith(start))


def test_a_whole_bundle_is_enough(tmp_path: Path) -> None:
    doc, lines = surveyed(pile(tmp_path / "pile"))
    assert "enough for a verdict" in lines[0]
    assert [x for x in lines[2:5] if not x.endswith("complete")] == []
    assert doc["missing"] == []
    (host,) = doc["coverage"]["hosts"]
    assert host["ranks"] == host["logs"] == host["dumps"] == list(range(8))
    assert [host[x] for x in ("kernel_log", "bug_report", "nvidia_smi")] == [True] * 3
    journal = next(f for f in doc["files"] if f["path"].endswith("journal.txt"))
    assert journal["roles"]["cause"] >= 1
    assert "xid 79" in [k["kind"] for k in journal["telling"]]
    assert journal["span"][0].startswith("2026-")


@pytest.mark.parametrize(
    ("without", "label", "have", "lacking", "asked", "command"),
    [
        ([DUMPS + "6"], "Dumps", "7 of 8 ranks", "missing: 6", "dump of rank 6", "nccl_trace_rank_6"),
        ([DUMPS + "[2-4]"], "Dumps", "5 of 8 ranks", "missing: 2–4", "ranks 2–4", "nccl_trace_rank_{2,3,4}"),
        ([DUMPS + "*"], "Dumps", "none", "missing: all", "dumps of all ranks", "BUFFER_SIZE=2000"),
        (KERNEL, "Kernel logs", "none", "missing: oxide-ws2", "kernel log of oxide-ws2", "sudo journalctl -k --since"),
        (
            ["attempt_0/3", "train.log"],
            "Rank logs",
            "7 of 8 ranks",
            "missing: 3",
            "log of rank 3",
            "--redirects 3 --tee 3",
        ),
        (["*bug-report*"], "Kernel logs", "1 of 1 hosts", "complete", "bug report of", "sudo nvidia-bug-report.sh"),
    ],
)
def test_a_gap_is_named_with_its_remedy(
    without: list[str], label: str, have: str, lacking: str, asked: str, command: str, tmp_path: Path
) -> None:
    _, lines = surveyed(pile(tmp_path / "pile", *without))
    row = line_of(lines, label)
    assert have in row
    assert row.endswith(lacking)
    at = lines.index("To get (most useful first):")
    wanted = lines[at : lines.index("Files (times in UTC, of the lines that matter):")]
    assert asked in " ".join(wanted)
    assert command in " ".join(wanted)
    assert at < 20, "the answer stands on the first screen"


def test_a_host_without_a_job_asks_for_the_jobs_log(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    file.write_text("Mar  4 10:19:54 n-1 kernel: NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n")
    doc, lines = surveyed(file)
    assert "no trace of a training job" in line_of(lines, "Rank logs")
    assert doc["missing"][0]["what"].startswith("the job's log of all ranks")
    assert any("03-04 10:19:54" in x for x in lines)
    assert "no year (give --year)" in " ".join(x.strip() for x in lines)


def test_a_kernel_log_that_names_no_host_is_said_to(tmp_path: Path) -> None:
    folder = pile(tmp_path / "pile", *KERNEL)
    (folder / "dmesg").write_text("[ 1000.000000] NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=x, Ch 00000008\n")
    _, lines = surveyed(folder)
    rest = [x for x in lines if x.startswith(("Unknown host", "Kernel logs"))]
    assert any(x.startswith("Unknown host") for x in rest) or "1 of 1" in rest[0]


def test_many_files_of_a_kind_are_one_row(tmp_path: Path) -> None:
    _, lines = surveyed(pile(tmp_path / "pile"))
    assert sum("nccl_trace_rank" in x for x in lines) == 2
    assert any("8 files" in x for x in lines)


def test_nothing_readable(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    doc, lines = surveyed(tmp_path)
    assert "nothing in it could be read" in lines[0]
    assert any("SKIPPED" in x or "FAILED" in x for x in lines)
    assert doc["coverage"]["ranks"]["expected"] == []


def test_a_name_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb.log").write_text("[rank0]: RuntimeError: CUDA error: unspecified launch failure\n")
    _, lines = surveyed(tmp_path)
    assert "\x1b" not in "\n".join(lines)


def _piles() -> list[Path]:
    return [SAMPLE, *sorted(RECORDED.glob("joblogs/*")), *sorted(RECORDED.glob("fr/*-*"))[:6]]


@pytest.mark.parametrize("path", _piles(), ids=lambda p: p.name)
def test_lines_fit_a_terminal(path: Path) -> None:
    doc, lines = surveyed(path)
    assert [x for x in lines if len(x) > printed.WIDTH] == []
    assert {f["path"] for f in doc["files"]} == {r["path"] for r in doc["inputs"]}
    ranks = doc["coverage"]["ranks"]
    for name in ("with_log", "with_dump"):
        assert set(ranks[name]) <= set(ranks["expected"])


def test_the_command_gives_both(tmp_path: Path) -> None:
    folder = pile(tmp_path / "pile", DUMPS + "6")
    result = CliRunner().invoke(main, ["inspect", str(folder), "--json", str(tmp_path / "i.json")])
    assert result.exit_code == 0, result.output
    assert "7 of 8 ranks" in result.output
    doc = json.loads((tmp_path / "i.json").read_text(encoding="utf-8"))
    assert doc["coverage"]["ranks"]["with_dump"] == [0, 1, 2, 3, 4, 5, 7]
    assert doc["missing"][0]["command"]
