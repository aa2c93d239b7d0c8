"""The causes that can befall a job: what the guilty rank does differently, and what its host writes about it.

A cause is a generator: it lays its faults into the plan, yields while the job runs, and then tells the story with the
times at which it struck. An id that is missing here (see `CAUSES`) is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from . import kernel as k
from .cluster import MS, Cluster, Host, Member, S, when
from .dumps import minor, nccl_version
from .kernel import Record
from .reports import Heat
from .scenario import Scenario
from .torchlog import Torch
from .training import Fault, Group, Kind, Run, program, wrong_call

Fate = Literal["waits", "blocked", "silent", "teardown", "exits"]
"""What becomes of a guilty rank. waits: goes on and waits like the others; blocked: its CPU is stuck, its monitor
thread still dumps; silent: neither prints nor dumps any more; teardown: has raised and hangs on its way out; exits: is
gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """Something that a process of the job printed; `local` None: the launcher's agent."""

    ns: int
    host: int
    local: int | None
    text: str
    err: bool = True


@dataclass(slots=True, kw_only=True)
class Story:
    """The plan and what came of it."""

    scenario: Scenario
    cluster: Cluster
    groups: tuple[Group, ...]
    torch: Torch
    rng: Random
    culprit: int
    faults: list[Fault] = field(default_factory=list)
    fate: dict[int, Fate] = field(default_factory=dict)
    exits: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rank → (true ns, exit code) of processes that end by themselves."""
    records: dict[int, list[Record]] = field(default_factory=dict)
    """Kernel records by host."""
    lines: list[JobLine] = field(default_factory=list)
    run: Run = field(default_factory=lambda: Run(groups=(), works=[]))
    lost_cards: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dead_hosts: dict[int, int] = field(default_factory=dict)
    """Host → true ns when it went away."""
    cancelled_ns: int | None = None
    ranks: tuple[int, ...] = ()
    ranks_free: bool = False
    """Which ranks are named is a matter of taste (a whole host's)."""
    gpus: tuple[str, ...] = ()
    onset_ns: int | None = None
    acceptable: tuple[str, ...] = ()
    kernel_proof: dict[int, str] = field(default_factory=dict)
    """Host → words in its kernel log that prove the cause."""
    log_proof: list[str] = field(default_factory=list)
    """Words in the job's log of which each proves the cause, and the rank if `ranks` is set."""
    counters_proof: bool = False
    """The dumps alone tell the cause."""
    killed_unseen: bool = False
    """SIGKILL, of which only the launcher tells."""
    peers_hear: bool = False
    """Ranks on other hosts learn through NCCL that somebody has gone."""
    bug_report: bool = False
    cut_dumps: tuple[int, ...] = ()
    """Ranks whose dump ends in the middle."""
    heat: dict[int, Heat] = field(default_factory=dict)
    """Host → its card that becomes hot."""
    begun: dict[int, Literal["half", "none"]] = field(default_factory=dict)
    """Ranks whose first communicator does not come up: NCCL says that it begins, or nothing at all."""
    unstarted: bool = False
    """The job never came to a collective."""
    hurt: dict[int, int] = field(default_factory=dict)
    """Host → card with a memory row to remap, for nvidia-smi -q."""

    def seat(self, rank: int) -> Member:
        return self.cluster.members[rank]

    def fault(self, rank: int, kind: Kind, label: str, fate: Fate) -> None:
        labels = [call.label for call in program(self.scenario, self.groups, rank)]
        label = label if label in labels else labels[-1]
        self.faults.append(Fault(rank=rank, kind=kind, step=self.scenario.fault_step, label=label))
        self.fate[rank] = fate

    def struck(self, rank: int) -> int:
        return self.run.struck_ns[rank]

    def kernel(self, host: Host, rows: list[Record], proof: str) -> None:
        """`proof`: words in one of the rows that tell the cause to who knows the format."""
        self.records.setdefault(host.index, []).extend(rows)
        self.kernel_proof[host.index] = proof

    def say(self, rank: int, ns: int, text: str, *, err: bool = True) -> None:
        seat = self.seat(rank)
        self.lines.append(JobLine(ns=ns, host=seat.host.index, local=seat.local, text=text, err=err))

    def log(self, rank: int, ns: int, text: str) -> None:
        """A line of the program's own logger."""
        t = when(self.seat(rank).host.clock.wall(ns), self.scenario.job_zone)
        self.say(rank, ns, f"{t:%Y-%m-%d %H:%M:%S},{t.microsecond // 1000:03d} - pretrain - INFO - {text}", err=False)

    def traceback(self, rank: int, ns: int, frames: tuple[tuple[str, int, str, str], ...], error: str) -> None:
        rows = ["Traceback (most recent call last):"]
        for file, line, name, code in frames:
            rows += [f'  File "{file}", line {line}, in {name}', f"    {code}"]
        rows += error.split("\n")
        prefix = f"[rank{rank}]: " if minor(self.scenario.torch) >= 2 else ""
        self.say(rank, ns, "\n".join(prefix + row for row in rows))
        self.log_proof.append(error.split("\n")[0][:80])

    def leaves(self, rank: int, ns: int, code: int) -> None:
        """The process ends, or hangs in teardown if the scenario says so."""
        if self.fate[rank] == "exits":
            self.exits[rank] = (ns, code)


APP = "/srv/train/pretrain.py"
MAIN = ((APP, 355, "main", "trainer.fit()"), (APP, 212, "train_step", "loss = self.compute_loss(batch)"))
SAVE = (
    (APP, 355, "main", "trainer.fit()"),
    (APP, 288, "save_checkpoint", "torch.save(state, path)"),
    (
        "/opt/venv/lib/python3.11/site-packages/torch/serialization.py",
        652,
        "save",
        "with _open_zipfile_writer(f) as z:",
    ),
)


def _after_raising(s: Story) -> Fate:
    """A raised exception ends the process, or it hangs in destroy_process_group."""
    return "teardown" if s.scenario.detail == "teardown" or s.rng.random() < 0.35 else "exits"


def gpu_off_bus(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket0", s.rng.choice(("blocked", "silent")) if s.scenario.detail is None else "blocked")
    yield
    seat, t = s.seat(r), s.struck(r)
    rows = []
    for _ in range(5):
        rows += k.corrected_aer(seat.host, seat.local, t - s.rng.randrange(20 * S, 400 * S))
    rows += k.off_bus(seat.host, seat.local, t) + k.recovery_changed(seat.host, t + 31 * MS)
    if s.fate[r] == "silent":
        rows += k.hung_task(seat.host_pid, t)
    s.kernel(seat.host, rows, "): 79,")
    s.lost_cards[seat.host.index] = (seat.local,)
    s.gpus, s.onset_ns, s.ranks, s.bug_report = (seat.card.pci,), t, (r,), True


def pcie_link(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket0", "blocked")
    yield
    seat, t = s.seat(r), s.struck(r)
    port, device = seat.card.port, seat.card.pci
    rows = k.at(
        t - 3 * MS,
        f"pcieport {port}: AER: Uncorrected (Fatal) error received: {port}",
        f"pcieport {port}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)",
        f"pcieport {port}:   device [1022:1483] error status/mask=00000020/04400000",
        f"pcieport {port}:    [ 5] Surprise Down Error   (First)",
        f"nvidia {device}: AER: can't recover (no error_detected callback)",
    )
    s.kernel(seat.host, rows + k.off_bus(seat.host, seat.local, t), "): 79,")
    s.lost_cards[seat.host.index] = (seat.local,)
    s.gpus, s.onset_ns, s.ranks = (device,), t - 3 * MS, (r,)
    s.acceptable = ("pcie_link", "gpu_off_bus")
    s.bug_report = True


def psu_rail_loss(s: Story) -> Iterator[None]:
    host = s.seat(s.culprit).host
    cards = s.scenario.psu_cards or tuple(range(len(host.cards) // 2, len(host.cards)))
    seats = [m for m in s.cluster.on(host) if m.local in cards]
    for seat in seats:
        s.fault(seat.rank, "stop", "bucket0", "silent")
    yield
    t = min(s.struck(seat.rank) for seat in seats)
    rows: list[Record] = []
    for number, seat in enumerate(seats):
        at_ns = t + number * 700_000 + s.rng.randrange(300_000)
        rows += k.off_bus(host, seat.local, at_ns, crash_note=number == 0) + k.hung_task(seat.host_pid, at_ns)
    s.kernel(host, rows, "): 79,")
    s.lost_cards[host.index] = tuple(cards)
    s.gpus, s.onset_ns = tuple(seat.card.pci for seat in seats), t
    s.ranks, s.bug_report = tuple(seat.rank for seat in seats), True


def _cuda_error(s: Story, r: int, ns: int, text: str) -> None:
    """The watchdog of `r` meets a CUDA error and ends its process."""
    seat = s.seat(r)
    reason = (
        f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with "
        "`TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    for at_ns, said in s.torch.died(seat, s.groups[0], 0, ns, reason):
        s.say(r, at_ns, said)
    s.exits[r] = (ns + 400 * MS, -6)
    s.fate[r] = "exits"
    s.log_proof.append(f"thread terminated with exception: CUDA error: {text}")
    s.peers_hear = True


def gpu_memory(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket1", "exits")
    yield
    seat, t = s.seat(r), s.struck(r)
    s.kernel(seat.host, k.memory_error(seat.host, seat.local, seat.host_pid, t), "): 48,")
    _cuda_error(s, r, t + 300 * MS, "uncorrectable ECC error encountered")
    s.gpus, s.onset_ns, s.ranks = (seat.card.pci,), t, (r,)
    s.hurt[seat.host.index] = seat.local


def gpu_app_fault(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket1", "exits")
    yield
    seat, t = s.seat(r), s.struck(r)
    s.kernel(seat.host, k.page_fault(seat.host, seat.local, seat.host_pid, t), f"): 31, pid={seat.host_pid},")
    _cuda_error(s, r, t + 300 * MS, "an illegal memory access was encountered")
    s.gpus, s.onset_ns, s.ranks = (), t, (r,)


def gpu_firmware(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket0", "silent")
    yield
    seat, t = s.seat(r), s.struck(r)
    rows = k.firmware_timeout(seat.host, seat.local, seat.host_pid, t) + k.hung_task(seat.host_pid, t)
    s.kernel(seat.host, rows, "): 119,")
    s.gpus, s.onset_ns, s.ranks = (seat.card.pci,), t, (r,)


def nvlink(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stall", "bucket0", "waits")
    yield
    seat, t = s.seat(r), s.struck(r)
    s.kernel(seat.host, k.nvlink_error(seat.host, seat.local, t), "): 74,")
    s.gpus, s.onset_ns, s.ranks = (seat.card.pci,), t, (r,)


def gpu_stall(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stall", "bucket0", "waits")
    yield
    s.onset_ns, s.ranks = s.struck(r), (r,)
    s.counters_proof = s.scenario.timing


def cuda_oom(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "aux", _after_raising(s))
    yield
    t, v = s.struck(r), minor(s.scenario.torch)
    name = "torch.OutOfMemoryError" if v >= 4 else "torch.cuda.OutOfMemoryError"
    how = s.scenario.detail or s.rng.choice(("growth", "growth", "peer process", "fragmentation", "in NCCL"))
    ends = t + int(s.rng.uniform(0.6, 3) * S)
    s.onset_ns, s.ranks, s.peers_hear = t, (r,), True
    if how == "in NCCL":
        last = "Cuda failure 2 'out of memory'"
        s.say(r, t, "\n" + s.torch.nccl(s.seat(r), f"include/alloc.h:228 NCCL WARN {last}"), err=False)
        error = s.torch.backend_error(
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
            last,
        )
        s.traceback(r, t + 20 * MS, MAIN, error)
        s.log_proof = [last]
        s.leaves(r, ends, 1)
        return
    ours, idle = (60.02, 14.9) if how == "fragmentation" else (75.61, 1.29)
    if v == 0:
        tail = (
            f"Tried to allocate 2.25 GiB (GPU 0; 79.11 GiB total capacity; {ours} GiB already allocated; 1.02 GiB "
            f"free; {ours + idle:.2f} GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
            "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
            "PYTORCH_CUDA_ALLOC_CONF"
        )
    else:
        other = f"Process {s.rng.randrange(20_000, 900_000)} has 30.20 GiB memory in use. "
        peer = other if how == "peer process" else ""
        ours -= 31 if peer else 0
        tail = (
            f"Tried to allocate 2.25 GiB. GPU {s.seat(r).local} has a total capacity of 79.11 GiB of which 1.02 GiB "
            f"is free. {peer}Including non-PyTorch memory, this process has {ours + idle + 1.18:.2f} GiB memory in "
            f"use. Of the allocated memory {ours:.2f} GiB is allocated by PyTorch, and {idle:.2f} GiB is reserved by "
            "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
            "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )
    s.traceback(r, t + 20 * MS, MAIN, f"{name}: CUDA out of memory. {tail}")
    s.leaves(r, ends, 1)


def python_exception(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "aux", _after_raising(s))
    yield
    error = s.rng.choice(
        (
            "ValueError: Expected input batch_size (4096) to match target batch_size (4095).",
            "KeyError: 'attention_mask'",
            "IndexError: index 50304 is out of bounds for dimension 0 with size 50304",
            "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 18231 (char 18230)",
        )
    )
    s.traceback(r, s.struck(r) + 5 * MS, MAIN, error)
    s.leaves(r, s.struck(r) + int(s.rng.uniform(0.6, 3) * S), 1)
    s.onset_ns, s.ranks, s.peers_hear = s.struck(r), (r,), True


def storage_write_failed(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "aux", _after_raising(s))
    yield
    t = s.struck(r)
    s.log(r, t - 9 * S, f"saving checkpoint to /ckpt/run-7/step_{s.scenario.fault_step - 1}")
    detail = s.scenario.detail or s.rng.choice(("no space", "quota", "read-only"))
    path = f"'/ckpt/run-7/step_{s.scenario.fault_step - 1}/rank_{r}.pt'"
    error = {
        "no space": f"OSError: [Errno 28] No space left on device: {path}",
        "quota": f"OSError: [Errno 122] Disk quota exceeded: {path}",
        "read-only": f"OSError: [Errno 30] Read-only file system: {path}",
    }.get(detail, f"OSError: [Errno 28] No space left on device: {path}")
    if detail == "read-only":
        s.kernel(s.seat(r).host, k.disk_error(t - 2 * S), "Remounting filesystem read-only")
    s.traceback(r, t + 5 * MS, SAVE, error)
    s.leaves(r, t + int(s.rng.uniform(0.6, 3) * S), 1)
    s.onset_ns, s.ranks, s.peers_hear = t, (r,), True


def storage_stall(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "aux", "silent")
    yield
    seat, t = s.seat(r), s.struck(r)
    s.log(r, t - S, f"saving checkpoint to /nas/run-7/step_{s.scenario.fault_step - 1}")
    s.kernel(seat.host, k.storage_hang(t, seat.host_pid, None), "not responding, still trying")
    s.onset_ns, s.ranks = t, (r,)


def dataloader_failure(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "aux", _after_raising(s))
    yield
    t = s.struck(r)
    worker = s.seat(r).pid + 900
    how = s.rng.choice(("Segmentation fault", "Killed", "Bus error"))
    data = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
    frames = (MAIN[0], (data, 708, "__next__", "data = self._next_data()"), (data, 1448, "_get_data", "raise"))
    more = " It is possible that dataloader's workers are out of shared memory." if how == "Bus error" else ""
    s.traceback(
        r, t, frames, f"RuntimeError: DataLoader worker (pid {worker}) is killed by signal: {how}. {more}".rstrip()
    )
    s.leaves(r, t + int(s.rng.uniform(0.6, 3) * S), 1)
    s.onset_ns, s.ranks, s.peers_hear = t, (r,), True
    s.acceptable = ("dataloader_failure", "shm_full") if how == "Bus error" else ("dataloader_failure",)


def process_signal(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket1", "exits")
    yield
    seat, t = s.seat(r), s.struck(r)
    s.onset_ns, s.ranks, s.peers_hear = t, (r,), True
    if (s.scenario.detail or s.rng.choice(("segfault", "segfault", "kill"))) == "kill":  # by somebody's hand
        s.exits[r] = (t + 100 * MS, -9)
        s.killed_unseen = True
        return
    s.kernel(seat.host, k.segfault(seat.host_pid, t), f"[{seat.host_pid}]: segfault")
    s.say(
        r,
        t + MS,
        "Fatal Python error: Segmentation fault\n\nThread 0x00007f7c7ac6a740 (most recent call first):\n"
        f'  File "{APP}", line 148 in backward\n  File "{APP}", line 212 in train_step',
    )
    s.exits[r] = (t + 300 * MS, -11)
    s.log_proof.append("Fatal Python error: Segmentation fault")


def host_oom_kill(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket1", "exits")
    yield
    seat, t = s.seat(r), s.struck(r)
    cgroup = f"/slurm/uid_1001/job_88121/step_0/task_{seat.local}" if s.scenario.launcher == "slurm" else None
    s.kernel(
        seat.host, k.oom_kill(seat.host_pid, "pt_main_thread", t, cgroup=cgroup), f"Killed process {seat.host_pid} "
    )
    s.exits[r] = (t + 200 * MS, -9)
    s.onset_ns, s.ranks, s.peers_hear = t, (r,), True


def collective_skipped(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "skip", "aux", "waits")
    yield
    s.onset_ns, s.ranks, s.counters_proof = s.struck(r), (r,), True


def collective_mismatch(s: Story) -> Iterator[None]:
    r = s.culprit
    how = s.scenario.detail or s.rng.choice(("size", "op"))
    call = next(c for c in program(s.scenario, s.groups, r) if c.label == "bucket1")
    s.faults.append(Fault(rank=r, kind="swap", step=s.scenario.fault_step, label="bucket1", call=wrong_call(call, how)))
    s.fate[r] = "waits"
    yield
    s.onset_ns, s.ranks, s.counters_proof = s.struck(r), (r,), True


def uneven_inputs(s: Story) -> Iterator[None]:
    r = s.culprit
    s.faults.append(Fault(rank=r, kind="leave", step=s.scenario.fault_step, label=""))
    s.fate[r] = "waits"
    yield
    s.log(r, s.struck(r), f"rank {r}: data exhausted after {s.scenario.fault_step - 1} batches, leaving the loop")
    s.log_proof.append(f"rank {r}: data exhausted after")
    s.onset_ns, s.ranks, s.counters_proof = s.struck(r), (r,), True
    s.acceptable = ("uneven_inputs", "collective_mismatch", "collective_skipped")


DEADLOCK = (0, 1, 2, 3)
"""The ranks that wait for each other."""


def deadlock(s: Story) -> Iterator[None]:
    """Two ranks of different tensor groups enter their data group first: a ring of four."""
    if s.scenario.tensor != 2 or s.scenario.pipeline != 1:
        raise ValueError("a deadlock needs tensor=2 and pipeline=1")
    for r in DEADLOCK[1:3]:
        s.fault(r, "reorder", "tp", "waits")
    yield
    s.onset_ns, s.ranks, s.counters_proof, s.ranks_free = s.run.ended_ns, (), True, True
    s.acceptable = ("deadlock", "collective_mismatch")


def rank_busy(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "aux", "blocked")
    yield
    t = s.struck(r)
    doing = s.rng.choice(
        (
            f"saving checkpoint to /ckpt/run-7/step_{s.scenario.fault_step - 1} (assembling 96 shards)",
            f"rank {r}: running evaluation on 12800 samples",
            f"rank {r}: tokenizing shard 17 of 64",
        )
    )
    s.log(r, t, doing)
    s.log_proof.append(doing)
    s.onset_ns, s.ranks = t, (r,)
    s.acceptable = ("rank_busy", "rank_not_arrived", "rank_slow", "storage_stall")


def rank_not_arrived(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", s.rng.choice(("aux", "bucket0", "bucket2")), "blocked")
    yield
    s.onset_ns, s.ranks, s.counters_proof = s.struck(r), (r,), True
    s.acceptable = ("rank_not_arrived", "rank_busy", "rank_slow", "process_missing")


def process_missing(s: Story) -> Iterator[None]:
    """Neither a line nor a dump of the rank, and nothing that says why."""
    r = s.culprit
    s.fault(r, "stop", "bucket1", "silent")
    yield
    s.onset_ns, s.ranks, s.counters_proof = s.struck(r), (r,), True
    s.acceptable = ("process_missing", "rank_not_arrived", "rank_busy", "rank_slow", "gpu_stall")


def shm_full(s: Story) -> Iterator[None]:
    """NCCL cannot grow its segment in /dev/shm when it sets up the first communicator."""
    r = s.culprit
    s.fault(r, "stop", "aux", "exits")
    s.faults[-1] = replace(s.faults[-1], step=1)
    yield
    seat, t = s.seat(r), s.struck(r)
    name = f"/dev/shm/nccl-{s.rng.getrandbits(30):06x}"
    full = f"Error while creating shared memory segment {name} (size 9637888), error: No space left on device (28)"
    for i, text in enumerate(
        (
            f"misc/shmutils.cc:88 NCCL WARN Error: failed to extend {name} to 9637892 bytes, error: No space left on "
            "device (28)",
            f"misc/shmutils.cc:132 NCCL WARN {full}",
        )
    ):
        s.say(r, t + i * MS, "\n" + s.torch.nccl(seat, text), err=False)
    s.say(r, t + 2 * MS, s.torch.nccl(seat, "NCCL INFO transport/shm.cc:551 -> 2"), err=False)
    error = s.torch.backend_error(
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        full,
    )
    s.traceback(r, t + 5 * MS, MAIN, error)
    s.leaves(r, t + int(s.rng.uniform(0.6, 3) * S), 1)
    s.onset_ns, s.ranks, s.peers_hear = t, (r,), True


def cpu_stall(s: Story) -> Iterator[None]:
    r = s.culprit
    s.fault(r, "stop", "bucket0", "silent")
    yield
    seat = s.seat(r)
    s.kernel(seat.host, k.lockup(seat.host_pid, s.struck(r)), "soft lockup")
    s.onset_ns, s.ranks = s.struck(r), (r,)


def node_lost(s: Story) -> Iterator[None]:
    host = s.seat(s.culprit).host
    for seat in s.cluster.on(host):
        s.fault(seat.rank, "stop", "bucket0", "silent")
    yield
    t = min(s.struck(seat.rank) for seat in s.cluster.on(host)) - 2 * MS
    s.dead_hosts[host.index] = t
    rows: list[Record] = []
    if s.scenario.detail == "panic":
        rows = k.at(t - MS, "BUG: unable to handle page fault for address: ffffb1e0c0a21000", "Oops: 0002 [#1] SMP PTI")
    s.kernel(host, rows, "Linux version")
    s.onset_ns, s.ranks, s.peers_hear = t, tuple(seat.rank for seat in s.cluster.on(host)), True
    s.acceptable = ("node_lost", "process_missing")
    s.ranks_free = True


def nic_link_down(s: Story) -> Iterator[None]:
    host = s.seat(s.culprit).host
    s.fault(s.culprit, "stall", "bucket0", "waits")
    yield
    t = s.struck(s.culprit)
    s.kernel(host, k.link_down(host, t, None), "Link down")
    _completion_errors(s, host, t)
    s.onset_ns, s.ranks, s.ranks_free = t, (), True
    s.acceptable = ("nic_link_down", "fabric_error")


def _completion_errors(s: Story, host: Host, t: int) -> None:
    """What NCCL says of a peer that no longer answers: first local retries, then error 12."""
    for seat in s.cluster.members:
        if seat.host is host and s.records.get(host.index):
            text = "\n" + s.torch.nccl(
                seat, "transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error", thread=7
            )
            s.say(seat.rank, t + 3 * MS, text, err=False)
        elif seat.host is not host and seat.local == 0:
            text = "\n" + s.torch.nccl(
                seat,
                f"transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer {host.name}<{40000 + seat.rank}>"
                " with status=12 opcode=0 len=0 vendor err 129 (Send)",
                thread=9,
            )
            s.say(seat.rank, t + 11 * S, text, err=False)
    s.log_proof += ["Got async event : port error", "with status=12 opcode=0"]


def fabric_error(s: Story) -> Iterator[None]:
    host = s.seat(s.culprit).host
    s.fault(s.culprit, "stall", "bucket0", "waits")
    yield
    t = s.struck(s.culprit)
    _completion_errors(s, host, t)
    s.onset_ns, s.ranks, s.ranks_free = t, (), True
    s.acceptable = ("fabric_error", "nic_link_down")


def preempted(s: Story) -> Iterator[None]:
    yield
    s.cancelled_ns = s.cluster.start_ns + int(s.scenario.fault_step * s.scenario.step_s * S)
    s.log_proof += [" DUE TO PREEMPTION", " DUE TO TIME LIMIT", "SIGTERM death signal"]
    s.onset_ns, s.ranks, s.ranks_free = s.cancelled_ns, (), True


def rank_slow(s: Story) -> Iterator[None]:
    """It comes last in every step, and at last later than the others wait."""
    r = s.culprit
    lag_ns = int(s.rng.uniform(0.15, 0.6) * s.scenario.step_s * S)
    s.fault(r, "stop", "bucket0", "blocked")
    s.faults[-1] = replace(s.faults[-1], lag_ns=lag_ns)
    yield
    s.onset_ns, s.ranks, s.counters_proof = s.struck(r), (r,), True
    s.acceptable = ("rank_slow", "rank_not_arrived", "rank_busy", "process_missing")


def gpu_thermal(s: Story) -> Iterator[None]:
    """A card that slows itself down because of heat until its rank is too late, or that switches itself off."""
    r = s.culprit
    off = (s.scenario.detail or s.rng.choice(("throttle", "shutdown"))) == "shutdown"
    lag_ns = int(s.rng.uniform(0.15, 0.6) * s.scenario.step_s * S)
    s.fault(r, "stop", "bucket0", "blocked")
    s.faults[-1] = replace(s.faults[-1], lag_ns=0 if off else lag_ns)
    yield
    seat, t = s.seat(r), s.struck(r)
    before_s = s.rng.randrange(400, 1500)
    s.heat[seat.host.index] = Heat(
        card=seat.local, from_ns=t - before_s * S, peak_c=97 if off else 91, lost_ns=t if off else None
    )
    s.onset_ns, s.ranks, s.gpus = t, (r,), (seat.card.pci,)
    s.acceptable = ("gpu_thermal", "rank_slow")
    if off:
        s.kernel(seat.host, k.off_bus(seat.host, seat.local, t), "): 79,")
        s.lost_cards[seat.host.index] = (seat.local,)
        s.acceptable = ("gpu_thermal", "gpu_off_bus")


def gpu_ecc_leak(s: Story) -> Iterator[None]:
    """Corrected errors for weeks, at shorter and shorter distance; then one that could not be corrected."""
    yield from gpu_memory(s)
    seat = s.seat(s.culprit)
    s.records[seat.host.index] += k.wearing_out(seat.host, seat.local, s.struck(s.culprit))
    s.acceptable = ("gpu_ecc_leak", "gpu_memory")


def _nothing_begins(s: Story, fate: Fate) -> None:
    """Every rank stops before its first call."""
    for seat in s.cluster.members:
        first = program(s.scenario, s.groups, seat.rank)[0].label
        s.faults.append(Fault(rank=seat.rank, kind="stop", step=1, label=first))
        s.fate[seat.rank] = fate
    s.unstarted = True


def nccl_setup(s: Story) -> Iterator[None]:
    """The first communicator never comes up."""
    many = len(s.cluster.hosts) > 1
    how = s.scenario.detail or s.rng.choice(("version", "interface", "duplicate") if many else ("duplicate",))
    odd = s.seat(s.culprit).host
    here = s.cluster.on(odd)
    _nothing_begins(s, "exits")
    s.begun = {seat.rank: "half" for seat in s.cluster.members}
    if how == "interface":
        s.begun |= {seat.rank: "none" for seat in here}
        s.fate |= {seat.rank: "silent" for seat in s.cluster.members if seat.host is not odd}
    yield
    t = s.run.ended_ns
    usage = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
    wrong_use = "invalid usage (run with NCCL_DEBUG=WARN for details)"
    own = int("".join(f"{int(x):02d}" for x in nccl_version(s.scenario.torch).split(".")))
    failing = here if how == "interface" else here[:2] if how == "duplicate" else s.cluster.members
    for seat in failing:
        if how == "version":
            other = next(m for m in s.cluster.members if (m.host is odd) != (seat.host is odd))
            versions = (own, own - 100) if seat.host is odd else (own - 100, own)
            last = (
                f"Mismatched NCCL version detected : rank {other.rank} version {versions[0]} rank {seat.rank} "
                f"version {versions[1]}"
            )
            where, kind, said = "init.cc:912", usage, wrong_use
        elif how == "duplicate":
            other = next(m for m in failing if m is not seat)
            last = f"Duplicate GPU detected : rank {seat.rank} and rank {other.rank} both on CUDA device " + (
                failing[0].card.bus_id
            )
            where, kind, said = "init.cc:943", usage, wrong_use
        else:
            last = "Bootstrap : no socket interface found"
            where, kind, said = "bootstrap.cc:45", "ncclInternalError: Internal check failed.", "internal error"
        ns = t + s.rng.randrange(5 * MS, 900 * MS)
        if not s.scenario.degrade.lose_init_lines:  # NCCL_DEBUG was not set at all
            s.say(seat.rank, ns, "\n" + s.torch.nccl(seat, f"{where} NCCL WARN {last}"), err=False)
        s.traceback(seat.rank, ns + 2 * MS, MAIN, s.torch.backend_error(kind, said, last))
        s.leaves(seat.rank, ns + int(s.rng.uniform(0.6, 3) * S), 1)
    for seat in s.cluster.members:
        if s.fate[seat.rank] == "exits" and seat not in failing:
            s.fate[seat.rank] = "silent"
    s.log_proof = [
        "Mismatched NCCL version detected",
        "Bootstrap : no socket interface found",
        "Duplicate GPU detected",
    ]
    s.onset_ns, s.ranks, s.ranks_free = t, (), True


def store_lost(s: Story) -> Iterator[None]:
    """One host cannot reach the store that rank 0 keeps, and rank 0 waits for it in vain."""
    if len(s.cluster.hosts) < 2:
        raise ValueError("a store that cannot be reached needs two hosts")
    master = s.cluster.hosts[0]
    cut_off = s.seat(s.culprit).host
    if cut_off is master:
        cut_off = s.cluster.hosts[-1]
    _nothing_begins(s, "silent")
    s.begun = {seat.rank: "none" for seat in s.cluster.members}
    yield
    t, v = s.run.ended_ns, minor(s.scenario.torch)
    net, store = ("DistNetworkError", "DistStoreError") if v >= 1 else ("RuntimeError", "RuntimeError")
    prefix = "torch.distributed." if v >= 1 else ""
    start = ((APP, 301, "main", 'torch.distributed.init_process_group("nccl")'),)
    late = t + 600 * S
    for seat in s.cluster.on(cut_off):
        ns = late + s.rng.randrange(10 * MS, 900 * MS)
        s.fate[seat.rank] = "exits"
        said = f"The client socket has timed out after 600000ms while trying to connect to ({master.name}, 29500)."
        s.traceback(seat.rank, ns, start, f"{prefix}{net}: {said}")
        s.leaves(seat.rank, ns + S, 1)
    world, joined = len(s.cluster.members), len(s.cluster.members) - len(s.cluster.on(cut_off))
    s.fate[0] = "exits"
    waited = f"Timed out after 601 seconds waiting for clients. {joined}/{world} clients joined."
    s.traceback(0, late + S, start, f"{prefix}{store}: {waited}")
    s.leaves(0, late + 2 * S, 1)
    s.log_proof = ["The client socket has timed out after", "seconds waiting for clients."]
    s.onset_ns, s.ranks, s.ranks_free = t, (), True
    s.acceptable = ("store_lost", "nccl_setup")


def healthy(s: Story) -> Iterator[None]:
    yield


def hopeless(s: Story) -> Iterator[None]:
    yield from rank_not_arrived(s)


CAUSES: dict[str, Callable[[Story], Iterator[None]]] = {
    f.__name__: f
    for f in (
        gpu_off_bus,
        pcie_link,
        psu_rail_loss,
        gpu_memory,
        gpu_app_fault,
        gpu_firmware,
        nvlink,
        gpu_stall,
        cuda_oom,
        python_exception,
        storage_write_failed,
        storage_stall,
        dataloader_failure,
        process_signal,
        host_oom_kill,
        collective_skipped,
        collective_mismatch,
        uneven_inputs,
        deadlock,
        rank_busy,
        rank_not_arrived,
        process_missing,
        shm_full,
        cpu_stall,
        node_lost,
        nic_link_down,
        fabric_error,
        preempted,
        rank_slow,
        gpu_thermal,
        gpu_ecc_leak,
        nccl_setup,
        store_lost,
        healthy,
        hopeless,
    )
}
"""Id in causes.toml (and 'healthy', 'hopeless') → its story."""
