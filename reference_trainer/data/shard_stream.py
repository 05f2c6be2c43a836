"""Streams of samples: of shards, or synthetic."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference_trainer.data.documents import DataError
from reference_trainer.data.shards import Shard

# Tokens follow a ring of this many values. So the loss can fall from log(vocab) to log(RING_SIZE)
# within a few steps, and well below it once the order is learned.
RING_SIZE = 32
# One token in eight jumps to a random value instead of the next one: the loss stays above zero.
JUMP_PERIOD = 8


def make_sample(seed: int, index: int, length: int, vocab: int) -> NDArray[np.int64]:
    """Make the tokens [length] of sample `index`, each in 0..vocab-1: a ring with random jumps.

    Uses the raw output of Philox, which numpy keeps stable across versions, unlike the streams of
    its distributions.
    """
    raw = np.random.Philox(key=[seed, index]).random_raw(2 * length)
    jumps = raw[:length] % JUMP_PERIOD == 0
    jumps[0] = True
    values = (raw[length:] % RING_SIZE).astype(np.int64)
    positions = np.arange(length)
    last_jump = np.maximum.accumulate(np.where(jumps, positions, 0))
    walk = (values[last_jump] + positions - last_jump) % RING_SIZE
    return walk * 7 % vocab  # 7 spreads the ring over the vocabulary


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One rank's share of a step: sample ids [batch] and tokens [batch, seq + 1]."""

    ids: list[int]
    tokens: NDArray[np.int64]

    @property
    def crc32(self) -> str:
        """CRC-32 of the tokens that the model is fed, as 8 hex digits."""
        return f"{zlib.crc32(self.tokens.tobytes()):08x}"


class SampleStream:
    """Samples as one rank sees them: `per_step` samples a step, for all ranks together."""

    def __init__(self, *, seed: int, seq: int, vocab: int, per_step: int) -> None:
        self.seed, self.seq, self.vocab, self.per_step = seed, seq, vocab, per_step
        self.position = 0

    def ids(self, rank: int, world_size: int) -> list[int]:
        """List the ids of the samples that `rank` takes in the next step of `world_size` ranks.

        Shares differ by one sample at most. Raises DataError when there is none for some rank.
        """
        return share_of_rank(range(self.position, self.position + self.per_step), rank, world_size)

    def take(self, rank: int, world_size: int) -> Batch:
        """Return this rank's batch of the next step; advance the position by `per_step`."""
        ids = self.ids(rank, world_size)
        rows = [make_sample(self.seed, i, self.seq + 1, self.vocab) for i in ids]
        self.position += self.per_step
        return Batch(ids=ids, tokens=np.stack(rows))

    def min_samples(self, world_size: int) -> int:
        """Return the minimum number of samples per rank and step."""
        return self.per_step // world_size

    def identity(self) -> dict[str, str]:
        """Return what else two runs must share to have the same data; here the seed is enough."""
        return {}

    def close(self) -> None:
        """Stop reading ahead; here there is nothing to stop."""


def share_of_rank(samples: range, rank: int, world_size: int) -> list[int]:
    """Return the samples of a step that `rank` takes, in order; see SampleStream.ids.

    Raises DataError when there are fewer samples than ranks.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, expected 0..{world_size - 1}")
    if world_size > len(samples):
        raise DataError(
            f"a step has {len(samples)} samples, too few for {world_size} ranks: "
            "use a larger --batch"
        )
    first, last = (len(samples) * bound // world_size for bound in (rank, rank + 1))
    return list(samples[first:last])


class ShardPartition:
    """Samples of one lane. `tokens` [tokens] is memory-mapped; `order` takes 8 bytes per sample."""

    def __init__(self, number: int, tokens: NDArray[Any], *, seed: int, seq: int) -> None:
        self.number, self.tokens, self.seed, self.seq = number, tokens, seed, seq
        self.samples = (len(tokens) - 1) // seq
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of the samples in this epoch, a permutation [samples]."""
        if self._order[0] != epoch:
            # Raw Philox output, as in make_sample, and a stable sort: the same with every numpy
            # version.
            philox = np.random.Philox(key=[self.seed, self.number], counter=[0, 0, 0, epoch])
            self._order = epoch, np.argsort(philox.random_raw(self.samples), kind="stable")
        return self._order[1]

    def sample(self, number: int) -> NDArray[np.int64]:
        """Return tokens [seq + 1] of the lane's sample `number`, which is counted across epochs."""
        epoch, index = divmod(number, self.samples)
        first = int(self.order(epoch)[index]) * self.seq
        return self.tokens[first : first + self.seq + 1].astype(np.int64)


class ShardStream(SampleStream):
    """Samples as one rank sees them, read from its node's shard one step ahead.

    `shard_ids[rank]` is the number of the shard on the rank's node. `sizes` are the arguments of
    SampleStream. An error while reading ahead is raised by the `take` that needs the batch.
    """

    def __init__(self, shard: Shard, shard_ids: Sequence[int], **sizes: int) -> None:
        super().__init__(**sizes)
        self.shard, self.shard_ids = shard, list(shard_ids)
        self.partitions = {
            lane: ShardPartition(lane, shard.tokens(lane), seed=self.seed, seq=self.seq)
            for lane in shard.lanes
        }
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data")
        self._ahead: tuple[list[int], Future[Batch]] | None = None

    def ids(self, rank: int, world_size: int) -> list[int]:
        """List the ids of the samples that `rank` takes next: its share of its node's samples.

        Raises DataError on every rank alike when there is none for some rank.
        """
        sharers, nodes = Counter(self.shard_ids), self.shard.content["nodes"]
        count, ranks = self.per_step // nodes, max(sharers.values())
        if count < ranks:
            raise DataError(
                f"samples of a shard in each step: {count}. Expected: {ranks} or more, one for each"
                " rank that reads the shard: use a larger --batch"
            )
        node = self.shard_ids[rank]
        first = self.position + (node - self.position) % nodes
        samples = range(first, self.position + self.per_step, nodes)
        return share_of_rank(samples, self.shard_ids[:rank].count(node), sharers[node])

    def min_samples(self, world_size: int) -> int:
        """Return the minimum number of samples per rank and step."""
        return self.per_step // self.shard.content["nodes"] // max(Counter(self.shard_ids).values())

    def read(self, ids: list[int]) -> Batch:
        """Read the batch of these samples, which must be on this node."""
        lanes = self.shard.content["lanes"]
        rows = [self.partitions[i % lanes].sample(i // lanes) for i in ids]
        return Batch(ids=ids, tokens=np.stack(rows))

    def take(self, rank: int, world_size: int) -> Batch:
        """Return this rank's batch of the next step; advance the position and read ahead."""
        batch = self._read_ahead(self.ids(rank, world_size)).result()
        self.position += self.per_step
        self._read_ahead(self.ids(rank, world_size))
        return batch

    def identity(self) -> dict[str, str]:
        """Return what else two runs must share to have the same data; not the number of nodes."""
        content = self.shard.content
        corpus = content["corpus"]["sha256"]
        return {"data": f"{content['tokeniser']} of corpus {corpus} in {content['lanes']} lanes"}

    def close(self) -> None:
        """Stop reading ahead; wait for the batch that is being read."""
        self._reader.shutdown(cancel_futures=True)

    def _read_ahead(self, ids: list[int]) -> Future[Batch]:
        """Read these samples in the background, unless begun before, and return the future.

        The earlier read is unusable if a resume has moved the position.
        """
        if self._ahead is None or self._ahead[0] != ids:
            self._ahead = ids, self._reader.submit(self.read, ids)
        return self._ahead[1]
