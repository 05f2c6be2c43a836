"""What makes a value wrong: checks that the rules of the environment lint are made of.

A check looks at a value and at the node it is set on.  It answers False, True, or a word on what
it found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from probes.environment.values import LEVELS, NameList, local, name_list, number, plain_list
from probes.findings import listed


@dataclass(frozen=True)
class Place:
    """What a rule may look at beside the value: one node, and what it shares with others."""

    interfaces: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()
    rdma_active: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    missing: Mapping[str, list[str]] = field(default_factory=dict)
    variables: frozenset[str] = frozenset()
    libraries: tuple[Mapping[str, str], ...] = ()
    fabric: str | None = None
    machines: int = 1  # of the whole cluster
    hostid_shared: bool = False  # a node on another machine has the same NCCL_HOSTID

    @property
    def nccl(self) -> tuple[int, ...] | None:
        """Version of the likely libnccl; None when unknown."""
        version = self.libraries[0].get("version", "") if self.libraries else ""
        parts = version.split(".")
        return tuple(map(int, parts)) if all(p.isdecimal() for p in parts) else None


Check = Callable[[str, Place], bool | str]


def anything(value: str, place: Place) -> bool:
    """The variable is set at all."""
    return True


def nonzero(value: str, place: Place) -> bool:
    """NCCL reads a number other than 0."""
    return number(value) not in (None, 0)


def equals(wanted: int) -> Check:
    """NCCL reads this number."""
    return lambda value, place: number(value) == wanted


def outside(low: int, high: int) -> Check:
    """NCCL reads a number that is not in low..high, both included."""
    return lambda value, place: (read := number(value)) is not None and not low <= read <= high


def at_least(low: int) -> Check:
    """NCCL reads a number from `low` on."""
    return lambda value, place: (read := number(value)) is not None and read >= low


def word(*words: str) -> Check:
    """The value is one of these words, in capitals or not."""
    return lambda value, place: value.lower() in words


def both(one: Check, other: Check) -> Check:
    """Both checks; what the second says is said."""
    return lambda value, place: bool(one(value, place)) and other(value, place)


def neither(check: Check) -> Check:
    """The check finds nothing."""
    return lambda value, place: not check(value, place)


# Levels of distance (src/graph/paths.cc, ncclGetLevel: capitals, or a number of the old scale).


def level_local(value: str, place: Place) -> bool:
    """The level LOC, which never uses the direct way."""
    return value == "LOC" or _level_number(value) == 0


def level_numbered(value: str, place: Place) -> bool | str:
    """A number above 0 instead of a level's name."""
    read = _level_number(value)
    if not read:
        return False
    return f"{read} is read as {('LOC', 'PIX', 'PXB', 'PHB', 'SYS')[min(read, 4)]}"


def level_unknown(value: str, place: Place) -> bool:
    """No level that NCCL knows; names count in capitals only."""
    return value not in LEVELS and _level_number(value) is None


def _level_number(value: str) -> int | None:
    return number(value) if value.startswith(tuple("0123456789")) else None


# Networks and plugins.


def internal_without_device(value: str, place: Place) -> bool:
    """NCCL's own RDMA is demanded on a node without any RDMA device."""
    return value.lower() == "ib" and not place.rdma


def needs_plugin(value: str, place: Place) -> bool:
    """RDMA works here by a plugin only: EFA, or Google's GPUDirect-TCPX and FasTrak."""
    efa = place.rdma and all(name.startswith(("efa", "rdmap")) for name in place.rdma)
    signs = ("FI_EFA_", "NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_")
    return bool(efa) or any(name.startswith(signs) for name in place.variables)


def file_missing(variable: str) -> Check:
    """The path that the variable names does not exist."""
    return lambda value, place: _some(place.missing.get(variable, []))


def old_nccl(major: int, minor: int) -> Check:
    """The likely libnccl is known and older than this version."""
    return lambda value, place: place.nccl is not None and place.nccl < (major, minor)


def another_libnccl(variable: str) -> Check:
    """A libnccl that this variable brings is of another version than one found elsewhere."""

    def check(value: str, place: Place) -> bool | str:
        known = [library for library in place.libraries if library["version"]]
        brought = [library for library in known if library["found"] == variable]
        others = [x for x in known if x["found"] not in (variable, "loader")]
        versions = {library["version"] for library in brought + others}
        return bool(brought) and len(versions) > 1 and described(brought + others)

    return check


def described(libraries: Iterable[Mapping[str, str]]) -> str:
    """Libraries in words: "2.27.5 at /a (torch), 2.18.3 at /b (LD_PRELOAD)"."""
    return _some([f"{x['version']} at {x['path']} ({x['found']})" for x in libraries])


def nvlink_over_nodes(value: str, place: Place) -> bool:
    """The node is one of an NVLink domain of several nodes: GB200, GB300."""
    return any("GB200" in model or "GB300" in model for model in place.gpus)


def hostid_shared(value: str, place: Place) -> bool:
    """A node on another machine carries the same NCCL_HOSTID."""
    return place.hostid_shared


# Logs.


def file_not_unique(value: str, place: Place) -> bool:
    """Several processes would write the one file: %h (host) or %p (process) is not in its name."""
    stream = value in ("/dev/stdout", "/dev/stderr")
    return not stream and not ("%h" in value and "%p" in value)


def subsystem_all(value: str, place: Place) -> bool:
    """Every subsystem logs."""
    return "all" in value.lower().split(",")


# RDMA devices (NCCL_IB_HCA).


def device_missing(value: str, place: Place) -> bool | str:
    """An entry stands for no RDMA device of the node."""
    return _listed(value, lambda read: read.absent(place.rdma))


def device_ambiguous(value: str, place: Place) -> bool | str:
    """An entry without = stands for further devices: mlx5_1 for mlx5_10."""
    return _listed(value, lambda read: read.ambiguous(place.rdma))


def devices_by_prefix(value: str, place: Place) -> bool:
    """A list of inclusion without =, that is not ambiguous today."""
    read = name_list(value)
    return read is not None and not (read.exact or read.exclude or read.ambiguous(place.rdma))


def devices_excluded(value: str, place: Place) -> bool:
    """A list of what not to use."""
    read = name_list(value)
    return read is not None and read.exclude


def device_in_software(value: str, place: Place) -> bool | str:
    """Soft-RoCE or Soft-iWARP is admitted: RDMA's interface over TCP or UDP in the kernel."""
    soft = [name for name in place.rdma if name.startswith(("rxe", "siw"))]
    return _listed(value, lambda read: read.admitted(soft))


def devices_left_out(value: str, place: Place) -> bool | str:
    """Devices with an active port are not used."""
    return _listed(value, lambda read: [d for d in place.rdma_active if not read.admits(d)])


# Interfaces (NCCL_SOCKET_IFNAME, and GLOO_SOCKET_IFNAME, which has no signs and no prefixes).


def interface_missing(value: str, place: Place) -> bool | str:
    """The list admits no interface of the node."""
    read = name_list(value)
    if read is None or not place.interfaces or read.admitted(place.interfaces):
        return False
    return f"there are {_some(place.interfaces)}"


def only_local(value: str, place: Place) -> bool | str:
    """All that the list admits are loopback and bridges, and there are other machines."""
    admitted, inner = _locals(name_list(value), place)
    return admitted == inner and _some(inner)


def also_local(value: str, place: Place) -> bool | str:
    """Loopback or bridges are among what the list admits, and there are other machines."""
    admitted, inner = _locals(name_list(value), place)
    return admitted != inner and _some(inner)


def interface_ambiguous(value: str, place: Place) -> bool | str:
    """An entry without = stands for further interfaces: eth1 for eth10."""
    return _listed(value, lambda read: read.ambiguous(place.interfaces))


def fabric_refused(value: str, place: Place) -> bool:
    """The agreed fabric is an interface of the node, and the list does not admit it."""
    return _refused(name_list(value), place)


def beside_fabric(value: str, place: Place) -> bool | str:
    """The list admits the agreed fabric and other interfaces that reach other machines."""
    read = name_list(value)
    if read is None or place.fabric not in read.admitted(place.interfaces):
        return False
    others = [name for name in read.admitted(place.interfaces) if name != place.fabric]
    return _some([name for name in others if not local(name)])


def gloo_missing(value: str, place: Place) -> bool | str:
    """An entry is no interface of the node; gloo stops at the first such."""
    read = plain_list(value)
    return bool(read and place.interfaces) and _some(read.absent(place.interfaces) if read else [])


def gloo_local(value: str, place: Place) -> bool | str:
    """An entry is loopback or a bridge, and there are other machines."""
    return _some(_locals(plain_list(value), place)[1])


def gloo_off_fabric(value: str, place: Place) -> bool:
    """The agreed fabric is an interface of the node, and not in the list."""
    return _refused(plain_list(value), place)


def _refused(read: NameList | None, place: Place) -> bool:
    known = place.fabric is not None and place.fabric in place.interfaces
    return known and read is not None and place.fabric not in read.admitted(place.interfaces)


def _locals(read: NameList | None, place: Place) -> tuple[list[str], list[str]]:
    """Interfaces that a list admits, and those of them that reach no other machine."""
    if read is None or place.machines < 2:
        return [], []
    admitted = read.admitted(place.interfaces)
    return admitted, [name for name in admitted if local(name)]


def _listed(value: str, look: Callable[[NameList], Iterable[str]]) -> str:
    read = name_list(value)
    return _some(look(read)) if read else ""


def _some(names: Iterable[str]) -> str:
    """Names in words, the first six of many; "" (nothing found) for none."""
    return listed(names, 6)
