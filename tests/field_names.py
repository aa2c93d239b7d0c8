"""The names of all details of events, by type, as kinds.toml and kernel.toml declare them: nccl_forensics/fields.py.

`python tests/field_names.py` writes that module anew; tests/test_catalog.py says when it must be.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from pathlib import Path

from nccl_forensics.parsers.kernel import WORDS

from nccl_forensics.catalog import kernel_entries, kinds
from nccl_forensics.catalog.signature import OF_EVERY_SIGNATURE

MODULE = Path(__file__).parent.parent / "nccl_forensics" / "fields.py"
NAMES = {
    "int": ("NumberField", "Details that are whole numbers, of some kind at least."),
    "float": ("MeasureField", "Details that are measured: decimal, and whole where they happen to be."),
    "bool": ("FlagField", "Details that are true or false."),
    "str": ("TextField", "Details that are text."),
    "ints": ("NumbersField", "Details that are tuples of whole numbers."),
    "strs": ("TextsField", "Details that are tuples of texts."),
}


def of_kind(kind: str) -> dict[str, frozenset[str]]:
    """Name of a detail → its types, for one kind, groups of a signature's regex among them."""
    found = dict(kinds()[kind].fields)
    for entry in kernel_entries():
        if entry.id == kind:
            for group in entry.regex.groupindex:
                found[group] = frozenset({"str"} if group in WORDS else {"str", "int"})
            found |= {name: frozenset({type_}) for name, type_ in OF_EVERY_SIGNATURE.items()} | dict(entry.fields)
    return found


def source() -> str:
    by_type: dict[str, set[str]] = defaultdict(set)
    for kind in kinds():
        for name, types in of_kind(kind).items():
            for one in types:
                by_type[one].add(name)
    parts = [
        '"""The names of all details of events, by type: made from catalog/kinds.toml and kernel.toml '
        '(tests/field_names.py)."""\n\nfrom typing import Literal\n\n# fmt: off\n'
    ]
    for type_, (name, says) in NAMES.items():
        rows = textwrap.fill(
            ", ".join(f'"{x}"' for x in sorted(by_type[type_])),
            width=120,
            initial_indent="    ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
        parts.append(f'{name} = Literal[\n{rows},\n]\n"""{says}"""\n')
    return "".join(parts)


if __name__ == "__main__":
    MODULE.write_text(source(), encoding="utf-8")
