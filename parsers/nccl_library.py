"""NCCL itself: who is in a communicator, what it warns of, and the report of its RAS service.

Written by NVIDIA NCCL 2.8 to 2.31 with NCCL_DEBUG=INFO or WARN. Time: none, or (WARN, from about 2.26 on) local time
in brackets. `host:pid:tid [device]` stands before each message; the device is the calling thread's (helpers often say
0) and no rank. Examples:

worker-0:931:980 [0] NCCL INFO comm 0x7f1c04002f70 rank 0 nranks 2 cudaDev 0 busId 3b000 - Init COMPLETE
node-51:73076:73185 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node-48<37948> with error
12, opcode 2, len 1, vendor err 129
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._lines import cuda_cause, followers, near, number, rank_list
from .ras import in_report

HEADER = re.compile(r"(?<![\w.-])(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,9}):(?P<tid>\d{1,9}) \[(?P<device>\d{1,3})\]")
INIT = re.compile(
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n[rR]anks (?P<nranks>\d{1,7})"
    r" cudaDev (?P<cuda>\d{1,4})(?: nvmlDev (?P<nvml>\d{1,4}))? busId (?P<bus>[0-9a-f]{1,12})(?P<rest>.{0,200}?)"
    r"- (?P<what>Init|Destroy|Abort) (?P<phase>START|COMPLETE)"
)
COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,32})")
COMPLETION = re.compile(
    r"Got completion (?:from peer (?P<peer>\S{1,255}?) )?with (?:error "
    r"|status=)(?:\w{1,60}\()?(?P<status>\d{1,5})\)?,? opcode"
)
HCA = re.compile(r" hca (?P<device>[\w.-]{1,40})")
VENDOR = re.compile(r"vendor[_ ]err[ =](?P<vendor>\d{1,7})")
ASYNC = re.compile(
    r"NET/IB ?: ?(?:(?P<device>\S{1,60}:\d{1,3}) )?(?P<what>Got (?P<harmless>non-fatal )?async event ?:"
    r" ?(?P<event>.{1,200})"
    r"|async fatal event(?P<fatal>.{0,200}))"
)
CLOSED = re.compile(
    r"(?:socketProgress\w{0,20}|ncclOsSocket\w{1,30}"
    r"|Net) ?: ?(?:Connection closed by remote peer(?: (?P<peer>\S{1,255}))?"
    r"|Call to (?P<call>recv from|send to) (?P<peer_2>\S{1,255}) failed ?: ?(?P<error>.{1,120}))"
)
CUDA = re.compile(r"NCCL WARN Cuda failure(?: \d{1,5})? '(?P<error>[^']{1,200})'")
SHM = re.compile(
    r"(?P<path>/dev/shm/nccl-\S{1,80})(?: to \d{1,20} bytes|.{0,300}?(?:No space left|error))"
    r"|Call to posix_fallocate failed ?: No space left on device"
)
BOOTSTRAP = re.compile(
    r"Bootstrap ?: no socket interface found|Bootstrap Root ?: mismatch in \w+|ncclOsSocketPollConnect"
    r"|connect to \S{1,255} returned .{0,200}?exceeded error retry count"
    r"|Duplicate GPU detected ?: rank \d{1,7} and rank \d{1,7} both on CUDA device|Mismatched NCCL version detected"
)
VERSION = re.compile(r"NCCL version (?P<version>\d{1,3}\.\d{1,3}[.\w+-]{0,40})")
SETTING = re.compile(r"NCCL INFO (?P<name>NCCL_\w{1,60}) set by environment to (?P<value>\S{0,200}?)\.?\s*$")
USING = re.compile(r"NET/(?:IB|Socket) ?: ?Using (?P<ports>\[\d{1,3}\].{1,4000})$")
PORT = re.compile(r"\[\d{1,3}\]\{?(?P<port>[\w.-]{1,60}:\d{1,3})/(?:IB|RoCE)")
INTERFACE = re.compile(
    r"(?:\[\d{1,3}\]|OOB |Using )(?P<dev>[\w.@-]{1,32}):(?P<address>[\d.]{7,15}|[0-9a-f:]{2,45}(?:%\S{1,32})?)<\d{1,5}>"
)
OWN_ADDRESS = re.compile(r"Bootstrap ?: ?(?P<ports>Using .{1,400})$")
MISMATCH = re.compile(r"Communicator ranks have different (?P<op>\w{1,40}) operation counts")
LAUNCHED = re.compile(
    r"Rank (?P<rank>\d{1,7}) has launched up to operation (?P<count>\d{1,19})(?: -- GPU (?P<gpu>\S{1,20}) managed by"
    r" process (?P<pid>\d{1,9}) on node (?P<host>\S{1,255}))?"
)
MISSING = re.compile(r"Missing communicator data from (?P<n>\d{1,7}) (?:rank|job process)")

OFI = re.compile(
    r"WARN\b.{0,120}?NET/OFI "
    r"(?P<text>(?P<request>(?:Request \S{1,40} |.{0,60}?)completed with error|.{0,60}?fi_cq_read)"
    r"|(?:Couldn't|Could not|Unable to|Failed to|No eligible) .{1,300})"
)
OFI_CODE = re.compile(r"\bRC: ?(?P<code>-?\d{1,5})")
"""aws-ofi-nccl (src/nccl_ofi_net.c, nccl_ofi_sendrecv.c): NCCL over libfabric."""
CHAIN = re.compile(r"NCCL INFO (?:\S{0,200}/)?(?P<file>\w{1,40}\.(?:cc|cu|h)):\d{1,6} -> \d{1,3}")
"""How NCCL returns an error through its functions, one line each (include/checks.h, NCCLCHECK)."""
SET_UP = frozenset({"init.cc", "bootstrap.cc"})
"""Where communicators are made."""
CHAIN_LINES = 48
"""Lines behind a warning in which its chain is looked for: those of other processes stand between. Our judgement."""
FLUSHED = 5
"""IBV_WC_WR_FLUSH_ERR (libibverbs, enum ibv_wc_status): the queue was already in error; something failed before."""
HARMLESS = re.compile(r"(?i)gid|port active|client reregister|lid change|sm change|path migrat|non-fatal")


def bus_id(text: str) -> str | None:
    """NCCL's busId, hex without separators, as 'dddd:bb:dd.f': the last digit is the function, then two and two."""
    value = int(text, 16)
    domain, bus, device, function = value >> 20, value >> 12 & 0xFF, value >> 4 & 0xFF, value & 0xF
    return None if function > 7 or device > 0x1F else f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def speaker(line: Line) -> dict[str, Any]:
    """Host and pid of NCCL's own header, which stands nearest before the message."""
    raw = line.raw[:2000].decode("utf-8", "backslashreplace")
    found = None
    for found in HEADER.finditer(raw.split("NCCL ", 1)[0]):  # noqa: B007 - the last one counts
        pass
    return {"host": found["host"], "pid": int(found["pid"])} if found else {}


SERVICE = re.compile(r"\[Proxy Service (?P<rank>\d{1,7})\]")


def _service(line: Line, who: dict[str, Any]) -> dict[str, Detail]:
    """CUDA device of the thread and, where the proxy's own warning follows, this process's rank in the communicator."""
    header = HEADER.search(line.raw[:2000].decode("utf-8", "backslashreplace"))
    rank = None
    for other in line.after(16):
        text = other.raw[:1000].decode("utf-8", "backslashreplace")
        if (found := SERVICE.search(text)) and speaker(other) == who:
            rank = int(found["rank"])
            break
    return {"cuda_dev": int(header["device"]) if header else None, "comm_rank": rank}


def peer_host(text: str | None) -> str | None:
    """'node-48<37948>' → 'node-48'."""
    return text.split("<", 1)[0].strip("[]") or None if text else None


@parser(title="NCCL: network ports in use", literals=["Using [0]", "Bootstrap : Using", "Bootstrap: Using"])
def nccl_ports(line: Line) -> Iterator[Event]:
    """The ports that were up as the job began, for NCCL to use (transport/net_ib.cc, net_socket.cc).

    `ports`, each device:port, and `interfaces`, those of the operating system: of sockets, or out of band beside IB.
    `addresses`: the host's own on these.
    """
    text = near(line)
    if found := USING.search(text) or OWN_ADDRESS.search(text):
        own = list(INTERFACE.finditer(found["ports"]))
        used = {
            "ports": PORT.findall(found["ports"]),
            "interfaces": [x["dev"] for x in own] if found.re is USING else [],
            "addresses": [x["address"].split("%")[0] for x in own],
        }
        details: dict[str, Detail] = {k: tuple(v) for k, v in used.items() if v}
        if details:
            yield line.event("nccl-ports", role="context", details=details, **speaker(line))


@parser(
    title="NCCL: a rank joins a communicator",
    literals=[" - Init ", "- Destroy ", "- Abort ", "Init START", "Init COMPLETE"],
)
def nccl_init(line: Line) -> Iterator[Event]:
    found = INIT.search(near(line))
    if not found:
        return
    comm_id = COMM_ID.search(found["rest"])
    yield line.event(
        "nccl-init" if found["what"] == "Init" else "nccl-end",
        role="context",
        gpu_pci=bus_id(found["bus"]),
        details={
            "comm": found["comm"],
            "comm_rank": int(found["rank"]),
            "nranks": int(found["nranks"]),
            "cuda_dev": int(found["cuda"]),
            "nvml_dev": number(found["nvml"]),
            "bus_id": found["bus"],
            "phase": found["phase"],
            "comm_id": comm_id[1] if comm_id else None,
        },
        **speaker(line),
    )


def _failure(line: Line, text: str, who: dict[str, Any]) -> Event | None:
    """What NCCL warns of, and what a Python error quotes again: a failed work request, a lost peer, a full /dev/shm."""
    if found := COMPLETION.search(text):
        vendor = VENDOR.search(text)
        flushed = int(found["status"]) == FLUSHED
        return line.event(
            "nccl-ib-error",
            role="consequence" if flushed else "symptom",
            severity="warning" if flushed else "error",
            cause=None if flushed else "fabric_error",
            details={
                "status": int(found["status"]),
                "vendor": number(vendor["vendor"]) if vendor else None,
                "peer": peer_host(found["peer"]),
                "device": device["device"] if (device := HCA.search(text, found.end())) else None,
            },
            **who,
        )
    if found := CLOSED.search(text):
        return line.event(
            "nccl-closed",
            role="consequence",
            severity="warning",
            details={"peer": peer_host(found["peer"] or found["peer_2"]), "error": found["error"]},
            **who,
        )
    if found := SHM.search(text):
        return line.event(
            "nccl-shm", role="cause", severity="error", cause="shm_full", details={"path": found["path"]}, **who
        )
    if found := BOOTSTRAP.search(text):
        return _in_set_up(line, text[found.start() :], who)
    return None


def _ends_the_set_up(line: Line, who: dict[str, Any]) -> bool:
    """Does the error that was warned of return through the making of a communicator, in the same process?"""
    if not who:
        return False
    for other in line.after(CHAIN_LINES):
        text = other.raw[:1000].decode("utf-8", "backslashreplace")
        found = CHAIN.search(text)
        if found is not None and found["file"] in SET_UP and speaker(other) == who:
            return True
    return False


def _in_set_up(line: Line, message: str, who: dict[str, Any]) -> Event:
    return line.event(
        "nccl-bootstrap",
        role="symptom",
        severity="error",
        cause="nccl_setup",
        details={"text": message[:300]},
        **who,
    )


def _of_libfabric(line: Line, found: re.Match[str], who: dict[str, Any]) -> Event:
    """A request that failed is the fabric's; what could not be opened or registered is the set-up."""
    if found["request"] is None:
        return _in_set_up(line, f"NET/OFI {found['text']}", who)
    code = OFI_CODE.search(line.text)
    return line.event(
        "nccl-ib-error",
        role="symptom",
        severity="error",
        cause="fabric_error",
        details={"status": number(code["code"]) if code else None, "vendor": None, "peer": None, "device": None},
        **who,
    )


@parser(title="NCCL over libfabric", literals=["NET/OFI "])
def nccl_ofi(line: Line) -> Iterator[Event]:
    """The plugin's warnings; before its version 1.1 without NCCL's own head."""
    if found := OFI.search(near(line)):
        yield _of_libfabric(line, found, speaker(line))


@parser(title="NCCL warnings", literals=["NCCL WARN"])
def nccl_warn(line: Line) -> Iterator[Event]:
    text = near(line)
    if "NCCL WARN" not in text or OFI.search(text):
        return
    who = speaker(line)
    message = text.partition("NCCL WARN")[2].strip()
    if found := ASYNC.search(text):
        what = (found["event"] or "fatal" + (found["fatal"] or "")).strip()
        harmless = bool(found["harmless"]) or HARMLESS.search(what) is not None
        yield line.event(
            "nccl-ib-event",
            role="context" if harmless else "cause",
            severity="warning" if harmless else "critical",
            cause=None if harmless else "nic_link_down",
            details={"what": what, "device": found["device"]},
            **who,
        )
    elif found := CUDA.search(text):
        cause = cuda_cause(found["error"])
        if cause is None and _ends_the_set_up(line, who):
            yield _in_set_up(line, message, who)
            return
        yield line.event(
            "nccl-warn-cuda",
            role="cause",
            severity="error",
            cause=cause,
            details={"error": found["error"], **_service(line, who)},
            **who,
        )
    elif failure := _failure(line, text, who):
        yield failure
    elif message and not VERSION.match(message) and _ends_the_set_up(line, who):
        yield _in_set_up(line, message, who)
    elif message and not VERSION.match(message):
        yield line.event("nccl-warn", role="context", severity="warning", details={"text": message[:300]}, **who)


@parser(
    title="NCCL: what a Python error quotes of it",
    literals=[
        "/dev/shm/nccl-",
        "Connection closed by remote peer",
        "Net : Call to recv from",
        "socketProgressOpt: Call",
        "Got completion ",
        "Duplicate GPU detected",
        "Mismatched NCCL version",
        "no socket interface found",
        "exceeded error retry count",
    ],
)
def nccl_quoted(line: Line) -> Iterator[Event]:
    """The last warning, printed again behind `Last error:` without host and pid."""
    text = near(line)
    if "NCCL WARN" in text or "NCCL INFO" in text:
        return
    if failure := _failure(line, text, {}):
        yield failure


@parser(title="NCCL version", literals=["NCCL version "])
def nccl_version(line: Line) -> Iterator[Event]:
    if found := VERSION.search(near(line)):
        yield line.event("nccl-version", role="context", details={"version": found["version"].rstrip(".")})


@parser(title="NCCL settings from the environment", literals=["set by environment to "])
def nccl_setting(line: Line) -> Iterator[Event]:
    if found := SETTING.search(line.text[-400:]):
        yield line.event(
            "setting", role="context", details={"name": found["name"], "value": found["value"]}, **speaker(line)
        )


@parser(
    title="NCCL RAS",
    literals=[
        "operation counts",
        "Missing communicator data",
        "considered dead (unreachable",
        "clocks are *not* synchronized",
    ],
)
def nccl_ras(line: Line) -> Iterator[Event]:
    """`ranks` are ranks in that communicator: those behind (mismatch), or those without data (missing)."""
    text = near(line)
    if in_report(line):
        return
    if found := MISMATCH.search(text):
        counts: dict[int, int] = {}
        hosts: dict[int, str] = {}
        for other in followers(line, 200, 400):
            if other.text.lstrip().startswith("#"):
                break
            for entry in LAUNCHED.finditer(other.text):
                counts[int(entry["rank"])] = int(entry["count"])
                if entry["host"]:
                    hosts[int(entry["rank"])] = entry["host"]
        behind = tuple(sorted(r for r, n in counts.items() if n < max(counts.values())))
        # NCCL lists the smaller part only: whoever is listed with a single count may be ahead as well as behind.
        yield line.event(
            "ras-mismatch",
            role="symptom",
            severity="error",
            details={
                "op": found["op"],
                "ranks": behind,
                "listed": tuple(sorted(counts)),
                "counts": tuple(counts[r] for r in sorted(counts)),
                "hosts": tuple(hosts.get(r, "") for r in sorted(counts)),
            },
        )
    elif "clocks are *not* synchronized" in text:
        yield line.event("ras-clock", role="context", severity="warning", details={"says": text.strip()[:300]})
    elif (found := MISSING.search(text)) or "considered dead (unreachable via the RAS" in text:
        ranks = re.search(r"[Rr]anks? (\d[\d, -]{0,2000})", text)
        yield line.event(
            "ras-missing",
            role="symptom",
            severity="error",
            details={
                "missing": int(found["n"]) if found else None,
                "ranks": rank_list(ranks[1]) if ranks and not found else (),
                "says": text.strip()[:300],
            },
        )
