"""Which rank holds which shard: every rank looks, all agree, or all stop with the same sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reference_trainer.config import TrainConfig
from reference_trainer.data.documents import DataError
from reference_trainer.data.shard_stream import ShardStream
from reference_trainer.data.shards import (
    COMMON,
    BadShard,
    MissingShard,
    Shard,
    ShortShard,
    StaleShards,
    open_shard,
    words,
)
from reference_trainer.data.synthetic import Stream
from reference_trainer.distributed import World


def stream_of(config: TrainConfig, world: World) -> Stream:
    """This rank's data: synthetic, or from shards.  All ranks call it.

    Raises DataError on all ranks alike.
    """
    per_step = world.size * config.batch
    if not config.data:
        return Stream(seed=config.seed, seq=config.seq, vocab=config.vocab, per_step=per_step)
    shard, holders = hold(config, world)
    return ShardStream(
        shard, holders, seed=config.seed, seq=config.seq, vocab=config.vocab, per_step=per_step
    )


def hold(config: TrainConfig, world: World) -> tuple[Shard, list[int]]:
    """This rank's shard, and the number of the shard that each rank holds.  All ranks call it.

    One rank of each node reads its shard once to check its sha256.  Raises DataError on all ranks.
    """
    shard, problem = _attempt(lambda: fitting(Path(config.data), config))
    told = world.gather((world.host, problem, shard and shard.content))
    _raise_first([(host, problem) for host, problem, _ in told])
    holders = agree_on([(host, content) for host, _, content in told])
    assert shard is not None
    places = [(host, node) for (host, _, _), node in zip(told, holders, strict=True)]
    if places.index(places[world.rank]) == world.rank:
        _, problem = _attempt(lambda: shard.check(whole=True))
    _raise_first(world.gather((world.host, problem)))
    return shard, holders


def fitting(folder: Path, config: TrainConfig) -> Shard:
    """The shard in a folder, if this run can use it.  Raises DataError."""
    shard = open_shard(folder)
    vocab, wanted = shard.content["vocab"], config.seq + 1
    if vocab > config.vocab:
        raise StaleShards(
            f"{shard.folder} has a vocabulary of {vocab}, expected at most the model's"
            f" {config.vocab}: train with --vocab {vocab} or more"
        )
    for lane in shard.lanes:
        if (count := len(shard.tokens(lane))) < wanted:
            raise ShortShard(
                f"{shard.folder} has {count} tokens in lane {lane}, expected {wanted} or more for"
                " one sample: use a smaller --seq, fewer lanes or more documents"
            )
    return shard


def agree_on(told: Sequence[tuple[str, dict[str, Any]]]) -> list[int]:
    """The number of the shard that each rank holds, given the (host, content) of each.

    Raises StaleShards unless they are shards of one set, MissingShard unless they are all of it.
    """
    first_host, first = told[0]
    files: dict[int, Any] = {}
    for rank, (host, content) in enumerate(told):
        differ = [name for name in COMMON if content[name] != first[name]]
        same = files.setdefault(content["node"], content["files"]) == content["files"]
        if differ or not same:
            theirs, ours = (words(c, differ) or "other files" for c in (content, first))
            raise StaleShards(
                f"rank {rank} on {host} has a shard with {theirs}, rank 0 on {first_host} one with"
                f" {ours}: make them anew on every node from the same documents"
            )
    missing = sorted(set(range(first["nodes"])) - files.keys())
    if missing:
        raise MissingShard(
            f"no rank's node has shard {', '.join(map(str, missing))} of {first['nodes']}: use"
            f" {first['nodes']} nodes, or make shards for as many as there are"
        )
    return [content["node"] for _, content in told]


def _attempt(action: Callable[[], Any]) -> tuple[Any, DataError | None]:
    """(result, None) or (None, what went wrong)."""
    try:
        return action(), None
    except DataError as error:
        return None, error
    except OSError as error:
        return None, BadShard(f"{error}: the shard cannot be read")


def _raise_first(told: Sequence[tuple[str, DataError | None]]) -> None:
    """Raise on every rank what went wrong on the first that has a problem."""
    for rank, (host, problem) in enumerate(told):
        if problem is not None:
            raise type(problem)(f"rank {rank} on {host}: {problem}")
