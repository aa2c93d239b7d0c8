"""Opens everything in a pile of files: folders, compressed files, archives in archives; nothing is written to disk.

    for source in collect(["case-4711/", "more.tar.xz"]):
        if source.stream is None:
            print(source.path, source.status, source.reason)
        else:
            scan(source.path, source.stream)  # source.status and source.reason are final afterwards

What a file is, its first bytes tell, never its name. Streams are unpacked as they are read, a tar is walked forwards, a
zip is read by its table where that can be reached and forwards where not, so memory is flat: some 100 KiB a layer, and
`Limits.memory_bytes` for a zip inside something else. What is cut or damaged gives what comes before the damage, and
behind it where the format has landmarks (gzip members, tar headers), and is `partial`, with the reason.

Input is hostile. Names of members are only shown, never used as names of files; links are not followed; devices and
pipes in a folder are not opened; every loop is bounded by `Limits`. What is not read is a Source with its reason.

Formats: RFC 1951 and 1952 (deflate, gzip), RFC 8878 (zstd), POSIX.1-2017 pax and the GNU tar manual's "Basic Tar
Format", PKWARE's APPNOTE.TXT 6.3.10 (zip). Threads may read Sources of different `File`s at the same time, not of one.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from nccl_forensics.errors import InputError
from nccl_forensics.intake.foreign import fit_to_show
from nccl_forensics.intake.layers import contents
from nccl_forensics.intake.limits import DEFAULT_LIMITS, Limits, Meter, Progress, Totals
from nccl_forensics.intake.places import Place, at_the_bound
from nccl_forensics.intake.readers import Disk, File, Pipe, Reader, Source, said
from nccl_forensics.model import Status


def files(paths: Sequence[str | Path], *, limits: Limits = DEFAULT_LIMITS) -> Iterator[File]:
    """Every file in `paths`, folders walked in the order of their names, none opened: work to share out.

    Raises InputError, before it gives anything, for a path that doesn't exist.
    """
    for path in paths:
        if str(path) == "-":
            continue
        try:
            Path(path).stat()
        except FileNotFoundError:
            hint = " Did the shell leave a pattern as it is?" if set(str(path)) & set("*?[") else ""
            broken = " (a link to nothing)" if Path(path).is_symlink() else ""
            shown = fit_to_show(str(path))
            raise InputError(
                f"{shown} does not exist{broken}. Is it spelt right, and quoted if it has spaces?{hint}"
            ) from None
        except (OSError, ValueError):
            pass  # becomes a row
    several = len(paths) > 1
    found = itertools.chain.from_iterable(_walk(path, limits, several) for path in paths)
    return itertools.islice(_once(found), limits.members + 1)  # one more, so that `sources` can say that it is too many


Inode = tuple[int, int]


def _once(found: Iterable[tuple[File, Inode | None]]) -> Iterator[File]:
    """Each file once: the user may name a folder and a file in it, and a file may have two names."""
    seen: dict[Inode, str] = {}
    stdin = False
    for one, inode in found:
        if one.real is None and stdin:
            yield _refused(one, "standard input is read only once")
        elif inode in seen:
            yield _refused(one, f"the same file as {seen[inode]}, which is read under that name")
        else:
            stdin = stdin or one.real is None
            if inode is not None:
                seen[inode] = one.path
            yield one


def _refused(file: File, reason: str, status: Status = "skipped") -> File:
    return dataclasses.replace(file, reason=reason, status=status)


_UNREADABLE = "copy it as a user who may read it (sudo), or mend its rights with chmod"


def _walk(path: str | Path, limits: Limits, several: bool) -> Iterator[tuple[File, Inode | None]]:
    """The file at `path`, or the files below it, and what tells a file met before. Links below it are not followed."""
    if str(path) == "-":
        yield File(path="-", real=None, named=True), None
        return
    stack = [(str(path), True)]
    while stack:
        real, named = stack.pop()
        here = File(path=fit_to_show(real, 4096), real=real, named=named)
        try:
            status = Path(real).stat() if named else Path(real).lstat()
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(real) as entries:
                    names = sorted((x.name for x in itertools.islice(entries, limits.members + 1)), reverse=True)
                if not names and named:
                    yield _refused(here, "an empty folder"), None
                below = real if real.endswith(("/", os.sep)) else real + os.sep
                stack += [(below + name, False) for name in names]
                continue
            target = fit_to_show(str(Path(real).readlink())) if stat.S_ISLNK(status.st_mode) else None
        except (OSError, ValueError) as error:
            yield _refused(here, f"cannot be read: {said(error)}; {_UNREADABLE}", "failed"), None
            continue
        if target is not None:
            says = f"link to {target}: not followed. If that is missing here, copy with cp -rL or name the file itself"
            yield _refused(here, says), None
        else:
            yield _no_link(here, status, several)


def _no_link(here: File, status: os.stat_result, several: bool) -> tuple[File, Inode | None]:
    """What lies at a path: to be read, or a device, socket or pipe that isn't."""
    if stat.S_ISREG(status.st_mode):
        may_come_again = status.st_ino and (several or status.st_nlink > 1)
        found = dataclasses.replace(here, size=status.st_size, mtime_ns=status.st_mtime_ns)
        return found, (status.st_dev, status.st_ino) if may_come_again else None
    if stat.S_ISFIFO(status.st_mode):
        return here if here.named else _refused(here, "a named pipe: not a file"), None
    return _refused(here, "a device or socket: not a file"), None


def _opened(file: File) -> io.FileIO:
    """The file, open for reading. A pipe without a writer doesn't block, a link that slipped in is refused."""
    flags = os.O_RDONLY
    for name in ("O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK", "O_BINARY", "" if file.named else "O_NOFOLLOW"):
        flags |= getattr(os, name, 0) if name else 0
    assert file.real is not None
    descriptor = os.open(file.real, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) and file.named:
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(mode):
            raise OSError("no longer a file")
        return io.FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def sources(
    file: File,
    *,
    stdin: BinaryIO | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    totals: Totals | None = None,
) -> Iterator[Source]:
    """All that is in one file: itself, or the members of the archive that it is. Never raises for what is in it."""
    totals = totals if totals is not None else Totals()
    place = Place(file.path, contents, size=file.size, mtime_ns=file.mtime_ns)
    if file.reason:
        totals.members += 1
        yield place.refused(file.reason, file.status)
        return
    if full := at_the_bound(place, meter := Meter(file.path, file.size, limits, totals, progress)):
        yield full
        return
    raw: io.FileIO | None = None
    reader: Reader
    try:
        if file.real is None:
            reader = Pipe(stdin if stdin is not None else sys.stdin.buffer, meter)
        else:
            raw = _opened(file)
            status = os.fstat(raw.fileno())
            reader = Disk(raw, meter, status)
            if reader.size is not None:
                place.size = meter.size = reader.size
    except (OSError, ValueError) as error:
        totals.members += 1
        yield place.refused(f"cannot be read: {said(error)}; {_UNREADABLE}", "failed")
        return
    try:
        meter.enter()
        yield from contents(reader, place, meter)
        meter.leave()
        meter.tell()
    finally:
        reader.close()
        if raw is not None:
            raw.close()


def collect(
    paths: Sequence[str | Path],
    *,
    stdin: BinaryIO | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Iterator[Source]:
    """Everything in the pile, one Source after the other, in the order of `paths` and then of names.

    `-` is standard input (`stdin`, if given). A Source is good until the next one is drawn, and may be left unread.
    What isn't read is a Source without a stream and with a reason. Raises InputError, at once, for a path that
    doesn't exist.
    """
    found = files(paths, limits=limits)
    totals = Totals()
    return _collected(found, stdin, limits, progress, totals)


def _collected(
    found: Iterable[File], stdin: BinaryIO | None, limits: Limits, progress: Progress | None, totals: Totals
) -> Iterator[Source]:
    for file in found:
        full = totals.members >= limits.members
        yield from sources(file, stdin=stdin, limits=limits, progress=progress, totals=totals)
        if full:
            return
