"""The environment lint: every row red and green, what differs over nodes, and hostile input."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from probes.environment.checks import (
    NodeContext,
    canonical,
    gloo_off_fabric,
    nccl_older_than,
)
from probes.environment.lint import Flag, lint
from probes.environment.rules import RULES
from reports.sanitize import one_line

INTERFACES = ["docker0", "eth0", "eth1", "eth10", "fab0", "lo", "virbr0"]
DEVICES = ["mlx5_0", "mlx5_1", "mlx5_10", "mlx5_2"]
# Every name of the agreed table of what must not be told to NCCL, spelled here on purpose.
AGREED = [
    "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IBEXT_DISABLE", "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ",
    "NCCL_DMABUF_ENABLE", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_IB_GID_INDEX",
    "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE",
    "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_PXN_DISABLE",
    "NCCL_CROSS_NIC", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_TOPO_FILE", "NCCL_HOSTID",
    "NCCL_COMM_ID", "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_IGNORE_NET_MISMATCH",
    "NCCL_IGNORE_COLLNET_MISMATCH", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE",
    "NCCL_CHECK_POINTERS", "NCCL_LAUNCH_MODE", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_RAS_ENABLE",
    "NCCL_COLLNET_ENABLE", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_IB_CUDA_SUPPORT",
    "NCCL_IB_GDR_LEVEL", "NCCL_LL_THRESHOLD", "NCCL_TREE_THRESHOLD",
    "NCCL_SINGLE_RING_THRESHOLD", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG", "CUDA_LAUNCH_BLOCKING", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "LD_PRELOAD", "LD_LIBRARY_PATH", "NCCL_CONF_FILE", "GLOO_SOCKET_IFNAME",
]  # fmt: skip


def node(variables: Mapping[str, str] | None = None, **facts: Any) -> dict[str, Any]:
    """What `settings` would return on a healthy node that is told these variables."""
    told = dict(variables or {})
    seen = {name: {"value": value, "where": "environment"} for name, value in told.items()}
    return {
        "environment": told,
        "files": {},
        "trouble": {},
        "effective": seen,
        "missing_files": {},
        "libraries": [{"path": "/t/libnccl.so.2", "version": "2.30.7", "found": "torch"}],
        "interfaces": INTERFACES,
        "rdma": DEVICES,
        "rdma_active": DEVICES,
        "gpus": ["NVIDIA H200"],
        **facts,
    }


def told(variable: str, value: str, fabric: str | None, **facts: Any) -> list[Flag]:
    """Flags of two like nodes that are told one variable."""
    nodes = {f"n{i}": node({variable: value}, **facts) for i in (0, 1)}
    return lint(nodes, fabric)


def test_gloo_off_the_fabric_is_told_by_the_interfaces_that_the_node_has() -> None:
    has = NodeContext(interfaces=("eth0", "fab0"), fabric="fab0,fab1")
    assert gloo_off_fabric("eth0", has)
    assert not gloo_off_fabric("fab0", has)
    assert not gloo_off_fabric("eth0", NodeContext(interfaces=("eth0",), fabric="fab0"))


@pytest.mark.parametrize(
    ("version", "older"), [("2.22.3", True), ("2.23", False), ("2.23.4", False), ("", False)]
)
def test_an_nccl_that_is_too_old_to_read_the_file(version: str, older: bool) -> None:
    libraries = ({"version": version},) if version else ()
    assert nccl_older_than(2, 23)("", NodeContext(libraries=libraries)) is older


# variable, harmful value, grade where RDMA is agreed, grade on sockets, healthy value
ROWS = [
    ("NCCL_IB_DISABLE", "1", "fail", "info", "0"),
    ("NCCL_NET", "Socket", "fail", "info", "IB"),
    ("NCCL_NET", "SOCKET", "fail", "info", "AWS Libfabric"),
    ("NCCL_NET_PLUGIN", "none", "warn", "info", "spcx"),
    ("NCCL_IBEXT_DISABLE", "1", "warn", "info", "0"),
    ("NCCL_P2P_DISABLE", "1", "fail", "fail", "0"),
    ("NCCL_P2P_LEVEL", "LOC", "fail", "fail", "NVL"),
    ("NCCL_P2P_LEVEL", "0", "fail", "fail", "SYS"),
    ("NCCL_P2P_LEVEL", "3", "warn", "warn", "PXB"),
    ("NCCL_P2P_LEVEL", "nvl", "warn", "warn", "NVL"),
    ("NCCL_SHM_DISABLE", "1", "warn", "warn", "0"),
    ("NCCL_NET_GDR_LEVEL", "4", "warn", "info", "PXB"),
    ("NCCL_NET_GDR_LEVEL", "LOC", "warn", "info", "PHB"),
    ("NCCL_NET_GDR_LEVEL", "0", "warn", "info", "PIX"),
    ("NCCL_NET_GDR_LEVEL", "0x4", "warn", "info", "SYS"),
    ("NCCL_NET_GDR_READ", "0", "warn", "info", "1"),
    ("NCCL_DMABUF_ENABLE", "0", "warn", "info", "1"),
    ("NCCL_IB_HCA", "=mlx5_9", "fail", "info", "=mlx5_0,mlx5_1,mlx5_2,mlx5_10"),
    ("NCCL_IB_HCA", "mlx5_1", "warn", "info", "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_10:1"),
    ("NCCL_IB_HCA", "^mlx5_2", "warn", "info", "=mlx5_0,mlx5_1,mlx5_2,mlx5_10"),
    ("NCCL_IB_HCA", "=mlx5_0", "info", "info", "=mlx5_0,mlx5_1,mlx5_2,mlx5_10"),
    ("NCCL_IB_HCA", "mlx5", "info", "info", "=mlx5_0,mlx5_1,mlx5_2,mlx5_10"),
    ("NCCL_SOCKET_IFNAME", "ens1", "fail", "fail", "=fab0"),
    ("NCCL_SOCKET_IFNAME", '"fab0"', "fail", "fail", "fab0"),
    ("NCCL_SOCKET_IFNAME", "=nosuch,=fab0", "fail", "fail", "=nosuch,fab0"),
    ("NCCL_SOCKET_IFNAME", "lo", "fail", "fail", "fab"),
    ("NCCL_SOCKET_IFNAME", "docker,virbr", "fail", "fail", "=fab0"),
    ("NCCL_SOCKET_IFNAME", "^docker0", "fail", "fail", "^lo,docker,virbr,eth"),
    ("NCCL_SOCKET_IFNAME", "lo,fab0", "fail", "fail", "=fab0"),
    ("NCCL_SOCKET_IFNAME", "^lo,docker", "warn", "warn", "^lo,docker,virbr,eth"),
    ("GLOO_SOCKET_IFNAME", "=fab0", "fail", "fail", "fab0"),
    ("GLOO_SOCKET_IFNAME", "lo", "fail", "fail", "fab0"),
    ("NCCL_IB_GID_INDEX", "3", "warn", "info", "-1"),
    ("NCCL_IB_TIMEOUT", "32", "fail", "info", "22"),
    ("NCCL_IB_TIMEOUT", "0x20", "fail", "info", "0x16"),
    ("NCCL_IB_TIMEOUT", " 0", "fail", "info", " 20"),
    ("NCCL_IB_RETRY_CNT", "8", "warn", "info", "7"),
    ("NCCL_ALGO", "Ring", "warn", "warn", ""),
    ("NCCL_PROTO", "LL128", "warn", "warn", ""),
    ("NCCL_PROTO", "LL", "fail", "fail", ""),
    ("NCCL_PROTO", "LL,Simple", "warn", "warn", ""),
    ("NCCL_MAX_NCHANNELS", "1", "fail", "fail", ""),
    ("NCCL_MAX_NRINGS", "1", "fail", "fail", ""),
    ("NCCL_NTHREADS", "1", "warn", "warn", ""),
    ("NCCL_MAX_CTAS", "1", "fail", "fail", ""),
    ("NCCL_NVLS_ENABLE", "0", "warn", "warn", "2"),
    ("NCCL_CUMEM_ENABLE", "0", "warn", "warn", "1"),
    ("NCCL_CUMEM_HOST_ENABLE", "0", "warn", "warn", "1"),
    ("NCCL_MNNVL_ENABLE", "0", "warn", "warn", "2"),
    ("NCCL_PXN_DISABLE", "1", "warn", "info", "0"),
    ("NCCL_CROSS_NIC", "1", "warn", "info", "0"),
    ("NCCL_MIN_NCHANNELS", "8", "warn", "warn", ""),
    ("NCCL_MAX_NCHANNELS", "8", "warn", "warn", ""),
    ("NCCL_MIN_NRINGS", "8", "warn", "warn", ""),
    ("NCCL_MAX_NRINGS", "8", "warn", "warn", ""),
    ("NCCL_MIN_CTAS", "8", "warn", "warn", ""),
    ("NCCL_MAX_CTAS", "8", "warn", "warn", ""),
    ("NCCL_BUFFSIZE", "8388608", "warn", "warn", ""),
    ("NCCL_NTHREADS", "512", "warn", "warn", ""),
    ("NCCL_TOPO_FILE", "/etc/topo.xml", "info", "info", ""),
    ("NCCL_HOSTID", "one", "fail", "fail", ""),
    ("NCCL_COMM_ID", "10.0.0.1:5000", "fail", "fail", ""),
    ("NCCL_MULTI_RANK_GPU_ENABLE", "1", "warn", "warn", "0"),
    ("NCCL_IGNORE_NET_MISMATCH", "1", "warn", "warn", "0"),
    ("NCCL_IGNORE_COLLNET_MISMATCH", "1", "warn", "warn", "0"),
    ("NCCL_DEBUG", "info", "info", "info", "WARN"),
    ("NCCL_DEBUG", "TRACE", "warn", "warn", "VERSION"),
    ("NCCL_DEBUG_SUBSYS", "INIT,ALL", "info", "info", "INIT,NET"),
    ("NCCL_DEBUG_FILE", "/tmp/nccl.log", "warn", "warn", "/tmp/nccl.%h.%p.log"),
    ("NCCL_DEBUG_FILE", "/tmp/nccl.%p.log", "warn", "warn", "/dev/stderr"),
    ("NCCL_CHECK_POINTERS", "1", "warn", "warn", "0"),
    ("CUDA_LAUNCH_BLOCKING", "1", "fail", "fail", "0"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "fail", "fail", "3"),
    ("NCCL_ASYNC_ERROR_HANDLING", "0", "fail", "fail", ""),
    ("NCCL_LAUNCH_MODE", "GROUP", "warn", "warn", "PARALLEL"),
    ("NCCL_IGNORE_CPU_AFFINITY", "1", "warn", "warn", "0"),
    ("NCCL_RAS_ENABLE", "0", "info", "info", "1"),
    ("NCCL_COLLNET_ENABLE", "1", "warn", "warn", "0"),
    ("NCCL_IB_TC", "106", "info", "info", ""),
    ("NCCL_IB_SL", "1", "info", "info", ""),
    ("NCCL_IB_QPS_PER_CONNECTION", "4", "info", "info", ""),
    ("NCCL_IB_ADAPTIVE_ROUTING", "1", "info", "info", ""),
    ("NCCL_IB_PCI_RELAXED_ORDERING", "1", "info", "info", ""),
    ("NCCL_IB_CUDA_SUPPORT", "1", "info", "info", ""),
    ("NCCL_IB_GDR_LEVEL", "4", "info", "info", ""),
    ("NCCL_LL_THRESHOLD", "0", "info", "info", ""),
    ("NCCL_TREE_THRESHOLD", "0", "info", "info", ""),
    ("NCCL_SINGLE_RING_THRESHOLD", "0", "info", "info", ""),
    ("NCCL_ASYNC_ERROR_HANDLING", "1", "info", "info", ""),
    ("NCCL_BLOCKING_WAIT", "1", "info", "info", ""),
    ("NCCL_DESYNC_DEBUG", "1", "info", "info", ""),
    ("NCCL_ENV_PLUGIN", "site", "info", "info", "none"),
]
CODE = {"fail": "ENV-HARMFUL", "warn": "ENV-DOUBTFUL", "info": "ENV-NOTE"}


@pytest.mark.parametrize(("variable", "value", "rdma", "sockets", "healthy"), ROWS)
def test_every_row_is_red_and_green(
    variable: str, value: str, rdma: str, sockets: str, healthy: str
) -> None:
    either = rdma if rdma == sockets else "warn"
    for fabric, grade in (("rdma", rdma), ("fab0", sockets), (None, either)):
        flags = told(variable, value, fabric)
        assert flags, f"{variable}={value} on {fabric}"
        assert flags[0].severity == grade
        assert flags[0].code == CODE[grade]
        assert flags[0].variable == variable
        assert flags[0].nodes == ["n0", "n1"]
        assert " on n0, n1 (environment): " in flags[0].statement
        assert told(variable, healthy, fabric) == []


def test_the_table_holds_every_agreed_name_and_every_name_is_shown_red() -> None:
    named = {rule.variable for rule in RULES}
    assert set(AGREED) <= named
    shown_red_elsewhere = {"LD_PRELOAD", "LD_LIBRARY_PATH", "NCCL_CONF_FILE"}
    assert named - shown_red_elsewhere == {row[0] for row in ROWS}


@pytest.mark.parametrize("fabric", ["rdma", "fab0", None])
def test_an_empty_environment_has_no_flag(fabric: str | None) -> None:
    assert lint({}, fabric) == []
    assert lint({"n0": node(), "n1": node()}, fabric) == []
    assert lint({"n0": {}}, fabric) == []


def test_the_seeds_advice_is_flagged() -> None:
    seed = {"NCCL_IB_TIMEOUT": "32", "NCCL_NET_GDR_LEVEL": "4", "NCCL_DEBUG": "INFO"}
    flags = lint({"n0": node(seed)}, "rdma")
    assert [(f.variable, f.severity) for f in flags] == [
        ("NCCL_IB_TIMEOUT", "fail"),
        ("NCCL_NET_GDR_LEVEL", "warn"),
        ("NCCL_DEBUG", "info"),
    ]
    assert flags[0].statement.startswith(
        "NCCL_IB_TIMEOUT=32 on n0 (environment): 0, or 32 and more"
    )
    assert "4 is read as SYS" in flags[1].statement


# What depends on the node.


def test_what_a_plugin_is_needed_for() -> None:
    (flag,) = told("NCCL_NET_PLUGIN", "none", "rdma", rdma=["efa_0"], rdma_active=[])
    assert flag.severity == "fail"
    gone = {"NCCL_NET_PLUGIN": ["/opt/libnccl-net.so"]}
    (flag,) = told("NCCL_NET_PLUGIN", "/opt/libnccl-net.so", "rdma", missing_files=gone)
    assert (flag.severity, "/opt/libnccl-net.so" in flag.statement) == ("fail", True)


def test_nvlink_over_nodes_must_not_be_off() -> None:
    for variable in ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE"):
        (flag,) = told(variable, "0", "rdma", gpus=["NVIDIA GB200"])
        assert flag.severity == "fail"


@pytest.mark.parametrize(
    ("models", "severity"),
    [
        ([], "fail"),  # no board is known
        (["NVIDIA H100 80GB HBM3"], "fail"),
        (["NVIDIA A100-SXM4-80GB"], "fail"),
        (["NVIDIA A40"], "fail"),  # it can have a bridge
        (["NVIDIA H100 PCIe"], "fail"),
        (["NVIDIA RTX A6000"], "fail"),
        (["NVIDIA L40S"], "warn"),
        (["NVIDIA L4", "Tesla T4"], "warn"),
        (["NVIDIA A10G"], "warn"),
        (["NVIDIA RTX 6000 Ada Generation"], "warn"),
        (["NVIDIA RTX PRO 6000 Blackwell Server Edition"], "warn"),
        (["NVIDIA GeForce RTX 4090"], "warn"),
        (["NVIDIA RTX 4000 SFF Ada Generation"], "warn"),
        (["Quadro RTX 5000"], "fail"),  # it can have a bridge
        (["NVIDIA L40S", "NVIDIA H200"], "fail"),
    ],
)
def test_gpus_need_no_direct_copies_where_they_have_no_nvlink(
    models: list[str], severity: str
) -> None:
    for variable, value in (("NCCL_P2P_DISABLE", "1"), ("NCCL_P2P_LEVEL", "LOC")):
        (flag,) = told(variable, value, "rdma", gpus=models)
        assert flag.severity == severity


def test_missing_files_are_named() -> None:
    gone = {"NCCL_TOPO_FILE": ["/t.xml"], "NCCL_CONF_FILE": ["/n.conf"], "LD_PRELOAD": ["/x.so"]}
    for variable, severity in (("NCCL_TOPO_FILE", "fail"), ("NCCL_CONF_FILE", "warn"),
                               ("LD_PRELOAD", "warn")):  # fmt: skip
        flags = told(variable, gone[variable][0], None, missing_files=gone)
        assert [f.severity for f in flags] == [severity]


def test_a_conf_file_counts_for_nccl_alone() -> None:
    for name, severity in (("NCCL_P2P_LEVEL", "fail"), ("GLOO_SOCKET_IFNAME", "warn")):
        seen = {name: {"value": "LOC", "where": "/etc/nccl.conf"}}
        assert [f.severity for f in lint({"n0": node(effective=seen)}, "rdma")] == [severity]


def test_rules_hold_from_their_version_on() -> None:
    old = [{"path": "/t/libnccl.so.2", "version": "2.20.5", "found": "torch"}]
    assert told("NCCL_IB_GID_INDEX", "3", "rdma", libraries=old) == []
    assert told("NCCL_IGNORE_NET_MISMATCH", "1", "rdma", libraries=old) == []
    assert told("NCCL_IB_GID_INDEX", "3", "rdma", libraries=[])
    (flag,) = told("NCCL_CONF_FILE", "/n.conf", "rdma", libraries=old)
    assert "~/.nccl.conf" in flag.why


def test_details_name_devices_and_interfaces() -> None:
    (missing,) = [f for f in told("NCCL_IB_HCA", "=mlx5_0,mlx5_9", "rdma") if f.severity == "fail"]
    assert missing.why.endswith(": mlx5_9")
    ambiguous = told("NCCL_IB_HCA", "mlx5_1", "rdma")[0]
    assert ambiguous.why.endswith(": mlx5_10")
    soft = told("NCCL_IB_HCA", "=rxe0", "rdma", rdma=["rxe0"], rdma_active=["rxe0"])
    assert [f.severity for f in soft] == ["fail"]
    bridges = told("NCCL_SOCKET_IFNAME", "^lo,docker", None, interfaces=[*INTERFACES, "br-17"])
    assert bridges[0].why.endswith(": virbr0, br-17")
    assert told("NCCL_SOCKET_IFNAME", "eth1", None)[0].why.endswith(": eth10")


def test_the_agreed_fabric_must_be_admitted_alone() -> None:
    assert told("NCCL_SOCKET_IFNAME", "=eth0", "fab0")[0].severity == "fail"
    beside = told("NCCL_SOCKET_IFNAME", "=fab0,eth0", "fab0")
    assert [(f.severity, f.why.endswith(": eth0")) for f in beside] == [("warn", True)]
    assert told("NCCL_SOCKET_IFNAME", "=eth0", "rdma") == []
    assert told("NCCL_SOCKET_IFNAME", "=eth0", "fab9") == []  # no node has it
    assert [f.severity for f in told("GLOO_SOCKET_IFNAME", "eth0", "fab0")] == ["info"]


def test_loopback_is_right_on_a_single_machine() -> None:
    host = {"name": "h", "boot_id": "b", "network": "net:[1]"}
    one = {f"n{i}": node({"NCCL_SOCKET_IFNAME": "lo", "NCCL_HOSTID": "x"}, host=host) for i in "01"}
    assert lint(one, None) == []


@pytest.mark.parametrize("missing", ["boot_id", "network"])
def test_nodes_are_machines_of_their_own_where_that_is_not_known(missing: str) -> None:
    host = {"name": "h", "boot_id": "b", "network": "net:[1]", missing: ""}
    nodes = {f"n{i}": node({"NCCL_SOCKET_IFNAME": "lo"}, host=host) for i in "01"}
    assert "lo" in [f.value for f in lint(nodes, None) if f.severity == "fail"]


def test_containers_that_nccl_takes_for_one_host() -> None:
    alike = {
        f"n{i}": node(host={"name": "pod", "boot_id": "b", "network": f"net:[{i}]"}) for i in "01"
    }
    (flag,) = lint(alike, "rdma")
    assert (flag.code, flag.nodes, flag.value) == ("ENV-HARMFUL", ["n0", "n1"], "pod")
    apart = {name: node({"NCCL_HOSTID": name}, host=alike[name]["host"]) for name in alike}
    assert lint(apart, "rdma") == []


# How values and names are written.


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NCCL_SOCKET_IFNAM", "=fab0", "did you mean NCCL_SOCKET_IFNAME?"),
        ("NCCL_IB_HCAS", "=mlx5_0", "did you mean NCCL_IB_HCA?"),
        ("NCCL_P2P_DISABLED", "1", "did you mean NCCL_P2P_DISABLE?"),
        ("NCCL_DEBUG ", "INFO", "without spaces"),
        ("NCCL_NET", '"IB"', "quotes"),
        ("NCCL_NET", "'IB", "quotes"),
        ("NCCL_NET", "IB'", "quotes"),
        ("NCCL_NET", "IB ", "spaces before or after"),
        ("NCCL_NET", "IB\r", "spaces before or after"),
        ("NCCL_IB_DISABLE", "true", "reads it as 0"),
        ("NCCL_IB_HCA", "=mlx5_0, mlx5_1", "spaces as part of the names"),
    ],
)
def test_slips_of_the_pen(name: str, value: str, said: str) -> None:
    flags = [f for f in told(name, value, "rdma") if said in f.statement]
    assert [f.severity for f in flags] == ["warn"]


# Nodes that differ.


def differing(variable: str, values: list[str | None], fabric: str = "rdma") -> list[Flag]:
    nodes = {f"n{i}": node({variable: v} if v is not None else {}) for i, v in enumerate(values)}
    return [flag for flag in lint(nodes, fabric) if flag.code == "ENV-DIFFERS"]


def test_the_minority_is_named() -> None:
    (flag,) = differing("NCCL_ALGO", ["Ring", "ring", "Tree", "Ring"])
    assert (flag.nodes, flag.severity, flag.value) == (["n2"], "fail", "Tree")
    assert "other nodes have Ring" in flag.statement
    (flag,) = differing("NCCL_CROSS_NIC", ["0", None, "0"])
    assert (flag.nodes, flag.severity) == (["n1"], "warn")
    assert flag.statement.startswith("NCCL_CROSS_NIC (unset) on n1 (environment): other nodes")


def test_without_a_majority_all_are_named() -> None:
    flags = differing("NCCL_NET", ["IB", None])
    assert sorted(node for flag in flags for node in flag.nodes) == ["n0", "n1"]
    assert {flag.severity for flag in flags} == {"fail"}


@pytest.mark.parametrize(
    ("variable", "values"),
    [("NCCL_IB_TIMEOUT", ["22", "0x16"]), ("NCCL_IB_HCA", ["=mlx5_0,mlx5_1", "=mlx5_1,mlx5_0"]),
     ("NCCL_IB_DISABLE", ["0", None]), ("NCCL_IB_DISABLE", ["true", None]),
     ("NCCL_BUFFSIZE", ["4194304", "0x400000"]), ("GLOO_SOCKET_IFNAME", ["a0,b0", "b0,a0"]),
     ("NCCL_NET", ["IB", "ib"]), ("NCCL_DEBUG", ["", None]),
     ("NCCL_HOSTID", ["a", "b"]), ("NCCL_DEBUG_FILE", ["/a.%h.%p", "/b.%h.%p"])],
)  # fmt: skip
def test_values_that_nccl_reads_alike_do_not_differ(
    variable: str, values: list[str | None]
) -> None:
    assert differing(variable, values) == []


@pytest.mark.parametrize(
    ("variable", "one", "other"),
    [
        ("NCCL_IB_HCA", "=mlx5_1", "mlx5_1"),
        ("NCCL_SOCKET_IFNAME", "^fab0", "fab0"),
        ("GLOO_SOCKET_IFNAME", "=fab0", "fab0"),
        ("NCCL_NET", "IB", None),
    ],
)
def test_values_that_are_read_otherwise_differ(variable: str, one: str, other: str | None) -> None:
    assert canonical(variable, one) != canonical(variable, other)


@pytest.mark.parametrize("variable", ["NCCL_NET", "NCCL_IB_HCA", "NCCL_TOPO_FILE"])
def test_an_empty_value_is_read_as_none(variable: str) -> None:
    assert canonical(variable, "") is canonical(variable, None) is None


def test_interfaces_of_other_names_may_be_told_otherwise() -> None:
    nodes = {f"n{i}": node({"NCCL_SOCKET_IFNAME": "=eth0"}) for i in range(3)}
    nodes["n3"] = node({"NCCL_SOCKET_IFNAME": "=ens1"}, interfaces=["ens1", "lo"])
    (flag,) = lint(nodes, "rdma")
    assert (flag.code, flag.severity, flag.nodes) == ("ENV-DIFFERS", "info", ["n3"])
    nodes["n3"] = node({"NCCL_SOCKET_IFNAME": "=eth10"})
    (flag,) = lint(nodes, "rdma")
    assert (flag.code, flag.severity, flag.nodes) == ("ENV-DIFFERS", "fail", ["n3"])


def test_many_nodes_stay_one_sentence() -> None:
    nodes = {f"n{i}": node({"NCCL_COMM_ID": "x"}) for i in range(300)}
    (flag,) = lint(nodes, "rdma")
    assert len(flag.nodes) == 300
    assert "n7 and 292 more" in flag.statement


# libnccl.


def library(version: str, found: str) -> dict[str, str]:
    return {"path": f"/{found}/libnccl.so.2", "version": version, "found": found}


@pytest.mark.parametrize(
    ("brought", "severity", "variable"),
    [("LD_PRELOAD", "warn", "LD_PRELOAD"), ("LD_LIBRARY_PATH", "warn", "LD_LIBRARY_PATH"),
     ("mapped", "warn", "libnccl"), ("loader", "info", "libnccl")],
)  # fmt: skip
def test_two_libraries_in_reach(brought: str, severity: str, variable: str) -> None:
    both = sorted([library("2.28.9", "torch"), library("2.27.5", brought)],
                  key=lambda x: x["found"] != "mapped")  # fmt: skip
    told = {"LD_PRELOAD": "/x.so", "LD_LIBRARY_PATH": "/x"}
    (flag,) = lint({"n0": node(told, libraries=both)}, None)
    assert (flag.code, flag.severity, flag.variable) == ("ENV-TWO-LIBS", severity, variable)
    assert "2.28.9" in flag.statement
    assert "2.27.5" in flag.statement
    same = [library("2.28.9", "torch"), library("2.28.9", brought), library("", "loader")]
    assert lint({"n0": node(told, libraries=same)}, None) == []


def test_what_the_loader_knows_is_no_conflict_with_what_was_preloaded() -> None:
    known = [library("2.28.9", "LD_PRELOAD"), library("2.27.5", "loader")]
    flags = lint({"n0": node({"LD_PRELOAD": "/x.so"}, libraries=known)}, None)
    assert flags == []
    three = [*known, library("2.26.2", "torch")]
    (flag, *_) = lint({"n0": node({"LD_PRELOAD": "/x.so"}, libraries=three)}, None)
    assert (flag.variable, flag.severity) == ("LD_PRELOAD", "warn")
    assert flag.why.count("libnccl.so.2") == 2
    assert "2.27.5" not in flag.why


def test_two_libraries_over_nodes() -> None:
    nodes = {f"n{i}": node() for i in range(3)} | {"n3": node(libraries=[library("2.27.5", "x")])}
    (flag,) = lint(nodes, None)
    assert (flag.code, flag.severity, flag.nodes) == ("ENV-TWO-LIBS", "fail", ["n3"])
    assert lint(nodes | {"n3": node(libraries=[])}, None) == [], "unknown is not another"


# Hostile values.


def test_lint_stands_a_megabyte_that_was_never_bounded() -> None:
    start = time.monotonic()
    for letter in ("a", "1", " ", ",", "^", "="):
        for variable in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_NET",
                         "GLOO_SOCKET_IFNAME", "NCCL_DEBUG_SUBSYS", "N" * 2**20):  # fmt: skip
            flags = lint({"a": node({variable: letter * 2**20}), "b": node()}, "rdma")
            assert all(len(flag.statement) < 2500 for flag in flags)
    assert time.monotonic() - start < 30


@tried(max_examples=30, deadline=None)
@given(st.text(), st.text(), st.sampled_from(["rdma", "fab0", None]))
@example("\r", "", None)
@example(" ", "1", "rdma")
def test_lint_never_raises(name: str, value: str, fabric: str | None) -> None:
    for variable in (name, *AGREED):
        for flag in lint({"n0": node({variable: value}), "n1": node()}, fabric):
            assert flag.statement == one_line(flag.statement)
        canonical(variable, value)
