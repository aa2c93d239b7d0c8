"""The sample incidents are what their generator writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.when.zones import parse_zone

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
sys.path.insert(0, str(SAMPLES))

import make  # noqa: E402
from nccl_forensics.samples import bundle  # type: ignore[import-not-found]  # noqa: E402

NAMES = sorted(make.SAMPLES)


def _checked_in(name: str) -> dict[str, bytes]:
    folder = SAMPLES / name
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_generator_writes_the_same_bytes(name: str) -> None:
    made, kept = make.build(name), _checked_in(name)
    assert sorted(made) == sorted(kept), "run samples/make.py"
    assert [path for path in made if made[path] != kept[path]] == [], "run samples/make.py"


def test_no_folder_without_a_generator() -> None:
    assert sorted(p.parent.name for p in SAMPLES.glob("*/expected.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_small_and_tells_its_story_in_five_lines(name: str) -> None:
    files = _checked_in(name)
    assert sum(map(len, files.values())) < 400_000
    assert len(files["README.txt"].decode().splitlines()) == 5
    expect = json.loads(files["expected.json"])["expect"]
    assert expect["ranks"]
    assert not set(expect["ranks"]) & set(expect["must_not_blame"])


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_the_right_one(name: str) -> None:
    """Everything that expected.json says of the answer, and that nobody else is named."""
    expect = json.loads(_checked_in(name)["expected.json"])["expect"]
    inputs, options = bundle(SAMPLES / name)
    zone = parse_zone(options["timezone"]) if "timezone" in options else None
    doc = document.build(analyze(inputs, zone=zone, year=options.get("year")))
    (incident,) = doc["incidents"]
    verdict = incident["verdict"]
    assert verdict["status"] == "identified"
    assert verdict["cause"] in expect["causes"]
    assert verdict["culprit_ranks"] == expect["ranks"]
    assert verdict["reporting_ranks"] == expect.get("reporting_ranks", verdict["reporting_ranks"])
    if "host" in expect:
        assert verdict["culprit_hosts"] == [expect["host"]]
    if "gpus" in expect:
        assert [g["pci"] for g in verdict["culprit_gpus"]] == expect["gpus"]
    if "seq" in expect:
        assert incident["collective"]["seq"] == expect["seq"]
    seen = {(e["fields"]["xid"], e["gpu_pci"]) for e in doc["events"] if e["kind"] == "xid"}
    assert {(x["xid"], x["pci"]) for x in expect.get("xids", ())} <= seen


@pytest.mark.parametrize("name", NAMES)
def test_an_obvious_suspect_is_cleared_in_words(name: str) -> None:
    """Who reported first is a witness, and the report says so."""
    expect = json.loads(_checked_in(name)["expected.json"])["expect"]
    inputs, _ = bundle(SAMPLES / name)
    (incident,) = document.build(analyze(inputs))["incidents"]
    cleared = incident["verdict"]["cleared"]
    assert cleared
    assert all(c["why"] for c in cleared)
    assert not {c["rank"] for c in cleared} & set(expect["ranks"])
