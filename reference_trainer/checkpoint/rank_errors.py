"""Reports a problem of any rank to all ranks, so that no rank waits for one that gave up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException  # derives from BaseException

from reference_trainer.distributed import World
from reference_trainer.manifest import CheckpointError


def raise_on_all(world: World, problem: str | None, failure: str) -> None:
    """Raise CheckpointError on all ranks when any rank has a problem.

    `problem` is None without a problem, and "" when another rank reports the cause.
    """
    reports = world.gather((world.host, problem))
    if any(why is not None for _, why in reports):
        lines = [f"rank {rank} on {host}: {why}" for rank, (host, why) in enumerate(reports) if why]
        raise CheckpointError(f"{failure}: {'; '.join(lines) or 'no rank says why'}")


def call_on(world: World, ranks: Collection[int], action: Callable[[], Any], failure: str) -> Any:
    """Call `action` on these ranks; return its result there and None on the others.

    Raises CheckpointError on all ranks when it failed on any.
    """
    result, problem = None, None
    if world.rank in ranks:
        result, problem = try_call(action, world.rank)
    raise_on_all(world, problem, failure)
    return result


def try_call(action: Callable[[], Any], rank: int = 0) -> tuple[Any, str | None]:
    """Call `action`; return (result, None), or (None, the problem of this rank in one line)."""
    try:
        return action(), None
    except (Exception, CheckpointException) as error:  # noqa: BLE001  (`raise_on_all` raises it on all)
        return None, _error_text(error, rank)


def _error_text(error: BaseException, rank: int) -> str:
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):  # DCP gives all ranks' failures to every rank: keep our own
        if rank not in failures:
            return ""
        error = failures[rank][0]
    lines = str(error).strip().splitlines()
    if isinstance(error, CheckpointError):
        return str(error)
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
