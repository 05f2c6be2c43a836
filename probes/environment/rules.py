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
FIX_EXACT_NAMES = "name this node's devices exactly, such as `=mlx5_0,mlx5_1`"
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


def fail_where(place: when.Check, variables: str, number: int, why: str) -> list[Rule]:
    """Build the rows of a number that surely harms at a place, and may harm elsewhere."""
    is_set = when.is_number(number)
    return [
        *rules_of(variables, when.both_match(is_set, place), FAIL, why),
        *rules_of(variables, when.both_match(is_set, when.negate(place)), WARN, why),
    ]


RULES: list[Rule] = [
    # Networks and plugins.
    Rule("NCCL_IB_DISABLE", when.nonzero, FAIL_ON_RDMA,
         "NCCL's own RDMA is off, so data uses TCP (network plugins ignore this variable)"),
    Rule("NCCL_NET", when.is_one_of("socket"), FAIL_ON_RDMA, "all data uses TCP"),
    Rule("NCCL_NET", when.ib_without_device, FAIL,
         "it requires NCCL's own RDMA, but the node has no RDMA device: NCCL does not start"),
    Rule("NCCL_NET_PLUGIN", when.both_match(when.is_one_of("none"), when.needs_plugin), FAIL,
         "this node needs its network plugin for RDMA, and no plugin is loaded"),
    Rule("NCCL_NET_PLUGIN", when.both_match(when.is_one_of("none"), when.negate(when.needs_plugin)),
         WARN_ON_RDMA, "network plugins such as EFA, FasTrak and SHARP are not loaded"),
    Rule("NCCL_NET_PLUGIN", when.file_missing("NCCL_NET_PLUGIN"), FabricSeverity("fail", "warn"),
         "the plugin's file does not exist, so NCCL runs without it"),
    Rule("NCCL_IBEXT_DISABLE", when.nonzero, WARN_ON_RDMA, "HPC-X's RDMA plugin is off"),
    Rule("NCCL_COLLNET_ENABLE", when.nonzero, WARN,
         "without SHARP on the fabric and its plugin, communicators may fail to start",
         "unset it, unless the fabric runs SHARP"),
    Rule("NCCL_COMM_ID", when.is_set, FAIL, "every process uses this one communicator id"),
    Rule("NCCL_HOSTID", when.hostid_shared, FAIL,
         "NCCL treats several nodes as one host: it finds one GPU twice or a wrong topology",
         "unset it, or make it unique to each node"),
    *rules_of("NCCL_IGNORE_NET_MISMATCH NCCL_IGNORE_COLLNET_MISMATCH", when.nonzero, WARN,
          "nodes with different network devices start without an error",
          "unset it, or set it to 0 in acceptance runs", since=(2, 30)),

    # RDMA devices.
    Rule("NCCL_IB_HCA", when.device_missing, FAIL_ON_RDMA,
         "the node has no such RDMA device", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.device_ambiguous, WARN_ON_RDMA,
         "entries are prefixes, and these match as well", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.devices_by_prefix, INFO,
         "entries are prefixes without =, and may match a device added later", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.devices_excluded, WARN_ON_RDMA,
         "a list with ^ allows every device that it does not name", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.has_software_rdma, FAIL_ON_RDMA,
         "these devices do RDMA in software only", FIX_EXACT_NAMES),
    Rule("NCCL_IB_HCA", when.unused_devices, INFO, "these devices with an active port are unused",
         "leave out only devices for storage or management"),
    Rule("NCCL_IB_TIMEOUT", when.out_of_range(1, 31), FAIL_ON_RDMA,
         "0, or 32 and more, means no timeout, so a dead link becomes a hang",
         "unset it (default 20), or set it to 20 to 25"),
    Rule("NCCL_IB_RETRY_CNT", when.out_of_range(0, 7), WARN_ON_RDMA, "valid counts are 0 to 7",
         "unset it (default 7)"),
    Rule("NCCL_IB_GID_INDEX", when.at_least(0), WARN_ON_RDMA,
         "NCCL finds the GID by itself; an index from another cluster may be wrong here",
         "unset it, or choose the GID by NCCL_IB_ADDR_RANGE", since=(2, 21)),
    Rule("NCCL_NET_GDR_LEVEL", when.is_local_level, WARN_ON_RDMA, "GPUDirect RDMA is off"),
    Rule("NCCL_NET_GDR_LEVEL", when.is_numeric_level, WARN_ON_RDMA,
         "level numbers differ between NCCL versions", "unset it, or use a name such as PXB"),
    Rule("NCCL_NET_GDR_LEVEL", when.is_unknown_level, WARN_ON_RDMA,
         "NCCL does not know this level and ignores it; names must be in capitals"),
    *rules_of("NCCL_NET_GDR_READ NCCL_DMABUF_ENABLE", when.is_number(0), WARN_ON_RDMA,
          "one method of GPUDirect RDMA is off"),
    Rule("NCCL_CROSS_NIC", when.is_number(1), WARN_ON_RDMA,
         "rings cross rails: this is slow on rail-optimised fabrics and hangs on rail-only fabrics",
         "unset it (default 2), unless all NICs share one switch"),
    Rule("NCCL_PXN_DISABLE", when.nonzero, WARN_ON_RDMA, "data cannot reach its rail over NVLink"),
    Rule("NCCL_IB_PCI_RELAXED_ORDERING", when.is_number(1), INFO,
         "NCCL fails if relaxed ordering is not available", "unset it (default 2, automatic)"),
    *rules_of("NCCL_IB_TC NCCL_IB_SL NCCL_IB_QPS_PER_CONNECTION NCCL_IB_ADAPTIVE_ROUTING"
          " NCCL_IB_PCI_RELAXED_ORDERING", when.is_set, INFO,
          "the right value depends on the fabric", "compare it with the fabric operator's advice"),

    # Interfaces.
    Rule("NCCL_SOCKET_IFNAME", when.interface_missing, FAIL,
         "no interface of the node matches, so NCCL does not start", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.only_local_interfaces, FAIL,
         "these interfaces reach no other node", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.loopback_first, FAIL,
         "it allows the loopback, which the kernel lists first and NCCL therefore takes",
         FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.some_local_interfaces, WARN,
         "it allows interfaces that reach no other node", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.interface_ambiguous, WARN,
         "entries are prefixes, and these match as well", FIX_INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.fabric_not_admitted, FAIL,
         "it does not allow the agreed fabric", FIX_FABRIC),
    Rule("NCCL_SOCKET_IFNAME", when.interfaces_off_fabric, WARN,
         "it allows more than the agreed fabric", FIX_FABRIC),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_interface_missing, FAIL,
         "the node has no interface of this exact name", "write exact names, without ="),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_interface_local, FAIL,
         "these interfaces reach no other node", "name an interface that reaches all nodes"),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_off_fabric, INFO,
         "gloo does not use the agreed fabric", "keep it if gloo carries no gradients"),

    # Inside a node.
    *[Rule(variable, when.both_match(check, where), grade, why)
      for variable, check in (("NCCL_P2P_DISABLE", when.is_number(1)),
                              ("NCCL_P2P_LEVEL", when.is_local_level))
      for where, grade, why in (
          (when.can_have_nvlink, FAIL, "GPUs of a node do not use NVLink"),
          (when.negate(when.can_have_nvlink), WARN,
           "GPUs of a node exchange data through the host's memory: needed only where PCIe's access"
           " control (ACS) or the IOMMU prevents direct copies"))],
    Rule("NCCL_P2P_LEVEL", when.is_numeric_level, WARN,
         "level numbers differ between NCCL versions", "unset it, or use a name such as NVL"),
    Rule("NCCL_P2P_LEVEL", when.is_unknown_level, WARN,
         "NCCL does not know this level and ignores it; names must be in capitals"),
    Rule("NCCL_SHM_DISABLE", when.is_number(1), WARN, "traffic inside a node uses the network"),
    Rule("NCCL_NVLS_ENABLE", when.is_number(0), WARN,
         "NVLink SHARP is off, which lowers the bandwidth inside a node"),
    *fail_where(when.in_nvlink_domain,
                "NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_MNNVL_ENABLE", 0,
                "it switches off buffer registration or NVLink between nodes"),
    Rule("NCCL_TOPO_FILE", when.file_missing("NCCL_TOPO_FILE"), FAIL, "the file does not exist",
         "unset it, or name the vendor's file for this machine"),
    Rule("NCCL_TOPO_FILE", when.negate(when.file_missing("NCCL_TOPO_FILE")), INFO,
         "a topology file for another kind of machine would mislead NCCL",
         "make sure that it is the vendor's file for this machine"),
    Rule("NCCL_MULTI_RANK_GPU_ENABLE", when.nonzero, WARN,
         "two ranks on one GPU start without an error", since=(2, 30)),

    # Tuning.
    Rule("NCCL_PROTO", when.is_one_of("ll"), FAIL,
         "LL sends 4 bytes of flags with each 4 bytes of data: half of the bandwidth at most"),
    *fail_where(when.can_have_nvlink, "NCCL_MAX_NCHANNELS NCCL_MAX_NRINGS NCCL_MAX_CTAS", 1,
                "one channel cannot load several links of a GPU"),
    *rules_of("NCCL_ALGO NCCL_PROTO", when.negate(when.is_one_of("ll")), WARN,
          "it replaces NCCL's own choice by message size; since NCCL 2.24 a collective without this"
          " algorithm or protocol fails; LL128 corrupts data on hardware that does not support it"),
    *[rule for names, check in (
          ("NCCL_MAX_NCHANNELS NCCL_MAX_NRINGS NCCL_MAX_CTAS", when.negate(when.is_number(1))),
          ("NCCL_MIN_NCHANNELS NCCL_MIN_NRINGS NCCL_MIN_CTAS NCCL_BUFFSIZE NCCL_NTHREADS",
           when.is_set))
      for rule in rules_of(names, check, WARN,
                           "it overrides what this NCCL version would choose")],
    *rules_of("NCCL_CHECK_POINTERS NCCL_IGNORE_CPU_AFFINITY", when.nonzero, WARN,
          "it is meant for debugging"),
    Rule("CUDA_LAUNCH_BLOCKING", when.nonzero, FAIL,
         "each kernel ends before the next one starts, so data is not sent while a GPU computes"),
    *rules_of("TORCH_NCCL_ASYNC_ERROR_HANDLING NCCL_ASYNC_ERROR_HANDLING", when.is_number(0), FAIL,
          "no error and no timeout of NCCL ends a rank: if a node is lost, its job hangs"),
    Rule("NCCL_LAUNCH_MODE", when.is_one_of("group"), WARN, "it is deprecated since NCCL 2.9"),

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
         "the file does not exist, and NCCL reports no error (~ is not expanded)"),
    Rule("NCCL_CONF_FILE", when.nccl_older_than(2, 23), WARN,
         "this NCCL version ignores it and reads ~/.nccl.conf"),
    Rule("NCCL_ENV_PLUGIN", when.negate(when.is_one_of("none")), INFO,
         "a plugin may change any variable, and this check does not see it", since=(2, 28)),
    Rule("LD_PRELOAD", when.file_missing("LD_PRELOAD"), WARN, "the library does not exist"),
    *[Rule(variable, when.conflicting_libnccl(variable), WARN,
           "a process can load two versions of libnccl", "keep one libnccl (see /proc/PID/maps)",
           code="ENV-TWO-LIBS") for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH")],

    # Old names.
    Rule("NCCL_IB_CUDA_SUPPORT", when.is_set, INFO, "removed in NCCL 2.4, which ignores it",
         "delete it; NCCL_NET_GDR_LEVEL took its place"),
    Rule("NCCL_IB_GDR_LEVEL", when.is_set, INFO, "renamed in NCCL 2.4, which ignores it",
         "delete it; NCCL_NET_GDR_LEVEL took its place"),
    *rules_of("NCCL_LL_THRESHOLD NCCL_TREE_THRESHOLD NCCL_SINGLE_RING_THRESHOLD", when.is_set, INFO,
          "removed in NCCL 2.5 or earlier: it is ignored", "delete it"),
    *[Rule(old, when.is_set, INFO, "it is torch's old name", f"rename it to TORCH_{old}")
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
