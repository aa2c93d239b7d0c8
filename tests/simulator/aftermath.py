"""From the moment that a job hangs to the launcher's last line: who times out, who is told, who dies of what."""

from __future__ import annotations

from dataclasses import dataclass, field

from .causes import JobLine, Story
from .cluster import MS, Member, S, when
from .dumps import minor, timeout_ms
from .torchlog import ABORT_AFTER_NS
from .training import Group, Work

FOREVER = 1 << 62


@dataclass(slots=True, kw_only=True)
class Ending:
    """How it went out."""

    reporters: tuple[int, ...] = ()
    """Ranks whose watchdog complained, in order of time."""
    dumped_ns: dict[int, int] = field(default_factory=dict)
    """Rank → true ns of the snapshot in its dump."""
    died: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rank → (true ns, exit code)."""
    first_ns: int | None = None
    over_ns: int = 0
    stuck: Work | None = None
    """The operation that the first reporter waited for."""


def _number(story: Story, rank: int, group: Group) -> int:
    return story.run.of(rank).index(group)


def _overdue(story: Story) -> dict[int, list[tuple[int, Work]]]:
    """Rank → (when its watchdog finds it, operation) of the operations that never ended, first one first."""
    out: dict[int, list[tuple[int, Work]]] = {}
    limit = timeout_ms(story.scenario) * MS
    for seat in story.cluster.members:
        if story.fate.get(seat.rank, "waits") != "waits":
            continue
        rows = []
        for group in story.run.of(seat.rank):
            if work := story.run.pending(seat.rank, group, FOREVER):
                rows.append((work.created_ns + limit + story.rng.randrange(15 * MS, 115 * MS), work))
        if rows:
            out[seat.rank] = sorted(rows, key=lambda row: row[0])
    return out


def play(story: Story) -> Ending:
    """Add the end of the job to the story's lines."""
    scenario, rng, torch, run = story.scenario, story.rng, story.torch, story.run
    end = Ending(over_ns=run.ended_ns)
    down = {host.index: story.dead_hosts.get(host.index, FOREVER) for host in story.cluster.hosts}

    def say(seat: Member, rows: list[tuple[int, str]]) -> None:
        for ns, text in rows:
            if ns < down[seat.host.index]:
                story.lines.append(JobLine(ns=ns, host=seat.host.index, local=seat.local, text=text))

    if story.cancelled_ns is not None:
        _cancel(story, end, story.cancelled_ns)
        return end
    if run.blocked and all(what == "done" for what in run.blocked.values()):
        return end

    # Those who end by themselves, and the launchers that notice it.
    for rank, (ns, code) in story.exits.items():
        end.died[rank] = (ns, code)
        index = story.seat(rank).host.index
        down[index] = min(down[index], ns + rng.randrange(80 * MS, 1000 * MS))
    gone = min((ns for ns, _ in end.died.values()), default=None)
    if story.dead_hosts and gone is None:
        gone = min(story.dead_hosts.values())
    if gone is not None and story.peers_hear and rng.random() < 0.6:
        lost = set(end.died) | {r for r, fate in story.fate.items() if fate == "silent"}
        for seat in story.cluster.members:
            group = story.groups[0]
            stuck = run.pending(seat.rank, group, FOREVER)
            if stuck is None or seat.rank in lost or story.seat(min(lost)).host is seat.host:
                continue
            ns = gone + rng.randrange(1 * S, 6 * S)
            if ns >= down[seat.host.index]:
                continue
            peer = f"{story.seat(min(lost)).host.name}<{41000 + seat.rank}>"
            say(seat, torch.remote_error(seat, stuck, ns, peer))
            reason = "NCCL error: remote process exited or there was a network error"
            say(seat, torch.last_words(seat, group, 0, ns + 2 * MS, reason))
            end.died[seat.rank] = (ns + 900 * MS, -6)
        for rank, (ns, _) in end.died.items():
            index = story.seat(rank).host.index
            down[index] = min(down[index], ns + 700 * MS)

    overdue = _overdue(story)
    abort_ns = ABORT_AFTER_NS[minor(scenario.torch) >= 8]
    # A process takes itself down some time after its first report; its launcher then stops the others of the node.
    for rank in sorted(overdue, key=lambda r: overdue[r][0][0]):
        index, first = story.seat(rank).host.index, overdue[rank][0][0]
        if first < down[index] and rank not in end.died:
            end.died[rank] = (first + abort_ns + 400 * MS + rng.randrange(200 * MS), -6)
            down[index] = min(down[index], end.died[rank][0] + rng.randrange(80 * MS, 900 * MS))
    reporters: list[tuple[int, int]] = []
    for rank, rows in overdue.items():
        seat = story.seat(rank)
        for n, (ns, work) in enumerate(rows[:3]):
            if ns >= down[seat.host.index] or (n and ns > rows[0][0] + abort_ns):
                break
            if n == 0:
                reporters.append((ns, rank))
            counters = run.counters(rank, work.call.group, ns)
            number = _number(story, rank, work.call.group)
            say(seat, torch.timeout_report(seat, work, ns, number, (counters[0], counters[2]), n == 0))
        if rank in {r for _, r in reporters} and rank in end.died and end.died[rank][1] == -6:
            ns, work = rows[0]
            number = _number(story, rank, work.call.group)
            reason = torch.caught(work, (ns - work.created_ns) // MS)
            if 4 <= torch.minor <= 5:
                counters = run.counters(rank, work.call.group, ns)
                again = (
                    f"{torch.prefix(work.call.group, seat, number)} Timeout at NCCL work: {work.seq}, last enqueued "
                    f"NCCL work: {counters[0]}, last completed NCCL work: {counters[2]}."
                )
                say(seat, [(ns + S, f"{torch.header(seat, ns + S, 'status')} {again}")])
            say(seat, torch.last_words(seat, work.call.group, number, ns + abort_ns, reason))
    reporters.sort()
    end.reporters = tuple(rank for _, rank in reporters)
    if reporters:
        end.first_ns, first_rank = reporters[0]
        end.stuck = overdue[first_rank][0][1]
        _signal(story, end, down, {rank: ns for ns, rank in reporters}, first_rank)
    elif end.died:
        end.first_ns = min(ns for ns, _ in end.died.values())
    _launchers(story, end, down)
    return end


def _signal(story: Story, end: Ending, down: dict[int, int], reported: dict[int, int], first_rank: int) -> None:
    """The first report asks every living rank for its dump."""
    assert end.first_ns is not None
    for seat in story.cluster.members:
        rank, fate = seat.rank, story.fate.get(seat.rank, "waits")
        told = end.first_ns + story.rng.randrange(180 * MS, 1100 * MS)
        own = reported.get(rank, FOREVER)
        ns = min(own + 120 * MS, told)
        if fate in ("silent", "teardown", "exits") or ns >= down[seat.host.index]:
            continue
        if rank in end.died and end.died[rank][0] < ns:
            continue
        counters = story.run.counters(rank, story.groups[0], ns)
        source = None if own < told else first_rank
        rows = story.torch.dump_signal(seat, story.groups[0], ns, (counters[0], counters[2]), source)
        for at_ns, text in rows:
            story.lines.append(JobLine(ns=at_ns, host=seat.host.index, local=seat.local, text=text))
        if story.scenario.ring and story.torch.minor >= 2:
            end.dumped_ns[rank] = ns + story.rng.randrange(5 * MS, 900 * MS)


def _launchers(story: Story, end: Ending, down: dict[int, int]) -> None:
    """Each node's agent sees a child die, stops the others and prints its block."""
    torch, rng = story.torch, story.rng
    for host in story.cluster.hosts:
        seats = story.cluster.on(host)
        mine = {seat: end.died[seat.rank] for seat in seats if seat.rank in end.died}
        mine = {seat: row for seat, row in mine.items() if row[0] <= down[host.index]}
        if host.index in story.dead_hosts or not mine:
            continue
        ns = down[host.index]

        def agent(at_ns: int, letter: str, text: str, index: int = host.index) -> None:
            said = torch.agent(story.cluster.hosts[index], at_ns, letter, text)
            story.lines.append(JobLine(ns=at_ns, host=index, local=None, text=said))

        for i, seat in enumerate(s for s in seats if s not in mine):
            agent(ns + i * 200_000, "W", f"Sending process {seat.pid} closing signal SIGTERM")
        later = ns + int(rng.uniform(0.4, 3) * S)
        stubborn = [s for s in seats if story.fate.get(s.rank) in ("silent", "blocked", "teardown") and s not in mine]
        for seat in stubborn:
            later = max(later, ns + 30 * S)
            agent(
                ns + 30 * S,
                "W",
                f"Unable to shutdown process {seat.pid} via SIGTERM, forcefully exiting via SIGKILL",
            )
        for seat in seats:
            if seat not in mine:
                end.died[seat.rank] = (later, -9 if seat in stubborn else -15)
        # The agent polls: among those that died in one interval it takes the lowest local rank for the first.
        order = sorted(mine, key=lambda s: (mine[s][0] // S, s.local))
        root = order[0]
        agent(
            later,
            "E",
            f"failed (exitcode: {mine[root][1]}) local_rank: {root.local} (pid: {root.pid}) of binary: "
            "/opt/venv/bin/python3.11",
        )
        failures = [(ns, seat, mine[seat][1]) for seat in order]
        block = torch.failed_block(host, "pretrain.py", failures)
        story.lines.append(JobLine(ns=later + 90 * MS, host=host.index, local=None, text=block))
        end.over_ns = max(end.over_ns, later + 100 * MS)
        if story.scenario.launcher == "slurm":
            text = f"srun: error: {host.name}: task {host.index}: Exited with exit code 1"
            story.lines.append(JobLine(ns=later + 400 * MS, host=host.index, local=None, text=text))
    if end.first_ns is not None:
        end.over_ns = max(end.over_ns, end.first_ns + 90 * S)


def _cancel(story: Story, end: Ending, ns: int) -> None:
    """The scheduler stops everything."""
    for host in story.cluster.hosts:
        t = when(host.clock.wall(ns), story.scenario.job_zone)
        why = "TIME LIMIT" if story.scenario.detail == "time limit" else "PREEMPTION"
        said = f"slurmstepd: error: *** STEP 88121.0 ON {host.name} CANCELLED AT {t:%Y-%m-%dT%H:%M:%S} DUE TO {why} ***"
        rows = [(ns, said)]
        text = "Received SIGTERM death signal, shutting down workers"
        rows.append((ns + 20 * MS, story.torch.agent(host, ns + 20 * MS, "W", text)))
        for i, seat in enumerate(story.cluster.on(host)):
            at_ns = ns + 30 * MS + i * 200_000
            text = f"Sending process {seat.pid} closing signal SIGTERM"
            rows.append((at_ns, story.torch.agent(host, at_ns, "W", text)))
            end.died[seat.rank] = (ns + 2 * S, -15)
        story.lines.extend(JobLine(ns=at_ns, host=host.index, local=None, text=text) for at_ns, text in rows)
    end.first_ns, end.over_ns = ns, ns + 20 * S
