"""Measures a step's waits for FSDP's collectives, separately from its compute on a GPU.

FSDP2 gathers weights and reduces gradients on streams of their own. The compute stream waits only
where it needs a result that is not ready. That is inside four calls of FSDP2 (torch 2.13,
`_fully_shard/_fsdp_param_group.py`). So boundaries on the compute stream before and after each call
measure how long it waited. Communication during compute costs that stream nothing: it is hidden.
The copies into and out of a collective's buffers are included, because only sharding needs them.

On a CPU the collectives compete with the compute for its cores, and no boundary separates them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed.fsdp import FSDPModule

from reference_trainer.telemetry.step_timer import StepTimer

# FSDP2's calls of one group of parameters, and the collective that each waits for.  `unshard`
# starts one and waits only where nothing is asynchronous.
FSDP_CALLS = {
    "unshard": "all-gather",
    "wait_for_unshard": "all-gather",
    "post_backward": "reduce-scatter",
    "finalize_backward": "reduce-scatter",
}


def time_fsdp_waits(model: Any, timer: StepTimer) -> bool:
    """Time each wait of this sharded model with `timer`; return False if torch lacks the calls.

    The calls are torch's internals and have no public hooks, so they are found by name.
    """
    groups = [*_parameter_groups(model)]
    if not groups or not all(hasattr(group, name) for group in groups for name in FSDP_CALLS):
        return False
    for group in groups:
        for name, collective in FSDP_CALLS.items():
            setattr(group, name, _time_call(getattr(group, name), collective, timer))
    timer.separable = True
    return True


def _parameter_groups(model: Any) -> Iterator[Any]:
    """Yield the groups of parameters that FSDP2 gathers and reduces together."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            group = getattr(state, "_fsdp_param_group", None)  # torch 2.6 has one group each
            yield from getattr(state, "_fsdp_param_groups", [group] if group else [])


def _time_call(call: Callable[..., Any], collective: str, timer: StepTimer) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*args: Any, **options: Any) -> Any:
        with timer.waiting(collective):
            return call(*args, **options)

    return timed
