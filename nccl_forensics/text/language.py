"""The report's fixed words in other languages: gettext over text/locale, English where nothing else is known.

Steps before the report speak English, and so does the JSON. The report looks its own words up with `_`, and has the
document's sentences made anew with `said`. What comes from a log is never translated.
"""

from __future__ import annotations

import gettext
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import IO, Any

from nccl_forensics.errors import InputError
from nccl_forensics.text.messages import Message

LANGUAGES = ("en", "da", "de")
DOMAIN = "messages"
_current: ContextVar[str] = ContextVar("language", default="en")


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """`_`, `counted` and `said` answer in `language` (one of LANGUAGES) inside."""
    token = _current.set(language)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str:
    return _current.get()


@cache
def _translations(language: str) -> gettext.NullTranslations:
    place = files("nccl_forensics.text.locale") / language / "LC_MESSAGES" / f"{DOMAIN}.mo"
    try:
        with place.open("rb") as file:
            return gettext.GNUTranslations(file)
    except FileNotFoundError:
        raise InputError(
            f"the words of the language {language!r} are not built in this checkout. "
            "Run `pip install -e .` in it once, or leave --lang out for English."
        ) from None


def check(language: str) -> None:
    """Raises InputError where the words of one of LANGUAGES are missing."""
    if language != "en":
        _translations(language)


def _(message: str) -> str:
    """`message` in the current language; itself where it has no translation."""
    language = _current.get()
    return message if language == "en" else _translations(language).gettext(message)


def counted(one: str, many: str, number: int) -> str:
    """The form of a word or sentence that goes with `number`."""
    language = _current.get()
    if language == "en":
        return one if number == 1 else many
    return _translations(language).ngettext(one, many, number)


def words(language: str) -> frozenset[str]:
    """All words of the translations, in lower case."""
    if language == "en":
        return frozenset()
    texts = vars(_translations(language))["_catalog"].values()
    return frozenset(w.lower() for text in texts for w in re.findall(r"[^\W\d_]+", str(text)))


def N_(message: str) -> str:
    """Marks a text that is translated where it is shown."""
    return message


def said(text: str) -> str:
    """A message (messages.py) in the current language; any other text as it is."""
    if _current.get() == "en" or not isinstance(text, Message):
        return text
    return text.render(_, counted)


def catalog_messages(file: IO[bytes], keywords: Any, comment_tags: Any, options: Any) -> Iterator[Any]:
    """For Babel's `extract`: (line, function, message, comments) of a catalogue's titles and actions."""
    line_of = re.compile(r'^(title|do|because) = "(.*)"$')
    for number, line in enumerate(file.read().decode().splitlines(), 1):
        if found := line_of.match(line):
            yield number, None, found[2].replace('\\"', '"').replace("\\\\", "\\"), []
