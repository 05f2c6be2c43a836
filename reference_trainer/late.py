"""Ray and torch, imported when a name of theirs is first used.

They take seconds, and help, the collection of probes and a driver without torch need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class LateModule:
    """A module that is imported when the first of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Return a name of the module.  Raises ImportError where it is not installed."""
        if name.startswith("_"):  # of this object itself, as pickle asks for them
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import ray as ray
    import torch as torch
    from torch import distributed as distributed

    dist = distributed
else:
    ray, torch, dist = map(LateModule, ("ray", "torch", "torch.distributed"))
