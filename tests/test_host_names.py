"""Addresses of hosts, joined to the hosts that say that they have them."""

from __future__ import annotations

import pytest
from short_form import events

from nccl_forensics.who.host_names import HostNames

SAID = [
    {"kind": "nccl-ports", "host": "n1.example.org", "addresses": ["10.1.2.3", "172.17.0.1"]},
    {"kind": "nccl-ports", "host": "n2", "addresses": ["10.1.2.4", "172.17.0.1", "fe80::7"]},
    {"kind": "driver-version", "host": "n1"},
]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("10.1.2.3<4711>", "n1.example.org<4711>"),
        ("10.1.2.3", "n1.example.org"),
        ("[fe80::7]<4711>", "n2<4711>"),
        ("172.17.0.1<4711>", "172.17.0.1<4711>"),  # a bridge that every host has
        ("10.1.2.30<4711>", "10.1.2.30<4711>"),
        ("n2<4711>", "n2<4711>"),
        ("at 10.1.2.3", "at 10.1.2.3"),
    ],
)
def test_an_address_is_that_of_the_only_host_that_says_so(text: str, named: str) -> None:
    assert HostNames.in_events(events({"events": SAID})).named(text) == named


def test_what_no_line_tells_can_be_told_by_elimination() -> None:
    names = HostNames.in_events(events({"events": SAID}))
    assert names.named("10.9.9.9<4711>", "n3") == "n3<4711>"
    assert names.named("10.1.2.4<4711>", "n3") == "n2<4711>"
    assert names.named("n9<4711>", "n3") == "n9<4711>"
