"""Reports and measurements beside the logs: each tests/cases/parsers/NAME/CASE.* gives the events in CASE.json.

`ACCEPT=1 pytest tests/test_evidence_parsers.py` writes the JSON anew; read it before it is committed. Cases that are
called healthy… must accuse nobody, whichever parser of the whole folder reads them.
"""

from __future__ import annotations

import importlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from nccl_forensics.parsers._blocks import MOST_BLOCKS
from nccl_forensics.parsers.switches import MOST_NAMES

from nccl_forensics.intake import sniff
from nccl_forensics.lines import read as reading
from nccl_forensics.lines.plugins import FileParser, Parser, parsers
from nccl_forensics.lines.scan import Scanner
from nccl_forensics.model import Event, Problem

NAMES = (
    *("thermal", "dcgm", "dcgm_exporter", "gpu_burn", "nccl_tests", "ipmi", "infiniband", "topology", "switches"),
    *("scheduler_tables", "kubernetes", "filesystems", "ras", "stacks", "inspector"),
)
HERE = Path(__file__).parent / "cases" / "parsers"
CASES = sorted(
    case
    for name in NAMES
    for case in (HERE / name).iterdir()
    if case.is_file() and not case.name.endswith(".expected.json")
)
MODULES = [importlib.import_module(f"nccl_forensics.parsers.{name}") for name in NAMES]
LINES = [one for module in MODULES for one in vars(module).values() if isinstance(one, Parser)]
FILES = [one for module in MODULES for one in vars(module).values() if isinstance(one, FileParser)]
TAKERS = {x: [p for p in LINES if x in p.literals] for one in LINES for x in one.literals}
SCANNER = Scanner(TAKERS)


@dataclass
class Given:
    path: str
    stream: BinaryIO
    name: str = ""
    size: int | None = None
    mtime_ns: int | None = None


def read(name: str, data: bytes) -> Iterator[Event | Problem]:
    """All that these parsers find in a file."""
    for file in FILES:
        if file.claims(data[:4096], name):
            found = file.read(Given(name, io.BytesIO(data), name))
            yield from (x for x in found if isinstance(x, Event | Problem))
            return
    for line in SCANNER.lines(name, io.BytesIO(data)):
        for one in dict.fromkeys(p for hit in sorted(line.hits) for p in TAKERS[hit]):
            yield from one.read(line)


def as_json(item: Event | Problem) -> dict[str, Any]:
    if isinstance(item, Problem):
        return {"problem": item.says}
    row: dict[str, Any] = {"line": item.evidence.line, "kind": item.kind, "role": item.role}
    for name in ("cause", "host", "gpu_pci"):
        if (value := getattr(item, name)) is not None:
            row[name] = value
    if item.stamp is not None and item.stamp.wall_ns is not None:
        row["wall_s"] = item.stamp.wall_ns / 1e9
    row["details"] = dict(item.details)
    found: dict[str, Any] = json.loads(json.dumps(row))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_case(case: Path) -> None:
    found = [as_json(item) for item in read(case.name, case.read_bytes())]
    answer = case.with_name(f"{case.name}.expected.json")
    if os.environ.get("ACCEPT"):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in found)
        answer.write_text(f"[\n{rows}\n]\n" if found else "[]\n", encoding="utf-8")
    assert found == json.loads(answer.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name.startswith("healthy")], ids=lambda c: f"{c.parent.name}-{c.name}"
)
def test_a_healthy_report_accuses_nobody(case: Path) -> None:
    (parsed,) = reading.read([str(case)])
    assert parsed.row.status == "read"
    assert [(e.evidence.line, e.kind) for e in parsed.events if e.role in ("cause", "symptom")] == []


def test_every_parser_has_a_case_that_tells_and_one_that_does_not() -> None:
    for name in NAMES:
        told = [any(e.get("cause") for e in json.loads(a.read_text())) for a in (HERE / name).glob("*.expected.json")]
        assert any(told) or name in ("infiniband", "filesystems", "ras", "stacks", "inspector", "switches"), (
            name
        )  # those only state; the rules compare
        assert any(c.parent.name == name and c.name.startswith("healthy") for c in CASES), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_the_format_has_a_name(case: Path) -> None:
    (parsed,) = reading.read([str(case)])
    assert parsed.row.format not in ("unknown", "job-log")
    assert f"| {parsed.row.format} " in (HERE.parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_job_logs_keep_their_name() -> None:
    """A job's log that shows one of these tables in between is still a job's log."""
    job = b"[rank0]:[E1125 10:21:33.000421007 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught\n"
    df = b"Filesystem      Size  Used Avail Use% Mounted on\n/dev/sda1       3.5T  3.5T     0 100% /scratch\n"
    assert sniff.sniff(job + df, "out.txt") == "job-log"


@pytest.mark.parametrize(
    ("line", "format_"),
    [
        (b"2026-06-11 23:39:59,872 \x1b[32mINFO\x1b[0m train.py:166] [rank 6] step 1\n", "job-log"),
        (b"2026-06-11 23:39:59,872 INFO train.py:166] [rank 6] step 1\n", "job-log"),
        (b"2026-06-11 23:39:59,872 [INFO] trainer: step 1\n", "job-log"),
        (b"2026-06-11 23:39:59,872 WARNING trainer: slow\n", "job-log"),
        (b"2026-06-11 23:39:59.872 n1 systemd[1]: Started.\n", "syslog"),
        (b"Jun 11 23:39:59 information dhclient: bound\n", "syslog"),
        (b"2026-06-11T23:39:59.872000+00:00 n1 kernel: usb 1-1: new device\n", "syslog"),
    ],
)
def test_a_programs_own_logger_makes_no_system_log(line: bytes, format_: str) -> None:
    """Else its times would be read in its host's zone."""
    assert sniff.sniff(line * 3, "slurm-8137771.out") == format_


@pytest.mark.slow
def test_damage_never_raises() -> None:
    """Every case cut, doubled, with its digits and separators replaced, and without its line ends."""
    damage = (
        lambda x: x[: len(x) // 2],
        lambda x: x[: len(x) * 9 // 10],
        lambda x: b"\n".join(y + y for y in x.split(b"\n")),
        lambda x: x.translate(bytes.maketrans(b"0123456789", b"9999999999")),
        lambda x: x.replace(b"0", b"99999999999999999999"),
        lambda x: x.replace(b"1", b"\xd9\xa1"),  # a digit, but not of ours
        lambda x: x.replace(b"|", b"\xff").replace(b":", b"\x00"),
        lambda x: x.replace(b"\n", b"\r"),
        lambda x: x.replace(b"\n", b" "),
        lambda x: x.replace(b'"', b""),
        lambda x: x.replace(b'"', b"[" * 3000, 1),
    )
    seen = 0
    for case in CASES:
        for hurt in damage:
            seen += len([*read(case.name, hurt(case.read_bytes()))])
    assert seen > 100


def test_literals_are_found_in_this_folder_alone() -> None:
    """The parsers are found by listing the folder."""
    known = {p.name for p in parsers().lines} | {p.name for p in parsers().files}
    assert {p.name for p in LINES} | {p.name for p in FILES} <= known


def test_what_a_bound_leaves_unread_is_said(tmp_path: Path) -> None:
    table = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-15\nGPU1\tNV4\t X \t0-15\n\n"
    (tmp_path / "topo.txt").write_text(table * (MOST_BLOCKS + 3))
    (parsed,) = reading.read([str(tmp_path)])
    assert sum(e.kind == "gpu-topology" for e in parsed.events) == MOST_BLOCKS
    assert [p.says.split(" were")[0] for p in parsed.problems] == ["3 more lines, tables or blocks of kind topology"]


def test_a_table_of_switches_names_no_more_hosts_than_fit(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text("".join(f"SwitchName=s{i} Nodes=n[1-4096]\n" for i in range(40)))
    (parsed,) = reading.read([str(tmp_path)])
    told = [x.details["node"] for x in parsed.events]
    assert [len(x) for x in told if isinstance(x, tuple)] == [4096] * (MOST_NAMES // 4096)
    assert [p.says.split(" were")[0] for p in parsed.problems] == ["16 more lines, tables or blocks of kind switches"]
