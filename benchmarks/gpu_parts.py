"""Measures on one GPU what hangs on its driver, on NCCL and on large messages; each part by name.

    python -m benchmarks.gpu_parts nvml|hash|kill|exact|hosts [--rehearse]

`benchmarks.gpu` runs them.  They need torch and click.  `--rehearse` is on a CPU, with gloo and
small sizes.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import click
import torch

from benchmarks.harness import spread

GIB = 1 << 30
AS_HOST = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}
CALLS = 10  # of each question to NVML
USES = 50  # questions which processes use the GPUs: ten seconds of GANG's observer
EACH_S = 0.2  # from one such question to the next
PROCESSES = 4  # that multiply at the same time
PRODUCTS = 40
KILLS = 3
HELD_GIB = 60.0  # what a rank of a large model holds
FREE_BYTES = 200 << 20  # of memory over what was used before: the rank's memory is free
GONE_S = 60.0
HOSTS = 8
LARGEST = 64 << 20  # bytes of a message between them


def device_of(rehearse: bool) -> torch.device:
    """Return the device that a part uses."""
    return torch.device("cpu") if rehearse else torch.device("cuda", 0)


def price_nvml(rehearse: bool) -> None:
    """Print what each question to NVML takes, as the suite asks it on each node."""
    if not find_spec("pynvml"):
        print("NVML: not asked, for nvidia-ml-py is not installed here")
        return
    from probes.cluster import gpu_health, nvml

    for name, ask in (
        ("list the GPUs", nvml.read_gpus),
        ("GPUs and health", gpu_health.read_gpus_and_health),
    ):
        print(f"NVML, {name}: {spread(timed(ask) for _ in range(CALLS))} s", flush=True)
    if error := nvml.read_gpus()["nvml"]["error"]:
        print(f"NVML: {error['text']}")
        return
    nvml.start_nvml()
    costs = []
    for _ in range(2 if rehearse else USES):
        costs.append(timed(nvml.gpus_in_use))
        time.sleep(EACH_S)  # as often as GANG's observer asks
    print(f"NVML, which processes use the GPUs, at {1 / EACH_S:g} Hz: {spread(costs)} s")


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def multiply(rehearse: bool) -> None:
    """Print the digest and the rate of products of the same matrices, as one process of several."""
    device, size = device_of(rehearse), 256 if rehearse else 8192
    torch.manual_seed(7)
    left, right = (torch.randn(size, size).to(device, torch.bfloat16) for _ in range(2))
    product = left @ right
    if not rehearse:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        product = left @ right
    digest = hashlib.sha256(product.float().cpu().numpy().tobytes()).hexdigest()[:16]
    seconds = time.perf_counter() - began
    print(f"{digest} {2 * size**3 * PRODUCTS / seconds / 1e12:.4g}", flush=True)


def compare_products(rehearse: bool) -> None:
    """Compare the bits of a product alone with those while other processes use the GPU."""
    words = own_words("multiply", rehearse)
    told = [run_all([words])[0], *run_all([words] * PROCESSES)]
    digests = {line.split()[0] for line in told}
    rates = [float(line.split()[1]) for line in told]
    same = "equal bits" if len(digests) == 1 else f"OTHER BITS: {sorted(digests)}"
    print(f"a product alone and in {PROCESSES} processes at once: {same}")
    print(f"alone {rates[0]:.4g} TFLOP/s, then {spread(rates[1:])} each", flush=True)


def hold(rehearse: bool) -> None:
    """Hold memory as a rank does, and add up with the other rank until killed."""
    import torch.distributed as dist

    rank, device = int(os.environ["RANK"]), device_of(rehearse)
    os.environ |= {"NCCL_HOSTID": f"host{rank}", **AS_HOST}
    size = int((0.05 if rehearse else HELD_GIB) * GIB)
    held = torch.ones(size if rank else 1, dtype=torch.uint8, device=device)
    dist.init_process_group("gloo" if rehearse else "nccl")
    ones = torch.ones(1 << 22, device=device)
    for number in range(10**9):
        dist.all_reduce(ones)
        ones.fill_(float(held[0]))
        if number == PRODUCTS:
            print("runs", flush=True)


def kill_holders(rehearse: bool) -> None:
    """Kill a rank that holds memory in the middle of a collective; print when it is free again."""
    from reference_trainer.launch.worker import reserve_port

    listener = None
    if not rehearse and find_spec("pynvml"):
        from probes.cluster.gpus import XidListener

        listener = XidListener()
        print(f"Xids: {listener.start()['error'] or 'heard'}")
    for number in range(1 if rehearse else KILLS):
        before = used_bytes(rehearse)
        with reserve_port() as port:
            pair = [start_rank(rank, port, rehearse) for rank in (0, 1)]
        try:
            assert pair[1].stdout is not None
            if pair[1].stdout.readline().strip() != "runs":
                raise click.ClickException("two ranks did not meet")
            pair[1].send_signal(signal.SIGKILL)
            began = time.monotonic()
            pair[1].wait(GONE_S)
            gone = time.monotonic() - began
            pair[0].kill()  # it waits for its peer
            while used_bytes(rehearse) > before + FREE_BYTES:
                if time.monotonic() - began > GONE_S:
                    raise click.ClickException(f"its memory was not free after {GONE_S:g} s")
                time.sleep(0.02)  # between two looks: the seconds are printed to a hundredth
            free = time.monotonic() - began
            print(f"kill {number + 1}: gone {gone:.2f} s, memory free {free:.2f} s", flush=True)
        finally:
            for process in pair:
                process.kill()
                process.wait()
    if listener is not None:
        time.sleep(2)  # Xids come some hundred milliseconds after the kill
        print(f"Xids after the kills: {listener.read()['events']}", flush=True)


def used_bytes(rehearse: bool) -> int:
    """Return how much of the GPU's memory all processes use."""
    if rehearse:
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def start_rank(rank: int, port: int, rehearse: bool) -> subprocess.Popen[str]:
    """Start one of two ranks that hold memory."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environment = {**os.environ, **place, "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
    words = own_words("hold", rehearse)
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


def check_large(rehearse: bool) -> None:
    """Check each collective of one rank with messages whose elements need numbers of 64 bits."""
    from scaling.collectives.operations import OPERATIONS
    from tests.support.single_rank import only_rank

    sizes = [1 << 20, 2 << 20] if rehearse else [8 * GIB, 16 * GIB]
    names = [name for name in OPERATIONS if not rehearse or name != "sendrecv"]  # gloo has no self
    with only_rank():
        for line in sweep_lines(names, sizes, rehearse):
            print(line, flush=True)
    if not rehearse:
        print(f"memory at most {torch.cuda.max_memory_allocated() / GIB:.1f} GiB", flush=True)


def sweep_lines(names: Sequence[str], sizes: list[int], rehearse: bool) -> Iterator[str]:
    """Yield a line for each collective and size, on rank 0: busbw and wrong elements."""
    from scaling.collectives.operations import OPERATIONS
    from scaling.collectives.sweep import process_group, summarise, sweep_operation

    with process_group(backend="gloo" if rehearse else "nccl") as device:
        for name in names:
            told = sweep_operation(device, OPERATIONS[name], 30.0, 0.5, sizes)
            each: list[Any] = [None] * told["ranks"]
            torch.distributed.all_gather_object(each, told)
            if told["rank"] == 0:
                for row in summarise(each):
                    where = f"{name} {row['placement']}, {row['size']} bytes, {told['ranks']} ranks"
                    yield f"{where}: {row['busbw']:.4g} GB/s, wrong elements: {row['wrong']}"
                if told["note"]:
                    yield f"{name}: {told['note']}"


def meet_hosts(rehearse: bool) -> None:
    """Run all collectives over ranks that NCCL takes for ranks on hosts of their own."""
    count = 2 if rehearse else HOSTS
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    words += ["-m", "benchmarks.gpu_parts", "host", *["--rehearse"] * rehearse]
    print(run_all([words])[0], flush=True)


def be_host(rehearse: bool) -> None:
    """Be one rank on a host of its own, under torchrun."""
    from scaling.collectives.operations import OPERATIONS
    from scaling.collectives.sweep import SIZES

    os.environ |= {"NCCL_HOSTID": f"host{os.environ['RANK']}", "LOCAL_RANK": "0", **AS_HOST}
    largest = 64 << 10 if rehearse else LARGEST
    sizes = [size for size in SIZES if 1024 <= size <= largest]
    for line in sweep_lines(list(OPERATIONS), sizes[:: 1 if rehearse else 4], rehearse):
        print(line, flush=True)


def own_words(part: str, rehearse: bool) -> list[str]:
    """Return the command of a part of this module."""
    return [sys.executable, "-m", "benchmarks.gpu_parts", part, *["--rehearse"] * rehearse]


def run_all(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run commands at the same time; return what each printed.  Raises ClickException."""
    started = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for words in commands
    ]
    ended = [(process, *process.communicate()) for process in started]
    for process, _, errors in ended:
        if process.returncode:
            raise click.ClickException(f"exit {process.returncode}: {errors[-2000:]}")
    return [out.strip() for _, out, _ in ended]


PARTS: dict[str, Callable[[bool], None]] = {
    "nvml": price_nvml,
    "hash": compare_products,
    "kill": kill_holders,
    "exact": check_large,
    "hosts": meet_hosts,
    "multiply": multiply,  # these three are processes of the others
    "hold": hold,
    "host": be_host,
}


@click.command()
@click.argument("part", type=click.Choice([*PARTS]))
@click.option("--rehearse", is_flag=True, help="On a CPU, with small sizes.")
def main(part: str, rehearse: bool) -> None:
    """One part."""
    PARTS[part](rehearse)


if __name__ == "__main__":
    main()
