"""How a parser is written and found: one file in parsers/, no list names it.

A line parser names the literals by which its lines are found. One scan over the bytes finds the lines of all parsers
(scan.py), and only those reach it, with prefix, stamp and identity already peeled off (prefixes/):

    @parser(title="NVIDIA Xid", literals=["Xid ("])
    def xid(line: Line) -> Iterator[Event]:
        if found := XID.search(line.text):
            yield line.event("xid", role="cause", details={"xid": int(found["xid"])})

A file parser claims a whole structured file by its first bytes and name and reads it itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from nccl_forensics.model import Event, Problem

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line


SHORTEST_LITERAL = 4
"""Bytes. A shorter literal stands in too many innocent lines to be worth a scan."""


@dataclass(frozen=True, slots=True)
class Parser:
    """Takes the lines that hold one of its literals, yields events for those that are its own."""

    name: str
    title: str
    literals: tuple[bytes, ...]
    read: Callable[[Line], Iterable[Event]]


class Stream(Protocol):
    """What a file parser is given: one file, decompressed, not seekable."""

    path: str
    name: str
    """The last part of the path."""
    size: int | None
    """Bytes on disk or in the archive's table, before decompression; None if not known."""
    mtime_ns: int | None
    stream: BinaryIO


@dataclass(frozen=True, slots=True)
class FileParser:
    """Takes whole files that it recognises by their head, and yields events, problems or values of its own."""

    name: str
    title: str
    claims: Callable[[bytes, str], bool]
    """(first 4,096 bytes, file name) → is it ours?"""
    read: Callable[[Stream], Iterable[Event | Problem | Any]]
    """Anything else than Event and Problem is passed on to reconstruct as it is (Flight Recorder dumps)."""


def parser(*, title: str, literals: Iterable[str | bytes]) -> Callable[[Callable[[Line], Iterable[Event]]], Parser]:
    """Make a line parser of a function. Raises ValueError for a literal that is too short to be selective."""
    wanted = tuple(sorted({x.encode() if isinstance(x, str) else x for x in literals}))
    for literal in wanted:
        if len(literal) < SHORTEST_LITERAL or b"\n" in literal:
            raise ValueError(
                f"literal {literal!r} of {title!r} must have {SHORTEST_LITERAL} bytes or more, in one line"
            )

    def wrap(read: Callable[[Line], Iterable[Event]]) -> Parser:
        return Parser(read.__name__, title, wanted, read)

    return wrap


def file_parser(
    *, title: str, claims: Callable[[bytes, str], bool]
) -> Callable[[Callable[[Stream], Iterable[Any]]], FileParser]:
    """Make a file parser of a function."""

    def wrap(read: Callable[[Stream], Iterable[Any]]) -> FileParser:
        return FileParser(read.__name__, title, claims, read)

    return wrap


@dataclass(frozen=True, slots=True)
class Parsers:
    lines: tuple[Parser, ...]
    files: tuple[FileParser, ...]
    by_literal: dict[bytes, tuple[Parser, ...]] = field(default_factory=dict)


def _modules() -> Iterator[Any]:
    package = importlib.import_module("nccl_forensics.parsers")
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda x: x.name):
        yield importlib.import_module(f"nccl_forensics.parsers.{info.name}")


def _values() -> Iterator[Any]:
    """What the modules of parsers/ have at their top, tuples item by item."""
    for module in _modules():
        for value in vars(module).values():
            yield from value if isinstance(value, tuple) else (value,)


@cache
def parsers() -> Parsers:
    """Every Parser and FileParser (also inside module-level tuples) in parsers/, in a stable order."""
    lines: list[Parser] = []
    files: list[FileParser] = []
    for item in _values():
        if isinstance(item, Parser) and item not in lines:
            lines.append(item)
        elif isinstance(item, FileParser) and item not in files:
            files.append(item)
    by_literal: dict[bytes, tuple[Parser, ...]] = {}
    for one in lines:
        for literal in one.literals:
            by_literal[literal] = (*by_literal.get(literal, ()), one)
    return Parsers(tuple(lines), tuple(files), by_literal)
