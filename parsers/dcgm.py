"""`dcgmi diag`: NVIDIA's active test of GPUs, its table and its JSON.

Written by dcgmi (DCGM 2 to 4). Time: none in the table and in the JSON. The numbers are DCGM's entity ids at that
moment, mostly nvidia-smi's indices; the JSON has serial numbers beside them. Examples (from the table; version 3, 4):

| GPU Memory                | Fail - GPU: 3                                  |
| Warning: GPU 3            | GPU 3 had uncorrectable memory errors          |
|                           | GPU3: Fail                                     |
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import Stream, file_parser, parser
from nccl_forensics.model import Detail, Event, Evidence, Problem
from nccl_forensics.text.visible import visible

from ._blocks import rows

LARGEST = 16 << 20
"""Bytes of JSON that are read; sixteen GPUs take about 100,000."""
MOST_ROWS = 600
"""Rows of one table."""
MOST_FAILURES = 128
SHOWN = 300

ROW = re.compile(r"^[|+]\s?(?P<left>[^|]{0,40}?)\s*\|\s?(?P<right>[^|]{0,400}?)(?P<rest>\s*)\|?\s*$")
SECTION = re.compile(r"^[|+]-{3,}  ?(?P<name>[A-Za-z ]{3,20}?)  ?-{2,}")
VERDICT = re.compile(r"^(?P<verdict>Pass|Fail|Warn|Skip)(?: - (?:All|GPUs?:? ?(?P<gpus>\d[\d, ]{0,200})))?$")
ONE_GPU = re.compile(r"^GPU ?(?P<gpu>\d{1,3}): (?P<verdict>Pass|Fail|Warn|Skip)$")
NOTE = re.compile(r"^(?:Warning|Error|Info)(?:: ?GPU ?(?P<gpu>\d{1,3}))?$")
GPU_IN_TEXT = re.compile(r"\bGPU ?(?:\(?ID:? ?)?(?P<gpu>\d{1,3})\b")

SET_UP = frozenset(
    {"denylist", "blacklist", "nvml library", "cuda main library", "cuda toolkit library", "permissions and os blocks"}
    | {"persistence mode", "environment variables", "graphics processes", "fabric manager", "software", "deployment"}
)
"""Tests of what is installed: a failure there says nothing of a GPU unless its text does."""
BY_TEXT: tuple[tuple[str, str], ...] = (
    ("fallen off the bus", "gpu_off_bus"),
    ("GPU is lost", "gpu_off_bus"),
    ("uncorrectable", "gpu_memory"),
    ("row remap", "gpu_memory"),
    ("double bit", "gpu_memory"),
    ("double-bit", "gpu_memory"),
    ("pending page retirement", "gpu_memory"),
    ("thermal violation", "gpu_thermal"),
    ("temperature", "gpu_thermal"),
    ("NvLink", "nvlink"),
    ("NVLink", "nvlink"),
    ("PCIe replay", "pcie_link"),
)
"""What the warning speaks of → the cause that it speaks for. Our judgement."""
BY_TEST: tuple[tuple[str, str], ...] = (
    ("bandwidth", "gpu_other"),
    ("mem", "gpu_memory"),
    ("page retirement", "gpu_memory"),
    ("row remap", "gpu_memory"),
    ("pcie", "pcie_link"),
    ("nvbandwidth", "pcie_link"),
    ("nvlink", "nvlink"),
)
"""Part of the test's name → cause; all others show that a GPU computes wrongly or too slowly."""


def cause_of(test: str, says: str) -> str | None:
    """The cause that a failure of this test speaks for; None where it is about the software of the host."""
    lowered = says.lower()
    for part, cause in BY_TEXT:
        if part.lower() in lowered:
            return cause
    if test.lower() in SET_UP:
        return None
    return next((cause for part, cause in BY_TEST if part in test.lower()), "gpu_other")


def _failure(test: str, gpu: int | None, says: str, serial: str | None = None) -> dict[str, Any]:
    """Fields of the event for one test that one GPU failed."""
    cause = cause_of(test, says)
    details: dict[str, Detail] = {"test": test, "index": gpu, "says": says[:SHOWN] or None, "serial": serial}
    return {
        "kind": "dcgm-fail",
        "role": "cause" if cause is not None and gpu is not None else "context",
        "severity": "error" if cause is not None else "warning",
        "cause": cause,
        "details": {k: v for k, v in details.items() if v is not None},
    }


def _numbers(text: str | None) -> list[int | None]:
    return [int(x) for x in re.findall(r"\d{1,3}", text)] if text else [None]


Failed = tuple[Line, str, int | None]
"""Row, test, DCGM's number of the GPU; None where the row says it of the whole test."""


@dataclass(slots=True)
class _DiagnosticTable:
    """What was read of one table so far."""

    failed: list[Failed] = field(default_factory=list)
    notes: dict[tuple[str, int | None], str] = field(default_factory=dict)
    """(test, GPU) → what the warnings below the test say of it."""
    verdicts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("Pass", "Fail", "Warn", "Skip"), 0))
    version: str | None = None
    test: str = ""
    """That of the rows which come."""
    note: tuple[str, int | None] | None = None
    """To which the next row may add, for texts are wrapped."""
    filled: bool = False
    """The row before filled its cell: its text was cut inside a word or between two."""

    def row(self, row: Line) -> None:
        text = row.text
        if SECTION.match(text):
            self.note = None
            return
        found = ROW.match(text)
        if found is None or set(text.strip()) <= set("+-=|"):
            return
        cut, self.filled = self.filled, len(found["rest"]) <= 2
        left, right = found["left"].strip(), found["right"].strip()
        if left == "DCGM Version":
            self.version = right
        if noted := NOTE.match(left):
            self._noted(row, left, right, noted)
        elif said := VERDICT.match(right):
            self._verdict(row, left or self.test, said)
        elif whose := ONE_GPU.match(right):
            self._of_one_gpu(row, whose)
        elif left:
            self.note = None
        elif self.note is not None:
            more = ("" if cut else " ") + found["right"].rstrip()
            self.notes[self.note] = (self.notes[self.note] + more)[:SHOWN].replace("  ", " ")

    def _noted(self, row: Line, left: str, right: str, noted: re.Match[str]) -> None:
        """A warning or an error, of a GPU or of the test above it."""
        named = noted if noted["gpu"] else GPU_IN_TEXT.search(right)
        self.note = note = (self.test or "deployment", int(named["gpu"]) if named else None)
        self.notes[note] = f"{self.notes.get(note, '')} {right}".strip()[:SHOWN]
        if left.startswith("Error"):
            self.failed.append((row, *note))

    def _verdict(self, row: Line, test: str, said: re.Match[str]) -> None:
        """A test's result, in newer versions with the GPUs that it holds for."""
        self.test, self.note = test, None
        self.verdicts[said["verdict"]] += 1
        if said["verdict"] == "Fail":
            self.failed += [(row, test, gpu) for gpu in _numbers(said["gpus"])]

    def _of_one_gpu(self, row: Line, whose: re.Match[str]) -> None:
        self.note = None
        if whose["verdict"] == "Fail":
            self.failed = [f for f in self.failed if f[1:] != (self.test, None)]  # the row above said it of the test
            self.failed.append((row, self.test, int(whose["gpu"])))

    def first_failures(self) -> Iterable[tuple[tuple[str, int | None], Line]]:
        """(test, GPU) and the row that says first that it failed."""
        rows: dict[tuple[str, int | None], Line] = {}
        for row, test, gpu in self.failed[:MOST_FAILURES]:
            rows.setdefault((test, gpu), row)
        return rows.items()

    def says(self, test: str, gpu: int | None) -> str:
        return self.notes.get((test, gpu)) or self.notes.get((test, None)) or ""


@parser(title="DCGM diagnostic", literals=["| Diagnostic      "])
def dcgm_diag(line: Line) -> Iterator[Event]:
    """Reads the whole table behind its header. Only what the table itself calls a failure is one."""
    if "| Result" not in line.text or line.number <= line.window.state.get("dcgm.until", 0):
        return
    table = _DiagnosticTable()
    for row in rows(line, "DCGM diagnostic", MOST_ROWS):
        if not row.text.startswith(("|", "+")):
            break
        line.window.state["dcgm.until"] = row.number
        table.row(row)
    if len(table.failed) > MOST_FAILURES:
        line.leave_out("failures of a DCGM diagnostic")
    for (test, gpu), row in table.first_failures():
        says = table.says(test, gpu)
        named = GPU_IN_TEXT.search(says) if gpu is None else None
        yield row.event(**_failure(test, int(named["gpu"]) if named else gpu, says), pid=None)
    told: dict[str, Detail] = {"version": table.version, **{k.lower(): n for k, n in table.verdicts.items()}}
    yield line.event("dcgm-diag", role="context", details={k: v for k, v in told.items() if v is not None}, pid=None)


# --- JSON -------------------------------------------------------------------------------------------------------------


def claims(head: bytes, name: str) -> bool:
    at = head.find(b"{")
    return at >= 0 and b'"DCGM' in head[at : at + 400] and b"Diagnostic" in head[at : at + 400]


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (x for x in value if isinstance(x, dict)) if isinstance(value, list) else ()


def _serials(data: Mapping[str, Any], body: Mapping[str, Any]) -> dict[int, str]:
    """DCGM's number of a GPU → its serial: under entity_groups (4.x), as a table at the top (3.x)."""
    groups = _dicts(data.get("entity_groups") or body.get("entity_groups"))
    found = dict(_of_entities(groups))
    listed = data.get("GPU Device Serials") or body.get("GPU Device Serials")
    for key, serial in listed.items() if isinstance(listed, dict) else ():
        if str(key).isdecimal() and isinstance(serial, str):
            found[int(str(key)[:6])] = serial[:60]
    return {k: v for k, v in found.items() if v.strip("0 ")}


def _of_entities(groups: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for group in groups:
        for one in _dicts(group.get("entities")) if group.get("entity_group") == "GPU" else ():
            number, serial = one.get("entity_id"), one.get("serial_num")
            if isinstance(number, int) and isinstance(serial, str):
                yield number, serial[:60]


def _warnings(result: Mapping[str, Any]) -> str:
    said = result.get("warnings") or result.get("warning") or ""
    if isinstance(said, str):
        return said
    return "; ".join(str(one.get("warning") or "") for one in _dicts(said))


class _Result(NamedTuple):
    """One test's result on one GPU or other part of the host."""

    test: str
    status: str
    gpu: int | None
    says: str

    @property
    def failed(self) -> bool:
        return self.status.lower() == "fail"

    def shown(self) -> str:
        whose = f" - GPU {self.gpu}" if self.gpu is not None else ""
        return f"{self.test}: {self.status}{whose}" + (f": {self.says}" if self.says else "")


def _results(body: Mapping[str, Any]) -> Iterator[_Result]:
    for category in _dicts(body.get("test_categories")):
        for test in _dicts(category.get("tests")):
            name = str(test.get("name") or "?")[:60]
            for result in _dicts(test.get("results")):
                status = str(result.get("status") or "?")[:20]
                yield _Result(name, status, _gpu(result), " ".join(_warnings(result).split()))


def _gpu(result: Mapping[str, Any]) -> int | None:
    """DCGM's number of the GPU; None for another part of the host."""
    number = str(result.get("gpu_id", result.get("entity_id", "")))
    of_gpu = result.get("entity_group") in (None, "GPU")
    return int(number) if of_gpu and re.fullmatch(r"\d{1,3}", number, re.ASCII) else None


def _decoded(raw: bytes) -> Mapping[str, Any] | None:
    """The first object in it; None if it is cut or broken."""
    text = raw[raw.find(b"{") :].decode("utf-8", "replace")
    try:
        data: Mapping[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
    return data


def _failures(results: Iterable[_Result], serials: Mapping[int, str], path: str) -> Iterator[Event | Problem]:
    failed = [x for x in results if x.failed]
    for one in failed[:MOST_FAILURES]:
        serial = serials.get(one.gpu) if one.gpu is not None else None
        yield Event(
            evidence=Evidence(source=path, line=None, text=visible(one.shown())),
            **_failure(one.test, one.gpu, one.says, serial),
        )
    if len(failed) > MOST_FAILURES:
        says = f"{len(failed) - MOST_FAILURES:,} more failures in the DCGM diagnostic were counted and not read"
        yield Problem(says=says, source=path)


def _summary(results: Iterable[_Result], path: str) -> Event:
    counts = Counter(x.status.lower() for x in results)
    known = {status: n for status, n in counts.items() if status in ("pass", "fail", "warn", "skip")}
    shown = "DCGM diagnostic: " + ", ".join(f"{n} {status}" for status, n in sorted(known.items()))
    evidence = Evidence(source=path, line=None, text=shown)
    return Event(kind="dcgm-diag", role="context", evidence=evidence, details=dict(known))


@file_parser(title="DCGM diagnostic (JSON)", claims=claims)
def dcgm_diagnostic(stream: Stream) -> Iterator[Event | Problem]:
    data = _decoded(stream.stream.read(LARGEST))
    if data is None:
        yield Problem(says="the DCGM diagnostic's JSON is cut or broken; nothing of it was used", source=stream.path)
        return
    body = next((v for k, v in data.items() if k.startswith("DCGM") and isinstance(v, dict)), None)
    if body is None:
        yield Problem(says="no results in the DCGM diagnostic's JSON", source=stream.path)
        return
    results = list(_results(body))
    yield from _failures(results, _serials(data, body), stream.path)
    yield _summary(results, stream.path)
    error = body.get("runtime_error") or data.get("runtime_error")
    if isinstance(error, str) and error:
        yield Problem(says=f"the DCGM diagnostic did not run: {visible(error)[:200]}", source=stream.path)
