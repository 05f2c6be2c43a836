"""Makes synthetic tokens. Their position is part of the state, so that a resume can be checked.

Sample i is a pure function of (seed, i). All ranks share one endless sequence of samples. Every
step takes the next `per_step` of them, and each rank takes its share. The state of the loader is
therefore the id of the next sample and the number per step. Both mean the same at any world size.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference_trainer.data.documents import DataError

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
