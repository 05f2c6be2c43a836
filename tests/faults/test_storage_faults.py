"""A shared folder that is not one, is late, slow, read-only, full or away: named by HOSTS, live."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.measurement import Verdict
from reports.record import RunRecord
from tests.faults.launchers.injected_faults import failed, findings
from tests.lab.faults import inject
from tests.lab.lab import Lab
from tests.lab.node import SHARED
from tests.support.trial import Trial, acceptance, agreed, driver_pid, lab_of, start

# In `make test`, test_hosts_families.py plants a fault of each family.
pytestmark = pytest.mark.soak(criterion="hosts")
PROBE = "probes/hosts/test_hosts.py"
CLOSING = "probes/hosts/test_hosts.py"
LOSSES = "\n".join(
    f'[HOSTS.{name}]\nat_most = 0\nunit = "{unit}"\nbecause = "jobs of the parties need it"'
    for name, unit in (("lost_lines", "lines"), ("lost_updates", "updates"))
)
SOON = '[HOSTS.seen_after]\nat_most = 1\nunit = "s"\nbecause = "jobs of the parties need it"'
RATES = "\n".join(
    f'[HOSTS.{name}]\nat_least = 1000\nunit = "GB/s"\nbecause = "more than any disk has"'
    for name in ("write_rate", "read_rate")
)
SAVES = {'shared = "/shared"': 'shared = "/shared"\nsave_gb = 0.01'}
SHARING = ("unseen_files", "seen_after", "double_creations", "rename_gaps", "failed_shards")
CLEAN_SECONDS = 60  # for files to go after a driver's death: its ranks end first
SPEEDS = ("shard_write", "shard_read", "random_read")


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, and what HOSTS says of it: measures that fail, finding, node, words."""

    kind: str
    measures: set[str]
    code: str
    suspects: list[str]
    says: str
    contract: dict[str, str] = dataclasses.field(default_factory=dict)


SLOW = Fault(
    "slow", {*SPEEDS}, "HOST-STORAGE-SLOW", ["node2"],
    "node2 writes its shard in /shared at ",
)  # fmt: skip
PRIVATE = Fault(
    "private", {"unseen_files"}, "HOST-SHARED", ["node2"],
    "node2 does not see files of the others in /shared, nor they its files",
)  # fmt: skip
FAULTS = [
    PRIVATE,
    dataclasses.replace(PRIVATE, kind="later"),
    dataclasses.replace(PRIVATE, kind="unmounted"),
    Fault(
        "readonly", {"failed_shards"}, "HOST-STORAGE-ERROR", ["node2"],
        "node2 cannot write and read files in /shared: Read-only file system",
    ),
    Fault(
        "full", {"failed_shards", "unseen_files", "checkpoint_room"}, "HOST-STORAGE-FULL",
        ["node2"], "node2 cannot write and read files in /shared: No space left on device", SAVES,
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole_lab() -> Iterator[Lab]:
    """Three nodes, up once for all tests of this file."""
    with lab_of(3, "storage") as lab:
        yield lab


def judge_storage(
    lab: Lab, name: str, other: dict[str, str] | None = None, more: str = ""
) -> tuple[RunRecord, Trial]:
    """Run the probe on the lab as it is, by the lab's contract with these lines."""
    return acceptance(lab, name, PROBE, contract=agreed(lab, other or {}, more))


def left_over(lab: Lab) -> list[Path]:
    """Return what the probe left in any view of the shared folder."""
    return [*lab.home.rglob(".seatrial-*")]


def passes(lab: Lab, record: RunRecord, trial: Trial, controls: int) -> None:
    """Check that nothing was found, that each control was caught, and that nothing is left."""
    assert record.verdict("HOSTS") is Verdict.PASS, trial.log.read_text()
    assert not findings(record)
    (result,) = record.results
    assert len(result.controls) == controls
    assert all(control.caught for control in result.controls), result.controls
    assert not left_over(lab)


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in (*SHARING, *SPEEDS)))
def test_a_sound_folder_passes(lab: Lab) -> None:
    passes(lab, *judge_storage(lab, "sound"), 4)


@pytest.mark.near_miss("HOSTS.lost_lines", "HOSTS.lost_updates", "HOSTS.checkpoint_room")
@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_sound_folder_passes_all_that_can_be_agreed(lab: Lab, time: int) -> None:
    passes(lab, *judge_storage(lab, f"agreed-{time}", SAVES, LOSSES), 5)


def is_named(fault: Fault, record: RunRecord, trial: Trial) -> None:
    """Check that a fault failed its measures and was found where it was planted."""
    assert failed(record) == fault.measures, trial.log.read_text()
    found = [one for one in findings(record) if (one.code, one.suspects) == (
        fault.code, fault.suspects)]  # fmt: skip
    assert any(fault.says in one.statement for one in found), findings(record)
    assert {name for one in findings(record) for name in one.suspects} == {*fault.suspects}


def test_a_slow_node_is_named(lab: Lab) -> None:
    inject(lab, "shared", "2", SLOW.kind)
    is_named(SLOW, *judge_storage(lab, "slow"))
    assert not left_over(lab)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
def test_a_fault_is_named(lab: Lab, fault: Fault) -> None:
    inject(lab, "shared", "2", fault.kind)
    is_named(fault, *judge_storage(lab, fault.kind, fault.contract))
    if fault.kind != "later":
        assert not left_over(lab)


@pytest.mark.near_miss("HOSTS.seen_after", "HOSTS.unseen_files", "HOSTS.rename_gaps")
def test_a_folder_that_is_some_seconds_late_is_no_place_for_lock_files(lab: Lab) -> None:
    inject(lab, "shared", "2", "late")
    record, trial = judge_storage(lab, "late")
    assert failed(record) == {"double_creations"}, trial.log.read_text()
    ((code, suspects, statement),) = [
        (one.code, one.suspects, one.statement) for one in findings(record)
    ]
    assert code == "HOST-STORAGE-EXCL"
    assert "node2" in suspects  # and the node that creates them on the other side
    assert "were not created by exactly one node with O_EXCL: " in statement


def test_what_is_agreed_of_a_late_folder_is_judged(lab: Lab) -> None:
    inject(lab, "shared", "2", "late")
    record, trial = judge_storage(lab, "late-agreed", {}, f"{LOSSES}\n{SOON}")
    assert failed(record) == {"double_creations", "lost_updates", "lost_lines", "seen_after"}, (
        trial.log.read_text()
    )
    found = {one.code: one.suspects for one in findings(record)}
    assert found["HOST-STORAGE-LATE"] == ["node2"]
    assert set(found) >= {"HOST-STORAGE-LOCK", "HOST-STORAGE-APPEND"}


def test_a_folder_that_is_slower_than_agreed_for_all_is_reported(lab: Lab) -> None:
    contract = agreed(lab, {"schema = 1": 'schema = 1\ntier = "standard"'}, RATES)
    record, trial = acceptance(lab, "rates", PROBE, "--tier", "standard", contract=contract)
    assert failed(record) == {"write_rate", "read_rate"}, trial.log.read_text()
    assert {one.code for one in findings(record)} == {"HOST-STORAGE-RATE"}
    assert all(one.caught for result in record.results for one in result.controls)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("unmounted", "/shared on node1: at the start it was "),
        pytest.param("readonly", "/shared on node1: no file can be written there any more: "
                     "Read-only file system"),
        pytest.param("private", "(its /run/seatrial-lab/storage/node1/own-shared)"),
    ],
    ids=["unmounted", "readonly", "private"],
)  # fmt: skip
def test_a_folder_that_goes_away_in_the_run_is_named(lab: Lab, kind: str, says: str) -> None:
    meeting = lab.home / "shared" / f"end-{kind}"
    meeting.mkdir()
    fault = ("waiting_end", f"{SHARED}/{meeting.name}")
    trial = start(lab, f"end-{kind}", PROBE, CLOSING, fault=fault)
    deadline = time.monotonic() + 120
    while not (meeting / "at-end").exists():
        assert time.monotonic() < deadline, trial.log.read_text()
        time.sleep(0.05)
    inject(lab, "shared", "1", kind)
    (meeting / "go-on").touch()
    record = trial.wait()
    assert failed(record) == {"storage_lost"}, trial.log.read_text()
    ((code, suspects, statement),) = [
        (one.code, one.suspects, one.statement) for one in findings(record)
    ]
    assert (code, suspects) == ("HOST-STORAGE-LOST", ["node1"])
    assert says in statement
    assert all(one.caught for result in record.results for one in result.controls)


def test_a_driver_that_is_killed_leaves_no_file(lab: Lab) -> None:
    trial = start(lab, "killed", PROBE)
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
