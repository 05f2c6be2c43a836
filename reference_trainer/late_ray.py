"""Ray, imported when a name of it is first used: help and the collection of probes need none.

from reference_trainer import late_ray as ray
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return this name of Ray's package, which is imported now."""
    return getattr(import_module("ray"), name)
