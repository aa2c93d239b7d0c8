"""Settings and versions that hid evidence, slowed the job down or differ where they must not.

Never a cause by themselves: they stand beside the verdict, each with the line to change. Names and defaults: PyTorch's
"ProcessGroupNCCL Environment Variables", NVIDIA's NCCL "Environment Variables", job-log-formats.md §2.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

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


def _row(says: str, event: Event | None) -> dict[str, object]:
    place = event.evidence if event is not None else None
    return {
        "cause": "undetermined",
        "kind": "setting",
        "says": says,
        "source": place.source if place else None,
        "line": place.line if place else None,
    }


def _switches(
    name: str, value: str, event: Event, version: Version | None, recorder: str, *, dumped: bool
) -> str | None:
    """What is wrong with one setting, in a sentence."""
    old = version is not None and version < RENAMED
    right = "NCCL_ASYNC_ERROR_HANDLING" if old else "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    if name == "flight_recorder" and value == "off":
        if dumped:
            return None  # the dumps prove that it was on: a stack trace is missing for other reasons, too
        return say(
            "The Flight Recorder was off, so nobody can see which rank did not come. Switch it on: {recorder}.",
            recorder=recorder,
        )
    if name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE") and value.isdigit():
        if int(value) == 0:
            return say(
                "{name}=0 keeps the Flight Recorder off: nobody can see which rank did not come. Set {recorder}.",
                name=name,
                recorder=recorder,
            )
        if int(value) < SMALL_BUFFER:
            return say(
                "{name}={value} keeps few calls; the one that went wrong may be overwritten. Set `{name}=2000`.",
                name=name,
                value=value,
            )
    if name in ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING") and value == "0":
        return say(
            "{name}=0: the watchdog does not end a hung job. Set `export {right}=1` or leave it out.",
            name=name,
            right=right,
        )
    if name == "NCCL_ASYNC_ERROR_HANDLING" and not old:
        new = text(event, "new") or right
        return say(
            "{name} is the old name; since PyTorch 2.2 it is {new}. Set `export {new}={value}`.",
            name=name,
            new=new,
            value=value or 1,
        )
    if name in HURTS:
        values, what, line = HURTS[name]
        if value and (not values or value.upper() in values):
            return say(
                "{name}={value}: {what}. `{line}` unless it was chosen for this machine.",
                name=name,
                value=value,
                what=what,
                line=line,
            )
    return None


def _hosts(case: Case, event: Event) -> str | None:
    """The machine that a line is about."""
    if event.host:
        return short(event.host)
    place = case.known.ranks.get(event.rank) if event.rank is not None else None
    return short(place.host) if place is not None and place.host else None


def _differing(case: Case) -> Iterator[dict[str, object]]:
    """Variables and versions that are not the same on all hosts."""
    values: dict[str, dict[str, dict[str, Event]]] = defaultdict(lambda: defaultdict(dict))
    names = {"torch-version": "PyTorch", "nccl-version": "NCCL", "driver-version": "the NVIDIA driver"}
    for event in case.of("setting", *names):
        name = names.get(event.kind) or text(event, "name") or ""
        value = text(event, "version" if event.kind in names else "value")
        host = _hosts(case, event)
        if value is None or host is None or name in OWN or (event.kind == "setting" and not name.startswith("NCCL_")):
            continue
        values[name][value].setdefault(host, event)
    for name, spelled in values.items():
        by_value: dict[str, dict[str, Event]] = {}
        for value in sorted(spelled):  # '2.27.5' and '2.27.5+cuda12.4' may be one version, told twice
            base = value.partition("+")[0]
            by_value.setdefault(base if base in spelled else value, {}).update(spelled[value])
        hosts = [set(by_host) for by_host in by_value.values()]
        if len(hosts) < 2 or set.intersection(*hosts) or len(set.union(*hosts)) < 2:
            continue  # one host with several values changed it between runs
        told = phrases.listing(
            say("{value} on {by}", value=value, by=phrases.listing(sorted(by)[:4])) for value, by in by_value.items()
        )
        versions = name in names.values()
        mend = (
            say("Install one version of {name} everywhere.", name=name)
            if versions
            else say("`export {name}=…` alike on all hosts.", name=name)
        )
        rarest = min(by_value.values(), key=len)
        yield _row(
            say(
                "{name} differs between hosts: {told}. {mend}",
                name=upper_first(name),
                told=told,
                mend=mend,
            ),
            next(iter(rarest.values())),
        )


def _own_limits(case: Case) -> Iterator[dict[str, object]]:
    """A sub-group with the limit that new_group() falls back to, while the job had chosen another one."""
    groups = [g for g in case.collectives.groups if g.timeout_ms is not None]
    stated = {g.timeout_ms for g in groups if _is_default(g)}
    for event in case.of("setting"):
        seconds = text(event, "value")
        if text(event, "name") == "ddp_timeout" and seconds and seconds.isdigit():
            stated.add(int(seconds[:9]) * 1000)
    for event in case.of("watchdog-timeout", "pg-blocking"):
        if text(event, "pg_desc") == "default_pg" and (limit := number(event, "timeout_ms")):
            stated.add(limit)
    chosen = sorted(x for x in stated if x is not None and x not in DEFAULTS_MS)
    for group in groups:
        if chosen and not _is_default(group) and group.timeout_ms in DEFAULTS_MS:
            seen = next(
                (e for e in case.of("watchdog-timeout") if number(e, "timeout_ms") == group.timeout_ms),
                None,
            )
            name, had = group.description or group.name, phrases.duration((group.timeout_ms or 0) / 1000)
            yield _row(
                say(
                    "Group {name} had the default limit of {had} while the job had chosen {time}: new_group() "
                    "does not inherit it. `dist.new_group(ranks, timeout=timedelta(seconds={chosen}))`.",
                    name=name,
                    had=had,
                    time=phrases.duration(chosen[0] / 1000),
                    chosen=chosen[0] // 1000,
                ),
                seen,
            )
            return


def _is_default(group: GroupState) -> bool:
    return group.description == "default_pg" or (group.description is None and group.name in DEFAULT_GROUPS)


def contributing(case: Case, version: Version | None, recorder: str) -> Iterator[dict[str, object]]:
    """Each setting once. `version`: PyTorch's, if a log states it; `recorder`: how to switch the Flight Recorder on."""
    seen: set[str] = set()
    for event in case.of("setting"):
        name, value = text(event, "name") or "", str(event.details.get("value") or "")
        says = _switches(name, value, event, version, recorder, dumped=bool(case.collectives.counters))
        if says is not None and name not in seen:
            seen.add(name)
            yield _row(says, event)
    yield from _differing(case)
    yield from _own_limits(case)
