"""The page's tables: a column is one row of data, from which its heading and its cells come."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import report_docs
from markupsafe import Markup

from nccl_forensics.show.page.markup import below, breakable
from nccl_forensics.show.page.tables import Cell, Column, Layout, unbroken
from nccl_forensics.show.report import html
from nccl_forensics.text import language
from nccl_forensics.text.language import N_

HOSTS: Layout[dict[str, str]] = Layout(
    columns=(
        Column(N_("Host"), lambda h: unbroken(h["name"]), heads_row=True),
        Column(N_("Rank"), lambda h: h["rank"], numeric=True),
        Column(
            N_("Note"),
            lambda h: h.get("note", ""),
            css="wide",
            shown=lambda rows: any(h.get("note") for h in rows),
            legend=N_("None."),
        ),
    ),
    anchor=lambda h: f"row-{h['name']}",
)


def test_heading_and_cells_come_from_one_column() -> None:
    table = HOSTS.filled([{"name": "node-a", "rank": "3", "note": "late"}])
    assert [(h.content, h.css) for h in table.headings] == [("Host", None), ("Rank", "num"), ("Note", None)]
    (row,) = table.rows
    assert row.cells == (Cell("node-a", "nw", "", True), Cell("3", "num"), Cell("late", "wide"))
    assert (row.anchor, row.css, row.note, table.more, table.legends) == ("row-node-a", "", "", 0, ("None.",))


def test_a_column_with_nothing_in_it_is_left_out() -> None:
    table = HOSTS.cut([{"name": "a" * 40, "rank": "3"}, {"name": "b", "rank": "4"}], 1)
    assert [h.content for h in table.headings] == ["Host", "Rank"]
    assert [[c.css for c in row.cells] for row in table.rows] == [[None, "num"]]
    assert (table.more, table.legends) == (1, ())


def test_headings_are_said_in_the_language() -> None:
    with language.speaking("de"):
        assert [h.content for h in HOSTS.filled([{"name": "a", "rank": "1", "note": "x"}]).headings][2] != "Note"


@pytest.mark.parametrize("name", sorted(report_docs.ALL))
def test_every_row_has_a_cell_for_each_heading_and_every_class_has_a_style(name: str) -> None:
    page = html(report_docs.ALL[name]())
    style = files("nccl_forensics.templates").joinpath("report.css").read_text(encoding="utf-8")
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    assert tables
    for table in tables:
        width = table.count('scope="col"')
        for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL):
            assert len(re.findall(r"<t[dh]\b", row)) == (1 if f'colspan="{width}"' in row else width)
        used = set(re.findall(r'<t[dh](?: scope="\w+")? class="(\w+)"', table))
        assert {css for css in used if not re.search(rf"\.{css}\b", style)} == set()


def test_text_in_cells_is_escaped_once() -> None:
    assert below("a<b") == "a<b"
    assert not isinstance(below("a<b", ""), Markup)
    assert below("a<b", "x&y") == Markup('a&lt;b <span class="sub">x&amp;y</span>')
    assert breakable("a/<b>/c") == "a/<wbr>&lt;b&gt;/<wbr>c"
