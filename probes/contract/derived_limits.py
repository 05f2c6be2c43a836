"""Derives limits from the cluster's own facts, above all where no contract was agreed.

Each limit has its reason.  Where the cluster gives no fact there is no limit: the measure stays
UNPROVEN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import RDMA
from probes.contract.contract import Contract
from probes.contract.limits import ring_limit
from probes.contract.terms import ClusterTerms
from probes.environment import checks
from probes.findings import join_names
from reports.measurement import Limit
from reports.numbers import percent, quantity
from scaling.collectives.line_rate import all_to_all_ratio, installed_rails, line_rate

EMULATED_COMPUTE_S = 0.25  # s of compute per emulated step: ranks share cores

DERIVED_EFFICIENCY = Limit(
    low=0.8,
    marginal_low=0.9,
    unit="ratio",
    source="derived",
    because="no contract: published dense FSDP runs on good fabrics keep 90 % or more",
)
EMBEDDED_UNPROVABLE = {
    "FABRIC": "all raylets share one host's network, so no byte crosses a link",
    "SCALING": "all ranks share one host's cores, so more nodes add no compute",
}

# Healthy clusters (AWS p5, 2 to 32 nodes) reach 79 to 87 % of what their line rate allows, and the
# limit of busbw is at most 80 % of the line rate in our contracts: 0.75 x 80 % is 60 %.
ALL_TO_ALL_SHARE = 0.75


def size_contract(contract: Contract, nodes: int, ranks: int) -> Contract:
    """Add the limit of all-to-all, which follows from busbw's and the number of nodes.

    An agreed limit stays.  Without RDMA there is none: no figure over TCP is published.
    """
    fabric = contract.limits.get("FABRIC", {})
    busbw, emulated = fabric.get("busbw"), contract.cluster.accelerators == "emulated"
    if emulated or nodes < 2 or contract.cluster.fabric != RDMA or not busbw or not busbw.low:
        return contract
    inside, uneven = divmod(ranks, nodes)
    if not inside or uneven:  # not recorded, or not what was ordered
        return contract
    limit = Limit(
        low=round(ALL_TO_ALL_SHARE * busbw.low * all_to_all_ratio(ranks, inside), 2),
        unit=busbw.unit,
        source="derived",
        because=f"{percent(ALL_TO_ALL_SHARE)} of what a busbw of {quantity(busbw.low, 'GB/s')} "
        f"lets expect on {nodes} nodes of {inside} GPUs: each GPU has its part of a node's rate, "
        "and some of its data stays inside the node. AWS p5 reached 79 to 87 % of its line rate's "
        "figure on 2 to 32 nodes",
    )
    limits = {**contract.limits, "FABRIC": {"alltoall_busbw": limit, **fabric}}
    return contract.model_copy(update={"limits": limits})


UNLESS = "unless these ports carry no gradients"  # such as those of storage


def list_slips(terms: ClusterTerms, facts: list[dict[str, Any]]) -> Iterator[str]:
    """Yield where the contract orders less than the ports have: its limits are then too low."""
    nodes = installed_rails([fact.get("rdma") or [] for fact in facts])
    found = [rails for rails in nodes if rails] if terms.fabric == RDMA else []
    best = max((rail.gbps for rails in found for rail in rails), default=0.0)
    most = max(map(len, found), default=0)
    if terms.line_rate_gbps and terms.line_rate_gbps < best:
        agreed = f"line_rate_gbps = {terms.line_rate_gbps:g}, but ports report {best:g} Gbit/s"
        yield f"{agreed}. Give the rate of one port in Gbit/s (bits, not bytes), {UNLESS}"
    if terms.rails and terms.rails < most:
        agreed = f"rails = {terms.rails}, but nodes have {most} ports of {best:g} Gbit/s"
        yield f"{agreed}. Correct `rails`, {UNLESS}"


def derive_contract(cluster: Cluster | None) -> Contract:
    """Derive a contract from the facts of `cluster` (None: the driver could not join it)."""
    terms, optional = ClusterTerms(), dict[str, str]()
    fabric_limits: dict[str, Limit] = {}
    if cluster is not None:
        fabric = detect_fabric(cluster.facts)
        hcas = cluster.on_each_node(checks.read_ib_hca) if fabric == "rdma" else {}
        used = checks.admitted_facts(cluster.facts, hcas)
        fabric_limits = _fabric_limits(cluster.facts, used, fabric)
        terms = _derive_terms(cluster, fabric, used)
        optional = EMBEDDED_UNPROVABLE if cluster.kind == "local" else {}
    return Contract(
        name="derived",
        title="No contract was agreed",
        sha256="",
        agreed=False,
        cluster=terms,
        limits={"FABRIC": fabric_limits, "SCALING": {"efficiency": DERIVED_EFFICIENCY}},
        optional=optional,
    )


def _derive_terms(cluster: Cluster, fabric: str | None, used: list[dict[str, Any]]) -> ClusterTerms:
    """Derive [cluster]: the fabric and its rails; of an embedded cluster also its emulation."""
    if cluster.kind == "local":
        return ClusterTerms(
            accelerators="emulated", gpus_per_node=1, fabric=fabric, pace_seconds=EMULATED_COMPUTE_S
        )
    return ClusterTerms(fabric=fabric, rails=checks.count_rails(used) if fabric == "rdma" else None)


def detect_fabric(facts: list[dict[str, Any]]) -> str | None:
    """Return "rdma" where every node has an RDMA port, else the interface that jobs are set to use.

    Ports count even if they are down.  With a dead fabric, jobs fall back to that interface, which
    would otherwise be taken for the fabric.  Return None where that is possible but not proven: all
    ports are down everywhere, or some nodes have none.

    The interface is the match of NCCL_SOCKET_IFNAME on every node, or GLOO_SOCKET_IFNAME where no
    node sets that.  Return None where it matches several, or another one elsewhere.
    """
    has_ports = [bool(fact["rdma"]) for fact in facts]
    if any(has_ports):
        linked = any("DOWN" not in port["state"] for fact in facts for port in fact["rdma"])
        return "rdma" if all(has_ports) and linked else None
    parsers = {"NCCL_SOCKET_IFNAME": checks.name_list, "GLOO_SOCKET_IFNAME": checks.plain_list}
    for variable, parse in parsers.items():
        values = [f["environment"].get(variable, "") for f in facts]
        if any(values):
            choices = {
                tuple(_resolve_names(fact["interfaces"], parse(value)))
                for fact, value in zip(facts, values, strict=True)
            }
            names = choices.pop()
            return names[0] if len(names) == 1 and not choices else None
    return None


def _resolve_names(interfaces: Mapping[str, Any], names: checks.NameList | None) -> list[str]:
    """Return the node's interfaces that such a list matches.

    Those without an address are left out where another has one, for NCCL leaves them out.
    """
    matching = names.admitted(interfaces) if names else []
    return [name for name in matching if interfaces[name]["address"]] or matching


def _fabric_limits(
    facts: list[dict[str, Any]], used: list[dict[str, Any]], fabric: str | None
) -> dict[str, Limit]:
    """Derive network and busbw limits.  `used` are the facts with the ports that NCCL may use."""
    if fabric is None:
        return {}
    reason = f"NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME of every node names {fabric}"
    if fabric == "rdma":
        reason = "every node has an RDMA port"
    limits = {"network": Limit(one_of=[fabric], source="derived", because=f"no contract: {reason}")}
    rate = line_rate(used, fabric)
    if rate is not None and rate.gbytes_per_s:
        rate_text = rate.because + _unused_ports(facts, used)
        limits["busbw"] = ring_limit(rate.gbytes_per_s, rate_text, "derived", "no contract: ")
    return limits


def _unused_ports(facts: list[dict[str, Any]], used: list[dict[str, Any]]) -> str:
    """Describe the rails that NCCL_IB_HCA leaves out; "" for none."""
    pairs = zip(_rail_names(facts), _rail_names(used), strict=True)
    names = {name for every, kept in pairs for name in every - kept}
    return f" (without {join_names(sorted(names))}, which NCCL_IB_HCA excludes)" if names else ""


def _rail_names(facts: list[dict[str, Any]]) -> list[set[str]]:
    """Return the names of the rails of each node."""
    installed = installed_rails([fact["rdma"] for fact in facts])
    return [{rail.name for rail in rails or []} for rails in installed]
