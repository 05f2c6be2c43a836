"""A trainer that is the only rank of its job, in this process, for the tests of this folder."""

import shutil

import pytest

from reference_trainer.config import TrainConfig
from tests.support.single_rank import only_rank

SMALL = {"batch": 2, "seq": 16, "vocab": 64, "dim": 16, "layers": 1, "heads": 2, "device": "cpu"}


@pytest.fixture(scope="session")
def alone():
    """Train as the only rank of a job: alone(steps=3, ...) -> result."""
    from reference_trainer.train import train

    def run(**knobs):
        with only_rank():
            return train(TrainConfig(**{**SMALL, **knobs}))

    return run


@pytest.fixture(scope="session")
def saved(alone, tmp_path_factory):
    """A folder with step-2 and step-4, and the result of a run that was never interrupted."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    alone(steps=4, checkpoints=str(folder), save_every=2)
    return folder, alone(steps=6)


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the saved folder, to be damaged."""
    shutil.copytree(saved[0], tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def hexes(result):
    return [(s["step"], s["loss_hex"], s["norm_hex"], s["ids"]) for s in result["steps"]]
