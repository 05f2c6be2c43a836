"""Fixtures that several folders share: a trainer that is alone in its job, and a lab."""

import os
import shutil
from collections.abc import Iterator

import pytest

from reference_trainer.config import TrainConfig
from tests.lab.faults import clear
from tests.lab.lab import Lab
from tests.support.seen import (  # noqa: F401 - hooks of pytest
    pytest_collection_finish,
    pytest_configure,
    pytest_runtest_call,
    pytest_sessionfinish,
    pytest_terminal_summary,
)
from tests.support.single_rank import only_rank
from tests.support.trial import lab_of

CLUSTERS = ("tests/faults/", "tests/lab/")  # all their tests run on a lab
# Runs that are tested must not write into the summary of the job that tests them.
os.environ.pop("GITHUB_ACTIONS", None)

SMALL = {"batch": 2, "seq": 16, "vocab": 64, "dim": 16, "layers": 1, "heads": 2, "device": "cpu"}


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items):
    """Mark the tests of a lab: no other test runs beside them."""
    for item in items:
        if item.nodeid.startswith(CLUSTERS):
            item.add_marker(pytest.mark.alone)


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


@pytest.fixture(scope="session")
def common_lab() -> Iterator[Lab]:
    """Four nodes, up once for all tests that name no lab of their own."""
    with lab_of(4, "tested") as lab:
        yield lab


@pytest.fixture(scope="module")
def whole_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab that the case names, or `LAB` of its file, or else the common one.

    They name the arguments of `lab_of`. It is up once for all cases or tests of this lab.
    """
    size = dict(getattr(request, "param", ()) or getattr(request.module, "LAB", ()))
    if not size:
        yield request.getfixturevalue("common_lab")
    else:
        with lab_of(**size) as lab:
            yield lab


@pytest.fixture
def lab(whole_lab: Lab) -> Iterator[Lab]:
    """The lab, healthy before and after."""
    yield whole_lab
    clear(whole_lab)
