"""The cards: which there are, what was logged about each, how its readings moved; and how often hosts fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nccl_forensics.show import pictures
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.markup import breakable, lines
from nccl_forensics.show.page.rows import RatesView
from nccl_forensics.show.page.tables import Cell, Column, Layout, Table, unbroken
from nccl_forensics.show.page.words import Doc, cause_title, clean, full_sentence, kind_words, or_na
from nccl_forensics.text.language import N_, _, said
from nccl_forensics.text.moments import TO_THE_SECOND, micros, timestamp

MAX_GPUS = 256
MAX_DETAILS = 16
"""Facts of one GPU's state."""
MAX_KINDS = 6
"""Kinds of lines about one GPU."""
Place = tuple[object, object]
"""(host, PCI address)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A card as the columns ask for it."""

    host: object
    gpu: Doc
    described: bool
    """Some file describes it as a GPU; else a line names its address, and it may be another device."""
    rank: int | None
    events: Sequence[Doc]
    trends: Sequence[tuple[str, pictures.Spark]]
    suspect: bool


def _model(row: GpuRow) -> str:
    return or_na(row.gpu.get("model")) if row.described else _("another PCI device")


def _trends(row: GpuRow) -> str | Cell:
    return Cell(row.trends, drawing="trends") if row.trends else "–"


def _details(row: GpuRow) -> str:
    known = list((row.gpu.get("details") or {}).items())[:MAX_DETAILS]
    return "; ".join(f"{clean(name, 40)}: {or_na(value)}" for name, value in known) or "n/a"


GPUS: Layout[GpuRow] = Layout(
    columns=(
        Column(N_("Host"), lambda g: unbroken(or_na(g.host))),
        Column("GPU", lambda g: or_na(g.gpu.get("index")), numeric=True),
        Column(N_("PCI address"), lambda g: or_na(g.gpu.get("pci")), css="mono", heads_row=True),
        Column(N_("Rank"), lambda g: or_na(g.rank), numeric=True),
        Column(N_("Logged about it"), lambda g: lines(seen_words(g.events)) or _("nothing"), css="wide"),
        Column(
            N_("Trend"),
            _trends,
            css="trend",
            shown=lambda rows: any(g.trends for g in rows),
            legend=N_(
                "A line under Trend goes from the first reading to the last, from the lowest to the highest; the "
                "upright one is the onset."
            ),
        ),
        Column(N_("Model"), _model),
        Column(N_("Serial"), lambda g: or_na(g.gpu.get("serial")), css="mono"),
        Column(N_("UUID"), lambda g: or_na(g.gpu.get("uuid")), css="hash"),
        Column(N_("State"), _details, css="wide", shown=lambda rows: any(g.gpu.get("details") for g in rows)),
    ),
    css=lambda g: "lead" if g.suspect else "",
)


def gpus_table(doc: Doc, lookup: Lookup) -> Table:
    """One row a GPU, those that something was logged about first."""
    suspects, logged, series = _suspects(doc), _logged(lookup.events), series_of(lookup)
    onset = next((t for i in doc["incidents"] if (t := micros(i["onset"])) is not None), None)
    cards = [(h["name"], g) for h in doc.get("hosts") or () for g in h.get("gpus") or ()]
    described = {_place(host, gpu) for host, gpu in cards}
    cards += [(host, {"pci": pci}) for host, pci in logged if (host, pci) not in described]
    telling = logged.keys() | suspects
    cards.sort(key=lambda card: _place(*card) not in telling)

    def row(host: object, gpu: Doc) -> GpuRow:
        place = _place(host, gpu)
        return GpuRow(
            host=host,
            gpu=gpu,
            described=place in described,
            rank=lookup.rank_of.get((host, gpu.get("pci") or "")),
            events=logged.get(place, ()),
            trends=tuple(trend_rows(series.get(place) or {}, onset)),
            suspect=place in suspects,
        )

    return GPUS.filled([row(*card) for card in cards[:MAX_GPUS]], max(0, len(cards) - MAX_GPUS))


def _place(host: object, gpu: Doc) -> Place:
    return host, gpu.get("pci")


def _suspects(doc: Doc) -> set[Place]:
    """The cards that are blamed for an incident."""
    blamed = (g for incident in doc["incidents"] for g in incident["verdict"]["culprit_gpus"])
    return {_place(g.get("host"), g) for g in blamed if g.get("pci")}


def _logged(events: Iterable[Doc]) -> dict[Place, list[Doc]]:
    """What was logged about each card, but what is context alone."""
    found: dict[Place, list[Doc]] = {}
    for event in events:
        if event.get("gpu_pci") and event.get("role") != "context":
            found.setdefault((event.get("host"), event["gpu_pci"]), []).append(event)
    return found


def seen_words(events: Sequence[Doc]) -> Iterator[str]:
    """What a GPU's log lines say, by kind: 'Xid 79: 1 ×, 2026-04-22 03:14:17'."""
    by_kind: dict[str, list[Doc]] = {}
    for event in events:
        by_kind.setdefault(kind_words(event), []).append(event)
    for words, alike in list(by_kind.items())[:MAX_KINDS]:
        count = sum(int(e.get("repeats") or 1) for e in alike)
        yield f"{words}: {count:,} ×, {_when_words(alike)}"
    if len(by_kind) > MAX_KINDS:
        yield _("and {n} more kinds").format(n=f"{len(by_kind) - MAX_KINDS:,}")


def _when_words(events: Sequence[Doc]) -> str:
    times = sorted(t for e in events if (t := micros(e.get("time"))) is not None)
    if not times:
        return _("time not known")
    first, last = (timestamp(t, TO_THE_SECOND) for t in (times[0], times[-1]))
    return first if times[0] == times[-1] else _("first {first}, last {last}").format(first=first, last=last)


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
"""Field of TRENDS → (µs, value)"""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of training that a log tells of."""

    at_us: int
    number: int
    file: object

    def ms_since(self, before: _Step | None) -> float | None:
        """How long each step took since `before`; None where the two can't be compared."""
        if before is None or self.file != before.file or self.number <= before.number or self.at_us <= before.at_us:
            return None
        return (self.at_us - before.at_us) / 1000 / (self.number - before.number)


def series_of(lookup: Lookup) -> dict[Place, Series]:
    """What events say of a GPU over time, by (host, PCI address): its own readings, and its rank's steps and memory."""
    place_of: dict[int, Place] = {rank: place for place, rank in lookup.rank_of.items()}
    found: dict[Place, Series] = {}
    steps: dict[Place, _Step] = {}
    for event in lookup.events:
        at, place = micros(event.get("time")), _card_of(event, place_of)
        if at is None or place is None:
            continue
        read = _readings(event)
        step = (event.get("fields") or {}).get("step")
        if event.get("kind") == "progress" and isinstance(step, int):
            now = _Step(at, step, event.get("source"))
            if "step_ms" not in read:
                read["step_ms"] = now.ms_since(steps.get(place))
            steps[place] = now
        series = found.setdefault(place, {})
        for key, value in read.items():
            if key in TRENDS and isinstance(value, (int, float)) and not isinstance(value, bool):
                series.setdefault(key, []).append((at, float(value)))
    return found


def _card_of(event: Doc, place_of: dict[int, Place]) -> Place | None:
    """The card that an event tells of: its own, or that of its rank."""
    rank, pci = event.get("rank"), event.get("gpu_pci")
    if pci:
        return event.get("host"), pci
    return place_of.get(rank) if isinstance(rank, int) else None


def _readings(event: Doc) -> dict[str, object]:
    """Field → what was read; a line of one metric names its field."""
    fields = event.get("fields") or {}
    read: dict[str, object] = {str(fields.get("metric")): fields.get("value")} if "metric" in fields else {}
    return read | {key: fields[key] for key in TRENDS if key in fields}


def trend_rows(series: Series, onset: int | None) -> Iterator[tuple[str, pictures.Spark]]:
    """(words, sparkline) of each series with two moments or more; those that changed come first."""
    drawn = []
    for order, key in enumerate(TRENDS):
        values = sorted(series.get(key, ()))
        if picture := pictures.spark(values, onset):
            still = len({v for _, v in values}) == 1
            drawn.append((still, order, _trend_words(key, [v for _, v in values]), picture))
    for _still, _order, text, picture in sorted(drawn, key=lambda d: d[:2])[:MAX_TRENDS]:
        yield text, picture


def _trend_words(key: str, values: Sequence[float]) -> str:
    """'temperature 41 to 88 °C, at most 90'."""
    name, unit = TRENDS[key]
    first, last, peak = (v / _SCALE.get(key, 1) for v in (values[0], values[-1], max(values)))
    text = _("{name} {first} to {last}").format(name=_(name), first=f"{first:.4g}", last=f"{last:.4g}{unit}")
    return text + _(", at most {peak}").format(peak=f"{peak:.4g}") if peak > max(first, last) else text


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One failure of a host, as the columns ask for it."""

    doc: Doc
    lookup: Lookup


def _failed_at(row: FailureRow) -> str:
    at = micros(row.doc["time"])
    return _("not known") if at is None else timestamp(at)


def _failure(row: FailureRow) -> str:
    return cause_title(row.doc["cause"]) if row.doc["cause"] else clean(row.doc["text"], 120)


FAILURES: Layout[FailureRow] = Layout(
    columns=(
        Column(N_("Time, UTC"), _failed_at, css="when"),
        Column(N_("Host"), lambda f: clean(f.doc["host"], 253)),
        Column("GPU", lambda f: clean(or_na(f.doc["gpu_pci"])), css="mono"),
        Column(N_("What"), _failure),
        Column(N_("Line"), lambda f: breakable(f.lookup.where(f.doc["source"], f.doc["line"] or None)), css="where"),
    )
)


def rates_view(rates: Doc, lookup: Lookup) -> RatesView:
    """How often these hosts fail, and the failures that were counted, the newest first."""
    rows = [FailureRow(failure, lookup) for failure in reversed(rates["listed"])]
    return RatesView(
        says=clean(said(rates["says"])),
        offenders=tuple(full_sentence(clean(said(o["says"]))) for o in rates["offenders"]),
        failures=FAILURES.filled(rows, rates["failures"] - len(rows)),
    )
