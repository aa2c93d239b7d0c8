"""The names of all details of events, by type: made from catalog/kinds.toml and kernel.toml (tests/field_names.py)."""

from typing import Literal

# fmt: off
NumberField = Literal[
    "act", "adj", "agent", "allocated_bytes", "anon", "apc", "arch", "at_member", "at_rank", "at_seq", "bank", "bar",
    "before", "bit", "bits", "block", "blocks", "board_slot", "bond", "bootid", "cant", "cap", "caused_by", "cg", "ci",
    "cid", "cmd", "code", "code2", "comm", "comm2", "comm_rank", "comm_ranks", "completed", "constraint", "corbrp",
    "cpu", "cpus", "cpuset", "cspeed", "ctrl", "cuda_dev", "cwidth", "db", "dev", "dev2", "device", "dir", "domain",
    "drm_minor", "ecc_aggregate_corrected", "ecc_aggregate_uncorrected", "ecc_volatile_corrected",
    "ecc_volatile_uncorrected", "ended_ns", "enqueued", "entry", "epoch", "epoch_ns", "errno", "error_status", "event",
    "exit_code", "expected", "expected_bytes", "fail", "failcnt", "fatal", "fewest", "fid", "file", "first", "flavour",
    "fn", "fname", "free_bytes", "from", "func", "gbps", "gi", "gpu", "gpu_used_bytes", "gpuid", "gpus", "group_rank",
    "h", "hb", "hctl", "hidden", "host_rss_bytes", "how", "id", "index", "inode", "irq", "iso", "jdev", "jiffies",
    "joined", "jump", "kernel", "kills", "kind", "kthread", "label", "last_wall_ns", "lasted_s", "layer", "left", "lib",
    "limit", "limit_c", "line", "link", "link_down_reason", "links", "listed", "local_world", "lost", "mc", "md", "mds",
    "memcg", "memory_temperature_c", "mgid", "minor", "minor_old", "missing", "mode", "module", "most", "ms", "msg",
    "multiple", "n", "n2", "n3", "n4", "n5", "name", "next", "nid", "node", "nodes", "nranks", "numel_in", "numel_out",
    "nvml_dev", "of", "oom_memcg", "op", "order", "other_pid", "others", "page", "pass", "pcie_gen", "pcie_gen_max",
    "pcie_replays", "pcie_width", "pcie_width_max", "peak_c", "peer", "peer_member", "pfn", "pg_id", "phys",
    "physical_id", "pid", "pid2", "place", "port", "q", "qid", "rank_a", "rank_b", "ranks", "ranks_at_fewest",
    "rate_gb_s", "rb", "rc", "reached_rank", "reading", "received_bytes", "remapped_corrected", "remapped_uncorrected",
    "report", "requested_bytes", "reserved_bytes", "resolution_ns", "rest", "restart_count", "result",
    "retired_double_bit", "retired_single_bit", "rtc", "s", "samples", "scope", "score", "script_version", "sd", "sec",
    "section", "sector", "sensor", "seq", "seq_a", "seq_b", "sequence", "sev", "severity", "shmem",
    "shutdown_temperature_c", "sig", "silent_s", "since_ns", "size", "skip", "slowdown_temperature_c", "source",
    "speed", "src", "src_group_rank", "src_rank", "srv", "st", "started_ns", "state", "state2", "status", "step",
    "step2", "stuck_s", "svc", "switch", "sxid", "t2", "table", "tag", "taint", "target", "target_pid", "task_memcg",
    "temp", "temp2", "temperature_c", "tested", "text", "thr", "timeout", "timeout_ms", "to", "total", "total_bytes",
    "ts_end", "ts_start", "type", "uid", "unit2", "ups", "us", "usage", "used_percent", "usual", "uuid", "value",
    "vendor", "vm", "w", "wait_ms", "waited_ms", "waited_s", "waiting_rank", "warn", "wc", "what", "what2", "where",
    "why", "width", "will", "worker", "worker_pid", "world_size", "wrong", "xid", "zone", "zone_s",
]
"""Details that are whole numbers, of some kind at least."""
MeasureField = Literal[
    "average_gb_s", "elapsed_s", "expected_gb_s", "loss", "peak_gb_s", "percent", "power_draw_w", "power_limit_w",
    "reading", "step_ms",
]
"""Details that are measured: decimal, and whole where they happen to be."""
FlagField = Literal[
    "by_id", "came", "communication", "complete", "corrected", "cut", "dead", "early", "fatal", "first", "hw_thermal",
    "injected", "kills_context", "load", "lost", "orderly", "refuted", "registered", "remap_failed", "remap_pending",
    "repeated", "reset_required", "retired_pending", "shm", "shuts_down", "stuck", "tensors_differ", "whole_job",
]
"""Details that are true or false."""
TextField = Literal[
    "act", "addr", "addr2", "addr3", "addr4", "addr5", "address", "adj", "agent", "anon", "apc", "arch", "bank", "bar",
    "barrier", "base", "bit", "bits", "block", "blocks", "bond", "bootid", "build_date", "bus_id", "by", "call", "cant",
    "cap", "cg", "cid", "class", "client", "cmd", "code", "code2", "comm", "comm2", "comm_id", "constraint",
    "container", "corbrp", "counter", "cpu", "cpus", "cpuset", "crash", "cs", "cspeed", "csts", "ctrl", "cwidth", "db",
    "detail", "dev", "dev2", "device", "dir", "doing", "domain", "driver", "dtype_a", "dtype_b",
    "ecc_volatile_uncorrected", "emask", "entry", "epoch", "err", "error", "error_file", "event", "exit_code",
    "fabric_state", "fabric_status", "failcnt", "fatal", "fid", "file", "first", "flags", "flavour", "fn", "fname",
    "from", "func", "gbps", "gfp", "gpu", "gpuid", "h", "hb", "hctl", "how", "id", "innermost", "inode", "ip", "irq",
    "iso", "jdev", "jiffies", "job", "jump", "kernel", "key", "kind", "kthread", "label", "last_error", "layer", "lba",
    "len", "lib", "limit", "line", "link", "look_at", "loss_says", "lost", "mask", "master", "mc", "mcg", "md", "mds",
    "memcg", "message", "metric", "mgid", "minor", "minor_old", "mode", "model", "module", "mount", "ms", "msg",
    "multiple", "n", "n2", "n3", "n4", "n5", "name", "netdev", "new", "next", "nid", "node", "nodes", "oom_memcg", "op",
    "op_a", "op_b", "order", "page", "part", "path", "pci", "pcis", "peer", "pfn", "pg_desc", "pg_name", "phase",
    "phys", "physical", "pid", "pid2", "place", "pod", "port", "q", "qid", "rb", "rc", "reading", "reason",
    "recommendation", "recovery", "recovery_advice", "reported_by", "rest", "result", "rtc", "s", "says", "sc", "scope",
    "score", "sct", "sd", "sec", "section", "sector", "sensor", "seq", "serial", "serial2", "serial3", "server", "sev",
    "severity", "shape_a", "shape_b", "shmem", "short", "sig", "signal", "size", "slot", "source", "sp", "speed", "src",
    "srv", "ss", "st", "state", "state2", "status", "step", "step2", "stood", "store_host", "subunit", "svc", "switch",
    "switch_pci", "sxid", "t2", "table", "tag", "taint", "target", "task", "task_memcg", "temp", "temp2", "tensor",
    "test", "text", "thr", "timeout", "to", "ts_end", "ts_start", "type", "uid", "unit", "unit2", "ups", "us", "usage",
    "uuid", "value", "vendor", "version", "vm", "w", "waits_on", "way", "wc", "what", "what2", "where", "who", "why",
    "width", "will", "worker_ip", "wrong", "xid", "zone",
]
"""Details that are text."""
NumbersField = Literal[
    "behind", "completed", "counts", "faulty", "global_ranks", "group_rank", "listed", "lost", "missing", "pg_desc",
    "pids", "pod", "port", "ranks", "ready", "resource", "started", "tasks", "worker_pids",
]
"""Details that are tuples of whole numbers."""
TextsField = Literal[
    "addresses", "bits", "frames", "hosts", "interfaces", "links", "node", "ops", "ports", "throttle",
]
"""Details that are tuples of texts."""
