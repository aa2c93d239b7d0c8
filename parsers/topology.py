"""`nvidia-smi topo -m`: how each pair of GPUs is connected.

Written by nvidia-smi. Time: none, the moment of the call. X = itself, NV# = # bonded NVLinks, PIX/PXB = PCIe switches,
PHB = host bridge, NODE/SYS = across the CPU('s sockets). The header is underlined on a terminal. Example (two rows):

        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV18    NV18    NV17    PIX     0-55            0
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._blocks import may_read

LINK = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
MOST_GPUS = 64
FEWEST = 4
"""GPUs below which no GPU is the odd one out."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One GPU and how it is connected to each of the GPUs that the header lists."""

    gpu: str
    line: Line
    links: Sequence[str]

    @property
    def nvlinks(self) -> int:
        return sum(int(x[2:]) for x in self.links if x.startswith("NV"))


def _rows(line: Line, gpus: Sequence[str]) -> list[_Row]:
    """The rows below the header, which may be underlined; the last one counts of a GPU's."""
    rows: dict[str, _Row] = {}
    for row in line.after(MOST_GPUS + 32):
        fields = row.text.split()
        if not fields or fields[0] not in gpus or len(fields) < len(gpus) + 1:
            if rows:
                break
            continue
        links = fields[1 : len(gpus) + 1]
        if not all(LINK.fullmatch(x) for x in links):
            break
        rows[fields[0]] = _Row(fields[0], row, links)
        line.window.state["topology.until"] = row.number
    return list(rows.values())


def _odd_one(rows: Sequence[_Row]) -> tuple[_Row, int] | None:
    """The one GPU that has fewest NVLinks of those below the usual number, and that number.

    Whoever is connected to a GPU with lost links has lost some, too: the one with the fewest is the odd one.
    """
    usual = Counter(x.nvlinks for x in rows).most_common(1)[0][0]
    fewest = min(x.nvlinks for x in rows)
    odd = [x for x in rows if x.nvlinks == fewest < usual]
    return (odd[0], usual) if len(odd) == 1 and len(rows) >= FEWEST else None


def _summary(line: Line, rows: Sequence[_Row], listed: int) -> Event:
    kinds = Counter(x for row in rows for x in row.links if x != "X")
    links = tuple(f"{kind} {n // 2}" for kind, n in kinds.most_common(8))
    details: dict[str, Detail] = {"gpus": len(rows), "listed": listed, "links": links}
    return line.event("gpu-topology", role="context", details=details, pid=None)


@parser(title="nvidia-smi topo -m", literals=["CPU Affinity"])
def gpu_topology(line: Line) -> Iterator[Event]:
    """A GPU with fewer NVLinks than most of its like has lost some; pairs with bridges are all alike."""
    names = line.text.split()
    gpus = [x for x in names if re.fullmatch(r"GPU\d{1,3}", x)]
    if len(gpus) < 2 or names[0] != "GPU0" or line.number <= line.window.state.get("topology.until", 0):
        return
    if len(gpus) > MOST_GPUS:
        line.leave_out("topology")
        return
    rows = _rows(line, gpus) if may_read(line, "topology") else []
    if not rows:
        return
    yield _summary(line, rows, len(gpus))
    if found := _odd_one(rows):
        odd, usual = found
        yield odd.line.event(
            "topology-odd",
            role="symptom",
            severity="warning",
            cause="nvlink",
            details={"index": int(odd.gpu[3:]), "links": odd.nvlinks, "usual": usual},
            pid=None,
        )
