"""Ranks that do not come together.  A plugin that plants one such fault, and the faults.

pytest -p tests.faults.launchers.faulty_start ...      with SEATRIAL_TEST_FAULT=<a name of FAULTS>

The culprit is rank 2 of the FABRIC probe's gang, when it connects.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial, update_wrapper

from probes.fabric import sweep as roads
from scaling.collectives import sweep as collectives

NAME = "SEATRIAL_TEST_FAULT"
CULPRIT = "2"
SECONDS = 15  # instead of what NCCL needs to give up


def pytest_configure() -> None:
    """The gang connects by a faulty function from now on, and is not waited for so long."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers have no tests
    faulty = update_wrapper(
        partial(_connect, FAULTS[os.environ[NAME]], collectives.connect), collectives.connect
    )
    setattr(collectives, "connect", faulty)  # noqa: B010  (mypy)
    roads.START_SECONDS = SECONDS


def _connect(fault: Callable[[], None], connect: Callable[[], float]) -> float:
    if os.environ["RANK"] == CULPRIT:
        fault()
    return connect()


def never_comes() -> None:
    """It does something else while the others wait for it to join."""
    time.sleep(600)


def falls_behind() -> None:
    """It joins, and is not there for the first collective."""
    with collectives.process_group():
        time.sleep(600)


def gives_up() -> None:
    """It has no interface of the name that it was given."""
    os.environ["GLOO_SOCKET_IFNAME"] = "fab7"


FAULTS: dict[str, Callable[[], None]] = {
    "never-comes": never_comes,
    "falls-behind": falls_behind,
    "gives-up": gives_up,
}
