"""Each rule with lines that make it speak, and near misses: tests/cases/rules/RULE/CASE.json (short_form.py).

`verdict` says what the top incident's verdict must be: `cause`, or `cause_in`, or `not` (causes that it may not name);
`ranks`, `hosts`, `gpus` exactly; `status`; `named` false: nothing may be named as identified, no incident will do.
null: no incident.
`fires`: does the folder's rule yield a finding that speaks for its cause? Folder `engine` is about the weighing itself.
A case with `fault` shows an error that is not mended yet.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from short_form import analyzed, cases, label, load, with_faults

from nccl_forensics import analysis, catalog
from nccl_forensics.verdict import rules, weigh
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.incidents import IDENTIFIED, SUSPECTED
from nccl_forensics.when.aligned import Aligned

CASES = cases("rules")
ENGINE = "engine"
PACKAGE = Path(catalog.__file__).parent.parent
RULES = {one.__name__: one for one in rules.rules()}


def as_case(found: analysis.Analysis) -> Case:
    assumed = frozenset(c.clock for c in found.clocks if c.basis == "assumed")
    aligned = Aligned(found.events, found.clocks, assumed)
    return Case(events=found.events, known=found.known, collectives=found.collectives, aligned=aligned, rows=found.rows)


def disagreements(want: dict[str, Any] | None, found: analysis.Analysis) -> list[str]:
    if want is None:
        return [f"incident: {i.verdict.summary}" for i in found.incidents]
    if not found.incidents:
        return [] if want == {"named": False} else ["no incident"]
    surest = max(found.incidents, key=lambda i: (i.verdict.confidence, i.id))  # of equals the last run's
    have = surest.verdict
    wrong = []
    if "cause" in want and have.cause != want["cause"]:
        wrong.append(f"cause {have.cause}, not {want['cause']}")
    if "cause_in" in want and have.cause not in want["cause_in"]:
        wrong.append(f"cause {have.cause}, not one of {want['cause_in']}")
    if have.cause in want.get("not", ()):
        wrong.append(f"cause {have.cause} is wrong")
    if "ranks" in want and list(have.ranks) != want["ranks"]:
        wrong.append(f"ranks {have.ranks}, not {want['ranks']}")
    if "hosts" in want and list(have.hosts) != want["hosts"]:
        wrong.append(f"hosts {have.hosts}, not {want['hosts']}")
    if "gpus" in want and sorted(g.pci or "" for g in have.gpus) != want["gpus"]:
        wrong.append(f"gpus {[g.pci for g in have.gpus]}, not {want['gpus']}")
    if "status" in want and have.status != want["status"]:
        wrong.append(f"status {have.status} at {have.confidence}, not {want['status']}")
    if want.get("named") is False and have.status == "identified":
        wrong.append(f"names {have.cause} {have.ranks} at {have.confidence}")
    return wrong


@pytest.mark.parametrize("path", with_faults(CASES))
def test_verdict(path: Path) -> None:
    case = load(path)
    found = analyzed(case)
    assert disagreements(case["verdict"], found) == []
    if "incidents" in case:
        assert len(found.incidents) == case["incidents"]
    for incident in found.incidents:
        verdict = incident.verdict
        for who in case.get("cleared", ()):
            assert any(c.who.startswith(who) for c in verdict.cleared)
        for text in case.get("says", ()):
            assert any(text in f.says for f in verdict.evidence)
        if "reporting" in case:
            assert list(verdict.reporting_ranks) == case["reporting"]


@pytest.mark.parametrize("path", CASES, ids=label)
def test_verdict_keeps_its_promises(path: Path) -> None:
    """What holds for every verdict: status follows confidence, no reporter is blamed and cleared, evidence is shown."""
    for incident in analyzed(load(path)).incidents:
        verdict = incident.verdict
        wanted = "identified" if verdict.confidence >= IDENTIFIED else "suspected"
        assert verdict.status == (wanted if verdict.confidence >= SUSPECTED else "undetermined")
        assert (verdict.cause == "undetermined") == (verdict.status == "undetermined")
        if verdict.status == "undetermined":
            assert (verdict.ranks, verdict.hosts, verdict.gpus) == ((), (), ())
        else:
            assert verdict.evidence
        assert not {c.rank for c in verdict.cleared if c.rank is not None} & set(verdict.ranks)
        assert not set(verdict.cannot_exclude) & set(verdict.ranks)
        assert verdict.actions
        assert verdict.summary.endswith(".")
        assert "{" not in " ".join(f"{a.do} {a.because}" for a in verdict.actions)


@pytest.mark.parametrize(
    "path", [p for p in CASES if p.parent.name != ENGINE], ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_rule_speaks_or_is_silent(path: Path) -> None:
    case = load(path)
    found = list(RULES[path.parent.name](as_case(analyzed(case))))
    assert bool(found) == case["fires"]


@pytest.mark.parametrize(("stem", "detail"), [("desktop-31", "desktop"), ("program-31", None)])
def test_a_fault_of_the_desktop_has_advice_of_its_own(stem: str, detail: str | None) -> None:
    case = load(next(p for p in CASES if p.stem == stem))
    found = [f for f in RULES["gpu_lines"](as_case(analyzed(case))) if f.cause == "gpu_app_fault"]
    assert {f.detail for f in found} == {detail}
    assert any(f.ranks for f in found) == (detail is None)


def test_a_fault_of_another_rank_is_told_who_never_came() -> None:
    case = load(next(p for p in CASES if p.stem == "the-card-of-the-missing-rank"))
    other = {"kind": "cuda-oom", "role": "cause", "rank": 6, "host": "node-1", "at": 1199}
    (incident,) = analyzed({**case, "events": [*case["events"], other]}).incidents
    told = {h.cause: str(why) for h, why in incident.verdict.alternatives}
    assert told["cuda_oom"] == "the rank that never came is rank 2, not rank 6"
    silent = [e for e in case["events"] if e["kind"] not in ("watchdog-timeout", "pg-observed")]
    (incident,) = analyzed({**case, "events": [*silent, other]}).incidents
    told = {h.cause: str(why) for h, why in incident.verdict.alternatives}
    assert told
    assert not any("never came" in why for why in told.values())


def test_the_order_of_rules_does_not_depend_on_what_was_imported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = rules.rules()
    monkeypatch.setattr(rules, "_RULES", sorted(rules._RULES, key=lambda one: one.__module__, reverse=True))
    assert rules.rules.__wrapped__() == wanted


def test_every_rule_has_a_case_and_a_near_miss() -> None:
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for path in CASES:
        by_rule.setdefault(path.parent.name, []).append(load(path))
    assert set(by_rule) - {ENGINE} == set(RULES)
    for rule, found in by_rule.items():
        if rule != ENGINE:
            assert any(c["fires"] for c in found), rule
        assert any(c["why"].startswith("Near miss") for c in found) or rule == ENGINE, rule


# --- the tables that rules use --------------------------------------------------------------------------------------


def _literals(function: str, keyword: str | None = None, position: int | None = None) -> set[str]:
    """Every string that stands as this argument of this function in nccl_forensics/."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            if function not in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
                continue
            values = [k.value for k in node.keywords if k.arg == keyword]
            if position is not None and len(node.args) > position:
                values.append(node.args[position])
            for value in values:
                found |= set(_strings(value))
    return found


def _strings(value: ast.expr) -> Iterator[str]:
    """The strings that this expression can be: a literal, or the branches of a condition."""
    if isinstance(value, ast.IfExp):
        yield from _strings(value.body)
        yield from _strings(value.orelse)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value


def test_every_cause_that_is_named_exists() -> None:
    causes = set(catalog.load("causes"))
    named = _literals("Suspect", "cause")
    named |= _literals("finding", "cause") | _literals("Finding", "cause")
    named |= {a["cause"] for a in catalog.load("actions")["action"]}
    named |= set(catalog.load("priors")["share"])
    assert len(named) > 25
    assert named - causes == set()


def test_a_fault_of_a_host_that_is_none_of_the_jobs_is_listed_apart() -> None:
    (path,) = (p for p in CASES if p.stem == "a-host-of-another-name")
    (incident,) = analyzed(load(path)).incidents
    assert incident.verdict.cause == "undetermined"
    assert [row["cause"] for row in incident.contributing if "cause" in row] == ["gpu_off_bus"]


def test_every_cause_has_an_action() -> None:
    general = {a["cause"] for a in catalog.load("actions")["action"] if not a.get("detail")}
    assert set(catalog.load("causes")) - general == {"undetermined"}


def test_an_action_says_what_and_why_and_fills_its_blanks() -> None:
    allowed = {"host", "gpu", "at_gpu", "index", "rank", "who"}
    for action in catalog.load("actions")["action"]:
        assert action["do"].strip()
        assert action["because"].strip()
        for text in (action["do"], action["because"]):
            blanks = {part.split("}", 1)[0] for part in text.split("{")[1:]}
            assert blanks <= allowed, action


def test_every_weight_says_why_and_is_used() -> None:
    table = catalog.load("weights")
    for name, entry in table.items():
        assert isinstance(entry["value"], float), name
        assert entry["why"].strip(), name
        assert entry["source"].strip(), name
    assert _literals("weight", None, 0) == set(table)


def test_a_cause_gives_way_also_through_others_and_never_to_one_that_gives_way_to_it() -> None:
    assert "psu_rail_loss" in weigh.SAME_STORY["gpu_app_fault"]  # by way of gpu_off_bus
    assert "psu_rail_loss" not in catalog.causes()["gpu_app_fault"].gives_way_to
    told = {(id_, other) for id_, cause in catalog.causes().items() for other in cause.gives_way_to}
    found = {(id_, other) for id_, others in weigh.SAME_STORY.items() for other in others}
    assert told <= found
    assert not {(a, b) for a, b in found - told if (b, a) in found}
    assert not any(id_ in others for id_, others in weigh.SAME_STORY.items())


def test_near_causes_exist() -> None:
    causes = catalog.load("causes")
    for name, entry in causes.items():
        assert entry["title"].strip()
        assert set(entry["near"]) <= set(causes) - {name}
