"""How much CPU and memory many Flight Recorder dumps take: writes them, then analyzes them in a fresh process.

    python benchmarks/flight_recorder.py [RANKS ...] [--entries N]

The job: tensor parallel groups of 8, data parallel groups across them, a world group; one rank never enters its group's
last collective. The dumps are written as PyTorch writes them (tests/simulator/cpickle.py). Prints the CPU seconds and
the peak memory of `analyze` with all its outputs, start-up included, and how much of it reading took.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]

from simulator import cpickle  # noqa: E402

TP = 8
T0_NS = 1_800_000_000 * 10**9
ANALYZE = """
import json, os, resource, sys
from nccl_forensics import cli, pipeline
whole, took = pipeline.read, []
def read(*a, **k):
    before = os.times()
    found = whole(*a, **k)
    after = os.times()
    took.append(after.user + after.system - before.user - before.system)
    return found
pipeline.read = read
folder, out = sys.argv[1:]
cli.main(["analyze", folder, "-o", out + "/r.html", "--json", out + "/r.json", "--quiet"], standalone_mode=False)
used = resource.getrusage(resource.RUSAGE_SELF)
found = json.load(open(out + "/r.json"))["incidents"]
named = found[0]["verdict"]["culprit_ranks"] if found else None
seq = found[0]["collective"]["seq"] if found and found[0].get("collective") else None
print("#", used.ru_utime + used.ru_stime, took[0], used.ru_maxrss / 1024, named, seq, sep="|")
"""


def dump(rank: int, world: int, entries: int, late: int) -> dict[str, Any]:
    """What one rank holds: `late` has not called the last collective of its tensor parallel group, nor any after it."""
    tp = [rank // TP * TP + i for i in range(TP)]
    dp = list(range(rank % TP, world, TP))
    groups = [
        ("0", "default_pg", list(range(world))),
        (f"t{rank // TP}", "mesh_tp", tp),
        (f"d{rank % TP}", "mesh_dp", dp),
    ]
    stacks = [
        [
            {"name": f"f{i}_{k}", "filename": f"/workspace/megatron/core/module_{k}.py", "line": 10 * i + k}
            for k in range(12)
        ]
        for i in range(20)
    ]
    counts, listed = [0, 0, 0], []
    stop = entries - 1 if rank != late else entries - 3
    for number in range(entries):
        g = 1 if number % 10 < 7 or number >= entries - 3 else 2 if number % 10 < 9 else 0
        if number >= stop:
            break
        counts[g] += 1
        over = number < entries - 3
        name, desc, _ = groups[g]
        listed.append({
            "frames": stacks[number % 20], "record_id": 100_000 + number, "pg_id": g, "process_group": (name, desc),
            "thread_name": "pt_autograd_0", "thread_id": str(139_900_000_000_000 + rank),
            "collective_seq_id": counts[g] + 5000,
            "p2p_seq_id": 0, "op_id": counts[g] + 5000, "profiling_name": "nccl:all_reduce",
            "time_created_ns": T0_NS + number * 3_000_000 + rank, "input_sizes": [[4, 4096, 1024 + g]],
            "input_dtypes": ["BFloat16"], "output_sizes": [[4, 4096, 1024 + g]], "output_dtypes": ["BFloat16"],
            "state": "completed" if over else "scheduled", "time_discovered_started_ns": None,
            "time_discovered_completed_ns": T0_NS + number * 3_000_000 + 2_000_000 if over else None,
            "retired": over, "timeout_ms": 600_000, "is_p2p": False,
        })  # fmt: skip
    status = {
        str(g): {
            "last_enqueued_collective": counts[g] + 5000,
            "last_started_collective": -1,
            "last_completed_collective": counts[g]
            + 5000
            - sum(1 for x in listed[-3:] if not x["retired"] and x["pg_id"] == g),
        }
        for g in range(3)
    }
    config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, desc, ranks in groups}
    return {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.27.5",
        "pg_status": status,
        "entries": listed,
    }


def written(content: dict[str, Any]) -> bytes:
    """The dump as PyTorch's pickler writes it: equal stack frames are one object."""
    frames: dict[Any, cpickle.Frame] = {}
    for entry in content["entries"]:
        entry["frames"] = [frames.setdefault(tuple(x.values()), cpickle.Frame(x)) for x in entry["frames"]]
    return cpickle.dumps(content)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("ranks", type=int, nargs="*", default=[64, 256])
    arguments.add_argument("--entries", type=int, default=2000)
    given = arguments.parse_args()
    print(f"{'ranks':>6}{'MB':>7}{'CPU s':>8}{'of it reading':>15}{'wall s':>8}{'peak MB':>9}  named, at")
    for world in given.ranks:
        late = world // 2 + 3
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as out:
            size = 0
            for rank in range(world):
                data = written(dump(rank, world, given.entries, late))
                Path(folder, f"comm_lib_trace_rank_{rank}").write_bytes(data)
                size += len(data)
            began = time.monotonic()
            program = [sys.executable, "-c", ANALYZE, folder, out]
            done = subprocess.run(program, capture_output=True, text=True, cwd=HERE.parent, check=True)
            wall = time.monotonic() - began
        *_, line = (x for x in done.stdout.splitlines() if x.startswith("#"))
        _, cpu, reading, peak, named, seq = line.split("|")
        wrong = "" if named == f"[{late}]" else f"   WRONG: it was {late}"
        print(
            f"{world:6}{size / 1e6:7.0f}{float(cpu):8.1f}{float(reading):15.1f}{wall:8.1f}{float(peak):9.0f}"
            f"  {named}, {seq}{wrong}"
        )


if __name__ == "__main__":
    main()
