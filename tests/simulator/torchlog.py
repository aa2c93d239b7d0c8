"""What PyTorch, its launcher and NCCL print, in the words of each version (formats/job-log-formats.md)."""

from __future__ import annotations

from random import Random

from .cluster import Host, Member, S, when
from .dumps import minor, nccl_version, timeout_ms
from .scenario import Scenario, Zone
from .training import Group, Work

SITE = "/opt/venv/lib/python3.11/site-packages/torch"
OPS = {
    "all_reduce": "ALLREDUCE",
    "_all_gather_base": "_ALLGATHER_BASE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
    "broadcast": "BROADCAST",
    "send": "SEND",
    "recv": "RECV",
}
ADVICE = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
    "collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, "
    "this can be caused by GIL deadlock or other reasons such as network errors or bugs in the communications library "
    "(e.g. NCCL), etc. "
)
ABORT_AFTER_NS = {True: 60 * S, False: 2 * S}
"""From the first report to the end of the process: a minute by design from 2.8 on, mostly seconds before."""


class Torch:
    """One version's way of speaking."""

    def __init__(self, scenario: Scenario, rng: Random) -> None:
        self.scenario = scenario
        self.minor = minor(scenario.torch)
        self.rng = rng
        self.zone: Zone = scenario.job_zone
        self.lines = {
            name: at + 7 * self.minor + (13 if self.minor > 6 else 0)
            for name, at in (
                ("caught", 563),
                ("status", 1640),
                ("stack", 600),
                ("first", 2036),
                ("signal", 1530),
                ("observed", 1470),
                ("preparing", 1290),
                ("corrupt", 577),
                ("down", 583),
                ("ended", 1414),
                ("async", 480),
            )
        }

    def header(self, member: Member, ns: int, where: str, letter: str = "E") -> str:
        """Prefix of a C++ line; `ns` is true UTC."""
        source = f"ProcessGroupNCCL.cpp:{self.lines.get(where, 900)}]"
        if self.minor <= 1:
            return f"[{letter} {source}"
        if self.minor <= 3:
            return f"[rank{member.rank}]:[{letter} {source}"
        wall = member.host.clock.wall(ns)
        t = when(wall, self.zone)
        return (
            f"[rank{member.rank}]:[{letter}{t.month * 100 + t.day} {t:%H:%M:%S}.{wall % S // 1000:06d}"
            f"{self.rng.randrange(1000):03d} {source}"
        )

    def prefix(self, group: Group, member: Member, number: int) -> str:
        """Which group speaks: `number` is the group's place in this process's own order."""
        rank = group.members.index(member.rank)
        if self.minor <= 2:
            return f"[Rank {rank}]"
        if self.minor == 3:
            return f"[PG {group.name} Rank {rank}]"
        if self.minor == 4:
            return f"[PG {group.name} ({group.desc}) Rank {rank}]"
        return f"[PG ID {number} PG GUID {group.name}({group.desc}) Rank {rank}]"

    def work(self, work: Work) -> str:
        call = work.call
        numel = f"NumelIn={call.numel_in}, NumelOut={call.numel_out}, " if self.minor >= 1 else ""
        number = work.seq if call.peer is None else work.p2p_seq
        return f"WorkNCCL(SeqNum={number}, OpType={OPS[call.op]}, {numel}Timeout(ms)={timeout_ms(self.scenario)})"

    def caught(self, work: Work, ran_ms: int) -> str:
        rank = work.call.group.members.index(work.rank)
        return (
            f"[Rank {rank}] Watchdog caught collective operation timeout: {self.work(work)} ran for {ran_ms} "
            "milliseconds before timing out."
        )

    def timeout_report(
        self, member: Member, work: Work, ns: int, number: int, counters: tuple[int, int], first: bool
    ) -> list[tuple[int, str]]:
        """The watchdog's lines when `work` has waited too long: (true ns, text)."""
        group, version = work.call.group, self.minor
        ran = (ns - work.created_ns) // 1_000_000
        prefix = self.prefix(group, member, number)
        seq = work.seq if work.call.peer is None else work.p2p_seq
        enqueued, completed = counters
        out = [(ns, f"{self.header(member, ns, 'caught')} {self.caught(work, ran)}")]
        if 3 <= version <= 5:
            words = "Timeout at NCCL work" if version == 3 else self.exception_words
            text = f"{words}: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
            out.append((ns + 200_000, f"{self.header(member, ns + 200_000, 'status')} {prefix} {text}"))
        if version >= 6:
            text = (
                f"{prefix}  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: "
                f"{enqueued}, last completed work: {completed}"
            )
            out.append((ns + 200_000, f"{self.header(member, ns + 200_000, 'status')} {text}"))
            at = ns + 300_000
            if self.scenario.ring and self.scenario.frames:
                stack = "".join(
                    f"\n#{i} {name} from {file}:{line}" for i, (name, file, line) in enumerate(work.call.frames)
                )
                text = f"Stack trace of the failed collective: {stack}\n"
            else:
                text = (
                    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. "
                    "You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
                )
            out.append((at, f"{self.header(member, at, 'stack')} {text}"))
        if version >= 7 and first:
            at = ns + 400_000
            text = f"{prefix} First PG on this rank to signal dumping."
            out.append((at, f"{self.header(member, at, 'first')} {text}"))
        return out

    exception_words = "Exception (either an error or timeout) detected by watchdog at work"

    def dump_signal(
        self, member: Member, world: Group, ns: int, counters: tuple[int, int], source: int | None
    ) -> list[tuple[int, str]]:
        """The monitor thread's lines: `source` is the rank whose signal it saw; None: its own watchdog's."""
        version = self.minor
        if version <= 2:
            return []
        prefix = self.prefix(world, member, 0)
        tail = f"Last enqueued NCCL work: {counters[0]}, last completed NCCL work: {counters[1]}."
        out: list[tuple[int, str]] = []
        if version == 3:
            whose = "this local rank" if source is None else "another rank"
            kind = "timeout signal" if source is None else "global timeout"
            text = f"Received a {kind} from {whose} and will start to dump the debug info. {tail}"
        elif version == 4:
            text = (
                "Received a dump signal from this local rank and will start to dump the debug info. "
                if source is None
                else f"Received a global dump signal from rank {source}, and will start to dump the debug info. "
            ) + tail
        else:
            if source is not None:
                seen = "Observed flight recorder dump signal from another rank via TCPStore."
                out.append((ns, f"{self.header(member, ns, 'observed')} {prefix} {seen}"))
            whose = "this local rank" if source is None else f" rank {source}"
            text = (
                f"Received a dump signal due to a collective timeout from {whose} and we will try our best to dump "
                f"the debug info. {tail}{ADVICE}"
            )
        out.append((ns + 300_000, f"{self.header(member, ns + 300_000, 'signal')} {prefix} {text}"))
        stack = ". Include stack trace: 1" if version >= 6 else ""
        stack += ", only active collectives: 0" if version >= 10 else ""
        text = f"{prefix} ProcessGroupNCCL preparing to dump debug info{stack or '.'}"
        out.append((ns + 600_000, f"{self.header(member, ns + 600_000, 'preparing')} {text}"))
        return out

    def frames(self, function: str) -> str:
        """The C++ stack under an exception of the watchdog."""
        loop = (
            ("Watchdog::runLoop()", "Watchdog::run()")
            if self.minor >= 8
            else ("watchdogHandler()", "ncclCommWatchdog()")
        )
        lib = f"{SITE}/lib/libtorch_cuda.so"
        rows = (
            ("c10::Error::Error(c10::SourceLocation, std::string) + 0x96", f"{SITE}/lib/libc10.so"),
            (f"c10d::ProcessGroupNCCL::{function} + 0x282", lib),
            (f"c10d::ProcessGroupNCCL::{loop[0]} + 0x233", lib),
            (f"c10d::ProcessGroupNCCL::{loop[1]} + 0x14d", lib),
            ("<unknown function> + 0xdc253", "/lib/x86_64-linux-gnu/libstdc++.so.6"),
            ("<unknown function> + 0x94ac3", "/lib/x86_64-linux-gnu/libc.so.6"),
            ("<unknown function> + 0x126850", "/lib/x86_64-linux-gnu/libc.so.6"),
        )
        return "\n".join(
            f"frame #{i}: {name} (0x7{self.rng.getrandbits(44):011x} in {library})"
            for i, (name, library) in enumerate(rows)
        )

    def last_words(self, member: Member, group: Group, number: int, ns: int, reason: str) -> list[tuple[int, str]]:
        """The watchdog takes the process down for `reason`; exit code -6 follows."""
        rank = group.members.index(member.rank)
        me = f"[Rank {rank}] " if self.minor >= 3 else ""
        out = [
            (
                ns,
                f"{self.header(member, ns, 'corrupt')} {me}Some NCCL operations have failed or timed out. Due to the "
                "asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete "
                "data.",
            ),
            (
                ns + 100_000,
                f"{self.header(member, ns + 100_000, 'down')} {me}To avoid data inconsistency, we are taking the "
                "entire process down.",
            ),
        ]
        return out + self.died(member, group, number, ns + 1_200_000, reason)

    def died(self, member: Member, group: Group, number: int, ns: int, reason: str) -> list[tuple[int, str]]:
        """The watchdog thread ends with an exception."""
        thread = "NCCL watchdog thread" if self.minor <= 2 else "Process group watchdog thread"
        said = f"{self.prefix(group, member, number)} {thread} terminated with exception: {reason}"
        if "Watchdog caught" in reason:
            function, place = "WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long> >)", "checkTimeout"
        else:
            function, place = "WorkNCCL::finishedGPUExecutionInternal() const", "c10_cuda_check_implementation"
        raised = (
            f"Exception raised from {place} at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:"
            f"{self.lines['caught'] + 2} (most recent call first):\n{self.frames(function)}\n"
        )
        kind = "std::runtime_error" if self.minor == 0 else "c10::DistBackendError"
        body = f"{said}\n{raised}" if self.minor >= 1 else said
        return [
            (ns, f"{self.header(member, ns, 'ended')} {body}"),
            (ns + 900_000, f"terminate called after throwing an instance of '{kind}'\n  what():  {body}"),
        ]

    def remote_error(self, member: Member, work: Work, ns: int, peer: str) -> list[tuple[int, str]]:
        """NCCL tells that a peer has gone."""
        rank = work.call.group.members.index(member.rank)
        text = "NCCL error: remote process exited or there was a network error, NCCL version " + nccl_version(
            self.scenario.torch
        )
        last = (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
            f"Last error:\nsocketProgress: Connection closed by remote peer {peer}"
        )
        if self.minor <= 4:
            said = f"[Rank {rank}] found async exception when checking for NCCL errors: {text}\n{last}"
        else:
            said = f"[Rank {rank}] Collective {self.work(work)} raised the following async exception: {text}\n{last}"
        return [(ns, f"{self.header(member, ns, 'async')} {said}")]

    # --- launcher ---------------------------------------------------------------------------------------------------

    def agent(self, host: Host, ns: int, letter: str, text: str, module: str = "multiprocessing/api") -> str:
        """A line of the torchrun agent of `host`."""
        wall = host.clock.wall(ns)
        t = when(wall, self.zone)
        dotted = "torch.distributed.elastic." + module.replace("/", ".")
        level = {"W": "WARNING", "E": "ERROR", "I": "INFO"}[letter]
        if self.minor == 0:
            return f"{level}:{dotted}:{text}"
        if self.minor <= 3:
            return f"[{t:%Y-%m-%d %H:%M:%S},{wall % S // 1_000_000:03d}] {dotted}: [{level}] {text}"
        line = {"W": 897, "E": 869, "I": 711}[letter] + self.minor
        return (
            f"{letter}{t:%m%d %H:%M:%S}.{wall % S // 1_000_000:03d}000 {host.agent_pid} torch/distributed/elastic/"
            f"{module}.py:{line}] {text}"
        )

    def backend_error(self, kind: str, said: str, last: str) -> str:
        """What Python raises when NCCL returns an error; `kind` is the name of NCCL's result."""
        name = "torch.distributed.DistBackendError" if self.minor >= 1 else "RuntimeError"
        library = nccl_version(self.scenario.torch)
        where = "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94"
        return f"{name}: NCCL error in: {where}, {said}, NCCL version {library}\n{kind}\nLast error:\n{last}"

    def failed_block(self, host: Host, script: str, failures: list[tuple[int, Member, int]]) -> str:
        """ChildFailedError: `failures` are (true ns when the agent noticed, who, exit code), the first one on top."""

        def block(number: int, ns: int, member: Member, code: int) -> str:
            t = when(host.clock.wall(ns), self.zone)
            names = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -7: "SIGBUS", -15: "SIGTERM"}
            trace = (
                f"Signal {-code} ({names[code]}) received by PID {member.pid}"
                if code < 0
                else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
            )
            signal = f" {names[code]}" if self.minor >= 12 and code < 0 else ""
            return (
                f"[{number}]:\n  time      : {t:%Y-%m-%d_%H:%M:%S}\n  host      : {host.name}\n"
                f"  rank      : {member.rank} (local_rank: {member.local})\n"
                f"  exitcode  : {code} (pid: {member.pid}){signal}\n  error_file: <N/A>\n  traceback : {trace}"
            )

        root, *others = failures
        rest = "\n".join(block(i + 1, *f) for i, f in enumerate(others)) or "  <NO_OTHER_FAILURES>"
        launch = "\n".join(
            f'  File "{SITE}/distributed/{file}", line {line}, in {name}\n    {code}'
            for file, line, name, code in (
                ("elastic/multiprocessing/errors/__init__.py", 355, "wrapper", "return f(*args, **kwargs)"),
                ("run.py", 918, "main", "run(args)"),
                ("launcher/api.py", 138, "__call__", "return launch_agent(self._config, self._entrypoint, list(args))"),
                ("launcher/api.py", 269, "launch_agent", "raise ChildFailedError("),
            )
        )
        rule, thin = "=" * 60, "-" * 60
        return (
            "Traceback (most recent call last):\n"
            '  File "/opt/venv/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
            f"{launch}\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{rule}\n{script} FAILED\n"
            f"{thin}\nFailures:\n{rest}\n{thin}\nRoot Cause (first observed failure):\n{block(0, *root)}\n{rule}"
        )

    # --- NCCL -------------------------------------------------------------------------------------------------------

    def nccl(self, member: Member, text: str, *, thread: int = 0) -> str:
        name = member.host.name.split(".")[0]
        return f"{name}:{member.pid}:{member.pid + 300 + thread} [{member.local}] {text}"

    def init_lines(self, member: Member, groups: tuple[Group, ...], *, complete: bool = True) -> list[str]:
        """NCCL_DEBUG=INFO at start: which rank sits on which card. Not `complete`: the first group's set-up hangs."""
        library = nccl_version(self.scenario.torch)
        out = [
            self.nccl(member, f"NCCL INFO Bootstrap : Using eno1:{member.host.address}<0>"),
            self.nccl(member, "NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)"),
        ]
        if member.rank == 0:
            out.append(f"NCCL version {library}+cuda12.4")
        for group in groups:
            rank = group.members.index(member.rank)
            new = int(library.split(".")[1]) >= 18
            comm = f"0x{0x55D0_0000_0000 + 4096 * (97 * member.rank + group.index):x}"
            place = f"rank {rank} nranks {len(group.members)} cudaDev {member.local}"
            dev = f" nvmlDev {member.card.index}" if new else ""
            ident = f" commId 0x{0x9E37_79B9_7F4A_7C15 ^ (group.index << 7):x}" if new else ""
            who = f"comm {comm} {place}{dev} busId {member.card.bus_id}{ident}"
            call = "ncclCommInitRankConfig " if new else ""
            if new:
                out.append(self.nccl(member, f"NCCL INFO {call}{who} - Init START"))
            if not complete:
                return out
            peer = (rank + 1) % len(group.members)
            seat = group.members[peer]
            per_node = self.scenario.per_node
            near = "SHM/direct/direct" if self.scenario.model == "rtx4090" else "P2P/CUMEM"
            via = near if seat // per_node == member.rank // per_node else "NET/IB/0"
            text = f"NCCL INFO Channel 00/0 : {rank}[{member.local}] -> {peer}[{seat % per_node}] via {via}"
            out.append(self.nccl(member, text))
            out.append(self.nccl(member, "NCCL INFO Connected all rings"))
            out.append(self.nccl(member, f"NCCL INFO {call}{who} - Init COMPLETE"))
        return out
