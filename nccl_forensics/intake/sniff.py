"""What a text file is, from its first lines and its name: for the list of inputs and for `inspect`."""

from __future__ import annotations

import re

_BY_CONTENT: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("collection-manifest", re.compile(rb"\Anccl-forensics collection of ")),
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
        re.compile(rb"(?m)^Traceback \(most recent call last\)|torchrun|(?i:\bloss[ =:'\"]+[\d.])|\d(?:it/s|s/it)"),
    ),
    ("scheduler", re.compile(rb"(?m)^(?:srun|slurmstepd|sbatch|pdsh@\S+): ")),
    (
        "nvidia-smi",
        re.compile(
            rb"(?m)^(?:# ?)?[\w.]{2,40},[^\n]{0,2000}?\b(?:temperature\.gpu|pci\.bus_id|clocks_\w{5,8}_reasons)\b"
            rb"|^# ?gpu +pwr"
        ),
    ),
    (
        "lspci",
        re.compile(rb"(?m)^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z0-9][\w/ -]{2,40}(?: \[\d{4}\])?: "),
    ),
    ("dcgm-diagnostic", re.compile(rb"(?m)^\| Diagnostic {3,}\| Result")),
    ("dcgm-exporter", re.compile(rb"(?m)^(?:# (?:HELP|TYPE) )?DCGM_FI_\w{4,60}[ {]")),
    ("gpu-burn", re.compile(rb"(?m)^Burning for \d+ sec|^\d[\d.]{0,6}%  proc'd: ")),
    ("nccl-tests", re.compile(rb"(?m)^# nThread \d+ nGpus \d|^# Avg bus bandwidth")),
    ("gpu-topology", re.compile(rb"(?m)^[^\S\n]+(?:\x1b\[4m)?GPU0\s.{0,2000}CPU Affinity")),
    (
        "bmc",
        re.compile(
            rb"(?m)^[^|\n]{2,40}\| [^|\n]{1,20}\| (?:degrees C|RPM|Volts|discrete) {0,4}\|"
            rb"|^[^|\n]{2,40}\| (?:\d+ degrees C|[0-9a-f]{2}h) {1,12}\| (?:ok|ns|cr|nr|nc)\b"
            rb"|^ {0,4}[0-9a-f]{1,4} \| \d\d/\d\d/\d{2,4} \| \d\d:\d\d:\d\d"
        ),
    ),
    (
        "network-ports",
        re.compile(
            rb"(?m)^CA '[\w.-]+'|^Infiniband device '|^hca_id:\s|^\w+ port \d+ ==> |^link \w+/\d+ (?:\S+ ){0,8}state "
            rb"|^Operational Info|^NIC statistics:|^Settings for [\w.@-]+:|^# Port counters: Lid"
        ),
    ),
    (
        "switches",
        re.compile(
            rb"(?m)^(?:Switch|Block)Name=\S+ |^Switch\t\d+ \"S-[0-9a-f]{16}\"|^Switch:? 0x[0-9a-f]{16} "
            rb"|^# Topology file: generated on "
        ),
    ),
    (
        "slurm-tables",
        re.compile(
            rb"(?m)^JobI[Dd](?:Raw)?(?: +\w+){2,30} *$|^JobI[Dd](?:Raw)?\||^JobId=\d|^NodeName=\S"
            rb"|^REASON +USER +TIMESTAMP"
        ),
    ),
    (
        "kubernetes",
        re.compile(
            rb"(?m)^Name: {4,}\S+$(?=[\s\S]{1,3000}^(?:Node|Namespace|Roles|Conditions|Containers):)"
            rb"|^NAME +STATUS +ROLES +AGE|^(?:NAMESPACE +)?LAST SEEN +TYPE +REASON"
            rb"|^(?:NAMESPACE +)?NAME +READY +STATUS +RESTARTS|^CONTAINER ID +IMAGE "
        ),
    ),
    (
        "file-systems",
        re.compile(rb"(?m)^Filesystem\s.{10,200}Mounted on|^\S+ on /\S* type \w+ \(r[ow][,)]|^Disk quotas for "),
    ),
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
            rb"(?m)^(?:<\d+>1 )?(?:\S{2,6}\.?\s+[ \d]\d|\d{4}-\d\d-\d\d)[T ][\d:.,]\S* "
            # no logger's level in place of the host, no line of a source behind the name: 'INFO train.py:166]'
            rb"(?![\[\x1b]|(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b)\S+ [\w./-]+(?:\[\d+\])?:(?!\d)"
        ),
    ),
)
_BY_NAME: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("clock-state", re.compile(r"^(?:clock-(?:date|timedatectl|chrony)|uptime)\.txt$")),
    ("board", re.compile(r"^dmidecode", re.I)),
    ("nvidia-bug-report", re.compile(r"nvidia-bug-report", re.I)),
    ("kernel", re.compile(r"^(?:dmesg|kern\.log|kernel|vmcore-dmesg|messages)", re.I)),
    ("journal", re.compile(r"^(?:journal|system@?.*\.journal)", re.I)),
    ("syslog", re.compile(r"^syslog", re.I)),
    ("nvidia-smi", re.compile(r"nvidia-smi", re.I)),
    ("fabric-manager", re.compile(r"fabricmanager", re.I)),
    ("job-log", re.compile(r"(?:train|slurm-\d+|torchrun|nohup|stdout|stderr|rank\d+)\S*\.(?:log|out|err|txt)$", re.I)),
)
_OWN = re.compile(
    rb"""(?x)
    \s*<!doctype\ html> (?=[\s\S]*nccl-forensics)                # report
    | \{\n\ "schema":\ "nccl-forensics                            # --json
    | -\ \*\*Result:\*\*                                           # --markdown
    | Result:\ +\S (?=[\s\S]*\nMade\ by:\ +nccl-forensics\ )       # the ticket, as printed
    | time,time_uncertainty_s,time_basis,                          # --events
    | \{"(?:boot|cause|fields)": [^\n]*"gpu_pci": [^\n]*"role": [^\n]*"time_uncertainty_s":
    | PAR1
    | \{"displayTimeUnit":\ "ms",\ "otherData":\ \{"tool":\ "nccl-forensics\ # --perfetto
    """,
    re.IGNORECASE,
)
"""How the files begin that this tool writes."""
KERNEL_FORMATS = frozenset({"kernel", "journal", "journal-json", "journal-export", "syslog", "nvidia-bug-report"})
"""Files in which a kernel's lines are expected."""
HOST_FORMATS = KERNEL_FORMATS | {"fabric-manager", "nvidia-smi"}
"""Files that a host writes on its own clock; a job's log is often written in a container, on UTC."""
OF_ONE_HOST = HOST_FORMATS | {
    *("lspci", "dcgm-diagnostic", "gpu-burn", "gpu-topology", "bmc", "network-ports", "file-systems"),
}
"""Files that are about the machine they were written on."""


def is_own(head: bytes) -> bool:
    """Was a file that begins so written by this tool? Then it is no evidence, and may be written over."""
    return _OWN.match(head) is not None


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
