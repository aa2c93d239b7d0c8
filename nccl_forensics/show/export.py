"""Events as CSV, JSON Lines or Parquet, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nccl_forensics.errors import InputError
from nccl_forensics.intake import sniff

COLUMNS = (
    "time",
    "time_uncertainty_s",
    "time_basis",
    "host",
    "rank",
    "gpu_pci",
    "kind",
    "role",
    "severity",
    "source",
    "line",
    "text",
    "fields",
)


def check(path: Path, inputs: Iterable[str | Path]) -> None:
    """Raise InputError for a place that can't be written to, or that holds one of `inputs` or a file in one of them.

    What an earlier run wrote into a folder that is given again is no input and may be written over.
    """
    folder = path.parent
    if path.is_dir():
        raise InputError(f"{path} can't be written: it is a folder. {ELSEWHERE}")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} can't be written: there is no folder {folder} that you may write to. {ELSEWHERE}")
    if not path.exists() or _is_special(path):
        return
    for one in map(Path, inputs):
        with contextlib.suppress(OSError):
            if _is_same(path, one):
                raise InputError(f"{path} is not written over: it is an input. {ELSEWHERE}")
            if one.is_dir() and one.resolve() in path.resolve().parents and not _is_own(path):
                raise InputError(f"{path} is not written over: it is a file of the input {one}. {ELSEWHERE}")


def _is_same(path: Path, given: Path) -> bool:
    """Is `given` that file, or standard input that reads from it?"""
    return os.path.samestat(path.stat(), os.fstat(0) if str(given) == "-" else given.stat())


ELSEWHERE = "Name another place with -o, --json, --markdown, --events or --perfetto."


def _is_special(path: Path) -> bool:
    """A pipe, a device, or a name of an open file: written to as it is, never replaced."""
    return (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in (("dev",), ("proc",))


def _is_own(path: Path) -> bool:
    with path.open("rb") as file:
        return sniff.is_own(file.read(4096))


def write(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write under a temporary name beside `path`, then rename; a link's file is written, not the link.

    `private`: nobody but the owner may read it (mode 0600).

    A pipe or a device is written to directly. Raises InputError if that can't be done.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = None
    try:
        if _is_special(path):
            with path.open("wb") as file:
                file.write(data)
            return
        target = path.resolve()
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{path.name}.", delete=False) as beside:
            temporary = Path(beside.name)
            beside.write(data)
        temporary.chmod(0o600 if private else 0o666 & ~_umask())
        temporary.replace(target)
    except OSError as err:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise InputError(f"{path} can't be written ({err.strerror or err}). {ELSEWHERE}") from err


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_events(path: Path) -> None:
    """Raise InputError for a kind of file that `events` can't write."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".jsonl", ".parquet"):
        raise InputError(f"--events {path}: the name must end in .csv, .jsonl or .parquet.")
    if kind == ".parquet" and not any(map(importlib.util.find_spec, ("pyarrow", "fastparquet"))):
        raise InputError("Parquet needs pyarrow: pip install 'nccl-forensics[parquet]', or write .csv or .jsonl.")


def events(path: Path, rows: Iterable[dict[str, Any]]) -> str | bytes:
    """`rows` as documents' events, as FILE.csv, FILE.jsonl or FILE.parquet holds them. InputError for another."""
    check_events(path)
    kind = path.suffix.lower()
    if kind == ".jsonl":
        return "".join(json.dumps(r, ensure_ascii=False, sort_keys=True) + "\n" for r in rows)
    import pandas as pd

    table = pd.DataFrame(
        [{**r, "fields": json.dumps(r["fields"], ensure_ascii=False, sort_keys=True)} for r in rows],
        columns=list(COLUMNS),
    )
    table["rank"] = table["rank"].astype("Int64")
    table["line"] = table["line"].astype("Int64")
    if kind == ".csv":
        return str(table.to_csv(index=False))
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()
