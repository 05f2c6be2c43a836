"""Synthetic tokens: their order, and where a resume continues."""

from __future__ import annotations

import pytest

from reference_trainer.data.documents import DataError
from reference_trainer.data.shard_stream import RING_SIZE, SampleStream, make_sample


def stream(position=0, per_step=12):
    made = SampleStream(seed=7, seq=16, vocab=64, per_step=per_step)
    made.position = position
    return made


def test_a_sample_depends_on_seed_and_index_only():
    tokens = make_sample(7, 11, 40, 256)
    assert (tokens == make_sample(7, 11, 40, 256)).all()
    assert (tokens != make_sample(7, 12, 40, 256)).any()
    assert (tokens != make_sample(8, 11, 40, 256)).any()
    assert tokens.min() >= 0
    assert tokens.max() < 256
    assert make_sample(7, 11, 40, 5).max() < 5


def test_most_tokens_follow_from_the_one_before():
    tokens = make_sample(7, 3, 4000, 256)
    followed = (tokens[1:] == (tokens[:-1] // 7 + 1) % RING_SIZE * 7).mean()
    assert 0.85 < followed < 0.92  # 7/8, and a jump lands on the next one once in RING


@pytest.mark.parametrize("world", [1, 2, 4, 5, 12])
def test_the_order_of_the_data_does_not_depend_on_the_world_size(world):
    """However many ranks share a step's samples, together they see 0, 1, 2, ... once each."""
    seen, shares = [], []
    for rank in range(world):
        mine = stream()
        for step in range(2):
            batch = mine.take(rank, world)
            seen += [(step, rank, i) for i in batch.ids]
            shares.append(len(batch.ids))
    assert [i for _, _, i in sorted(seen)] == list(range(24))
    assert max(shares) - min(shares) <= 1


def test_a_position_resumes_the_data_at_another_world_size():
    first = stream()
    for _ in range(2):
        first.take(0, 4)
    resumed = [stream(first.position).take(rank, 2).ids for rank in range(2)]
    assert resumed == [list(range(24, 30)), list(range(30, 36))]


def test_more_ranks_than_samples_is_refused():
    with pytest.raises(DataError, match="a step has 12 samples, too few for 13 ranks"):
        stream().ids(0, 13)


def test_a_batch_is_its_samples_and_its_crc_tells_them_apart():
    one, same, other = (stream(per_step=6).take(rank, 2) for rank in (1, 1, 0))
    assert one.ids == [3, 4, 5]
    assert (one.tokens[2] == make_sample(7, 5, 17, 64)).all()
    assert one.crc32 == same.crc32 != other.crc32
    with pytest.raises(ValueError, match=r"rank is 2, expected 0\.\.1"):
        stream().ids(2, 2)
