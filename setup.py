"""Compiles the translations on the way into a wheel or an editable install; all else stands in setup.cfg."""

from pathlib import Path

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from setuptools import setup
from setuptools.command.build_py import build_py

LOCALE = Path(__file__).parent / "nccl_forensics" / "text" / "locale"


class BuildWithTranslations(build_py):
    """build_py, after each messages.po has its messages.mo beside it."""

    def run(self):
        for source in sorted(LOCALE.glob("*/LC_MESSAGES/messages.po")):
            with source.open("rb") as text, source.with_suffix(".mo").open("wb") as compiled:
                write_mo(compiled, read_po(text, locale=source.parent.parent.name))
        super().run()


setup(cmdclass={"build_py": BuildWithTranslations})
