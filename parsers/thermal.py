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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nccl_forensics.lines.plugins import Stream, file_parser
from nccl_forensics.lines.stamps import SECOND, iso, wall
from nccl_forensics.model import Detail, Event, Evidence, Problem, Stamp
from nccl_forensics.text.visible import visible

from ._kernel import pci_address
from .gpu_inventory import CSV_NAMES, LOST, WORDS, _identity, _value

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
THROTTLE = re.compile(r"clocks_(?:throttle|event)_reasons\.(?P<what>hw_thermal_slowdown|sw_thermal_slowdown|active)$")


def _first_lines(head: bytes) -> bytes:
    return b"\n".join(head.split(b"\n", FIRST_LINES)[:FIRST_LINES])


def claims(head: bytes, name: str) -> bool:
    start = _first_lines(head)
    return HEADER_CSV.search(start) is not None or HEADER_DMON.search(start) is not None


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


@dataclass(slots=True)
class _Columns:
    """Where in a row what stands."""

    names: tuple[str, ...]
    at: dict[str, int]
    dmon: bool

    @classmethod
    def of(cls, header: str) -> _Columns | None:
        dmon = header.startswith("#") and "temperature.gpu" not in header
        if dmon:
            names = tuple(x.lower() for x in re.split(r"[,\s]+", header.lstrip("# ").strip()))
            known = {"gpu": "index", "gtemp": "temperature", "temp": "temperature", "tviol": "tviol"}
            known |= {"date": "date", "time": "time"}
        else:
            names = tuple(re.sub(r"\s*\[[^\]]*\]$", "", x.strip()).lower() for x in header.lstrip("# ").split(","))
            known = {"timestamp": "timestamp", "temperature.gpu": "temperature", "index": "index"}
            known |= {k: v for k, v in CSV_NAMES.items() if v in ("pci", "uuid")}
        at: dict[str, int] = {}
        for place, name in enumerate(names):
            if key := known.get(name):
                at.setdefault(key, place)
            elif found := THROTTLE.match(name):
                at.setdefault(found["what"], place)
        if not {"index", "pci", "uuid"} & set(at):
            return None
        return cls(names, at, dmon)

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
        if (
            date
            and time
            and (m := re.fullmatch(r"(\d{4})(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)", f"{date} {time}", re.ASCII))
        ):
            return wall(*m.groups())
        return None

    def states(self, fields: Sequence[str]) -> Iterator[str]:
        """What this sample shows: 'hot', 'hw', 'sw'."""
        temperature = self.temperature(fields)
        if temperature is not None and HOT_C < temperature < 200:
            yield "hot"
        hw, sw = self.field(fields, "hw_thermal_slowdown"), self.field(fields, "sw_thermal_slowdown")
        mask = self.field(fields, "active")
        bits = int(mask, 16) if mask and re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", mask) else 0
        if hw == "Active" or bits & HW_THERMAL or (self.field(fields, "tviol") or "0").strip("-0") != "":
            yield "hw"
        elif sw == "Active" or bits & SW_THERMAL:
            yield "sw"

    def temperature(self, fields: Sequence[str]) -> int | None:
        written = self.field(fields, "temperature")
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


def _sample(path: str, columns: _Columns, fields: Sequence[str], card: _Card, now_ns: int) -> Iterator[Event]:
    """`now_ns`: on the host's clock or, where no sample has a time, the least that has passed since the first."""
    states = set(columns.states(fields))
    for state in [s for s, spell in card.open.items() if s not in states or now_ns - spell.last_ns > PAUSE_S * SECOND]:
        yield from _close(path, card, state)
    for state in sorted(states):
        spell = card.open.get(state)
        if spell is None:
            spell = card.open[state] = _Spell(card.stamp, card.line, card.text, now_ns, now_ns)
        else:
            spell.samples += 1
            spell.last_ns = max(spell.last_ns, now_ns)
        spell.peak_c = max(spell.peak_c, columns.temperature(fields) or 0)


def _inventory(path: str, columns: _Columns, fields: Sequence[str], card: _Card) -> Event:
    """The first sample of a GPU, as gpu_inventory.py would tell it from a table without times."""
    details: dict[str, Detail] = dict(_details(card))
    for name, written in zip(columns.names, fields, strict=False) if not columns.dmon else ():
        ours = CSV_NAMES.get(name)
        if ours and ours not in details:
            details[ours] = _identity(ours, written) if ours in WORDS else _value(written)
    return Event(
        kind="gpu-info",
        role="context",
        evidence=_place(path, card.line, card.text),
        stamp=card.stamp,
        gpu_pci=card.pci,
        details={k: v for k, v in details.items() if v is not None},
    )


def _gone(path: str, cards: Sequence[_Card]) -> Iterator[Event]:
    """GPUs whose samples end while those of others go on."""
    ends = [c.stamp.wall_ns for c in cards if c.stamp is not None and c.stamp.wall_ns is not None]
    last_ns = max(ends, default=0)
    missing = [c for c in cards if c.stamp is not None and last_ns - (c.stamp.wall_ns or 0) > VANISHED_S * SECOND]
    if len(missing) > len(cards) // 2:
        return  # rather another query than lost cards
    for card in missing:
        assert card.stamp is not None
        silent_s = (last_ns - (card.stamp.wall_ns or 0)) // SECOND
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


@file_parser(title="nvidia-smi: samples over time", claims=claims)
def nvidia_smi(stream: Stream) -> Iterator[Event | Problem]:
    """Named after the format id that the file gets: it is nvidia-smi's, on the host's clock."""
    path, columns, cards = stream.path, None, dict[str, _Card]()
    rows = misfits = 0
    for number in range(1, MOST_ROWS + FIRST_LINES):
        raw = stream.stream.readline(LONGEST_ROW)
        if not raw:
            break
        text = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
        if "timestamp" in text or text.startswith("#") or columns is None:
            found = _Columns.of(text) if ("temperature.gpu" in text or re.search(r"\bgpu\b", text)) else None
            columns = found or columns
            continue
        fields = columns.fields(text)
        names = [columns.field(fields, key) for key in ("pci", "uuid", "index")]
        key = next((x for x in names if x), None)
        pci = pci_address(names[0])
        index = int(names[2]) if names[2] and re.fullmatch(r"\d{1,3}", names[2], re.ASCII) else None
        if key is None or (pci is None and index is None and not (names[1] or "").startswith("GPU-")):
            misfits += bool(text.strip())
            continue
        rows += 1
        card = cards.get(key)
        if card is None and pci is None and LOST.search(text):  # a lost card does not say its address any more
            card = next((c for c in cards.values() if index is not None and c.index == index), None)
        if card is None:
            if len(cards) >= MOST_GPUS:
                continue
            card = cards[key] = _Card(index, pci, _identity("uuid", names[1]) if names[1] else None)
            card.line, card.text, card.stamp = number, text, columns.stamp(fields)
            yield _inventory(path, columns, fields, card)
        if not card.lost and LOST.search(text):
            card.lost = True
            yield Event(
                kind="smi-lost",
                role="symptom",
                severity="error",
                cause="gpu_off_bus",
                evidence=_place(path, number, text),
                stamp=columns.stamp(fields),
                gpu_pci=card.pci,
                details=_details(card),
            )
        if card.lost:
            continue
        stamp = columns.stamp(fields)
        now_ns = stamp.wall_ns if stamp is not None else None
        if now_ns is None:
            if not columns.dmon or columns.timed:
                continue
            now_ns, card.seen = card.seen * SECOND, card.seen + 1
        card.line, card.text, card.stamp = number, text, stamp
        yield from _sample(path, columns, fields, card, now_ns)
    else:
        yield Problem(says=f"only the first {MOST_ROWS:,} samples were read", source=path)
    for card in cards.values():
        for state in sorted(card.open):
            yield from _close(path, card, state)
    yield from _gone(path, [c for c in cards.values() if not c.lost])
    if rows == 0:
        yield Problem(says="no samples below the header of nvidia-smi's table", source=path)
    elif misfits > rows:
        yield Problem(says=f"{misfits:,} lines are no rows of nvidia-smi's table", source=path)
