"""Does the time grow with the input, or with its square? Inputs in which one thing repeats, each at two sizes.

    python benchmarks/scaling.py [NAME ...] [--rounds 3] [--factor 1.0]

Prints for each kind of input the median seconds of `analyze` at one size and at twice that size, without the start of
the tool, and their ratio: near 2 is linear, near 4 is quadratic. `--factor` makes all inputs so much larger. The
inputs are written to a temporary folder; each run is a process of its own, and sizes take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN = datetime(2026, 4, 22, 1, 0, 0)


def at(seconds: int) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.000000+00:00")


def timeout(rank: int) -> str:
    return (
        f"[rank{rank}]:[E422 01:14:17.{rank:09d} ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran "
        "for 600021 milliseconds before timing out."
    )


def xids(count: int) -> Iterator[tuple[str, str]]:
    """Faults of programs on eight GPUs of one host, one a second."""
    for i in range(count):
        yield (
            "kern.log",
            f"{at(i)} ws1 kernel: [{1000 + i}.000000] NVRM: Xid (PCI:0000:{i % 8 + 1:02x}:00): 13, pid={1000 + i}, "
            "name=python, Graphics SM Warp Exception on (GPC 1, TPC 0, SM 0): Out Of Range Address",
        )


def link_errors(count: int) -> Iterator[tuple[str, str]]:
    """Corrected errors of one PCIe port, one a second."""
    for i in range(count):
        yield (
            "kern.log",
            f"{at(i)} ws1 kernel: [{1000 + i}.000000] pcieport 0000:00:1c.0: AER: Corrected error received: "
            "0000:00:1c.0",
        )


def boots(count: int) -> Iterator[tuple[str, str]]:
    """A host that starts again every minute."""
    for i in range(count):
        yield "kern.log", f"{at(60 * i)} ws1 kernel: [    0.000000] Linux version 6.8.0-45-generic (buildd@x) #1 SMP"
        for k in range(30):
            yield "kern.log", f"{at(60 * i + k + 1)} ws1 kernel: [   {k + 1}.000000] usb 1-1: new thing {k}"
        yield "kern.log", f"{at(60 * i + 40)} ws1 systemd[1]: Reached target Shutdown."


def exceptions(count: int) -> Iterator[tuple[str, str]]:
    """Every rank raises."""
    for rank in range(count):
        yield "train.log", f"[rank{rank}]: Traceback (most recent call last):"
        yield "train.log", f'[rank{rank}]:   File "/app/train.py", line 10, in <module>'
        yield "train.log", f"[rank{rank}]:     main()"
        yield "train.log", f"[rank{rank}]: ValueError: bad sample {rank}"


def timeouts(count: int) -> Iterator[tuple[str, str]]:
    """All ranks but one time out."""
    for rank in range(count):
        if rank != 77:
            yield "train.log", timeout(rank)


def hosts(count: int) -> Iterator[tuple[str, str]]:
    """So many hosts with the echoes of their processes' ends, and eight ranks each."""
    for host in range(count):
        for i in range(250):
            yield (
                f"node{host:04d}/kern.log",
                f"{at(30 * i)} node{host:04d} kernel: [{1000 + 30 * i}.000000] NVRM: Xid (PCI:0000:{i % 8 + 1:02x}:00):"
                f" 43, pid={1000 + i}, name=python, Ch 00000008",
            )
        for rank in range(8 * host, 8 * host + 8):
            if rank != 77:
                yield f"node{host:04d}/train.log", timeout(rank)


INPUTS: dict[str, tuple[Callable[[int], Iterator[tuple[str, str]]], int]] = {
    "xids": (xids, 5_000),
    "link_errors": (link_errors, 10_000),
    "boots": (boots, 1_000),
    "exceptions": (exceptions, 256),
    "timeouts": (timeouts, 1_000),
    "hosts": (hosts, 25),
}
"""Name → (what writes it, how many of them at the smaller size)."""
EMPTY = "empty"


def write(folder: Path, lines: Iterator[tuple[str, str]]) -> None:
    texts: dict[str, list[str]] = {}
    for name, line in lines:
        texts.setdefault(name, []).append(line)
    folder.mkdir(parents=True)
    for name, rows in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


def seconds(pile: Path) -> float:
    command = [sys.executable, "-m", "nccl_forensics", "analyze", str(pile), "--quiet", "-o", str(pile.parent / "page")]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode("utf-8", "replace"))
    return time.perf_counter() - begun


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(INPUTS)}; default: all")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--factor", type=float, default=1.0)
    given = options.parse_args()
    if unknown := set(given.names) - set(INPUTS):
        options.error(f"not known: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write(here / EMPTY, iter([("train.log", "nothing happens here")]))
        print(f"{'input':<12} {'size':>7} {'s':>7} {'twice':>7} {'s':>7} {'ratio':>6}")
        for name in given.names or INPUTS:
            make, size = INPUTS[name]
            size = max(1, round(size * given.factor))
            once, twice = here / f"{name}-1", here / f"{name}-2"
            write(once, make(size))
            write(twice, make(2 * size))
            rounds = [(seconds(here / EMPTY), seconds(once), seconds(twice)) for _ in range(given.rounds)]
            a, b = (statistics.median(r[n] - r[0] for r in rounds) for n in (1, 2))
            ratio = f"{b / a:.1f}" if a > 0 else "n/a"
            print(f"{name:<12} {size:>7,} {a:>7.2f} {2 * size:>7,} {b:>7.2f} {ratio:>6}", flush=True)


if __name__ == "__main__":
    main()
