"""States and counters of network ports: ibstat, ibstatus, ibv_devinfo, ibdev2netdev, rdma link, mlxlink, ethtool.

Written by infiniband-diags, rdma-core, iproute2, NVIDIA's MFT and ethtool. Time: none, the moment of the call. Whether
a port that is down matters depends on whether anybody uses it, so every state is context here; rules/evidence_ports.py
compares ports. Counters count from the last load of the driver. Examples:

CA 'mlx5_0'
        Port 1:
                State: Active
mlx5_3 port 1 ==> ibs3 (Down)
link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ibs0
     link_down_events_phy: 4
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._blocks import may_read

CA = re.compile(r"^CA '(?P<dev>[\w.-]{1,40})'\s*$")
PORT = re.compile(r"^\s+Port (?P<port>\d{1,3}):\s*$")
FIELD = re.compile(r"^\s+(?P<name>State|Physical state|Rate|Link layer): (?P<value>[^\n]{1,40}?)\s*$")
IBSTATUS = re.compile(r"^Infiniband device '(?P<dev>[\w.-]{1,40})' port (?P<port>\d{1,3}) status:\s*$")
IBSTATUS_STATE = re.compile(r"^\s+state:\s+\d{1,2}: (?P<state>\w{1,20})\s*$")
DEVINFO = re.compile(r"^hca_id:\s+(?P<dev>[\w.-]{1,40})\s*$")
DEVINFO_FIELD = re.compile(r"^\s+(?:port:\s+(?P<port>\d{1,3})|state:\s+PORT_(?P<state>\w{1,20}) \(\d{1,2}\))\s*$")
DEV2NET = re.compile(
    r"^(?P<dev>[\w.-]{1,40}) port (?P<port>\d{1,3}) ==> (?P<netdev>\S{1,32}) \((?P<state>Up|Down)\)\s*$"
)
RDMA = re.compile(
    r"^link (?P<dev>[\w.-]{1,40})/(?P<port>\d{1,3}) (?:subnet_prefix \S+ |lid \d+ |sm_lid \d+ |lmc \d+ ){0,4}"
    r"state (?P<state>\w{1,20}) physical_state (?P<physical>\w{1,20})(?: netdev (?P<netdev>\S{1,32}))?"
)
MLXLINK = re.compile(
    r"^(?P<name>State|Physical state|Speed|Recommendation|Group Opcode)\s+: (?P<value>[^\n]{1,200}?)\s*$"
)
MLXLINK_DEVICE = re.compile(r"mlxlink\b[^\n]{0,80}? -d ?(?P<dev>[\w.:/-]{1,40})")
MLXLINK_HEAD = re.compile("Operational Info")
ETHTOOL = re.compile(r"^Settings for (?P<dev>[\w.@-]{1,32}):\s*$")
ETHTOOL_LINK = re.compile(r"^\s+Link detected: (yes|no)\b")
ETHTOOL_COMMAND = re.compile(r"ethtool (?:-S|--statistics) (?P<dev>[\w.@-]{1,32})")
COUNTERS: dict[str, str] = {
    "link_down_events_phy": "link_downs",
    "LinkDownedCounter": "link_downs",
    "rx_crc_errors_phy": "crc_errors",
    "rx_symbol_err_phy": "symbol_errors",
    "SymbolErrorCounter": "symbol_errors",
    "rx_pcs_symbol_err_phy": "pcs_symbol_errors",
    "LinkErrorRecoveryCounter": "link_recoveries",
    "PortRcvErrors": "receive_errors",
    "rx_discards_phy": "receive_discards",
    "tx_errors_phy": "send_errors",
    "local_ack_timeout_err": "ack_timeouts",
    "packet_seq_err": "sequence_errors",
    "out_of_buffer": "out_of_buffer",
}
"""Counters of mlx5 (ethtool -S, rdma statistic) and perfquery → our name."""
FROM_ZERO = frozenset({"link_downs", "link_recoveries"})
"""Counters of which a single step up from 0 means something."""
IN_NAME = re.compile(r"(?:ethtool|stat)[\w.-]{0,20}?[_.-]((?:ib|en|eth|mlx|bond)\w{1,20})")
"""A device in a file's name."""
COUNTER = re.compile(r"^\s*(?P<name>[A-Za-z_]{8,40}):[\s.]*(?P<value>\d{1,19})\s*$")
BLOCKS = ("CA ", "Infiniband device", "hca_id:", "Operational Info", "Settings for ")
UP = frozenset({"active", "up"})
BLOCK = 24
"""Lines of one port in any of these reports; a CA of ibstat has eight lines and eleven for each port."""


def _port(line: Line, **details: Detail) -> Event:
    """A port and its state, normalised: 'up', or what it is instead, in lower case."""
    state = str(details["state"]).lower().removeprefix("port_")
    known: dict[str, Detail] = {**details, "state": "up" if state in UP else state}
    return line.event("port-state", role="context", details={k: v for k, v in known.items() if v is not None}, pid=None)


# --- one report each -------------------------------------------------------------------------------------------------


def _ibstat(line: Line, ca: re.Match[str]) -> Iterator[Event]:
    port, at, fields = None, line, dict[str, str]()
    for row in line.after(80):
        text = row.text
        if text.strip() and not text[:1].isspace():
            break
        if found := PORT.match(text):
            if "State" in fields:
                yield _of_ibstat(at, ca["dev"], port, fields)
            port, at, fields = int(found["port"]), row, {}
        elif field := FIELD.match(text):
            fields[field["name"]] = field["value"]
            if field["name"] == "State":
                at = row
    if "State" in fields:
        yield _of_ibstat(at, ca["dev"], port, fields)


def _of_ibstat(at: Line, dev: str, port: int | None, fields: dict[str, str]) -> Event:
    rate = fields.get("Rate", "")
    return _port(
        at,
        dev=dev,
        port=port,
        state=fields["State"],
        physical=fields.get("Physical state"),
        rate_gb_s=int(rate) if re.fullmatch(r"\d{1,5}", rate, re.ASCII) else None,
        layer=fields.get("Link layer"),
    )


def _ibdev2netdev(line: Line, found: re.Match[str]) -> Iterator[Event]:
    yield _port(line, dev=found["dev"], port=int(found["port"]), state=found["state"], netdev=found["netdev"])


def _rdma_link(line: Line, found: re.Match[str]) -> Iterator[Event]:
    yield _port(
        line,
        dev=found["dev"],
        port=int(found["port"]),
        state=found["state"],
        physical=found["physical"],
        netdev=found["netdev"],
    )


def _ibstatus(line: Line, found: re.Match[str]) -> Iterator[Event]:
    for row in line.after(BLOCK):
        if state := IBSTATUS_STATE.match(row.text):
            yield _port(row, dev=found["dev"], port=int(found["port"]), state=state["state"])
            return
        if IBSTATUS.match(row.text):
            return


def _ibv_devinfo(line: Line, found: re.Match[str]) -> Iterator[Event]:
    port = None
    for row in line.after(BLOCK * 3):
        if DEVINFO.match(row.text):
            return
        if field := DEVINFO_FIELD.match(row.text):
            port = int(field["port"]) if field["port"] else port
            if field["state"]:
                yield _port(row, dev=found["dev"], port=port, state=field["state"])


def _mlxlink(line: Line, head: re.Match[str]) -> Iterator[Event]:
    """The device stands in the command before, if at all."""
    named = (MLXLINK_DEVICE.search(before.text) for before in line.before(12))
    dev = next((found["dev"] for found in named if found), None)
    fields: dict[str, str] = {}
    at = line
    for row in line.after(60):
        if found := MLXLINK.match(row.text):
            fields.setdefault(found["name"], found["value"])
            at = row if found["name"] == "State" else at
        elif MLXLINK_HEAD.match(row.text):
            break
    if "State" in fields:
        says = fields.get("Recommendation")
        yield _port(
            at,
            dev=dev,
            state=fields["State"],
            physical=fields.get("Physical state"),
            recommendation=says if says and not says.startswith("No issue") else None,
        )


def _ethtool(line: Line, found: re.Match[str]) -> Iterator[Event]:
    for row in line.after(60):
        if ETHTOOL.match(row.text):
            return
        if linked := ETHTOOL_LINK.match(row.text):
            yield _port(row, dev=found["dev"], netdev=found["dev"], state="up" if linked[1] == "yes" else "down")
            return


REPORTS = (
    (CA, _ibstat),
    (DEV2NET, _ibdev2netdev),
    (RDMA, _rdma_link),
    (IBSTATUS, _ibstatus),
    (DEVINFO, _ibv_devinfo),
    (MLXLINK_HEAD, _mlxlink),
    (ETHTOOL, _ethtool),
)
"""A report's first line, and who reads it and what stands below."""


@parser(
    title="Network ports: state",
    literals=[
        "CA '",
        "Infiniband device '",
        "hca_id:",
        " ==> ",
        "physical_state ",
        "Operational Info",
        "Settings for ",
    ],
)
def network_ports(line: Line) -> Iterator[Event]:
    text = line.text
    if text.startswith(BLOCKS) and not may_read(line, "ports", 2000):
        return
    for head, read in REPORTS:
        if found := head.match(text):
            yield from read(line, found)
            return


@parser(
    title="Network ports: counters",
    literals=["_phy: ", *(f"{name}:" for name in COUNTERS if not name.endswith("_phy"))],
)
def network_counters(line: Line) -> Iterator[Event]:
    """One counter that is not 0, or of which a step up from 0 means something."""
    found = COUNTER.match(line.text)
    ours = COUNTERS.get(found["name"]) if found else None
    if found is None or ours is None or (int(found["value"]) == 0 and ours not in FROM_ZERO):
        return
    details: dict[str, Detail] = {"counter": ours, "value": int(found["value"]), "dev": _device(line)}
    yield line.event(
        "nic-counter", role="context", details={k: v for k, v in details.items() if v is not None}, pid=None
    )


def _device(line: Line) -> str | None:
    """Of which device a counter is: the command before names it, for all counters behind it, or the file's name."""
    last, dev = line.window.state.get("network_counters", (0, None))
    for before in line.before(max(0, min(400, line.number - last - 1))):
        if named := ETHTOOL_COMMAND.search(before.text):
            dev = named["dev"]
            break
    line.window.state["network_counters"] = (line.number, dev)
    in_name = IN_NAME.search(line.path) if dev is None else None
    return in_name[1] if in_name else dev
