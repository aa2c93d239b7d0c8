"""nccl-tests (all_reduce_perf and its kin): the bandwidth that the job's GPUs reach without the job.

Written by nccl-tests' src/common.cu. Time: none. 'busbw' is what each link had to carry, whatever the number of ranks
(nccl-tests' doc/PERFORMANCE.md). Examples:

#  Rank  0 Group  0 Pid  34567 on     node-a device  0 [0000:07:00] NVIDIA H100 80GB HBM3
   134217728      33554432     float     sum      -1   2312.4   58.04  101.57      0   2298.1   58.40  102.20      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 21.6243
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

AVERAGE = re.compile(r"^# Avg bus bandwidth\s*: (?P<gb_s>\d{1,6}(?:\.\d{1,9})?|-?nan)\s*$")
BOUNDS = re.compile(r"^# Out of bounds values\s*: (?P<number>\d{1,12}) (?P<result>OK|FAILED)")
RANK = re.compile(
    r"^#\s+Rank\s+(?P<rank>\d{1,6})\s(?:Group\s+\d{1,4}\s)?\s*Pid\s+\d{1,9} on\s+(?P<host>\S{1,255}) device\s+\d{1,3} "
    r"\[(?P<pci>[^\]]{1,16})\] (?P<model>[^\n]{1,80}?)\s*$"
)
SIZES = re.compile(
    r"^\s*(?P<bytes>\d{1,14})\s+\d{1,14}\s+\w{1,16}\s+\w{1,10}\s+-?\d{1,6}\s+[\d.]{1,12}\s+[\d.]{1,10}\s+(?P<busbw>[\d.]{1,10})"
)
BUSBW = re.compile(r"\d{1,6}(?:\.\d{1,4})?")
BACK = 400
"""Lines of one test that are looked through."""
FEWEST_RANKS = 4
"""GPUs below which no expectation holds."""
LARGE_BYTES = 64 << 20
"""From this size on the links decide, and not the latency."""
EXPECTED: tuple[tuple[str, float], ...] = (
    ("B200", 600.0),
    ("GB200", 600.0),
    ("H200", 350.0),
    ("H100 80GB HBM3", 350.0),
    ("H800", 150.0),
    ("H100 NVL", 50.0),
    ("A100-SXM", 200.0),
    ("A800-SXM", 120.0),
    ("V100-SXM", 100.0),
)
"""GB/s of bus bandwidth that 8 GPUs of one host reach at least in a large all_reduce: NVLink and NVSwitch. Judgement,
from the links' rates (900, 600, 300 GB/s in both directions for H100, A100, V100 in NVIDIA's data sheets)."""
OVER_PCIE = 50.0
"""GB/s on 8 consumer cards over PCIe, which reach 50 to 80 in practice. Our judgement."""
SLOW = 0.4
"""Below this share of the expected something is wrong; above it it may be the setting. Our judgement."""


def expected_gb_s(model: str) -> float:
    """What one host's GPUs of this model should reach."""
    return next((rate for part, rate in EXPECTED if part in model), OVER_PCIE)


@dataclass(slots=True)
class _Run:
    """One test: who took part, and the best of its large sizes."""

    best_gb_s: float = 0.0
    ranks: int = 0
    hosts: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)

    @property
    def expected_gb_s(self) -> float | None:
        """None where no expectation holds: several hosts or models, a handful of GPUs, no large size."""
        if self.best_gb_s <= 0 or len(self.hosts) != 1 or len(self.models) != 1 or self.ranks < FEWEST_RANKS:
            return None
        return expected_gb_s(next(iter(self.models)))

    @property
    def slow(self) -> bool:
        return self.expected_gb_s is not None and self.best_gb_s < SLOW * self.expected_gb_s

    @property
    def over_nvlink(self) -> bool:
        return any(part in model for model in self.models for part, _ in EXPECTED)


def _run(line: Line) -> _Run:
    """What stands between the end of the test before and this test's average."""
    run = _Run()
    last: int = line.window.state.get("nccl_tests.last", 0)
    line.window.state["nccl_tests.last"] = line.number
    for before in line.before(max(0, min(BACK, line.number - last - 1))):
        text = before.text
        if row := SIZES.match(text):
            if int(row["bytes"]) >= LARGE_BYTES and BUSBW.fullmatch(row["busbw"]):
                run.best_gb_s = max(run.best_gb_s, float(row["busbw"]))
        elif one := RANK.match(text):
            run.ranks += 1
            run.hosts.add(one["host"])
            run.models.add(one["model"])
        elif text.startswith("# nThread"):
            break
    return run


def _out_of_bounds(line: Line, found: re.Match[str]) -> Event:
    return line.event(
        "nccl-test-wrong",
        role="symptom",
        severity="error",
        cause="gpu_other",
        details={"wrong": int(found["number"])},
        pid=None,
    )


def _average(line: Line, written: str) -> Event:
    run = _run(line)
    slow = run.slow
    details: dict[str, Detail] = {
        "ranks": run.ranks or None,
        "hosts": tuple(sorted(run.hosts)[:64]),
        "average_gb_s": None if "nan" in written else float(written),
        "peak_gb_s": run.best_gb_s or None,
        "expected_gb_s": run.expected_gb_s,
    }
    return line.event(
        "nccl-test",
        role="symptom" if slow else "context",
        severity="warning" if slow else "info",
        cause=("nvlink" if run.over_nvlink else "pcie_link") if slow else None,
        details={k: v for k, v in details.items() if v not in (None, ())},
        host=next(iter(run.hosts)) if len(run.hosts) == 1 else line.host,
        pid=None,
    )


@parser(title="nccl-tests", literals=["# Avg bus bandwidth", "# Out of bounds values"])
def nccl_tests(line: Line) -> Iterator[Event]:
    """Whether a slow result is a link's fault, and whose, no single number tells: a symptom at most."""
    if found := BOUNDS.match(line.text):
        if found["result"] == "FAILED":
            yield _out_of_bounds(line, found)
    elif average := AVERAGE.match(line.text):
        yield _average(line, average["gb_s"])
