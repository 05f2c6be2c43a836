"""Public figures of sound clusters, and the model that carries them to other sizes."""

from __future__ import annotations

GIB = 1 << 30
# AWS p5.48xlarge (crazyguitar/aws-gpu-communication-benchmark, data/nccl_all_reduce.csv and
# nccl_alltoall.csv): busbw in GB/s by nodes of 8 GPUs; all-reduce at 2, 4 and 8 GiB by NCCL's own
# choice of algorithm, all-to-all at 512 MiB to 2 GiB.
P5_ALL_REDUCE = {
    2: (445, 466, 478),
    4: (348, 354, 357),
    8: (278, 351, 355),
    16: (271, 306, 356),
    32: (269, 303, 321),
}
P5_ALLTOALL = {2: 79, 4: 54, 8: 50, 16: 44, 32: 41}
HOP_S = 15e-6  # NIC to NIC; a step of a ring takes the slowest of its links
INNER_HOP_S = 2e-6  # over NVLink


def ring_rate(ranks: int, size: int, link: float = 360.0, inside: int = 8) -> float:
    """Model the busbw of a ring: the bytes at the rate of its links, and a hop for each node.

    `link` is in GB/s, `size` in bytes, `inside` in ranks of a node (NVIDIA/nccl#1712).
    """
    sent = 2 * (ranks - 1) / ranks * size
    hops = 2 * (ranks // inside - 1) * HOP_S + 2 * (ranks - 1) * INNER_HOP_S
    return float(sent / (sent / link / 1e9 + hops) / 1e9)
