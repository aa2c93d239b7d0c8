"""What speaks for and against each cause. A rule is a pure function over a `Case`.

    @rule
    def gpu_lost(case: Case) -> Iterator[Finding]: ...

One file for each family, or several whose names begin alike; every rule in this folder is found by listing it. A rule
yields what it can prove and knows nothing of other rules; the engine (weigh.py) adds findings on the same cause and
subject, relates them to the collectives, and normalises.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

from nccl_forensics.model import Finding
from nccl_forensics.verdict.case import Case

T = TypeVar("T")
Rule = Callable[[Case], Iterable[Finding]]
_RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Mark a function as a rule."""
    _RULES.append(function)
    return function


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule of this folder, by its file's name and its place there: equal findings are told in this order."""
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda x: x.name):
        importlib.import_module(f"{__name__}.{info.name}")
    return tuple(sorted(_RULES, key=lambda one: one.__module__))  # whichever module was imported first


def if_known(value: T | None) -> tuple[T, ...]:
    """The subject of a finding: (value,), or () where it is not known. An empty name tells nothing either."""
    return () if value is None or value == "" else (value,)


def findings(case: Case) -> Iterator[Finding]:
    """What all rules say."""
    for one in rules():
        yield from one(case)
