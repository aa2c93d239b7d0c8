"""What an exception speaks for by its class and text, be it in a traceback, in error.json or in a line of its own."""

from __future__ import annotations

import re
from typing import NamedTuple

from nccl_forensics.model import Role

from ._lines import cuda_cause
from .storage import errno_of, in_shared_memory

COMMUNICATION = re.compile(
    r"NCCL (?:error|communicator was aborted|watchdog)|ncclInternal|ncclRemote|ncclSystem|ncclUnhandled"
    r"|Watchdog caught collective|gloo/transport|monitoredBarrier|is setting up NCCL communicator"
    r"|store based barrier|wait timeout after|Socket Timeout|TCPStore|waiting for clients\. |The client socket has"
    r"|Connection closed by (?:remote )?peer|Connection reset by peer|Detected mismatch between collectives"
    r"|timed out in (?:blocking wait|call to wait)|Rendezvous\w{1,20}Error|RendezvousTimeout"
    r"|Horovod has been shut down|NCCL operation \w{1,40}\(|Barrier timed out\. (?:Id|Barrier_id): "
    r"|tasks are unhealthy \(stopped sending heartbeats\)|RPC to coordination service|op\.preamble\.length <="
)
COMMUNICATION_TYPES = re.compile(
    r"(?:^|\.)(?:Dist\w{0,20}Error|ChildFailedError|Rendezvous\w{1,30}|SignalException|ActorDiedError"
    r"|ActorUnavailableError|HorovodInternalError"
    r"|RayActorError|WorkerCrashedError|RayTaskError|ProcessRaisedException|ProcessExitedException"
    r"|ConnectionResetError|BrokenPipeError|ConnectionRefusedError)$"
)
RUST_OS = re.compile(r"\bOs \{ code: \d{1,3}, kind: ")
"""How safetensors and other libraries in Rust write an errno."""
AFTERMATH = re.compile(
    r"ChildFailedError|SignalException|Actor\w{0,20}Error|WorkerCrashedError|RayTaskError|Process(?:Raised"
    r"|Exited)Exception|BrokenPipeError"
    r"|ConnectionResetError|ConnectionRefusedError|communicator was aborted|Connection (?:closed|reset) by"
    r"|ncclRemoteError|remote process exited"
    r"|Broken pipe|CalledProcessError|Horovod has been shut down|RPC to coordination service"
)
ELSEWHERE = re.compile(
    r"WorkerProc initialization failed due to an exception in a background process"
    r"|Engine core initialization failed\. See root cause above"
    r"|EngineCore (?:encountered an issue|is dead)|^Executor failed\.$|EngineDeadError"
    r"|Rank 0 scheduler died|^Worker failed with error .{0,4000}please check the stack trace above for the root cause"
    r"|Initialization failed\. Please see the error messages above",
    re.DOTALL,
)
"""What serving engines raise because another process of theirs failed: vLLM's v1/executor/multiproc_executor.py,
v1/engine/utils.py and exceptions.py, SGLang's srt/entrypoints/engine.py."""
LAUNCHED = re.compile(
    r"^Command .{0,300}?\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|horovodrun|mpirun|mpiexec"
    r"|srun)\b"
)
"""The command of a CalledProcessError that started the job: what it tells is the exit code of a launcher."""
JAX_MEMORY = re.compile(r"^RESOURCE_EXHAUSTED: .{0,200}?[Oo]ut of memory")
BY_HAND = frozenset({"KeyboardInterrupt", "SystemExit", "SIGTERMException"})
"""Somebody else ended the process; the last is Lightning's."""
OF_THE_SYSTEM = frozenset({"OSError", "IOError", "PermissionError", "FileExistsError"})
NO_SPACE = 28
"""ENOSPC."""


class Judged(NamedTuple):
    role: Role
    cause: str | None
    communication: bool = False
    """Does it come from the communication? Then the rank was waiting."""


class _Exception(NamedTuple):
    kind: str
    """Its class, with the module's name where that is told."""
    message: str
    launcher: bool
    """It was raised inside a launcher."""

    @property
    def name(self) -> str:
        return self.kind.rsplit(".", 1)[-1]


def _of_a_mismatch(raised: _Exception) -> Judged | None:
    if "Detected mismatch between collectives" in raised.message:
        return Judged("symptom", "collective_mismatch", True)
    return None


def _of_elsewhere(raised: _Exception) -> Judged | None:
    """An engine, or a launcher, tells that some process of it failed."""
    launched = raised.name == "CalledProcessError" and LAUNCHED.search(raised.message)
    if launched or ELSEWHERE.search(raised.message) or raised.name == "EngineDeadError":
        return Judged("consequence", None)
    return None


def _of_rays_monitor(raised: _Exception) -> Judged | None:
    """Ray's exception has the name of PyTorch's, and is about the host's memory."""
    if raised.kind.startswith("ray.") and raised.name == "OutOfMemoryError":
        return Judged("consequence", "host_oom_kill")
    return None


def _by_hand(raised: _Exception) -> Judged | None:
    if raised.name not in BY_HAND:
        return None
    return Judged("consequence", None if raised.name == "SystemExit" else "preempted")


def _of_the_communication(raised: _Exception) -> Judged | None:
    """It says that the rank was waiting, or what the end of another one did to it."""
    child_failed = raised.launcher and raised.name == "CalledProcessError"
    if not (COMMUNICATION_TYPES.search(raised.kind) or COMMUNICATION.search(raised.message) or child_failed):
        return None
    of_another = AFTERMATH.search(f"{raised.kind}: {raised.message}")
    return Judged("consequence" if of_another else "symptom", None, True)


def _of_gpu_memory(raised: _Exception) -> Judged | None:
    if "more than 1EB" in raised.message:  # a size that was never meant: the tensor held garbage
        return Judged("consequence", None)
    if (
        raised.name == "OutOfMemoryError"
        or "CUDA out of memory" in raised.message
        or (raised.name in ("XlaRuntimeError", "JaxRuntimeError") and JAX_MEMORY.search(raised.message))
    ):
        return Judged("cause", "cuda_oom")
    return None


def _of_data_loading(raised: _Exception) -> Judged | None:
    message = raised.message
    if message.startswith("DataLoader timed out"):
        return Judged("cause", "dataloader_failure")
    if "DataLoader worker" not in message:
        return None
    if "exited unexpectedly" in message:
        return Judged("consequence", "dataloader_failure")
    return Judged("cause", "shm_full" if "Bus error" in message else "dataloader_failure")


def _of_cuda(raised: _Exception) -> Judged | None:
    kind, message = raised.kind, raised.message
    named = raised.name == "AcceleratorError" or "NVMLError" in kind
    if not named and "CUDA" not in message and "cuda" not in message and "GPU is lost" not in message:
        return None
    if "GpuIsLost" in kind:
        return Judged("cause", "gpu_off_bus")
    cause = cuda_cause(message)
    return Judged("cause", cause) if cause else None


def _of_storage(raised: _Exception) -> Judged | None:
    """By its errno, or in PyTorch's words, which lose it."""
    message = raised.message
    of_the_system = raised.name in OF_THE_SYSTEM or "[Errno " in message or RUST_OS.search(message)
    if of_the_system and (found := errno_of(message)):
        shared_memory = found[0] == NO_SPACE and in_shared_memory(message, None)
        return Judged("cause", "shm_full" if shared_memory else "storage_write_failed")
    writer = "inline_container.cc" in message or "PytorchStreamWriter" in message
    if writer or raised.name == "CheckpointException":
        return Judged("cause", "storage_write_failed")
    return None


def _in_a_worker(raised: _Exception) -> Judged | None:
    if "in DataLoader worker process" in raised.message:
        return Judged("cause", "dataloader_failure")
    return None


JUDGES = (
    _of_a_mismatch,
    _of_elsewhere,
    _of_rays_monitor,
    _by_hand,
    _of_the_communication,
    _of_gpu_memory,
    _of_data_loading,
    _of_cuda,
    _of_storage,
    _in_a_worker,
)
"""In order: the first that knows the exception decides."""


def classify(kind: str, message: str, *, launcher: bool = False) -> Judged:
    """What an exception speaks for by its class and text."""
    raised = _Exception(kind, message, launcher)
    for judge in JUDGES:
        if judged := judge(raised):
            return judged
    return Judged("cause", "python_exception")
