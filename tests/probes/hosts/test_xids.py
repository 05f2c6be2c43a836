"""HOSTS on the Xids that NVIDIA's driver reported while the probes ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probes.hosts.closing import describe_event, read_starts
from reports.run_folder.store import Store
from reports.run_folder.times import parse_time
from tests.support.controls import recorder
from tests.support.simulated_driver import SimulatedDriver
from tests.support.simulated_hosts import (
    StandInHosts,
    findings,
    not_passed,
    run_closing,
    xid_event,
)

NOTED = "Xids after kills"


def heard(*events: dict[str, Any], error: dict[str, Any] | None = None) -> StandInHosts:
    """Make a cluster on whose second node this was heard."""
    cluster = StandInHosts()
    cluster.xids["id1"] = {"error": error, "seconds": 300.0, "events": list(events)}
    return cluster


def test_an_xid_is_named_with_its_gpu_and_time() -> None:
    result = run_closing(heard(xid_event(79), xid_event(48, 5)))
    assert not_passed(result) == {"xids n1": "FAIL"}
    assert findings(result) == [("HOST-XID", ["n1"])]
    statement = result.findings[0].statement
    assert statement.startswith("n1: Xid 79 of GPU 3 (GPU-1-3, slot 00000000:13:00.0) at ")
    assert ", Xid 48 of GPU 5 (GPU-1-5, slot 00000000:15:00.0) at " in statement
    assert statement.endswith(" UTC. Expected: no Xid")
    assert "seatrial listened for Xids for 300 s" in result.coverage
    (value,) = [m.value for m in result.measurements if (m.name, m.subject) == ("xids", "n1")]
    assert value == 2
    assert NOTED not in {m.name for m in result.measurements}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 94, 109, 137, 154])
def test_without_a_kill_no_xid_is_excused(xid: int) -> None:
    """No other job runs during a trial: a program failed, and nothing that was planted says why."""
    result = run_closing(heard(xid_event(xid)))
    assert not_passed(result) == {"xids n1": "FAIL"}
    assert findings(result) == [("HOST-XID", ["n1"])]
    assert NOTED not in {m.name for m in result.measurements}


@pytest.mark.near_miss("HOSTS.xids")
def test_what_follows_a_kill_by_seatrial_only_informs() -> None:
    events = [xid_event(137, 4, after_kill=0.4), xid_event(94, 3, after_kill=0.5)]
    result = run_closing(heard(*events, xid_event(154, after_kill=14.9)))
    assert not_passed(result) == {}
    assert findings(result) == []
    (note,) = [m for m in result.measurements if m.name == NOTED]
    assert (note.value, note.subject) == (3, "n1")
    said = result.coverage.partition("Xids that are not judged: n1: Xid 137 of GPU 4 (GPU-1-4")[2]
    assert " UTC, 0.4 s after seatrial had killed a process there, n1: Xid 94 of GPU 3 (" in said
    assert said.count("after seatrial had killed a process there") == 3


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 69, 94, 108, 109, 137, 144, 148, 154])
def test_a_kill_may_be_the_cause_of_each_of_these(xid: int) -> None:
    assert not_passed(run_closing(heard(xid_event(xid, after_kill=0.0)))) == {}


@pytest.mark.parametrize("xid", [13, 31, 137, 94, 154])
def test_after_a_while_a_kill_explains_nothing(xid: int) -> None:
    result = run_closing(heard(xid_event(xid, after_kill=15.1)))
    assert not_passed(result) == {"xids n1": "FAIL"}
    assert "killed" not in result.findings[0].statement


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 95, 119, 143, 149])
def test_no_kill_breaks_a_board(xid: int) -> None:
    """Next to what the kill caused, it is judged, and it alone is named."""
    both = run_closing(heard(xid_event(137, 4, after_kill=0.4), xid_event(xid, after_kill=0.5)))
    assert not_passed(both) == {"xids n1": "FAIL"}
    (value,) = [m.value for m in both.measurements if (m.name, m.subject) == ("xids", "n1")]
    assert value == 1
    assert f"Xid {xid} of GPU 3" in both.findings[0].statement
    assert "137" not in both.findings[0].statement


@pytest.mark.parametrize(("kills", "red"), [((), "01"), (("id0",), "1"), (("id0", "id1"), "")])
def test_a_kill_explains_xids_of_its_own_node_alone(
    monkeypatch: pytest.MonkeyPatch, kills: tuple[str, ...], red: str
) -> None:
    """From the kill to the verdict: the listeners of two nodes hear both drivers."""
    driver, cluster = SimulatedDriver(monkeypatch, "id0", "id1"), StandInHosts()
    driver.cluster.note_kill(kills)
    for id in ("id0", "id1"):
        driver.report(id, 137, 94, 154)
    cluster.xids |= driver.cluster.hear_xids()[0]
    driver.close()
    result = run_closing(cluster)
    assert not_passed(result) == {f"xids n{node}": "FAIL" for node in red}


def test_a_node_that_stopped_listening_proves_nothing() -> None:
    gone = {"code": 15, "text": "GPU is lost"}
    result = run_closing(heard(error=gone))
    assert not_passed(result) == {"xids n1": "UNPROVEN"}
    (note,) = [m.note for m in result.measurements if (m.name, m.subject) == ("xids", "n1")]
    assert note == "NVML stopped reporting Xids: GPU is lost"
    assert not_passed(run_closing(heard(xid_event(79), error=gone))) == {"xids n1": "FAIL"}
    # What a kill caused before is no proof of the rest.
    after = xid_event(31, after_kill=1.0)
    assert not_passed(run_closing(heard(after, error=gone))) == {"xids n1": "UNPROVEN"}


def test_a_node_without_a_listener_proves_nothing() -> None:
    cluster = StandInHosts()
    del cluster.xids["id1"], cluster.xids["id2"]
    cluster.xid_errors["id2"] = "no answer within 30 s"
    result = run_closing(cluster)
    notes = {m.subject: m.note for m in result.measurements if m.name == "xids" and m.note}
    assert notes == {
        "n1": "its Xids could not be read: the node joined later",
        "n2": "its Xids could not be read: no answer within 30 s",
    }


def test_an_xid_of_a_gpu_that_is_not_known_any_more() -> None:
    event = {"index": None, "uuid": "", "xid": 79, "ago": 0.0}
    assert describe_event(event, []).startswith("Xid 79 of an unknown GPU at ")


def test_the_probe_that_ran_at_that_moment_is_named() -> None:
    starts = [(parse_time("2020-01-01T00:00:00Z"), "test_first")]
    assert describe_event(xid_event(79), starts).endswith(" while test_first ran")
    late = [*starts, (parse_time("2999-01-01T00:00:00Z"), "test_second")]
    assert describe_event(xid_event(79), late).endswith(" while test_first ran")
    assert describe_event(xid_event(79), late[1:]).endswith(" UTC")


def test_starts_are_read_from_the_runs_events(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        about = {"criterion": "HOSTS", "claim": "", "reproduce": ""}
        store.event("probe_started", "probes/x.py::test_one", **about)
        store.event("measurement", "probes/x.py::test_one", name="a")
        measure = recorder("HOSTS")
        measure.store = store
        ((_, probe),) = read_starts(measure)
        assert probe == "test_one"
    finally:
        store.close()
    assert read_starts(measure.trial()) == []
