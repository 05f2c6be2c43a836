"""What one GPU can show: the trainer's MFU, a resume bit by bit, two ranks that meet over sockets.

`python -m benchmarks.one_gpu` needs torch for CUDA, numpy and click; no Ray and no cluster.
`--rehearse` runs all of it on a CPU, with small shapes and gloo.

Two ranks share the GPU and take each other for another host (NCCL_HOSTID), so what joins them is
NCCL's real network transport: sockets, which `seatrial nccl-log` must call FAB-TCP.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.spread import spread
from benchmarks.trainer import WARM_UP, overhead, trained
from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.flops import flops_per_token
from reference_trainer.train import train
from scaling.decompose import steps_of
from scaling.skew import exposed, separable
from tests.alone import only_rank

RANKS = 2
SMALL = TrainConfig(steps=WARM_UP + 6, digest=False, dropout=0.0, device="cpu")
# 8192 tokens a step, as in SCALING's load on GPUs.
LARGE = TrainConfig(
    **PRESETS["1B"] | {"seq": 2048},
    steps=WARM_UP + 20, batch=4, digest=False, dropout=0.0, deterministic=False, device="cuda",
)  # fmt: skip
LOG = ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,NET,GRAPH")


def speed(config: TrainConfig, words: str) -> None:
    """Tokens per second, MFU where the GPU's peak is known, and memory over the estimate."""
    result = trained(config)
    seconds = [step["seconds"] for step in result["steps"]][WARM_UP:]
    rate = config.batch * config.seq / statistics.median(seconds)
    said = f"{rate:,.0f} tokens/s; a step {spread(seconds)} s"
    steps = steps_of(result["spans"])[WARM_UP:]
    for name, one in (exposed([steps], separable(result["spans"])) or {}).items():
        said += f"; waits {one.transfer * 1e3:.2f} ms a step for {name}"
    if result["peak_flops"]:
        said += f"; MFU {flops_per_token(config) * rate / result['peak_flops']:.1%}"
    if result["peak_memory_bytes"]:
        said += f"; memory {result['peak_memory_bytes'] / result['state_bytes']:.2f} of its state's"
    print(f"{words}: {said}", flush=True)


def resume(config: TrainConfig) -> None:
    """Eight steps at once, and the last four again from the checkpoint of step 4."""
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


def meet(backend: str, largest: str) -> None:
    """Two ranks, each a host of its own to NCCL: the table, and what NCCL's log says of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nccl.%h.%p.log"
        environment = {**os.environ, **dict(LOG), "NCCL_DEBUG_FILE": str(file)}
        ranks = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
        options = ["--backend", backend, "-e", largest, "--budget", "0.5"]
        command = [sys.executable, *ranks, "-m", "benchmarks.one_gpu", "rank", *options]
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=240)
        print(done.stdout or done.stderr[-3000:], flush=True)
        logs = [str(path) for path in Path(folder).glob("nccl.*.log")]
        if logs:
            words = [sys.executable, "-m", "probes.cli", "nccl-log", *logs, "--json"]
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
    config = SMALL if rehearse else LARGE
    speed(config, "trainer")
    if not rehearse:
        speed(replace(config, compile=True), "trainer, compiled")
    for fused, words in ((True, "fused"), (None, "default")):
        ratio = overhead(config, fused)
        print(f"a step over a plain loop's with the {words} AdamW: {ratio:.3f}", flush=True)
    tiny = replace(SMALL, device=config.device)
    resume(replace(tiny, dtype="fp32" if rehearse else "bf16", deterministic=True))
    meet("gloo" if rehearse else "nccl", "64K" if rehearse else "128M")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def rank(options: tuple[str, ...]) -> None:
    """One of the two ranks, under torchrun: all-reduce, as a host of its own."""
    from scaling.nccl_tests import main as sweep

    os.environ |= {
        "NCCL_HOSTID": f"host{os.environ['RANK']}",
        **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), "1"),
        "NCCL_NET": "Socket",
    }
    sweep.main(args=["all_reduce", *options])


if __name__ == "__main__":
    main()
