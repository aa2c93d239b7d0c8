"""How the report writes what the document tells.

Names, numbers, times, and the sentences that page and ticket share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any, TypeVar

from nccl_forensics import catalog
from nccl_forensics.text import language
from nccl_forensics.text.language import N_, _, counted
from nccl_forensics.text.messages import pair
from nccl_forensics.text.visible import visible

Doc = Mapping[str, Any]
T = TypeVar("T")
HIGH, MEDIUM = 0.8, 0.4
"""The contract's bounds of 'identified' and 'suspected'."""
NO_HOST = N_("host not known")
RAW_CHARS, CONTEXT_CHARS, ROW_CHARS = 2000, 300, 400
"""Characters of a log line shown as evidence, as its neighbour, in a table row."""


def clean(text: object, limit: int = RAW_CHARS) -> str:
    """`text` on one line and fit for any output: control characters as escapes, no lone surrogates, cut at `limit`."""
    whole = str(text).encode("utf-8", "backslashreplace").decode().replace("\n", " ").replace("\t", " ")
    return visible(whole if len(whole) <= limit else whole[: limit - 1] + "…")


def span(numbers: Iterable[int], limit: int = 12) -> str:
    """Ranks as ranges: '0–2, 5'. At most `limit` ranges, then how many more."""
    ranges: list[list[int]] = []
    for n in sorted(set(numbers)):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    shown = [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in ranges[:limit]]
    rest = sum(b - a + 1 for a, b in ranges[limit:])
    return ", ".join(shown) + (_(" and {n} more").format(n=f"{rest:,}") if rest else "")


def ranks_words(numbers: Sequence[int]) -> str:
    """'rank 3', 'ranks 3, 4', 'ranks 0–1,022 …' with a count when they are many."""
    if not numbers:
        return _("no rank")
    if len(set(numbers)) == 1:
        return rank_name(numbers[0])
    count = len(set(numbers))
    return _("ranks {numbers}").format(numbers=span(numbers)) + (f" ({plural(count, 'rank')})" if count > 4 else "")


def rank_name(number: int) -> str:
    return _("rank {numbers}").format(numbers=number)


def sentence(text: str) -> str:
    """`text` with a capital and a full stop, where it begins with a plain word and ends with one."""
    first = text.split(" ", 1)[0].rstrip(",:;")
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text + "." if text[-1:].isalnum() or text[-1:] in ")`" else text


NOUNS = (
    *(pair("rank", "ranks"), pair("known rank", "known ranks"), pair("host", "hosts")),
    *(pair("GPU", "GPUs"), pair("clock", "clocks"), pair("file", "files")),
    *(pair("problem", "problems"), pair("event", "events"), pair("more event", "more events")),
    *(pair("key event", "key events"), pair("line", "lines")),
    *(pair("step", "steps"), pair("group", "groups"), pair("failure", "failures")),
    *(pair("sentence", "sentences"), pair("suspect", "suspects"), pair("finding", "findings")),
)


def noun(count: int, one: str) -> str:
    """The form of `one` (of NOUNS) that goes with `count`."""
    return counted(one, one + "s", count)


def plural(count: int, one: str) -> str:
    return f"{count:,} {noun(count, one)}"


def duration(seconds: float | None) -> str:
    """'0.5 ms', '1.2 s', '10 min', '3.2 h', 'not known'."""
    if seconds is None:
        return _("not known")
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.0095:
        return f"{seconds * 1000:.2g} ms"
    if size < 1:
        return f"{seconds * 1000:.0f} ms"
    if size < 120:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if size < 7200:
        return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
    if size < 172_800:
        return f"{seconds / 3600:.1f}".removesuffix(".0") + " h"
    return f"{seconds / 86_400:.1f}".removesuffix(".0") + " " + _("days")


def size_words(count: int | None) -> str:
    if count is None:
        return "n/a"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(time: object) -> int | None:
    """The contract's time string as microseconds since 1970, UTC; None for anything else."""
    if not isinstance(time, str):
        return None
    try:
        return (datetime.fromisoformat(time.replace("Z", "+00:00")) - EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError):
        return None


def moment(at_us: int | None, error_s: float | None = None, *, date: bool = True) -> str:
    """'2026-04-22 03:14:17.250', with no more digits than the error bar leaves; 'not known' for None."""
    if at_us is None:
        return _("not known")
    at = EPOCH + timedelta(microseconds=at_us)
    text = at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")
    if (error_s is not None and error_s < 1) or (error_s is None and at_us % 1_000_000):
        text += f".{at_us % 1_000_000 // 1000:03d}"
    return text


def plus_minus(error_s: float | None) -> str:
    return "± " + _("not known") if error_s is None else f"± {duration(error_s)}"


def confidence_word(confidence: float) -> str:
    return _("high") if confidence >= HIGH else _("medium") if confidence >= MEDIUM else _("low")


@cache
def kinds() -> Mapping[str, str]:
    """Kind of an event → what it is called, in few words (catalog/kinds.toml)."""
    return {id_: kind.title for id_, kind in catalog.kinds().items()}


@cache
def xids() -> dict[int, str]:
    """Xid → what it means, in few words (catalog/xid.toml)."""
    rows = catalog.load("xid").get("xid", [])
    return {r["number"]: str(r["short"]) for r in rows if isinstance(r, dict) and "number" in r and "short" in r}


@cache
def meanings() -> dict[str, str]:
    """Kind of a kernel or report line → what it means, in a sentence (catalog/kernel.toml)."""
    rows = catalog.load("kernel").get("entry", [])
    return {str(r["id"]): re.split(r"(?<=[.;]) ", str(r["meaning"]))[0].rstrip(";") for r in rows if "meaning" in r}


def kind_words(event: Doc) -> str:
    """'Xid 79', 'NCCL watchdog timeout', 'Python exception' …"""
    kind, fields = str(event.get("kind", "")), event.get("fields") or {}
    words = _(kinds()[kind]) if kind in kinds() else kind.replace("-", " ").replace("_", " ")
    if kind in ("xid", "sxid") and fields.get(kind) is not None:
        words += f" {fields[kind]}"
        if kind == "xid" and isinstance(fields["xid"], int) and fields["xid"] in xids():
            words += f", {xids()[fields['xid']]}"
    if kind == "watchdog-timeout" and fields.get("seq") is not None:
        words += ", " + str(fields.get("op") or _("operation")).lower() + _(" no. {n}").format(n=fields["seq"])
    if kind == "exit" and (fields.get("signal") or fields.get("code") is not None):
        words += ", " + str(fields.get("signal") or _("code {n}").format(n=fields.get("code")))
    return clean(words, 80)


def cause_title(cause: str) -> str:
    entry = catalog.load("causes").get(cause)
    return (
        _(str(entry["title"])) if isinstance(entry, dict) and "title" in entry else clean(cause.replace("_", " "), 80)
    )


def listed(numbers: object) -> tuple[int, ...]:
    return tuple(n for n in numbers if isinstance(n, int)) if isinstance(numbers, (list, tuple)) else ()


def plain_word(text: str) -> str:
    """One of WORDS in the page's language; '' is ''."""
    return _(text) if text else ""


WORDS = (
    *(N_("cause"), N_("symptom"), N_("consequence"), N_("context")),
    *(N_("critical"), N_("error"), N_("warning"), N_("info")),
    *(N_("read"), N_("partial"), N_("skipped"), N_("failed")),
    *(N_("onset"), N_("detected"), N_("ended")),
    *(N_("waiting"), N_("from first to last")),
    *(N_("the embedded data"), N_("the event table")),
)
"""Words of the document and of the drawings that templates hand to `word`."""


def or_na(value: object) -> str:
    """A cell: 'n/a' for what is not known (the model's None; never -1)."""
    return "n/a" if value is None or value == "" else clean(value, ROW_CHARS)


def gpu_words(gpu: Doc) -> str:
    """'GPU 3 at 0000:4b:00.0', 'GPU 0000:4b:00.0', 'GPU GPU-8c1f…' or 'GPU' as far as it is known."""
    index, pci = gpu.get("index"), gpu.get("pci")
    if index is not None:
        return _("GPU {index} at {pci}").format(index=index, pci=clean(pci, 40)) if pci else f"GPU {index}"
    name = pci or gpu.get("uuid") or gpu.get("serial")
    return f"GPU {clean(name, 60)}" if name else "GPU"


def culprit_words(verdict: Doc, host_of: Mapping[int, str]) -> str:
    """Who, in words without a capital: rank, host, GPU as far as the verdict names them; '' for nobody."""
    ranks, hosts, gpus = listed(verdict["culprit_ranks"]), verdict["culprit_hosts"], verdict["culprit_gpus"]
    if ranks:
        names = hosts or sorted({host_of[r] for r in ranks if r in host_of})
        who, place = ranks_words(ranks), clean(names[0], 80) if len(names) == 1 else plural(len(names), "host")
        card = f" ({gpu_words(gpus[0])})" if len(gpus) == 1 and len(ranks) == 1 else ""
        return (_("{who} on {host}").format(who=who, host=place) if names else who) + card
    if gpus:
        owners = sorted({g.get("host") or "" for g in gpus})
        card = gpu_words(gpus[0]) if len(gpus) == 1 else plural(len(gpus), "GPU")
        alone = len(owners) == 1 and owners[0]
        return _("{gpu} in {host}").format(gpu=card, host=clean(owners[0], 80)) if alone else card
    if hosts:
        more = _(" and {n} more").format(n=f"{len(hosts) - 3:,}") if len(hosts) > 3 else ""
        return noun(len(hosts), "host") + " " + ", ".join(clean(h, 80) for h in hosts[:3]) + more
    return ""


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]


_NAMES = frozenset(("Python", "Slurm", "NVLink", "NCCL", "GPU", "CUDA"))


def lower(text: str) -> str:
    """`text` as it stands inside a sentence."""
    if language.current() != "en":
        return text  # German nouns keep their capital, and a translated title follows a colon
    return text if text.split(" ", 1)[0].rstrip(",:") in _NAMES else text[:1].lower() + text[1:]


def has_a_place(cause: str) -> bool:
    """Does such a cause lie with one rank, GPU or host, also where nobody could be named (catalog/causes.toml)?"""
    return not catalog.load("causes").get(cause, {}).get("shared", True)


def headline_of(verdict: Doc, host_of: Mapping[int, str]) -> str:
    who, title = culprit_words(verdict, host_of), cause_title(verdict["cause"])
    status = verdict["status"]
    if status == "undetermined":
        if verdict["cause"] == "undetermined":
            return _("These files do not tell who caused the timeout")
        return _("Not certain enough to name a culprit; perhaps: {title}").format(title=lower(title))
    if not who:
        if has_a_place(verdict["cause"]):
            nobody = _("{title}. Which one, these files do not tell").format(title=title)
        else:
            nobody = _("{title}. No single rank is to blame").format(title=title)
        return nobody if status == "identified" else _("Probably: {claim}").format(claim=nobody)
    claim = claim_words(who, title, len(set(listed(verdict["culprit_ranks"]))))
    return upper(claim) if status == "identified" else _("Probably {claim}").format(claim=claim)


def claim_words(who: str, title: str, ranks: int) -> str:
    """'rank 5 on node-a never entered the collective', 'rank 3: CUDA out of memory'."""
    if language.current() != "en":  # what follows is English grammar
        return f"{who}: {title}"
    if ranks:
        title = title.removesuffix(" on one rank")
        if title.startswith("A rank "):
            rest = title.removeprefix("A rank ")
            if ranks > 1:
                rest = re.sub("^(was|is) ", lambda m: "were " if m[1] == "was" else "are ", rest)
            return f"{who} {rest}"
    if title.startswith("A node ") and who.startswith("host "):
        return f"{who} {title.removeprefix('A node ')}"
    if title.startswith("Ranks "):  # they all did; these ones are why
        return f"{lower(title)} because of {who}"
    if title.startswith(("A ", "The ")):
        title = "the " + title.removeprefix("A ").removeprefix("The ")
    return f"{who}: {lower(title)}"


def member_words(group: Doc, count: int) -> str:
    """'8 ranks', 'at least 8 ranks'."""
    words = plural(count, "rank")
    return _("at least {ranks}").format(ranks=words) if group.get("members_at_least") else words


def collective_words(incident: Doc) -> str:
    """What stopped. Who had not come is left out where it is known that the fault lies elsewhere."""
    c = incident.get("collective")
    if not c:
        return _("Which collective this stopped is not known")
    name = clean(c.get("op") or _("operation"), 60)
    text = name + (_(" no. {n}").format(n=f"{c['seq']:,}") if c.get("seq") is not None else "")
    group = c.get("description") or c.get("process_group")
    text += _(" in process group {group}").format(group=clean(group, 60)) if group else ""
    members, arrived, missing = (listed(c.get(k)) for k in ("members", "arrived", "missing"))
    if members and arrived:
        text += _("; {n} of {ranks} had entered").format(n=f"{len(arrived):,}", ranks=member_words(c, len(members)))
    verdict = incident["verdict"]
    named = set(listed(verdict["culprit_ranks"]))
    elsewhere = verdict["status"] == "identified" and not named & set(missing)
    if missing and (not elsewhere or (not named and culprit_words(verdict, {}))):
        text += _("; missing: {ranks}").format(ranks=ranks_words(missing))
    if c.get("timeout_ms"):
        text += _("; timeout {time}").format(time=duration(c["timeout_ms"] / 1000))
    return text


def ranks_left_out(holder: Doc) -> list[int]:
    """Silent ranks that have no row of their own, of a document or an incident."""
    ranges = (holder.get("ranks_left_out") or {}).get("ranges") or ()
    return [rank for first, last in ranges for rank in range(first, last + 1)]


STATUS_WORDS = {"identified": N_("Identified"), "suspected": N_("Suspected"), "undetermined": N_("Cannot tell")}


def sure_words(verdict: Doc) -> str:
    confidence = float(verdict["confidence"])
    if verdict["status"] == "undetermined":
        likeliest = _("the likeliest explanation has {number} of 1").format(number=f"{confidence:.2f}")
        return likeliest if confidence >= 0.05 else _("nothing stands out")
    return _("{word} confidence, {number}").format(word=confidence_word(confidence), number=f"{confidence:.2f}")


def prose(text: str) -> Any:
    """Words with `code` between backticks, escaped; a lone backtick stays what it is."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(p) if n % 2 and p else escape(p) for n, p in enumerate(parts)
    )


def breakable(text: str) -> Any:
    """A path that may be broken after its slashes."""
    from markupsafe import Markup, escape

    return Markup("/<wbr>").join(escape(p) for p in text.split("/"))


NOTHING_FAILED = N_("No failure was found in these files")
NOTHING_READ = N_("Nothing in these files could be read as a log")


def readable(doc: Doc) -> bool:
    """Some file was understood: only then does the absence of a failure mean something."""
    return any(r["status"] in ("read", "partial") and r["format"] != "unknown" for r in doc["inputs"])


_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def markdown_text(text: str) -> str:
    """`text` with everything that Markdown or HTML could take for markup escaped."""
    return _MARKDOWN.sub(r"\\\1", text)


def markdown_code(text: str) -> str:
    """`text` as a code span, whatever backticks it holds (CommonMark §6.1)."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"
