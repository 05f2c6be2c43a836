"""The words of NCCL and its plugins that changed over the versions: one cause, one code, one place.

SYNTHETIC: lines written to the formats of src/misc/ibvwrap.cc, src/misc/socket.cc, src/os/linux.cc,
src/misc/shmutils.cc, src/transport/nvls.cc, src/bootstrap.cc and src/plugin/net.cc.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probes.nccl.report import NcclReport
from reports.record import Finding
from tests.recordings.generate.nccl_logs import Job, none, socket
from tests.support.nccl_report import codes, told


def only(found: NcclReport, code: str) -> Finding:
    """The finding of this code; no other may be there."""
    assert codes(found) == {code}
    assert found.exit_code == 1
    return found.findings[0]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.18.6", "transport/nvls.cc:165 Cuda failure 'invalid argument'"),
        ("2.21.5", "transport/nvls.cc:158 Cuda failure 1 'invalid argument'"),
        ("2.28.9", "transport/nvls.cc:598 Cuda failure 1 'invalid argument'"),
        ("2.30.7", "transport/nvls.cc:251 Cuda failure 801 'operation not supported'"),
        ("2.21.5", "transport/nvls.cc:158 CUDA error 401 'the operation cannot be performed'"),
        ("2.28.9", "init.cc:400 Cuda failure 802 'system not yet initialized'"),
    ],
)
def test_nvls(tmp_path: Path, version: str, words: str) -> None:
    named = only(told(tmp_path, Job(version, last="graph", warn={2: [words]}).text()), "INIT-NVLS")
    assert named.suspects == ["node1"]
    assert words.split(" ")[0].split(":")[0] in named.statement
    assert "Fabric Manager" in named.remedy


@pytest.mark.parametrize(
    ("version", "words", "reason"),
    [
        ("2.18.6", "misc/socket.cc:500 socketStartConnect: Connect to {} failed : {}", None),
        ("2.21.5", "misc/socket.cc:483 socketStartConnect: Connect to {} failed : {}", None),
        (
            "2.28.9",
            "misc/socket.cc:590 socketPollConnect: connect to {} returned {}, exceeded error retry "
            "count after 35 attempts",
            None,
        ),
        (
            "2.30.7",
            "os/linux.cc:200 ncclOsSocketPollConnect: connect to {} returned {}, exceeded error "
            "retry count after 35 attempts",
            None,
        ),
        ("2.30.7", "os/linux.cc:210 ncclOsSocketStartConnect: connect to {} failed : {}", None),
        ("2.30.7", "os/linux.cc:220 ncclOsSocketPollConnect to {} failed with error {}", None),
    ],
)
@pytest.mark.parametrize(
    ("error", "said", "do"),
    [
        ("Connection refused", "refused", "that the rank is alive"),
        ("Connection timed out", "timed out", "ip_local_port_range"),
        ("No route to host", "no route", "NCCL_SOCKET_IFNAME"),
        ("Network is unreachable", "unreachable", "NCCL_SOCKET_IFNAME"),
    ],
)
def test_a_peer_that_cannot_be_reached_is_named(
    tmp_path: Path, version: str, words: str, reason: None, error: str, said: str, do: str
) -> None:
    for peer, name in (("10.0.0.2<41000>", "node1"), ("gpu-17.pod<41000>", "gpu-17.pod")):
        job = Job(version, last="topology", warn={0: [words.format(peer, error)]})
        named = only(told(tmp_path, job.text()), "INIT-BOOTSTRAP")
        assert named.suspects == [name]
        assert f"cannot connect to {name} by TCP ({said})" in named.statement
        assert do in named.remedy


@pytest.mark.parametrize(
    "words",
    [
        "misc/socket.cc:490 socketStartConnect: exceeded timeouts (20000)",
        "misc/socket.cc:480 socketStartConnect: exceeded retries (20000)",
        "misc/socket.cc:544 socketPollConnect: connect returned Connection refused, exceeded error "
        "retry count (35)",
    ],
)
def test_where_no_peer_is_told_the_host_that_tried_is_named(tmp_path: Path, words: str) -> None:
    found = told(tmp_path, Job("2.21.5", last="topology", warn={2: [words]}).text())
    assert only(found, "INIT-BOOTSTRAP").suspects == ["node1"]


@pytest.mark.parametrize("version", ["2.18.6", "2.28.9"])
@pytest.mark.parametrize(
    ("variable", "value", "devices"),
    [
        ("NCCL_IB_DISABLE", "1.", 2),
        ("NCCL_NET", "Socket", 2),
        ("NCCL_IBEXT_DISABLE", "1.", 2),
        ("NCCL_IB_HCA", "=mlx5_9", 0),
        ("NCCL_NET_PLUGIN", "none", 0),
    ],
)
def test_a_variable_that_turns_rdma_off_is_said_with_its_value(
    tmp_path: Path, version: str, variable: str, value: str, devices: int
) -> None:
    job = Job(version, network=socket, devices=lambda host: devices, environment={variable: value})
    found = told(tmp_path, job.text())
    assert codes(found) == {"FAB-TCP", "FAB-ENV-DISABLED"}
    named = next(finding for finding in found.findings if finding.code == "FAB-ENV-DISABLED")
    assert f"{variable}={value.rstrip('.')}" in named.statement
    assert "an nccl.conf" in named.statement  # NCCL says `set by environment` of both
    assert named.suspects == ["node0", "node1"]
    line = next(i for i, line in enumerate(job.text().splitlines(), 1) if variable in line)
    assert named.evidence[0] == f"nccl.log:{line}"


def test_to_want_no_plugin_turns_off_nothing_where_nccl_has_devices_itself(tmp_path: Path) -> None:
    unused = {"NCCL_NET_PLUGIN": "none"}
    assert told(tmp_path, Job(environment=unused).text()).findings == []
    found = told(tmp_path, Job(network=socket, environment=unused).text())
    assert codes(found) == {"FAB-TCP"}


@pytest.mark.parametrize("value", ["0.", "", "IB"])
def test_a_variable_that_turns_nothing_off_is_not_blamed(tmp_path: Path, value: str) -> None:
    variable = "NCCL_NET" if value == "IB" else "NCCL_IB_DISABLE"
    job = Job(network=socket, devices=none, environment={variable: value})
    found = codes(told(tmp_path, job.text()))
    assert "FAB-TCP" in found
    assert "FAB-ENV-DISABLED" not in found


fallback = partial(Job, network=socket, devices=none)


@pytest.mark.parametrize("version", ["2.18.6", "2.21.5", "2.28.9"])
@pytest.mark.parametrize(
    "asked", [{"NCCL_NET_PLUGIN": "ofi"}, {"NCCL_NET": "AWS Libfabric"}], ids=["plugin", "network"]
)
def test_a_plugin_that_is_asked_for_and_missing(
    tmp_path: Path, version: str, asked: dict[str, str]
) -> None:
    why = ["NET/Plugin: Could not find: libnccl-net-ofi.so"] if version == "2.28.9" else []
    found = told(tmp_path, fallback(version, environment=asked, why=why).text())
    assert codes(found) == {"FAB-TCP", "FAB-NO-DEVICE", "FAB-PLUGIN"}
    named = next(finding for finding in found.findings if finding.code == "FAB-PLUGIN")
    assert named.suspects == ["node0", "node1"]
    assert "libnccl-net" in named.statement
    assert "FAB-PLUGIN" not in codes(told(tmp_path, fallback(version, why=why).text()))


def test_a_plugin_that_only_the_other_host_has(tmp_path: Path) -> None:
    loaded = "NET/Plugin: Loaded net plugin AWS Libfabric (v8)"
    job = Job("2.24.3", network=lambda host: "AWS Libfabric" if host else "Socket", devices=none)
    text = job.text().splitlines()
    missing = "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."
    lines = [line.replace(missing, loaded) if line.startswith("node1") else line for line in text]
    found = told(tmp_path, "\n".join(lines) + "\n")
    named = next(finding for finding in found.findings if finding.code == "FAB-PLUGIN")
    assert named.suspects == ["node0"]


GIDS = "local GID index 3, local GID ::ffff:10.0.1.1, remote GID ::ffff:10.0.1.2"
QP = "on dev mlx5_0:1, curr state INIT, next state RTR, " + GIDS


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.18.6", "failed with error {text}"),
        ("2.23.4", "failed with error {text} errno {number}"),
        ("2.28.9", "failed with {number} {text}, " + QP),
        ("2.30.7", "failed with {number} {text}, " + QP),
    ],
)
@pytest.mark.parametrize(
    ("number", "text", "do", "dont"),
    [
        (110, "Connection timed out", "NCCL_CROSS_NIC=0", "GID_INDEX"),
        (22, "Invalid argument", "NCCL_IB_GID_INDEX", "CROSS_NIC"),
        (61, "No data available", "NCCL_IB_GID_INDEX", "CROSS_NIC"),
        (101, "Network is unreachable", "NCCL_IB_ADDR_RANGE", "CROSS_NIC"),
        (113, "No route to host", "NCCL_IB_ADDR_RANGE", "CROSS_NIC"),
    ],
)
def test_a_queue_pair_that_cannot_be_made_has_the_remedy_of_its_cause(
    tmp_path: Path, version: str, words: str, number: int, text: str, do: str, dont: str
) -> None:
    line = "misc/ibvwrap.cc:309 Call to ibv_modify_qp " + words.format(number=number, text=text)
    named = only(told(tmp_path, Job(version, last="graph", warn={2: [line]}).text()), "INIT-QP")
    assert named.suspects == ["node1"]
    assert text in named.statement
    assert do in named.remedy
    assert dont not in named.remedy


@pytest.mark.parametrize("version", ["2.24.3", "2.28.9"])
def test_a_queue_pair_that_was_made_at_the_second_try_is_no_finding(
    tmp_path: Path, version: str
) -> None:
    retry = f"Call to ibv_modify_qp failed with 110 Connection timed out, {QP}, retrying 1/35 after"
    good = Job(version, why=[f"{retry} 100 msec of sleep"])
    assert told(tmp_path, good.text()).exit_code == 0
    stuck = Job(version, why=[f"{retry} 100 msec of sleep"], last="connect")
    stuck = stuck if version < "2.22" else Job(version, why=stuck.why, last="graph")
    assert "NCCL_CROSS_NIC=0" in only(told(tmp_path, stuck.text()), "INIT-QP").remedy


@pytest.mark.parametrize(
    ("version", "words", "do"),
    [
        ("2.18.6", "NET/IB : Got completion from peer {} with error 12, opcode 0", "cable"),
        ("2.21.5", "NET/IB: Got completion from peer {} with status=12 opcode=0", "cable"),
        (
            "2.30.7",
            "NET/IB: Got completion from peer {} with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0",
            "cable",
        ),
        ("2.21.5", "NET/IB: Got completion from peer {} with status=4 opcode=0 len=0", "iommu=pt"),
        ("2.28.9", "NET/IB: Got completion from peer {} with status=10 opcode=0", "iommu=pt"),
        (
            "2.30.7",
            "NET/IB: Got completion from peer {} with status=IBV_WC_LOC_PROT_ERR(4) opcode=0",
            "iommu=pt",
        ),
        ("2.28.9", "NET/IB: Got completion from peer {} with status=5 opcode=0", "first error"),
    ],
)
def test_a_connection_that_broke(tmp_path: Path, version: str, words: str, do: str) -> None:
    line = "transport/net_ib.cc:2453 " + words.format("10.0.0.1<51161>")
    named = only(told(tmp_path, Job(version, warn={2: [line]}).text()), "INIT-QP")
    assert named.suspects == ["node1", "node0"]  # who wrote it, and its peer
    assert do in named.remedy


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.18.6", "Call to ibv_reg_mr failed with error Cannot allocate memory"),
        ("2.21.5", "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
        ("2.21.5", "Call to ibv_create_cq failed with error Cannot allocate memory"),
        ("2.28.9", "Call to ibv_create_qp failed with error Cannot allocate memory"),
        ("2.30.7", "Call to ibv_reg_dmabuf_mr failed with error Cannot allocate memory"),
    ],
)
def test_memory_that_cannot_be_locked(tmp_path: Path, version: str, words: str) -> None:
    job = Job(version, last="graph", warn={3: [f"misc/ibvwrap.cc:150 {words}"]})
    assert only(told(tmp_path, job.text()), "INIT-MEMLOCK").suspects == ["node1"]


FULL = "No space left on device (28)"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.18.6", "misc/shmutils.cc:72 Error: failed to extend /dev/shm/nccl-a to 9637892 bytes"),
        (
            "2.21.5",
            f"misc/shmutils.cc:87 Error: failed to extend /dev/shm/nccl-a to 9 bytes, error {FULL}",
        ),
        (
            "2.21.5",
            "misc/shmutils.cc:134 Error while creating shared memory segment /dev/shm/nccl-a "
            f"(size 9637888), error: {FULL}",
        ),
        (
            "2.28.9",
            "misc/shmutils.cc:134 Error while attaching to shared memory segment /dev/shm/nccl-a "
            "(size 9637888), error: No such file or directory (2)",
        ),
        (
            "2.30.7",
            "os/linux.cc:795 Error: failed to create shared memory file /dev/shm/nccl-XXXXXX, "
            "error Permission denied (13)",
        ),
        ("2.24.3", "transport/shm.cc:590 Cuda failure 1 'invalid argument'"),
    ],
)
def test_shared_memory(tmp_path: Path, version: str, words: str) -> None:
    found = told(tmp_path, Job(version, last="graph", warn={1: [words]}).text())
    named = only(found, "INIT-SHM")
    assert named.suspects == ["node0"]
    assert ("mode 1777" if "denied" in words else "NCCL_CUMEM_HOST_ENABLE=0") in named.remedy


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.18.6", "bootstrap.cc:45 Bootstrap : no socket interface found"),
        ("2.30.7", "bootstrap.cc:126 Bootstrap : no socket interface found"),
        ("2.28.9", "bootstrap.cc:126 Bootstrap: no socket interface found"),
        ("2.21.5", "misc/socket.cc:180 Net : No interface found in the same subnet as remote "
         "address 10.0.0.9<4000>"),
        ("2.28.9", "bootstrap.cc:110 NET/Socket : No usable listening interface found"),
        ("2.21.5", "transport/net_socket.cc:62 NET/Socket : no interface found"),
    ],
)  # fmt: skip
def test_no_interface(tmp_path: Path, version: str, words: str) -> None:
    found = told(tmp_path, Job(version, last="bootstrap", warn={2: [words]}).text())
    assert only(found, "INIT-NO-IFACE").suspects == ["node1"]


@pytest.mark.parametrize("version", ["2.18.6", "2.24.3", "2.30.7"])
@pytest.mark.parametrize(
    "words",
    [
        "misc/ibvwrap.cc:120 Call to ibv_open_device failed",
        "transport/net_ib.cc:190 NET/IB : Unable to open device mlx5_0",
    ],
)
def test_a_device_that_cannot_be_opened(tmp_path: Path, version: str, words: str) -> None:
    found = told(tmp_path, fallback(version, warn={2: [words]}).text())
    named = next(finding for finding in found.findings if finding.code == "FAB-OPEN-FAILED")
    assert named.suspects == ["node1"]


@pytest.mark.parametrize(
    ("version", "network", "loaded"),
    [
        ("2.18.6", "IBext", "v6"),
        ("2.21.5", "IBext_v8", "v8"),
        ("2.21.5", "NCCL RDMA Plugin v8", "v8"),
        ("2.28.9", "NCCL RDMA Plugin v10", "v10"),
        ("2.30.7", "IBext_v11", "v11"),
        ("2.30.7", "NCCL RDMA Plugin v11", "v11"),
    ],
)
def test_the_plugin_of_hpcx_is_rdma_by_each_of_its_names(
    tmp_path: Path, version: str, network: str, loaded: str
) -> None:
    why = [
        f"NET/Plugin: Loaded net plugin NCCL RDMA Plugin {loaded} ({loaded})",
        "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
        "P2P plugin IBext" + (f"_{loaded}" if loaded != "v6" else ""),
    ]
    job = Job(version, network=lambda host: network, why=why, suffix="/Shared")
    assert f"via NET/{network}/0/Shared/GDRDMA" in job.text()
    found = told(tmp_path, job.text())
    assert (found.transport, found.exit_code, found.gdr) == ("rdma", 0, True), found
    assert found.networks == [network]


@pytest.mark.parametrize(
    ("words", "uses"),
    [
        # Two dual-port cards, used as one device each: [0] to [3] are their ports.
        (["[4] name=p0+p1 speed=800000 ndevs=2", "[5] name=p2+p3 speed=800000 ndevs=2"], ""),
        (["[4] name=p0+p1 speed=800000 ndevs=2", "[5] name=p0+p1 speed=800000 ndevs=2"], "2 of 4"),
        ([], ""),  # these lines are written with NCCL_DEBUG_SUBSYS=NET only
    ],
)
@pytest.mark.parametrize("version", ["2.24.3", "2.30.7"])
def test_ports_that_are_used_as_one_device_count_each(
    tmp_path: Path, version: str, words: list[str], uses: str
) -> None:
    singles = [f"[{at}] name=p{at} speed=400000 ndevs=1" for at in range(4)] if words else []
    made = [f"NET/IB : Made virtual device {word}" for word in [*singles, *words]]
    job = Job(version, gpus=4, devices=lambda host: 4, why=made)
    text = re.sub(r"NET/IB/(\d)", lambda edge: f"NET/IB/{4 + int(edge[1]) // 2}", job.text())
    found = told(tmp_path, text.replace("mlx5_", "p"))
    assert codes(found) == ({"FAB-PARTIAL-RAILS"} if uses else set())
    assert all(uses in finding.statement for finding in found.findings)


@pytest.mark.parametrize("version", ["2.18.6", "2.24.3", "2.30.7"])
@pytest.mark.parametrize(
    ("code", "job"),
    [
        ("FAB-NO-DEVICE", {}),
        ("FAB-NO-VERBS", {"why": ["Failed to open libibverbs.so[.1]"]}),
        ("FAB-IPOIB", {"interface": "ib0"}),
        ("FAB-LOOPBACK", {"interface": "docker0", "last": "graph"}),
        ("FAB-NO-GDR", {"gdr": False}),
    ],
)
def test_of_two_hosts_the_one_that_has_the_fault_is_named(
    tmp_path: Path, version: str, code: str, job: dict[str, Any]
) -> None:
    last = job.get("last", "complete")
    good = Job(version, last=last)
    bad = Job(version, **job) if code == "FAB-NO-GDR" else fallback(version, **job)
    text = "".join((bad if rank > 1 else good).of(rank) for rank in good.ranks)
    if code == "FAB-NO-GDR":  # which NCCL ands over all ranks
        text = text.replace("GDR 1", "GDR 0")
    found = told(tmp_path, text)
    named = next(finding for finding in found.findings if finding.code == code)
    assert named.suspects == ["node1"]
