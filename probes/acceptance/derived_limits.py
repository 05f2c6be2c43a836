"""Limits when no contract was agreed: derived from what the cluster says of itself.

Each has its reason.  What the cluster does not say gets no limit, and so stays UNPROVEN.
"""

from __future__ import annotations

from typing import Any

from probes.acceptance.contract import FRACTION, MARGINAL, ClusterTerms, Contract
from probes.cluster.cluster import Cluster
from probes.environment.rails import admitted, ib_hca
from probes.environment.values import NameList, name_list, plain_list
from probes.findings import listed
from reports.record import Limit
from scaling.collectives.line_rate import LineRate, line_rate, rails, reason

EMULATED_PACE = 0.4  # s of compute a step where accelerators are emulated: cores are shared


def derived(cluster: Cluster | None) -> Contract:
    """A contract nobody agreed to, from the facts of `cluster` (None: nothing could be asked)."""
    limits: dict[str, dict[str, Limit]] = {"FABRIC": {}, "SCALING": {}}
    fabric, pace = None, 0.0
    if cluster is not None:
        pace = EMULATED_PACE if cluster.emulated else 0.0
        fabric = fabric_of(cluster.facts)
        told = cluster.on_each_node(ib_hca) if fabric == "rdma" else {}
        limits["FABRIC"].update(_fabric_limits(cluster.facts, fabric, told))
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


def fabric_of(facts: list[dict[str, Any]]) -> str | None:
    """ "rdma" where every node has an active RDMA port, else the interface the jobs are told of.

    That is the one that NCCL_SOCKET_IFNAME, or GLOO_SOCKET_IFNAME where no node sets that, stands
    for on every node; None where it stands for several, or for another elsewhere.
    """
    if facts and all(any("ACTIVE" in port["state"] for port in f["rdma"]) for f in facts):
        return "rdma"
    for variable, read in (("NCCL_SOCKET_IFNAME", name_list), ("GLOO_SOCKET_IFNAME", plain_list)):
        values = [f["environment"].get(variable, "") for f in facts]
        if any(values):
            told = {
                tuple(_admitted(fact["interfaces"], read(value)))
                for fact, value in zip(facts, values, strict=True)
            }
            names = told.pop()
            return names[0] if len(names) == 1 and not told else None
    return None


def _admitted(interfaces: dict[str, dict[str, Any]], read: NameList | None) -> list[str]:
    """The node's interfaces that such a list stands for; without those that have no address where
    another has one, for NCCL leaves them out."""
    found = read.admitted(interfaces) if read else []
    return [name for name in found if interfaces[name]["address"]] or found


def _fabric_limits(
    facts: list[dict[str, Any]], fabric: str | None, told: dict[str, str]
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
    used = [{**fact, "rdma": admitted(fact["rdma"], told.get(fact["node"], ""))} for fact in facts]
    rate: LineRate | None = line_rate(used, fabric)
    if rate is not None:
        limits["busbw"] = Limit(
            low=FRACTION * rate.gbytes,
            marginal_low=MARGINAL * rate.gbytes,
            unit="GB/s",
            source="derived",
            because=f"no contract: {reason(FRACTION, rate.because + _left_out(facts, used))}",
        )
    return limits


def _left_out(facts: list[dict[str, Any]], used: list[dict[str, Any]]) -> str:
    """The ports that would be rails and that NCCL is told not to use, in words."""
    names = {
        port.name
        for all_of_them, rest in zip(facts, used, strict=True)
        for port in {*rails(all_of_them["rdma"])} - {*rails(rest["rdma"])}
    }
    return f" (without {listed(sorted(names))}, which NCCL_IB_HCA leaves out)" if names else ""
