"""Rules of the environment lint, as data: NCCL settings that are wrong or doubtful.

One row per variable and fault: the check, its severity by fabric, the reason, the remedy.  The
sources are NCCL's user guide (env.rst), NCCL's source where env.rst gives no answer, and torch's
ProcessGroupNCCL.  Settings in env.rst's section "Debugging" are not meant for production.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probes.environment import checks as when
from probes.environment.checks import Check


@dataclass(frozen=True)
class FabricSeverity:
    """Severity of a fault, "fail", "warn" or "info": where RDMA is agreed, and elsewhere."""

    rdma: str
    sockets: str

    def on(self, fabric: str | None) -> str:
        """Return the severity on a fabric; "warn" where none is agreed and the two differ."""
        if fabric is None and self.rdma != self.sockets:
            return "warn"
        return self.rdma if fabric == "rdma" else self.sockets


FAIL = FabricSeverity("fail", "fail")
WARN = FabricSeverity("warn", "warn")
INFO = FabricSeverity("info", "info")
FAIL_ON_RDMA = FabricSeverity("fail", "info")
WARN_ON_RDMA = FabricSeverity("warn", "info")

FIX_UNSET = "unset it"
FIX_EXACT_NAMES = "name the devices exactly: =mlx5_0,mlx5_1"
FIX_INTERFACE = (
    "write the exact name of the interface with a leading =, such as `=eth0`, on every node"
)
FIX_FABRIC = "name the agreed fabric, with = before its name, on every node"


@dataclass(frozen=True)
class Rule:
    """One row: `check` examines the value on a node; `since` is the first NCCL it applies to."""

    variable: str
    check: Check
    severity: FabricSeverity
    why: str
    fix: str = FIX_UNSET
    since: tuple[int, int] = (0, 0)
    code: str = ""  # "" for the code of the severity


def rules_of(variables: str, *columns: Any, **more: Any) -> list[Rule]:
    """Repeat one row for several variables, separated by blanks."""
    return [Rule(variable, *columns, **more) for variable in variables.split()]


RULES: list[Rule] = [
    # Networks and plugins.
    Rule("NCCL_IB_DISABLE", when.nonzero, FAIL_ON_RDMA,
         "NCCL's own RDMA transport is off, so bytes take TCP; plugins ignore it"),
    Rule("NCCL_NET", when.is_one_of("socket"), FAIL_ON_RDMA, "every byte takes TCP"),
    Rule("NCCL_NET", when.ib_without_device, FAIL,
         "NCCL's own RDMA is demanded and the node has no RDMA device: no communicator is made"),
    Rule("NCCL_NET_PLUGIN", when.both_match(when.is_one_of("none"), when.needs_plugin), FAIL,
         "RDMA works on this node by its network plugin only"),
    Rule("NCCL_NET_PLUGIN", when.both_match(when.is_one_of("none"), when.negate(when.needs_plugin)),
         WARN_ON_RDMA, "network plugins such as EFA, FasTrak and SHARP are not loaded"),
    Rule("NCCL_NET_PLUGIN", when.file_missing("NCCL_NET_PLUGIN"), FabricSeverity("fail", "warn"),
         "the plugin's file does not exist, and NCCL goes on without it"),
    Rule("NCCL_IBEXT_DISABLE", when.nonzero, WARN_ON_RDMA, "HPC-X's RDMA plugin is off"),
    Rule("NCCL_COLLNET_ENABLE", when.nonzero, WARN,
         "without SHARP on the fabric and its plugin, communicators may fail to start",
         "unset it, unless the fabric runs SHARP"),
    Rule("NCCL_COMM_ID", when.is_set, FAIL, "every process joins this one communicator id"),
    Rule("NCCL_HOSTID", when.hostid_shared, FAIL,
         "NCCL takes nodes for one host: it finds one GPU twice or a wrong topology",
         "unset it, or make it unique to each node"),
    *rules_of("NCCL_IGNORE_NET_MISMATCH NCCL_IGNORE_COLLNET_MISMATCH", when.nonzero, WARN,
          "nodes with different network devices start without an error",
          "unset it; 0 in acceptance runs", since=(2, 30)),

    # RDMA devices.
    Rule("NCCL_IB_HCA", when.device_missing, FAIL_ON_RDMA,
         "the node has no such RDMA device", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.device_ambiguous, WARN_ON_RDMA,
         "entries are prefixes, and these match as well", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.devices_by_prefix, INFO,
         "entries are prefixes without =, and may match a device added later", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.devices_excluded, WARN_ON_RDMA,
         "an exclusion list admits every device that it does not name", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.has_software_rdma, FAIL_ON_RDMA,
         "these devices are RDMA in software only", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.unused_devices, INFO, "these devices with an active port are unused",
         "leave out only what serves storage or management"),
    Rule("NCCL_IB_TIMEOUT", when.out_of_range(1, 31), FAIL_ON_RDMA,
         "the timeout is infinite (0 and 32 or more), so that a dead link becomes a hang",
         "unset it (default 20), or 20 to 25"),
    Rule("NCCL_IB_RETRY_CNT", when.out_of_range(0, 7), WARN_ON_RDMA, "valid counts are 0 to 7",
         "unset it (default 7)"),
    Rule("NCCL_IB_GID_INDEX", when.at_least(0), WARN_ON_RDMA,
         "NCCL finds the GID by itself; an index that was right elsewhere breaks this fabric",
         "unset it; steer by NCCL_IB_ADDR_RANGE", since=(2, 21)),
    Rule("NCCL_NET_GDR_LEVEL", when.is_local_level, WARN_ON_RDMA, "GPUDirect RDMA is off"),
    Rule("NCCL_NET_GDR_LEVEL", when.is_numeric_level, WARN_ON_RDMA,
         "numbers of levels have changed between versions", "unset it, or use a name such as PXB"),
    Rule("NCCL_NET_GDR_LEVEL", when.is_unknown_level, WARN_ON_RDMA,
         "it is no level that NCCL knows and is ignored; names count in capitals only"),
    *rules_of("NCCL_NET_GDR_READ NCCL_DMABUF_ENABLE", when.is_number(0), WARN_ON_RDMA,
          "a way of GPUDirect RDMA is off"),
    Rule("NCCL_CROSS_NIC", when.is_number(1), WARN_ON_RDMA,
         "rings cross rails: slow on a rail-optimised fabric, a hang on a rail-only one",
         "unset it (default 2), unless all NICs share one switch"),
    Rule("NCCL_PXN_DISABLE", when.nonzero, WARN_ON_RDMA, "bytes cannot reach their rail by NVLink"),
    Rule("NCCL_IB_PCI_RELAXED_ORDERING", when.is_number(1), INFO,
         "NCCL fails where relaxed ordering is not available", "unset it (default 2, automatic)"),
    *rules_of("NCCL_IB_TC NCCL_IB_SL NCCL_IB_QPS_PER_CONNECTION NCCL_IB_ADAPTIVE_ROUTING"
          " NCCL_IB_PCI_RELAXED_ORDERING", when.is_set, INFO,
          "it fits one fabric only", "compare it with what the fabric's operator says"),

    # Interfaces.
    Rule("NCCL_SOCKET_IFNAME", when.interface_missing, FAIL,
         "no interface of the node matches, so NCCL does not start", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.only_local_interfaces, FAIL,
         "these reach no other node", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.some_local_interfaces, WARN,
         "it admits interfaces that reach no other node", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.interface_ambiguous, WARN,
         "entries are prefixes, and these match as well", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.fabric_not_admitted, FAIL,
         "it does not admit the agreed fabric:", FIX_FABRIC),
    Rule("NCCL_SOCKET_IFNAME", when.interfaces_off_fabric, WARN,
         "it admits more than the agreed fabric:", FIX_FABRIC),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_interface_missing, FAIL,
         "gloo takes exact names, and the node has no such interface", "name an interface"),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_interface_local, FAIL,
         "these reach no other node", "name an interface"),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_off_fabric, INFO,
         "gloo does not use the agreed fabric", "right where gloo carries no gradients"),

    # Inside a node.
    Rule("NCCL_P2P_DISABLE", when.is_number(1), FAIL, "GPUs of a node do not use NVLink"),
    Rule("NCCL_P2P_LEVEL", when.is_local_level, FAIL, "GPUs of a node do not use NVLink"),
    Rule("NCCL_P2P_LEVEL", when.is_numeric_level, WARN,
         "numbers of levels have changed between versions", "unset it, or use a name such as NVL"),
    Rule("NCCL_P2P_LEVEL", when.is_unknown_level, WARN,
         "it is no level that NCCL knows and is ignored; names count in capitals only"),
    Rule("NCCL_SHM_DISABLE", when.is_number(1), WARN, "traffic inside a node takes the network"),
    Rule("NCCL_NVLS_ENABLE", when.is_number(0), WARN,
         "NVLink SHARP is off, which lowers the bandwidth inside a node"),
    *[rule for grade, where in ((FAIL, when.in_nvlink_domain),
                                (WARN, when.negate(when.in_nvlink_domain)))
      for rule in rules_of("NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_MNNVL_ENABLE",
                       when.both_match(when.is_number(0), where), grade,
                       "it switches off buffer registration or NVLink between nodes")],
    Rule("NCCL_TOPO_FILE", when.file_missing("NCCL_TOPO_FILE"), FAIL, "the file does not exist",
         "unset it, or name the vendor's file for this machine"),
    Rule("NCCL_TOPO_FILE", when.negate(when.file_missing("NCCL_TOPO_FILE")), INFO,
         "a topology of another kind of machine would mislead NCCL",
         "make sure that it is the vendor's file for this machine"),
    Rule("NCCL_MULTI_RANK_GPU_ENABLE", when.nonzero, WARN,
         "two ranks on one GPU start without an error", since=(2, 30)),

    # Tuning.
    *rules_of("NCCL_ALGO NCCL_PROTO", when.is_set, WARN,
          "it pins what NCCL chooses by size; since 2.24 a collective without the pinned choice"
          " fails, and LL128 forced where it is not supported corrupts data"),
    *rules_of("NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_NRINGS NCCL_MAX_NRINGS NCCL_MIN_CTAS"
          " NCCL_MAX_CTAS NCCL_BUFFSIZE NCCL_NTHREADS", when.is_set, WARN,
          "old tuning overrides what this version would choose"),
    *rules_of("NCCL_CHECK_POINTERS NCCL_IGNORE_CPU_AFFINITY", when.nonzero, WARN,
          "it is meant for debugging"),
    Rule("NCCL_LAUNCH_MODE", when.is_one_of("group"), WARN, "it is deprecated since 2.9"),

    # Logs.
    Rule("NCCL_DEBUG", when.is_one_of("info"), INFO, "logs grow with every communicator",
         "use WARN"),
    Rule("NCCL_DEBUG", when.is_one_of("trace"), WARN, "every call is logged", "use WARN"),
    Rule("NCCL_DEBUG_SUBSYS", when.logs_all_subsystems, INFO, "every subsystem logs"),
    Rule("NCCL_DEBUG_FILE", when.file_not_unique, WARN,
         "processes write over each other's file", "put both %h and %p into its name"),
    Rule("NCCL_RAS_ENABLE", when.is_number(0), INFO, "NCCL's RAS cannot diagnose a hang",
         "unset it, unless this NCCL crashes with it", since=(2, 24)),

    # Files.
    Rule("NCCL_CONF_FILE", when.file_missing("NCCL_CONF_FILE"), WARN,
         "the file does not exist, and NCCL says nothing (a ~ is not expanded)"),
    Rule("NCCL_CONF_FILE", when.nccl_older_than(2, 23), WARN,
         "this NCCL does not know it and reads ~/.nccl.conf"),
    Rule("NCCL_ENV_PLUGIN", when.negate(when.is_one_of("none")), INFO,
         "a plugin may change any variable, which is not seen here", since=(2, 28)),
    Rule("LD_PRELOAD", when.file_missing("LD_PRELOAD"), WARN, "the library does not exist"),
    *[Rule(variable, when.conflicting_libnccl(variable), WARN,
           "two versions of libnccl are in reach", "keep one libnccl; see /proc/PID/maps of a rank",
           code="ENV-TWO-LIBS") for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH")],

    # Old names.
    Rule("NCCL_IB_CUDA_SUPPORT", when.is_set, INFO, "removed in 2.4: it is ignored",
         "delete it; NCCL_NET_GDR_LEVEL took its place"),
    Rule("NCCL_IB_GDR_LEVEL", when.is_set, INFO, "renamed in 2.4: it is ignored",
         "delete it; NCCL_NET_GDR_LEVEL took its place"),
    *rules_of("NCCL_LL_THRESHOLD NCCL_TREE_THRESHOLD NCCL_SINGLE_RING_THRESHOLD", when.is_set, INFO,
          "removed by 2.5: it is ignored", "delete it"),
    *[Rule(old, when.is_set, INFO, "an old name of torch's", f"rename it to TORCH_{old}")
      for old in ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG")],
]  # fmt: skip

# Severity of a variable that differs between nodes; WARN for a variable that is not listed.
DIFFERENCE_SEVERITY: dict[str, FabricSeverity] = {
    **dict.fromkeys(
        ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME",
         "GLOO_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO"), FAIL),
    "NCCL_IB_HCA": FAIL_ON_RDMA,
    **dict.fromkeys(("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"), INFO),
}  # fmt: skip
# Not compared between nodes: these belong to one node or process.  The values in a
# NCCL_CONF_FILE are compared instead of its path.
LOCAL = ("NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_DEBUG_FILE", "NCCL_RAS_ADDR", "NCCL_PROXY_CPUSET",
       "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")  # fmt: skip
