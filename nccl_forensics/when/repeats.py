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
    kept: dict[tuple[object, ...], int] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    out: list[Event] = []
    for event in events:
        stamp, source = event.stamp, event.evidence.source
        if stamp is None or event.role == "context":
            out.append(event)
            continue
        what = (event.kind, event.host, event.rank, event.gpu_pci, event.evidence.text[-160:])
        keys: list[tuple[object, ...]] = []
        if stamp.boot_ns is not None:
            keys.append((*what, "boot", stamp.boot_ns // 1000))
        if stamp.wall_ns is not None:
            second = (*what, "wall", stamp.wall_ns // 1_000_000_000, stamp.has_year, stamp.zone_s)
            here = (*second, source)
            if not any(k in kept for k in keys):
                seen[here] += 1
            keys.append((*second, seen[here]))
        at = next((kept[k] for k in keys if k in kept), None)
        if at is None or (out[at].evidence.source == source and keys[0] not in kept):
            at = len(out)
            out.append(event)
        else:
            first = out[at]
            assert first.stamp is not None
            if first.stamp.wall_ns is None and stamp.wall_ns is not None:
                out[at] = replace(event, repeats=first.repeats + 1)
            elif first.stamp.boot_ns is None and stamp.boot_ns is not None:
                both = replace(first.stamp, boot_ns=stamp.boot_ns)
                out[at] = replace(first, stamp=both, repeats=first.repeats + 1)
            else:
                out[at] = replace(first, repeats=first.repeats + 1)
        for key in keys:
            kept.setdefault(key, at)
    return out
