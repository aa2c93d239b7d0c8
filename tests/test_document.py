"""The JSON document: the contract, what is cut and said to be cut, and the same bytes for the same input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from short_form import analyzed, cases, events, label, load

from nccl_forensics import __version__, catalog
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.text import language, moments, phrases
from nccl_forensics.text.moments import rfc3339

ROOT = Path(__file__).resolve().parents[1]
CASES = cases("rules")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@cache
def validator() -> Any:
    schema = json.loads((Path(catalog.__file__).parent / "incident.schema.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def built(case: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(document.build(analyzed(case))))
    return made


@pytest.mark.parametrize("path", CASES, ids=label)
def test_contract(path: Path) -> None:
    doc = built(load(path))
    assert [e.message[:200] for e in validator().iter_errors(doc)] == []
    paths = {row["path"] for row in doc["inputs"]}
    clocks = [c["clock"] for c in doc["clocks"]]
    assert len(set(clocks)) == len(clocks)
    for row in doc["events"]:
        assert row["source"] in paths
        assert (row["time"] is None) == (row["time_basis"] == "none")
        assert row["time"] is None or TIME.fullmatch(row["time"])
    times = [row["time"] for row in doc["events"] if row["time"]]
    assert times == sorted(times)
    for incident in doc["incidents"]:
        verdict = incident["verdict"]
        rows = doc["ranks"] if incident["id"] == doc.get("primary", 1) else incident["ranks"]
        assert set(verdict["culprit_ranks"]) | set(verdict["reporting_ranks"]) <= {r["rank"] for r in rows}
        assert {r["rank"] for r in rows if r["state"] == "culprit"} == set(verdict["culprit_ranks"])
        assert {a["cause"] for a in verdict["alternatives"]} <= set(catalog.load("causes"))
        assert all(a["why_not"] for a in verdict["alternatives"])


def test_the_schema_is_a_valid_schema_and_the_clients() -> None:
    schema = validator().schema
    jsonschema.Draft202012Validator.check_schema(schema)
    promised = ROOT / "tests" / "contract" / "incident.schema.json"
    assert schema == json.loads(promised.read_text(encoding="utf-8"))


def test_the_schema_refuses_what_is_none() -> None:
    doc = built(load(CASES[0]))
    for breakage in (
        {"schema": "other/1"},
        {"inputs": [{"path": "x"}]},
        {"incidents": [{"id": 0}]},
        {"events": [{"time": "yesterday"}]},
    ):
        assert list(validator().iter_errors({**doc, **breakage})), breakage


def test_who_made_it_and_how() -> None:
    found = analyzed(load(CASES[0]))
    tool = document.build(found, command="nccl-forensics analyze x", timezone="+02:00")["tool"]
    assert tool == {
        "name": "nccl-forensics",
        "version": __version__,
        "command": "nccl-forensics analyze x",
        "timezone": "+02:00",
    }
    assert set(document.build(found)["tool"]) == {"name", "version"}


def test_a_long_timeline_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"kind": "progress", "at": n, "what": "training step", "step": n} for n in range(50)]
    rows += [{"kind": "xid", "xid": 43, "at": n, "gpu": "0000:c1:00.0", "file": "kern.log"} for n in range(10, 20)]
    rows += [{"kind": "pg-abort", "rank": n, "at": 5} for n in range(30)]
    rows.append({"kind": "cuda-oom", "rank": 1, "at": 49.5, "requested_bytes": 1})
    monkeypatch.setattr(document, "MOST_EVENTS", 20)
    doc = built({"events": rows})
    kinds = [e["kind"] for e in doc["events"]]
    assert len(kinds) == 20
    assert kinds.count("xid") == 10, "an Xid is never cut for other lines"
    assert "cuda-oom" in kinds
    assert [e["time"] for e in doc["events"]] == sorted(e["time"] for e in doc["events"])
    assert any(p["says"].startswith("71 events") for p in doc["problems"])


def test_a_short_timeline_is_whole() -> None:
    doc = built({"events": [{"kind": "progress", "at": n, "step": n} for n in range(50)]})
    assert len(doc["events"]) == 50
    assert doc["problems"] == []


def test_fields_are_plain_and_unknown_is_left_out() -> None:
    (found,) = events(
        {"events": [{"kind": "pg-desync", "ranks_named": [1, 2], "says": None, "waited_ms": 7, "ok": True}]}
    )
    row = document.event(found)
    assert row["fields"] == {"ranks_named": [1, 2], "waited_ms": 7, "ok": True}
    assert row["time"] is None
    assert row["time_basis"] == "none"
    assert row["time_uncertainty_s"] is None
    assert not {"cause", "repeats", "boot", "key"} & set(row) - {"key"}


def test_a_time_without_a_year_is_null_everywhere() -> None:
    row = {"kind": "xid", "xid": 79, "at": "11-25 10:00:00", "gpu": "0000:c1:00.0", "file": "kern.log", "host": "n1"}
    doc = built({"events": [row]})
    assert doc["events"][0]["time"] is None
    assert doc["incidents"][0]["onset"] is None
    assert "1972" not in json.dumps(doc)


def test_evidence_says_each_claim_once_and_then_the_other_places() -> None:
    doc = built(load(next(p for p in CASES if p.stem == "firmware-119")))
    evidence = doc["incidents"][0]["verdict"]["evidence"]
    first = [e for e in evidence if e["weight"] is not None]
    assert first
    assert len({e["says"] for e in first}) == len(first)
    assert all(e["source"] and e["line"] for e in evidence if e["source"] != "fr/dump_rank_0")


HOSTILE = st.text(max_size=60) | st.sampled_from(
    ["<script>alert(1)</script>", "\x1b[2J", "\u202egpj", "\ud800", "a" * 5000]
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(text=HOSTILE, host=HOSTILE)
def test_any_text_of_a_log_makes_a_document(text: str, host: str) -> None:
    case = {
        "events": [
            {"kind": "python-exception", "rank": 1, "at": 5, "type": text, "message": text, "text": text},
            {
                "kind": "xid",
                "xid": 79,
                "at": 1,
                "gpu": "0000:c1:00.0",
                "host": host or "n1",
                "file": "kern.log",
                "name": text,
            },
        ]
    }
    doc = document.build(analyzed(case))
    assert json.loads(json.dumps(doc))["incidents"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["riser-xid79", "skipped-collective"])
def test_the_same_input_gives_the_same_bytes(name: str, here: Path) -> None:
    """In two processes with different hash seeds."""
    made = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        args = [sys.executable, "-m", "nccl_forensics", "analyze", str(ROOT / "samples" / name)]
        args += ["-o", f"r{seed}.html", "--json", "-", "--quiet"]
        done = subprocess.run(args, cwd=here, capture_output=True, timeout=120, env=env)
        assert done.returncode == 0, done.stderr
        made.append((done.stdout, (here / f"r{seed}.html").read_bytes()))
    assert made[0] == made[1]


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([0, 1, 2, 5], "ranks 0–2 and 5"),
        ([0, 1], "ranks 0 and 1"),
        ([2, 1, 2], "ranks 1 and 2"),
        (range(1024), "ranks 0–1023"),
        (range(0, 100, 2), "50 ranks between 0 and 98"),
    ],
)
def test_ranks_in_words(numbers: Any, said: str) -> None:
    assert phrases.ranks(numbers) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (12, "12.0 s"), (1800, "30 min 0 s"), (7500, "2 h 5 min"), (200_000, "2.3 days")],
)
def test_durations_in_words(seconds: float, said: str) -> None:
    assert phrases.duration(seconds) == said


@pytest.mark.parametrize(
    ("ns", "said", "moment"),
    [
        (None, None, None),
        (1_795_600_800_123_456_789, "2026-11-25T10:00:00.123456Z", "2026-11-25 10:00:00 UTC"),
        (63_072_000_000_000_000 + 86_400_000_000_000, None, "2 January 00:00:00 (year not known)"),
    ],
)
def test_times_in_words(ns: int | None, said: str | None, moment: str | None) -> None:
    assert rfc3339(ns) == said
    assert moments.moment(ns) == moment


def test_lists_and_counts_in_words() -> None:
    assert phrases.listing([]) == ""
    assert phrases.listing(["a"]) == "a"
    assert phrases.listing(["a", "b"]) == "a and b"
    assert phrases.listing(["a", "b", "c"]) == "a, b and c"
    assert phrases.count(1, "GPU") == "1 GPU"
    assert phrases.count(1024, "GPU") == "1,024 GPUs"
    assert phrases.count(2, "process", "processes") == "2 processes"
    assert phrases.count(2, "completion") == "2 completions"
    assert phrases.count(2, "process") == "2 processes"
    assert phrases.listing("abcde", most=5) == "a, b, c, d and e"
    assert phrases.listing("abcdef", most=4) == "a, b, c, d and 2 more"
    assert phrases.listing("abc", brief=True) == "a, b, c"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([], "no rank"),
        ([3, 3], "rank 3"),
        ([0, 1, 2, 5], "ranks 0–2, 5"),
        (range(512), "ranks 0–511 (512 ranks)"),
        (range(0, 60, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 18 more (30 ranks)"),
    ],
)
def test_ranks_in_brief(numbers: Any, said: str) -> None:
    assert phrases.ranks(numbers, brief=True) == said


def test_brief_phrases_are_said_in_the_language_too() -> None:
    with language.speaking("de"):
        assert language.said(phrases.duration(200_000, brief=True)) == "2.3 Tage"
        assert language.said(phrases.ranks(range(6), brief=True)) == "Ranks 0–5 (6 Ranks)"
        assert language.said(phrases.listing("abcd", most=2)) == "a, b und 2 weitere"


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (5_250_000_000_000, "5250.0 GB")]
)
def test_sizes(count: int, said: str) -> None:
    assert phrases.size(count) == said


@pytest.mark.parametrize(
    ("at_us", "error_s", "said"),
    [
        (1_795_600_800_123_456, 0.5, "2026-11-25 10:00:00.123"),
        (1_795_600_800_123_456, moments.TO_THE_SECOND, "2026-11-25 10:00:00"),
        (1_795_600_800_123_456, None, "2026-11-25 10:00:00.123"),
        (1_795_600_800_000_000, None, "2026-11-25 10:00:00"),
        (63_158_400_000_000, None, "01-02 00:00:00"),
    ],
)
def test_times_in_cells(at_us: int, error_s: float | None, said: str) -> None:
    assert moments.timestamp(at_us, error_s) == said


def test_an_event_on_a_clock_whose_zone_nothing_tells_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "2026-03-10 21:15:49,000 INFO step 1 | loss 2.3060\nRuntimeError: CUDA error: unspecified launch failure\n"
        "2026-03-10 21:15:50,000 ERROR RuntimeError: CUDA error: unspecified launch failure\n",
        encoding="utf-8",
    )
    (tmp_path / "kern.log").write_text(
        "2026-03-10T21:15:48+00:00 n1 kernel: NVRM: Xid (PCI:0000:61:00): 31, pid=1, name=python3, MMU Fault\n",
        encoding="utf-8",
    )
    doc = document.build(analyze([str(tmp_path)]))
    said = {(e["kind"], e.get("zone_not_written")) for e in doc["events"] if e["time"]}
    assert ("xid", None) in said
    assert any(unzoned for kind, unzoned in said if kind != "xid")
