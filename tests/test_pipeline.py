"""The whole way: big and hostile piles, and what may not change a verdict."""

from __future__ import annotations

import gzip
import io
import random
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile import PILE, write
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_forensics.samples import bundle  # type: ignore[import-not-found]
from recorded import RECORDED
from short_form import BASE_NS, SECOND, analyzed, cases, events, load

from nccl_forensics.analysis import Analysis
from nccl_forensics.errors import InputError
from nccl_forensics.lines import flood, read
from nccl_forensics.model import Event, Evidence, Stamp
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.show.report import html
from nccl_forensics.when.repeats import merge_repeats

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
NAMES = sorted(p.parent.name for p in SAMPLES.glob("*/expected.json"))
Said = list[tuple[Any, ...]]


def said(found: Analysis) -> Said:
    """What the verdicts name, and how sure they are."""
    made: Said = []
    for incident in found.incidents:
        v = incident.verdict
        made.append((v.status, v.cause, v.ranks, v.hosts, [g.pci for g in v.gpus], v.reporting_ranks, v.confidence))
    return made


def files_of(name: str) -> list[str]:
    """Every file of a sample, one by one."""
    inputs, _ = bundle(SAMPLES / name)
    found = []
    for path in map(Path, inputs):
        found += [str(p) for p in sorted(path.rglob("*")) if p.is_file()] if path.is_dir() else [str(path)]
    return found


# --- big piles --------------------------------------------------------------------------------------------------------


def _everything_has_a_row(found: Analysis, files: list[str]) -> None:
    paths = [row.path for row in found.rows]
    assert len(set(paths)) == len(paths)
    heads = {p.split("!", 1)[0] for p in paths} | set(paths)
    inside = {p.rsplit("!", 1)[0] for p in paths}
    assert [f for f in files if f not in heads and f not in inside] == []
    assert [row for row in found.rows if row.status != "read" and not row.reason] == []
    assert document.build(found)["inputs"]


@pytest.mark.slow
def test_all_shared_cases_as_one_folder_and_as_one_archive(tmp_path: Path) -> None:
    files = [p for p in sorted(RECORDED.rglob("*")) if p.is_file()]
    one = analyze([str(RECORDED)])
    _everything_has_a_row(one, [str(p) for p in files])
    archive = tmp_path / "all.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(RECORDED, "all")
    packed = analyze([str(archive)])
    _everything_has_a_row(packed, [f"{archive}!all/{p.relative_to(RECORDED)}" for p in files])
    in_folder = Counter((r.path.removeprefix(f"{RECORDED}/"), r.status, r.events) for r in one.rows)
    in_archive = Counter((r.path.removeprefix(f"{archive}!all/"), r.status, r.events) for r in packed.rows)
    assert in_folder == in_archive
    assert len(one.events) > 3000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="names and pipes of POSIX")
def test_a_hostile_pile_gives_rows_with_reasons_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "pile")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    found = analyze([str(folder)])
    _everything_has_a_row(found, [str(folder / name) for name in PILE])
    assert found.incidents == () or all(i.verdict.status != "identified" for i in found.incidents)
    assert list(here.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "pile"]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_damaged_real_files_never_raise(data: st.DataObject) -> None:
    """A sample's file, cut, with bytes flipped or pieces repeated."""
    path = Path(data.draw(st.sampled_from(files_of(NAMES[0]) + files_of(NAMES[1]))))
    raw = bytearray(path.read_bytes()[:60_000])
    for _ in range(data.draw(st.integers(0, 20))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    found = analyze(["-"], stdin=io.BytesIO(bytes(raw)))
    assert document.build(found)["schema"]
    assert len(found.rows) >= 1


def test_nothing_to_read() -> None:
    with pytest.raises(InputError, match="no-such-file"):
        analyze(["/no-such-file"])


# --- what may not change a verdict ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_paths_does_not_matter(name: str) -> None:
    files = files_of(name)
    wanted = said(analyze(files))
    assert wanted
    assert wanted[0][0] == "identified"
    for seed in range(3):
        shuffled = list(files)
        random.Random(seed).shuffle(shuffled)
        assert said(analyze(shuffled)) == wanted, seed


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_an_archive_and_compressed_files_say_the_same(name: str, tmp_path: Path) -> None:
    files = files_of(name)
    wanted = said(analyze(files))
    packed, archive = tmp_path / "packed", tmp_path / "bundle.tar"
    with tarfile.open(archive, "w") as tar:
        for file in files:
            inside = Path(file).relative_to(SAMPLES / name)
            tar.add(file, str(inside))
            target = packed / f"{inside}.gz" if not file.endswith(".gz") else packed / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(
                gzip.compress(Path(file).read_bytes()) if not file.endswith(".gz") else Path(file).read_bytes()
            )
    assert said(analyze([str(archive)])) == wanted
    assert said(analyze([str(packed)])) == wanted
    assert said(analyze(["-"], stdin=io.BytesIO(archive.read_bytes()))) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_same_files_twice_count_once(name: str, tmp_path: Path) -> None:
    """A customer mails the bundle twice: the verdict's names stay, and nothing becomes surer by repetition."""
    files = files_of(name)
    copy = tmp_path / "again"
    for file in files:
        target = copy / Path(file).relative_to(SAMPLES / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(file).read_bytes())
    once, twice = said(analyze(files)), said(analyze([*files, str(copy)]))
    assert twice == once


def test_copies_of_one_traceback_are_one_traceback(tmp_path: Path) -> None:
    """Nobody's traceback, mailed once and four times: the job's own reports tell the same story."""
    raised = (
        b'Traceback (most recent call last):\n  File "/app/train.py", line 10, in <module>\nValueError: bad config\n'
    )
    (tmp_path / "train.log").write_bytes(
        b"".join(
            b"[rank%d]:[E422 01:14:17.0 ProcessGroupNCCL.cpp:629] [Rank %d] Watchdog caught collective operation "
            b"timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for "
            b"600021 milliseconds before timing out.\n" % (r, r)
            for r in range(8)
            if r != 6
        )
    )
    (tmp_path / "x.log").write_bytes(raised)
    once = said(analyze([str(tmp_path)]))
    for n in range(3):
        (tmp_path / f"x-{n}.log").write_bytes(raised)
    assert once[0][1] == "python_exception"
    assert said(analyze([str(tmp_path)])) == once


HEALTHY = {
    "README.txt": b"These are the files you asked for.\nBest regards\n",
    "empty.log": b"",
    "other-host-kern.log": b"".join(
        b"2026-11-25T09:%02d:00.000000+00:00 idle-host kernel: [%5d.000000] usb 1-1: new high-speed USB device\n"
        % (n, n)
        for n in range(60)
    ),
    "nvidia-smi.txt": b"GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-1111-2222-3333-444444444444)\n",
    "config.yaml": b"batch_size: 32\ntimeout: 600\nerror_policy: raise\n",
    "progress.log": b"".join(
        b"epoch 1: %d%%|###| %d/100 [00:10<00:00, 9.9it/s, loss=2.%02d]\r" % (n, n, n) for n in range(99)
    ),
    "notes.md": b"| Xid | meaning |\n|---|---|\n| 79 | fell off the bus |\n| 48 | memory |\n",
}


@pytest.mark.parametrize("name", NAMES)
def test_healthy_files_beside_it_do_not_change_the_verdict(name: str, tmp_path: Path) -> None:
    for file, content in HEALTHY.items():
        (tmp_path / file).write_bytes(content)
    wanted = said(analyze(files_of(name)))
    found = analyze([str(tmp_path), *files_of(name)])
    assert said(found) == wanted
    assert len(found.rows) == len(files_of(name)) + len(HEALTHY)


def test_healthy_files_alone_are_no_incident(tmp_path: Path) -> None:
    for file, content in HEALTHY.items():
        (tmp_path / file).write_bytes(content)
    found = analyze([str(tmp_path)])
    assert found.incidents == ()
    assert document.build(found)["incidents"] == []


def _shifted(case: dict[str, Any], file: str, by_s: int) -> dict[str, Any]:
    moved = []
    for short in case["events"]:
        if short.get("file", "job.log") == file and isinstance(short.get("at"), int | float):
            short = {**short, "at": short["at"] + by_s}
        moved.append(short)
    return {**case, "events": moved}


def _unzoned(found: list[Event]) -> list[Event]:
    return [replace(e, stamp=replace(e.stamp, zone_s=None)) if e.stamp is not None else e for e in found]


@settings(max_examples=30, deadline=None)
@given(quarters=st.integers(-48, 48))
def test_a_shift_of_a_clock_without_a_zone_names_nobody_else_and_makes_nobody_surer(quarters: int) -> None:
    """The kernel log's zone is not written: by any shift it may be another cause, of the same rank, and no surer."""
    for stem in ("lost-before-the-wait", "echo-43-on-the-victims"):
        case = load(next(p for p in cases("rules/gpu_lines") if p.stem == stem))
        verdicts = []
        for by_s in (0, quarters * 900):
            found = _unzoned(events(_shifted(case, "kern-node-1.log", by_s)))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("short_form.events", lambda _, found=found: found)
                verdicts.append(analyzed(case).incidents[0].verdict)
        as_written, moved = verdicts
        assert moved.ranks == as_written.ranks, stem
        assert moved.cause in (as_written.cause, "rank_not_arrived"), stem
        assert moved.cause != as_written.cause or moved.confidence <= as_written.confidence, stem


# --- merging and keeping ----------------------------------------------------------------------------------------------


def _line(
    source: str, line: int, text: str = "Xid 79", at_s: float | None = 0, up_s: float | None = None, **k: Any
) -> Event:
    made = Stamp(
        wall_ns=None if at_s is None else BASE_NS + round(at_s * SECOND),
        zone_s=0,
        boot_ns=None if up_s is None else round(up_s * SECOND),
    )
    fields: dict[str, Any] = {"kind": "xid", "role": "cause", "host": "n1", "gpu_pci": "0000:c1:00.0", **k}
    return Event(evidence=Evidence(source=source, line=line, text=text), stamp=made, **fields)


@pytest.mark.parametrize(
    ("rows", "repeats"),
    [
        ([_line("a", 1), _line("b", 1)], [2]),
        ([_line("a", 1, up_s=5, at_s=None), _line("b", 1, up_s=5)], [2]),
        ([_line("a", 1, up_s=5), _line("a", 9, up_s=5)], [2]),
        ([_line("a", 1), _line("b", 1), _line("c", 1)], [3]),
        # near misses
        ([_line("a", 1), _line("a", 2)], [1, 1]),
        ([_line("a", 1), _line("b", 1, at_s=1)], [1, 1]),
        ([_line("a", 1), _line("b", 1, text="Xid 48")], [1, 1]),
        ([_line("a", 1), _line("b", 1, host="n2")], [1, 1]),
        ([_line("a", 1), _line("b", 1, gpu_pci="0000:41:00.0")], [1, 1]),
        ([_line("a", 1), _line("b", 1, rank=3)], [1, 1]),
        ([_line("a", 1, role="context"), _line("b", 1, role="context")], [1, 1]),
        ([replace(_line("a", 1), stamp=None), replace(_line("b", 1), stamp=None)], [1, 1]),
    ],
)
def test_merging_of_what_is_printed_twice(rows: list[Event], repeats: list[int]) -> None:
    assert [e.repeats for e in merge_repeats(rows)] == repeats


def test_the_printing_with_a_wall_clock_stays() -> None:
    (one,) = merge_repeats([_line("dmesg", 1, up_s=5, at_s=None), _line("journal", 7, up_s=5)])
    assert one.evidence.source == "journal"
    assert one.repeats == 2


def test_a_flood_of_one_kind_is_counted_and_its_ends_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood, "KEPT", 50)
    monkeypatch.setattr(flood, "KEPT_LAST", 10)
    line = "Nov 25 10:00:00 n1 kernel: [ {n}.000000] NVRM: Xid (PCI:0000:c1:00): 13, Graphics Exception\n"
    text = "".join(line.format(n=n) for n in range(1000, 1200)).encode()
    (parsed,) = read.read(["-"], stdin=io.BytesIO(text))
    kept = [e.evidence.line for e in parsed.events if e.kind == "xid"]
    assert kept == [*range(1, 51), *range(191, 201)]
    assert [p.says for p in parsed.problems] == ["140 more lines of kind xid were counted and not kept"]


def test_a_file_of_nothing_but_progress_is_read_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PULSE_FIRST", 5)
    monkeypatch.setattr(read, "PULSE_LAST", 3)
    text = "".join(f"[rank0]: step {n} | loss 2.3 | 1.9 s/step\n" for n in range(100)).encode()
    (parsed,) = read.read(["-"], stdin=io.BytesIO(text))
    lines = [e.evidence.line for e in parsed.events]
    assert lines == [1, 2, 3, 4, 5, 98, 99, 100]


def test_progress_is_told_file_by_file() -> None:
    told: list[tuple[str, int]] = []
    read.read(files_of(NAMES[0]), progress=lambda path, size: told.append((path, size)))
    assert [path for path, _ in told] == sorted(files_of(NAMES[0])) or len(told) == len(files_of(NAMES[0]))
    assert sum(size for _, size in told) > 10_000


def test_who_is_named_only_because_others_miss_it_left_no_data(tmp_path: Path) -> None:
    said = (
        "Timed out initializing process group in store based barrier on rank: {}, for key: store_based_barrier_key:32"
    )
    lines = [f"RuntimeError: {said.format(r)} (world_size=4, worker_count=2, timeout=0:00:30)" for r in (2, 3)]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    doc = document.build(analyze([str(tmp_path)]))
    assert doc["incidents"][0]["verdict"]["culprit_ranks"] == [0, 1]
    assert "2 of 4 known ranks left data; nothing from ranks 0, 1." in html(doc)
