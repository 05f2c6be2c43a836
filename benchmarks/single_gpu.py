"""Measures what one GPU can show: MFU, the parts of a step, the clock's cost, a resume, two ranks.

`python -m benchmarks.single_gpu` needs torch for CUDA, numpy and click; no Ray and no cluster. It
exits with 8 where a target is not met. `--rehearse` runs all of it on a CPU, with small shapes and
gloo. It prints the targets, which mean nothing there.

The resume is compared bit by bit. Two ranks share the GPU and take each other for another host
(NCCL_HOSTID). So NCCL's real network transport connects them: sockets, which `seatrial nccl-log`
must report as FAB-TCP.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.harness import finish, judged, spread
from benchmarks.trainer import PROFILED, WARM_UP, overhead, price, profiled, trained
from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.model.size import describe_shortage, estimate_memory, flops_per_token
from reference_trainer.train import train
from tests.support.single_rank import only_rank

RANKS = 2
MFU, TOP = 0.55, 12  # target for the large preset, compiled; number of kernels printed
SMALL = TrainConfig(steps=WARM_UP + 6, digest=False, dropout=0.0, device="cpu")
BATCHES = (16, 8, 4)  # the largest that fits: the optimizer is then a small part of a step
LARGE = TrainConfig(
    **PRESETS["1B"] | {"seq": 2048},
    steps=WARM_UP + 20, digest=False, deterministic=False, device="cuda",
)  # fmt: skip
LOG = ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,NET,GRAPH")


def fitting(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the largest batch that fits into this GPU's free memory."""
    free, _ = torch.cuda.mem_get_info()
    fits = [
        batch for batch in BATCHES if not describe_shortage(replace(config, batch=batch), 1, free)
    ]
    return replace(config, batch=next(iter(fits), BATCHES[-1]))


def speed(config: TrainConfig, words: str) -> None:
    """Print tokens per second, memory over the estimate, MFU, and the mean seconds of each term.

    MFU is judged only if compiled, as users would run it; otherwise it is printed.
    """
    result = trained(config)
    seconds = [step["seconds"] for step in result["steps"]][WARM_UP:]
    rate = config.batch * config.seq / statistics.median(seconds)
    said = f"{rate:,.0f} tokens/s; a step {spread(seconds)} s"
    if result["peak_memory_bytes"]:
        need = estimate_memory(config, 1)
        ratio = result["peak_memory_bytes"] / need.total
        said += f"; memory {ratio:.2f} of the estimated {need}"
        # Compiled, a step keeps fewer activations.
        low = 0.7 if config.compile else 0.95
        judged(f"{words}: {said} (target: {low} to 1.1)", low <= ratio <= 1.1)
    else:
        print(f"{words}: {said}", flush=True)
    parts(mean_segments(result["spans"][WARM_UP:]).items(), statistics.fmean(seconds))
    peak = result["peak_flops"]
    mfu = flops_per_token(config) * rate / peak if peak else None
    told = "not known, for the device's peak is not" if mfu is None else f"{mfu:.1%}"
    if config.compile:
        judged(f"{words}: MFU {told} (target >= {MFU:.0%})", mfu is not None and mfu >= MFU)
    else:
        print(f"{words}: MFU {told}", flush=True)


def mean_segments(spans: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean seconds of each segment of a step, and of each wait inside it."""
    sums: Counter[str] = Counter()
    for span in spans:
        sums.update(span["segments"])
        for segment, waits in span.get("exposed", {}).items():
            sums.update({f"{segment}, of it {name}": s for name, s in waits.items()})
    return {name: seconds / len(spans) for name, seconds in sums.items()}


def profile(config: TrainConfig, words: str) -> None:
    """Print the device's largest kernels, and the share of the steps that all kernels took."""
    kernels, step = profiled(config)
    busy = sum(seconds for _, seconds in kernels)
    print(f"{words}, profiled: {busy / step:.1%} of {PROFILED} steps in {len(kernels)} kernels")
    parts(kernels[:TOP], step)


def parts(rows: Iterable[tuple[str, float]], whole: float) -> None:
    """Print each part of a step: ms, and its share."""
    for name, seconds in rows:
        print(f"  {seconds * 1e3:9.3f} ms {seconds / whole:6.1%}  {name[:70]}", flush=True)


def against(config: TrainConfig) -> None:
    """Compare a step with a plain loop's (the ratio of their MFU) and with one without clock."""
    for fused, words in ((True, "fused"), (None, "default")):
        ratio = overhead(config, fused)
        said = f"a step over a plain loop's with the {words} AdamW"
        if fused:
            judged(f"{said}: {ratio:.3f} (target <= 1: no less MFU)", ratio <= 1)
        else:
            print(f"{said}: {ratio:.3f}", flush=True)
    cost = price(replace(config, steps=2 * config.steps))  # half of them have no clock
    judged(f"a step with the clock over one without: {cost:.4f} (target <= 1.01)", cost <= 1.01)


def resume(config: TrainConfig) -> None:
    """Run eight steps, then the last four again from the checkpoint of step 4; compare them."""
    with tempfile.TemporaryDirectory() as folder, only_rank():
        saved = replace(config, steps=8, save_every=4, digest=True, checkpoints=f"{folder}/saved")
        whole = train(saved)
        shutil.rmtree(Path(folder) / "saved" / "step-8")
        again = train(saved)
    names = ("loss_hex", "norm_hex", "ids")
    wanted, found = (
        [[step[name] for name in names] for step in result["steps"]][-4:]
        for result in (whole, again)
    )
    unequal = sum(one != other for one, other in zip(wanted, found, strict=True))
    same = "equal" if whole["digest"] == again["digest"] else "UNEQUAL"
    begun = f"from step {again['start_step']}"
    print(f"resumed {begun}: {unequal} of 4 steps unequal, parameters {same}", flush=True)


def meet(backend: str, largest: int) -> None:
    """Run two ranks, each its own host to NCCL; print their table and what nccl-log finds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nccl.%h.%p.log"
        environment = {**os.environ, **dict(LOG), "NCCL_DEBUG_FILE": str(file)}
        ranks = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
        command = [sys.executable, *ranks, "-m", "benchmarks.single_gpu", "rank"]
        command += [backend, str(largest)]
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=240)
        print(done.stdout, flush=True)
        if done.returncode:
            raise RuntimeError(f"the two ranks ended with {done.returncode}: {done.stderr[-3000:]}")
        logs = [str(path) for path in Path(folder).glob("nccl.*.log")]
        if logs and not find_spec("pydantic"):
            print("nccl-log: not run, for pydantic is not installed here", flush=True)
        elif logs:
            words = [sys.executable, "-m", "probes.cli.main", "nccl-log", *logs, "--json"]
            told = subprocess.run(words, text=True, capture_output=True, timeout=120)
            said: dict[str, Any] = json.loads(told.stdout)
            codes = [finding["code"] for finding in said["findings"]]
            print(
                f"nccl-log: exit {told.returncode}, {said['transport']}, {said['edges']}, {codes}"
            )


@click.group(invoke_without_command=True)
@click.option("--rehearse", is_flag=True, help="On a CPU, with small shapes.")
@click.pass_context
def main(context: click.Context, rehearse: bool) -> None:
    """All of it."""
    if context.invoked_subcommand:
        return
    config = SMALL if rehearse else fitting(LARGE)
    for each in (config,) if rehearse else (config, replace(config, compile=True)):
        words = "trainer, compiled" if each.compile else "trainer"
        speed(each, words)
        profile(each, words)
    against(config)
    tiny = replace(SMALL, device=config.device)
    resume(replace(tiny, dtype="fp32" if rehearse else "bf16", deterministic=True))
    meet("gloo" if rehearse else "nccl", 64 << 10 if rehearse else 128 << 20)
    if not rehearse:
        finish()


@main.command()
@click.argument("backend")
@click.argument("largest", type=int)
def rank(backend: str, largest: int) -> None:
    """One of the two ranks, under torchrun: all-reduce, as a host of its own."""
    from scaling.collectives.operations import OPERATIONS
    from scaling.collectives.sweep import SIZES, process_group, summarise, sweep_operation

    os.environ |= {
        "NCCL_HOSTID": f"host{os.environ['RANK']}",
        **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), "1"),
        "NCCL_NET": "Socket",
    }
    sizes = [size for size in SIZES if size <= largest]
    with process_group(backend=backend) as device:
        told = sweep_operation(device, OPERATIONS["all_reduce"], 1.0, 0.5, sizes)
        each: list[Any] = [None] * told["ranks"]
        torch.distributed.all_gather_object(each, told)
    if told["rank"] == 0:
        print(f"# all_reduce over {told['ranks']} ranks, {backend}: bytes, placement, GB/s, wrong")
        for row in summarise(each):
            words = f"{row['size']:>12} {row['placement']:>12} {row['busbw']:10.4f} {row['wrong']}"
            print(words, flush=True)


if __name__ == "__main__":
    main()
