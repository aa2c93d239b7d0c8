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
import zlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from nccl_forensics.show import templating
from nccl_forensics.show.page.markup import breakable, markdown_code, markdown_text, prose
from nccl_forensics.show.page.whole import page_of
from nccl_forensics.show.page.words import Doc, count_words, noun, plain_word, rank_name
from nccl_forensics.show.ticket import ticket_rows
from nccl_forensics.text import language
from nccl_forensics.text.language import N_, _

if TYPE_CHECKING:
    from jinja2 import Environment


MOST_PLAIN = 64_000
"""Characters of JSON from which on it is packed: a page of 1,024 ranks would double."""


def embedded(doc: Doc) -> tuple[str, str]:
    """The whole of `doc` as (type, text) of a script element that nothing in it can end: JSON, or, where that is long,
    base64 of zlib's format (RFC 1950), which browsers call deflate."""
    text = json.dumps(doc, ensure_ascii=True, separators=(",", ":"), default=list)
    if len(text) > MOST_PLAIN:
        return "application/zlib", base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return "application/json", text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _environment(escape: bool) -> Environment:
    filters: dict[str, Callable[..., Any]] = {
        "prose": prose,
        "breakable": breakable,
        "plural": count_words,
        "noun": noun,
        "rank": rank_name,
        "word": plain_word,
        "md": markdown_text,
        "mdcode": markdown_code,
    }
    return templating.environment(escape, filters)


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
        page=page_of(doc),
        language=language.current(),
        words="" if language.current() == "en" else json.dumps({w: _(w) for w in _BUTTONS}, ensure_ascii=False),
        style=style,
        script=script,
        policy=policy,
        data=embedded(doc),
    )


def markdown(doc: Doc, lang: str = "en") -> str:
    """The ticket as Markdown: the same rows, at most 12 lines."""
    with language.speaking(lang):
        return _environment(False).get_template("ticket.md.j2").render(rows=ticket_rows(doc))
