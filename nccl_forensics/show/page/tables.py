"""Tables of the page: a column is one row of data, its heading beside what stands in its cells.

Who wants another column adds one `Column` to the layout of that table, and nothing else: heading, cells, and whether it
is shown cannot part. The templates loop over what `Layout.filled` gives (macros.html.j2, `table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from nccl_forensics.show.page.words import plain_word

Row = TypeVar("Row")
"""What a table tells of in one row, as its columns ask for it."""
BREAKS_FROM = 32
"""Characters from which on a name may be broken: a longer one would push the other columns off the screen."""


class Cell(NamedTuple):
    """Ready to print. A tuple: a page has ten thousands of them, and a template unpacks it faster."""

    content: object
    """Text, which the template escapes; Markup; or what `drawing` draws."""
    css: str | None = None
    """Its class; None: its column's."""
    drawing: str = ""
    """The macro of macros.html.j2 that draws `content`."""
    heads_row: bool = False


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    heading: str
    """Marked by `N_`; report.js searches a column by the first word of it."""
    cell: Callable[[Row], str | Cell]
    """What stands in this column of a row."""
    css: str | None = None
    """The cells' class, of report.css: how wide they are, what letters, where they may be broken."""
    numeric: bool = False
    """To the right, and found by the whole number: class `num`, of the heading too."""
    heads_row: bool = False
    """Names what the row is about."""
    shown: Callable[[Sequence[Row]], bool] | None = None
    """Is there anything in it for these rows? None: always."""
    heading_css: str | None = None
    legend: str = ""
    """What a reader must know of it, said below the table where it is shown; marked by `N_`."""

    def cells(self, rows: Iterable[Row]) -> list[Cell]:
        """From top to bottom."""
        css = "num" if self.numeric else self.css
        return [_finished(self.cell(row), css, self.heads_row) for row in rows]


def _finished(made: str | Cell, css: str | None, heads_row: bool) -> Cell:
    if isinstance(made, Cell):
        return Cell(made.content, css if made.css is None else made.css, made.drawing, heads_row)
    return Cell(made, css, "", heads_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    cells: tuple[Cell, ...]
    anchor: str
    css: str
    note: str
    """Stands below the row, across all columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Ready to print."""

    headings: tuple[Cell, ...]
    rows: tuple[TableRow, ...]
    more: int
    """Rows that are left off."""
    legends: tuple[str, ...]


def _nothing(row: object) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Layout(Generic[Row]):
    """What a table shows of its rows."""

    columns: tuple[Column[Row], ...]
    anchor: Callable[[Row], str] = _nothing
    """A row's id."""
    css: Callable[[Row], str] = _nothing
    """A row's class; the search for a role looks for it."""
    note: Callable[[Row], str] = _nothing

    def filled(self, rows: Iterable[Row], more: int = 0) -> Table:
        told = list(rows)
        columns = [c for c in self.columns if c.shown is None or c.shown(told)]
        cells = zip(*(c.cells(told) for c in columns), strict=True)
        return Table(
            headings=tuple(Cell(plain_word(c.heading), "num" if c.numeric else c.heading_css) for c in columns),
            rows=tuple(
                TableRow(cells=across, anchor=self.anchor(row), css=self.css(row), note=self.note(row))
                for row, across in zip(told, cells, strict=True)
            ),
            more=more,
            legends=tuple(plain_word(c.legend) for c in columns if c.legend),
        )

    def cut(self, rows: Sequence[Row], most: int) -> Table:
        """The first `most` of `rows`."""
        return self.filled(rows[:most], max(0, len(rows) - most))


def unbroken(name: str) -> Cell:
    """A name on one line, unless it is very long."""
    return Cell(name, "nw" if len(name) < BREAKS_FROM else None)
