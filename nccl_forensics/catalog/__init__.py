"""What is known about causes, Xids and kernel messages, as data; read once."""

from __future__ import annotations

import sys
from functools import cache
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def load(name: str) -> dict[str, Any]:
    """The table `name`.toml of this folder."""
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
