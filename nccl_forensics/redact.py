"""Stable aliases for whatever names a machine, a person or a customer, so that a report can be shown to strangers.

`Redactor.learn` reads the finished document and the timeline's rows once and gives every original that it finds an
alias (`host-1`, `user-2`, `gpu-uuid-3`); `Redactor.cover` then writes the aliases into any value made of dicts, lists
and strings. All outputs are made from what it returns, and `Redactor.leaks` searches the finished outputs for originals
by another way than the one that replaced them.

An original is found in three ways: by the field that it stands in (`host`, `uuid`, `path` …), by what it looks like or
stands behind (catalog/redact.toml), and, once it is known, wherever it stands (short and full names of a host, other
spellings of an address, in capitals, in base64, over two lines). Paths are taken word by word: known words and numbers
stay, everything in system folders and in known packages stays, other words become aliases. What a name says is only
hidden where it says something: `root`, `localhost`, `worker` or `10` are kept, and words of our own pages are never
searched for in running text, so that a user called "rank" breaks nothing.

The same input gives the same aliases: they are numbered in the order in which they are met. What looks like an alias in
the input stays, and its number is not given again; so redacting twice changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import html
import ipaddress
import json
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from nccl_forensics import catalog
from nccl_forensics.language import counted
from nccl_forensics.messages import Message, pair
from nccl_forensics.model import InputError

MAP_SCHEMA = "nccl-forensics/redaction-map/1"
NOUNS: Mapping[str, tuple[str, str]] = {
    "host": pair("host", "hosts"),
    "hostlist": pair("list of hosts", "lists of hosts"),
    "domain": pair("domain", "domains"),
    "org": pair("organization or series of machines", "organizations or series of machines"),
    "ip": pair("IP address", "IP addresses"),
    "mac": pair("MAC address", "MAC addresses"),
    "guid": pair("GUID", "GUIDs"),
    "lid": pair("LID", "LIDs"),
    "gpu-uuid": pair("GPU UUID", "GPU UUIDs"),
    "uuid": pair("other UUID", "other UUIDs"),
    "serial": pair("serial number", "serial numbers"),
    "id": pair("hash or container id", "hashes and container ids"),
    "user": pair("user", "users"),
    "mail": pair("e-mail address", "e-mail addresses"),
    "secret": pair("secret", "secrets"),
    "project": pair("project or job name", "project and job names"),
    "job": pair("job number", "job numbers"),
    "pod": pair("pod", "pods"),
    "container": pair("container", "containers"),
    "namespace": pair("namespace", "namespaces"),
    "fs": pair("file system", "file systems"),
    "name": pair("name in a path", "names in paths"),
    "encoded": pair("encoded text", "encoded texts"),
}
"""Kind, as aliases begin → how the footer counts it."""
ALIAS = re.compile(rf"(?:{'|'.join(sorted(NOUNS, key=len, reverse=True))})-\d{{1,7}}")
_ALIASES = re.compile(rf"(?<![A-Za-z0-9]){ALIAS.pattern}(?![A-Za-z0-9])", re.I)

FIELDS: Mapping[str, str] = {
    "host": "host",
    "culprit_hosts": "host",
    "hostname": "host",
    "store_host": "host",
    "node": "host",
    "switch": "host",
    "worker_ip": "host",
    "uuid": "gpu-uuid",
    "serial": "serial",
    "pod": "pod",
    "container": "container",
    "namespace": "namespace",
    "user": "user",
    "path": "path",
    "source": "path",
    "error_file": "path",
    "device": "path",
}
"""Fields of the document whose whole text is an original, or a path."""
PLAIN = frozenset(
    {"schema", "version", "kind", "role", "severity", "cause", "format", "status", "state", "basis", "time_basis", "op"}
    | {
        "sha256",
        "time",
        "onset",
        "detected",
        "ended",
        "first_time",
        "last_time",
        "gpu_pci",
        "pci",
        "backend",
        "timezone",
    }
)
"""Fields that hold words of ours, times, and the hashes by which evidence is checked."""
BY_SHAPE = frozenset({"ip", "mac", "gpu-uuid", "uuid", "mail", "lid", "job", "hostlist"})
"""Kinds that their pattern finds wherever they stand, so that they need not be searched for by name."""
SYSTEM = frozenset({"lib", "lib32", "lib64", "bin", "sbin", "proc", "sys", "boot", "dev", "usr", "kernel"})
"""Top folders that the distribution fills."""
OWN_BELOW = frozenset({"usr/local", "usr/src", "usr/share", "dev/disk", "dev/mapper"})
"""Folders in them that it does not."""
ENDINGS = (
    r"py|pyc|sh|bash|sbatch|slurm|ya?ml|jsonl?|toml|ini|cfg|conf|csv|tsv|txt|log|out|err|pt|pth|pkl|npy|npz|ckpt|bin"
    r"|safetensors|parquet|arrow|tar|t?gz|zip|zst|xz|ipynb|html|env|pem|key"
)
SHORTEST_BARE, SHORTEST_NAME, SHORTEST_SPLIT = 3, 5, 8
"""Characters from which on an original, a word of a path, and one that is split over lines are searched for in text."""
OWN = 12
"""Characters on both sides that an original shares with our own text where that holds the same name as an example."""
LONG = 10
"""Characters from which on an original whose borders are not known is no chance."""
SURE = frozenset({"secret", "mail", "gpu-uuid", "uuid"})
"""Kinds that are leaks also inside longer words."""
CUT_FROM = 100
"""Texts shorter than this were not cut anywhere in this tool."""

T = TypeVar("T")


# --- what says nothing ------------------------------------------------------------------------------------------------


@cache
def _words(name: str) -> frozenset[str]:
    return frozenset(catalog.load("redact")["words"][name].lower().split())


def _own_files() -> Iterator[str]:
    """The text of our pages and messages."""
    package = files("nccl_forensics")
    for folder in (package, package.joinpath("rules"), files("nccl_forensics.templates")):
        for file in folder.iterdir():
            if file.name.endswith((".py", ".j2", ".css", ".js", ".sh")) and file.name != "prefixes.py":
                yield file.read_text(encoding="utf-8")


OWN_WORDS = ("causes", "actions", "xid", "kernel", "kinds")
"""Catalogues whose words the report shows."""


@cache
def _own_text() -> bytes:
    catalogues = [json.dumps(catalog.load(name), ensure_ascii=False) for name in OWN_WORDS]
    every = "\n".join([*_own_files(), *catalogues])
    return f"{every}\n{_unescaped(every)}".lower().encode()


@cache
def vocabulary() -> frozenset[str]:
    """Words of our own pages, messages, catalogues and searches, and common ones of paths; lower case, letters only."""
    found: set[str] = set()
    for own in _own_files():
        found.update(re.findall(r"[A-Za-z]+", own))
    for name in (*OWN_WORDS, "weights"):
        found.update(_prose(catalog.load(name)))
    from nccl_forensics.plugins import parsers

    for literal in parsers().by_literal:
        found.update(re.findall(r"[A-Za-z]+", literal.decode("ascii", "replace")))
    split = {part for word in found for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", word)}
    known = {w.lower() for w in found | split}
    return frozenset(
        known | _words("paths") | _words("packages") | {part for kind in NOUNS for part in kind.split("-")}
    )


def _prose(table: object) -> Iterator[str]:
    """The words of a catalogue, but for its examples, which come from somebody's machine."""
    if isinstance(table, str):
        yield from re.findall(r"[A-Za-z]+", table)
    elif isinstance(table, dict):
        for key, value in table.items():
            if key not in ("example", "examples", "source", "seen"):
                yield from _prose(value)
    elif isinstance(table, list):
        for value in table:
            yield from _prose(value)


def _says_nothing(token: str) -> bool:
    """A word of the vocabulary, a number, or too short to be anybody's name."""
    if len(token) <= 2:
        return True
    if token.isdecimal():
        return (
            len(token) <= 8 or (len(token) in (10, 12, 14) and token[:2] in ("19", "20")) or token[:2] in ("16", "17")
        )
    core = token.strip("0123456789")
    if (len(core) <= 2 and len(token) <= 6 and core.isascii()) or core.lower() in vocabulary():
        return True
    humps = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", core)
    return "".join(humps) == core and len(humps) > 1 and all(len(h) > 1 and h.lower() in vocabulary() for h in humps)


def _all_common(text: str) -> bool:
    return all(map(_says_nothing, _TOKEN.findall(text)))


_TOKEN = re.compile(r"[^\W_]+")
_GENERIC = re.compile(
    r"(?:v?gpu|cuda|rank|local_?rank|device|dev|mlx\d?_?|eth|ib|bond|cpu|numa|task|pid|tid|step|epoch|pg|comm|nccl|loopback"
    r"|stdout|stderr|lo|tcp|o2ib|gni)[-_:]?\d*",
    re.I,
)
"""Hosts that are called like a thing of the report."""
_NODE_ID = re.compile(r"(.+?)(_\d+_\d+)")
"""How torchrun's rendezvous calls a node: HOST_PID_ID."""
_PLACEHOLDER = re.compile(
    r"(?:none|null|nil|true|false|n/?a|unknown|not|unset|empty|undefined|redacted|hidden|\W+|<.*>?|\$.*|%.*%|\{.*|x{3,}|\*+"
    r"|\[?redacted\]?)",
    re.I,
)


# --- patterns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pattern:
    """One [[pattern]] of catalog/redact.toml."""

    needles: tuple[str, ...]
    regex: re.Pattern[str]
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


@cache
def patterns() -> tuple[Pattern, ...]:
    return tuple(
        Pattern(
            needles=tuple(one["needles"]),
            regex=re.compile(one["regex"], 0 if one.get("case") else re.I),
            groups=tuple((f"x{n}", kind) for n, kind in enumerate(one["kinds"], 1))
            if "kinds" in one
            else (("x", one["kind"]),),
            example=one["example"],
            gives=tuple(one["gives"]),
            miss=one.get("miss", ""),
        )
        for one in catalog.load("redact")["pattern"]
    )


_FOUR = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = re.compile(rf"(?<![\w.])({_FOUR}(?:\.{_FOUR}){{3}})(?![\w]|\.\d)")
_IPV4_IN_NAME = re.compile(rf"(?<=[_-])({_FOUR}(?:\.{_FOUR}){{3}})(?![\w]|\.\d)")
_VERSION_BEFORE = re.compile(
    r"\b(?:version|ver|v|cudnn|driver|firmware|fw|release|vbios|inforom|==|>=|<=|~=)\W{0,3}$", re.I
)
_IPV6 = re.compile(
    r"(?<![\w:.])([0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7}|::[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){1,6})(?![\w:])", re.I
)
_REAL_IPV6 = re.compile(r"(?:[23][0-9a-f]{3}|f[cde][0-9a-f]{2}):", re.I)


@cache
def _fqdn() -> re.Pattern[str]:
    ends = "|".join(sorted(_words("endings"), key=len, reverse=True))
    label = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
    return re.compile(rf"(?<![\w.@/\\-])({label}(?:\.{label}){{0,8}}\.(?:{ends}))(?![\w-]|\.\w|\()", re.I)


_PLACE = re.compile(
    r"(?P<url>\b[a-z][a-z0-9+.-]{1,15}://[^\s'\"<>()\]}|,;]+)"
    r"|(?P<path>(?<![\w/.~\\-])(?:(?:~[\w.-]*|\.{1,2})?/[^\s'\"<>|()\[\]{},;:=*?`…&]+"
    r"|[a-z]:\\[^\s'\"<>|,;:*?`…]+|\\\\[\w.-]+\\[^\s'\"<>|,;:*?`…]+))"
    rf"|(?P<relative>(?<![\w/.\\-])[\w.+-]+(?:/[\w.+@-]+)+)"
    rf"|(?P<file>(?<![\w/.@\\-])[\w-]+(?:\.[\w-]+){{0,4}}\.(?:{ENDINGS})(?!\w))",
    re.I,
)
_HAS_ENDING = re.compile(rf"\.(?:{ENDINGS})$", re.I)
_MAKERS_SOURCE = re.compile(r"\.(?:cc|cpp|cu|h|hpp|c|cuh)$", re.I)
_KEPT_PLACE = r"(?:(?:site|dist)-packages/|\blib/python3\.\d+/)(?:%s)(?![\w-])[\w./+-]*"


# --- finding many known texts -----------------------------------------------------------------------------------------


def _trie(texts: Sequence[str]) -> str:
    """A regular expression that matches any of the sorted, distinct `texts`, the longest first."""
    prefix = os.path.commonprefix(texts)  # noqa: RUF071 (of strings, not of paths)
    rest = [t[len(prefix) :] for t in texts]
    optional = rest[0] == ""
    branches: dict[str, list[str]] = {}
    for text in rest[1:] if optional else rest:
        branches.setdefault(text[0], []).append(text)
    if not branches:
        return re.escape(prefix)
    inner = "|".join(_trie(b) for b in branches.values())
    return re.escape(prefix) + (f"(?:{inner})" + ("?" if optional else "") if len(branches) > 1 or optional else inner)


_LEFT = r"(?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))"
_RIGHT = r"(?:(?![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))"
_ESCAPES = re.compile(r"(\\x[0-9a-f]{2}(?:\[[\d;]{0,20}[A-Za-z])?|\\u[0-9a-f]{4}|\x1b\[[\d;]{0,20}[A-Za-z])")
_ENCODED = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/_-]{8,}={0,2}")
_HEX = re.compile(r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}){5,}(?![0-9A-Fa-f])")
_RUN_END = re.compile(r"[A-Za-z0-9][\w.@:/+=-]*$")
_RUN_START = re.compile(r"[\w.@:/+=-]*[A-Za-z0-9=]")


_PRINTABLE = bytes(range(32, 127))


def _decoded(run: str) -> Iterator[str]:
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


def _unescaped(text: str) -> str:
    """`text` without URL, HTML and JSON escapes."""
    if "%" in text:
        text = unquote(text, errors="replace")
    if "&" in text:
        text = html.unescape(text)
    if "\\" in text:
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)
        text = re.sub(r"\\x([0-9a-fA-F]{2})", lambda m: chr(int(m[1], 16)), text)
        text = re.sub(r"\\([nrt])", " ", text)
        text = re.sub(r"\\([/\"\\])", r"\1", text)
    return text


# --- the redactor -----------------------------------------------------------------------------------------------------


class Redactor:
    """Learns originals, writes aliases. `known`: alias → original of an earlier map, which go on being used."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self._aliases: dict[str, str] = {}
        self._originals: dict[str, str] = {}
        self._bare: dict[str, str] = {}
        self._machines: dict[str, str] = {}
        self._taken: set[str] = set()
        self._last: Counter[str] = Counter()
        self._used: set[str] = set()
        self._half: dict[str, str] = {}
        self._done: dict[str, str] = {}
        self._finder: re.Pattern[str] | None = None
        self._prefixes: list[str] = []
        for alias, original in (known or {}).items():
            self._register(alias.rsplit("-", 1)[0], original, alias)
        self._taken.update(known or ())

    # what is known

    def alias(self, kind: str, original: str) -> str:
        """The alias of `original`; itself where it says nothing about anybody or is an alias."""
        if kind == "host":
            return self._hostname(original)
        if ALIAS.fullmatch(original) or self._is_kept(kind, original):
            return original
        found = self._aliases.get(_key(kind, original))
        if found is None:
            while True:
                self._last[kind] += 1
                found = f"{kind}-{self._last[kind]}"
                if found not in self._taken:
                    break
            self._register(kind, original, found)
            if kind == "mail":
                self.alias("user", original.split("@")[0])
                self._hostname("mail." + original.split("@")[1])
        self._used.add(found)
        return found

    def _register(self, kind: str, original: str, alias: str) -> None:
        self._taken.add(alias)
        self._originals[alias] = original
        key = _key(kind, original)
        self._aliases[key] = alias
        if _is_bare(kind, original):
            for spelled in _spellings(kind, original):
                self._bare.setdefault(spelled.lower(), alias)
                self._finder = None

    def _is_kept(self, kind: str, text: str) -> bool:
        low = text.lower()
        if _PLACEHOLDER.fullmatch(text):
            return True
        if kind == "user":
            return low in _words("users") or text.isdecimal()
        if kind == "ip":
            return _is_nobodys_address(text)
        if kind == "mac":
            return len(set(low) - set(":-")) <= 1
        if kind in ("project", "pod", "namespace", "container", "fs", "org"):
            return _all_common(text)
        if kind == "hostlist":
            stem, _, numbers = text.partition("[")
            return bool(_GENERIC.fullmatch(stem)) or (stem.isidentifier() and _all_common(stem) and "-" not in numbers)
        if kind == "secret":
            return text.startswith(("/", "~/")) or (text.isdecimal() and len(text) < 4) or "(" in text
        if kind == "serial":
            return set(text) <= set("0-.")
        if kind == "guid":
            return set(text) <= set("0f:xX")
        return False

    def _hostname(self, name: str) -> str:
        """What `_machine` makes of a name, remembered."""
        found = self._machines.get(name)
        if found is None:
            found = self._machines[name] = self._machine(name)
        self._used.update(_ALIASES.findall(found))
        return found

    def _machine(self, name: str) -> str:
        """A machine's name: its first label an alias, its owner's domain another, in between the words of a path."""
        bare = name.strip(".")
        if address := _address(bare):
            return self.alias("ip", bare) if not _is_nobodys_address(bare) and address else name
        low = bare.lower()
        if " " in bare and _all_common(bare):
            return name  # 'the other node'
        if process := _NODE_ID.fullmatch(bare):
            return self._hostname(process[1]) + process[2]
        if low in _words("hosts") or _GENERIC.fullmatch(bare) or _PLACEHOLDER.fullmatch(bare) or _is_public(low):
            return name
        first, *rest = bare.split(".")
        if (
            rest
            and (len(rest) > 1 or rest[0].lower() not in _words("ownerless"))
            and rest[-1].lower() in _words("endings")
        ):
            owner = self._domain(".".join(rest)) if rest[-1].lower() not in _words("ownerless") else None
            tail = owner if owner is not None else ".".join(self.words(r) for r in rest)
        else:
            tail = ".".join(self.words(r) for r in rest)
        common = first.lower() in _words("hosts") or (rest and first.lower() in vocabulary())
        if not first or common or ALIAS.fullmatch(first):
            head = first
        else:
            head = self._aliases.get(first.lower()) or self._new_host(first)
            self._used.add(head)
        return head + ("." + tail if rest else "")

    def _new_host(self, first: str) -> str:
        while True:
            self._last["host"] += 1
            if (alias := f"host-{self._last['host']}") not in self._taken:
                break
        self._register("host", first, alias)
        tokens = _TOKEN.findall(first)
        if len(tokens) > 1 and tokens[0].isalpha() and len(tokens[0]) >= SHORTEST_NAME:
            self.alias("org", tokens[0])  # what its kin are called after, too
        return alias

    def _domain(self, name: str) -> str:
        """The labels that an owner has registered as one alias, those before them as words."""
        if _is_public(name.lower()):
            return name
        labels = name.split(".")
        size = 3 if len(labels) > 2 and len(labels[-1]) == 2 and labels[-2].lower() in ("co", "ac", "com", "org") else 2
        size = 3 if len(labels) > 2 and labels[-2].lower() in ("gov", "edu") and len(labels[-1]) == 2 else size
        owned = ".".join(labels[-size:])
        if len(labels) < 2 or ALIAS.fullmatch(owned):
            return name
        known = self._aliases.get(owned.lower()) or self.alias("domain", owned)
        self._used.add(known)
        if len(labels[-size]) > 3:
            self.alias("org", labels[-size])
        return ".".join([*(self.words(x) for x in labels[:-size]), known])

    # learning

    def learn(self, *values: Any) -> None:
        """Read all originals in values made of dicts, lists and strings. To be called once, before `cover`."""
        fields: list[tuple[str, str]] = []
        texts: dict[str, None] = {}
        for value in values:
            _collect(value, None, fields, texts)
        every = dict.fromkeys([*(f for _, f in fields), *texts])
        for text in every:
            if "-" in text:
                self._taken.update(x.lower() for x in _ALIASES.findall(text))
        for kind, text in dict.fromkeys(fields):
            if kind != "path":
                self.alias(kind, text)
        matched = {text: self._matched(text) for text in every}
        paths = {text for kind, text in fields if kind == "path"}
        finder = self._compile()  # of what is known now; `cover` searches for what paths add
        for text, half in matched.items():
            known = finder.sub(self._put_known, half)
            self._half[text] = self._place(known) if text in paths else _PLACE.sub(self._put_place, known)
        self._compile()
        self._used.clear()
        self._done.clear()

    def _matched(self, text: str) -> str:
        """`text` with aliases for all that the patterns find."""
        if "\\" in text or "\x1b" in text:
            pieces = _ESCAPES.split(text)
            if len(pieces) > 1:
                return "".join(p if n % 2 else self._matched(p) for n, p in enumerate(pieces))
        low = text.lower()
        for pattern in patterns():
            if pattern.found_in(low):
                new = self._replaced(pattern, text)
                if new is not text:
                    text, low = new, new.lower()
        if text.count(".") >= 3:
            text = _IPV4.sub(self._put_ipv4, text)
            text = _IPV4_IN_NAME.sub(self._put_ipv4, text)
        if text.count(":") >= 2:
            text = _IPV6.sub(self._put_ipv6, text)
        if "." in text:
            text = _fqdn().sub(self._put_fqdn, text)
        return text

    def _replaced(self, pattern: Pattern, text: str) -> str:
        out: list[str] = []
        at = 0
        for found in pattern.regex.finditer(text):
            first = found[pattern.groups[0][0]]
            if pattern.groups[0][1] == "user" and first.lower() in _words("builders"):
                continue
            for name, kind in pattern.groups:
                start, end = found.span(name)
                if start < at:
                    continue
                word = found[name]
                if kind != "secret" and word.endswith((".", "-")):
                    word = word.rstrip(".-")
                    end = start + len(word)
                new = self._contextual(kind, word)
                if new != word:
                    before = "-" if text[max(0, start - 1) : start].isalnum() else ""
                    out += [text[at:start], before, new, "-" if text[end : end + 1].isalnum() else ""]
                    at = end
        if not out:
            return text
        return "".join(out) + text[at:]

    def _contextual(self, kind: str, word: str) -> str:
        """The alias of a word that stands where one of its kind stands."""
        if _ALIASES.search(word) and kind != "host":
            return word
        if kind == "host" and (_says_nothing(word) and word.isalpha()):
            return word
        if kind in ("project", "container", "pod", "namespace") and _PLACE.fullmatch(word) and "/" in word:
            return word
        if kind == "user" and "@" in word:
            return word
        return self.alias(kind, word)

    def _put_ipv4(self, found: re.Match[str]) -> str:
        before = found.string[max(0, found.start() - 16) : found.start()]
        known = self._aliases.get(found[1])
        return known or (found[1] if _VERSION_BEFORE.search(before) else self.alias("ip", found[1]))

    def _put_ipv6(self, found: re.Match[str]) -> str:
        text = found[1]
        return self.alias("ip", text) if _REAL_IPV6.match(text) and _address(text) else text

    def _put_fqdn(self, found: re.Match[str]) -> str:
        name = found[1]
        labels = name.lower().split(".")
        if _is_public(name.lower()) or labels[0] in _words("packages"):
            return name
        if labels[-1] in _words("ownerless"):
            return self._hostname(name) if not labels[0].isalpha() or len(labels) > 2 else name
        if len(labels) > 2:
            return self._hostname(name)
        common = labels[0] in vocabulary() and labels[0].isalpha()
        return (
            name if common or labels[-1] not in ("com", "net", "org", "edu", "gov", "io", "ai") else self._domain(name)
        )

    # places

    def words(self, text: str) -> str:
        """`text` with an alias for each of its words that is not a common one."""
        return _TOKEN.sub(self._put_word, text)

    def _put_word(self, found: re.Match[str]) -> str:
        word = found[0]
        known = self._aliases.get(word.lower())
        if known is not None and not known.startswith(("job-", "lid-")):
            self._used.add(known)
            return known
        return word if _says_nothing(word) else self.alias("name", word)

    def _put_place(self, found: re.Match[str]) -> str:
        text, kind = found[0], found.lastgroup
        if kind == "url":
            return self._url(text)
        if kind == "relative":
            first = text.split("/", 1)[0].lower()
            if _MAKERS_SOURCE.search(text) or first in _words("packages"):
                return text
            if not _HAS_ENDING.search(text) and first not in _words("relative"):
                return text
        return self._place(text)

    def _url(self, url: str) -> str:
        scheme, _, rest = url.partition("://")
        netloc, slash, path = rest.partition("/")
        login, at, host = netloc.rpartition("@")
        name, colon, port = host.partition(":") if not host.startswith("[") else (host, "", "")
        public = next((p for p in _words("public") if name.lower() == p or name.lower().endswith("." + p)), None)
        if public is not None and public not in _words("hosting"):
            return url
        if public is not None:
            if path.split("/", 1)[0].lower() in _words("makers"):
                return url
            name = self.words(name[: -len(public)]) + name[-len(public) :]
        elif scheme.lower() in ("s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "oci", "file", "r2", "swift", "hf"):
            name = self.words(name)
        elif not name.startswith("["):
            name = self._hostname(name)
        return f"{scheme}://{login}{at}{name}{colon}{port}{slash}{self.words(path)}"

    def _place(self, text: str) -> str:
        """A path, word by word; what the distribution, Python and known packages put there stays."""
        parts = re.split(r"([/\\!])", text)
        names = parts[::2]
        keep_from = len(names)
        for n, name in enumerate(names[:-1]):
            behind = re.split(r"[.-]", names[n + 1])[0].lower()
            if name in ("site-packages", "dist-packages") or re.fullmatch(r"python3\.\d+", name):
                if behind in _words("packages"):
                    keep_from = n
                    break
            elif name == "torch" and names[n + 1].lower() in _words("torch"):
                keep_from = n
                break
        if not names[0] and len(names) > 2 and names[1] in SYSTEM and "/".join(names[1:3]) not in OWN_BELOW:
            keep_from = 0
        return "".join(
            part if n % 2 or n // 2 >= keep_from else self.words(part) if part not in ("site-packages",) else part
            for n, part in enumerate(parts)
        )

    # known originals, wherever they stand

    def _compile(self) -> re.Pattern[str]:
        texts = sorted(self._bare)
        kept = _KEPT_PLACE % "|".join(sorted(map(re.escape, _words("packages"))))
        names = rf"|{_LEFT}(?P<x>{_trie(texts)}){_RIGHT}" if texts else ""
        self._finder = re.compile(rf"(?P<keep>{kept}){names}", re.I)
        self._prefixes = sorted(
            {k for k in [*self._bare, *(o.lower() for o in self._originals.values())] if len(k) > 5}
        )
        return self._finder

    def _found(self, text: str) -> str:
        """`text` with aliases for the originals that are searched for by name."""
        finder = self._finder or self._compile()
        return finder.sub(self._put_known, text)

    def _put_known(self, found: re.Match[str]) -> str:
        if found.lastgroup == "keep":
            return found[0]
        alias = self._bare.get(found[0].lower())
        if alias is None:  # letters that have another length in lower case
            return found[0]
        self._used.add(alias)
        return alias

    # covering

    def cover(self, value: T) -> T:
        """`value` with aliases for all originals: a text, or dicts and lists of texts (new ones; numbers stay)."""
        covered: Any = self._value(value, None)
        return covered  # type: ignore[no-any-return]

    def _value(self, value: Any, field: str | None) -> Any:
        if isinstance(value, str):
            if field in PLAIN:
                return value
            if field in FIELDS:
                return self._field(field, value)
            return value.covered(self._text) if isinstance(value, Message) else self._text(value)
        if isinstance(value, Mapping):
            if isinstance(value.get("before"), list | tuple) and isinstance(value.get("text"), str):
                value = self._over_lines(value)
            return {self._text(k) if _is_foreign(k) else k: self._value(v, _field(k, value)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(v, field) for v in value]
        return value

    def _field(self, field: str | None, text: str) -> str:
        kind = FIELDS[field or ""]
        if kind == "path":
            return self._text(text, whole=True)
        new = self.alias(kind, text)
        return new if new != text else self._text(text)

    def _over_lines(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        """Evidence whose lines hold no original that begins in one and ends in the next."""
        before, after = list(evidence["before"]), list(evidence.get("after") or ())
        lines = self._across([*before, evidence["text"], *after])
        n = len(before)
        return {**evidence, "before": lines[:n], "text": lines[n], "after": lines[n + 1 :]}

    def _across(self, lines: list[str]) -> list[str]:
        for n in range(len(lines) - 1):
            end = _RUN_END.search(lines[n].rstrip("\\ "))
            start = _RUN_START.match(lines[n + 1].lstrip())
            if end is None or start is None:
                continue
            whole, border = end[0] + start[0], len(end[0])
            hits = [m for m in (self._finder or self._compile()).finditer(whole) if m.lastgroup == "x"]
            spans = [(m.span("x"), self._bare.get(m["x"].lower())) for m in hits]
            spans += [(s, a) for s, a in self._shapes(whole)]
            for (a, b), alias in spans:
                if a < border < b and b - a >= SHORTEST_SPLIT and alias:
                    self._used.add(alias)
                    head, tail = lines[n][: end.start() + a], lines[n + 1].lstrip()[b - border :]
                    indent = len(lines[n + 1]) - len(lines[n + 1].lstrip())
                    lines[n], lines[n + 1] = head + alias, lines[n + 1][:indent] + "…" + tail
                    break
        return lines

    def _shapes(self, text: str) -> Iterator[tuple[tuple[int, int], str]]:
        """Known originals in `text` that are found by their shape."""
        low = text.lower()
        for pattern in patterns():
            if pattern.groups[0][1] in (BY_SHAPE | {"secret", "id"}) and pattern.found_in(low):
                for found in pattern.regex.finditer(text):
                    for name, kind in pattern.groups:
                        if alias := self._aliases.get(_key(kind, found[name])):
                            yield found.span(name), alias
        for found in _IPV4.finditer(text):
            if alias := self._aliases.get(found[1]):
                yield found.span(1), alias

    def _text(self, text: str, *, whole: bool = False) -> str:
        if len(text) < 2:
            return text
        done = self._done.get(text)
        if done is None:
            done = self._half.get(text) if not whole else None
            if done is None:
                if "\n" in text:
                    return "\n".join(self._text(line) for line in self._across(text.split("\n")))
                known = self._found(self._matched(text))
                done = self._place(known) if whole else _PLACE.sub(self._put_place, known)
            done = self._unhidden(self._uncut(self._found(done)))
            self._done[text] = done
            self._used.update(_ALIASES.findall(done))
        return done

    def _uncut(self, text: str) -> str:
        """An original whose end was cut off with its text's."""
        body = text.removesuffix("…")
        if len(body) < CUT_FROM and body == text:
            return text
        run = _RUN_END.search(body)
        if run is None:
            return text
        for start in (m.start() for m in _TOKEN.finditer(run[0])):
            part = run[0][start:].lower()
            if len(part) < 4 or _all_common(part):
                continue
            at = bisect_left(self._prefixes, part)
            if (
                at < len(self._prefixes)
                and self._prefixes[at].startswith(part)
                and 3 * len(part) >= len(self._prefixes[at])
            ):
                whole = self._prefixes[at]
                alias = self._bare.get(whole) or self._aliases.get(whole)
                if alias:
                    self._used.add(alias)
                    return body[: run.start() + start] + alias + "…"
        return text

    def _unhidden(self, text: str) -> str:
        """Without originals that are written in base64, in hexadecimal, or with escapes."""
        if len(text) < 8:
            return text
        if any(c in text for c in "%&\\"):
            plain = _unescaped(text)
            if plain != text:
                covered = self._found(self._matched(plain))
                if covered != plain:
                    text = covered
        text = _ENCODED.sub(self._put_encoded, text)
        return _HEX.sub(self._put_hex, text)

    def _put_encoded(self, found: re.Match[str]) -> str:
        run = found[0]
        if ALIAS.search(run):
            return run
        for plain in _decoded(run):
            if self._found(plain) != plain or any(True for _ in self._shapes(plain)):
                return self.alias("encoded", run)
        return run

    def _put_hex(self, found: re.Match[str]) -> str:
        data = bytes.fromhex(found[0])
        if all(32 <= b < 127 for b in data):
            plain = data.decode("ascii")
            if self._found(plain) != plain or any(True for _ in self._shapes(plain)):
                return self.alias("encoded", found[0])
        return found[0]

    def cover_path(self, path: str) -> str:
        return self._text(path, whole=True)

    def redacted(self, *values: T) -> T:
        """The first of `values` after all have been learned."""
        self.learn(*values)
        return self.cover(values[0])

    def document(self, doc: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """A document of document.py and the timeline's rows, redacted; the document says how many aliases it has."""
        self.learn(doc, rows)
        doc, rows = self.cover(doc), self.cover(rows)
        earlier = (doc["tool"].get("redacted") or {}).get("aliases") or {}
        return {**doc, "tool": {**doc["tool"], "redacted": {"aliases": earlier | self.counts()}}}, rows

    def fingerprint(self, doc: Mapping[str, Any]) -> str:
        """Eight characters that tell this report from others and say nothing of its names."""
        return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()[:8]

    # what came of it

    def counts(self) -> dict[str, int]:
        """How many aliases of each kind have been written."""
        kinds = Counter(a.rsplit("-", 1)[0] for a in self._used if a in self._originals)
        return {k: kinds[k] for k in NOUNS if kinds[k]}

    def mapping(self) -> dict[str, str]:
        """Alias → original, by kind and number."""
        order = list(NOUNS)
        return dict(
            sorted(self._originals.items(), key=lambda x: (order.index(_kind(x[0])), int(x[0].rsplit("-")[-1])))
        )

    def map_text(self) -> str:
        """The private map, as a file."""
        table = {
            "schema": MAP_SCHEMA,
            "private": "This file undoes the redaction. Keep it; do not send it along.",
            "aliases": self.mapping(),
        }
        return json.dumps(table, ensure_ascii=False, indent=1) + "\n"

    def leaks(self, outputs: Iterable[str], own: Container[str] = ()) -> list[str]:
        """Kinds of which an original is left in finished outputs: as it is, escaped, encoded, in capitals, or split.
        `own`: words, in lower case, that the outputs say themselves in another language than English."""
        from nccl_forensics.scan import matcher

        wanted: dict[str, str] = {}
        for alias, original in self._originals.items():
            kind = _kind(alias)
            if _is_bare(kind, original) or (kind in BY_SHAPE - {"lid", "job"}):
                for spelled in _spellings(kind, original):
                    wanted.setdefault(spelled.lower(), kind)
        wanted = {k: v for k, v in wanted.items() if len(k) >= SHORTEST_BARE and k not in own}
        if not wanted:
            return []
        literals = [k.encode() for k in wanted]
        kinds = list(wanted.values())
        find = matcher(literals)
        found: set[str] = set()
        for output in outputs:
            for view, bordered in _views(output):
                data = view.lower().encode("utf-8", "backslashreplace")
                for number, end in find(memoryview(data)):
                    start, kind = end - len(literals[number]), kinds[number]
                    apart = not (data[max(0, start - 1) : start].isalnum() or data[end : end + 1].isalnum())
                    long = len(literals[number]) >= (SHORTEST_SPLIT if kind in SURE else LONG)
                    told = apart or (long and kind in SURE) if bordered else long
                    ours = data[max(0, start - OWN) : end + OWN]
                    if told and not _in_package(data, start) and ours not in _own_text():
                        found.add(kind)
        return sorted(found)


def _in_package(data: bytes, start: int) -> bool:
    """Does the text at `start` lie in the path of an installed package?"""
    line = data[max(0, start - 300) : start].decode("utf-8", "replace")
    run = re.split(r"[\s\"'()<>]", line)[-1]
    return re.search(r"(?:site|dist)-packages/|lib/python3\.\d+/", run) is not None


def _views(output: str) -> Iterator[tuple[str, bool]]:
    """What a curious reader might see in an output: (text, whether its words still have their borders)."""
    output = re.sub(r"<style>.*?</style>|<script>.*?</script>", " ", output, flags=re.S)
    yield output, True
    plain = _unescaped(re.sub(r"<wbr>", "", output))
    yield plain, True
    yield re.sub(r"<[^<>]{0,200}>|[\s\u200b\u00ad\ufeff]+|[\"',\\]", "", plain), False
    hidden = [t for run in dict.fromkeys(_ENCODED.findall(output)) for t in _decoded(run)]
    hidden += [bytes.fromhex(run).decode("latin-1") for run in dict.fromkeys(_HEX.findall(output))]
    yield "\n".join(hidden), True


def _collect(value: Any, field: str | None, fields: list[tuple[str, str]], texts: dict[str, None]) -> None:
    if isinstance(value, str):
        if field is not None and field in FIELDS:
            fields.append((FIELDS[field], value))
        elif field not in PLAIN:
            texts[value] = None
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _collect(inner, _field(key, value), fields, texts)
            if _is_foreign(key):
                texts[key] = None
    elif isinstance(value, list | tuple):
        for inner in value:
            _collect(inner, field, fields, texts)


def _field(key: object, row: Mapping[Any, Any]) -> str:
    """What a row's field holds: its key, but a host's `name` is a host."""
    return "host" if key == "name" and "gpus" in row else str(key)


@lru_cache(maxsize=4096)
def _is_foreign(key: object) -> bool:
    """A dict's key that may come from a log: ours are lower-case words."""
    return isinstance(key, str) and re.fullmatch(r"[a-z_]{1,40}", key) is None


def _kind(alias: str) -> str:
    return alias.rsplit("-", 1)[0]


def _key(kind: str, original: str) -> str:
    """The same for all spellings of one original."""
    low = original.lower()
    if kind == "ip" and (address := _address(original)):
        return address
    if kind in ("gpu-uuid", "uuid", "id", "guid"):
        return low.removeprefix("gpu-").removeprefix("mig-").removeprefix("0x").translate(_NO_DASHES)
    if kind == "mac":
        return low.translate(_NO_DASHES)
    if kind in ("lid", "job"):
        return f"{kind} {low}"
    return low


_NO_DASHES = str.maketrans("", "", "-_:.")


def _spellings(kind: str, original: str) -> tuple[str, ...]:
    """How else an original is written."""
    if kind == "ip":
        address = ipaddress.ip_address(original.split("%")[0])
        return (
            (original, original.replace(".", "-"))
            if address.version == 4
            else (original, address.compressed, address.exploded)
        )
    if kind == "mac":
        hexes = original.lower().translate(_NO_DASHES)
        pairs = [hexes[i : i + 2] for i in range(0, len(hexes), 2)]
        fours = [hexes[i : i + 4] for i in range(0, len(hexes), 4)]
        return (":".join(pairs), "-".join(pairs), hexes, ".".join(fours))
    if kind == "guid":
        hexes = original.lower().removeprefix("0x").translate(_NO_DASHES)
        return (original, hexes, ":".join(hexes[i : i + 4] for i in range(0, len(hexes), 4)), "0x" + hexes)
    if kind in ("gpu-uuid", "uuid"):
        plain = original.lower().removeprefix("gpu-").removeprefix("mig-").replace("_", "-")
        return (plain, plain.replace("-", "_"), plain.replace("-", ""))
    return (original,)


def _is_bare(kind: str, original: str) -> bool:
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
    return not _all_common(original) and (kind != "name" or not low.isdecimal())


def _address(text: str) -> str | None:
    """An IP address in its one canonical spelling; None for anything else."""
    try:
        return ipaddress.ip_address(text.split("%")[0]).compressed
    except ValueError:
        return None


def _is_nobodys_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return True
    return address.is_loopback or address.is_unspecified or address.is_multicast or text.startswith(("255.", "0."))


def _is_public(name: str) -> bool:
    public = _words("public")
    return name in public or any(name.endswith("." + p) for p in public if p not in _words("hosting"))


# --- the private map --------------------------------------------------------------------------------------------------


def read_map(path: Path) -> dict[str, str]:
    """Alias → original of an earlier map; empty where there is no file. Raises InputError for another file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        raise InputError(f"{path} is no redaction map ({err}). Name a new file with --redaction-map.") from err
    aliases = table.get("aliases") if isinstance(table, dict) and table.get("schema") == MAP_SCHEMA else None
    if not isinstance(aliases, dict) or not all(isinstance(o, str) and ALIAS.fullmatch(a) for a, o in aliases.items()):
        raise InputError(f"{path} is no redaction map of this tool. Name a new file with --redaction-map.")
    return aliases


def summary(counts: Mapping[str, int]) -> str:
    """'3 hosts, 12 IP addresses', in the page's language."""
    told = (f"{n:,} {counted(*NOUNS[k], n)}" for k, n in counts.items() if k in NOUNS)
    return ", ".join(told)
