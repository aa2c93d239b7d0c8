"""The sample incidents are what their generator writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
sys.path.insert(0, str(SAMPLES))

import make  # noqa: E402

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
