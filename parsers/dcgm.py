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
from collections.abc import Iterator, Mapping
from typing import Any

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


@parser(title="DCGM diagnostic", literals=["| Diagnostic      "])
def dcgm_diag(line: Line) -> Iterator[Event]:
    """Reads the whole table behind its header. Only what the table itself calls a failure is one."""
    if "| Result" not in line.text or line.number <= line.window.state.get("dcgm.until", 0):
        return
    test = ""
    failed: list[tuple[Line, str, int | None]] = []
    notes: dict[tuple[str, int | None], str] = {}
    verdicts = dict.fromkeys(("Pass", "Fail", "Warn", "Skip"), 0)
    note: tuple[str, int | None] | None = None
    version, full = None, False
    for row in rows(line, "DCGM diagnostic", MOST_ROWS):
        text = row.text
        if not text.startswith(("|", "+")):
            break
        line.window.state["dcgm.until"] = row.number
        if SECTION.match(text):
            note = None
            continue
        found = ROW.match(text)
        if found is None or set(text.strip()) <= set("+-=|"):
            continue
        left, right = found["left"].strip(), found["right"].strip()
        broken, full = full, len(found["rest"]) <= 2  # a cell that is filled up was cut inside a word or between two
        if left == "DCGM Version":
            version = right
        said, whose = VERDICT.match(right), ONE_GPU.match(right)
        if noted := NOTE.match(left):
            named = GPU_IN_TEXT.search(right)
            gpu = int(noted["gpu"]) if noted["gpu"] else int(named["gpu"]) if named else None
            note = (test or "deployment", gpu)
            notes[note] = f"{notes.get(note, '')} {right}".strip()[:SHOWN]
            if left.startswith("Error"):
                failed.append((row, *note))
        elif said:
            test = left or test
            note = None
            verdicts[said["verdict"]] += 1
            if said["verdict"] == "Fail":
                failed += [(row, test, n) for n in _numbers(said["gpus"])]
        elif whose:
            note = None
            if whose["verdict"] == "Fail":
                failed = [f for f in failed if f[1:] != (test, None)]  # the row above said it of the whole test
                failed.append((row, test, int(whose["gpu"])))
        elif left == "" and note is not None:
            notes[note] = (notes[note] + ("" if broken else " ") + found["right"].rstrip())[:SHOWN].replace("  ", " ")
        elif left:
            note = None
    seen: set[tuple[str, int | None]] = set()
    if len(failed) > MOST_FAILURES:
        line.leave_out("failures of a DCGM diagnostic")
    for row, name, gpu in failed[:MOST_FAILURES]:
        if (name, gpu) in seen:
            continue
        seen.add((name, gpu))
        says = notes.get((name, gpu)) or notes.get((name, None)) or ""
        if gpu is None and (named := GPU_IN_TEXT.search(says)):
            gpu = int(named["gpu"])
        yield row.event(**_failure(name, gpu, says), pid=None)
    told: dict[str, Detail] = {"version": version, **{k.lower(): n for k, n in verdicts.items()}}
    yield line.event("dcgm-diag", role="context", details={k: v for k, v in told.items() if v is not None}, pid=None)


# --- JSON -------------------------------------------------------------------------------------------------------------


def claims(head: bytes, name: str) -> bool:
    at = head.find(b"{")
    return at >= 0 and b'"DCGM' in head[at : at + 400] and b"Diagnostic" in head[at : at + 400]


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (x for x in value if isinstance(x, dict)) if isinstance(value, list) else ()


def _serials(data: Mapping[str, Any], body: Mapping[str, Any]) -> dict[int, str]:
    """DCGM's number of a GPU → its serial: under entity_groups (4.x), as a table at the top (3.x)."""
    found: dict[int, str] = {}
    for group in _dicts(data.get("entity_groups") or body.get("entity_groups")):
        if group.get("entity_group") == "GPU":
            for one in _dicts(group.get("entities")):
                if isinstance(one.get("entity_id"), int) and isinstance(one.get("serial_num"), str):
                    found[one["entity_id"]] = one["serial_num"][:60]
    listed = data.get("GPU Device Serials") or body.get("GPU Device Serials")
    for key, serial in listed.items() if isinstance(listed, dict) else ():
        if str(key).isdecimal() and isinstance(serial, str):
            found[int(str(key)[:6])] = serial[:60]
    return {k: v for k, v in found.items() if v.strip("0 ")}


def _warnings(result: Mapping[str, Any]) -> str:
    said = result.get("warnings") or result.get("warning") or ""
    if isinstance(said, str):
        return said
    return "; ".join(str(one.get("warning") or "") for one in _dicts(said))


@file_parser(title="DCGM diagnostic (JSON)", claims=claims)
def dcgm_diagnostic(stream: Stream) -> Iterator[Event | Problem]:
    raw = stream.stream.read(LARGEST)
    text = raw[raw.find(b"{") :].decode("utf-8", "replace")
    try:
        data, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        yield Problem(says="the DCGM diagnostic's JSON is cut or broken; nothing of it was used", source=stream.path)
        return
    body = next((v for k, v in data.items() if k.startswith("DCGM") and isinstance(v, dict)), None)
    if body is None:
        yield Problem(says="no results in the DCGM diagnostic's JSON", source=stream.path)
        return
    serials = _serials(data, body)
    verdicts: dict[str, int] = {}
    told = 0
    for category in _dicts(body.get("test_categories")):
        for test in _dicts(category.get("tests")):
            name = str(test.get("name") or "?")[:60]
            for result in _dicts(test.get("results")):
                status = str(result.get("status") or "?")[:20]
                verdicts[status.lower()] = verdicts.get(status.lower(), 0) + 1
                number = str(result.get("gpu_id", result.get("entity_id", "")))
                of_gpu = result.get("entity_group") in (None, "GPU")
                if status.lower() != "fail":
                    continue
                told += 1
                if told > MOST_FAILURES:
                    continue
                gpu = int(number) if re.fullmatch(r"\d{1,3}", number, re.ASCII) and of_gpu else None
                says = " ".join(_warnings(result).split())
                shown = (
                    f"{name}: {status}" + (f" - GPU {gpu}" if gpu is not None else "") + (f": {says}" if says else "")
                )
                yield Event(
                    evidence=Evidence(source=stream.path, line=None, text=visible(shown)),
                    **_failure(name, gpu, says, serials.get(gpu) if gpu is not None else None),
                )
    if told > MOST_FAILURES:
        says = f"{told - MOST_FAILURES:,} more failures in the DCGM diagnostic were counted and not read"
        yield Problem(says=says, source=stream.path)
    known = {k: n for k, n in verdicts.items() if k in ("pass", "fail", "warn", "skip")}
    shown = "DCGM diagnostic: " + ", ".join(f"{n} {k}" for k, n in sorted(known.items()))
    evidence = Evidence(source=stream.path, line=None, text=shown)
    yield Event(kind="dcgm-diag", role="context", evidence=evidence, details=dict(known))
    error = body.get("runtime_error") or data.get("runtime_error")
    if isinstance(error, str) and error:
        yield Problem(says=f"the DCGM diagnostic did not run: {visible(error)[:200]}", source=stream.path)
