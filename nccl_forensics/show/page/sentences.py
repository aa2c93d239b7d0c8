"""The sentences that page and ticket share: who it was, what stopped, how sure that is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
        return _ranks_at(ranks, hosts or sorted({host_of[r] for r in ranks if r in host_of}), gpus)
    if gpus:
        return _gpus_in(gpus)
    if hosts:
        names = phrases.listing((clean(h, 80) for h in hosts), most=MAX_HOSTS, brief=True)
        return f"{noun(len(hosts), 'host')} {said(names)}"
    return ""


def _ranks_at(ranks: Sequence[int], hosts: Sequence[str], gpus: Sequence[Doc]) -> str:
    """'rank 3 on node-a (GPU 3 at 0000:4b:00.0)', 'ranks 0–7 on 2 hosts'."""
    who = ranks_words(ranks)
    if hosts:
        where = clean(hosts[0], 80) if len(hosts) == 1 else count_words(len(hosts), "host")
        who = _("{who} on {host}").format(who=who, host=where)
    return f"{who} ({gpu_words(gpus[0])})" if len(gpus) == len(ranks) == 1 else who


def _gpus_in(gpus: Sequence[Doc]) -> str:
    """'GPU 0000:4b:00.0 in node-a', '2 GPUs'."""
    which = gpu_words(gpus[0]) if len(gpus) == 1 else count_words(len(gpus), "GPU")
    owners = {g.get("host") or "" for g in gpus}
    host = owners.pop() if len(owners) == 1 else ""
    return _("{gpu} in {host}").format(gpu=which, host=clean(host, 80)) if host else which


MAX_HOSTS = 3
"""Hosts that are named; the others are counted."""
_NAMES = frozenset(("Python", "Slurm", "NVLink", "NCCL", "GPU", "CUDA"))


def lower(text: str) -> str:
    """`text` as it stands inside a sentence."""
    if language.current() != "en":
        return text  # German nouns keep their capital, and a translated title follows a colon
    return text if text.split(" ", 1)[0].rstrip(",:") in _NAMES else text[:1].lower() + text[1:]


def has_a_place(cause: str) -> bool:
    """Does such a cause lie with one rank, GPU or host, also where nobody could be named (catalog/causes.toml)?"""
    return not catalog.load("causes").get(cause, {}).get("shared", True)


def took_all_of_them(verdict: Doc) -> bool:
    """Is it certain, of a kind that takes many ranks at once, and nobody in particular to blame?"""
    named = numbers_of(verdict["culprit_ranks"]) or verdict["culprit_hosts"] or verdict["culprit_gpus"]
    return verdict["status"] == "identified" and not named and not has_a_place(verdict["cause"])


def headline_of(verdict: Doc, host_of: Mapping[int, str]) -> str:
    who, title = culprit_words(verdict, host_of), cause_title(verdict["cause"])
    if verdict["status"] == "undetermined":
        if verdict["cause"] == "undetermined":
            return _("These files do not tell who caused the timeout")
        return _("Not certain enough to name a culprit; perhaps: {title}").format(title=lower(title))
    certain = verdict["status"] == "identified"
    if who:
        claim = claim_words(who, title, len(set(numbers_of(verdict["culprit_ranks"]))))
        return upper_first(claim) if certain else _("Probably {claim}").format(claim=claim)
    if has_a_place(verdict["cause"]):
        nobody = _("{title}. Which one, these files do not tell").format(title=title)
    else:
        nobody = _("{title}. No single rank is to blame").format(title=title)
    return nobody if certain else _("Probably: {claim}").format(claim=nobody)


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
    """'all_reduce no. 842 in process group default_pg; 7 of 8 ranks had entered; missing: rank 3; timeout 30 min'."""
    c = incident.get("collective")
    if not c:
        return _("Which collective this stopped is not known")
    text = clean(c.get("op") or _("operation"), 60)
    if c.get("seq") is not None:
        text += _(" no. {n}").format(n=f"{c['seq']:,}")
    if group := c.get("description") or c.get("process_group"):
        text += _(" in process group {group}").format(group=clean(group, 60))
    members, arrived, missing = (numbers_of(c.get(k)) for k in ("members", "arrived", "missing"))
    if members and arrived:
        text += _("; {n} of {ranks} had entered").format(n=f"{len(arrived):,}", ranks=member_words(c, len(members)))
    if missing and _missing_tells(incident["verdict"], missing):
        text += _("; missing: {ranks}").format(ranks=ranks_words(missing))
    if c.get("timeout_ms"):
        text += _("; timeout {time}").format(time=duration_words(c["timeout_ms"] / 1000))
    return text


def _missing_tells(verdict: Doc, missing: Sequence[int]) -> bool:
    """Who had not come is left out where it is certain that the fault lies with other ranks, or with nobody."""
    ranks = set(numbers_of(verdict["culprit_ranks"]))
    elsewhere = verdict["status"] == "identified" and not ranks & set(missing)
    a_host_or_card = not ranks and bool(verdict["culprit_hosts"] or verdict["culprit_gpus"])
    return not elsewhere or a_host_or_card


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
NOT_RECOGNISED = N_("No failure was recognised in these files")
NOTHING_READ = N_("Nothing in these files could be read as a log")


def nothing_found(doc: Doc) -> str:
    """The answer where there is no incident: only what was understood can be without a failure."""
    if not readable(doc):
        return _(NOTHING_READ)
    return _(NOT_RECOGNISED if alarmed(doc) else NOTHING_FAILED)


def alarmed(doc: Doc) -> bool:
    """Does a line look like an error that may be why a job failed, and that nothing here understands?"""
    return any(alarm["telling"] for alarm in doc.get("alarms", ()))


def readable(doc: Doc) -> bool:
    """Some file was understood: only then does the absence of a failure mean something."""
    return any(r["status"] in ("read", "partial") and r["format"] != "unknown" for r in doc["inputs"])
