"""Events as CSV, JSON Lines or Parquet, and files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nccl_forensics.model import InputError

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


def write(path: Path, content: str | bytes) -> None:
    """Write under a temporary name beside `path`, then rename. Raises InputError if that can't be done."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as err:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise InputError(
            f"{path} can't be written ({err.strerror or err}). Name another place with -o or --json."
        ) from err


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def events(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """`rows` as documents' events to FILE.csv, FILE.jsonl or FILE.parquet. Raises InputError for another ending."""
    kind = path.suffix.lower()
    if kind == ".jsonl":
        write(path, "".join(json.dumps(r, ensure_ascii=False, sort_keys=True) + "\n" for r in rows))
        return
    if kind not in (".csv", ".parquet"):
        raise InputError(f"--events {path}: the name must end in .csv, .jsonl or .parquet.")
    import pandas as pd

    table = pd.DataFrame(
        [{**r, "fields": json.dumps(r["fields"], ensure_ascii=False, sort_keys=True)} for r in rows],
        columns=list(COLUMNS),
    )
    table["rank"] = table["rank"].astype("Int64")
    table["line"] = table["line"].astype("Int64")
    if kind == ".csv":
        write(path, table.to_csv(index=False))
        return
    try:
        import io

        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
    except ImportError as err:
        raise InputError(
            "Parquet needs pyarrow: pip install 'nccl-forensics[parquet]', or write .csv or .jsonl."
        ) from err
    write(path, buffer.getvalue())
