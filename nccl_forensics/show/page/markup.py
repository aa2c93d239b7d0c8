"""Text as HTML or Markdown writes it: what may be broken, what is code, what must not be taken for markup."""

from __future__ import annotations

import re

from markupsafe import Markup, escape


def prose(text: str) -> Markup:
    """Words with `code` between backticks, escaped; a lone backtick stays what it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(p) if n % 2 and p else escape(p) for n, p in enumerate(parts)
    )


def breakable(text: str) -> Markup:
    """A path that may be broken after its slashes."""
    return Markup("/<wbr>").join(escape(p) for p in text.split("/"))


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def markdown_text(text: str) -> str:
    """`text` with everything that Markdown or HTML could take for markup escaped."""
    return _MARKDOWN.sub(r"\\\1", text)


def markdown_code(text: str) -> str:
    """`text` as a code span, whatever backticks it holds (CommonMark §6.1)."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"
