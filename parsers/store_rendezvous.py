"""PyTorch's TCPStore and the rendezvous of torchrun: who waited for which key, whose store went away.

Written by torch/csrc/distributed/c10d/{TCPStore,socket}.cpp and torch/distributed/elastic/rendezvous. Time: the c10
prefix from 2.4 on, the agent's logger (local time) for rendezvous lines. Examples:

[rank1]:[W516 14:34:56.854000551 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, addr=[localhost]:41170,
remote=[localhost]:29500) timed out after 1800000ms
[rank1]:[W925 00:17:24.692000802 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=87, addr=[node-b]:40242,
remote=[node-a]:48749): Broken pipe
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._lines import failure_block, near, number, rank_before

WAIT = re.compile(
    r"waitForInput: socket [^\n]{0,300}?timed out after (?P<wait_ms>\d{1,18})ms"
    r"|wait timeout after (?P<wait_ms_2>\d{1,18})ms, keys: (?P<key>\S{1,300})"
)
BROKEN = re.compile(
    r"(?:sendBytes|recvValue|recvVector|recvString"
    r"|recvBytes) failed on SocketImpl\([^)]{0,300}?remote=\[(?:::ffff:)?(?P<host>[^\]]{1,255})\]:(?P<port>\d{1,5})"
)
FLAG = re.compile(r"Failed to check the \\?\"should dump\\?\" flag on TCPStore")
SIGN = re.compile(f"{FLAG.pattern}|{BROKEN.pattern}")
FLAG_REACH = 60
"""Lines in which the flag is read again, a second later, with a C++ stack and other ranks' lines between; judgement."""
CLIENTS = re.compile(
    r"Timed out after (?P<waited_s>\d{1,9}) seconds waiting for clients\."
    r" (?P<joined>\d{1,7})/(?P<expected>\d{1,7}) clients joined"
)
BARRIER = re.compile(
    r"store based barrier (?:on|to initialize process group).{0,60}?rank:? (?P<rank>\d{1,7}).{0,120}?"
    r"world_size=(?P<world>\d{1,7}), (?:worker_count|num_workers_joined)=(?P<joined>\d{1,7})"
)
CONNECT = re.compile(
    r"The client socket has (?:timed out after \S{1,30} while trying to connect to"
    r"|failed to connect to any network address of) \((?P<host>[^,()]{1,255}), (?P<port>\d{1,5})\)"
)
BIND = re.compile(
    r"The server socket has failed to (?:listen on any local network address"
    r"|bind).{0,200}?(?:port: (?P<port>\d{1,5}))?|EADDRINUSE"
)
NODE = re.compile(
    r"The node '(?P<node>[^'\n]{1,255})' has failed to (?:send a keep-alive heartbeat to"
    r"|shutdown) the rendezvous.{0,200}?"
    r"(?:Rendezvous(?P<error>\w{1,40})Error|$)"
)
RDZV = re.compile(r"Rendezvous(?P<error>Timeout|Connection|Closed|GracefulExit|State)Error")


@parser(title="TCPStore: a key was not set in time", literals=["waitForInput: socket", "wait timeout after "])
def store_wait(line: Line) -> Iterator[Event]:
    if found := WAIT.search(near(line)):
        yield line.event(
            "store-wait",
            role="symptom",
            severity="error",
            **({"rank": rank_before(line, line.text, found.start())} | failure_block(line)),
            details={"key": found["key"], "wait_ms": number(found["wait_ms"] or found["wait_ms_2"])},
        )


def _once(line: Line) -> bool:
    """Is it the only sign of a lost store that this process shows, here and in its next lines?"""
    seen: set[int | None] = line.window.state.setdefault("store.lost", set())
    if line.rank in seen:
        return False
    seen.add(line.rank)
    return not any(SIGN.search(x.text) and x.rank == line.rank for x in line.after(FLAG_REACH))


@parser(title="TCPStore: its host is gone", literals=["failed on SocketImpl(", "flag on TCPStore"])
def store_broken(line: Line) -> Iterator[Event]:
    """Repeated each second by every process that is left.

    A flag that could not be read once is context: at a normal end the store's host leaves a moment before the others.
    """
    text = near(line)
    found = BROKEN.search(text)
    if not found and FLAG.search(text) and _once(line):
        yield line.event("store-flag-unread", role="context", rank=rank_before(line, text, len(text)))
    elif found or FLAG.search(text):
        line.window.state.setdefault("store.lost", set()).add(line.rank)
        yield line.event(
            "store-broken",
            role="consequence",
            severity="warning",
            **({"rank": rank_before(line, text, len(text))} | failure_block(line)),
            details={"store_host": found["host"] if found else None, "port": int(found["port"]) if found else None},
        )


@parser(title="TCPStore: processes never connected", literals=["seconds waiting for clients."])
def store_clients(line: Line) -> Iterator[Event]:
    if found := CLIENTS.search(near(line)):
        yield line.event(
            "store-clients",
            role="symptom",
            severity="error",
            details={"joined": int(found["joined"]), "expected": int(found["expected"])},
            **failure_block(line),
        )


@parser(title="Store based barrier: ranks are missing", literals=["store based barrier"])
def store_barrier(line: Line) -> Iterator[Event]:
    """`at_rank` is the global rank of the process that waited; it is said in the text."""
    if found := BARRIER.search(near(line)):
        yield line.event(
            "store-barrier",
            role="symptom",
            severity="error",
            details={
                "at_rank": int(found["rank"]),
                "world_size": int(found["world"]),
                "joined": int(found["joined"]),
            },
            **(failure_block(line) | {"rank": int(found["rank"])}),
        )


@parser(title="TCPStore: the master cannot be reached", literals=["The client socket has "])
def store_connect(line: Line) -> Iterator[Event]:
    if found := CONNECT.search(near(line)):
        yield line.event(
            "store-connect",
            role="symptom",
            severity="error",
            cause="store_lost",
            details={"store_host": found["host"], "port": int(found["port"])},
            **failure_block(line),
        )


@parser(title="TCPStore: the port is taken", literals=["The server socket has failed to", "EADDRINUSE"])
def store_bind(line: Line) -> Iterator[Event]:
    if found := BIND.search(near(line)):
        yield line.event(
            "store-bind",
            role="cause",
            severity="error",
            cause="nccl_setup",
            details={"port": number(found["port"])},
            **failure_block(line),
        )


@parser(
    title="Rendezvous: an agent lost the store",
    literals=["' has failed to send a keep-alive", "' has failed to shutdown"],
)
def rdzv_heartbeat(line: Line) -> Iterator[Event]:
    """The named node is the one that speaks, not the one that is gone."""
    if found := NODE.search(near(line)):
        yield line.event(
            "rdzv-heartbeat",
            role="consequence",
            severity="warning",
            details={"node": found["node"], "error": found["error"]},
        )


@parser(
    title="Rendezvous error",
    literals=[f"Rendezvous{x}Error" for x in ("Timeout", "Connection", "Closed", "GracefulExit", "State")],
)
def rdzv_error(line: Line) -> Iterator[Event]:
    if "' has failed to" not in line.text and (found := RDZV.search(near(line))):
        yield line.event(
            "rdzv-error",
            role="symptom" if found["error"] == "Timeout" else "consequence",
            severity="warning",
            details={"error": found["error"]},
            **failure_block(line),
        )
