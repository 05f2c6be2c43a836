"""The catalogue's part on the fabric: links, NCCL's roads and start-up, its environment."""

from __future__ import annotations

from dataclasses import dataclass

from reports.record import Cause


@dataclass(frozen=True)
class Entry:
    """Meaning, cause class and remedy of one code."""

    meaning: str
    cause: Cause
    remedy: str


FABRIC: dict[str, Entry] = {
    "FAB-LINK-DOWN": Entry(
        "A node's fabric interface is down or without address, or reaches no other node.",
        Cause.HARDWARE,
        "check cable, switch port and `ip link` of the fabric interface on the named node",
    ),
    "FAB-PAIR-BLOCKED": Entry(
        "Two nodes do not reach each other on the fabric though both reach others.",
        Cause.INFRASTRUCTURE,
        "look for packet filters, routes and ACLs between the two named nodes",
    ),
    "FAB-SLOW-LINK": Entry(
        "Every link of one node is slow, or one link between two nodes is, in the direction said.",
        Cause.HARDWARE,
        "check rate, errors and cable of the named node's fabric link",
    ),
    "FAB-SLOW-GROUP": Entry(
        "Some nodes are slow only in groups: each pair of them is fast.",
        Cause.INFRASTRUCTURE,
        "look for what only both ways at once, or many nodes, load: the named node's duplex, PCIe and memory, an uplink that the named nodes' switch shares, its buffers",
    ),
    "FAB-SLOW": Entry(
        "All-reduce is slower than agreed, and no single node or pair stands out.",
        Cause.INFRASTRUCTURE,
        "check the fabric's rate and oversubscription, and what else uses it",
    ),
    "FAB-WRONG-ROAD": Entry(
        "Gradient bytes took another interface than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "export NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME (or NCCL_IB_HCA) for the fabric before `ray start` on every node",
    ),
    "FAB-MTU": Entry(
        "Full-size packets do not pass, or a node's MTU is another than the others'.",
        Cause.INFRASTRUCTURE,
        "set one MTU on the fabric interface of every node and on every switch port between them",
    ),
    "FAB-WRONG-DATA": Entry(
        "A collective returned wrong elements.",
        Cause.HARDWARE,
        "take the named rank's node out and test its memory, GPU and link",
    ),
    "FAB-WRONG-LINK": Entry(
        "What a node sends or receives, or one link carries, arrives changed.",
        Cause.HARDWARE,
        "take the named node out; test its memory and its network card, and turn checksum offload off to see whether TCP notices",
    ),
    "FAB-NO-START": Entry(
        "The process group could not be made.",
        Cause.INFRASTRUCTURE,
        "read the named error; check interface names and firewalls between nodes",
    ),
    "FAB-TCP": Entry(
        "Ranks on different hosts are joined by TCP sockets, not by RDMA.",
        Cause.INFRASTRUCTURE,
        "see the other findings for the cause; check `ibv_devinfo` in the container, NCCL_NET and NCCL_IB_DISABLE",
    ),
    "FAB-MIXED": Entry(
        "Some hosts use RDMA, others TCP.",
        Cause.INFRASTRUCTURE,
        "give the named hosts the same devices, libraries and NCCL variables as the others (device plugin, /dev/infiniband)",
    ),
    "FAB-NO-DEVICE": Entry(
        "NCCL sees no RDMA device.",
        Cause.INFRASTRUCTURE,
        "pass /dev/infiniband into the container and load the driver; `ibv_devinfo` must list a port in state ACTIVE",
    ),
    "FAB-NO-VERBS": Entry(
        "libibverbs is not there, so NCCL cannot see any RDMA device.",
        Cause.INFRASTRUCTURE,
        "install rdma-core (libibverbs1 and the provider libraries) in the image",
    ),
    "FAB-OPEN-FAILED": Entry(
        "An RDMA device is seen but cannot be opened.",
        Cause.INFRASTRUCTURE,
        "give the process /dev/infiniband/uverbs* of that device and the right to open it, or leave it out everywhere (NCCL_IB_HCA); NCCL_IGNORE_NET_MISMATCH=0 makes NCCL stop at it",
    ),
    "FAB-ENV-DISABLED": Entry(
        "A variable of the environment or of an nccl.conf turns RDMA off.",
        Cause.INFRASTRUCTURE,
        "unset the named variable on every node, in /etc/nccl.conf, ~/.nccl.conf and the job's runtime environment",
    ),
    "FAB-IPOIB": Entry(
        "TCP runs over an InfiniBand interface: the fast cable with the slow protocol.",
        Cause.INFRASTRUCTURE,
        "find why NCCL did not take NET/IB (see the other findings); naming ib0 in NCCL_SOCKET_IFNAME is not RDMA",
    ),
    "FAB-LOOPBACK": Entry(
        "NCCL chose a loopback, container or bridge interface.",
        Cause.INFRASTRUCTURE,
        "set NCCL_SOCKET_IFNAME to the real interface by its exact name (=eth0), and check that host names resolve to it",
    ),
    "FAB-PLUGIN": Entry(
        "A network plugin that this cluster needs is missing or fails.",
        Cause.INFRASTRUCTURE,
        "install the plugin (aws-ofi-nccl, FasTrak, HPC-X) for this NCCL version in the image and check LD_LIBRARY_PATH",
    ),
    "FAB-NO-EFA": Entry(
        "libfabric offers no EFA device, so the network plugin for AWS cannot work.",
        Cause.INFRASTRUCTURE,
        "pass /dev/infiniband into the container and keep one libfabric in reach; `fi_info -p efa` must list devices, and the security group must allow all traffic to itself",
    ),
    "FAB-LINK-TYPES": Entry(
        "InfiniBand and Ethernet ports are in one set of devices.",
        Cause.INFRASTRUCTURE,
        "name the ports of one link type in NCCL_IB_HCA (exactly: =mlx5_0,mlx5_1)",
    ),
    "FAB-NO-GDR": Entry(
        "RDMA goes through host memory: GPUDirect RDMA is not used.",
        Cause.INFRASTRUCTURE,
        "load nvidia_peermem or use DMA-BUF (open driver, recent kernel), and check that each GPU has a NIC under its PCI switch",
    ),
    "FAB-PARTIAL-RAILS": Entry(
        "Fewer rails are there, or are used, than the node should have.",
        Cause.HARDWARE,
        "compare `ibv_devinfo` and NCCL_IB_HCA of the named host with the others; look for ports that are down",
    ),
    "FAB-UNKNOWN-NET": Entry(
        "Ranks are joined by a network plugin that is not known to use RDMA.",
        Cause.UNKNOWN,
        "prove the road by the byte counters instead: run the FABRIC probe",
    ),
    "FAB-ALONE": Entry(
        "Every node formed a communicator of its own: nothing crossed the fabric.",
        Cause.APPLICATION,
        "start one job over all nodes: check WORLD_SIZE, MASTER_ADDR and the launcher (MPI without slots, one torchrun per node)",
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
    "ENV-HARMFUL": Entry(
        "A variable or conf file tells NCCL or gloo something that breaks or cripples this fabric.",
        Cause.INFRASTRUCTURE,
        "do what the statement says at the place it names (environment or conf file), then restart Ray on those nodes",
    ),
    "ENV-DOUBTFUL": Entry(
        "A variable is set that is meant for debugging, is written wrongly, or overrides what NCCL would choose better.",
        Cause.INFRASTRUCTURE,
        "unset it unless its reason is known and written down; restart Ray on the named nodes",
    ),
    "ENV-NOTE": Entry(
        "A variable has no effect here, fits one fabric only, or is an old name.",
        Cause.INFRASTRUCTURE,
        "delete or rename it when convenient; compare it with what the fabric's operator recommends",
    ),
    "ENV-DIFFERS": Entry(
        "A variable, from the environment or a conf file, is not the same on every node.",
        Cause.INFRASTRUCTURE,
        "set one value everywhere (one image, one runtime environment, one /etc/nccl.conf), then restart Ray",
    ),
    "ENV-TWO-LIBS": Entry(
        "Two versions of libnccl are within reach of one process, or nodes would load different ones.",
        Cause.INFRASTRUCTURE,
        "keep one libnccl: clear LD_PRELOAD and LD_LIBRARY_PATH of others and use one image; see /proc/PID/maps of a rank",
    ),
}
