"""Laws of clocks and hosts, which need no right answer: over the samples and the recorded cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import answers

from nccl_forensics.analysis import Analysis
from nccl_forensics.pipeline import analyze
from nccl_forensics.when.zones import parse_zone

ROOT = Path(__file__).resolve().parent.parent
ZONES = (
    *("UTC", "Europe/London", "Europe/Copenhagen", "America/Chicago", "America/Los_Angeles", "America/St_Johns"),
    *("Asia/Kolkata", "Asia/Kathmandu", "Asia/Tokyo", "Australia/Sydney", "Pacific/Apia", "-12:00"),
)
STRANGER = "stranger-9"
XID = f"{STRANGER} kernel: NVRM: Xid (PCI:0000:77:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"
OF_OTHER_DAYS = {
    "two years before": f"2024-03-02T11:22:33.000000+00:00 {XID}",
    "a year after": f"2027-12-28T11:22:33.000000+00:00 {XID}",
    "a disturbance long before": (
        f"2024-03-02T11:22:33.000000+00:00 {STRANGER} kernel: nfs: server fs1 not responding, still trying\n"
        f"2024-03-02T11:22:41.000000+00:00 {STRANGER} kernel: nfs: server fs1 OK\n"
    ),
    "nothing wrong": f"2026-11-25T11:22:33.000000+00:00 {STRANGER} kernel: usb 1-1: new high-speed USB device\n",
}


def piles() -> dict[str, list[str]]:
    found = {p.name: [str(p)] for p in sorted((ROOT / "samples").iterdir()) if (p / "expected.json").exists()}
    for expected in answers():
        runs = json.loads(expected.read_text(encoding="utf-8"))["expect"].get("runs") or [None]
        case = expected.parent
        names = runs[0] or sorted(p.name for p in case.iterdir() if p.suffix not in (".json", ".md"))
        found[f"{case.parent.name}-{case.name}"] = [str(case / name) for name in names]
    return found


PILES = piles()


def said(found: Analysis) -> list[tuple[str, tuple[int, ...]]]:
    return [(i.verdict.cause, i.verdict.ranks) for i in found.incidents]


def has_dated_job(found: Analysis) -> bool:
    """Does a job with a time stand against which other days can be told from its own?"""
    return any(i.detected_ns is not None or i.onset_ns is not None for i in found.incidents)


@pytest.mark.slow
@pytest.mark.parametrize("name", PILES)
def test_no_zone_that_a_user_gives_crashes_or_changes_who_is_named(name: str) -> None:
    wanted = said(analyze(PILES[name]))
    for zone in ZONES:
        assert said(analyze(PILES[name], zone=parse_zone(zone))) == wanted, zone


@pytest.mark.slow
@pytest.mark.parametrize("name", PILES)
def test_a_log_of_another_host_and_day_moves_no_verdict(name: str, tmp_path: Path) -> None:
    own = analyze(PILES[name])
    if not own.ranks or not has_dated_job(own):
        pytest.skip("no job with a time: nothing tells another day from its own")
    wanted = [(i.verdict.cause, i.verdict.ranks, i.verdict.confidence) for i in own.incidents]
    for day, text in OF_OTHER_DAYS.items():
        (tmp_path / "kern.log").write_text(text, encoding="utf-8")
        found = analyze([*PILES[name], str(tmp_path / "kern.log")])
        assert [(i.verdict.cause, i.verdict.ranks) for i in found.incidents] == [w[:2] for w in wanted], day
        for incident, (*_, confidence) in zip(found.incidents, wanted, strict=True):
            assert incident.verdict.confidence == pytest.approx(confidence, abs=0.02), day


@pytest.mark.slow
@pytest.mark.parametrize("name", PILES)
def test_a_fault_of_a_stranger_takes_nothing_over_that_a_job_without_a_time_explains(name: str, tmp_path: Path) -> None:
    own = analyze(PILES[name])
    told = [i.verdict for i in own.incidents if i.verdict.status == "identified"]
    if has_dated_job(own) or not told or not any(row.format == "job-log" for row in own.rows):
        pytest.skip("no job that explains itself and tells no time")
    for day in ("two years before", "a year after"):
        (tmp_path / "kern.log").write_text(OF_OTHER_DAYS[day], encoding="utf-8")
        found = analyze([*PILES[name], str(tmp_path / "kern.log")])
        assert {(v.cause, v.ranks) for v in told} <= set(said(found)), day
