"""A checkpoint is data: whoever can write its folder runs no code on the ranks that load it."""

import io
import os
import pickle
import random

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from probes.restart.faulted_run import _find_weights
from reference_trainer import manifest
from reference_trainer.checkpoint import checkpointer
from reference_trainer.checkpoint.checkpointer import PlainReader
from reference_trainer.manifest import CheckpointError


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def mark(tmp_path):
    """A folder that is there once code has run."""
    return tmp_path / "code-has-run"


def seal(path):
    """Write the manifest anew, as one would who knows it: every sum is right."""
    content = manifest.read(path)
    names = [*content["files"]]
    (path / "manifest.json").unlink()
    manifest.write(
        path,
        step=content["step"],
        world=content["world"],
        identity=content["identity"],
        files={name: manifest.describe_file(path / name) for name in names},
    )


@pytest.mark.parametrize("wrapped", [False, True], ids=["instead", "within"])
def test_metadata_runs_no_code(alone, folder, mark, wrapped):
    path = folder / "step-4" / ".metadata"
    content = pickle.loads(path.read_bytes())
    content.planner_data = {"bomb": Bomb(mark)}
    path.write_bytes(pickle.dumps(content if wrapped else Bomb(mark)))
    seal(folder / "step-4")
    with pytest.raises(
        CheckpointError, match=r"\.metadata names posix\.mkdir, which no checkpoint"
    ):
        alone(steps=6, checkpoints=str(folder))
    with pytest.raises(CheckpointError, match=r"names posix\.mkdir"):
        _find_weights(folder / "step-4")  # the driver's own look at it
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", [("torch.distributed.checkpoint.filesystem", "os.mkdir"), ("torch", "load"),
             ("torch.distributed.checkpoint.filesystem", "FileSystemWriter")],
)  # fmt: skip
def test_metadata_names_nothing_but_records(alone, folder, name):
    module, attribute = (word.encode() for word in name)
    names = [b"\x8c" + bytes([len(word)]) + word for word in (module, attribute)]
    path = folder / "step-4" / ".metadata"
    path.write_bytes(b"\x80\x04" + b"".join(names) + b"\x93.")  # SHORT_BINUNICODE, STACK_GLOBAL
    seal(folder / "step-4")
    with pytest.raises(CheckpointError, match="which no checkpoint needs"):
        alone(steps=6, checkpoints=str(folder))


class Taken:
    """Pickled as what getattr gives, which is how Python 3.11.2 (Debian 12) writes an enum."""

    def __init__(self, owner, name):
        self.arguments = owner, name

    def __reduce__(self):
        return getattr, self.arguments


def read_taken(folder, taken):
    """What the planner data reads as that holds `taken`."""
    path = folder / "step-4" / ".metadata"
    content = pickle.loads(path.read_bytes())
    content.planner_data = {"taken": taken}
    path.write_bytes(pickle.dumps(content))
    return PlainReader(str(folder / "step-4")).read_metadata().planner_data["taken"]


def test_an_enum_as_an_older_python_pickles_it(folder):
    format_of = _MEM_FORMAT_ENCODING
    assert read_taken(folder, Taken(format_of, "TORCH_PRESERVE_FORMAT")) is (
        format_of.TORCH_PRESERVE_FORMAT
    )


@pytest.mark.parametrize(
    ("owner", "name"),
    [(_MEM_FORMAT_ENCODING, "__class__"), (_MEM_FORMAT_ENCODING, "mro"),
     (Metadata, "__init__"), ("text", "format"),
     (_MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT, "name")],
)  # fmt: skip
def test_nothing_else_is_taken_of_an_object(folder, owner, name):
    with pytest.raises(CheckpointError, match=f"reads '{name}' of an object, which no checkpoint"):
        read_taken(folder, Taken(owner, name))


def test_metadata_that_is_no_metadata(alone, folder):
    (folder / "step-4" / ".metadata").write_bytes(pickle.dumps({"planner_data": {}}))
    seal(folder / "step-4")
    with pytest.raises(CheckpointError, match="contains a dict, not the Metadata of torch"):
        alone(steps=6, checkpoints=str(folder))


def test_a_value_runs_no_code(alone, tmp_path, mark, monkeypatch):
    checkpoints = str(tmp_path / "c")
    monkeypatch.setattr(checkpointer, "capture", lambda: Bomb(mark))
    alone(steps=2, checkpoints=checkpoints, save_every=2)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"rng\.rank0 contains more than numbers and text"):
        alone(steps=4, checkpoints=checkpoints)
    assert not mark.exists()


def test_the_random_state_runs_no_code(mark):
    blob = io.BytesIO()
    torch.save({"python": Bomb(mark)}, blob)
    with pytest.raises(pickle.UnpicklingError):
        checkpointer.restore(blob.getvalue())
    assert not mark.exists()


def draw():
    """What each generator gives next: whole numbers, and halves of a pair of normal ones."""
    normal = random.gauss(0, 1), float(np.random.normal())
    return random.getrandbits(64), *normal, *np.random.randint(1 << 30, size=3), torch.rand(3)[1]


@pytest.mark.parametrize("before", [0, 1, 700], ids=["fresh", "amid a pair", "a block later"])
def test_the_random_state_comes_back_bit_by_bit(before):
    checkpointer.seed_all(11, rank=3)
    for _ in range(before):
        draw()
    blob = checkpointer.capture()
    wanted = [draw() for _ in range(3)]
    checkpointer.seed_all(12, rank=0)
    assert [draw() for _ in range(3)] != wanted
    checkpointer.restore(blob)
    assert [draw() for _ in range(3)] == wanted
