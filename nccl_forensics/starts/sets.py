"""Things that belong together because each shares something with another: union-find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Sets:
    """Disjoint sets of names; one that was never told of is a set of its own."""

    def __init__(self, names: Iterable[str]) -> None:
        self._above = {name: name for name in names}

    def __iter__(self) -> Iterator[str]:
        return iter(self._above)

    def top(self, name: str) -> str:
        """The name that stands for its set."""
        while (up := self._above.setdefault(name, name)) != name:
            self._above[name] = up = self._above[up]
            name = up
        return name

    def join(self, a: str, b: str) -> str:
        """Make the sets of both one; its name."""
        a, b = self.top(a), self.top(b)
        self._above[b] = a
        return a
