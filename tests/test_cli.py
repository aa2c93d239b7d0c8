"""The command: what it writes, how it exits, and that it never shows a traceback."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from short_form import BASE

from nccl_forensics import __version__, catalog
from nccl_forensics.cli import main
from nccl_forensics.errors import InputError
from nccl_forensics.show import export

ROOT = Path(__file__).resolve().parents[1]
RISER = ROOT / "samples" / "riser-xid79"
NAMES = sorted(p.parent.name for p in (ROOT / "samples").glob("*/expected.json"))
XID = b"2026-11-25T10:00:00.1+00:00 n1 kernel: [ 5000.1] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n"
HEALTHY = b"".join(b"[rank0]: step %d | loss 2.3 | 1.9 s/step\n" % n for n in range(50))
NAMES_NOBODY = b"".join(
    b"[rank%d]:[E1125 10:30:00.%09d ProcessGroupNCCL.cpp:629] [Rank %d] Watchdog caught collective operation timeout: "
    b"WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600021 milliseconds "
    b"before timing out.\n" % (r, r, r)
    for r in range(4)
)
"""All four ranks of a job wait: a symmetric hang."""


def run(*args: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], input=stdin)


def ended(result: Result, status: int) -> Result:
    """`result`, if it ended with this status and without a traceback."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert result.exit_code == status, result.output
    return result


# --- analyze ----------------------------------------------------------------------------------------------------------


def test_analyze_writes_everything_that_was_asked_for(here: Path) -> None:
    result = ended(
        run("analyze", RISER, "-o", "r.html", "--json", "r.json", "--markdown", "r.md", "--events", "r.csv"), 0
    )
    ticket = result.output.strip().splitlines()
    assert "rank 6" in result.output
    assert "0000:c1:00.0" in result.output
    assert len(ticket) <= 13, "twelve lines and the report's name"
    doc = json.loads((here / "r.json").read_text(encoding="utf-8"))
    assert doc["schema"] == "nccl-forensics/analysis/1"
    assert doc["incidents"][0]["verdict"]["culprit_ranks"] == [6]
    page = (here / "r.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "0000:c1:00.0" in page
    assert "rank 6" in (here / "r.md").read_text(encoding="utf-8")
    with (here / "r.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == export.COLUMNS
    assert len(rows) >= len(doc["events"]) > 100
    assert any(r["kind"] == "xid" and json.loads(r["fields"])["xid"] == 79 for r in rows)
    assert all("." not in r["rank"] + r["line"] for r in rows), "whole numbers, not 6.0"
    assert sorted(p.name for p in here.iterdir()) == ["r.csv", "r.html", "r.json", "r.md"]


def test_events_as_json_lines_are_the_documents_events(here: Path) -> None:
    ended(run("analyze", RISER / "dmesg.txt", "-o", "r.html", "--json", "r.json", "--events", "r.jsonl", "--quiet"), 0)
    doc = json.loads((here / "r.json").read_text(encoding="utf-8"))
    rows = [json.loads(x) for x in (here / "r.jsonl").read_text(encoding="utf-8").splitlines()]
    places = {(r["source"], r["line"], r["kind"]) for r in rows}
    assert {(e["source"], e["line"], e["kind"]) for e in doc["events"]} == places


def test_the_report_is_called_after_the_input(here: Path) -> None:
    (here / "node7.log.gz").write_bytes(gzip.compress(XID))
    ended(run("analyze", "node7.log.gz", "--quiet"), 0)
    assert (here / "node7.report.html").is_file()


def test_stdin(here: Path) -> None:
    result = ended(run("analyze", "-", "--json", "-", "--quiet", stdin=XID), 0)
    doc = json.loads(result.output)
    assert doc["incidents"][0]["verdict"]["cause"] == "gpu_off_bus"
    assert (here / "stdin.report.html").is_file()


def test_stdin_may_be_an_archive(here: Path) -> None:
    doc = json.loads(ended(run("analyze", "-", "--json", "-", "--quiet", stdin=gzip.compress(XID)), 0).output)
    assert doc["incidents"][0]["verdict"]["cause"] == "gpu_off_bus"


def test_markdown_on_stdout(here: Path) -> None:
    result = ended(run("analyze", "-", "--markdown", "-", "--quiet", stdin=XID), 0)
    assert 0 < len(result.output.strip().splitlines()) <= 12


def test_quiet_is_quiet(here: Path) -> None:
    assert ended(run("analyze", "-", "--quiet", stdin=XID), 0).output == ""


@pytest.mark.parametrize(
    ("content", "status", "found"),
    [(XID, 10, "identified"), (NAMES_NOBODY, 12, "undetermined"), (HEALTHY, 0, None)],
    ids=["identified", "undetermined", "nothing"],
)
def test_exit_code_tells_the_verdict_only_where_it_was_asked_for(
    here: Path, content: bytes, status: int, found: str | None
) -> None:
    (here / "a.log").write_bytes(content)
    ended(run("analyze", "a.log", "--quiet"), 0)
    doc = json.loads(ended(run("analyze", "a.log", "--quiet", "--json", "-", "--exit-code"), status).output)
    assert [i["verdict"]["status"] for i in doc["incidents"]] == ([found] if found else [])


def test_exit_code_of_a_suspicion(here: Path) -> None:
    """One of two is silent: a suspect, and not a sure one."""
    one = NAMES_NOBODY.splitlines(keepends=True)
    (here / "a.log").write_bytes(b"".join(one[:3]) + b"[rank3]: step 41 | loss 2.3 | 1.9 s/step\n")
    doc = json.loads(ended(run("analyze", "a.log", "--quiet", "--json", "-"), 0).output)
    status = {"identified": 10, "suspected": 11, "undetermined": 12}[doc["incidents"][0]["verdict"]["status"]]
    ended(run("analyze", "a.log", "--quiet", "--exit-code"), status)
    assert doc["incidents"][0]["verdict"]["culprit_ranks"] in ([3], [])


# --- options ----------------------------------------------------------------------------------------------------------

WITHOUT_YEAR = b"Nov 25 11:00:00 n1 kernel: NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n"


def test_timezone_and_year(here: Path) -> None:
    def onset(*args: str) -> Any:
        result = run("analyze", "-", "--json", "-", "--quiet", *args, stdin=WITHOUT_YEAR)
        return json.loads(ended(result, 0).output)["incidents"][0]["onset"]

    assert onset() is None
    assert onset("--year", "2026") == "2026-11-25T11:00:00.000000Z"
    assert onset("--year", "2026", "--timezone", "Europe/Copenhagen") == f"{BASE:%Y-%m-%dT%H:%M:%S}.000000Z"
    assert onset("--year", "2026", "--timezone", "-05:00") == "2026-11-25T16:00:00.000000Z"


def test_a_bad_timezone_is_said_and_left_out(here: Path) -> None:
    (here / "a.log").write_bytes(WITHOUT_YEAR)
    result = ended(run("analyze", "a.log", "--timezone", "Mars/Olympus", "--year", "2026"), 0)
    assert "Mars/Olympus" in result.output
    assert "+02:00" in result.output


@pytest.mark.parametrize("year", ["0", "99999", "soon", "-1"])
def test_a_bad_year_is_wrong_usage(here: Path, year: str) -> None:
    result = ended(run("analyze", "-", "--year", year, stdin=XID), 2)
    assert "--year" in result.output
    assert list(here.iterdir()) == []


def test_an_unknown_zone_is_said_once(here: Path) -> None:
    (here / "kern.log").write_bytes(XID)
    result = ended(run("analyze", "kern.log", "--timezone", "Mars/Olympus", "--since", "2026-11-25", "--quiet"), 0)
    assert result.output.count("Mars/Olympus") == 1


def test_hosts_file(here: Path) -> None:
    (here / "hosts").write_text("5 n1 1 0000:c1:00.0\n", encoding="utf-8")
    (here / "kern.log").write_bytes(XID)
    doc = json.loads(ended(run("analyze", "kern.log", "--hosts", "hosts", "--json", "-", "--quiet"), 0).output)
    assert doc["incidents"][0]["verdict"]["culprit_ranks"] == [5]
    assert doc["ranks"][0]["host"] == "n1"


@pytest.mark.parametrize("content", ["rank 5 n1\n", "one n1\n", "\x00\x01\x02", "5 n1 first\n", "5\n"])
def test_a_bad_hosts_file_is_wrong_usage(here: Path, content: str) -> None:
    (here / "who").write_text(content, encoding="utf-8")
    result = ended(run("analyze", "-", "--hosts", "who", stdin=XID), 2)
    assert "who:1" in result.output
    assert [p.name for p in here.iterdir()] == ["who"]


def test_a_hosts_file_that_is_missing(here: Path) -> None:
    assert "--hosts" in ended(run("analyze", "-", "--hosts", "nowhere", stdin=XID), 2).output


# --- what can't be read or written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [[], ["--no-such-option", "x"]])
def test_wrong_usage(here: Path, args: list[str]) -> None:
    assert "Usage:" in ended(run("analyze", *args), 2).output


def test_a_path_that_is_not_there(here: Path) -> None:
    assert "gone.tar" in ended(run("analyze", "gone.tar"), 3).output


def test_an_empty_folder(here: Path) -> None:
    (here / "empty").mkdir()
    assert ended(run("analyze", "empty"), 3).output.strip()
    assert [p.name for p in here.iterdir()] == ["empty"]


def test_nothing_but_junk_names_each_file_and_its_reason(here: Path) -> None:
    noise = random.Random(7)
    for n in range(5):
        (here / f"junk{n}.bin").write_bytes(noise.randbytes(20_000))
    result = ended(run("analyze", "."), 3)
    for n in range(5):
        assert f"junk{n}.bin" in result.output
    assert not list(here.glob("*.html"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n" * 1000,
        random.Random(1).randbytes(5000),
        gzip.compress(XID * 500)[:-40],
        b"\x1f\x8b\x08",
        b"\x80\x04.",
    ],
    ids=["empty", "blank", "noise", "cut-gz", "gz-head", "empty-pickle"],
)
def test_hostile_stdin_ends_well(here: Path, content: bytes) -> None:
    result = run("analyze", "-", stdin=content)
    ended(result, result.exit_code)
    assert result.exit_code in (0, 3)
    assert result.output.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are no text")
def test_file_names_that_are_no_text(here: Path) -> None:
    for raw in (b"caf\xe9 \xff.log", b"new\nline.log", b"<b>&amp;.log"):
        (here / os.fsdecode(raw)).write_bytes(XID)
    result = ended(
        run("analyze", ".", "-o", "r.html", "--json", "r.json", "--events", "r.csv", "--markdown", "r.md"), 0
    )
    assert "gpu fell off the bus" in result.output.lower()
    doc = json.loads((here / "r.json").read_text(encoding="utf-8"))
    assert len(doc["inputs"]) == 3
    assert "<b>&amp;.log" not in (here / "r.html").read_text(encoding="utf-8").split("<script", 1)[0]


def test_what_stands_before_the_cut_is_used(here: Path) -> None:
    (here / "kern.log.gz").write_bytes(gzip.compress(XID + os.urandom(50_000).hex().encode() + b"\n")[:-1000])
    doc = json.loads(ended(run("analyze", "kern.log.gz", "--json", "-", "--quiet"), 0).output)
    assert [(r["status"], bool(r["reason"])) for r in doc["inputs"]] == [("partial", True)]
    assert doc["incidents"][0]["verdict"]["cause"] == "gpu_off_bus"


@pytest.mark.parametrize("option", ["-o", "--json", "--markdown", "--events"])
def test_a_place_that_cannot_be_written(here: Path, unwritable: Path, option: str) -> None:
    result = ended(run("analyze", "-", option, unwritable / "x.csv", stdin=XID), 2)
    assert "can't be written" in result.output
    assert str(unwritable) in result.output
    for file in here.iterdir():
        assert file.name == "stdin.report.html"
        assert file.read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_an_unknown_kind_of_events_file(here: Path) -> None:
    assert ".csv, .jsonl or .parquet" in ended(run("analyze", "-", "--events", "x.xlsx", stdin=XID), 2).output
    assert not (here / "x.xlsx").exists()


def test_a_file_is_written_whole_or_not_at_all(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = here / "r.html"
    target.write_text("what was there before", encoding="utf-8")

    def full(_: Path, __: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        export.write(target, "x" * 100_000)
    assert [p.name for p in here.iterdir()] == ["r.html"]
    assert target.read_text(encoding="utf-8") == "what was there before"


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_a_report_can_be_read_by_colleagues(here: Path) -> None:
    before = os.umask(0o022)
    try:
        export.write(here / "r.html", "x")
    finally:
        os.umask(before)
    assert (here / "r.html").stat().st_mode & 0o777 == 0o644


# --- inspect, xid, demo -----------------------------------------------------------------------------------------------


def test_inspect_lists_every_file(here: Path) -> None:
    result = ended(run("inspect", RISER), 0)
    for file in ("dmesg.txt", "journal.txt", "nvidia-bug-report.log.gz", "train.log"):
        assert file in result.output
    assert "Clocks:" in result.output
    assert list(here.iterdir()) == []


def test_inspect_as_json(here: Path) -> None:
    doc = json.loads(ended(run("inspect", RISER, "--json", "-"), 0).output)
    kept = {"schema", "tool", "inputs", "hosts", "clocks", "problems", "alarms", "files", "coverage", "missing"}
    assert kept == set(doc)
    ended(run("inspect", RISER, "--json", "i.json", "--quiet"), 0)
    assert json.loads((here / "i.json").read_text(encoding="utf-8"))["inputs"] == doc["inputs"]


def test_inspect_says_what_is_missing(here: Path) -> None:
    (here / "kern.log").write_bytes(XID)
    result = ended(run("inspect", "kern.log"), 0)
    assert "Flight Recorder" in result.output
    assert "kernel logs of all hosts" not in result.output


def test_inspect_of_nothing(here: Path) -> None:
    (here / "empty").mkdir()
    assert "an empty folder" in ended(run("inspect", "empty"), 0).output
    assert "gone" in ended(run("inspect", "gone"), 3).output


def test_xid() -> None:
    result = ended(run("xid", "79"), 0)
    assert "Xid 79" in result.output
    entry = json.loads(ended(run("xid", "79", "--json"), 0).output)
    assert entry["number"] == 79


def test_every_xid_of_the_catalogue_can_be_explained() -> None:
    for entry in catalog.load("xid")["xid"]:
        assert f"Xid {entry['number']}:" in ended(run("xid", str(entry["number"])), 0).output


@pytest.mark.parametrize("number", ["9999", "0", "seventy-nine", ""])
def test_xid_that_nobody_knows(number: str) -> None:
    ended(run("xid", number), 2)


def test_demo_list_names_the_samples() -> None:
    lines = ended(run("demo", "--list"), 0).output.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(len(line.split()) > 3 for line in lines), "each with its story"


@pytest.mark.parametrize("name", NAMES)
def test_demo(here: Path, name: str) -> None:
    expect = json.loads((ROOT / "samples" / name / "expected.json").read_text(encoding="utf-8"))["expect"]
    result = ended(run("demo", name), 0)
    assert "rank" in result.output
    assert all(str(r) in result.output for r in expect["ranks"])
    assert [p.name for p in here.iterdir()] == [f"{name}.report.html"]


def test_demo_that_is_not_there(here: Path) -> None:
    assert NAMES[0] in ended(run("demo", "no-such-sample"), 2).output


@pytest.mark.parametrize(
    "args", [["--help"], ["-h"], ["analyze", "--help"], ["inspect", "-h"], ["xid", "-h"], ["demo", "-h"]]
)
def test_help(args: list[str]) -> None:
    assert "Usage:" in ended(run(*args), 0).output


def test_version() -> None:
    assert __version__ in ended(run("--version"), 0).output


# --- as a process -----------------------------------------------------------------------------------------------------


def _process(*args: str, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "nccl_forensics", *args], cwd=cwd, input=stdin, capture_output=True, timeout=120, env=env
    )


def test_streams_are_kept_apart(here: Path) -> None:
    done = _process("analyze", "-", "--json", "-", "--exit-code", cwd=here, stdin=XID)
    assert done.returncode == 10
    assert json.loads(done.stdout)["incidents"][0]["verdict"]["cause"] == "gpu_off_bus"
    assert b"stdin.report.html" in done.stderr
    assert b"\x1b" not in done.stderr, "no progress line where stderr is no terminal"


def test_a_closed_pipe_is_no_traceback(here: Path) -> None:
    (here / "a.log").write_bytes(XID)
    command = f"{sys.executable} -m nccl_forensics analyze a.log --json - | head -c 10"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], cwd=here, capture_output=True, timeout=120, env=env)
    assert b"Traceback" not in done.stderr


def test_control_characters_of_a_log_do_not_reach_the_terminal(here: Path) -> None:
    bad = XID.replace(b"GPU has", b"\x1b]0;owned\x07\x1b[2J GPU has") + b"\x1b[31m" + XID.replace(b"c1", b"41")
    (here / "a\x1b[2J.log").write_bytes(bad)
    for args in (["analyze", "."], ["inspect", "."]):
        done = _process(*args, cwd=here)
        assert done.returncode == 0
        assert b"\x1b" not in done.stdout
        assert b"\x07" not in done.stdout


def test_the_page_says_by_which_command_it_was_made(here: Path) -> None:
    """What decided the findings, and not where they were written to."""
    (here / "a b.log").write_bytes(XID)
    told = ["--timezone", "+02:00", "--year", "2026", "--max-depth", "3", "--since", "2025-01-01"]
    ended(run("analyze", "a b.log", *told, "-o", "r.html", "--json", "r.json", "--lang", "da", "--quiet"), 0)
    command = shlex.split(json.loads((here / "r.json").read_text(encoding="utf-8"))["tool"]["command"])
    assert command[:2] == ["nccl-forensics", "analyze"]
    assert command[-1] == "a b.log"
    assert sorted(command[2:-1]) == sorted(told)
    ended(run(*command[1:], "-o", "again.html", "--json", "again.json"), 0)
    assert (here / "again.json").read_bytes() == (here / "r.json").read_bytes()
