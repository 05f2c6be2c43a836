"""Limits when no contract was agreed: derived from what the cluster says of itself.

Each has its reason.  What the cluster does not say gets no limit, and so stays UNPROVEN.
"""

from __future__ import annotations

from typing import Any

from probes.acceptance.contract import MARGINAL_SHARE, MIN_SHARE, ClusterTerms, Contract
from probes.cluster.cluster import Cluster
from probes.environment.rails import nccl_ports, read_ib_hca
from probes.environment.values import NameList, name_list, plain_list
from probes.findings import join_names
from reports.record import Limit
from scaling.collectives.line_rate import LineRate, find_rails, limit_reason, line_rate

EMULATED_COMPUTE_S = 0.4  # s of compute a step where accelerators are emulated: cores are shared


def derive_contract(cluster: Cluster | None) -> Contract:
    """A contract nobody agreed to, from the facts of `cluster` (None: nothing could be asked)."""
    limits: dict[str, dict[str, Limit]] = {"FABRIC": {}, "SCALING": {}}
    fabric, pace = None, 0.0
    if cluster is not None:
        pace = EMULATED_COMPUTE_S if cluster.emulated else 0.0
        fabric = detect_fabric(cluster.facts)
        hcas = cluster.on_each_node(read_ib_hca) if fabric == "rdma" else {}
        limits["FABRIC"].update(_fabric_limits(cluster.facts, fabric, hcas))
    limits["SCALING"]["efficiency"] = Limit(
        low=0.8,
        marginal_low=0.9,
        unit="ratio",
        source="derived",
        because="no contract: published dense FSDP on good fabrics keeps 90 % and more",
    )
    optional = {}
    if cluster is not None and cluster.kind == "local":
        optional = {
            "FABRIC": "all raylets share one host's network, so no byte crosses a link",
            "SCALING": "all ranks share one host's cores, so more nodes add no compute",
        }
    return Contract(
        name="derived",
        title="No contract was agreed",
        sha256="",
        agreed=False,
        cluster=ClusterTerms(fabric=fabric, pace_seconds=pace),
        limits=limits,
        optional=optional,
    )


def detect_fabric(facts: list[dict[str, Any]]) -> str | None:
    """ "rdma" where every node has an active RDMA port, else the interface the jobs are told of.

    That is the one that NCCL_SOCKET_IFNAME, or GLOO_SOCKET_IFNAME where no node sets that, stands
    for on every node; None where it stands for several, or for another elsewhere.
    """
    if facts and all(any("ACTIVE" in port["state"] for port in f["rdma"]) for f in facts):
        return "rdma"
    for variable, parse in (("NCCL_SOCKET_IFNAME", name_list), ("GLOO_SOCKET_IFNAME", plain_list)):
        values = [f["environment"].get(variable, "") for f in facts]
        if any(values):
            choices = {
                tuple(_resolve_names(fact["interfaces"], parse(value)))
                for fact, value in zip(facts, values, strict=True)
            }
            names = choices.pop()
            return names[0] if len(names) == 1 and not choices else None
    return None


def _resolve_names(interfaces: dict[str, dict[str, Any]], names: NameList | None) -> list[str]:
    """The node's interfaces that such a list stands for; without those that have no address where
    another has one, for NCCL leaves them out."""
    matching = names.admitted(interfaces) if names else []
    return [name for name in matching if interfaces[name]["address"]] or matching


def _fabric_limits(
    facts: list[dict[str, Any]], fabric: str | None, hcas: dict[str, str]
) -> dict[str, Limit]:
    """`told` is NCCL_IB_HCA by node id: a port that it does not admit is no rail."""
    if fabric is None:
        return {}
    limits = {
        "road": Limit(
            one_of=[fabric],
            source="derived",
            because="no contract: every node has an active RDMA port"
            if fabric == "rdma"
            else f"no contract: every node's environment names {fabric}",
        )
    }
    used = [
        {**fact, "rdma": nccl_ports(fact["rdma"], hcas.get(fact["node"], ""))} for fact in facts
    ]
    rate: LineRate | None = line_rate(used, fabric)
    if rate is not None:
        limits["busbw"] = Limit(
            low=MIN_SHARE * rate.gbytes_per_s,
            marginal_low=MARGINAL_SHARE * rate.gbytes_per_s,
            unit="GB/s",
            source="derived",
            because="no contract: "
            + limit_reason(MIN_SHARE, rate.because + _unused_ports(facts, used)),
        )
    return limits


def _unused_ports(facts: list[dict[str, Any]], used: list[dict[str, Any]]) -> str:
    """The ports that would be rails and that NCCL is told not to use, in words."""
    names = {
        port.name
        for fact, used_fact in zip(facts, used, strict=True)
        for port in {*find_rails(fact["rdma"])} - {*find_rails(used_fact["rdma"])}
    }
    return f" (without {join_names(sorted(names))}, which NCCL_IB_HCA leaves out)" if names else ""
