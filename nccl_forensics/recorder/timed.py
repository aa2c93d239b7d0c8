"""How long the collectives of NCCL Inspector's files took, as its parser gives them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

KEPT = 4096
"""Collectives of one kind, rank and communicator that are kept, the newest."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The collectives of one kind that one rank has completed in one communicator."""

    path: str
    host: str
    pid: int
    comm: str
    comm_rank: int
    comm_ranks: int
    op: str
    """As NCCL calls it: 'AllReduce'."""
    seqs: array[int]
    """Rising; counted for each kind apart."""
    took_us: array[int]
