"""Scenarios drawn at random, for measuring how often a verdict is right and how sure it may be."""

from __future__ import annotations

from random import Random
from typing import Literal

from .causes import CAUSES
from .scenario import UTC, ZONES, Decoys, Degrade, KernelForm, Model, Scenario

VERSIONS = ("2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.12")
FORMS: tuple[KernelForm, ...] = (
    "dmesg",
    "dmesg-T",
    "dmesg-iso",
    "journal",
    "journal-iso",
    "kern.log",
    "syslog-iso",
)
WEIGHTS = {"healthy": 3.0, "hopeless": 1.5, "rank_not_arrived": 2.0, "gpu_off_bus": 2.0}
"""Our judgement; every other cause has 1."""
NEEDS_NODES = {"node_lost", "nic_link_down", "fabric_error", "hopeless", "store_lost"}


def draw(seed: int, cause: str | None = None) -> Scenario:
    """One scenario: cause (if none is given), machines, versions, decoys and losses, all by the seed."""
    rng, beside = Random(f"draw/{seed}"), Random(f"beside/{seed}")  # so that a new decoy moves no others
    names = sorted(CAUSES)
    drawn = rng.choices(names, [WEIGHTS.get(name, 1.0) for name in names])[0]
    cause = cause or drawn
    nodes = rng.choice((2, 2, 3, 4)) if cause in NEEDS_NODES else rng.choice((1, 1, 1, 2, 2, 4))
    per_node = rng.choice((2, 4, 8, 8)) if nodes < 4 else rng.choice((2, 4))
    if cause in ("deadlock", "psu_rail_loss"):
        per_node = max(per_node, 4)
    if cause == "hopeless":
        per_node = max(per_node, 4)
    world = nodes * per_node
    tensor = 2 if cause == "deadlock" else rng.choice((1, 1, 1, 2)) if world >= 4 else 1
    pipeline = 2 if tensor == 2 and cause != "deadlock" and world >= 8 and rng.random() < 0.4 else 1
    models: tuple[Model, ...] = ("rtx4090", "a100", "h100")
    steps = rng.randrange(30, 120)
    bad = rng.random() < 0.5 and cause != "healthy"
    launcher: Literal["torchrun", "slurm"] = rng.choice(("torchrun", "torchrun", "slurm")) if nodes > 1 else "torchrun"
    zone = rng.choice(ZONES)
    without_job = bad and rng.random() < 0.08
    quiet = without_job  # where no trace of a job is left, an innocent OOM kill is an incident of its own
    day, hour = rng.randrange(1, 28), rng.randrange(24)
    return Scenario(
        cause=cause,
        nodes=nodes,
        per_node=per_node,
        tensor=tensor,
        pipeline=pipeline,
        expert=2 if tensor == 1 and pipeline == 1 and world >= 8 and rng.random() < 0.2 else 1,
        torch=rng.choice(VERSIONS),
        model=rng.choice(models) if cause != "gpu_ecc_leak" else rng.choice(models[1:]),
        steps=steps,
        fault_step=rng.randrange(steps // 2, steps - 1),
        step_s=rng.uniform(0.4, 4),
        timeout_ms=rng.choice((None, None, None, 1_800_000, 300_000)),
        start=f"2026-0{rng.randrange(1, 3)}-{day:02d}T{hour:02d}:{rng.randrange(60):02d}:00",
        ring=rng.choice((0, 100, 200, 200, 2000)),
        timing=rng.random() < 0.3,
        frames=rng.random() < 0.8,
        json_dumps=rng.random() < 0.2,
        host_zone=zone,
        job_zone=rng.choice((zone, UTC)),
        container=rng.random() < 0.3,
        kernel_form=rng.choice(FORMS),
        launcher=launcher,
        collector=rng.choice(("none", "none", "none", "zulu", "cri", "docker")) if launcher == "torchrun" else "none",
        application=rng.choice(("plain", "megatron", "titan", "trainer", "bar")),
        per_rank_files=rng.random() < 0.2,
        smi_list=rng.random() < 0.6,
        smi_samples=beside.random() < 0.2,
        decoys=Decoys(
            corrected_aer=rng.random() < 0.3,
            old_boot_xid=rng.random() < 0.3 and not quiet,
            innocent_oom=rng.random() < 0.3 and not quiet,
            link_flap=rng.random() < 0.3 and not quiet,
            store_noise=rng.random() < 0.3,
            worn_card=beside.random() < 0.15 and not quiet and cause != "healthy",  # else that is what there is to say
        ),
        degrade=Degrade(
            clock_spread_s=rng.choice((0.0, 1.0, 90.0)),
            drift_ppm=rng.choice((0.0, 0.0, 20.0)),
            wrong_zones=rng.random() < 0.2,
            ntp_step=rng.random() < 0.15,
            lose_dumps=rng.choice((0, 0, 1, world // 2, world)) if bad else 0,
            lose_culprit_dump=bad and rng.random() < 0.3,
            cut_dumps=rng.choice((0, 0, 0, 1, 2)) if bad else 0,
            lose_kernel_logs=bad and rng.random() < 0.2,
            lose_culprit_kernel_log=bad and rng.random() < 0.15,
            lose_culprit_job_log=bad and nodes > 1 and rng.random() < 0.15,
            lose_job_logs=without_job,
            cut_job_logs=bad and rng.random() < 0.12,
            lose_init_lines=rng.random() < 0.4,
            cut_bug_report=rng.random() < 0.3,
        ),
    )
