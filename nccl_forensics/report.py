"""The report: one HTML page, a ticket of twelve lines at most, and the same in Markdown, all from the JSON document.

Python makes frozen rows that are ready to print (times, ranges of ranks, counts in words); the templates only place
them. Everything shown comes from the document (catalog/incident.schema.json and its optional keys), in UTC.
Its texts come from a stranger's logs: escaped by Jinja, control and direction characters made visible, cut, counted.

Size: caps below hold the page under 300 KB for 8 ranks and 2 MB for 1,024; what is left off is said, with its number.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from nccl_forensics import catalog, language, pictures, templating
from nccl_forensics.clocks import UNCOMPARED_S
from nccl_forensics.language import N_, _, counted, said
from nccl_forensics.layout import PIPELINE
from nccl_forensics.messages import pair
from nccl_forensics.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment

Doc = Mapping[str, Any]
T = TypeVar("T")

HIGH, MEDIUM = 0.8, 0.4
"""The contract's bounds of 'identified' and 'suspected'."""
MAX_INCIDENTS = 12
MAX_STEPS = 40
"""Of one evidence chain."""
MAX_LINES = 6
"""Of one step."""
MAX_DRAWN = 48
"""Key events in the timeline and its table."""
MAX_ALIKE = 12
"""Of them, bystanders' events of one kind."""
LONGEST_WAIT_MS = 30 * 86_400_000
"""A month: a longer wait is a garbled number, and is not drawn. Our judgement."""
MAX_UNTIMED = 12
NO_HOST = N_("host not known")
MAX_CELLS = 2048
"""Ranks that have a cell of their own in the map; above, hosts that look alike share one."""
MAX_GROUPS = 40
MAX_EDGES = 40
MAX_GPUS = 256
MAX_INPUTS = 300
MAX_PROBLEMS = 200
MAX_CONTRIBUTING = 20
SHORT_BASE = 16
"""Characters of a common folder that may stand before every path."""
RAW_CHARS, CONTEXT_CHARS, ROW_CHARS = 2000, 300, 400
"""Characters of a log line shown as evidence, as its neighbour, in a table row."""
TICKET_LINES, TICKET_CHARS = 12, 400


# --- words ------------------------------------------------------------------------------------------------------------


def clean(text: object, limit: int = RAW_CHARS) -> str:
    """`text` on one line and fit for any output: control characters as escapes, no lone surrogates, cut at `limit`."""
    whole = str(text).encode("utf-8", "backslashreplace").decode().replace("\n", " ").replace("\t", " ")
    return visible(whole if len(whole) <= limit else whole[: limit - 1] + "…")


def span(numbers: Iterable[int], limit: int = 12) -> str:
    """Ranks as ranges: '0–2, 5'. At most `limit` ranges, then how many more."""
    ranges: list[list[int]] = []
    for n in sorted(set(numbers)):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    shown = [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in ranges[:limit]]
    rest = sum(b - a + 1 for a, b in ranges[limit:])
    return ", ".join(shown) + (_(" and {n} more").format(n=f"{rest:,}") if rest else "")


def ranks_words(numbers: Sequence[int]) -> str:
    """'rank 3', 'ranks 3, 4', 'ranks 0–1,022 …' with a count when they are many."""
    if not numbers:
        return _("no rank")
    if len(set(numbers)) == 1:
        return _rank(numbers[0])
    count = len(set(numbers))
    return _("ranks {numbers}").format(numbers=span(numbers)) + (f" ({plural(count, 'rank')})" if count > 4 else "")


def _rank(number: int) -> str:
    return _("rank {numbers}").format(numbers=number)


def sentence(text: str) -> str:
    """`text` with a capital and a full stop, where it begins with a plain word and ends with one."""
    first = text.split(" ", 1)[0].rstrip(",:;")
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text + "." if text[-1:].isalnum() or text[-1:] in ")`" else text


NOUNS = (
    *(pair("rank", "ranks"), pair("known rank", "known ranks"), pair("host", "hosts")),
    *(pair("GPU", "GPUs"), pair("clock", "clocks"), pair("file", "files")),
    *(pair("problem", "problems"), pair("event", "events"), pair("more event", "more events")),
    *(pair("key event", "key events"), pair("line", "lines")),
    *(pair("step", "steps"), pair("group", "groups"), pair("failure", "failures")),
    *(pair("sentence", "sentences"), pair("suspect", "suspects"), pair("finding", "findings")),
)


def noun(count: int, one: str) -> str:
    """The form of `one` (of NOUNS) that goes with `count`."""
    return counted(one, one + "s", count)


def plural(count: int, one: str) -> str:
    return f"{count:,} {noun(count, one)}"


def duration(seconds: float | None) -> str:
    """'0.5 ms', '1.2 s', '10 min', '3.2 h', 'not known'."""
    if seconds is None:
        return _("not known")
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.0095:
        return f"{seconds * 1000:.2g} ms"
    if size < 1:
        return f"{seconds * 1000:.0f} ms"
    if size < 120:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if size < 7200:
        return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
    if size < 172_800:
        return f"{seconds / 3600:.1f}".removesuffix(".0") + " h"
    return f"{seconds / 86_400:.1f}".removesuffix(".0") + " " + _("days")


def size_words(count: int | None) -> str:
    if count is None:
        return "n/a"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(time: object) -> int | None:
    """The contract's time string as microseconds since 1970, UTC; None for anything else."""
    if not isinstance(time, str):
        return None
    try:
        return (datetime.fromisoformat(time.replace("Z", "+00:00")) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError):
        return None


def moment(at_us: int | None, error_s: float | None = None, *, date: bool = True) -> str:
    """'2026-04-22 03:14:17.250', with no more digits than the error bar leaves; 'not known' for None."""
    if at_us is None:
        return _("not known")
    at = _EPOCH + timedelta(microseconds=at_us)
    text = at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")
    if (error_s is not None and error_s < 1) or (error_s is None and at_us % 1_000_000):
        text += f".{at_us % 1_000_000 // 1000:03d}"
    return text


def plus_minus(error_s: float | None) -> str:
    return "± " + _("not known") if error_s is None else f"± {duration(error_s)}"


def confidence_word(confidence: float) -> str:
    return _("high") if confidence >= HIGH else _("medium") if confidence >= MEDIUM else _("low")


@cache
def _kinds() -> Mapping[str, str]:
    """Kind of an event → what it is called, in few words (catalog/kinds.toml)."""
    return catalog.load("kinds")


@cache
def _xids() -> dict[int, str]:
    """Xid → what it means, in few words (catalog/xid.toml)."""
    rows = catalog.load("xid").get("xid", [])
    return {r["number"]: str(r["short"]) for r in rows if isinstance(r, dict) and "number" in r and "short" in r}


@cache
def _meanings() -> dict[str, str]:
    """Kind of a kernel or report line → what it means, in a sentence (catalog/kernel.toml)."""
    rows = catalog.load("kernel").get("entry", [])
    return {str(r["id"]): re.split(r"(?<=[.;]) ", str(r["meaning"]))[0].rstrip(";") for r in rows if "meaning" in r}


def kind_words(event: Doc) -> str:
    """'Xid 79', 'NCCL watchdog timeout', 'Python exception' …"""
    kind, fields = str(event.get("kind", "")), event.get("fields") or {}
    words = _(_kinds()[kind]) if kind in _kinds() else kind.replace("-", " ").replace("_", " ")
    if kind in ("xid", "sxid") and fields.get(kind) is not None:
        words += f" {fields[kind]}"
        if kind == "xid" and isinstance(fields["xid"], int) and fields["xid"] in _xids():
            words += f", {_xids()[fields['xid']]}"
    if kind == "watchdog-timeout" and fields.get("seq") is not None:
        words += ", " + str(fields.get("op") or _("operation")).lower() + _(" no. {n}").format(n=fields["seq"])
    if kind == "exit" and (fields.get("signal") or fields.get("code") is not None):
        words += ", " + str(fields.get("signal") or _("code {n}").format(n=fields.get("code")))
    return clean(words, 80)


def cause_title(cause: str) -> str:
    entry = catalog.load("causes").get(cause)
    return (
        _(str(entry["title"])) if isinstance(entry, dict) and "title" in entry else clean(cause.replace("_", " "), 80)
    )


def listed(numbers: object) -> tuple[int, ...]:
    return tuple(n for n in numbers if isinstance(n, int)) if isinstance(numbers, (list, tuple)) else ()


def _word(text: str) -> str:
    """One of WORDS in the page's language; '' is ''."""
    return _(text) if text else ""


WORDS = (
    *(N_("cause"), N_("symptom"), N_("consequence"), N_("context")),
    *(N_("critical"), N_("error"), N_("warning"), N_("info")),
    *(N_("read"), N_("partial"), N_("skipped"), N_("failed")),
    *(N_("onset"), N_("detected"), N_("ended")),
    *(N_("waiting"), N_("from first to last")),
    *(N_("the embedded data"), N_("the event table")),
)
"""Words of the document and of the drawings that templates hand to `word`."""


def or_na(value: object) -> str:
    """A cell: 'n/a' for what is not known (the model's None; never -1)."""
    return "n/a" if value is None or value == "" else clean(value, ROW_CHARS)


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    """A list that was cut for the page."""

    rows: tuple[Any, ...]
    more: int


def some(rows: Iterable[Any], limit: int) -> Some:
    whole = tuple(rows)
    return Some(rows=whole[:limit], more=max(0, len(whole) - limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A line of a log that a step rests on."""

    anchor: str
    when: str
    error: str
    place: str
    """host, rank, GPU as far as known."""
    where: str
    """file:line"""
    file: str
    """Anchor of the file's row under Inputs; '' where it has none."""
    sha256: str
    """The first digits of the file's hash; '' where it was not taken."""
    before: tuple[str, ...]
    text: str | None
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One link of the evidence chain."""

    says: str
    lines: tuple[Raw, ...]
    more: int
    """Lines that say the same and are left off."""
    inference: bool
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One key event, in the timeline's table."""

    number: int
    anchor: str
    href: str
    when: str
    error: str
    basis: str
    host: str
    who: str
    role: str
    what: str
    means: str
    where: str
    order: str
    """Which earlier one it cannot be ordered against, if any."""
    drawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    picture: pictures.Timeline | None
    ticks: tuple[Tick, ...]
    day: str
    rows: tuple[Occurrence, ...]
    untimed: Some
    more: int
    outside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    rank: int
    state: str
    letter: str
    reporter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCells:
    name: str
    stage: str
    """Heading of the first host of a pipeline's stage; '' for the others."""
    cells: tuple[Cell, ...]
    counts: tuple[tuple[str, str, int], ...]
    """(state, letter, how many), where there is no cell for each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    rank: int
    anchor: str
    state: str
    letter: str
    word: str
    host: str
    gpu: str
    pci: str
    local: str
    pid: str
    enqueued: str
    started: str
    completed: str
    exit: str
    waits: str
    stage: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    total: int
    legend: tuple[tuple[str, str, str, int], ...]
    """(state, letter, word, how many)"""
    hosts: tuple[HostCells, ...]
    compressed: bool
    spoken: str
    """The map in words."""
    table: Some
    notes: bool
    stages: bool
    """A group tells which rank is in which stage of a pipeline."""
    reporters: bool
    """Some cell is marked as a reporter's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    name: str
    description: str
    backend: str
    op: str
    seq: str
    timeout: str
    expected: str
    arrived: str
    started: str
    completed: str
    missing: str
    no_data: str
    bar: tuple[pictures.Share, ...]
    spoken: str
    """The bar in words."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    picture: pictures.Graph
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    do: str
    because: str
    command: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    title: str
    cause: str
    who: str
    confidence: str
    why_not: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedRow:
    who: str
    why: str
    where: str
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentView:
    id: int
    anchor: str
    status: str
    status_word: str
    headline: str
    start: str
    """Which start of which job; empty where there was one."""
    sure: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    first: ActionRow | None
    actions: tuple[ActionRow, ...]
    not_to_blame: tuple[tuple[str, str], ...]
    not_to_blame_more: int
    nobody_cleared: str
    unknown: tuple[str, ...]
    cannot_exclude: str
    onset: str
    steps: Some
    weights: bool
    timeline: TimelineView
    ranks: RanksView
    groups: Some
    edges: Some
    graph: GraphView | None
    alternatives: tuple[Alternative, ...]
    cleared: Some
    contributing: Some


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    host: str
    index: str
    pci: str
    rank: str
    model: str
    uuid: str
    serial: str
    seen: tuple[str, ...]
    """What was logged about it: 'Xid 79: 1 ×, 2026-04-22 03:14:17'."""
    details: tuple[tuple[str, str], ...]
    trends: tuple[tuple[str, pictures.Spark], ...]
    """(in words, the line) of what was read of it more than once."""
    suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    when: str
    error: str
    host: str
    rank: str
    gpu: str
    role: str
    severity: str
    what: str
    where: str
    text: str
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputView:
    anchor: str
    path: str
    format: str
    status: str
    reason: str
    size: str
    events: str
    host: str
    rank: str
    first: str
    last: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockView:
    clock: str
    host: str
    offset: str
    error: str
    basis: str
    note: str
    reach: pictures.Reach | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesView:
    says: str
    offenders: tuple[str, ...]
    failures: tuple[tuple[str, str, str, str, str], ...]
    """(when, host, GPU, what, where), the newest first."""
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    readable: bool
    version: str
    command: str
    zone: str
    redacted: bool
    aliases: str
    coverage: str
    digest: str
    base: str
    incidents: tuple[IncidentView, ...]
    incidents_more: int
    ranks: RanksView | None
    gpus: Some
    gpus_details: bool
    gpus_trends: bool
    rates: RatesView | None
    clocks: Some
    clocks_scale: str
    """How many seconds to either side the clocks' drawing shows; '' for no drawing."""
    inputs: Some
    inputs_summary: str
    problems: Some
    events: Some
    events_total: int
    hosts_total: int


# --- the document, looked up ------------------------------------------------------------------------------------------

STATES = {
    "culprit": ("X", N_("cause")),
    "waiting": ("W", N_("waiting")),
    "blocked": ("B", N_("blocked behind others")),
    "completed": ("F", N_("nothing overdue")),
    "dead": ("D", N_("dead")),
    "no-data": ("?", N_("no data")),
}
"""A rank's state → letter in the map, word in tables."""
_INTEREST = {"culprit": 0, "dead": 1, "no-data": 2, "blocked": 3, "completed": 4, "waiting": 5}


def _base(paths: Sequence[str]) -> str:
    """The longest folder, with its slash, that all `paths` begin with; '' where it is too short to be in the way."""
    low, high = min(paths, default=""), max(paths, default="")
    same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    base = low[: low.rfind("/", 0, same if same < len(low) else len(low)) + 1]
    return base if len(base) > SHORT_BASE and "!" not in base else ""


class Lookup:
    """Events by place, ranks by number and GPU; made once for a document."""

    def __init__(self, doc: Doc) -> None:
        self.events: Sequence[Doc] = doc.get("events") or ()
        self.at: dict[tuple[object, object], list[Doc]] = {}
        for event in self.events:
            self.at.setdefault((event.get("source"), event.get("line")), []).append(event)
        self.host_of: dict[int, str] = {}
        self.rank_of: dict[tuple[str | None, str], int] = {}
        for row in doc.get("ranks") or ():
            if row.get("host"):
                self.host_of[row["rank"]] = row["host"]
            pci = (row.get("gpu") or {}).get("pci")
            if pci:
                self.rank_of[row.get("host"), pci] = row["rank"]

        self._uncompared = {c.get("host") for c in doc.get("clocks") or () if c.get("compared") is False}
        self.cards = {(h["name"], g.get("pci")) for h in doc.get("hosts") or () for g in h.get("gpus") or ()}
        self.sha_of = {r["path"]: clean(r["sha256"], 64) for r in doc.get("inputs") or () if r.get("sha256")}
        self.anchor_of = {row["path"]: f"f{n}" for n, row in _kept_inputs(doc)}
        self.base = _base([str(r["path"]) for r in doc.get("inputs") or ()])
        """The folder that all inputs lie in; left off where a path is shown."""

    def apart_s(self, a: str | None, b: str | None) -> float:
        """How far two hosts' clocks may differ beyond their error bars: far where nothing compares them."""
        alike = a == b and a is not None
        return UNCOMPARED_S if not alike and self._uncompared & {a, b} else 0.0

    def path(self, source: object) -> str:
        return clean(str(source).removeprefix(self.base), ROW_CHARS)

    def where(self, source: object, line: object) -> str:
        """'file:line' for a reader."""
        return _("no file") if not source else self.path(source) + ("" if line is None else f":{line}")

    def event(self, evidence: Doc) -> Doc | None:
        """The event at the evidence's place; with the same text where a binary file has no lines."""
        found = self.at.get((evidence.get("source"), evidence.get("line")), ())
        same = [e for e in found if e.get("text") == evidence.get("text")]
        return same[0] if same else found[0] if found and evidence.get("line") is not None else None

    def rank(self, event: Doc) -> int | None:
        """Its rank, or that of its GPU."""
        rank, pci = event.get("rank"), event.get("gpu_pci")
        return self.rank_of.get((event.get("host"), pci)) if rank is None and pci else rank

    def place(self, event: Doc) -> tuple[str, str]:
        """(host, rank or device), in words: the event's lane."""
        rank, host, pci = self.rank(event), event.get("host"), event.get("gpu_pci")
        if host is None and rank is not None:
            host = self.host_of.get(rank)
        card = not pci or not self.cards or (event.get("host"), pci) in self.cards or event.get("kind") == "xid"
        kind = "GPU" if card else _("PCI device")
        device = f"{kind} {clean(pci, 40)}" if pci else _("system")
        who = _rank(rank) if rank is not None else device
        return (clean(host, 80) if host else _(NO_HOST)), who


def gpu_words(gpu: Doc) -> str:
    """'GPU 3 at 0000:4b:00.0', 'GPU 0000:4b:00.0', 'GPU GPU-8c1f…' or 'GPU' as far as it is known."""
    index, pci = gpu.get("index"), gpu.get("pci")
    if index is not None:
        return _("GPU {index} at {pci}").format(index=index, pci=clean(pci, 40)) if pci else f"GPU {index}"
    name = pci or gpu.get("uuid") or gpu.get("serial")
    return f"GPU {clean(name, 60)}" if name else "GPU"


def _culprit(verdict: Doc, host_of: Mapping[int, str]) -> str:
    """Who, in words without a capital: rank, host, GPU as far as the verdict names them; '' for nobody."""
    ranks, hosts, gpus = listed(verdict["culprit_ranks"]), verdict["culprit_hosts"], verdict["culprit_gpus"]
    if ranks:
        names = hosts or sorted({host_of[r] for r in ranks if r in host_of})
        who, place = ranks_words(ranks), clean(names[0], 80) if len(names) == 1 else plural(len(names), "host")
        card = f" ({gpu_words(gpus[0])})" if len(gpus) == 1 and len(ranks) == 1 else ""
        return (_("{who} on {host}").format(who=who, host=place) if names else who) + card
    if gpus:
        owners = sorted({g.get("host") or "" for g in gpus})
        card = gpu_words(gpus[0]) if len(gpus) == 1 else plural(len(gpus), "GPU")
        alone = len(owners) == 1 and owners[0]
        return _("{gpu} in {host}").format(gpu=card, host=clean(owners[0], 80)) if alone else card
    if hosts:
        more = _(" and {n} more").format(n=f"{len(hosts) - 3:,}") if len(hosts) > 3 else ""
        return noun(len(hosts), "host") + " " + ", ".join(clean(h, 80) for h in hosts[:3]) + more
    return ""


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


_NAMES = frozenset(("Python", "Slurm", "NVLink", "NCCL", "GPU", "CUDA"))


def _lower(text: str) -> str:
    """`text` as it stands inside a sentence."""
    if language.current() != "en":
        return text  # German nouns keep their capital, and a translated title follows a colon
    return text if text.split(" ", 1)[0].rstrip(",:") in _NAMES else text[:1].lower() + text[1:]


def _has_a_place(cause: str) -> bool:
    """Does such a cause lie with one rank, GPU or host, also where nobody could be named (catalog/causes.toml)?"""
    return not catalog.load("causes").get(cause, {}).get("shared", True)


def _headline(verdict: Doc, host_of: Mapping[int, str]) -> str:
    who, title = _culprit(verdict, host_of), cause_title(verdict["cause"])
    status = verdict["status"]
    if status == "undetermined":
        if verdict["cause"] == "undetermined":
            return _("These files do not tell who caused the timeout")
        return _("Not certain enough to name a culprit; perhaps: {title}").format(title=_lower(title))
    if not who:
        if _has_a_place(verdict["cause"]):
            nobody = _("{title}. Which one, these files do not tell").format(title=title)
        else:
            nobody = _("{title}. No single rank is to blame").format(title=title)
        return nobody if status == "identified" else _("Probably: {claim}").format(claim=nobody)
    claim = _claim(who, title, len(set(listed(verdict["culprit_ranks"]))))
    return _upper(claim) if status == "identified" else _("Probably {claim}").format(claim=claim)


def _claim(who: str, title: str, ranks: int) -> str:
    """'rank 5 on node-a never entered the collective', 'rank 3: CUDA out of memory'."""
    if language.current() != "en":  # what follows is English grammar
        return f"{who}: {title}"
    if ranks:
        title = title.removesuffix(" on one rank")
        if title.startswith("A rank "):
            rest = title.removeprefix("A rank ")
            if ranks > 1:
                rest = re.sub("^(was|is) ", lambda m: "were " if m[1] == "was" else "are ", rest)
            return f"{who} {rest}"
    if title.startswith("A node ") and who.startswith("host "):
        return f"{who} {title.removeprefix('A node ')}"
    if title.startswith("Ranks "):  # they all did; these ones are why
        return f"{_lower(title)} because of {who}"
    if title.startswith(("A ", "The ")):
        title = "the " + title.removeprefix("A ").removeprefix("The ")
    return f"{who}: {_lower(title)}"


def _members(group: Doc, count: int) -> str:
    """'8 ranks', 'at least 8 ranks'."""
    words = plural(count, "rank")
    return _("at least {ranks}").format(ranks=words) if group.get("members_at_least") else words


def _collective(incident: Doc) -> str:
    """What stopped. Who had not come is left out where it is known that the fault lies elsewhere."""
    c = incident.get("collective")
    if not c:
        return _("Which collective this stopped is not known")
    name = clean(c.get("op") or _("operation"), 60)
    text = name + (_(" no. {n}").format(n=f"{c['seq']:,}") if c.get("seq") is not None else "")
    group = c.get("description") or c.get("process_group")
    text += _(" in process group {group}").format(group=clean(group, 60)) if group else ""
    members, arrived, missing = (listed(c.get(k)) for k in ("members", "arrived", "missing"))
    if members and arrived:
        text += _("; {n} of {ranks} had entered").format(n=f"{len(arrived):,}", ranks=_members(c, len(members)))
    verdict = incident["verdict"]
    named = set(listed(verdict["culprit_ranks"]))
    elsewhere = verdict["status"] == "identified" and not named & set(missing)
    if missing and (not elsewhere or (not named and _culprit(verdict, {}))):
        text += _("; missing: {ranks}").format(ranks=ranks_words(missing))
    if c.get("timeout_ms"):
        text += _("; timeout {time}").format(time=duration(c["timeout_ms"] / 1000))
    return text


# --- parts of an incident ---------------------------------------------------------------------------------------------


def _steps(incident: Doc, lookup: Lookup) -> tuple[list[Step], dict[tuple[object, object], str]]:
    """The evidence chain, and by (source, line) the anchor of each line that is shown in it.

    Neighbours that say the same, or only what is in their own line, are one step with several lines.
    """
    claims: list[tuple[str, list[tuple[str, Doc]]]] = []
    taken: set[str] = set()
    for n, item in enumerate(incident["verdict"]["evidence"], 1):
        own = item.get("id")
        usable = isinstance(own, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,60}", own) and own not in taken
        anchor = f"i{incident['id']}-{own if usable else f'e{n}'}"
        taken |= {str(own), f"e{n}"}
        says = clean(said(item["says"])).removeprefix("also: ")
        own_words = clean(item.get("text") or "", 48).rstrip("…")
        bare = item.get("weight") is None and len(own_words) > 8 and own_words in says
        if claims and (claims[-1][0] == says or bare):
            claims[-1][1].append((anchor, item))
        else:
            claims.append((says, [(anchor, item)]))
    steps: list[Step] = []
    anchors: dict[tuple[object, object], str] = {}
    for says, items in claims:
        weights = [item["weight"] for _, item in items if item.get("weight") is not None]
        for anchor, item in items[:MAX_LINES] if len(steps) < MAX_STEPS else ():
            if item.get("source"):
                anchors[item["source"], item.get("line")] = anchor
        steps.append(
            Step(
                says=sentence(says),
                lines=tuple(_raw(anchor, item, lookup) for anchor, item in items[:MAX_LINES]),
                more=max(0, len(items) - MAX_LINES),
                inference=bool(items[0][1].get("inference")),
                weight=f"{max(weights, key=abs):+.1f}" if weights else "",
            )
        )
    return steps, anchors


def _raw(anchor: str, item: Doc, lookup: Lookup) -> Raw:
    event = lookup.event(item) or {}
    at, error = micros(item.get("time") or event.get("time")), event.get("time_uncertainty_s")
    host, who = lookup.place(event) if event else ("", "")
    text = item.get("text")
    return Raw(
        anchor=anchor,
        when=_("time not known") if at is None else moment(at, error) + " UTC",
        error="" if at is None else plus_minus(error),
        place=", ".join(x for x in (host, who) if x),
        where=lookup.where(item.get("source"), item.get("line")),
        file=lookup.anchor_of.get(item.get("source"), ""),
        sha256=lookup.sha_of.get(item.get("source"), "")[:16],
        before=tuple(clean(x, CONTEXT_CHARS) for x in (item.get("before") or ())[-3:]),
        text=None if text is None else clean(text),
        after=tuple(clean(x, CONTEXT_CHARS) for x in (item.get("after") or ())[:3]),
    )


def bounds_us(doc: Doc, incident: Doc) -> tuple[int | None, int | None]:
    """The stretch of time, µs, whose events belong to this incident: from the one before it to the one after."""
    every = sorted(doc["incidents"], key=lambda i: i["id"])
    at = next(n for n, i in enumerate(every) if i["id"] == incident["id"])
    low = high = None
    if at:
        low = micros(every[at - 1].get("ended") or every[at - 1].get("detected"))
    if at + 1 < len(every):
        high = micros(every[at + 1].get("onset") or every[at + 1].get("detected"))
    return low, high


_ROLE_WEIGHT = {"cause": 30, "symptom": 20, "consequence": 10, "context": 0}


def _key_events(doc: Doc, incident: Doc, lookup: Lookup) -> list[tuple[Doc, int]]:
    """(event, importance) of what is worth drawing, in the document's order."""
    evidence = {id(e) for item in incident["verdict"]["evidence"] if (e := lookup.event(item))}
    marked = any(e.get("key") for e in lookup.events)
    low, high = bounds_us(doc, incident)
    alone = len(doc["incidents"]) == 1
    culprits = set(listed(incident["verdict"]["culprit_ranks"]))
    found = []
    for event in lookup.events:
        at = micros(event.get("time"))
        linked = id(event) in evidence
        if not linked:
            if not (event.get("key") if marked else event.get("severity") == "critical"):
                continue
            if at is None and not alone:
                continue
            if at is not None and ((low is not None and at <= low) or (high is not None and at >= high)):
                continue
        weight = _ROLE_WEIGHT.get(event.get("role", ""), 0) + 15 * linked + 50 * (event.get("rank") in culprits)
        found.append((event, weight))
    return found


_BASIS = {
    "neighbour": N_("from its neighbours in the file"),
    "derived": N_("computed"),
    "none": N_("none"),
    "stamp": N_("written"),
}


def _timeline(doc: Doc, incident: Doc, lookup: Lookup, anchors: Mapping[tuple[object, object], str]) -> TimelineView:
    found = _key_events(doc, incident, lookup)
    alike: Counter[str] = Counter()
    best: list[int] = []
    for i in sorted(range(len(found)), key=lambda i: (-found[i][1], i)):
        event, weight = found[i]
        alike[str(event.get("kind"))] += 1
        if len(best) < MAX_DRAWN and (weight > _ROLE_WEIGHT["cause"] or alike[str(event.get("kind"))] <= MAX_ALIKE):
            best.append(i)
    timed: list[tuple[int, int, Doc, int]] = []
    untimed: list[Doc] = []
    for i in sorted(best):
        event, weight = found[i]
        at = micros(event.get("time"))
        if at is None:
            untimed.append(event)
        else:
            timed.append((at, i, event, weight))
    timed.sort(key=lambda x: x[:2])
    moments = [
        _moment(n, at, event, weight, lookup, anchors, incident["id"])
        for n, (at, _, event, weight) in enumerate(timed, 1)
    ]
    # A thousand alike victims still show, as one bar.
    drawn = set(best)
    crowd = [
        _moment(0, at, event, weight, lookup, anchors, incident["id"])
        for i, (event, weight) in enumerate(found)
        if i not in drawn and (at := micros(event.get("time"))) is not None
    ]
    named: dict[str, tuple[int, int | None]] = {}
    for name, key in (("onset", "onset"), ("detected", "detected"), ("ended", "ended")):
        at = micros(incident.get(key))
        if at is not None:
            error = incident.get("onset_uncertainty_s") if key == "onset" else None
            named[name] = (at, None if error is None else round(error * 1e6))
    picture = pictures.timeline([*moments, *crowd], named)
    outside = set(picture.outside) if picture else set()
    ticks: tuple[Tick, ...] = ()
    day = ""
    if picture:
        days = picture.last_us // 86_400_000_000 != picture.first_us // 86_400_000_000
        ticks = tuple(Tick(x=t.x, label=_tick(t.at_us, picture.step_us, days)) for t in picture.ticks)
        first, last = moment(picture.first_us)[:10], moment(picture.last_us)[:10]
        day = first if first == last else _("{first} to {last}").format(first=first, last=last)
    rows = tuple(_occurrences(moments, timed, lookup, outside))
    return TimelineView(
        picture=picture,
        ticks=ticks,
        day=day,
        rows=rows,
        untimed=some(
            (
                (kind_words(e), ", ".join(lookup.place(e)), lookup.where(e.get("source"), e.get("line")))
                for e in untimed
            ),
            MAX_UNTIMED,
        ),
        more=len(found) - len(best),
        outside=span(outside),
    )


def _tick(at_us: int, step_us: int, days: bool) -> str:
    text = moment(at_us)
    if step_us >= 86_400_000_000:
        return text[:10]
    clock = text[11:16] if step_us >= 60_000_000 else text[11:19]
    if step_us < 1_000_000:
        clock = text[11:19] + f".{at_us % 1_000_000 // 1000:03d}"
    return f"{text[5:10]} {clock}" if days else clock


def _moment(
    number: int,
    at: int,
    event: Doc,
    weight: int,
    lookup: Lookup,
    anchors: Mapping[tuple[object, object], str],
    incident: int,
) -> pictures.Moment:
    fields = event.get("fields") or {}
    waited = fields.get("waited_ms") or fields.get("timeout_ms") if event.get("kind") == "watchdog-timeout" else None
    error = event.get("time_uncertainty_s")
    lane = lookup.place(event)
    return pictures.Moment(
        number=number,
        lane=lane,
        at_us=at,
        error_us=None if error is None else round(error * 1e6),
        role=event.get("role", "context"),
        label=""
        if not number
        else f"{number}: {kind_words(event)}, {lane[1]}, {moment(at, error)} UTC {plus_minus(error)}",
        href=anchors.get((event.get("source"), event.get("line")), f"i{incident}-t{number}"),
        waited_us=round(waited * 1000) if isinstance(waited, (int, float)) and 0 < waited < LONGEST_WAIT_MS else None,
        weight=weight,
    )


def _occurrences(
    moments: Sequence[pictures.Moment],
    timed: Sequence[tuple[int, int, Doc, int]],
    lookup: Lookup,
    outside: set[int],
) -> Iterator[Occurrence]:
    for n, (m, (at, _order, event, _weight)) in enumerate(zip(moments, timed, strict=True)):
        host, who = lookup.place(event)
        error = event.get("time_uncertainty_s")
        order = ""
        if n:
            before = timed[n - 1]
            # Lines of one file share their clock: their order is that of the file.
            if before[2].get("source") != event.get("source"):
                bar, other = error, before[2].get("time_uncertainty_s")
                apart = lookup.apart_s(event.get("host"), before[2].get("host"))
                if bar is None or other is None or at - before[0] <= (bar + other + apart) * 1e6:
                    order = _("may be before {n}").format(n=moments[n - 1].number)
        yield Occurrence(
            number=m.number,
            anchor=m.href if re.fullmatch(r"i\d+-t\d+", m.href) else "",
            href="" if re.fullmatch(r"i\d+-t\d+", m.href) else m.href,
            when=moment(at, error),
            error=plus_minus(error),
            basis="" if event.get("time_basis") in (None, "stamp") else _word(_BASIS.get(event["time_basis"], "")),
            host=host,
            who=who,
            role=event.get("role", "context"),
            what=kind_words(event),
            means=_meanings().get(str(event.get("kind")), ""),
            where=lookup.where(event.get("source"), event.get("line")),
            order=order,
            drawn=m.number not in outside,
        )


def _left_out(holder: Doc) -> list[int]:
    """Silent ranks that have no row of their own, of a document or an incident."""
    ranges = (holder.get("ranks_left_out") or {}).get("ranges") or ()
    return [rank for first, last in ranges for rank in range(first, last + 1)]


def _stages(groups: Sequence[Doc]) -> dict[int, int]:
    """Rank → its stage: its place in a pipeline's group, by the names that Megatron, DeepSpeed and DeviceMesh give."""
    found: dict[int, set[int]] = {}
    for group in groups:
        name = f"{group.get('description') or group.get('name') or ''}"
        if PIPELINE.search(name) and not group.get("members_at_least"):
            for stage, rank in enumerate(listed(group.get("members"))):
                found.setdefault(rank, set()).add(stage)
    return {rank: stages.pop() for rank, stages in found.items() if len(stages) == 1}


def _ranks_view(
    rows: Sequence[Doc], prefix: str, reporters: set[int], limit: int, silent: int, stages: Mapping[int, int]
) -> RanksView:
    """`silent`: how many more ranks there are of which nothing is known."""
    counts = Counter(_state(r) for r in rows)
    counts["no-data"] += silent
    legend = tuple((s, STATES[s][0], _(STATES[s][1]), counts[s]) for s in STATES if counts[s])
    by_host: dict[tuple[int, str], list[Doc]] = {}
    compressed = len(rows) + silent > MAX_CELLS
    for row in sorted(rows, key=lambda r: r["rank"]):
        stage = -1 if compressed else stages.get(row["rank"], len(stages))
        by_host.setdefault((stage, clean(row["host"], 80) if row.get("host") else NO_HOST), []).append(row)
    hosts: list[HostCells] = []
    if compressed:
        alike: dict[tuple[tuple[str, str, int], ...], list[str]] = {}
        for (_stage, host), members in by_host.items():
            tally = Counter(_state(r) for r in members)
            if host == NO_HOST:
                tally["no-data"] += silent
            alike.setdefault(tuple((s, STATES[s][0], tally[s]) for s in STATES if tally[s]), []).append(host)
        order = sorted(alike, key=lambda c: (min(_INTEREST[s] for s, _, _ in c), len(alike[c])))
        for pattern in order[:400]:
            names = alike[pattern]
            name = _(NO_HOST) if names[0] == NO_HOST else names[0]
            if len(names) > 1:
                name = _("{hosts} alike: {first} to {last}").format(
                    hosts=plural(len(names), "host"), first=names[0], last=names[-1]
                )
            hosts.append(HostCells(name=name, stage="", cells=(), counts=pattern))
    else:
        said: int | None = None
        for (stage, host), members in sorted(by_host.items(), key=lambda x: x[0][0]):
            title = ""
            if stages and stage != said:
                title = _("Stage {n}").format(n=stage) if stage < len(stages) else _("No stage known")
            said = stage
            cells = tuple(
                Cell(
                    rank=r["rank"],
                    state=_state(r),
                    letter=STATES[_state(r)][0],
                    reporter=r["rank"] in reporters,
                )
                for r in members
            )
            hosts.append(HostCells(name=_(NO_HOST) if host == NO_HOST else host, stage=title, cells=cells, counts=()))
    spoken = f"{plural(len(rows) + silent, 'rank')}: " + ", ".join(f"{n:,} {word}" for _, _, word, n in legend)
    chosen = sorted(sorted(rows, key=lambda r: (_INTEREST[_state(r)], r["rank"]))[:limit], key=lambda r: r["rank"])
    table = tuple(_rank_row(r, prefix, stages.get(r["rank"])) for r in chosen)
    return RanksView(
        total=len(rows) + silent,
        legend=legend,
        hosts=tuple(hosts),
        compressed=compressed,
        spoken=spoken,
        table=Some(rows=table, more=len(rows) + silent - len(table)),
        notes=any(r.note for r in table),
        stages=bool(stages),
        reporters=any(c.reporter for h in hosts for c in h.cells),
    )


def _state(row: Doc) -> str:
    state = row.get("state")
    return state if state in STATES else "no-data"


def _rank_row(row: Doc, prefix: str, stage: int | None) -> RankRow:
    gpu = row.get("gpu") or {}
    state = _state(row)
    waits = listed(row.get("waiting_on"))
    return RankRow(
        rank=row["rank"],
        anchor=f"{prefix}r{row['rank']}",
        state=state,
        letter=STATES[state][0],
        word=_(STATES[state][1]),
        host=or_na(row.get("host")),
        gpu=or_na(gpu.get("index")),
        pci=or_na(gpu.get("pci")),
        local=or_na(row.get("local_rank")),
        pid=or_na(row.get("pid")),
        enqueued=or_na(row.get("last_enqueued")),
        started=or_na(row.get("last_started")),
        completed=or_na(row.get("last_completed")),
        exit=or_na(row.get("exit")),
        waits=span(waits, 4) if waits else "–",
        stage=or_na(stage),
        note=clean(said(row["note"]), ROW_CHARS) if row.get("note") else "",
    )


def _group_row(group: Doc) -> GroupRow:
    def who(key: str) -> str:
        members = listed(group.get(key))
        if group.get(key) is None:
            return "n/a"
        if len(members) < 2:
            return _rank(members[0]) if members else _("none")
        count = _members(group, len(members)) if key == "members" else plural(len(members), "rank")
        return f"{span(members, 6)} ({count})"

    timeout = group.get("timeout_ms")
    count = {key: len(set(listed(group.get(key)))) for key in ("members", "arrived", "completed", "missing", "no_data")}
    waiting = max(0, count["arrived"] - count["completed"])
    parts = [("done", count["completed"]), ("in", waiting), ("out", count["missing"]), ("none", count["no_data"])]
    words = {"done": _("completed"), "in": _("arrived and waiting"), "out": _("missing"), "none": _("without data")}
    return GroupRow(
        name=or_na(group.get("name") or group.get("process_group")),
        description=clean(group["description"], 80) if group.get("description") else "",
        backend=or_na(group.get("backend")),
        op=or_na(group.get("op")),
        seq=or_na(group.get("seq")),
        timeout="n/a" if timeout is None else duration(timeout / 1000),
        expected=who("members") if group.get("members") else "n/a",
        arrived=who("arrived"),
        started=who("started"),
        completed=who("completed"),
        missing=who("missing"),
        no_data=who("no_data"),
        bar=pictures.shares(parts, max(count["members"], sum(n for _, n in parts))),
        spoken=", ".join(f"{n:,} {words[kind]}" for kind, n in parts if n),
        note=clean(said(group["note"])) if group.get("note") else "",
    )


def _groups(incident: Doc) -> list[GroupRow]:
    groups = incident.get("groups")
    if groups:
        return [_group_row(g) for g in groups]
    collective = incident.get("collective")
    return [_group_row(collective)] if collective else []


def _waits(incident: Doc, rows: Sequence[Doc]) -> list[Doc]:
    if incident.get("waits"):
        return list(incident["waits"])
    return [
        {"waiter": r["rank"], "waited": r["waiting_on"], "why": "", "group": None, "seq": None}
        for r in rows
        if r.get("waiting_on")
    ]


def _edges(waits: Sequence[Doc]) -> list[tuple[str, str]]:
    """(who waits for whom, why): ranks that wait for the same ones, for the same reason, share a sentence."""
    together: dict[tuple[tuple[int, ...], object, object, str], list[int]] = {}
    for wait in waits:
        key = (
            listed(wait.get("waited")),
            wait.get("group"),
            wait.get("seq"),
            clean(said(wait.get("why") or ""), ROW_CHARS),
        )
        together.setdefault(key, []).append(wait["waiter"])
    found = []
    for (waited, group, seq, why), waiters in together.items():
        text = counted("{who} waits for {whom}", "{who} wait for {whom}", len(set(waiters))).format(
            who=_upper(ranks_words(waiters)), whom=ranks_words(waited)
        )
        if group is not None:
            text += _(" in group {group}").format(group=clean(group, 60))
        if seq is not None:
            text += _(" at no. {n}").format(n=f"{seq:,}")
        found.append((text, why))
    return found


def _graph(waits: Sequence[Doc], culprits: set[int]) -> GraphView | None:
    picture = pictures.graph((w["waiter"], listed(w.get("waited"))) for w in waits)
    if picture is None:
        return None
    labels = []
    for node in picture.nodes:
        name = _rank(node.ranks[0])
        if len(node.ranks) > 1:
            name = _("ranks {numbers}").format(numbers=span(node.ranks, 2))
        if len(name) > 19:
            name = _("{ranks} from {first}").format(ranks=plural(len(node.ranks), "rank"), first=node.ranks[0])
        labels.append((name, "culprit" if culprits & set(node.ranks) else "sink" if node.sink else "waiting"))
    return GraphView(picture=picture, labels=tuple(labels))


def _start(incident: Doc) -> str:
    """Which start of which job failed; nothing where the pile tells of one job that was started once."""
    parts = [clean(said(incident["job"]), 120)] if incident.get("job") else []
    if incident.get("attempt") is not None:
        parts.append(_("start no. {n}").format(n=incident["attempt"] + 1))
    return _upper(", ".join(parts))


def _job(incident: Doc) -> str:
    """The same, and what was found of all its starts together."""
    told = [f"{start}."] if (start := _start(incident)) else []
    told += [clean(said(c["says"])) for c in incident.get("contributing") or () if c.get("kind") == "restarts"]
    return " ".join(told)


BESIDE = {"setting": N_("A setting"), "pulse": N_("Before it failed")}
"""Titles of rows that name no cause, by their `kind`."""


def _contributing(incident: Doc, lookup: Lookup) -> Iterator[tuple[str, str, str]]:
    for row in incident.get("contributing") or ():
        if row.get("kind") == "restarts":
            continue  # stands among the facts
        where = lookup.where(row.get("source"), row.get("line")) if row.get("source") else ""
        yield (
            _word(BESIDE.get(str(row.get("kind")), "")) or cause_title(str(row["cause"])),
            clean(said(row["says"])),
            where,
        )


def _facts(incident: Doc, lookup: Lookup) -> Iterator[tuple[str, str]]:
    verdict = incident["verdict"]
    who = _culprit(verdict, lookup.host_of)
    gpus = verdict["culprit_gpus"]
    if len(gpus) == 1:
        g = gpus[0]
        known = [clean(g["model"], 60)] if g.get("model") else []
        known += [
            f"{word} {clean(g[key], 60)}" for key, word in (("serial", _("serial")), ("uuid", "UUID")) if g.get(key)
        ]
        who = ", ".join([who, *known])
    elif gpus:
        who += ": " + ", ".join(gpu_words(g) for g in gpus[:8])
    yield _("Who"), _upper(who) if who else _("Nobody is named")
    if job := _job(incident):
        yield _("Job"), job
    yield _("What"), _collective(incident)
    onset, error = micros(incident["onset"]), incident.get("onset_uncertainty_s")
    detected = micros(incident["detected"])
    if onset is not None:
        text = f"{moment(onset, error)} UTC {plus_minus(error)}"
        if error is not None and len({h for h in lookup.host_of.values() if h}) > 1:
            text += _(", as its own host's clock reads")  # the error is that of reading; hosts disagree by more
        if detected is not None and detected > onset:
            text += _("; noticed {time} later").format(time=duration((detected - onset) / 1e6))
    elif detected is not None:
        text = _("Onset not known; noticed {time} UTC").format(time=moment(detected))
    else:
        text = _("No time with its year is in these files")
    yield _("When"), text
    text = _("{word}, {number} of 1").format(
        word=_upper(confidence_word(verdict["confidence"])), number=f"{verdict['confidence']:.2f}"
    )
    if verdict["status"] == "undetermined":
        text = _upper(_sure(verdict))
    if verdict["alternatives"]:
        other = max(verdict["alternatives"], key=lambda a: a["confidence"])
        who = f" ({ranks_words(listed(other['culprit_ranks']))})" if other["culprit_ranks"] else ""
        title = f"“{cause_title(other['cause'])}”{who}"
        if other["cause"] == verdict["cause"] and not who:
            title = ""
        if title and other["confidence"] >= 0.05:
            text += _("; the next best explanation, {title}, has {number}").format(
                title=title, number=f"{other['confidence']:.2f}"
            )
    yield _("How sure"), text
    cost = incident.get("cost") or {}
    parts = [
        f"{words} {duration(cost[key])}"
        for key, words in (
            ("lost_work_s", _("work since the last checkpoint")),
            ("detection_s", _("waiting for the watchdog")),
            ("restart_s", _("restart")),
        )
        if cost.get(key)
    ]
    if (cost.get("gpu_hours") or 0) >= 0.05:
        parts.insert(0, _("{n} GPU hours").format(n=f"{cost['gpu_hours']:,.1f}"))
    if parts:
        yield _("Cost"), _upper("; ".join(parts))


STATUS_WORDS = {"identified": N_("Identified"), "suspected": N_("Suspected"), "undetermined": N_("Cannot tell")}


def _sure(verdict: Doc) -> str:
    confidence = float(verdict["confidence"])
    if verdict["status"] == "undetermined":
        likeliest = _("the likeliest explanation has {number} of 1").format(number=f"{confidence:.2f}")
        return likeliest if confidence >= 0.05 else _("nothing stands out")
    return _("{word} confidence, {number}").format(word=confidence_word(confidence), number=f"{confidence:.2f}")


def _cleared(verdict: Doc, lookup: Lookup | None) -> list[ClearedRow]:
    """The cleared suspects; ranks with the same reason and no line of their own share a row."""
    together: dict[tuple[object, ...], list[Doc]] = {}
    for n, c in enumerate(verdict.get("cleared") or ()):
        card = c.get("gpu_pci") is not None
        alone = (c.get("rank") is None and not card) or (c.get("text") and lookup)
        together.setdefault((n,) if alone else (card, c["why"]), []).append(c)
    rows = []
    for group in together.values():
        c = group[0]
        rows.append(
            ClearedRow(
                who=_upper(_together(group)) if len(group) > 1 else clean(said(c["who"]), 160),
                why=sentence(clean(said(c["why"]))),
                where=lookup.where(c["source"], c.get("line")) if lookup and c.get("source") else "",
                text=clean(c["text"], ROW_CHARS) if c.get("text") else None,
            )
        )
    return rows


def _together(group: Sequence[Doc]) -> str:
    """Who was cleared for one reason: 'ranks 0–2', 'the GPUs of ranks 0, 4', 'GPUs 0000:20:1c.0, 0000:90:1c.0'."""
    ranks = [c["rank"] for c in group if c.get("rank") is not None]
    if group[0].get("gpu_pci") is None:
        return ranks_words(ranks)
    if len(ranks) == len(group):
        return counted("the GPU of {ranks}", "the GPUs of {ranks}", len(group)).format(ranks=ranks_words(ranks))
    names = [clean(c["gpu_pci"], 40) for c in group]
    return (
        "GPUs " + ", ".join(names[:4]) + (_(" and {n} more").format(n=f"{len(names) - 4:,}") if len(names) > 4 else "")
    )


def _not_to_blame(verdict: Doc, rows: Sequence[Doc] = ()) -> list[tuple[str, str]]:
    """(who, why); `rows`: the ranks' states. Those against whom nothing speaks come last."""
    found = [(row.who, row.why) for row in _cleared(verdict, None)]
    if verdict["status"] == "identified" and not _culprit(verdict, {}) and not _has_a_place(verdict["cause"]):
        return found  # who reported it is one of those who made it
    named = set(listed(verdict["culprit_ranks"])) | set(listed(verdict.get("cannot_exclude")))
    told = named | {c["rank"] for c in verdict.get("cleared") or () if c.get("rank") is not None}
    for c in verdict.get("cleared") or ():
        told.update(listed(c.get("ranks")))
    reporters = [r for r in listed(verdict["reporting_ranks"]) if r not in told]
    if reporters and verdict["status"] != "undetermined":
        why = counted(
            "It reported the failure. A reporter waits for somebody else.",
            "They reported the failure. A reporter waits for somebody else.",
            len(reporters),
        )
        found.append((_upper(ranks_words(reporters)), why))
    elif reporters and not found:
        found.append(
            (
                _upper(ranks_words(reporters)),
                _("Reporting the failure is no sign of guilt: a reporter waits for others."),
            )
        )
    if verdict["status"] == "identified":
        told.update(reporters)
        for other in verdict["alternatives"]:
            told.update(listed(other["culprit_ranks"]))
        others = [r["rank"] for r in rows if r["rank"] not in told and _state(r) in ("waiting", "blocked", "completed")]
        if others:
            why = counted(
                "Nothing in its data speaks against it.", "Nothing in their data speaks against them.", len(others)
            )
            found.append((_upper(ranks_words(others)), why))
    return found


def _bare(text: str) -> str:
    """What is to be collected, however it is asked for: an action and a gap in the evidence may be the same."""
    return text.removeprefix("Collect: ").rstrip(".").lower()


def _incident(doc: Doc, incident: Doc, lookup: Lookup, table_rows: int) -> IncidentView:
    verdict = incident["verdict"]
    holder: Doc = incident if incident.get("ranks") or len(doc["incidents"]) != 1 else doc
    rows: Sequence[Doc] = holder.get("ranks") or ()
    steps, anchors = _steps(incident, lookup)
    prefix = f"i{incident['id']}-"
    actions = tuple(
        ActionRow(
            do=clean(said(a["do"])),
            because=clean(said(a["because"])),
            command=clean(a["command"]) if a.get("command") else None,
        )
        for a in verdict["actions"]
    )
    asked_for = [_bare(a["do"]) for a in verdict["actions"]]
    unknown = tuple(x for x in verdict["missing_evidence"][:20] if _bare(x) not in asked_for[:1])
    wanted = {_bare(x) for x in unknown}
    blameless = _not_to_blame(verdict, rows)
    waits = _waits(incident, rows)
    excluded = listed(verdict.get("cannot_exclude"))
    error = incident.get("onset_uncertainty_s")
    onset = micros(incident["onset"])
    detected = micros(incident["detected"])
    when = f"{moment(onset, error)} UTC" if onset is not None else _("noticed {time} UTC").format(time=moment(detected))
    return IncidentView(
        id=incident["id"],
        anchor=f"incident-{incident['id']}",
        status=verdict["status"],
        status_word=_(STATUS_WORDS[verdict["status"]]),
        headline=_headline(verdict, lookup.host_of),
        sure=_sure(verdict),
        summary=clean(said(verdict["summary"])),
        facts=tuple(_facts(incident, lookup)),
        first=actions[0] if actions else None,
        actions=tuple(a for a, asked in zip(actions[1:], asked_for[1:], strict=True) if asked not in wanted),
        not_to_blame=tuple(blameless[:4]),
        not_to_blame_more=max(0, len(blameless) - 4),
        nobody_cleared=_("No single rank is to blame: it took all of those that are named here.")
        if verdict["status"] == "identified"
        and not _culprit(verdict, lookup.host_of)
        and not _has_a_place(verdict["cause"])
        else _("Nobody could be cleared."),
        unknown=tuple(sentence(clean(said(x))) for x in unknown),
        cannot_exclude=ranks_words(excluded) if excluded else "",
        start=_start(incident),
        onset=_("time not known") if onset is None and detected is None else when,
        steps=some(steps, MAX_STEPS),
        weights=any(s.weight for s in steps[:MAX_STEPS]),
        timeline=_timeline(doc, incident, lookup, anchors),
        ranks=_ranks_view(
            rows,
            prefix,
            set(listed(verdict["reporting_ranks"])),
            table_rows,
            len(_left_out(holder)),
            _stages(incident.get("groups") or ()),
        ),
        groups=some(_groups(incident), MAX_GROUPS),
        edges=some(_edges(waits), MAX_EDGES),
        graph=_graph(waits, set(listed(verdict["culprit_ranks"]))),
        alternatives=tuple(
            Alternative(
                title=cause_title(a["cause"]),
                cause=clean(a["cause"], 60),
                who=_upper(ranks_words(listed(a["culprit_ranks"])))
                if a["culprit_ranks"]
                else _("no rank in particular"),
                confidence=f"{a['confidence']:.2f}",
                why_not=clean(said(a["why_not"])),
            )
            for a in verdict["alternatives"][:20]
        ),
        cleared=some(_cleared(verdict, lookup), 40),
        contributing=some(_contributing(incident, lookup), MAX_CONTRIBUTING),
    )


# --- parts of the page ------------------------------------------------------------------------------------------------


def _gpus(doc: Doc, lookup: Lookup) -> Some:
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
    trends = _series(lookup)
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
                seen=tuple(_seen(by_place.get(place, ()) if gpu.get("pci") else ())),
                details=tuple((clean(k, 40), or_na(v)) for k, v in list((gpu.get("details") or {}).items())[:16]),
                trends=tuple(_trends(trends.get(place) or {}, onset)),
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


def _rates(rates: Doc, lookup: Lookup) -> RatesView:
    rows = [
        (
            moment(micros(f["time"])),
            clean(f["host"], 253),
            clean(or_na(f["gpu_pci"])),
            cause_title(f["cause"]) if f["cause"] else clean(f["text"], 120),
            f"{lookup.path(f['source'])}:{f['line']}" if f["line"] else lookup.path(f["source"]),
        )
        for f in reversed(rates["listed"])
    ]
    return RatesView(
        says=clean(said(rates["says"])),
        offenders=tuple(sentence(clean(said(o["says"]))) for o in rates["offenders"]),
        failures=tuple(rows),
        more=rates["failures"] - len(rows),
    )


def _series(lookup: Lookup) -> dict[tuple[object, object], Series]:
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


def _trends(series: Series, onset: int | None) -> Iterator[tuple[str, pictures.Spark]]:
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


def _seen(events: Sequence[Doc]) -> Iterator[str]:
    """What a GPU's log lines say, by kind: count, first and last time."""
    by_kind: dict[str, list[Doc]] = {}
    for event in events:
        by_kind.setdefault(kind_words(event), []).append(event)
    for words, group in list(by_kind.items())[:6]:
        count = sum(int(e.get("repeats") or 1) for e in group)
        times = sorted(t for e in group if (t := micros(e.get("time"))) is not None)
        when = _("time not known") if not times else moment(times[0], 1)
        if len(times) > 1 and times[-1] != times[0]:
            when = _("first {first}, last {last}").format(first=moment(times[0], 1), last=moment(times[-1], 1))
        yield f"{words}: {count:,} ×, {when}"
    if len(by_kind) > 6:
        yield _("and {n} more kinds").format(n=f"{len(by_kind) - 6:,}")


_SEVERITY = {"critical": 0, "error": 1, "warning": 2, "info": 3}


def _events(lookup: Lookup, budget: int) -> Some:
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
                when=moment(at, error) if at is not None else _("not known"),
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


_STATUS_ORDER = {"failed": 0, "partial": 1, "skipped": 2, "read": 3}


def _kept_inputs(doc: Doc) -> list[tuple[int, Doc]]:
    """(number, row) of the inputs that are shown, those with trouble first to stay, in the document's order."""
    rows = list(enumerate(doc.get("inputs") or (), 1))
    return sorted(sorted(rows, key=lambda r: (_STATUS_ORDER.get(r[1]["status"], 3), r[0]))[:MAX_INPUTS])


def _inputs(doc: Doc, lookup: Lookup) -> Some:
    events = Counter(e.get("source") for e in lookup.events)
    shown = [
        InputView(
            anchor=lookup.anchor_of[r["path"]],
            path=lookup.path(r["path"]),
            format=or_na(r["format"]),
            status=r["status"],
            reason=clean(r["reason"]) if r.get("reason") else "",
            size=size_words(r.get("bytes")),
            events=f"{r['events'] if isinstance(r.get('events'), int) else events[r['path']]:,}",
            host=or_na(r.get("host")),
            rank=or_na(r.get("rank")),
            first=moment(t, 1) if (t := micros(r.get("first_time"))) is not None else "n/a",
            last=moment(t, 1) if (t := micros(r.get("last_time"))) is not None else "n/a",
            sha256=clean(r["sha256"], 64) if r.get("sha256") else "",
        )
        for _, r in _kept_inputs(doc)
    ]
    return Some(rows=tuple(shown), more=len(doc["inputs"]) - len(shown))


def _inputs_summary(doc: Doc) -> str:
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
    return f"{plural(len(doc['inputs']), 'file')}, {size_words(size)}: {', '.join(parts) or _('none')}"


def _left_nothing(row: Doc, spoke: Container[object]) -> bool:
    """Is there no dump and no line of it? So it can be with who is named, too, where others miss it."""
    counted = any(row.get(key) is not None for key in ("last_enqueued", "last_started", "last_completed", "exit"))
    return _state(row) == "no-data" or (_state(row) == "culprit" and not counted and row["rank"] not in spoke)


def _coverage(doc: Doc) -> str:
    ranks = doc["ranks"]
    if not ranks:
        return _("No rank is known from these files.")
    left_out = _left_out(doc)
    spoke = {e.get("rank") for e in doc["events"]}
    silent = [r["rank"] for r in ranks if _left_nothing(r, spoke)] + left_out
    known = len(ranks) + len(left_out)
    text = _("{n} of {ranks} left data").format(n=f"{known - len(silent):,}", ranks=plural(known, "known rank"))
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


def _clocks_scale(clocks: Sequence[Doc]) -> float:
    return max((abs(d) + float(c["uncertainty_s"]) for c in clocks if (d := _deviation(c)) is not None), default=0.0)


def _clocks(clocks: Sequence[Doc], scale: float) -> Iterator[ClockView]:
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


def _digest(doc: Doc) -> str:
    """SHA-256 over 'hash  path' lines of all inputs, in the document's order; '' where hashes were not taken."""
    lines = [f"{clean(r['sha256'])}  {clean(r['path'])}\n" for r in doc["inputs"] if r.get("sha256")]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def _aliases(redacted: object) -> str:
    """How many aliases of which kind a redacted document has; '' for another."""
    if not isinstance(redacted, dict):
        return ""
    from nccl_forensics.redact import summary

    return summary(redacted["aliases"])


def _page(doc: Doc) -> Page:
    lookup = Lookup(doc)
    world = len(doc["ranks"])
    shown = list(doc["incidents"])[:MAX_INCIDENTS]
    table_rows = max(32, 1024 // max(1, len(shown)))
    incidents = tuple(_incident(doc, i, lookup, table_rows) for i in shown)
    events = _events(lookup, min(60_000 + 300 * world, 240_000))
    gpus = _gpus(doc, lookup)
    tool = doc["tool"]
    if not doc["incidents"]:
        title = _(NOTHING_FAILED if _readable(doc) else NOTHING_READ)
    elif len(doc["incidents"]) == 1:
        title = incidents[0].headline
    else:
        title = _("{n} failures were found").format(n=len(doc["incidents"]))
    scale = _clocks_scale(doc["clocks"])
    own_ranks = any(i.ranks.total for i in incidents)
    return Page(
        title=title,
        readable=_readable(doc),
        version=clean(tool["version"], 40),
        command=clean(tool["command"]) if tool.get("command") else "",
        zone=clean(tool["timezone"], 60) if tool.get("timezone") else "",
        redacted=bool(tool.get("redacted")),
        aliases=_aliases(tool.get("redacted")),
        coverage=_coverage(doc),
        digest=_digest(doc),
        base=clean(lookup.base),
        incidents=incidents,
        incidents_more=len(doc["incidents"]) - len(shown),
        ranks=None if own_ranks or not world else _ranks_view(doc["ranks"], "", set(), 1024, len(_left_out(doc)), {}),
        gpus=gpus,
        gpus_details=any(g.details for g in gpus.rows),
        gpus_trends=any(g.trends for g in gpus.rows),
        rates=_rates(doc["rates"], lookup) if doc.get("rates") else None,
        clocks=some(_clocks(doc["clocks"], scale), MAX_INPUTS),
        clocks_scale=duration(scale) if scale else "",
        inputs=_inputs(doc, lookup),
        inputs_summary=_inputs_summary(doc),
        problems=some(
            (
                (sentence(clean(said(p["says"]))), lookup.path(p["source"]) if p.get("source") else "")
                for p in doc["problems"]
            ),
            MAX_PROBLEMS,
        ),
        events=events,
        events_total=len(lookup.events),
        hosts_total=len(doc["hosts"]),
    )


# --- the embedded document --------------------------------------------------------------------------------------------


MOST_PLAIN = 64_000
"""Characters of JSON from which on it is packed: a page of 1,024 ranks would double."""


def embedded(doc: Doc) -> tuple[str, str]:
    """The whole of `doc` as (type, text) of a script element that nothing in it can end: JSON, or, where that is long,
    base64 of zlib's format (RFC 1950), which browsers call deflate."""
    text = json.dumps(doc, ensure_ascii=True, separators=(",", ":"), default=list)
    if len(text) > MOST_PLAIN:
        return "application/zlib", base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return "application/json", text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- templates --------------------------------------------------------------------------------------------------------


@cache
def _environment(escape: bool) -> Environment:
    filters: dict[str, Callable[..., Any]] = {
        "prose": prose,
        "breakable": breakable,
        "plural": plural,
        "noun": noun,
        "rank": _rank,
        "word": _word,
        "md": markdown_text,
        "mdcode": markdown_code,
    }
    return templating.environment(escape, filters)


def prose(text: str) -> Any:
    """Words with `code` between backticks, escaped; a lone backtick stays what it is."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(p) if n % 2 and p else escape(p) for n, p in enumerate(parts)
    )


def breakable(text: str) -> Any:
    """A path that may be broken after its slashes."""
    from markupsafe import Markup, escape

    return Markup("/<wbr>").join(escape(p) for p in text.split("/"))


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_BUTTONS = (
    N_("Copy"),
    N_("Copy the command"),
    N_("Copy the line"),
    N_("Copied"),
    N_("Not allowed"),
    N_("{n} of {all}"),
    N_("None of {all} fits"),
    N_("{first} to {last} UTC"),
    N_("Zoom of the timeline"),
    N_("Zoom out"),
    N_("Zoom in"),
    N_("Zoom to {name}"),
    N_("Earlier"),
    N_("Later"),
    N_("all"),
    N_("Show all"),
    N_("In the drawing: + and −, ← and →, 0; drag, or turn the wheel with Ctrl."),
    N_("its row"),
    N_("Save as JSON"),
)
"""Texts of report.js."""


def html(doc: Doc, lang: str = "en") -> str:
    """The whole page, its own words in `lang` (language.LANGUAGES). `doc` as in incident.schema.json; the same document
    gives the same bytes."""
    with language.speaking(lang):
        return _html(doc)


def _html(doc: Doc) -> str:
    style, script = (templating.source("report.css") or "").strip(), (templating.source("report.js") or "").strip()
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    template = _environment(True).get_template("report.html.j2")
    return template.render(
        page=_page(doc),
        language=language.current(),
        words="" if language.current() == "en" else json.dumps({w: _(w) for w in _BUTTONS}, ensure_ascii=False),
        style=style,
        script=script,
        policy=policy,
        data=embedded(doc),
    )


# --- the ticket -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketLine:
    label: str
    text: str
    code: str = ""
    """A log line or command, quoted."""


NOTHING_FAILED = N_("No failure was found in these files")
NOTHING_READ = N_("Nothing in these files could be read as a log")


def _readable(doc: Doc) -> bool:
    """Some file was understood: only then does the absence of a failure mean something."""
    return any(r["status"] in ("read", "partial") and r["format"] != "unknown" for r in doc["inputs"])


def _primary(doc: Doc) -> Doc:
    """The incident that the ticket is about."""
    wanted = doc.get("primary")
    found: Doc = next((i for i in doc["incidents"] if i["id"] == wanted), doc["incidents"][0])
    return found


def _ticket_rows(doc: Doc) -> list[TicketLine]:
    lookup = Lookup(doc)
    incidents = doc["incidents"]
    tool = f"nccl-forensics {clean(doc['tool']['version'], 40)}, {_inputs_summary(doc)}"
    if not incidents:
        rows = [
            TicketLine(label=_("Result"), text=_(NOTHING_FAILED if _readable(doc) else NOTHING_READ)),
            TicketLine(label=_("Seen"), text=_coverage(doc)),
        ]
        rows += [TicketLine(label=_("Problem"), text=clean(said(p["says"]), TICKET_CHARS)) for p in doc["problems"][:3]]
        return [*rows, TicketLine(label=_("Made by"), text=tool)]
    rows = []
    first = _primary(doc)
    if len(incidents) > 1:
        rows.append(TicketLine(label=_("Result"), text=_("{n} failures, in time order").format(n=len(incidents))))
        for i in incidents[:3] if first["id"] <= 3 else [*incidents[:2], first]:
            v, when = i["verdict"], micros(i["onset"] or i["detected"] or i.get("ended"))
            rows.append(
                TicketLine(
                    label=_("No. {n}").format(n=i["id"]),
                    text=(f"{_start(i)}: " if i.get("job") else "")
                    + f"{_headline(v, lookup.host_of)} ({_(STATUS_WORDS[v['status']]).lower()}, {_sure(v)}), "
                    + (_("time not known") if when is None else f"{moment(when, i.get('onset_uncertainty_s'))} UTC"),
                )
            )
        if len(incidents) > 3:
            rows.append(
                TicketLine(label=_("More"), text=_("{n} more failures are in the report").format(n=len(incidents) - 3))
            )
    verdict = first["verdict"]
    facts = dict(_facts(first, lookup))
    if len(incidents) == 1:
        rows.append(TicketLine(label=_("Result"), text=f"{_headline(verdict, lookup.host_of)} ({_sure(verdict)})"))
    if _("Job") in facts:
        rows.append(TicketLine(label=_("Job"), text=clean(facts[_("Job")], TICKET_CHARS)))
    rows.append(TicketLine(label=_("Summary"), text=clean(said(verdict["summary"]), TICKET_CHARS)))
    if len(incidents) == 1:
        rows.append(TicketLine(label=_("What"), text=facts[_("What")]))
        rows.append(TicketLine(label=_("When"), text=facts[_("When")]))
    for item in verdict["evidence"][: 2 if len(incidents) == 1 else 1]:
        rows.append(
            TicketLine(
                label=_("Evidence"),
                text=lookup.where(item.get("source"), item.get("line")),
                code=clean(item.get("text") or said(item["says"]), 160),
            )
        )
    if blameless := _not_to_blame(verdict):
        left = len(blameless) - 1
        more = _(" ({n} more cleared in the report)").format(n=left) if left else ""
        rows.append(
            TicketLine(label=_("Not to blame"), text=clean(f"{blameless[0][0]}: {blameless[0][1]}", 240) + more)
        )
    unknown = [clean(said(x), 240) for x in verdict["missing_evidence"][:1]]
    if excluded := listed(verdict.get("cannot_exclude")):
        unknown.insert(0, _("cannot be excluded: {ranks}").format(ranks=ranks_words(excluded)))
    if unknown:
        rows.append(TicketLine(label=_("Not known"), text="; ".join(unknown)))
    for label, action in zip((_("Do first"), _("Then")), verdict["actions"], strict=False):
        rows.append(
            TicketLine(label=label, text=clean(said(action["do"]), 240), code=clean(action.get("command") or "", 240))
        )
    rows = rows[: TICKET_LINES - 1]
    return [*rows, TicketLine(label=_("Made by"), text=tool)]


def ticket(doc: Doc, lang: str = "en") -> str:
    """Plain text for a terminal or a ticket: at most 12 lines, no control characters, a newline at the end."""
    with language.speaking(lang):
        rows = _ticket_rows(doc)
    width = max(len(r.label) for r in rows) + 2
    lines = [f"{r.label + ':':<{width}}{r.text}{'  ' + r.code if r.code else ''}" for r in rows]
    return "".join(line[: 2 * TICKET_CHARS].rstrip() + "\n" for line in lines)


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def markdown_text(text: str) -> str:
    """`text` with everything that Markdown or HTML could take for markup escaped."""
    return _MARKDOWN.sub(r"\\\1", text)


def markdown_code(text: str) -> str:
    """`text` as a code span, whatever backticks it holds (CommonMark §6.1)."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"


def markdown(doc: Doc, lang: str = "en") -> str:
    """The ticket as Markdown: the same rows, at most 12 lines."""
    with language.speaking(lang):
        return _environment(False).get_template("ticket.md.j2").render(rows=_ticket_rows(doc))
