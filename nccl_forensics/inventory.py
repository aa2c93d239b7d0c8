"""Plain-text answers for the terminal: `inspect` and `xid`."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

WIDTH = 100


def text(doc: Mapping[str, Any]) -> str:
    """What is in the pile, file by file, and what is missing for a good verdict."""
    lines = []
    for row in doc["inputs"]:
        whose = ", ".join(filter(None, [row["host"], f"rank {row['rank']}" if row["rank"] is not None else None]))
        span = " – ".join(t[:19].replace("T", " ") for t in (row["first_time"], row["last_time"]) if t)
        facts = "; ".join(filter(None, [whose, span, f"{row['events']:,} events" if row["events"] else None]))
        lines.append(f"{row['status']:8}{row['format']:20}{_size(row['bytes']):>9}  {row['path']}")
        if facts:
            lines.append(f"{'':39}{facts}")
        if row["reason"]:
            lines += textwrap.wrap(row["reason"], WIDTH, initial_indent=" " * 39, subsequent_indent=" " * 39)
    states = Counter(r["status"] for r in doc["inputs"])
    lines.append("")
    lines.append(f"{len(doc['inputs']):,} files: " + ", ".join(f"{n:,} {s}" for s, n in sorted(states.items())))
    lines.append("Clocks:")
    for clock in doc["clocks"]:
        bar = f" ± {clock['uncertainty_s']:g} s" if clock["uncertainty_s"] is not None else ""
        offset = (
            f"{clock['offset_s']:+.1f} s{bar}"
            if clock["offset_s"] is not None and clock["basis"] != "boot-time"
            else ""
        )
        lines.append(
            f"  {clock['clock']}: {clock['basis']} {offset} {('– ' + clock['note']) if clock['note'] else ''}".rstrip()
        )
    have = {r["format"] for r in doc["inputs"] if r["status"] in ("read", "partial")}
    wanted = (
        (
            "flight-recorder",
            "Flight Recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE or TORCH_NCCL_TRACE_BUFFER_SIZE=2000)",
        ),
        ("job-log", "the job's log of all ranks (torchrun --tee 3 --log-dir DIR)"),
        ("kernel", "kernel logs of all hosts: sudo journalctl -k -b -o short-iso-precise > kernel-$(hostname).log"),
        ("nvidia-bug-report", "sudo nvidia-bug-report.sh on the suspect host (before a reboot)"),
        ("nvidia-smi", "nvidia-smi -L and nvidia-smi -q of each host: which rank ran on which card"),
    )
    kernel = have & {"kernel", "journal", "journal-json", "journal-export", "syslog", "nvidia-bug-report"}
    missing = [w for k, w in wanted if k not in have and not (k == "kernel" and kernel)]
    if missing:
        lines.append("Not in the pile (collect if the verdict asks for it):")
        lines += [f"  {w}" for w in missing]
    for problem in doc["problems"]:
        where = f"{problem['source']}: " if problem["source"] else ""
        lines += textwrap.wrap(f"{where}{problem['says']}", WIDTH, initial_indent="! ", subsequent_indent="  ")
    return "\n".join(lines)


def _size(number: int) -> str:
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return str(number)


def xid(entry: Mapping[str, Any]) -> str:
    """One Xid of the catalogue, for people."""
    blocks = [
        ("", f"Xid {entry['number']}: {entry['short']} ({entry['mnemonic']})"),
        (
            "",
            f"{entry['role']}, {entry['severity']}, takes down: {entry['scope']}; the process on that GPU dies: "
            f"{ {'true': 'yes', 'false': 'no'}.get(entry['kills_job'], entry['kills_job']) }",
        ),
        ("Usual causes: ", "; ".join(entry["causes"])),
        ("First: ", entry["immediate"]),
        ("Then: ", entry["further"]),
        ("On workstations: ", entry.get("workstation", "")),
        ("Note: ", entry.get("note", "")),
        ("Follows: ", ", ".join(map(str, entry.get("follows", [])))),
        ("Leads to: ", ", ".join(map(str, entry.get("leads_to", [])))),
        ("NVIDIA's bucket: ", entry.get("nvidia_bucket", "")),
        ("Sources disagree: ", entry.get("sources_disagree", "")),
    ]
    return "\n".join(textwrap.fill(label + body, WIDTH, subsequent_indent="  ") for label, body in blocks if body)
