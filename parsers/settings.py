"""Settings and versions that a job's log tells and that change what other lines mean. Always context.

Examples:

TORCH_NCCL_ASYNC_ERROR_HANDLING=1
PyTorch version: 2.6.0+cu124
Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._lines import near

NAMES = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_DISTRIBUTED_DEBUG",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NET",
    "NCCL_IB_HCA",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_TC",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TIMEOUT",
    "NCCL_DEBUG",
    "ddp_timeout",
    "WORLD_SIZE",
)
NAMED = re.compile(
    r"(?<![A-Za-z_])(?P<name>"
    + "|".join(sorted(NAMES, key=len, reverse=True))
    + r")['\"]?\s{0,4}[=:]\s{0,4}['\"]?(?P<value>[\w./,:+-]{1,700})"
)
ADVICE = ("run with ", "consider ", "try set", "try to set", "enable it by ", "please ", "you can ", "you may ", "e.g.")
"""Words of messages that recommend a setting; nobody set it."""
PROSE = re.compile(r"(?:\b[a-z]{2,20},? ){4}['\"`]?$")
"""Four words of a sentence right before it: somebody speaks about the setting."""
DEPRECATED = re.compile(
    r"Environment variable (?P<name>NCCL_\w{1,60}) is deprecated; use (?P<new>TORCH_NCCL_\w{1,60}) instead"
)
TORCH = re.compile(
    r"(?:(?:[Tt]orch|TORCH)[ _](?:[Vv]ersion|VERSION)['\"]?\s{0,20}[:=]\s{0,4}['\"]?|torch==|PyTorch )"
    r"v?(?P<version>[12]\.\d{1,2}\.\d{1,2}[\w.+-]{0,40})"
)


@parser(title="Settings of the job", literals=NAMES)
def settings(line: Line) -> Iterator[Event]:
    if "set by environment to" in line.text:
        return  # NCCL's own line: parsers/nccl_library.py
    text = near(line)
    lowered = text.lower()
    if any(words in lowered for words in ADVICE):
        return
    seen: set[str] = set()
    for found in NAMED.finditer(text):
        if found["name"] not in seen and not PROSE.search(text[max(0, found.start() - 120) : found.start()]):
            seen.add(found["name"])
            yield line.event(
                "setting", role="context", details={"name": found["name"], "value": found["value"].rstrip(",.:")}
            )


@parser(title="PyTorch: a variable goes by its old name", literals=["is deprecated; use TORCH_NCCL_"])
def deprecated_setting(line: Line) -> Iterator[Event]:
    """Printed by torch/csrc/distributed/c10d/Utils.hpp, 2.2 and newer, when the old name is set; without its value."""
    if found := DEPRECATED.search(near(line)):
        yield line.event("setting", role="context", details={"name": found["name"], "value": None, "new": found["new"]})


@parser(
    title="PyTorch's version",
    literals=["orch version", "orch_version", "ORCH_VERSION", "torch==", "PyTorch 1.", "PyTorch 2."],
)
def torch_version(line: Line) -> Iterator[Event]:
    if found := TORCH.search(near(line)):
        yield line.event("torch-version", role="context", details={"version": found["version"]})


@parser(title="The Flight Recorder was off", literals=["potentially because FlightRecorder is disabled"])
def flight_recorder_off(line: Line) -> Iterator[Event]:
    yield line.event("setting", role="context", details={"name": "flight_recorder", "value": "off"})
