"""Reads a variable's value as NCCL does: numbers, levels, lists of names.

Verified with the library itself (2.27.5) where the documentation gives no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEADING_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
WHOLE_NUMBER = re.compile(r"\s*[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)\s*")
LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")  # graph/topo.cc
# Interfaces that reach no other machine.
LOCAL_PREFIXES = ("docker", "virbr", "br-", "cni", "veth", "cali", "podman", "lxcbr", "lxdbr")
LIST_VARIABLES = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME")
# Endings of variables that hold a number; a word such as "true" is no value of them.
NUMERIC = ("_DISABLE", "_ENABLE", "_TIMEOUT", "_RETRY_CNT", "_GID_INDEX", "_NCHANNELS", "_CTAS")
CASE_INSENSITIVE = ("NCCL_NET", "NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")


def parse_int(value: str) -> int | None:
    """Parse the integer that NCCL reads from `value`; None where NCCL uses its default.

    src/misc/param.cc calls strtoll(value, 0, base 0): decimal, 0x hexadecimal or 0 octal.  It
    ignores blanks before and anything after the number, and reads a word such as "true" as 0.  An
    empty value and one that does not fit 64 bits leave the default.
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
    """List of interfaces or RDMA devices: `^` excludes, `=` is exact, else prefixes (env.rst).

    Each sign is written once, at the start, for the complete list.  Blanks are part of a name.
    """

    names: tuple[str, ...]
    exact: bool = False
    exclude: bool = False

    def matches(self, name: str) -> bool:
        """Return whether an entry matches `name`."""
        return name in self.names if self.exact else name.startswith(self.names)

    def admits(self, name: str) -> bool:
        """Return whether NCCL may use `name`."""
        return self.matches(name) != self.exclude

    def admitted(self, present: Iterable[str]) -> list[str]:
        """Return those of `present` that NCCL may use."""
        return [name for name in present if self.admits(name)]

    def absent(self, present: Sequence[str]) -> list[str]:
        """Return the entries of an inclusion list that match nothing in `present`."""
        if self.exclude:
            return []
        entries = [NameList((name,), self.exact) for name in self.names]
        return [entry.names[0] for entry in entries if not entry.admitted(present)]

    def ambiguous(self, present: Sequence[str]) -> list[str]:
        """Return what an exact name matches in addition as a prefix: mlx5_10 for mlx5_1."""
        named = [name for name in self.names if name in present and not self.exact]
        return [p for p in present if p not in named and p.startswith(tuple(named))]


def name_list(value: str) -> NameList | None:
    """Parse a list as NCCL does; None when it is too short to count (one character or none).

    An entry may have a port and more after a colon, which is dropped here.
    """
    if len(value) < 2:
        return None
    text = value.removeprefix("^")
    entries = [entry.split(":")[0] for entry in text.removeprefix("=").split(",")]
    names = tuple(name for name in entries if name)
    return NameList(names, text.startswith("="), value.startswith("^")) if names else None


def plain_list(value: str) -> NameList | None:
    """Parse a comma list of exact names as torch does for gloo; None as in `name_list`."""
    names = tuple(name for name in value.split(",") if name)
    return NameList(names, exact=True) if len(value) > 1 and names else None


def is_local(interface: str) -> bool:
    """Return whether an interface of this name reaches no other machine."""
    return interface == "lo" or interface.startswith(LOCAL_PREFIXES)


def canonical(variable: str, value: str | None) -> object:
    """Return a key that is equal for two values that NCCL reads as the same; None is unset."""
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
