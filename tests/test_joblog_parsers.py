"""The parsers of job logs, against a folder of logs with the events that they must give.

tests/cases/parsers/NAME/CASE.log with CASE.json beside it: one object for each event, without what is unknown. To write
the JSON anew: ACCEPT=1 pytest tests/test_joblog_parsers.py; read it before it is committed.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_evidence_parsers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import RECORDED

from nccl_forensics.lines.plugins import Parser
from nccl_forensics.lines.scan import Scanner
from nccl_forensics.model import Event, Problem

HERE = Path(__file__).parent / "cases" / "parsers"
MODULES = (
    "process_group_nccl",
    "process_group_gloo",
    "store_rendezvous",
    "nccl_library",
    "torchrun",
    "launch_scripts",
    "schedulers",
    "python_traceback",
    "cuda",
    "storage",
    "data_loading",
    "progress",
    "settings",
)
"""The oldest; every other parser whose folder of cases no other test reads is added."""
ELSEWHERE = frozenset(
    {"joblogs", "healthy", "xid", "kernel", "gpu_inventory", "bug_report", "fabric_manager"}
    | set(test_evidence_parsers.NAMES)
)
MODULES += tuple(sorted(x.name for x in HERE.iterdir() if x.is_dir() and x.name not in {*MODULES, *ELSEWHERE}))
IN_LOGS = tuple(sorted(x.parent.name for x in HERE.glob("*/in_logs")))
"""Parsers of files of their own, whose contents may stand in a job's log, too."""
CASES = sorted(x for name in (*MODULES, "healthy") for x in (HERE / name).glob("*.log")) + sorted(
    x for name in IN_LOGS for x in (HERE / name / "in_logs").glob("*.log")
)
EXPECTED = sorted((HERE / "joblogs").glob("*.json"))


def module(name: str) -> Any:
    return importlib.import_module(f"nccl_forensics.parsers.{name}")


def found_in(names: Iterable[str]) -> list[Parser]:
    found: list[Parser] = []
    for name in names:
        found += [x for x in vars(module(name)).values() if isinstance(x, Parser) and x not in found]
    return found


PARSERS = found_in(MODULES + IN_LOGS)
BY_LITERAL: dict[bytes, list[Parser]] = {}
for one in PARSERS:
    for literal in one.literals:
        BY_LITERAL.setdefault(literal, []).append(one)
SCANNER = Scanner(BY_LITERAL)


def read(path: str, data: bytes) -> Iterator[Event]:
    """All events of a file, as the pipeline finds them."""
    for line in SCANNER.lines(path, io.BytesIO(data)):
        for parser in dict.fromkeys(p for hit in sorted(line.hits) for p in BY_LITERAL[hit]):
            yield from parser.read(line)


def as_json(event: Event) -> dict[str, Any]:
    row: dict[str, Any] = {"line": event.evidence.line, "kind": event.kind, "role": event.role}
    for name in ("cause", "rank", "local_rank", "host", "pid", "gpu_pci", "attempt"):
        if (value := getattr(event, name)) is not None:
            row[name] = value
    if event.stamp is not None and event.stamp.wall_ns is not None:
        row["wall_ns"] = event.stamp.wall_ns
    row["details"] = {
        k: list(v) if isinstance(v, tuple) else v for k, v in event.details.items() if v not in (None, ())
    }
    return row


@pytest.mark.parametrize("case", CASES, ids=lambda x: "-".join([*x.relative_to(HERE).parent.parts, x.stem]))
def test_case(case: Path) -> None:
    seen = [as_json(e) for e in read(case.name, case.read_bytes())]
    wanted = case.with_suffix(".json")
    if os.environ.get("ACCEPT"):
        wanted.write_text(
            "[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in seen) + "\n]\n", encoding="utf-8"
        )
    assert seen == json.loads(wanted.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", [x for x in CASES if x.parent.name == "healthy"], ids=lambda x: x.stem)
def test_healthy_logs_and_fixed_texts_accuse_nobody(case: Path) -> None:
    assert [e.kind for e in read(case.name, case.read_bytes()) if e.role in ("cause", "symptom")] == []


@pytest.mark.parametrize("case", [x for x in CASES if x.stem == "near-misses"], ids=lambda x: x.parent.name)
def test_near_misses_give_nothing(case: Path) -> None:
    assert [e.kind for e in read(case.name, case.read_bytes())] == []


@pytest.mark.parametrize("wanted", EXPECTED, ids=lambda x: x.stem)
def test_shared_case(wanted: Path) -> None:
    """`causes`: all events of role cause; `reporters`: ranks of the timeouts (in the group where no header tells);
    `has`: events that must be there, with at least these fields."""
    folder = RECORDED / "joblogs" / wanted.stem
    expected = json.loads(wanted.read_text(encoding="utf-8"))
    events = [
        (path.name, e)
        for path in sorted(folder.iterdir())
        if path.name != "expected.json"
        for e in read(path.name, path.read_bytes())
    ]
    causes = [[name, e.evidence.line, e.kind, e.cause, e.rank, e.host] for name, e in events if e.role == "cause"]
    assert causes == expected["causes"]
    reporters = {
        e.rank if e.rank is not None else e.details["group_rank"]
        for _, e in events
        if e.kind == "watchdog-timeout" and not e.details["repeated"]
    }
    assert sorted(reporters) == expected["reporters"]
    rows = [as_json(e) | {"file": name} for name, e in events]
    for want in expected["has"]:
        details = want.get("details", {})
        fields = {k: v for k, v in want.items() if k != "details"}
        assert any(
            fields.items() <= {k: v for k, v in row.items() if k != "details"}.items()
            and all(row["details"].get(k) == v for k, v in details.items())
            for row in rows
        ), want


def test_an_example_is_read_across_its_wrapped_lines() -> None:
    path = RECORDED / "seed" / "xid79-and-timeout" / "input" / "train.log"
    (event,) = [e for e in read(path.name, path.read_bytes()) if e.kind == "watchdog-timeout"]
    assert event.details["seq"] == 842
    assert event.details["waited_ms"] == 1_800_321
    assert event.details["group_rank"] == 3
    assert event.rank is None


# --- error.json -------------------------------------------------------------------------------------------------------


class File:
    """What a file parser is given."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.name = path, path.rsplit("/", 1)[-1]
        self.size, self.mtime_ns, self.stream = len(data), None, io.BytesIO(data)


STACK = 'Traceback (most recent call last):\n  File "/srv/app/train.py", line 7, in save\n    f.write(x)\n'
BODY = {
    "message": {
        "message": "OSError: [Errno 28] No space left on device: '/data/x.pt'",
        "extraInfo": {"py_callstack": STACK, "timestamp": "1795963542"},
    }
}


def test_error_json() -> None:
    data = json.dumps(BODY).encode()
    parser = module("error_json").error_json
    assert parser.claims(data[:4096], "error.json")
    (event,) = parser.read(File("logs/attempt_2/3/error.json", data))
    assert (event.role, event.cause) == ("cause", "storage_write_failed")
    assert (event.local_rank, event.attempt) == (3, 2)
    assert (event.stamp.wall_ns, event.stamp.zone_s) == (1_795_963_542 * 10**9, 0)
    assert event.details["innermost"] == "save /srv/app/train.py:7"


@pytest.mark.parametrize("cut", [30, 80, 150])
def test_error_json_that_was_cut_is_a_problem_and_is_still_used(cut: int) -> None:
    data = json.dumps(BODY).encode()[:cut]
    found = list(module("error_json").error_json.read(File("error.json", data)))
    assert isinstance(found[0], Problem)
    assert all(isinstance(x, Problem) or x.details["type"] in ("OSError", "Exception") for x in found)


@pytest.mark.parametrize("text", [b"{}", b'{"message": []}', b'{"message": "x: y"}', b"[" * 100_000, b"\xff\xfe\x00"])
def test_error_json_of_any_shape_raises_nothing(text: bytes) -> None:
    list(module("error_json").error_json.read(File("error.json", text)))


def test_error_json_does_not_claim_a_flight_recorder_dump() -> None:
    assert not module("error_json").claims(b'{"version": "2.10", "pg_config": {}}', "comm_lib_trace_rank_0.json")


# --- hostile input ----------------------------------------------------------------------------------------------------

FRAGMENTS = (
    *("a", "1", " ", "[", "/", "'", "|", "│", "-", "a.b", "1:2", "1-", "10,", "A.", "  | "),
    *("[Rank 1] ", "[PG ID 0 PG GUID 0(", "WorkNCCL(SeqNum=1, ", "comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1 "),
    *("node: task ", "100%|", "1/2 [", "saving ", "checkpoint ", "Error: ", "Process 1 has 1.0 GiB", "1.0 GiB ", "x="),
    *("Rank 0 is running collective: CollectiveFingerPrint(", "loss ", "step 1", "from rank", '{"', "host:1:1 [0] "),
)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda p: p.name)
def test_a_hostile_line_of_16_kib_costs_little(parser: Parser) -> None:
    """Measured: below 5 ms. The bar is far above it, for a busy machine; a runaway pattern takes seconds."""
    slowest = 0.0
    for fragment in FRAGMENTS:
        body = (fragment * 16_384)[:16_000].encode()
        data = parser.literals[0] + body + b"\n" + body + parser.literals[-1] + b"\n"
        for line in SCANNER.lines("hostile.log", io.BytesIO(data)):
            best = 1e9
            for _ in range(2):
                began = time.process_time()
                list(parser.read(line))
                best = min(best, time.process_time() - began)
            slowest = max(slowest, best)
    assert slowest < 0.25


WORDS = st.sampled_from(
    [
        *(x.decode() for x in BY_LITERAL),
        *FRAGMENTS,
        "[rank3]:",
        "[default0]:",
        "\r",
        "\n",
        "\n",
        '  File "a.py", line 1, in f\n',
        "\x00",
        "\x1b[31m",
        "é",
        "ValueError: x",
    ]
)


@given(st.lists(WORDS, max_size=30))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_raises(words: list[str]) -> None:
    for event in read("any.log", "".join(words).encode()):
        assert len(json.dumps(as_json(event))) < 100_000


def test_a_line_without_a_literal_gives_nothing() -> None:
    """Each parser's literals stand in all of its matches; those that take every line with a literal are left out.

    So are the one that reads only the lines behind, and `progress`, whose literals choose what is worth a look.
    """
    plain = next(Scanner([b"plain"]).lines("x", io.BytesIO(b"plain words\n")))
    choosy = [p for p in PARSERS if p.name not in ("pg_stack", "progress") and not list(p.read(plain))]
    assert len(choosy) > 40
    for case in CASES:
        for line in Scanner([b"\n", b" "]).lines(case.name, io.BytesIO(case.read_bytes())):
            for parser in choosy:
                if not any(x in line.raw for x in parser.literals):
                    line.hits = frozenset()
                    assert not list(parser.read(line)), (case, line.number, parser.name)


def test_bus_ids_become_pci_addresses() -> None:
    bus_id = module("nccl_library").bus_id
    assert [bus_id(x) for x in ("c5000", "101c0", "3b000", "10007000", "1000b5000")] == [
        "0000:c5:00.0",
        "0000:10:1c.0",
        "0000:3b:00.0",
        "0100:07:00.0",
        "1000:b5:00.0",
    ]
    assert bus_id("c500f") is None


def test_patterns_name_no_unbounded_repeats_of_repeats() -> None:
    """A cheap guard: `(x+)+` and its kin."""
    for name in MODULES:
        for value in vars(module(name)).values():
            if isinstance(value, re.Pattern):
                assert not re.search(r"[+*]\)[+*]", value.pattern), value.pattern
