"""Which hosts share a switch: Slurm's topology, `ibnetdiscover` and `iblinkinfo`.

Written by `scontrol show topology` or by hand (topology.conf(5): SwitchName of topology/tree, BlockName of
topology/block, which is an NVLink domain), and by infiniband-diags, where a port's far end is a node description, by
default "host HCA-1" or "host mlx5_0" (rdma-ndd(8)). Time: none, the moment of the call. Only leaf switches, those with
hosts, are told. Examples (Slurm; ibnetdiscover; iblinkinfo):

SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node[01-08]
Switch	36 "S-ec0d9a0300ec8240"		# "MF0;leaf1:MQM9700/U1" enhanced port 0 lid 48 lmc 0
Switch: 0xec0d9a0300ec8240 MF0;leaf1:MQM9700/U1:
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._blocks import may_read

MOST_SWITCHES = 4_000
MOST_PORTS = 300
"""The largest switch that shows as one has 256 ports (a Quantum-2 has 64)."""
MOST_HOSTS = 4096
"""Of one switch."""
MOST_NAMES = 100_000
"""Of all switches of a file: 16,384 hosts at six of them. Our judgement."""

SLURM = re.compile(r"\s*(?P<what>Switch|Block)Name=(?P<name>[^\s,#]{1,100})(?=\s)(?P<rest>[^#]*)")
NODES = re.compile(r"(?i)\sNodes=(\S+)")
DISCOVERED = re.compile(r'Switch\s+\d{1,4} "S-(?P<guid>[0-9a-f]{16})"\s+# "(?P<name>[^"]{0,200})"')
LINKS = re.compile(r"Switch:? 0x(?P<guid>[0-9a-f]{16}) (?P<name>.{0,200})")
DISCOVERED_PORT = re.compile(r"\[\d{1,3}\]")
LINK = re.compile(r"\s*(?:0x[0-9a-f]{16}\s.{0,100})?\d{1,6}\s+\d{1,3}\[[ \d]*\] ==\(")
HOST = re.compile(r'"\s*(?P<host>[A-Za-z0-9][\w.-]{0,250}) (?:HCA-\d{1,3}|(?:mlx|hfi|ib|bnxt_re|roce)\w{0,20})"')
PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]{1,50000}\]){1,255}")
BRACKETS = re.compile(r"([^\[\]]{0,200})\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]([^\[\]]{0,100})")
MODEL = re.compile(r"(?:MF0;)?(?P<name>[^:;]+)")
"""A managed switch calls itself `MF0;name:model/unit`."""


def hosts_of_list(text: str) -> Iterator[str] | None:
    """The names in a list as Slurm writes it: `node[01-03,07],login1`; None if some part of it is not understood."""
    parts = PART.findall(text)
    if ",".join(parts) != text or any("[" in x and BRACKETS.fullmatch(x) is None for x in parts):
        return None
    return (name for part in parts for name in _names(part))


def _names(part: str) -> Iterator[str]:
    found = BRACKETS.fullmatch(part)
    if found is None:
        yield part
        return
    for numbers in found[2].split(","):
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{found[1]}{number:0{len(first)}}{found[3]}"


def _told(line: Line, what: str, name: str, hosts: Iterable[str] | None) -> Iterator[Event]:
    """Nothing of a switch that is too large or not understood: some of its hosts would pass for all."""
    state = line.window.state
    left = min(MOST_HOSTS, MOST_NAMES - state.get("switches.names", 0))
    several = dict.fromkeys(islice(hosts, left + 1)) if hosts is not None else {}
    state["switches.names"] = state.get("switches.names", 0) + len(several)
    if hosts is None or len(several) > left:
        line.leave_out("switches")
    elif several:
        yield line.event("switch", role="context", details={"switch": name, "what": what, "node": tuple(several)})


@parser(title="Slurm topology", literals=["SwitchName=", "BlockName="])
def slurm_topology(line: Line) -> Iterator[Event]:
    """A switch or block that holds hosts; one of other switches holds none of its own."""
    found = SLURM.match(line.text)
    if found is None or re.search(r"(?i)\sSwitches=\S", found["rest"]) or not may_read(line, "switches", MOST_SWITCHES):
        return
    nodes = NODES.search(found["rest"])
    if nodes is not None:
        yield from _told(line, found["what"].lower(), found["name"], hosts_of_list(nodes[1]))


@parser(title="InfiniBand topology (ibnetdiscover, iblinkinfo)", literals=["Switch\t", "Switch: 0x", "Switch 0x"])
def infiniband_topology(line: Line) -> Iterator[Event]:
    """A switch and the hosts at its ports."""
    head, port = DISCOVERED.match(line.text), DISCOVERED_PORT
    if head is None:
        head, port = LINKS.fullmatch(line.text.rstrip(" :")), LINK
    if head is None or not may_read(line, "switches", MOST_SWITCHES):
        return
    ports = []
    for row in line.after(MOST_PORTS):
        if port.match(row.text) is None:
            break
        ports.append(row.text)
    named = MODEL.match(head["name"])
    # Unmanaged switches are all called by their model.
    plain = named is None or " " in named["name"].strip()
    name = head["guid"] if named is None or plain else named["name"].strip()
    yield from _told(line, "switch", name, (x["host"] for text in ports if (x := HOST.search(text))))
