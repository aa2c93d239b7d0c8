"""A file that is there twice is one witness."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nccl_forensics.analysis import Analysis
from nccl_forensics.pipeline import analyze

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = sorted(p for p in (ROOT / "samples").iterdir() if p.is_dir() and not p.name.startswith("_"))
ANONYMOUS = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step(batch)
  File "train.py", line 1, in step
    return batch["x"]
KeyError: 'x'
"""


def said(found: Analysis) -> list[tuple[object, ...]]:
    return [(i.verdict.cause, i.verdict.ranks, i.verdict.confidence) for i in found.incidents]


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda p: p.name)
def test_each_file_of_a_sample_a_second_time_changes_nothing(folder: Path, tmp_path: Path) -> None:
    pile = tmp_path / "pile"
    shutil.copytree(folder, pile)
    wanted = said(analyze([str(pile)]))
    for file in sorted(p for p in pile.rglob("*") if p.is_file()):
        copy = pile / f"copy of {file.name}"
        shutil.copy(file, copy)
        found = analyze([str(pile)])
        copy.unlink()
        assert said(found) == wanted, file.name
        (row,) = (r for r in found.rows if r.path == str(copy))
        assert row.status == "skipped" or not row.events, file.name


def test_a_log_beside_the_archive_that_holds_it_is_counted_once_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(ANONYMOUS)
    shutil.make_archive(str(tmp_path / "pile"), "gztar", tmp_path, "train.log")
    rows = {r.path.removeprefix(f"{tmp_path}/"): r for r in analyze([str(tmp_path)]).rows}
    assert rows["train.log"].status == "read"
    assert rows["pile.tar.gz!train.log"].status == "skipped"
    assert "train.log" in (rows["pile.tar.gz!train.log"].reason or "")


@pytest.mark.parametrize(
    ("names", "copies"),
    [
        (("rank_0.log", "rank_1.log"), 0),
        (("node01/train.log", "node02/train.log"), 0),
        (("train.log", "train (1).log"), 1),
        (("train.log", "copy/train.log"), 1),
    ],
)
def test_files_of_one_numbering_that_say_nothing_of_themselves_are_no_copies(
    names: tuple[str, ...], copies: int, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(ANONYMOUS)
    assert sum(r.status == "skipped" for r in analyze([str(tmp_path)]).rows) == copies
