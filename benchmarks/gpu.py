"""Runs as much of the GPU path as one machine with one GPU can show in a short time.

    make gpu            # or: python3 -m benchmarks.gpu [--rehearse] [--out FOLDER] [PART...]

The parts come cheapest first.  Each has its own bound, and all together ALL_SECONDS: what does not
fit any more is named, and the next call with the same FOLDER begins there.  The parts before the
labs need torch and click alone.  The labs need root and namespaces: nodes that share the GPU, over
real NCCL.  The exit code is 0 if all parts ran.  docs/develop/measurements.md has its GPU figures
from them.  `--rehearse` runs all but the suite on a CPU, with small sizes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from benchmarks.harness import TARGET_MISSED


@dataclass(frozen=True)
class Part:
    """One part: the command of its module, what it shows, and the seconds that bound it."""

    words: tuple[str, ...]
    shows: str
    seconds: float


ALL_SECONDS = 540.0  # of one call: such machines are lent for ten minutes
LEAST_S = 20.0  # a part with less time left is not begun
PARTS = {
    "facts": Part(("benchmarks.gpu", "--facts"), "NVML's facts next to torch's", 60),
    "nvml": Part(("benchmarks.gpu_parts", "nvml"), "the price of NVML's answers", 60),
    "hash": Part(("benchmarks.gpu_parts", "hash"), "equal bits with others on the GPU", 60),
    "kill": Part(("benchmarks.gpu_parts", "kill"), "a killed rank's memory is free, Xids", 120),
    "survivor": Part(("benchmarks.survivor",), "a rank is killed, the other goes on", 120),
    "exact": Part(("benchmarks.gpu_parts", "exact"), "six collectives, large messages", 120),
    "hosts": Part(("benchmarks.gpu_parts", "hosts"), "six collectives over many hosts", 120),
    "lab-restart": Part(("benchmarks.gpu_lab", "restart"), "kill and resume on five nodes", 180),
    "lab-scaling": Part(("benchmarks.gpu_lab", "scaling"), "1, 2 and 4 nodes", 180),
    "lab-fabric": Part(("benchmarks.gpu_lab", "fabric"), "rails, pairs, a slow link", 400),
    "trainer": Part(("benchmarks.single_gpu",), "MFU, kernels, a resume, two ranks", 400),
}


def run_part(
    name: str,
    words: Sequence[str],
    good: Sequence[int] = (0, TARGET_MISSED),
    bound: float = ALL_SECONDS,
) -> bool:
    """Run one part with this process's output; return whether it ran to its end."""
    print(f"\n== {name}: {' '.join(words)}", flush=True)
    began = time.monotonic()
    # A session of its own: what a part has started ends with it.
    with subprocess.Popen(words, start_new_session=True) as process:
        try:
            code = process.wait(bound)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end_session(process)
    ran = code in good
    seconds = time.monotonic() - began
    print(f"== {name}: {'ran' if ran else f'BROKE, exit {code}'}, {seconds:.0f} s", flush=True)
    return ran


GRACE_S = 20.0  # for a lab to remove itself


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a part that still runs: first it may remove what it made."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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
@click.argument("names", nargs=-1, metavar="[PART]...")
@click.option("--rehearse", is_flag=True, help="All but the suite, on a CPU, with small sizes.")
@click.option("--out", type=Path, default=Path("runs/gpu"), help="Folder of the results.")
@click.option("--facts", is_flag=True, hidden=True)
def main(names: tuple[str, ...], rehearse: bool, out: Path, facts: bool) -> None:
    """All parts, or these; ends with 1 where one broke or did not fit."""
    if facts:
        show_facts(rehearse)
        return
    if unknown := {*names} - {*PARTS}:
        raise click.UsageError(f"expected {', '.join(PARTS)}, found {', '.join(sorted(unknown))}")
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "done.json"
    done: dict[str, bool] = json.loads(kept.read_text()) if kept.exists() else {}
    end, wanted = time.monotonic() + ALL_SECONDS, names or tuple(PARTS)
    for name in wanted:
        left = end - time.monotonic()
        if done.get(name) and not names:
            print(f"\n== {name}: ran before (see {kept})", flush=True)
        elif left < LEAST_S:
            print(f"\n== {name}: NOT RUN, no time is left: give the same command again", flush=True)
        else:
            done[name] = run_named(name, rehearse, out, min(left, PARTS[name].seconds))
            kept.write_text(json.dumps(done, indent=1))
    if not rehearse and not names:
        done["suite"] = done.get("suite", False) or run_suite()
        kept.write_text(json.dumps(done, indent=1))
    wanted += ("suite",) * (not rehearse and not names)
    count = sum(done.get(name, False) for name in wanted)
    print(f"\n{count} of {len(wanted)} parts ran", flush=True)
    sys.exit(count < len(wanted))


def run_named(name: str, rehearse: bool, out: Path, bound: float) -> bool:
    """Run a part of the table within `bound` seconds; one without its lab counts as not run."""
    part = PARTS[name]
    words = [sys.executable, "-m", *part.words, *["--rehearse"] * rehearse]
    words += ["--out", str(out.resolve())] * name.startswith("lab-")
    return run_part(f"{name} ({part.shows})", words, bound=bound)


if __name__ == "__main__":
    main()
