"""The report's fixed words in other languages: gettext over nccl_forensics/locale, English where nothing else is known.

Steps before the report speak English only, and so does the JSON. The report looks its own words up with `_`, and the
document's sentences that come from a catalogue with `said`. What comes from a log is never translated.
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

from nccl_forensics import catalog

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
    place = files("nccl_forensics.locale") / language / "LC_MESSAGES" / f"{DOMAIN}.mo"
    with place.open("rb") as file:
        return gettext.GNUTranslations(file)


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


def pair(one: str, many: str) -> tuple[str, str]:
    """Marks the two forms of a word that is counted where it is shown."""
    return one, many


def words(language: str) -> frozenset[str]:
    """All words of the translations, in lower case."""
    if language == "en":
        return frozenset()
    texts = vars(_translations(language))["_catalog"].values()
    return frozenset(w.lower() for text in texts for w in re.findall(r"[^\W\d_]+", str(text)))


def N_(message: str) -> str:
    """Marks a text that is translated where it is shown."""
    return message


_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VALUES = (
    N_("the host"),
    N_("the missing rank"),
    N_("{n} ranks between {first} and {last}"),
    N_("rank {numbers}"),
    N_("ranks {numbers}"),
    N_("{some} and {last}"),
    N_("host {names}"),
)
"""Phrases that steps before the report put into a catalogue's sentence."""


def _pattern(message: str) -> re.Pattern[str]:
    """What `message` becomes once its placeholders are filled, values as named groups."""
    parts, seen = [], set()
    for n, part in enumerate(_PLACEHOLDER.split(message)):
        if not n % 2:
            parts.append(re.escape(part))
        else:
            parts.append(f"(?P={part})" if part in seen else f"(?P<{part}>.*?)")
            seen.add(part)
    return re.compile("".join(parts), re.DOTALL)


@cache
def _sentences() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Every action of the catalogue, the ones with most words of their own first."""
    found = {str(a[key]) for a in catalog.load("actions")["action"] for key in ("do", "because")} | set(BARE)
    return tuple((_pattern(m), m) for m in sorted(found, key=lambda m: (-len(_PLACEHOLDER.sub("", m)), m)))


@cache
def _phrases() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_pattern(m), m) for m in _VALUES)


BARE = (
    N_("Keep all files of this run and run it again with the settings below."),
    N_("The evidence is gone."),
    N_("It would tell the likeliest explanations apart."),
    N_("Collect: {what}"),
)
"""Actions that no cause in the catalogue has (advice.actions)."""


def _rendered(text: str, known: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    for pattern, message in known:
        if found := pattern.fullmatch(text):
            values = {name: value_words(value) for name, value in found.groupdict().items()}
            return _PLACEHOLDER.sub(lambda m: values.get(m[1], m[0]), _(message))  # noqa: B023
    return text


def said(text: str) -> str:
    """A filled sentence of the catalogue in the current language; any other text as it is."""
    return text if _current.get() == "en" else _rendered(text, _sentences())


LONGEST_PHRASE = 400


def value_words(text: str) -> str:
    """'rank 3', 'the host' and the like in the current language; any other text as it is."""
    return text if _current.get() == "en" or len(text) > LONGEST_PHRASE else _rendered(text, _phrases())


def catalog_messages(file: IO[bytes], keywords: Any, comment_tags: Any, options: Any) -> Iterator[Any]:
    """For Babel's `extract`: (line, function, message, comments) of a catalogue's titles and actions."""
    line_of = re.compile(r'^(title|do|because) = "(.*)"$')
    for number, line in enumerate(file.read().decode().splitlines(), 1):
        if found := line_of.match(line):
            yield number, None, found[2].replace('\\"', '"').replace("\\\\", "\\"), []
