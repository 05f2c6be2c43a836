"""Runs as much of the GPU path as one machine with one GPU can show in a short time.

    make gpu            # or: python3 -m benchmarks.gpu [--rehearse]

Part 1 needs torch and click. It measures the trainer's MFU and kernels, and compares a resume bit
by bit. It runs two NCCL ranks, kills one of them, and prints NVML's facts next to torch's. Part 2
runs the suite on a Ray of this machine, if Ray can be imported. The exit code is 0 if all parts
ran. docs/develop/measurements.md has its GPU figures from them. `--rehearse` runs part 1 on a
CPU, with small sizes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from benchmarks.harness import TARGET_MISSED

PARTS = {  # module, what it shows
    "trainer": ("benchmarks.single_gpu", "MFU, kernels, a resume, two ranks"),
    "survivor": ("benchmarks.survivor", "a rank is killed, the other goes on"),
    "facts": ("benchmarks.gpu", "NVML's facts beside torch's"),
}
PART_SECONDS = 900  # bounds a part that hangs


def run_part(name: str, words: Sequence[str], good: Sequence[int] = (0, TARGET_MISSED)) -> bool:
    """Run one part with this process's output; return whether it ran to its end."""
    print(f"\n== {name}: {' '.join(words)}", flush=True)
    began = time.monotonic()
    try:
        code = subprocess.run(words, timeout=PART_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        code = -1
    ran = code in good
    seconds = time.monotonic() - began
    print(f"== {name}: {'ran' if ran else f'BROKE, exit {code}'}, {seconds:.0f} s", flush=True)
    return ran


def show_facts(rehearse: bool) -> None:
    """Print NVML's facts of each GPU, and torch's facts of the GPUs that torch sees."""
    import torch

    seen = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    for each in seen:
        print(f"torch: {each.name}, {each.total_memory / 2**30:.2f} GiB, {each.uuid}")
    if not find_spec("pynvml") and not find_spec("ray"):
        print("NVML: not asked, for neither nvidia-ml-py nor Ray is installed here")
        return
    from probes.cluster.nvml import read_gpus

    told = read_gpus()
    print(f"NVML: {json.dumps(told)}")
    if len(told["gpus"]) != len(seen) and not rehearse:
        print("NVML and torch count different GPUs: see CUDA_VISIBLE_DEVICES")


def ray_runs() -> bool:
    """Return whether a Ray that is not ours runs on this machine."""
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.add(path.read_text().strip())
    return bool(names & {"raylet", "gcs_server"})


def run_suite() -> bool:
    """Run part 2: the complete suite on one raylet of this machine, with its own session and ports.

    Returns True without a run if Ray or pytest is missing, or if a Ray runs here already.
    """
    if not find_spec("ray") or not find_spec("pytest"):
        print("\n== suite: not run, for Ray or pytest is not installed here", flush=True)
        return True
    if ray_runs():
        print("\n== suite: not run, for a Ray runs here already, and `ray stop` would end it too")
        return True
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        os.environ["RAY_TMPDIR"] = folder
        start = [*ray, "start", "--head", "--num-gpus", "1", "--disable-usage-stats"]
        if not run_part("ray", start, good=(0,)):
            return False
        try:
            pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "probes"]
            options = [
                "--cluster",
                "auto",
                "--contract",
                "benchmarks/one-gpu.toml",
                "--run-dir",
                f"{folder}/run",
            ]
            # 1: a criterion failed; 20: some are unproven, which cannot be avoided on one node.
            ran = run_part("suite", [*pytest, *options], good=(0, 1, 20))
            if os.path.isdir(f"{folder}/run"):
                kept = shutil.copytree(f"{folder}/run", f"runs/gpu-{time.time_ns()}")
                print(f"== suite: its run is in {kept}", flush=True)
            return ran
        finally:
            subprocess.run([*ray, "stop", "--force"], check=False, timeout=120)


@click.command()
@click.option("--rehearse", is_flag=True, help="Part 1 on a CPU, with small sizes.")
@click.option("--facts", is_flag=True, hidden=True)
def main(rehearse: bool, facts: bool) -> None:
    """All parts; ends with 1 where one broke."""
    if facts:
        show_facts(rehearse)
        return
    ran = []
    for name, (module, shows) in PARTS.items():
        words = [sys.executable, "-m", module]
        words += ["--facts"] * (name == "facts") + ["--rehearse"] * rehearse
        ran.append(run_part(f"{name} ({shows})", words))
    if not rehearse:
        ran.append(run_suite())
    print(f"\n{sum(ran)} of {len(ran)} parts ran", flush=True)
    sys.exit(not all(ran))


if __name__ == "__main__":
    main()
