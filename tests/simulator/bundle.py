"""From a scenario and a seed to a folder of files as a customer would mail it, and the truth about it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from . import kernel as k
from .aftermath import Ending, play
from .causes import CAUSES, DEADLOCK, JobLine, Story
from .cluster import MS, Host, S, build, when
from .dumps import dump, file_name, minor
from .evidence import CONSOLE, Signs, holds, signs
from .kernel import FILES, Record
from .reports import bug_report, smi_list, smi_query, smi_samples
from .scenario import KernelForm, Scenario, Truth
from .torchlog import Torch
from .training import Run, Work, layout, program, train

VAGUE = ("rank_not_arrived", "rank_busy", "rank_slow", "process_missing", "gpu_stall")
"""What a careful reader may call a cause of which only the effect on the collectives is left."""


SAMPLES = "nvidia-smi-samples.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Files (path in the bundle → bytes) and what really happened."""

    files: dict[str, bytes]
    truth: Truth

    def write(self, folder: Path, *, expected: bool = False) -> None:
        """Write the files under `folder`; with `expected` also expected.json, as scoring wants it."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if expected:
            text = json.dumps({"why": self.truth.why, "expect": self.truth.expect()}, indent=1) + "\n"
            (folder / "expected.json").write_text(text, encoding="utf-8")


def simulate(scenario: Scenario, seed: int) -> Bundle:
    """Run `scenario`; the same seed gives the same bytes. Raises KeyError for a cause that is not simulated."""
    rng = Random(f"{scenario.cause}/{seed}")
    cluster = build(scenario, rng)
    groups = layout(scenario)
    culprit = scenario.culprit if scenario.culprit is not None else rng.randrange(len(cluster.members))
    torch = Torch(scenario, rng)
    story = Story(scenario=scenario, cluster=cluster, groups=groups, torch=torch, rng=rng, culprit=culprit)
    told = CAUSES[scenario.cause](story)
    next(told)
    begin_ns = cluster.start_ns + 26 * S
    story.run = train(scenario, groups, tuple(story.faults), begin_ns, rng)
    next(told, None)
    _opening(story)
    end = play(story)
    _kernel_noise(story, end)
    files = _files(story, end)
    return Bundle(files=files, truth=_truth(story, end, files))


# --- what a job prints while all is well -----------------------------------------------------------------------------


_WARNINGS = (
    "/srv/train/pretrain.py:87: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use "
    "`torch.amp.GradScaler('cuda', args...)` instead.\n  scaler = torch.cuda.amp.GradScaler(enabled=False)\n"
    "Token indices sequence length is longer than the specified maximum sequence length for this model (4211 > 4096). "
    "Running this sequence through the model will result in indexing errors"
)
"""What every training job prints and nobody reads."""


def _opening(story: Story) -> None:
    """Launcher's boilerplate, NCCL's set-up lines and the pulse."""
    scenario, torch, start = story.scenario, story.torch, story.cluster.start_ns
    world = len(story.cluster.members)
    for host in story.cluster.hosts:
        rule = "*" * 41
        for i, text in enumerate(
            (
                rule,
                "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your "
                "system being overloaded, please further tune the variable for optimal performance in your "
                "application as needed. ",
                rule,
            )
        ):
            ns = start + i * MS
            said = torch.agent(host, ns, "W", text, "run") if torch.minor else text
            story.lines.append(JobLine(ns=ns, host=host.index, local=None, text=said))
    for seat in story.cluster.members:
        ns = start + 9 * S + seat.rank * 3 * MS
        story.log(
            seat.rank,
            ns,
            f"rank {seat.rank}/{world} on {seat.host.name} pid {seat.pid} local_rank {seat.local}, "
            f"torch {scenario.torch}.0+cu124",
        )
        if not scenario.degrade.lose_init_lines:
            begun = story.begun.get(seat.rank)
            lines = torch.init_lines(seat, story.run.of(seat.rank), complete=begun is None)
            for i, text in enumerate(lines if begun != "none" else ()):
                story.say(seat.rank, ns + 3 * S + i * 11 * MS, text, err=False)
        if seat.local == 0:
            story.say(seat.rank, ns + S, _WARNINGS)
    stop = story.cancelled_ns or 1 << 62
    printer = world - 1 if scenario.application == "megatron" else 0
    loss, last = 10.8, 0
    shown = [row for row in story.run.pulse if row[1] < stop]
    for step, ns in shown:
        loss = max(1.9, loss * 0.985 + story.rng.uniform(-0.05, 0.05))
        took_ms = (ns - last) / MS if last else scenario.step_s * 1200
        last = ns
        if step % 100 == 0:
            story.log(0, ns + 400 * MS, f"checkpoint step_{step} written in {story.rng.uniform(7, 14):.1f} s")
        t = when(story.seat(printer).host.clock.wall(ns), scenario.job_zone)
        if scenario.application == "megatron":
            text = (
                f" [{t:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{scenario.steps:8d} | consumed samples: "
                f"{step * 512:12d} | elapsed time per iteration (ms): {took_ms:.1f} | learning rate: 2.9E-04 | global "
                f"batch size:   512 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.812 | number of skipped "
                "iterations:   0 | number of nan iterations:   0 |"
            )
        elif scenario.application == "titan":
            text = (
                f"[titan] {t:%Y-%m-%d %H:%M:%S},{t.microsecond // 1000:03d} - root - INFO - step: {step:2d}  loss: "
                f"{loss:8.4f}  memory: 61.40GiB(77.6%)  tps: {8192e3 / took_ms:,.0f}  mfu: 41.22%"
            )
        elif scenario.application == "bar":
            share = step / scenario.steps
            bar = "█" * int(share * 10) + " " * (10 - int(share * 10))
            done_s = int((ns - shown[0][1]) / S)
            text = (
                f"\rEpoch 0: {share:4.0%}|{bar}| {step}/{scenario.steps} "
                f"[{done_s // 60:02d}:{done_s % 60:02d}<?, {took_ms / 1000:.2f}s/it, loss={loss:.3f}]"
            )
        elif scenario.application == "trainer":
            text = f"{{'loss': {loss:.4f}, 'grad_norm': 0.8123, 'learning_rate': 2.9e-05, 'epoch': {step / 400:.2f}}}"
        else:
            story.log(printer, ns, f"step {step}/{scenario.steps} loss {loss:.4f} {took_ms / 1000:.2f} s/step")
            continue
        story.say(printer, ns, text, err=False)
    if scenario.decoys.store_noise and torch.minor >= 4 and shown:
        seat = story.seat(world - 1)
        ns = shown[len(shown) // 2][1]
        head = torch.header(seat, ns, "async", "W").rsplit(" ", 1)[0]
        story.say(
            seat.rank,
            ns,
            f"{head} socket.cpp:464] [c10d] waitForInput: poll for socket SocketImpl(fd=79, "
            f"addr=[{seat.host.name}]:51022, remote=[{story.cluster.hosts[0].name}]:29500) returned 0, "
            "likely a timeout",
        )
    if story.run.blocked and all(what == "done" for what in story.run.blocked.values()) and stop == 1 << 62:
        story.log(0, story.run.ended_ns + S, "training finished, final checkpoint saved")


def _kernel_noise(story: Story, end: Ending) -> None:
    """Boots, everyday lines, decoys and what the job's end left in the kernel logs."""
    scenario, rng = story.scenario, story.rng
    guilty = set(story.ranks) or {story.culprit}
    torn = rng.random() < 0.5 or scenario.cause in ("gpu_off_bus", "psu_rail_loss")
    for host in story.cluster.hosts:
        rows = story.records.setdefault(host.index, [])
        booted, before = host.clock.booted_ns, k.previous_boot_ns(host)
        rows += k.boot_records(host, before, 1) + k.noise(host, before + 30 * S, booted - 90 * S, rng, 1, 12)
        rows += k.at(booted - 60 * S, "reboot: Restarting system", boot=1)
        rows += k.boot_records(host, booted, 0) + k.noise(host, booted + 30 * S, end.over_ns, rng)
        for ns, by in host.clock.steps:
            rows += k.clock_step(host, ns, by)
        innocent = [m for m in story.cluster.on(host) if m.rank not in guilty]
        decoys = scenario.decoys
        if innocent and decoys.corrected_aer:
            seat = rng.choice(innocent)
            for _ in range(4):
                rows += k.corrected_aer(host, seat.local, end.over_ns - rng.randrange(100 * S, 3000 * S))
        marked = [m for m in innocent if decoys.old_boot_rank in (None, m.rank)]
        if marked and decoys.old_boot_xid:
            rows += k.desktop_fault(host, rng.choice(marked).local, booted - rng.randrange(9000 * S, 90000 * S), 1)
        if marked and decoys.worn_card and scenario.model != "rtx4090":
            rows += k.wearing_out(host, rng.choice(marked).local, end.over_ns)
        if decoys.innocent_oom:
            ns = story.cluster.start_ns - rng.randrange(200 * S, 4000 * S)
            rows += k.oom_kill(991_220, "jupyter-lab", ns, cgroup="/system.slice/jupyter.service")
        if decoys.link_flap:
            ns = story.cluster.start_ns - rng.randrange(3600 * S, 9000 * S)
            rows += k.link_down(host, ns, ns + 6 * S)
        for seat in innocent:
            if torn and seat.rank in end.died and end.died[seat.rank][1] in (-6, -9):
                rows += k.channels_torn_down(host, seat.local, seat.host_pid, end.died[seat.rank][0] + 150 * MS)
        gone = story.dead_hosts.get(host.index)
        if gone is not None:
            rows[:] = [r for r in rows if r.ns <= gone]
            # Collected after the machine was back: this boot is the one before by then.
            rows[:] = [Record(ns=r.ns, text=r.text, who=r.who, boot=r.boot + 1) for r in rows if not r.boot]


# --- files ------------------------------------------------------------------------------------------------------------


def _prefixed(story: Story, line: JobLine) -> str:
    """A process's text as it stands in the console log: launcher's prefix, then the collector's."""
    scenario, host = story.scenario, story.cluster.hosts[line.host]
    task = f"{line.host}: " if scenario.launcher == "slurm" else ""
    rank = f"[default{line.local}]:" if line.local is not None else ""
    wall = host.clock.wall(line.ns)
    stamp = f"{when(wall):%Y-%m-%dT%H:%M:%S}.{wall % S:09d}"
    collected = {
        "none": "",
        "zulu": f"{stamp[:-6]}Z ",
        "cri": f"{stamp}Z {'stderr' if line.err else 'stdout'} F ",
        "pdsh": f"{host.name}: ",
        "docker": "",
    }[scenario.collector]
    if line.text.startswith("\r"):  # a progress bar ends its line only when something else is printed
        rows = [f"\r{rank}{line.text[1:]}"]
        rank, end = "", ""
    else:
        rows, end = line.text.split("\n"), "\n"
    if scenario.collector == "docker":
        stream = "stderr" if line.err else "stdout"
        said = ({"log": f"{task}{rank}{row}{end}", "stream": stream, "time": f"{stamp}Z"} for row in rows)
        return "".join(json.dumps(row) + "\n" for row in said)
    if not end:
        return rows[0]
    return "".join(f"{collected}{task}{rank}{row}\n" for row in rows)


def _files(story: Story, end: Ending) -> dict[str, bytes]:
    scenario, rng, degrade = story.scenario, story.rng, story.scenario.degrade
    hosts = story.cluster.hosts
    guilty_hosts = {story.seat(r).host.index for r in story.ranks or (story.culprit,)}
    files: dict[str, bytes] = {}
    many = len(hosts) > 1

    def place(host: Host, name: str) -> str:
        return f"{host.name}/{name}" if many else name

    # console logs
    lines = sorted(
        (x for x in story.lines if x.ns < story.dead_hosts.get(x.host, 1 << 62)), key=lambda x: (x.ns, x.host)
    )
    if story.cancelled_ns is not None:
        lines = [x for x in lines if x.ns < story.cancelled_ns + 30 * S]

    def skip(host: int) -> bool:
        if scenario.cause == "hopeless":
            return host in guilty_hosts and many
        return degrade.lose_job_logs or (degrade.lose_culprit_job_log and host in guilty_hosts)

    consoles: dict[str, str] = {}
    for host in hosts:
        if skip(host.index):
            continue
        mine = [x for x in lines if x.host == host.index]
        shown = [x for x in mine if not (scenario.per_rank_files and x.err and x.local is not None)]
        text = "".join(_prefixed(story, x) for x in shown)
        if scenario.launcher == "slurm":
            consoles["slurm-88121.out"] = ""  # all nodes in one file, in order of time
        else:
            consoles[place(host, "train.log")] = text
        if scenario.per_rank_files:
            for seat in story.cluster.on(host):
                own = "".join(x.text + "\n" for x in mine if x.local == seat.local and x.err)
                consoles[place(host, f"attempt_0/{seat.local}/stderr.log")] = own
    if "slurm-88121.out" in consoles:
        kept = [x for x in lines if not skip(x.host)]
        consoles["slurm-88121.out"] = "".join(_prefixed(story, x) for x in kept)
    for name, text in consoles.items():
        if degrade.cut_job_logs and len(text) > 4000:
            text = text[: int(len(text) * rng.uniform(0.6, 0.97))]
        files[name] = text.encode()

    # Flight Recorder
    lost = set(rng.sample(sorted(end.dumped_ns), min(degrade.lose_dumps, len(end.dumped_ns))))
    if degrade.lose_culprit_dump:
        lost |= set(story.ranks)
    kept_ranks = [r for r in sorted(end.dumped_ns) if r not in lost and scenario.cause != "hopeless"]
    cut = set(rng.sample(kept_ranks, min(degrade.cut_dumps, len(kept_ranks))))
    story.cut_dumps = tuple(sorted(cut))
    for rank in kept_ranks:
        seat = story.seat(rank)
        pickled, spelled = dump(scenario, story.run, seat, end.dumped_ns[rank], rng)
        as_json = scenario.json_dumps and minor(scenario.torch) >= 5
        data = spelled if as_json else pickled
        if rank in cut:
            data = data[: int(len(data) * rng.uniform(0.2, 0.9))]
        name = file_name(scenario.torch, rank) + (".json" if as_json else "")
        files[f"fr/{name}"] = data

    # the hosts
    taken = end.over_ns + int(rng.uniform(300, 2400) * S)
    choices: list[KernelForm] = ["dmesg", "dmesg-T", "dmesg-iso", "journal", "journal-iso", "kern.log", "syslog-iso"]
    for host in hosts:
        drawn = rng.choice(choices)
        form: KernelForm = scenario.kernel_form or drawn
        if host.index in story.dead_hosts and form.startswith("dmesg"):
            form = "journal"  # the old boot is no longer in dmesg
        without = degrade.lose_kernel_logs or (degrade.lose_culprit_kernel_log and host.index in guilty_hosts)
        if without or scenario.cause == "hopeless":
            continue
        rows = list(story.records[host.index])
        if host.index in story.dead_hosts:
            back = story.dead_hosts[host.index] + 240 * S
            rows += [
                Record(ns=back + (r.ns - host.clock.booted_ns), text=r.text, who=r.who)
                for r in k.boot_records(host, host.clock.booted_ns, 0)
            ]
        for one in (form, *scenario.extra_forms):
            files[place(host, FILES[one])] = _render(one, host, rows, taken, story.dead_hosts.get(host.index))
        wanted = scenario.bug_report if scenario.bug_report is not None else story.bug_report
        if wanted and host.index in guilty_hosts and host.index not in story.dead_hosts:
            cards = story.lost_cards.get(host.index, ())
            files[place(host, "nvidia-bug-report.log.gz")] = bug_report(
                host, rows, taken + 60 * S, cards, rng, degrade.cut_bug_report
            )
        if scenario.smi_list:
            files[place(host, "nvidia-smi-L.txt")] = smi_list(host).encode()
        heat = story.heat.get(host.index)
        if scenario.smi_samples or heat is not None:
            rows_of = smi_samples(host, story.cluster.start_ns - 1500 * S, end.over_ns + 60 * S, heat, rng)
            files[place(host, SAMPLES)] = rows_of.encode()
        if host.index in story.hurt:
            query = smi_query(host, taken, hurt=story.hurt[host.index])
            files[place(host, "nvidia-smi-q.txt")] = query.encode()
    return files


def _render(form: KernelForm, host: Host, rows: list[Record], taken: int, died_ns: int | None) -> bytes:
    """Kernel log of a host; of one that went down and came back, the log starts in the boot that went down."""
    if died_ns is None:
        return k.render(form, host, rows, taken).encode()
    old = [Record(ns=r.ns, text=r.text, who=r.who) for r in rows if r.boot]
    new = [r for r in rows if not r.boot]
    first = k.render(form, host, old, died_ns)
    second = k.render(form, host, new, taken)
    if form == "kern.log" or form == "syslog-iso":  # printk's clock starts again
        back = died_ns + 240 * S
        shift = back - host.clock.booted_ns

        def restart(found: re.Match[str]) -> str:
            return f"[{max(float(found[1]) - shift / S, 0):12.6f}]"

        second = re.sub(r"\[ *(\d+\.\d{6})\]", restart, second)
        return (first + second).encode()
    return (first + f"-- Boot {host.previous_boot_id} --\n" + second).encode()


# --- truth ------------------------------------------------------------------------------------------------------------


def _held_up(story: Story) -> Work | None:
    """The operation that the guilty rank holds up: the first one that its peers wait for in the group of the call at
    which it went wrong."""
    ranks = story.ranks or tuple(f.rank for f in story.faults)
    if not ranks:
        return None
    fault = next(f for f in story.faults if f.rank == ranks[0])
    calls = program(story.scenario, story.groups, fault.rank)
    group = next((call.group for call in calls if call.label == fault.label), calls[0].group)
    waiting = [
        work
        for rank in group.members
        if rank not in ranks or story.fate.get(rank) == "waits"
        if (work := story.run.pending(rank, group, 1 << 62)) is not None
    ]
    return min(waiting, key=lambda work: (work.seq, work.p2p_seq), default=None)


def _in_kernel_log(story: Story, files: dict[str, bytes]) -> bool:
    """Do the words that prove the cause stand in the kernel log of every host that wrote them?"""
    many = len(story.cluster.hosts) > 1
    for index, proof in story.kernel_proof.items():
        name = story.cluster.hosts[index].name
        mine = {n: d for n, d in files.items() if not many or n.startswith(f"{name}/")}
        if not holds(mine, [proof], tuple(FILES.values())):
            return False
    return bool(story.kernel_proof)


def _placed(story: Story, files: dict[str, bytes], shown: Signs) -> bool:
    """Does some file join what the kernel names (a card, a process id) to the guilty ranks?"""
    if story.gpus:
        return all(shown.cards.get(r) == story.seat(r).card.bus_id for r in story.ranks)
    if story.scenario.container:
        return False
    return all(holds(files, [f"pid {story.seat(r).pid}", f"(pid: {story.seat(r).pid})"], CONSOLE) for r in story.ranks)


def _named(host: str, files: Mapping[str, bytes]) -> bool:
    """Does its name stand anywhere? A bare dmesg names nobody."""
    texts = (gzip.decompress(d) if d[:2] == b"\x1f\x8b" else d for d in files.values())
    return any(host in name for name in files) or any(host.encode() in text for text in texts)


def _wrote(story: Story, host: str, files: dict[str, bytes]) -> bool:
    """Is there a line of the job from this host?"""
    if len(story.cluster.hosts) == 1:
        return any(name.endswith(CONSOLE) for name in files)
    ranks = [str(m.rank) for m in story.cluster.members if m.host.name == host]
    said = [f"rank {rank}/{len(story.cluster.members)} on {host}" for rank in ranks]
    return any(name.startswith(f"{host}/") and name.endswith(CONSOLE) for name in files) or holds(files, said, CONSOLE)


def _dumps_tell(story: Story, whole: set[int], counted: set[int], members: set[int]) -> bool:
    """Do the Flight Recorder's dumps tell who is guilty? `counted`: whole ones, and those cut behind their counters."""
    scenario = story.scenario
    world = set(range(len(story.cluster.members)))
    guilty, peers = set(story.ranks), members - set(story.ranks)
    if scenario.cause == "deadlock":  # a ring shows only when every link of it is there
        return set(DEADLOCK) <= whole
    if not guilty:
        return False
    if scenario.cause in DIFFERS:
        steps = len(program(scenario, story.groups, story.ranks[0]))
        known_habit = scenario.ring >= 3 * steps  # then its own earlier steps tell which of two is wrong
        return guilty <= whole and (len(peers & whole) > 1 or (bool(peers & whole) and known_habit))
    if story.fate.get(story.ranks[0]) == "waits":  # it entered like the others: only the GPU's own start tells
        return story.counters_proof and guilty <= whole and 2 * len(peers & whole) > len(peers)
    return (guilty <= counted and bool(peers & counted)) or world - guilty <= counted


DIFFERS = ("collective_skipped", "collective_mismatch", "uneven_inputs")


def _reports_tell(story: Story, shown: Signs, members: set[int]) -> bool:
    """Do the watchdogs' reports, and who was told of them, tell who is guilty?"""
    world, guilty, reported = set(range(len(story.cluster.members))), set(story.ranks), set(shown.reports)
    if not guilty or not reported:
        return False
    if story.fate.get(story.ranks[0]) != "waits":
        return reported == world - guilty or (bool(guilty <= shown.told) and shown.told - reported == guilty)
    # The sizes and operations stand in the reports from 2.1 on.
    peers = members - guilty
    calls = {said for rank in guilty for said in shown.reports.get(rank, ())}
    seqs = {said[0] for said in calls}
    theirs = {said for rank in peers for said in shown.reports.get(rank, ()) if said[0] in seqs}
    return (
        story.scenario.cause in DIFFERS
        and minor(story.scenario.torch) >= 1
        and members <= reported
        and len(peers) > 1
        and bool(theirs)
        and not calls & theirs
    )


def _truth(story: Story, end: Ending, files: dict[str, bytes]) -> Truth:
    scenario = story.scenario
    cause = scenario.cause
    world = len(story.cluster.members)
    run: Run = story.run
    work = None if story.unstarted else _held_up(story) or end.stuck
    onset = story.onset_ns
    reference = onset or run.ended_ns
    offsets = {host.name: round((host.clock.wall(reference) - reference) / S, 6) for host in story.cluster.hosts}
    ranks = story.ranks
    guilty = ranks or (DEADLOCK if cause == "deadlock" else (story.culprit,) if cause != "healthy" else ())
    hosts = tuple(dict.fromkeys(story.seat(r).host.name for r in guilty))
    if cause in ("healthy", "preempted", "deadlock"):
        hosts = ()
    shown = signs(files, world, minor(scenario.torch), len(story.groups) == 1)
    reporters = tuple(r for r in end.reporters if r in shown.reports)
    dumps = {int(n.split("_")[-1].split(".")[0]): n for n in files if n.startswith("fr/")}
    whole = set(dumps) - set(story.cut_dumps)
    # From 2.5 on the counters of a pickle stand before any cut; JSON is written in the order of its keys.
    counted = whole | {r for r in story.cut_dumps if minor(scenario.torch) >= 5 and not dumps[r].endswith(".json")}
    members = set(work.call.group.members) if work is not None else set()

    kernel = _in_kernel_log(story, files)
    log = bool(story.log_proof) and holds(files, story.log_proof, CONSOLE)
    by_dumps = _dumps_tell(story, whole, counted, members)
    by_reports = _reports_tell(story, shown, members)
    odd = {r for r, code in shown.exits.items() if code not in (-6, -15)}
    by_exit = bool(ranks) and bool(odd & set(ranks)) and odd & set(story.exits) <= set(ranks)
    alike = cause in DIFFERS and by_reports
    place_is_all = cause in ("rank_not_arrived", "process_missing", "rank_slow")
    hot = any(
        any(n.endswith(SAMPLES) and (n.startswith(f"{story.cluster.hosts[i].name}/") or "/" not in n) for n in files)
        for i in story.heat
    )
    cause_known = (
        kernel
        or log
        or hot
        or (story.killed_unseen and by_exit)
        or (story.counters_proof and by_dumps)
        or alike
        or (place_is_all and (by_reports or by_exit))
    )
    rank_known = (
        (log and bool(ranks)) or ((kernel or hot) and _placed(story, files, shown)) or by_dumps or by_reports or by_exit
    )
    if story.ranks_free:
        rank_known = cause_known
    if not (kernel or any(_wrote(story, name, files) for name in hosts)):
        hosts = ()  # nothing says that they took part
    acceptable = story.acceptable or ((cause,) if cause not in ("healthy", "hopeless") else ())
    if alike and not by_dumps:  # sizes that differ do not tell a wrong call from one too few
        acceptable = (*acceptable, "collective_mismatch", "collective_skipped")
    if not cause_known:
        gone = ("process_signal", "python_exception") if by_exit else ()
        acceptable = (*acceptable, *VAGUE, *gone)
    acceptable = tuple(dict.fromkeys(acceptable))
    if story.heat and not _placed(story, files, shown):
        acceptable = (*acceptable, *VAGUE)  # a hot card, and nothing says whose it is
    if story.killed_unseen and not holds(files, ["Linux version"], tuple(FILES.values())):
        acceptable = (*acceptable, "host_oom_kill")  # without a kernel log nobody can tell who killed it
    innocent = tuple(r for r in range(world) if r not in guilty)
    if story.ranks_free:
        near = {m.rank for h in story.cluster.hosts if h.name in hosts for m in story.cluster.on(h)} | set(guilty)
        innocent = tuple(r for r in range(world) if r not in near)
    seq = work.seq if work is not None and work.call.peer is None and cause != "deadlock" else None  # several stand
    return Truth(
        ranks_free=story.ranks_free,
        cause=cause,
        ranks=ranks,
        hosts=tuple(name for name in hosts if _named(name, files)),
        gpus=story.gpus,
        group=work.call.group.name if work else None,
        op=work.call.op if work else None,
        seq=seq if dumps or members <= set(reporters) | set(ranks) else None,
        onset_ns=onset,
        detected_ns=end.first_ns,
        reporting_ranks=reporters,
        must_not_blame=innocent if cause != "healthy" else (),
        clock_offsets_s=offsets,
        reading_ns={host.name: host.clock.wall for host in story.cluster.hosts},
        moments=tuple(
            [(story.cluster.hosts[x.host].name, x.ns, x.text) for x in story.lines]
            + [(h.name, r.ns, r.text) for h in story.cluster.hosts for r in story.records.get(h.index, ())]
        ),
        healthy=cause == "healthy",
        hopeless=cause == "hopeless",
        acceptable=acceptable,
        rank_knowable=rank_known,
        cause_knowable=cause_known,
        why=f"simulated: {cause}, rank(s) {list(ranks)}",
    )
