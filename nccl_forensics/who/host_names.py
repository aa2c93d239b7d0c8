"""How the files of a pile spell the names of hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.model import Event, text, texts
from nccl_forensics.names import short


@dataclass(frozen=True, slots=True)
class HostNames:
    """One spelling for each host, so that one machine is not two."""

    longest: Mapping[str, str]
    """Short name, or an address of its own → the longest spelling that any file uses."""

    @classmethod
    def in_events(cls, events: Sequence[Event]) -> HostNames:
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
        return cls(longest | {address: longest.get(short(host), host) for address, host in _addresses(events).items()})

    def spelled(self, host: str | None) -> str | None:
        """A host's name as the pile spells it."""
        return self.longest.get(short(host), host) if host else None

    @property
    def only(self) -> str | None:
        """The only host of which lines speak."""
        names = set(self.longest.values())
        return next(iter(names)) if len(names) == 1 else None

    def named(self, text: str, otherwise: str | None = None) -> str:
        """'10.1.2.3<4711>' with the host's name in the address's place, where the pile tells whose it is.

        `otherwise`: the only host whose it can be, if no line tells.
        """
        found = ADDRESS.match(text)
        name = self.longest.get(found[1].lower(), otherwise) if found else None
        return f"{name}{text[found.end() :]}" if found and name and name.lower() != found[1].lower() else text


ADDRESS = re.compile(r"\[?([\d.]{7,15}|[0-9a-fA-F:]{2,45})(?:%\w{1,32})?\]?(?=<|$)")
"""At the start of a text."""


def _addresses(events: Sequence[Event]) -> dict[str, str]:
    """Address → the only host that says that it has it; bridges of containers have the same on every host."""
    hosts: dict[str, set[str]] = {}
    spelled: dict[str, str] = {}
    for event in events:
        if event.kind == "nccl-ports" and event.host:
            for address in texts(event, "addresses"):
                hosts.setdefault(address.lower(), set()).add(short(event.host))
                spelled[address.lower()] = event.host
    return {address: spelled[address] for address, own in hosts.items() if len(own) == 1}
