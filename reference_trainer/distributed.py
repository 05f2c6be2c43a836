"""Sets up one rank (environment, process group, device) and exchanges values between ranks."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from reference_trainer import process_group, rank_environment
from reference_trainer.config import TrainConfig
from reference_trainer.rank_environment import LaunchError, read_environment

log = logging.getLogger("reference_trainer")
HOPPER = (9, 0)  # compute capability of an H100


@dataclass(frozen=True, kw_only=True)
class World:
    """Place of one rank: `rank` of `size`, on `host`, computing on `device` (a torch.device).

    `group` is the process group of exactly these ranks. `mesh` is the DeviceMesh to shard over: one
    dimension, or copies of the model times the shards of each. `ring_log_start` is how many bytes
    NCCL had logged before (see rank_environment.py).
    """

    rank: int
    size: int
    host: str
    device: Any
    mesh: Any
    group: Any
    ring_log_start: int = 0

    def broadcast(self, value: Any) -> Any:
        """Return the value that rank 0 has; all ranks call it."""
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=0)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, in order of rank; all ranks call it."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def mean(self, values: Any) -> Any:
        """Return the mean of a tensor over all ranks, summed in fp32, on the device."""
        total = values.detach().float().clone()
        dist.all_reduce(total, group=self.group)
        return total / self.size

    def set_timeout(self, timeout_s: float) -> None:
        """Set the time-out of collectives from now on, in seconds; a longer one fails."""
        for group in (self.group, *self.mesh.get_all_groups()):
            if dist.get_backend(group) != "fake":  # it sends nothing, so nothing can time out
                process_group.set_timeout(group, timedelta(seconds=timeout_s))


def start_reading(values: Any) -> Callable[[], list[float]]:
    """Start to copy a vector to the host; return a function that waits for it and returns it.

    On a GPU it waits for the work queued so far, not for what is queued until it is called.
    """
    if values.device.type != "cuda":
        return values.tolist
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    (copied := torch.cuda.Event()).record()

    def read() -> list[float]:
        copied.synchronize()
        return copy.tolist()

    return read


def new_gloo_group(world: World, timeout_s: float) -> Any:
    """Create a gloo group of the same ranks, for CPU tensors and objects of another thread.

    A collective that takes longer than `timeout_s` seconds fails.
    """
    return process_group.join_part(dist.get_process_group_ranks(world.group), "gloo", timeout_s)


@contextmanager
def join_job(config: TrainConfig, mesh: Any = None) -> Iterator[World]:
    """Join the job; on leaving, destroy the process group if it was made here, or keep it.

    The group of `mesh` (1-D), or a process group of the caller, is used and not destroyed. Raises
    LaunchError when there is none and the environment does not describe one.
    """
    owned = not process_group.has_foreign_group()
    local_rank = read_environment()["LOCAL_RANK"] if owned else int(os.environ.get("LOCAL_RANK", 0))
    device = choose_device(config.device, local_rank)
    with _torch_settings(config, device):
        # Before the first communicator is made. Only for GPUs: a CPU always sums in order of rank.
        logs = device.type == "cuda" and config.deterministic
        start = rank_environment.log_length() if logs else 0
        try:
            if owned:
                start = _join_group(config, device, start)
            world = _make_world(config, device, mesh, start)
            world.set_timeout(config.init_timeout_s)
            yield world
            # The next run on this group needs the long time-out for its first step.
            world.set_timeout(config.init_timeout_s)
        except BaseException:
            if logs:
                rank_environment.show_warnings(start)
            if owned:
                # Destroying would wait for collectives of NCCL that never end.
                process_group.drop_group(abort=device.type == "cuda")
            raise
        if owned:
            process_group.leave_group()


def choose_device(requested: str, local_rank: int) -> Any:
    """Choose the torch.device of this rank: cuda:LOCAL_RANK, the only visible GPU, or the CPU.

    Raises LaunchError when a GPU is requested and none is visible, or when this rank has none.
    """
    gpus = torch.cuda.device_count() if requested != "cpu" else 0
    if gpus == 0:
        if requested == "cuda":
            raise LaunchError("no GPU is visible to this process: check CUDA_VISIBLE_DEVICES")
        return torch.device("cpu")
    # A launcher that gives each process its own GPU makes exactly one visible.
    index = 0 if gpus == 1 else local_rank
    if index >= gpus:
        raise LaunchError(
            f"LOCAL_RANK is {local_rank} but this process sees {gpus} GPUs:"
            " start one process per GPU"
        )
    return torch.device("cuda", index)


def identify_gpu(device: Any) -> str | None:
    """Return a name of the device's GPU that no other GPU has; None for the CPU."""
    if device.type != "cuda":
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # A slice of a GPU: its UUID may be that of all slices.
    if visible.startswith("MIG-"):
        return visible
    return str(torch.cuda.get_device_properties(device).uuid)


def fastest_attention(device: Any) -> AbstractContextManager[None]:
    """Return a context that tries cuDNN's attention kernel first on Hopper and later.

    It is faster there than flash attention, but its gradients differ from run to run.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HOPPER:
        return nullcontext()
    kernels = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, name) for name in kernels], set_priority=True)


@contextmanager
def _torch_settings(config: TrainConfig, device: Any) -> Iterator[None]:
    """Choose threads and kernels for the body; restore torch's settings afterwards."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    fill_memory = torch.utils.deterministic.fill_uninitialized_memory
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # A sum split over threads has another order on a machine with another number of cores.
        torch.set_num_threads(1)
    if config.deterministic:
        # cuBLAS reads it when it starts; the value is from its documentation.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if device.type == "cuda":
            for message in rank_environment.pin_order():
                log.warning("%s", message)
    torch.use_deterministic_algorithms(config.deterministic)
    attention = nullcontext() if config.deterministic else fastest_attention(device)
    # Filling every fresh buffer costs memory bandwidth and guards only against reading garbage.
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        with attention:
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill_memory
        torch.set_num_threads(threads)


def _join_group(config: TrainConfig, device: Any, log_start: int) -> int:
    """Join the job's group; return how many bytes NCCL had logged before it was made."""
    rank_environment.bind_gloo()
    name, bound = (process_group.GPU_BACKEND, device) if device.type == "cuda" else ("gloo", None)
    try:
        return process_group.join_group(name, config.init_timeout_s, bound, log_start).log_start
    except dist.DistNetworkError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        message = f"rank {os.environ['RANK']} cannot connect to its peers at {address}"
        raise LaunchError(f"{message}: {str(error).splitlines()[0]}") from error


def _make_world(config: TrainConfig, device: Any, mesh: Any, ring_log_start: int) -> World:
    if mesh is None:
        mesh = _keep_mesh(device, (dist.get_world_size(),))
    group = mesh.get_group()
    return World(
        rank=dist.get_rank(group),
        size=dist.get_world_size(group),
        host=socket.gethostname(),
        device=device,
        mesh=_sharding_mesh(config, device, mesh),
        group=group,
        ring_log_start=ring_log_start,
    )


def _sharding_mesh(config: TrainConfig, device: Any, mesh: Any) -> Any:
    """Build the mesh to shard over: `mesh` itself, or copies times shards.

    Raises LaunchError when `shard` does not divide the ranks, or when `mesh` is a part of the job.
    """
    size = mesh.size()
    if config.shard in (0, size):
        return mesh
    if size % config.shard:
        expected = f"a divisor of the {size} ranks, or 0 for all"
        raise LaunchError(f"shard is {config.shard}. Expected: {expected}")
    if size != dist.get_world_size():
        raise LaunchError("shard must be 0 if only some of the job's ranks train")
    # Ranks of a node are consecutive, so the shards of a copy are near each other.
    shape, names = (size // config.shard, config.shard), ("replicate", "shard")
    return _keep_mesh(device, shape, names)


def _keep_mesh(device: Any, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
    """Make a mesh of all ranks once for each group: DTensor's caches name the groups of a mesh."""
    make = partial(init_device_mesh, device.type, shape, mesh_dim_names=names)
    return process_group.keep_part(("mesh", *shape), make)
