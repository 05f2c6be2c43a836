"""Checks of a variable's value; the rules of the environment lint are built from them.

A check examines a value and the node on which it is set.  It returns False, True, or text on what
it found there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probes.cluster.network_facts import interfaces_of
from probes.cluster.variables import is_withheld
from probes.environment.collect import effective_values, read_nccl_conf_files
from probes.findings import join_names
from scaling.collectives.line_rate import installed_rails

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
    if is_withheld(variable, value):
        return value
    if variable in LIST_VARIABLES:
        of_gloo = variable.startswith("GLOO_")  # it knows no signs
        spec = plain_list(value) if of_gloo else name_list(value)
        entries = frozenset((value if of_gloo else value.lstrip("^=")).split(","))
        return (spec.exclude, spec.exact, entries) if spec else None
    if variable in CASE_INSENSITIVE:
        return value.lower()
    if WHOLE_NUMBER.fullmatch(value) or variable.endswith(NUMERIC):
        num = parse_int(value)
        # Every ..._DISABLE is 0 when unset.
        return None if num == 0 and variable.endswith("_DISABLE") else num
    return value


@dataclass(frozen=True)
class NodeContext:
    """Facts for a rule in addition to the value: of one node, and of what it shares with others."""

    interfaces: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()
    rdma_active: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    missing_files: Mapping[str, list[str]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # of conf files, by path
    # variable -> (value, where), as NCCL or another library reads it; values are truncated
    variables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    libraries: tuple[Mapping[str, str], ...] = ()
    fabric: str | None = None
    machine_count: int = 1  # in the complete cluster
    hostid_shared: bool = False  # a node on another machine has the same NCCL_HOSTID

    @property
    def nccl(self) -> tuple[int, ...] | None:
        """Version of the likely libnccl; None when unknown."""
        parts = (self.libraries[0].get("version", "") if self.libraries else "").split(".")
        return tuple(map(int, parts)) if all(p.isdecimal() for p in parts) else None


Check = Callable[[str, NodeContext], bool | str]


def is_set(value: str, node: NodeContext) -> bool:
    """Return True: the rule holds for any value."""
    return True


def nonzero(value: str, node: NodeContext) -> bool:
    """Return whether NCCL reads a number other than 0."""
    return parse_int(value) not in (None, 0)


def is_number(expected: int) -> Check:
    """Build a check whether NCCL reads this number."""
    return lambda value, node: parse_int(value) == expected


def out_of_range(low: int, high: int) -> Check:
    """Build a check whether NCCL reads a number outside low..high, both included."""
    return lambda value, node: (num := parse_int(value)) is not None and not low <= num <= high


def at_least(low: int) -> Check:
    """Build a check whether NCCL reads a number of `low` or more."""
    return lambda value, node: (num := parse_int(value)) is not None and num >= low


def is_one_of(*choices: str) -> Check:
    """Build a check whether the value is one of these lower-case words; its case does not count."""
    return lambda value, node: value.lower() in choices


def both_match(first: Check, second: Check) -> Check:
    """Build a check that both checks match; its result is that of the second."""
    return lambda value, node: bool(first(value, node)) and second(value, node)


def negate(check: Check) -> Check:
    """Build a check that matches where `check` finds nothing."""
    return lambda value, node: not check(value, node)


# Distance levels (src/graph/paths.cc, ncclGetLevel): names in capitals, or the old numbers.


def is_local_level(value: str, node: NodeContext) -> bool:
    """Return whether the level is LOC, which never allows the direct path."""
    return value == "LOC" or _read_level(value) == 0


def is_numeric_level(value: str, node: NodeContext) -> bool | str:
    """Return how NCCL reads a number above 0 that is given instead of a level's name."""
    level = _read_level(value)
    if not level:
        return False
    return f"{level} is read as {('LOC', 'PIX', 'PXB', 'PHB', 'SYS')[min(level, 4)]}"


def is_unknown_level(value: str, node: NodeContext) -> bool:
    """Return whether NCCL knows no such level; names count in capitals only."""
    return value not in LEVELS and _read_level(value) is None


def _read_level(value: str) -> int | None:
    return parse_int(value) if value.startswith(tuple("0123456789")) else None


# Networks and plugins.


def ib_without_device(value: str, node: NodeContext) -> bool:
    """Return whether NCCL's own RDMA is demanded on a node without any RDMA device."""
    return value.lower() == "ib" and not node.rdma


EFA_NAMES = ("efa", "rdmap")  # of devices


def needs_plugin(value: str, node: NodeContext) -> bool:
    """Return whether RDMA needs a plugin here: EFA, or Google's GPUDirect-TCPX and FasTrak."""
    efa = node.rdma and all(name.startswith(EFA_NAMES) for name in node.rdma)
    prefixes = ("FI_EFA_", "NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_")
    return bool(efa) or any(name.startswith(prefixes) for name in node.variables)


def file_missing(variable: str) -> Check:
    """Build a check whether the path that the variable names does not exist."""
    return lambda value, node: _shorten(node.missing_files.get(variable, []))


def nccl_older_than(major: int, minor: int) -> Check:
    """Build a check whether the likely libnccl is known and older than this version."""
    return lambda value, node: node.nccl is not None and node.nccl < (major, minor)


def conflicting_libnccl(variable: str) -> Check:
    """Build a check whether this variable's libnccl differs in version from one found elsewhere."""

    def check(value: str, node: NodeContext) -> bool | str:
        known = [library for library in node.libraries if library["version"]]
        loaded = [library for library in known if library["found"] == variable]
        elsewhere = [lib for lib in known if lib["found"] not in (variable, "loader")]
        versions = {library["version"] for library in loaded + elsewhere}
        return bool(loaded) and len(versions) > 1 and describe_libraries(loaded + elsewhere)

    return check


def describe_libraries(libraries: Iterable[Mapping[str, str]]) -> str:
    """Describe libraries in words: "2.27.5 at /a (torch), 2.18.3 at /b (LD_PRELOAD)"."""
    return _shorten([f"{lib['version']} at {lib['path']} ({lib['found']})" for lib in libraries])


def in_nvlink_domain(value: str, node: NodeContext) -> bool:
    """Return whether the node is in an NVLink domain of several nodes: GB200, GB300."""
    return any("GB200" in model or "GB300" in model for model in node.gpus)


# Boards without NVLink, by NVIDIA's data sheets.  Others have it, or may have a bridge, as A40.
WITHOUT_NVLINK = re.compile(
    r"\b(?:L2|L4|L20|L40S?|A2|A10G?|A16|T4G?)\b|\bRTX (?:PRO\b|\d{4} (?:SFF )?Ada|[45]0[5-9]0)"
)


def has_no_nvlink(models: Sequence[str]) -> bool:
    """Return whether none of these GPUs can have NVLink; False where no GPU is known."""
    return bool(models) and all(WITHOUT_NVLINK.search(model) for model in models)


def can_have_nvlink(value: str, node: NodeContext) -> bool:
    """Return whether the node's GPUs have NVLink, or may have it."""
    return not has_no_nvlink(node.gpus)


def hostid_shared(value: str, node: NodeContext) -> bool:
    """Return whether a node on another machine has the same NCCL_HOSTID."""
    return node.hostid_shared


# Logs.


def file_not_unique(value: str, node: NodeContext) -> bool:
    """Return whether processes may share the file: %h (host) or %p (process) is not in its name."""
    return value not in ("/dev/stdout", "/dev/stderr") and not ("%h" in value and "%p" in value)


def logs_all_subsystems(value: str, node: NodeContext) -> bool:
    """Return whether every subsystem logs."""
    return "all" in value.lower().split(",")


# RDMA devices (NCCL_IB_HCA).


def device_missing(value: str, node: NodeContext) -> bool | str:
    """Return the entries that match no RDMA device of the node."""
    return _check_entries(value, lambda spec: spec.absent(node.rdma))


def device_ambiguous(value: str, node: NodeContext) -> bool | str:
    """Return the further devices that an entry without = matches: mlx5_10 for mlx5_1."""
    return _check_entries(value, lambda spec: spec.ambiguous(node.rdma))


def devices_by_prefix(value: str, node: NodeContext) -> bool:
    """Return whether this is an inclusion list without = that is not ambiguous today."""
    spec = name_list(value)
    return spec is not None and not (spec.exact or spec.exclude or spec.ambiguous(node.rdma))


def devices_excluded(value: str, node: NodeContext) -> bool:
    """Return whether this is an exclusion list."""
    spec = name_list(value)
    return spec is not None and spec.exclude


def has_software_rdma(value: str, node: NodeContext) -> bool | str:
    """Return admitted Soft-RoCE and Soft-iWARP devices: RDMA over TCP or UDP in the kernel."""
    software = [name for name in node.rdma if name.startswith(("rxe", "siw"))]
    return _check_entries(value, lambda spec: spec.admitted(software))


def unused_devices(value: str, node: NodeContext) -> bool | str:
    """Return the devices with an active port that the list does not admit."""
    return _check_entries(value, lambda spec: [d for d in node.rdma_active if not spec.admits(d)])


# Interfaces (NCCL_SOCKET_IFNAME, and GLOO_SOCKET_IFNAME, which has no signs and no prefixes).


def interface_missing(value: str, node: NodeContext) -> bool | str:
    """Return the node's interfaces in words if the list admits none of them."""
    spec = name_list(value)
    if spec is None or not node.interfaces or spec.admitted(node.interfaces):
        return False
    return f"the node has {_shorten(node.interfaces)}"


def only_local_interfaces(value: str, node: NodeContext) -> bool | str:
    """Return admitted interfaces if all are loopback or bridges and there are other machines."""
    admitted, local_names = _local_interfaces(name_list(value), node)
    return admitted == local_names and _shorten(local_names)


def loopback_first(value: str, node: NodeContext) -> bool:
    """Return whether the loopback is among the admitted, and others are, too.

    NCCL takes interfaces in the kernel's order (src/misc/socket.cc, findInterfaces).
    """
    admitted, local_names = _local_interfaces(name_list(value), node)
    return admitted != local_names and "lo" in local_names


def some_local_interfaces(value: str, node: NodeContext) -> bool | str:
    """Return bridges among the admitted, if there are other machines and no loopback is."""
    admitted, local_names = _local_interfaces(name_list(value), node)
    return admitted != local_names and "lo" not in local_names and _shorten(local_names)


def interface_ambiguous(value: str, node: NodeContext) -> bool | str:
    """Return the further interfaces that an entry without = matches: eth10 for eth1."""
    return _check_entries(value, lambda spec: spec.ambiguous(node.interfaces))


def fabric_not_admitted(value: str, node: NodeContext) -> bool | str:
    """Return the interfaces of the agreed fabric that the node has and the list does not admit."""
    return _shorten(_excluded_fabric(name_list(value), node))


def interfaces_off_fabric(value: str, node: NodeContext) -> bool | str:
    """Return admitted interfaces other than the agreed fabric that reach other machines.

    Nothing is found where the list does not admit the fabric: see `fabric_not_admitted`.
    """
    spec, fabric = name_list(value), interfaces_of(node.fabric)
    if spec is None or {*fabric}.isdisjoint(spec.admitted(node.interfaces)):
        return False
    unwanted = [name for name in spec.admitted(node.interfaces) if name not in fabric]
    return _shorten([name for name in unwanted if not is_local(name)])


def gloo_interface_missing(value: str, node: NodeContext) -> bool | str:
    """Return the entries that are no interface of the node; gloo stops at the first such entry."""
    spec = plain_list(value)
    return bool(spec and node.interfaces) and _shorten(spec.absent(node.interfaces) if spec else [])


def gloo_interface_local(value: str, node: NodeContext) -> bool | str:
    """Return the entries that are loopback or a bridge, if there are other machines."""
    return _shorten(_local_interfaces(plain_list(value), node)[1])


def gloo_off_fabric(value: str, node: NodeContext) -> bool:
    """Return whether no interface of the agreed fabric that the node has is in the list."""
    known = [name for name in interfaces_of(node.fabric) if name in node.interfaces]
    return bool(known) and len(_excluded_fabric(plain_list(value), node)) == len(known)


def _excluded_fabric(spec: NameList | None, node: NodeContext) -> list[str]:
    # Plugins of Google's clouds have a variable of their own for the fabric; sockets use another.
    if {"NCCL_FASTRAK_IFNAME", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"} & node.variables.keys():
        return []
    known = [name for name in interfaces_of(node.fabric) if name in node.interfaces]
    return [name for name in known if spec and name not in spec.admitted(node.interfaces)]


def _local_interfaces(spec: NameList | None, node: NodeContext) -> tuple[list[str], list[str]]:
    """Return the admitted interfaces and the local ones of them; both [] without other machines."""
    if spec is None or node.machine_count < 2:
        return [], []
    admitted = spec.admitted(node.interfaces)
    return admitted, [name for name in admitted if is_local(name)]


def _check_entries(value: str, select: Callable[[NameList], Iterable[str]]) -> str:
    spec = name_list(value)
    return _shorten(select(spec)) if spec else ""


def _shorten(names: Iterable[str]) -> str:
    """Join the first six names; "" (nothing found) for none."""
    return join_names(names, 6)


def read_ib_hca() -> str:
    """Read NCCL_IB_HCA as NCCL does on this node, from environment or conf file; "" if unset."""
    environment = dict(os.environ)
    files, _ = read_nccl_conf_files(environment)
    return effective_values(environment, files).get("NCCL_IB_HCA", ("", ""))[0]


def nccl_ports(ports: list[dict[str, str]], hca: str) -> list[dict[str, str]]:
    """Select the ports (as of `rdma_ports`) that an NCCL_IB_HCA admits; all of them where it is "".

    An entry is a device, or one port of a device: mlx5_0:1.
    """
    spec = name_list(hca)
    if spec is None:
        return ports
    entries = [entry.split(":") for entry in hca.lstrip("^=").split(",") if entry]

    def is_listed(port: dict[str, str]) -> bool:
        return any(
            NameList((device,), spec.exact).matches(port["device"])
            and number[:1] in ([], [""], [port["port"]])
            for device, *number in entries
        )

    return [port for port in ports if is_listed(port) != spec.exclude]


def admitted_facts(facts: list[dict[str, Any]], hcas: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the nodes' facts with the RDMA ports that `hcas`, NCCL_IB_HCA by node id, admits."""
    return [{**one, "rdma": nccl_ports(one["rdma"], hcas.get(one["node"], ""))} for one in facts]


def count_rails(facts: list[dict[str, Any]]) -> int | None:
    """Count the rails of the best node, active or not; None where no rails are known."""
    counts = [len(rails) for rails in installed_rails([f["rdma"] for f in facts]) if rails]
    return max(counts, default=None)
