"""Kinds of aliases, the fields in which originals stand, and the map that undoes the aliases."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from nccl_forensics.errors import InputError
from nccl_forensics.text.language import counted
from nccl_forensics.text.messages import pair

MAP_SCHEMA = "nccl-forensics/redaction-map/1"
NOUNS: Mapping[str, tuple[str, str]] = {
    "host": pair("host", "hosts"),
    "hostlist": pair("list of hosts", "lists of hosts"),
    "domain": pair("domain", "domains"),
    "org": pair("organization or series of machines", "organizations or series of machines"),
    "ip": pair("IP address", "IP addresses"),
    "mac": pair("MAC address", "MAC addresses"),
    "guid": pair("GUID", "GUIDs"),
    "lid": pair("LID", "LIDs"),
    "gpu-uuid": pair("GPU UUID", "GPU UUIDs"),
    "uuid": pair("other UUID", "other UUIDs"),
    "serial": pair("serial number", "serial numbers"),
    "id": pair("hash or container id", "hashes and container ids"),
    "user": pair("user", "users"),
    "mail": pair("e-mail address", "e-mail addresses"),
    "secret": pair("secret", "secrets"),
    "project": pair("project or job name", "project and job names"),
    "job": pair("job number", "job numbers"),
    "pod": pair("pod", "pods"),
    "container": pair("container", "containers"),
    "namespace": pair("namespace", "namespaces"),
    "fs": pair("file system", "file systems"),
    "name": pair("name in a path", "names in paths"),
    "encoded": pair("encoded text", "encoded texts"),
}
"""Kind, as aliases begin → how the footer counts it."""
BY_SHAPE = frozenset({"ip", "mac", "gpu-uuid", "uuid", "mail", "lid", "job", "hostlist"})
"""Kinds that their pattern finds wherever they stand, so that they need not be searched for by name."""
ALIAS = re.compile(rf"(?:{'|'.join(sorted(NOUNS, key=len, reverse=True))})-\d{{1,7}}")
ALIASES = re.compile(rf"(?<![A-Za-z0-9]){ALIAS.pattern}(?![A-Za-z0-9])", re.I)
FIELDS: Mapping[str, str] = {
    "host": "host",
    "culprit_hosts": "host",
    "hostname": "host",
    "store_host": "host",
    "node": "host",
    "switch": "host",
    "worker_ip": "host",
    "uuid": "gpu-uuid",
    "serial": "serial",
    "pod": "pod",
    "container": "container",
    "namespace": "namespace",
    "user": "user",
    "path": "path",
    "source": "path",
    "error_file": "path",
    "device": "path",
}
"""Fields of the document whose whole text is an original, or a path."""
PLAIN = frozenset(
    {"schema", "version", "kind", "role", "severity", "cause", "format", "status", "state", "basis", "time_basis", "op"}
    | {
        "sha256",
        "time",
        "onset",
        "detected",
        "ended",
        "first_time",
        "last_time",
        "gpu_pci",
        "pci",
        "backend",
        "timezone",
    }
)
"""Fields that hold words of ours, times, and the hashes by which evidence is checked."""


def read_map(path: Path) -> dict[str, str]:
    """Alias → original of an earlier map; empty where there is no file. Raises InputError for another file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        raise InputError(f"{path} is no redaction map ({err}). Name a new file with --redaction-map.") from err
    aliases = table.get("aliases") if isinstance(table, dict) and table.get("schema") == MAP_SCHEMA else None
    if not isinstance(aliases, dict) or not all(isinstance(o, str) and ALIAS.fullmatch(a) for a, o in aliases.items()):
        raise InputError(f"{path} is no redaction map of this tool. Name a new file with --redaction-map.")
    return aliases


def summary(counts: Mapping[str, int]) -> str:
    """'3 hosts, 12 IP addresses', in the page's language."""
    told = (f"{n:,} {counted(*NOUNS[k], n)}" for k, n in counts.items() if k in NOUNS)
    return ", ".join(told)
