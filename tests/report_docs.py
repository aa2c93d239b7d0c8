"""Documents as `--json` writes them, made up for the report's tests: small, believable, valid against the schema."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

Doc = dict[str, Any]
START = datetime(2026, 4, 22, 3, 14, 17, tzinfo=timezone.utc)
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg/onload=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "`code` | **bold** [link](javascript:alert(1)) &amp; <!--",
    "\x1b[31mred\x1b[0m \x00 \u202egnp.exe\u2066 \ud800 \u2028 ]]>",
]


def at(seconds: float) -> str:
    """The contract's form of `seconds` after the start."""
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def gpu(host: str | None, index: int | None, **more: Any) -> Doc:
    pci = None if index is None else f"0000:{0x1B + 0x10 * index:02x}:00.0"
    return {"host": host, "index": index, "pci": pci, "uuid": None, "serial": None, "model": None, **more}


def event(seconds: float | None, kind: str, role: str, text: str, source: str, line: int | None, **more: Any) -> Doc:
    return {
        "time": None if seconds is None else at(seconds),
        "time_uncertainty_s": None if seconds is None else 0.02,
        "time_basis": "none" if seconds is None else "stamp",
        "host": None,
        "rank": None,
        "gpu_pci": None,
        "kind": kind,
        "role": role,
        "severity": "critical" if role == "cause" else "error" if role == "symptom" else "info",
        "source": source,
        "line": line,
        "text": text,
        "fields": {},
        "repeats": 1,
        "key": role != "context",
        "cause": None,
        **more,
    }


def evidence(item: Doc, says: str, weight: float | None, **more: Any) -> Doc:
    return {
        "says": says,
        "time": item["time"],
        "source": item["source"],
        "line": item["line"],
        "text": item["text"],
        "weight": weight,
        "before": [],
        "after": [],
        "inference": False,
        **more,
    }


def timeout(rank: int, host: str, seconds: float, line: int = 4012, waited_ms: int = 1_800_021) -> Doc:
    text = (
        f"[rank{rank}]:[E422 03:44:17.{rank:03d}421007 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=842, OpType=ALLREDUCE, NumelIn=268435456, NumelOut=268435456, "
        f"Timeout(ms)={waited_ms // 1000 * 1000}) ran for {waited_ms} milliseconds before timing out."
    )
    fields = {
        "seq": 842,
        "op": "ALLREDUCE",
        "timeout_ms": waited_ms // 1000 * 1000,
        "waited_ms": waited_ms,
        "group_rank": rank,
    }
    return event(
        seconds, "watchdog-timeout", "symptom", text, f"logs/rank{rank}.log", line, rank=rank, host=host, fields=fields
    )


def rank_row(rank: int, host: str | None, index: int | None, state: str, **more: Any) -> Doc:
    return {
        "rank": rank,
        "host": host,
        "local_rank": index,
        "pid": 24_561 + rank,
        "gpu": None if host is None else gpu(host, index),
        "state": state,
        "waiting_on": [],
        "last_enqueued": 842,
        "last_started": None,
        "last_completed": 841,
        "exit": "SIGABRT",
        "note": None,
        **more,
    }


def verdict(**more: Any) -> Doc:
    return {
        "status": "undetermined",
        "cause": "undetermined",
        "culprit_ranks": [],
        "culprit_hosts": [],
        "culprit_gpus": [],
        "reporting_ranks": [],
        "confidence": 0.2,
        "summary": "",
        "evidence": [],
        "alternatives": [],
        "missing_evidence": [],
        "actions": [],
        "cleared": [],
        "cannot_exclude": [],
        **more,
    }


def document(**more: Any) -> Doc:
    return {
        "schema": "nccl-forensics/analysis/1",
        "tool": {
            "name": "nccl-forensics",
            "version": "0.1.0",
            "command": "nccl-forensics analyze pile/ --json analysis.json",
            "timezone": "UTC",
            "redacted": False,
        },
        "inputs": [],
        "hosts": [],
        "ranks": [],
        "clocks": [],
        "events": [],
        "incidents": [],
        "problems": [],
        **more,
    }


def input_row(path: str, **more: Any) -> Doc:
    return {
        "path": path,
        "format": "torch-log",
        "status": "read",
        "reason": None,
        "bytes": 1_482_331,
        "events": 12,
        "host": None,
        "rank": None,
        "first_time": at(-600),
        "last_time": at(1850),
        "sha256": hashlib.sha256(path.encode()).hexdigest(),
        **more,
    }


def workstation() -> Doc:
    """Eight GPUs in one box; one fell off the bus, seven ranks waited half an hour."""
    host = "kentino-ai-04"
    lost = event(
        0,
        "xid",
        "cause",
        "NVRM: Xid (PCI:0000:4b:00): 79, pid=24564, name=python3, GPU has fallen off the bus.",
        "kern/journal.txt",
        88_213,
        host=host,
        gpu_pci="0000:4b:00.0",
        fields={"xid": 79, "pci": "0000:4b:00"},
        time_uncertainty_s=0.004,
    )
    aer = event(
        -0.3,
        "pcie-aer",
        "cause",
        "pcieport 0000:4a:01.0: AER: Uncorrected (Fatal) error received: 0000:4b:00.0",
        "kern/journal.txt",
        88_209,
        host=host,
        gpu_pci="0000:4b:00.0",
        time_uncertainty_s=0.004,
    )
    others = [r for r in range(8) if r != 3]
    timeouts = [timeout(r, host, 1800 + r * 0.4) for r in others]
    aborts = [
        event(
            1802 + r * 0.5,
            "pg-abort",
            "consequence",
            f"[rank{r}]:[E422 03:44:19 ProcessGroupNCCL.cpp:700] [Rank {r}] To avoid data inconsistency, we are taking "
            "the entire process down.",
            f"logs/rank{r}.log",
            4020,
            rank=r,
            host=host,
        )
        for r in others[:2]
    ]
    killed = event(
        None,
        "exit",
        "consequence",
        "exitcode : -6 (pid: 24561), Signal 6 (SIGABRT) received by PID 24561",
        "logs/torchrun.err",
        77,
        fields={"code": -6, "signal": "SIGABRT"},
    )
    group = {
        "name": "0",
        "description": "default_pg",
        "backend": "nccl",
        "op": "all_reduce",
        "seq": 842,
        "members": list(range(8)),
        "arrived": others,
        "started": None,
        "completed": [],
        "missing": [3],
        "no_data": [],
        "timeout_ms": 1_800_000,
        "note": None,
    }
    incident = {
        "id": 1,
        "onset": at(0),
        "onset_uncertainty_s": 0.02,
        "detected": at(1800),
        "ended": at(1803),
        "collective": {
            "process_group": "0",
            "description": "default_pg",
            "op": "all_reduce",
            "seq": 842,
            "numel_in": 268_435_456,
            "numel_out": 268_435_456,
            "timeout_ms": 1_800_000,
            "members": list(range(8)),
            "arrived": others,
            "missing": [3],
        },
        "groups": [group],
        "waits": [
            {
                "waiter": r,
                "waited": [3],
                "why": "it had entered the all_reduce, rank 3 never did",
                "group": "0",
                "seq": 842,
            }
            for r in others
        ],
        "verdict": verdict(
            status="identified",
            cause="gpu_off_bus",
            culprit_ranks=[3],
            culprit_hosts=[host],
            culprit_gpus=[gpu(host, 3, model="NVIDIA GeForce RTX 4090", serial="1325021037542", uuid="GPU-8c1f0a52")],
            reporting_ranks=others,
            confidence=0.96,
            summary="The GPU of rank 3 fell off the PCIe bus at 03:14:17 (Xid 79). The other seven ranks entered "
            "all_reduce 842 and waited 30 minutes for it.",
            evidence=[
                evidence(aer, "The PCIe port above the GPU reported a fatal error.", 1.4),
                evidence(
                    lost,
                    "The kernel driver lost GPU 0000:4b:00.0: Xid 79.",
                    4.2,
                    before=["Apr 22 03:14:16 kentino-ai-04 systemd[1]: Started Session 412 of User train."],
                    after=[
                        "Apr 22 03:14:17 kentino-ai-04 kernel: NVRM: GPU serial number is 1325021037542.",
                        "Apr 22 03:14:17 kentino-ai-04 kernel: NVRM: A GPU crash dump has been created.",
                    ],
                    id="xid79",
                ),
                evidence(
                    timeouts[0],
                    "GPU 0000:4b:00.0 belongs to rank 3, and rank 3 is the only one that did not enter all_reduce 842.",
                    2.6,
                    inference=True,
                ),
                evidence(timeouts[0], "Rank 0 gave up after 1,800 s of waiting.", 0.4),
                evidence(aborts[0], "The watchdog took the process down.", 0.0),
            ],
            alternatives=[
                {
                    "cause": "psu_rail_loss",
                    "culprit_ranks": [3],
                    "confidence": 0.03,
                    "why_not": "Only one GPU was lost; the neighbour on the same supply went on.",
                },
                {
                    "cause": "gpu_thermal",
                    "culprit_ranks": [3],
                    "confidence": 0.01,
                    "why_not": "The last temperature before the loss was 61 °C.",
                },
            ],
            missing_evidence=[
                "Whether the riser or the card is at fault. Collect: `nvidia-bug-report.sh` after a cold start, and "
                "the BMC's event log: `ipmitool sel elist`."
            ],
            actions=[
                {
                    "do": "Power kentino-ai-04 off, reseat GPU 3 (0000:4b:00.0), its riser and its power connector.",
                    "because": "On riser builds Xid 79 is nearly always riser, power connector or heat.",
                    "command": None,
                },
                {
                    "do": "Check the link after the restart.",
                    "because": "A riser that is at fault often trains below x16.",
                    "command": "nvidia-smi -i 3 --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
                },
            ],
            cleared=[
                {
                    "who": "Rank 0",
                    "why": "It reported the timeout first. It had entered the collective and waited.",
                    "rank": 0,
                    "gpu_pci": None,
                    "source": "logs/rank0.log",
                    "line": 4012,
                    "text": timeouts[0]["text"],
                },
                {
                    "who": "Ranks 1, 2, 4–7",
                    "why": "They had entered `all_reduce` 842 and waited.",
                    "rank": None,
                    "gpu_pci": None,
                    "source": None,
                    "line": None,
                    "text": None,
                },
            ],
        ),
        "contributing": [
            {"cause": "gpu_ecc_leak", "says": "GPU 6 has 14 corrected memory errors since its last reset."}
        ],
        "cost": {"lost_work_s": 1260.0, "detection_s": 1800.0, "restart_s": None, "gpu_hours": 6.8},
    }
    return document(
        inputs=[
            *(input_row(f"logs/rank{r}.log", host=host, rank=r) for r in range(8)),
            input_row("kern/journal.txt", format="journal-short", host=host, bytes=18_221_008),
            input_row(
                "dumps/nccl_trace_rank_3",
                format="flight-recorder",
                status="failed",
                reason="empty file: was it copied before the process had written it?",
                bytes=0,
                first_time=None,
                last_time=None,
                rank=None,
            ),
        ],
        hosts=[
            {
                "name": host,
                "gpus": [
                    gpu(
                        host,
                        i,
                        model="NVIDIA GeForce RTX 4090",
                        serial=f"13250210375{i:02d}",
                        uuid=f"GPU-8c1f0a52-7e0b-4b52-9d1c-00000000000{i}",
                        details={"temperature_c": 58 + i, "lost": i == 3},
                    )
                    for i in range(8)
                ],
            }
        ],
        ranks=[
            rank_row(r, host, r, "culprit" if r == 3 else "waiting", waiting_on=[] if r == 3 else [3])
            | ({"last_enqueued": 841, "exit": None, "note": "its GPU was gone"} if r == 3 else {})
            for r in range(8)
        ],
        clocks=[
            {
                "clock": f"{host} wall",
                "host": host,
                "offset_s": 0.0,
                "uncertainty_s": 0.0,
                "basis": "reference",
                "note": None,
            },
            {
                "clock": f"{host} boot 3f2a",
                "host": host,
                "offset_s": 1_776_600_000.25,
                "uncertainty_s": 0.004,
                "basis": "boot-time",
                "note": "from 12 lines that carry both",
            },
        ],
        events=[aer, lost, *timeouts, *aborts, killed],
        incidents=[incident],
        problems=[{"says": "empty file: nothing could be read", "source": "dumps/nccl_trace_rank_3"}],
    )


def large(world: int = 1024) -> Doc:
    """A thousand ranks, eight to a host; the out-of-memory killer took one process."""
    hosts = [f"node{n:04d}" for n in range(world // 8)]
    guilty = 517 % world
    where = hosts[guilty // 8]
    kill = event(
        0,
        "oom-killed",
        "cause",
        "Out of memory: Killed process 31337 (python3) total-vm:912345678kB, anon-rss:498765432kB",
        f"{where}/dmesg.txt",
        1881,
        host=where,
        time_uncertainty_s=2.5,
    )
    timeouts = [
        timeout(r, hosts[r // 8], 600 + (r % 97) * 0.11, waited_ms=600_013) for r in range(world) if r != guilty
    ]
    noise = [
        event(
            -60 + (r % 50),
            "nccl-init",
            "context",
            f"{hosts[r // 8]}:{24561 + r}:{25000 + r} [{r % 8}] NCCL INFO comm 0x55d0 rank {r} Init COMPLETE",
            f"logs/rank{r}.log",
            120,
            rank=r,
            host=hosts[r // 8],
        )
        for r in range(world)
    ]
    others = [r for r in range(world) if r != guilty]
    return document(
        inputs=[
            *(
                input_row(f"bundle.tar.zst!logs/{hosts[r // 8]}/rank{r}.log", host=hosts[r // 8], rank=r)
                for r in range(world)
            ),
            *(input_row(f"bundle.tar.zst!kern/{h}/dmesg.txt", format="dmesg-iso", host=h) for h in hosts),
        ],
        hosts=[{"name": h, "gpus": [gpu(h, i, model="NVIDIA H100 80GB HBM3") for i in range(8)]} for h in hosts],
        ranks=[
            rank_row(
                r,
                hosts[r // 8],
                r % 8,
                "dead" if r == guilty else "no-data" if r % 101 == 7 else "waiting",
                waiting_on=[] if r == guilty else [guilty],
            )
            for r in range(world)
        ],
        clocks=[
            {
                "clock": f"{h} wall",
                "host": h,
                "offset_s": (i % 7) * 0.013,
                "uncertainty_s": 0.02,
                "basis": "collectives",
            }
            for i, h in enumerate(hosts)
        ],
        events=[*noise, kill, *timeouts],
        incidents=[
            {
                "id": 1,
                "onset": at(0),
                "onset_uncertainty_s": 2.5,
                "detected": at(600),
                "ended": at(615),
                "collective": {
                    "process_group": "0",
                    "description": "default_pg",
                    "op": "all_gather",
                    "seq": 842,
                    "timeout_ms": 600_000,
                    "members": list(range(world)),
                    "arrived": others,
                    "missing": [guilty],
                },
                "waits": [
                    {"waiter": r, "waited": [guilty], "why": "the process was gone", "group": "0", "seq": 842}
                    for r in others
                ],
                "verdict": verdict(
                    status="suspected",
                    cause="host_oom_kill",
                    culprit_ranks=[guilty],
                    culprit_hosts=[where],
                    reporting_ranks=others,
                    confidence=0.71,
                    summary=f"The kernel of {where} killed a Python process for want of memory; rank {guilty} is the "
                    "only one that never entered. That the process was this rank's is not written anywhere.",
                    evidence=[evidence(kill, "The kernel killed process 31337.", 3.0)],
                    actions=[
                        {
                            "do": f"Find what filled the memory of {where}.",
                            "because": "The job will die again at the same place.",
                            "command": "journalctl -k -b -1 | grep -A60 'invoked oom-killer'",
                        }
                    ],
                ),
            }
        ],
    )


def undetermined() -> Doc:
    """One rank's log and nothing else."""
    seen = timeout(2, "gpu-a", 0)
    seen |= {"time": None, "time_basis": "none", "time_uncertainty_s": None, "host": None}
    return document(
        inputs=[input_row("rank2.log", rank=2, first_time=None, last_time=None)],
        ranks=[rank_row(2, None, None, "waiting", pid=None)]
        + [
            rank_row(r, None, None, "no-data", pid=None, last_enqueued=None, last_completed=None, exit=None)
            for r in (0, 1, 3)
        ],
        events=[seen],
        incidents=[
            {
                "id": 1,
                "onset": None,
                "detected": None,
                "collective": {"process_group": None, "op": "all_reduce", "seq": 842, "timeout_ms": 1_800_000},
                "verdict": verdict(
                    reporting_ranks=[2],
                    summary="Rank 2 waited 30 minutes in all_reduce 842. Who did not come is not in its log.",
                    evidence=[evidence(seen, "Rank 2 gave up.", None)],
                    missing_evidence=[
                        "The logs of ranks 0, 1 and 3. Collect: every file that torchrun wrote under `--log-dir`.",
                        "Flight Recorder dumps. Next time set `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` and "
                        "`TORCH_NCCL_DUMP_ON_TIMEOUT=1`.",
                        "The kernel log of each host: `journalctl -k -o short-iso-precise > $(hostname).kern.txt`.",
                    ],
                    cannot_exclude=[0, 1, 3],
                    actions=[
                        {
                            "do": "Ask for the other ranks' logs.",
                            "because": "One witness cannot tell who was missing.",
                            "command": None,
                        }
                    ],
                ),
            }
        ],
    )


def deadlock() -> Doc:
    """Two groups entered in different order: a circle, nobody to blame."""
    rows = [rank_row(r, "trainer-0", r, "blocked", waiting_on=[(r + 1) % 4]) for r in range(4)]
    waits = [
        {"waiter": r, "waited": [(r + 1) % 4], "why": "", "group": "tp" if r % 2 else "dp", "seq": 17 + r}
        for r in range(4)
    ]
    seen = [timeout(r, "trainer-0", r * 0.001, waited_ms=600_004) for r in range(4)]
    group = {
        "name": "tp",
        "description": "TENSOR_MODEL_PARALLEL_GROUP",
        "backend": "nccl",
        "op": "all_gather",
        "seq": 18,
        "members": [0, 1],
        "arrived": [1],
        "started": [],
        "completed": [],
        "missing": [0],
        "no_data": [],
        "timeout_ms": 600_000,
        "note": "Rank 0 is in group dp.",
    }
    return document(
        inputs=[input_row(f"rank{r}.log", rank=r) for r in range(4)],
        ranks=rows,
        events=seen,
        incidents=[
            {
                "id": 1,
                "onset": None,
                "detected": at(0),
                "collective": {
                    "process_group": "tp",
                    "op": "all_gather",
                    "seq": 18,
                    "members": [0, 1],
                    "arrived": [1],
                    "missing": [0],
                },
                "groups": [group, group | {"name": "dp", "description": "DATA_PARALLEL_GROUP", "note": None}],
                "waits": waits,
                "verdict": verdict(
                    status="identified",
                    cause="deadlock",
                    reporting_ranks=[0, 1, 2, 3],
                    confidence=0.88,
                    summary="Ranks 0–3 wait for each other in a circle: the groups tp and dp are entered in different "
                    "order on different ranks.",
                    evidence=[evidence(seen[0], "Rank 0 waits in dp, rank 1 in tp.", 3.1, inference=True)],
                    actions=[
                        {
                            "do": "Enter the groups in the same order on all ranks.",
                            "because": "Each group's collective blocks the other's.",
                            "command": None,
                        }
                    ],
                ),
            }
        ],
    )


def healthy() -> Doc:
    return document(
        inputs=[
            input_row("train.log", rank=0),
            input_row("notes.txt", format="unknown", status="skipped", reason="no log"),
        ],
        hosts=[{"name": "box", "gpus": [gpu("box", 0)]}],
        ranks=[rank_row(0, "box", 0, "completed", exit="exit 0")],
        events=[event(1, "progress", "context", "step 10/10 done", "train.log", 10, rank=0, severity="info")],
    )


def two_incidents() -> Doc:
    """The job was restarted by its launcher and failed again, for another reason."""
    first = workstation()
    second = deadlock()["incidents"][0]
    second |= {"id": 2, "detected": at(9000), "onset": at(7200), "onset_uncertainty_s": 30.0, "ended": at(9001)}
    second["ranks"] = first["ranks"]
    first["incidents"][0]["ranks"] = first["ranks"]
    first["incidents"].append(second)
    first["events"] += [timeout(r, "kentino-ai-04", 9000 + r, line=9100) for r in range(4)]
    return first


def hostile() -> Doc:
    """Every text is an attack on the page, the terminal or the ticket."""
    doc = workstation()
    fixed = {"schema", "status", "time", "onset", "detected", "ended", "first_time", "last_time", "role", "severity"}
    fixed |= {"time_basis", "state", "pci", "gpu_pci", "name", "id"}
    count = 0

    def poison(value: Any, key: str = "") -> Any:
        nonlocal count
        if isinstance(value, dict):
            return {k: poison(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [poison(v, key) for v in value]
        if isinstance(value, str) and key not in fixed:
            count += 1
            return HOSTILE[count % len(HOSTILE)] + f" {value}"
        return value

    made: Doc = poison(doc)
    for host in made["hosts"]:
        host["name"] = HOSTILE[1]
    made["incidents"][0]["groups"][0]["name"] = HOSTILE[0]
    made["incidents"][0]["verdict"]["evidence"][0]["id"] = '"><script>'
    return made


ALL: dict[str, Callable[[], Doc]] = {
    "workstation": workstation,
    "large": large,
    "undetermined": undetermined,
    "deadlock": deadlock,
    "healthy": healthy,
    "two-incidents": two_incidents,
    "hostile": hostile,
}
