"""Who am I among the ranks: environment, process group, device, and agreement between ranks."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _abort_process_group, _set_pg_timeout
from torch.nn.attention import SDPBackend, sdpa_kernel

from reference_trainer.config import TrainConfig
from reference_trainer.nccl_rings import log_length, pin_order
from reference_trainer.rank_environment import LaunchError, bind_gloo, read_environment

log = logging.getLogger("reference_trainer")
HOPPER = (9, 0)  # compute capability of an H100


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's place: `rank` of `size`, on `host`, computing on `device` (a torch.device).

    `group` is the process group of exactly these ranks, `mesh` the DeviceMesh to shard over: one
    dimension, or copies of the model times the shards of each.  `ring_log_start` is how much NCCL
    had logged before (see nccl_rings.py).
    """

    rank: int
    size: int
    host: str
    device: Any
    mesh: Any
    group: Any
    ring_log_start: int = 0

    def broadcast(self, value: Any) -> Any:
        """The value that rank 0 has; all ranks call it."""
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=0)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, in order of rank; all ranks call it."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def mean(self, values: Any) -> Any:
        """The mean of a tensor over all ranks, summed in fp32; a tensor on the device."""
        total = values.detach().float().clone()
        dist.all_reduce(total, group=self.group)
        return total / self.size

    def set_timeout(self, timeout_s: float) -> None:
        """From now on a collective that takes longer than this fails."""
        for group in (self.group, *self.mesh.get_all_groups()):
            if dist.get_backend(group) != "fake":  # it sends nothing: nothing can take too long
                # torch has no public call for it; torchtitan's distributed/utils.py uses this too.
                _set_pg_timeout(timedelta(seconds=timeout_s), group)


def new_gloo_group(world: World, timeout_s: float) -> Any:
    """A process group of the same ranks that carries CPU tensors and objects for another thread.

    A collective that takes longer than `timeout_s` fails.
    """
    ranks = dist.get_process_group_ranks(world.group)
    timeout = timedelta(seconds=timeout_s)
    return dist.new_group(ranks, timeout, backend="gloo", use_local_synchronization=True)


@contextmanager
def join_job(config: TrainConfig, mesh: Any = None) -> Iterator[World]:
    """Join the job; on leaving, destroy the process group if it was made here.

    With `mesh` (1-D), or when a process group exists already, that one is used and left alone.
    Raises LaunchError when there is none and the environment does not describe one.
    """
    owned = not dist.is_initialized()
    local_rank = read_environment()["LOCAL_RANK"] if owned else int(os.environ.get("LOCAL_RANK", 0))
    device = choose_device(config.device, local_rank)
    with _torch_settings(config, device):
        # Before the first communicator is made; what a CPU adds goes by rank, whatever the road.
        start = log_length() if device.type == "cuda" and config.deterministic else 0
        if owned:
            _init_process_group(config, device)
        world = None
        try:
            world = _make_world(config, device, mesh, start)
            world.set_timeout(config.init_timeout_s)
            yield world
            world.set_timeout(config.init_timeout_s)  # who uses the group next begins afresh
        except BaseException:
            if owned:
                _abandon_group(device, world)
            raise
        if owned:
            dist.destroy_process_group()


def choose_device(requested: str, local_rank: int) -> Any:
    """The torch.device of this rank: cuda:LOCAL_RANK, the only visible GPU, or the CPU.

    Raises LaunchError when a GPU is wanted and none is there for this rank.
    """
    gpus = torch.cuda.device_count() if requested != "cpu" else 0
    if gpus == 0:
        if requested == "cuda":
            raise LaunchError("no GPU is visible to this process: check CUDA_VISIBLE_DEVICES")
        return torch.device("cpu")
    # A launcher that hands each process its own GPU shows it exactly one.
    index = 0 if gpus == 1 else local_rank
    if index >= gpus:
        raise LaunchError(
            f"LOCAL_RANK is {local_rank} but this process sees {gpus} GPUs:"
            " start one process per GPU"
        )
    return torch.device("cuda", index)


def identify_gpu(device: Any) -> str | None:
    """Name the GPU behind a device, as no other is named; None for the CPU."""
    if device.type != "cuda":
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible.startswith("MIG-"):  # a slice of a GPU: the UUID may be that of all its slices
        return visible
    return str(torch.cuda.get_device_properties(device).uuid)


def fastest_attention(device: Any) -> AbstractContextManager[None]:
    """Try cuDNN's kernel first on Hopper and later, where it is faster than flash attention.

    Its gradients are not the same from run to run.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HOPPER:
        return nullcontext()
    kernels = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, name) for name in kernels], set_priority=True)


@contextmanager
def _torch_settings(config: TrainConfig, device: Any) -> Iterator[None]:
    """Choose threads and kernels; what runs next in this process finds them as they were."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    fill_memory = torch.utils.deterministic.fill_uninitialized_memory
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # Sums split over threads add up in another order on a machine with other cores.
        torch.set_num_threads(1)
    if config.deterministic:
        # cuBLAS reads it when it starts; the value is the one its documentation gives.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if device.type == "cuda":
            for message in pin_order():
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


def _init_process_group(config: TrainConfig, device: Any) -> None:
    # The CPU backend carries Python objects and checkpoints also where gradients use NCCL.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    bind_gloo()
    try:
        dist.init_process_group(
            backend,
            timeout=timedelta(seconds=config.init_timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
    except dist.DistNetworkError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        message = f"rank {os.environ['RANK']} found no peers at {address}"
        raise LaunchError(f"{message}: {str(error).splitlines()[0]}") from error


def _make_world(config: TrainConfig, device: Any, mesh: Any, ring_log_start: int) -> World:
    if mesh is None:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
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
    """The mesh to shard over.  Raises LaunchError when the ranks cannot be dealt to copies."""
    size = mesh.size()
    if config.shard in (0, size):
        return mesh
    if size % config.shard:
        expected = f"a divisor of the {size} ranks, or 0 for all"
        raise LaunchError(f"shard is {config.shard}, expected {expected}")
    if size != dist.get_world_size():
        raise LaunchError("shard needs all ranks of the job: 0 on a mesh of some of them")
    # Ranks of a node are neighbours, so the shards of a copy are near each other.
    shape, names = (size // config.shard, config.shard), ("replicate", "shard")
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


def _abandon_group(device: Any, world: World | None) -> None:
    """Leave without waiting for peers, which may be gone, and let go of those that are there.

    A peer waits on the sockets of a group, which live as long as anything refers to it: a mesh
    does, and DTensor's caches refer to the mesh for ever (torch 2.13).
    """
    if device.type == "cuda":
        _abort_process_group()  # destroying would wait for collectives that never end
    else:
        dist.destroy_process_group()
        for mesh in (world.mesh, getattr(world.mesh, "_root_mesh", None)) if world else ():
            getattr(mesh, "_pg_registry", {}).clear()
