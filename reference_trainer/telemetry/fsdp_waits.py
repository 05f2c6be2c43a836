"""What a step waits for FSDP's collectives, told apart from its compute on a GPU.

FSDP2 gathers weights and reduces gradients on streams of their own; the compute stream stands only
where it needs what is not there yet.  That is inside four calls of FSDP2's (torch 2.13,
`_fully_shard/_fsdp_param_group.py`), so boundaries on the compute stream before and after each say
how long it stood.  What the network does behind compute costs that stream nothing: it is hidden.
The copies into and out of a collective's buffers are in it: nothing but sharding needs them.

On a CPU the collectives compete with the compute for its cores, and no boundary tells them apart.
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
    """Have `timer` told each wait of this sharded model; False where this torch has no such calls.

    The calls are torch's own business and have no public hooks, so they are looked for by name.
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
    """Groups of parameters that FSDP2 gathers and reduces together."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            group = getattr(state, "_fsdp_param_group", None)  # torch 2.6 knows but one each
            yield from getattr(state, "_fsdp_param_groups", [group] if group else [])


def _time_call(call: Callable[..., Any], collective: str, timer: StepTimer) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*args: Any, **options: Any) -> Any:
        with timer.waiting(collective):
            return call(*args, **options)

    return timed
