"""The report page and the ticket, from made-up documents (report_docs.py)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections import Counter
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import report_docs
from report_docs import HOSTILE, at

from nccl_forensics import catalog
from nccl_forensics.show import pictures, ticket, wait_graph
from nccl_forensics.show.page.facts import when_words
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.words import kind_words
from nccl_forensics.show.report import html, markdown
from nccl_forensics.text import moments, phrases

SCHEMA = json.loads(files("nccl_forensics.catalog").joinpath("incident.schema.json").read_text(encoding="utf-8"))
NAMES = sorted(report_docs.ALL)
VOID = {"meta", "input", "br", "wbr", "line", "path", "circle", "rect"}


class Reader(HTMLParser):
    """What a browser would see, as far as the tests ask."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.headings: list[int] = []
        self.attributes: set[str] = set()
        self.tags: Counter[str] = Counter()
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self.scripts: list[dict[str, str | None]] = []
        self.policy = ""
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags[tag] += 1
        self.attributes.update(given)
        if given.get("id"):
            self.ids[str(given["id"])] += 1
        if tag == "a":
            self.links.append(str(given.get("href")))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "script":
            self.scripts.append(given)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(given["content"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag == "p" and self.open[-1] != "p":
            raise AssertionError("a paragraph was closed twice")
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.inline:
            self.inline[self.open[-1]].append(data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: html(make()) for name, make in report_docs.ALL.items()}


@pytest.fixture(scope="module")
def read(pages: dict[str, str]) -> dict[str, Reader]:
    return {name: Reader(page) for name, page in pages.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_keep_the_contract(name: str) -> None:
    jsonschema.validate(report_docs.ALL[name](), SCHEMA)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_well_formed_and_its_links_arrive(name: str, read: dict[str, Reader]) -> None:
    page = read[name]
    assert page.open == []
    assert [i for i, n in page.ids.items() if n > 1] == []
    assert [x for x in page.links if not x.startswith("#") or x[1:] not in page.ids] == []
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_fetched_and_only_our_script_runs(name: str, read: dict[str, Reader]) -> None:
    page = read[name]
    assert not page.attributes & {"src", "srcset", "style", "action", "onload", "onerror", "onclick", "poster", "data"}
    assert not set(page.tags) & {"img", "iframe", "object", "embed", "link", "base", "video", "foreignobject"}
    assert [s.get("type") for s in page.scripts] == [f"application/{'zlib' if name == 'large' else 'json'}", None]
    hashes = {
        kind: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for kind, text in (("style", page.inline["style"][0]), ("script", page.inline["script"][-1]))
    }
    assert page.policy.split("; ")[0] == "default-src 'none'"
    assert f"style-src {hashes['style']}" in page.policy
    assert f"script-src {hashes['script']}" in page.policy
    assert "unsafe" not in page.policy
    assert not re.search(r"url\((?!#)|@import", page.inline["style"][0])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "large"])
def test_the_same_document_gives_the_same_bytes(name: str, pages: dict[str, str]) -> None:
    assert html(report_docs.ALL[name]()) == pages[name]
    assert pages[name].encode("utf-8").decode() == pages[name]


@pytest.mark.parametrize(
    ("name", "limit"),
    [("workstation", 300_000), ("hostile", 300_000), ("two-incidents", 300_000), ("large", 2_000_000)],
)
def test_a_page_is_small_enough_to_mail(name: str, limit: int, pages: dict[str, str]) -> None:
    assert len(pages[name].encode()) <= limit


@pytest.mark.parametrize("name", NAMES)
def test_the_analysis_is_inside(name: str, read: dict[str, Reader]) -> None:
    kind, text = read[name].scripts[0]["type"], read[name].inline["script"][0]
    if name == "large":
        assert kind == "application/zlib"
        text = zlib.decompress(base64.b64decode(text, validate=True)).decode()
    assert json.loads(text) == report_docs.ALL[name]()


def test_hostile_text_stays_text(pages: dict[str, str], read: dict[str, Reader]) -> None:
    page = pages["hostile"]
    plain = read["workstation"]
    seen = Reader(page)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", page)
    assert seen.tags["script"] == plain.tags["script"]
    assert "onerror" not in seen.attributes
    for text in (HOSTILE[0], HOSTILE[1], HOSTILE[3], r"\x1b[31mred\x1b[0m \x00 \u202egnp.exe"):
        assert text in seen.text
    assert seen.ids["i1-e1"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_ticket_has_twelve_lines_at_most(name: str) -> None:
    doc = report_docs.ALL[name]()
    for text in (ticket.ticket(doc), markdown(doc)):
        assert 3 <= len(text.splitlines()) <= 12
        assert text.endswith("\n")
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u2028-\u202e\ud800-\udfff]", text)
        text.encode("utf-8")


def test_markdown_of_hostile_text_holds_no_markup() -> None:
    text = markdown(report_docs.hostile())
    outside = re.sub(r"(?<![\\`])(`+) .*? \1(?!`)", "", text)
    assert not re.search(r"(?<!\\)[<>\[]", outside)
    assert not re.search(r"(?<!\\)\*\*bold", outside)


FIRST_SCREEN = {
    "workstation": [
        "Identified high confidence, 0.96",
        "Rank 3 on kentino-ai-04 (GPU 3 at 0000:4b:00.0): GPU fell off the bus",
        "all_reduce no. 842 in process group default_pg; 7 of 8 ranks had entered; missing: rank 3; timeout 30 min",
        "2026-04-22 03:14:17.000 UTC ± 20 ms; noticed 30 min later",
        "Power kentino-ai-04 off, reseat GPU 3",
        "It reported the timeout first. It had entered the collective and waited.",
        "8 of 8 known ranks left data",
        "6.8 GPU hours",
    ],
    "large": [
        "Suspected medium confidence, 0.71",
        "Probably rank 517 on node0064: ",
        "1,013 of 1,024 known ranks left data; nothing from ranks 7, 108",
        "Ranks 0–516, 518–1023 (1,023 ranks)",
        "No file or setting is known that would settle it.",
    ],
    "undetermined": [
        "Cannot tell the likeliest explanation has 0.20 of 1",
        "These files do not tell who caused the timeout",
        "Nobody is named",
        "Cannot be excluded: ranks 0, 1, 3.",
        "No time of the failure is in these files",
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    ],
    "deadlock": ["No single rank is to blame", "They wait for each other: no single one is to blame."],
    "healthy": ["Nothing failed", "No failure was found in these files"],
    "two-incidents": ["2 failures were found", "Failure 1: Identified", "Failure 2: Identified"],
}


@pytest.mark.parametrize("name", sorted(FIRST_SCREEN))
def test_the_first_screen_says_it(name: str, read: dict[str, Reader]) -> None:
    text = read[name].text
    assert [x for x in FIRST_SCREEN[name] if x not in text] == []


def test_no_rank_is_named_where_nobody_can_be(pages: dict[str, str]) -> None:
    """A page that abstains must not put a rank into its title or its first action."""
    for name in ("undetermined", "deadlock", "healthy"):
        title = re.search("<title>(.*?)</title>", pages[name])
        assert title
        assert not re.search(r"rank \d", title[1], re.IGNORECASE)


def test_unknown_is_never_a_number(read: dict[str, Reader]) -> None:
    text = read["undetermined"].text
    assert "n/a" in text
    assert not re.search(r"(?<![\w.–-])-1(?!\d)", text)
    assert not re.search(r"\bNone\b(?!\.)|\bnan\b", text)


def test_sections_do_not_vanish(read: dict[str, Reader]) -> None:
    shared = {"hardware", "clocks", "problems", "inputs", "events", "analysis"}
    for name in NAMES:
        ids = set(read[name].ids)
        assert shared <= ids
        for incident in report_docs.ALL[name]()["incidents"]:
            parts = ("evidence", "timeline", "groups", "alternatives")
            assert {f"incident-{incident['id']}-{part}" for part in parts} <= ids


def test_facts_and_inferences_look_different(pages: dict[str, str]) -> None:
    assert pages["workstation"].count('class="inference"') == 1
    assert 'id="i1-xid79"' in pages["workstation"]


def test_optional_keys_may_be_absent() -> None:
    """The contract's required keys alone give a page."""
    doc = report_docs.workstation()
    for key in ("command", "timezone", "redacted"):
        del doc["tool"][key]
    for row in doc["inputs"]:
        for key in ("sha256", "reason", "host", "rank", "first_time", "last_time"):
            del row[key]
    for row in doc["ranks"]:
        for key in (
            "local_rank",
            "pid",
            "waiting_on",
            "last_enqueued",
            "last_started",
            "last_completed",
            "exit",
            "note",
        ):
            del row[key]
    for row in doc["clocks"]:
        row.pop("note")
    for row in doc["events"]:
        for key in ("time_uncertainty_s", "time_basis", "severity", "fields", "repeats", "key", "cause", "gpu_pci"):
            del row[key]
    for host in doc["hosts"]:
        host["gpus"] = [{"host": None, "index": None, "pci": None}]
    incident = doc["incidents"][0]
    for key in ("groups", "waits", "onset_uncertainty_s", "ended", "contributing", "cost"):
        del incident[key]
    incident["collective"] = {"process_group": None, "op": None, "seq": None}
    incident["verdict"]["culprit_gpus"] = [{"host": None, "index": None, "pci": None}]
    for key in ("cleared", "cannot_exclude"):
        del incident["verdict"][key]
    incident["verdict"]["evidence"] = [{"says": "It is so.", "source": None, "line": None}]
    incident["verdict"]["actions"] = [{"do": "Look.", "because": "It is not clear."}]
    jsonschema.validate(doc, SCHEMA)
    page = Reader(html(doc))
    assert page.open == []
    assert "It is so." in page.text
    assert len(ticket.ticket(doc).splitlines()) <= 12


def test_events_without_a_time_are_listed_not_drawn() -> None:
    doc = report_docs.workstation()
    text = Reader(html(doc)).text
    assert "Without a time, so not drawn: process ended, SIGABRT, host not known, system logs/torchrun.err:77" in text
    for event in doc["events"]:
        event |= {"time": None, "time_basis": "none", "time_uncertainty_s": None}
    page = html(doc)
    assert "No drawing: none of the key events carries a complete time" in Reader(page).text
    assert 'class="lanes"' not in page


@pytest.mark.parametrize(
    ("gap_s", "same_file", "said"), [(0.03, False, True), (0.05, False, False), (0.03, True, False)]
)
def test_order_closer_than_the_error_bars_is_not_claimed(gap_s: float, same_file: bool, said: bool) -> None:
    doc = report_docs.deadlock()
    first, second = doc["events"][:2]
    second |= {"time": at(gap_s)} | ({"source": first["source"]} if same_file else {})
    doc["events"] = [first, second]
    assert ("may be before 1" in Reader(html(doc)).text) is said


@pytest.mark.slow
def test_many_thousand_ranks_share_rows() -> None:
    doc = report_docs.large(4096)
    page = html(doc)
    assert len(page.encode()) <= 2_500_000
    seen = Reader(page)
    assert "hosts alike" in seen.text
    assert "3,072 more ranks are in the embedded data." in seen.text


def test_the_event_table_says_how_much_is_left_off(read: dict[str, Reader]) -> None:
    doc = report_docs.large()
    shown = re.search(r"([\d,]+) events, ([\d,]+) shown", read["large"].text)
    assert shown
    assert int(shown[1].replace(",", "")) == len(doc["events"])
    assert 100 < int(shown[2].replace(",", "")) < len(doc["events"])


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "3"), ([0, 1], "0, 1"), ([0, 1, 2, 5], "0–2, 5"), ([5, 5, 4], "4, 5"), (range(0, 60, 2), None)],
)
def test_ranks_as_ranges(ranks: list[int], words: str | None) -> None:
    text = phrases.ranges(ranks)
    assert text == words if words else text.endswith(" and 18 more")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0005, "0.5 ms"),
        (0.02, "20 ms"),
        (1.25, "1.2 s"),
        (1800, "30 min"),
        (9000, "2.5 h"),
        (0, "0 s"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert phrases.duration(seconds, brief=True) == words


@pytest.mark.parametrize("text", ["2026-13-45T00:00:00.000000Z", "", "now", None, 5, "2026-04-22"])
def test_a_time_that_is_none_is_not_known(text: object) -> None:
    at_us = moments.micros(text)
    assert at_us is None or text == "2026-04-22"


# --- drawings ---------------------------------------------------------------------------------------------------------


def _moment(number: int, seconds: float, **more: object) -> pictures.Moment:
    known: dict[str, object] = {
        "number": number,
        "lane": ("h", f"rank {number}"),
        "at_us": round(seconds * 1e6),
        "error_us": 0,
        "role": "symptom",
        "label": "",
        "href": "",
    }
    return pictures.Moment(**(known | more))  # type: ignore[arg-type]


def test_marks_keep_their_order_and_their_lanes() -> None:
    picture = pictures.timeline([_moment(n, n * 10) for n in range(1, 6)], {"onset": (0, 10**6)})
    assert picture
    assert [lane.who for lane in picture.lanes] == [f"rank {n}" for n in range(1, 6)]
    places = [lane.marks[0].x for lane in picture.lanes]
    assert places == sorted(places)
    assert picture.guides[0].low <= picture.guides[0].x <= picture.guides[0].high


def test_marks_that_would_cover_each_other_are_stacked() -> None:
    lane = ("h", "rank 0")
    picture = pictures.timeline([_moment(1, 0, lane=lane), _moment(2, 0.1, lane=lane), _moment(3, 100, lane=lane)], {})
    assert picture
    heights = [mark.y for mark in picture.lanes[0].marks]
    assert heights[0] != heights[1]
    assert heights[0] == heights[2]


def test_an_event_of_another_day_does_not_squeeze_the_incident() -> None:
    picture = pictures.timeline([_moment(1, -86_400), _moment(2, 0), _moment(3, 60)], {"onset": (0, 0)})
    assert picture
    assert picture.outside == (1,)
    assert [lane.who for lane in picture.lanes] == ["rank 2", "rank 3"]


def test_many_lanes_share_one_and_are_counted() -> None:
    picture = pictures.timeline([_moment(n, 1, weight=n == 500) for n in range(1, 1001)], {"onset": (0, 0)})
    assert picture
    assert len(picture.lanes) == pictures.MAX_LANES + 1
    assert "rank 500" in [lane.who for lane in picture.lanes]
    assert sum(len(lane.marks) + lane.more for lane in picture.lanes) == 1000


def test_alike_waiters_share_a_node() -> None:
    graph = wait_graph.graph((r, [3]) for r in range(8) if r != 3)
    assert graph
    assert [node.ranks for node in graph.nodes if node.sink] == [(3,)]
    assert len(graph.nodes) == 2
    assert not graph.cycle


@pytest.mark.parametrize("count", [2, 3, 24])
def test_a_circle_has_no_sink(count: int) -> None:
    graph = wait_graph.graph((r, [(r + 1) % count]) for r in range(count))
    assert graph
    assert graph.cycle
    assert len(graph.edges) == count
    assert all(0 <= n.x <= graph.width and 0 <= n.y <= graph.height for n in graph.nodes)


def test_a_graph_that_nobody_could_read_is_not_drawn() -> None:
    assert wait_graph.graph((r, [r + 1]) for r in range(100)) is None
    assert wait_graph.graph((r, range(500)) for r in range(500, 1000)) is None
    assert wait_graph.graph([]) is None


def test_every_kind_of_event_has_a_name() -> None:
    """Of the kernel's catalogue, and all that the parsers' cases give."""
    kinds = {entry["id"] for entry in catalog.load("kernel")["entry"]}
    for case in (Path(__file__).parent / "cases" / "parsers").glob("*/*.json"):
        kinds.update(re.findall('"kind": "([a-z0-9-]+)"', case.read_text(encoding="utf-8")))
    assert len(kinds) > 200
    assert kinds - catalog.kinds().keys() == set()
    assert kind_words({"kind": "brand-new"}) == "brand new"


def test_no_word_of_a_template_is_missing_from_the_package() -> None:
    folder = Path(str(files("nccl_forensics.templates")))
    names = {p.name for p in folder.iterdir() if p.suffix in {".j2", ".css", ".js"}}
    wanted = set(
        re.findall(r"""include "([^"]+)"|import "([^"]+)\"""", "".join(p.read_text() for p in folder.glob("*.j2")))
    )
    assert {a or b for a, b in wanted} <= names


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "ranks", "hosts", "status", "headline"),
    [
        ("rank_not_arrived", [5], ["node-a"], "identified", "Rank 5 on node-a never entered the collective"),
        ("rank_not_arrived", [5], [], "suspected", "Probably rank 5 never entered the collective"),
        ("rank_busy", [5, 6], [], "identified", "Ranks 5, 6 were busy elsewhere for longer than the timeout"),
        ("gpu_stall", [5], [], "identified", "Rank 5: the rank's GPU was stuck in an earlier kernel"),
        ("cuda_oom", [2], ["node-a"], "identified", "Rank 2 on node-a: CUDA out of memory"),
        ("node_lost", [], ["node-a"], "identified", "Host node-a went down"),
        (
            "host_oom_kill",
            [0],
            ["node-a"],
            "identified",
            "Rank 0 on node-a: the kernel killed a process: host out of memory",
        ),
        ("fabric_error", [], [], "suspected", "Probably: The network fabric lost traffic. No single rank is to blame"),
        ("node_lost", [], [], "identified", "A node went down. Which one, these files do not tell"),
        ("undetermined", [], [], "undetermined", "These files do not tell who caused the timeout"),
        ("brand_new_cause", [9], [], "identified", "Rank 9: brand new cause"),
    ],
)
def test_headlines(cause: str, ranks: list[int], hosts: list[str], status: str, headline: str) -> None:
    doc = report_docs.deadlock()
    verdict = doc["incidents"][0]["verdict"]
    verdict |= {"cause": cause, "culprit_ranks": ranks, "culprit_hosts": hosts, "status": status}
    assert f"<title>{headline.replace(chr(39), '&#39;')}</title>" in html(doc)
    assert headline in ticket.ticket(doc)


def test_the_same_cause_elsewhere_is_not_offered_as_another() -> None:
    doc = report_docs.workstation()
    verdict = doc["incidents"][0]["verdict"]
    verdict["alternatives"][0] |= {"cause": "gpu_off_bus", "culprit_ranks": [], "confidence": 0.04}
    verdict["culprit_gpus"][0]["index"] = None
    text = Reader(html(doc)).text
    assert "High, 0.96 of 1" in text
    assert "the next best explanation" not in text
    assert "Rank 3 on kentino-ai-04 (GPU 0000:4b:00.0): GPU fell off the bus" in text


def test_lines_that_say_the_same_are_one_step() -> None:
    doc = report_docs.workstation()
    rows = doc["incidents"][0]["verdict"]["evidence"]
    rows[2:2] = [rows[1] | {"says": "also: " + rows[1]["says"], "line": 90_000 + n, "id": None} for n in range(9)]
    page = Reader(html(doc))
    assert page.text.count(rows[1]["says"]) == 1
    assert page.ids["i1-xid79"] == page.ids["i1-e3"] == 1
    assert "4 more lines are in the embedded data." in page.text


def test_a_line_that_only_repeats_itself_belongs_to_the_step_before() -> None:
    doc = report_docs.workstation()
    rows = doc["incidents"][0]["verdict"]["evidence"]
    beside = {"says": f"Beside it, in rank0.log: {rows[3]['text'][:120]}", "weight": None}
    rows[2:2] = [rows[3] | beside]
    rows[5:5] = [rows[4] | beside | {"weight": 0.5}]
    page = html(doc)
    assert page.count('<a class="self"') == 6
    assert page.count('<li id="i1-') == 6
    assert 'id="i1-e3"' in page


def test_ranks_cleared_for_the_same_reason_share_a_row() -> None:
    doc = report_docs.workstation()
    known = {"gpu_pci": None, "source": None, "line": None, "text": None, "why": "waits for rank 3"}
    doc["incidents"][0]["verdict"]["cleared"] = [known | {"who": f"Rank {r}", "rank": r} for r in (0, 1, 2, 4, 5, 6, 7)]
    text = Reader(html(doc)).text
    assert re.search(r"Ranks 0–2, 4–7 \(7 ranks\)\s*Waits for rank 3\.", text)
    assert "They reported the failure" not in text


@pytest.mark.parametrize(
    ("paths", "base"),
    [
        (["/var/lib/tickets/4711/a.log", "/var/lib/tickets/4711/b/c.log"], "/var/lib/tickets/4711/"),
        (["/var/lib/tickets/4711/a.log"], "/var/lib/tickets/4711/"),
        (["/var/lib/tickets/47/a.log", "/var/lib/tickets/48/a.log"], "/var/lib/tickets/"),
        (["pile/a.log", "pile/b.log"], ""),
        (["-", "/var/lib/tickets/4711/b.log"], ""),
        (["/var/lib/tickets/x.tar!a/1", "/var/lib/tickets/x.tar!a/2"], ""),
        ([], ""),
    ],
)
def test_the_folder_of_all_inputs_is_said_once(paths: list[str], base: str) -> None:
    doc = report_docs.healthy()
    doc["inputs"] = [report_docs.input_row(path) for path in paths]
    page = html(doc)
    assert ("Paths in this report are below" in page) is bool(base)
    if base:
        assert f"below <code>{base}</code>" in page


def test_a_pile_that_nobody_can_read_is_not_called_healthy() -> None:
    doc = report_docs.healthy()
    for row in doc["inputs"]:
        row["status"] = "failed"
    for text in (Reader(html(doc)).text, ticket.ticket(doc)):
        assert "Nothing in these files could be read as a log" in text
        assert "Nothing failed" not in text
        assert "No failure was found" not in text


def test_a_moment_without_a_zone_or_a_year_is_shown_as_it_was_written() -> None:
    lookup = Lookup({"inputs": [], "events": [], "ranks": [], "hosts": []})
    told = {"onset": "2026-03-10T21:17:08.500000Z", "detected": None, "onset_uncertainty_s": 1.0}
    assert when_words(told, lookup) == "2026-03-10 21:17:08 UTC ± 1 s"
    assert when_words({**told, "zone_not_written": True}, lookup) == "2026-03-10 21:17:08 (zone not written) ± 1 s"
    nothing = {"onset": None, "detected": None}
    assert when_words(nothing, lookup) == "No time of the failure is in these files"
    written = "19 September 16:18:02 (year not known)"
    assert when_words({**nothing, "onset_written": written}, lookup) == written
    noticed = {**nothing, "detected": "2026-03-10T21:17:08.000000Z", "zone_not_written": True}
    assert when_words(noticed, lookup) == "Onset not known; noticed 2026-03-10 21:17:08 (zone not written)"
