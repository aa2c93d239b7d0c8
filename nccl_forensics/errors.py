"""What goes wrong through no fault of ours; in a file of its own, so that `--help` need not import the model."""

from __future__ import annotations


class InputError(Exception):
    """Something the user can mend: the message says which file, what is wrong and what to try."""
