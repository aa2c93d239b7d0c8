"""Where the command writes: never over evidence, never in place of a pipe or a device."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from test_cli import XID, ended, run

from nccl_forensics import pipeline
from nccl_forensics.show import export

BOOT = b"2026-11-25T09:00:00.1+00:00 n1 kernel: [    0.000000] Linux version 6.8.0 (x) #1 SMP\n"
OUTPUTS = ["-o", "--json", "--markdown", "--events", "--perfetto"]


@pytest.fixture
def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong usage is said before hours are spent on reading."""

    def read(*_: object, **__: object) -> None:
        raise AssertionError("it was analyzed")

    monkeypatch.setattr(pipeline, "analyze", read)


@pytest.mark.parametrize("option", OUTPUTS)
@pytest.mark.parametrize("given", ["own.csv", ".", "../here", "other.csv", "link.csv"])
@pytest.mark.usefixtures("never_read")
def test_evidence_is_not_written_over(here: Path, option: str, given: str) -> None:
    (here / "own.csv").write_bytes(XID)
    (here / "other.csv").symlink_to("own.csv")
    (here / "link.csv").hardlink_to("own.csv")
    result = ended(run("analyze", given, option, "own.csv"), 2)
    assert "own.csv is not written over" in result.output
    assert (here / "own.csv").read_bytes() == XID
    assert len(list(here.iterdir())) == 3


@pytest.mark.usefixtures("never_read")
def test_the_hosts_file_and_inspects_input_are_not_written_over(here: Path) -> None:
    (here / "hosts").write_text("5 n1\n", encoding="utf-8")
    assert "hosts is not written over" in ended(run("analyze", "-", "--hosts", "hosts", "-o", "hosts"), 2).output
    assert "hosts is not written over" in ended(run("inspect", "hosts", "--json", "hosts"), 2).output
    assert (here / "hosts").read_text(encoding="utf-8") == "5 n1\n"


@pytest.mark.parametrize("events", ["e.csv", "e.jsonl", "e.parquet"])
def test_what_an_earlier_run_wrote_is_written_over_and_is_no_evidence(here: Path, events: str) -> None:
    """`analyze .` leaves its files in the folder that it reads."""
    if events.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (here / "kern.log").write_bytes(BOOT + XID)
    outputs = ("-o", "r.html", "--json", "r.json", "--markdown", "r.md", "--events", events, "--perfetto", "t.json")
    first = ended(run("analyze", ".", *outputs), 0)
    doc = json.loads((here / "r.json").read_text(encoding="utf-8"))
    (here / "ticket.txt").write_text(first.output, encoding="utf-8")
    ended(run("analyze", ".", *outputs), 0)
    again = json.loads((here / "r.json").read_text(encoding="utf-8"))
    assert again["events"] == doc["events"]
    assert again["incidents"] == doc["incidents"]
    assert {r["path"]: r["status"] for r in again["inputs"]} == {
        f"./{name}": "read" if name == "kern.log" else "skipped"
        for name in ("kern.log", "r.html", "r.json", "r.md", events, "t.json", "ticket.txt")
    }


@pytest.mark.parametrize(
    "args", [("--json", "-", "--markdown", "-"), ("-o", "-", "--json", "-"), ("-o", "x", "--json", "x")]
)
@pytest.mark.usefixtures("never_read")
def test_outputs_are_not_mixed(here: Path, args: tuple[str, ...]) -> None:
    assert "Name a file for" in ended(run("analyze", "-", *args), 2).output
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("args", [("--events", "x.xlsx"), ("--events", "-"), ("-o", "nowhere/r.html"), ("--json", ".")])
@pytest.mark.usefixtures("never_read")
def test_a_bad_place_is_said_before_anything_is_read(here: Path, args: tuple[str, ...]) -> None:
    ended(run("analyze", "-", *args), 2)
    assert list(here.iterdir()) == []


def test_the_page_on_stdout_is_nothing_but_the_page(here: Path) -> None:
    result = ended(run("analyze", "-", "-o", "-", stdin=XID), 0)
    assert result.output.lower().startswith("<!doctype html>")
    assert result.output.rstrip().endswith("</html>")
    assert list(here.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_pipe_is_written_to_and_stays_a_pipe(here: Path) -> None:
    pipe, got = here / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    ended(run("analyze", "-", "-o", "pipe", "--quiet", stdin=XID), 0)
    reader.join(timeout=30)
    assert pipe.is_fifo()
    assert got[0].rstrip().endswith(b"</html>")


def test_the_file_behind_a_link_is_written(here: Path) -> None:
    (here / "store").mkdir()
    (here / "r.html").symlink_to("store/r.html")
    export.write(here / "r.html", "page")
    assert (here / "r.html").is_symlink()
    assert (here / "store" / "r.html").read_text(encoding="utf-8") == "page"
