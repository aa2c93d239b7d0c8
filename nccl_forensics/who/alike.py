"""Cards of ranks by those of other hosts: in a cluster of hosts of one kind, a local rank has the same card on each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from nccl_forensics.model import Gpu
from nccl_forensics.names import short
from nccl_forensics.who.identities import Place

FEWEST = 2
"""Hosts that show a local rank's card, so that it is taken for that of others. Our judgement."""


def as_elsewhere(ranks: Mapping[int, Place], card: Callable[[str, str], Gpu | None]) -> dict[int, Place]:
    """The ranks without a card that have it by their local rank, with it.

    Holds only if no host shows another card for a local rank, nor one card for two. Two hosts must show it, or one that
    has a card of another local rank in common with the rank's own. `card`: what files tell of a host's card at an
    address; None where they don't mention it.
    """
    hosts: dict[str, dict[int, str]] = defaultdict(dict)
    for place in ranks.values():
        if place.host is not None and place.local_rank is not None and place.pci:
            hosts[short(place.host)][place.local_rank] = place.pci
    pairs = {pair for shown in hosts.values() for pair in shown.items()}
    if len({local for local, _ in pairs}) < len(pairs) or len({pci for _, pci in pairs}) < len(pairs):
        return {}
    found: dict[int, Place] = {}
    for local, pci in pairs:
        showing = {host for host, shown in hosts.items() if local in shown}
        for rank, place in ranks.items():
            if place.local_rank != local or place.gpu is not None or place.host is None:
                continue
            here = hosts.get(short(place.host), {}).items()
            kin = any(here & hosts[host].items() for host in showing)
            if (len(showing) >= FEWEST or kin) and (gpu := card(place.host, pci)) is not None:
                found[rank] = replace(place, gpu=gpu)
    return found
