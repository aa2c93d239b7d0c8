"""Words that say nothing of anybody: our own, those of common paths and packages, and numbers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from urllib.parse import unquote

from nccl_forensics import catalog
from nccl_forensics.show.redact.kinds import NOUNS


@cache
def words_of(name: str) -> frozenset[str]:
    return frozenset(catalog.load("redact")["words"][name].lower().split())


OF_OTHERS = frozenset({"catalog", "locale", "prefixes", "parsers", "samples", "templates", "__pycache__"})
"""Folders whose files are full of names that others gave, or that are read by another way."""


def own_files() -> Iterator[str]:
    """The text of our pages and messages."""
    folders = [files("nccl_forensics"), files("nccl_forensics.templates")]
    while folders:
        for one in folders.pop().iterdir():
            if one.is_dir() and one.name not in OF_OTHERS:
                folders.append(one)
            elif one.name.endswith((".py", ".j2", ".css", ".js", ".sh")):
                yield one.read_text(encoding="utf-8")


OWN_WORDS = ("causes", "actions", "xid", "kernel", "kinds")
"""Catalogues whose words the report shows."""


@cache
def own_text() -> bytes:
    catalogues = [json.dumps(catalog.load(name), ensure_ascii=False) for name in OWN_WORDS]
    every = "\n".join([*own_files(), *catalogues])
    return f"{every}\n{unescaped(every)}".lower().encode()


@cache
def vocabulary() -> frozenset[str]:
    """Words of our own pages, messages, catalogues and searches, and common ones of paths; lower case, letters only."""
    found: set[str] = set()
    for own in own_files():
        found.update(re.findall(r"[A-Za-z]+", own))
    for name in (*OWN_WORDS, "weights"):
        found.update(prose(catalog.load(name)))
    from nccl_forensics.lines.plugins import parsers

    for literal in parsers().by_literal:
        found.update(re.findall(r"[A-Za-z]+", literal.decode("ascii", "replace")))
    split = {part for word in found for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", word)}
    known = {w.lower() for w in found | split}
    return frozenset(
        known | words_of("paths") | words_of("packages") | {part for kind in NOUNS for part in kind.split("-")}
    )


def prose(table: object) -> Iterator[str]:
    """The words of a catalogue, but for its examples, which come from somebody's machine."""
    if isinstance(table, str):
        yield from re.findall(r"[A-Za-z]+", table)
    elif isinstance(table, dict):
        for key, value in table.items():
            if key not in ("example", "examples", "source", "seen"):
                yield from prose(value)
    elif isinstance(table, list):
        for value in table:
            yield from prose(value)


def says_nothing(token: str) -> bool:
    """A word of the vocabulary, a number, or too short to be anybody's name."""
    if len(token) <= 2:
        return True
    if token.isdecimal():
        return (
            len(token) <= 8 or (len(token) in (10, 12, 14) and token[:2] in ("19", "20")) or token[:2] in ("16", "17")
        )
    core = token.strip("0123456789")
    if (len(core) <= 2 and len(token) <= 6 and core.isascii()) or core.lower() in vocabulary():
        return True
    humps = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", core)
    return "".join(humps) == core and len(humps) > 1 and all(len(h) > 1 and h.lower() in vocabulary() for h in humps)


def all_common(text: str) -> bool:
    return all(map(says_nothing, TOKEN.findall(text)))


TOKEN = re.compile(r"[^\W_]+")
ESCAPES = re.compile(r"(\\x[0-9a-f]{2}(?:\[[\d;]{0,20}[A-Za-z])?|\\u[0-9a-f]{4}|\x1b\[[\d;]{0,20}[A-Za-z])")


def unescaped(text: str) -> str:
    """`text` without URL, HTML and JSON escapes."""
    if "%" in text:
        text = unquote(text, errors="replace")
    if "&" in text:
        text = html.unescape(text)
    if "\\" in text:
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)
        text = re.sub(r"\\x([0-9a-fA-F]{2})", lambda m: chr(int(m[1], 16)), text)
        text = re.sub(r"\\([nrt])", " ", text)
        text = re.sub(r"\\([/\"\\])", r"\1", text)
    return text
