"""df, mount and quota: how full a file system is, whether it can be written, and whose quota is used up.

Written by coreutils' df, util-linux' mount (or /proc/mounts), quota and `lfs quota`. Time: none, the moment of the
call. A full file system proves nothing by itself, so all of this is context; rules/evidence_quotas.py asks whether a
write failed on it. Examples:

/dev/nvme1n1p1   3.5T  3.5T     0 100% /scratch
/dev/nvme1n1p1 on /scratch type ext4 (ro,relatime)
    /home 1048580* 1048576 1048576   6days   12041       0       0       -
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._blocks import may_read, rows

NEARLY_FULL = 95
"""Percent; below that a file system has room for what a job writes in a step. Our judgement."""
MOST_ROWS = 300
FIRST_COLUMN = ("Filesystem", "Dateisystem", "Sys. de fichiers", "文件系统", "S.ficheros")
"""df's header, in the languages of those who send such files."""
ROW = re.compile(
    r"^(?P<device>\S{1,300})\s+(?:(?P<type>[a-z][\w.]{1,30})\s+)?(?P<size>[\d.]{1,20}[KMGTPE]?)\s+(?P<used>[\d.]{1,20}[KMGTPE]?)\s+"
    r"(?P<free>-?[\d.]{1,20}[KMGTPE]?)\s+(?P<percent>\d{1,3})%\s+(?P<mount>/\S{0,300})\s*$"
)
READ_ONLY_MEDIA = re.compile(r"^(?:/dev/(?:loop|sr)\d|squashfs|/snap/|tmpfs/snap)|^(?:efivarfs|overlay/lowerdir)$")
NOT_FOR_WRITING = re.compile(r"^/(?:snap|var/lib/snapd|sys|proc|cdrom|media)(?:/|$)")
MOUNTED = re.compile(r"^(?P<device>\S{1,300}) on (?P<mount>/\S{0,300}) type (?P<type>[\w.]{2,30}) \(ro[,)]")
PROC_MOUNT = re.compile(r"^(?P<device>\S{1,300}) (?P<mount>/\S{0,300}) (?P<type>[\w.]{2,30}) ro,\S{1,1000} \d \d\s*$")
WRITABLE = re.compile(
    r"ext[234]|xfs|btrfs|zfs|nfs4?|lustre|gpfs|beegfs|ceph|cifs|fuse[\w.]{0,20}|weka\w{0,10}|virtiofs|9p"
)
QUOTA = re.compile(r"^Disk quotas for (?:user|usr|group|grp|project|prj) (?P<who>\S{1,64})")
QUOTA_ROW = re.compile(
    r"^\s*(?P<where>\S{1,300})?\s+(?P<blocks>[\d.]{1,20}[kKMGTP]?)(?P<over>\*?)\s+[\d.]{1,20}[kKMGTP]?\s+(?P<limit>[\d.]{1,20}[kKMGTP]?)"
    r"(?:\s+(?:-|none|\d{1,6}\w{1,10}))?\s+(?P<files>\d{1,19})(?P<files_over>\*?)\s+\d{1,19}\s+(?P<files_limit>\d{1,19})"
)


def _df_rows(line: Line) -> Iterator[tuple[Line, re.Match[str]]]:
    """The rows below df's header; a device with a long name has a line of its own before the rest of its row."""
    device = ""
    for row in rows(line, "df", MOST_ROWS):
        text = row.text.rstrip()
        line.window.state["df.until"] = row.number - 1
        if re.fullmatch(r"\S{1,300}", text):
            device = text
            continue
        found = ROW.match(f"{device} {text.strip()}" if device and text.startswith(" ") else text)
        device = ""
        if found is not None:
            yield row, found
        elif text.strip() and "-" not in text.split():  # file systems without numbers have dashes
            return


@parser(title="df", literals=["Mounted on"])
def df(line: Line) -> Iterator[Event]:
    header = line.text
    if not header.startswith(FIRST_COLUMN) or "%" not in header:
        return
    if line.number <= line.window.state.get("df.until", 0) or not may_read(line, "df"):
        return
    what = "inodes" if "IUse%" in header or "Inode" in header else "space"
    for row, found in _df_rows(line):
        device, mount, percent = found["device"], found["mount"], int(found["percent"])
        if percent >= NEARLY_FULL and not READ_ONLY_MEDIA.search(device) and not NOT_FOR_WRITING.match(mount):
            details: dict[str, Detail] = {"mount": mount, "device": device, "used_percent": percent, "what": what}
            yield row.event("file-system", role="context", details=details, pid=None)


@parser(title="mount: read-only file systems", literals=[" (ro,", " (ro)", " ro,"])
def read_only_mount(line: Line) -> Iterator[Event]:
    found = MOUNTED.match(line.text[:2000]) or PROC_MOUNT.match(line.text[:2000])
    if found is None or not WRITABLE.fullmatch(found["type"]) or NOT_FOR_WRITING.match(found["mount"]):
        return
    details: dict[str, Detail] = {"mount": found["mount"], "device": found["device"], "type": found["type"]}
    yield line.event("file-system", role="context", details={**details, "what": "read-only"}, pid=None)


def _used_up(found: re.Match[str]) -> Iterator[str]:
    """'space' or 'inodes', where the row has more than its quota or has reached its hard limit."""
    if found["over"] or _at_limit(found["blocks"], found["limit"]):
        yield "space"
    if found["files_over"] or _at_limit(found["files"], found["files_limit"]):
        yield "inodes"


def _at_limit(used: str, limit: str) -> bool:
    """A limit of 0 is none."""
    return limit.strip("0.kKMGTP") != "" and used == limit


@parser(title="quota", literals=["Disk quotas for "])
def quota(line: Line) -> Iterator[Event]:
    """Only quotas that are used up: marked with `*`, or at their hard limit."""
    head = QUOTA.match(line.text)
    if head is None or not may_read(line, "quota"):
        return
    where = ""
    for row in line.after(40):
        text = row.text.rstrip()
        if not text or QUOTA.match(text):
            return
        if re.fullmatch(r"\s*[/\w]\S{0,300}", text):
            where = text.strip()
        elif found := QUOTA_ROW.match(text):
            mount, where = found["where"] or where, ""
            for what in _used_up(found):
                details: dict[str, Detail] = {"mount": mount, "who": head["who"], "what": f"quota of {what}"}
                yield row.event("file-system", role="context", details=details, pid=None)
