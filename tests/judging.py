"""What a right answer is: the `expect` object of an expected.json, held against a document."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from nccl_forensics.names import normal_pci

SURE = 0.8
"""From this confidence on, a wrong answer is confidently wrong."""


def _amiss(incident: Mapping[str, Any], expect: Mapping[str, Any], causes: set[str] | None) -> list[str]:
    verdict, wrong = incident["verdict"], []
    beside = {c["cause"] for c in incident.get("contributing", [])} if expect.get("contributing_ok") else set()
    if causes is not None and verdict["cause"] not in causes and not beside & causes:
        wrong.append(f"cause {verdict['cause']}")
    if expect.get("ranks") is not None and sorted(verdict["culprit_ranks"]) != sorted(expect["ranks"]):
        wrong.append(f"ranks {verdict['culprit_ranks']}, not {expect['ranks']}")
    if expect.get("host") and expect["host"] not in verdict["culprit_hosts"]:
        wrong.append(f"hosts {verdict['culprit_hosts']} without {expect['host']}")
    gpus = {normal_pci(g["pci"]) for g in verdict["culprit_gpus"]}
    if lost := {normal_pci(g) for g in expect.get("gpus") or ()} - gpus:
        wrong.append(f"GPUs {sorted(map(str, lost))} are not named")
    if expect.get("seq") is not None and (incident["collective"] or {}).get("seq") != expect["seq"]:
        wrong.append(f"collective {(incident['collective'] or {}).get('seq')}, not {expect['seq']}")
    if lacking := set(expect.get("reporting_ranks") or ()) - set(verdict["reporting_ranks"]):
        wrong.append(f"{sorted(lacking)} are not among the reporters")
    if blamed := set(expect.get("must_not_blame") or ()) & set(verdict["culprit_ranks"]):
        wrong.append(f"blames {sorted(blamed)}")
    return wrong


def _seconds_apart(a: str, b: str) -> float:
    one, other = (datetime.fromisoformat(x.replace("Z", "+00:00")) for x in (a, b))
    return abs((one - other) / timedelta(seconds=1))


def _lost_xids(doc: Mapping[str, Any], expect: Mapping[str, Any]) -> list[str]:
    def is_it(have: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
        if have["fields"].get("xid") != want["xid"] or normal_pci(have["gpu_pci"]) != normal_pci(want.get("pci")):
            return False
        if not want.get("time") or have["time"] is None:
            return True
        return _seconds_apart(have["time"], want["time"]) <= 1.0 + (have["time_uncertainty_s"] or 0)

    seen = [e for e in doc["events"] if e["kind"] == "xid"]
    return [
        f"Xid {w['xid']} of {w.get('pci')} is not on the timeline"
        for w in expect.get("xids", ())
        if not any(is_it(have, w) for have in seen)
    ]


def _surely_wrong(incident: Mapping[str, Any], expect: Mapping[str, Any], causes: set[str] | None) -> list[str]:
    """What a sure verdict names that is not so; what it leaves open is no wrong name."""
    verdict, wrong = incident["verdict"], []
    beside = expect.get("contributing_ok")
    if causes is not None and verdict["cause"] not in causes and not beside:
        wrong.append(f"surely the cause {verdict['cause']}")
    true = expect["ranks"] if expect.get("ranks") is not None else expect.get("truth", {}).get("ranks", ())
    if "ranks" in expect and (strangers := set(verdict["culprit_ranks"]) - set(true)):
        wrong.append(f"surely ranks {sorted(strangers)}")
    hosts = verdict["culprit_hosts"]
    if hosts and expect.get("host") and expect["host"] not in hosts:
        wrong.append(f"surely hosts {hosts}")
    gpus = {normal_pci(g["pci"]) for g in verdict["culprit_gpus"]}
    if gpus and {normal_pci(g) for g in expect.get("gpus") or ()} - gpus and not beside:
        wrong.append(f"surely GPUs {sorted(map(str, gpus))}")
    return wrong


def judged(doc: Mapping[str, Any], expect: Mapping[str, Any], causes: set[str] | None) -> tuple[list[str], list[str]]:
    """(what is amiss, what is confidently wrong) in a document; every sure incident counts, not the surest alone.

    `expect` is about one job: incidents of another job in the pile are neither.
    """
    incidents = doc["incidents"]
    top = max((i["verdict"] for i in incidents), key=lambda v: v["confidence"], default=None)
    sure = top is not None and top["confidence"] >= SURE
    lost = _lost_xids(doc, expect)
    if top is None:
        nothing_to_find = expect.get("incident") is False or expect.get("open")
        return lost + ([] if nothing_to_find else ["no incident"]), []
    named = f"{top['cause']} {top['culprit_ranks']} at {top['confidence']}"
    if expect.get("incident") is False:
        return [f"false alarm: {named}"], [named] if sure else []
    if expect.get("open"):
        true = expect.get("truth", {"causes": (), "ranks": ()})
        beyond = sure and not (top["cause"] in true["causes"] and set(top["culprit_ranks"]) <= set(true["ranks"]))
        return lost + ([named] if beyond else []), [named] if beyond else []
    best, job = min(((_amiss(i, expect, causes), i.get("job")) for i in incidents), key=lambda x: len(x[0]))
    told = [i for i in incidents if i["verdict"]["confidence"] >= SURE and i.get("job") == job]
    wrong = [w for i in told for w in _surely_wrong(i, expect, causes)]
    return best + lost + [w for w in wrong if w not in best], wrong
