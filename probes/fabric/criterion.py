"""Defines FABRIC: its measures with their limits, its probes, and its controls."""

from __future__ import annotations

from probes.check.criterion import (
    Condition,
    CriterionRow,
    Duty,
    Measure,
    default_measure,
    doubted,
    fixed_measure,
    none_of,
    wrong_data,
)
from probes.cluster.network_facts import RDMA, interfaces_of

LINK_MEASURES = (
    "links_on_other_networks",
    *("lost_packets", "link_changes", "interface_errors", "longest_stall"),
)

MEASURES = {
    "wrong_elements": wrong_data("elements", "a wrong result is a failure, however fast it comes"),
    "unreachable_pairs": none_of("pairs", "every rank must reach every other rank"),
    "duplicate_addresses": none_of(
        "addresses", "two machines with the same address receive each other's traffic"
    ),
    "pairs_below_mtu": none_of(
        "pairs", "full-size packets must pass; if they are dropped, init hangs"
    ),
    "mtu_mismatches": none_of(
        "nodes", "all nodes of a fabric need the same MTU; otherwise large packets are dropped"
    ),
    "harmful_settings": none_of(
        "settings", "a setting that breaks or slows the fabric does so for every job"
    ),
    "busbw": Measure("GB/s", better="higher"),
    "rank_cv": default_measure(
        "ratio",
        "ranks of one ring end each call together; a published 29.8 % was one wrong choice of HCA",
        high=0.10,
        marginal_high=0.05,
    ),
    **{
        f"{name}_against_all_reduce": default_measure(
            "ratio",
            "a ring moves half the bytes of an all-reduce in it, so the same busbw is expected",
            low=0.6,
            marginal_low=0.75,
        )
        for name in ("all_gather", "reduce_scatter")
    },
    "alltoall_against_all_reduce": default_measure(
        "ratio",
        "each pair of ranks sends at once, and switches mix all flows: large clusters reach about half of an even part of the all-reduce's rate",
        low=0.35,
        marginal_low=0.5,
    ),
    **{
        f"{name}_busbw": Measure("GB/s", better="higher")
        for name in ("all_gather", "reduce_scatter", "alltoall")
    },
    "all_reduce_inside_node": Measure("GB/s", better="higher"),
    "nvlink_busbw": Measure("GB/s", better="higher"),
    "all_reduce_inside_node_against_others": default_measure(
        "ratio",
        "nodes of one model have the same links between their GPUs: each is near the typical node",
        low=0.75,
        marginal_low=0.85,
    ),
    "network": Measure("", better="word"),
    "agreeing_sources": doubted(
        fixed_measure(
            "sources", "byte counters and the library's own report must agree", low=2, high=2
        )
    ),
    "fabric_share": fixed_measure(
        "ratio",
        "a ring all-reduce moves 2(n-1)/n x S bytes per node; headers add 5 % at MTU 1500",
        low=0.97,
        high=1.12,
    ),
    "share_on_other_networks": fixed_measure(
        "ratio", "gradient bytes on any other interface used the wrong network", high=0.1
    ),
    "links_on_other_networks": none_of(
        "links", "a pair of nodes that uses another network is slow and loads that network"
    ),
    "lost_packets": default_measure(
        "ratio",
        "healthy data centre networks lose 0.001 to 0.01 % of packets; more than 0.1 % is an incident (Guo et al., Pingmesh, SIGCOMM 2015)",
        high=1e-3,
        marginal_high=5e-4,
    ),
    "link_changes": none_of("changes", "a healthy link stays up"),
    "interface_errors": default_measure(
        "ratio",
        "cables are specified for 1 wrong bit in 1e12 (IEEE 802.3, InfiniBand), which is 1e-7 of packets",
        high=1e-4,
        marginal_high=1e-5,
    ),
    "longest_stall": default_measure(
        "s",
        "time above twice the median call of that size; TCP waits 0.2 s (then doubles), RDMA about 0.5 s, before it sends a lost packet again",
        high=0.5,
        marginal_high=0.3,
    ),
    # Only where RDMA is agreed: speed alone does not show which path the bytes took.
    "log_errors": none_of(
        "findings", "RDMA with errors, or staged through host memory, is not what was agreed"
    ),
    "rails": Measure("rails", from_run="[cluster] rails, or the best node's"),
    "slowest_rail": default_measure(
        "ratio",
        "NCCL spreads its rings evenly over the rails of a node; 1 is an equal share",
        low=0.7,
        marginal_low=0.85,
    ),
    "slow_groups": none_of(
        "groups", "some nodes are slow only when many work at once; they delay every large job"
    ),
    "slowest_pair": default_measure(
        "ratio",
        "healthy links of one fabric differ only by noise: the best of several tries is above 0.9",
        low=0.75,
        marginal_low=0.85,
    ),
}

CONTROLS = {
    "wrong element": ("wrong_elements",),
    "closed door": ("unreachable_pairs",),
    "large packets": ("pairs_below_mtu",),
    "doctored port": ("mtu_mismatches", "duplicate_addresses"),
    "late call": ("longest_stall",),
    "bad sender": ("slowest_pair", "lost_packets"),
    "slow inside": ("all_reduce_inside_node_against_others",),
    "slow collective": (
        *("all_gather_against_all_reduce", "reduce_scatter_against_all_reduce"),
        "rank_cv",
    ),
    "doctored counters": ("link_changes", "interface_errors"),
    "wrong network": (
        *("busbw", "network", "fabric_share", "share_on_other_networks", "links_on_other_networks"),
        "log_errors",
    ),
    "other report": ("agreeing_sources",),
    "harmful variable": ("harmful_settings",),
}
NO_CONTROL = {
    "rails": "no rail can be taken from a node that others use",
    "slowest_rail": "no rail can be taken from a node that others use",
    "slow_groups": "no uplink can be slowed that others use",
    "alltoall_against_all_reduce": "the control of a slow collective is judged alike",
    **dict.fromkeys(
        ("all_gather_busbw", "reduce_scatter_busbw", "alltoall_busbw"),
        "the control of a slow collective slows the same figure",
    ),
    "nvlink_busbw": "NVLink between nodes cannot be slowed, and its bytes have no second witness",
    "all_reduce_inside_node": "the control of a node that is slow inside slows the same figure",
}
CONDITIONS: dict[str, Condition] = {
    # InfiniBand without IPoIB, and EFA, have no IP packets whose size could be tested.
    **dict.fromkeys(
        ("mtu_mismatches", "pairs_below_mtu", "large packets"), lambda here: here.ip_fabric
    ),
    "log_errors": lambda here: here.terms.fabric == RDMA,
    **dict.fromkeys(
        ("rails", "slowest_rail"),
        lambda here: (
            here.terms.fabric == RDMA or (here.on_gpu and len(interfaces_of(here.terms.fabric)) > 1)
        ),
    ),
    **dict.fromkeys(
        ("all_reduce_inside_node_against_others", "slow inside"),
        lambda here: here.ranks_inside and here.nodes > 1,
    ),
    "alltoall_against_all_reduce": lambda here: here.tier != "quick",
    "all_gather_busbw": lambda here: "FABRIC.all_gather_busbw" in here.agreed,
    "reduce_scatter_busbw": lambda here: "FABRIC.reduce_scatter_busbw" in here.agreed,
    "alltoall_busbw": lambda here: here.tier != "quick" and "FABRIC.alltoall_busbw" in here.agreed,
    "nvlink_busbw": lambda here: here.on_gpu and "FABRIC.nvlink_busbw" in here.agreed,
    "all_reduce_inside_node": lambda here: (
        here.ranks_inside and "FABRIC.all_reduce_inside_node" in here.agreed
    ),
    # Two nodes are one pair, with no other to compare; raylets of one host have no link.
    "slowest_pair": lambda here: here.nodes > 2 and not here.one_host,
    **dict.fromkeys(
        (*LINK_MEASURES, "late call", "bad sender", "doctored counters"),
        lambda here: not here.one_host,
    ),
}
DUTIES = (
    Duty(
        "fabric/test_fabric.py::test_allreduce_takes_the_fabric_at_line_rate",
        "quick",
        (
            *("wrong_elements", "unreachable_pairs", "mtu_mismatches", "pairs_below_mtu"),
            "duplicate_addresses",
            *("busbw", "network", "agreeing_sources", "fabric_share", "share_on_other_networks"),
            *(
                "all_gather_against_all_reduce",
                "reduce_scatter_against_all_reduce",
                "alltoall_against_all_reduce",
            ),
            *("all_gather_busbw", "reduce_scatter_busbw", "alltoall_busbw"),
            *(
                "rank_cv",
                "nvlink_busbw",
                "all_reduce_inside_node",
                "all_reduce_inside_node_against_others",
            ),
            *("slowest_pair", "rails", "slowest_rail", "log_errors", "harmful_settings"),
            *LINK_MEASURES,
        ),
        (
            *(
                "wrong element",
                "slow collective",
                "closed door",
                "large packets",
                "doctored port",
                "late call",
            ),
            *("bad sender", "slow inside", "doctored counters", "wrong network", "other report"),
            "harmful variable",
        ),
    ),
)

FABRIC = CriterionRow(
    title="RDMA is in use",
    how=(
        "all-reduce bus bandwidth at line rate; two independent checks show which network "
        "carried the data"
    ),
    headlines={"busbw": "all-reduce runs at {value}"},
    proven=" over RDMA",
    measures=MEASURES,
    duties=DUTIES,
    controls=CONTROLS,
    no_control=NO_CONTROL,
    conditions=CONDITIONS,
)
