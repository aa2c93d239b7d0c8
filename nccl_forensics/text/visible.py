"""Text of a log, made fit to show: nothing in it can hide, turn the writing direction or move the cursor."""

from __future__ import annotations

import re

SHOWN = 2000
"""Characters of a line that an event carries (the contract's limit)."""
CONTEXT = 3
"""Lines kept before and behind a line that becomes evidence."""
CONTEXT_SHOWN = 300
"""Characters of each of them."""
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """`text` with control, direction and zero-width characters written as escapes, cut at `SHOWN` characters."""
    text = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    if text.isprintable():
        return text
    return _INVISIBLE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def neighbour(raw: bytes) -> str:
    """A neighbouring line, made visible. Four bytes or fewer are a character."""
    return visible(raw[: 4 * CONTEXT_SHOWN].decode("utf-8", "backslashreplace"))[:CONTEXT_SHOWN]
