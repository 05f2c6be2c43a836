"""Detects which transport was used, and why it was the wrong one: findings FAB-* from an NCCL log.

On one host no traffic has to leave, so DETECTORS do not apply to a job on a single host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from probes.findings import MAX_NAMES, join_names
from probes.nccl.calls import hosts_of, message_findings, name_hosts, one_finding
from probes.nccl.job import Host
from probes.nccl.log import Log
from probes.nccl.patterns import TEXT, read_plain_errors, say
from reports.groups import group_pairs
from reports.record import Finding

FILE_MISSING = "cannot open shared object"


def on_tcp(host: Host) -> bool:
    """Return whether the host's edges to other hosts, or else its network, are sockets."""
    return "tcp" in host.edges or ("Socket" in host.networks and not on_rdma(host))


def on_rdma(host: Host) -> bool:
    """Return whether the host's edges to other hosts, or else its network, are RDMA."""
    has_rdma = any(TEXT["rdma"].fullmatch(name) for name in host.networks)
    return "rdma" in host.edges or (has_rdma and "tcp" not in host.edges)


def may_use_rdma(log: Log, host: Host) -> bool:
    """Return whether the host is on RDMA, or the line that names its network may be missing."""
    return on_rdma(host) or (log.partial and not host.networks and not host.edges)


def isolated_hosts(log: Log) -> Iterator[Finding]:
    """Report hosts that each formed a communicator of their own: nothing crossed the fabric."""
    hosts = log.host_names
    complete = [comm for comm in log.communicators.values() if len(comm.members) == comm.size]
    alone = {member.rank.writer.host for comm in complete for member in comm.members.values()}
    crossing = any(len({host for host, _ in job}) > 1 for job in log.jobs)
    if log.partial or log.nodes > 1 or log.external_edges or crossing:
        return
    if len(hosts) > 1 and alone >= {*hosts}:
        yield one_finding("FAB-ALONE", say("alone", count=len(hosts)), hosts)


def hosts_on_tcp(log: Log) -> Iterator[Finding]:
    """Find hosts that use TCP: the minority if others use RDMA, or else all of them."""
    tcp = [name for name, host in log.hosts.items() if on_tcp(host)]
    rdma = [name for name, host in log.hosts.items() if on_rdma(host) and name not in tcp]
    hits, count = log.hits["mixed-sockets"], log.host_edges.counts["tcp"]
    if hits or (tcp and rdma):
        minority = rdma if len(rdma) < len(tcp) else tcp
        lines = [*(hit.line for hit in hits), *(_first_line(log.hosts[name]) for name in minority)]
        message = f"TCP is used on {join_names(tcp)}, RDMA on {join_names(rdma) or 'other hosts'}"
        if not tcp:  # then there is no minority
            message = f"{join_names(hosts_of(hits))}: {say('mixed')}"
        yield one_finding("FAB-MIXED", message, minority, lines)
    elif count:
        hosts = {name: host for name, host in log.hosts.items() if "tcp" in host.edges}
        interfaces = sorted({interface for host in hosts.values() for interface, _ in host.sockets})
        suffix = f" ({join_names(interfaces)})" if interfaces else ""
        use = "connection between hosts uses" if count == 1 else "connections between hosts use"
        message = f"{count} {use} TCP sockets{suffix}, not RDMA"
        lines = [host.edges["tcp"] for host in hosts.values()]
        first = "".join(interfaces[:1])
        yield one_finding("FAB-TCP", message, filter(None, hosts), lines, interface=first)


def host_faults(
    code: str, find: Callable[[Log, Host], Mapping[str, str]], kind: str, log: Log
) -> Iterator[Finding]:
    """Find hosts with a fault of their own.

    `find` maps what is wrong with a host to a line, if any. The first thing that is wrong is the
    placeholder `kind` of the finding's steps.
    """
    found = {name: wrong for name, host in log.hosts.items() if (wrong := find(log, host))}
    if found:
        things = list(dict.fromkeys(thing for wrong in found.values() for thing in wrong))
        hosts = list(filter(None, found))
        message = name_hosts(hosts, say(code, things=join_names(things)))
        lines = [line for wrong in found.values() for line in wrong.values() if line]
        yield one_finding(code, message, hosts, lines, **{kind: things[0].partition("=")[0]})


def _disabling(host: Host) -> dict[str, str]:
    """Map the settings of a host that turn RDMA off to their places."""
    off = TEXT["turns_off_without_device" if host.devices == [] else "turns_off"]
    settings = {f"{variable}={value}": line for variable, (value, line) in host.environment.items()}
    return {setting: line for setting, line in settings.items() if off.fullmatch(setting)}


def _find_disabling(log: Log, host: Host) -> dict[str, str]:
    return {} if may_use_rdma(log, host) or "other" in host.edges else _disabling(host)


def _find_two_links(log: Log, host: Host) -> dict[str, str]:
    """Find links of two kinds, InfiniBand and RoCE, that the rings of a host use."""
    used = {device: host.link_types.get(device, "") for device in sorted(_used_devices(host))}
    listing = join_names(f"{device}/{kind}" for device, kind in used.items())
    return {listing: ""} if {"IB", "RoCE"} <= {*used.values()} else {}


def _find_ipoib(log: Log, host: Host) -> dict[str, str]:
    """Find sockets over an InfiniBand interface: a fast link with a slow protocol."""
    ports = [name for name, _ in host.sockets if name.startswith("ib")] if on_tcp(host) else []
    return dict.fromkeys(ports, host.edges.get("tcp", ""))


def _find_local_only(log: Log, host: Host) -> dict[str, str]:
    """Find the first interface that NCCL chose and that leads to no other host."""
    used = [host.bootstrap] if host.bootstrap and not log.partial else []
    used += host.sockets if on_tcp(host) else []
    bad = [interface for interface, _ in used if TEXT["local_only"].match(interface)]
    return {} if "rdma" in host.edges else dict.fromkeys(bad[:1], "")


def disabled_notes(log: Log) -> list[str]:
    """Note what turns RDMA off, where the log does not show whether traffic leaves a host."""
    hosts = [host for host in log.hosts.values() if not on_rdma(host)]
    found = {setting: line for host in hosts for setting, line in _disabling(host).items()}
    if log.others.ib_off and not found:
        found = {"NCCL_IB_DISABLE=1": log.others.ib_off}
    return [f"{line}: {setting} turns RDMA off" for setting, line in found.items()][:MAX_NAMES]


def staged_sends(log: Log) -> Iterator[str]:
    """Say that a host receives with GPUDirect and sends without, which may be sound."""
    for place in [host.staged_send for host in log.hosts.values() if host.staged_send][:1]:
        yield say("staged", place=place)


def slow_path_notes(log: Log) -> list[str]:
    """Note RDMA devices that the kernel emulates, and a start over a tunnel or the loopback."""
    found: dict[str, dict[str, str]] = defaultdict(dict)  # note -> host -> device or interface
    for name, host in ((name, host) for name, host in log.hosts.items() if name):
        first = host.bootstrap[0] if host.bootstrap else ""
        if len(host.sockets) > 1 and host.sockets[0][0] == "lo" and not log.crosses_hosts:
            found["loopback_first"][name] = "lo"
        for device in filter(TEXT["emulated"].match, (host.devices or [])[:MAX_NAMES]):
            found["slow_device"][name] = device
        if TEXT["tunnel"].match(first):
            found["tunnels"][name] = first
    texts = {note: join_names(dict.fromkeys(hosts.values())) for note, hosts in found.items()}
    return [f"{join_names(found[note])}: {say(note, names=text)}" for note, text in texts.items()]


def rdma_errors(log: Log) -> Iterator[Finding]:
    """Find RDMA errors whose own text names the cause, and hosts without any device."""
    faults = read_plain_errors(network=True)
    explained = {m.host.name for kind in faults for m in log.hits[kind]}
    tcp_host = any(host.name and not on_rdma(host) for host in log.hosts.values())
    lacks = ("no-device", ("FAB-NO-DEVICE", "NCCL sees no RDMA device"))
    for kind, (code, problem) in (*faults.items(), lacks):
        # A device that cannot be opened is a lost rail even if the other devices work.
        hits = [m for m in log.hits[kind] if kind == "open-failed" or not may_use_rdma(log, m.host)]
        if kind == "no-verbs" and log.others.ib_off:
            hits = []  # the library is not needed then
        if kind == "efa" and not tcp_host:
            hits = [m for m in hits if m.host.name]
        if kind == "no-device":  # where nothing in the log gives the reason
            hits = [m for m in hits if m.host.name not in explained and not _disabling(m.host)]
            hits = [m for m in hits if "other" not in m.host.edges]
        opened = [TEXT["opened"].search(m.detail) for m in hits]
        devices = dict.fromkeys(match[1] for match in opened if match)
        problem += f" ({join_names(devices)})" if devices else ""
        yield from message_findings(code, problem, hits, quote=kind == "efa")


def plugin_errors(log: Log) -> Iterator[Finding]:
    """Find a network plugin that is missing or fails although one is expected.

    On most clusters NCCL starts without a plugin. A missing one is an error if a variable asks for
    it, or if another host has it.
    """
    built_in = TEXT["built_in"].search
    loaded = {m.host.name for m in log.hits["plugin-loaded"] if not built_in(m.detail)}
    broken = [m for m in log.hits["plugin-failed"] if not built_in(m.detail)]
    absent = [*(m for m in broken if FILE_MISSING in m.detail), *log.hits["plugin-absent"]]
    hits = [m for m in broken if FILE_MISSING not in m.detail]
    hits += [m for m in absent if loaded - {m.host.name} or _wants_plugin(m.host)]
    no_efa = {m.host.name for m in log.hits["efa"]}  # the plugin failed for lack of EFA
    hits = [m for m in hits if not (may_use_rdma(log, m.host) or m.host.name in no_efa)]
    return message_findings("FAB-PLUGIN", "the network plugin is missing or fails", hits)


def _wants_plugin(host: Host) -> bool:
    plugin_name, _ = host.environment.get("NCCL_NET_PLUGIN", ("", ""))
    network, _ = host.environment.get("NCCL_NET", ("", ""))
    return plugin_name not in ("", "none") or network.lower() not in ("", "ib", "socket")


def no_gdr(log: Log) -> Iterator[Finding]:
    """Find RDMA edges that go through host memory, without GPUDirect."""
    hosts = {name: host.no_gdr for name, host in log.hosts.items() if host.no_gdr}
    if (not hosts and False not in log.gdr) or no_gdr_notes(log):
        return
    hosts = {name: line for name, line in hosts.items() if not may_lack_gdr(log, log.hosts[name])}
    reason = "".join(f" ({hit.detail})" for hit in log.hits["gdr-why"][:1])
    # All ranks log GDR 0 if one has it.
    nameless = "a host that is not named" if hosts else "ranks without connections in the log"
    some, remedy = "RDMA", ""
    if any(gdr for name in hosts for _, gdr in log.hosts[name].gdr):
        some, remedy = "some RDMA", say("gdr_distance")
    named = [name for name in hosts if name]
    message = f"{join_names(named) or nameless}: {some} {say('host_memory')}{reason}"
    yield one_finding("FAB-NO-GDR", message, named, list(hosts.values()) or [log.no_gdr], remedy)


def may_lack_gdr(log: Log, host: Host) -> bool:
    """Return whether the host is on EFA, and nothing shows that its GPUs have GPUDirect there.

    An instance with one GPU (p5.4xlarge) has none.
    """
    listed = [gpu for name, gpu in log.others.test_ranks.values() if name == host.name]
    gpus, has_gdr = host.gpus or listed, TEXT["gdr_on_efa"].search
    on_efa = {"ibfabric" in name or name == "OFI" for name in host.networks} == {True}
    return on_efa and not (len(gpus) > 1 and all(map(has_gdr, gpus)))


def no_gdr_notes(log: Log) -> list[str]:
    """Note that RDMA goes through host memory where the hardware has no GPUDirect."""
    devices = {device for host in log.hosts.values() for device in host.devices or ()}
    hosts = [host for host in log.hosts.values() if host.networks]
    hosts = [host for host in hosts if host.no_gdr] or hosts
    gpus, unified = {gpu for _, gpu in log.others.test_ranks.values()}, TEXT["unified"].search
    reasons = [
        (say("omni_path"), {one.startswith("hfi1") for one in devices}),
        (say("unified", gpus=join_names(sorted(gpus))), {bool(unified(gpu)) for gpu in gpus}),
        (say("old_efa"), {may_lack_gdr(log, host) for host in hosts}),
    ]
    staged = [reason for reason, holds in reasons if holds == {True}]
    shown = False in log.gdr or log.no_gdr
    return [f"RDMA is staged through host memory: {one}" for one in staged[:1] if shown]


def partial_rails(log: Log) -> Iterator[Finding]:
    """Report hosts with fewer RDMA devices than others, or with fewer in use than GPUs."""
    problems = {}
    most = max((len(host.devices or []) for host in log.hosts.values()), default=0)
    joined = [rank for rank in log.ranks.values() if rank.size]
    local_ranks = group_pairs((rank.writer.host, rank.local_ranks) for rank in joined)
    for name, host in log.hosts.items():
        if not host.devices or not on_rdma(host):
            continue
        count, used, local = len(host.devices), len(_used_devices(host)), local_ranks.get(name, [])
        gpus = max(local, default=0) or len(local)
        if count < most:
            problems[name] = f"{count} RDMA device{'s' * (count > 1)}, other hosts have {most}"
        elif 0 < used < min(gpus, count) and not log.partial and len(local) == gpus:
            problems[name] = f"uses {used} of {count} RDMA devices"
    if problems:
        texts = [f"{name}: {problem}" for name, problem in problems.items()]
        yield one_finding("FAB-PARTIAL-RAILS", "; ".join(texts[:MAX_NAMES]), problems)
    else:
        problem, hits = "the ranks have different numbers of RDMA devices", log.hits["nic-counts"]
        yield from message_findings("FAB-PARTIAL-RAILS", problem, hits, quote=False)


def _used_devices(host: Host) -> set[str]:
    """List the devices that ring edges use; none if one of them has a number without a name.

    Ports that NCCL merges have a number above those of the devices that it lists.
    """
    names = {**dict(enumerate(host.devices or [])), **host.merged_nics}
    if not host.nics <= names.keys():
        return set()
    return {port for nic in host.nics for port in names[nic].split("+")}


def unknown_network(log: Log) -> Iterator[Finding]:
    """Find edges over a network plugin that is not known to use RDMA."""
    if networks := log.other_networks:
        message = say("other_network", names=join_names(networks))
        yield one_finding("FAB-UNKNOWN-NET", message, lines=networks.values())


def _first_line(host: Host) -> str:
    """Find the place of the first line that shows the host's transport."""
    return next(iter([*host.edges.values(), *host.networks.values()]), "")


DETECTORS = (
    hosts_on_tcp, partial(host_faults, "FAB-ENV-DISABLED", _find_disabling, "variable"),
    rdma_errors, partial(host_faults, "FAB-LINK-TYPES", _find_two_links, ""),
    partial(host_faults, "FAB-IPOIB", _find_ipoib, "interface"),
    partial(host_faults, "FAB-LOOPBACK", _find_local_only, "interface"),
    plugin_errors, no_gdr, partial_rails, unknown_network,
)  # fmt: skip
