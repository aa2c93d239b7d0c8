"""Sentences that remember what they were made of, so that the report can say them in another language.

A `Message` is its English text, in every way a string: steps before the report and the JSON need not know of it. It
keeps its template and values beside that; `Message.render` fills a translated template with the same values. What comes
from a log is a value and is never translated. `+` keeps both sides; an f-string around a message gives its English text
alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Translate = Callable[[str], str]
CountedTranslate = Callable[[str, str, int], str]
Shape = Callable[[str], str]
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def filled(template: str, values: Mapping[str, object]) -> str:
    """`template` with its {names} replaced; names without a value stay, and braces in values mean nothing."""
    return _PLACEHOLDER.sub(lambda m: str(values[m[1]]) if m[1] in values else m[0], template)


class Message(str):
    """English text, with the template (msgid of the translations) and the values that it was made of."""

    template: str
    values: Mapping[str, object]
    """What stands for the names in the template; messages among them are translated, too."""
    many: tuple[str, int] | None
    """(the template for many, the number that decides), where there is one for one and one for many."""
    shape: Shape | None
    """What is done to the finished text, in whatever language."""

    def __new__(
        cls,
        template: str,
        values: Mapping[str, object],
        many: tuple[str, int] | None = None,
        shape: Shape | None = None,
        english: str | None = None,
    ) -> Message:
        text = filled(template if many is None or many[1] == 1 else many[0], values) if english is None else english
        self = super().__new__(cls, shape(text) if shape and english is None else text)
        self.template, self.values, self.many, self.shape = template, values, many, shape
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.template, self.values, self.many, self.shape, str(self)

    def render(self, translate: Translate, counted: CountedTranslate) -> str:
        """The text in the language that `translate` and `counted` know."""
        values = {k: rendered(v, translate, counted) for k, v in self.values.items()}
        template = translate(self.template) if self.many is None else counted(self.template, *self.many)
        text = filled(template, values)
        return self.shape(text) if self.shape else text

    def shaped(self, shape: Shape) -> Message:
        """The same message with `shape` done to its text, in whatever language."""
        return Message("{text}", {"text": self}, shape=shape)

    def covered(self, cover: Callable[[str], str]) -> Message:
        """The same message with every text in it that came from outside replaced by what `cover` makes of it."""
        values = {
            k: v.covered(cover) if isinstance(v, Message) else cover(v) if isinstance(v, str) else v
            for k, v in self.values.items()
        }
        return Message(self.template, values, self.many, self.shape, cover(str(self)))

    def __add__(self, other: str) -> Message:
        return Message("{first}{second}", {"first": self, "second": other})

    def __radd__(self, other: str) -> Message:
        return Message("{first}{second}", {"first": other, "second": self})

    def capitalize(self) -> Message:
        """With a capital first letter; unlike a plain string's, the rest stays as it is."""
        return self.shaped(upper_first)


def upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def rendered(value: object, translate: Translate, counted: CountedTranslate) -> object:
    """A message in the language that `translate` knows; anything else as it is."""
    return value.render(translate, counted) if isinstance(value, Message) else value


def say(template: str, /, **values: object) -> Message:
    """A message; `template` must be a literal, for it is gathered for translation."""
    return Message(template, values)


def say_many(one: str, many: str, number: int, /, **values: object) -> Message:
    """A message whose words depend on a number; both templates must be literals."""
    return Message(one, values, (many, number))


def shaped(text: str, shape: Shape) -> str:
    """`shape` done to a text, that remembers what it was made of if it did before."""
    return text.shaped(shape) if isinstance(text, Message) else shape(text)


def joined(parts: Iterable[str], separator: str) -> str:
    """`separator.join(parts)` that remembers what messages among them were made of."""
    whole = ""
    for n, part in enumerate(parts):
        whole = whole + separator + part if n else part
    return whole


def numbered(text: str, number: int) -> str:
    """A message of `say_many` for another number; any other text as it is."""
    if isinstance(text, Message) and text.many is not None:
        return Message(text.template, text.values, (text.many[0], number), text.shape)
    return text


def pair(one: str, many: str) -> tuple[str, str]:
    """Marks the two forms of a word that is counted where it is shown."""
    return one, many
