"""Defines HOSTS: its measures with their limits, its probes, and its controls."""

from __future__ import annotations

from probes.check.criterion import (
    Circumstances,
    Condition,
    CriterionRow,
    Duty,
    Measure,
    default_measure,
    doubted,
    none_of,
    wrong_data,
)

# Of the shared folder.  Those without a limit are judged where a contract gives one: many sound
# clusters do not promise them.
STORAGE = {
    "unseen_files": none_of("files", "a job reads on one node what it wrote on another"),
    "seen_after": default_measure(
        "s", "NFS keeps what it knows of a folder for up to 60 s (acdirmax)", high=60
    ),
    "double_creations": default_measure(
        "files", "with O_EXCL one node alone creates a file: lock files depend on it", high=0
    ),
    "rename_gaps": default_measure(
        "reads",
        "a checkpoint is published by rename: readers find the old version or the new one",
        high=0,
    ),
    "lost_lines": Measure("lines", better="lower"),
    "lost_updates": Measure("updates", better="lower"),
    "failed_shards": none_of("nodes", "each node writes and reads its part of a checkpoint"),
    **{
        name: default_measure("ratio", f"all ranks wait for the node that {does} slowest", low=0.5)
        for name, does in (
            ("shard_write", "writes its shard"),
            ("shard_read", "reads its shard"),
            ("random_read", "reads its data"),
        )
    },
    "write_rate": Measure("GB/s", better="higher"),
    "read_rate": Measure("GB/s", better="higher"),
    "checkpoint_room": default_measure(
        "saves", "a save is complete before the older of two is removed", low=3
    ),
}
STORAGE_CONTROLS = {
    "lost files": ("unseen_files",),
    "careless node": ("double_creations", "rename_gaps", "lost_lines", "lost_updates"),
    "no folder": ("failed_shards",),
    "slow node": ("shard_write", "shard_read", "random_read", "write_rate", "read_rate"),
    "larger saves": ("checkpoint_room",),
}
STORAGE_NO_CONTROL = {
    "seen_after": "a file would have to be held back for longer than its limit, a minute, each time",
}


def _shares_folder(here: Circumstances) -> bool:
    """Return whether several nodes have one folder."""
    return bool(here.terms.shared) and here.nodes > 1


def _compares_storage(here: Circumstances) -> bool:
    """Return whether a node can be slower than the others: of two, one may be the server itself.

    Raylets of one host have the same disk.
    """
    return _shares_folder(here) and here.nodes > 2 and not here.one_host


def _rates_storage(here: Circumstances) -> bool:
    """Return whether the speed of all nodes is judged: a quick run writes too little for that."""
    return _shares_folder(here) and not here.one_host and here.tier != "quick"


def _if_agreed(name: str, condition: Condition) -> Condition:
    """Add to a condition that the contract has a limit for a measure."""
    return lambda here: f"HOSTS.{name}" in here.agreed and condition(here)


STORAGE_CONDITIONS: dict[str, Condition] = {
    **dict.fromkeys(("unseen_files", "seen_after", "double_creations"), _shares_folder),
    **dict.fromkeys(("rename_gaps", "lost files", "careless node"), _shares_folder),
    **{name: _if_agreed(name, _shares_folder) for name in ("lost_lines", "lost_updates")},
    **dict.fromkeys(("shard_write", "shard_read", "random_read"), _compares_storage),
    **{name: _if_agreed(name, _rates_storage) for name in ("write_rate", "read_rate")},
    "slow node": lambda here: (
        _compares_storage(here)
        or any(_if_agreed(name, _rates_storage)(here) for name in ("write_rate", "read_rate"))
    ),
    **dict.fromkeys(
        ("checkpoint_room", "larger saves"),
        lambda here: bool(here.terms.shared and here.terms.save_gb),
    ),
}
STORAGE_DUTIES = (
    Duty(
        "hosts/test_hosts.py::test_all_nodes_use_the_shared_folder_at_once",
        "quick",
        tuple(STORAGE),
        ("lost files", "careless node", "no folder", "slow node", "larger saves"),
    ),
)


# Rates that a contract may agree on.  Without a limit they are only noted.
RATES = {
    "gemm_tflops": Measure("TFLOP/s", better="higher"),
    "fp8_tflops": Measure("TFLOP/s", better="higher"),
    "hbm_gbs": Measure("GB/s", better="higher"),
    "h2d_gbs": Measure("GB/s", better="higher"),
    "d2h_gbs": Measure("GB/s", better="higher"),
}
WORK: dict[str, Measure] = {
    "work_errors": none_of("GPUs", "a job ends when a GPU or its worker fails"),
    "gemm_wrong": wrong_data("GPUs", "a GPU that adds wrongly spoils a model, and no job notices"),
    "gemm_hash_differs": none_of(
        "GPUs", "GPUs of one model and build give the same bits, so another result is wrong"
    ),
    "slow_gpus": none_of(
        "GPUs",
        "all ranks wait for a GPU that is 5 % slower than others of its model (10 % with fewer "
        "than five), and slower than their spread explains",
    ),
    "slow_pcie": none_of(
        "GPUs", "each lost generation halves the speed to the host, as half of the lanes does"
    ),
    "slowing_gpus": none_of("GPUs", "a GPU that loses 5 % under load is not cooled or powered"),
    **RATES,
}
WORK_CONTROLS = {
    "wrong element": ("gemm_wrong", "gemm_hash_differs"),
    "failing GEMM": ("work_errors",),
    "slowed GPU": ("slow_gpus", *RATES),
    "old link": ("slow_pcie",),
    "tiring GPU": ("slowing_gpus",),
}


def has_peers(here: Circumstances) -> bool:
    """Return whether an accelerator can be compared with others: always where it is real.

    A single real GPU is then UNPROVEN.  A rehearsal on one node has nothing to compare.
    """
    return here.nodes > 1 or here.on_gpu


def _agrees_on(name: str) -> Condition:
    return lambda here: f"HOSTS.{name}" in here.agreed


WORK_CONDITIONS: dict[str, Condition] = {
    **dict.fromkeys(("gemm_hash_differs", "slow_gpus"), has_peers),
    **dict.fromkeys(("slow_pcie", "old link"), lambda here: here.on_gpu),
    **{name: _agrees_on(name) for name in RATES},
    "slowed GPU": lambda here: has_peers(here) or any(_agrees_on(name)(here) for name in RATES),
}
WORK_DUTIES = (
    Duty(
        "hosts/test_hosts.py::test_each_gpu_computes_rightly_and_as_fast_as_the_others",
        "quick",
        ("work_errors", "gemm_wrong", "gemm_hash_differs", "slow_gpus", "slow_pcie", *RATES),
        ("wrong element", "failing GEMM", "slowed GPU", "old link"),
    ),
    Duty(
        "hosts/test_hosts.py::test_no_gpu_slows_down_under_load",
        "standard",
        ("work_errors", "gemm_wrong", "slowing_gpus"),
        ("wrong element", "failing GEMM", "tiring GPU"),
    ),
)


# Limits of the system of each node, as a worker sees them; a contract may agree on others.
SYSTEM = {
    "open_files": default_measure(
        "files",
        "Ray warns of fewer: they are too few for production and cause connection errors",
        low=4096,
    ),
    "locked_memory": default_measure(
        "GiB",
        "RDMA locks its buffers: 4 MiB for each of 32 channels to 32 ranks; NCCL asks for no limit",
        low=4,
    ),
    "stack": default_measure(
        "MiB", "8 MiB is Linux's own default; threads of NCCL and torch crash with less", low=8
    ),
    "shared_memory": default_measure(
        "GiB", "NCCL keeps buffers in /dev/shm and asks for --shm-size=1g in a container", low=1
    ),
    "processes": default_measure(
        "threads a rank",
        "a rank starts about 250 threads: Ray, torch, NCCL and 8 loaders of data",
        low=256,
    ),
    "temp_room": default_measure(
        "ratio",
        "Ray stores no more objects with 95 % of a disk in use, its local_fs_capacity_threshold",
        low=0.05,
    ),
    "stray_raylets": default_measure(
        "raylets", "a raylet of another cluster gives the same GPUs to other jobs", high=0
    ),
    "clock_offset": default_measure(
        "s", "events and logs of two nodes must be put in order", high=0.1
    ),
}

# Orders to Ray run code on its nodes.
EXPOSURE = {
    "wrong_entrances": none_of(
        "entrances", "with token authentication each needs the token; without it none asks for one"
    ),
    "stranger_jobs": none_of("jobs", "with token authentication, Ray runs no job without a token"),
    # UNPROVEN and never failed: no node sees a firewall that may keep strangers out.
    "public_entrances": doubted(
        default_measure("entrances", "anyone who reaches it without a token runs code", high=0)
    ),
}

MEASURES = {
    "nodes": Measure("nodes", from_run="[cluster] nodes"),
    "machines": Measure("machines", from_run="the nodes that answer"),
    "gpus": Measure("GPUs", from_run="[cluster] gpus_per_node"),
    "count_mismatches": none_of(
        "counts",
        "Ray, NVML and torch must count the same GPUs; otherwise ranks get GPUs that do not exist",
    ),
    "nodes_with_fewer_gpus": none_of(
        "nodes", "a node with fewer GPUs than most nodes has lost some"
    ),
    "nvml_errors": none_of("errors", "a GPU that does not answer NVML cannot be trusted"),
    "health_errors": none_of("GPUs", "a query that fails hides the state of its GPU"),
    "gpus_to_reset": none_of(
        "GPUs", "until it is reset, such a GPU computes wrongly or not at all"
    ),
    "memory_errors": none_of("GPUs", "such an error ends a job, or makes its results wrong"),
    "row_remaps": none_of("GPUs", "the GPU needs a reset, or a replacement, before a job uses it"),
    "gpus_without_ecc": none_of("GPUs", "without ECC, wrong bits go unnoticed"),
    "slowed_gpus": none_of("GPUs", "all ranks wait for the slowest GPU"),
    "power_limit": default_measure(
        "ratio", "a GPU below its default power limit computes slower", low=1
    ),
    "narrow_pcie": none_of("GPUs", "each lost half of the lanes halves the speed to the host"),
    "nvlinks_down": none_of("GPUs", "collectives inside the node run at the speed of such a GPU"),
    "fabric_faults": none_of("GPUs", "without its NVLink fabric, CUDA does not start or is slow"),
    "closed_gpus": none_of("GPUs", "no job can use such a GPU"),
    "diag_failures": none_of("tests", "DCGM's own diagnostics must pass on each node"),
    "duplicate_gpus": none_of("GPUs", "a GPU that two nodes count would be given to two ranks"),
    "differences": none_of(
        "differences",
        "a job needs the same Python, Ray, torch, CUDA, driver and kind of GPU on every node",
    ),
    "system_differences": default_measure(
        "differences",
        "other kernels, OFED, firmware or settings of GPUs make nodes of one job differ",
        high=0,
    ),
    "gpu_model": Measure("", from_run="[cluster] gpu_model"),
    "gpu_memory": Measure("GiB", from_run="[cluster] gpu_memory_gib"),
    "cpus": Measure("CPUs", from_run="[cluster] cpus_per_node"),
    "ram": Measure("GiB", from_run="[cluster] ram_gib"),
    "disk": Measure("GiB", from_run="[cluster] disk_gib"),
    "ordered_versions": Measure("versions", from_run="[cluster] versions"),
    "nodes_changed": none_of("nodes", "a node that restarts in this run would end a job"),
    "gpus_changed": none_of("GPUs", "a GPU that leaves its node ends the job that uses it"),
    "heat_time": default_measure(
        "s", "all ranks wait for a GPU that heat slows; a cooled rack has none for seconds", high=5
    ),
    "pcie_replays": default_measure(
        "1/min", "DCGM's health watch warns above (DCGM_FR_PCI_REPLAY_RATE)", high=8
    ),
    "nvlink_errors": none_of(
        "errors",
        "DCGM's health watch fails at the first replay or recovery (DCGM_FR_NVLINK_ERROR_CRITICAL)",
    ),
    "xids": none_of("Xids", "such an error of the driver shows a fault of GPU, PCIe or NVLink"),
    "new_memory_errors": none_of("errors", "an error that ECC cannot correct ends a job"),
    "shared_missing": none_of(
        "nodes", "checkpoints need one folder that every node can read and write"
    ),
    **SYSTEM,
    **STORAGE,
    "storage_lost": none_of("nodes", "a job that loses its shared folder loses its checkpoints"),
    "address_elsewhere": none_of(
        "addresses", "other nodes and ranks meet a node at the address that Ray gives them"
    ),
    "loopback_names": default_measure(
        "names",
        "torch's gloo listens where the own name leads, unless GLOO_SOCKET_IFNAME names an "
        "interface; ranks of other nodes cannot connect to the loopback",
        high=0,
    ),
    "nccl_interface": default_measure(
        "interfaces",
        "NCCL starts over the first interface that it finds, unless NCCL_SOCKET_IFNAME names another",
        high=0,
    ),
    "image_differences": default_measure(
        "nodes", "a rank that imports other packages computes otherwise, or fails", high=0
    ),
    "egress_closed": none_of("connections", "the contract's jobs download from these addresses"),
    "model_differences": none_of("files", "ranks start from the weights of their own node"),
    "ray_client": none_of("clients", "the contract's programs join by ray://"),
    "rdma_closed": none_of("devices", "NCCL opens the device of each rail, or takes TCP"),
    "names_unresolved": none_of("names", "the contract's jobs address nodes by host name"),
    "closed_ports": none_of(
        "connections", "Ray's nodes and workers connect to each other on these ports"
    ),
    "closed_job_ports": default_measure(
        "connections",
        "rank 0 of a torch job listens on a port that the kernel picks, unless MASTER_PORT is set",
        high=0,
    ),
    **WORK,
    **EXPOSURE,
}

HEALTH = (
    *("health_errors", "gpus_to_reset", "memory_errors", "row_remaps", "gpus_without_ecc"),
    *("slowed_gpus", "power_limit", "narrow_pcie", "nvlinks_down", "fabric_faults", "closed_gpus"),
)
WORN = ("heat_time", "pcie_replays", "nvlink_errors", "new_memory_errors")
ON_GPUS = (
    *HEALTH,
    *("gpus_changed", *WORN, "xids"),
    *("sick GPU", "GPU that sickens", "worn GPU", "vanished GPU", "fallen GPU"),
)
CONTROLS = {
    "sick GPU": HEALTH,
    "GPU that sickens": HEALTH,
    "worn GPU": WORN,
    "vanished GPU": ("gpus_changed",),
    "fallen GPU": ("xids",),
    "restarted node": ("nodes_changed",),
    "doctored node": (
        *("machines", "gpus", "count_mismatches", "nodes_with_fewer_gpus", "nvml_errors"),
        *("duplicate_gpus", "differences", "gpu_model", "gpu_memory", "cpus", "ram"),
        *("disk", "ordered_versions", "system_differences"),
    ),
    "larger order": ("nodes", "gpus"),
    "missing GPU": ("diag_failures",),
    "own folder": ("shared_missing",),
    "strained process": (
        *("open_files", "locked_memory", "stack", "shared_memory", "processes", "temp_room"),
        "stray_raylets",
    ),
    "lost clock": ("clock_offset",),
    "loopback address": ("address_elsewhere",),
    "loopback name": ("loopback_names",),
    "loopback interface": ("nccl_interface",),
    "other name": ("names_unresolved",),
    "closed port": ("closed_ports",),
    "other listener": ("closed_job_ports",),
    "other image": ("image_differences",),
    "closed target": ("egress_closed",),
    "changed file": ("model_differences",),
    "closed client": ("ray_client",),
    "hidden devices": ("rdma_closed",),
    **STORAGE_CONTROLS,
    "lost mount": ("storage_lost",),
    **WORK_CONTROLS,
    "other entrance": ("wrong_entrances", "stranger_jobs"),
}
NO_CONTROL = {
    **STORAGE_NO_CONTROL,
    "public_entrances": "a node gets no globally routable address for a test",
}


def _has_machines(here: Circumstances) -> bool:
    """Return whether nodes are on several machines: one host's raylets share its addresses."""
    return here.nodes > 1 and not here.one_host


def _can_be_doctored(here: Circumstances) -> bool:
    """Return whether false facts of a node can fail: it is compared with others, or an order."""
    terms = here.terms
    ordered = (terms.gpu_model, terms.gpu_memory_gib, terms.cpus_per_node, terms.ram_gib)
    return here.nodes > 1 or not here.emulated or any((*ordered, terms.disk_gib, terms.versions))


CONDITIONS: dict[str, Condition] = {
    "doctored node": _can_be_doctored,
    "machines": lambda here: not here.one_host,
    "nvml_errors": lambda here: not here.emulated,
    "duplicate_gpus": lambda here: not here.emulated,
    "gpu_model": lambda here: bool(here.terms.gpu_model),
    "gpu_memory": lambda here: bool(here.terms.gpu_memory_gib),
    "cpus": lambda here: bool(here.terms.cpus_per_node),
    "ram": lambda here: bool(here.terms.ram_gib),
    "disk": lambda here: bool(here.terms.disk_gib),
    "ordered_versions": lambda here: bool(here.terms.versions),
    **dict.fromkeys(
        ("diag_failures", "missing GPU"), lambda here: here.terms.dcgm_diag and here.on_gpu
    ),
    "shared_missing": lambda here: bool(here.terms.shared),
    **dict.fromkeys(ON_GPUS, lambda here: here.on_gpu),
    "own folder": lambda here: bool(here.terms.shared) and here.nodes > 1,
    # An embedded cluster has the limits of a shell, and shares its host with other clusters.
    **dict.fromkeys(
        ("open_files", "stack", "shared_memory", "stray_raylets"), lambda here: not here.one_host
    ),
    "locked_memory": lambda here: here.terms.fabric == "rdma" and not here.one_host,
    "clock_offset": lambda here: here.nodes > 1,
    "lost clock": lambda here: here.nodes > 1,
    **dict.fromkeys(("address_elsewhere", "loopback address"), _has_machines),
    **dict.fromkeys(("loopback_names", "loopback name"), _has_machines),
    **dict.fromkeys(("nccl_interface", "loopback interface"), _has_machines),
    **dict.fromkeys(("image_differences", "other image"), _has_machines),
    **dict.fromkeys(("egress_closed", "closed target"), lambda here: bool(here.terms.egress)),
    "stranger_jobs": lambda here: here.terms.authentication == "token",
    "public_entrances": lambda here: not here.one_host,
    **dict.fromkeys(("ray_client", "closed client"), lambda here: bool(here.terms.ray_client_port)),
    "model_differences": lambda here: bool(here.terms.model_files),
    "changed file": lambda here: bool(here.terms.model_files) and here.nodes > 1,
    **dict.fromkeys(
        ("rdma_closed", "hidden devices"),
        lambda here: here.terms.fabric == "rdma" and not here.one_host,
    ),
    **dict.fromkeys(
        ("names_unresolved", "other name"),
        lambda here: here.terms.host_names and _has_machines(here),
    ),
    **STORAGE_CONDITIONS,
    **dict.fromkeys(("storage_lost", "lost mount"), lambda here: bool(here.terms.shared)),
    **WORK_CONDITIONS,
}
DUTIES = (
    Duty(
        "hosts/test_hosts.py::test_hosts_are_what_was_ordered",
        "quick",
        (
            *("nodes", "machines", "gpus", "count_mismatches", "nodes_with_fewer_gpus"),
            *("nvml_errors", "duplicate_gpus", "differences", "gpu_model", "gpu_memory"),
            *("cpus", "ram", "disk", "ordered_versions", "system_differences", "shared_missing"),
            *HEALTH,
            "diag_failures",
        ),
        ("doctored node", "larger order", "own folder", "sick GPU", "missing GPU"),
    ),
    Duty(
        "hosts/test_hosts.py::test_nodes_reach_each_other_by_name_and_port",
        "quick",
        (
            *("address_elsewhere", "loopback_names", "nccl_interface", "names_unresolved"),
            *("closed_ports", "closed_job_ports"),
        ),
        (
            *("loopback address", "loopback name", "loopback interface", "other name"),
            *("closed port", "other listener"),
        ),
    ),
    Duty(
        "hosts/test_hosts.py::test_hosts_stay_healthy_to_the_end",
        "quick",
        (
            *("nodes_changed", "gpus_changed", *WORN),
            *("xids", "storage_lost", *HEALTH),
        ),
        (
            *("restarted node", "GPU that sickens", "worn GPU", "vanished GPU", "fallen GPU"),
            "lost mount",
        ),
    ),
    Duty(
        "hosts/test_hosts.py::test_jobs_get_the_limits_they_need",
        "quick",
        (
            *(*SYSTEM, "image_differences", "egress_closed", "ray_client", "model_differences"),
            "rdma_closed",
        ),
        (
            *("strained process", "lost clock", "other image", "closed target"),
            *("closed client", "changed file", "hidden devices"),
        ),
    ),
    *STORAGE_DUTIES,
    *WORK_DUTIES,
    Duty(
        "hosts/test_hosts.py::test_entrances_keep_to_the_authentication",
        "quick",
        tuple(EXPOSURE),
        ("other entrance",),
    ),
)

HOSTS = CriterionRow(
    title="the machines are what was ordered, and healthy",
    how="machines, GPUs and software of every node: as ordered, the same everywhere, healthy; "
    "limits, room, clock, names, ports, entrances and shared folder, as a job meets them; sums "
    "and speed of each GPU",
    headlines={"nodes": "{value} answer"},
    proven=", as ordered, healthy and alike",
    measures=MEASURES,
    duties=DUTIES,
    controls=CONTROLS,
    no_control=NO_CONTROL,
    conditions=CONDITIONS,
)
