"""What is a machine's name, whose domain, and what may stand as it is: one row for each way to decide it."""

from __future__ import annotations

import pytest

from nccl_forensics.show.redact import shapes
from nccl_forensics.show.redact.leaks import left_in
from nccl_forensics.show.redact.redactor import Redactor
from nccl_forensics.show.redact.vocabulary import all_common, says_nothing

MACHINES = [
    ("dgx7", "host-1"),
    ("dgx7.", "host-1"),  # as a resolver writes it
    ("DGX7", "host-1"),
    ("1234", "host-1"),
    ("raven", "host-1"),
    ("gpu-node-17", "host-1"),
    ("zorb a", "host-1"),
    ("the other node", "the other node"),
    ("", ""),
    # addresses
    ("10.1.2.3", "ip-1"),
    ("fe80::1", "ip-1"),
    ("127.0.0.1", "127.0.0.1"),
    ("0.0.0.0", "0.0.0.0"),
    ("255.255.255.0", "255.255.255.0"),
    ("::1", "::1"),
    # a node of torchrun's rendezvous
    ("dgx7_4021_0", "host-1_4021_0"),
    ("dgx7_4021", "host-1"),
    # things of the report, placeholders, everybody's machines, aliases
    ("GPU0", "GPU0"),
    ("rank3", "rank3"),
    ("local_rank-3", "local_rank-3"),
    ("ranker3", "host-1"),
    ("localhost", "localhost"),
    ("worker", "worker"),
    ("n/a", "n/a"),
    ("<host>", "<host>"),
    ("xxxx", "xxxx"),
    ("github.com", "github.com"),
    ("api.github.com", "api.github.com"),
    ("notgithub.com", "host-1.com"),
    ("host-3", "host-3"),
    # owners' domains
    ("dgx7.zorbax.com", "host-1.domain-1"),
    ("dgx7.cs.zorbax.edu", "host-1.cs.domain-1"),
    ("dgx7.quolum.zorbax.edu", "host-1.name-1.domain-1"),
    ("dgx7.zorbax.co.uk", "host-1.domain-1"),
    ("dgx7.zorbax.edu.au", "host-1.domain-1"),
    ("dgx7.zorbax.gov.uk", "host-1.domain-1"),
    ("dgx7.co.zorbax.de", "host-1.co.domain-1"),
    ("node.zorbax.com", "node.domain-1"),
    ("timeout.zorbax.com", "timeout.domain-1"),
    # domains that nobody owns
    ("dgx7.local", "host-1.local"),
    ("node.local", "node.local"),
    ("dgx7.rack2.local", "host-1.rack2.local"),
    ("dgx7.quolum.local", "host-1.name-1.local"),
    ("dgx7.quolum.nosuchending", "host-1.name-1.name-2"),
]


@pytest.mark.parametrize(("name", "becomes"), MACHINES)
def test_the_name_of_a_machine(name: str, becomes: str) -> None:
    assert Redactor().redacted({"host": name}) == {"host": becomes}


IN_TEXT = [
    ("see dgx7.zorbax.com now", "see host-1.domain-1 now"),
    ("at quolum.net", "at domain-1"),
    ("mail.zorbax.org is down", "mail.domain-1 is down"),
    ("dgx7.local", "host-1.local"),
    ("quolum.rack.local", "host-1.rack.local"),
    ("quolum.local", "quolum.local"),  # two words, of which one may be a module's
    ("torch.nn.io x", "torch.nn.io x"),
    ("numpy.org", "numpy.org"),
    ("job.io", "job.io"),
    ("quolum.tech", "quolum.tech"),  # only where a domain of two labels is no module
    ("driver version 10.11.12.13", "driver version 10.11.12.13"),
    ("from 10.11.12.13", "from ip-1"),
    ("net_10.11.12.13 up", "net_ip-1 up"),
    ("1.2.10.11.12.13", "1.2.10.11.12.13"),
    ("at 2001:db8::7 now", "at ip-1 now"),
    ("21:17:09 and 0a:1b::", "21:17:09 and 0a:1b::"),
]


@pytest.mark.parametrize(("text", "becomes"), IN_TEXT)
def test_a_name_in_running_text(text: str, becomes: str) -> None:
    assert Redactor().redacted([text]) == [becomes]


PLACES = [
    ("https://pytorch.org/docs/quolum", "https://pytorch.org/docs/quolum"),
    ("https://github.com/pytorch/quolum", "https://github.com/pytorch/quolum"),
    ("https://github.com/quolum/pytorch", "https://github.com/name-1/pytorch"),
    ("https://zorbax.github.com/run", "https://name-1.github.com/run"),
    ("s3://quolum/run", "s3://name-1/run"),
    ("tcp://quolum:29500", "tcp://host-1:29500"),
    ("tcp://[fe80::7]:29500", "tcp://[ip-1]:29500"),
    ("configs/quolum.yaml", "configs/name-1.yaml"),
    ("configs/quolum", "configs/name-1"),
    ("either/quolum", "either/quolum"),
    ("misc/quolum.cc", "misc/quolum.cc"),
    ("numpy/quolum.py", "numpy/quolum.py"),
    ("/usr/lib/quolum/x.so", "/usr/lib/quolum/x.so"),
    ("/usr/local/quolum/x.so", "/usr/local/name-1/x.so"),
    ("/data/quolum/x.so", "/data/name-1/x.so"),
    ("/opt/quolum/site-packages/torch/quolum.py", "/opt/name-1/site-packages/torch/quolum.py"),
    ("/opt/site-packages/quolum/torch.py", "/opt/site-packages/name-1/torch.py"),
    ("/data/torch/csrc/quolum.cpp", "/data/torch/csrc/quolum.cpp"),
    ("/data/torch/quolum/x.cpp", "/data/torch/name-1/x.cpp"),
]


@pytest.mark.parametrize(("text", "becomes"), PLACES)
def test_a_place(text: str, becomes: str) -> None:
    assert Redactor().redacted([text]) == [becomes]


SPELLINGS = [
    ("ip", "fe80::1", "fe80:0000:0000:0000:0000:0000:0000:0001"),
    ("mac", "0A:1b:2c:3d:4e:5f", "0a1b.2c3d.4e5f"),
    ("mac", "0A:1b:2c:3d:4e:5f", "0a-1b-2c-3d-4e-5f"),
    ("guid", "0x08c0eb0300a1b2c4", "08c0:eb03:00a1:b2c4"),
    ("gpu-uuid", "GPU-8f1d3c2a-1111-2222-3333-444455556666", "8f1d3c2a_1111_2222_3333_444455556666"),
    ("uuid", "8f1d3c2a-1111-2222-3333-444455556666", "8f1d3c2a111122223333444455556666"),
]


@pytest.mark.parametrize(("kind", "original", "spelled"), SPELLINGS)
def test_a_spelling_of_the_same(kind: str, original: str, spelled: str) -> None:
    assert spelled in shapes.spellings_of(kind, original)
    assert shapes.key_of(kind, original) == shapes.key_of(kind, spelled)


def test_an_address_in_a_machines_name() -> None:
    assert Redactor().redacted(["10.1.2.3 is ip-10-1-2-3"]) == ["ip-1 is ip-ip-1"]


BARE = [
    ("lid", "1234567", False),
    ("job", "1234567", False),
    ("encoded", "c2VjcmV0c2VjcmV0", False),
    ("user", "q", False),
    ("ip", "10.1.2.3", True),
    ("mac", "0a:1b:2c:3d:4e:5f", True),
    ("guid", "08c0:eb03:00a1:b2c4", True),
    ("id", "8f1d3c2", False),
    ("id", "8f1d3c2a", True),
    ("host", "quolum", True),
    ("host", "qu", False),
    ("host", "timeout", False),
    ("host", "ab12", False),  # four digits of some address
    ("host", "17", False),
    ("host", "dgx7", True),
    ("user", "quo", True),
    ("user", "rank", False),
    ("name", "quol", False),
    ("name", "quolu", True),
    ("name", "987654321", False),
    ("serial", "987654321", True),
]


@pytest.mark.parametrize(("kind", "original", "told"), BARE)
def test_an_original_that_is_searched_for_in_text(kind: str, original: str, told: bool) -> None:
    assert shapes.is_bare(kind, original) is told


@pytest.mark.parametrize(
    ("text", "common"),
    [
        ("ab", True),
        ("123456789", False),
        ("12345678", True),
        ("1712345678", True),  # seconds since the epoch
        ("20260310211709", True),
        ("9912345678", False),
        ("q7", True),
        ("timeout", True),
        ("rank12", True),
        ("quolum", False),
        ("checkTimeout", True),
        ("checkQuolum", False),
        ("rank-timeout", True),
        ("rank-quolum", False),
    ],
)
def test_a_word_of_nobodys(text: str, common: bool) -> None:
    assert all_common(text) is common
    assert "-" in text or says_nothing(text) is common


LEFT = [
    ("user", "quolum", "by quolum here", ["user"]),
    ("user", "quolum", "by QUOLUM here", ["user"]),
    ("user", "quolum", "by quolums here", []),
    ("user", "quolum", "by aquolum here", []),
    ("mail", "a@quolum.net", "xa@quolum.nety", ["mail"]),
    ("user", "quolumzorbax", "quo<b>lum</b> zor bax", ["user"]),
    ("user", "quolum", "quo<b>lum</b>", []),  # too short to be told from chance where borders are gone
    ("user", "quolum", "<style>.quolum{}</style>", []),
    ("user", "quolum", "/opt/site-packages/quolum/x.py", []),
    ("user", "quolum", "by &#113;uolum here", ["user"]),
    ("user", "quolum", "in cXVvbHVtLCBoZQ== here", ["user"]),
    ("user", "quolum", "in 71756f6c756d here", ["user"]),
    ("job", "1234567", "job 1234567", []),
]


@pytest.mark.parametrize(("kind", "original", "output", "left"), LEFT)
def test_what_is_left_in_an_output(kind: str, original: str, output: str, left: list[str]) -> None:
    assert left_in([output], {f"{kind}-1": original}) == left


def test_words_of_another_language_are_no_leak() -> None:
    assert left_in(["the quolum of it"], {"user-1": "quolum"}, own={"quolum"}) == []
