"""One row for what several files print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nccl_forensics.model import Event


def merge_repeats(events: Sequence[Event]) -> list[Event]:
    """One row for what several files print: the same line at the same uptime, or in the same second of two files.

    The first printing that has a wall-clock time stays, `repeats` counts them. The n-th printing in one file is only
    ever merged with the n-th of another, so that a line that really came twice stays twice; in one file, only rows
    with the same uptime are one (a bug report holds its kernel log three times over).
    """
    kept: dict[_Key, int] = {}  # what a printing is known by → its row in `out`
    printed: Counter[_Key] = Counter()
    out: list[Event] = []
    for event in events:
        stamp, source = event.stamp, event.evidence.source
        if stamp is None or event.role == "context":
            out.append(event)
            continue
        what = (event.kind, event.host, event.rank, event.gpu_pci, event.evidence.text[-160:])
        keys: list[_Key] = []
        if stamp.boot_ns is not None:
            keys.append((*what, "boot", stamp.boot_ns // 1000))
        if stamp.wall_ns is not None:
            second = (*what, "wall", stamp.wall_ns // 1_000_000_000, stamp.has_year, stamp.zone_s)
            here = (*second, source)
            if not any(key in kept for key in keys):
                printed[here] += 1
            keys.append((*second, printed[here]))
        at = next((kept[k] for k in keys if k in kept), None)
        if at is None or (out[at].evidence.source == source and keys[0] not in kept):
            at = len(out)
            out.append(event)
        else:
            out[at] = _merged(out[at], event)
        for key in keys:
            kept.setdefault(key, at)
    return out


_Key = tuple[object, ...]


def _merged(first: Event, again: Event) -> Event:
    """One row of two printings: that with a wall-clock time, which does not drift if one does not, and the uptime of
    whichever tells it."""
    assert first.stamp is not None
    assert again.stamp is not None
    if again.stamp.wall_ns is not None and (
        first.stamp.wall_ns is None or (first.stamp.drifts and not again.stamp.drifts)
    ):
        return replace(again, repeats=first.repeats + 1)
    if first.stamp.boot_ns is None and again.stamp.boot_ns is not None:
        first = replace(first, stamp=replace(first.stamp, boot_ns=again.stamp.boot_ns))
    return replace(first, repeats=first.repeats + 1)
