"""The sentences that page and ticket share: who it was, what stopped, how sure that is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics import catalog
from nccl_forensics.show.page.words import (
    Doc,
    cause_title,
    clean,
    confidence_word,
    count_words,
    duration_words,
    gpu_words,
    noun,
    numbers_of,
    ranks_words,
)
from nccl_forensics.text import language, phrases
from nccl_forensics.text.language import N_, _, said
from nccl_forensics.text.messages import upper_first


def culprit_words(verdict: Doc, host_of: Mapping[int, str]) -> str:
    """Who, in words without a capital: rank, host, GPU as far as the verdict names them; '' for nobody."""
    ranks, hosts, gpus = numbers_of(verdict["culprit_ranks"]), verdict["culprit_hosts"], verdict["culprit_gpus"]
    if ranks:
        names = hosts or sorted({host_of[r] for r in ranks if r in host_of})
        who, place = ranks_words(ranks), clean(names[0], 80) if len(names) == 1 else count_words(len(names), "host")
        card = f" ({gpu_words(gpus[0])})" if len(gpus) == 1 and len(ranks) == 1 else ""
        return (_("{who} on {host}").format(who=who, host=place) if names else who) + card
    if gpus:
        owners = sorted({g.get("host") or "" for g in gpus})
        card = gpu_words(gpus[0]) if len(gpus) == 1 else count_words(len(gpus), "GPU")
        alone = len(owners) == 1 and owners[0]
        return _("{gpu} in {host}").format(gpu=card, host=clean(owners[0], 80)) if alone else card
    if hosts:
        names = phrases.listing((clean(h, 80) for h in hosts), most=3, brief=True)
        return f"{noun(len(hosts), 'host')} {said(names)}"
    return ""


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
    claim = claim_words(who, title, len(set(numbers_of(verdict["culprit_ranks"]))))
    return upper_first(claim) if status == "identified" else _("Probably {claim}").format(claim=claim)


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
    words = count_words(count, "rank")
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
    members, arrived, missing = (numbers_of(c.get(k)) for k in ("members", "arrived", "missing"))
    if members and arrived:
        text += _("; {n} of {ranks} had entered").format(n=f"{len(arrived):,}", ranks=member_words(c, len(members)))
    verdict = incident["verdict"]
    named = set(numbers_of(verdict["culprit_ranks"]))
    elsewhere = verdict["status"] == "identified" and not named & set(missing)
    if missing and (not elsewhere or (not named and culprit_words(verdict, {}))):
        text += _("; missing: {ranks}").format(ranks=ranks_words(missing))
    if c.get("timeout_ms"):
        text += _("; timeout {time}").format(time=duration_words(c["timeout_ms"] / 1000))
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


NOTHING_FAILED = N_("No failure was found in these files")
NOTHING_READ = N_("Nothing in these files could be read as a log")


def readable(doc: Doc) -> bool:
    """Some file was understood: only then does the absence of a failure mean something."""
    return any(r["status"] in ("read", "partial") and r["format"] != "unknown" for r in doc["inputs"])
