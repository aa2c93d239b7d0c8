"""The script for the customer's nodes: no tool can hang it, what lacks is told, and `inspect` knows every part."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from test_cli import ROOT, XID, ended, run

SCRIPT = ROOT / "templates" / "collect.sh"
SHELLS = [[found] for name in ("dash", "bash") if (found := shutil.which(name))]
if busybox := shutil.which("busybox"):
    SHELLS.append([busybox, "ash"])
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SHELLS, reason="no POSIX shell here")]
REAL = (
    *("sh", "cat", "cut", "date", "grep", "gzip", "head", "mkdir", "mktemp", "mv", "rm", "setsid", "sleep", "tar"),
    *("tr", "uname", "cp"),
)
"""What any node has."""
TOOLS = {
    "hostname": "echo node-a.example.org",
    "dmesg": 'printf "[ 5000.100000] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\\n"',
    "journalctl": 'case "$*" in *"-b 0"*) printf "%s\\n" '
    "'2026-11-25T10:00:00.100000+0000 node-a kernel: NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.';;"
    ' *) echo "no such boot" >&2; exit 1;; esac',
    "nvidia-smi": 'case "$1" in -L) echo "GPU 0: NVIDIA H100 (UUID: GPU-11111111-2222-3333-4444-555555555555)";;'
    " *) sleep 300;; esac",
    "timedatectl": 'echo "               Local time: Wed 2026-11-25 10:10:00 UTC"',
    "lspci": 'echo "0000:c1:00.0 3D controller: NVIDIA Corporation GH100 [H100] (rev ff)"',
    "df": 'echo "Filesystem     Type  Size  Used Avail Use% Mounted on"; echo "/dev/sda1 ext4 100G 50G 50G 50% /"',
    "mount": 'echo "/dev/sda1 on / type ext4 (rw,relatime)"',
    "ipmitool": 'case "$*" in "sel elist") echo "  1a | 11/25/2026 | 10:00:02 | Power Supply PSU2 Status | '
    'Failure detected () | Asserted";; *) exit 1;; esac',
    "id": "echo 1000",
}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder of tools: a few that answer, one that hangs, the rest not there."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in REAL:
        if (real := shutil.which(name)) and name not in TOOLS:
            (tools / name).symlink_to(real)
    for name, body in TOOLS.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train 1.log").write_bytes(b"[rank0]: step 1 | loss 2.3 | 1.9 s/step\n")
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS, ids=lambda s: Path(s[0]).name)
def test_it_gathers_what_there_is_and_says_what_is_missing(here: Path, node: Path, shell: list[str]) -> None:
    env = {"PATH": str(node / "tools"), "TMPDIR": str(node), "TORCH_FR_DUMP_TEMP_FILE": str(node / "nothing_")}
    before, began = sorted(node.iterdir()), time.monotonic()
    args = ["-o", str(here), "-l", str(node / "logs" / "train*.log"), "-l", "/nowhere.log", "-t", "2"]
    done = subprocess.run([*shell, str(SCRIPT), *args], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60, "three commands hung for two seconds each"
    assert sorted(node.iterdir()) == before, "nothing of it is left"
    (made,) = here.iterdir()
    assert done.stdout.strip() == str(made)
    assert made.name.startswith("collect-node-a-20")
    with tarfile.open(made) as archive:
        names = archive.getnames()
        manifest = archive.extractfile("node-a/MANIFEST.txt")
        assert manifest is not None
        said = manifest.read().decode()
    assert "node-a/job/train 1.log" in names
    assert all(line in said for line in ("got      dmesg.txt\n", "got      nvidia-smi-L.txt\n"))
    assert "missing  nvidia-smi-q.txt: nvidia-smi -q did not end within 2 s" in said
    assert "missing  ibstat.txt: no ibstat on this node" in said
    assert "missing  journal-kernel-boot-1.txt: journalctl" in said
    assert "missing  job/nowhere.log: there is no /nowhere.log" in said
    assert "missing  pstore: no last words of a kernel" in said
    assert "missing  nvidia-bug-report.log.gz: needs root" in said
    for row in json.loads(ended(run("inspect", made, "--json", "-"), 0).output)["inputs"]:
        assert row["format"] != "unknown", row
        assert row["host"] in ("node-a", None), row


def test_it_takes_the_last_words_of_a_kernel_and_the_board(here: Path, node: Path) -> None:
    """What firmware or systemd kept of a panic lies in folders of the system: the script is pointed at one of ours."""
    kept = node / "pstore" / "7530486857247752193"
    kept.mkdir(parents=True)
    panic = "Panic#1 Part1\n<0>[  201.77] Kernel panic - not syncing: Fatal exception\n"
    (kept / "dmesg.txt").write_text(panic, encoding="utf-8")
    script = node / "collect.sh"
    text = SCRIPT.read_text(encoding="utf-8")
    script.write_text(text.replace("/var/lib/systemd/pstore/*", f"{node}/pstore/*"), encoding="utf-8")
    env = {"PATH": str(node / "tools"), "TMPDIR": str(node)}
    done = subprocess.run(
        [*SHELLS[0], str(script), "-o", str(here), "-t", "1"], env=env, capture_output=True, timeout=120
    )
    (made,) = here.iterdir()
    with tarfile.open(made) as archive:
        names = archive.getnames()
    assert {"node-a/pstore/7530486857247752193/dmesg.txt", "node-a/bmc-sel.txt"} <= set(names), done.stderr
    ended(run("analyze", made, "--json", "found.json", "--quiet"), 0)
    kinds = {e["kind"] for e in json.loads((here / "found.json").read_text(encoding="utf-8"))["events"]}
    assert {"panic", "sel-psu"} <= kinds


def test_the_command_prints_the_script() -> None:
    assert ended(run("collect-script"), 0).output == SCRIPT.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True)
    assert done.stdout == ""


def test_wrong_usage_is_said(node: Path) -> None:
    for args in (["-x"], ["-t", "soon"], ["stray"]):
        done = subprocess.run([*SHELLS[0], str(SCRIPT), *args], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert "usage: sh collect.sh" in done.stderr


def test_inspect_names_it_where_something_is_missing() -> None:
    words = " ".join(ended(run("inspect", "-", stdin=XID), 0).output.split())
    assert "nccl-forensics collect-script > collect.sh" in words
