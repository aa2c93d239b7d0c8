"""A serial console's login prompt, by which the machine names itself.

Written by agetty (util-linux, `\\n login: ` of /etc/issue) and the like, no time. Example:

gpu-r7-04 login: [191234.567013] mce: CPU 3: Machine Check Exception
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

PROMPT = re.compile(r"^(?P<name>(?=[\w.-]{0,64}[A-Za-z])[A-Za-z0-9][\w.-]{0,63}) login: *(?=$|\[ *\d+\.\d{6}\])")
NOT_NAMES = frozenset({"localhost", "last", "user", "your", "failed", "root", "ssh", "please", "invalid", "console"})


@parser(title="A console's login prompt", literals=[" login: "])
def login_prompt(line: Line) -> Iterator[Event]:
    found = PROMPT.match(line.raw.decode("utf-8", "replace"))
    if found and found["name"].lower() not in NOT_NAMES:
        yield line.event(
            "host-name", role="context", details={"name": found["name"], "source": "login prompt"}, pid=None
        )
