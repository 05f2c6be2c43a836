"""Findings of NCCL's log: what stopped its start, and its errors."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

NCCL: dict[str, Entry] = {
    "INIT-NO-IFACE": Entry(
        "NCCL found no network interface to use.",
        Cause.INFRASTRUCTURE,
        "NCCL_SOCKET_IFNAME must match an interface that is up, with an address, on every node",
    ),
    "INIT-BOOTSTRAP": Entry(
        "A rank could not connect to a peer by TCP.",
        Cause.INFRASTRUCTURE,
        "refused: does the peer live; timed out: open net.ipv4.ip_local_port_range between the nodes; no route: NCCL_SOCKET_IFNAME; IPv4 here and IPv6 there: NCCL_SOCKET_FAMILY",
    ),
    "INIT-QP": Entry(
        "An RDMA connection between two nodes could not be made, or broke; the finding has the remedy of its cause.",
        Cause.INFRASTRUCTURE,
        "timed out: NCCL_CROSS_NIC=0 on rail-only fabrics; invalid argument: NCCL_IB_GID_INDEX unset since 2.21; unreachable: routes, NCCL_IB_ADDR_RANGE; a broken one: cable, switch, the peer, ACS",
    ),
    "INIT-MEMLOCK": Entry(
        "Memory could not be locked for RDMA.",
        Cause.INFRASTRUCTURE,
        "set `ulimit -l unlimited` for the raylet (LimitMEMLOCK=infinity) and give containers IPC_LOCK",
    ),
    "INIT-SHM": Entry(
        "/dev/shm is too small or cannot be written.",
        Cause.INFRASTRUCTURE,
        "give the container --shm-size=1g or more (Kubernetes: an emptyDir with medium Memory on /dev/shm); NCCL 2.24 to 2.26 without SYS_NICE: NCCL_CUMEM_HOST_ENABLE=0",
    ),
    "INIT-NVLS": Entry(
        "NVLink multicast (NVLS) failed or hangs.",
        Cause.HARDWARE,
        "check that Fabric Manager started before the GPUs were used; NCCL_NVLS_ENABLE=0 shows whether it is the cause",
    ),
    "INIT-MNNVL": Entry(
        "NVLink between hosts (MNNVL) is there and cannot be used.",
        Cause.INFRASTRUCTURE,
        "give the job an IMEX channel (/dev/nvidia-caps-imex-channels) and see `nvidia-imex-ctl -N` on every node; NCCL_MNNVL_ENABLE=0 shows whether it is the cause, and gives that road up",
    ),
    "INIT-LIMITS": Entry(
        "A limit of the process was reached: open files, threads or their stacks.",
        Cause.INFRASTRUCTURE,
        "raise `ulimit -n` and `ulimit -u` (LimitNOFILE, TasksMax) for the raylet, and keep the stack finite: `ulimit -s 8192`, not unlimited",
    ),
    "INIT-SLOW": Entry(
        "The start took very long, though it ended; the finding has the phase that took most.",
        Cause.NO_PROGRESS,
        "keep the driver loaded (nvidia-persistenced), start ranks together, give start-up a fast interface (NCCL_SOCKET_IFNAME)",
    ),
    "INIT-MISSING-RANK": Entry(
        "Some ranks never joined while the others wait for them.",
        Cause.NO_PROGRESS,
        "look whether the named ranks were started: actors alive, WORLD_SIZE right, gang placed as a whole",
    ),
    "INIT-HANG": Entry(
        "Init stopped without an error.",
        Cause.NO_PROGRESS,
        "look at the ranks that lag behind: their interface, their devices, their process; then run with NCCL_DEBUG=INFO on all ranks",
    ),
    "NCCL-VERSION": Entry(
        "The ranks of one job run different NCCL versions.",
        Cause.INFRASTRUCTURE,
        "use one image everywhere; look for a second libnccl in LD_LIBRARY_PATH or LD_PRELOAD",
    ),
    "NCCL-DUP-GPU": Entry(
        "Two ranks use the same GPU.",
        Cause.APPLICATION,
        "give each rank a GPU of its own: num_gpus=1 per Ray worker, device = LOCAL_RANK; host names must differ between nodes",
    ),
    "NCCL-CORRUPT": Entry(
        "nccl-tests counted wrong elements: data were corrupted.",
        Cause.HARDWARE,
        "do not train here; test with NCCL_P2P_DISABLE=1 (ACS, IOMMU), then each GPU and NIC apart",
    ),
    "NCCL-ERROR": Entry(
        "NCCL failed, or a collective timed out, after the job had started.",
        Cause.HARDWARE,
        "read the named lines; the first rank that failed is the one to look at: its GPU (Xid), its NIC, its process",
    ),
}
