"""Runs FABRIC, SCALING and RESTART in a lab whose nodes share one GPU, over real NCCL.

    python -m benchmarks.gpu_lab fabric|scaling|restart [--rehearse] [--out FOLDER]

Each rank takes its process for a host of its own (tests/lab/one_gpu), so NCCL connects all ranks by
sockets on the lab's shaped links.  The verdicts mean nothing: the nodes have one GPU.  What is
looked at are figures, controls, findings and errors.  `--rehearse` emulates the GPUs, with gloo.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from reports.record import RunRecord
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab
from tests.lab.shell import LabError
from tests.support.paths import REPO

CONTRACT = """schema = 1
name = "one-gpu-lab"
title = "Nodes that share one GPU, over sockets"

[cluster]
accelerators = "{kind}"
nodes = {nodes}
gpus_per_node = {gpus}
shared = "/shared"
fabric = {fabric}
management = "eth0"
management_gbps = {management}
line_rate_gbps = {rate}
{pace}
"""
# On a GPU messages are larger, and 16 CPUs carry faster links.
RATES = {False: ("10gbit", 10.0, "2gbit", 2.0), True: ("1gbit", 1.0, "200mbit", 0.2)}
SLOW = {False: "2gbit", True: "200mbit"}
SECONDS = 240.0  # for one run of the suite
# Part -> size of its lab, its probes, and the faults that are planted one after the other.
RUNS: dict[str, tuple[dict[str, int], list[str], list[tuple[str, ...]]]] = {
    "fabric": ({"nodes": 4, "rails": 2}, ["probes/fabric"], [("slow-link", "2:fab1")]),
    "scaling": ({"nodes": 4}, ["probes/scaling"], []),
    "restart": ({"nodes": 5}, ["probes/restart"], []),
}
FEWER = {"fabric": {"nodes": 3, "rails": 2}}  # of a rehearsal: two cores


@contextmanager
def shared_gpu(part: str, rehearse: bool) -> Iterator[Lab]:
    """Start the lab of a part, and remove it at the end."""
    size: dict[str, Any] = {**RUNS[part][0], **(FEWER.get(part, {}) if rehearse else {})}
    fabric, _, management, _ = RATES[rehearse]
    lab = Lab("gpu")
    lab.up(size.pop("nodes"), fabric, management, **size, one_gpu=not rehearse)
    try:
        yield lab
    finally:
        lab.down()


def contract_of(lab: Lab, rehearse: bool) -> str:
    """Write the contract of this lab where its nodes read it; return its path there."""
    _, rate, _, management = RATES[rehearse]
    rails = [f"fab{rail}" for rail in range(lab.size.rails)]
    text = CONTRACT.format(
        kind="emulated" if rehearse else "real",
        nodes=lab.size.nodes,
        gpus=lab.size.gpus,
        fabric=json.dumps(rails if len(rails) > 1 else rails[0]),
        management=management,
        rate=rate,
        pace="pace_seconds = 0.4" * rehearse,
    )
    (lab.home / "shared" / "one-gpu.toml").write_text(text)
    return "/shared/one-gpu.toml"


def describe(record: RunRecord) -> Iterator[str]:
    """Yield what one run measured, which controls it missed, and what it found."""
    for result in record.results:
        ended = f"{result.state} {result.error}".strip()
        yield f"{result.criterion} {result.claim} {ended}, {result.verdict.value}"
        for one in result.measurements:
            value = f"{one.value:.4g}" if isinstance(one.value, float) else one.value
            verdict = one.verdict.value if one.verdict else "noted"
            yield f"  {one.name} {one.subject}: {value} {one.unit} {verdict} {one.note}".rstrip()
        for control in result.controls:
            yield f"  control {control.name}: {'caught' if control.caught else 'MISSED'}"
        for found in result.findings:
            yield f"  {found.code} {found.suspects}: {found.statement}"


def run(part: str, rehearse: bool, out: Path) -> None:
    """Run the probes of a part in its lab, sound and then with each fault; keep the folders."""
    from tests.support.trial import acceptance

    _, probes, faults = RUNS[part]
    with shared_gpu(part, rehearse) as lab:
        contract = contract_of(lab, rehearse)
        for fault in [(), *faults]:
            planted = inject(lab, *fault, SLOW[rehearse]) if fault else "no fault"
            name = "-".join([part, *(word.replace(":", "-") for word in fault)])
            print(f"\n{part}: {planted}", flush=True)
            record, trial = acceptance(lab, name, *probes, contract=contract, seconds=SECONDS)
            out.mkdir(parents=True, exist_ok=True)
            shutil.make_archive(str(out / name), "gztar", trial.folder)
            for line in describe(record):
                print(line, flush=True)
            clear(lab)


@click.command()
@click.argument("part", type=click.Choice([*RUNS]))
@click.option("--rehearse", is_flag=True, help="Emulated GPUs, with gloo.")
@click.option("--out", type=Path, default=REPO / "runs" / "gpu", help="Folder of the runs.")
def main(part: str, rehearse: bool, out: Path) -> None:
    """One part; ends with 3 where this machine can have no lab."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the lab is removed
    try:
        run(part, rehearse, out)
    except LabError as error:
        print(f"not run: {error}", flush=True)
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
