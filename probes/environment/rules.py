"""What is wrong to tell NCCL: the table of the environment lint, as data.

One row per variable and fault: the check, how grave it is on which fabric, why, what to do.  The
sources are NCCL's user guide (env.rst), whose section "Debugging" is not meant for production,
its source where env.rst is silent, and torch's ProcessGroupNCCL.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.environment import checks as when
from probes.environment.checks import Check


@dataclass(frozen=True)
class Grade:
    """How grave a fault is: "fail", "warn" or "info", where RDMA is agreed and elsewhere."""

    rdma: str
    sockets: str

    def on(self, fabric: str | None) -> str:
        """The grade on a fabric; where none is agreed and the two differ, "warn"."""
        if fabric is None and self.rdma != self.sockets:
            return "warn"
        return self.rdma if fabric == "rdma" else self.sockets


FAIL = Grade("fail", "fail")
WARN = Grade("warn", "warn")
INFO = Grade("info", "info")
FAIL_ON_RDMA = Grade("fail", "info")
WARN_ON_RDMA = Grade("warn", "info")

UNSET = "unset it"
EXACT = "name the devices exactly: =mlx5_0,mlx5_1"
INTERFACE = "name the interface exactly, such as =eth0, on every node"


@dataclass(frozen=True)
class Rule:
    """One row: `wrong` looks at the value on a node; `since` is the first NCCL it holds for."""

    variable: str
    wrong: Check
    grade: Grade
    why: str
    fix: str = UNSET
    since: tuple[int, int] = (0, 0)
    code: str = ""  # "" for the one of the grade


def each(
    variables: str, wrong: Check, grade: Grade, why: str, fix: str = UNSET,
    since: tuple[int, int] = (0, 0),
) -> list[Rule]:  # fmt: skip
    """The same row for several variables, separated by blanks."""
    return [Rule(variable, wrong, grade, why, fix, since) for variable in variables.split()]


NETWORK = [
    Rule("NCCL_IB_DISABLE", when.nonzero, FAIL_ON_RDMA,
         "NCCL's own RDMA transport is off, so bytes take TCP; plugins ignore it"),
    Rule("NCCL_NET", when.word("socket"), FAIL_ON_RDMA, "every byte takes TCP"),
    Rule("NCCL_NET", when.internal_without_device, FAIL,
         "NCCL's own RDMA is demanded and the node has no RDMA device: no communicator is made"),
    Rule("NCCL_NET_PLUGIN", when.both(when.word("none"), when.needs_plugin), FAIL,
         "RDMA works on this node by its network plugin only"),
    Rule("NCCL_NET_PLUGIN", when.both(when.word("none"), when.neither(when.needs_plugin)),
         WARN_ON_RDMA, "network plugins such as EFA, FasTrak and SHARP are not loaded"),
    Rule("NCCL_NET_PLUGIN", when.file_missing("NCCL_NET_PLUGIN"), Grade("fail", "warn"),
         "the plugin's file does not exist, and NCCL goes on without it"),
    Rule("NCCL_IBEXT_DISABLE", when.nonzero, WARN_ON_RDMA, "HPC-X's RDMA plugin is off"),
    Rule("NCCL_COLLNET_ENABLE", when.nonzero, WARN,
         "without SHARP on the fabric and its plugin, communicators may fail to start",
         "unset it, unless the fabric runs SHARP"),
    Rule("NCCL_COMM_ID", when.anything, FAIL, "every process joins this one communicator id"),
    Rule("NCCL_HOSTID", when.hostid_shared, FAIL,
         "NCCL takes nodes for one host: it finds one GPU twice or a wrong topology",
         "unset it, or make it unique to each node"),
    *each("NCCL_IGNORE_NET_MISMATCH NCCL_IGNORE_COLLNET_MISMATCH", when.nonzero, WARN,
          "nodes with unlike network devices start without a word",
          "unset it; 0 in acceptance runs", since=(2, 30)),
]  # fmt: skip

RDMA = [
    Rule("NCCL_IB_HCA", when.device_missing, FAIL_ON_RDMA,
         "the node has no such RDMA device", EXACT),
    Rule("NCCL_IB_HCA", when.device_ambiguous, WARN_ON_RDMA,
         "entries are prefixes, and these match as well", EXACT),
    Rule("NCCL_IB_HCA", when.devices_by_prefix, INFO,
         "entries are prefixes without =, and may match a device added later", EXACT),
    Rule("NCCL_IB_HCA", when.devices_excluded, WARN_ON_RDMA,
         "a list of exclusion admits whatever is not thought of", EXACT),
    Rule("NCCL_IB_HCA", when.device_in_software, FAIL_ON_RDMA,
         "these devices are RDMA in software only", EXACT),
    Rule("NCCL_IB_HCA", when.devices_left_out, INFO, "these devices with an active port are unused",
         "leave out only what serves storage or management"),
    Rule("NCCL_IB_TIMEOUT", when.outside(1, 31), FAIL_ON_RDMA,
         "the timeout is infinite (0 and 32 or more), so that a dead link becomes a hang",
         "unset it (default 20), or 20 to 25"),
    Rule("NCCL_IB_RETRY_CNT", when.outside(0, 7), WARN_ON_RDMA, "valid counts are 0 to 7",
         "unset it (default 7)"),
    Rule("NCCL_IB_GID_INDEX", when.at_least(0), WARN_ON_RDMA,
         "NCCL finds the GID by itself; an index that was right elsewhere breaks this fabric",
         "unset it; steer by NCCL_IB_ADDR_RANGE", since=(2, 21)),
    Rule("NCCL_NET_GDR_LEVEL", when.level_local, WARN_ON_RDMA, "GPUDirect RDMA is off"),
    Rule("NCCL_NET_GDR_LEVEL", when.level_numbered, WARN_ON_RDMA,
         "numbers of levels have changed between versions", "unset it, or use a name such as PXB"),
    Rule("NCCL_NET_GDR_LEVEL", when.level_unknown, WARN_ON_RDMA,
         "it is no level that NCCL knows and is ignored; names count in capitals only"),
    *each("NCCL_NET_GDR_READ NCCL_DMABUF_ENABLE", when.equals(0), WARN_ON_RDMA,
          "a way of GPUDirect RDMA is off"),
    Rule("NCCL_CROSS_NIC", when.equals(1), WARN_ON_RDMA,
         "rings cross rails: slow on a rail-optimised fabric, a hang on a rail-only one",
         "unset it (default 2), unless all NICs share one switch"),
    Rule("NCCL_PXN_DISABLE", when.nonzero, WARN_ON_RDMA, "bytes cannot reach their rail by NVLink"),
    Rule("NCCL_IB_PCI_RELAXED_ORDERING", when.equals(1), INFO,
         "NCCL fails where relaxed ordering is not available", "unset it (default 2, automatic)"),
    *each("NCCL_IB_TC NCCL_IB_SL NCCL_IB_QPS_PER_CONNECTION NCCL_IB_ADAPTIVE_ROUTING"
          " NCCL_IB_PCI_RELAXED_ORDERING", when.anything, INFO,
          "it fits one fabric only", "compare it with what the fabric's operator says"),
]  # fmt: skip

INTERFACES = [
    Rule("NCCL_SOCKET_IFNAME", when.interface_missing, FAIL,
         "no interface of the node matches, so NCCL does not start", INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.only_local, FAIL,
         "these reach no other node", INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.also_local, WARN,
         "it admits interfaces that reach no other node", INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.interface_ambiguous, WARN,
         "entries are prefixes, and these match as well", INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.fabric_refused, FAIL,
         "it does not admit the agreed fabric", INTERFACE),
    Rule("NCCL_SOCKET_IFNAME", when.beside_fabric, WARN,
         "beside the agreed fabric it admits", INTERFACE),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_missing, FAIL,
         "gloo takes exact names, and the node has no such interface", "name an interface"),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_local, FAIL,
         "these reach no other node", "name an interface"),
    Rule("GLOO_SOCKET_IFNAME", when.gloo_off_fabric, INFO,
         "gloo does not use the agreed fabric", "right where gloo carries no gradients"),
]  # fmt: skip

INSIDE_A_NODE = [
    Rule("NCCL_P2P_DISABLE", when.equals(1), FAIL, "GPUs of a node do not use NVLink"),
    Rule("NCCL_P2P_LEVEL", when.level_local, FAIL, "GPUs of a node do not use NVLink"),
    Rule("NCCL_P2P_LEVEL", when.level_numbered, WARN,
         "numbers of levels have changed between versions", "unset it, or use a name such as NVL"),
    Rule("NCCL_P2P_LEVEL", when.level_unknown, WARN,
         "it is no level that NCCL knows and is ignored; names count in capitals only"),
    Rule("NCCL_SHM_DISABLE", when.equals(1), WARN, "traffic inside a node takes the network"),
    Rule("NCCL_NVLS_ENABLE", when.equals(0), WARN,
         "NVLink SHARP is off, which lowers the bandwidth inside a node"),
    *[rule for grade, where in ((FAIL, when.nvlink_over_nodes),
                                (WARN, when.neither(when.nvlink_over_nodes)))
      for rule in each("NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_MNNVL_ENABLE",
                       when.both(when.equals(0), where), grade,
                       "it switches off buffer registration or NVLink between nodes")],
    Rule("NCCL_TOPO_FILE", when.file_missing("NCCL_TOPO_FILE"), FAIL, "the file does not exist",
         "unset it, or name the vendor's file for this machine"),
    Rule("NCCL_TOPO_FILE", when.neither(when.file_missing("NCCL_TOPO_FILE")), INFO,
         "a topology of another kind of machine would mislead NCCL",
         "make sure that it is the vendor's file for this machine"),
    Rule("NCCL_MULTI_RANK_GPU_ENABLE", when.nonzero, WARN,
         "two ranks on one GPU start without a word", since=(2, 30)),
]  # fmt: skip

TUNING = [
    *each("NCCL_ALGO NCCL_PROTO", when.anything, WARN,
          "it pins what NCCL chooses by size; since 2.24 a collective without the pinned choice"
          " fails, and LL128 forced where it is not supported corrupts data"),
    *each("NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_NRINGS NCCL_MAX_NRINGS NCCL_MIN_CTAS"
          " NCCL_MAX_CTAS NCCL_BUFFSIZE NCCL_NTHREADS", when.anything, WARN,
          "old tuning overrides what this version would choose"),
    *each("NCCL_CHECK_POINTERS NCCL_IGNORE_CPU_AFFINITY", when.nonzero, WARN,
          "it is meant for debugging"),
    Rule("NCCL_LAUNCH_MODE", when.word("group"), WARN, "it is deprecated since 2.9"),
]  # fmt: skip

LOGS = [
    Rule("NCCL_DEBUG", when.word("info"), INFO, "logs grow with every communicator", "use WARN"),
    Rule("NCCL_DEBUG", when.word("trace"), WARN, "every call is logged", "use WARN"),
    Rule("NCCL_DEBUG_SUBSYS", when.subsystem_all, INFO, "every subsystem logs"),
    Rule("NCCL_DEBUG_FILE", when.file_not_unique, WARN,
         "processes write over each other's file", "put both %h and %p into its name"),
    Rule("NCCL_RAS_ENABLE", when.equals(0), INFO, "a hang cannot be asked about",
         "unset it, unless this NCCL crashes with it", since=(2, 24)),
]  # fmt: skip

FILES = [
    Rule("NCCL_CONF_FILE", when.file_missing("NCCL_CONF_FILE"), WARN,
         "the file does not exist, and NCCL says nothing (a ~ is not expanded)"),
    Rule("NCCL_CONF_FILE", when.old_nccl(2, 23), WARN,
         "this NCCL does not know it and reads ~/.nccl.conf"),
    Rule("NCCL_ENV_PLUGIN", when.neither(when.word("none")), INFO,
         "a plugin may change any variable, which is not seen here", since=(2, 28)),
    Rule("LD_PRELOAD", when.file_missing("LD_PRELOAD"), WARN, "the library does not exist"),
    *[Rule(variable, when.another_libnccl(variable), WARN,
           "two versions of libnccl are in reach", "keep one libnccl; see /proc/PID/maps of a rank",
           code="ENV-TWO-LIBS") for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH")],
]  # fmt: skip

OLD_NAMES = [
    Rule("NCCL_IB_CUDA_SUPPORT", when.anything, INFO, "removed in 2.4: it is ignored",
         "delete it; NCCL_NET_GDR_LEVEL took its place"),
    Rule("NCCL_IB_GDR_LEVEL", when.anything, INFO, "renamed in 2.4: it is ignored",
         "delete it; NCCL_NET_GDR_LEVEL took its place"),
    *each("NCCL_LL_THRESHOLD NCCL_TREE_THRESHOLD NCCL_SINGLE_RING_THRESHOLD", when.anything, INFO,
          "removed by 2.5: it is ignored", "delete it"),
    *[Rule(old, when.anything, INFO, "an old name of torch's", f"rename it to TORCH_{old}")
      for old in ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG")],
]  # fmt: skip

RULES: list[Rule] = [
    *NETWORK,
    *RDMA,
    *INTERFACES,
    *INSIDE_A_NODE,
    *TUNING,
    *LOGS,
    *FILES,
    *OLD_NAMES,
]

# How grave it is when a variable is not the same on every node; WARN for what is not named.
DIFFERING: dict[str, Grade] = {
    **dict.fromkeys(
        ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME",
         "GLOO_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO"), FAIL),
    "NCCL_IB_HCA": FAIL_ON_RDMA,
    **dict.fromkeys(("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"), INFO),
}  # fmt: skip
# What belongs to one node or process, and what the files it names are compared for.
OWN = ("NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_DEBUG_FILE", "NCCL_RAS_ADDR", "NCCL_PROXY_CPUSET",
       "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")  # fmt: skip
