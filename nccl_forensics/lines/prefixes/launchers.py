"""What launchers and those who copy logs put before a line.

Ranks, tasks, pods, hosts, grep's file names, a mail's quotes.

Shapes: torch.distributed.elastic and the samples in tests/cases/prefixes.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Final

from nccl_forensics.lines import stamps
from nccl_forensics.lines.prefixes.collectors import CRI_HEAD
from nccl_forensics.lines.prefixes.peeled import Peeled, decode, give
from nccl_forensics.lines.window import RawLine

VOTERS: Final = 16
"""Neighbours on either side that are asked whether `word: ` is a host's name here."""


_RANK = re.compile(r"\[(?:rank(\d{1,7})\]: ?|(?:rank|RANK)[ :=]{0,2}(\d{1,7})\]:? ?)", re.ASCII)
_ROLE = re.compile(r"\[([A-Za-z_](?:[\w-]{0,40}[A-Za-z_-])?)(\d{1,6})\]:", re.ASCII)
_ROLE_OF_HOST = ("node", "host", "nid", "server", "machine")
_MPI = re.compile(r"\[(?:[^\]\s,@]{1,200}@)?\d{1,9},(\d{1,7})\]<(?:stdout|stderr|stddiag)>: ?", re.ASCII)
_POD = re.compile(r"\[pod/([^\]/\s]{1,253})(?:/[^\]\s]{1,253})?\] ?")
_C10 = re.compile(
    r"\[([EWIF])(?:(\d{3,4}) (\d\d):(\d\d):(\d\d)\.(\d{6,9}))?(?: \d{1,20})? [^\s\]]{1,300}\.[a-zA-Z]{1,4}:\d{1,7}\] ?",
    re.ASCII,
)
_NUMBERED = re.compile(r"\[(\d{1,9})\]:? (?=\[|\d{4}-\d\d-\d\d|[EWIF]\d{4} )", re.ASCII)
_NUMBERED_TIGHT = re.compile(r"\[(\d{1,7})\]:(?=\S)", re.ASCII)


def torch_rank(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[rank3]:` (PyTorch from 2.2), `[RANK 3] `. `[Rank 3]` is another thing: the rank inside a process group."""
    m = _RANK.match(text)
    if m is None:
        return None
    peeled.rank = int(m[1] or m[2])
    return text[m.end() :]


def c10(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[E1125 10:21:33.000421007 ProcessGroupNCCL.cpp:629] `; up to torch 2.3 without the time."""
    m = _C10.match(text)
    if m is None:
        return None
    _, date, hour, minute, second, fraction = m.groups()
    if date is not None:
        give(peeled, stamps.wall(None, date[:-2], date[-2:], hour, minute, second, fraction))
    peeled.final = True
    return text[m.end() :]


def torchrun_role(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[default3]:` (torchrun --tee)."""
    m = _ROLE.match(text)
    if m is None:
        return None
    name = m[1].lower()
    if name == "rank":
        peeled.rank = int(m[2])
    elif name.startswith(_ROLE_OF_HOST):
        peeled.host = m[1] + m[2]
    else:
        peeled.local_rank = int(m[2])
    return text[m.end() :]


def pod(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[pod/name/container] ` (kubectl logs --prefix)."""
    m = _POD.match(text)
    if m is None:
        return None
    peeled.pod = m[1]
    return text[m.end() :]


def mpi(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[1,12]<stdout>:` (mpirun --tag-output)."""
    m = _MPI.match(text)
    if m is None:
        return None
    peeled.task = int(m[1])
    return text[m.end() :]


def numbered(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[80746] ` before another prefix: a viewer's line counter or an MPI rank, nobody knows. `[3]:text` is torchrun's
    `--log-line-prefix-template` (a rank of unknown kind)."""
    if m := _NUMBERED.match(text):
        return text[m.end() :]
    if m := _NUMBERED_TIGHT.match(text):
        peeled.task = int(m[1])
        return text[m.end() :]
    return None


_ACTOR = re.compile(r"\(((?:[\w:.+-]{1,80}[ ,])?[^()\n]{0,160}?\b(?:pid|ip|rank)=[^()\n]{1,160})\)(?:\x1b?\[0m)? ?")
_ACTOR_FIELD = re.compile(r"\b(pid|ip|rank)=([\w.:-]{1,64})")
_VLLM_WORKER = re.compile(r"Worker_TP(\d{1,6})(?:_EP\d{1,6})? pid=", re.ASCII)
"""Without DP or PP the place in the tensor-parallel group is the rank (vLLM's multiproc_executor.py)."""
_PLAIN_ACTOR = re.compile(r"\((?:[a-z_]\w{0,30}|raylet|autoscaler[^)]{0,20})\) (?=\[?\d{4}-\d\d-\d\d|\[rank)")


def actor(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`(RayTrainWorker pid=1, ip=10.0.0.1) `, `(VllmWorker rank=1 pid=2) `, `(Worker_TP1 pid=2) `, `(ns) ` + date."""
    m = _ACTOR.match(text)
    if m is None:
        m = _PLAIN_ACTOR.match(text)
        return None if m is None else text[m.end() :]
    if worker := _VLLM_WORKER.match(m[1]):
        peeled.rank = int(worker[1])
    for key, value in _ACTOR_FIELD.findall(m[1]):
        if key == "ip":
            peeled.host = value.rstrip(".:,")
        elif value.isdecimal() and len(value) < 11:
            if key == "pid":
                peeled.pid = int(value)
            else:
                peeled.rank = int(value)
    return text[m.end() :]


_WORD = re.compile(r"([A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?): ?", re.ASCII)
_TASK = re.compile(r" {0,6}(\d{1,6}): ", re.ASCII)
_HOSTLIKE = re.compile(r"[\w.]*[a-zA-Z][\w.]*(?:-[\w.-]+|\d[\w.-]*)|\d{1,3}(?:\.\d{1,3}){3}", re.ASCII)
_DEVICE = re.compile(
    r"(?:nvme|ata|eth|en[opsx]|veth|docker|br|bond|wlan|ib|mlx\d|bnxt|sd[a-z]|md|dm|loop|usb|cpu|gpu|irq|nvidia|i2c|hid|input|"
    r"rank|step|epoch|iter|layer|attempt|node_rank|localrank|level|utf|sha|fp|bf|int|float|python|cuda|nccl|val|train|test|loss|"
    r"lm|eval|avg|max|min|num|n_|lr|top|acc|batch|seq|grad|global|local|micro|world|learning|weight)[\d_-]",
    re.IGNORECASE,
)
_NOT_HOSTS = """
    error warning warn info debug critical fatal note notice srun sbatch salloc slurmstepd slurmd slurmctld
    traceback nvrm kernel exception wandb root host time rank exitcode epoch step iter loss file line frame ray
    torchrun deepspeed accelerate audit tsc bash sh python python3 mpirun prterun orted pdsh clush ssh scp http
    https usage hint help runtimeerror valueerror oserror raise return what args config model train training eval
    validation test data rng
    mce nfs nfs4 lockd rpc dmar edac acpi ghes bert erst hest amd-vi ext4-fs xfs btrfs jbd2 lustre lustreerror lnet
    lneterror libceph ceph watchdog rcu sched clocksource tsc tcp scsi traps random workqueue cgroup oom_reaper systemd
    pci pcieport usb hub acpiphp pciehp aer dpc nvidia nvidia-nvlink nvidia-nvswitch nvidia-modeset nvidia-uvm
    nvidia-peermem mlx5_core mlx4_core ib_core infiniband bnxt_en ixgbe igb i40e ice kvm x86 cpu smp numa memory
    call code rip rsp modules thermal perf hrtimer input device-mapper loop squashfs iommu selinux apparmor
"""
_NO_HOSTS = frozenset(_NOT_HOSTS.split())
_BAR_HEAD = re.compile(r" {0,3}\d{1,3}%\||\d{1,12}it \[", re.ASCII)
"""tqdm writes what it counts before its bar: `Evaluating:  43%|`."""
_VALUE = re.compile(r"[-+]?\d[\d.e+-]*(?:\s*$|\s*[|,;])")


def neighbours_agree(
    line: RawLine, pattern: re.Pattern[str], share: float, word: str | None, *, alone: bool = True, least: int = 2
) -> bool:
    """Do the lines around carry such a prefix too?

    Lines of a progress bar and blank ones have no vote. A word has to stand before `least` lines or more; if there are
    no more than two lines, one is enough for a word that may stand `alone`.
    """
    yes = voters = same = 0
    for near in (line, *line.before(VOTERS), *line.after(VOTERS)):
        text = _behind_collector(near.raw)
        m = pattern.match(text)
        if not _may_vote(text, m, pattern):
            continue
        voters += 1
        if m is not None and (pattern is _TASK or may_be_host(m[1], text[m.end() :])):
            yes += 1
            same += m[1] == word
    return yes >= share * voters and (word is None or same >= least or (alone and voters <= 2))


def _behind_collector(raw: bytes) -> str:
    """The start of a line without the stamp that a collector put outside of the launcher's tag."""
    text = decode(raw[:300]).lstrip("\x00")
    if text[:2] in ("19", "20") and (found := stamps.iso(text)):
        cri = CRI_HEAD.match(text, found[1])
        return text[cri.end() :] if cri else text[found[1] :].removeprefix(" ")
    return text


def _may_vote(text: str, m: re.Match[str] | None, pattern: re.Pattern[str]) -> bool:
    """Does a line, which the prefix `pattern` matched at its start or not, tell whether lines have that prefix?"""
    if m is None:
        silent = not text.strip() or "%|" in text or text.startswith((" ", "\t", "#", "Traceback"))
        return not silent
    return pattern is not _WORD or not _titles_bar(text, m)


def _titles_bar(text: str, m: re.Match[str]) -> bool:
    """Is the word, which is not like a host's name, what tqdm counts, before its bar?"""
    return _BAR_HEAD.match(text, m.end()) is not None and _HOSTLIKE.fullmatch(m[1]) is None


def may_be_host(word: str, rest: str) -> bool:
    lower = word.lower()
    return not (
        lower in _NO_HOSTS
        or lower.endswith(("error", "exception", "warning"))
        or _DEVICE.match(word)
        or _VALUE.match(rest)
    )


def launcher_host(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`g002: ` (pdsh, dsh, clush): only where the neighbours are written so too."""
    m = _WORD.match(text)
    if m is None or m[1].isdecimal() or not text.startswith(" ", m.end() - 1) or not may_be_host(m[1], text[m.end() :]):
        return None
    known: dict[str, int] = line.window.state.get("hosts", {})
    if _titles_bar(text, m) and known.get(m[1]) != 1:
        return None
    if not is_host(m[1], line):
        return None
    peeled.host = m[1]
    return text[m.end() :]


def is_host(word: str, line: RawLine) -> bool:
    """Is `word: ` a launcher's host prefix in this file? Asked of the neighbours, at most four times a word."""
    known: dict[str, int] = line.window.state.setdefault("hosts", {})
    seen = known.get(word, 0)
    if seen == 1:
        return True
    if seen <= -4 or (seen == 0 and len(known) >= 4096):
        return False
    like = _HOSTLIKE.fullmatch(word) is not None
    sure = neighbours_agree(line, _WORD, 0.5 if like else 0.8, word, alone=like)
    known[word] = 1 if sure else seen - 1
    return sure


_QUOTE = re.compile(r"(?:> ?){1,4}")
_QUOTED = 4
"""So many lines in a row that a mail quotes are a log that was sent on. One alone is what somebody says of a log. Our
judgement."""


def mail_quote(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`> `: a mail program's, before each line of a log that somebody answered or sent on."""
    m = _QUOTE.match(text)
    if m is None:
        return None
    around = (line.before(_QUOTED - 1), line.after(_QUOTED - 1))
    rows = 1 + sum(1 for side in around for _ in takewhile(lambda near: near.raw.startswith(b">"), side))
    return text[m.end() :] if rows >= _QUOTED else None


def launcher_task(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """` 3: ` (srun --label)."""
    m = _TASK.match(text)
    if m is None:
        return None
    state = line.window.state
    seen = state.get("tasks", 0)
    if seen < 1:
        if seen <= -8 or not neighbours_agree(line, _TASK, 0.6, None):
            state["tasks"] = seen - 1
            return None
        state["tasks"] = 1
    peeled.task = int(m[1])
    return text[m.end() :]


_GREP = re.compile(r"(?:[\w./@+~-]{1,200}[:-])?(?:\d{1,9}[:-])?(?=[A-Z\[<{]|\d{4}-\d\d-\d\d|\d{9,10}\.\d|[^\W\d_]{2})")
_GREP_BEFORE = re.compile(
    r"(?:^|/)[\w.@+~-]{0,100}(?:log|dmesg|messages|syslog|kern|journal|txt|out|err)[\w.@+~-]{0,40}[:-]", re.IGNORECASE
)
_COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,62}[A-Za-z0-9]) {1,40}\| ", re.ASCII)


def grep(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`kern.log:12:` and `12:` of grep -n and -H, `-` in lines of context: only before a stamp or a bracket."""
    m = _GREP.match(text)
    if m is None or not m[0]:
        return None
    rest = text[m.end() :]
    if stamps.parse(rest) is None and not (rest.startswith("[") and _GREP_BEFORE.match(m[0])):
        return None
    return rest


def compose(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`trainer-1  | ` (docker compose logs): only where the neighbours are written so too."""
    m = _COMPOSE.match(text)
    if m is None or not may_be_host(m[1], text[m.end() :]):
        return None
    known: dict[str, int] = line.window.state.setdefault("services", {})
    seen = known.get(m[1], 0)
    if seen < 1:
        if seen <= -4 or (seen == 0 and len(known) >= 4096):
            return None
        numbered = m[1][-1].isdecimal()  # compose counts the containers of a service
        sure = neighbours_agree(line, _COMPOSE, 0.8, None if numbered else m[1], alone=False)
        known[m[1]] = 1 if sure else seen - 1
        if not sure:
            return None
    peeled.pod = m[1]
    return text[m.end() :]


_MILABENCH = re.compile(r"([\w.-]{1,120}) \[(?:stdout|stderr)\] ", re.ASCII)
NCCL_HEAD = re.compile(r"([\w.-]{1,255}):(\d{1,9}):\d{1,9} \[-?\d{1,4}\] ", re.ASCII)
_LOGIN = re.compile(r"([\w.-]{1,64}) login: (?=\[ *\d+\.\d{6}\])", re.ASCII)


def milabench(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`llama.node1.nolog [stderr] `."""
    m = _MILABENCH.match(text)
    return None if m is None else text[m.end() :]


def login(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """A serial console's prompt with a kernel message behind it."""
    m = _LOGIN.match(text)
    if m is None:
        return None
    peeled.host = m[1]
    return text[m.end() :]


def indented(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """Megatron's blank before a bracket."""
    return text[1:] if text.startswith(" [") else None
