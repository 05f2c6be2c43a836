"""Emulates an accelerator: the blocks' compute is padded to a fixed time by sleeping.

It lets a machine with few cores show how a job scales, because a sleeping rank needs no core. Only
compute is padded, from the moment a block has its weights until it is done. Waiting for other ranks
comes on top, as on a real machine without overlap. Padding goes *up to* a fixed time, so a node
that needs longer is still seen to be slow.
"""

from __future__ import annotations

import time
from typing import Any

# Backward does twice the arithmetic of forward: the 6N of PaLM's appendix B is 2N + 4N.
FORWARD_SHARE = 1 / 3


class EmulatedCompute:
    """Padding of forward and backward of each block it is attached to.

    Attach it after `fully_shard`: its hooks must run after FSDP's own, which gather the weights.
    `overruns` counts paddings that were not needed because the real compute took longer.
    """

    def __init__(self, seconds: float, blocks: int) -> None:
        self.forward_s = seconds * FORWARD_SHARE / blocks
        self.backward_s = seconds * (1 - FORWARD_SHARE) / blocks
        self.overruns = 0
        self._forward_began = self._backward_began = 0.0

    def attach(self, block: Any) -> None:
        """Pad this module, which takes one tensor and returns one."""
        block.register_forward_pre_hook(self._before_forward)
        block.register_forward_hook(self._after_forward)

    def _before_forward(self, block: Any, inputs: tuple[Any, ...]) -> None:
        if inputs[0].requires_grad:  # in validation nothing does
            # The gradient of the input is the last thing a block's backward computes.
            inputs[0].register_hook(lambda _: self._pad(self._backward_began, self.backward_s))
        self._forward_began = time.perf_counter()

    def _after_forward(self, block: Any, inputs: tuple[Any, ...], output: Any) -> None:
        self._pad(self._forward_began, self.forward_s)
        if output.requires_grad:
            # Registered after FSDP's hook on the same tensor, hence called after the all-gather.
            output.register_hook(self._begin_backward)

    def _begin_backward(self, gradient: Any) -> None:
        self._backward_began = time.perf_counter()

    def _pad(self, start: float, seconds: float) -> None:
        remaining = start + seconds - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)
        else:
            self.overruns += 1
