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
BRIDGES = ("docker", "virbr", "br-", "cni", "veth", "cali", "podman", "lxcbr", "lxdbr")
LISTS = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME")
# Endings of variables that hold a number, for which a word such as "true" is no value.
NUMERIC = ("_DISABLE", "_ENABLE", "_TIMEOUT", "_RETRY_CNT", "_GID_INDEX", "_NCHANNELS", "_CTAS")
CASELESS = ("NCCL_NET", "NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")


def number(value: str) -> int | None:
    """The integer that NCCL takes `value` for; None where it falls back to its default.

    src/misc/param.cc calls strtoll(value, 0, base 0): decimal, 0x hexadecimal or 0 octal, blanks
    before and anything behind are ignored, and a word such as "true" is 0.  An empty value and one
    that does not fit 64 bits leave the default.
    """
    if not value:
        return None
    found = LEADING_NUMBER.match(value)
    if not found:
        return 0
    sign, digits = found.groups()
    if len(digits) > 24:  # longer than any 64-bit number, and not worth the conversion
        return None
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    read = int(digits, base) * (-1 if sign == "-" else 1)
    return read if -(2**63) <= read < 2**63 else None


@dataclass(frozen=True)
class NameList:
    """A list of interfaces or RDMA devices: `^` excludes, `=` is exact, else prefixes (env.rst).

    Both signs stand once, at the head, for the whole list.  Blanks are part of a name.
    """

    names: tuple[str, ...]
    exact: bool = False
    exclude: bool = False

    def lists(self, name: str) -> bool:
        """Whether an entry stands for `name`."""
        return name in self.names if self.exact else name.startswith(self.names)

    def admits(self, name: str) -> bool:
        """Whether NCCL may use `name`."""
        return self.lists(name) != self.exclude

    def admitted(self, present: Iterable[str]) -> list[str]:
        """Those of `present` that NCCL may use."""
        return [name for name in present if self.admits(name)]

    def absent(self, present: Sequence[str]) -> list[str]:
        """Entries of a list of inclusion that stand for nothing present."""
        if self.exclude:
            return []
        alone = [NameList((name,), self.exact) for name in self.names]
        return [one.names[0] for one in alone if not one.admitted(present)]

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
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    names = tuple(entry.split(":")[0] for entry in rest.split(","))
    names = tuple(name for name in names if name)
    return NameList(names, exact, exclude) if names else None


def plain_list(value: str) -> NameList | None:
    """`value` as torch reads it for gloo: a comma list of exact names, no signs; None as above."""
    names = tuple(name for name in value.split(",") if name)
    return NameList(names, exact=True) if len(value) > 1 and names else None


def local(interface: str) -> bool:
    """Whether an interface of this name reaches nothing beyond its machine."""
    return interface == "lo" or interface.startswith(BRIDGES)


def canonical(variable: str, value: str | None) -> object:
    """What two values are compared by: equal when NCCL reads them alike; None is unset."""
    if value is None or value == "":
        return None
    if variable in LISTS:
        read = plain_list(value) if variable.startswith("GLOO_") else name_list(value)
        return (
            (read.exclude, read.exact, frozenset(value.lstrip("^=").split(","))) if read else None
        )
    if variable in CASELESS:
        return value.lower()
    if WHOLE_NUMBER.fullmatch(value) or variable.endswith(NUMERIC):
        read_as = number(value)
        # Every ..._DISABLE is 0 when unset.
        return None if read_as == 0 and variable.endswith("_DISABLE") else read_as
    return value
