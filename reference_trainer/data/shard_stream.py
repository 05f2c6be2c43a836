"""Streams samples from token shards, in an order that any number of nodes can resume exactly.

Definition. A lane of T tokens (see shards.py) has C = (T - 1) // seq samples of seq + 1 tokens
each. Neighbouring samples share a token, so every token is predicted once an epoch, except a rest
shorter than seq. In each epoch e a lane orders its samples by a function of (seed, lane, e). Sample
s of the job is in lane s mod L. There it has the number s // L, counted across epochs.

So a sample's tokens are a function of (seed, seq, L, the corpus, s), but not of N, the number of
nodes. A job that continues with new shards for another N that divides L sees the same samples at
the same steps. In a lane's epoch no sample is repeated or left out. With other lanes or another
corpus it is another run, and its checkpoints do not fit. Lanes differ in length, so a short one
begins its next epoch sooner. No sample is left out to make lanes even.

Sample s is on node s mod N. The ranks whose node holds that shard share the node's samples of a
step. A node is identified by the shard it holds, not by its name or number, so nodes may change
places. A folder that all nodes see is the case N = 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference_trainer.data.documents import DataError
from reference_trainer.data.shards import Shard
from reference_trainer.data.synthetic import Batch, SampleStream, share_of_rank


class ShardPartition:
    """Samples of one lane. `tokens` [tokens] is memory-mapped; `order` takes 8 bytes per sample."""

    def __init__(self, number: int, tokens: NDArray[Any], *, seed: int, seq: int) -> None:
        self.number, self.tokens, self.seed, self.seq = number, tokens, seed, seq
        self.samples = (len(tokens) - 1) // seq
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of the samples in this epoch, a permutation [samples]."""
        if self._order[0] != epoch:
            # Raw Philox output, as in synthetic.py, and a stable sort: the same with every numpy
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
                f"the batch has {count} samples of each shard, too few for its {ranks} ranks:"
                " use a larger --batch"
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
