"""Token shards: each document on one node, and the same samples on any number of nodes."""

import json
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_trainer.__main__ import main
from reference_trainer.data.documents import DataError, scan_corpus
from reference_trainer.data.shard_stream import ShardPartition, ShardStream
from reference_trainer.data.shards import (
    EOD,
    make_shard,
)

TEXTS = [f"document {i}: " + "la " * (i % 7 + 3) for i in range(24)]
texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=30)
sharding = settings(max_examples=25, deadline=None)


def write(folder: Path, documents: list[str]) -> Path:
    """A corpus of these documents in this order: some lines of JSON, then text files."""
    (folder / "b").mkdir(parents=True)
    half = len(documents) // 2
    lines = [json.dumps({"text": text}) + "\n" for text in documents[:half]]
    (folder / "a.jsonl").write_text("\n".join(lines))  # with a blank line between each two
    for number, text in enumerate(documents[half:]):
        (folder / "b" / f"{number:04}.txt").write_bytes(text.encode())
    (folder / ".hidden").write_bytes(b"\xff")
    return folder


def documents_of(shard) -> dict[int, str]:
    """Number -> text of the documents in a shard, read back from its tokens."""
    found = {}
    for lane in shard.lanes:
        tokens = shard.tokens(lane)
        assert tokens[-1] == EOD
        for place, text in enumerate(np.split(tokens, np.flatnonzero(tokens == EOD) + 1)[:-1]):
            found[lane + place * shard.content["lanes"]] = bytes(text[:-1].tolist()).decode()
    return found


def shards_of(source: Path, out: Path, nodes: int, lanes: int) -> list:
    return [make_shard(source, out / f"{nodes}.{i}", node=i, nodes=nodes, lanes=lanes)
            for i in range(nodes)]  # fmt: skip


@sharding
@given(texts, st.integers(1, 4), st.integers(1, 3))
def test_every_document_is_on_exactly_one_node(documents, nodes, lanes_each):
    lanes = nodes * lanes_each
    with TemporaryDirectory() as folder:
        source = write(Path(folder) / "corpus", documents)
        if len(documents) < lanes:
            with pytest.raises(DataError, match=r"documents\. Expected: "):
                shards_of(source, Path(folder), nodes, lanes)
            return
        shards = shards_of(source, Path(folder), nodes, lanes)
        found = [documents_of(shard) for shard in shards]
    for node, held in enumerate(found):
        assert all(number % nodes == node for number in held)
    assert {n: text for held in found for n, text in held.items()} == dict(enumerate(documents))
    assert sum(map(len, found)) == len(documents)
    sizes = [shard.content["documents"] for shard in shards]
    assert sizes == [len(held) for held in found]
    assert max(sizes) - min(sizes) <= 1
    assert sum(shard.content["tokens"] for shard in shards) == sum(
        len(text.encode()) + 1 for text in documents
    )


@sharding
@given(texts.filter(lambda some: len(some) >= 12), st.sampled_from([(1, 2), (2, 3), (4, 6)]))
def test_sharding_anew_for_another_number_of_nodes_moves_whole_lanes(documents, counts):
    """The same files, bit by bit, in other folders: hence the same documents, none twice."""
    with TemporaryDirectory() as folder:
        source = write(Path(folder) / "corpus", documents)
        files = []
        for nodes in counts:
            shards = shards_of(source, Path(folder), nodes, 12)
            files.append({k: v for shard in shards for k, v in shard.content["files"].items()})
    assert files[0] == files[1]
    assert len(files[0]) == 12


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5), st.integers(0, 2**63))
def test_a_lane_gives_each_sample_once_an_epoch(count, seq, number, seed):
    tokens = np.arange(count * seq + 1 + number % seq, dtype="<u2")
    lane = ShardPartition(number, tokens, seed=seed, seq=seq)
    assert lane.samples == count
    for epoch in (0, 1, 0):
        rows = [lane.sample(epoch * count + place) for place in range(count)]
        assert sorted(row[0] for row in rows) == list(range(0, count * seq, seq))
        assert all((row == np.arange(row[0], row[0] + seq + 1)).all() for row in rows)


def test_the_order_is_pinned():
    """Whoever changes it makes every checkpoint continue with other data."""
    lane = ShardPartition(3, np.zeros(81, dtype="<u2"), seed=7, seq=10)
    assert lane.order(0).tolist() == [2, 5, 7, 3, 0, 6, 4, 1]
    assert lane.order(1).tolist() == [6, 4, 0, 2, 5, 3, 1, 7]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("corpus") / "documents", TEXTS)


@pytest.fixture(scope="module")
def sharded(corpus, tmp_path_factory):
    """sharded(N) -> the shards of N nodes, in 12 lanes."""
    out, made = tmp_path_factory.mktemp("shards"), {}
    return lambda nodes: made.setdefault(nodes, shards_of(corpus, out, nodes, 12))


def streams(shards, ranks_each=1, per_step=12, position=0):
    """A stream for each rank, the ranks of a node side by side."""
    holders = [node for node in range(len(shards)) for _ in range(ranks_each)]
    made = []
    for node in holders:
        one = ShardStream(shards[node], holders, seed=5, seq=8, vocab=257, per_step=per_step)
        one.position = position
        made.append(one)
    return made


def row(ranks, steps=1) -> list[dict[int, list[int]]]:
    """For each step what all ranks take together: id -> tokens."""
    found = []
    for _ in range(steps):
        batches = [one.take(rank, len(ranks)) for rank, one in enumerate(ranks)]
        ids = [i for batch in batches for i in batch.ids]
        assert len(ids) == len(set(ids))
        found.append({i: t.tolist() for b in batches for i, t in zip(b.ids, b.tokens, strict=True)})
    for one in ranks:
        one.close()
    return found


@pytest.mark.parametrize(("nodes", "ranks_each"), [(1, 3), (2, 1), (2, 3), (3, 4), (4, 2), (12, 1)])
def test_the_samples_of_a_step_do_not_depend_on_the_number_of_nodes(sharded, nodes, ranks_each):
    wanted = row(streams(sharded(1)), steps=6)  # several epochs of the short lanes
    assert [sorted(step) for step in wanted] == [list(range(12 * s, 12 * s + 12)) for s in range(6)]
    assert row(streams(sharded(nodes), ranks_each), steps=6) == wanted


@given(st.integers(0, 500), st.integers(4, 13), st.sampled_from([1, 2, 4]))
def test_the_reader_equals_a_slow_reading_of_the_documents(sharded, position, per_step, nodes):
    (seen,) = row(streams(sharded(nodes), 1, per_step, position))
    assert sorted(seen) == list(range(position, position + per_step))
    for i, tokens in seen.items():
        lane = [t for text in TEXTS[i % 12 :: 12] for t in [*text.encode(), EOD]]
        epoch, place = divmod(i // 12, (len(lane) - 1) // 8)
        order = ShardPartition(i % 12, np.array(lane), seed=5, seq=8).order(epoch)
        assert tokens == lane[order[place] * 8 : order[place] * 8 + 9]


@pytest.mark.parametrize(
    ("before", "after"), [((2, 2), (2, 2)), ((1, 3), (4, 1)), ((4, 1), (3, 2))]
)
def test_a_position_resumes_the_data_exactly_also_on_other_nodes(sharded, before, after):
    whole = row(streams(sharded(1)), steps=8)
    ranks = streams(sharded(before[0]), before[1])
    begun = row(ranks, steps=5)
    resumed = streams(sharded(after[0]), after[1], ranks[0].per_step, ranks[0].position)
    assert begun + row(resumed, steps=3) == whole


def test_nodes_may_change_places(sharded):
    one, other = sharded(2)
    swapped = [ShardStream(shard, [1, 0], seed=5, seq=8, vocab=257, per_step=12)
               for shard in (other, one)]  # fmt: skip
    assert row(swapped, steps=2) == row(streams([one, other]), steps=2)


def test_nodes_with_unequal_ranks_share_the_samples_evenly_all_the_same(sharded):
    holders = [0, 0, 0, 1]
    ranks = [ShardStream(sharded(2)[node], holders, seed=5, seq=8, vocab=257, per_step=12)
             for node in holders]  # fmt: skip
    assert [len(one.ids(rank, 4)) for rank, one in enumerate(ranks)] == [2, 2, 2, 6]
    assert row(ranks) == row(streams(sharded(1)))


def test_too_few_samples_for_the_ranks_of_a_shard_are_refused_on_every_rank(sharded):
    for rank, one in enumerate(streams(sharded(4), ranks_each=2, per_step=7)):
        with pytest.raises(DataError, match=r"of a shard in each step: 1\. Expected: 2 or more"):
            one.ids(rank, 8)
        one.close()


@given(st.lists(st.sampled_from([None, 0, 7, 40]), max_size=6))
def test_reading_ahead_changes_nothing(sharded, moves):
    """Wherever the position is moved in between, as a resume does."""
    (one,) = streams(sharded(1))
    for move in moves:
        one.position = one.position if move is None else move
        ids = one.ids(0, 1)
        batch, plain = one.take(0, 1), one.read(ids)
        assert batch.ids == ids
        assert batch.crc32 == plain.crc32
    one.close()


def test_an_error_in_reading_ahead_is_raised_by_the_step_that_needed_it(sharded, monkeypatch):
    (one,) = streams(sharded(1))
    read = one.read

    def torn(ids):
        if 24 in ids:
            raise DataError("torn")
        return read(ids)

    monkeypatch.setattr(one, "read", torn)
    assert [one.take(0, 1).ids[0] for _ in range(2)] == [0, 12]
    for _ in range(2):
        with pytest.raises(DataError, match="torn"):
            one.take(0, 1)
    assert one.position == 24
    one.close()


def test_it_reads_one_batch_ahead_and_ends(sharded, monkeypatch):
    (one,) = streams(sharded(1))
    read, begun, ahead = one.read, [], threading.Event()

    def seen(ids):
        begun.append(ids[0])
        if len(begun) == 2:
            ahead.set()
        return read(ids)

    monkeypatch.setattr(one, "read", seen)
    one.take(0, 1)
    assert ahead.wait(20)
    one.close()  # ends when all that was begun is done
    assert begun == [0, 12]
    assert not [t for t in threading.enumerate() if t.name.startswith("data")]


def test_what_a_killed_attempt_left_is_cleared_away(corpus, tmp_path):
    (tmp_path / "shard-0-of-1.tmp-dead").mkdir()
    (tmp_path / "shard-0-of-1.tmp-dead" / "lane-00000").touch()
    shard = make_shard(corpus, tmp_path, node=0, nodes=1, lanes=12)
    assert list(tmp_path.iterdir()) == [shard.folder]


def spoil(path: Path, content: bytes) -> None:
    path.write_bytes(content)


UNREADABLE = {
    "no JSON": (lambda p: spoil(p / "a.jsonl", b'{"text": "x"}\n\nx\n'), r"line 3 of .*a\.jsonl"),
    "no text": (
        lambda p: spoil(p / "a.jsonl", b'{"words": "x"}\n'),
        r'not a JSON object with a "text',
    ),
    "a number": (lambda p: spoil(p / "a.jsonl", b'{"text": 3}\n'), "line 1 of"),
    "a list": (lambda p: spoil(p / "a.jsonl", b"[1]\n"), "line 1 of"),
    "half a character": (lambda p: spoil(p / "a.jsonl", b'{"text": "\\ud800"}\n'), "line 1 of"),
    "binary": (lambda p: spoil(p / "b" / "x", b"ab\xff"), "b/x cannot be read .*: byte 2 is not"),
    "a link to nothing": (
        lambda p: (p / "x").symlink_to("nowhere"),
        "x cannot be .*: No such file",
    ),
    "a link to a folder": (lambda p: (p / "x").symlink_to("b"), "x cannot be read .*: Is a direct"),
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_an_unreadable_document_is_named_and_leaves_nothing(tmp_path, how):
    source = write(tmp_path / "corpus", TEXTS)
    UNREADABLE[how][0](source)
    with pytest.raises(DataError, match=UNREADABLE[how][1]) as caught:
        make_shard(source, tmp_path / "out", node=0, nodes=1, lanes=1)
    assert str(caught.value).endswith(". Repair it or remove it from the folder")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_too_few_documents_are_refused(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none has no documents\. Expected: text files"):
        scan_corpus(tmp_path / "none")
    with pytest.raises(DataError, match="nowhere is not a folder"):
        scan_corpus(tmp_path / "nowhere")
    few = write(tmp_path / "few", TEXTS[:5])
    with pytest.raises(DataError, match=r"few has 5 documents. Expected: .* each of 48 lanes"):
        make_shard(few, tmp_path / "out", node=0, nodes=1)


def test_impossible_numbers_are_usage_errors(corpus, tmp_path):
    words = ["shards", "--documents", str(corpus), "--out", str(tmp_path), "--nodes", "5"]
    for more, said in (
        (["--node", "0", "--nodes", "0"], "nodes is 0, expected at least 1"),
        (["--node", "5"], "node is 5 of 5, expected 0 to 4"),
        (["--node", "0"], "lanes is 48. Expected: a multiple of nodes=5"),
        (["--node", "0", "--lanes", "5", "--out", str(corpus / "x")], "outside of the documents"),
    ):
        done = CliRunner().invoke(main, [*words, *more])
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())


def test_the_command_makes_a_shard_once_and_refuses_to_mix(corpus, tmp_path):
    words = ["shards", "--documents", str(corpus), "--out", str(tmp_path), "--lanes", "12"]
    first = CliRunner().invoke(main, [*words, "--node", "1", "--nodes", "2"])
    assert first.exit_code == 0, first.output
    assert "shard-1-of-2: 12 of 24 documents" in first.output
    made = (tmp_path / "shard-1-of-2").stat()
    assert CliRunner().invoke(main, [*words, "--node", "1", "--nodes", "2"]).output == first.output
    assert (tmp_path / "shard-1-of-2").stat() == made
    other = CliRunner().invoke(main, [*words, "--node", "1", "--nodes", "4"])
    assert other.exit_code == 1
    said = "exists with nodes 2. Expected: nodes 4. Remove it, or choose another folder"
    assert said in other.output


def test_a_shard_that_is_damaged_is_not_called_made(corpus, tmp_path):
    """One byte of a lane: its size is right."""
    words = ["shards", "--documents", str(corpus), "--out", str(tmp_path), "--lanes", "12"]
    words += ["--node", "0", "--nodes", "1"]
    assert CliRunner().invoke(main, words).exit_code == 0
    lane = tmp_path / "shard-0-of-1" / "lane-00007"
    content = bytearray(lane.read_bytes())
    content[3] ^= 1
    lane.write_bytes(content)
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 1, again.output
    assert "lane-00007" in again.output
    assert "remove the folder and make it again" in again.output
