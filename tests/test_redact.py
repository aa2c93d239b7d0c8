"""Redaction: nothing private is left in any output, what belongs together stays together, the report can be read."""

from __future__ import annotations

import base64
import html
import json
import os
import random
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import regex
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import ended, run

from nccl_forensics.cli import main
from nccl_forensics.show.redact import kinds, redactor, shapes
from nccl_forensics.show.redact.redactor import Redactor
from nccl_forensics.show.redact.shapes import Pattern, patterns

SYLLABLES = re.findall("...", "baxcordunfizgolhepjatkemlummofnubpokquorezsuttivvapwexyolzor")


@dataclass(frozen=True)
class Canary:
    kind: str
    text: str
    line: str
    """As a log writes it."""


def canaries() -> list[Canary]:
    """More than 200 names that nobody has, each as some log writes it."""
    pick = random.Random(8)
    made: set[str] = set()

    def word(parts: int = 3) -> str:
        while True:
            text = "".join(pick.choices(SYLLABLES, k=parts))
            if text not in made:
                made.add(text)
                return text

    def letters(count: int, of: str = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789") -> str:
        return "".join(pick.choices(of, k=count))

    def hexes(count: int) -> str:
        return letters(count, "0123456789abcdef")

    def uuid() -> str:
        return "-".join(map(hexes, (8, 4, 4, 4, 12)))

    def octets(count: int, joint: str = ":") -> str:
        return joint.join(hexes(2) for _ in range(count))

    def address() -> str:
        return f"10.{pick.randint(16, 250)}.{pick.randint(16, 250)}.{pick.randint(16, 250)}"

    shapes: list[tuple[str, Callable[[], str], str]] = [
        ("user", word, """
            can't open /home/{}/run/x.bin
            USER={} has no access
            UserId={}(1044) over quota
        """),
        ("user", word, """
            ssh {}@gpu-edge closed
            session opened for user {} by cron
            no such file C:\\Users\\{}\\d.bin
        """),
        ("user", word, """
            sshd: Accepted publickey for {} from 127.0.0.1
            "user": "{}" is not allowed
        """),
        ("host", lambda: f"{word(2)}-{pick.randint(1, 99)}", """
            failed to connect to {}:29500
            srun: error: {}: task 3: Killed
        """),
        ("host", lambda: f"{word(2)}{pick.randint(1, 99)}", """
            Connection closed by remote peer {}<4411>
            MASTER_ADDR={} is wrong
        """),
        ("host", lambda: f"{word()}n", """
            nfs: server {} not responding
            hostname: {}
            rdzv_endpoint={}:29400 refused
        """),
        ("fqdn", lambda: f"{word()}.{word()}.com", """
            no route to storage.{}
            lookup {} failed
            see https://{}:8443/x?y=1
        """),
        ("ip", address, """
            timeout to {}:4791
            peer {}<55021>
            mount {}:/export failed
            Lustre: (at {}@o2ib) lost
        """),
        ("ipv6", lambda: f"fd{hexes(2)}:1a2b:{hexes(4)}::{hexes(4)}", """
            no route to {} port 22
            peer [{}]:4791 gone
        """),
        ("mac", lambda: f"0{octets(6)[1:]}", """
            link/ether {} down
            DHCP from {} stopped
        """),
        ("mac", lambda: octets(6, "-"), """
            adapter {} lost carrier
        """),
        ("guid", lambda: "506b4b03" + hexes(8), """
            Port GUID: 0x{} is down
            node_guid={} removed
        """),
        ("guid", lambda: f"506b:{hexes(4)}:{hexes(4)}:{hexes(4)}", """
            sys_image_guid {} changed
        """),
        ("serial", lambda: letters(3, "ABCDEFGHXYZ") + letters(9, "0123456789"), """
            Serial Number: {} reports a fault
            serial={}
        """),
        ("serial", lambda: letters(13, "123456789"), """
            Board Serial Number : {}
            chassis S/N: {}
        """),
        ("gpu-uuid", lambda: "GPU-" + uuid(), """
            device {} was lost
            bad card {}.
        """),
        ("uuid", uuid, """
            pod uid {} evicted
            machine {} gone
        """),
        ("mail", lambda: f"{word()}.{word()}@{word()}.org", """
            mail {} for help
            --mail-user={}
        """),
        ("token", lambda: "hf_" + letters(32), """
            login with {} failed
            HF_TOKEN={}
        """),
        ("token", lambda: "AKIA" + letters(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"), """
            AWS key {} has no rights
        """),
        ("token", lambda: "ghp_" + letters(36), """
            clone with {} refused
        """),
        ("token", lambda: hexes(40), """
            WANDB_API_KEY={} is invalid
            api key {} rejected
        """),
        ("token", lambda: letters(30) + "7", """
            Authorization: Bearer {}
            aws_secret_access_key = {}
            token: {} expired
        """),
        ("token", lambda: "eyJ" + letters(20) + "." + letters(30) + "." + letters(20), """
            jwt {} expired
        """),
        ("password", lambda: word() + "!7", """
            DB_PASSWORD={} refused
            password: '{}' is wrong
            https://svc:{}@127.0.0.1/x
        """),
        ("project", lambda: f"{word(2)}-{word(2)}", """
            WANDB_PROJECT={} not found
            --job-name {} is taken
            JobName={} failed
        """),
        ("project", lambda: f"{word(2)}_{word(2)}7b", """
            experiment_name={}
            no quota for Account={}
            wandb.ai/{}/runs
        """),
        ("pod", lambda: f"{word(2)}-worker-{pick.randint(0, 9)}", """
            [pod/{}/main] evicted
            POD_NAME={} restarted
        """),
        ("namespace", lambda: f"{word(2)}-{word(2)}", """
            POD_NAMESPACE={} over quota
            in namespace {} nothing runs
        """),
        ("container", lambda: f"{word(2)}-{word(2)}", """
            "container_name": "{}" was killed
            container "{}" exited
        """),
        ("path", word, """
            can't read /mnt/lustre/{}/shard7.bin
            No space left: /data/{}/out
            s3://{}/k not found
        """),
        ("path", lambda: f"{word()}_{word()}.py", """
            error in /workspace/src/{}
            file {} line 7
        """),
        ("fs", lambda: word(2)[:7] + "x", """
            Lustre: {}-OST0003-osc: Connection lost
        """),
    ]  # fmt: skip
    found = []
    for kind, make, lines in shapes:
        for line in lines.strip().splitlines() * 3:
            text = make()
            found.append(Canary(kind, text, line.strip().replace("{}", text)))
    return found


CANARIES = canaries()
HIDDEN = {c.kind: c.text for c in CANARIES if c.kind in ("token", "user", "mail", "project", "password")}
"""One of each kind that the bundle also holds in disguise."""


def disguises(text: str) -> Iterator[str]:
    yield f"in capitals {text.upper()} here"
    yield f"encoded {base64.b64encode(text.encode()).decode()} here"
    yield f"encoded {base64.b64encode(f'x:{text}'.encode()).decode()} here"
    yield f"hexadecimal {text.encode().hex()} here"
    yield "as url " + "".join(f"%{b:02x}" for b in text.encode()) + " here"
    yield f"quoted {quote(text, safe='')} here"


def bundle(folder: Path) -> Path:
    """A job of as many ranks as there are canaries; each raises one of them. File and folder names have some too."""
    words = [c.text for c in CANARIES if c.kind == "path" and "." not in c.text]
    hosts = [c.text for c in CANARIES if c.kind == "host"]
    project = next(c.text for c in CANARIES if c.kind == "project")
    root = folder / f"{words[0]}-case" / project
    root.mkdir(parents=True)
    lines: list[str] = []

    def raises(rank: int, message: str, file: str = "/app/train.py") -> None:
        lines.extend(
            (
                f"[rank{rank}]: Traceback (most recent call last):",
                f'[rank{rank}]:   File "{file}", line 10, in <module>',
                f"[rank{rank}]:     main()",
                f"[rank{rank}]: RuntimeError: {message}",
            )
        )

    for rank, canary in enumerate(CANARIES):
        raises(rank, canary.line)
    disguised = [d for text in HIDDEN.values() for d in disguises(text)]
    for rank, line in enumerate(disguised, len(CANARIES)):
        raises(rank, line, f"/home/{HIDDEN['user']}/{words[1]}/train.py")
    (root / f"slurm-{words[2]}.out").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = [
        f"2026-11-25T10:{n % 60:02d}:0{n // 60}.1+00:00 {host} kernel: [ 5{n:03d}.1] NVRM: Xid (PCI:0000:c1:00): 79, "
        f"pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        for n, host in enumerate(hosts)
    ]
    (root / f"{hosts[0]}-kern.log").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    (root / words[3]).mkdir()
    secret, user = HIDDEN["token"], HIDDEN["user"]
    job = [
        f"export HF_TOKEN={secret}",
        f"srun by {user} of {HIDDEN['mail']}",
        f"long line that wraps in {secret[:15]}",
        secret[15:] + " goes on",
        *(
            f"[rank{r}]:[E1125 10:30:00.{r:09d} ProcessGroupNCCL.cpp:629] [Rank {r}] Watchdog caught collective "
            f"operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) "
            f"ran for 600021 milliseconds before timing out."
            for r in range(3)
        ),
    ]
    (root / words[3] / f"{words[4]}.log").write_text("\n".join(job) + "\n", encoding="utf-8")
    smi = [f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: {c.text})" for n, c in enumerate(CANARIES) if c.kind == "gpu-uuid"]
    (root / words[3] / "nvidia-smi-L.txt").write_text("\n".join(smi) + "\n", encoding="utf-8")
    return root.parent


def everything(here: Path, pile: Path, *options: str | Path) -> dict[str, str]:
    """All that a run writes, by the name of the file or stream; and the names."""
    before = set(here.iterdir())
    outputs = ["--json", "r.json", "--markdown", "r.md", "--events", "e.csv", "--perfetto", "p.json"]
    result = run("analyze", pile, *outputs, *options)
    assert result.exit_code == 0, result.output
    names = sorted(p.name for p in set(here.iterdir()) - before)
    found = {n: (here / n).read_text(encoding="utf-8") for n in names if "map" not in n}
    (packed,) = re.findall('<script type="application/zlib" id="analysis">(.*)</script>', "\n".join(found.values()))
    found["unpacked"] = zlib.decompress(base64.b64decode(packed)).decode()
    assert json.loads(found["unpacked"]) == json.loads(found["r.json"])
    ended(run("analyze", pile, "-o", "x.html", "--events", "e.jsonl", "--quiet", *options), 0)
    return found | {
        "e.jsonl": (here / "e.jsonl").read_text(encoding="utf-8"),
        "streams": result.output + result.stderr,
        "names": "\n".join(names),
    }


def views(output: str) -> Iterator[str]:
    """The ways in which a reader could look at an output."""
    codes = re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), output)
    for view in (output, html.unescape(output), unquote(output), codes.replace("\\", "")):
        yield view.lower()
        yield re.sub(r"<[^<>]*>|\s+", "", view).lower()


def found_in(text: str, outputs: dict[str, str]) -> list[str]:
    """Names of the outputs that hold `text` in any disguise."""
    encoded = [base64.b64encode(("x" * n + text).encode()).decode()[4 * (n > 0) : -4] for n in range(3)]
    found = []
    for name, output in outputs.items():
        low = all_views(output)
        if text.lower() in low or text.encode().hex() in low or any(len(e) > 7 and e in output for e in encoded):
            found.append(name)
    return found


@cache
def all_views(output: str) -> str:
    return "\0".join(views(output))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], dict[str, str], Path]]:
    """(what an open run writes, what a redacted one writes, the map)."""
    folder = tmp_path_factory.mktemp("redact")
    pile = bundle(folder)
    here, there = folder / "open", folder / "hidden"
    here.mkdir()
    there.mkdir()
    old = Path.cwd()
    try:
        os.chdir(here)
        plain = everything(here, pile)
        os.chdir(there)
        hidden = everything(there, pile, "--redact", "--redaction-map", "map.json")
        yield plain, hidden, there / "map.json"
    finally:
        os.chdir(old)


@pytest.mark.slow
def test_no_canary_is_left(runs: tuple[dict[str, str], dict[str, str], Path]) -> None:
    plain, hidden, _ = runs
    everywhere = "\n".join(plain.values()).lower()
    planted = [c for c in CANARIES if c.text.lower().replace("\\", "\\\\") in everywhere]
    assert len(planted) >= 200, "the test would show nothing"
    left = [
        f"{c.kind} {c.text} in {name}, written as {c.line!r}" for c in CANARIES for name in found_in(c.text, hidden)
    ]
    assert not left, "\n".join(left)


def test_the_joins_are_kept(runs: tuple[dict[str, str], dict[str, str], Path]) -> None:
    """The same rows, numbers and verdicts; the same name is the same alias."""
    plain, hidden, place = runs
    a, b = json.loads(plain["r.json"]), json.loads(hidden["r.json"])
    b["tool"].pop("redacted")
    names: dict[str, set[str]] = {}

    def walk(x: Any, y: Any, key: str) -> None:
        assert type(x) is type(y)
        if isinstance(x, dict):
            assert list(x) == list(y)
            for k in x:
                walk(x[k], y[k], k)
        elif isinstance(x, list):
            assert len(x) == len(y)
            for p, q in zip(x, y, strict=True):
                walk(p, q, key)
        elif not isinstance(x, str):
            assert x == y
        elif key in ("host", "uuid", "serial", "source", "path"):
            names.setdefault(x, set()).add(y)

    walk(a, b, "")
    assert all(len(v) == 1 for v in names.values())
    assert len({next(iter(v)) for v in names.values()}) == len(names), "two names have one alias"
    aliases = json.loads(place.read_text(encoding="utf-8"))["aliases"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert all(kinds.ALIAS.fullmatch(x) for x in aliases)
    assert len(aliases) > 200


def test_the_disguises_are_planted(runs: tuple[dict[str, str], dict[str, str], Path]) -> None:
    plain, hidden, _ = runs
    for text in HIDDEN.values():
        for disguise in (text.upper(), text.encode().hex(), base64.b64encode(text.encode()).decode()):
            assert disguise in plain["e.csv"]
            assert disguise not in hidden["e.csv"]


def test_the_page_says_how_much_was_redacted(runs: tuple[dict[str, str], dict[str, str], Path]) -> None:
    _, hidden, _ = runs
    page = next(text for name, text in hidden.items() if name.endswith(".report.html"))
    aliases = json.loads(hidden["r.json"])["tool"]["redacted"]["aliases"]
    assert kinds.summary(aliases) in page
    assert f"{aliases['host']} hosts" in page
    assert re.search(r"redacted-[0-9a-f]{8}\.report\.html", hidden["streams"])


@pytest.mark.parametrize("pattern", patterns(), ids=lambda p: p.gives[0])
def test_a_pattern_finds_its_example(pattern: Pattern) -> None:
    found = [m[name] for m in pattern.regex.finditer(pattern.example) for name, _ in pattern.groups if m[name]]
    assert tuple(found) == pattern.gives
    assert pattern.found_in(pattern.example.lower())
    assert not pattern.miss or not pattern.regex.search(pattern.miss) or not pattern.found_in(pattern.miss.lower())


def covered(*texts: str, known: dict[str, str] | None = None) -> list[str]:
    return Redactor(known).redacted(list(texts))


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
        "NCCL version 2.27.5+cuda12.4, driver version 550.54.15, cuDNN 9.1.0.70",
        'File "/opt/conda/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 83, in wrapper',
        'File "/usr/lib/python3.12/threading.py", line 1075, in run',
        "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632",
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long>>) + 0x1c7",
        "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 127.0.0.1<4411> failed",
        "/dev/nvidia3: 16 GB of /dev/shm used by rank 3 at 2026-03-10T21:17:09.000001Z",
        "pad_token=<pad> max_new_tokens: 4096, 12 jobs on node 3, job failed",
        "see https://pytorch.org/docs/stable/torch_nccl_environment_variables.html",
        "root@localhost ran /home/root/train.py in /tmp/checkpoints/step_1000/rank0.pt",
        "mlx5_0:1 port 1 eth0 ib0 GPU 3 cuda:0 commId 0x8a5b3c2d1e0f9a8b NET/IB/0/GDRDMA",
    ],
)
def test_what_diagnosis_needs_stays(text: str) -> None:
    assert covered(text) == [text]


def test_short_and_full_names_keep_their_tie() -> None:
    rows = [
        {"host": "dgx7.east.zorbax.com", "text": "dgx7: reset"},
        {"host": "dgx7", "text": "Zorbax-DGX7 in zorbax_run"},
    ]
    first, second = Redactor().redacted(rows)
    assert first == {"host": "host-1.east.domain-1", "text": "host-1: reset"}
    assert second == {"host": "host-1", "text": "org-1-host-1 in org-1_run"}


@pytest.mark.parametrize("name", ["gpu", "gpu0", "node", "rank3", "localhost"])
def test_a_host_with_a_common_name_breaks_nothing(name: str) -> None:
    row = {"host": name, "text": f"rank3 of node {name} waits for gpu gpu0"}
    assert Redactor().redacted(row) == row


def test_a_user_called_like_a_word_of_ours_is_hidden_in_paths_only() -> None:
    assert covered("/home/rank/x.py: rank 3 waits") == ["/home/user-1/x.py: rank 3 waits"]


def test_a_name_that_is_cut_off_or_broken_is_hidden() -> None:
    filler = "a long line " * 10
    long, cut = covered("HF_TOKEN=hf_8sYdK29smWqLpZx", f"{filler}hf_8sYdK…")
    assert (long, cut) == ("HF_TOKEN=secret-1", f"{filler}secret-1…")
    row = {"before": ["HF_TOKEN=hf_8sYdK29smWqLpZx", "so hf_8sYdK2"], "text": "9smWqLpZx, then", "after": []}
    assert Redactor().redacted(row) == {"before": ["HF_TOKEN=secret-1", "so secret-1"], "text": "…, then", "after": []}


def test_twice_is_once() -> None:
    texts = [c.line for c in CANARIES] + [d for text in HIDDEN.values() for d in disguises(text)]
    once = covered(*texts)
    assert covered(*once) == once


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([c.line for c in CANARIES]) | st.text(max_size=60), max_size=8))
def test_twice_is_once_for_anything(texts: list[str]) -> None:
    once = covered(*texts)
    assert covered(*once) == once
    assert covered(*texts) == once


def test_a_map_is_used_again(here: Path) -> None:
    for name in ("a", "b"):
        (here / f"{name}.log").write_text(f"2026-11-25T10:00:00.1+00:00 {name}zor7 kernel: {XID}\n", encoding="utf-8")
    for name in ("a", "b", "a"):
        ended(run("analyze", f"{name}.log", "--redact", "--redaction-map", "m", "--json", f"{name}.json"), 0)
    assert json.loads((here / "m").read_text(encoding="utf-8"))["aliases"]["host-2"] == "bzor7"
    assert [json.loads((here / f"{n}.json").read_text())["hosts"][0]["name"] for n in "ab"] == ["host-1", "host-2"]


XID = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus."


def test_what_is_left_is_never_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search over the finished outputs works by itself."""
    (here / "a.log").write_text(f"2026-11-25T10:00:00.1+00:00 quolum-17 kernel: {XID}\n", encoding="utf-8")
    monkeypatch.setattr(Redactor, "cover", lambda self, value: value)
    result = ended(run("analyze", "a.log", "--redact", "--redaction-map", "m", "--json", "r.json"), 1)
    assert "(host, org)" in result.output
    assert "quolum" not in result.output
    assert [p.name for p in here.iterdir()] == ["a.log"]


@pytest.mark.parametrize(
    "output",
    [
        "on quolum-17.",
        "on QUOLUM-17",
        "on quolum&#45;17",
        "at%20quolum%2D17",
        '{"a": "\\u0071uolum-17"}',
        f"x {base64.b64encode(b'ab quolum-17 cd').decode()}",
        f"x {b'quolum-17'.hex()}",
        "/<wbr>quolum-17/<wbr>x",
    ],
)
def test_the_search_knows_disguises(output: str) -> None:
    redactor = Redactor({"host-1": "quolum-17"})
    assert redactor.leaks([output]) == ["host"]
    assert redactor.leaks(["on quolum-170 and host-1"]) == []


def test_an_example_on_our_own_page_is_no_leak(here: Path) -> None:
    """The page's help speaks of `host:node-1`, and a customer may have one."""
    (here / "a.log").write_text(f"2026-11-25T10:00:00.1+00:00 node-1 kernel: {XID}\n", encoding="utf-8")
    ended(run("analyze", "a.log", "--redact", "-o", "r.html", "--json", "r.json"), 0)
    assert "node-1" not in (here / "r.json").read_text(encoding="utf-8")
    page = (here / "r.html").read_text(encoding="utf-8")
    assert page.count("node-1") == page.count("<code>host:node-1</code>") == 1


@pytest.mark.parametrize("lang", ["da", "de"])
def test_a_page_in_another_language_is_redacted_alike(here: Path, lang: str) -> None:
    """Words of a translation are no leak, even where a customer's machine is called like one."""
    word = "karte" if lang == "de" else "maskinen"
    lines = [f"2026-11-25T10:00:0{n}.1+00:00 {name} kernel: {XID}\n" for n, name in enumerate(("quolum-17", word))]
    (here / "a.log").write_text("".join(lines), encoding="utf-8")
    options = ("--redact", "--lang", lang, "-o", "r.html", "--markdown", "r.md", "--json", "r.json")
    ended(run("analyze", "a.log", *options), 0)
    outputs = [(here / name).read_text(encoding="utf-8") for name in ("r.html", "r.md", "r.json")]
    assert not any("quolum" in text for text in outputs)
    assert word not in outputs[2]
    assert f'lang="{lang}"' in outputs[0]
    assert outputs[0].count("host-1") > 3
    assert kinds.summary({"serial": 2}) == "2 serial numbers"


def test_what_cannot_be_used_is_said(here: Path) -> None:
    (here / "a.log").write_text("nothing", encoding="utf-8")
    (here / "m").write_text("{}", encoding="utf-8")
    assert "--redact" in ended(run("analyze", "a.log", "--redaction-map", "new"), 2).output
    assert "no redaction map" in ended(run("analyze", "a.log", "--redact", "--redaction-map", "m"), 2).output
    (here / "quolum.bin").write_bytes(b"")
    unread = ended(run("analyze", "quolum.bin", "--redact"), 3)
    assert "quolum" not in unread.output


def test_a_line_that_is_searched_for_too_long_leaves_nothing_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text on which a pattern would never end: what could not be searched is not written as if it had been."""
    slow = replace(shapes.patterns()[0], needles=(), regex=regex.compile(r"(?:a|aa)+(?P<x>b)"), groups=(("x", "user"),))
    monkeypatch.setattr(shapes, "PATIENCE_S", 0.05)
    monkeypatch.setattr(redactor, "patterns", lambda: (slow,))
    (here / "kern.log").write_text(
        f"2026-11-25T10:00:00+00:00 n1 kernel: NVRM: Xid (PCI:0000:c1:00): 79, {'a' * 200}c\n", encoding="utf-8"
    )
    found = CliRunner().invoke(main, ["analyze", "kern.log", "--redact", "--quiet"])
    assert (found.exit_code, "searched for names" in found.output) == (2, True)
    assert [p.name for p in here.iterdir()] == ["kern.log"]
