"""What kinds of events mean."""

from __future__ import annotations

JOB_KINDS = frozenset(
    {"watchdog-timeout", "pg-status", "pg-async", "pg-abort", "pg-watchdog-cuda", "pg-observed", "pg-dump-local"}
    | {"pg-dump-remote", "pg-blocking", "pg-uniqueid", "pg-heartbeat", "pg-desync", "pgw-mismatch", "monitored-barrier"}
    | {
        "gloo-wait",
        "gloo-closed",
        "gloo-reached",
        "store-wait",
        "store-broken",
        "store-barrier",
        "store-clients",
        "exit",
    }
    | {"store-connect", "rdzv-heartbeat", "rdzv-error", "python-exception", "cuda-oom", "cuda-error", "storage-error"}
    | {
        "dataloader-killed",
        "dataloader-exit",
        "nccl-closed",
        "nccl-ib-error",
        "nccl-ib-event",
        "nccl-warn-cuda",
        "nccl-shm",
    }
    | {
        "nccl-bootstrap",
        "slurm-oom",
        "slurm-time-limit",
        "slurm-cancel",
        "srun-exit",
        "k8s-oom",
        "ray-oom",
        "k8s-evicted",
        "ray-died",
    }
    | {"ds-exit", "restart", "agent-death", "sigterm-sent", "nan", "preempted", "shm-bus-error"}
)
"""Lines that a failing training job writes, as against a kernel."""
DETECTED = frozenset(
    {"watchdog-timeout", "pg-async", "pg-watchdog-cuda", "pg-blocking", "pg-uniqueid", "monitored-barrier", "gloo-wait"}
    | {
        "pg-status",
        "srun-exit",
        "gloo-closed",
        "store-wait",
        "store-barrier",
        "pg-heartbeat",
        "exit",
        "pgw-mismatch",
        "nccl-closed",
        "nccl-ib-error",
    }
    | {"pg-abort", "pg-dump-local", "python-exception"}
)
"""Lines by which the job itself noticed."""
