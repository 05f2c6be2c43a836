"""A shared folder that is late, slow for all, or goes away in the run: named by HOSTS, live.

Faults of one node are in `live_faults.py`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.launchers.injected_faults import all_caught, failed, findings, said_of
from tests.faults.live_faults import AGREED, FOLDER, LOSSES, RATES, TO_THE_END
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.lab.node import SHARED
from tests.support.trial import acceptance, agreed, driver_pid, start

# In `make test`, test_hosts_families.py plants a fault of each family.
pytestmark = pytest.mark.soak(criterion="hosts")
LAB = {"nodes": 3, "name": "storage"}
SOON = f'[HOSTS.seen_after]\nat_most = 1\nunit = "s"\n{AGREED}'
CLEAN_SECONDS = 60  # for files to go after a driver's death: its ranks end first


def left_over(lab: Lab) -> list[Path]:
    """Return what the probe left in any view of the shared folder."""
    return [*lab.home.rglob(".seatrial-*")]


@pytest.mark.near_miss("HOSTS.seen_after", "HOSTS.unseen_files", "HOSTS.rename_gaps")
def test_a_folder_that_is_some_seconds_late_is_no_place_for_lock_files(lab: Lab) -> None:
    inject(lab, "shared", "2", "late")
    record, trial = acceptance(lab, "late", FOLDER)
    assert failed(record) == {"double_creations"}, trial.log.read_text()
    ((code, suspects, statement),) = said_of(record)
    assert code == "HOST-STORAGE-EXCL"
    assert "node2" in suspects  # and the node that creates them on the other side
    assert "Expected: exactly one node, by O_EXCL. Nodes concerned: " in statement


def test_what_is_agreed_of_a_late_folder_is_judged(lab: Lab) -> None:
    inject(lab, "shared", "2", "late")
    contract = agreed(lab, {}, f"{LOSSES}\n{SOON}")
    record, trial = acceptance(lab, "late-agreed", FOLDER, contract=contract)
    assert failed(record) == {"double_creations", "lost_updates", "lost_lines", "seen_after"}, (
        trial.log.read_text()
    )
    found = {one.code: one.suspects for one in findings(record)}
    assert found["HOST-STORAGE-LATE"] == ["node2"]
    assert set(found) >= {"HOST-STORAGE-LOCK", "HOST-STORAGE-APPEND"}


def test_a_folder_that_is_slower_than_agreed_for_all_is_reported(lab: Lab) -> None:
    contract = agreed(lab, {"schema = 1": 'schema = 1\ntier = "standard"'}, RATES)
    record, trial = acceptance(lab, "rates", FOLDER, "--tier", "standard", contract=contract)
    assert failed(record) == {"write_rate", "read_rate"}, trial.log.read_text()
    assert {one.code for one in findings(record)} == {"HOST-STORAGE-RATE"}
    assert all_caught(record)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("unmounted", "/shared on node1: the mount at the start was "),
        pytest.param("readonly", "/shared on node1: no file can be written there any more: "
                     "Read-only file system"),
        pytest.param("private", "(root /run/seatrial-lab/storage/node1/own-shared)"),
    ],
    ids=["unmounted", "readonly", "private"],
)  # fmt: skip
def test_a_folder_that_goes_away_in_the_run_is_named(lab: Lab, kind: str, says: str) -> None:
    meeting = lab.home / "shared" / f"end-{kind}"
    meeting.mkdir()
    fault = ("waiting_end", f"{SHARED}/{meeting.name}")
    trial = start(lab, f"end-{kind}", FOLDER, TO_THE_END, fault=fault)
    deadline = time.monotonic() + 120
    while not (meeting / "at-end").exists():
        assert time.monotonic() < deadline, trial.log.read_text()
        time.sleep(0.05)
    inject(lab, "shared", "1", kind)
    (meeting / "go-on").touch()
    record = trial.wait()
    assert failed(record) == {"storage_lost"}, trial.log.read_text()
    ((code, suspects, statement),) = said_of(record)
    assert (code, suspects) == ("HOST-STORAGE-LOST", ["node1"])
    assert says in statement
    assert all_caught(record)


def test_a_driver_that_is_killed_leaves_no_file(lab: Lab) -> None:
    trial = start(lab, "killed", FOLDER)
    deadline = time.monotonic() + 120
    while not [path for path in left_over(lab) if [*path.glob("shard-*")]]:
        assert time.monotonic() < deadline, trial.log.read_text()
        time.sleep(0.02)
    os.kill(driver_pid(lab), signal.SIGKILL)
    trial.process.wait(timeout=60)
    deadline = time.monotonic() + CLEAN_SECONDS
    while left_over(lab):
        assert time.monotonic() < deadline, left_over(lab)
        time.sleep(0.5)
