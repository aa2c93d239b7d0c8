"""What an original looks like: addresses, names of hosts, paths; and in which spellings it may come back."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import regex

from nccl_forensics import catalog
from nccl_forensics.errors import InputError
from nccl_forensics.show.redact.kinds import ALIAS
from nccl_forensics.show.redact.vocabulary import all_common, vocabulary, words_of

ENDINGS = (
    r"py|pyc|sh|bash|sbatch|slurm|ya?ml|jsonl?|toml|ini|cfg|conf|csv|tsv|txt|log|out|err|pt|pth|pkl|npy|npz|ckpt|bin"
    r"|safetensors|parquet|arrow|tar|t?gz|zip|zst|xz|ipynb|html|env|pem|key"
)
SHORTEST_BARE, SHORTEST_NAME, SHORTEST_SPLIT = 3, 5, 8
"""Characters from which on an original, a word of a path, and one that is split over lines are searched for in text."""
GENERIC = re.compile(
    r"(?:v?gpu|cuda|rank|local_?rank|device|dev|mlx\d?_?|eth|ib|bond|cpu|numa|task|pid|tid|step|epoch|pg|comm|nccl|loopback"
    r"|stdout|stderr|lo|tcp|o2ib|gni)[-_:]?\d*",
    re.I,
)
"""Hosts that are called like a thing of the report."""
NODE_ID = re.compile(r"(.+?)(_\d+_\d+)")
"""How torchrun's rendezvous calls a node: HOST_PID_ID."""
PLACEHOLDER = re.compile(
    r"(?:none|null|nil|true|false|n/?a|unknown|not|unset|empty|undefined|redacted|hidden|\W+|<.*>?|\$.*|%.*%|\{.*|x{3,}|\*+"
    r"|\[?redacted\]?)",
    re.I,
)

PATIENCE_S = 10
"""Seconds for one pattern in one text; the longest texts here take some milliseconds. Our judgement."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One [[pattern]] of catalog/redact.toml."""

    needles: tuple[str, ...]
    regex: regex.Pattern[str]
    """Of the library that can be told how long it may take: these run over whole lines of a stranger's logs."""
    groups: tuple[tuple[str, str], ...]
    """(name of the group, kind)."""
    example: str
    gives: tuple[str, ...]
    miss: str

    def found_in(self, low: str) -> bool:
        for needle in self.needles:  # any() over a generator takes three times as long, and this runs a lot
            if needle in low:
                return True
        return not self.needles

    def matches(self, text: str) -> Iterator[regex.Match[str]]:
        """As `re.finditer`. Raises InputError for a text in which the search takes longer than PATIENCE_S."""
        try:
            yield from self.regex.finditer(text, timeout=PATIENCE_S)
        except TimeoutError:
            raise InputError(
                f"a line of this pile takes more than {PATIENCE_S} s to be searched for names, so nothing is written: "
                "what could not be searched cannot be called redacted. Leave files out, one by one, to find it."
            ) from None


@cache
def patterns() -> tuple[Pattern, ...]:
    return tuple(
        Pattern(
            needles=tuple(one["needles"]),
            regex=regex.compile(one["regex"], 0 if one.get("case") else regex.I),
            groups=tuple((f"x{n}", kind) for n, kind in enumerate(one["kinds"], 1))
            if "kinds" in one
            else (("x", one["kind"]),),
            example=one["example"],
            gives=tuple(one["gives"]),
            miss=one.get("miss", ""),
        )
        for one in catalog.load("redact")["pattern"]
    )


FOUR = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
IPV4 = re.compile(rf"(?<![\w.])({FOUR}(?:\.{FOUR}){{3}})(?![\w]|\.\d)")
IPV4_IN_NAME = re.compile(rf"(?<=[_-])({FOUR}(?:\.{FOUR}){{3}})(?![\w]|\.\d)")
VERSION_BEFORE = re.compile(
    r"\b(?:version|ver|v|cudnn|driver|firmware|fw|release|vbios|inforom|==|>=|<=|~=)\W{0,3}$", re.I
)
IPV6 = re.compile(
    r"(?<![\w:.])([0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7}|::[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){1,6})(?![\w:])", re.I
)
REAL_IPV6 = re.compile(r"(?:[23][0-9a-f]{3}|f[cde][0-9a-f]{2}):", re.I)


@cache
def fqdn() -> re.Pattern[str]:
    ends = "|".join(sorted(words_of("endings"), key=len, reverse=True))
    label = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
    return re.compile(rf"(?<![\w.@/\\-])({label}(?:\.{label}){{0,8}}\.(?:{ends}))(?![\w-]|\.\w|\()", re.I)


PLACE = re.compile(
    r"(?P<url>\b[a-z][a-z0-9+.-]{1,15}://[^\s'\"<>()\]}|,;]+)"
    r"|(?P<path>(?<![\w/.~\\-])(?:(?:~[\w.-]*|\.{1,2})?/[^\s'\"<>|()\[\]{},;:=*?`…&]+"
    r"|[a-z]:\\[^\s'\"<>|,;:*?`…]+|\\\\[\w.-]+\\[^\s'\"<>|,;:*?`…]+))"
    rf"|(?P<relative>(?<![\w/.\\-])[\w.+-]+(?:/[\w.+@-]+)+)"
    rf"|(?P<file>(?<![\w/.@\\-])[\w-]+(?:\.[\w-]+){{0,4}}\.(?:{ENDINGS})(?!\w))",
    re.I,
)
HAS_ENDING = re.compile(rf"\.(?:{ENDINGS})$", re.I)
MAKERS_SOURCE = re.compile(r"\.(?:cc|cpp|cu|h|hpp|c|cuh)$", re.I)
KEPT_PLACE = r"(?:(?:site|dist)-packages/|\blib/python3\.\d+/)(?:%s)(?![\w-])[\w./+-]*"


def trie_of(texts: Sequence[str]) -> str:
    """A regular expression that matches any of the sorted, distinct `texts`, the longest first."""
    prefix = os.path.commonprefix(texts)  # noqa: RUF071 (of strings, not of paths)
    rest = [t[len(prefix) :] for t in texts]
    optional = rest[0] == ""
    branches: dict[str, list[str]] = {}
    for text in rest[1:] if optional else rest:
        branches.setdefault(text[0], []).append(text)
    if not branches:
        return re.escape(prefix)
    inner = "|".join(trie_of(b) for b in branches.values())
    return re.escape(prefix) + (f"(?:{inner})" + ("?" if optional else "") if len(branches) > 1 or optional else inner)


@lru_cache(maxsize=4096)
def is_foreign(key: object) -> bool:
    """A dict's key that may come from a log: ours are lower-case words."""
    return isinstance(key, str) and re.fullmatch(r"[a-z_]{1,40}", key) is None


def kind_of(alias: str) -> str:
    return alias.rsplit("-", 1)[0]


def key_of(kind: str, original: str) -> str:
    """The same for all spellings of one original."""
    low = original.lower()
    if kind == "ip" and (address := address_of(original)):
        return address
    if kind in ("gpu-uuid", "uuid", "id", "guid"):
        return low.removeprefix("gpu-").removeprefix("mig-").removeprefix("0x").translate(NO_DASHES)
    if kind == "mac":
        return low.translate(NO_DASHES)
    if kind in ("lid", "job"):
        return f"{kind} {low}"
    return low


NO_DASHES = str.maketrans("", "", "-_:.")


def spellings_of(kind: str, original: str) -> tuple[str, ...]:
    """How else an original is written."""
    if kind == "ip":
        address = ipaddress.ip_address(original.split("%")[0])
        return (
            (original, original.replace(".", "-"))
            if address.version == 4
            else (original, address.compressed, address.exploded)
        )
    if kind == "mac":
        hexes = original.lower().translate(NO_DASHES)
        pairs = [hexes[i : i + 2] for i in range(0, len(hexes), 2)]
        fours = [hexes[i : i + 4] for i in range(0, len(hexes), 4)]
        return (":".join(pairs), "-".join(pairs), hexes, ".".join(fours))
    if kind == "guid":
        hexes = original.lower().removeprefix("0x").translate(NO_DASHES)
        return (original, hexes, ":".join(hexes[i : i + 4] for i in range(0, len(hexes), 4)), "0x" + hexes)
    if kind in ("gpu-uuid", "uuid"):
        plain = original.lower().removeprefix("gpu-").removeprefix("mig-").replace("_", "-")
        return (plain, plain.replace("-", "_"), plain.replace("-", ""))
    return (original,)


def is_bare(kind: str, original: str) -> bool:
    """Is it told from other words when it stands alone in running text?"""
    low = original.lower()
    if kind in ("lid", "job", "encoded") or len(original) < 2:
        return False
    if kind == "ip" or kind == "mac" or kind == "guid":
        return True
    if kind in ("gpu-uuid", "uuid", "id"):
        return len(original) >= 8
    if kind in ("host", "hostlist"):
        if low.isalpha():
            return len(low) >= SHORTEST_BARE and low not in vocabulary()
        return re.fullmatch(r"[0-9a-f]{1,4}|\d+", low) is None
    if len(original) < (SHORTEST_NAME if kind in ("name", "secret", "project", "org") else SHORTEST_BARE):
        return False
    return not all_common(original) and (kind != "name" or not low.isdecimal())


def address_of(text: str) -> str | None:
    """An IP address in its one canonical spelling; None for anything else."""
    try:
        return ipaddress.ip_address(text.split("%")[0]).compressed
    except ValueError:
        return None


def is_nobodys_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return True
    return address.is_loopback or address.is_unspecified or address.is_multicast or text.startswith(("255.", "0."))


def is_public(name: str) -> bool:
    public = words_of("public")
    return name in public or any(name.endswith("." + p) for p in public if p not in words_of("hosting"))


def is_no_machine(name: str) -> bool:
    """Does what stands where a machine's name stands name nobody's machine: `the other node`, gpu0, github.com?"""
    low = name.lower()
    if " " in name and all_common(name):
        return True
    return bool(low in words_of("hosts") or GENERIC.fullmatch(name) or PLACEHOLDER.fullmatch(name) or is_public(low))


def is_common_label(label: str, *, in_domain: bool) -> bool:
    """Does a machine's first label say nothing of anybody? In a domain any word of ours does (`node.acme.com`)."""
    low = label.lower()
    if not label or low in words_of("hosts") or ALIAS.fullmatch(label):
        return True
    return in_domain and low in vocabulary()


def is_owned(labels: Sequence[str]) -> bool:
    """Do the labels behind a machine's first one end in a domain that somebody has registered?"""
    return len(labels) > 0 and labels[-1].lower() in words_of("endings") - words_of("ownerless")


def labels_of_owner(labels: Sequence[str]) -> int:
    """How many of a domain's last labels its owner has registered: two, but three below co.uk or edu.au."""
    below_a_country = len(labels) > 2 and len(labels[-1]) == 2
    return 3 if below_a_country and labels[-2].lower() in ("co", "ac", "com", "org", "gov", "edu") else 2


ENCODED = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/_-]{8,}={0,2}")
HEX = re.compile(r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}){5,}(?![0-9A-Fa-f])")
"""Text that may be base64, or bytes in hexadecimal."""
_PRINTABLE = bytes(range(32, 127))


def decoded(run: str) -> Iterator[str]:
    """What a run of base64 may mean, at each of the four places where it can begin."""
    plain = run.rstrip("=").replace("-", "+").replace("_", "/")
    for shift in range(4):
        piece = plain[shift:]
        piece = piece[: len(piece) - (len(piece) % 4 == 1)]
        try:
            data = base64.b64decode(piece + "=" * (-len(piece) % 4))
        except (ValueError, binascii.Error):
            continue
        if len(data) >= 5 and len(data.translate(None, _PRINTABLE)) <= 2:
            yield data.decode("latin-1")
