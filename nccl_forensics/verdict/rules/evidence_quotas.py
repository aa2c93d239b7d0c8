"""File systems that are full, read-only or out of quota, beside the writes that failed on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import same_host
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.evidence_subjects import Subjects

FITS = {
    "no space": ("space", "inodes"),
    "inodes": ("inodes", "space"),
    "quota": ("quota of space", "quota of inodes"),
    "read-only": ("read-only",),
    "write failed": ("space", "inodes", "quota of space", "read-only"),
}
"""How a write failed → the states of a file system that explain it. No inodes left says ENOSPC, too."""


def _under(path: str, mount: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount.rstrip("/") + "/")


@rule
def file_system_full(case: Case) -> Iterator[Finding]:
    """The file system that a write failed on is full, read-only, or out of quota: the two confirm each other."""
    who = case.once(Subjects.of)
    states = case.of("file-system")
    for error in case.of("storage-error"):
        if error.role not in ("cause", "symptom"):
            continue
        host = who.host(error)
        explains = _states_that_explain(error, [s for s in states if _can_be_of(s, host)])
        if explains:
            yield _full_where_written(error, host, max(explains, key=_depth))
            break


def _can_be_of(state: Event, host: str | None) -> bool:
    return state.host is None or host is None or same_host(state.host, host)


def _depth(state: Event) -> int:
    """Of the mounts that hold a path, the longest is the one that it lies on."""
    return len(text(state, "mount") or "")


def _states_that_explain(error: Event, here: Sequence[Event]) -> list[Event]:
    """Those that a write that failed so may have met: by its path, or, without one, on the only mount that fits."""
    fits = FITS.get(text(error, "detail") or "", ())
    fitting = [s for s in here if text(s, "what") in fits]
    path = text(error, "path")
    if path is not None:
        return [s for s in fitting if _under(path, text(s, "mount") or "?")]
    return fitting if len({text(s, "mount") for s in fitting}) == 1 else []


def _full_where_written(error: Event, host: str | None, state: Event) -> Finding:
    mount, what = text(state, "mount"), text(state, "what") or ""
    return Finding(
        cause="shm_full" if mount == "/dev/shm" else "storage_write_failed",
        says=say("{mount}, on which the write failed, {how}", mount=mount, how=_how(state)),
        weight=weight("full_where_written") - (0.0 if text(error, "path") else 0.6),
        ranks=if_known(error.rank),
        hosts=if_known(host),
        events=(state, error),
        detail={"space": "no space", "read-only": "read-only", "inodes": "no space"}.get(what, "quota"),
    )


def _how(state: Event) -> str:
    """'is 100 % full'."""
    what, full = text(state, "what"), number(state, "used_percent")
    if what == "read-only":
        return say("is mounted read-only")
    if what == "inodes":
        return say("has used {full} of its inodes", full=f"{full} %")
    return say("is {full} full", full=f"{full} %") if full is not None else say("has its {what} used up", what=what)
