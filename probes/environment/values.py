"""How NCCL reads the value of a variable: numbers, levels, lists of names.

Checked against the library itself (2.27.5) where the documentation is silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEADING_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
WHOLE_NUMBER = re.compile(r"\s*[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)\s*")
LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")  # graph/topo.cc
# Interfaces that reach nothing beyond this machine.
LOCAL_PREFIXES = ("docker", "virbr", "br-", "cni", "veth", "cali", "podman", "lxcbr", "lxdbr")
LIST_VARIABLES = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME")
# Endings of variables that hold a number, for which a word such as "true" is no value.
NUMERIC = ("_DISABLE", "_ENABLE", "_TIMEOUT", "_RETRY_CNT", "_GID_INDEX", "_NCHANNELS", "_CTAS")
CASE_INSENSITIVE = ("NCCL_NET", "NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")


def parse_int(value: str) -> int | None:
    """The integer that NCCL takes `value` for; None where it falls back to its default.

    src/misc/param.cc calls strtoll(value, 0, base 0): decimal, 0x hexadecimal or 0 octal, blanks
    before and anything behind are ignored, and a word such as "true" is 0.  An empty value and one
    that does not fit 64 bits leave the default.
    """
    if not value:
        return None
    match = LEADING_NUMBER.match(value)
    if not match:
        return 0
    sign, digits = match.groups()
    if len(digits) > 24:  # longer than any 64-bit number, and not worth the conversion
        return None
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    num = int(digits, base) * (-1 if sign == "-" else 1)
    return num if -(2**63) <= num < 2**63 else None


@dataclass(frozen=True)
class NameList:
    """A list of interfaces or RDMA devices: `^` excludes, `=` is exact, else prefixes (env.rst).

    Both signs stand once, at the head, for the whole list.  Blanks are part of a name.
    """

    names: tuple[str, ...]
    exact: bool = False
    exclude: bool = False

    def matches(self, name: str) -> bool:
        """Whether an entry stands for `name`."""
        return name in self.names if self.exact else name.startswith(self.names)

    def admits(self, name: str) -> bool:
        """Whether NCCL may use `name`."""
        return self.matches(name) != self.exclude

    def admitted(self, present: Iterable[str]) -> list[str]:
        """Those of `present` that NCCL may use."""
        return [name for name in present if self.admits(name)]

    def absent(self, present: Sequence[str]) -> list[str]:
        """Entries of a list of inclusion that stand for nothing present."""
        if self.exclude:
            return []
        entries = [NameList((name,), self.exact) for name in self.names]
        return [entry.names[0] for entry in entries if not entry.admitted(present)]

    def ambiguous(self, present: Sequence[str]) -> list[str]:
        """What prefixes stand for beside the thing of exactly their name: mlx5_1 and mlx5_10."""
        named = [name for name in self.names if name in present and not self.exact]
        return [p for p in present if p not in named and p.startswith(tuple(named))]


def name_list(value: str) -> NameList | None:
    """`value` as NCCL reads it; None when it is too short to count (one character or none).

    An entry may carry a port and more after a colon, which is left out here.
    """
    if len(value) < 2:
        return None
    text = value.removeprefix("^")
    entries = [entry.split(":")[0] for entry in text.removeprefix("=").split(",")]
    names = tuple(name for name in entries if name)
    return NameList(names, text.startswith("="), value.startswith("^")) if names else None


def plain_list(value: str) -> NameList | None:
    """`value` as torch reads it for gloo: a comma list of exact names, no signs; None as above."""
    names = tuple(name for name in value.split(",") if name)
    return NameList(names, exact=True) if len(value) > 1 and names else None


def is_local(interface: str) -> bool:
    """Whether an interface of this name reaches nothing beyond its machine."""
    return interface == "lo" or interface.startswith(LOCAL_PREFIXES)


def canonical(variable: str, value: str | None) -> object:
    """What two values are compared by: equal when NCCL reads them alike; None is unset."""
    if value is None or value == "":
        return None
    if variable in LIST_VARIABLES:
        spec = plain_list(value) if variable.startswith("GLOO_") else name_list(value)
        entries = frozenset(value.lstrip("^=").split(","))
        return (spec.exclude, spec.exact, entries) if spec else None
    if variable in CASE_INSENSITIVE:
        return value.lower()
    if WHOLE_NUMBER.fullmatch(value) or variable.endswith(NUMERIC):
        num = parse_int(value)
        # Every ..._DISABLE is 0 when unset.
        return None if num == 0 and variable.endswith("_DISABLE") else num
    return value
