"""Findings of FABRIC: which network carried the bytes, and how fast."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

FABRIC: dict[str, Entry] = {
    "FAB-LINK-DOWN": Entry(
        "A node's fabric interface is down, has no address, or reaches no other node.",
        Cause.HARDWARE,
        "Check cable, switch port and `ip link` of the fabric interface on the named node.",
    ),
    "FAB-DUPLICATE-ADDRESS": Entry(
        "Two machines have the same address on the fabric.",
        Cause.INFRASTRUCTURE,
        "Give each node's fabric interface its own address (`ip addr` on the named nodes). If no node has the named hardware address, ask the network's owner which machine has it.",
    ),
    "FAB-PAIR-BLOCKED": Entry(
        "Two nodes cannot reach each other on the fabric, though both reach other nodes.",
        Cause.INFRASTRUCTURE,
        "Check packet filters, routes and ACLs between the two named nodes.",
    ),
    "FAB-SLOW-LINK": Entry(
        "All links of one node, or one link between two nodes, are slow in the named direction.",
        Cause.HARDWARE,
        "Check rate, errors and cable of the named node's fabric link.",
    ),
    "FAB-SLOW-GROUP": Entry(
        "Some nodes are slow only in groups: every pair of them is fast.",
        Cause.INFRASTRUCTURE,
        "Check what only bidirectional or many-node traffic loads: duplex and PCIe of the named node, the shared switch uplink, switch buffers.",
    ),
    "FAB-SLOW": Entry(
        "All-reduce is slower than agreed, and no single node or pair explains it.",
        Cause.INFRASTRUCTURE,
        "Check rate and oversubscription of the fabric, and other traffic on it.",
    ),
    "FAB-WRONG-INTERFACE": Entry(
        "Gradient traffic used another interface than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "Export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (or NCCL_IB_HCA) for the fabric before `ray start` on every node.",
    ),
    "FAB-LOSS": Entry(
        "A node, or a pair of nodes, loses packets in the named direction.",
        Cause.HARDWARE,
        "Read `ethtool -S` on the named node, and the error and discard counters of its switch port. Clean or replace transceiver and cable. With RoCE, check PFC and ECN on every switch port of the path.",
    ),
    "FAB-LINK-FLAPS": Entry(
        "A fabric link went down and came back during the test.",
        Cause.HARDWARE,
        "Read `dmesg` of the named node and the log of its switch port. Replace transceiver or cable, then the port.",
    ),
    "FAB-LINK-ERRORS": Entry(
        "A fabric port counts errors.",
        Cause.HARDWARE,
        "Read `ethtool -S` (RDMA: `perfquery`) of the named port. Clean or replace transceiver and cable.",
    ),
    "FAB-STALLS": Entry(
        "Single calls take far longer than others of the same size, and no link went down.",
        Cause.INFRASTRUCTURE,
        "Check links between switches, pause storms, and other load on the named nodes.",
    ),
    "FAB-DETOUR": Entry(
        "A node sends to some other nodes over another network than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "Remove the named route (`ip route get` on the named node shows it). Find out what set it.",
    ),
    "FAB-MTU": Entry(
        "Full-size packets do not pass, or a node's MTU differs from the others.",
        Cause.INFRASTRUCTURE,
        "Set one MTU on the fabric interface of every node and on every switch port between them.",
    ),
    "FAB-WRONG-DATA": Entry(
        "A collective returned wrong elements.",
        Cause.HARDWARE,
        "Take the node of the named rank out of service. Test its memory, GPU and link.",
    ),
    "FAB-WRONG-LINK": Entry(
        "Data that one node sends or receives, or that one link carries, arrives changed.",
        Cause.HARDWARE,
        "Take the named node out of service. Test its memory and network card. Turn checksum offload off to see whether TCP detects the error.",
    ),
    "FAB-NO-START": Entry(
        "The process group could not be created.",
        Cause.INFRASTRUCTURE,
        "Read the error in this finding. Check that the interface names exist on every node, and that no firewall blocks traffic between the nodes.",
    ),
    "FAB-TCP": Entry(
        "Ranks on different hosts are connected by TCP sockets, not by RDMA.",
        Cause.INFRASTRUCTURE,
        "See the other findings for the cause. Check `ibv_devinfo` in the container, NCCL_NET and NCCL_IB_DISABLE.",
    ),
    "FAB-MIXED": Entry(
        "Some hosts use RDMA, others TCP.",
        Cause.INFRASTRUCTURE,
        "Give the named hosts the same devices, libraries and NCCL variables as the others (device plugin, /dev/infiniband).",
    ),
    "FAB-NO-DEVICE": Entry(
        "NCCL sees no RDMA device.",
        Cause.INFRASTRUCTURE,
        "Pass /dev/infiniband into the container and load the driver. `ibv_devinfo` must list a port in state ACTIVE.",
    ),
    "FAB-NO-VERBS": Entry(
        "libibverbs is missing, so NCCL cannot see any RDMA device.",
        Cause.INFRASTRUCTURE,
        "Install rdma-core (libibverbs1 and the provider libraries) in the image.",
    ),
    "FAB-OPEN-FAILED": Entry(
        "An RDMA device is visible but cannot be opened.",
        Cause.INFRASTRUCTURE,
        "Give the process /dev/infiniband/uverbs* of that device, and permission to open it. Or exclude the device on all nodes (NCCL_IB_HCA). NCCL_IGNORE_NET_MISMATCH=0 makes NCCL stop at it.",
    ),
    "FAB-ENV-DISABLED": Entry(
        "An environment variable or an nccl.conf turns RDMA off.",
        Cause.INFRASTRUCTURE,
        "Unset the named variable on every node: in /etc/nccl.conf, ~/.nccl.conf and the job's runtime environment.",
    ),
    "FAB-IPOIB": Entry(
        "TCP runs over an InfiniBand interface: a fast cable with a slow protocol.",
        Cause.INFRASTRUCTURE,
        "Find why NCCL did not use NET/IB (see the other findings). Naming ib0 in NCCL_SOCKET_IFNAME does not turn RDMA on.",
    ),
    "FAB-LOOPBACK": Entry(
        "NCCL chose a loopback, container or bridge interface.",
        Cause.INFRASTRUCTURE,
        "Set NCCL_SOCKET_IFNAME to the exact name of the real interface (=eth0). Check that host names resolve to it.",
    ),
    "FAB-PLUGIN": Entry(
        "A network plugin that this cluster needs is missing or fails.",
        Cause.INFRASTRUCTURE,
        "Install the plugin (aws-ofi-nccl, FasTrak, HPC-X) for this NCCL version in the image. Check LD_LIBRARY_PATH.",
    ),
    "FAB-NO-EFA": Entry(
        "libfabric offers no EFA device, so the network plugin for AWS cannot work.",
        Cause.INFRASTRUCTURE,
        "Pass /dev/infiniband into the container, and install only one libfabric. Check that `fi_info -p efa` lists devices. Let the security group allow all traffic to itself.",
    ),
    "FAB-LINK-TYPES": Entry(
        "One set of devices mixes InfiniBand and Ethernet ports.",
        Cause.INFRASTRUCTURE,
        "Name the ports of one link type in NCCL_IB_HCA (exactly: =mlx5_0,mlx5_1).",
    ),
    "FAB-NO-GDR": Entry(
        "RDMA is staged through host memory: GPUDirect RDMA is not used.",
        Cause.INFRASTRUCTURE,
        "Load nvidia_peermem, or use DMA-BUF (open driver, recent kernel). Check that each GPU has a NIC under its PCI switch.",
    ),
    "FAB-PARTIAL-RAILS": Entry(
        "A node has, or uses, fewer rails than it should.",
        Cause.HARDWARE,
        "Compare `ibv_devinfo` and NCCL_IB_HCA of the named host with the others. Look for ports that are down.",
    ),
    "FAB-UNKNOWN-NET": Entry(
        "Ranks are connected by a network plugin that is not known to use RDMA.",
        Cause.UNKNOWN,
        "Run the FABRIC probe: its byte counters prove which network is used.",
    ),
    "FAB-ALONE": Entry(
        "Every node formed its own communicator: no data crossed the fabric.",
        Cause.APPLICATION,
        "Start one job over all nodes. Check WORLD_SIZE, MASTER_ADDR and the launcher (MPI without slots, one torchrun per node).",
    ),
}
