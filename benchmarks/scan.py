"""How fast logs are read: writes some, then times the tool, ripgrep and the decompressors on them, in turns.

    python benchmarks/scan.py [plain hits ranks packed workers memory start] [--mb 1000] [--rounds 5] [--rg PATH]

Every number is the median of some rounds; a ratio is taken inside each round, so that a busy machine slows both sides.
CPU seconds, but for `workers`, which is wall. README.md beside this file says what the tables mean.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BLOCK_BYTES = 24 << 20
"""Text that is new; larger files repeat it, which no compressor's window sees (xz -6: 8 MiB)."""
READ = """
import sys, time
from nccl_forensics import pipeline
pipeline.parsers()
began = time.process_time()
parsed = pipeline.read(sys.argv[1:])
print(time.process_time() - began, sum(p.row.bytes for p in parsed), sum(len(p.events) for p in parsed))
"""
WORDS = (
    "forward pass of layer attention finished with shape tensor batch gradient norm value update scheduler bucket "
    "reduce stream event memory allocated reserved token sequence length hidden head mlp block router expert cached "
    "forward pass of layer attention finished with shape tensor batch"
)


class Used(NamedTuple):
    cpu_s: float
    wall_s: float
    peak_mb: float
    output: str


def used(command: Sequence[str | Path], *, into: Path | None = None) -> Used:
    """What one command costs, start-up included."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [str(x) for x in command],
            stdout=into.open("wb") if into else output,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - began
        output.seek(0)
        said = output.read().decode()
    if child.returncode not in (0, 1):  # grep and rg: 1 is "nothing found"
        raise SystemExit(f"{command} ended with {child.returncode}")
    return Used(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, said)


# --- the logs ---------------------------------------------------------------------------------------------------------


def clock(n: int) -> str:
    """100 lines a second."""
    return f"10:{n // 6000 % 60:02}:{n // 100 % 60:02}"


def job_line(draw: random.Random, n: int) -> str:
    """A trainer's own words, in which no parser is interested."""
    at = draw.randrange(len(WORDS) - 60)
    said = WORDS[at : at + 60]
    return f"[rank{n % 64}]: 2026-03-04 {clock(n)},{n % 1000:03} INFO trainer.py:{n % 900} {said}\n"


def bar_line(draw: random.Random, n: int) -> str:
    """A progress bar, redrawn: the line has no other end than the next one's '\\r'."""
    left = f"{clock(n)[3:]}<{draw.randrange(60):02}:{draw.randrange(60):02}"
    return f"\rEpoch 1:  {n // 100 % 100:2}%|####      | {n % 10000}/10000 [{left},  1.{n % 97:02}it/s, v_num=7]"


def step_line(draw: random.Random, n: int) -> str:
    loss = f"2.{draw.randrange(10**6):06}E+00"
    return f" [2026-03-04 {clock(n)}] iteration {n:9}/ 500000 | lm loss: {loss} | grad norm: 0.{n % 997:03} |\n"


KERNEL_SAYS = (
    "usb 1-1: new high-speed USB device number 7 using ehci",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth1f2a: something becomes fine",
    "docker0: port 3(veth9ab01) entered blocking state",
    "perf: interrupt took too long (3143 > 3131), lowering kernel.perf_event_max_sample_rate to 63500",
)
JOB_SAYS = (
    "[rank{rank}]:[E304 {clock}.000421007 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=262144, NumelOut=262144, Timeout(ms)=600000) ran for "
    "600021 milliseconds before timing out.\n",
    "node{host:02}:2{rank:03}:2{rank:03} [{gpu}] misc/ibvwrap.cc:90 NCCL WARN Call to ibv_modify_qp failed\n",
    "RuntimeError: CUDA error: an illegal memory access was encountered on rank {rank}\n",
)


def kernel_line(draw: random.Random, n: int) -> str:
    boot = f"{n // 100:6}.{draw.randrange(10**6):06}"
    return f"Mar  4 {clock(n)} node{n % 16:02} kernel: [{boot}] {draw.choice(KERNEL_SAYS)}\n"


def job_hit(draw: random.Random, n: int) -> str:
    """A line that becomes an event, of three kinds in turn."""
    rank = draw.randrange(64)
    seq = draw.randrange(10**6)
    return JOB_SAYS[n % 3].format(rank=rank, host=rank // 8, gpu=rank % 8, seq=seq, clock=clock(n))


def kernel_hit(draw: random.Random, n: int) -> str:
    xid = f"(PCI:0000:{draw.randrange(256):02x}:00): {draw.choice((13, 31, 43, 79))}"
    said = f"NVRM: Xid {xid}, pid=4711, name=python3, Ch 00000008"
    return f"Mar  4 {clock(n)} node{n % 16:02} kernel: [{n // 100:6}.000001] {said}\n"


Maker = Callable[[random.Random, int], str]


def write(path: Path, size: int, line: Maker, hit: Maker | None = None, one_in: int = 0, ends: int = 0) -> Path:
    """A log of about `size` bytes; one line in `one_in` is a hit, every `ends`-th gets a '\\n' of its own."""
    draw = random.Random(path.name)
    block, length, n = [], 0, 0
    while length < min(size, BLOCK_BYTES):
        n += 1
        text = hit(draw, n // one_in) if hit and n % one_in == 0 else line(draw, n)
        block.append(text + "\n" if ends and n % ends == 0 else text)
        length += len(block[-1])
    data = "".join(block).encode()
    with path.open("wb") as file:
        for _ in range(max(1, round(size / len(data)))):
            file.write(data)
    return path


def literals(folder: Path) -> Path:
    """Every parser's literals, one a line, as `rg -F -f` and `grep -F -f` take them."""
    from nccl_forensics.lines.plugins import parsers

    path = folder / "literals"
    path.write_bytes(b"\n".join(sorted(parsers().by_literal)) + b"\n")
    return path


# --- the tables -------------------------------------------------------------------------------------------------------


class Bench:
    """Where the logs are and what they are compared with."""

    def __init__(self, folder: Path, size: int, rounds: int, rg: str | None) -> None:
        self.folder, self.size, self.rounds, self.rg = folder, size, rounds, rg
        self.literals = literals(folder)

    def search(self, *files: Path, threads: int = 1) -> list[str | Path]:
        if self.rg is None:
            return ["grep", "-a", "-c", "-F", "-f", self.literals, *files]
        return [self.rg, f"-j{threads}", "-a", "-c", "-F", "-f", self.literals, *files]

    def read(self, *files: Path) -> float:
        """CPU seconds of pipeline.read alone, in a process of its own."""
        return float(used([sys.executable, "-c", READ, *files]).output.split()[0])

    def inspect(self, *files: Path) -> Used:
        return used([sys.executable, "-m", "nccl_forensics", "inspect", "--quiet", *files])

    def rows(self, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Seconds of each way in each round; the ways take turns."""
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.rounds):
            for name, way in ways.items():
                found[name].append(way())
        return found

    def compare(self, title: str, size: int, yardstick: str, ways: Mapping[str, Callable[[], float]]) -> None:
        """Prints one line for each way: seconds, GB/s, and the yardstick's seconds over its own."""
        found = self.rows(ways)
        for name, times in found.items():
            ratio = statistics.median(y / t for y, t in zip(found[yardstick], times, strict=True))
            median = statistics.median(times)
            print(f"{title:26}{name:22}{median:9.2f} s{size / median / 1e9:8.2f} GB/s{ratio:8.2f} x", flush=True)

    def against_search(self, title: str, path: Path, *, whole: bool) -> None:
        ways: dict[str, Callable[[], float]] = {
            "search tool": lambda: used(self.search(path)).cpu_s,
            "pipeline.read": lambda: self.read(path),
        }
        if whole:
            ways["whole inspect"] = lambda: self.inspect(path).cpu_s
        self.compare(title, path.stat().st_size, "search tool", ways)
        path.unlink()

    def against_unpacking(self, title: str, path: Path, size: int, tool: str) -> None:
        alone = f"{tool} -dc"
        ways: dict[str, Callable[[], float]] = {
            alone: lambda: used([tool, "-dc", path]).cpu_s,
            "pipeline.read": lambda: self.read(path),
        }
        self.compare(title, size, alone, ways)
        path.unlink()


def plain(bench: Bench) -> None:
    print("\nplain, CPU; x: speed over the search tool's")
    for name, line, hit, ends in (
        ("kernel, 1 in 10,000", kernel_line, kernel_hit, 0),
        ("job, 1 in 10,000", job_line, job_hit, 0),
        ("steps in all lines", step_line, job_hit, 0),
        ("bars ended by \\r", bar_line, job_hit, 20),
    ):
        path = write(bench.folder / f"{line.__name__}.log", bench.size, line, hit, 10_000, ends)
        bench.against_search(name, path, whole=True)


def hits(bench: Bench) -> None:
    print("\nmany hits, CPU; x: speed over the search tool's")
    for one_in in (100, 10):
        for kind, line, hit in (("kernel", kernel_line, kernel_hit), ("job", job_line, job_hit)):
            path = write(bench.folder / f"{kind}.log", bench.size, line, hit, one_in)
            bench.against_search(f"{kind}, 1 in {one_in}", path, whole=False)


MANY = 1024
"""Ranks that write into one file."""


def crowd_line(draw: random.Random, n: int) -> str:
    """A line of one of a thousand ranks, in any order, as `srun --label` and `torchrun` write them into one file."""
    rank = draw.randrange(MANY)
    at = draw.randrange(len(WORDS) - 60)
    said = WORDS[at : at + 60]
    return f"{rank // 8:3}: [rank{rank}]: 2026-03-04 {clock(n)},{n % 1000:03} INFO trainer.py:{n % 900} {said}\n"


def crowd_hit(draw: random.Random, n: int) -> str:
    rank = draw.randrange(MANY)
    said = JOB_SAYS[n % 3].format(rank=rank, host=rank // 8, gpu=rank % 8, seq=42, clock=clock(n))
    return f"{rank // 8:3}: {said}"


def ranks(bench: Bench) -> None:
    print(f"\none file of {MANY:,} ranks in turn, CPU; x: speed over the search tool's")
    for one_in in (10_000, 100, 10):
        path = write(bench.folder / "all.log", bench.size, crowd_line, crowd_hit, one_in)
        bench.against_search(f"ranks, 1 in {one_in:,}", path, whole=False)


TOOLS = {"gz": ["gzip", "-6"], "zst": ["zstd", "-q", "-3"], "xz": ["xz", "-6"]}


def packed(bench: Bench) -> None:
    print("\npacked, CPU; x: speed over the decompressor's alone (its bar is a time: 1 / x)")
    for kind, line, hit in (("job", job_line, job_hit), ("kernel", kernel_line, kernel_hit)):
        path = write(bench.folder / f"{kind}.log", bench.size // 2, line, hit, 10_000)
        size = path.stat().st_size
        for ending, tool in TOOLS.items():
            if shutil.which(tool[0]) is None:
                print(f"{ending}: {tool[0]} is not here")
                continue
            made = bench.folder / f"{kind}.log.{ending}"
            used([*tool, "-c", path], into=made)
            bench.against_unpacking(f"{kind}.{ending}, {size / made.stat().st_size:.1f} : 1", made, size, tool[0])
        path.unlink()


def workers(bench: Bench) -> None:
    print("\ntwo workers, wall; x: speed over the search tool's with two threads")
    files = []
    for n in range(16):
        line, hit = ((job_line, job_hit), (kernel_line, kernel_hit))[n % 2]
        files.append(write(bench.folder / f"{n:02}.log", bench.size // 16, line, hit, 10_000))
    size = sum(f.stat().st_size for f in files)
    code = "import sys; from nccl_forensics import pipeline; pipeline.read(sys.argv[2:], workers=int(sys.argv[1]))"
    bench.compare(
        "16 files, 1 in 10,000",
        size,
        "search tool",
        {
            "search tool": lambda: used(bench.search(*files, threads=2)).wall_s,
            "one worker": lambda: used([sys.executable, "-c", code, "1", *files]).wall_s,
            "two workers": lambda: used([sys.executable, "-c", code, "2", *files]).wall_s,
        },
    )
    for file in files:
        file.unlink()


def memory(bench: Bench) -> None:
    print("\npeak memory of `inspect`")
    small = write(bench.folder / "job.log", 100 << 20, job_line, job_hit, 10_000)
    print(f"plain, {small.stat().st_size / 1e9:4.1f} GB {bench.inspect(small).peak_mb:6.0f} MB", flush=True)
    small.unlink()
    big = write(bench.folder / "job.log", 4 * 10**9, job_line, job_hit, 10_000)
    print(f"plain, {big.stat().st_size / 1e9:4.1f} GB {bench.inspect(big).peak_mb:6.0f} MB", flush=True)
    big.unlink()
    steps = write(bench.folder / "steps.log", 10**9, step_line, job_hit, 10_000)
    print(f"steps, {steps.stat().st_size / 1e9:4.1f} GB {bench.inspect(steps).peak_mb:6.0f} MB", flush=True)
    steps.unlink()
    one = write(bench.folder / "part.log", 10**9, job_line, job_hit, 10_000)
    made = bench.folder / "many.gz"
    used(["gzip", "-1", "-c", one], into=made)
    one.unlink()
    times = max(1, round(10**9 / made.stat().st_size))
    with (bench.folder / "all.log.gz").open("wb") as file:
        for _ in range(times):
            file.write(made.read_bytes())
    found = bench.inspect(bench.folder / "all.log.gz")
    print(
        f"gz, {(bench.folder / 'all.log.gz').stat().st_size / 1e9:.1f} GB ({times} GB of text) {found.peak_mb:6.0f} MB"
    )
    for name in ("many.gz", "all.log.gz"):
        (bench.folder / name).unlink()


def start(bench: Bench) -> None:
    print("\nstart-up, CPU seconds")
    report = bench.folder / "report.html"
    sample = ROOT / "samples" / "riser-xid79"
    commands: dict[str, list[str | Path]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "--help": [sys.executable, "-m", "nccl_forensics", "--help"],
        "analyze riser-xid79": [sys.executable, "-m", "nccl_forensics", "analyze", "-o", report, sample],
    }
    for name, command in commands.items():
        times = [used(command).cpu_s for _ in range(2 * bench.rounds)]
        print(f"{name:26}{statistics.median(times):8.3f} s  (least {min(times):.3f})", flush=True)


TABLES: dict[str, Callable[[Bench], None]] = {
    f.__name__: f for f in (plain, hits, ranks, packed, workers, memory, start)
}


@contextlib.contextmanager
def _scratch(given: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=given, prefix="nccl-forensics-bench-") as folder:
        yield Path(folder)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tables", nargs="*", choices=[*TABLES, []], help="all but memory, if none is named")
    options.add_argument("--mb", type=int, default=1000, help="size of the plain logs")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--rg", default=shutil.which("rg"), help="ripgrep 14 or newer; without it grep is used")
    options.add_argument("--folder", type=Path, help="where the logs are written, and deleted")
    given = options.parse_args()
    with _scratch(given.folder) as folder:
        bench = Bench(folder, given.mb * 10**6, given.rounds, given.rg)
        # Bytecode is kept, as in an installation.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        used([sys.executable, "-m", "nccl_forensics", "inspect", "--quiet", ROOT / "samples" / "riser-xid79"])
        version = subprocess.run([given.rg or "grep", "--version"], capture_output=True, text=True, check=True).stdout
        print(f"search tool: {version.splitlines()[0]}; Python {sys.version.split()[0]}; {os.cpu_count()} cores")
        for name in given.tables or [t for t in TABLES if t != "memory"]:
            TABLES[name](bench)


if __name__ == "__main__":
    main()
