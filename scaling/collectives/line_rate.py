"""Models the rate of collectives: line rate, alpha-beta, and the columns of nccl-tests."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from reference_trainer.rank_environment import LAUNCH_VARIABLES
from reports.command import CheckedCommand
from reports.groups import group_pairs
from reports.numbers import percent, quantity
from scaling.bounds import Amount, Bandwidth, Count
from scaling.collectives.operations import ITEM_BYTES, OPERATIONS, PLACEMENTS, Operation

Row = dict[str, Any]  # of `summarise`, or of nccl-tests' results


@dataclass(frozen=True)
class Fit:
    """Alpha-beta fit: latency, bus bandwidth, and residual.

    `latency_us` is in microseconds, `bandwidth` in GB/s of bus bandwidth. `residual` is the RMS
    of (model / measured - 1). `points` is the number of sizes. An infinite bandwidth means that
    no size was large enough to measure one.
    """

    latency_us: Amount
    bandwidth: Bandwidth
    residual: Amount
    points: Count

    def __str__(self) -> str:
        return (
            f"alpha-beta fit of {self.points} sizes: latency {self.latency_us:.1f} us, "
            f"bandwidth {quantity(self.bandwidth, 'GB/s')}, residual {percent(self.residual)}"
        )


def fit_alpha_beta(rows: list[Row], operation: Operation, ranks: int) -> Fit | None:
    """Fit alpha and beta by least squares of the relative error, so all sizes weigh the same.

    `rows` are those of `summarise`. With one size only, all its time counts as bandwidth.
    Neither latency nor inverse bandwidth may be negative. Returns None when nothing moved: no
    rows, or one rank.
    """
    if not rows or not operation.factor(ranks):
        return None
    points = [(row["size"] * operation.factor(ranks), row["seconds"]) for row in rows]
    # Weights are 1 / t^2, so sums are of 1 / t and x / t.
    w, wt = sum(1 / t**2 for _, t in points), sum(1 / t for _, t in points)
    wxx, wxt = sum((x / t) ** 2 for x, t in points), sum(x / t for x, t in points)
    wx = sum(x / t**2 for x, t in points)
    determinant = w * wxx - wx * wx
    alpha, beta = 0.0, wxt / wxx
    if len({x for x, _ in points}) > 1:
        alpha, beta = (wxx * wt - wx * wxt) / determinant, (w * wxt - wx * wt) / determinant
    if beta <= 0 or alpha < 0:
        alpha, beta = (0.0, wxt / wxx) if alpha < 0 else (wt / w, 0.0)
    errors = [(alpha + beta * x) / t - 1 for x, t in points]
    residual = (sum(error**2 for error in errors) / len(errors)) ** 0.5
    bandwidth = 1 / beta / 1e9 if beta else float("inf")
    return Fit(alpha * 1e6, bandwidth, residual, len({x for x, _ in points}))


# Seconds of a hop of a ring, in NCCL's own model (tuning.cc: hwLat of Ring with Simple, its slowest
# protocol): over the network, and inside a node by PCIe; NVLink takes 3.4 us.  Over TCP the network
# alone takes 0.13 ms (half of the median round trip in Guo et al., Pingmesh, SIGCOMM 2015).
RDMA_HOP_S, TCP_HOP_S, INSIDE_HOP_S = 14e-6, 200e-6, 5.7e-6
CALL_S = 50e-6  # allowed for the call itself: torch queues it, and the GPU starts a kernel


def ring_latency(ranks: int, nodes: int, is_rdma: bool) -> float:
    """Model the latency (s) of a sound ring's all-reduce: data passes each link of it twice."""
    crossed = nodes if nodes > 1 else 0
    network_s = RDMA_HOP_S if is_rdma else TCP_HOP_S
    hop_s = (crossed * network_s + (ranks - crossed) * INSIDE_HOP_S) / ranks
    return CALL_S + 2 * (ranks - 1) * hop_s


# Share of the line rate that a healthy ring reaches: 12 of 12.5 GB/s at 100 Gbit/s, 192 of 200 GB/s
# at 8 x 200 Gbit/s, 48 of 50 GB/s at 400 Gbit/s (NVIDIA in nccl-tests issues 119, 290 and 319, and
# in nccl issue 812).
HEALTHY_RING_SHARE = 0.96
# `link_layer` in sysfs -> kind; EFA has neither (kernel: sysfs-class-infiniband, efa_verbs.c).
LINK_LAYERS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
RAIL_KINDS = ("InfiniBand", "EFA", "RoCE", "RDMA")  # more likely rails first; RDMA: kind not known
EFA_GBPS = 100.0  # older EFA drivers report this rate for every device
MAX_NAMED_NODES = 8  # at most so many nodes with less are named in a message


class Rail(NamedTuple):
    """One port for gradients: name (`device/port`), Gbit/s, kind, and whether it is active.

    A port whose rate is not known, such as one that is down, gets the rate of its kind.
    """

    name: str
    gbps: float
    layer: str  # one of RAIL_KINDS
    active: bool


@dataclass(frozen=True)
class LineRate:
    """Line rate of one node on the fabric, in GB/s; `because` names the rails, rates and source."""

    gbytes_per_s: float
    because: str


def line_rate(facts: list[dict[str, Any]], fabric: str) -> LineRate | None:
    """Return the line rate of the best node, as all nodes should have it; None if any is unknown.

    For RDMA all ports count, in any state: a dead fabric must not look like a slow one.
    `because` names the nodes that have less. `facts` are node facts with `rdma` and
    `interfaces`. `rdma` are sysfs ports: rate "400 Gb/sec (4X NDR)", state "4: ACTIVE",
    link_layer "InfiniBand". `interfaces` have a speed in Mbit/s, None for virtual devices.
    """
    hosts = [fact["host"] for fact in facts]
    if fabric == "rdma":
        rates = [*map(_rdma_line_rate, hosts, installed_rails([fact["rdma"] for fact in facts]))]
    else:
        rates = [_interfaces_line_rate(fact, fabric.split(",")) for fact in facts]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    best = max(known, key=lambda rate: rate.gbytes_per_s)
    fastest = best.gbytes_per_s
    slower = [host for host, one in zip(hosts, known, strict=True) if one.gbytes_per_s < fastest]
    overflow = f" and {len(slower) - MAX_NAMED_NODES} more" if len(slower) > MAX_NAMED_NODES else ""
    message = f"; a lower rate on {', '.join(slower[:MAX_NAMED_NODES])}{overflow}" if slower else ""
    return LineRate(fastest, best.because + message)


def limit_reason(fraction: float, rate_text: str) -> str:
    """Explain why a ring must reach at least `fraction` of this line rate (`rate_text`)."""
    return (
        f"{percent(fraction)} of {rate_text}; a healthy ring reaches "
        f"{percent(HEALTHY_RING_SHARE)} of this rate, "
        "a tree over two nodes can show more than 100 %"
    )


def all_to_all_ratio(ranks: int, inside: int) -> float:
    """Return the busbw of an all-to-all as a ratio of the rate of a node, `inside` ranks in each.

    Each of n ranks, g per node, sends (n - g)/n of its buffer through its part, 1/g, of the node's
    rate R: its busbw, counted by (n - 1)/n, is R/g x (n - 1)/(n - g), about N/(N - 1) of R/g on N
    nodes (nccl-tests issue 130). It is 1 on one node.
    """
    return (ranks - 1) / (ranks - inside) / inside if ranks > inside else 1.0


def installed_rails(nodes: Sequence[list[dict[str, str]]]) -> list[list[Rail] | None]:
    """Return the rails of each node, active or not; limits and orders are based on them.

    Rails are the ports of the fastest kind in the cluster. If kinds are equally fast, the kind
    with most ports counts, then the first of RAIL_KINDS. A slower port, or one of another kind,
    is for storage or management. A port whose rate is not known (it is down) counts, because
    nothing shows that it is not a rail. All nodes get None if no rate of a kind with more ports is
    known. A node without a port of the kind gets None. `nodes` are ports as in `line_rate`.
    """
    ports = [[(port, _port_kind(port)) for port in node] for node in nodes]
    found = group_pairs((kind, _port_gbps(port)) for node in ports for port, kind in node)
    rates = {kind: max(gbps) for kind, gbps in found.items() if any(gbps)}
    order = {kind: (rates[kind], len(found[kind]), -RAIL_KINDS.index(kind)) for kind in rates}
    main_kind = max(rates, key=order.__getitem__, default="")
    most = len(found.get(main_kind, ()))
    if any(len(gbps) > most for kind, gbps in found.items() if kind not in rates):
        return [None] * len(nodes)
    best = rates.get(main_kind, 0.0)
    return [
        [
            Rail(f"{port['device']}/{port['port']}", best, kind, "ACTIVE" in port["state"])
            for port, kind in node
            if kind == main_kind and _port_gbps(port) in (0.0, best)
        ]
        if any(kind == main_kind for _, kind in node)
        else None
        for node in ports
    ]


def active_rails(ports: list[dict[str, str]]) -> list[Rail]:
    """Return the rails of one node that are active now; it may have more."""
    (rails,) = installed_rails([ports])
    return [rail for rail in rails or [] if rail.active]


def _port_gbps(port: dict[str, str]) -> float:
    """Return the rate of a port; 0 where it is not known.

    sysfs shows 10 Gb/sec for a port that is down, which is not the link's rate.
    """
    match = re.match(r"([\d.]+) Gb/sec", port["rate"])
    return float(match[1]) if match and "DOWN" not in port["state"] else 0.0


def _port_kind(port: dict[str, str]) -> str:
    """Classify a port by its link layer, or as EFA by its device name.

    EFA devices are named `efa_0`, or `rdmap16s27` if udev renames them.
    """
    is_efa = port["device"].startswith(("efa", "rdmap"))
    return LINK_LAYERS.get(port["link_layer"], "EFA" if is_efa else "RDMA")


def _rdma_line_rate(host: str, rails: list[Rail] | None) -> LineRate | None:
    if rails is None:
        return None
    if not rails:
        return LineRate(0.0, f"no port on {host} is as fast as the ports of other nodes")
    _, gbps, layer, _ = rails[0]
    message = f"{len(rails)} x {gbps:.0f} Gbit/s {layer} ports in sysfs on {host}"
    if down := sum(not rail.active for rail in rails):
        message += f", {down} of them not active (NCCL_IB_HCA can exclude ports that are no rails)"
    if layer == "EFA" and gbps == EFA_GBPS:
        message += (
            " (older EFA drivers report this for any port: set line_rate_gbps for a faster port)"
        )
    return LineRate(len(rails) * gbps / 8, message)


def _interfaces_line_rate(fact: dict[str, Any], names: list[str]) -> LineRate | None:
    speeds = [fact["interfaces"].get(name, {}).get("speed") for name in names]
    if not all(speeds):
        return None
    text = f"{sum(speeds) / 1000:.0f} Gbit/s of {', '.join(names)} on {fact['host']}"
    return LineRate(sum(speeds) / 8000, text)


HEADER = (
    "#                                                              out-of-place"
    "                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "      (us)  (GB/s)  (GB/s)",
)


def format_table(rows: list[Row], operation: Operation) -> str:
    """Format the rows of `summarise` in nccl-tests' columns, and the total of wrong elements below.

    A placement that torch does not have is N/A.
    """
    lines = list(HEADER)
    for size, placements in _group_by_size(rows).items():
        first = next(iter(placements.values()))
        line = f"{size:12d}  {first['count']:12d}  {'float':>8}  {operation.redop:>6}  "
        line += f"{operation.root:6d}"
        for placement in PLACEMENTS:
            row = placements.get(placement)
            line += (
                f"  {row['seconds'] * 1e6:7.2f}  {row['algbw']:6.3f}  {row['busbw']:6.3f}"
                f"  {row['wrong']:6d}"
                if row
                else f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
            )
        lines.append(line)
    wrong = sum(row["wrong"] for row in rows)
    lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    return "\n".join(lines) + "\n"


def results_document(rows: list[Row], operation: Operation, ranks: int) -> Row:
    """Build nccl-tests' `results[]`: times in microseconds, bandwidths in GB/s."""
    results = []
    for size, placements in _group_by_size(rows).items():
        first = next(iter(placements.values()))
        result = {"size": size, "count": first["count"], "type": "float"}
        result |= {"redop": operation.redop, "root": operation.root}
        for placement in PLACEMENTS:
            row = placements.get(placement)
            result[placement] = row and {
                "time": row["seconds"] * 1e6,
                "alg_bw": row["algbw"],
                "bus_bw": row["busbw"],
                "nwrong": row["wrong"],
                "rank_times": [seconds * 1e6 for seconds in row["rank_seconds"]],
            }
        results.append(result)
    wrong = sum(row["wrong"] for row in rows)
    return {
        "collective": operation.name,
        "ranks": ranks,
        "results": results,
        "out_of_bounds": {"count": wrong, "okay": wrong == 0},
    }


def _group_by_size(rows: list[Row]) -> dict[int, dict[str, Row]]:
    by_size = group_pairs((row["size"], (row["placement"], row)) for row in rows)
    return {size: dict(placements) for size, placements in by_size.items()}


def parse_size(text: str) -> int:
    """Parse `8`, `64K`, `4M`, `16G` into bytes, with binary suffixes as in nccl-tests.

    Raises ValueError for anything else.
    """
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}.get(unit, -1)


def select_sizes(sizes: Sequence[int], minbytes: str, maxbytes: str) -> list[int]:
    """Select the sizes from `minbytes` to `maxbytes`. Raises UsageError if none is left."""
    try:
        first, last = parse_size(minbytes), parse_size(maxbytes)
    except ValueError:
        message = (
            "expected --minbytes and --maxbytes as numbers of bytes, such as 8, 64K, 4M or 1G, "
            f"found {minbytes!r} and {maxbytes!r}"
        )
        raise click.UsageError(message) from None
    selected = [size for size in sizes if first <= size <= last]
    if not selected:
        message = "expected a power of two from 8 to 16G between --minbytes and --maxbytes, found "
        raise click.UsageError(f"{message}none from {minbytes} to {maxbytes}")
    return selected


@click.command(cls=CheckedCommand, context_settings={"show_default": True})
@click.argument("name", metavar="COLLECTIVE", type=click.Choice(list(OPERATIONS)))
@click.option(
    "--backend",
    type=click.Choice(["nccl", "gloo"]),
    help="Library of the collectives. Default: nccl if torch sees a GPU, otherwise gloo.",
)
@click.option("-b", "--minbytes", default="8", help="Smallest message, in bytes or as 64K, 4M, 1G.")
@click.option(
    "-e", "--maxbytes", default="16G", help="Largest message, in bytes or as 64K, 4M, 1G."
)
@click.option(
    "--longest",
    default=1.0,
    help="Leave larger messages out once one call takes longer than this many seconds.",
)
@click.option("--budget", default=1.0, help="Longest time for one size, in seconds.")
@click.option(
    "-J",
    "--json",
    "file",
    type=click.Path(path_type=Path),
    help="Write the results to this file as JSON, in the format of nccl-tests.",
)
def main(
    name: str,
    backend: str | None,
    minbytes: str,
    maxbytes: str,
    longest: float,
    budget: float,
    file: Path | None,
) -> None:
    """Time COLLECTIVE at growing sizes, check every element, print nccl-tests' table.

    Run it under torchrun (or with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT set).
    Exit code 1: an element was wrong; 20: nothing was measured; 4: it cannot run, and says why.
    """
    import torch.distributed as dist

    from scaling.collectives.sweep import SIZES, process_group, summarise, sweep_operation

    sizes, operation = select_sizes(SIZES, minbytes, maxbytes), OPERATIONS[name]
    if missing := [name for name in LAUNCH_VARIABLES if not os.environ.get(name)]:
        raise click.UsageError(
            f"expected {', '.join(missing)} in the environment of each rank, found nothing: "
            f"start it as `torchrun --nproc-per-node 8 -m scaling.collectives {name}`"
        )
    try:
        with process_group(backend=backend) as device:
            result = sweep_operation(device, operation, longest, budget, sizes)
            sweeps: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(sweeps, result)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    rows = summarise(sweeps)
    if result["rank"] == 0:
        _print_results(rows, operation, result, file)
    sys.exit(int(any(row["wrong"] for row in rows)) if rows else 20)


def _print_results(rows: list[Row], operation: Operation, result: Row, file: Path | None) -> None:
    ranks = result["ranks"]
    if not rows:  # each size was too large, or too small for so many ranks
        too_small = f"{operation.name} over {ranks} ranks needs {ITEM_BYTES * ranks} bytes or more"
        click.echo(f"error: nothing was measured: {result['note'] or too_small}", err=True)
        return
    click.echo(f"# {operation.name} over {ranks} ranks, {result['backend']}")
    click.echo(format_table(rows, operation), nl=False)
    if result["note"]:
        click.echo(f"# {result['note']}")
    if model := fit_alpha_beta(rows, operation, ranks):
        click.echo(f"# {model}")
    for row in rows:
        for rank, offset in row["first_wrong"]:
            of = f"of {row['elements']}, {row['size']} B"
            click.echo(f"# wrong: rank {rank}, element {offset} {of}")
    if file:
        file.write_text(json.dumps(results_document(rows, operation, ranks), indent=1))
