"""Findings of NCCL's log: what stopped its start, and its errors."""

from __future__ import annotations

from probes.findings.entry import RAY_ENVIRONMENT, Entry
from reports.record import Cause, Severity

NCCL: dict[str, Entry] = {
    "INIT-NO-IFACE": Entry(
        "NCCL found no network interface to use.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give NCCL on {nodes} an interface that is up",
        {
            "ip -br address": "The interface of NCCL_SOCKET_IFNAME is missing, DOWN or without address: correct it, or name another.",
            RAY_ENVIRONMENT
            + '"SOCKET_IFNAME"': "A name that this node does not have: set one that every node has.",
        },
        "NCCL's log names the interface of {node}.",
        "Set NCCL_SOCKET_IFNAME to an interface that is up, with an address, on every node.",
    ),
    "INIT-BOOTSTRAP": Entry(
        "A rank could not connect to a peer by TCP.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Let the ranks connect to {node} by TCP",
        {
            "ip -br address": "NCCL must use an address that other nodes reach: set NCCL_SOCKET_IFNAME.",
            "nft list ruleset": "A rule that drops traffic between nodes: open all ports of net.ipv4.ip_local_port_range.",
            "head$ ray status": "The node of the peer is missing: its process is dead. Start it again.",
        },
        'All ranks connect, and NCCL\'s log has no "Connection refused" or "timed out".',
        "Check by error. Refused: is the peer alive? Timed out: open net.ipv4.ip_local_port_range between the nodes. No route: check NCCL_SOCKET_IFNAME. IPv4 on one side and IPv6 on the other: set NCCL_SOCKET_FAMILY.",
    ),
    "INIT-QP": Entry(
        "An RDMA connection between two nodes could not be made, or broke. The finding has the remedy of its cause.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Make RDMA connections to {nodes} possible",
        {
            "show_gids": "The index that NCCL uses must be RoCE v2 with an address of the routed network. Unset NCCL_IB_GID_INDEX since NCCL 2.21.",
            "ibv_devinfo": "PORT_ACTIVE on both ends: check routes between the ports. PORT_DOWN: repair the link.",
        },
        "NCCL's log has no error of ibv_modify_qp or of a work completion.",
        "Check by error. Timed out: NCCL_CROSS_NIC=0 on rail-only fabrics. Invalid argument: unset NCCL_IB_GID_INDEX since NCCL 2.21. Unreachable: check routes and NCCL_IB_ADDR_RANGE. Broken: check cable, switch, peer and ACS.",
    ),
    "INIT-MEMLOCK": Entry(
        "Memory could not be locked for RDMA.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Lift the limit of locked memory on {nodes}",
        {
            "pgrep -o raylet | xargs prlimit --memlock --pid": "Not unlimited: set LimitMEMLOCK=infinity, or run `ulimit -l unlimited` before `ray start`. In a container add IPC_LOCK.",
        },
        "The limit of the raylet is unlimited, and NCCL registers its memory.",
        "Set `ulimit -l unlimited` for the raylet (LimitMEMLOCK=infinity). Give containers IPC_LOCK.",
    ),
    "INIT-SHM": Entry(
        "/dev/shm is too small or cannot be written.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Enlarge /dev/shm on {nodes}",
        {
            "df -h /dev/shm": "Below 1 GB, or full: start the container with --shm-size=1g or more. In Kubernetes mount an emptyDir of medium Memory.",
            "findmnt /dev/shm": "Mounted read-only (ro): mount it writable. With space and rw: see the error of NCCL.",
        },
        "NCCL makes its segments in /dev/shm.",
        "Give the container --shm-size=1g or more (Kubernetes: an emptyDir with medium Memory on /dev/shm). NCCL 2.24 to 2.26 without SYS_NICE: set NCCL_CUMEM_HOST_ENABLE=0.",
    ),
    "INIT-NVLS": Entry(
        "NVLink multicast (NVLS) failed or hangs.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Repair NVLink multicast on {nodes}",
        {
            "systemctl status nvidia-fabricmanager": "Not active, or started after the GPUs were used: stop all GPU processes and restart it.",
            "nvidia-smi -q | grep -A 4 Fabric": "State must be Completed, Status must be Success. Otherwise reboot the node.",
        },
        "NCCL starts with NVLS on {node}.",
        "Check that Fabric Manager started before the GPUs were used. Set NCCL_NVLS_ENABLE=0 to see whether it is the cause.",
    ),
    "INIT-MNNVL": Entry(
        "NVLink between hosts (MNNVL) exists but cannot be used.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Give {nodes} its IMEX channel",
        {
            "nvidia-imex-ctl -N": "C between all nodes: connected. Anything else: repair the nvidia-imex service of that node.",
            "ls /dev/nvidia-caps-imex-channels": "No channel in the container: pass it in, or request it from the driver of resources.",
        },
        "NCCL's log uses MNNVL between the hosts.",
        "Give the job an IMEX channel (/dev/nvidia-caps-imex-channels) and check `nvidia-imex-ctl -N` on every node. Set NCCL_MNNVL_ENABLE=0 to see whether it is the cause: this turns NVLink between hosts off.",
    ),
    "INIT-LIMITS": Entry(
        "A limit of the process was reached: open files, threads or their stacks.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Raise the limits of open files and processes on {nodes}",
        {
            "pgrep -o raylet | xargs prlimit --nofile --nproc --stack --pid": "Below 65536 files: raise LimitNOFILE. Few processes: raise TasksMax. Stack unlimited: run `ulimit -s 8192` before `ray start`.",
            "cat /sys/fs/cgroup/pids.max": "A small number in a container: raise its limit of processes.",
        },
        "NCCL starts on {node} without an error about files, threads or stacks.",
        "Raise `ulimit -n` and `ulimit -u` (LimitNOFILE, TasksMax) for the raylet. Keep the stack finite: `ulimit -s 8192`, not unlimited.",
    ),
    "INIT-SLOW": Entry(
        "Init took very long, though it completed. The finding names the slowest phase.",
        Cause.NO_PROGRESS,
        Severity.DEGRADES,
        "Shorten the start of NCCL on {nodes}",
        {
            'nvidia-smi -q | grep "Persistence Mode"': "Disabled: each start loads the driver again. Run nvidia-persistenced.",
            "systemctl status nvidia-persistenced": "Not active: start it and enable it at boot.",
        },
        "Init takes less than the limit of NCCL's log reader.",
        "Keep the driver loaded (nvidia-persistenced). Start ranks together. Give init a fast interface (NCCL_SOCKET_IFNAME).",
    ),
    "INIT-MISSING-RANK": Entry(
        "Some ranks never joined while the others waited for them.",
        Cause.NO_PROGRESS,
        Severity.BLOCKS,
        "Start the missing ranks",
        {
            'head$ ray list actors --filter "state=PENDING_CREATION"': "Actors that wait: resources are missing. None: the launcher started too few.",
            "head$ ray status": "Demands that stay pending: a node is missing or its GPUs are in use.",
        },
        "All ranks of WORLD_SIZE join.",
        "Check that the named ranks were started: actors alive, WORLD_SIZE right, the complete gang placed.",
    ),
    "INIT-HANG": Entry(
        "Init hangs: it does not complete, and gives no error.",
        Cause.NO_PROGRESS,
        Severity.BLOCKS,
        "Find why the ranks behind do not go on",
        {
            "ray stack": "The function in which the ranks wait. In a collective: another rank does not call it. In the network: its interface or device.",
            "nvidia-smi": "GPU use of 100 % without progress: NCCL waits for a peer. 0 %: the process does not compute.",
        },
        "All ranks complete init.",
        "Check the ranks that stopped at an earlier step than the others: their interface, devices and process. Then run with NCCL_DEBUG=INFO on all ranks.",
    ),
    "NCCL-VERSION": Entry(
        "The ranks of one job run different NCCL versions.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Use one version of NCCL on all nodes",
        {
            "ldconfig -p | grep libnccl": "Two files: remove one. Another version than on other nodes: use one image.",
            "python3 -m torch.utils.collect_env": "The version that torch brings. LD_PRELOAD or LD_LIBRARY_PATH may put another in front of it.",
        },
        "NCCL's log has one version on all ranks.",
        "Use one image everywhere. Look for a second libnccl in LD_LIBRARY_PATH or LD_PRELOAD.",
    ),
    "NCCL-DUP-GPU": Entry(
        "Two ranks use the same GPU.",
        Cause.APPLICATION,
        Severity.BLOCKS,
        "Give each rank a GPU of its own",
        {
            "nvidia-smi -L": "Fewer GPUs than ranks on the node: start fewer ranks. Enough: the launcher chooses the wrong device.",
            "hostname": "The same name on two nodes: give each its own. NCCL compares host names.",
        },
        'NCCL starts without "Duplicate GPU detected".',
        "Give each rank its own GPU: num_gpus=1 per Ray worker, device = LOCAL_RANK. Host names must differ between nodes.",
    ),
    "NCCL-CORRUPT": Entry(
        "nccl-tests counted wrong elements: data was corrupted.",
        Cause.HARDWARE,
        Severity.BLOCKS,
        "Find the part that changes data",
        {
            "nvidia-smi topo -p2p w": "Anything but OK between GPUs: check ACS and the IOMMU.",
            "dcgmi diag -r 3": "A test that fails names the GPU: replace it. All pass: test each network card separately.",
        },
        "nccl-tests counts no wrong element.",
        "Do not train here. Test with NCCL_P2P_DISABLE=1 (ACS, IOMMU), then each GPU and NIC separately.",
    ),
    "NCCL-ERROR": Entry(
        "A call of NCCL failed, or a collective timed out.",
        Cause.UNKNOWN,
        Severity.BLOCKS,
        "Find the first rank that failed, and why",
        {
            'dmesg -T | grep -iE "xid|mlx5|oom"': 'An Xid: the GPU. A line of mlx5: the card. "oom": memory of the node.',
            "ray logs cluster raylet.out --tail 200": "A worker that died before: its reason stands there.",
        },
        "The job runs without an error of NCCL.",
        "Read the named lines. Find the rank whose error came first, in the logs of all ranks: the others follow from it.",
    ),
}
