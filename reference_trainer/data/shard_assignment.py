"""Finds which rank holds which shard; all ranks agree, or all raise the same error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reference_trainer.config import TrainConfig
from reference_trainer.data import shards
from reference_trainer.data.documents import DataError
from reference_trainer.data.shard_stream import SampleStream, ShardStream
from reference_trainer.distributed import World


def open_stream(config: TrainConfig, world: World) -> SampleStream:
    """Open this rank's data, synthetic or from shards. All ranks call it.

    Raises DataError on all ranks alike.
    """
    sizes = {"seq": config.seq, "vocab": config.vocab, "per_step": world.size * config.batch}
    if not config.data:
        return SampleStream(seed=config.seed, **sizes)
    shard, shard_ids = assign_shards(config, world)
    return ShardStream(shard, shard_ids, seed=config.seed, **sizes)


def assign_shards(config: TrainConfig, world: World) -> tuple[shards.Shard, list[int]]:
    """Return this rank's shard, and the number of the shard that each rank holds.

    All ranks call it. One rank of each node reads its shard once to check its sha256. Raises
    DataError on all ranks.
    """
    shard, problem = _try_read(lambda: open_usable_shard(Path(config.data), config))
    reports = world.gather((world.host, problem, shard and shard.content))
    _raise_first([(host, problem) for host, problem, _ in reports])
    shard_ids = validate_shard_set([(host, content) for host, _, content in reports])
    assert shard is not None
    places = [(host, node) for (host, _, _), node in zip(reports, shard_ids, strict=True)]
    if places.index(places[world.rank]) == world.rank:
        _, problem = _try_read(lambda: shard.check(whole=True))
    _raise_first(world.gather((world.host, problem)))
    return shard, shard_ids


def open_usable_shard(folder: Path, config: TrainConfig) -> shards.Shard:
    """Open the shard in a folder. Raises DataError when this run cannot use it."""
    shard = shards.open_shard(folder)
    vocab, needed = shard.content["vocab"], config.seq + 1
    if vocab > config.vocab:
        raise DataError(
            f"{shard.folder} has a vocabulary of {vocab}. Expected: at most the model's"
            f" {config.vocab}: train with --vocab {vocab} or more"
        )
    for lane in shard.lanes:
        if (count := len(shard.tokens(lane))) < needed:
            raise DataError(
                f"{shard.folder} has {count} tokens in lane {lane}. Expected: {needed} or more for"
                " one sample: use a smaller --seq, fewer lanes or more documents"
            )
    return shard


def validate_shard_set(reports: Sequence[tuple[str, dict[str, Any]]]) -> list[int]:
    """Return the number of the shard that each rank holds, given the (host, content) of each.

    Raises DataError unless all are shards of one set, and the set is complete.
    """
    lead, first = reports[0]
    files: dict[int, Any] = {}
    for rank, (host, content) in enumerate(reports):
        keys = [name for name in shards.COMMON_KEYS if content[name] != first[name]]
        same_files = files.setdefault(content["node"], content["files"]) == content["files"]
        if keys or not same_files:
            seen, wanted = (shards.entries_text(one, keys) for one in (content, first))
            other = f"other files of shard {content['node']} than another rank"
            found = f"a shard with {seen}, but rank 0 on {lead} has {wanted}" if keys else other
            raise DataError(
                f"rank {rank} on {host} has {found}: make the shards again on every node, from the"
                " same documents"
            )
    missing = sorted(set(range(first["nodes"])) - files.keys())
    if missing:
        raise DataError(
            f"no node has shard {', '.join(map(str, missing))} of {first['nodes']}: use"
            f" {first['nodes']} nodes, or make the shards for the number of nodes that you use"
        )
    return [content["node"] for _, content in reports]


def _try_read(action: Callable[[], Any]) -> tuple[Any, DataError | None]:
    """Call `action`; return (result, None) or (None, the error as a DataError)."""
    try:
        return action(), None
    except DataError as error:
        return None, error
    except OSError as error:
        return None, DataError(f"the shard cannot be read: {error}")


def _raise_first(reports: Sequence[tuple[str, DataError | None]]) -> None:
    """Raise on every rank the error of the first rank that has one."""
    for rank, (host, problem) in enumerate(reports):
        if problem is not None:
            raise DataError(f"rank {rank} on {host}: {problem}")
