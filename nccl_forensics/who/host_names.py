"""How the files of a pile spell the names of hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nccl_forensics.model import Event, text
from nccl_forensics.names import short


@dataclass(frozen=True, slots=True)
class HostNames:
    """One spelling for each host, so that one machine is not two."""

    longest: Mapping[str, str]
    """Short name → the longest spelling that any file uses."""

    @classmethod
    def in_events(cls, events: Iterable[Event]) -> HostNames:
        seen: dict[str, None] = {}
        for event in events:
            if event.host:
                seen[event.host] = None
            if event.kind == "host-name" and (name := text(event, "name")):
                seen[name] = None
        longest: dict[str, str] = {}
        for name in seen:
            if len(name) > len(longest.get(short(name), "")):
                longest[short(name)] = name
        return cls(longest)

    def spelled(self, host: str | None) -> str | None:
        """A host's name as the pile spells it."""
        return self.longest.get(short(host), host) if host else None

    @property
    def only(self) -> str | None:
        """The only host of which lines speak."""
        return next(iter(self.longest.values())) if len(self.longest) == 1 else None
