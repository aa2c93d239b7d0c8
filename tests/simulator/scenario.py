"""What is simulated, and what is then known to be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Model = Literal["rtx4090", "a100", "h100"]
KernelForm = Literal["dmesg", "dmesg-T", "dmesg-iso", "journal", "journal-iso", "kern.log", "syslog-iso"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A time zone on one day: simulated jobs do not run over a change to summer time."""

    name: str
    abbreviation: str
    seconds: int
    """East of UTC."""


UTC = Zone(name="UTC", abbreviation="UTC", seconds=0)
ZONES = (
    UTC,
    Zone(name="Europe/Copenhagen", abbreviation="CET", seconds=3600),
    Zone(name="America/New_York", abbreviation="EST", seconds=-5 * 3600),
    Zone(name="Asia/Kolkata", abbreviation="IST", seconds=19800),
    Zone(name="Asia/Tokyo", abbreviation="JST", seconds=9 * 3600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrade:
    """What went wrong with the evidence before it was mailed. The default loses nothing."""

    clock_spread_s: float = 0.0
    """Each host's clock is off by up to this, either way."""
    drift_ppm: float = 0.0
    wrong_zones: bool = False
    """Hosts keep local time, each its own; job logs are in UTC as from a container."""
    ntp_step: bool = False
    """One host's clock jumps by seconds some time before the failure."""
    step_in_job: bool = False
    """One host's clock jumps by seconds while the job is training."""
    lose_dumps: int = 0
    """So many dumps did not make it into the bundle, the culprit's first if `lose_culprit_dump`."""
    lose_culprit_dump: bool = False
    cut_dumps: int = 0
    """So many dumps end in the middle."""
    lose_kernel_logs: bool = False
    """No kernel log of any host, and no bug report."""
    lose_culprit_kernel_log: bool = False
    lose_culprit_job_log: bool = False
    lose_job_logs: bool = False
    cut_job_logs: bool = False
    """Every console log ends in the middle of a line, some time before its end."""
    lose_init_lines: bool = False
    """NCCL_DEBUG was not INFO, so that no line tells which rank had which GPU."""
    cut_bug_report: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoys:
    """Innocent things that look guilty."""

    corrected_aer: bool = False
    """Corrected PCIe errors on a port that leads to a healthy card."""
    old_boot_xid: bool = False
    """A GPU error from an earlier boot, on a healthy rank's card."""
    old_boot_rank: int | None = None
    """The rank of that card; None: one on every host, drawn by the seed."""
    innocent_oom: bool = False
    """The kernel killed somebody else's process."""
    link_flap: bool = False
    """A link that went down and came back hours before."""
    store_noise: bool = False
    """Warnings about the store and its sockets that mean nothing."""
    worn_card: bool = False
    """Corrected memory errors on a healthy rank's card come closer together; they stop nobody yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One job and what befalls it."""

    cause: str = "rank_not_arrived"
    """Id in causes.toml, or 'healthy' (nothing fails), or 'hopeless' (the bundle cannot tell)."""
    nodes: int = 1
    per_node: int = 8
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    """Sizes of the model-parallel groups; what is left over is data parallel."""
    torch: str = "2.6"
    model: Model = "h100"
    steps: int = 60
    fault_step: int = 50
    step_s: float = 1.5
    timeout_ms: int | None = None
    """None: PyTorch's default for this version."""
    start: str = "2026-03-10T21:04:00"
    """True UTC of the job's start."""
    ring: int = 200
    """Entries that each Flight Recorder keeps; 0: recorder off."""
    timing: bool = False
    frames: bool = True
    json_dumps: bool = False
    culprit: int | None = None
    """Rank; None: drawn by the seed."""
    cards: tuple[str, ...] = ()
    """PCI addresses of a host's cards; empty: usual for the model."""
    psu_cards: tuple[int, ...] = ()
    """Indices of the cards on the supply that fails."""
    hosts: tuple[str, ...] = ()
    host_zone: Zone = UTC
    job_zone: Zone = UTC
    container: bool = False
    """Process ids in the job's own log are not the kernel's."""
    kernel_form: KernelForm | None = None
    extra_forms: tuple[KernelForm, ...] = ()
    bug_report: bool | None = None
    launcher: Literal["torchrun", "slurm"] = "torchrun"
    collector: Literal["none", "zulu", "cri", "pdsh", "docker"] = "none"
    """What put its own prefix on every console line: an RFC 3339 time in UTC, a container runtime, a remote shell."""
    application: Literal["plain", "megatron", "titan", "trainer", "bar"] = "plain"
    """Whose step lines; bar: a progress bar that overwrites itself with carriage returns."""
    per_rank_files: bool = False
    smi_list: bool = True
    smi_samples: bool = False
    """nvidia-smi ran beside the job and wrote temperatures."""
    clock_offsets_s: tuple[float, ...] = ()
    """Of each host; empty: from `degrade`."""
    detail: str | None = None
    """Variant of the cause, e.g. 'teardown', 'no space', 'quota'."""
    decoys: Decoys = field(default_factory=Decoys)
    degrade: Degrade = field(default_factory=Degrade)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What really happened, and how much of it the bundle can prove."""

    cause: str
    """The true cause; 'healthy' if nothing failed."""
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    """PCI addresses on `hosts`."""
    group: str | None
    op: str | None
    seq: int | None
    onset_ns: int | None
    """True UTC."""
    detected_ns: int | None
    reporting_ranks: tuple[int, ...]
    must_not_blame: tuple[int, ...]
    clock_offsets_s: dict[str, float]
    """Host's reading minus true UTC when the cause struck."""
    reading_ns: dict[str, Callable[[int], int]] = field(default_factory=dict, repr=False, compare=False)
    """What a host's clock read at a moment of true UTC; both ns since 1970."""
    moments: tuple[tuple[str, int, str], ...] = ()
    """(host, true UTC ns, text) of every line that a job or a kernel wrote."""
    healthy: bool = False
    hopeless: bool = False
    acceptable: tuple[str, ...] = ()
    """Causes that a careful reader of this bundle may name."""
    rank_knowable: bool = True
    ranks_free: bool = False
    """It struck a host or all: whether its ranks are named, too, is a matter of taste."""
    cause_knowable: bool = True
    why: str = ""

    def expect(self) -> dict[str, object]:
        """The same in the words of expected.json's `expect`.

        `truth`: what the bundle does not prove; to name it is no error, to name anything else is one.
        """
        if self.healthy:
            return {"incident": False}
        known = self.rank_knowable and not self.ranks_free
        truth = {"causes": list(self.acceptable) or [self.cause], "ranks": sorted(self.ranks)}
        if self.hopeless:
            return {"causes": None, "ranks": None, "open": True}
        if not (known or self.cause_knowable):
            return {"causes": None, "ranks": None, "open": True, "truth": truth}
        out: dict[str, object] = {
            "causes": list(self.acceptable) or [self.cause],
            "ranks": sorted(self.ranks) if known else None,
            "must_not_blame": sorted(self.must_not_blame),
        }
        if self.ranks_free:
            del out["ranks"]
        elif not known:
            out["truth"] = truth
        if self.hosts and known and self.ranks:
            out["host"] = self.hosts[0]
        if self.gpus and self.cause_knowable:
            out["gpus"] = list(self.gpus)
        if self.seq is not None:
            out["seq"] = self.seq
        if self.reporting_ranks:
            out["reporting_ranks"] = sorted(self.reporting_ranks)
        return out
