"""Which road was taken, and why it was the wrong one: findings FAB-* from an NCCL log.

On one host nothing has to leave, so none of these is said of a job that NCCL counts one node for.
"""

from __future__ import annotations

import re
from collections import defaultdict

from probes.findings import SHOWN, finding, listed
from probes.nccl.evidence import PLACES, hosts_of, on_rdma, on_tcp, places, told, undecided
from probes.nccl.job import Host, Rank
from probes.nccl.log import Log
from reports.record import Finding

# `br-` and twelve digits is a network of docker's; `br-ex` may be a node's only way out.
LEADS_NOWHERE = re.compile(r"lo$|docker|virbr|cni|veth|br-[0-9a-f]{12}|flannel|cali")
INTERNAL = re.compile(r"NET plugin (?:IB|Socket)\b")
ABSENT = "cannot open shared object"
PLAIN = {  # phrase -> code, and what it says of a host that RDMA does not reach
    "no-verbs": ("FAB-NO-VERBS", "libibverbs cannot be opened, so no RDMA device is seen"),
    "open-failed": ("FAB-OPEN-FAILED", "an RDMA device is seen but cannot be opened"),
    "links-differ": ("FAB-LINK-TYPES", "devices of different link types were to be joined"),
}


def alone(log: Log) -> list[Finding]:
    """Every host in a communicator of its own: nothing crossed the fabric."""
    hosts, jobs = log.host_names, log.jobs
    if len(hosts) < 2 or log.nodes > 1 or not jobs or log.partial:
        return []
    if any(log.edges[kind] for kind in ("rdma", "tcp", "other")):
        return []
    if any(len({host for host, _ in job}) > 1 for job in jobs):
        return []
    said = f"each of {len(hosts)} hosts formed a communicator of its own; nothing left a host"
    return [finding("FAB-ALONE", said, hosts[:SHOWN])]


def mixed(log: Log) -> list[Finding]:
    """Some hosts on RDMA, others on TCP; the minority is named."""
    tcp = [name for name, host in log.hosts.items() if on_tcp(host)]
    rdma = [name for name, host in log.hosts.items() if on_rdma(host) and name not in tcp]
    seen = log.seen["mixed-sockets"]
    if not seen and not (tcp and rdma):
        return []
    minority = rdma if len(rdma) < len(tcp) else tcp
    at = [*places(seen), *(_first(log.hosts[name]) for name in minority)][:PLACES]
    if not tcp:
        met = listed(hosts_of(seen))
        said = f"{met}: a TCP socket met an RDMA one; the peer's lines do not say which it uses"
        return [finding("FAB-MIXED", said, evidence=at)]
    said = f"{listed(tcp)} use TCP, {listed(rdma) or 'others'} use RDMA"
    return [finding("FAB-MIXED", said, minority[:SHOWN], evidence=at)]


def tcp(log: Log) -> list[Finding]:
    """Edges between hosts over sockets."""
    if not log.edges["tcp"] or mixed(log):
        return []
    hosts = {name: host for name, host in log.hosts.items() if "tcp" in host.edges}
    ways = sorted({interface for host in hosts.values() for interface, _ in host.sockets})
    by = f" ({listed(ways)})" if ways else ""
    said = f"{log.edges['tcp']} connections between hosts go over TCP sockets{by}"
    at = [host.edges["tcp"] for host in hosts.values()][:PLACES]
    return [finding("FAB-TCP", said, [name for name in hosts if name][:SHOWN], evidence=at)]


def disabled(log: Log) -> list[Finding]:
    """A variable that forced RDMA off."""
    found = [
        (name, f"{variable}={value}", where)
        for name, host in log.hosts.items()
        if not (on_rdma(host) or "other" in host.edges or undecided(log, host))
        for variable, (value, where) in host.environment.items()
        if turns_off(variable, value, host)
    ]
    if not found:
        return []
    hosts = list(dict.fromkeys(name for name, _, _ in found if name))
    what = listed(dict.fromkeys(setting for _, setting, _ in found))
    # NCCL puts the lines of its conf files into the environment, and echoes both alike (param.cc).
    both = "from the environment or a line of an nccl.conf: NCCL says the same of both"
    said = f"{listed(hosts) or 'the job'}: {what} turns RDMA off ({both})"
    at = [where for _, _, where in found[:PLACES]]
    return [finding("FAB-ENV-DISABLED", said, hosts[:SHOWN], evidence=at)]


def turns_off(variable: str, value: str, host: Host) -> bool:
    """Whether this setting keeps NCCL from RDMA.

    NCCL_IB_HCA does where it leaves no device, and to want no plugin where nothing else is there:
    then EFA, or FasTrak, was to be reached by one.
    """
    return {
        "NCCL_IB_DISABLE": value not in ("", "0"),
        "NCCL_IBEXT_DISABLE": value not in ("", "0"),
        "NCCL_NET": value.lower() == "socket",
        "NCCL_IB_HCA": host.devices == [],
        "NCCL_NET_PLUGIN": value.lower() == "none" and host.devices == [],
    }.get(variable, False)


def plain(log: Log) -> list[Finding]:
    """Errors that say what is wrong in their own words."""
    found = []
    for kind, (code, what) in PLAIN.items():
        # A device that cannot be opened is one rail less even where the others work.
        whole = kind == "open-failed"
        seen = [
            s
            for s in log.seen[kind]
            if whole or not (on_rdma(s.rank.host) or undecided(log, s.rank.host))
        ]
        found += told(code, what, seen)
    return found


def efa(log: Log) -> list[Finding]:
    """libfabric without an EFA device, where nothing else carries RDMA."""
    fallen = any(host.name and not on_rdma(host) for host in log.hosts.values())
    seen = [
        s
        for s in log.seen["efa"]
        if not (on_rdma(s.rank.host) or undecided(log, s.rank.host))
        and (s.rank.host.name or fallen)
    ]
    what = f"libfabric offers no EFA device ({seen[0].detail})" if seen else ""
    return told("FAB-NO-EFA", what, seen)


def no_device(log: Log) -> list[Finding]:
    """No RDMA device, and nothing in the log that says why."""
    explained = {s.rank.writer.host for kind in (*PLAIN, "efa") for s in log.seen[kind]}
    seen = []
    for sighting in log.seen["no-device"]:
        host = sighting.rank.host
        off = any(turns_off(k, value, host) for k, (value, _) in host.environment.items())
        elsewhere = on_rdma(host) or "other" in host.edges or undecided(log, host)
        if not (off or elsewhere or sighting.rank.writer.host in explained):
            seen.append(sighting)
    return told("FAB-NO-DEVICE", "NCCL sees no RDMA device", seen)


def ipoib(log: Log) -> list[Finding]:
    """Sockets over an InfiniBand interface: the fast cable, the slow protocol."""
    hosts = {
        name: ports
        for name, host in log.hosts.items()
        if on_tcp(host) and (ports := [i for i, _ in host.sockets if i.startswith("ib")])
    }
    if not hosts:
        return []
    which = listed(sorted({port for found in hosts.values() for port in found}))
    said = f"{listed(hosts)}: TCP over InfiniBand ({which}) is TCP, not RDMA"
    at = [where for name in hosts if (where := log.hosts[name].edges.get("tcp"))][:PLACES]
    return [finding("FAB-IPOIB", said, list(hosts)[:SHOWN], evidence=at)]


def loopback(log: Log) -> list[Finding]:
    """An interface that leads to no other host."""
    found: dict[str, str] = {}
    for name, host in log.hosts.items():
        if "rdma" in host.edges:
            continue  # whatever it is called, it led to the others
        used = [host.bootstrap] if host.bootstrap and not log.partial else []
        used += host.sockets[:1] if on_tcp(host) else []
        if bad := [interface for interface, _ in used if LEADS_NOWHERE.match(interface)]:
            found[name] = bad[0]
    if not found:
        return []
    which = listed(sorted(set(found.values())))
    said = f"{listed(found)}: NCCL chose {which}, which leads to no other host"
    return [finding("FAB-LOOPBACK", said, list(found)[:SHOWN])]


def plugin(log: Log) -> list[Finding]:
    """A network plugin that is missing or fails where one is expected.

    Not finding one is how NCCL starts on most clusters; it is a fault where a variable asks for
    one, or another host has it.
    """
    loaded = {
        s.rank.writer.host for s in log.seen["plugin-loaded"] if not INTERNAL.search(s.detail)
    }
    broken = [s for s in log.seen["plugin-failed"] if not INTERNAL.search(s.detail)]
    absent = [*(s for s in broken if ABSENT in s.detail), *log.seen["plugin-absent"]]
    seen = [s for s in broken if ABSENT not in s.detail]
    seen += [s for s in absent if loaded - {s.rank.writer.host} or _wants_plugin(s.rank.host)]
    efa = {s.rank.writer.host for s in log.seen["efa"]}  # it failed for want of that
    seen = [
        s
        for s in seen
        if not (on_rdma(s.rank.host) or undecided(log, s.rank.host) or s.rank.writer.host in efa)
    ]
    what = f"the network plugin is missing or fails ({seen[0].detail})" if seen else ""
    return told("FAB-PLUGIN", what, seen)


def _wants_plugin(host: Host) -> bool:
    asked, _ = host.environment.get("NCCL_NET_PLUGIN", ("", ""))
    network, _ = host.environment.get("NCCL_NET", ("", ""))
    return asked not in ("", "none") or network.lower() not in ("", "ib", "socket")


def no_gdr(log: Log) -> list[Finding]:
    """RDMA edges that go through host memory."""
    hosts = {name: host.no_gdr for name, host in log.hosts.items() if host.no_gdr}
    if not hosts and False not in log.gdr:
        return []
    why = log.seen["gdr-why"]
    reason = f" ({why[0].detail})" if why else ""
    who = listed(hosts) or "ranks whose edges are not here"  # of all ranks all say GDR 0
    said = f"{who}: RDMA without GPUDirect, through host memory{reason}"
    at = list(hosts.values())[:PLACES] or [log.gdr_0]
    return [finding("FAB-NO-GDR", said, [name for name in hosts if name][:SHOWN], evidence=at)]


def partial_rails(log: Log) -> list[Finding]:
    """Fewer RDMA devices than the other hosts have, or fewer in use than there are GPUs for."""
    found = {}
    most = max((len(host.devices or []) for host in log.hosts.values()), default=0)
    by_host: dict[str, list[Rank]] = defaultdict(list)
    for rank in log.ranks.values():
        if rank.ranks:
            by_host[rank.writer.host].append(rank)
    for name, host in log.hosts.items():
        if not host.devices or not on_rdma(host):
            continue
        local = by_host[name]
        gpus = max((rank.local for rank in local), default=0) or len(local)
        usable, used = min(gpus, len(host.devices)), _used(host)
        if len(host.devices) < most:
            found[name] = f"{len(host.devices)} devices where others have {most}"
        elif used and not log.partial and len(local) == gpus and len(used) < usable:
            found[name] = f"uses {len(used)} of {len(host.devices)} devices"
    if not found:
        what = "the ranks have different numbers of RDMA devices"
        return told("FAB-PARTIAL-RAILS", what, log.seen["nic-counts"])
    said = "; ".join(f"{name}: {what}" for name, what in list(found.items())[:SHOWN])
    return [finding("FAB-PARTIAL-RAILS", said, list(found)[:SHOWN])]


def _used(host: Host) -> set[str]:
    """The devices that ring edges use; empty where a number stands for ports that no line names.

    Ports that NCCL uses as one have a number beyond those of the devices that it lists.
    """
    names = {**dict(enumerate(host.devices or [])), **host.virtual}
    if not host.nics <= names.keys():
        return set()
    return {port for nic in host.nics for port in names[nic].split("+")}


def unknown_network(log: Log) -> list[Finding]:
    """Edges of a network plugin that nobody here can vouch for."""
    if not log.other_networks:
        return []
    at = list(log.other_networks.values())[:PLACES]
    said = f"ranks are joined by {listed(log.other_networks)}: no known RDMA network"
    return [finding("FAB-UNKNOWN-NET", said, evidence=at)]


def _first(host: Host) -> str:
    """Where the host's road was first said."""
    return next(iter([*host.edges.values(), *host.networks.values()]), "")
