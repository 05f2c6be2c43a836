"""Which RDMA ports NCCL may use, by NCCL_IB_HCA."""

from __future__ import annotations

import os

from probes.environment.collect import effective_values, read_conf_files
from probes.environment.values import NameList, name_list


def read_ib_hca() -> str:
    """NCCL_IB_HCA as NCCL sees it on this node, of the environment or a conf file; "" if unset."""
    environment = dict(os.environ)
    files, _ = read_conf_files(environment)
    return effective_values(environment, files).get("NCCL_IB_HCA", ("", ""))[0]


def nccl_ports(ports: list[dict[str, str]], hca: str) -> list[dict[str, str]]:
    """Those ports (as of `rdma_ports`) that an NCCL_IB_HCA admits; all of them where it is "".

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
