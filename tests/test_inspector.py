"""NCCL's Inspector, all ranks together: who is who, and who comes last again and again; made files with near misses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from nccl_forensics.parsers import inspector as parser

from nccl_forensics import analysis
from nccl_forensics.lines import read
from nccl_forensics.model import Reconstruction
from nccl_forensics.pipeline import analyze

T0_US = 1_748_030_377_748_202
WORLD = 8


def record(comm: str, rank: int, size: int, who: int, seq: int, took_us: int, op: str = "AllReduce") -> str:
    header = {"id": comm, "rank": rank, "n_ranks": size, "nnodes": 2}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "dump_timestamp_us": T0_US + seq * 1_000_000,
        "hostname": f"node-{who // 4}",
        "pid": 4000 + who,
    }
    perf = {"coll": op, "coll_sn": seq, "coll_exec_time_us": took_us, "coll_timing_source": "kernel_gpu"}
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf})


def written(
    folder: Path, late: dict[int, int], *, count: int = 60, since: int = 0, ranks: range = range(WORLD)
) -> Path:
    """A job of two tensor parallel groups of four and one group of all; `late`: rank → microseconds."""
    rng = random.Random(3)
    lines: dict[int, list[str]] = {rank: [] for rank in range(WORLD)}
    for seq in range(1, count + 1):
        groups = {"0xaa": list(range(WORLD)), "0xb0": list(range(4)), "0xb1": list(range(4, WORLD))}
        for comm, members in groups.items():
            came = {r: rng.uniform(0, 3000) + (late.get(r, 0) if seq > since else 0) for r in members}
            if comm == "0xaa":  # after the tensor parallel groups, which made all their members late
                came = {r: rng.uniform(0, 3000) for r in members}
                for r, by in late.items():
                    came |= {x: came[x] + by for x in groups["0xb0" if r < 4 else "0xb1"] if seq > since}
            last = max(came.values())
            for place, r in enumerate(members):
                lines[r].append(record(comm, place, len(members), r, seq, round(last - came[r] + 800)))
    for rank in ranks:
        (folder / f"node-{rank // 4}-pid{4000 + rank}.log").write_text("\n".join(lines[rank]) + "\n")
    return folder


def analyzed(folder: Path) -> analysis.Analysis:
    return analyze([str(folder)])


def late_of(made: Reconstruction) -> list[tuple[tuple[int, ...], str]]:
    return [(s.ranks, s.cause) for s in made.suspects]


def test_who_is_who(tmp_path: Path) -> None:
    found = analyzed(written(tmp_path, {}))
    assert {r: (p.host, p.pid) for r, p in found.known.ranks.items()} == {
        r: (f"node-{r // 4}", 4000 + r) for r in range(WORLD)
    }
    assert found.known.world_size == WORLD
    assert found.incidents == ()
    assert {row.format for row in found.rows} == {"inspector"}


def test_a_rank_that_comes_last(tmp_path: Path) -> None:
    """Its group comes last to that of all, because of it."""
    found = analyzed(written(tmp_path, {5: 90_000}, since=10))
    assert late_of(found.collectives) == [((5,), "rank_slow")]
    (suspect,) = found.collectives.suspects
    assert suspect.details["since_seq"] == 11
    assert 80 <= int(str(suspect.details["late_ms"])) <= 95
    assert suspect.evidence[0].source.endswith("node-1-pid4005.log")
    assert found.incidents[0].verdict.ranks == (5,)


@pytest.mark.parametrize(
    "near",
    [
        {"late": {}},
        {"late": {5: 6_000}},  # within what ranks differ anyway
        {"late": {2: 90_000, 5: 90_000}},  # two, each in a group of its own
        {"late": {5: 90_000}, "count": 15},  # too few
        {"late": {5: 90_000}, "ranks": range(1, WORLD)},  # nobody knows how late rank 0 is, so who waits for whom
    ],
)
def test_near_misses(tmp_path: Path, near: dict[str, Any]) -> None:
    found = analyzed(written(tmp_path, **near))
    assert all(s.ranks in ((), (5,)) for s in found.collectives.suspects)
    if "ranks" not in near:
        assert found.collectives.suspects == ()


def test_mixed_in_one_file(tmp_path: Path) -> None:
    """Files that were put together: the same, whatever the order."""
    apart = tmp_path / "apart"
    apart.mkdir()
    written(apart, {5: 90_000})
    lines = [x for f in sorted(apart.iterdir()) for x in f.read_text().splitlines()]
    one = tmp_path / "all.log"
    one.write_text("\n".join(lines) + "\n")
    assert late_of(analyzed(one).collectives) == [((5,), "rank_slow")]


def test_a_large_file_is_read_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "PIECE", 4096)
    monkeypatch.setattr(parser, "FIRST", 8192)
    monkeypatch.setattr(parser, "LAST", 8192)
    log = tmp_path / "node-0-pid4000.log"
    log.write_text("".join(record("0xaa", 0, 4, 0, seq, 500) + "\n" for seq in range(1, 500)))
    (parsed,) = read.read([str(log)])
    (event,) = parsed.events
    assert event.details["completed"] == (499,)
    (timed,) = parsed.values
    assert timed.seqs[0] == 1
    assert timed.seqs.tolist() == sorted(set(timed.seqs))
    assert any("were not read" in p.says for p in parsed.problems)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "COMMUNICATORS", 50)
    log = tmp_path / "hostile.log"
    log.write_text("".join(record(f"0x{n:x}", 0, 4, 0, 1, 5, op=f"Op{n}") + "\n" for n in range(400)))
    (parsed,) = read.read([str(log)])
    assert len(parsed.events) == 50
    assert any("350 records" in p.says for p in parsed.problems)
    log.write_text("".join(record("0x1", 0, 4, 0, n, 5, op=f"Op{n}") + "\n" for n in range(100)))
    (parsed,) = read.read([str(log)])
    assert len(parsed.events[0].details["ops"]) == parser.KINDS  # type: ignore[arg-type]
    log.write_text(record("0x1", 0, 4, 0, 1, 5) + "\n" + "[" * 300_000 + "\n" + record("0x1", 0, 4, 0, 2, 5) + "\n")
    (parsed,) = read.read([str(log)])
    assert parsed.events[0].details["completed"] == (2,)
    assert [p.says for p in parsed.problems] == ["1 line that is no record of NCCL's Inspector"]
