"""Findings of FABRIC: which network NCCL uses, and why it is the wrong one."""

from __future__ import annotations

from probes.findings.entry import RAY_ENVIRONMENT, Entry
from reports.record import Cause, Severity

TRANSPORT: dict[str, Entry] = {
    "FAB-TCP": Entry(
        "Ranks on different hosts are connected by TCP sockets, not by RDMA.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Bring NCCL on {nodes} back to RDMA",
        {
            "ibv_devinfo": "No device: the driver or the container's devices are missing. PORT_DOWN: the link. PORT_ACTIVE: go on.",
            "cat /etc/nccl.conf": "NCCL_IB_DISABLE, NCCL_NET or an NCCL_IB_HCA that names no device here: correct or remove the line.",
            RAY_ENVIRONMENT
            + '"NCCL"': "The same variables in the environment of Ray: correct them before `ray start`.",
        },
        "NCCL's log has NET/IB for each connection between hosts.",
        "See the other findings for the cause. Check `ibv_devinfo` in the container, NCCL_NET and NCCL_IB_DISABLE.",
    ),
    "FAB-MIXED": Entry(
        "Some hosts use RDMA, others TCP.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give {nodes} the same RDMA devices and settings as the others",
        {
            'ibv_devinfo | grep -E "hca_id|state"': "Fewer devices, or fewer in PORT_ACTIVE, than another node: links, driver or the container's devices.",
            RAY_ENVIRONMENT
            + '"NCCL"': "Other values than on another node: make them equal before `ray start`.",
        },
        "NCCL's log has NET/IB on every host.",
        "Give the named hosts the same devices, libraries and NCCL variables as the others (device plugin, /dev/infiniband).",
    ),
    "FAB-NO-DEVICE": Entry(
        "NCCL sees no RDMA device.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give NCCL on {nodes} its RDMA devices",
        {
            "ls /dev/infiniband": "Missing in a container: pass it in (`--device=/dev/infiniband`, or the device plugin). Missing on the machine: load the driver.",
            "ibv_devinfo": "A port in state PORT_ACTIVE: NCCL should see it. None: check driver and link.",
        },
        "NCCL's log lists the RDMA devices of {node}.",
        "Pass /dev/infiniband into the container and load the driver. `ibv_devinfo` must list a port in state ACTIVE.",
    ),
    "FAB-NO-VERBS": Entry(
        "libibverbs is missing, so NCCL cannot see any RDMA device.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Install rdma-core in the image of {nodes}",
        {
            "ldconfig -p | grep libibverbs": "No line: install libibverbs1 and the provider libraries. A line: LD_LIBRARY_PATH hides it.",
            "ibv_devinfo": "It lists devices as soon as the libraries are complete.",
        },
        "NCCL's log lists the RDMA devices of {node}.",
        "Install rdma-core (libibverbs1 and the provider libraries) in the image.",
    ),
    "FAB-OPEN-FAILED": Entry(
        "An RDMA device is visible but cannot be opened.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Let the job open the RDMA devices of {nodes}",
        {
            "ls -l /dev/infiniband": "No uverbs file, or no rights for the job's user: pass the device in and correct its mode.",
            "ibv_devinfo": 'Run it as the job\'s user. "Failed to open device" must be gone.',
        },
        "NCCL's log opens each device of {node}.",
        "Give the process /dev/infiniband/uverbs* of that device, and permission to open it. Or exclude the device on all nodes (NCCL_IB_HCA). NCCL_IGNORE_NET_MISMATCH=0 makes NCCL stop at it.",
    ),
    "FAB-ENV-DISABLED": Entry(
        "An environment variable or an nccl.conf turns RDMA off.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Remove the setting that turns RDMA off on {nodes}",
        {
            "cat /etc/nccl.conf": "The variable stands here: delete its line. Look into .nccl.conf of the job's home folder too.",
            RAY_ENVIRONMENT
            + '"NCCL"': "The variable stands here: unset it and restart Ray. Neither: it comes from the job's runtime environment.",
        },
        "NCCL's log has NET/IB for each connection between hosts.",
        "Unset the named variable on every node: in /etc/nccl.conf, ~/.nccl.conf and the job's runtime environment.",
    ),
    "FAB-IPOIB": Entry(
        "TCP runs over an InfiniBand interface: a fast cable with a slow protocol.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Bring NCCL on {nodes} from IPoIB back to RDMA",
        {
            'ibv_devinfo | grep -E "hca_id|state"': "No device, or none in PORT_ACTIVE: see the other findings.",
            RAY_ENVIRONMENT
            + '"NCCL"': "NCCL_IB_DISABLE or NCCL_NET=Socket: remove it. NCCL_SOCKET_IFNAME=ib0 does not turn RDMA on.",
        },
        "NCCL's log has NET/IB for each connection between hosts.",
        "Find why NCCL did not use NET/IB (see the other findings). Naming ib0 in NCCL_SOCKET_IFNAME does not turn RDMA on.",
    ),
    "FAB-LOOPBACK": Entry(
        "NCCL chose a loopback, container or bridge interface.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Point NCCL on {nodes} at the real interface",
        {
            "ip -br address": 'Find the interface with the address that other nodes reach. Set it exactly: NCCL_SOCKET_IFNAME="=NAME".',
            "getent ahosts {node}": "127.0.0.1 or 127.0.1.1: correct /etc/hosts.",
        },
        "NCCL's log names the interface that other nodes reach.",
        "Set NCCL_SOCKET_IFNAME to the exact name of the real interface (=eth0). Check that host names resolve to it.",
    ),
    "FAB-PLUGIN": Entry(
        "A network plugin that this cluster needs is missing or fails.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Install the network plugin of NCCL on {nodes}",
        {
            "ldconfig -p | grep nccl-net": "No line: install the plugin (aws-ofi-nccl, FasTrak, HPC-X) in the image. A line: it is for another version of NCCL.",
            RAY_ENVIRONMENT
            + '"NCCL_NET|LD_LIBRARY"': "NCCL_NET_PLUGIN names another file, or the path of the plugin is missing: correct it.",
        },
        "NCCL's log loads the plugin on every host.",
        "Install the plugin (aws-ofi-nccl, FasTrak, HPC-X) for this NCCL version in the image. Check LD_LIBRARY_PATH.",
    ),
    "FAB-NO-EFA": Entry(
        "libfabric offers no EFA device, so the network plugin for AWS cannot work.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give {nodes} its EFA devices",
        {
            "fi_info -p efa": "Devices are listed: check that one libfabric alone is installed. None: the container or the instance lacks them.",
            "ls /dev/infiniband": "Missing in a container: pass it in, or request the device plugin's resource.",
        },
        "`fi_info -p efa` lists the devices, and NCCL's log selects the plugin.",
        "Pass /dev/infiniband into the container, and install only one libfabric. Check that `fi_info -p efa` lists devices. Let the security group allow all traffic to itself.",
    ),
    "FAB-LINK-TYPES": Entry(
        "One set of devices mixes InfiniBand and Ethernet ports.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Name the ports of one link type for NCCL on {nodes}",
        {
            'ibv_devinfo | grep -E "hca_id|link_layer|state"': 'Choose the active ports of one link layer. Write them exactly: NCCL_IB_HCA="=mlx5_0,mlx5_1".',
        },
        "NCCL joins only ports of one link layer.",
        "Name the ports of one link type in NCCL_IB_HCA (exactly: =mlx5_0,mlx5_1).",
    ),
    "FAB-NO-GDR": Entry(
        "RDMA is staged through host memory: GPUDirect RDMA is not used.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Turn GPUDirect RDMA on for {nodes}",
        {
            "lsmod | grep nvidia_peermem": "No line: run `modprobe nvidia_peermem`, or use the open driver with DMA-BUF.",
            "nvidia-smi topo -m": "PIX or PXB between a GPU and its card: GPUDirect can work. NODE or SYS: NCCL does not use it.",
            "lspci -vvv | grep ACSCtl": "SrcValid+: ACS sends traffic through the CPU. Turn ACS off in the BIOS.",
        },
        "NCCL's log has GDRDMA on each connection.",
        "Load nvidia_peermem, or use DMA-BUF (open driver, recent kernel). Check that each GPU has a NIC under its PCI switch.",
    ),
    "FAB-PARTIAL-RAILS": Entry(
        "A node has, or uses, fewer rails than it should.",
        Cause.HARDWARE,
        Severity.DEGRADES,
        "Bring all rails of {node} into use",
        {
            'ibv_devinfo | grep -E "hca_id|state|active_width|active_speed"': "PORT_DOWN or a lower speed: repair that link. A device is missing: card, slot or driver.",
            RAY_ENVIRONMENT
            + '"NCCL_IB_HCA"': "Fewer devices than on other nodes: correct the list.",
        },
        "Every rail of {node} carries its part of the bytes.",
        "Compare `ibv_devinfo` and NCCL_IB_HCA of the named host with the others. Look for ports that are down.",
    ),
    "FAB-UNKNOWN-NET": Entry(
        "Ranks are connected by a network plugin that is not known to use RDMA.",
        Cause.UNKNOWN,
        Severity.DEGRADES,
        "Prove which network carries the traffic of NCCL",
        {
            "driver$ seatrial run -k fabric": "The byte counters name the network. No counter of the plugin's device: ask its maker how to read it.",
        },
        "The FABRIC probe names one network by its byte counters.",
        "Run the FABRIC probe: its byte counters prove which network is used.",
    ),
    "FAB-ALONE": Entry(
        "Every node formed its own communicator: no data crossed the fabric.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Start one job over all nodes",
        {
            'head$ ray list actors --filter "state=ALIVE" --limit 1000': "Ranks on one node only, or one group for each node: WORLD_SIZE or the launcher is wrong.",
            'env | grep -E "WORLD_SIZE|MASTER_ADDR|RANK"': "Run it in the job. WORLD_SIZE must count all nodes, and MASTER_ADDR must be the same everywhere.",
        },
        "NCCL's log shows one communicator over all nodes.",
        "Start one job over all nodes. Check WORLD_SIZE, MASTER_ADDR and the launcher (MPI without slots, one torchrun per node).",
    ),
}
