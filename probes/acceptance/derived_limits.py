"""Limits when no contract was agreed: derived from what the cluster says of itself.

Each has its reason.  What the cluster does not say gets no limit, and so stays UNPROVEN.
"""

from __future__ import annotations

from typing import Any

from probes.acceptance.contract import ClusterTerms, Contract, ring_limit
from probes.cluster.cluster import Cluster
from probes.environment.rails import nccl_ports, read_ib_hca
from probes.environment.values import NameList, name_list, plain_list
from probes.findings import join_names
from reference_trainer.config import TrainConfig
from reports.record import Limit
from scaling.collectives.line_rate import find_rails, line_rate

EMULATED_COMPUTE_S = 0.4  # s of compute a step where accelerators are emulated: cores are shared
# Of the tokens per second that such a step takes in at most: busy cores may cost a third, half the
# pace costs half.  In health it keeps 0.98.
PACED_SHARE, MARGINAL_PACED_SHARE = 0.67, 0.84

DERIVED_EFFICIENCY = Limit(
    low=0.8,
    marginal_low=0.9,
    unit="ratio",
    source="derived",
    because="no contract: published dense FSDP on good fabrics keeps 90 % and more",
)
EMBEDDED_UNPROVABLE = {
    "FABRIC": "all raylets share one host's network, so no byte crosses a link",
    "SCALING": "all ranks share one host's cores, so more nodes add no compute",
}


def derive_contract(cluster: Cluster | None) -> Contract:
    """Derive a contract from the facts of `cluster` (None: nothing could be asked)."""
    fabric, pace = None, 0.0
    fabric_limits: dict[str, Limit] = {}
    scaling_limits = {"efficiency": DERIVED_EFFICIENCY}
    optional: dict[str, str] = {}
    if cluster is not None:
        if cluster.emulated:
            pace = EMULATED_COMPUTE_S
            scaling_limits["tokens_per_s"] = _paced_tokens(pace)
        fabric = detect_fabric(cluster.facts)
        hcas = cluster.on_each_node(read_ib_hca) if fabric == "rdma" else {}
        fabric_limits = _fabric_limits(cluster.facts, fabric, hcas)
        optional = EMBEDDED_UNPROVABLE if cluster.kind == "local" else {}
    return Contract(
        name="derived",
        title="No contract was agreed",
        sha256="",
        agreed=False,
        cluster=ClusterTerms(fabric=fabric, pace_seconds=pace),
        limits={"FABRIC": fabric_limits, "SCALING": scaling_limits},
        optional=optional,
    )


def _paced_tokens(pace_s: float) -> Limit:
    """What an emulated accelerator's rank must take in, by the time its compute is padded to."""
    load = TrainConfig()
    most = load.batch * load.seq / pace_s
    return Limit(
        low=PACED_SHARE * most,
        marginal_low=MARGINAL_PACED_SHARE * most,
        unit="tokens/s per rank",
        source="derived",
        because=f"no contract: {PACED_SHARE:.0%} of what steps of {pace_s:g} s take in at most",
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
    """Derive road and bandwidth.  `hcas` is NCCL_IB_HCA by node id: other ports are no rails."""
    if fabric is None:
        return {}
    reason = f"every node's environment names {fabric}"
    if fabric == "rdma":
        reason = "every node has an active RDMA port"
    road = Limit(one_of=[fabric], source="derived", because=f"no contract: {reason}")
    limits = {"network": road}
    used = [
        {**fact, "rdma": nccl_ports(fact["rdma"], hcas.get(fact["node"], ""))} for fact in facts
    ]
    rate = line_rate(used, fabric)
    if rate is not None:
        rate_text = rate.because + _unused_ports(facts, used)
        limits["busbw"] = ring_limit(rate.gbytes_per_s, rate_text, "derived", "no contract: ")
    return limits


def _unused_ports(facts: list[dict[str, Any]], used: list[dict[str, Any]]) -> str:
    """The ports that would be rails and that NCCL is told not to use, in words."""
    names = {
        port.name
        for fact, used_fact in zip(facts, used, strict=True)
        for port in {*find_rails(fact["rdma"])} - {*find_rails(used_fact["rdma"])}
    }
    return f" (without {join_names(sorted(names))}, which NCCL_IB_HCA leaves out)" if names else ""
