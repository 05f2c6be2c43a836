"""Findings of FABRIC: which network carried the bytes, and how fast."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

FABRIC: dict[str, Entry] = {
    "FAB-LINK-DOWN": Entry(
        "A node's fabric interface is down or without address, or reaches no other node.",
        Cause.HARDWARE,
        "check cable, switch port and `ip link` of the fabric interface on the named node",
    ),
    "FAB-DUPLICATE-ADDRESS": Entry(
        "Two machines have one address on the fabric.",
        Cause.INFRASTRUCTURE,
        "give each node's fabric interface an address of its own (`ip addr` on the named nodes); ask the network's owner for the machine that has the named hardware address",
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
    "FAB-WRONG-INTERFACE": Entry(
        "Gradient bytes took another interface than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "export NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME (or NCCL_IB_HCA) for the fabric before `ray start` on every node",
    ),
    "FAB-LOSS": Entry(
        "Packets of a node, or between two nodes, are lost, in the direction said.",
        Cause.HARDWARE,
        "on the named node read `ethtool -S` and the switch port's error and discard counters; clean or replace transceiver and cable; with RoCE check PFC and ECN on every switch port between them",
    ),
    "FAB-LINK-FLAPS": Entry(
        "A fabric link went down and came back while it was tested.",
        Cause.HARDWARE,
        "read `dmesg` of the named node and the switch port's log; replace transceiver or cable, then the port",
    ),
    "FAB-LINK-ERRORS": Entry(
        "A fabric port counts errors.",
        Cause.HARDWARE,
        "read `ethtool -S` (RDMA: `perfquery`) of the named port; clean or replace transceiver and cable",
    ),
    "FAB-STALLS": Entry(
        "Single calls take far longer than others of their size, and no link is seen to go down.",
        Cause.INFRASTRUCTURE,
        "look for links that go down between switches, for pause storms and for other load on the named nodes",
    ),
    "FAB-DETOUR": Entry(
        "A node sends to some others over another network than the agreed fabric.",
        Cause.INFRASTRUCTURE,
        "remove the named route (`ip route get` on the named node shows it), and look at what set it",
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
}
