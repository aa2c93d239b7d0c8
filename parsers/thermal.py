"""Samples of nvidia-smi over time: how hot each GPU was and for how long, and when it slowed down because of heat.

Written by `nvidia-smi --query-gpu=timestamp,… --format=csv -l N` and by `nvidia-smi dmon`. Time: the host's local wall
clock, no zone; milliseconds in CSV, seconds in dmon (only with -o D and T). dmon's samples are a second apart or more
(nvidia-smi's manual, -d), so that without times their number tells how long a state lasted at least. A file is read as
a whole, for what counts is how long a state lasts; each spell of heat becomes one event at its first sample.
Examples (header, row):

timestamp, index, pci.bus_id, temperature.gpu, clocks_event_reasons.hw_thermal_slowdown
2026/11/25 10:21:33.120, 3, 00000000:C1:00.0, 91, Active
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem  pviol  tviol
 20261125   10:21:33      3    312     91     -     98     61      0      1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nccl_forensics.lines.plugins import Stream, file_parser
from nccl_forensics.lines.stamps import SECOND, iso, wall
from nccl_forensics.model import Detail, Event, Evidence, Problem, Stamp
from nccl_forensics.text.visible import visible

from ._kernel import pci_address
from ._smi import CSV_NAMES, LOST, WORDS, column_names, field_value, identity

HOT_C = 85
"""Above this for longer than `HOT_S` a GPU counts as hot. Our judgement: NVIDIA's data-centre cards slow down
at 85 to 92 °C and GeForce cards at 83 to 90 °C (`nvidia-smi -q -d TEMPERATURE`, slowdown and target temperature)."""
HOT_S = 300
SLOW_S = 60
"""A slowdown because of heat that lasts a minute is more than the tip of a load; our judgement."""
PAUSE_S = 120
"""Samples further apart than this do not belong to one spell; our judgement (common intervals are 1 to 60 s)."""
VANISHED_S = 120
"""A GPU without samples for so long, while others have some, is gone; our judgement."""
MOST_ROWS = 2_000_000
"""Eight GPUs, a sample every ten seconds, for four weeks. What comes behind is not read."""
MOST_GPUS = 256
MOST_SPELLS = 32
"""Spells of one GPU and kind that become events; behind them they are only counted."""
LONGEST_ROW = 4096

HW_THERMAL, SW_THERMAL = 0x40, 0x20
"""nvml.h: nvmlClocksThrottleReasonHwThermalSlowdown and …SwThermalSlowdown."""
HEADER_CSV = re.compile(
    rb"(?m)^(?:# ?)?(?=[^\n]{0,2000}\btimestamp\b)(?=[^\n]{0,2000}\btemperature\.gpu\b)[^\n]{0,2000}"
)
HEADER_DMON = re.compile(rb"(?m)^# ?(?:Date|Time|gpu)\b[^\n]{0,400}\bgpu\b|^# ?gpu\b")
FIRST_LINES = 4
"""The header stands in one of these: a command line or `date` may stand before it."""
DMON_TIME = re.compile(r"(\d{4})(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)", re.ASCII)
THROTTLE = re.compile(r"clocks_(?:throttle|event)_reasons\.(?P<what>hw_thermal_slowdown|sw_thermal_slowdown|active)$")


def _first_lines(head: bytes) -> bytes:
    return b"\n".join(head.split(b"\n", FIRST_LINES)[:FIRST_LINES])


def claims(head: bytes, name: str) -> bool:
    start = _first_lines(head)
    return HEADER_CSV.search(start) is not None or HEADER_DMON.search(start) is not None


class _Sample(NamedTuple):
    """One row of the table."""

    line: int
    text: str
    fields: Sequence[str]
    stamp: Stamp | None
    key: str
    """What tells its GPU from the others of the table: address, UUID or index, as written."""
    gpu: int | None
    """Its index."""
    pci: str | None
    uuid: str | None
    """As written."""


@dataclass(slots=True)
class _Spell:
    """A time through which one state of one GPU lasted."""

    stamp: Stamp | None
    line: int
    text: str
    first_ns: int
    last_ns: int
    samples: int = 1
    peak_c: int = 0


@dataclass(slots=True)
class _Card:
    """What is known of one GPU while its samples go by."""

    index: int | None
    pci: str | None
    uuid: str | None
    line: int = 0
    text: str = ""
    stamp: Stamp | None = None
    seen: int = 0
    """Samples without a time."""
    open: dict[str, _Spell] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    lost: bool = False


DMON: Mapping[str, str] = {
    "gpu": "index",
    "gtemp": "temperature",
    "temp": "temperature",
    "tviol": "tviol",
    "date": "date",
    "time": "time",
}
"""Column of `nvidia-smi dmon` → what it is read for."""
QUERY: Mapping[str, str] = {
    "timestamp": "timestamp",
    "temperature.gpu": "temperature",
    "index": "index",
    **{k: v for k, v in CSV_NAMES.items() if v in ("pci", "uuid")},
}
"""Column of `--query-gpu` → what it is read for; those of slowdowns are told by `THROTTLE`."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where in a row what stands."""

    names: tuple[str, ...]
    at: Mapping[str, int]
    dmon: bool

    @classmethod
    def of(cls, header: str) -> _Columns | None:
        """None if the header has no column that tells one GPU from another."""
        dmon = header.startswith("#") and "temperature.gpu" not in header
        bare = header.lstrip("# ")
        names = [x.lower() for x in re.split(r"[,\s]+", bare.strip())] if dmon else column_names(bare)
        at: dict[str, int] = {}
        for place, name in enumerate(names):
            if key := (DMON if dmon else QUERY).get(name):
                at.setdefault(key, place)
            elif found := THROTTLE.match(name):
                at.setdefault(found["what"], place)
        return cls(tuple(names), at, dmon) if {"index", "pci", "uuid"} & set(at) else None

    @property
    def timed(self) -> bool:
        """Should the rows have times?"""
        return "time" in self.at or "timestamp" in self.at

    def fields(self, row: str) -> list[str]:
        return re.split(r"[,\s]+", row.strip()) if self.dmon else [x.strip() for x in row.split(",")]

    def field(self, fields: Sequence[str], key: str) -> str | None:
        place = self.at.get(key)
        return fields[place] if place is not None and place < len(fields) else None

    def stamp(self, fields: Sequence[str]) -> Stamp | None:
        if written := self.field(fields, "timestamp"):
            found = iso(written)
            return found[0] if found else None
        date, time = self.field(fields, "date"), self.field(fields, "time")
        parts = DMON_TIME.fullmatch(f"{date} {time}") if date and time else None
        return wall(*parts.groups()) if parts else None

    def states(self, fields: Sequence[str]) -> Iterator[str]:
        """What this sample shows: 'hot', 'hw', 'sw'."""
        temperature = self.temperature(fields)
        if temperature is not None and HOT_C < temperature < 200:
            yield "hot"
        bits, violated = self._reasons(fields), (self.field(fields, "tviol") or "0").strip("-0") != ""
        if bits & HW_THERMAL or violated or self.field(fields, "hw_thermal_slowdown") == "Active":
            yield "hw"
        elif bits & SW_THERMAL or self.field(fields, "sw_thermal_slowdown") == "Active":
            yield "sw"

    def _reasons(self, fields: Sequence[str]) -> int:
        """nvml.h's bits of why the clocks are slow; 0 where the table has none."""
        written = self.field(fields, "active")
        return int(written, 16) if written and re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", written) else 0

    def temperature(self, fields: Sequence[str]) -> int | None:
        written = self.field(fields, "temperature")
        return _small(written)

    def sample(self, line: int, text: str) -> _Sample | None:
        """The row; None if it names no GPU."""
        fields = self.fields(text)
        address, uuid, number = (self.field(fields, key) for key in ("pci", "uuid", "index"))
        pci, index = pci_address(address), _small(number)
        key = address or uuid or number
        if not key or (pci is None and index is None and not (uuid or "").startswith("GPU-")):
            return None
        return _Sample(line, text, fields, self.stamp(fields), key, index, pci, uuid)


def _small(written: str | None) -> int | None:
    """An index, or degrees Celsius."""
    return int(written) if written and re.fullmatch(r"\d{1,3}", written, re.ASCII) else None


def _place(path: str, line: int, text: str) -> Evidence:
    return Evidence(source=path, line=line, text=visible(text))


def _details(card: _Card) -> dict[str, Detail]:
    known: dict[str, Detail] = {"index": card.index, "pci": card.pci, "uuid": card.uuid}
    return {k: v for k, v in known.items() if v is not None}


def _close(path: str, card: _Card, state: str) -> Iterator[Event]:
    """The event of a spell that is over, if it was long enough to mean something."""
    spell = card.open.pop(state)
    lasted_s = (spell.last_ns - spell.first_ns) // SECOND
    if lasted_s <= HOT_S if state == "hot" else lasted_s < SLOW_S:
        return
    card.told[state] = card.told.get(state, 0) + 1
    if card.told[state] > MOST_SPELLS:
        return
    details = {**_details(card), "lasted_s": lasted_s, "samples": spell.samples, "peak_c": spell.peak_c or None}
    if state == "hot":
        details["limit_c"] = HOT_C
    else:
        details["by"] = "hardware" if state == "hw" else "software"
    yield Event(
        kind="gpu-hot" if state == "hot" else "gpu-throttled",
        role="symptom",
        severity="warning",
        cause="gpu_thermal",
        evidence=_place(path, spell.line, spell.text),
        stamp=spell.stamp,
        gpu_pci=card.pci,
        details=details,
    )


def _follow(path: str, columns: _Columns, sample: _Sample, card: _Card, now_ns: int) -> Iterator[Event]:
    """Ends, goes on with and begins the spells of a card.

    `now_ns`: on the host's clock or, where no sample has a time, the least that has passed since the first.
    """
    states = set(columns.states(sample.fields))
    if not states and not card.open:
        return
    for state in [s for s, spell in card.open.items() if s not in states or now_ns - spell.last_ns > PAUSE_S * SECOND]:
        yield from _close(path, card, state)
    for state in sorted(states):
        spell = card.open.get(state)
        if spell is None:
            spell = card.open[state] = _Spell(card.stamp, card.line, card.text, now_ns, now_ns)
        else:
            spell.samples += 1
            spell.last_ns = max(spell.last_ns, now_ns)
        spell.peak_c = max(spell.peak_c, columns.temperature(sample.fields) or 0)


def _inventory(path: str, columns: _Columns, fields: Sequence[str], card: _Card) -> Event:
    """The first sample of a GPU, as gpu_inventory.py would tell it from a table without times."""
    details: dict[str, Detail] = dict(_details(card))
    for name, written in zip(columns.names, fields, strict=False) if not columns.dmon else ():
        ours = CSV_NAMES.get(name)
        if ours and ours not in details:
            details[ours] = identity(ours, written) if ours in WORDS else field_value(written)
    return Event(
        kind="gpu-info",
        role="context",
        evidence=_place(path, card.line, card.text),
        stamp=card.stamp,
        gpu_pci=card.pci,
        details={k: v for k, v in details.items() if v is not None},
    )


def _lost(path: str, sample: _Sample, card: _Card) -> Event:
    return Event(
        kind="smi-lost",
        role="symptom",
        severity="error",
        cause="gpu_off_bus",
        evidence=_place(path, sample.line, sample.text),
        stamp=sample.stamp,
        gpu_pci=card.pci,
        details=_details(card),
    )


def _gone(path: str, cards: Sequence[_Card]) -> Iterator[Event]:
    """GPUs whose samples end while those of others go on."""
    stamped = [(card, card.stamp.wall_ns or 0) for card in cards if card.stamp is not None]
    last_ns = max((at_ns for _, at_ns in stamped), default=0)
    missing = [(card, at_ns) for card, at_ns in stamped if last_ns - at_ns > VANISHED_S * SECOND]
    if len(missing) > len(cards) // 2:
        return  # rather another query than lost cards
    for card, at_ns in missing:
        silent_s = (last_ns - at_ns) // SECOND
        yield Event(
            kind="gpu-vanished",
            role="symptom",
            severity="error",
            cause="gpu_off_bus",
            evidence=_place(path, card.line, card.text),
            stamp=card.stamp,
            gpu_pci=card.pci,
            details={**_details(card), "silent_s": silent_s, "others": len(cards) - len(missing)},
        )


@dataclass(slots=True)
class _SampleTable:
    """What was read of one file so far."""

    path: str
    columns: _Columns | None = None
    """Of the newest header; a table may have several."""
    cards: dict[str, _Card] = field(default_factory=dict)
    rows: int = 0
    misfits: int = 0
    """Lines below the header that name no GPU."""

    def line(self, number: int, text: str) -> Iterable[Event]:
        """What a line of the file adds."""
        if self.columns is None or text.startswith("#") or "timestamp" in text:
            if "temperature.gpu" in text or re.search(r"\bgpu\b", text):
                self.columns = _Columns.of(text) or self.columns
            return ()
        sample = self.columns.sample(number, text)
        if sample is None:
            self.misfits += bool(text.strip())
            return ()
        self.rows += 1
        return self._row(self.columns, sample)

    def _row(self, columns: _Columns, sample: _Sample) -> Iterator[Event]:
        lost = LOST.search(sample.text) is not None
        card = self._card(sample, lost)
        if card is None:
            if len(self.cards) >= MOST_GPUS:
                return
            uuid = identity("uuid", sample.uuid) if sample.uuid else None
            card = self.cards[sample.key] = _Card(sample.gpu, sample.pci, uuid)
            card.line, card.text, card.stamp = sample.line, sample.text, sample.stamp
            yield _inventory(self.path, columns, sample.fields, card)
        if card.lost:
            return
        if lost:
            card.lost = True
            yield _lost(self.path, sample, card)
            return
        now_ns = sample.stamp.wall_ns if sample.stamp is not None else None
        if now_ns is None:
            if not columns.dmon or columns.timed:
                return
            now_ns, card.seen = card.seen * SECOND, card.seen + 1
        card.line, card.text, card.stamp = sample.line, sample.text, sample.stamp
        yield from _follow(self.path, columns, sample, card, now_ns)

    def _card(self, sample: _Sample, lost: bool) -> _Card | None:
        """Whose sample it is. A lost card does not say its address any more: then its index tells."""
        card = self.cards.get(sample.key)
        if card is None and lost and sample.pci is None and sample.gpu is not None:
            return next((c for c in self.cards.values() if c.index == sample.gpu), None)
        return card

    def end(self) -> Iterator[Event | Problem]:
        """What can be told only when all was read."""
        for card in self.cards.values():
            for state in sorted(card.open):
                yield from _close(self.path, card, state)
        yield from _gone(self.path, [c for c in self.cards.values() if not c.lost])
        if self.rows == 0:
            yield Problem(says="no samples below the header of nvidia-smi's table", source=self.path)
        elif self.misfits > self.rows:
            yield Problem(says=f"{self.misfits:,} lines are no rows of nvidia-smi's table", source=self.path)


@file_parser(title="nvidia-smi: samples over time", claims=claims)
def nvidia_smi(stream: Stream) -> Iterator[Event | Problem]:
    """Named after the format id that the file gets: it is nvidia-smi's, on the host's clock."""
    table = _SampleTable(stream.path)
    for number in range(1, MOST_ROWS + FIRST_LINES):
        raw = stream.stream.readline(LONGEST_ROW)
        if not raw:
            break
        yield from table.line(number, raw.decode("utf-8", "backslashreplace").rstrip("\r\n"))
    else:
        yield Problem(says=f"only the first {MOST_ROWS:,} samples were read", source=stream.path)
    yield from table.end()
