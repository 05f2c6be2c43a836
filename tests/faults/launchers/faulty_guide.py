"""Our own guide, written so that it does not lead to the job that it promises.  A plugin.

pytest -p tests.faults.launchers.faulty_guide ...      with SEATRIAL_TEST_FAULT=<a name of FAULTS>
"""

from __future__ import annotations

import os

from probes.launch import controls
from probes.launch.guide import Guide, own_guide, parse_guide

NAME = "SEATRIAL_TEST_FAULT"
ENVIRONMENT = """ --runtime-env-json '{"env_vars": {"MYJOB_STAGE": "first"}}'"""
QUICK_END = "--restarts 0 --init-timeout-s 20"  # of a job whose ranks do not find each other
PLANTED = "weights,samples,validation,metrics,loss,export,corrupt"


def pytest_configure() -> None:
    """The guide is another from now on."""
    vars(controls)["own_guide"] = faulty_guide


def faulty_guide() -> Guide:
    """Write our guide with the fault that was asked for."""
    guide, (old, new) = own_guide(), FAULTS[os.environ[NAME]]
    assert guide.text.count(old) == 1, old
    return parse_guide(guide.name, guide.text.replace(old, new), own=True)


def options(words: str) -> tuple[str, str]:
    """Add options to the job's own command."""
    return "--name myjob", f"--name myjob {words}"


FAULTS: dict[str, tuple[str, str]] = {
    # A rank or variable that is missing or wrong.
    "one-rank-fewer": ("--workers all", "--workers 3"),
    **{
        f"no-{name.lower().replace('_', '-')}": options(f"--unset {name} {QUICK_END}")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    },
    "no-local-world-size": options("--unset LOCAL_WORLD_SIZE"),
    "no-node-rank": options("--unset NODE_RANK"),
    "wrong-local-rank": options("--set LOCAL_RANK=7"),
    "wrong-world-size": options(f"--set WORLD_SIZE=3 {QUICK_END}"),
    "wrong-local-world-size": options("--set LOCAL_WORLD_SIZE=4"),
    "wrong-node-rank": options("--set NODE_RANK=0"),
    "wrong-group-rank": options("--set GROUP_RANK=9"),
    "loopback-master": options(f"--set MASTER_ADDR=127.0.0.1 {QUICK_END}"),
    "occupied-port": options(f"--set MASTER_PORT=29500 {QUICK_END}"),
    "no-environment": (ENVIRONMENT, ""),
    # What the ranks train.
    **{plant: options(f"--plant {plant}") for plant in PLANTED.split(",")},
    "repeat": options("--plant repeat"),
    # Each start of a job clears /tmp of its node, as some images do.
    "clears-tmp": (
        "python -m reference_trainer",
        """bash -c 'rm -rf /tmp/seatrial-*/step-*; exec "$@"' - python -m reference_trainer""",
    ),
    "other-network": options("--set GLOO_SOCKET_IFNAME=eth0"),
    "everything": options(f"--plant {PLANTED} --set LOCAL_RANK=7 --set GLOO_SOCKET_IFNAME=eth0"),
    # A command of the guide.
    "typo": ("reference_trainer launch", "reference_trainr launch"),
    "first-command": ("seatrial example", "seatrial exmaple"),
    "swallowed": ("--show MYJOB_STAGE", "--show MYJOB_STAGE || true"),
    "into-a-file": ("--show MYJOB_STAGE", "--show MYJOB_STAGE > log.txt 2>&1"),
    "leaves-a-process": options("--plant process"),
    "in-a-room-of-its-own": ("ray job submit", "cd / && ray job submit"),
}
