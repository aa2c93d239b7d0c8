"""The values that flow from step to step: frozen, with units in their names.

Imports nothing of ours but names of details and what makes text fit to show.

    paths → collect → scan → parse → identify → align → reconstruct → diagnose → report

Unknown is None everywhere. Times are integer nanoseconds; the field's name or docstring says on which clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nccl_forensics.fields import FlagField, MeasureField, NumberField, NumbersField, TextField, TextsField
from nccl_forensics.text.visible import CONTEXT, neighbour

Role = Literal["cause", "symptom", "consequence", "context"]
"""What an event can prove: a `cause` may be why the job died, a `symptom` shows that something is wrong with who writes
it, a `consequence` follows another failure and never counts against anybody, `context` only helps to read the rest."""
Severity = Literal["critical", "error", "warning", "info"]
Status = Literal["read", "partial", "skipped", "failed"]
TimeBasis = Literal["stamp", "neighbour", "derived", "none"]
Detail = str | int | float | bool | None | tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """One file that was looked at; members of archives are rows of their own."""

    path: str
    """As given; members as ARCHIVE!member, nested ones with more '!'."""
    format: str = "unknown"
    status: Status = "read"
    reason: str | None = None
    """Why partial, skipped or failed."""
    bytes: int = 0
    """Uncompressed bytes read."""
    events: int = 0
    host: str | None = None
    rank: int | None = None
    mtime_ns: int | None = None
    """Modification time, UTC, as the file system or the archive tells it."""
    first_ns: int | None = None
    last_ns: int | None = None
    """First and last event on the reference clock."""
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that could not be read or understood; nothing is dropped in silence."""

    says: str
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a claim can be checked."""

    source: str
    """An InputRow.path."""
    line: int | None
    """1-based line of the uncompressed file; None in a binary file."""
    text: str
    """The line without its launcher prefix, control characters made visible, cut at 2,000 characters."""
    above: bytes = b""
    below: bytes = b""
    """The stretches of the file around the line, from a line's start to a line's end. Raw: most are never shown."""

    @property
    def before(self) -> tuple[str, ...]:
        """Neighbouring lines, for the reader: `CONTEXT` of them at most, control characters made visible."""
        return tuple(neighbour(x) for x in self.above.splitlines()[-CONTEXT:])

    @property
    def after(self) -> tuple[str, ...]:
        return tuple(neighbour(x) for x in self.below.splitlines()[:CONTEXT])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A time as the log wrote it, on the log's own clock. At least one of `wall_ns` and `boot_ns` is there."""

    wall_ns: int | None = None
    """The written date and time of day read as if it were UTC, ns since 1970. Without a written year: in 1972."""
    has_year: bool = True
    zone_s: int | None = None
    """Written offset, seconds east of UTC; None: no zone was written."""
    boot_ns: int | None = None
    """Nanoseconds since boot (printk's clock: not disciplined by NTP, stands still in suspend)."""
    resolution_ns: int = 1_000_000_000
    """Of `wall_ns`; the true reading lies within it, after `wall_ns`."""
    drifts: bool = False
    """`dmesg -T` and its kin: wall time computed from boot time, minutes off after weeks of uptime."""


LOG_BEGINS, ALARM = "log-begins", "alarm"
"""Kinds of lines that are no events: the first of a kernel's log, and one that looks like an error nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One row of the timeline."""

    kind: str
    """Signature id, e.g. 'xid', 'watchdog-timeout', 'oom-kill'."""
    role: Role
    evidence: Evidence
    severity: Severity = "info"
    stamp: Stamp | None = None
    """On the log's own clock."""
    cause: str | None = None
    """Id in causes.toml that this line speaks for, if any."""
    rank: int | None = None
    """Global rank. None where the log cannot know it; never a guess, never -1."""
    local_rank: int | None = None
    """Rank on its node, from a launcher's prefix; not a global rank."""
    task: int | None = None
    """From `srun --label` or mpirun's tags: a global rank only with one process per task."""
    host: str | None = None
    pid: int | None = None
    """Process id as the log saw it (inside a container: the container's)."""
    gpu_pci: str | None = None
    """'dddd:bb:dd.f', lower case."""
    details: Mapping[str, Detail] = field(default_factory=dict)
    """What only this kind has; a key ends in its unit: `waited_ms`, `numel_in`, `limit_bytes`."""
    attempt: int | None = None
    """Which start of the job by its launcher, from 0, where that is known."""
    relayed: bool = False
    """Another process tells this of `rank`: the line's file, and the host that wrote it, need not be that rank's."""
    boot_id: str | None = None
    """The journal's _BOOT_ID: one for each start of a machine, the same for all written until the next (sd-id128,
    /proc/sys/kernel/random/boot_id)."""
    # set by align:
    time_ns: int | None = None
    """On the reference clock (UTC). In 1972 where nothing in the pile tells the year: then only differences count."""
    boot: int | None = None
    """Which boot of its host, counted back from the last one in its file: 0, -1, -2 …; None where no boot shows."""
    clock: str | None = None
    """ClockRow.clock that its time was read on."""
    uncertainty_ns: int | None = None
    """Half-width of the error bar of `time_ns`."""
    time_basis: TimeBasis = "none"
    repeats: int = 1
    """How many identical printings this row stands for."""


def number(event: Event, key: NumberField) -> int | None:
    """A detail that is a whole number, or None."""
    value = event.details.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def measured(event: Event, key: MeasureField | NumberField) -> float | None:
    """A detail that is a number, whole or not, or None."""
    value = event.details.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(event: Event, key: TextField) -> str | None:
    """A detail that is text, or None."""
    value = event.details.get(key)
    return value if isinstance(value, str) and value else None


def flag(event: Event, key: FlagField) -> bool | None:
    """A detail that is true or false; None where the line doesn't tell."""
    value = event.details.get(key)
    return value if isinstance(value, bool) else None


def numbers(event: Event, key: NumbersField) -> tuple[int, ...]:
    """A detail that is several whole numbers; () where there is none."""
    value = event.details.get(key)
    return tuple(x for x in value if isinstance(x, int)) if isinstance(value, tuple) else ()


def texts(event: Event, key: TextsField) -> tuple[str, ...]:
    """A detail that is several texts; () where there is none."""
    value = event.details.get(key)
    return tuple(x for x in value if isinstance(x, str)) if isinstance(value, tuple) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    host: str | None = None
    index: int | None = None
    """nvidia-smi / CUDA index on the host."""
    pci: str | None = None
    """'dddd:bb:dd.f', lower case."""
    uuid: str | None = None
    serial: str | None = None
    model: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)


RankState = Literal["culprit", "waiting", "blocked", "completed", "dead", "no-data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    rank: int
    host: str | None = None
    local_rank: int | None = None
    pid: int | None = None
    gpu: Gpu | None = None
    state: RankState = "no-data"
    waiting_on: tuple[int, ...] = ()
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    exit: str | None = None
    note: str | None = None
    """Why it is in this state, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    clock: str
    host: str | None
    offset_s: float | None
    """Add to this clock's reading to get the reference clock."""
    uncertainty_s: float | None
    basis: str
    """'reference', 'collectives', 'shared-event', 'boot-time', 'declared', 'assumed'."""
    note: str | None = None
    compared: bool = True
    """Something in the pile ties it to the reference clock, or there is only one host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """Where one process group stood at the end: its oldest operation that somebody still waits for."""

    name: str | None
    """As PyTorch gives it ('0', 'default_pg', '3' …)."""
    description: str | None = None
    backend: str | None = None
    members: tuple[int, ...] = ()
    """Global ranks; empty if no log tells."""
    members_at_least: bool = False
    """No log states the members: they are the ranks that were seen, and those below the highest of them."""
    op: str | None = None
    """Lower case profiling name without backend: 'all_reduce', '_all_gather_base', 'send' …"""
    seq: int | None = None
    """Collective sequence number in this group, from 1."""
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    arrived: tuple[int, ...] = ()
    started: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """Members that have data and have not entered."""
    no_data: tuple[int, ...] = ()
    """Members of whom there is neither a dump nor a message: neither guilty nor cleared."""
    first_arrival_ns: int | None = None
    last_arrival_ns: int | None = None
    """When the first and the last of the arrived entered, on their own clocks (UTC in dumps)."""
    frames: tuple[str, ...] = ()
    """Python frames of the waiters, innermost first: 'function file:line'."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An edge of the wait-for graph."""

    waiter: int
    waited: tuple[int, ...]
    why: str
    group: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """What the collectives alone say against a set of ranks. Weighed against everything else in diagnose."""

    ranks: tuple[int, ...]
    """Empty: the finding is about no rank in particular (a deadlock, a symmetric hang)."""
    cause: str
    """Id in causes.toml."""
    weight: float
    """Log-odds."""
    says: str
    """What was seen, one sentence that stands alone."""
    group: GroupState | None = None
    evidence: tuple[Evidence, ...] = ()
    details: Mapping[str, Detail] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    rank: int
    source: str | None = None
    host: str | None = None
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    """In the group that hangs, or in the default group."""
    frames: tuple[str, ...] = ()
    """Where its newest recorded call was made."""
    last_created_ns: int | None = None
    """Epoch ns (UTC as the rank's host had it) of its newest recorded call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """What the process groups were doing when the job stopped."""

    groups: tuple[GroupState, ...] = ()
    """Stuck ones first, the one that holds up the others on top."""
    suspects: tuple[Suspect, ...] = ()
    waits: tuple[Wait, ...] = ()
    cannot_exclude: tuple[int, ...] = ()
    """Ranks without data that could be the culprit as well."""
    cleared: tuple[tuple[int, str], ...] = ()
    """(rank, why it is a victim)."""
    counters: tuple[RankCounters, ...] = ()
    ranks_seen: tuple[int, ...] = ()
    members: tuple[GroupState, ...] = ()
    """Name, description and members of every group whose members are known, whether anybody waits in it or not."""
    healthy: bool = False
    """There is data, and nobody waits for anybody longer than is normal."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule can prove, for or against a hypothesis (cause, ranks, hosts, GPUs)."""

    cause: str
    says: str
    weight: float
    """Log-odds; negative: too little for it, by itself."""
    refutes: bool = False
    """It speaks against the hypothesis, whatever else speaks for it; `weight` is negative then."""
    identifies: bool = True
    """False: other causes would show the same, so that alone it makes its own suspected at most."""
    weight_alone: float | None = None
    """What it weighed as a fault of its host, before that host was found to be none of the job's; else None."""
    tied: bool = True
    """False: it is of a host that nothing ties to the job, neither a rank nor a line nor its time."""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    events: tuple[Event, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    inference: bool = False
    """A conclusion rather than something that was written down."""
    detail: str | None = None
    """Sub-kind that picks the advice: 'riser', 'fragmentation', 'no space' …"""
    onset_ns: int | None = None
    """When the cause struck, on the reference clock, where this finding knows."""

    def __post_init__(self) -> None:
        if not self.events and not self.evidence:
            raise ValueError(f"a finding without evidence: {self.says}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    cause: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    log_odds: float
    confidence: float
    """Posterior over all hypotheses and 'something else', as often as it proved true."""
    findings: tuple[Finding, ...]
    detail: str | None = None
    posterior: float | None = None
    """Before the slope of the confidence and its cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """An obvious suspect that is innocent, and why."""

    who: str
    why: str
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    """All of them, where one reason clears several."""
    gpu_pci: str | None = None
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    do: str
    because: str
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    status: Literal["identified", "suspected", "undetermined"]
    cause: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    reporting_ranks: tuple[int, ...]
    confidence: float
    summary: str
    evidence: tuple[Finding, ...]
    alternatives: tuple[tuple[Hypothesis, str], ...]
    """(hypothesis, why not)."""
    cleared: tuple[Cleared, ...]
    cannot_exclude: tuple[int, ...]
    missing_evidence: tuple[str, ...]
    actions: tuple[Action, ...]
    posterior: float | None = None
    """Of the likeliest hypothesis, before the slope of the confidence and its cap: what the slope is fitted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    id: int
    onset_ns: int | None
    onset_uncertainty_ns: int | None
    detected_ns: int | None
    ended_ns: int | None
    collective: GroupState | None
    groups: tuple[GroupState, ...]
    waits: tuple[Wait, ...]
    verdict: Verdict
    contributing: tuple[Mapping[str, object], ...] = ()
    cost: Mapping[str, float | None] | None = None
    ranks: tuple[Rank, ...] = ()
    attempt: int | None = None
    """Which start of its run by the launcher failed here, from 0; None where the job was started once."""
    job: str | None = None
    """Which job of several in the pile, as people call it."""
    zone_known: bool = True
    """The zone of the clocks that tell its onset, or else when it was noticed, is written, proved, or the user's word;
    otherwise UTC is a guess."""
    onset_written: str | None = None
    """The onset in words, as its own clock writes it, where that gives no moment in UTC beside the other clocks."""
