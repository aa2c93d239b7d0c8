"""nvidia-smi and nvidia-bug-report.log.gz of a host."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from random import Random

from .cluster import Card, Host, S, when
from .kernel import DAYS, Record, offset, render
from .scenario import KernelForm

RULE = "_" * 44


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A card that becomes hot. Times are true UTC ns."""

    card: int
    from_ns: int
    peak_c: int
    lost_ns: int | None = None
    """When it switched itself off."""


def smi_list(host: Host) -> str:
    """nvidia-smi -L."""
    return "".join(f"GPU {c.index}: {c.model} (UUID: {c.uuid})\n" for c in host.cards)


def _row(depth: int, name: str, value: str = "") -> str:
    pad = " " * (4 * depth)
    return f"{pad}{name:<{50 - len(pad)}}: {value}" if value else f"{pad}{name}"


def smi_query(host: Host, at_ns: int, *, hurt: int | None = None, driver: str | None = None) -> str:
    """nvidia-smi -q, shortened to what it says about identity, memory and link; `hurt` has a row to remap."""
    t = when(host.clock.wall(at_ns), host.clock.zone)
    out = [
        "",
        "==============NVSMI LOG==============",
        "",
        _row(0, "Timestamp", f"{DAYS[t.weekday()]} {t:%b} {t.day:2d} {t:%H:%M:%S} {t.year}"),
        _row(0, "Driver Version", driver or host.driver),
        _row(0, "CUDA Version", "12.4"),
        "",
        _row(0, "Attached GPUs", str(len(host.cards))),
    ]
    for card in host.cards:
        bad = card.index == hurt
        out += [
            f"GPU 0000{card.pci.upper()}",
            _row(1, "Product Name", card.model),
            _row(1, "Serial Number", card.serial or "0"),
            _row(1, "GPU UUID", card.uuid),
            _row(1, "Minor Number", str(card.index + 1)),
            _row(1, "PCI"),
            _row(2, "Bus", f"0x{card.pci[5:7].upper()}"),
            _row(2, "Bus Id", f"0000{card.pci.upper()}"),
            _row(2, "GPU Link Info"),
            _row(3, "PCIe Generation"),
            _row(4, "Current", "4"),
            _row(3, "Link Width"),
            _row(4, "Current", "16x"),
        ]
        if card.serial:
            out += [
                _row(1, "ECC Errors"),
                _row(2, "Volatile"),
                _row(3, "DRAM Correctable", "0"),
                _row(3, "DRAM Uncorrectable", "1" if bad else "0"),
                _row(1, "Remapped Rows"),
                _row(2, "Correctable Error", "0"),
                _row(2, "Uncorrectable Error", "1" if bad else "0"),
                _row(2, "Pending", "Yes" if bad else "No"),
                _row(2, "Remapping Failure Occurred", "No"),
            ]
        out += [_row(1, "Temperature"), _row(2, "GPU Current Temp", f"{52 + card.index} C"), ""]
    return "\n".join(out) + "\n"


SAMPLED = ("timestamp", "index", "pci.bus_id", "temperature.gpu", "power.draw [W]", "clocks.current.sm [MHz]")
EVERY_S = 20
"""Seconds between two samples."""


def smi_samples(host: Host, first_ns: int, last_ns: int, heat: Heat | None, rng: Random) -> str:
    """nvidia-smi --query-gpu=timestamp,… --format=csv -l 20, as somebody let it run beside the job."""
    reason = "clocks_event_reasons" if host.driver >= "535" else "clocks_throttle_reasons"
    out = [", ".join((*SAMPLED, f"{reason}.hw_thermal_slowdown"))]
    for ns in range(first_ns, last_ns, EVERY_S * S):
        t = when(host.clock.wall(ns), host.clock.zone)
        stamp = f"{t:%Y/%m/%d %H:%M:%S}.{t.microsecond // 1000:03d}"
        for card in host.cards:
            bus = f"0000{card.pci.upper()}"
            if heat is not None and card.index == heat.card and heat.lost_ns is not None and ns >= heat.lost_ns:
                out.append(
                    f"Unable to determine the device handle for GPU {bus}: GPU is lost.  Reboot the system to recover "
                    "this GPU"
                )
                return "\n".join(out) + "\n"
            celsius, mhz = 58 + card.index + rng.randrange(5), rng.randrange(1700, 1980)
            hot = False
            if heat is not None and card.index == heat.card and ns >= heat.from_ns:
                celsius = min(heat.peak_c, 74 + int((ns - heat.from_ns) / S) // 20) + rng.randrange(2)
                hot = celsius >= 87
                mhz = rng.randrange(210, 420) if hot else mhz
            watts = rng.uniform(90, 130) if hot else rng.uniform(280, 420)
            active = "Active" if hot else "Not Active"
            out.append(f"{stamp}, {card.index}, {bus}, {celsius}, {watts:.2f} W, {mhz} MHz, {active}")
    return "\n".join(out) + "\n"


def gzip_member(data: bytes) -> bytes:
    """One gzip member of stored blocks: the same bytes whatever zlib is installed."""
    out = bytearray(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")
    pieces = [data[i : i + 65535] for i in range(0, len(data), 65535)] or [b""]
    for number, piece in enumerate(pieces):
        size = len(piece)
        out += bytes([number == len(pieces) - 1]) + struct.pack("<HH", size, size ^ 0xFFFF) + piece
    return bytes(out) + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def _lspci_long(card: Card, lost: bool) -> str:
    title = f"{card.pci} VGA compatible controller [0300]: NVIDIA Corporation Device [{card.device}]"
    if lost:
        return (
            f"{title} (rev ff) (prog-if ff)\n\t!!! Unknown header type 7f\n\tKernel driver in use: nvidia\n"
            + "\n".join(f"{row:02x}: " + " ".join(["ff"] * 16) for row in range(0, 64, 16))
            + "\n"
        )
    return (
        f"{title} (rev a1) (prog-if 00 [VGA controller])\n"
        "\tControl: I/O+ Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+\n"
        "\tCapabilities: [78] Express (v2) Legacy Endpoint, MSI 00\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1, Exit Latency L1 <4us\n"
        "\t\tLnkSta:\tSpeed 16GT/s, Width x16\n"
        "\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-\n"
        "\tKernel driver in use: nvidia\n"
    )


def bug_report(host: Host, records: list[Record], at_ns: int, lost: tuple[int, ...], rng: Random, cut: bool) -> bytes:
    """nvidia-bug-report.log.gz of a host whose cards `lost` don't answer: a chain of gzip members.

    `cut`: the script was killed while it waited for a dead card, so that the file ends in the middle of a member.
    """
    wall = host.clock.wall(at_ns)
    t = when(wall, host.clock.zone)
    listed = f"{t:%Y-%m-%d %H:%M:%S}.118220331 {offset(host, False)}"
    date = f"{DAYS[t.weekday()]} {t:%b} {t.day:2d} {t:%I:%M:%S %p} {host.clock.zone.abbreviation} {t.year}"
    members: list[str] = []

    def section(body: str) -> None:
        members.append(f"{RULE}\n\n{body}\n")

    def shown(path: str, body: str, size: int = 4096) -> None:
        section(f"*** {path}\n*** ls: -r--r--r-- 1 root root {size} {listed} {path}\n{body}\n")

    section(
        "Start of NVIDIA bug report log file.  Please include this file, along\n"
        "with a detailed description of your problem, when reporting a graphics\n"
        "driver bug via the NVIDIA Linux forum (see forums.developer.nvidia.com)\n"
        "or by sending email to 'linux-bugs@nvidia.com'.\n\n"
        "nvidia-bug-report.sh Version: 35255295\n\n"
        f"Date: {date}\n"
        f"uname: Linux {host.name} {host.kernel} #53-Ubuntu SMP PREEMPT_DYNAMIC Sat Jan 11 00:06:25 UTC 2025 x86_64 "
        "x86_64 x86_64 GNU/Linux\ncommand line flags: \n"
    )
    for card in host.cards:
        gone = card.index in lost
        shown(f"/sys/bus/pci/devices/{card.pci}/power/control", "on")
        shown(f"/sys/bus/pci/devices/{card.pci}/power/runtime_status", "error" if gone else "active")
    shown("/etc/issue", "Ubuntu 24.04.1 LTS \\n \\l\n", 26)
    section("*** /var/log/nvidia-installer.log does not exist\n")
    for boot in range(3):
        for program in ("Xorg", "gdm-x-session"):
            section(f"journalctl -b -{boot} _COMM={program}\n\n-- No entries --\n")
    section("ldd /usr/bin/glxinfo\n\nSkipping ldd output (glxinfo not found)\n")
    roots = sorted({card.port.rsplit(":", 1)[0] for card in host.cards})
    tree = []
    for root in roots:
        tree.append(f"-[{root}]-+-00.0  Advanced Micro Devices, Inc. [AMD] Milan Root Complex [1022:1480]")
        for card in host.cards:
            if card.port.startswith(root):
                port, bus = card.port.rsplit(":", 1)[1], card.pci[5:7]
                tree.append(f"           +-{port}-[{bus}]----00.0  NVIDIA Corporation Device [{card.device}]")
    section("/usr/bin/lspci -nntv\n\n" + "\n".join(tree) + "\n")
    short = "\n".join(
        f"{c.pci[5:]} VGA compatible controller [0300]: NVIDIA Corporation Device [{c.device}] "
        f"(rev {'ff' if c.index in lost else 'a1'})"
        for c in host.cards
    )
    section(f"/usr/bin/lspci -nn\n\n{short}\n")
    section("/usr/bin/lspci -nnDvvvxxxx\n\n" + "\n".join(_lspci_long(c, c.index in lost) for c in host.cards) + "\n")
    section("numactl -H\n\navailable: 1 nodes (0)\nnode 0 cpus: 0-31\nnode 0 size: 257604 MB\nnode 0 free: 1220 MB\n")
    nvidia = [r for r in records if "NVRM" in r.text or "nvidia" in r.text]
    body = ["Scanning kernel log files for NVIDIA kernel messages:"]
    forms: tuple[tuple[str, KernelForm, list[Record]], ...] = (
        ("/var/log/kern.log", "kern.log", nvidia),
        ("journalctl -b -0", "journal", [r for r in nvidia if not r.boot]),
        ("journalctl -b -1", "journal", [r for r in nvidia if r.boot]),
    )
    for heading, form, rows in forms:
        body.append(
            f"\n  {heading}:\n" + (render(form, host, rows, at_ns).rstrip("\n") if rows else "-- No entries --")
        )
    section("\n".join(body) + "\n")
    section("dmesg:\n\n" + render("dmesg", host, records, at_ns))
    section("Using built-in specs.\nCOLLECT_GCC=gcc\nTarget: x86_64-linux-gnu\ngcc version 13.3.0\n")
    section('xset -q:\n\nxset:  unable to open display ""\n')
    shown("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{host.kernel} root=UUID=5d1f6f10 ro iommu=pt pci=realloc", 0)
    cpus = "\n\n".join(
        f"processor\t: {i}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7543 32-Core Processor\ncore id\t\t: {i}"
        for i in range(8)
    )
    shown("/proc/cpuinfo", cpus, 0)
    shown("/proc/driver/nvidia/./version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {host.driver}", 0)
    for card in host.cards:
        bios = "??.??.??.??.??" if card.index in lost else "95.02.3c.00.40"
        shown(
            f"/proc/driver/nvidia/./gpus/{card.pci}/information",
            f"Model: \t\t {card.model}\nIRQ:   \t\t {94 + card.index}\nGPU UUID: \t {card.uuid}\n"
            f"Video BIOS: \t {bios}\nBus Type: \t PCIe\nBus Location: \t {card.pci}\n"
            f"Device Minor: \t {card.index + 1}\nGPU Excluded:\t No",
            0,
        )
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    blob = "\n".join("".join(rng.choices(alphabet, k=76)) for _ in range(40))
    section(f"/usr/bin/nvidia-debugdump -D\n\n{blob}\n")
    if lost:
        where = host.cards[lost[0]].pci.upper()
        query = f"Unable to determine the device handle for GPU{where}: Unknown Error\n"
    else:
        query = smi_query(host, at_ns)
    section(f"/usr/bin/nvidia-smi --query\n\n{query}")
    section("ibstat\n\nSkipping ibstat output (ibstat not found)\n")
    section("*** /var/log/fabricmanager.log does not exist\n")
    section("End of NVIDIA bug report log file.\n")
    out = b"".join(gzip_member(m.encode()) for m in members)
    return out[: out.index(b"/proc/cpuinfo") + 300] if cut else out
