"""Findings of NCCL's log: what stopped its start, and its errors."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

NCCL: dict[str, Entry] = {
    "INIT-NO-IFACE": Entry(
        "NCCL found no network interface to use.",
        Cause.INFRASTRUCTURE,
        "Set NCCL_SOCKET_IFNAME to an interface that is up, with an address, on every node.",
    ),
    "INIT-BOOTSTRAP": Entry(
        "A rank could not connect to a peer by TCP.",
        Cause.INFRASTRUCTURE,
        "Check by error. Refused: is the peer alive? Timed out: open net.ipv4.ip_local_port_range between the nodes. No route: check NCCL_SOCKET_IFNAME. IPv4 on one side and IPv6 on the other: set NCCL_SOCKET_FAMILY.",
    ),
    "INIT-QP": Entry(
        "An RDMA connection between two nodes could not be made, or broke. The finding has the remedy of its cause.",
        Cause.INFRASTRUCTURE,
        "Check by error. Timed out: NCCL_CROSS_NIC=0 on rail-only fabrics. Invalid argument: unset NCCL_IB_GID_INDEX since NCCL 2.21. Unreachable: check routes and NCCL_IB_ADDR_RANGE. Broken: check cable, switch, peer and ACS.",
    ),
    "INIT-MEMLOCK": Entry(
        "Memory could not be locked for RDMA.",
        Cause.INFRASTRUCTURE,
        "Set `ulimit -l unlimited` for the raylet (LimitMEMLOCK=infinity). Give containers IPC_LOCK.",
    ),
    "INIT-SHM": Entry(
        "/dev/shm is too small or cannot be written.",
        Cause.INFRASTRUCTURE,
        "Give the container --shm-size=1g or more (Kubernetes: an emptyDir with medium Memory on /dev/shm). NCCL 2.24 to 2.26 without SYS_NICE: set NCCL_CUMEM_HOST_ENABLE=0.",
    ),
    "INIT-NVLS": Entry(
        "NVLink multicast (NVLS) failed or hangs.",
        Cause.HARDWARE,
        "Check that Fabric Manager started before the GPUs were used. Set NCCL_NVLS_ENABLE=0 to see whether it is the cause.",
    ),
    "INIT-MNNVL": Entry(
        "NVLink between hosts (MNNVL) exists but cannot be used.",
        Cause.INFRASTRUCTURE,
        "Give the job an IMEX channel (/dev/nvidia-caps-imex-channels) and check `nvidia-imex-ctl -N` on every node. Set NCCL_MNNVL_ENABLE=0 to see whether it is the cause: this turns NVLink between hosts off.",
    ),
    "INIT-LIMITS": Entry(
        "A limit of the process was reached: open files, threads or their stacks.",
        Cause.INFRASTRUCTURE,
        "Raise `ulimit -n` and `ulimit -u` (LimitNOFILE, TasksMax) for the raylet. Keep the stack finite: `ulimit -s 8192`, not unlimited.",
    ),
    "INIT-SLOW": Entry(
        "Init took very long, though it completed. The finding names the slowest phase.",
        Cause.NO_PROGRESS,
        "Keep the driver loaded (nvidia-persistenced). Start ranks together. Give init a fast interface (NCCL_SOCKET_IFNAME).",
    ),
    "INIT-MISSING-RANK": Entry(
        "Some ranks never joined while the others waited for them.",
        Cause.NO_PROGRESS,
        "Check that the named ranks were started: actors alive, WORLD_SIZE right, the complete gang placed.",
    ),
    "INIT-HANG": Entry(
        "Init hangs: it does not complete, and gives no error.",
        Cause.NO_PROGRESS,
        "Check the ranks that stopped at an earlier step than the others: their interface, devices and process. Then run with NCCL_DEBUG=INFO on all ranks.",
    ),
    "NCCL-VERSION": Entry(
        "The ranks of one job run different NCCL versions.",
        Cause.INFRASTRUCTURE,
        "Use one image everywhere. Look for a second libnccl in LD_LIBRARY_PATH or LD_PRELOAD.",
    ),
    "NCCL-DUP-GPU": Entry(
        "Two ranks use the same GPU.",
        Cause.APPLICATION,
        "Give each rank its own GPU: num_gpus=1 per Ray worker, device = LOCAL_RANK. Host names must differ between nodes.",
    ),
    "NCCL-CORRUPT": Entry(
        "nccl-tests counted wrong elements: data was corrupted.",
        Cause.HARDWARE,
        "Do not train here. Test with NCCL_P2P_DISABLE=1 (ACS, IOMMU), then each GPU and NIC separately.",
    ),
    "NCCL-ERROR": Entry(
        "NCCL failed, or a collective timed out, after the job had started.",
        Cause.HARDWARE,
        "Read the named lines. Check the first rank that failed: its GPU (Xid), NIC and process.",
    ),
}
