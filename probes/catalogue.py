"""The catalogue of findings: what is wrong, whose affair it is, what to do.

Each entry is documented by `seatrial explain CODE`, and in docs/findings.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.record import Cause


@dataclass(frozen=True)
class Entry:
    """Meaning, cause class and remedy of one code."""

    meaning: str
    cause: Cause
    remedy: str


CATALOGUE: dict[str, Entry] = {
    "HOST-MISSING": Entry(
        "Fewer nodes are alive than were ordered.",
        Cause.INFRASTRUCTURE,
        "look at the named nodes' power and `ray start` log; then run `ray start --address=...` there",
    ),
    "HOST-EXTRA": Entry(
        "More nodes or GPUs are in the cluster than were ordered.",
        Cause.INFRASTRUCTURE,
        "remove the extra node, or agree a new contract: results would not be of the ordered cluster",
    ),
    "HOST-GPUS": Entry(
        "A node counts other accelerators than were ordered.",
        Cause.HARDWARE,
        "compare `nvidia-smi -L` on the named node with the order; restart Ray there once it is right",
    ),
    "HOST-VERSIONS": Entry(
        "Python, Ray, torch or the driver is not the same everywhere.",
        Cause.INFRASTRUCTURE,
        "use one image on all nodes and for the driver, then restart Ray",
    ),
    "HOST-SHARED": Entry(
        "A node does not see the shared folder.",
        Cause.INFRASTRUCTURE,
        "mount the shared file system on the named node at the agreed path",
    ),
    "HOST-SILENT": Entry(
        "Ray counts a node as alive, but no worker answers there.",
        Cause.INFRASTRUCTURE,
        "look at the raylet's and the runtime environment agent's log on the named node",
    ),
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
        "give the process /dev/infiniband/uverbs* of that device and the right to open it; compare with a host that works",
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
        "Fewer rails are used than the node has.",
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
        "open all ports between the nodes on that interface (firewall, NetworkPolicy, service mesh); check that the peer lives",
    ),
    "INIT-QP": Entry(
        "An RDMA connection between two nodes could not be made, or broke.",
        Cause.INFRASTRUCTURE,
        "RoCE: leave NCCL_IB_GID_INDEX unset since 2.21, check routes; rail-only fabric: NCCL_CROSS_NIC=0; else cable and switch",
    ),
    "INIT-MEMLOCK": Entry(
        "Memory could not be locked for RDMA.",
        Cause.INFRASTRUCTURE,
        "set `ulimit -l unlimited` for the raylet (LimitMEMLOCK=infinity) and give containers IPC_LOCK",
    ),
    "INIT-SHM": Entry(
        "/dev/shm is too small or cannot be written.",
        Cause.INFRASTRUCTURE,
        "give the container --shm-size=1g or more (Kubernetes: an emptyDir with medium Memory on /dev/shm)",
    ),
    "INIT-NVLS": Entry(
        "NVLink multicast (NVLS) failed or hangs.",
        Cause.HARDWARE,
        "check that Fabric Manager started before the GPUs were used; NCCL_NVLS_ENABLE=0 shows whether it is the cause",
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
    "GANG-HALF": Entry(
        "A job held part of its gang while it waited for the rest.",
        Cause.INFRASTRUCTURE,
        "launch with one placement group per job, never with single actors",
    ),
    "GANG-STUCK": Entry(
        "Neither of two competing gangs was placed, or the waiting one was not placed after release.",
        Cause.NO_PROGRESS,
        "look for a placement group in state RESCHEDULING (`ray list placement-groups`) and remove it",
    ),
    "GANG-STAYS": Entry(
        "A gang stayed after it was cancelled, or after its driver had died.",
        Cause.INFRASTRUCTURE,
        "remove it (`ray list placement-groups`, then ray.util.remove_placement_group); look at the GCS log for the dead job",
    ),
    "GANG-LEAK": Entry(
        "Accelerators were not free though no job should hold them, and no other job was there.",
        Cause.INFRASTRUCTURE,
        "look for actors and tasks that hold them (`ray list actors`, `ray list tasks`) and for workers that did not end",
    ),
    "GANG-UNSEEN": Entry(
        "Processes use GPUs that Ray counts as free.",
        Cause.APPLICATION,
        "end them (`nvidia-smi` on the named node), or have their launcher ask Ray for num_gpus: else Ray gives the same GPU to another job",
    ),
    "GANG-BLOCKED": Entry(
        "A gang that had room was not placed, because another one waits.",
        Cause.NO_PROGRESS,
        "remove the group in state RESCHEDULING or PENDING that came before it; launchers must do so on node loss",
    ),
    "GANG-NODE-LOSS": Entry(
        "While a gang that lost a node stands, Ray places no other gang (known of Ray 2.60).",
        Cause.INFRASTRUCTURE,
        "have every launcher remove its group on node loss and ask for a new one, with a bounded wait",
    ),
    "GANG-MISPLACED": Entry(
        "A gang, or a component of a job, does not lie where it was asked for.",
        Cause.INFRASTRUCTURE,
        "compare `ray status` and the node's labels with the strategy; check that each rank owns the accelerator it was given",
    ),
    "LAUNCH-FAILED": Entry(
        "A documented command failed.",
        Cause.INFRASTRUCTURE,
        "read the transcript; a user would be stuck at this line",
    ),
    "LAUNCH-ENV": Entry(
        "A rank lacks a rendezvous variable, or has a wrong or inconsistent one.",
        Cause.APPLICATION,
        "let the launcher set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT on every rank",
    ),
    "RESTART-NO-FOLDER": Entry(
        "No folder is seen by every node, so a checkpoint cannot be read after a restart.",
        Cause.INFRASTRUCTURE,
        "mount a shared file system everywhere and name it in the contract: [cluster] shared",
    ),
    "RESTART-UNEQUAL": Entry(
        "The resumed run is not the run that was never killed.",
        Cause.APPLICATION,
        "save and restore generators, data position, optimizer and step; see the first unequal step",
    ),
    "RESTART-TRUSTED": Entry(
        "A damaged or foreign checkpoint was loaded.",
        Cause.APPLICATION,
        "keep the size and sha256 of every file beside it, and check them before anything is loaded",
    ),
    "RESTART-LOST": Entry(
        "More steps were lost than lie between two saves.",
        Cause.APPLICATION,
        "see where the run began again: are newer checkpoints whole, and does every node see them?",
    ),
    "RESTART-TORN": Entry(
        "A save that failed on a rank was committed.",
        Cause.APPLICATION,
        "gather every rank's status before the commit, and commit nothing when one has failed",
    ),
    "RESTART-ATTEMPTS": Entry(
        "The run took more or fewer attempts than the faults it met.",
        Cause.APPLICATION,
        "read the attempts' reasons: too few, and a fault or a notice went unheeded; too many, and "
        "a gang was lost that nobody struck, or nothing bounds them",
    ),
    "RESTART-SLOW": Entry(
        "The run came back later than agreed.",
        Cause.NO_PROGRESS,
        "see which part took the time: seeing the loss (heartbeats), finding room, or starting",
    ),
    "RESTART-LEAK": Entry(
        "A run that has ended, or that waits for room, still holds accelerators.",
        Cause.APPLICATION,
        "remove the placement group in whatever way the run ends; `ray list placement-groups` names it",
    ),
    "RESTART-DEAD": Entry(
        "The run did not come back by itself.",
        Cause.NO_PROGRESS,
        "read the attempts: was there room for a new gang, and a checkpoint that verifies?",
    ),
    "SCALE-STRAGGLER": Entry(
        "One rank keeps all others waiting.",
        Cause.HARDWARE,
        "look at clocks, thermals, CPU limits and other load on the named node",
    ),
    "SCALE-SLOW-NODE": Entry(
        "One node computes more slowly than the others, alone too.",
        Cause.HARDWARE,
        "compare clocks, power and thermal limits, CPU governor and other load with a sound node",
    ),
    "SCALE-SLOWING": Entry(
        "Compute became slower while the job ran.",
        Cause.HARDWARE,
        "look at temperature, throttle reasons and fans of the named node over time",
    ),
    "SCALE-DATA": Entry(
        "The job waits for data, of one node or everywhere.",
        Cause.INFRASTRUCTURE,
        "look at storage mounts, loader workers and page cache of the named node",
    ),
    "SCALE-CHECKPOINT": Entry(
        "Saves hold up the steps more than on one node.",
        Cause.INFRASTRUCTURE,
        "save in the background or less often; measure the shared file system's write rate",
    ),
    "SCALE-JITTER": Entry(
        "Single steps take far longer, on changing nodes.",
        Cause.INFRASTRUCTURE,
        "look for daemons, interrupts, garbage collection and CPU pinning",
    ),
    "SCALE-LINK": Entry(
        "Communication takes longer than this run's measured collectives predict.",
        Cause.INFRASTRUCTURE,
        "compare with FABRIC; look at the links of the nodes that were added at that rung",
    ),
    "SCALE-TOKENS": Entry(
        "Too few tokens per GPU and step for collectives that are as predicted.",
        Cause.APPLICATION,
        "raise the tokens per GPU to the figure that is named, or shard less widely",
    ),
    "SCALE-UNEXPLAINED": Entry(
        "Part of the loss has no cause that was looked for.",
        Cause.UNKNOWN,
        "see the segment that is named; take a trace of a few steps",
    ),
    "SCALE-RUNG": Entry(
        "The job failed on a rung of the ladder; what was measured on the others stands.",
        Cause.APPLICATION,
        "read the rank's error: memory, a collective that timed out, a process that died",
    ),
    "SCALE-LOSS": Entry(
        "Efficiency is under the limit; the terms say where the time went.",
        Cause.UNKNOWN,
        "begin with the largest term; compare it with the fabric's result",
    ),
}
