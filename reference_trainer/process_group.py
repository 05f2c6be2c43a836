"""Makes this rank's process group, and keeps it for the next call of the same ranks.

A gang that lends its ranks to several calls sets KEEP. It gives a later call the same rendezvous
only if all ranks of the group take part in it, and every call so far has succeeded (see gang.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from reference_trainer.late import dist

KEEP = "SEATRIAL_KEEP_GROUP"
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
# gloo carries Python objects and checkpoints, also where gradients use NCCL.
GPU_BACKEND = "cpu:gloo,cuda:nccl"


@dataclass
class OwnGroup:
    """The default process group, if it was made here, and what named it.

    `log_start` is how many bytes NCCL had logged before. `sockets` are the names of those that
    earlier calls in this group opened, `others` of those that were open before this call and are
    not the group's. `parts` are groups and meshes of its ranks.
    """

    named_by: tuple[str | None, ...]
    log_start: int = 0
    sockets: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    parts: dict[tuple[Any, ...], Any] = field(default_factory=dict)


F = TypeVar("F", bound=Callable[..., Any])
KIND = "kind_of_group"  # attribute of functions; without it, a group for collectives
NONE, JOB = "none", "job"  # no group, and a group as jobs make: only calls of one kind share one
# A group that no other call gets. Ranks that have made other numbers of parts would give the next
# part other names, and NCCL keeps a communicator for each pair until the group ends.
ALONE = "alone"
_own: list[OwnGroup] = []  # at most one: torch has one default group


def joins(kind: str) -> Callable[[F], F]:
    """Mark a function that ranks call by the kind of group that it joins."""

    def mark(function: F) -> F:
        setattr(function, KIND, kind)
        return function

    return mark


joins_no_group = joins(NONE)
joins_alone = joins(ALONE)


def has_foreign_group() -> bool:
    """Whether this process has a default group that was not made here."""
    return dist.is_initialized() and not _own


def join_group(backend: str, seconds: float, device: Any = None, log_start: int = 0) -> OwnGroup:
    """Join the group that the environment names: the kept one, if it is that; else a new one.

    `seconds` is the timeout of its making and of each collective. `device` binds NCCL to a GPU at
    once. Raises DistNetworkError if the other ranks cannot be reached, and RuntimeError for another
    backend at the rendezvous of the kept group: its store would still answer there.
    """
    named_by = (backend, *map(os.environ.get, RENDEZVOUS))
    timeout, before = timedelta(seconds=seconds), set(open_sockets().values())
    if _own and _own[0].named_by == named_by:
        set_timeout(dist.group.WORLD, timeout)
    elif _own and _own[0].named_by[1:] == named_by[1:]:
        raise RuntimeError(f"a group of {_own[0].named_by[0]} has this rendezvous, not {backend}")
    else:
        drop_group()
        dist.init_process_group(backend, timeout=timeout, device_id=device)
        _own.append(OwnGroup(named_by, log_start))
        _own[0].sockets = set(open_sockets().values()) - before
    _own[0].others = before - _own[0].sockets
    return _own[0]


def join_part(
    ranks: Sequence[int], backend: str | None = None, seconds: float | None = None
) -> Any:
    """Join a group of these ranks of the default group, and return it; it is kept with that.

    Only its ranks call this, so the time does not grow with the number of groups. A collective
    that takes longer than `seconds` fails.
    """
    options: dict[str, Any] = {"backend": backend} if backend else {}
    if seconds is not None:
        options["timeout"] = timedelta(seconds=seconds)

    def make() -> Any:
        return dist.new_group([*ranks], use_local_synchronization=True, **options)

    group = keep_part((backend, *ranks), make)
    if seconds is not None:
        set_timeout(group, options["timeout"])
    return group


def keep_part(name: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return the part of the group with this name, which `make` makes once for all its calls.

    Made again, a part would find the addresses of the first in the rendezvous store.
    """
    parts = _own[0].parts if _own else {}
    if name not in parts:
        parts[name] = make()
    return parts[name]


def own_group() -> OwnGroup:
    """Return the group that this rank has joined."""
    return _own[0]


def kept_sockets() -> set[str]:
    """Return the names of the sockets that earlier calls in the group opened."""
    return _own[0].sockets if _own else set()


def leave_group() -> None:
    """Leave the group after success: it is kept if KEEP is set, and destroyed if not."""
    if not os.environ.get(KEEP):
        drop_group()
    elif "nccl" in str(_own[0].named_by[0]):  # gloo connects all ranks when a group is made
        _own[0].sockets = set(open_sockets().values()) - _own[0].others


def drop_group(*, abort: bool = False) -> None:
    """Destroy the own group, if there is one. With `abort`, NCCL does not wait for its peers.

    Peers wait on the sockets of a group, which stay open while anything refers to the group. A mesh
    does, and DTensor's caches refer to the mesh for ever (torch 2.13).
    """
    if not _own:
        return
    own = _own.pop()
    if abort:
        from torch.distributed.distributed_c10d import _abort_process_group

        _abort_process_group()
    else:
        dist.destroy_process_group()
    for part in own.parts.values():
        for mesh in (part, getattr(part, "_root_mesh", None)):
            getattr(mesh, "_pg_registry", {}).clear()


def open_sockets() -> dict[int, str]:
    """Map this process's socket descriptors to their names, such as socket:[1234]."""
    found: dict[int, str] = {}
    with suppress(FileNotFoundError):  # without /proc
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if (name := os.readlink(link)).startswith("socket:"):
                    found[int(link.name)] = name
    return found


def set_timeout(group: Any, timeout: timedelta) -> None:
    """Set the timeout of a group's collectives from now on."""
    # torch has no public call for it; torchtitan's distributed/utils.py uses this too.
    from torch.distributed.distributed_c10d import _set_pg_timeout

    _set_pg_timeout(timeout, group)
