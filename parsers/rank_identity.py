"""Lines in which a process says at its start which rank it is, and of how many.

Written by Lightning (fabric/utilities/distributed.py), PyTorch (c10d's store based barrier, logger at INFO; key 1 is
the default group's), DeepSpeed (comm/comm.py, mpi_discovery), Megatron-LM (initialize.py), DETR and MAE (util/misc.py)
and home-made programs. Time: that of the line's prefix. Examples:

Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/8
[INFO] torch.distributed.distributed_c10d: Rank 3: Completed store-based barrier for key:store_based_barrier_key:1 with
8 nodes.
[comm.py:669:mpi_discovery] Discovered MPI settings of world_rank=3, local_rank=3, world_size=16, master_addr=10.0.0.1
[launch.py:164:main] nnodes=2, num_local_procs=8, node_rank=0
using world size: 16, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 2
2026-01-17 11:00:11,793 - train - INFO - rank 1/16 on gpu-34 pid 15778 local_rank 1
rank 2 -> cuda:2 (0000:81:00.0)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event
from nccl_forensics.names import MOST_RANKS

from ._kernel import pci_address
from ._lines import is_data, number

LIGHTNING = re.compile(r"GLOBAL_RANK: (?P<rank>\d{1,7}), MEMBER: \d{1,7}/(?P<world>\d{1,7})")
BARRIER = re.compile(
    r"Rank (?P<rank>\d{1,7}): Completed store-based barrier for key:store_based_barrier_key:1 with "
    r"(?P<world>\d{1,7}) nodes"
)
DEEPSPEED = re.compile(r"world_rank=(?P<rank>\d{1,7}), local_rank=\d{1,5}, world_size=(?P<world>\d{1,7})")
DETR = re.compile(r"\| distributed init \(rank (?P<rank>\d{1,7})(?:, worl?d (?P<world>\d{1,7}))?\)")
"""DETR's and MAE's util/misc.py, which many projects have taken over, with `word` for world; the first has no size."""
OWN = re.compile(
    r"(?i)(?<![\w-])(?:(?P<what>[a-z]{1,20})[ _-])?rank[ :=]{0,2}(?P<rank>\d{1,7})"
    r"(?:(?:/| of )(?P<of>\d{1,7})\b|,? (?:and )?world[ _]size[ :=]{1,2}(?P<world>\d{1,7})\b)"
    r"(?= ?(?:$|[][,;:.()|-]|(?:on|pid|local|host|hostname|node)\b))"
)
"""Nothing told of that rank may follow: others speak of it, too."""
WORLD = re.compile(
    r"\busing world size: (?P<world>\d{1,7}), data-parallel size: "
    r"|^[Ww]orld[ _]size(?:[:=]| [=:]?) ?(?P<own>\d{1,7})(?=$|[\s,;)])(?! ?(?:/|of\b))"
)
"""Megatron's, and a message that begins with it: groups' sizes have the group's name in front."""
LOCAL_WORLD = re.compile(
    r"(?i)\b(?:nproc[-_]per[-_]node|num_local_procs|local_world_size)['\"]?(?: {0,20}[:=] ?| )"
    r"['\"]?(?P<local>\d{1,4})\b"
)
NODES = re.compile(r"(?i)(?<![A-Za-z_])nnodes['\"]?(?: {0,4}[:=] ?| )['\"]?(?P<nodes>\d{1,5})(?![\d:])")
"""Not `1:4`, which is a range."""
PARTS = frozenset(
    [
        "local",
        "node",
        "machine",
        "group",
        "role",
        "tp",
        "pp",
        "dp",
        "ep",
        "cp",
        "sp",
        "mp",
        "tensor",
        "pipeline",
        "data",
        "expert",
        "context",
        "sequence",
        "model",
        "parallel",
        "replica",
        "shard",
        "stage",
        "dcp",
        "fsdp",
    ]
)
"""Words before 'rank' that make it another rank than the job's."""
PID = re.compile(r"\bpid[ :=]{1,2}(\d{1,10})\b")
HOST = re.compile(
    r"\b(?:on|(?:on )?(?:host|node|hostname)[ :=]{1,2})\s?(?P<host>(?=[\w.-]{0,64}\d)[A-Za-z][\w-]{0,62}"
    r"(?:\.[\w-]{1,63}){0,8}|\d{1,3}(?:\.\d{1,3}){3})(?=$|[\s,;)\]])"
)
"""A name with a digit in it; words without one can mean anything."""
DEVICE = re.compile(
    r"(?:cuda|gpu|device|dev|npu|xpu|hip|card|rank|port|step|epoch)[-_]?(?:\d|1[0-5])"
    r"|(?:nvidia|tesla|geforce|quadro|rtx|gtx|[abhlptv]\d{1,3}|gb?[123]\d\d|mi\d{3})(?:[-_]?(?:\d+gb|[a-z]{2,4}\d?x?))*",
    re.IGNORECASE,
)
"""A device, by its number or model, where a machine's name could stand."""
LOCAL = re.compile(r"\blocal[_ ]rank[ :=]{1,2}(\d{1,5})\b")
CARD = re.compile(
    r"(?i)^\W{0,4}(?:(?P<what>[a-z]{1,20})[ _-])?rank[ :=]{0,2}(?P<rank>\d{1,7})"
    r"(?:\s{0,3}(?:->|=>|→|[:=,(\[|]|(?:is )?(?:on|uses|using|has|bound to|pinned to)\b"
    r"|(?:device|gpu|cuda|pci|bus(?:[ _-]?id)?)\b(?:[:= ]{0,2}\d{1,3}\b(?![:.]))?"
    r"|local[_ ]rank[ :=]{0,2}\d{1,5}\b)){1,8}"
    r"\s{0,3}(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?![\w.])"
)
"""`rank 2 -> cuda:2 (0000:81:00.0)`: nothing but words of a place between the two."""
LONGEST = 400
"""Characters looked at; such lines are short."""


class _Stated(NamedTuple):
    """'Rank 3 of 16', as a program says it of itself."""

    rank: int
    size: int | None
    end: int
    """Where in the text that ends: the host stands behind it."""


def _stated(said: str, detr: re.Match[str] | None) -> _Stated | None:
    """By one of the frameworks' own forms, or else by that of home-made programs."""
    if found := LIGHTNING.search(said) or BARRIER.search(said) or DEEPSPEED.search(said) or detr:
        return _Stated(int(found["rank"]), number(found["world"]), found.end())
    own = OWN.search(said)
    if own is None or (own["what"] or "").lower() in PARTS:
        return None
    return _Stated(int(own["rank"]), number(own["of"] or own["world"]), own.end())


def _world_size(line: Line, said: str) -> Event | None:
    """How many ranks the job or one node has; nothing of whose line it is."""
    if found := WORLD.search(said):
        size = int(found["world"] or found["own"])
        return line.event("world-size", role="context", details={"world_size": size}) if size > 1 else None
    if (found := LOCAL_WORLD.search(said)) and int(found["local"]):
        nodes = NODES.search(said)
        every = int(nodes["nodes"]) if nodes else None
        return line.event("world-size", role="context", details={"local_world": int(found["local"]), "nodes": every})
    return None


def _host(said: str, behind: int) -> str | None:
    found = HOST.search(said, behind)
    return None if found is None or DEVICE.fullmatch(found["host"]) else found["host"]


def _rank(line: Line, said: str, stated: _Stated) -> Iterator[Event]:
    """The process with its job's size, its host, pid and local rank, as far as they are said."""
    rank, size, end = stated
    if size is None or not 1 < size <= MOST_RANKS or rank >= size or line.peeled.rank not in (None, rank):
        return
    pid, local = PID.search(said), LOCAL.search(said)
    yield line.event(
        "rank-identity",
        role="context",
        rank=rank,
        details={"world_size": size},
        host=line.host or _host(said, end),
        pid=int(pid[1]) if pid else line.peeled.pid,
        local_rank=int(local[1]) if local else line.peeled.local_rank,
    )


@parser(
    title="A process's own rank",
    literals=[
        "nproc_per_node",
        "nproc-per-node",
        "num_local_procs",
        "local_world_size",
        "LOCAL_WORLD_SIZE",
        "GLOBAL_RANK: ",
        "store_based_barrier_key:1 with",
        "world_rank=",
        "orld size",
        "orld_size",
        "rank ",
        "rank=",
    ],
)
def rank_identity(line: Line) -> Iterator[Event]:
    said = line.text[:LONGEST]
    if "NCCL " in said or is_data(said):
        return
    if size := _world_size(line, said):
        yield size
        return
    detr = DETR.search(said)
    if detr and not detr["world"]:
        rank = int(detr["rank"])
        if rank < MOST_RANKS and line.peeled.rank in (None, rank):
            yield line.event("rank-identity", role="context", rank=rank)
    elif stated := _stated(said, detr):
        yield from _rank(line, said, stated)
    elif (card := CARD.search(said)) and (card["what"] or "").lower() not in PARTS:
        rank = int(card["rank"])
        if rank < MOST_RANKS and line.peeled.rank in (None, rank):
            yield line.event("rank-identity", role="context", rank=rank, gpu_pci=pci_address(card["pci"]))
