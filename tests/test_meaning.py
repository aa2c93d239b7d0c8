"""What causes, kinds and details mean is data: what code asks for is there, and what is there is asked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import field_names
import pytest
from recorded import RECORDED, answers

from nccl_forensics import catalog
from nccl_forensics.catalog import KernelEntry, causes, kernel_entries, kinds, tables, xids
from nccl_forensics.lines.read import read
from nccl_forensics.pipeline import analyze
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import findings

ROOT = Path(__file__).resolve().parent.parent
CODE = {p: ast.parse(p.read_text(encoding="utf-8")) for p in sorted((ROOT / "nccl_forensics").rglob("*.py"))}
PARSERS = {p: ast.parse(p.read_text(encoding="utf-8")) for p in sorted((ROOT / "parsers").glob("*.py"))}
READS = frozenset({"of", "on", "once_of"})
"""Methods of a case that are asked for kinds."""
OPERATIONS = frozenset({"send", "recv", "barrier", "allreduce", "coalesced"})
"""Kinds of calls in dumps, which have a `kind` of their own."""
SAID_OF_A_JOB = frozenset({"pulse", "setting", "repeat-offender", "restarts", "stable"}) | {
    *("recorded-end", "recorded-entry"),
}
"""Kinds of rows beside the cause, which steps after the parsers write."""


def texts(node: ast.AST) -> Iterator[str]:
    """All text constants below."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def called(trees: dict[Path, ast.Module], name: str) -> Iterator[ast.Call]:
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name in (
                getattr(node.func, "id", None),
                getattr(node.func, "attr", None),
            ):
                yield node


def kinds_that_code_reads() -> set[str]:
    """Kinds that are asked for by name: `case.of("xid")`, `event.kind == "xid"`, `event.kind in ("xid", "sxid")`."""
    found: set[str] = set()
    for name in READS:
        for call in called(CODE, name):
            found.update(x for argument in call.args for x in texts(argument) if re.fullmatch(r"[a-z][a-z0-9-]+", x))
    for tree in CODE.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "kind":
                found.update(x for one in node.comparators for x in texts(one))
    return found - OPERATIONS


def test_every_kind_that_code_reads_is_one() -> None:
    assert len(kinds_that_code_reads()) > 60
    assert kinds_that_code_reads() - kinds().keys() == set()


def test_every_kind_is_emitted_by_something() -> None:
    emitted = {x for tree in PARSERS.values() for x in texts(tree)} | {e.id for e in kernel_entries()} | SAID_OF_A_JOB
    assert kinds().keys() - emitted == set()


@pytest.mark.parametrize(("of", "ask"), [("causes", "causes_marked"), ("kinds", "kinds_marked")])
def test_every_mark_is_asked_for_and_said_of_something(of: str, ask: str) -> None:
    there = set(catalog.load("marks")[of])
    asked = {x for call in called(CODE | PARSERS, ask) for argument in call.args for x in texts(argument)}
    assert asked == there
    rows = causes() if of == "causes" else kinds()
    assert there - {mark for row in rows.values() for mark in row.marks} == set()
    assert all(says.strip() for says in catalog.load("marks")[of].values())


def test_a_mark_that_is_not_there_is_an_error() -> None:
    with pytest.raises(catalog.CatalogError, match=r"marks\.toml, \[kinds\]: there is no mark 'of-failures'"):
        catalog.kinds_marked("of-failures")
    with pytest.raises(catalog.CatalogError, match=r"marks\.toml, \[causes\]"):
        catalog.causes_marked("notices")
    with pytest.raises(catalog.CatalogError, match="nobody is called"):
        catalog.kinds_by("nobody")


def test_the_names_of_details_are_those_that_the_catalogues_declare() -> None:
    assert field_names.MODULE.read_text(encoding="utf-8") == field_names.source(), "run python tests/field_names.py"


TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str, "ints": int, "strs": str}


def is_of(value: object, types: frozenset[str]) -> bool:
    """Is a detail of one of these types (tables.TYPES)?"""
    if isinstance(value, tuple):
        return any(name in types and all(isinstance(x, TYPES[name]) for x in value) for name in ("ints", "strs"))
    if isinstance(value, bool):
        return "bool" in types
    return value is None or any(isinstance(value, TYPES[name]) for name in types - {"ints", "strs", "bool"})


PILES = [p.parent for p in answers()] + sorted((RECORDED.parent / "parsers").iterdir())


@pytest.mark.parametrize("pile", PILES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_what_parsers_write_is_what_is_declared(pile: Path) -> None:
    odd = set()
    for parsed in read([str(pile)]):
        for event in parsed.events:
            if event.kind not in kinds():
                odd.add(f"{event.kind}: no kind of this name is in kinds.toml or kernel.toml")
                continue
            declared = field_names.of_kind(event.kind)
            for name, value in event.details.items():
                if name not in declared or not is_of(value, declared[name]):
                    odd.add(f"{event.kind}: fields.{name} = {value!r} is not declared so")
    assert odd == set()


# --- a signature that speaks for a cause is weighed -------------------------------------------------------------------

WATCHDOGS = "".join(
    f"[rank{rank}]:[E1125 10:30:00.{rank:06d}000 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for"
    " 600021 milliseconds before timing out.\n"
    for rank in range(7)
)
WITNESSED = ("kernel", "journal", "syslog")
"""Logs whose lines have a time of their own; the others are states in reports."""
SPEAKING = [e for e in kernel_entries() if e.role == "cause" and e.cause and "read-elsewhere" not in e.marks]


def beside_a_watchdog(folder: Path, entry: KernelEntry, example: str) -> Case:
    """The example on a host of its own, five seconds after the ranks began to wait for one of them."""
    message = re.sub(r"^(?:<\d+>)?\[ *\d+\.\d+\] ", "", example)
    by = "" if re.match(r"[\w.-]+(?:\[\d+\])?: ", message) and entry.log != "kernel" else "kernel: "
    text = f"2026-11-25T10:20:05.000000+00:00 node-0 {by}{message}\n" if entry.log in WITNESSED else example + "\n"
    (folder / "node-0.log").write_text(text, encoding="utf-8")
    (folder / "job.log").write_text(WATCHDOGS, encoding="utf-8")
    found = analyze([str(folder)], zone=timezone.utc, year=2026)
    assert found.aligned is not None
    return Case(
        events=found.events, known=found.known, collectives=found.collectives, aligned=found.aligned, rows=found.rows
    )


@pytest.mark.parametrize("entry", SPEAKING, ids=lambda entry: entry.id)
def test_a_signature_beside_a_watchdog_becomes_a_finding_with_its_subject(entry: KernelEntry, tmp_path: Path) -> None:
    case = beside_a_watchdog(tmp_path, entry, entry.examples[0])
    (event,) = case.of(entry.id)[:1] or (None,)
    assert event is not None, "its example is not read beside a job's log"
    if event.role == "context":
        pytest.skip("this example is harmless")
    told = [f for f in findings(case) if f.cause == event.cause and any(e.kind == entry.id for e in f.events)]
    assert told, "nobody weighs it"
    if event.host is not None:
        assert any(event.host in f.hosts for f in told)
    if event.gpu_pci is not None:  # of a port above a card, the words name it
        assert any(event.gpu_pci in {g.pci for g in f.gpus} or event.gpu_pci in f.says for f in told)


# --- errors of the catalogues -----------------------------------------------------------------------------------------

CAUSE = {"title": "T", "family": "gpu", "near": []}
ENTRY = {
    "id": "x-y",
    "family": "storage",
    "log": "kernel",
    "needles": ["four"],
    "regex": "four",
    "example": ["four"],
    "meaning": "M.",
    "role": "symptom",
    "indicts": "disk",
    "subject": "",
    "severity": "error",
    "cause": "",
    "advice": "A.",
    "seen": "real",
}
KIND = {"title": "t", "by": "job"}
XID = {"number": 1, "short": "s", "role": "cause", "severity": "fatal", "category": "c", "scope": "gpu"}
WRONG = [
    (
        "causes",
        {"a_b": CAUSE | {"family": "gpuu"}},
        r"causes\.toml, \[a_b\]: family = 'gpuu' is none of 'gpu', 'host'",
    ),
    ("causes", {"a_b": CAUSE | {"near": ["zz"]}}, r"causes\.toml, \[a_b\]: near = 'zz' is none of 'a_b'"),
    ("causes", {"a_b": CAUSE | {"marks": ["takes-gpu"]}}, r"causes\.toml, \[a_b\]: marks = 'takes-gpu' is none of"),
    ("causes", {"a_b": CAUSE | {"shared": "no"}}, r"causes\.toml, \[a_b\]: shared = 'no' is no bool"),
    ("causes", {"a_b": CAUSE | {"strikes": "rank"}}, r"causes\.toml, \[a_b\]: there is no column 'strikes'"),
    ("causes", {"a_b": {"family": "gpu", "near": []}}, r"causes\.toml, \[a_b\]: the column 'title' is missing"),
    ("causes", {"a_b": CAUSE | {"gives_way_to": ["a_b"]}}, r"causes\.toml, \[a_b\]: it gives way to itself"),
    ("kernel", {"entry": [ENTRY | {"role": "couse"}]}, r"kernel\.toml, entry 'x-y': role = 'couse' is none of 'cause'"),
    ("kernel", {"entry": [ENTRY | {"indicts": "gpux"}]}, r"kernel\.toml, entry 'x-y': indicts = 'gpux' is none of"),
    ("kernel", {"entry": [ENTRY | {"severity": "bad"}]}, r"kernel\.toml, entry 'x-y': severity = 'bad' is none of"),
    ("kernel", {"entry": [ENTRY | {"cause": "gpu_lost"}]}, r"kernel\.toml, entry 'x-y': cause = 'gpu_lost' is none of"),
    ("kernel", {"entry": [ENTRY | {"over": "x-z"}]}, r"kernel\.toml, entry 'x-y': over = 'x-z' is none of"),
    ("kernel", {"entry": [ENTRY | {"needle": "four"}]}, r"kernel\.toml, entry 'x-y': there is no column 'needle'"),
    ("kernel", {"entry": [ENTRY, ENTRY]}, r"kernel\.toml, entry 'x-y': there are two of this id"),
    ("kernel", {"entry": [ENTRY | {"fields": {"n": "number"}}]}, r"kernel\.toml, entry 'x-y': fields\.n = 'number'"),
    ("kinds", {"a-b": KIND | {"by": "jobs"}}, r"kinds\.toml, \[a-b\]: by = 'jobs' is none of 'any', 'host'"),
    ("kinds", {"a-b": KIND | {"marks": ["notice"]}}, r"kinds\.toml, \[a-b\]: marks = 'notice' is none of"),
    (
        "kinds",
        {"a-b": KIND | {"fields": {"n": "integer"}}},
        r"kinds\.toml, \[a-b\]: fields\.n = 'integer' is none of int",
    ),
    ("kinds", {"a-b": {"by": "job"}}, r"kinds\.toml, \[a-b\]: the column 'title' is missing"),
    ("kinds", {"aer-corrected": KIND}, r"kinds\.toml, \[aer-corrected\]: kernel\.toml has an entry of this id"),
    ("xid", {"xid": [XID | {"role": "couse"}]}, r"xid\.toml, xid 1: role = 'couse' is none of cause"),
    ("xid", {"xid": [XID | {"supports": "gpu_lost"}]}, r"xid\.toml, xid 1: supports = 'gpu_lost' is none of"),
    ("xid", {"xid": [XID | {"scope": "card"}]}, r"xid\.toml, xid 1: scope = 'card' is none of"),
    ("xid", {"xid": [XID, XID]}, r"xid\.toml, xid 1: there are two of this number"),
]


@pytest.mark.parametrize(("file", "table", "says"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_misspelt_is_an_error_that_names_the_entry(
    file: str, table: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tables.load
    for module in ("cause", "signature", "kind", "xid"):
        monkeypatch.setattr(f"nccl_forensics.catalog.{module}.load", lambda name: table if name == file else real(name))
    reader = {"causes": causes, "kernel": kernel_entries, "kinds": kinds, "xid": xids}[file]
    with pytest.raises(catalog.CatalogError, match=says):
        reader.__wrapped__()
