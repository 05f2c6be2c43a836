"""Kinds of placeholders, and which names are plain enough for a command.

A plain name is one word to a shell, and no option to a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"  # DNS: 253 letters
NUMBER = r"[0-9]{1,9}"
PATH = r"/[A-Za-z0-9._/@+=,:-]{0,254}"
WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
PORTS = range(1, 2**16)  # of TCP and UDP


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and bool(ip_address(text))
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and int(text) in PORTS


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


# Kinds of placeholders, and which names are plain enough for a command.
KINDS: dict[str, Callable[[str], bool]] = {
    "node": _matches(HOST),
    "peer": _matches(HOST),
    "host": _matches(HOST),
    "address": _is_address,
    "head_address": _is_address,
    "peer_address": _is_address,
    "ray_address": _is_address,
    "interface": _matches(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,14}"),  # IFNAMSIZ: 15 letters
    "device": _matches(r"[a-z][a-z0-9_]{0,63}"),  # of RDMA, as mlx5_0
    "gpu": _matches(rf"(?:GPU|MIG)-[0-9A-Fa-f-]{{4,64}}|{NUMBER}"),
    "slot": _matches(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"),
    "port": _is_port,
    "folder": _matches(PATH),
    "file": _matches(PATH),
    "target": _matches(rf"(?:https?://)?{HOST}(?::[0-9]{{1,5}})?(?:{PATH})?"),
    "variable": _matches(r"[A-Za-z][A-Za-z0-9_]{0,63}"),
    "package": _matches(WORD),
    "job": _matches(WORD),
    "rank": _matches(NUMBER),
    "pid": _matches(NUMBER),
    "payload": _matches(NUMBER),  # of a ping, bytes
    "step": _matches(NUMBER),
}
LIST_KIND = "nodes"  # all suspects that are nodes: for texts alone


def in_capitals(text: str) -> str:
    """Write every placeholder in capitals, as a man page does."""
    return PLACEHOLDER.sub(lambda match: match[1].upper(), text)
