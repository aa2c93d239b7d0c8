"""The page in a real browser, as somebody uses it: by mouse and keys, on a phone and a wall, on paper, unscripted.

Needs Chromium (Debian's `chromium`) and `pip install -e '.[browser]'`; skipped where one is missing. Every page that is
opened must ask for nothing, say nothing on the console and raise nothing.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pages  # noqa: E402
import report_docs  # noqa: E402
from test_cli import ended, run  # noqa: E402

from nccl_forensics.show.report import html  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MISSING = [
    *([] if pages.CHROMIUM else ["Chromium"]),
    *(name for name in ("playwright", "axe_playwright_python") if not importlib.util.find_spec(name)),
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"the page is not tried in a browser: no {', no '.join(MISSING)}"),
]

WIDTHS = (360, 768, 1440, 3840)
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def crowded() -> Any:
    """More alike events on one rank than a picture can hold."""
    doc = report_docs.workstation()
    doc["events"] += [report_docs.timeout(0, "kentino-ai-04", 1830 + n, line=5000 + n) for n in range(40)]
    return doc


def sample() -> str:
    """The page of a whole incident."""
    return str(run("analyze", HERE.parents[1] / "samples" / "riser-xid79", "-o", "-", "--quiet").stdout)


PAGES: dict[str, Callable[[], str]] = {
    "crowded": lambda: html(crowded()),
    **{name: lambda made=made: html(made()) for name, made in report_docs.ALL.items() if name != "large"},
    "packed-german": lambda: html(report_docs.large(64), "de"),
    "large": lambda: html(report_docs.large()),
    "sample": sample,
}
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with pages.chromium() as started:
        yield started


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A made-up page by its name, written once."""
    folder = tmp_path_factory.mktemp("pages")

    def file(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(PAGES[name](), encoding="utf-8")
        return path

    return file


@pytest.fixture
def show(browser: Browser, files: Callable[[str], Path]) -> Iterator[Open]:
    """Opens a page by its name or place. Whatever a test does with it, it must stay silent."""
    with ExitStack() as stack:
        shown: list[pages.Opened] = []

        def open_(name: str | Path, **more: Any) -> Page:
            path = files(name) if isinstance(name, str) else name
            shown.append(stack.enter_context(pages.opened(browser, path, **more)))
            return shown[-1].page

        yield open_
        assert [wrong for one in shown for wrong in one.wrong] == []


def axe() -> str:
    package = importlib.util.find_spec("axe_playwright_python")
    assert package
    assert package.origin
    return Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")


# --- for everybody ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["workstation", "undetermined", "two-incidents", "hostile"])
def test_axe_finds_nothing(show: Open, name: str, theme: str) -> None:
    """WCAG 2.2 AA, as far as a program can tell; unfolded but for the events, which would take axe a minute."""
    page = show(name, width=1440 if theme == "light" else 360, color_scheme=theme)
    page.evaluate("document.querySelectorAll('main > :not(#events) details').forEach((one) => { one.open = true; })")
    page.evaluate(axe())  # not bound by the page's policy
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    assert [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in found] == []


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(show: Open, name: str) -> None:
    page = show(name)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(TOO_WIDE) <= 0, width


@pytest.mark.parametrize("name", PAGES)
def test_the_first_screen_holds_who_and_what_to_do(show: Open, name: str) -> None:
    """Of a laptop: the headline, and the first thing to do or the failures to choose from."""
    page = show(name)
    for part in ("h1", ".do .act, .strip a, .summary"):
        box = page.locator(f"main :is({part})").first.bounding_box()
        assert box
        assert box["y"] + box["height"] <= 900, part


@pytest.mark.parametrize("name", ["workstation", "undetermined", "healthy", "two-incidents", "large"])
def test_without_javascript_nothing_is_missing_and_nothing_is_dead(show: Open, name: str) -> None:
    with_script, without = show(name), show(name, java_script_enabled=False)
    assert (
        without.locator("button:visible, input:visible, select:visible, .hint:visible, [hidden]:visible").count() == 0
    )
    kept = (
        "(main) => { const copy = main.cloneNode(true);"
        "copy.querySelectorAll('button, .zoom, .card, form, .hint').forEach((one) => one.remove());"
        "return copy.textContent; }"
    )
    assert without.locator("main").evaluate(kept) == with_script.locator("main").evaluate(kept)
    folded = without.locator("details:not([open]) > summary")
    for _ in range(folded.count()):
        folded.first.click()
    assert folded.count() == 0


# --- the timeline -----------------------------------------------------------------------------------------------------


class Lanes:
    """The timeline of the workstation's page: where its marks are drawn, percent of the width."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.region = page.locator(".scroll:has(.lanes)").first
        self.lanes = page.locator(".lanes").first
        self.said = page.locator(".zoom output").first
        self.drawing = page.locator(".lanes .lane:not(.axis) > svg").first

    def places(self) -> list[float]:
        marks = (
            "(lanes) => [...lanes.querySelectorAll('.mark, rect.wait')].map((one) => parseFloat(one.getAttribute('x')))"
        )
        found: list[float] = self.lanes.evaluate(marks)
        return found

    def box(self) -> dict[str, float]:
        self.drawing.scroll_into_view_if_needed()
        box = self.drawing.bounding_box()
        assert box
        return dict(box)

    def spread(self) -> float:
        places = self.places()
        return max(places) - min(places)


@pytest.fixture
def lanes(show: Open) -> Lanes:
    return Lanes(show("workstation"))


def test_the_timeline_zooms_and_pans_by_keyboard(lanes: Lanes) -> None:
    whole, wide = lanes.places(), lanes.spread()
    lanes.region.focus()
    lanes.page.keyboard.press("+")
    assert lanes.spread() == pytest.approx(2 * wide, rel=0.01)
    assert "UTC" in lanes.said.inner_text()
    before = lanes.places()
    lanes.page.keyboard.press("ArrowRight")
    moved = [b - a for a, b in zip(before, lanes.places(), strict=True)]
    assert all(x == pytest.approx(-20, abs=0.1) for x in moved), "a fifth of the window"
    lanes.page.keyboard.press("Home")
    assert min(lanes.places()) == pytest.approx(2 * min(whole), abs=0.1)
    lanes.page.keyboard.press("End")
    assert max(lanes.places()) == pytest.approx(100 - 2 * (100 - max(whole)), abs=0.1)
    lanes.page.keyboard.press("-")
    assert lanes.places() == pytest.approx(whole, abs=0.01)
    for _ in range(3):
        lanes.page.keyboard.press("+")
    lanes.page.keyboard.press("0")
    assert lanes.places() == pytest.approx(whole, abs=0.01)
    assert lanes.said.inner_text() == ""


def test_the_timeline_zooms_and_pans_by_mouse(lanes: Lanes) -> None:
    whole, wide = lanes.places(), lanes.spread()
    box = lanes.box()
    mouse = lanes.page.mouse
    mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    scrolled = lanes.page.evaluate("scrollY")
    lanes.page.keyboard.down("Control")
    mouse.wheel(0, -100)
    pages.until(lanes.page, "!!document.querySelector('.lanes.close')")
    lanes.page.keyboard.up("Control")
    assert lanes.spread() == pytest.approx(1.5 * wide, rel=0.01)
    assert lanes.page.evaluate("scrollY") == scrolled, "the page stays where it is"
    before = lanes.places()
    mouse.down()
    mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2, steps=4)
    mouse.up()
    assert all(b - a == pytest.approx(-25, abs=0.6) for a, b in zip(before, lanes.places(), strict=True))
    lanes.page.locator(".zoom button", has_text="all").click()
    assert lanes.places() == pytest.approx(whole, abs=0.01)
    mouse.wheel(0, 100)
    assert lanes.places() == pytest.approx(whole, abs=0.01), "without Ctrl the wheel scrolls the page"


def test_the_buttons_of_the_timeline(lanes: Lanes) -> None:
    wide = lanes.spread()
    press = lambda name: lanes.page.get_by_role("button", name=name, exact=True).click()  # noqa: E731
    press("Zoom in")
    assert lanes.spread() == pytest.approx(2 * wide, rel=0.01)
    before = lanes.places()[0]
    press("Later")
    assert lanes.places()[0] < before
    press("Earlier")
    assert lanes.places()[0] == pytest.approx(before, abs=0.01)
    press("Zoom out")
    assert lanes.spread() == pytest.approx(wide, rel=0.01)
    press("Zoom to onset")
    onset = float(lanes.lanes.locator("line.guide.onset").first.get_attribute("x1").rstrip("%"))
    assert 40 < onset < 60
    assert lanes.lanes.locator("text.zoomed").count() >= 3, "the close view has an axis of its own"


def test_a_mark_that_is_reached_by_tab_comes_into_view(lanes: Lanes) -> None:
    lanes.page.get_by_role("button", name="Zoom to onset", exact=True).click()
    last = lanes.lanes.locator("a:has(.mark)").last
    assert float(last.locator(".mark").get_attribute("x").rstrip("%")) > 100
    last.focus()
    assert 0 <= float(last.locator(".mark").get_attribute("x").rstrip("%")) <= 100


def test_a_mark_leads_to_its_line(lanes: Lanes) -> None:
    mark = lanes.lanes.locator("a:has(.mark.cause)").last
    target = mark.get_attribute("href")
    mark.locator("path").click()
    assert lanes.page.evaluate("location.hash") == target
    assert lanes.page.locator(f"[id='{target[1:]}']").is_visible()


# --- the rank map -----------------------------------------------------------------------------------------------------


def test_the_rank_map_is_walked_by_keys(show: Open) -> None:
    page = show("packed-german")
    rank_map = page.locator(".map").first
    chosen = lambda: re.search(r"\d+", page.locator(".map .c.on").get_attribute("title"))[0]  # noqa: E731
    rank_map.focus()
    for keys, rank in (
        (["ArrowRight"], "0"),
        (["ArrowRight"], "1"),
        (["End"], "63"),
        (["Home"], "0"),
        (["4", "2"], "42"),
    ):
        for key in keys:
            page.keyboard.press(key)
        assert chosen() == rank, keys
    page.keyboard.press("ArrowDown")
    below = chosen()
    assert int(below) > 42
    page.keyboard.press("ArrowUp")
    assert chosen() == "42"
    card = page.locator(".card").first.inner_text()
    assert "42" in card
    assert "node0005" in card
    assert rank_map.get_attribute("aria-activedescendant") == page.locator(".map .c.on").get_attribute("id")
    page.keyboard.press("Enter")
    pages.until(page, "location.hash.endsWith('r42')")
    assert page.locator("tr:target").is_visible()
    rank_map.focus()
    page.keyboard.press("Escape")
    assert page.locator(".map .c.on").count() == 0


def test_a_cell_of_the_rank_map_tells_of_its_rank(show: Open) -> None:
    page = show("workstation")
    page.locator(".map .c.culprit").first.click()
    card = page.locator(".card").first
    assert "rank 3" in card.inner_text()
    assert "0000:4b:00.0" in card.inner_text()
    card.locator("a").click()
    assert page.locator("tr:target th").inner_text() == "3"


# --- finding ----------------------------------------------------------------------------------------------------------


def test_events_are_found_by_words_columns_and_roles(show: Open) -> None:
    page = show("workstation")
    page.locator("#events summary").click()
    form, rows = page.locator("#events form.filter"), page.locator("#event-table tbody tr:visible")
    whole = rows.count()
    box, role, said = form.locator("input"), form.locator("select"), form.locator("output")
    box.fill("watchdog")
    assert 0 < rows.count() < whole
    assert said.inner_text() == f"{rows.count()} of {whole}"
    box.fill("watchdog rank:5")
    assert [row.locator("td").nth(2).inner_text() for row in rows.all()] == ["5"]
    box.fill("gpu:0000:4b:00.0")
    assert rows.count() == 2
    role.select_option("consequence")
    assert said.inner_text() == f"None of {whole} fits"
    box.press("Escape")
    assert rows.count() == whole
    assert role.input_value() == ""
    box.fill("<b>")
    assert rows.count() == 0


def test_a_lane_leads_to_its_events(show: Open) -> None:
    page = show("crowded")
    link = page.locator("a.rest:visible").first
    wanted = link.get_attribute("data-find")
    link.click()
    assert page.locator("#events form.filter input").input_value() == wanted
    assert page.locator("#events details").get_attribute("open") is not None
    assert page.locator("#event-table tbody tr:visible").count() > 0


@pytest.mark.parametrize("name", ["two-incidents", "packed-german"])
def test_every_link_of_the_page_arrives_at_something_that_is_seen(show: Open, name: str) -> None:
    page = show(name)
    missed = page.evaluate(
        """async () => {
          const links = [...document.querySelectorAll("a[href^='#']")], missed = [];
          const targets = new Set(links.map((link) => link.getAttribute("href")));
          for (const target of targets) {
            location.hash = target;
            await new Promise((done) => setTimeout(done, 10));
            const box = document.getElementById(target.slice(1))?.getBoundingClientRect();
            if (!box?.height || box.top >= innerHeight || box.bottom <= 0) missed.push(target);
          }
          return missed;
        }"""
    )
    assert missed == []


def test_a_link_from_a_mail_opens_what_is_folded(show: Open) -> None:
    row = show("large").locator("#input-table tr[id]").last.get_attribute("id")
    page = show("large", hash=f"#{row}")
    box = page.locator(f"#{row}").bounding_box()
    assert box
    assert 0 <= box["y"] < 900


@pytest.mark.parametrize("allowed", [True, False])
def test_lines_and_commands_are_copied_as_they_are(show: Open, allowed: bool) -> None:
    """Also where the browser refuses its clipboard to the page: then in the old way."""
    page = show("workstation", permissions=["clipboard-read", "clipboard-write"])
    if not allowed:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    for place in ("pre.command", ".raw .hit"):
        button = page.locator(f"{place} button.copy").first
        text = button.evaluate("(button) => button.parentElement.firstChild.textContent")
        button.click()
        pages.until(page, "(button) => button.textContent === 'Copied'", button.element_handle())
        assert page.evaluate("navigator.clipboard.readText()") == text
    doc = report_docs.workstation()
    assert text in {e["text"] for e in doc["events"]}


@pytest.mark.parametrize("name", ["workstation", "packed-german"])
def test_the_analysis_can_be_saved(show: Open, name: str) -> None:
    page = show(name)
    with page.expect_download() as saved:
        page.locator("#data button").click()
    doc = report_docs.workstation() if name == "workstation" else report_docs.large(64)
    assert json.loads(saved.value.path().read_text(encoding="utf-8")) == json.loads(json.dumps(doc))


# --- on paper ---------------------------------------------------------------------------------------------------------

PAPER_PX = 703
"""A4, less the margins of the page's style: 186 mm at 96 a inch."""


@pytest.mark.parametrize("name", [n for n in PAGES if n != "large"])
def test_paper_cuts_nothing_off(show: Open, name: str) -> None:
    page = show(name, width=PAPER_PX)
    opened = page.locator("details[open]").count()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wide = page.evaluate(
        "[...document.querySelectorAll('main *, footer *')]"
        ".filter((one) => one.getClientRects().length && one.getBoundingClientRect().right > innerWidth + 1"
        " && !one.closest('svg') && !one.closest('#events details'))"
        ".map((one) => one.outerHTML.slice(0, 120))"
    )
    assert wide == []
    folded = "[...document.querySelectorAll('details:not([open])')].filter((one) => !one.closest('#events')).length"
    assert page.evaluate(folded) == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == opened


@pytest.mark.skipif(not shutil.which("pdftotext"), reason="no pdftotext")
@pytest.mark.parametrize("scripted", [True, False])
def test_the_printed_page_holds_all_but_the_list_of_events(show: Open, tmp_path: Path, scripted: bool) -> None:
    page = show("workstation", java_script_enabled=scripted)
    page.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True, format="A4")
    done = subprocess.run(["pdftotext", "-raw", "page.pdf", "-"], cwd=tmp_path, capture_output=True, check=True)
    paper = re.sub(r"\s+", "", done.stdout.decode())
    doc = report_docs.workstation()
    verdict = doc["incidents"][0]["verdict"]
    wanted = [verdict["summary"], *(e["says"] for e in verdict["evidence"]), *(a["do"] for a in verdict["actions"])]
    wanted += [a["why_not"] for a in verdict["alternatives"]] + [r["path"] for r in doc["inputs"]]
    wanted += [heading.inner_text() for heading in page.locator("main :is(h1, h2, h3)").all()]
    assert [text for text in wanted if re.sub(r"\s+", "", text) not in paper] == []


# --- hostile logs -----------------------------------------------------------------------------------------------------

LINES = {
    "markup": b"<script>alert(1)</script><img src=x onerror=alert(2)>",
    "an end of the data": b"</script></style><svg onload=alert(3)>",
    "colours": b"\x1b[31mred\x1b]0;title\x07",
    "right to left": "\u202egnp.exe\u2066".encode(),
    "nothing": b"a\x00b",
    "not text": b"\xff\xfe\x80",
    "a template": b"{{ 7 * 7 }}{% raw %}",
    "a length of 100 kB": b"x" * 100_000,
}


def test_hostile_lines_are_shown_as_text(show: Open, tmp_path: Path) -> None:
    """A whole analysis of a log of them, each in a line that becomes evidence or an event."""
    log = tmp_path / "kern.log"
    line = (
        b"2026-11-25T10:%02d:00.1+00:00 n1 kernel: [ 50%02d.1] NVRM: Xid (PCI:0000:c1:00): 79, pid='%b', "
        b"GPU has fallen off the bus.\n"
    )
    log.write_bytes(b"".join(line % (n, n, text) for n, text in enumerate(LINES.values())))
    path = tmp_path / "page.html"
    ended(run("analyze", log, "-o", path, "--quiet"), 0)
    page = show(path)
    assert page.locator("script").count() == 2
    assert page.locator("style").count() == 1
    assert page.locator("main :is(img, script, iframe, object, [onload], [onerror])").count() == 0
    text = page.locator("main").evaluate("(main) => main.textContent")
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in text
    assert "{{ 7 * 7 }}{% raw %}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert "x" * 200 in text
    assert "x" * 3000 not in text
    assert page.evaluate(TOO_WIDE) <= 0
