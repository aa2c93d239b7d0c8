"""What a text file is, from its first lines and its name: for the list of inputs and for `inspect`."""

from __future__ import annotations

import re

_BY_CONTENT: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("nvidia-bug-report", re.compile(rb"Start of NVIDIA bug report log file|nvidia-bug-report\.sh Version")),
    ("journal-json", re.compile(rb'"__REALTIME_TIMESTAMP"\s*:')),
    ("journal-export", re.compile(rb"(?m)^__REALTIME_TIMESTAMP=\d")),
    ("journal", re.compile(rb"(?m)^-- (?:Logs begin|Journal begins|Boot|Reboot)|^\S.{8,60} \[s=[0-9a-f]{32};i=")),
    ("nvidia-smi", re.compile(rb"NVSMI LOG|^\| NVIDIA-SMI |(?m:^GPU \d+: .*\(UUID: GPU-)|(?m:^Attached GPUs)")),
    ("fabric-manager", re.compile(rb"(?m)^\[\w{3} \d\d \d{4} [\d:]+\] \[\w+\] \[tid \d+\]")),
    (
        "job-log",
        re.compile(rb"ProcessGroupNCCL|torch/distributed/elastic|NCCL (?:INFO|WARN)|\[rank\d+\]:|\[default\d+\]:"),
    ),
    (
        "job-log",
        re.compile(
            rb"(?m)^Traceback \(most recent call last\)|torchrun|(?i:\bloss[ =:'\"]+[\d.]+)|\d+(?:\.\d+)?(?:it/s|s/it)"
        ),
    ),
    ("scheduler", re.compile(rb"(?m)^(?:srun|slurmstepd|sbatch|pdsh@\S+): ")),
    ("kernel", re.compile(rb"(?m)^(?:\xef\xbb\xbf)?(?:<\d+>|\w+ *:\w+ *: )?\[ *\d+\.\d{6}\]")),
    (
        "kernel",
        re.compile(
            rb"(?m)^\d+,\d+,\d+,[-c+];|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}|^Panic#\d+ Part"
            rb"|Linux version \d"
        ),
    ),
    (
        "syslog",
        re.compile(
            rb"(?m)^(?:<\d+>1 )?(?:\S{2,6}\.?\s+[ \d]\d|\d{4}-\d\d-\d\d)[T ][\d:.,]+\S* \S+ [\w./-]+(?:\[\d+\])?:"
        ),
    ),
)
_BY_NAME: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("nvidia-bug-report", re.compile(r"nvidia-bug-report", re.I)),
    ("kernel", re.compile(r"^(?:dmesg|kern\.log|kernel|vmcore-dmesg|messages)", re.I)),
    ("journal", re.compile(r"^(?:journal|system@?.*\.journal)", re.I)),
    ("syslog", re.compile(r"^syslog", re.I)),
    ("nvidia-smi", re.compile(r"nvidia-smi", re.I)),
    ("fabric-manager", re.compile(r"fabricmanager", re.I)),
    ("job-log", re.compile(r"(?:train|slurm-\d+|torchrun|nohup|stdout|stderr|rank\d+)\S*\.(?:log|out|err|txt)$", re.I)),
)


def sniff(head: bytes, name: str) -> str | None:
    """Format id of a text file, from its first 4 KiB and its name; None if neither tells."""
    for format_, pattern in _BY_CONTENT:
        if pattern.search(head):
            return format_
    return by_name(name)


def by_name(name: str) -> str | None:
    """Format id as far as the name tells."""
    for format_, pattern in _BY_NAME:
        if pattern.search(name):
            return format_
    return None
