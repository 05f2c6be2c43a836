"""Declares HOSTS: its checks with their limits, its controls, and its probes."""

from __future__ import annotations

from typing import Any

# fmt: off
# isort: off
from probes.check.declarations import (
    ALL_GPUS, LONGER_TIER, NVML_THERE, ON_GPU, OWN_HOSTS, RDMA_AGREED, SEVERAL_HOSTS, SEVERAL_NODES,
    TASKS, THREE_NODES, Check, ControlRow, CriterionRow, OnOneNode, Order, Probe, When,
    default_check, fixed_check, none_of, ordered, wrong_data,
)

SHARED = ordered("shared")
SHARED_BY_NODES = SHARED & SEVERAL_NODES
# Of two nodes one may be the server itself; raylets of one host have the same disk.
COMPARES_STORAGE = SHARED & THREE_NODES & OWN_HOSTS
RATES_STORAGE = SHARED & SEVERAL_HOSTS & LONGER_TIER  # a quick run writes too little for a rate
# A single real GPU is UNPROVEN; a rehearsal on one node has nothing to compare.
HAS_PEERS = SEVERAL_NODES | ON_GPU
# False facts of a node can fail where it is compared with others, or with an order.
CAN_BE_DOCTORED = SEVERAL_NODES | NVML_THERE | ordered(
    "gpu_model", "gpu_memory_gib", "cpus_per_node", "ram_gib", "disk_gib", "versions",
)


def ordered_check(name: str, unit: str, key: str, order: Order, **options: Any) -> Check:
    """Declare a check whose limit is what the contract orders by a key of [cluster]."""
    return Check(name, unit, from_run=f"[cluster] {key}", ordered_by=key, order=order, **options)


def ordered_part(
    name: str, unit: str, key: str, failing: str, order: Order = "at least", **options: Any
) -> Check:
    """Declare a check of a part of each node, which is owed where the contract orders it."""
    return ordered_check(name, unit, key, order, when=ordered(key), failing=failing, **options)


def no_gpu(name: str, because: str, failing: str) -> Check:
    """Declare a count of real GPUs with a fault: it must be zero."""
    return none_of(name, "GPUs", because, when=ON_GPU, failing=failing)


def fair_share(name: str, because: str, failing: str) -> Check:
    """Declare a node's speed in the shared folder, as a share of the others'."""
    return default_check(name, "ratio", because, low=0.5, when=COMPARES_STORAGE, failing=failing)


NODES = ordered_check("nodes", "nodes", "nodes", "exactly", depends=("nodes_at_most",))
MACHINES = Check(
    "machines", "machines", from_run="the number of nodes that answer", when=OWN_HOSTS,
    failing="several nodes share a machine: all nodes together run on {value}",
)
GPUS = ordered_check("gpus", "GPUs", "gpus_per_node", "exactly", failing="{subject} has {value}")
COUNT_MISMATCHES = none_of(
    "count_mismatches", "counts",
    "Ray, NVML and torch must count the same GPUs; otherwise a rank gets no GPU, or a GPU is not used",
    depends=("gpus_outside_ray",),
    failing="the GPU count of NVML or torch differs from Ray's count{on}: {value}",
)
NODES_WITH_FEWER_GPUS = none_of(
    "nodes_with_fewer_gpus", "nodes", "all nodes must have the same number of GPUs; a node with fewer has probably lost some",
    failing="nodes have fewer GPUs than the others: {value}",
)
NVML_ERRORS = none_of(
    "nvml_errors", "errors", "a GPU that does not answer NVML cannot be trusted", when=NVML_THERE,
    failing="NVML cannot read GPUs{on}: {value}",
)
HEALTH_ERRORS = no_gpu(
    "health_errors", "a query that fails hides the state of its GPU",
    "the state of GPUs cannot be read{on}: {value}",
)
GPUS_TO_RESET = no_gpu(
    "gpus_to_reset", "a GPU that asks for a reset may compute wrongly, or not at all, until it is reset",
    "GPUs need a reset or another recovery action{on}: {value}",
)
MEMORY_ERRORS = no_gpu(
    "memory_errors", "an error in GPU memory ends a job, or makes its results wrong",
    "GPUs have memory errors{on}: {value}",
)
ROW_REMAPS = no_gpu(
    "row_remaps", "the GPU needs a reset, or a replacement, before a job uses it",
    "a memory row waits for its remap, or could not be remapped{on}: {value}",
)
GPUS_WITHOUT_ECC = no_gpu(
    "gpus_without_ecc", "without ECC, wrong bits go unnoticed", "ECC is off{on}: {value}",
)
SLOWED_GPUS = no_gpu(
    "slowed_gpus", "all ranks wait for a slowed GPU",
    "GPUs are slowed down by heat or power{on}: {value}",
)
POWER_LIMIT = default_check(
    "power_limit", "ratio", "a power limit below the default of the board, or its data sheet, slows the GPU", low=1,
    when=ON_GPU, failing="the power limit of a GPU is only {value} of the usual one{on}",
)
NARROW_PCIE = no_gpu(
    "narrow_pcie", "a link with half of its lanes has half the speed to the host",
    "GPUs use too few PCIe lanes{on}: {value}",
)
NVLINKS_DOWN = no_gpu(
    "nvlinks_down", "collectives inside the node are as slow as the GPU with the fewest NVLinks",
    "GPUs have NVLinks that are down{on}: {value}",
)
FABRIC_FAULTS = no_gpu(
    "fabric_faults", "without the NVLink fabric, CUDA does not start or is slow",
    "GPUs have a fault in their NVLink fabric{on}: {value}",
)
CLOSED_GPUS = no_gpu(
    "closed_gpus", "no job can use a GPU in compute mode Prohibited",
    "jobs cannot open GPUs{on}: {value}",
)
# A warning is half a failure: MARGINAL.
DIAG_FAILURES = fixed_check(
    "diag_failures", "tests", "DCGM's own diagnostics must pass on each GPU of a node; a warning counts as half",
    high=0.5, marginal_high=0,
    when=ordered("dcgm_diag") & ON_GPU, failing="DCGM's diagnostics fail{on}: {value}",
)
DUPLICATE_GPUS = none_of(
    "duplicate_gpus", "GPUs", "a GPU that two nodes count would be given to two ranks",
    when=NVML_THERE, failing="NVML lists the same GPU on two nodes, or twice on one node: {value}",
)
DIFFERENCES = none_of(
    "differences", "differences",
    "a job needs the same Python, Ray, torch, CUDA, driver and kind of GPU on every node",
    depends=("gpu_model",),
    failing="nodes differ in software or GPUs: {value}",
)
SYSTEM_DIFFERENCES = default_check(
    "system_differences", "differences",
    "nodes of one job need the same kernel, OFED, firmware and GPU settings", high=0,
    depends=("agreed_differences", "gpu_model",),
    failing="nodes differ in kernel, firmware or settings: {value}",
)
GPU_MODEL = ordered_part(
    "gpu_model", "", "gpu_model", "{subject} has the GPU {value}", "chosen", better="word",
)
GPU_MEMORY = ordered_part("gpu_memory", "GiB", "gpu_memory_gib", "GPUs have {value} of memory{on}")
CPUS = ordered_part("cpus", "CPUs", "cpus_per_node", "{subject} has {value}")
RAM = ordered_part("ram", "GiB", "ram_gib", "{subject} has {value} of RAM")
DISK = ordered_part("disk", "GiB", "disk_gib", "{subject} has {value} of disk")
ORDERED_VERSIONS = ordered_part(
    "ordered_versions", "versions", "versions",
    "software versions differ from the order{on}: {value}", "chosen",
)
ORDERED_PARTS = (GPU_MODEL, GPU_MEMORY, CPUS, RAM, DISK, ORDERED_VERSIONS)
NODES_CHANGED = none_of(
    "nodes_changed", "nodes", "a node that restarts or leaves ends the jobs on it",
    failing="nodes restarted or left the cluster during the run: {value}",
)
GPUS_CHANGED = no_gpu(
    "gpus_changed", "a GPU that leaves its node ends the job that uses it",
    "GPUs left their node during the run{on}: {value}",
)
HEAT_TIME = default_check(
    "heat_time", "s",
    "all ranks wait for a GPU that heat throttles; one short event in 10 minutes is allowed", high=5,
    when=ON_GPU, failing="heat slowed a GPU down for {value} in 10 minutes{on}",
)
PCIE_REPLAYS = default_check(
    "pcie_replays", "1/min", "DCGM's health watch warns above this rate (DCGM_FR_PCI_REPLAY_RATE)", high=8,
    when=ON_GPU, failing="PCIe retransmits packets{on}: {value}",
)
NVLINK_ERRORS = default_check(
    "nvlink_errors", "errors",
    "DCGM's health watch fails at the first replay or recovery (DCGM_FR_NVLINK_ERROR_CRITICAL)",
    high=0, when=ON_GPU, failing="NVLink has errors{on}: {value}",
)
XIDS = none_of(
    "xids", "Xids", "an Xid reports a fault of a GPU, or a program that failed; what follows a kill by seatrial does not count", when=ON_GPU,
    failing="the GPU driver reports faults{on}: {value}",
)
NEW_MEMORY_ERRORS = none_of(
    "new_memory_errors", "errors", "an error that ECC cannot correct ends a job", when=ON_GPU,
    failing="GPU memory got new errors{on}: {value}",
)
SHARED_MISSING = none_of(
    "shared_missing", "nodes", "checkpoints need one folder that every node can read and write",
    when=SHARED, failing="nodes cannot use the shared folder {subject}: {value}",
)
# Limits of the system of each node, as a worker sees them; a contract may agree on others.
OPEN_FILES = default_check(
    "open_files", "files",
    "Ray warns below 4096 open files, because connections can fail", low=4096,
    when=OWN_HOSTS, failing="a job can open only {value}{on}",
)
LOCKED_MEMORY = default_check(
    "locked_memory", "GiB",
    "RDMA locks its buffers: 4 MiB x 32 channels x 32 ranks = 4 GiB; NCCL's manual asks for `ulimit -l unlimited`",
    low=4, when=RDMA_AGREED & OWN_HOSTS, failing="a job can lock only {value} of memory{on}",
)
STACK = default_check(
    "stack", "MiB", "8 MiB is Linux's own default; threads of NCCL and torch may crash with less",
    low=8, when=OWN_HOSTS, failing="the stack size limit (ulimit -s) is only {value}{on}",
)
SHARED_MEMORY = default_check(
    "shared_memory", "GiB",
    "NCCL keeps buffers in /dev/shm and asks for --shm-size=1g in a container", low=1,
    when=OWN_HOSTS, failing="/dev/shm has only {value} free{on}",
)
PROCESSES = default_check(
    "processes", "threads a rank",
    "a rank starts about 250 threads of Ray, torch, NCCL and 8 data loaders; for 8 ranks, `ulimit -u` and pids.max must leave 2048 threads free", low=256,
    failing="a job can start only {value}{on}",
)
TEMP_ROOM = default_check(
    "temp_room", "ratio",
    "Ray stops storing objects when 95 % of a disk is used (local_fs_capacity_threshold)",
    low=0.05, failing="the disk of Ray's session or of temporary files has only {value} free{on}",
)
BREAKING_CONDITIONS = none_of(
    "breaking_conditions", "conditions", "each of them is known to break or slow jobs",
    when=OWN_HOSTS, failing="a worker meets conditions that break jobs{on}: {value}",
)
STRAY_RAYLETS = default_check(
    "stray_raylets", "raylets", "a raylet of another cluster may give the same GPUs to other jobs",
    high=0, when=OWN_HOSTS, failing="raylets of another Ray cluster are running{on}: {value}",
)
CLOCK_OFFSET = default_check(
    "clock_offset", "s", "if clocks differ more, logs of two nodes appear in the wrong order", high=0.1,
    when=SEVERAL_NODES, failing="the clocks of two nodes differ by {value}",
)
UNSEEN_FILES = none_of(
    "unseen_files", "files", "a job reads on one node what it wrote on another",
    when=SHARED_BY_NODES,
    failing="nodes cannot read files that other nodes wrote to the shared folder {subject}: {value}",
)
SEEN_AFTER = default_check(
    "seen_after", "s", "NFS caches a folder's attributes for up to 60 s (acdirmax)", high=60,
    when=SHARED_BY_NODES,
    no_control="the test would take longer than the limit of one minute",
    failing="nodes see new files of other nodes in the shared folder {subject} only after {value}",
)
DOUBLE_CREATIONS = default_check(
    "double_creations", "files",
    "with O_EXCL exactly one node creates a file; lock files depend on this", high=0,
    when=SHARED_BY_NODES, failing="files in the shared folder {subject} were not created by exactly one node: {value}",
)
RENAME_GAPS = default_check(
    "rename_gaps", "reads",
    "a checkpoint is published by rename; readers must find the old version or the new one", high=0,
    when=SHARED_BY_NODES, failing="while a file in the shared folder {subject} is replaced by rename, reads find no complete file: {value}",
)
# Judged where a contract gives a limit: many sound clusters do not promise them.
LOST_LINES = Check(
    "lost_lines", "lines", better="lower", when=SHARED_BY_NODES, only_agreed=True,
    failing="lines that nodes append to one file in the shared folder {subject} are lost: {value}",
)
LOST_UPDATES = Check(
    "lost_updates", "updates", better="lower", when=SHARED_BY_NODES, only_agreed=True,
    failing="updates under a file lock in the shared folder {subject} are lost: {value}",
)
FAILED_SHARDS = none_of(
    "failed_shards", "nodes", "each node must write and read its part of a checkpoint",
    depends=("shared",), failing="nodes cannot write or read their part of a checkpoint in {subject}: {value}",
)
SHARD_WRITE = fair_share(
    "shard_write", "all ranks wait for the node that writes its shard slowest",
    "{subject} writes to the shared folder at {value} of the other nodes' speed",
)
SHARD_READ = fair_share(
    "shard_read", "all ranks wait for the node that reads its shard slowest",
    "{subject} reads from the shared folder at {value} of the other nodes' speed",
)
RANDOM_READ = fair_share(
    "random_read", "all ranks wait for the node that reads its data slowest",
    "{subject} reads random blocks of files at {value} of the other nodes' speed",
)
WRITE_RATE = Check(
    "write_rate", "GB/s", better="higher", when=RATES_STORAGE, only_agreed=True,
    failing="all nodes together write {value} to the shared folder {subject}",
)
READ_RATE = Check(
    "read_rate", "GB/s", better="higher", when=RATES_STORAGE, only_agreed=True,
    failing="all nodes together read {value} from the shared folder {subject}",
)
CHECKPOINT_ROOM = default_check(
    "checkpoint_room", "saves", "a job keeps two checkpoints while it writes the third",
    low=3, when=SHARED & ordered("save_gb"),
    failing="the shared folder {subject} has room for {value} of a checkpoint",
)
STORAGE_LOST = none_of(
    "storage_lost", "nodes", "a job that loses its shared folder loses its checkpoints",
    when=SHARED, failing="nodes lost the shared folder {subject} during the run: {value}",
)
ADDRESS_ELSEWHERE = none_of(
    "address_elsewhere", "addresses",
    "other nodes and ranks connect to the address that Ray reports", when=SEVERAL_HOSTS,
    failing="Ray reports an address of {subject} that other nodes cannot use: {value}",
)
LOOPBACK_NAMES = default_check(
    "loopback_names", "names",
    "torch's gloo listens at the address of the host name, unless GLOO_SOCKET_IFNAME names an "
    "interface; ranks of other nodes cannot connect to the loopback", high=0, when=SEVERAL_HOSTS,
    failing="the host name resolves to the loopback, or to no address of its node{on}: {value}",
)
NCCL_INTERFACE = default_check(
    "nccl_interface", "interfaces",
    "NCCL starts over the first interface that it finds, unless NCCL_SOCKET_IFNAME names another",
    high=0, when=SEVERAL_HOSTS, failing="NCCL would start over the wrong interface{on}: {value}",
)
IMAGE_DIFFERENCES = default_check(
    "image_differences", "nodes", "a rank with different packages may compute differently, or fail",
    high=0, when=SEVERAL_HOSTS,
    failing="the Python packages or the operating system of {value} differ from those of the other nodes",
)
EGRESS_CLOSED = none_of(
    "egress_closed", "connections", "jobs download from the addresses that the contract lists in `egress`",
    when=ordered("egress"),
    failing="jobs{on} cannot reach addresses that the contract lists: {value}",
)
MODEL_DIFFERENCES = none_of(
    "model_differences", "files", "ranks start from the weights on their own node: the contract lists them in `model_files`",
    when=ordered("model_files"),
    failing="model files{on} are missing, or differ from those of other nodes: {value}",
)
RAY_CLIENT = none_of(
    "ray_client", "clients", "programs join by ray://, at `ray_client_port` of the contract",
    when=ordered("ray_client_port"), failing="programs cannot join the cluster through the Ray client: {value}",
)
RDMA_CLOSED = none_of(
    "rdma_closed", "devices", "NCCL needs the device of each rail; without any device it falls back to TCP",
    when=RDMA_AGREED & OWN_HOSTS, depends=("rails",),
    failing="jobs cannot open RDMA devices{on}: {value}",
)
NAMES_UNRESOLVED = none_of(
    "names_unresolved", "names", "jobs use the host names of nodes, if the contract has `host_names = true`",
    when=ordered("host_names") & SEVERAL_HOSTS,
    failing="host names do not resolve to their nodes{on}: {value}",
)
CLOSED_PORTS = none_of(
    "closed_ports", "connections", "Ray's nodes and workers connect to each other on these ports",
    failing="nodes cannot reach Ray's ports of other nodes: {value}",
)
CLOSED_JOB_PORTS = default_check(
    "closed_job_ports", "connections",
    "rank 0 of a torch job listens on a port that the kernel picks, unless MASTER_PORT is set",
    high=0, failing="nodes cannot reach the ports of torch jobs: {value}",
)
WORK_ERRORS = none_of(
    "work_errors", "GPUs", "a job ends when a GPU or its worker fails",
    failing="GPUs fail while they compute{on}: {value}",
)
GEMM_WRONG = wrong_data(
    "gemm_wrong", "GPUs", "a GPU that adds wrongly spoils a model, and no job notices",
    failing="GPUs compute wrong results{on}: {value}",
)
GEMM_HASH_DIFFERS = none_of(
    "gemm_hash_differs", "GPUs",
    "GPUs of one model with the same software give the same bits: a different result is wrong", when=HAS_PEERS,
    failing="GPUs{on} give different bits for the same matrix product: {value}",
)
SLOW_GPUS = none_of(
    "slow_gpus", "GPUs",
    "all ranks wait for a slow GPU; slow is a rate below the spread of its model, and below 95 % of "
    "the typical rate; with up to 20 GPUs below 90 %, for emulated GPUs below 50 %", when=HAS_PEERS,
    failing="GPUs{on} are slower than others of their model: {value}",
)
SLOW_PCIE = no_gpu(
    "slow_pcie", "with one PCIe generation less, a link has half the speed to the host",
    "GPUs have a slow PCIe link{on}: {value}",
)
SLOWING_GPUS = none_of(
    "slowing_gpus", "GPUs", "a GPU that loses 5 % under load (20 % since it was cold), or ends 10 % slower than others, probably lacks cooling or power; for emulated GPUs the limit is 50 %",
    failing="GPUs slow down under load{on}: {value}",
)
# Rates that a contract may agree on.  Without a limit, agreed or derived, they are only noted.
def known_rate(name: str, unit: str, failing: str) -> Check:
    """Declare a rate whose limit follows from the GPU model, where none is agreed."""
    return Check(
        name, unit, better="higher", only_agreed=True, derived_in_run=True, failing=failing,
        without_limit="a share of what the GPU model reaches; only noted if that is not known",
    )


GEMM_TFLOPS = known_rate("gemm_tflops", "TFLOP/s", "matrix products run at {value}{on}")
FP8_TFLOPS = Check(
    "fp8_tflops", "TFLOP/s", better="higher", only_agreed=True,
    failing="FP8 matrix products run at {value}{on}",
)
HBM_GBS = known_rate("hbm_gbs", "GB/s", "GPU memory runs at {value}{on}")
H2D_GBS = known_rate("h2d_gbs", "GB/s", "copies to the GPU run at {value}{on}")
D2H_GBS = known_rate("d2h_gbs", "GB/s", "copies from the GPU run at {value}{on}")
# Orders to Ray run code on its nodes.
WRONG_ENDPOINTS = none_of(
    "wrong_entrances", "endpoints",
    "if Ray uses tokens, each endpoint requires the token; otherwise none does",
    depends=("authentication",),
    failing="Ray's endpoints ({subject}) do not use the expected authentication: {value}",
)
STRANGER_JOBS = none_of(
    "stranger_jobs", "jobs", "with token authentication, Ray must refuse a job without a token",
    when=When(lambda here: here.terms.authentication == "token", frozenset({"authentication"})),
    failing="Ray accepts jobs without a token: {value}",
)
# UNPROVEN and never failed: no node sees a firewall that may keep strangers out.
PUBLIC_ENDPOINTS = default_check(
    "public_entrances", "endpoints", "anyone who reaches an endpoint that requires no token can run code", high=0,
    doubted=True, when=OWN_HOSTS, depends=("authentication",),
    no_control="the self-test cannot give a node a public address",
)

INVENTORY = (
    MACHINES, GPUS, COUNT_MISMATCHES, NODES_WITH_FEWER_GPUS, NVML_ERRORS, DUPLICATE_GPUS,
    DIFFERENCES, *ORDERED_PARTS, SYSTEM_DIFFERENCES,
)
EXPOSURE = (WRONG_ENDPOINTS, STRANGER_JOBS, PUBLIC_ENDPOINTS)
WORN = (HEAT_TIME, PCIE_REPLAYS, NVLINK_ERRORS, NEW_MEMORY_ERRORS)
RATES = (GEMM_TFLOPS, FP8_TFLOPS, HBM_GBS, H2D_GBS, D2H_GBS)
LIMITS = (OPEN_FILES, LOCKED_MEMORY, STACK, SHARED_MEMORY, PROCESSES, TEMP_ROOM, STRAY_RAYLETS)
HEALTH = (
    HEALTH_ERRORS, GPUS_TO_RESET, MEMORY_ERRORS, ROW_REMAPS, GPUS_WITHOUT_ECC, SLOWED_GPUS,
    POWER_LIMIT, NARROW_PCIE, NVLINKS_DOWN, FABRIC_FAULTS, CLOSED_GPUS,
)
STORAGE = (
    UNSEEN_FILES, SEEN_AFTER, DOUBLE_CREATIONS, RENAME_GAPS, LOST_LINES, LOST_UPDATES,
    FAILED_SHARDS, SHARD_WRITE, SHARD_READ, RANDOM_READ, WRITE_RATE, READ_RATE, CHECKPOINT_ROOM,
)

SICK_GPU = ControlRow("sick GPU", *HEALTH)
GPU_THAT_SICKENS = ControlRow("GPU that sickens", *HEALTH)
WORN_GPU = ControlRow("worn GPU", *WORN)
VANISHED_GPU = ControlRow("vanished GPU", GPUS_CHANGED)
FALLEN_GPU = ControlRow("fallen GPU", XIDS)
RESTARTED_NODE = ControlRow("restarted node", NODES_CHANGED)
DOCTORED_NODE = ControlRow("doctored node", *INVENTORY, when=CAN_BE_DOCTORED)
LARGER_ORDER = ControlRow("larger order", NODES, GPUS)
MISSING_GPU = ControlRow("missing GPU", DIAG_FAILURES)
OWN_FOLDER = ControlRow("own folder", SHARED_MISSING, when=SHARED_BY_NODES)
STRAINED_PROCESS = ControlRow("strained process", *LIMITS)
SHORT_FILES = ControlRow("short files", BREAKING_CONDITIONS)
LOST_CLOCK = ControlRow("lost clock", CLOCK_OFFSET)
LOOPBACK_ADDRESS = ControlRow("loopback address", ADDRESS_ELSEWHERE)
LOOPBACK_NAME = ControlRow("loopback name", LOOPBACK_NAMES)
LOOPBACK_INTERFACE = ControlRow("loopback interface", NCCL_INTERFACE)
OTHER_NAME = ControlRow("other name", NAMES_UNRESOLVED)
CLOSED_PORT = ControlRow("closed port", CLOSED_PORTS)
OTHER_LISTENER = ControlRow("other listener", CLOSED_JOB_PORTS)
OTHER_IMAGE = ControlRow("other image", IMAGE_DIFFERENCES)
CLOSED_TARGET = ControlRow("closed target", EGRESS_CLOSED)
CHANGED_FILE = ControlRow(
    "changed file", MODEL_DIFFERENCES, when=ordered("model_files") & SEVERAL_NODES,
)
CLOSED_CLIENT = ControlRow("closed client", RAY_CLIENT)
HIDDEN_DEVICES = ControlRow("hidden devices", RDMA_CLOSED)
LOST_FILES = ControlRow("lost files", UNSEEN_FILES)
CARELESS_NODE = ControlRow("careless node", DOUBLE_CREATIONS, RENAME_GAPS, LOST_LINES, LOST_UPDATES)
NO_FOLDER = ControlRow("no folder", FAILED_SHARDS)
SLOW_NODE = ControlRow("slow node", SHARD_WRITE, SHARD_READ, RANDOM_READ, WRITE_RATE, READ_RATE)
LARGER_SAVES = ControlRow("larger saves", CHECKPOINT_ROOM)
LOST_MOUNT = ControlRow("lost mount", STORAGE_LOST)
WRONG_ELEMENT = ControlRow("wrong element", GEMM_WRONG, GEMM_HASH_DIFFERS)
FAILING_GEMM = ControlRow("failing GEMM", WORK_ERRORS)
SLOWED_GPU = ControlRow("slowed GPU", SLOW_GPUS, *RATES)
OLD_LINK = ControlRow("old link", SLOW_PCIE)
TIRING_GPU = ControlRow("tiring GPU", SLOWING_GPUS)
OTHER_ENDPOINT = ControlRow("other endpoint", WRONG_ENDPOINTS, STRANGER_JOBS)

PROBES = (
    Probe(
        "test_hosts.py::test_hosts_are_what_was_ordered", tier="quick", usual_s=1,
        checks=(NODES, *INVENTORY, SHARED_MISSING, *HEALTH, DIAG_FAILURES),
        controls=(DOCTORED_NODE, LARGER_ORDER, OWN_FOLDER, SICK_GPU, MISSING_GPU),
        disturbs=(TASKS, "runs DCGM's diagnostics, if the contract orders them"),
    ),
    Probe(
        "test_hosts.py::test_nodes_reach_each_other_by_name_and_port", tier="quick", usual_s=2,
        checks=(ADDRESS_ELSEWHERE, LOOPBACK_NAMES, NCCL_INTERFACE, NAMES_UNRESOLVED, CLOSED_PORTS,
        CLOSED_JOB_PORTS),
        controls=(LOOPBACK_ADDRESS, LOOPBACK_NAME, LOOPBACK_INTERFACE, OTHER_NAME, CLOSED_PORT,
        OTHER_LISTENER),
        disturbs=(TASKS, "opens a TCP port on each node for some seconds"),
    ),
    Probe(
        "test_hosts.py::test_hosts_stay_healthy_to_the_end", tier="quick", usual_s=1,
        checks=(NODES_CHANGED, GPUS_CHANGED, *WORN, XIDS, STORAGE_LOST, *HEALTH),
        controls=(RESTARTED_NODE, GPU_THAT_SICKENS, WORN_GPU, VANISHED_GPU, FALLEN_GPU, LOST_MOUNT),
        disturbs=(TASKS,),
    ),
    Probe(
        "test_hosts.py::test_jobs_get_the_limits_they_need", tier="quick", usual_s=2,
        checks=(*LIMITS, BREAKING_CONDITIONS, CLOCK_OFFSET, IMAGE_DIFFERENCES, EGRESS_CLOSED, RAY_CLIENT,
        MODEL_DIFFERENCES, RDMA_CLOSED),
        controls=(STRAINED_PROCESS, SHORT_FILES, LOST_CLOCK, OTHER_IMAGE, CLOSED_TARGET, CLOSED_CLIENT,
        CHANGED_FILE, HIDDEN_DEVICES),
        disturbs=(TASKS,
        "contacts the targets of `egress`, and reads `model_files`, if the contract lists them"),
    ),
    Probe(
        "test_hosts.py::test_all_nodes_use_the_shared_folder_at_once", tier="quick", usual_s=7,
        checks=STORAGE,
        controls=(LOST_FILES, CARELESS_NODE, NO_FOLDER, SLOW_NODE, LARGER_SAVES),
        disturbs=(
            "writes, reads and removes files on all nodes at once, in the shared folder or else in the temporary folder",
        ),
    ),
    Probe(
        "test_hosts.py::test_each_gpu_computes_rightly_and_as_fast_as_the_others",
        tier="quick", usual_s=7,
        checks=(WORK_ERRORS, GEMM_WRONG, GEMM_HASH_DIFFERS, SLOW_GPUS, SLOW_PCIE, *RATES),
        controls=(WRONG_ELEMENT, FAILING_GEMM, SLOWED_GPU, OLD_LINK),
        disturbs=(ALL_GPUS,),
    ),
    Probe(
        "test_hosts.py::test_no_gpu_slows_down_under_load", tier="standard",
        checks=(WORK_ERRORS, GEMM_WRONG, SLOWING_GPUS),
        controls=(WRONG_ELEMENT, FAILING_GEMM, TIRING_GPU),
        disturbs=(ALL_GPUS, "loads all GPUs, in tier standard for a minute, in tier soak for ten minutes"),
    ),
    Probe(
        "test_hosts.py::test_endpoints_keep_to_the_authentication", tier="quick", usual_s=2,
        checks=EXPOSURE,
        controls=(OTHER_ENDPOINT,),
        disturbs=(TASKS, "sends requests without a token to Ray's endpoints, and one harmless job"),
    ),
)

CRITERION = CriterionRow(
    title="the machines are what was ordered, and healthy",
    how="nodes match the order and each other in hardware and software; ulimits, disk space, clocks, "
    "DNS, ports and shared storage are fit for jobs; each GPU computes correctly and at full speed",
    where="one worker on each node, and one for each GPU",
    needs=(
        "permission for workers to read NVML (root is not needed)",
        "the shared folder of the contract, writable on each node",
    ),
    headlines={NODES: "{value} answer"}, proven=", as ordered, healthy and identical",
    keeps_in_shared=True, reports_lost_nodes=True,
    on_one_node=OnOneNode(untested="nodes against each other", proven=", as ordered and healthy"),
)
