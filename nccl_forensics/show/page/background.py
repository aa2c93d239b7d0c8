"""What stands behind the incidents: cards, clocks, files, all events."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Container, Iterator, Sequence

from nccl_forensics.show import pictures
from nccl_forensics.show.page.evidence import rank_state
from nccl_forensics.show.page.lookup import Lookup, kept_inputs
from nccl_forensics.show.page.rows import ClockView, EventRow, GpuRow, InputView, RatesView, Some
from nccl_forensics.show.page.sentences import ranks_left_out
from nccl_forensics.show.page.words import (
    ROW_CHARS,
    Doc,
    cause_title,
    clean,
    count_words,
    full_sentence,
    kind_words,
    or_na,
    plus_minus,
    ranks_words,
)
from nccl_forensics.text import phrases
from nccl_forensics.text.language import N_, _, said
from nccl_forensics.text.moments import TO_THE_SECOND, micros, timestamp

MAX_GPUS = 256
MAX_PROBLEMS = 200


def gpu_rows(doc: Doc, lookup: Lookup) -> Some:
    """One row a GPU, those that something was logged about first."""
    suspects = {
        (g.get("host"), g.get("pci")) for i in doc["incidents"] for g in i["verdict"]["culprit_gpus"] if g.get("pci")
    }
    by_place: dict[tuple[object, object], list[Doc]] = {}
    for event in lookup.events:
        if event.get("gpu_pci") and event.get("role") != "context":
            by_place.setdefault((event.get("host"), event["gpu_pci"]), []).append(event)
    cards = [(h["name"], g) for h in doc.get("hosts") or () for g in h.get("gpus") or ()]
    known = {(host, g.get("pci")) for host, g in cards}
    cards += [(host, {"pci": pci}) for host, pci in by_place if (host, pci) not in known]
    cards.sort(key=lambda c: (c[0], c[1].get("pci")) not in by_place and (c[0], c[1].get("pci")) not in suspects)
    rows = []
    onset = next((t for i in doc["incidents"] if (t := micros(i["onset"])) is not None), None)
    trends = series_of(lookup)
    for host, gpu in cards[:MAX_GPUS]:
        place = (host, gpu.get("pci"))
        rows.append(
            GpuRow(
                host=or_na(host),
                index=or_na(gpu.get("index")),
                pci=or_na(gpu.get("pci")),
                rank=or_na(lookup.rank_of.get((host, gpu.get("pci") or ""))),
                model=or_na(gpu.get("model")) if place in known else _("another PCI device"),
                uuid=or_na(gpu.get("uuid")),
                serial=or_na(gpu.get("serial")),
                seen=tuple(seen_words(by_place.get(place, ()) if gpu.get("pci") else ())),
                details=tuple((clean(k, 40), or_na(v)) for k, v in list((gpu.get("details") or {}).items())[:16]),
                trends=tuple(trend_rows(trends.get(place) or {}, onset)),
                suspect=place in suspects,
            )
        )
    return Some(rows=tuple(rows), more=len(cards) - len(rows))


TRENDS = {
    "temperature_c": (N_("temperature"), " °C"),
    "memory_temperature_c": (N_("memory temperature"), " °C"),
    "power_draw_w": (N_("power"), " W"),
    "gpu_used_bytes": (N_("memory"), " GiB"),
    "step_ms": (N_("time for a step"), " s"),
    "ecc_volatile_corrected": (N_("ECC corrected"), ""),
    "ecc_volatile_uncorrected": (N_("ECC uncorrectable"), ""),
    "ecc_aggregate_corrected": (N_("ECC corrected, lifetime"), ""),
    "ecc_aggregate_uncorrected": (N_("ECC uncorrectable, lifetime"), ""),
    "remapped_corrected": (N_("rows remapped, corrected"), ""),
    "remapped_uncorrected": (N_("rows remapped, uncorrectable"), ""),
    "pcie_replays": (N_("PCIe replays"), ""),
}
"""A field of events → its name, its unit in the table."""
_SCALE = {"gpu_used_bytes": 2**30, "step_ms": 1000}
MAX_TRENDS = 4
"""Of one GPU, those that moved first."""
Series = dict[str, list[tuple[int, float]]]


def rates_view(rates: Doc, lookup: Lookup) -> RatesView:
    rows = [
        (
            _("not known") if (at := micros(f["time"])) is None else timestamp(at),
            clean(f["host"], 253),
            clean(or_na(f["gpu_pci"])),
            cause_title(f["cause"]) if f["cause"] else clean(f["text"], 120),
            f"{lookup.path(f['source'])}:{f['line']}" if f["line"] else lookup.path(f["source"]),
        )
        for f in reversed(rates["listed"])
    ]
    return RatesView(
        says=clean(said(rates["says"])),
        offenders=tuple(full_sentence(clean(said(o["says"]))) for o in rates["offenders"]),
        failures=tuple(rows),
        more=rates["failures"] - len(rows),
    )


def series_of(lookup: Lookup) -> dict[tuple[object, object], Series]:
    """What events say of a GPU over time, by (host, PCI address): its own readings, and its rank's steps and memory."""
    place_of = {rank: place for place, rank in lookup.rank_of.items()}
    found: dict[tuple[object, object], Series] = {}
    before: dict[object, tuple[int, int, object]] = {}
    for event in lookup.events:
        at, fields = micros(event.get("time")), event.get("fields") or {}
        rank, pci = event.get("rank"), event.get("gpu_pci")
        place = (event.get("host"), pci) if pci else place_of.get(rank) if isinstance(rank, int) else None
        if at is None or place is None:
            continue
        read: dict[str, object] = {str(fields.get("metric")): fields.get("value")} if "metric" in fields else {}
        read |= {key: fields[key] for key in TRENDS if key in fields}
        series = found.setdefault(place, {})
        step, file = fields.get("step"), event.get("source")
        if event.get("kind") == "progress" and isinstance(step, int):
            if place in before and "step_ms" not in read:
                at_before, step_before, file_before = before[place]
                if file == file_before and step > step_before and at > at_before:
                    read["step_ms"] = (at - at_before) / 1000 / (step - step_before)
            before[place] = (at, step, file)
        for key, value in read.items():
            if key in TRENDS and isinstance(value, (int, float)) and not isinstance(value, bool):
                series.setdefault(key, []).append((at, float(value)))
    return found


def trend_rows(series: Series, onset: int | None) -> Iterator[tuple[str, pictures.Spark]]:
    """(words, sparkline) of each series with two moments or more; those that changed come first."""
    drawn = []
    for order, (key, (name, unit)) in enumerate(TRENDS.items()):
        values = sorted(series.get(key, ()))
        picture = pictures.spark(values, onset)
        if picture is None:
            continue
        first, last, peak = (v / _SCALE.get(key, 1) for v in (values[0][1], values[-1][1], max(v for _, v in values)))
        text = _("{name} {first} to {last}").format(name=_(name), first=f"{first:.4g}", last=f"{last:.4g}{unit}")
        if peak > max(first, last):
            text += _(", at most {peak}").format(peak=f"{peak:.4g}")
        drawn.append((len({v for _, v in values}) == 1, order, text, picture))
    for _still, _order, text, picture in sorted(drawn, key=lambda d: d[:2])[:MAX_TRENDS]:
        yield text, picture


def seen_words(events: Sequence[Doc]) -> Iterator[str]:
    """What a GPU's log lines say, by kind: count, first and last time."""
    by_kind: dict[str, list[Doc]] = {}
    for event in events:
        by_kind.setdefault(kind_words(event), []).append(event)
    for words, group in list(by_kind.items())[:6]:
        count = sum(int(e.get("repeats") or 1) for e in group)
        times = sorted(t for e in group if (t := micros(e.get("time"))) is not None)
        when = _("time not known") if not times else timestamp(times[0], TO_THE_SECOND)
        if len(times) > 1 and times[-1] != times[0]:
            first, last = (timestamp(t, TO_THE_SECOND) for t in (times[0], times[-1]))
            when = _("first {first}, last {last}").format(first=first, last=last)
        yield f"{words}: {count:,} ×, {when}"
    if len(by_kind) > 6:
        yield _("and {n} more kinds").format(n=f"{len(by_kind) - 6:,}")


_SEVERITY = {"critical": 0, "error": 1, "warning": 2, "info": 3}


def event_rows(lookup: Lookup, budget: int) -> Some:
    """Rows until they fill `budget` characters: the weightiest are chosen, and shown in the document's order."""
    order = sorted(
        range(len(lookup.events)),
        key=lambda i: (
            not lookup.events[i].get("key"),
            lookup.events[i].get("role") == "context",
            _SEVERITY.get(lookup.events[i].get("severity", "info"), 3),
            i,
        ),
    )
    chosen: list[int] = []
    for i in order:
        budget -= (
            330 + min(len(str(lookup.events[i].get("text", ""))), ROW_CHARS) + len(str(lookup.events[i].get("source")))
        )
        if budget < 0:
            break
        chosen.append(i)
    rows = []
    for i in sorted(chosen):
        e = lookup.events[i]
        at, error = micros(e.get("time")), e.get("time_uncertainty_s")
        rows.append(
            EventRow(
                when=timestamp(at, error) if at is not None else _("not known"),
                error=plus_minus(error) if at is not None else "",
                host=or_na(e.get("host")),
                rank=or_na(lookup.rank(e)),
                gpu=or_na(e.get("gpu_pci")),
                role=clean(e.get("role", "context"), 20),
                severity=clean(e.get("severity", "info"), 20),
                what=kind_words(e),
                where=lookup.where(e.get("source"), e.get("line")),
                text=clean(e.get("text", ""), ROW_CHARS),
                repeats=int(e.get("repeats") or 1),
            )
        )
    return Some(rows=tuple(rows), more=len(lookup.events) - len(rows))


def input_rows(doc: Doc, lookup: Lookup) -> Some:
    events = Counter(e.get("source") for e in lookup.events)
    shown = [
        InputView(
            anchor=lookup.anchor_of[r["path"]],
            path=lookup.path(r["path"]),
            format=or_na(r["format"]),
            status=r["status"],
            reason=clean(r["reason"]) if r.get("reason") else "",
            size="n/a" if r.get("bytes") is None else phrases.size(r["bytes"]),
            events=f"{r['events'] if isinstance(r.get('events'), int) else events[r['path']]:,}",
            host=or_na(r.get("host")),
            rank=or_na(r.get("rank")),
            first=timestamp(t, TO_THE_SECOND) if (t := micros(r.get("first_time"))) is not None else "n/a",
            last=timestamp(t, TO_THE_SECOND) if (t := micros(r.get("last_time"))) is not None else "n/a",
            sha256=clean(r["sha256"], 64) if r.get("sha256") else "",
        )
        for _, r in kept_inputs(doc)
    ]
    return Some(rows=tuple(shown), more=len(doc["inputs"]) - len(shown))


def inputs_summary(doc: Doc) -> str:
    counts = Counter(r["status"] for r in doc["inputs"])
    size = sum(r.get("bytes") or 0 for r in doc["inputs"])
    parts = [
        f"{counts[s]:,} {w}"
        for s, w in (
            ("read", _("read")),
            ("partial", _("read in part")),
            ("skipped", _("skipped")),
            ("failed", _("not readable")),
        )
        if counts[s]
    ]
    return f"{count_words(len(doc['inputs']), 'file')}, {phrases.size(size)}: {', '.join(parts) or _('none')}"


def left_nothing(row: Doc, spoke: Container[object]) -> bool:
    """Is there no dump and no line of it? So it can be with who is named, too, where others miss it."""
    counted = any(row.get(key) is not None for key in ("last_enqueued", "last_started", "last_completed", "exit"))
    return rank_state(row) == "no-data" or (rank_state(row) == "culprit" and not counted and row["rank"] not in spoke)


def coverage_words(doc: Doc) -> str:
    ranks = doc["ranks"]
    if not ranks:
        return _("No rank is known from these files.")
    left_out = ranks_left_out(doc)
    spoke = {e.get("rank") for e in doc["events"]}
    silent = [r["rank"] for r in ranks if left_nothing(r, spoke)] + left_out
    known = len(ranks) + len(left_out)
    text = _("{n} of {ranks} left data").format(n=f"{known - len(silent):,}", ranks=count_words(known, "known rank"))
    return text + (_("; nothing from {ranks}.").format(ranks=ranks_words(silent)) if silent else ".")


QUARTER_S = 900
"""Zones differ by whole quarters of an hour."""
DRIFT_S = 120
"""A clock farther off a quarter than this is wrong, not in another zone. Our judgement."""


def _deviation(clock: Doc) -> float | None:
    """Seconds that a wall clock is off, its zone left aside; 0 for one that counts from a boot; None: not known."""
    offset = clock["offset_s"]
    if offset is None or clock["uncertainty_s"] is None:
        return None
    if clock["basis"] == "boot-time" or abs(offset) > 10**8:
        return 0.0
    rest = math.remainder(float(offset), QUARTER_S)
    return rest if abs(rest) <= DRIFT_S else float(offset)


def clocks_scale(clocks: Sequence[Doc]) -> float:
    return max((abs(d) + float(c["uncertainty_s"]) for c in clocks if (d := _deviation(c)) is not None), default=0.0)


def clock_rows(clocks: Sequence[Doc], scale: float) -> Iterator[ClockView]:
    for c in clocks:
        deviation = _deviation(c)
        yield ClockView(
            clock=clean(c["clock"], 160),
            host=or_na(c.get("host")),
            offset=_offset(c["offset_s"]),
            error=plus_minus(c["uncertainty_s"]),
            basis=clean(c["basis"], 40),
            note=clean(c["note"]) if c.get("note") else "",
            reach=None
            if deviation is None or not scale
            else pictures.reach(deviation, float(c["uncertainty_s"]), scale),
        )


def _offset(seconds: float | None) -> str:
    if seconds is None:
        return "n/a"
    return f"{seconds:+,.3f} s" if abs(seconds) >= 1000 else f"{seconds:+.6g} s" if seconds else "0 s"


def digest_of(doc: Doc) -> str:
    """SHA-256 over 'hash  path' lines of all inputs, in the document's order; '' where hashes were not taken."""
    lines = [f"{clean(r['sha256'])}  {clean(r['path'])}\n" for r in doc["inputs"] if r.get("sha256")]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def alias_words(redacted: object) -> str:
    """How many aliases of which kind a redacted document has; '' for another."""
    if not isinstance(redacted, dict):
        return ""
    from nccl_forensics.show.redact.kinds import summary

    return summary(redacted["aliases"])
