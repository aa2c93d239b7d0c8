"""What is known about causes, kinds of events, Xids and kernel messages, as data; read once, and checked."""

from __future__ import annotations

from nccl_forensics.catalog.cause import Cause, causes, causes_marked
from nccl_forensics.catalog.evidence_weight import weight, weights
from nccl_forensics.catalog.kind import Kind, kinds, kinds_by, kinds_marked
from nccl_forensics.catalog.signature import KernelEntry, kernel_entries, kernel_noise
from nccl_forensics.catalog.step import Step, steps
from nccl_forensics.catalog.tables import CatalogError, load
from nccl_forensics.catalog.xid import SxidEntry, XidEntry, sxids, xids

__all__ = [
    "CatalogError",
    "Cause",
    "KernelEntry",
    "Kind",
    "Step",
    "SxidEntry",
    "XidEntry",
    "causes",
    "causes_marked",
    "kernel_entries",
    "kernel_noise",
    "kinds",
    "kinds_by",
    "kinds_marked",
    "load",
    "steps",
    "sxids",
    "weight",
    "weights",
    "xids",
]
