"""Kernel-side parsers: each tests/cases/parsers/NAME/CASE.log gives the events in the CASE.json beside it.

`ACCEPT=1 pytest tests/test_kernel_parsers.py` writes the JSON anew; read it before you commit it.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from nccl_forensics.parsers import bug_report, fabric_manager, gpu_inventory, kernel, xid
from nccl_forensics.parsers._kernel import pci_address
from recorded import RECORDED

from nccl_forensics.lines.plugins import Parser
from nccl_forensics.lines.scan import Scanner
from nccl_forensics.model import Event

MODULES = (bug_report, fabric_manager, gpu_inventory, kernel, xid)
PARSERS = [one for module in MODULES for one in vars(module).values() if isinstance(one, Parser)]
HERE = Path(__file__).parent / "cases" / "parsers"
CASES = sorted(
    case
    for name in ("xid", "kernel", "gpu_inventory", "bug_report", "fabric_manager")
    for case in (HERE / name).iterdir()
    if case.suffix != ".json"
)
KERNEL = RECORDED / "kernel"
NEVER_A_CAUSE = {43, 45, 63, 92, 154}


TAKERS: dict[bytes, list[Parser]] = defaultdict(list)
for _one in PARSERS:
    for _literal in _one.literals:
        TAKERS[_literal].append(_one)
SCANNER = Scanner(TAKERS)


def events_of(path: str, data: bytes) -> list[tuple[int, Event]]:
    """(line, event) of all kernel-side parsers."""
    found = []
    for line in SCANNER.lines(path, io.BytesIO(data)):
        wanted = {one.name: one for literal in line.hits for one in TAKERS[literal]}
        for name in sorted(wanted):
            found += [(event.evidence.line or 0, event) for event in wanted[name].read(line)]
    return found


def as_json(event: Event) -> dict[str, Any]:
    row: dict[str, Any] = {"line": event.evidence.line, "kind": event.kind, "role": event.role}
    for name in ("severity", "cause", "host", "pid", "gpu_pci"):
        if (value := getattr(event, name)) is not None:
            row[name] = value
    if event.repeats > 1:
        row["repeats"] = event.repeats
    row["details"] = dict(event.details)
    return json.loads(json.dumps(row))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_case(case: Path) -> None:
    found = [as_json(event) for _, event in events_of(case.name, case.read_bytes())]
    answer = case.with_suffix(".json")
    if os.environ.get("ACCEPT"):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in found)
        answer.write_text(f"[\n{rows}\n]\n" if found else "[]\n", encoding="utf-8")
    assert found == json.loads(answer.read_text(encoding="utf-8"))


def test_a_healthy_boot_accuses_nobody() -> None:
    found = events_of("kern.log", (HERE / "kernel" / "healthy-boot.log").read_bytes())
    assert len(found) >= 20
    assert [(line, event.kind) for line, event in found if event.role in ("cause", "symptom")] == []


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("PCI:0000:c1:00", "0000:c1:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("c1:00.1", "0000:c1:00.1"),
        ("0009:01:00", "0009:01:00.0"),
        ("00010000:01:00.0", "00010000:01:00.0"),
        ("0000:00:05", "0000:00:05.0"),
        ("zz:00.0", None),
        ("0000:c1:00.0.0", None),
        ("", None),
        (None, None),
    ],
)
def test_every_spelling_of_an_address(written: str | None, normal: str | None) -> None:
    assert pci_address(written) == normal


def plain(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:6] == b"\xfd7zXZ\x00":
        return lzma.decompress(data)
    return data.decode("utf-16").encode() if data[:2] == b"\xff\xfe" else data


def recorded_cases() -> list[Path]:
    return sorted(x for x in KERNEL.glob("*/expected.json") if x.parent.name != "formats")


@pytest.mark.parametrize("answer", recorded_cases(), ids=lambda x: x.parent.name)
def test_every_expected_event_is_found_on_its_line(answer: Path) -> None:
    expected = json.loads(answer.read_text(encoding="utf-8"))
    default = expected["files"][0]["name"] if expected.get("files") else "nvidia-bug-report.log.gz"
    by_file: dict[str, dict[int, list[Event]]] = {}
    missed = []
    for want in expected["events"]:
        name = want.get("file", default)
        if name not in by_file:
            lines = by_file.setdefault(name, defaultdict(list))
            for number, event in events_of(name, plain(answer.parent / name)):
                lines[number].append(event)
        for number in want.get("lines", [want.get("line")]):
            if not any(is_the_one(event, want) for event in by_file[name][number]):
                missed.append((name, number, want))
    assert missed == []


def is_the_one(event: Event, want: dict[str, Any]) -> bool:
    if event.kind != want.get("id", "xid" if "xid" in want else "sxid"):
        return False
    if any(key in want and event.details.get(key) != want[key] for key in ("xid", "sxid")):
        return False
    addresses = (event.gpu_pci, *(event.details.get(key) for key in ("pci", "source", "switch_pci")))
    return (want.get("pci") is None or want["pci"] in addresses) and (want.get("pid") or event.pid) == event.pid


def test_one_incident_in_sixty_containers() -> None:
    """Every container shows the same Xids; what a pager or a binary journal hides is not ours to find."""
    wrong = {}
    for path in sorted((KERNEL / "formats").iterdir()):
        if path.suffix == ".json" or ".tar" in path.name or path.name.startswith("system.journal"):
            continue
        xids = [event for _, event in events_of(path.name, plain(path)) if event.kind == "xid"]
        seen = sorted((event.details["xid"], event.gpu_pci, event.pid) for event in xids)
        if seen != [
            (45, "0000:01:00.0", 24555),
            (45, "0000:24:00.0", 24556),
            (79, "0000:c1:00.0", 24561),
            (154, "0000:c1:00.0", None),
        ]:
            wrong[path.name] = seen
    assert wrong == {}


def test_consequences_are_never_causes() -> None:
    for answer in recorded_cases():
        for path in answer.parent.iterdir():
            for _, event in events_of(path.name, plain(path)) if path.suffix != ".json" else ():
                assert event.kind != "xid" or event.details["xid"] not in NEVER_A_CAUSE or event.role != "cause"


def test_the_gpus_of_a_bug_report() -> None:
    answer = json.loads((KERNEL / "bugreport-8x4090-two-psus" / "expected.json").read_text(encoding="utf-8"))
    cards: dict[str, dict[str, Any]] = defaultdict(dict)
    data = plain(KERNEL / "bugreport-8x4090-two-psus" / "nvidia-bug-report.log.gz")
    for _, event in events_of("nvidia-bug-report.log", data):
        if event.kind == "gpu-info" and event.gpu_pci:
            cards[event.gpu_pci].update(event.details)
    assert sorted(cards) == [card["pci"] for card in answer["gpus"]]
    for card in answer["gpus"]:
        found = cards[card["pci"]]
        assert (found["uuid"], found["minor"], found.get("lost", False)) == (card["uuid"], card["minor"], card["lost"])


def test_damaged_lines_never_raise() -> None:
    """Every line of every case cut in the middle, doubled, and with its digits and brackets replaced."""
    damage = (
        lambda x: x[: len(x) // 2],
        lambda x: x[: len(x) * 3 // 4],
        lambda x: x + x,
        lambda x: x.translate(bytes.maketrans(b"0123456789", b"9999999999")) * 2,
        lambda x: x.replace(b"[", b"\xff").replace(b":", b"\x00:"),
        lambda x: x.replace(b"0", b"99999999999999999999"),
        lambda x: x.replace(b"0", b"\xd9\xa1"),  # a digit, but not of ours
    )
    read = 0
    for case in CASES:
        for hurt in damage:
            read += len(events_of("x.log", b"\n".join(hurt(x) for x in case.read_bytes().split(b"\n"))))
    assert read > 100
