"""NCCL logs of our own, written to the formats of NCCL 2.18 to 2.30: no line is pasted.

SYNTHETIC: no GPU wrote these.  A Job writes what each rank would write, in the words of its
version; a fault is a Job with other facts.  Formats: src/init.cc, src/bootstrap.cc,
src/transport/net*.cc, src/transport/generic.cc at the tags named in VERSIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

VERSIONS = ("2.18.6", "2.21.5", "2.24.3", "2.28.9", "2.30.7")


def new(version: str) -> tuple[int, int]:
    """Major and minor, for comparing."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


@dataclass
class Job:
    """Ranks on hosts, and what their NCCL would log.  Rank r is GPU r % gpus of host r // gpus."""

    version: str = "2.28.9"
    hosts: int = 2
    gpus: int = 2
    network: Callable[[int], str] = lambda host: "IB"  # by host
    devices: Callable[[int], int] = lambda host: 2
    interface: str = "eth0"
    gdr: bool = True
    suffix: str = ""  # after the NIC: (PCI), /Shared
    environment: dict[str, str] = field(default_factory=dict)
    alone: bool = False  # each host a communicator of its own
    absent: Sequence[int] = ()  # ranks that write nothing
    last: str = "complete"  # how far all come
    versions: Callable[[int], str] | None = None  # by host
    why: list[str] = field(default_factory=list)  # further words after the NET lines, every rank
    warn: dict[int, list[str]] = field(default_factory=dict)  # rank -> errors at its end
    stops: dict[int, str] = field(default_factory=dict)  # rank -> how far it comes

    def text(self) -> str:
        """All ranks' lines, rank after rank."""
        return "".join(self.of(rank) for rank in self.ranks)

    @property
    def ranks(self) -> list[int]:
        """The ranks that write."""
        return [rank for rank in range(self.hosts * self.gpus) if rank not in self.absent]

    def of(self, rank: int) -> str:
        """What one rank writes to its file."""
        lines = [self._prefix(rank) + line for line in self._info(rank)]
        if rank == 0 or self.versions:
            lines.insert(1, f"NCCL version {self._version(rank)}+cuda12.9")
            if self.versions:
                lines[1] = self._prefix(rank) + lines[1]
        lines += ["\n" + self._warn(rank, word) for word in self.warn.get(rank, [])]
        return "".join(line + "\n" for line in lines)

    def _version(self, rank: int) -> str:
        return self.versions(rank // self.gpus) if self.versions else self.version

    def _prefix(self, rank: int, level: str = "INFO") -> str:
        device = rank % self.gpus
        return f"node{rank // self.gpus}:{1000 + rank}:{1100 + rank} [{device}] NCCL {level} "

    def _warn(self, rank: int, words: str) -> str:
        """`file:line words` as a WARN of this version."""
        place, _, what = words.partition(" ")
        version = new(self._version(rank))
        stamp = "[2026-11-20 10:00:00] " if version >= (2, 26) else ""
        function = " (theFunction)" if version >= (2, 30) else ""
        who = self._prefix(rank, "WARN").removesuffix("NCCL WARN ")
        return f"{stamp}{who}{place}{function} NCCL WARN {what}"

    def _info(self, rank: int) -> list[str]:
        host = rank // self.gpus
        version, own = new(self._version(rank)), f"10.0.0.{host + 1}"
        until = STAGES.index(self.stops.get(rank, self.last))
        colon = "Bootstrap:" if version >= (2, 24) else "Bootstrap :"
        lines = [f"{colon} Using {self.interface}:{own}<0>"]
        lines += [
            f"{name} set by environment to {value}" for name, value in self.environment.items()
        ]
        if until >= STAGES.index("net-init"):
            lines += self._net(host, own, version)
        lines += self.why
        lines += self._init(rank, version, until)
        return lines

    def _net(self, host: int, own: str, version: tuple[int, int]) -> list[str]:
        if version < (2, 20):
            lines = [
                "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open "
                "shared object file: No such file or directory",
                "NET/Plugin : No plugin found, using internal implementation",
            ]
        elif version < (2, 28):
            lines = ["NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."]
        else:
            lines = [f"Initialized NET plugin {self.network(host)}"]
        count, oob = self.devices(host), f"OOB {self.interface}:{own}<0>"
        if not count and "NCCL_IB_DISABLE" not in self.environment:
            lines.append("NET/IB : No device found.")
        if count:
            ports = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(count))
            lines.append(f"NET/IB : Using {ports} [RO]; {oob}")
        elif version >= (2, 24) and "NCCL_IB_DISABLE" not in self.environment:
            lines.append(f"NET/IB : Using ; {oob}")  # the trap: no device, and yet `Using`
        if self.network(host) == "Socket":
            lines.append(f"NET/Socket : Using [0]{self.interface}:{own}<0>")
        return [*lines, f"Using network {self.network(host)}"]

    def _init(self, rank: int, version: tuple[int, int], until: int) -> list[str]:
        device, host = rank % self.gpus, rank // self.gpus
        size = self.gpus if self.alone else self.hosts * self.gpus
        number = device if self.alone else rank
        group = f"0x{0xABC0 + (host if self.alone else 0):x}"
        call = "ncclCommInitRankConfig " if version >= (2, 20) else ""
        comm = f"comm 0x55{rank:04x} rank {number} n"
        tail = (
            f"ranks {size} cudaDev {device} nvmlDev {device} busId {device + 1}8000 commId {group}"
        )
        nodes = 1 if self.alone else self.hosts
        shape = (
            f"comm 0x55{rank:04x} rank {number} nRanks {size} nNodes {nodes} "
            f"localRanks {self.gpus} localRank {device} MNNVL 0"
        )
        ring = f"Channel 00/02 :    {'   '.join(str(r) for r in range(size))}"
        edges = self._edges(rank, version)
        rings = "Connected all rings"
        if version >= (2, 24):
            rings += f", use ring PXN 0 GDR {int(self.gdr)}"
        complete = f"{call}{comm}{tail} - Init COMPLETE"
        steps: list[tuple[str, list[str]]] = [("topology", [f"{call}{comm}{tail} - Init START"])]
        steps.append(("graph", [*([shape] if version >= (2, 20) else []), ring]))
        if version >= (2, 22):  # they connect at the first collective
            steps.append(("first-collective", [complete, "Init timings - x: rank 0 nranks 4"]))
            steps.append(("complete", [*edges, rings]))
        else:
            steps.append(("connect", edges))
            steps.append(("complete", [rings, "Connected all trees", complete]))
        if self.stops.get(rank, self.last) == "nvls":
            steps.insert(2, ("nvls", ["NVLS Bind mem 0x7f0000000000 UC handle 0x1 MC handle 0x2"]))
        return [line for stage, lines in steps if STAGES.index(stage) <= until for line in lines]

    def _edges(self, rank: int, version: tuple[int, int]) -> list[str]:
        """A ring per channel; each enters a host at another GPU, by another rail."""
        host, lines = rank // self.gpus, []
        first = host * self.gpus if self.alone else 0
        for channel in range(max(2, self.gpus)):
            ring = [
                at * self.gpus + (channel + turn) % self.gpus
                for at in ([host] if self.alone else range(self.hosts))
                for turn in range(self.gpus)
            ]
            at = ring.index(rank)
            ways = (
                (ring[at - 1], rank, "receive"),
                (rank, ring[(at + 1) % len(ring)], "send"),
            )
            for a, b, way in ways:
                pair = f"{a - first}[{a % self.gpus}] -> {b - first}[{b % self.gpus}]"
                if a // self.gpus != b // self.gpus:
                    lines.append(
                        f"Channel {channel:02d}/0 : {pair} [{way}] {self._net_of(host, channel)}"
                    )
                elif way == "send" and a != b:
                    via = "SHM/direct/direct" if version < (2, 30) else "SHM/direct"
                    lines.append(f"Channel {channel:02d} : {pair} via {via}")
        return lines

    def _net_of(self, host: int, channel: int) -> str:
        network = self.network(host)
        flag = "/GDRDMA" if self.gdr and network != "Socket" else ""
        return f"via NET/{network}/{channel % max(self.devices(host), 1)}{self.suffix}{flag}"


STAGES = (
    *("not-started", "bootstrap", "net-init", "topology", "graph"),
    *("connect", "nvls", "first-collective", "complete"),
)


def socket(host: int) -> str:
    """Every host on sockets."""
    return "Socket"


def none(host: int) -> int:
    """No RDMA device anywhere."""
    return 0


def faulty(version: str) -> dict[str, Job]:
    """A job for each code that a log can show, in the words of this version."""
    at = new(version)
    fallback = partial(Job, version, network=socket, devices=none)
    connect = (
        "misc/socket.cc:500 socketStartConnect: Connect to 10.0.0.2<41000> failed : Connection refused"
        if at < (2, 28)
        else "misc/socket.cc:590 ncclSocketConnect: connect to 10.0.0.2<41000> returned Connection refused, exceeded error retry count"
    )
    wrong_type = (
        "misc/socket.cc:441 socketFinalizeAccept: wrong type 4 != 3"
        if at < (2, 27)
        else "misc/socket.cc:380 socketFinalizeAccept from 10.0.0.2<4000>: wrong type 4 != 3"
        if at < (2, 30)
        else "os/linux.cc:380 wrong socket type (peer 4 != expected 3 from 10.0.0.2<4000>)"
    )
    duplicate = (
        "init.cc:794 Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 18000"
        if at < (2, 30)
        else "init.cc:1055 Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow it"
    )
    plugin = (
        "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: undefined symbol: x"
        if at < (2, 20)
        else "NET/OFI Failed to initialize rdma protocol"
        if at < (2, 28)
        else "Failed to initialize NET plugin AWS Libfabric"
    )
    verbs = "Failed to open libibverbs.so[.1]" if at < (2, 30) else "Count not open libibverbs.so.1"
    limit = "failed : Too many open files" if at < (2, 23) else "failed: Too many open files"
    slow = (
        "(kernels 0.2, alloc 0.3, bootstrap 0.4, topo 44.1, graphs 0.0, connections 0.1, rest 0.1)"
    )
    colon = "Bootstrap:" if at >= (2, 24) else "Bootstrap :"
    return {
        "FAB-TCP": fallback(),
        "FAB-NO-DEVICE": fallback(),
        "FAB-NO-VERBS": fallback(why=[verbs]),
        "FAB-OPEN-FAILED": fallback(why=["NET/IB : Unable to open device mlx5_0"]),
        "FAB-ENV-DISABLED": fallback(environment={"NCCL_IB_DISABLE": "1."}),
        "FAB-IPOIB": fallback(interface="ib0"),
        "FAB-LOOPBACK": fallback(interface="docker0", last="graph"),
        "FAB-PLUGIN": fallback(why=[plugin]),
        "FAB-NO-GDR": Job(version, gdr=False),
        "FAB-PARTIAL-RAILS": Job(version, devices=lambda host: 1 if host else 2),
        "FAB-MIXED": Job(
            version,
            hosts=3,
            network=lambda host: "Socket" if host == 1 else "IB",
            devices=lambda host: 0 if host == 1 else 2,
            last="graph",
            warn={0: [wrong_type]},
        ),
        "FAB-ALONE": Job(version, alone=True),
        "FAB-LINK-TYPES": fallback(
            why=[
                "NET/IB : Attempted to merge incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE"
            ],
        ),
        "FAB-UNKNOWN-NET": Job(version, network=lambda host: "Homemade"),
        "FAB-NO-EFA": fallback(why=["NET/OFI OFI fi_getinfo() call failed: No data available"]),
        "NCCL-VERSION": Job(
            version, hosts=3, versions=lambda host: "2.19.3" if host == 2 else version
        ),
        "NCCL-DUP-GPU": Job(version, last="topology", warn={1: [duplicate]}),
        "NCCL-ERROR": Job(
            version, warn={1: ["enqueue.cc:100 Cuda failure 700 'an illegal memory access'"]}
        ),
        "INIT-NO-IFACE": Job(
            version,
            last="bootstrap",
            warn={2: [f"bootstrap.cc:126 {colon} no socket interface found"]},
        ),
        "INIT-BOOTSTRAP": Job(version, last="topology", warn={0: [connect]}),
        "INIT-QP": Job(
            version,
            last="graph",
            warn={
                2: [
                    "misc/ibvwrap.cc:200 Call to ibv_modify_qp failed with 110 Connection timed out"
                ]
            },
        ),
        "INIT-MEMLOCK": Job(
            version,
            last="graph",
            warn={
                3: [
                    "misc/ibvwrap.cc:150 Call to ibv_reg_mr failed with error Cannot allocate memory"
                ]
            },
        ),
        "INIT-SHM": Job(
            version,
            last="graph",
            warn={
                0: [
                    "misc/shmutils.cc:87 Error: failed to extend /dev/shm/nccl-abc to 33030532 bytes"
                ]
            },
        ),
        "INIT-MNNVL": Job(
            version,
            last="graph",
            warn={
                2: [
                    "mnnvl.cc:66 MNNVL (cliqueSize 4) is available but not working on this system. Check the IMEX configuration"
                ]
            },
        ),
        "INIT-LIMITS": Job(
            version, last="graph", warn={3: [f"misc/socket.cc:700 Call to socket {limit}"]}
        ),
        "INIT-SLOW": Job(
            version,
            why=[f"Init timings - ncclCommInitRank: rank 0 nranks 4 total 45.20 {slow}"],
        ),
        "INIT-NVLS": Job(version, last="nvls"),
        "INIT-MISSING-RANK": Job(version, absent=(3,), last="topology"),
        "INIT-HANG": Job(version, last="graph", stops={2: "topology"}),
    }
