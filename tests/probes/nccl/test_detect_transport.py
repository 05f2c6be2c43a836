"""Which hosts are suspected of the wrong transport, and of which interface.

SYNTHETIC: lines written to the documented formats.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recordings.generate.nccl_logs import Job, none, socket
from tests.support.nccl_report import told


@pytest.mark.parametrize(
    ("on_tcp", "suspects"),
    [({1}, ["node1"]), ({1, 2}, ["node1", "node2"]), ({1, 2, 3}, ["node0"])],
    ids=["the fewer", "as many: those on TCP", "the fewer, on RDMA"],
)
def test_of_hosts_on_tcp_and_on_rdma_the_fewer_are_suspected(
    tmp_path: Path, on_tcp: set[int], suspects: list[str]
) -> None:
    job = Job(
        hosts=4,
        network=lambda host: "Socket" if host in on_tcp else "IB",
        devices=lambda host: 0 if host in on_tcp else 2,
    )
    mixed = next(one for one in told(tmp_path, job.text()).findings if one.code == "FAB-MIXED")
    assert mixed.suspects == suspects


def test_sockets_on_loopback_are_found_behind_a_good_bootstrap(tmp_path: Path) -> None:
    job = Job(network=socket, devices=none, interface="docker0", last="graph")
    text = job.text().replace("Bootstrap: Using docker0", "Bootstrap: Using eth0")
    found = told(tmp_path, text).findings
    (named,) = [one for one in found if one.code == "FAB-LOOPBACK"]
    assert named.suspects == ["node0", "node1"]
    assert "NCCL chose docker0, which leads to no other host" in named.statement


def test_of_two_interfaces_that_lead_nowhere_the_first_is_named(tmp_path: Path) -> None:
    text = Job(network=socket, devices=none, interface="docker0", last="graph").text()
    text = text.replace("Bootstrap: Using docker0", "Bootstrap: Using lo")
    found = {one.code: one for one in told(tmp_path, text).findings}
    assert "NCCL chose lo, which leads to no other host" in found["FAB-LOOPBACK"].statement


def test_the_first_of_several_variables_that_turn_rdma_off_is_the_one_to_change(
    tmp_path: Path,
) -> None:
    off = {"NCCL_IB_DISABLE": "1.", "NCCL_NET": "Socket"}
    found = told(tmp_path, Job(network=socket, environment=off).text()).findings
    (named,) = [one for one in found if one.code == "FAB-ENV-DISABLED"]
    assert "NCCL_IB_DISABLE=1, NCCL_NET=Socket turns RDMA off" in named.statement
    assert named.names["variable"] == "NCCL_IB_DISABLE"


def test_a_plugin_that_fails_though_it_is_asked_for_has_each_line_once(tmp_path: Path) -> None:
    asked, why = {"NCCL_NET_PLUGIN": "ofi"}, ["NET/OFI Failed to initialize NET plugin ofi"]
    job = Job("2.24.3", gpus=1, network=socket, devices=none, environment=asked, why=why)
    found = told(tmp_path, job.text()).findings
    (named,) = [one for one in found if one.code == "FAB-PLUGIN"]
    assert len({*named.evidence}) == len(named.evidence) > 1


@pytest.mark.parametrize("version", ["2.18.6", "2.28.9"])  # the older does not log localRanks
def test_a_device_that_no_ring_uses_is_counted(tmp_path: Path, version: str) -> None:
    text = Job(version).text().replace("NET/IB/1", "NET/IB/0")
    (named,) = told(tmp_path, text).findings
    assert named.code == "FAB-PARTIAL-RAILS"
    assert "node0: uses 1 of 2 RDMA devices; node1: uses 1 of 2 RDMA devices" in named.statement


ROCE = ("[1]mlx5_1:1/IB", "[1]mlx5_1:1/RoCE")


def test_rings_over_links_of_two_kinds(tmp_path: Path) -> None:
    (named,) = told(tmp_path, Job().text().replace(*ROCE)).findings
    assert (named.code, named.suspects) == ("FAB-LINK-TYPES", ["node0", "node1"])
    assert "rings use links of two kinds: mlx5_0/IB, mlx5_1/RoCE" in named.statement


def test_a_link_of_another_kind_that_no_ring_uses_is_no_finding(tmp_path: Path) -> None:
    text = Job().text().replace(*ROCE).replace("NET/IB/1", "NET/IB/0")
    assert "FAB-LINK-TYPES" not in {one.code for one in told(tmp_path, text).findings}


def test_links_that_nccl_itself_says_differ_are_told_once(tmp_path: Path) -> None:
    words = "NET/IB : Attempted to connect incompatible devices: mlx5_0/IB and mlx5_1/RoCE"
    found = told(tmp_path, Job(why=[words]).text().replace(*ROCE)).findings
    assert [one.code for one in found] == ["FAB-LINK-TYPES"]


def test_some_connections_without_gpudirect_are_no_missing_module(tmp_path: Path) -> None:
    """Others of the same host have it: it is the place of GPU and card, and not nvidia_peermem."""
    lines = [
        "node1:50:60 [0] NCCL INFO Channel 00/0 : 11[3] -> 12[4] [receive] via NET/IBext/1/GDRDMA",
        "node1:51:61 [1] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IBext/0",
    ]
    found = told(tmp_path, "\n".join(lines) + "\n")
    (finding,) = [one for one in found.findings if one.code == "FAB-NO-GDR"]
    assert finding.statement.startswith("node1: some RDMA is staged through host memory")
    assert "nvidia_peermem" not in finding.remedy
    assert "NCCL_NET_GDR_LEVEL" in finding.remedy


def test_without_gpudirect_the_first_reason_of_nccl_is_given(tmp_path: Path) -> None:
    words = "NET/IB : GPU Direct RDMA Disabled for HCA {0} 'mlx5_{0}'"
    why = [words.format(number) for number in range(2)]
    (named,) = told(tmp_path, Job(gdr=False, why=why).text()).findings
    assert (named.code, named.suspects) == ("FAB-NO-GDR", ["node0", "node1"])
    assert named.statement.endswith(f"without GPUDirect ({why[0]})")


def test_connections_without_gpudirect_of_a_log_without_host_names(tmp_path: Path) -> None:
    text = re.sub(r"node\d:\d+:\d+ \[\d\] ", "", Job(gdr=False).text())
    (named,) = told(tmp_path, text).findings
    assert named.statement.startswith("a host that is not named: RDMA is staged through")


@pytest.mark.parametrize("network", ["AWS Libfabric", "OFI"])
def test_on_efa_host_memory_is_a_note_and_no_finding(tmp_path: Path, network: str) -> None:
    """The oldest machines with EFA have no GPUDirect."""
    found = told(tmp_path, Job("2.27.5", gdr=False, network=lambda host: network).text())
    assert (found.findings, found.exit_code) == ([], 0)
    assert any("EFA has GPUDirect on instances from p4d on" in note for note in found.notes)


@pytest.mark.parametrize(
    ("gpu", "codes"), [("NVIDIA A100-SXM4-40GB", ["FAB-NO-GDR"]), ("NVIDIA A10G", [])]
)
def test_on_efa_the_gpus_that_nccl_tests_lists_decide(
    tmp_path: Path, gpu: str, codes: list[str]
) -> None:
    rows = "".join(
        f"#  Rank  {rank} Group  0 Pid  400{rank} on  node{rank // 2} device  0 [0x1a] {gpu}\n"
        for rank in range(4)
    )
    job = Job("2.27.5", gdr=False, network=lambda host: "AWS Libfabric")
    assert [one.code for one in told(tmp_path, rows + job.text()).findings] == codes


EDGE = "node1:50:60 [0] NCCL INFO Channel 00/0 : {} [send] via NET/Socket/0\n"


def test_connections_over_sockets_are_counted(tmp_path: Path) -> None:
    edges = [EDGE.format("7[7] -> 8[0]"), EDGE.format("15[7] -> 16[0]")]
    for number, words in (
        (1, "1 connection between hosts uses TCP"),
        (2, "2 connections between hosts use TCP"),
    ):
        (found,) = told(tmp_path, "".join(edges[:number])).findings
        assert (found.code, words in found.statement) == ("FAB-TCP", True)


def test_hosts_that_all_send_without_gpudirect_are_one_sentence(tmp_path: Path) -> None:
    lines = Job(hosts=2).text().splitlines(keepends=True)
    text = "".join(line.replace("/GDRDMA", "") if "[send]" in line else line for line in lines)
    sentences = told(tmp_path, text).unproven
    assert sum("receives with GPUDirect RDMA and sends without" in one for one in sentences) == 1


@pytest.mark.parametrize(
    ("interfaces", "noted"),
    [("[0]lo", 0), ("[0]lo:10.0.0.1<0> [1]eth0", 1)],
    ids=["alone", "first"],
)
def test_one_host_that_takes_the_loopback_before_another_interface_is_noted(
    tmp_path: Path, interfaces: str, noted: int
) -> None:
    text = Job(hosts=1, network=socket, devices=none, interface="lo").text()
    notes = told(
        tmp_path, text.replace("NET/Socket : Using [0]lo", f"NET/Socket : Using {interfaces}")
    ).notes
    assert sum("NCCL takes the loopback interface first" in note for note in notes) == noted
