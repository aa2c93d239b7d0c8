"""Settings and versions that hid evidence, slowed the job down or differ where they must not.

Never a cause by themselves: they stand beside the verdict, each with the line to change. Names and defaults: PyTorch's
"ProcessGroupNCCL Environment Variables", NVIDIA's NCCL "Environment Variables", job-log-formats.md §2.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nccl_forensics.model import Event, GroupState, number, text
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, upper_first
from nccl_forensics.verdict.case import Case

Version = tuple[int, int]
RENAMED: Version = (2, 2)
"""The first PyTorch that reads TORCH_NCCL_* (job-log-formats.md, wheels)."""
SMALL_BUFFER = 500
"""Entries of a Flight Recorder that seldom reach back to the fault; PyTorch's tutorial uses 2,000. Our judgement."""
DEFAULTS_MS = (600_000, 1_800_000)
"""Limits that a group has when nobody chose one: from 2.2 on, and before (job-log-formats.md §2.4)."""
DEFAULT_GROUPS = (None, "0", "default_pg")
HURTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "NCCL_P2P_DISABLE": (
        ("1",),
        say("GPUs of one host talk through host memory instead of NVLink or PCIe peer access: far slower"),
        "unset NCCL_P2P_DISABLE",
    ),
    "NCCL_IB_DISABLE": (
        ("1",),
        say("hosts talk over plain sockets although InfiniBand or RoCE may be there: far slower"),
        "unset NCCL_IB_DISABLE",
    ),
    "NCCL_SHM_DISABLE": (
        ("1",),
        say("processes of one host talk over the network instead of shared memory"),
        "unset NCCL_SHM_DISABLE",
    ),
    "NCCL_ALGO": ((), say("NCCL may not choose its algorithm by size and topology"), "unset NCCL_ALGO"),
    "NCCL_PROTO": (
        (),
        say("NCCL may not choose its protocol; LL128 on the wrong hardware corrupts data"),
        "unset NCCL_PROTO",
    ),
    "NCCL_DEBUG": (("TRACE",), say("every call is logged, which slows the job down"), "export NCCL_DEBUG=WARN"),
    "CUDA_LAUNCH_BLOCKING": (
        ("1",),
        say("every kernel is waited for: slow, and streams no longer overlap"),
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    "TORCH_NCCL_BLOCKING_WAIT": (
        ("1",),
        say("the watchdog does not end a hung job, and writes no report of its own"),
        "unset TORCH_NCCL_BLOCKING_WAIT",
    ),
}
"""Name → (values that hurt, none: any; what they do; the line to change)."""
OWN = frozenset({"CUDA_VISIBLE_DEVICES", "NCCL_DEBUG_FILE", "NCCL_HOSTID", "NCCL_TOPO_DUMP_FILE", "WORLD_SIZE"})
"""Settings that may differ between processes."""
VERSIONS = {"torch-version": "PyTorch", "nccl-version": "NCCL", "driver-version": "the NVIDIA driver"}
"""Kind of line → whose version it states."""


def _row(says: str, event: Event | None) -> dict[str, object]:
    place = event.evidence if event is not None else None
    return {
        "cause": "undetermined",
        "kind": "setting",
        "says": says,
        "source": place.source if place else None,
        "line": place.line if place else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One setting as a line states it, and what one must know to judge it."""

    name: str
    value: str
    event: Event
    old_names: bool
    """The job's PyTorch reads NCCL_* where newer ones read TORCH_NCCL_*."""
    recorder: str
    """How to switch the Flight Recorder on."""
    dumped: bool
    """There are dumps of the Flight Recorder."""

    @property
    def error_handling(self) -> str:
        """What the switch for error handling is called in the job's PyTorch."""
        return "NCCL_ASYNC_ERROR_HANDLING" if self.old_names else "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def _recorder_off(setting: _Setting) -> str | None:
    if setting.name != "flight_recorder" or setting.value != "off":
        return None
    if setting.dumped:
        return None  # the dumps prove that it was on: a stack trace is missing for other reasons, too
    return say(
        "The Flight Recorder was off, so nobody can see which rank did not come. Switch it on: {recorder}.",
        recorder=setting.recorder,
    )


def _recorder_small(setting: _Setting) -> str | None:
    if setting.name not in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE") or not setting.value.isdigit():
        return None
    if int(setting.value) == 0:
        return say(
            "{name}=0 keeps the Flight Recorder off: nobody can see which rank did not come. Set {recorder}.",
            name=setting.name,
            recorder=setting.recorder,
        )
    if int(setting.value) < SMALL_BUFFER:
        return say(
            "{name}={value} keeps few calls; the one that went wrong may be overwritten. Set `{name}=2000`.",
            name=setting.name,
            value=setting.value,
        )
    return None


def _error_handling_off(setting: _Setting) -> str | None:
    known = setting.name in ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    if not known or setting.value != "0":
        return None
    return say(
        "{name}=0: the watchdog does not end a hung job. Set `export {right}=1` or leave it out.",
        name=setting.name,
        right=setting.error_handling,
    )


def _error_handling_renamed(setting: _Setting) -> str | None:
    if setting.name != "NCCL_ASYNC_ERROR_HANDLING" or setting.old_names:
        return None
    return say(
        "{name} is the old name; since PyTorch 2.2 it is {new}. Set `export {new}={value}`.",
        name=setting.name,
        new=text(setting.event, "new") or setting.error_handling,
        value=setting.value or 1,
    )


def _hurts(setting: _Setting) -> str | None:
    if setting.name not in HURTS or not setting.value:
        return None
    values, what, line = HURTS[setting.name]
    if values and setting.value.upper() not in values:
        return None
    return say(
        "{name}={value}: {what}. `{line}` unless it was chosen for this machine.",
        name=setting.name,
        value=setting.value,
        what=what,
        line=line,
    )


CHECKS = (_recorder_off, _recorder_small, _error_handling_off, _error_handling_renamed, _hurts)
"""What can be wrong with one setting, in a sentence; the first that is counts."""


def _each(case: Case, version: Version | None, recorder: str) -> Iterator[dict[str, object]]:
    """Settings that hurt by themselves, each name once."""
    old_names, dumped = version is not None and version < RENAMED, bool(case.collectives.counters)
    told: set[str] = set()
    for event in case.of("setting"):
        setting = _Setting(
            name=text(event, "name") or "",
            value=str(event.details.get("value") or ""),
            event=event,
            old_names=old_names,
            recorder=recorder,
            dumped=dumped,
        )
        wrong = next((says for check in CHECKS if (says := check(setting)) is not None), None)
        if wrong is not None and setting.name not in told:
            told.add(setting.name)
            yield _row(wrong, event)


def _host(case: Case, event: Event) -> str | None:
    """The machine that a line is about."""
    if event.host:
        return short(event.host)
    place = case.known.ranks.get(event.rank) if event.rank is not None else None
    return short(place.host) if place is not None and place.host else None


def _differing(case: Case) -> Iterator[dict[str, object]]:
    """Variables and versions that are not the same on all hosts."""
    for name, spelled in _stated(case).items():
        by_value = _by_value(spelled)
        if not _differ(by_value):
            continue
        told = phrases.listing(
            say("{value} on {by}", value=value, by=phrases.listing(sorted(by)[:4])) for value, by in by_value.items()
        )
        mend = (
            say("Install one version of {name} everywhere.", name=name)
            if name in VERSIONS.values()
            else say("`export {name}=…` alike on all hosts.", name=name)
        )
        says = say("{name} differs between hosts: {told}. {mend}", name=upper_first(name), told=told, mend=mend)
        rarest = min(by_value.values(), key=len)
        yield _row(says, next(iter(rarest.values())))


def _stated(case: Case) -> dict[str, dict[str, dict[str, Event]]]:
    """Name → value → host → the first line there that says so, of what should be the same everywhere."""
    found: dict[str, dict[str, dict[str, Event]]] = defaultdict(lambda: defaultdict(dict))
    for event in case.of("setting", *VERSIONS):
        name = VERSIONS.get(event.kind) or text(event, "name") or ""
        value = text(event, "version" if event.kind in VERSIONS else "value")
        host = _host(case, event)
        shared = name not in OWN and (event.kind in VERSIONS or name.startswith("NCCL_"))
        if shared and value is not None and host is not None:
            found[name][value].setdefault(host, event)
    return found


def _by_value(spelled: Mapping[str, Mapping[str, Event]]) -> dict[str, dict[str, Event]]:
    """Value → host → line. '2.27.5' and '2.27.5+cuda12.4' may be one version, told twice."""
    found: dict[str, dict[str, Event]] = {}
    for value in sorted(spelled):
        base = value.partition("+")[0]
        found.setdefault(base if base in spelled else value, {}).update(spelled[value])
    return found


def _differ(by_value: Mapping[str, Mapping[str, Event]]) -> bool:
    """Do hosts differ? One host with several values changed it between runs."""
    hosts = [set(by_host) for by_host in by_value.values()]
    return len(hosts) > 1 and not set.intersection(*hosts) and len(set.union(*hosts)) > 1


def _own_limits(case: Case) -> Iterator[dict[str, object]]:
    """A sub-group with the limit that new_group() falls back to, while the job had chosen another one."""
    chosen_ms = min((ms for ms in _stated_ms(case) if ms not in DEFAULTS_MS), default=None)
    group = next((g for g in case.collectives.groups if _fell_back(g)), None)
    if chosen_ms is None or group is None:
        return
    seen = next((e for e in case.of("watchdog-timeout") if number(e, "timeout_ms") == group.timeout_ms), None)
    yield _row(
        say(
            "Group {name} had the default limit of {had} while the job had chosen {time}: new_group() "
            "does not inherit it. `dist.new_group(ranks, timeout=timedelta(seconds={chosen}))`.",
            name=group.description or group.name,
            had=phrases.duration((group.timeout_ms or 0) / 1000),
            time=phrases.duration(chosen_ms / 1000),
            chosen=chosen_ms // 1000,
        ),
        seen,
    )


def _stated_ms(case: Case) -> Iterator[int]:
    """Limits of the group of all ranks, wherever they are stated."""
    yield from (g.timeout_ms for g in case.collectives.groups if g.timeout_ms is not None and _is_default(g))
    for event in case.of("setting"):
        seconds = text(event, "value")
        if text(event, "name") == "ddp_timeout" and seconds and seconds.isdigit():
            yield int(seconds[:9]) * 1000
    for event in case.of("watchdog-timeout", "pg-blocking"):
        if text(event, "pg_desc") == "default_pg" and (limit := number(event, "timeout_ms")):
            yield limit


def _fell_back(group: GroupState) -> bool:
    return not _is_default(group) and group.timeout_ms in DEFAULTS_MS


def _is_default(group: GroupState) -> bool:
    return group.description == "default_pg" or (group.description is None and group.name in DEFAULT_GROUPS)


def contributing(case: Case, version: Version | None, recorder: str) -> Iterator[dict[str, object]]:
    """Each setting once. `version`: PyTorch's, if a log states it; `recorder`: how to switch the Flight Recorder on."""
    yield from _each(case, version, recorder)
    yield from _differing(case)
    yield from _own_limits(case)
