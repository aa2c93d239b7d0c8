"""Templates, compiled once: what Jinja makes of them lies where Python keeps its own bytecode, by the same rules.

Compiling takes 0.2 s, a fifth of a small analysis. The code is kept in templates/__pycache__ (or under
PYTHONPYCACHEPREFIX), not at all with PYTHONDONTWRITEBYTECODE, and trusted as far as a .pyc there: who may write it may
write the program too. It is used only for the very source, Jinja and Python that it was made with. Where it cannot be
written, nothing is said and every run compiles.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nccl_forensics.text import language

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.bccache import Bucket


PACKAGE = "nccl_forensics.templates"
_NAME = re.compile(r"[a-z_]+(\.html|\.md)?\.(j2|css|js)")


@cache
def source(name: str) -> str | None:
    """The text of a template, style or script; None if there is none of that name."""
    if not _NAME.fullmatch(name):
        return None
    with contextlib.suppress(FileNotFoundError):
        data = pkgutil.get_data(PACKAGE, name)
        return None if data is None else data.decode("utf-8")
    return None


def _place(key: str) -> Path:
    package = sys.modules[PACKAGE].__file__ or ""
    return Path(cache_from_source(str(Path(package).with_name(f"{key}.py")), optimization=""))


def environment(escape: bool, filters: Mapping[str, Callable[..., Any]]) -> Environment:
    """Where templates are rendered; with `escape`, every value is made harmless in HTML. Their words are looked up as
    they are rendered: what is compiled is the same for all languages."""
    import jinja2
    from jinja2 import BytecodeCache, FunctionLoader, StrictUndefined

    class Compiled(BytecodeCache):
        def _head(self, bucket: Bucket) -> bytes:
            made_of = (jinja2.__version__, str(escape), *sorted(filters), bucket.checksum)
            return MAGIC_NUMBER + hashlib.sha256("\n".join(made_of).encode()).digest()

        def load_bytecode(self, bucket: Bucket) -> None:
            head = self._head(bucket)
            with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
                data = _place(bucket.key).read_bytes()
                if data.startswith(head):
                    bucket.code = marshal.loads(data[len(head) :])

        def dump_bytecode(self, bucket: Bucket) -> None:
            if sys.dont_write_bytecode:
                return
            place = _place(bucket.key)
            partial = place.with_name(f"{place.name}.{os.getpid()}")
            with contextlib.suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                partial.write_bytes(self._head(bucket) + marshal.dumps(bucket.code))
                partial.replace(place)

        def get_cache_key(self, name: str, filename: str | None = None) -> str:
            return name.replace(".", "-")

    made = jinja2.Environment(
        autoescape=escape,
        undefined=StrictUndefined,
        loader=FunctionLoader(source),
        bytecode_cache=Compiled(),
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    install: Any = made
    install.install_gettext_callables(language._, language.counted, newstyle=True)
    made.filters.update(filters)
    return made
