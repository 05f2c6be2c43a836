"""SYNTHETIC: /sys/class as on machines with other fabrics than ours.

Sources: the kernel's Documentation/ABI/stable/sysfs-class-infiniband and the drivers' own names.
Machines: mlx5 of InfiniBand and RoCE, virtual functions, EFA, bnxt_re, irdma, a DGX with ports for
storage, a bond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

NDR, HDR, EDR = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)", "100 Gb/sec (4X EDR)"
WORDS = "counters/port_xmit_data"  # in units of four octets
BYTES = "hw_counters/tx_bytes"


@dataclass(frozen=True)
class Port:
    """One port of a device: bytes sent (None: no file shows them), and the file with its unit."""

    device: str
    sent: int | None = 0
    counter: str = WORDS
    layer: str = "InfiniBand"
    rate: str = NDR
    state: str = "4: ACTIVE"
    netdev: str = ""
    number: str = "1"


@dataclass(frozen=True)
class Tree:
    """Machine with RDMA ports; bytes by network device; bonds by member."""

    ports: tuple[Port, ...]
    net: dict[str, int] = field(default_factory=dict)
    bonded: dict[str, str] = field(default_factory=dict)

    def write(self, root: Path) -> tuple[str, str]:
        """Write it; return the paths of /proc/net/dev and of /sys/class."""
        sys, proc = root / "sys" / "class", root / "proc"
        (sys / "net").mkdir(parents=True)
        (sys / "infiniband").mkdir()
        proc.mkdir()
        for port in self.ports:
            write_port(sys / "infiniband", port)
        lines = ["Inter-|   Receive", " face |bytes"]
        for device, sent in self.net.items():
            (sys / "net" / device).mkdir()
            fields = ["0"] * 8 + [str(sent)] + ["0"] * 7
            lines.append(f"{device}: {' '.join(fields)}")
        for member, bond in self.bonded.items():
            (sys / "net" / member / "master").symlink_to(sys / "net" / bond)
        (proc / "net_dev").write_text("\n".join(lines) + "\n")
        return str(proc / "net_dev"), str(sys)


def write_port(infiniband: Path, port: Port) -> None:
    """Write one port's folder."""
    folder = infiniband / port.device / "ports" / port.number
    folder.mkdir(parents=True)
    for name, text in (("rate", port.rate), ("state", port.state), ("link_layer", port.layer)):
        (folder / name).write_text(f"{text}\n")
    if port.netdev:
        ndev = folder / "gid_attrs" / "ndevs" / "0"
        ndev.parent.mkdir(parents=True)
        ndev.write_text(f"{port.netdev}\n")
    if port.sent is not None:
        counter = folder / port.counter
        counter.parent.mkdir(parents=True)
        unit = 4 if port.counter == WORDS else 1
        counter.write_text(f"{port.sent // unit}\n")


GIB = 1 << 30
ROCE = {"layer": "Ethernet", "rate": NDR}
TREES: dict[str, Tree] = {
    "mlx5 InfiniBand": Tree(tuple(Port(f"mlx5_{i}", GIB) for i in range(8)), {"eth0": 2_000_000}),
    "mlx5 RoCE": Tree(
        tuple(Port(f"mlx5_{i}", GIB, netdev=f"ens{i}", **ROCE) for i in range(8)),
        {"eth0": 2_000_000, **{f"ens{i}": 4_000 for i in range(8)}},
    ),
    # Virtual functions of some hypervisors, and irdma, show no counter of what was sent.
    "virtual functions": Tree(
        tuple(Port(f"mlx5_{i}", None) for i in range(8)), {"eth0": 2_000_000}
    ),
    "irdma": Tree((Port("irdma0", None, **ROCE), Port("irdma1", None, **ROCE)), {"eth0": 9_000}),
    "EFA": Tree(
        tuple(
            Port(f"rdmap{i}s27", GIB, BYTES, "Unspecified", "100 Gb/sec (4X EDR)")
            for i in range(32)
        ),
        {"eth0": 2_000_000},
    ),
    "bnxt_re": Tree(
        tuple(Port(f"bnxt_re{i}", GIB, BYTES, netdev=f"enp{i}", **ROCE) for i in range(8)),
        {"eth0": 2_000_000, **{f"enp{i}": 4_000 for i in range(8)}},
    ),
    # Eight rails, and two ports of the storage network, as fast as the rails or slower.
    "DGX, storage as fast": Tree(tuple(Port(f"mlx5_{i}", GIB) for i in range(10))),
    "DGX, storage slower": Tree(
        (
            *(Port(f"mlx5_{i}", GIB) for i in range(8)),
            *(Port(f"mlx5_{i}", 4096, layer="Ethernet", rate=HDR) for i in (8, 9)),
        )
    ),
    "one port masked": Tree(
        (Port("mlx5_0", GIB), Port("mlx5_1", None), Port("mlx5_2", GIB)), {"eth0": 2_000_000}
    ),
    "one port down, without a counter": Tree(
        (Port("mlx5_0", GIB), Port("mlx5_1", None, state="1: DOWN")), {"eth0": 2_000_000}
    ),
    "bond": Tree(
        (Port("mlx5_bond_0", GIB, netdev="bond0", **ROCE),),
        {"bond0": 6_000, "ens0": 3_000, "ens1": 3_000},
        {"ens0": "bond0", "ens1": "bond0"},
    ),
}
