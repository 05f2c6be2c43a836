"""Selects the RDMA ports that NCCL may use, by NCCL_IB_HCA."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from probes.environment.collect import effective_values, read_nccl_conf_files
from probes.environment.values import NameList, name_list
from scaling.collectives.line_rate import installed_rails


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
    return [
        {**fact, "rdma": nccl_ports(fact["rdma"], hcas.get(fact["node"], ""))} for fact in facts
    ]


def count_rails(facts: list[dict[str, Any]]) -> int | None:
    """Count the rails of the best node, active or not; None where no rails are known."""
    counts = [len(rails) for rails in installed_rails([f["rdma"] for f in facts]) if rails]
    return max(counts, default=None)
