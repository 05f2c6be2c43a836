"""Writes the table and the JSON of nccl-tests from our sweeps; contains the torchrun command.

Formats: nccl-tests 2.19, src/util.cu. Its environment dump is left out, because it holds secrets.
Its `Avg bus bandwidth` is left out too: an average over sizes must not be compared with a line
rate.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from reports.command import CheckedCommand
from scaling.collectives.alpha_beta import fit_alpha_beta
from scaling.collectives.operations import ITEM_BYTES, OPERATIONS, PLACEMENTS, Operation

HEADER = (
    "#                                                              out-of-place"
    "                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "      (us)  (GB/s)  (GB/s)",
)
# Identity of the rank and address of the rendezvous; torchrun sets them.
LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def format_table(rows: list[dict[str, Any]], operation: Operation) -> str:
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


def results_document(
    rows: list[dict[str, Any]], operation: Operation, ranks: int
) -> dict[str, Any]:
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


def _group_by_size(rows: list[dict[str, Any]]) -> dict[int, dict[str, dict[str, Any]]]:
    sizes: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        sizes.setdefault(row["size"], {})[row["placement"]] = row
    return sizes


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
        raise click.UsageError(
            f"sizes are numbers with K, M or G, found {minbytes!r} and {maxbytes!r}"
        ) from None
    selected = [size for size in sizes if first <= size <= last]
    if not selected:
        raise click.UsageError(f"no power of two lies in {minbytes} to {maxbytes}, from 8 to 16G")
    return selected


@click.command(cls=CheckedCommand)
@click.argument("name", metavar="COLLECTIVE", type=click.Choice(list(OPERATIONS)))
@click.option("--backend", type=click.Choice(["nccl", "gloo"]), help="Default: nccl with a GPU.")
@click.option("-b", "--minbytes", default="8", show_default=True, help="First size (K, M, G).")
@click.option("-e", "--maxbytes", default="16G", show_default=True, help="Last size.")
@click.option("--longest", default=1.0, show_default=True, help="Seconds of one call, then stop.")
@click.option("--budget", default=1.0, show_default=True, help="Seconds per size at most.")
@click.option("-J", "--json", "file", type=click.Path(path_type=Path), help="Write results[] here.")
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
    Exit code 1 when an element was wrong, 20 when nothing was measured, 4 when nothing can be.
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


def _print_results(
    rows: list[dict[str, Any]], operation: Operation, result: dict[str, Any], file: Path | None
) -> None:
    ranks = result["ranks"]
    if not rows:  # each size was too large, or too small for so many ranks
        min_bytes = ITEM_BYTES * ranks
        too_small = f"{operation.name} over {ranks} ranks takes {min_bytes} bytes and more"
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
            click.echo(
                f"# wrong: rank {rank}, element {offset} of {row['elements']}, {row['size']} B"
            )
    if file:
        file.write_text(json.dumps(results_document(rows, operation, ranks), indent=1))
