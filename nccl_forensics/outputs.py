"""What an analysis writes, and where: the page, and what was asked for besides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nccl_forensics.errors import InputError

if TYPE_CHECKING:
    from nccl_forensics.show.redact.redactor import Redactor

STDOUT = Path("-")


class NotRedacted(Exception):
    """An original was still there after redaction, so nothing was written: a fault of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `analyze` is to write besides the report, about what, and how; its other options by their names."""

    json_: str | None = None
    markdown: str | None = None
    events: Path | None = None
    perfetto: Path | None = None
    since: str | None = None
    until: str | None = None
    redact: bool = False
    redaction_map: Path | None = None
    lang: str = "en"
    exit_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where everything goes. A place that is STDOUT is no file."""

    page: Path
    page_is_given: bool
    wanted: Wanted

    @property
    def on_stdout(self) -> list[Path]:
        """Places that can be stdout, as they are given."""
        return [self.page, *(Path(x) for x in (self.wanted.json_, self.wanted.markdown) if x is not None)]

    @property
    def written(self) -> list[Path]:
        """All files that will be written."""
        others = (self.wanted.events, self.wanted.perfetto, self.wanted.redaction_map)
        return [p for p in (*self.on_stdout, *others) if p is not None and p != STDOUT]

    @property
    def shown(self) -> Path | None:
        """The page, if it is a file."""
        return self.page if self.page != STDOUT else None


def check(outputs: Outputs, inputs: tuple[str, ...]) -> None:
    """What can be said before anything is read. Raises InputError for what the user can mend."""
    from nccl_forensics.show import export
    from nccl_forensics.text import language

    wanted = outputs.wanted
    if wanted.redaction_map is not None and not wanted.redact:
        raise InputError("--redaction-map goes with --redact.")
    if outputs.on_stdout.count(STDOUT) > 1:
        raise InputError("only one of -o, --json and --markdown can go to stdout. Name a file for the others.")
    if len({p.absolute() for p in outputs.written}) < len(outputs.written):
        raise InputError(
            "two outputs have the same name. Name a file for each of -o, --json, --markdown, --events, --perfetto."
        )
    language.check(wanted.lang)
    if wanted.events is not None:
        export.check_events(wanted.events)
    for place in outputs.written:
        export.check(place, inputs)


def redactor(wanted: Wanted) -> Redactor | None:
    """The one for --redact, with the aliases of its map. Raises InputError for a map that is none."""
    if not wanted.redact:
        return None
    from nccl_forensics.show.redact.kinds import read_map
    from nccl_forensics.show.redact.redactor import Redactor

    return Redactor(read_map(wanted.redaction_map) if wanted.redaction_map is not None else None)


def write(
    outputs: Outputs, inputs: tuple[str, ...], doc: Any, rows: Any, hidden: Redactor | None
) -> tuple[str, list[str]]:
    """Everything that was asked for, to its place; returns the ticket and what is for stdout.

    Raises InputError for a place that can't be written to, NotRedacted (and writes nothing) if an original is left.
    """
    from nccl_forensics.show import export, ticket

    wanted = outputs.wanted
    summary = ticket.ticket(doc, wanted.lang)
    pages = _pages(outputs, doc, rows)
    if hidden is not None:
        texts = [page if isinstance(page, str) else json.dumps(rows) for _, page in pages]  # Parquet is no text
        if wanted.json_ is None:
            texts.append(json.dumps(doc))  # the page has it packed
        _refuse_what_is_left(hidden, [summary, *texts], wanted.lang)
        if not outputs.page_is_given:
            export.check(outputs.page, inputs)
        if wanted.redaction_map is not None:
            export.write(wanted.redaction_map, hidden.map_text(), private=True)
    printed: list[str] = []
    for place, page in pages:
        if place == STDOUT and isinstance(page, str):
            printed.append(page)
        else:
            export.write(place, page)
    return summary, printed


def _pages(outputs: Outputs, doc: Any, rows: Any) -> list[tuple[Path, str | bytes]]:
    """What is written, and where."""
    from nccl_forensics.show import export, report

    wanted = outputs.wanted
    pages: list[tuple[Path, str | bytes]] = [(outputs.page, report.html(doc, wanted.lang))]
    if wanted.json_ is not None:
        pages.append((Path(wanted.json_), json.dumps(doc, ensure_ascii=False, indent=1) + "\n"))
    if wanted.markdown is not None:
        pages.append((Path(wanted.markdown), report.markdown(doc, wanted.lang) + "\n"))
    if wanted.events is not None:
        pages.append((wanted.events, export.events(wanted.events, rows)))
    if wanted.perfetto is not None:
        from nccl_forensics.show import trace

        pages.append((wanted.perfetto, trace.trace(doc)))
    return pages


def _refuse_what_is_left(hidden: Redactor, texts: list[str], lang: str) -> None:
    from nccl_forensics.text import language

    if left := hidden.leaks(texts, language.words(lang)):
        raise NotRedacted(f"nothing was written: after redaction there was still an original ({', '.join(left)}).")
