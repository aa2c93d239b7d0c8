"""Rows of the timeline from Flight Recorder dumps, where no line has a time."""

from __future__ import annotations

import json
import re
from pathlib import Path

from nccl_forensics.pipeline import analyze
from nccl_forensics.show.document import build
from nccl_forensics.text.moments import rfc3339

BEGIN_NS = 1_764_400_000 * 10**9
SECOND = 10**9


def dump(rank: int, entries: int, host_ahead_s: int = 0) -> str:
    """Of a rank that entered so many all-reduces, a second apart, and saw all but the last one complete."""
    made = []
    for seq in range(1, entries + 1):
        at = BEGIN_NS + (seq + host_ahead_s) * SECOND
        done = at + SECOND // 10 if seq < entries else None
        made.append(
            {
                "record_id": seq,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": at,
                "time_discovered_started_ns": at,
                "time_discovered_completed_ns": done,
                "input_sizes": [[8]],
                "output_sizes": [[8]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": "completed" if done else "scheduled",
                "retired": done is not None,
                "is_p2p": False,
                "timeout_ms": 600_000,
                "frames": [],
            }
        )
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return json.dumps({"version": "2.9", "pg_config": config, "entries": made})


def write(folder: Path) -> None:
    for rank, entries in ((0, 7), (1, 7), (2, 6)):
        (folder / f"nccl_trace_rank_{rank}.json").write_text(dump(rank, entries), encoding="utf-8")


def test_dumps_alone_make_a_timeline_of_their_own_clocks(tmp_path: Path) -> None:
    write(tmp_path)
    made = analyze([str(tmp_path)])
    rows = [(e.rank, e.kind, e.details["seq"], rfc3339(e.time_ns), e.uncertainty_ns) for e in made.events]
    newest, last = rfc3339(BEGIN_NS + 7 * SECOND), rfc3339(BEGIN_NS + 6 * SECOND + SECOND // 10)
    assert [row for row in rows if row[0] == 0] == [
        (0, "recorded-end", 6, last, 1_000_000),
        (0, "recorded-entry", 7, newest, 1_000_000),
    ]
    assert {row[0] for row in rows} == {0, 1, 2}
    assert {e.clock for e in made.events} <= {c.clock for c in made.clocks}
    assert all(c.uncertainty_s is None for c in made.clocks)  # nothing compares them
    doc = build(made)
    assert all(e["key"] and e["time"] for e in doc["events"])
    assert all(re.search(r"all_reduce \d of default_pg", e["text"]) for e in doc["events"])


def test_lines_with_times_make_the_timeline_where_there_are_any(tmp_path: Path) -> None:
    write(tmp_path)
    line = "2025-11-29T07:06:47.000000+00:00 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=x, Ch 00000010\n"
    (tmp_path / "kern.log").write_text(line, encoding="utf-8")
    assert {e.kind for e in analyze([str(tmp_path)]).events} == {"xid"}
