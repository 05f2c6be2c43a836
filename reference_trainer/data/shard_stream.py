"""Samples from token shards, in an order that a resume continues exactly, on any number of nodes.

The definition.  A lane of T tokens (see shards.py) has C = (T - 1) // seq samples of seq + 1 tokens
each; neighbours share a token, so every token is predicted once an epoch, but for a rest below seq.
In each epoch e a lane puts its samples in an order of its own, a function of (seed, lane, e).
Sample s of the job is in lane s mod L; there it is number s // L, counted on from epoch to epoch.

So a sample's tokens are a function of (seed, seq, L, the corpus, s).  N, the number of nodes, is
not among them: a job that goes on with new shards for another N that divides L sees the same
samples at the same steps, none twice or left out in a lane's epoch.  With other lanes, or another
corpus, it is another run, and its checkpoints do not fit.  Lanes differ in length, so a short one
begins its next epoch sooner: nothing is left out to make them even.

Sample s is on node s mod N.  The ranks whose node holds that shard share the node's samples of a
step.  A node is known by the shard it holds, not by its name or number: nodes may change places.
A folder that all nodes see is the case of N = 1.
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
from reference_trainer.data.synthetic import Batch, Stream, share


class Lane:
    """One lane's samples.  `tokens` [tokens] are mapped; `order` takes 8 bytes a sample."""

    def __init__(self, number: int, tokens: NDArray[Any], *, seed: int, seq: int) -> None:
        self.number, self.tokens, self.seed, self.seq = number, tokens, seed, seq
        self.samples = (len(tokens) - 1) // seq
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Which sample is when in this epoch: a permutation [samples]."""
        if self._order[0] != epoch:
            # Raw output, as in data.py, and a stable sort: the same with every numpy.
            philox = np.random.Philox(key=[self.seed, self.number], counter=[0, 0, 0, epoch])
            self._order = epoch, np.argsort(philox.random_raw(self.samples), kind="stable")
        return self._order[1]

    def sample(self, number: int) -> NDArray[np.int64]:
        """Tokens [seq + 1] of the lane's sample `number`, counted on from epoch to epoch."""
        epoch, place = divmod(number, self.samples)
        first = int(self.order(epoch)[place]) * self.seq
        return self.tokens[first : first + self.seq + 1].astype(np.int64)


class ShardStream(Stream):
    """The row of samples as one rank sees it, read from its node's shard one step ahead.

    `holders[rank]` is the number of the shard that the rank's node holds.  What goes wrong in
    reading ahead is raised by the `take` that needed the batch.
    """

    def __init__(
        self,
        shard: Shard,
        holders: Sequence[int],
        *,
        seed: int,
        seq: int,
        vocab: int,
        per_step: int,
    ) -> None:
        super().__init__(seed=seed, seq=seq, vocab=vocab, per_step=per_step)
        self.shard, self.holders = shard, list(holders)
        self.lanes = {
            lane: Lane(lane, shard.tokens(lane), seed=seed, seq=seq) for lane in shard.lanes
        }
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data")
        self._ahead: tuple[list[int], Future[Batch]] | None = None

    def ids(self, rank: int, world: int) -> list[int]:
        """Ids of the samples that `rank` takes next: its share of its node's.

        Raises DataError on every rank alike when there is none for some rank.
        """
        held, nodes = Counter(self.holders), self.shard.content["nodes"]
        each, most = self.per_step // nodes, max(held.values())
        if each < most:
            raise DataError(
                f"a step has {each} samples of a shard, too few for {most} ranks that share it:"
                " use a larger --batch"
            )
        node = self.holders[rank]
        first = self.position + (node - self.position) % nodes
        mine = range(first, self.position + self.per_step, nodes)
        return share(mine, self.holders[:rank].count(node), held[node])

    def least(self, world: int) -> int:
        """How many samples of a step every rank has at least: of a node's, shared by its ranks."""
        return self.per_step // self.shard.content["nodes"] // max(Counter(self.holders).values())

    def read(self, ids: list[int]) -> Batch:
        """The batch of these samples, which must be on this node."""
        count = self.shard.content["lanes"]
        rows = [self.lanes[i % count].sample(i // count) for i in ids]
        return Batch(ids=ids, tokens=np.stack(rows))

    def take(self, rank: int, world: int) -> Batch:
        """This rank's batch of the next step; moves the position on, and begins to read on."""
        batch = self._begin(self.ids(rank, world)).result()
        self.position += self.per_step
        self._begin(self.ids(rank, world))
        return batch

    def identity(self) -> dict[str, str]:
        """What else two runs must share to have the same data: not how many nodes there are."""
        made = self.shard.content
        corpus = made["corpus"]["sha256"]
        return {"data": f"{made['tokeniser']} of corpus {corpus} in {made['lanes']} lanes"}

    def close(self) -> None:
        """End the reading ahead; waits for the batch it is at."""
        self._reader.shutdown(cancel_futures=True)

    def _begin(self, ids: list[int]) -> Future[Batch]:
        """Read these, unless that was begun before; a resume may have moved the position."""
        if self._ahead is None or self._ahead[0] != ids:
            self._ahead = ids, self._reader.submit(self.read, ids)
        return self._ahead[1]
