"""Phrases that no job fails by: advice, and news that may explain a slow job."""

from __future__ import annotations

from probes.nccl.phrases.phrase import HARMLESS, NEWS, Phrase

PHRASES = (
    Phrase(
        *("gpu-hidden", rb"nvmlDeviceGetHandleByPciBusId\(\) failed: Not Found", "2.7-2.30"),
        *("a peer's GPU is not seen", NEWS),
        "misc/nvmlwrap.cc nvmlDeviceGetHandleByPciBusId() failed: Not Found",
    ),
    Phrase(
        "p2p-off",
        rb"P2P is disabled between connected GPUs|Could not enable P2P between dev",
        *("2.7-2.30", "GPU P2P is off"),
        *(
            NEWS,
            "P2P is disabled between connected GPUs 2 and 1. You can repress this message with",
        ),
    ),
    Phrase(
        *("simple-order", rb"falling back to simple order|Could not find a path for pattern"),
        *("2.4-2.30", "no good ring is found", HARMLESS),
        "graph/search.cc Could not find a path for pattern 4, falling back to simple order",
    ),
    Phrase(
        *(
            "iommu",
            rb'Missing "(?:(?:amd_)?iommu|HSA_FORCE_FINE_GRAIN_PCIE)=',
            "RCCL",
            "P2P of GPUs may hang",
            HARMLESS,
        ),
        'Missing "iommu=pt" from kernel command line which can lead to system instability or hang!',
    ),
    Phrase(
        *("no-cuda-library", rb"Failed to find CUDA library", "2.18-2.30", "no cuMem, no NVLS"),
        *(HARMLESS, "misc/cudawrap.cc Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='')"),
    ),
    Phrase(
        "harmless",
        rb"NUMA auto balancing|Cannot get incoming CPU"
        rb"|failed to IPC register userbuff"
        rb"|Kernel .{0,60}?not (?:qualified|supported)|\bdeprecated\b"
        rb"|[Uu]nable to (?:find|read) NUMA|Could not get speed|libnuma",
        *("2.2-2.30, RCCL", "advice that no job fails by", HARMLESS),
        "NUMA auto balancing enabled which can lead to variability in the performance!",
    ),
)
