"""What a curious reader could still find in finished outputs, searched for by another way than the one that hid it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from nccl_forensics.lines.matchers import matcher
from nccl_forensics.show.redact.kinds import BY_SHAPE
from nccl_forensics.show.redact.shapes import (
    ENCODED,
    HEX,
    SHORTEST_BARE,
    SHORTEST_SPLIT,
    decoded,
    is_bare,
    kind_of,
    spellings_of,
)
from nccl_forensics.show.redact.vocabulary import own_text, unescaped

OWN = 12
"""Characters on both sides that an original shares with our own text where that holds the same name as an example."""
LONG = 10
"""Characters from which on an original whose borders are not known is no chance."""
SURE = frozenset({"secret", "mail", "gpu-uuid", "uuid"})
"""Kinds that are leaks also inside longer words."""


@dataclass(frozen=True, slots=True)
class _View:
    """One way to read an output."""

    text: str
    bordered: bool
    """Whether its words still have their borders."""


def left_in(outputs: Iterable[str], originals: Mapping[str, str], own: Container[str] = ()) -> list[str]:
    """Kinds of which an original is left in finished outputs: as it is, escaped, encoded, in capitals, or split.

    `originals`: alias → original. `own`: words, in lower case, that the outputs say themselves in another language.
    """
    wanted = {text: kind for text, kind in _wanted(originals) if len(text) >= SHORTEST_BARE and text not in own}
    if not wanted:
        return []
    texts, kinds = [text.encode() for text in wanted], list(wanted.values())
    find = matcher(texts)
    found: set[str] = set()
    for view in (view for output in outputs for view in _views(output)):
        data = view.text.lower().encode("utf-8", "backslashreplace")
        for number, end in find(memoryview(data)):
            start, kind = end - len(texts[number]), kinds[number]
            if _tells(kind, data, start, end, view.bordered) and not _is_ours(data, start, end):
                found.add(kind)
    return sorted(found)


def _wanted(originals: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(what to search for, in lower case; its kind)."""
    told: dict[str, str] = {}
    for alias, original in originals.items():
        kind = kind_of(alias)
        if is_bare(kind, original) or kind in BY_SHAPE - {"lid", "job"}:
            for spelled in spellings_of(kind, original):
                told.setdefault(spelled.lower(), kind)
    yield from told.items()


def _tells(kind: str, data: bytes, start: int, end: int, bordered: bool) -> bool:
    """Is what stands there no part of a longer word, or so long that it is no chance?"""
    long = end - start >= (SHORTEST_SPLIT if kind in SURE else LONG)
    if not bordered:
        return long
    apart = not (data[max(0, start - 1) : start].isalnum() or data[end : end + 1].isalnum())
    return apart or (long and kind in SURE)


def _is_ours(data: bytes, start: int, end: int) -> bool:
    """Does it stand in text of our own, or in the path of an installed package?"""
    return data[max(0, start - OWN) : end + OWN] in own_text() or _in_package(data, start)


def _in_package(data: bytes, start: int) -> bool:
    """Does the text at `start` lie in the path of an installed package?"""
    line = data[max(0, start - 300) : start].decode("utf-8", "replace")
    run = re.split(r"[\s\"'()<>]", line)[-1]
    return re.search(r"(?:site|dist)-packages/|lib/python3\.\d+/", run) is not None


def _views(output: str) -> Iterator[_View]:
    """What a curious reader might see in an output."""
    output = re.sub(r"<style>.*?</style>|<script>.*?</script>", " ", output, flags=re.S)
    yield _View(output, bordered=True)
    plain = unescaped(re.sub(r"<wbr>", "", output))
    yield _View(plain, bordered=True)
    yield _View(re.sub(r"<[^<>]{0,200}>|[\s\u200b\u00ad\ufeff]+|[\"',\\]", "", plain), bordered=False)
    hidden = [t for run in dict.fromkeys(ENCODED.findall(output)) for t in decoded(run)]
    hidden += [bytes.fromhex(run).decode("latin-1") for run in dict.fromkeys(HEX.findall(output))]
    yield _View("\n".join(hidden), bordered=True)
