"""The trace for ui.perfetto.dev: well formed whatever the incident, arrows from slice to slice, nothing drawn twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_docs
from short_form import analyzed, cases, label, load
from test_cli import NAMES, ROOT, ended, run

from nccl_forensics.show import document
from nccl_forensics.show.trace import trace

Row = dict[str, Any]
FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "i": {"ph", "s", "name", "cat", "ts", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"},
    "s": {"ph", "name", "cat", "id", "ts", "pid", "tid"},
    "t": {"ph", "bp", "name", "cat", "id", "ts", "pid", "tid"},
    "f": {"ph", "bp", "name", "cat", "id", "ts", "pid", "tid"},
}
"""What the trace event format asks for, phase by phase."""


def checked(text: str) -> tuple[list[Row], dict[tuple[int, int], tuple[str, str]]]:
    """The rows of a trace that is well formed, and (host, thread) by (pid, tid)."""
    rows: list[Row] = json.loads(text)["traceEvents"]
    for row in rows:
        assert row.keys() == FIELDS[row["ph"]]
        assert isinstance(row["pid"], int)
        assert isinstance(row["tid"], int)
    hosts = {r["pid"]: r["args"]["name"] for r in rows if r["name"] == "process_name"}
    names = {(r["pid"], r["tid"]): (hosts[r["pid"]], r["args"]["name"]) for r in rows if r["name"] == "thread_name"}
    assert len(set(names.values())) == len(names)
    assert len({tid for _, tid in names}) == len(names), "thread ids are unique"
    timed = [r for r in rows if r["ph"] != "M"]
    assert all((r["pid"], r["tid"]) in names for r in timed)
    assert all(isinstance(r["ts"], int) and r["ts"] >= 0 for r in timed)
    assert [r["ts"] for r in timed] == sorted(r["ts"] for r in timed)
    _slices_nest(timed)
    _arrows_join_slices(timed)
    return rows, names


def _slices_nest(timed: list[Row]) -> None:
    """Viewers drop a slice that overlaps another one of its thread."""
    open_: dict[int, list[int]] = {}
    for row in timed:
        if row["ph"] == "X":
            assert row["dur"] >= 0
            ends = open_.setdefault(row["tid"], [])
            while ends and ends[-1] <= row["ts"]:
                ends.pop()
            assert not ends or row["ts"] + row["dur"] <= ends[-1]
            ends.append(row["ts"] + row["dur"])


def _arrows_join_slices(timed: list[Row]) -> None:
    begun: set[tuple[int, int]] = set()
    arrows: dict[int, list[str]] = {}
    for row in timed:
        if row["ph"] == "X":
            begun.add((row["tid"], row["ts"]))
        elif row["ph"] in "stf":
            assert (row["tid"], row["ts"]) in begun, "its slice stands before it"
            arrows.setdefault(row["id"], []).append(row["ph"])
    for phases in arrows.values():
        assert len(phases) >= 2
        assert phases == ["s", *"t" * (len(phases) - 2), "f"]


def arrows(text: str) -> dict[str, list[tuple[str, ...]]]:
    """Name of the arrow → its ways, each as 'thread: slice'."""
    rows, names = checked(text)
    slices: dict[tuple[int, int], str] = {}
    ways: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        if row["ph"] == "X":
            slices[row["tid"], row["ts"]] = row["name"]
        elif row["ph"] in "stf":
            thread = names[row["pid"], row["tid"]][1]
            ways.setdefault((row["name"], row["id"]), []).append(f"{thread}: {slices[row['tid'], row['ts']]}")
    found: dict[str, list[tuple[str, ...]]] = {}
    for (name, _), way in ways.items():
        found.setdefault(name, []).append(tuple(way))
    return found


@pytest.mark.parametrize("path", cases("rules"), ids=label)
def test_every_case_makes_a_well_formed_trace(path: Path) -> None:
    doc = document.build(analyzed(load(path)))
    rows, _ = checked(trace(doc))
    drawn = sum(r["ph"] == "i" for r in rows)
    other = json.loads(trace(doc))["otherData"]
    assert drawn + other["events_without_a_time"] + other["events_farther_off"] == len(doc["events"])


@pytest.mark.parametrize("made", report_docs.ALL.values(), ids=list(report_docs.ALL))
def test_every_document_makes_a_well_formed_trace(made: Callable[[], Any]) -> None:
    text = trace(made())
    checked(text)
    assert text == trace(json.loads(json.dumps(made()))), "the same document gives the same bytes"
    assert all(c >= " " or c == "\n" for c in text)


@pytest.mark.parametrize("name", NAMES)
def test_samples(here: Path, name: str) -> None:
    ended(run("analyze", ROOT / "samples" / name, "--perfetto", "t.json", "--json", "d.json", "--quiet"), 0)
    text = (here / "t.json").read_text(encoding="utf-8")
    rows, names = checked(text)
    doc = json.loads((here / "d.json").read_text(encoding="utf-8"))
    assert text == trace(doc)
    assert {h["name"] for h in doc["hosts"]} <= {host for host, _ in names.values()}
    assert {f"rank {r['rank']}" for r in doc["ranks"]} <= {thread for _, thread in names.values()}
    assert all("time_uncertainty_s" in r["args"] for r in rows if r["ph"] == "i")


def test_from_the_cause_to_each_abort_and_from_each_waiter_to_the_culprit(here: Path) -> None:
    ended(run("analyze", ROOT / "samples" / "riser-xid79", "--perfetto", "t.json", "--quiet"), 0)
    ways = arrows((here / "t.json").read_text(encoding="utf-8"))
    waiters = (0, 1, 2, 3, 4, 5, 7)
    assert sorted(ways["cause to abort"]) == [
        (
            "rank 6: GPU fell off the bus",
            f"rank {r}: allreduce no. 1682",
            f"rank {r}: timeout",
            f"rank {r}: process taken down by its watchdog",
        )
        for r in waiters
    ]
    assert sorted(ways["waits for"]) == [
        (f"rank {r}: allreduce no. 1682", "rank 6: ranks 0–5, 7 (7 ranks) wait for it") for r in waiters
    ]


def test_several_incidents_have_each_its_own_row() -> None:
    rows, names = checked(trace(report_docs.two_incidents()))
    shown = [(names[r["pid"], r["tid"]][1], r["name"][:2]) for r in rows if r["ph"] == "X" and r["pid"] == 1]
    assert shown == [("incident 1", "1:"), ("incident 2", "2:")]


def test_an_event_of_last_week_does_not_stretch_the_picture() -> None:
    doc = report_docs.workstation()
    before = json.loads(trace(doc))["otherData"]
    doc["events"].insert(0, report_docs.event(-700_000, "link-down", "cause", "link down", "kern.log", 3, key=True))
    after = json.loads(trace(doc))["otherData"]
    assert after == before | {"events_farther_off": before["events_farther_off"] + 1}


def test_without_an_incident_every_event_is_drawn() -> None:
    doc = report_docs.healthy()
    assert sum(r["ph"] == "i" for r in checked(trace(doc))[0]) == len(doc["events"])
