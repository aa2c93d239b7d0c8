"""Text as HTML or Markdown writes it: what may be broken, what is code, what must not be taken for markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup, escape


def prose(text: str) -> Markup:
    """Words with `code` between backticks, escaped; a lone backtick stays what it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(p) if n % 2 and p else escape(p) for n, p in enumerate(parts)
    )


def breakable(path: str) -> Markup:
    """A path that may be broken after its slashes."""
    return Markup(str(escape(path)).replace("/", "/<wbr>"))


def in_file(where: str) -> Markup:
    """'file:line' behind something else."""
    return Markup(f'<span class="where">{breakable(where)}</span>')


def link(anchor: str, text: str) -> Markup:
    """To another place on the page."""
    return Markup(f'<a href="#{escape(anchor)}">{escape(text)}</a>')


def code(text: str) -> Markup:
    return Markup(f"<code>{escape(text)}</code>")


def below(text: str, *more: str) -> str:
    """`text`, and on lines below it, smaller, what of `more` is not empty."""
    small = "".join(f' <span class="sub">{escape(x)}</span>' for x in more if x)
    return Markup(f"{escape(text)}{small}") if small else text


def lines(parts: Iterable[str]) -> Markup:
    """Each part on its own line."""
    return Markup("<br>").join(parts)


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def markdown_text(text: str) -> str:
    """`text` with everything that Markdown or HTML could take for markup escaped."""
    return _MARKDOWN.sub(r"\\\1", text)


def markdown_code(text: str) -> str:
    """`text` as a code span, whatever backticks it holds (CommonMark §6.1)."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"
