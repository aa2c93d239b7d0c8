"""Text that is no log, by what it says first: programs, notebooks, patches; and prose that quotes logs.

A program that raises an error, a test that holds a traceback, a page about errors: none of them tells what happened.
"""

from __future__ import annotations

import re

_COMMENT = rb"(?:[ \t]*(?:#(?!!)[^\n]*|//[^\n]*)?\r?\n)*"
_PROGRAMS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"\s*\{[\s\S]{0,3000}\"(?:cells|nbformat)\"\s*:"), "a notebook"),
    (re.compile(rb"#!\s?/[^\n]{1,200}\n"), "a script"),
    (re.compile(rb"(?:diff --git |Index: [^\n]+\n={20,}|--- a/[^\n]+\n\+\+\+ b/)"), "a patch"),
    (
        re.compile(
            _COMMENT + rb"(?:import [\w., ]+(?: as \w+)?[ \t]*(?:#[^\n]*)?\r?\n|from \.{0,3}[\w.]* import [\w(*]"
            rb"|(?:async )?def \w+\(|class [A-Z]\w*(?:\([^)\n]{0,200}\))?:\s*\n|@\w[\w.]*(?:\(|\r?\n)"
            rb"|[rRuUbB]?\"\"\"|'''|if __name__ ==)"
        ),
        "a program's source",
    ),
    (
        re.compile(
            _COMMENT + rb"(?:/\*[\s\S]{0,3000}?\*/\s*)?(?:#include [<\"]|#pragma once|#ifndef \w+|package \w+\s*;?\r?\n"
            rb"|using namespace |fn main\(|func main\()"
        ),
        "a program's source",
    ),
)
_A_LOGS = re.compile(
    r"\.(?:log|out|err|txt|stdout|stderr|o\d+|e\d+)(?:\.\d+)?$|slurm-\d|^(?:syslog|messages|dmesg|nohup)", re.I
)
_MARKED_UP = re.compile(r"\.(?:md|markdown|rst|adoc|html?)$", re.IGNORECASE)
_PAGE = re.compile(rb"\s*(?:<!doctype html|<html)", re.IGNORECASE)
_FENCE = re.compile(rb"^(?:```|~~~|\.\. code)", re.MULTILINE)
_HEADING = re.compile(rb"^#{1,4} [A-Z][^\n]{0,120}$|^[^\n]{3,120}\n(?:={4,}|-{4,})[ \t]*$", re.MULTILINE)
_CONTROLS = bytes(sorted({*range(32), 127} - set(b"\b\t\n\f\r\x1b")))
"""Control characters that no text has."""


def is_text(head: bytes) -> bool:
    """Is it text, in whatever encoding: nearly without control characters? Nothing is none."""
    return bool(head) and len(head) - len(head.translate(None, _CONTROLS)) <= len(head) // 100


def source_of(head: bytes, name: str) -> str | None:
    """What a file that begins so is, if it is a program or something else that never was a log's output.

    A log can begin with the script that it is of, or a patch: by its name it is one then.
    """
    if _A_LOGS.search(name):
        return None
    text = head.removeprefix(b"\xef\xbb\xbf")
    return next((what for pattern, what in _PROGRAMS if pattern.match(text)), None)


def quotes_logs(head: bytes, name: str) -> bool:
    """Is it prose that quotes logs: a page; Markdown or reStructuredText by its name, or by headings and fences?"""
    if _PAGE.match(head):
        return True
    fenced = _FENCE.search(head) is not None
    return fenced and (_MARKED_UP.search(name) is not None or _HEADING.search(head) is not None)
