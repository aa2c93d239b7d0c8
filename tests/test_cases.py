"""Every run of the bundled incidents, and of the shared ones where they are here, judged by their expected.json.

A run is a list of a case's files given together. `SHORT` names the runs that are not right yet, and why; it must match
exactly: a run that becomes right is taken off the list. No run may be confidently wrong, listed or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from judging import SURE, judged
from recorded import Run, all_runs, doc_of

from nccl_forensics import catalog
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.when.zones import parse_zone

SHORT = {
    "fr/p2p-recv-wrong-peer fr-json": "JSON dumps of this backend name no peers and have no stacks: a send to "
    "the wrong rank and a receive from it look alike, so nobody is named",
    "fr/sigkill-dump-missing fr": "two ranks left no dump and nothing tells them apart: both stay open",
    "fr/sigkill-dump-missing fr-json": "as with the pickled dumps",
}


RUNS = all_runs()
runs = pytest.mark.parametrize("run", [pytest.param(r, id=r.name) for r in RUNS])


@cache
def validator() -> Any:
    schema = json.loads((Path(catalog.__file__).parent / "incident.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


# --- the judge judged -------------------------------------------------------------------------------------------------


def _doc(cause: str = "gpu_off_bus", ranks: Iterable[int] = (3,), confidence: float = 0.9) -> dict[str, Any]:
    verdict = {"cause": cause, "culprit_ranks": list(ranks), "confidence": confidence, "culprit_hosts": ["n1"]}
    verdict |= {"culprit_gpus": [{"pci": "0000:c1:00.0"}], "reporting_ranks": [0, 1]}
    return {"incidents": [{"verdict": verdict, "collective": {"seq": 5}}], "events": []}


def _and(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**one, "incidents": one["incidents"] + other["incidents"]}


EXPECT = {"ranks": [3], "host": "n1", "gpus": ["C1:00.0"], "seq": 5, "reporting_ranks": [0], "must_not_blame": [0]}


@pytest.mark.parametrize(
    ("doc", "expect", "amiss", "sure"),
    [
        (_doc(), EXPECT, 0, 0),
        (_doc(ranks=[2]), EXPECT, 2, 1),
        (_doc(ranks=[2], confidence=0.5), EXPECT, 1, 0),
        (_doc(ranks=[0, 3]), EXPECT, 3, 1),
        (_doc(cause="nvlink"), EXPECT, 2, 1),
        (_doc(), {**EXPECT, "seq": 6, "reporting_ranks": [2]}, 2, 0),
        (_doc(), {**EXPECT, "host": "n2"}, 2, 1),
        (_doc(confidence=0.7), {**EXPECT, "host": "n2", "gpus": ["0000:41:00.0"]}, 2, 0),
        (_doc(), {**EXPECT, "gpus": ["0000:41:00.0"]}, 2, 1),
        (_doc(), {**EXPECT, "ranks": None}, 1, 1),
        (_doc(ranks=[]), {**EXPECT, "ranks": None}, 0, 0),
        (_and(_doc(), _doc(ranks=[2], confidence=0.85)), EXPECT, 1, 1),
        (_and(_doc(), _doc(ranks=[2], confidence=0.5)), EXPECT, 0, 0),
        (_doc(), {"incident": False}, 1, 1),
        (_doc(), {"open": True}, 1, 1),
        (_doc(confidence=0.7), {"open": True}, 0, 0),
        ({"incidents": [], "events": []}, EXPECT, 1, 0),
        ({"incidents": [], "events": []}, {"incident": False}, 0, 0),
        (_doc(), {"xids": [{"xid": 79, "pci": "c1:00.0"}], **EXPECT}, 1, 0),
    ],
)
def test_the_judge_can_tell(doc: dict[str, Any], expect: dict[str, Any], amiss: int, sure: int) -> None:
    found, wrong = judged(doc, expect, {"gpu_off_bus"} if "ranks" in expect else None)
    assert (len(found), len(wrong)) == (amiss, sure)


# --- the tests --------------------------------------------------------------------------------------------------------


@runs
def test_verdict(run: Run) -> None:
    amiss, wrong = judged(doc_of(run), run.expect, run.causes)
    assert wrong == [], "confidently wrong"
    if run.name in SHORT:
        assert amiss, "it is right now: take it off SHORT"
    else:
        assert amiss == []


def test_the_list_of_shortfalls_names_runs_that_are_there() -> None:
    assert set(SHORT) <= {r.name for r in RUNS}
    assert all(reason.strip() for reason in SHORT.values())


@runs
def test_document_keeps_the_contract(run: Run) -> None:
    doc = doc_of(run)
    assert [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in validator().iter_errors(doc)] == []
    paths = [row["path"] for row in doc["inputs"]]
    assert len(set(paths)) == len(paths)
    assert all(row["reason"] for row in doc["inputs"] if row["status"] != "read")
    for incident in doc["incidents"]:
        verdict = incident["verdict"]
        assert verdict["cause"] in catalog.load("causes")
        assert verdict["actions"]
        level = sum(verdict["confidence"] >= limit for limit in (0.4, SURE))
        assert verdict["status"] == ("undetermined", "suspected", "identified")[level]
        assert verdict["status"] != "undetermined" or not verdict["culprit_ranks"]
        assert {e["source"] for e in verdict["evidence"]} <= set(paths)


def _cleared(verdict: dict[str, Any]) -> set[int]:
    return {r for c in verdict["cleared"] for r in (c.get("ranks") or [c["rank"]]) if r is not None}


@runs
def test_every_incident_has_a_next_step_and_every_obvious_suspect_a_reason(run: Run) -> None:
    """Who complained, whom the case calls innocent, each card with an Xid: named, left open, or cleared with why."""
    doc = doc_of(run)
    verdicts = [i["verdict"] for i in doc["incidents"]]
    told = " ".join(json.dumps([v["evidence"], v["alternatives"]]) for v in verdicts)
    told += json.dumps([i["contributing"] for i in doc["incidents"]])
    cards = {g["pci"] for v in verdicts for g in [*v["culprit_gpus"], *({"pci": c["gpu_pci"]} for c in v["cleared"])]}
    for verdict in verdicts:
        assert all(step["do"].strip() and step["because"].strip() for step in verdict["actions"])
        assert all(c["who"].strip() and c["why"].strip() for c in verdict["cleared"])
        failed = {e["rank"] for e in doc["events"] if e["role"] == "cause"}
        explained = {*verdict["culprit_ranks"], *verdict["cannot_exclude"], *_cleared(verdict), *failed}
        if verdict["culprit_ranks"] or verdict["culprit_hosts"]:
            assert set(verdict["reporting_ranks"]) <= explained
        if verdict["status"] != "undetermined":
            assert set(run.expect.get("must_not_blame") or ()) <= explained - set(verdict["culprit_ranks"])
    if verdicts:
        loud = {e["gpu_pci"] for e in doc["events"] if e["kind"] == "xid" and e["gpu_pci"]}
        assert {pci for pci in loud - cards if pci not in told} == set()


# --- times ------------------------------------------------------------------------------------------------------------


def _truth(case: Path) -> dict[str, Any]:
    own: dict[str, Any] = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    return own


def _timed_runs() -> list[Run]:
    return [r for r in RUNS if any("time" in e or "after" in e for e in _truth(r.case).get("events", ()))]


def _told(truth: dict[str, Any]) -> dict[str, Any]:
    """File → what a case says of the time stamps in it."""
    files = truth.get("files")
    return files if isinstance(files, dict) else {}


def _timed_doc(run: Run, truth: dict[str, Any]) -> dict[str, Any]:
    """The document of a run; with the year and the zone that its file does not write, where the case tells them."""
    told = _told(truth).get(run.files[0]) if len(run.files) == 1 else None
    if told is None:
        return doc_of(run)
    zone = re.search(r"^\w+/\w+|(?<==)[+-]\d\d:\d\d", told["tz"] or "")
    analysis = analyze(run.paths, zone=parse_zone(zone[0]) if zone else None, year=truth["year"])
    made: dict[str, Any] = json.loads(json.dumps(document.build(analysis)))
    return made


def _is_it(have: dict[str, Any], want: dict[str, Any], files: Iterable[str]) -> bool:
    """Is it this event, at this place where the case states one?"""
    lines = want.get("lines") or ([want["line"]] if "line" in want else None)
    if lines is not None:
        name = want.get("file")
        return have["line"] in lines and (name is None or have["source"].endswith(name)) and have["kind"] != "host-name"
    pci = want.get("pci")
    same = have["kind"] == want["id"] if "id" in want else have["fields"].get("xid") == want["xid"]
    return same and (pci is None or have["gpu_pci"] in (pci, None))


def _amiss_by_s(have: dict[str, Any], want: dict[str, Any]) -> float:
    """How far the true time lies outside the error bar."""
    read, true = (datetime.fromisoformat(x["time"].replace("Z", "+00:00")) for x in (have, want))
    return abs((read - true).total_seconds()) - (have["time_uncertainty_s"] or 0)


ROUNDED_S = 0.001
"""Cases state times rounded to the resolution of the file."""


@pytest.mark.parametrize("run", [pytest.param(r, id=r.name) for r in _timed_runs()])
def test_every_event_has_its_true_time(run: Run) -> None:
    """Within its error bar; and no time where the file alone tells none."""
    truth = _truth(run.case)
    doc = _timed_doc(run, truth)
    told = _told(truth).get(run.files[0], {}) if len(run.files) == 1 else {}
    timeless = "uptime only" in told.get("absolute_time", "")
    met = 0
    for want in truth["events"]:
        if not run.whole and "file" in want and want["file"] not in run.files:
            continue
        found = [e for e in doc["events"] if _is_it(e, want, run.files)]
        timed = [e for e in found if e["time"] is not None]
        if want.get("time") is None and "after" in want:
            for event in timed:
                assert event["time_basis"] == "neighbour"
                assert _amiss_by_s(event, {"time": want["after"]}) <= ROUNDED_S
                assert _amiss_by_s(event, {"time": want["before"]}) <= ROUNDED_S
        elif want.get("time") is None or timeless:
            assert timed == [], want
        elif found or "lines cut" not in told.get("format", ""):
            assert timed, want
            assert min(_amiss_by_s(e, want) for e in timed) <= ROUNDED_S, want
        met += len(found)
    assert met


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z0-9]{3,}", re.sub(r"(?:\x1b|\\\\x1b)\[[\d;]*m", "", text))


def _text(data: bytes) -> str:
    return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "backslashreplace")


def _found(text: str, near: Iterable[str]) -> bool:
    """Is what an excerpt says in these lines? Escapes and cuts may differ, so words are compared."""
    have = set(_words(" ".join(near)))
    return set(_words(text)[:12]) <= have


@runs
def test_an_excerpt_is_found_at_its_place(run: Run) -> None:
    """Evidence can be checked: the line of the file that it names holds what it quotes."""
    lines: dict[str, list[str]] = {}
    for incident in doc_of(run)["incidents"]:
        for row in incident["verdict"]["evidence"]:
            path = Path(row["source"])
            if row["line"] is None or not path.is_file() or path.suffix in (".gz", ".xz", ".zst"):
                continue
            if row["source"] not in lines:
                lines[row["source"]] = _text(path.read_bytes()).split("\n")
            at = row["line"] - 1
            assert _found(row["text"], lines[row["source"]][at : at + 8]), f"{path.name}:{row['line']}"
