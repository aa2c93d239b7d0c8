"""A folder of tickets: each entry in it is a pile of its own, and where its outputs go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nccl_forensics.errors import InputError
from nccl_forensics.intake import sniff
from nccl_forensics.outputs import Outputs, Wanted

PACKED = (".gz", ".xz", ".zst", ".bz2", ".tar", ".tgz", ".zip", ".log", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One pile of several."""

    path: Path
    name: str
    """As it is shown: with --redact only its number."""
    outputs: Outputs
    refused: str | None = None
    """Why it is not read."""


def found(paths: Sequence[str], wanted: Wanted, output: Path | None) -> list[Ticket]:
    """The entries of the folders in `paths`, by name, and the files in it; pages of ours there are none.

    `output` and the places in `wanted` are folders, made if they are not there. Raises InputError for what the user
    can mend.
    """
    if wanted.events is not None:
        raise InputError("--events goes with one ticket: analyze that one without --each.")
    folders = [Path(p) for p in (output, wanted.json_, wanted.markdown, wanted.perfetto) if p is not None]
    for folder in folders:
        _make(folder)
    entries = [entry for path in paths for entry in _entries(path)]
    if not entries:
        raise InputError(f"{', '.join(paths)}: nothing lies in it. --each takes folders in which tickets lie.")
    names: Counter[str] = Counter()
    made: list[Ticket] = []
    for number, entry in enumerate(entries, 1):
        name = f"ticket-{number}" if wanted.redact else bare(entry.name)
        names[name] += 1
        name = name if names[name] == 1 else f"{name}-{names[name]}"
        shown = name if wanted.redact else entry.name
        made.append(Ticket(path=entry, name=shown, outputs=_outputs(name, wanted, output), refused=_refused(entry)))
    return made


def bare(name: str) -> str:
    """A file's name without the endings of archives and logs."""
    for ending in PACKED:
        name = name.removesuffix(ending)
    return name or "analysis"


def _entries(path: str) -> Iterator[Path]:
    if path == "-":
        raise InputError("--each takes folders in which tickets lie, not stdin.")
    folder = Path(path)
    if not folder.exists():
        raise InputError(f"{path} does not exist.")
    if not folder.is_dir():
        yield folder
        return
    try:
        inside = sorted(folder.iterdir())
    except OSError as err:
        raise InputError(f"{path} can't be read: {err.strerror}.") from None
    yield from (p for p in inside if not _is_own_page(p))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as err:
        why = "it is a file" if folder.exists() else err.strerror
        raise InputError(
            f"{folder} can't be used: {why}. With --each, -o, --json, --markdown and --perfetto name folders."
        ) from None


def _is_own_page(path: Path) -> bool:
    """Did an earlier run write it?"""
    try:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return sniff.is_own(file.read(4096))
    except OSError:
        return False  # it has its line as what it is


def _refused(entry: Path) -> str | None:
    return "it is a link. Give what it points to." if entry.is_symlink() else None


def _outputs(name: str, wanted: Wanted, output: Path | None) -> Outputs:
    def place(folder: Path | str | None, ending: str) -> Path | None:
        return None if folder is None else Path(folder) / f"{name}{ending}"

    json_, markdown = place(wanted.json_, ".json"), place(wanted.markdown, ".md")
    own = replace(
        wanted,
        json_=None if json_ is None else str(json_),
        markdown=None if markdown is None else str(markdown),
        perfetto=place(wanted.perfetto, ".trace.json"),
    )
    return Outputs(page=(output or Path()) / f"{name}.report.html", page_is_given=True, wanted=own)
