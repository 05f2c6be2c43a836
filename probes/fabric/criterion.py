"""Declares FABRIC: its checks with their limits, its controls, and its probe."""

from __future__ import annotations

# fmt: off
# isort: off
from probes.check.declarations import (
    ALL_GPUS, LONGER_TIER, ON_GPU, ONE_NODE, OWN_HOSTS, RDMA_AGREED, SEVERAL_NODES, THREE_NODES,
    TRAFFIC, Check, ControlRow, CriterionRow, OnOneNode, Probe, When, default_check, fixed_check,
    none_of, wrong_data,
)
from probes.cluster.network_facts import interfaces_of

# All but the data, the settings and what is inside a node: not where one node was ordered.
BETWEEN = ~ONE_NODE
BETWEEN_HOSTS = BETWEEN & OWN_HOSTS
# InfiniBand without IPoIB, and EFA, have no IP packets whose size could be tested.
IP_FABRIC = BETWEEN & When(lambda here: here.ip_fabric)
RANKS_INSIDE = When(lambda here: here.ranks_inside)
SEVERAL_INTERFACES = When(
    lambda here: len(interfaces_of(here.terms.fabric)) > 1, frozenset({"fabric"})
)
SEVERAL_RAILS = BETWEEN & (RDMA_AGREED | (ON_GPU & SEVERAL_INTERFACES))

WRONG_ELEMENTS = wrong_data(
    "wrong_elements", "elements", "a wrong result is a failure, however fast it comes",
    failing="collectives return wrong data{on}: {value}",
)
UNREACHABLE_PAIRS = none_of(
    "unreachable_pairs", "pairs", "every node must reach every other node by TCP on the fabric",
    when=BETWEEN, failing="nodes cannot connect to each other on the fabric: {value}",
)
DUPLICATE_ADDRESSES = none_of(
    "duplicate_addresses", "addresses",
    "two machines with the same address receive each other's traffic",
    when=BETWEEN, failing="two machines have the same address: {value}",
)
PAIRS_BELOW_MTU = none_of(
    "pairs_below_mtu", "pairs", "packets as large as the MTU must pass between nodes; otherwise NCCL can hang",
    when=IP_FABRIC, failing="full-size packets do not pass between nodes: {value}",
)
MTU_MISMATCHES = none_of(
    "mtu_mismatches", "nodes",
    "all nodes of a fabric need the same MTU; otherwise large packets are dropped", when=IP_FABRIC,
    failing="nodes of one fabric have different MTUs: {value}",
)
HARMFUL_SETTINGS = none_of(
    "harmful_settings", "settings",
    "a wrong setting, for example NCCL_P2P_DISABLE=1 or NCCL_COMM_ID, breaks or slows every job",
    failing="a setting breaks or slows the fabric{on}: {value}",
)
BUSBW = Check(
    "busbw", "GB/s", better="higher", when=BETWEEN,
    without_limit="80 % of the line rate; UNPROVEN if the line rate is unknown",
)
LATENCY_AGAINST_EXPECTED = default_check(
    "latency_against_expected", "ratio",
    "the shortest all-reduce of a sound ring takes less than NCCL's model of its slowest protocol: 14 us a hop "
    "over RDMA, 5.7 us inside a node; over TCP 200 us are allowed", low=0.33, marginal_low=0.5, when=BETWEEN & ON_GPU,
    failing="the latency of all-reduce is too high{on}: it has {value} of the speed expected",
)
MEDIUM_AGAINST_EXPECTED = default_check(
    "medium_against_expected", "ratio",
    "messages of 1/64 and 1/256 of the largest size take the ring's latency and the bandwidth of large messages; "
    "NCCL changes its protocol between them, so half of that is enough", low=0.4, marginal_low=0.5,
    when=BETWEEN & ON_GPU, failing="all-reduce{on} has {value} of the speed expected from latency and large messages",
)
RANK_CV = default_check(
    "rank_cv", "ratio",
    "the ranks of one ring need about the same time for a call; in a published case, one wrong HCA made "
    "them differ by 29.8 %",
    high=0.1, marginal_high=0.05, when=BETWEEN,
    failing="ranks of one collective differ in speed by {value}",
)
ALL_GATHER_AGAINST_ALL_REDUCE = default_check(
    "all_gather_against_all_reduce", "ratio",
    "on a healthy fabric, the bus bandwidth of all-gather is close to that of all-reduce", low=0.6,
    marginal_low=0.75, when=BETWEEN, failing="all-gather reaches only {value} of the busbw expected from the all-reduce",
)
REDUCE_SCATTER_AGAINST_ALL_REDUCE = default_check(
    "reduce_scatter_against_all_reduce", "ratio",
    "on a healthy fabric, the bus bandwidth of reduce-scatter is close to that of all-reduce; with gloo, it is close to half of that", low=0.6,
    marginal_low=0.75, when=BETWEEN, failing="reduce-scatter reaches only {value} of the busbw expected from the all-reduce",
)
ALLTOALL_AGAINST_ALL_REDUCE = default_check(
    "alltoall_against_all_reduce", "ratio",
    "healthy clusters of 2 to 32 nodes reached 72 to 109 % of what the all-reduce lets expect (AWS p5); "
    "two broken fabrics reached 44 and 46 %", low=0.55, marginal_low=0.65, when=BETWEEN & LONGER_TIER,
    no_control="`slow collective` slows all-gather and reduce-scatter alone; no fault of all-to-all is planted",
    failing="all-to-all reaches only {value} of the busbw expected from the all-reduce",
)
ALL_GATHER_BUSBW = Check(
    "all_gather_busbw", "GB/s", better="higher", when=BETWEEN, only_agreed=True,
    no_control="it is agreed for the largest size, and `slow collective` slows a small one, which would break it anyway",
    failing="all-gather runs at {value}",
)
REDUCE_SCATTER_BUSBW = Check(
    "reduce_scatter_busbw", "GB/s", better="higher", when=BETWEEN, only_agreed=True,
    no_control="it is agreed for the largest size, and `slow collective` slows a small one, which would break it anyway",
    failing="reduce-scatter runs at {value}",
)
ALLTOALL_BUSBW = Check(
    "alltoall_busbw", "GB/s", better="higher", when=BETWEEN & LONGER_TIER, only_agreed=True,
    without_limit="over RDMA 75 % of what the limit of `busbw` lets expect for the number of nodes; else only noted",
    no_control="`slow collective` slows all-gather and reduce-scatter alone; no fault of all-to-all is planted",
    failing="all-to-all runs at {value}",
)
ALL_REDUCE_INSIDE_NODE = Check(
    "all_reduce_inside_node", "GB/s", better="higher", when=RANKS_INSIDE | ONE_NODE,
    only_agreed=True, demanded=ONE_NODE, depends=("gpu_model",),
    without_limit="only noted; UNPROVEN if one node was ordered",
    failing="all-reduce inside a node runs at {value}{on}",
)
NVLINK_BUSBW = Check(
    "nvlink_busbw", "GB/s", better="higher", when=BETWEEN & ON_GPU, only_agreed=True,
    no_control="a planted fault would need one more sweep of each NVLink domain",
    failing="all-reduce runs at {value} over {subject}",
)
ALL_REDUCE_INSIDE_NODE_AGAINST_OTHERS = default_check(
    "all_reduce_inside_node_against_others", "ratio",
    "nodes of one model have the same links between their GPUs, so their speeds are similar",
    low=0.75, marginal_low=0.85, when=RANKS_INSIDE & SEVERAL_NODES, depends=("gpu_model",),
    failing="all-reduce inside {subject} has {value} of a typical node's speed",
)
NETWORK = Check(
    "network", "", better="word", when=BETWEEN, depends=("management", "management_gbps",),
    without_limit="`fabric` of [cluster]; without any contract: the fabric that every node has; "
    "UNPROVEN if that is unknown",
    failing="gradients use the network {value}{on}",
)
AGREEING_SOURCES = fixed_check(
    "agreeing_sources", "sources", "byte counters and NCCL's log (or gloo's sockets) must name the same network", low=2,
    high=2, when=BETWEEN, doubted=True, depends=("management", "management_gbps",),
)
FABRIC_SHARE = fixed_check(
    "fabric_share", "ratio",
    "in a ring all-reduce of S bytes over n ranks, each node sends 2(n-1)/n x S bytes over the fabric; "
    "headers add 5 % at MTU 1500", low=0.97, high=1.12, when=BETWEEN, depends=("management", "management_gbps",),
    failing="{value} of the gradient bytes use the fabric{on}",
)
SHARE_ON_OTHER_NETWORKS = fixed_check(
    "share_on_other_networks", "ratio",
    "gradients must use the agreed fabric, not another interface", high=0.1, when=BETWEEN,
    depends=("management", "management_gbps",),
    failing="{value} of the gradient bytes use another network{on}",
)
LINKS_ON_OTHER_NETWORKS = none_of(
    "links_on_other_networks", "links",
    "a pair of nodes that uses another network is slow and loads that network", when=BETWEEN_HOSTS,
    failing="pairs of nodes use another network: {value}",
)
LOST_PACKETS = default_check(
    "lost_packets", "ratio",
    "healthy data centre networks lose 0.001 to 0.01 % of packets; more than 0.1 % is an "
    "incident (Guo et al., Pingmesh, SIGCOMM 2015)", high=0.001, marginal_high=0.0005,
    may_lack_counter=True, when=BETWEEN_HOSTS, failing="{value} of the packets are lost{on}",
)
LINK_CHANGES = none_of(
    "link_changes", "changes", "a healthy link stays up", may_lack_counter=True, when=BETWEEN_HOSTS,
    failing="a link went down and up{on}: {value}",
)
INTERFACE_ERRORS = default_check(
    "interface_errors", "ratio",
    "IEEE 802.3 and InfiniBand allow a cable 1 wrong bit in 1e12: about 1 in 10 million "
    "packets", high=0.0001, marginal_high=1e-05, when=BETWEEN_HOSTS,
    failing="{value} of the packets have errors{on}",
)
LONGEST_STALL = default_check(
    "longest_stall", "s",
    "a stall is the part of a call's time above twice the median; TCP waits 0.2 s before it resends a "
    "lost packet, then 0.4 s; RDMA waits about 0.5 s", high=0.5, marginal_high=0.3, when=BETWEEN_HOSTS,
    failing="a collective stalled for {value}{on}",
)
# Between nodes only where RDMA is agreed: speed alone does not show which path the bytes took.
LOG_ERRORS = none_of(
    "log_errors", "findings",
    "if RDMA is agreed, NCCL must log no RDMA error, and no copy through host memory",
    when=(BETWEEN & RDMA_AGREED) | (ONE_NODE & ON_GPU),
    no_control="one node has no other network that the self-test could force",
    failing="NCCL's log shows RDMA faults{on}: {value}",
)
RAILS = Check(
    "rails", "rails", from_run="[cluster] rails, or the rails of the best node", when=SEVERAL_RAILS,
    depends=("rails", "line_rate_gbps", "gpu_model",),
    failing="active rails at full speed{on}: {value}",
)
SLOWEST_RAIL = default_check(
    "slowest_rail", "ratio",
    "NCCL spreads its rings evenly over the rails of a node; 100 % is an equal share", low=0.7,
    marginal_low=0.85, when=SEVERAL_RAILS, depends=("rails", "gpu_model",),
    failing="a rail carries only {value} of an equal share{on}",
)
SLOW_GROUPS = none_of(
    "slow_groups", "groups",
    "some nodes are slow only when many nodes work at once; they delay every large job",
    not_owed="only the search in groups of nodes measures it: on large clusters, or after a slow all-reduce",
    no_control="no run must measure it, and a planted fault would need a second search of all groups",
    failing="nodes are slow when many nodes work at once: {value}",
)
# Two nodes are one pair, with no other to compare; raylets of one host have no link.
SLOWEST_PAIR = default_check(
    "slowest_pair", "ratio",
    "healthy links of one fabric differ only by noise: the best of several tries reaches over 90 % of the typical speed",
    low=0.75, marginal_low=0.85, when=THREE_NODES & OWN_HOSTS,
    failing="the slowest link has {value} of a typical link's speed{on}",
)

LINK_MEASURES = (
    LINKS_ON_OTHER_NETWORKS, LOST_PACKETS, LINK_CHANGES, INTERFACE_ERRORS, LONGEST_STALL,
)

WRONG_ELEMENT = ControlRow("wrong element", WRONG_ELEMENTS)
CLOSED_DOOR = ControlRow("closed door", UNREACHABLE_PAIRS)
LARGE_PACKETS = ControlRow("large packets", PAIRS_BELOW_MTU)
DOCTORED_PORT = ControlRow("doctored port", MTU_MISMATCHES, DUPLICATE_ADDRESSES)
LATE_CALL = ControlRow("late call", LONGEST_STALL)
BAD_SENDER = ControlRow("bad sender", SLOWEST_PAIR, LOST_PACKETS)
SLOW_INSIDE = ControlRow(
    "slow inside", ALL_REDUCE_INSIDE_NODE_AGAINST_OTHERS, ALL_REDUCE_INSIDE_NODE,
    when=RANKS_INSIDE & SEVERAL_NODES,
)
SLOW_NODE = ControlRow("slow inside the only node", ALL_REDUCE_INSIDE_NODE, when=ONE_NODE)
SLOW_COLLECTIVE = ControlRow(
    "slow collective", ALL_GATHER_AGAINST_ALL_REDUCE, REDUCE_SCATTER_AGAINST_ALL_REDUCE, RANK_CV,
)
LATE_RING = ControlRow("late ring", LATENCY_AGAINST_EXPECTED, MEDIUM_AGAINST_EXPECTED)
DOCTORED_COUNTERS = ControlRow("doctored counters", LINK_CHANGES, INTERFACE_ERRORS)
WRONG_NETWORK = ControlRow(
    "wrong network", BUSBW, NETWORK, FABRIC_SHARE, SHARE_ON_OTHER_NETWORKS, LINKS_ON_OTHER_NETWORKS,
    LOG_ERRORS, when=BETWEEN,
)
DOCTORED_RAILS = ControlRow("doctored rails", RAILS, SLOWEST_RAIL)
OTHER_REPORT = ControlRow("other report", AGREEING_SOURCES)
HARMFUL_VARIABLE = ControlRow("harmful variable", HARMFUL_SETTINGS)

PROBES = (
    Probe(
        "test_fabric.py::test_allreduce_takes_the_fabric_at_line_rate",
        tier="quick", usual_s=26,
        checks=(WRONG_ELEMENTS, UNREACHABLE_PAIRS, MTU_MISMATCHES, PAIRS_BELOW_MTU,
        DUPLICATE_ADDRESSES, BUSBW, LATENCY_AGAINST_EXPECTED, MEDIUM_AGAINST_EXPECTED, NETWORK, AGREEING_SOURCES, FABRIC_SHARE,
        SHARE_ON_OTHER_NETWORKS, ALL_GATHER_AGAINST_ALL_REDUCE, REDUCE_SCATTER_AGAINST_ALL_REDUCE,
        ALLTOALL_AGAINST_ALL_REDUCE, ALL_GATHER_BUSBW, REDUCE_SCATTER_BUSBW, ALLTOALL_BUSBW,
        RANK_CV, NVLINK_BUSBW, ALL_REDUCE_INSIDE_NODE, ALL_REDUCE_INSIDE_NODE_AGAINST_OTHERS,
        SLOWEST_PAIR, RAILS, SLOWEST_RAIL, LOG_ERRORS, HARMFUL_SETTINGS, *LINK_MEASURES),
        controls=(WRONG_ELEMENT, SLOW_COLLECTIVE, LATE_RING, CLOSED_DOOR, LARGE_PACKETS, DOCTORED_PORT,
        LATE_CALL, BAD_SENDER, SLOW_INSIDE, SLOW_NODE, DOCTORED_COUNTERS, DOCTORED_RAILS, WRONG_NETWORK, OTHER_REPORT,
        HARMFUL_VARIABLE),
        disturbs=(ALL_GPUS, TRAFFIC, "sends all-reduces over the management network for some seconds; Ray may use that network too", "opens some TCP and UDP ports on each node while it runs"),
    ),
)

CRITERION = CriterionRow(
    title="RDMA is in use",
    how="all-reduce bus bandwidth of 80 % of line rate or more, or as agreed; two independent "
    "checks show which network carried the data", where="one rank for each GPU, on all nodes",
    needs=(
        "2 nodes (3 to compare links), or one node of several GPUs if one was ordered",
        "permission for workers to open RDMA devices and lock memory, if RDMA is agreed",
    ),
    headlines={BUSBW: "all-reduce runs at {value}"}, proven=" over RDMA",
    usual_s={"quick": 26, "standard": 26}, depends=("fabric",), least_nodes=2,
    on_one_node=OnOneNode(
        untested="the network between nodes", title="the links inside the node are as fast as agreed",
        proven="",
        headlines={ALL_REDUCE_INSIDE_NODE: "all-reduce inside the node runs at {value}"},
        failing={LOG_ERRORS: "NCCL's log shows faults{on}: {value}"},
    ),
)
