"""How much CPU and memory many Flight Recorder dumps take: writes them, then reads and reconstructs in a fresh process.

    python benchmarks/flight_recorder.py [RANKS ...] [--entries N] [--keep FOLDER]

The job: tensor parallel groups of 8, data parallel groups across them, a world group; one rank never enters its group's
last collective. Prints the CPU seconds and the peak memory of the reading process, start-up included.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TP = 8
T0_NS = 1_800_000_000 * 10**9
READ = """
import os, resource, sys
from pathlib import Path
from nccl_forensics import collectives
from nccl_forensics.parsers import flight_recorder

class File:
    def __init__(self, path):
        self.path, self.name, self.size, self.mtime_ns, self.stream = str(path), path.name, None, None, path.open("rb")

dumps = []
for path in Path(sys.argv[1]).iterdir():
    file = File(path)
    dumps += [x for x in flight_recorder.flight_recorder.read(file) if not hasattr(x, "says")]
    file.stream.close()
read = os.times()
made = collectives.reconstruct(dumps)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, read.user + read.system, used.ru_maxrss / 1024,
      made.suspects[0].ranks if made.suspects else None, made.groups[0].seq if made.groups else None, sep="|")
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


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("ranks", type=int, nargs="*", default=[64, 256])
    arguments.add_argument("--entries", type=int, default=2000)
    given = arguments.parse_args()
    print(f"{'ranks':>6}{'MB':>7}{'CPU s':>8}{'of it reading':>15}{'wall s':>8}{'peak MB':>9}  named, at")
    for world in given.ranks:
        late = world // 2 + 3
        with tempfile.TemporaryDirectory() as folder:
            size = 0
            for rank in range(world):
                data = pickle.dumps(dump(rank, world, given.entries, late), protocol=2)
                Path(folder, f"comm_lib_trace_rank_{rank}").write_bytes(data)
                size += len(data)
            began = time.monotonic()
            here = Path(__file__).parent.parent
            done = subprocess.run(
                [sys.executable, "-c", READ, folder], capture_output=True, text=True, cwd=here, check=True
            )
            wall = time.monotonic() - began
        cpu, reading, peak, named, seq = done.stdout.strip().split("|")
        wrong = "" if named == f"({late},)" else f"   WRONG: it was {late}"
        print(
            f"{world:6}{size / 1e6:7.0f}{float(cpu):8.1f}{float(reading):15.1f}{wall:8.1f}{float(peak):9.0f}"
            f"  {named}, {seq}{wrong}"
        )


if __name__ == "__main__":
    main()
