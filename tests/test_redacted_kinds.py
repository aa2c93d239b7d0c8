"""What of each kind is somebody's and what is everybody's; what is found in texts, keys and paths; what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_forensics.show.redact.redactor import Redactor

KINDS = [
    ("user", "quolum", "user-1"),
    ("user", "root", "root"),
    ("user", "1044", "1044"),
    ("ip", "10.1.2.3", "ip-1"),
    ("ip", "0.0.0.0", "0.0.0.0"),
    ("mac", "0a:1b:2c:3d:4e:5f", "mac-1"),
    ("mac", "ff:ff:ff:ff:ff:ff", "ff:ff:ff:ff:ff:ff"),
    ("mac", "00-00-00-00-00-00", "00-00-00-00-00-00"),
    ("pod", "worker-0", "worker-0"),
    ("pod", "quolum-0", "pod-1"),
    ("project", "train-step", "train-step"),
    ("project", "quolum", "project-1"),
    ("hostlist", "gpu[1-4]", "gpu[1-4]"),  # cards of the report
    ("hostlist", "list[3]", "list[3]"),  # a line of a program
    ("hostlist", "node[1-4]", "hostlist-1"),
    ("hostlist", "quolum[3]", "hostlist-1"),
    ("hostlist", "quolum[1-4]", "hostlist-1"),
    ("secret", "hunter22", "secret-1"),
    ("secret", "/etc/token", "/etc/token"),  # where it lies, not what it is
    ("secret", "~/token", "~/token"),
    ("secret", "getpass()", "getpass()"),
    ("secret", "123", "123"),
    ("secret", "1234", "secret-1"),
    ("serial", "1562821012345", "serial-1"),
    ("serial", "0", "0"),
    ("serial", "0-0.0", "0-0.0"),
    ("guid", "0x08c0eb0300a1b2c4", "guid-1"),
    ("guid", "0x0000000000000000", "0x0000000000000000"),
    ("guid", "ffff:ffff:0000:ffff", "ffff:ffff:0000:ffff"),
    ("uuid", "00000000", "uuid-1"),
    ("serial", "N/A", "N/A"),
    ("serial", "serial-4", "serial-4"),
]


@pytest.mark.parametrize(("kind", "original", "becomes"), KINDS)
def test_whose_it_is(kind: str, original: str, becomes: str) -> None:
    assert Redactor().alias(kind, original) == becomes


VALUES: list[tuple[Any, Any]] = [
    # what a host's kin, and an owner's machines, are called after
    ({"host": "quolum-17", "says": "quolum fell"}, {"host": "host-1", "says": "org-1 fell"}),
    ({"host": "quol-17", "says": "quol fell"}, {"host": "host-1", "says": "quol fell"}),
    ({"host": "7quolum-17", "says": "7quolum fell"}, {"host": "host-1", "says": "7quolum fell"}),
    ({"host": "dgx7.zorbax.com", "says": "zorbax fell"}, {"host": "host-1.domain-1", "says": "org-1 fell"}),
    ({"host": "dgx7.zor.com", "says": "zor fell"}, {"host": "host-1.domain-1", "says": "zor fell"}),
    ({"host": "127.0.0.1."}, {"host": "127.0.0.1."}),
    ({"host": "zorbax.github.com"}, {"host": "host-1.github.com"}),
    # a field tells what a text before it means
    ({"says": "raven fell", "host": "raven"}, {"says": "host-1 fell", "host": "host-1"}),
    # what looks like an alias is not given again
    ({"host": "raven", "says": "host-1 fell"}, {"host": "host-2", "says": "host-1 fell"}),
    # colours, as bytes and as they are written
    (["\x1b[31mdgx7.zorbax.com\x1b[0m"], ["\x1b[31mhost-1.domain-1\x1b[0m"]),
    (["\\x1b[31mdgx7.zorbax.com\\x1b[0m"], ["\\x1b[31mhost-1.domain-1\\x1b[0m"]),
    # escapes and encodings
    ({"user": "quolum", "says": "by %71uolum here"}, {"user": "user-1", "says": "by user-1 here"}),
    ({"user": "quolum", "says": "by &#113;uolum here"}, {"user": "user-1", "says": "by user-1 here"}),
    ({"user": "quolum", "says": "100% by quolum & co"}, {"user": "user-1", "says": "100% by user-1 & co"}),
    ({"user": "quolum", "says": "100%20of & co"}, {"user": "user-1", "says": "100%20of & co"}),
    ({"user": "quolum", "says": "in cXVvbHVtLCBoZQ== it"}, {"user": "user-1", "says": "in encoded-1 it"}),
    ({"user": "quolum", "says": "in 71756f6c756d it"}, {"user": "user-1", "says": "in encoded-1 it"}),
    ({"user": "quolum", "says": "in 74696d656f7574 it"}, {"user": "user-1", "says": "in 74696d656f7574 it"}),
    # keys that a log gave, and keys of ours
    ({"dgx7.zorbax.com": 1}, {"host-1.domain-1": 1}),
    ({"user": "quolum", "quolum": 1}, {"user": "user-1", "quolum": 1}),
    ({"user": "quolum", "Quolum": 1}, {"user": "user-1", "user-1": 1}),
    ([{"Dgx7.zorbax.com": 1}, "dgx7 fell"], [{"host-1.domain-1": 1}, "host-1 fell"]),
    # a table's name is a host's where cards are in its row
    ({"name": "raven", "gpus": []}, {"name": "host-1", "gpus": []}),
    ({"name": "raven"}, {"name": "raven"}),
    # a path is taken word by word
    ({"path": "/data/quolum/x.log"}, {"path": "/data/name-1/x.log"}),
    ({"path": "either/quol"}, {"path": "either/name-1"}),
    (["either/quol"], ["either/quol"]),
    # numbers stay
    ({"rank": 3, "at": [1.5, None, True]}, {"rank": 3, "at": [1.5, None, True]}),
    (["q"], ["q"]),
    # words that stand where names stand
    (["nfs: server raven. not responding"], ["nfs: server host-1. not responding"]),
    (["srun: error: raven: task 3: Killed"], ["srun: error: host-1: task 3: Killed"]),
    (["srun: error: node: task 3: Killed"], ["srun: error: node: task 3: Killed"]),
    (["JobId=1234567 of 8 ranks"], ["JobId=job-1 of 8 ranks"]),
]


@pytest.mark.parametrize(("value", "becomes"), VALUES)
def test_a_value(value: Any, becomes: Any) -> None:
    assert Redactor().redacted(value) == becomes


ACROSS = [
    # an original that begins in one line and ends in the next
    ("quolumzorbax", ["by quolum", "zorbax here"], ["by user-1", "… here"]),
    ("quolumzorbax", ["by quolum\\", "  zorbax here"], ["by user-1", "  … here"]),
    ("quolumzorbax", ["by quolum", "timeout here"], ["by quolum", "timeout here"]),
    ("quolum", ["by quo", "lum here"], ["by quo", "lum here"]),  # too short to be no chance
    ("quolumzorbax", ["by quolumzorbax", "here"], ["by user-1", "here"]),
]


@pytest.mark.parametrize(("user", "lines", "become"), ACROSS)
def test_a_name_over_two_lines(user: str, lines: list[str], become: list[str]) -> None:
    hider = Redactor()
    hider.learn({"user": user})
    assert hider.cover("\n".join(lines)) == "\n".join(become)
    evidence = {"before": lines[:1], "text": lines[1], "after": ["end"]}
    assert hider.cover(evidence) == {"before": become[:1], "text": become[1], "after": ["end"]}


@pytest.mark.parametrize(
    ("lines", "become"),
    [
        (["from 10.11", ".12.13 on"], ["from ip-1", "… on"]),
        (["to 0a:1b:2c", ":3d:4e:5f on"], ["to mac-1", "… on"]),
        (["from 10.11", ".12.14 on"], ["from 10.11", ".12.14 on"]),
    ],
)
def test_an_address_over_two_lines(lines: list[str], become: list[str]) -> None:
    hider = Redactor()
    hider.learn(["from 10.11.12.13", "link/ether 0a:1b:2c:3d:4e:5f"])
    assert hider.cover("\n".join(lines)) == "\n".join(become)


CUT = "x " * 60
"""So much that a text was cut behind it."""


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("by quolumzor…", "by user-1…"),
        ("by quolumzor", "by quolumzor"),
        (f"{CUT}by quolumzor", f"{CUT}by user-1…"),
        ("by quo…", "by quo…"),  # a quarter of a name is no name
        ("by timeout…", "by timeout…"),
        ("by quolumx…", "by quolumx…"),
        ("by …", "by …"),
    ],
)
def test_a_name_whose_end_was_cut_off(text: str, becomes: str) -> None:
    hider = Redactor()
    hider.learn({"user": "quolumzorbax"})
    assert hider.cover(text) == becomes


def test_a_path_that_was_not_learned() -> None:
    hider = Redactor()
    hider.learn(["nothing"])
    assert hider.cover_path("either/quol") == "either/name-1"
    assert Redactor().cover("either/quol") == "either/quol"


def test_only_what_is_written_is_counted() -> None:
    hider = Redactor()
    assert hider.redacted(["host-7 fell", {"host": "raven"}]) == ["host-7 fell", {"host": "host-1"}]
    assert hider.counts() == {"host": 1}
    assert hider.mapping() == {"host-1": "raven"}


def test_an_earlier_map_goes_on() -> None:
    hider = Redactor({"host-3": "raven", "user-1": "quolum"})
    assert hider.redacted([{"host": "raven"}, {"host": "dgx7"}, {"user": "zorbax"}]) == [
        {"host": "host-3"},
        {"host": "host-1"},
        {"user": "user-2"},
    ]
    assert hider.counts() == {"host": 2, "user": 1}
