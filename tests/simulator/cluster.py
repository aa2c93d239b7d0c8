"""Hosts with clocks of their own, cards with addresses, and the ranks that live on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from .scenario import UTC, ZONES, Scenario, Zone

S = 1_000_000_000
MS = 1_000_000
EPOCH = datetime(1970, 1, 1)


def when(wall_ns: int, zone: Zone = UTC) -> datetime:
    """The naive local time that a clock shows; microseconds, rounded down."""
    return EPOCH + timedelta(microseconds=wall_ns // 1000, seconds=zone.seconds)


def true_ns(text: str) -> int:
    """'2026-03-10T21:04:00' (UTC) → ns since 1970."""
    return round((datetime.fromisoformat(text) - EPOCH).total_seconds()) * S


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A host's clocks. `wall` is what date(1) would say in UTC, `boot` what printk writes."""

    booted_ns: int
    """True UTC of the boot."""
    offset_ns: int = 0
    drift_ppm: float = 0.0
    steps: tuple[tuple[int, int], ...] = ()
    """(true ns, ns by which the clock jumped then)."""
    boot_ppm: float = 0.0
    """Error of printk's clock, which nothing disciplines."""
    zone: Zone = UTC

    def wall(self, at_ns: int) -> int:
        drift = int((at_ns - self.booted_ns) * self.drift_ppm / 1e6)
        return at_ns + self.offset_ns + drift + sum(by for when_ns, by in self.steps if at_ns >= when_ns)

    def boot(self, at_ns: int) -> int:
        return int((at_ns - self.booted_ns) * (1 + self.boot_ppm / 1e6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    index: int
    pci: str
    """'dddd:bb:dd.f', lower case."""
    port: str
    """The bridge above it."""
    uuid: str
    serial: str | None
    model: str
    device: str
    """'10de:2684'."""

    @property
    def bus(self) -> str:
        """As in an Xid line: without the function."""
        return self.pci[:-2]

    @property
    def bus_id(self) -> str:
        """As NCCL writes it: hexadecimal without separators or leading zeros."""
        domain, bus, rest = self.pci.split(":")
        return f"{int(domain + bus + rest.replace('.', ''), 16):x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    index: int
    name: str
    address: str
    clock: Clock
    cards: tuple[Card, ...]
    kernel: str
    driver: str
    open_driver: bool
    nic: str
    nic_pci: str
    agent_pid: int
    boot_id: str
    previous_boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank's seat."""

    rank: int
    local: int
    host: Host
    card: Card
    pid: int
    """As the job's own log has it."""
    host_pid: int
    """As the kernel has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    hosts: tuple[Host, ...]
    members: tuple[Member, ...]
    start_ns: int
    """True UTC."""

    def on(self, host: Host) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.host is host)


MODELS = {
    "rtx4090": ("NVIDIA GeForce RTX 4090", "10de:2684", ("01", "21", "41", "61", "81", "a1", "c1", "e1")),
    "a100": ("NVIDIA A100-SXM4-80GB", "10de:20b2", ("07", "0f", "47", "4e", "87", "90", "b7", "bd")),
    "h100": ("NVIDIA H100 80GB HBM3", "10de:2330", ("1b", "43", "52", "61", "9d", "c3", "d1", "df")),
}
NAMES = ("trn", "gpu", "node", "hgx", "compute", "worker", "dl")


def _hex(rng: Random, digits: int) -> str:
    return f"{rng.getrandbits(digits * 4):0{digits}x}"


def _cards(scenario: Scenario, rng: Random) -> tuple[Card, ...]:
    name, device, buses = MODELS[scenario.model]
    places = scenario.cards or tuple(f"0000:{bus}:00.0" for bus in buses[: scenario.per_node])
    cards = []
    for index, pci in enumerate(places):
        bus = int(pci[5:7], 16)
        root = bus & 0xE0
        parts = (8, 4, 4, 4, 12)
        cards.append(
            Card(
                index=index,
                pci=pci,
                port=f"{pci[:4]}:{root:02x}:{1 + 2 * (bus >> 4 & 1):02x}.{1 + (bus & 3)}",
                uuid="GPU-" + "-".join(_hex(rng, n) for n in parts),
                serial=None if scenario.model == "rtx4090" else f"165{rng.randrange(10**9, 10**10)}",
                model=name,
                device=device,
            )
        )
    return tuple(cards)


def build(scenario: Scenario, rng: Random) -> Cluster:
    """The machines of a scenario; the same seed gives the same ones."""
    start = true_ns(scenario.start)
    degrade = scenario.degrade
    stem, first = rng.choice(NAMES), rng.randrange(1, 60)
    stepper = rng.randrange(scenario.nodes) if degrade.ntp_step else None
    stepped_ns = start - int(rng.uniform(600, 7200) * S) if degrade.ntp_step else 0
    if degrade.step_in_job:
        stepper = rng.randrange(scenario.nodes)
        stepped_ns = start + int((26 + rng.uniform(0.3, 0.8) * scenario.fault_step * scenario.step_s) * S)
    hosts: list[Host] = []
    for index in range(scenario.nodes):
        name = scenario.hosts[index] if scenario.hosts else f"{stem}-{first + index:02d}"
        offset_s = (
            scenario.clock_offsets_s[index]
            if scenario.clock_offsets_s
            else rng.uniform(-degrade.clock_spread_s, degrade.clock_spread_s)
        )
        jump = int(rng.choice((-1, 1)) * rng.uniform(2, 40) * S)
        hosts.append(
            Host(
                index=index,
                name=name,
                address=f"10.31.7.{11 + first + index}",
                clock=Clock(
                    booted_ns=start - int(rng.uniform(1.5, 9) * 86400 * S),
                    offset_ns=int(offset_s * S),
                    drift_ppm=rng.uniform(-degrade.drift_ppm, degrade.drift_ppm),
                    steps=((stepped_ns, jump),) if index == stepper else (),
                    boot_ppm=rng.uniform(-12, 12),
                    zone=rng.choice(ZONES) if degrade.wrong_zones else scenario.host_zone,
                ),
                cards=_cards(scenario, rng),
                kernel="6.8.0-52-generic" if scenario.model == "rtx4090" else "5.15.0-1063-nvidia",
                driver="570.124.06" if scenario.model == "rtx4090" else "550.144.03",
                open_driver=scenario.model != "a100",
                nic="enp65s0f0np0" if scenario.model == "rtx4090" else "ens1f0np0",
                nic_pci="0000:49:00.0",
                agent_pid=rng.randrange(2000, 40000) if not scenario.container else 71,
                boot_id=_hex(rng, 32),
                previous_boot_id=_hex(rng, 32),
            )
        )
    members: list[Member] = []
    for rank in range(scenario.nodes * scenario.per_node):
        host, local = hosts[rank // scenario.per_node], rank % scenario.per_node
        pid = host.agent_pid + 66 + local
        members.append(
            Member(
                rank=rank,
                local=local,
                host=host,
                card=host.cards[local],
                pid=pid,
                host_pid=pid if not scenario.container else 1_204_300 + 7 * local + 512 * host.index,
            )
        )
    return Cluster(hosts=tuple(hosts), members=tuple(members), start_ns=start)
