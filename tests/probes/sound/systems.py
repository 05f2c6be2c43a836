"""What sound clusters of each shipped contract reach: public figures, each with its source.

None of them is taken from a limit.  A figure of another size than the clusters' is carried to it by
the model of a ring, and marked so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.public_series import P5_ALL_REDUCE, P5_ALLTOALL

# What each of the 2 (n - 1) steps of a ring inside a node adds to the time of its bytes.  Four GPUs
# of a GB200, so 6 steps, reach 593.5 GB/s at 256 MiB and 679.6 at 8 GB (Azure ND GB200 v6).  Eight
# B200, so 14 steps, then reach 527 at 256 MiB, and eight H100 316.
STEP_S = 14.3e-6


@dataclass(frozen=True)
class Rates:
    """What sound GPUs of a model reach, not taken from devices.toml: TFLOP/s in bf16, GB/s."""

    gemm: float
    hbm: float
    source: str


@dataclass(frozen=True)
class System:
    """Figures of one kind of cluster, in GB/s where nothing else is said, and their source.

    `ring`: an all-reduce by a ring, of few nodes or by nodes.  `alltoall` is by nodes; more nodes
    count as the most that were measured.  `inside`: an all-reduce of 8 GB inside one node.
    `efficiency` is by nodes.
    """

    ring: float | Mapping[int, float]
    alltoall: Mapping[int, float]
    inside: float
    mfu: float
    source: str
    nvlink: float = 0.0
    efficiency: Mapping[int, float] | None = None
    sizes: tuple[int, ...] = (2, 8, 16, 64)  # nodes

    def ring_at(self, nodes: int) -> float:
        """Return the rate of a ring over so many nodes."""
        return self.ring if isinstance(self.ring, float | int) else newest(self.ring, nodes)

    def inside_short(self, gpus: int) -> float:
        """Model the all-reduce of 256 MiB inside one node of so many GPUs."""
        sent = 2 * (gpus - 1) / gpus * (256 << 20)
        return sent / (sent / self.inside / 1e9 + 2 * (gpus - 1) * STEP_S) / 1e9


def newest(series: Mapping[int, float], nodes: int) -> float:
    """Return the figure of the most nodes that are not more than `nodes`."""
    return series[max(count for count in series if count <= nodes)]


# Of eight GPUs and more behind 12.5 GB/s, where nothing overlaps: 0.63 s of arithmetic for the
# load's 8.8 GB; of all-to-all 70 % of what the all-reduce lets expect.
TCP_EFFICIENCY, TCP_ALLTOALL = {1: 1.0, 2: 0.37, 8: 0.35}, {2: 2.4, 8: 1.5}
# torchtitan and llm-foundry keep 96 to 100 % to 128 GPUs; at 64 nodes stragglers take some percent.
DENSE = {1: 1.0, 2: 0.98, 8: 0.97, 16: 0.96, 64: 0.93}
# Where several contracts have the same source.
#   inside: a ring of H100 reaches 365 to 370 GB/s (NVIDIA/nccl#1455, nccl-tests#212); one of GB200
#   680 (Azure ND GB200 v6), and a B200 has the same NVLink.
#   all-to-all: as on AWS p5; 76.5 at two nodes on NVIDIA's own (nccl-tests#130).
#   MFU: of a 1B model on eight H100 (llm-foundry); of this load on one H200; of Llama 3 70B on
#   eight B200 (newmind.ai, journal 18).
#   GEMM: a product of 8192 rows reaches 84 % of the best shape's rate (668 by this test of 794.5 on
#   one H200); best shapes of stas00/ml-engineering.  HBM: a copy of this test moves 87 % of the
#   data sheet's rate on one H200 (4,197 of 4,800).
OF_BEST, OF_HBM = 668 / 794.5, 4197 / 4800
GPUS = {
    "H100": Rates(
        OF_BEST * 794.5, OF_HBM * 3350,
        "84 % of the best shape's 794.5 TFLOP/s (stas00/ml-engineering), 87 % of the data sheet's "
        "3350 GB/s: the shares of one H200",
    ),
    "H200": Rates(
        668, 4197,
        "measured by this test on one H200; its FP8, 1252 TFLOP/s, is what Azure's reach (1269)",
    ),
    "B200": Rates(
        OF_BEST * 1745, 7350,
        "84 % of the best shape's 1745 TFLOP/s (stas00/ml-engineering); the memory of a GB200 "
        "(Azure ND GB200 v6)",
    ),
    "GB200": Rates(
        OF_BEST * 1822, 7140,
        "84 % of the best shape's 1822 TFLOP/s (stas00/ml-engineering); a triad on a GB300, which "
        "has the same memory (KernelAgent-Oink)",
    ),
}  # fmt: skip
INSIDE = {"H100": 365.0, "B200": 680.0}
MFU = {"H100": 0.42, "H200": 0.412, "B200": 0.38}
NDR = "a ring over two NDR nodes keeps 46 to 48 GB/s of each NIC (nccl-tests 290)"
GOOGLE = "an all-gather of 8 GB on Google's own machines"
TCP = "NCCL over TCP reaches 60 % of the wire and more; the rest is modelled"
# At 8 GiB, by nodes.  Two nodes count as four: on two NCCL takes a tree, which is faster.
P5_RING = {nodes: P5_ALL_REDUCE[max(nodes, 4)][-1] for nodes in P5_ALL_REDUCE}
SYSTEMS = {
    "h100-ndr400": System(368, P5_ALLTOALL, INSIDE["H100"], MFU["H100"], NDR),
    "h200-ndr400": System(368, P5_ALLTOALL, INSIDE["H100"], MFU["H200"], NDR),
    "h100-roce400": System(
        320, P5_ALLTOALL, INSIDE["H100"], MFU["H100"], "two nodes and more on RoCE (nccl 1221)"
    ),
    "a3-ultra": System(335.7, P5_ALLTOALL, INSIDE["H100"], MFU["H200"], GOOGLE),
    "p5-efa": System(
        P5_RING, P5_ALLTOALL, INSIDE["H100"], MFU["H100"],
        "8 GiB on 8 and on 32 nodes (crazyguitar/aws-gpu-communication-benchmark)",
    ),
    "a3-mega-tcpxo": System(
        188.7, {n: rate / 2 for n, rate in P5_ALLTOALL.items()}, INSIDE["H100"], MFU["H100"],
        f"{GOOGLE}; all-to-all is half of p5's, as its line rate is",
    ),
    "b200-ndr400": System(
        385, P5_ALLTOALL, INSIDE["B200"], MFU["B200"],
        "eight NDR NICs, each at 96 % (lixueduan, GB200 with GPUDirect)",
    ),
    "gb200-nvl72": System(
        192, P5_ALLTOALL, INSIDE["B200"], MFU["B200"],
        "NDR NICs, each at 96 % (lixueduan); two nodes' NVLink 811 (lixueduan), a rack's 837 to "
        "847 (CoreWeave)", nvlink=811,
    ),
    "l40s-ethernet": System(
        7.9, TCP_ALLTOALL, 20, 0.2, TCP, efficiency=TCP_EFFICIENCY, sizes=(2, 8)
    ),
    "h100-one-node": System(
        0, {}, INSIDE["H100"], MFU["H100"], "a ring of 8 GB (nccl 1455, nccl-tests 212)", sizes=(1,)
    ),
}  # fmt: skip
