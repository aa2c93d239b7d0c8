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

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from nccl_forensics.show.redact.kinds import ALIAS, ALIASES, BY_SHAPE, FIELDS, MAP_SCHEMA, NOUNS, PLAIN
from nccl_forensics.show.redact.leaks import left_in
from nccl_forensics.show.redact.shapes import (
    ENCODED,
    GENERIC,
    HAS_ENDING,
    HEX,
    IPV4,
    IPV4_IN_NAME,
    IPV6,
    KEPT_PLACE,
    MAKERS_SOURCE,
    NODE_ID,
    PLACE,
    PLACEHOLDER,
    REAL_IPV6,
    SHORTEST_NAME,
    SHORTEST_SPLIT,
    VERSION_BEFORE,
    Pattern,
    address_of,
    decoded,
    fqdn,
    is_bare,
    is_common_label,
    is_foreign,
    is_no_machine,
    is_nobodys_address,
    is_owned,
    is_public,
    key_of,
    kind_of,
    labels_of_owner,
    patterns,
    spellings_of,
    trie_of,
)
from nccl_forensics.show.redact.vocabulary import (
    ESCAPES,
    TOKEN,
    all_common,
    says_nothing,
    unescaped,
    vocabulary,
    words_of,
)
from nccl_forensics.text.messages import Message

SYSTEM = frozenset({"lib", "lib32", "lib64", "bin", "sbin", "proc", "sys", "boot", "dev", "usr", "kernel"})
"""Top folders that the distribution fills."""
OWN_BELOW = frozenset({"usr/local", "usr/src", "usr/share", "dev/disk", "dev/mapper"})
"""Folders in them that it does not."""
CUT_FROM = 100
"""Texts shorter than this were not cut anywhere in this tool."""
T = TypeVar("T")
_LEFT = r"(?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))"
_RIGHT = r"(?:(?![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))"
_RUN_END = re.compile(r"[A-Za-z0-9][\w.@:/+=-]*$")
_RUN_START = re.compile(r"[\w.@:/+=-]*[A-Za-z0-9=]")


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
        found = self._aliases.get(key_of(kind, original))
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
        key = key_of(kind, original)
        self._aliases[key] = alias
        if is_bare(kind, original):
            for spelled in spellings_of(kind, original):
                self._bare.setdefault(spelled.lower(), alias)
                self._finder = None

    def _is_kept(self, kind: str, text: str) -> bool:
        low = text.lower()
        if PLACEHOLDER.fullmatch(text):
            return True
        if kind == "user":
            return low in words_of("users") or text.isdecimal()
        if kind == "ip":
            return is_nobodys_address(text)
        if kind == "mac":
            return len(set(low) - set(":-")) <= 1
        if kind in ("project", "pod", "namespace", "container", "fs", "org"):
            return all_common(text)
        if kind == "hostlist":
            stem, _, numbers = text.partition("[")
            return bool(GENERIC.fullmatch(stem)) or (stem.isidentifier() and all_common(stem) and "-" not in numbers)
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
        self._used.update(ALIASES.findall(found))
        return found

    def _machine(self, name: str) -> str:
        """A machine's name: its first label an alias, its owner's domain another, in between the words of a path."""
        bare = name.strip(".")
        if address_of(bare):
            return name if is_nobodys_address(bare) else self.alias("ip", bare)
        if process := NODE_ID.fullmatch(bare):
            return self._hostname(process[1]) + process[2]
        if is_no_machine(bare):
            return name
        first, *rest = bare.split(".")
        head = first if is_common_label(first, in_domain=bool(rest)) else self._machine_label(first)
        return ".".join([head, self._behind_the_label(rest)]) if rest else head

    def _machine_label(self, first: str) -> str:
        known = self._aliases.get(first.lower()) or self._new_host(first)
        self._used.add(known)
        return known

    def _behind_the_label(self, rest: list[str]) -> str:
        """What follows a machine's first label: its owner's domain, or words such as `local` and a cluster's name."""
        if is_owned(rest):
            return self._domain(".".join(rest))
        return ".".join(self.words(label) for label in rest)

    def _new_host(self, first: str) -> str:
        while True:
            self._last["host"] += 1
            if (alias := f"host-{self._last['host']}") not in self._taken:
                break
        self._register("host", first, alias)
        tokens = TOKEN.findall(first)
        if len(tokens) > 1 and tokens[0].isalpha() and len(tokens[0]) >= SHORTEST_NAME:
            self.alias("org", tokens[0])  # what its kin are called after, too
        return alias

    def _domain(self, name: str) -> str:
        """The labels that an owner has registered as one alias, those before them as words."""
        if is_public(name.lower()):
            return name
        labels = name.split(".")
        size = labels_of_owner(labels)
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
                self._taken.update(x.lower() for x in ALIASES.findall(text))
        for kind, text in dict.fromkeys(fields):
            if kind != "path":
                self.alias(kind, text)
        matched = {text: self._matched(text) for text in every}
        paths = {text for kind, text in fields if kind == "path"}
        finder = self._compile()  # of what is known now; `cover` searches for what paths add
        for text, half in matched.items():
            known = finder.sub(self._put_known, half)
            self._half[text] = self._place(known) if text in paths else PLACE.sub(self._put_place, known)
        self._compile()
        self._used.clear()
        self._done.clear()

    def _matched(self, text: str) -> str:
        """`text` with aliases for all that the patterns find."""
        if "\\" in text or "\x1b" in text:
            pieces = ESCAPES.split(text)
            if len(pieces) > 1:
                return "".join(p if n % 2 else self._matched(p) for n, p in enumerate(pieces))
        low = text.lower()
        for pattern in patterns():
            if pattern.found_in(low):
                new = self._replaced(pattern, text)
                if new is not text:
                    text, low = new, new.lower()
        if text.count(".") >= 3:
            text = IPV4.sub(self._put_ipv4, text)
            text = IPV4_IN_NAME.sub(self._put_ipv4, text)
        if text.count(":") >= 2:
            text = IPV6.sub(self._put_ipv6, text)
        if "." in text:
            text = fqdn().sub(self._put_fqdn, text)
        return text

    def _replaced(self, pattern: Pattern, text: str) -> str:
        out: list[str] = []
        at = 0
        for found in pattern.matches(text):
            first = found[pattern.groups[0][0]]
            if pattern.groups[0][1] == "user" and first.lower() in words_of("builders"):
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
        if ALIASES.search(word) and kind != "host":
            return word
        if kind == "host" and (says_nothing(word) and word.isalpha()):
            return word
        if kind in ("project", "container", "pod", "namespace") and PLACE.fullmatch(word) and "/" in word:
            return word
        if kind == "user" and "@" in word:
            return word
        return self.alias(kind, word)

    def _put_ipv4(self, found: re.Match[str]) -> str:
        before = found.string[max(0, found.start() - 16) : found.start()]
        known = self._aliases.get(found[1])
        return known or (found[1] if VERSION_BEFORE.search(before) else self.alias("ip", found[1]))

    def _put_ipv6(self, found: re.Match[str]) -> str:
        text = found[1]
        return self.alias("ip", text) if REAL_IPV6.match(text) and address_of(text) else text

    def _put_fqdn(self, found: re.Match[str]) -> str:
        name = found[1]
        labels = name.lower().split(".")
        if is_public(name.lower()) or labels[0] in words_of("packages"):
            return name
        if labels[-1] in words_of("ownerless"):
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
        return TOKEN.sub(self._put_word, text)

    def _put_word(self, found: re.Match[str]) -> str:
        word = found[0]
        known = self._aliases.get(word.lower())
        if known is not None and not known.startswith(("job-", "lid-")):
            self._used.add(known)
            return known
        return word if says_nothing(word) else self.alias("name", word)

    def _put_place(self, found: re.Match[str]) -> str:
        text, kind = found[0], found.lastgroup
        if kind == "url":
            return self._url(text)
        if kind == "relative":
            first = text.split("/", 1)[0].lower()
            if MAKERS_SOURCE.search(text) or first in words_of("packages"):
                return text
            if not HAS_ENDING.search(text) and first not in words_of("relative"):
                return text
        return self._place(text)

    def _url(self, url: str) -> str:
        scheme, _, rest = url.partition("://")
        netloc, slash, path = rest.partition("/")
        login, at, host = netloc.rpartition("@")
        name, colon, port = host.partition(":") if not host.startswith("[") else (host, "", "")
        public = next((p for p in words_of("public") if name.lower() == p or name.lower().endswith("." + p)), None)
        if public is not None and public not in words_of("hosting"):
            return url
        if public is not None:
            if path.split("/", 1)[0].lower() in words_of("makers"):
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
                if behind in words_of("packages"):
                    keep_from = n
                    break
            elif name == "torch" and names[n + 1].lower() in words_of("torch"):
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
        kept = KEPT_PLACE % "|".join(sorted(map(re.escape, words_of("packages"))))
        names = rf"|{_LEFT}(?P<x>{trie_of(texts)}){_RIGHT}" if texts else ""
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
            return {self._text(k) if is_foreign(k) else k: self._value(v, _field(k, value)) for k, v in value.items()}
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
                for found in pattern.matches(text):
                    for name, kind in pattern.groups:
                        if alias := self._aliases.get(key_of(kind, found[name])):
                            yield found.span(name), alias
        for found in IPV4.finditer(text):
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
                done = self._place(known) if whole else PLACE.sub(self._put_place, known)
            done = self._unhidden(self._uncut(self._found(done)))
            self._done[text] = done
            self._used.update(ALIASES.findall(done))
        return done

    def _uncut(self, text: str) -> str:
        """An original whose end was cut off with its text's."""
        body = text.removesuffix("…")
        if len(body) < CUT_FROM and body == text:
            return text
        run = _RUN_END.search(body)
        if run is None:
            return text
        for start in (m.start() for m in TOKEN.finditer(run[0])):
            part = run[0][start:].lower()
            if len(part) < 4 or all_common(part):
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
            plain = unescaped(text)
            if plain != text:
                covered = self._found(self._matched(plain))
                if covered != plain:
                    text = covered
        text = ENCODED.sub(self._put_encoded, text)
        return HEX.sub(self._put_hex, text)

    def _put_encoded(self, found: re.Match[str]) -> str:
        run = found[0]
        if ALIAS.search(run):
            return run
        for plain in decoded(run):
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
            sorted(self._originals.items(), key=lambda x: (order.index(kind_of(x[0])), int(x[0].rsplit("-")[-1])))
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
        """Kinds of which an original is left in finished outputs; `own` as for `leaks.left_in`."""
        return left_in(outputs, self._originals, own)


def _collect(value: Any, field: str | None, fields: list[tuple[str, str]], texts: dict[str, None]) -> None:
    if isinstance(value, str):
        if field is not None and field in FIELDS:
            fields.append((FIELDS[field], value))
        elif field not in PLAIN:
            texts[value] = None
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _collect(inner, _field(key, value), fields, texts)
            if is_foreign(key):
                texts[key] = None
    elif isinstance(value, list | tuple):
        for inner in value:
            _collect(inner, field, fields, texts)


def _field(key: object, row: Mapping[Any, Any]) -> str:
    """What a row's field holds: its key, but a host's `name` is a host."""
    return "host" if key == "name" and "gpus" in row else str(key)
