"""Shards that do not fit are refused on every rank in one sentence; on good ones a run resumes."""

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from reference_trainer import manifest
from reference_trainer.__main__ import main
from reference_trainer.config import TrainConfig, cli_options
from reference_trainer.data.documents import DataError
from reference_trainer.data.shard_assignment import assign_shards, open_stream
from reference_trainer.data.shard_stream import SampleStream
from reference_trainer.data.shards import Shard, make_shard, open_shard
from reference_trainer.rank_environment import LAUNCH_VARIABLES
from tests.reference_trainer.data.test_shards import TEXTS, write
from tests.support.single_rank import only_rank
from tests.support.thread_ranks import on_ranks

SMALL = {"batch": 2, "seq": 8, "vocab": 257, "dim": 16, "layers": 1, "heads": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Folders node0 and node1, each with its shard of two, and the corpus."""
    folder = tmp_path_factory.mktemp("nodes")
    write(folder / "corpus", TEXTS)
    for node in (0, 1):
        make_shard(folder / "corpus", folder / f"node{node}", node=node, nodes=2, lanes=12)
    return folder


@pytest.fixture
def nodes(pristine, tmp_path):
    """A copy of them, to be spoilt."""
    shutil.copytree(pristine, tmp_path / "nodes")
    return tmp_path / "nodes"


def together(folders: list[Path], hosts: str, **knobs) -> list:
    """What `hold` gives each rank, or raises there; rank r looks into folders[r] on hosts[r]."""

    def rank(world):
        return assign_shards(
            TrainConfig(**{**SMALL, "data": str(folders[world.rank]), **knobs}), world
        )

    return on_ranks(hosts, rank, DataError)


def refused(told: list, *said: str) -> None:
    """All ranks tell the same error in the same words, on one line."""
    assert {(type(one), str(one)) for one in told} == {(DataError, str(told[0]))}
    for words in said:
        assert words in str(told[0])
    assert "\n" not in str(told[0])


def test_ranks_find_out_who_holds_what_and_one_a_node_reads_it_whole(nodes, monkeypatch):
    hashed, check = [], Shard.check

    def spy(shard, whole):
        if whole:
            hashed.append(shard.folder.name)
        check(shard, whole)

    monkeypatch.setattr(Shard, "check", spy)
    folders = [nodes / f"node{node}" for node in (1, 1, 0, 0)]
    told = together(folders, "aabb")
    assert [(shard.node, holders) for shard, holders in told] == [
        (node, [1, 1, 0, 0]) for node in (1, 1, 0, 0)
    ]
    assert sorted(hashed) == ["shard-0-of-2", "shard-1-of-2"]


LANE = "shard-1-of-2/lane-00003"
SPOIL = {
    "cut": (lambda p: cut(p / LANE), "lane-00003 has", "it was cut or changed"),
    "flipped": (lambda p: flip(p / LANE), "lane-00003 does not match its sha256"),
    "gone": (lambda p: (p / LANE).unlink(), "lane-00003 is missing"),
    "no manifest": (
        lambda p: (p / "shard-1-of-2" / manifest.NAME).unlink(), "manifest.json cannot"
    ),
    "altered manifest": (
        lambda p: alter(p / "shard-1-of-2" / manifest.NAME, '"node": 1', '"node": 3'),
        "manifest.json does not match its own sha256"
    ),
    "renamed": (
        lambda p: (p / "shard-1-of-2").rename(p / "shard-1-of-3"),
        "shard-1-of-3 was renamed: it contains documents 1 mod 2",
    ),
    "future": (lambda p: future(p / "shard-1-of-2"), "has schema 99, but this"),
    "removed": (
        lambda p: shutil.rmtree(p / "shard-1-of-2"),
        "node1 has no shard (a folder shard-I-of-N): make it on this node",
    ),
    "no folder": (lambda p: shutil.rmtree(p), "node1 has no shard"),
    "a file": (lambda p: (shutil.rmtree(p), p.touch()), "node1 has no shard"),
    "two": (
        lambda p: shutil.copytree(p / "shard-1-of-2", p / "shard-0-of-9"),
        "node1 has shard-0-of-9, shard-1-of-2. Expected: one shard. Remove the other shards",
    ),
}  # fmt: skip


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def flip(path: Path) -> None:
    path.write_bytes(b"\x01" + path.read_bytes()[1:])


def alter(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def future(folder: Path) -> None:
    content = open_shard(folder.parent).content
    (folder / manifest.NAME).unlink()
    manifest.write(folder, **{**content, "schema": 99})


@pytest.mark.parametrize("how", SPOIL)
def test_a_bad_shard_is_one_sentence_on_every_rank(nodes, how):
    spoil, *said = SPOIL[how]
    spoil(nodes / "node1")
    refused(together([nodes / "node0", nodes / "node1"], "ab"), "rank 1 on b: ", *said)


def test_a_shard_that_cannot_be_mapped_is_one_sentence_on_every_rank(nodes, monkeypatch):
    def fails(shard, lane):
        raise PermissionError(13, "Permission denied", "lane")

    monkeypatch.setattr(Shard, "tokens", fails)
    told = together([nodes / "node0", nodes / "node1"], "ab")
    said = "rank 0 on a: the shard cannot be read: [Errno 13] Permission denied: 'lane'"
    refused(told, said)


def test_a_shard_that_no_rank_holds_is_missed(nodes):
    refused(together([nodes / "node1"] * 2, "aa"),
            "no node has shard 0 of 2: use 2 nodes, or make the shards for the number")  # fmt: skip


def anew(nodes: Path, *, node: int = 1, count: int = 2, lanes: int = 12) -> None:
    shutil.rmtree(nodes / "node1")
    make_shard(nodes / "corpus", nodes / "node1", node=node, nodes=count, lanes=lanes)


def another_corpus(nodes: Path) -> None:
    (nodes / "corpus" / "one more").write_text("text")
    anew(nodes)


STALE = {
    "another N": (lambda p: anew(p, count=4), "with nodes 4, but rank 0 on a has nodes 2: make"),
    "other lanes": (lambda p: anew(p, lanes=24), "with lanes 24, but rank 0 on a has lanes 12"),
    "another corpus": (another_corpus, " of 25 documents, but rank 0 on a has corpus "),
}


@pytest.mark.parametrize("how", STALE)
def test_shards_of_different_sets_are_refused(nodes, how):
    spoil, said = STALE[how]
    spoil(nodes)
    told = together([nodes / "node0", nodes / "node1"], "ab")
    refused(told, "rank 1 on b has a shard with", said)


def test_one_shard_that_is_not_the_same_on_two_nodes_is_refused(nodes):
    """Both were made and sealed properly, but the documents changed in between."""
    shutil.copytree(nodes / "node1", nodes / "node2")
    shard = open_shard(nodes / "node2")
    flip(shard.folder / "lane-00003")
    (shard.folder / manifest.NAME).unlink()
    content = shard.content
    content["files"]["lane-00003"].update(manifest.describe_file(shard.folder / "lane-00003"))
    manifest.write(shard.folder, **content)
    told = together([nodes / f"node{n}" for n in range(3)], "abc")
    refused(told, "rank 2 on c has other files of shard 1 than another rank")


def test_a_vocabulary_or_a_sample_that_does_not_fit_is_refused(nodes):
    folders = [nodes / "node0", nodes / "node1"]
    said = "has a vocabulary of 257. Expected: at most the model's 256: train with --vocab 257"
    refused(together(folders, "ab", vocab=256), "rank 0 on a: ", said)
    said = "tokens in lane 0. Expected: 65 or more for one sample: use a smaller --seq, fewer lanes"
    refused(together(folders, "ab", seq=64), "rank 0 on a: ", said)


def test_synthetic_data_is_as_it_was():
    world = SimpleNamespace(size=3)
    stream = open_stream(TrainConfig(batch=4), world)
    assert type(stream) is SampleStream
    assert stream.per_step == 12
    assert stream.identity() == {}


@pytest.fixture
def alone(tmp_path):
    """Train as the only rank of a job, on a shard of its own: alone(steps=3, ...) -> result."""
    from reference_trainer.train import train

    write(tmp_path / "corpus", TEXTS)
    make_shard(tmp_path / "corpus", tmp_path / "data", node=0, nodes=1, lanes=12)

    def run(**knobs):
        with only_rank():
            wanted = {**SMALL, "batch": 12, "data": str(tmp_path / "data"), **knobs}
            return train(TrainConfig(**wanted))

    return run


def numbers(result):
    return [(s["step"], s["loss_hex"], s["data_crc32"], s["ids"]) for s in result["steps"]]


def test_a_run_on_shards_resumes_exactly_and_other_data_is_another_run(alone, tmp_path):
    whole = alone(steps=5)
    knobs = {"checkpoints": str(tmp_path / "checkpoints"), "save_every": 3}
    begun = alone(steps=3, **knobs)
    resumed = alone(steps=5, **knobs)
    assert resumed["start_step"] == 3
    assert numbers(begun) + numbers(resumed) == numbers(whole)
    assert resumed["digest"] == whole["digest"]
    assert not [t for t in threading.enumerate() if t.name.startswith("data")]
    synthetic = alone(steps=1, data="", **knobs)
    assert synthetic["start_step"] == 0
    reasons = [skipped["reason"] for skipped in synthetic["skipped"]]
    assert reasons[0].startswith("it belongs to another run: data is bytes of corpus ")
    assert reasons[0].endswith(" in 12 lanes, not None")


def test_the_command_line_says_it_in_one_line(monkeypatch, tmp_path):
    for name, value in zip(LAUNCH_VARIABLES, ("0", "1", "0", "127.0.0.1", "0"), strict=True):
        monkeypatch.setenv(name, value)
    config = TrainConfig(**SMALL, data=str(tmp_path))
    done = CliRunner().invoke(main, ["train", *cli_options(config)])
    assert done.exit_code == 1
    (line,) = done.output.splitlines()
    assert f"{tmp_path} has no shard (a folder shard-I-of-N)" in line
