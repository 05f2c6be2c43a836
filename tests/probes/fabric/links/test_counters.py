"""Counters of links: of real connections, of made-up sysfs trees, of kernels that lack them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from probes.fabric import link_counters
from probes.fabric.link_counters import (
    LinkReader,
    parse_tcp_info,
    read_ports,
    read_rdma_packets,
    read_tcp_counters,
    used_ports,
)


@contextmanager
def connection(peer: str = "127.0.0.2") -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection from 127.0.0.1 to another address of this host: both of its ends."""
    with socket.create_server((peer, 0)) as server:
        ours = socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 0))
        theirs, _ = server.accept()
        with ours, theirs:
            yield ours, theirs


def test_segments_of_connections_that_are_opened_later_are_counted() -> None:
    with connection() as (older, its_end):
        reader = LinkReader()
        older.sendall(b"x" * 4096)
        its_end.recv(4096)
        assert reader.tcp() == {"sent": 0, "resent": 0, "twice": 0}
        with connection() as (ours, theirs):
            ours.sendall(b"x" * 4096)
            theirs.recv(4096)
            counts = reader.tcp()
    assert counts["sent"]
    assert (counts["resent"], counts["twice"]) == (0, 0)


def test_the_store_and_the_own_host_are_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = LinkReader()
    with connection() as (ours, _), connection("127.0.0.1") as (within, _):
        monkeypatch.setenv("MASTER_PORT", str(ours.getpeername()[1]))
        ours.sendall(b"x" * 4096)
        within.sendall(b"x" * 4096)
        assert reader.tcp() == {"sent": 0, "resent": 0, "twice": 0}


def tcp_info(**counts: int) -> bytes:
    """A struct tcp_info of Linux 6 with these fields (include/uapi/linux/tcp.h)."""
    offsets = {"total_retrans": 100, "data_segs_out": 156, "dsack_dups": 216}
    info = bytearray(232)
    for name, count in counts.items():
        struct.pack_into("I", info, offsets[name], count)
    return bytes(info)


def test_what_the_kernel_says_of_a_connection() -> None:
    info = tcp_info(total_retrans=94, data_segs_out=2991, dsack_dups=8)
    assert parse_tcp_info(info) == {"sent": 2991, "resent": 94, "twice": 8}
    assert parse_tcp_info(info[:104]) is None  # before 4.6 no data segments were counted


def test_an_old_kernels_segments_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_counters, "TCP_INFO_BYTES", 104)
    reader = LinkReader()
    with connection():
        assert reader.tcp() == {"sent": None, "resent": None, "twice": None}


def write(folder: Path, **values: object) -> None:
    """Files of one number each; a value of None is one that cannot be read as a number."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text("N/A (no PMA)\n" if value is None else f"{value}\n")


def mlx5(root: Path, device: str = "mlx5_0", **hardware: object) -> Path:
    """A port as mlx5 shows it: counters of InfiniBand, hw_counters of its own."""
    port = root / device / "ports" / "1"
    write(
        port / "counters",
        port_xmit_packets=1000, port_rcv_packets=2000, port_xmit_data=1 << 20,
        symbol_error=1, link_downed=2, link_error_recovery=0, port_rcv_errors=3,
        port_xmit_discards=4, local_link_integrity_errors=0, excessive_buffer_overrun_errors=0,
    )  # fmt: skip
    write(port / "hw_counters", **{"packet_seq_err": 5, "local_ack_timeout_err": 6, **hardware})
    return port


def counts(ports: list[Path]) -> dict[str, Any]:
    """What ports have sent and resent together; of each, `read_rdma_packets` says it as well."""
    found = read_rdma_packets(ports)
    assert found is not None
    assert list(found.pop("ports")) == [str(port) for port in ports]
    return found


def test_an_mlx5_port(tmp_path: Path) -> None:
    port = mlx5(tmp_path / "ib", implied_nak_seq_err=7, np_ecn_marked_roce_packets=8)
    assert counts([port]) == {"sent": 1000, "resent": 18}
    found = read_ports(str(tmp_path), str(tmp_path / "ib"))["mlx5_0/1"]
    assert found["changes"] == 2
    assert found["packets"] == {"sends": 1000, "receives": 2000}
    assert found["errors"] == {"sends": 4, "receives": 4}
    assert found["notes"] == {"np_ecn_marked_roce_packets": 8}


def test_an_efa_port_has_counters_of_its_own(tmp_path: Path) -> None:
    port = tmp_path / "ib" / "rdmap16s27" / "ports" / "1"
    write(port / "hw_counters", tx_pkts=500, rx_pkts=400, retrans_pkts=9, rx_drops=1)
    assert counts([port]) == {"sent": 500, "resent": 9}
    found = read_ports(str(tmp_path), str(tmp_path / "ib"))["rdmap16s27/1"]
    assert found["packets"] == {"sends": 500, "receives": 400}
    assert found["errors"] == {"sends": None, "receives": 1}
    assert found["changes"] is None


def test_a_broadcom_port_counts_under_other_names(tmp_path: Path) -> None:
    port = tmp_path / "bnxt_re0" / "ports" / "1"
    write(port / "hw_counters", tx_pkts=500, seq_err_naks_rcvd=2, to_retransmits=3)
    assert counts([port]) == {"sent": 500, "resent": 5}


def test_counters_that_cannot_be_read_are_unknown_and_never_0(tmp_path: Path) -> None:
    port = tmp_path / "ib" / "mlx5_0" / "ports" / "1"
    write(port / "counters", port_xmit_data=4096, link_downed=None)
    write(port / "hw_counters", packet_seq_err=None)
    assert counts([port]) == {"sent": 4, "resent": None}  # 4 x 4096 bytes of 4096
    found = read_ports(str(tmp_path), str(tmp_path / "ib"))["mlx5_0/1"]
    assert found["changes"] is None
    assert found["errors"] == {"sends": None, "receives": None}
    assert read_rdma_packets([]) is None
    efa = tmp_path / "efa_0" / "ports" / "1"
    write(efa / "hw_counters", tx_bytes=8192)
    assert counts([efa]) == {"sent": 2, "resent": None}  # 8192 bytes of 4096


def test_one_port_of_several_that_says_nothing_leaves_all_unknown(tmp_path: Path) -> None:
    silent = tmp_path / "mlx5_1" / "ports" / "1"
    silent.mkdir(parents=True)
    assert counts([mlx5(tmp_path), silent]) == {"sent": None, "resent": None}


def test_an_interface_and_what_it_is_made_of(tmp_path: Path) -> None:
    for name in ("bond0", "eth1", "lo"):
        write(tmp_path / name, carrier_changes=3)
        write(
            tmp_path / name / "statistics", tx_packets=10, rx_packets=20, rx_errors=1, rx_dropped=9
        )
    os.symlink(tmp_path / "eth1", tmp_path / "bond0" / "lower_eth1")
    found = read_ports(str(tmp_path), str(tmp_path / "none"))
    assert set(found) == {"bond0", "eth1"}
    assert found["bond0"] == {
        "changes": 3,
        "packets": {"sends": 10, "receives": 20},
        "errors": {"sends": None, "receives": 1},
        "lower": ["eth1"],
        "notes": {"rx_dropped": 9},
    }


SNMP = "Ip: Forwarding\nIp: 1\nTcp: OutSegs RetransSegs InErrs\nTcp: 500 4 0\n"
NETSTAT = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 0 2\nIpExt: InNoRoutes\nIpExt: 5\n"


def test_what_tcp_counts_in_the_whole_network_namespace(tmp_path: Path) -> None:
    (tmp_path / "snmp").write_text(SNMP)
    (tmp_path / "netstat").write_text(NETSTAT)
    assert read_tcp_counters(str(tmp_path)) == {"OutSegs": 500, "RetransSegs": 4, "TCPTimeouts": 2}
    assert read_tcp_counters(str(tmp_path / "none")) == {}
    assert read_tcp_counters()["OutSegs"] > 0  # this machine's own


@pytest.mark.parametrize("end", ["4 0\n", "4\n"], ids=["whole", "cut"])
def test_a_table_of_tcp_that_is_cut_is_not_half_read(tmp_path: Path, end: str) -> None:
    (tmp_path / "snmp").write_text(f"Tcp: OutSegs RetransSegs InErrs\nTcp: 500 {end}")
    (tmp_path / "netstat").write_text("TcpExt: TCPTimeouts\nTcpExt: 2\nIpExt: InNoRoutes\n")
    whole = {"OutSegs": 500, "RetransSegs": 4}
    assert read_tcp_counters(str(tmp_path)) == (whole if end == "4 0\n" else {})


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_control_reports_a_share_of_what_was_sent_as_resent(share: float) -> None:
    reader = LinkReader(share)
    with connection() as (ours, theirs):
        for _ in range(10):
            ours.sendall(b"x" * 4096)
            theirs.recv(4096)
        counts = reader()["tcp"]
    assert counts["sent"] >= 10
    assert counts["resent"] == int(share * counts["sent"])


def test_ports_that_nccl_is_told_not_to_use_are_for_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device in ("mlx5_0", "mlx5_bond_0"):
        mlx5(tmp_path, device)
    monkeypatch.setenv("NCCL_IB_HCA", "=mlx5_0")
    assert [path.parts[-3] for path in used_ports(str(tmp_path))] == ["mlx5_0"]
    assert "mlx5_bond_0/1" not in read_ports(str(tmp_path), str(tmp_path))


def test_a_roce_ports_interface_is_below_it(tmp_path: Path) -> None:
    mlx5(tmp_path)
    (tmp_path / "mlx5_0" / "device" / "net" / "eth1").mkdir(parents=True)
    assert read_ports(str(tmp_path), str(tmp_path))["mlx5_0/1"]["lower"] == ["eth1"]
