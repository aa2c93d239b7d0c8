"""Kernel logs of a host: what is in them, and the forms in which they are collected (formats/kernel-log-formats.md)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .cluster import MS, Host, S, when
from .scenario import KernelForm

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One printk record, or one line of a daemon (`who` not 'kernel', which dmesg doesn't have)."""

    ns: int
    """True UTC."""
    text: str
    """Several lines in one record are separated by newlines."""
    who: str = "kernel"
    boot: int = 0
    """0: this boot, 1: the one before."""


def at(ns: int, *texts: str, step_ns: int = 5_000, boot: int = 0) -> list[Record]:
    """Records that follow each other within microseconds."""
    return [Record(ns=ns + i * step_ns, text=text, boot=boot) for i, text in enumerate(texts)]


def previous_boot_ns(host: Host) -> int:
    """True UTC of the boot before this one."""
    return host.clock.booted_ns - 9 * 86400 * S - 7 * 3600 * S


def boot_records(host: Host, booted_ns: int, boot: int) -> list[Record]:
    """The first seconds of a boot."""
    flavour = "Open Kernel Module for x86_64" if host.open_driver else "x86_64 Kernel Module"
    rows = [
        (0.0, f"Linux version {host.kernel} (buildd@lcy02-amd64-080) (x86_64-linux-gnu-gcc-13 13.3.0) #53-Ubuntu SMP"),
        (0.0, f"Command line: BOOT_IMAGE=/boot/vmlinuz-{host.kernel} root=UUID=5d1f6f10 ro iommu=pt pci=realloc"),
        (0.0, "KERNEL supported cpus:"),
        (0.0, "BIOS-provided physical RAM map:"),
        (0.004, "tsc: Fast TSC calibration using PIT"),
        (0.771, "audit: initializing netlink subsys (disabled)"),
    ]
    wall = host.clock.wall(booted_ns)
    rows.append(
        (
            0.902,
            f"rtc_cmos 00:02: setting system clock to {when(wall + S).isoformat(timespec='seconds')} UTC "
            f"({(wall + S) // S})",
        )
    )
    for card in host.cards:
        rows.append((1.102 + card.index / 100, f"pcieport {card.port}: PME: Signaling with IRQ {36 + card.index}"))
        rows.append((1.103 + card.index / 100, f"pcieport {card.port}: AER: enabled with IRQ {36 + card.index}"))
    rows += [
        (1.330, "Freeing unused kernel image (initmem) memory: 4832K"),
        (2.110, "EXT4-fs (nvme0n1p2): mounted filesystem 5d1f6f10-77aa with ordered data mode. Quota mode: none."),
        (4.803, "nvidia-nvlink: Nvlink Core is being initialized, major device number 510"),
        (4.902, "nvidia: module verification failed: signature and/or required key missing - tainting kernel"),
        (5.212, f"NVRM: loading NVIDIA UNIX {flavour}  {host.driver}  Release Build  (dvs-builder@U22-I3-AE18)"),
    ]
    for card in host.cards:
        gpu_id = int(card.pci[5:7], 16) << 8
        rows.append((5.3 + 1.4 * card.index, f"[drm] [nvidia-drm] [GPU ID 0x{gpu_id:08x}] Loading driver"))
        rows.append(
            (
                6.6 + 1.4 * card.index,
                f"[drm] Initialized nvidia-drm 0.0.0 20160202 for {card.pci} on minor {card.index + 1}",
            )
        )
    rows.append((19.9, "nvidia-uvm: Loaded the UVM driver, major device number 508."))
    rows.append((24.4, f"mlx5_core {host.nic_pci} {host.nic}: Link up"))
    return [Record(ns=booted_ns + int(s * S), text=text, boot=boot) for s, text in rows]


def noise(host: Host, first_ns: int, last_ns: int, rng: Random, boot: int = 0, most: int = 40) -> list[Record]:
    """Harmless lines of a container host, spread over its uptime."""
    out = []
    for _ in range(most):
        veth = f"veth{rng.getrandbits(28):07x}"
        text = rng.choice(
            (
                f"docker0: port 1({veth}) entered disabled state",
                f"docker0: port 1({veth}) entered blocking state",
                f"device {veth} entered promiscuous mode",
                f"eth0: renamed from {veth}",
                f"IPv6: ADDRCONF(NETDEV_CHANGE): {veth}: link becomes ready",
                f"usb 1-3: reset high-speed USB device number {rng.randrange(2, 9)} using xhci_hcd",
                f"perf: interrupt took too long ({rng.randrange(2510, 3900)} > 2500), lowering "
                "kernel.perf_event_max_sample_rate to 79750",
            )
        )
        out.append(Record(ns=rng.randrange(first_ns, last_ns), text=text, boot=boot))
    for _ in range(most // 4):
        who, text = rng.choice(
            (
                ("CRON[{p}]", "(root) CMD (test -x /usr/sbin/anacron || run-parts --report /etc/cron.hourly)"),
                ("systemd[1]", "Starting Refresh fwupd metadata and update motd..."),
                ("systemd[1]", "Started Daily apt download activities."),
                ("sshd[{p}]", "Accepted publickey for train from 10.31.0.9 port 50212 ssh2: ED25519 SHA256:x7Qd"),
                ("smartd[1402]", "Device: /dev/nvme0, SMART/Health Information: Temperature 41 Celsius"),
            )
        )
        row = Record(
            ns=rng.randrange(first_ns, last_ns), text=text, who=who.format(p=rng.randrange(3000, 99000)), boot=boot
        )
        out.append(row)
    return out


def _booted(host: Host, boot: int) -> int:
    return host.clock.booted_ns if boot == 0 else previous_boot_ns(host)


def printk_ns(host: Host, record: Record) -> int:
    """ns since that boot, on printk's clock."""
    return int((record.ns - _booted(host, record.boot)) * (1 + host.clock.boot_ppm / 1e6))


def received_ns(host: Host, record: Record) -> int:
    """When journald or rsyslog took it, on the host's clock: those of the first seconds of a boot all at once."""
    booted = _booted(host, record.boot)
    ns = max(record.ns, booted + int(3.2 * S)) if record.who == "kernel" else record.ns
    return host.clock.wall(ns)


def _uptime(ns: int) -> str:
    return f"{ns // S:5d}.{ns % S // 1000:06d}"


def _month_day(ns: int, host: Host, pad: str) -> str:
    t = when(ns, host.clock.zone)
    return f"{MONTHS[t.month - 1]} {t.day:{pad}} {t:%H:%M:%S}"


def _ctime(ns: int, host: Host) -> str:
    t = when(ns, host.clock.zone)
    return f"{DAYS[t.weekday()]} {MONTHS[t.month - 1]} {t.day:2d} {t:%H:%M:%S} {t.year}"


def offset(host: Host, colon: bool) -> str:
    """The host's zone as '+0100' or '+01:00'."""
    sign, minutes = ("-" if host.clock.zone.seconds < 0 else "+"), abs(host.clock.zone.seconds) // 60
    return f"{sign}{minutes // 60:02d}{':' if colon else ''}{minutes % 60:02d}"


def render(form: KernelForm, host: Host, records: list[Record], taken_ns: int) -> str:
    """The log file of `host` as `form` shows it; `taken_ns` (true UTC) is when the customer ran the command."""
    rows = sorted((r for r in records if r.ns <= taken_ns), key=lambda r: (-r.boot, r.ns))
    out: list[str] = []

    def add(prefix: str, text: str, indent: int | None) -> None:
        first, *rest = text.split("\n")
        out.append(prefix + first)
        out.extend((prefix if indent is None else " " * indent) + line for line in rest)

    if form.startswith("dmesg"):
        # `dmesg -T` adds the boot time, as computed now, to printk's clock.
        base = host.clock.wall(taken_ns) - host.clock.boot(taken_ns)
        for r in rows:
            if r.who != "kernel" or r.boot:
                continue
            boot_ns = printk_ns(host, r)
            if form == "dmesg":
                prefix = f"[{_uptime(boot_ns)}] "
            elif form == "dmesg-T":
                prefix = f"[{_ctime(base + boot_ns, host)}] "
            else:
                t = when(base + boot_ns, host.clock.zone)
                prefix = f"{t:%Y-%m-%dT%H:%M:%S},{t.microsecond:06d}{offset(host, True)} "
            add(prefix, r.text, len(prefix))
        return "\n".join(out) + "\n"
    rows = sorted(rows, key=lambda r: (-r.boot, received_ns(host, r), r.ns))
    journal = form.startswith("journal")
    boot = None
    for r in rows:
        if journal and boot is not None and r.boot != boot:
            out.append(f"-- Boot {host.boot_id} --")
        boot = r.boot
        ns = received_ns(host, r)
        if form == "journal":
            stamp = _month_day(ns, host, "02d")
        elif form == "kern.log":
            stamp = _month_day(ns, host, "2d")
        elif form == "journal-iso":
            stamp = f"{when(ns, host.clock.zone):%Y-%m-%dT%H:%M:%S}{offset(host, False)}"
        else:
            t = when(ns, host.clock.zone)
            stamp = f"{t:%Y-%m-%dT%H:%M:%S}.{t.microsecond:06d}{offset(host, True)}"
        if form == "kern.log" and r.who != "kernel":
            continue
        bracket = f"[{_uptime(printk_ns(host, r))}] " if not journal and r.who == "kernel" else ""
        prefix = f"{stamp} {host.name} {r.who}: {bracket}"
        add(prefix, r.text, len(prefix) if journal else None)
    return "\n".join(out) + "\n"


FILES: dict[KernelForm, str] = {
    "dmesg": "dmesg.txt",
    "dmesg-T": "dmesg-T.txt",
    "dmesg-iso": "dmesg-iso.txt",
    "journal": "journal.txt",
    "journal-iso": "journalctl-k.txt",
    "kern.log": "kern.log",
    "syslog-iso": "syslog",
}


# --- what the kernel says about things that happen -------------------------------------------------------------------


def _card(host: Host, index: int) -> tuple[str, str]:
    return host.cards[index].bus, host.cards[index].pci


def identity(host: Host, index: int, ns: int) -> list[Record]:
    """What the driver prints before a card's first Xid."""
    card = host.cards[index]
    rows = at(ns, f"NVRM: GPU at PCI:{card.bus}: {card.uuid}")
    if card.serial:
        rows += at(ns + 4_000, f"NVRM: GPU Board Serial Number: {card.serial}")
    return rows


def _who(host: Host) -> str:
    return "" if host.open_driver else " pid='<unknown>', name=<unknown>,"


def off_bus(host: Host, index: int, ns: int, *, crash_note: bool = True) -> list[Record]:
    """Xid 79 of one card."""
    bus, pci = _card(host, index)
    rows = identity(host, index, ns - 13_000)
    rows += at(
        ns,
        f"NVRM: Xid (PCI:{bus}): 79,{_who(host)} GPU has fallen off the bus.",
        f"NVRM: GPU {pci}: GPU has fallen off the bus.",
    )
    if serial := host.cards[index].serial:
        rows += at(ns + 7_000, f"NVRM: GPU {pci}: GPU serial number is {serial}.")
    if crash_note:
        note = (
            "NVRM: A GPU crash dump has been created. If possible, please run\n"
            "NVRM: nvidia-bug-report.sh as root to collect this data before\n"
            "NVRM: the NVIDIA kernel module is unloaded."
        )
        rows += at(ns + 19_000, note)
    return rows


def recovery_changed(host: Host, ns: int) -> list[Record]:
    """Xid 154 on every card of the host, as the driver prints it after one was lost."""
    return at(
        ns,
        *(
            f"NVRM: Xid (PCI:{card.bus}): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
            "(Node Reboot Required)"
            for card in host.cards
        ),
        step_ns=37_000,
    )


def channels_torn_down(host: Host, index: int, pid: int, ns: int) -> list[Record]:
    """Xid 45: the process that had the card is being killed."""
    bus, _ = _card(host, index)
    return at(
        ns,
        *(f"NVRM: Xid (PCI:{bus}): 45, pid={pid}, name=pt_main_thread, Ch {channel:08x}" for channel in (8, 9, 10)),
        step_ns=110_000,
    )


def corrected_aer(host: Host, index: int, ns: int) -> list[Record]:
    """One corrected link error on the port above a card."""
    port = host.cards[index].port
    return at(
        ns,
        f"pcieport {port}: AER: Corrected error message received from {port}",
        f"pcieport {port}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)",
        f"pcieport {port}:   device [1022:1483] error status/mask=00000080/00006000",
        f"pcieport {port}:    [ 7] BadDLLP               ",
    )


def hung_task(pid: int, ns: int, seconds: int = 120) -> list[Record]:
    """Printed `seconds` after the task went to sleep: `ns` is when it went."""
    return at(
        ns + seconds * S + 3 * S,
        f"INFO: task pt_main_thread:{pid} blocked for more than {seconds} seconds.",
        "      Tainted: P           OE      6.8.0 #53-Ubuntu",
        '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        f"task:pt_main_thread  state:D stack:0     pid:{pid} ppid:1      flags:0x00004006",
    )


def memory_error(host: Host, index: int, pid: int, ns: int) -> list[Record]:
    """An uncorrectable error in a card's memory: Xid 48, 63, 94 and the 45s that follow."""
    bus, _ = _card(host, index)
    unknown = _who(host)
    rows = identity(host, index, ns - 13_000)
    rows += at(
        ns,
        f"NVRM: Xid (PCI:{bus}): 48,{unknown} An uncorrectable double bit error (DBE) has been detected on GPU in the "
        "framebuffer at physAddr 0x2c81fa40 partition 9, subpartition 1.",
    )
    rows += at(
        ns + 22 * MS,
        f"NVRM: Xid (PCI:{bus}): 63,{unknown} Row Remapper: New row (0x000000002c81fa40) marked for remapping, reset "
        "gpu to activate.",
        f"NVRM: Xid (PCI:{bus}): 94,{unknown} Contained: SM (0x1). RST: No, D-RST: No",
        f"NVRM: Xid (PCI:{bus}): 94, pid={pid}, name=pt_main_thread, Ch 00000009",
        step_ns=900_000,
    )
    return rows + channels_torn_down(host, index, pid, ns + 1200 * MS)


def corrected_storm(host: Host, index: int, ns: int, boot: int = 0) -> list[Record]:
    """Xid 92: so many corrected errors that the driver stops counting them one by one."""
    bus, _ = _card(host, index)
    said = "Disabling ECC single-bit error interrupts in framebuffer at logical partition 3, due to high error rate"
    return at(ns, f"NVRM: Xid (PCI:{bus}): 92,{_who(host)} {said}", boot=boot)


def wearing_out(host: Host, index: int, until_ns: int) -> list[Record]:
    """Storms of corrected errors at shorter and shorter distance, over this boot and the one before."""
    rows: list[Record] = []
    ago_s, gap_s = 1800, 3000
    while ago_s < 21 * 86400:
        ns = until_ns - ago_s * S
        boot = 0 if ns > host.clock.booted_ns + 60 * S else 1
        first = previous_boot_ns(host) + 60 * S
        if ns > first and (boot == 0 or ns < host.clock.booted_ns - 120 * S):
            rows += corrected_storm(host, index, ns, boot)
        gap_s = gap_s * 2
        ago_s += gap_s
    return rows


def nvlink_error(host: Host, index: int, ns: int) -> list[Record]:
    bus, _ = _card(host, index)
    return identity(host, index, ns - 13_000) + at(
        ns,
        f"NVRM: Xid (PCI:{bus}): 74,{_who(host)} NVLink: fatal error detected on link 7(0x0, 0x0, 0x10000, 0x0, 0x0, "
        "0x0, 0x0)",
    )


def firmware_timeout(host: Host, index: int, pid: int, ns: int) -> list[Record]:
    """Xid 119; printed when the request has waited for 45 s: `ns` is when it was sent."""
    bus, _ = _card(host, index)
    late = ns + 45 * S
    return identity(host, index, late - 13_000) + at(
        late,
        f"NVRM: Xid (PCI:{bus}): 119, pid={pid}, name=pt_main_thread, Timeout after 45s of waiting for RPC response "
        f"from GPU{index} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
        f"NVRM: GPU{index} GSP RPC buffer contains function 76 (GSP_RM_CONTROL) and data 0x0000000020801702 "
        "0x0000000000000004.",
    )


def page_fault(host: Host, index: int, pid: int, ns: int) -> list[Record]:
    """Xid 31 (and the 43 that ends the channel): a kernel of this process touched bad memory."""
    bus, _ = _card(host, index)
    return identity(host, index, ns - 13_000) + at(
        ns,
        f"NVRM: Xid (PCI:{bus}): 31, pid={pid}, name=pt_main_thread, Ch 00000008, intr 00000000. MMU Fault: ENGINE "
        "GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f3a_40c00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        f"NVRM: Xid (PCI:{bus}): 43, pid={pid}, name=pt_main_thread, Ch 00000008",
        step_ns=2_000_000,
    )


def oom_kill(pid: int, comm: str, ns: int, *, cgroup: str | None) -> list[Record]:
    """The kernel kills `pid`, because its control group or (None) the whole host ran out of memory."""
    where = (
        f"constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={cgroup.split('/')[-1]},mems_allowed=0-1,"
        f"oom_memcg={cgroup},task_memcg={cgroup}"
        if cgroup
        else "constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=user.slice,mems_allowed=0-1,global_oom,"
        "task_memcg=/user.slice/user-1001.slice/session-12.scope"
    )
    head = "Memory cgroup out of memory" if cgroup else "Out of memory"
    size = "total-vm:152811220kB, anon-rss:62118812kB, file-rss:118220kB, shmem-rss:2204kB"
    rows = at(ns, f"{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0")
    rows += at(
        ns + 900_000,
        f"CPU: 41 PID: {pid + 3} Comm: {comm} Tainted: P           OE",
        "Call Trace:",
        " <TASK>",
        " dump_stack_lvl+0x4a/0x63",
        " oom_kill_process.cold+0xb/0x10",
        " </TASK>",
    )
    if cgroup:
        rows += at(ns + 5 * MS, "memory: usage 67108864kB, limit 67108864kB, failcnt 151202")
    rows += at(
        ns + 7 * MS,
        f"oom-kill:{where},task={comm},pid={pid},uid=1001",
        f"{head}: Killed process {pid} ({comm}) {size}, UID:1001 pgtables:131220kB oom_score_adj:0",
    )
    return rows + at(
        ns + 900 * MS,
        f"oom_reaper: reaped process {pid} ({comm}), now anon-rss:0kB, file-rss:118220kB, shmem-rss:2204kB",
    )


def segfault(pid: int, ns: int) -> list[Record]:
    return at(
        ns,
        f"pt_main_thread[{pid}]: segfault at 7f797fe00000 ip 00007f7c7ac6a233 sp 00007ffd1e22aab0 error 4 in "
        "libtorch_cuda.so[7f7c7a000000+5a00000] likely on CPU 12 (core 12, socket 0)",
    )


def link_down(host: Host, ns: int, back_ns: int | None) -> list[Record]:
    """The host's network port goes down, and perhaps comes back."""
    rows = at(ns, f"mlx5_core {host.nic_pci} {host.nic}: Link down")
    if back_ns is not None:
        rows += at(back_ns, f"mlx5_core {host.nic_pci} {host.nic}: Link up")
    return rows


def storage_hang(ns: int, pid: int, back_ns: int | None) -> list[Record]:
    """The NFS server stops answering at `ns`: the kernel says so a minute later, then names the tasks that hang."""
    rows = at(ns + 62 * S, "nfs: server nas-02.lab not responding, still trying")
    rows += at(
        ns + 123 * S,
        f"INFO: task pt_main_thread:{pid} blocked for more than 120 seconds.",
        '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        f"task:pt_main_thread  state:D stack:0     pid:{pid} ppid:1      flags:0x00004002",
        "Call Trace:",
        " <TASK>",
        " rpc_wait_bit_killable+0x25/0xb0 [sunrpc]",
        " nfs4_run_open_task+0x12c/0x1b0 [nfsv4]",
        " </TASK>",
    )
    return rows + (at(back_ns, "nfs: server nas-02.lab OK") if back_ns else [])


def disk_error(ns: int) -> list[Record]:
    return at(
        ns,
        "nvme0n1: I/O Cmd(0x1) @ LBA 5287508016, 256 blocks, I/O Error (sct 0x3 / sc 0x71)",
        "I/O error, dev nvme0n1, sector 5287508016 op 0x1:(WRITE) flags 0x4800 phys_seg 8 prio class 2",
        "EXT4-fs error (device nvme0n1p2): ext4_journal_check_start:83: comm pt_main_thread: Detected aborted journal",
        "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
        step_ns=40_000,
    )


def lockup(pid: int, ns: int) -> list[Record]:
    """Printed 22 s after the CPU got stuck at `ns`, and again."""
    rows = []
    for late in (22, 48, 74):
        rows += at(ns + late * S, f"watchdog: BUG: soft lockup - CPU#12 stuck for {late}s! [pt_main_thread:{pid}]")
    return rows + at(ns + 30 * S, "rcu: INFO: rcu_sched self-detected stall on CPU")


def desktop_fault(host: Host, index: int, ns: int, boot: int) -> list[Record]:
    """Xid 31 of a desktop program: nobody's training."""
    bus, _ = _card(host, index)
    return at(
        ns,
        f"NVRM: GPU at PCI:{bus}: {host.cards[index].uuid}",
        f"NVRM: Xid (PCI:{bus}): 31, pid=2188, name=Xorg, Ch 00000010, intr 10000000. MMU Fault: ENGINE GRAPHICS "
        "GPCCLIENT_T1_5 faulted @ 0x1_02c30000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
        boot=boot,
    )


def clock_step(host: Host, ns: int, by_ns: int) -> list[Record]:
    text = f"System clock was stepped by {by_ns / S:.6f} seconds"
    return [
        Record(ns=ns - S, text=f"System clock wrong by {by_ns / S:.6f} seconds", who="chronyd[1023]"),
        Record(ns=ns, text=text, who="chronyd[1023]"),
        Record(ns=ns + MS, text="Clock change detected. Flushing caches.", who="systemd-resolved[812]"),
    ]
