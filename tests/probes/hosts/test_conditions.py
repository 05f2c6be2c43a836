"""HOSTS on what a worker inherits and meets: each row of the table, and differences."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes.cluster.node_watch import NodeState
from probes.hosts import conditions
from probes.hosts.conditions import Condition, read_table
from probes.toml_tables import TableError
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.simulated_hosts import findings
from tests.support.simulated_system import SOUND, StandInSystem, run_system

NAME = "breaking_conditions"
ROWS = read_table().rows
# Readings of the kind that users reported, and what is near to them and does no harm.
BROKEN = {
    "address-space": ("12884901888", "70368744177664"),
    "data-size": ("12884901888", "unlimited"),
    "file-size": ("268435456", "1099511627776"),
    "cpu-time": ("3600", "unlimited"),
    "cpus": ("0.74", "0.75"),
    "idle-class": ("SCHED_IDLE", "SCHED_BATCH"),
    "umask": ("7", "0"),
    "map-count": ("65529", "65530"),
    "exec-of-temporary-files": ("refused (noexec)", "allowed"),
    "exec-of-session": ("refused (noexec)", "allowed"),
    "exec-of-home": ("refused (noexec)", "absent"),
    "write-of-temporary-files": ("Disk quota exceeded", "done"),
    "write-of-session": ("File too large", "done"),
}
NOTED = {
    "ephemeral-ports": ("9998", "0"),
    "overcommit": ("2", "1"),
    "clock-source": ("hpet", "kvm-clock"),
}


def run_changed(**readings: str | None) -> ProbeResult:
    """Run the probe over three nodes; the second reads this, and None is not there."""
    cluster = StandInSystem()
    for name, text in readings.items():
        if text is None:
            del cluster.conditions["id1"]["readings"][name]
        else:
            cluster.conditions["id1"]["readings"][name] = text
    return run_system(cluster)


def values(result: ProbeResult) -> dict[str, Any]:
    """Value of the measure on each node."""
    return {one.subject: one.value for one in result.measurements if one.name == NAME}


def noted(result: ProbeResult, name: str) -> list[tuple[Any, str]]:
    """Text and nodes of the notes of a name."""
    return [(one.value, one.subject) for one in result.measurements if one.name == name]


@pytest.mark.parametrize("title", BROKEN)
def test_each_condition_is_red_on_its_node_alone(title: str) -> None:
    row = ROWS[title]
    broken, near = BROKEN[title]
    result = run_changed(**{row.of: broken})
    assert values(result) == {"n0": 0, "n1": 1, "n2": 0}
    ((code, suspects),) = findings(result)
    assert (code, suspects) == (row.code, ["n1"])
    (said,) = [one.statement for one in result.findings]
    assert said.startswith("n1: ")
    assert row.because in said
    assert run_changed(**{row.of: near}).verdict is Verdict.PASS


@pytest.mark.parametrize("title", NOTED)
def test_what_sound_clusters_have_is_noted(title: str) -> None:
    broken, near = NOTED[title]
    result = run_changed(**{ROWS[title].of: broken})
    assert result.verdict is Verdict.PASS
    ((text, on),) = noted(result, title)
    assert (broken in str(text), on) == (True, "n1")
    assert noted(run_changed(**{ROWS[title].of: near}), title) == []


def test_every_row_is_tried() -> None:
    others = {"flapping", "same-name"}
    assert BROKEN.keys() | NOTED.keys() | others == ROWS.keys()
    assert {title for title, row in ROWS.items() if row.noted} == NOTED.keys() | others


@pytest.mark.near_miss(f"HOSTS.{NAME}")
def test_sound_nodes_pass_and_the_control_is_caught() -> None:
    result = run_changed()
    assert result.verdict is Verdict.PASS
    assert noted(result, "unlike_conditions") == []
    (control,) = [one for one in result.controls if one.name == "short files"]
    assert (control.caught, control.fault.split()[3]) == (True, "n2")


def test_a_limit_that_does_not_hold_is_no_control() -> None:
    cluster = StandInSystem()
    cluster.short = False
    (control,) = [one for one in run_system(cluster).controls if one.name == "short files"]
    assert control.caught is False


@pytest.mark.parametrize("title", BROKEN)
def test_what_is_not_read_on_one_node_proves_nothing(title: str) -> None:
    result = run_changed(**{ROWS[title].of: None})
    assert values(result) == {"n0": 0, "n1": None, "n2": 0}
    assert result.verdict is Verdict.UNPROVEN
    assert findings(result) == []


def test_a_kind_that_cannot_be_read_says_why() -> None:
    cluster = StandInSystem()
    cluster.conditions["id1"] = {"readings": {}, "unreadable": {"limit": "OSError: gone"}}
    result = run_system(cluster)
    (note,) = [one.note for one in result.measurements if (one.name, one.subject) == (NAME, "n1")]
    assert "limit Max address space: OSError: gone" in note
    assert "cpus share of Ray's: it is not there" in note


def test_a_node_that_does_not_answer_proves_nothing() -> None:
    cluster = StandInSystem()
    del cluster.conditions["id1"]
    assert values(run_system(cluster)) == {"n0": 0, "n1": None, "n2": 0}


def test_a_node_with_two_conditions_counts_both_and_equal_ones_are_one_finding() -> None:
    cluster = StandInSystem()
    for id in cluster.conditions:
        cluster.conditions[id]["readings"]["limit Max file size"] = "268435456"
    cluster.conditions["id2"]["readings"]["cpus share of Ray's"] = "0.5"
    result = run_system(cluster)
    assert values(result) == {"n0": 1, "n1": 1, "n2": 2}
    assert findings(result) == [("HOST-LIMIT", ["n0", "n1", "n2"]), ("HOST-CPUSET", ["n2"])]
    assert result.findings[0].statement.startswith("each node: ")


def test_machines_of_one_name_are_noted() -> None:
    """Golden images have one name, and NCCL tells machines apart by their boot ids as well."""
    cluster = StandInSystem()
    for fact in cluster.facts[1:]:
        fact["host"] = "gpu-node"
    result = run_system(cluster)
    assert result.verdict is Verdict.PASS
    assert noted(result, "same-name") == [("other machines with its host name: 1", "n1, n2")]


def test_two_nodes_of_one_machine_have_its_name() -> None:
    cluster = StandInSystem()
    for fact in cluster.facts[1:]:
        fact |= {"host": "gpu-node", "boot_id": "one"}
    assert noted(run_system(cluster), "same-name") == []


def test_a_node_that_was_lost_again_and_again_is_noted() -> None:
    """By its address: it comes back under another id.  `ray stop` is no loss."""
    cluster = StandInSystem()
    lost = NodeState("old", "n1", "10.0.0.1", alive=False, reason=2)
    cluster.states = [lost, lost, replace(lost, reason=1), replace(lost, address="10.0.0.9")]
    assert noted(run_system(cluster), "flapping") == []
    cluster.states.append(lost)
    result = run_system(cluster)
    assert result.verdict is Verdict.PASS
    ((text, on),) = noted(result, "flapping")
    assert (text, on) == (
        "Ray lost this node 3 times since the head started, and it came back",
        "n1",
    )


def test_what_differs_alike_is_one_note() -> None:
    result = run_changed(**{"setting vm/swappiness": "10", "limit Max pending signals": "4"})
    assert noted(result, "unlike_conditions") == [
        (
            "limit Max pending signals: 96365 on n0, n2, 4 on n1, "
            "setting vm/swappiness: 60 on n0, n2, 10 on n1",
            "n1",
        )
    ]


def test_what_one_node_alone_has_differs() -> None:
    ((text, on),) = noted(run_changed(**{"variable http_proxy": "set (ab12)"}), "unlike_conditions")
    assert (text, on) == ("variable http_proxy: not there on n0, n2, set (ab12) on n1", "n1")


def test_evidence_has_what_most_nodes_have_once() -> None:
    sound = dict(SOUND["readings"])
    changed = {**sound, "setting vm/swappiness": "10", "variable TMPDIR": "/scratch"}
    nodes = [sound, changed, sound, {**sound, "variable TMPDIR": "/scratch"}]
    found = {f"n{i}": {"readings": each, "unreadable": {}} for i, each in enumerate(nodes)}
    found["n2"]["unreadable"] = {"limit": "gone"}
    short = conditions.shorten(found)
    assert short["usual"] == {**sound, "variable TMPDIR": "/scratch"}
    assert short["others"] == {
        "n0": {"variable TMPDIR": "not there"},
        "n1": {"setting vm/swappiness": "10"},
        "n2": {"variable TMPDIR": "not there"},
        "n3": {},
    }
    assert short["unreadable"] == {"n2": {"limit": "gone"}}


def test_what_names_a_process_is_left_out() -> None:
    assert noted(run_changed(**{"variable RAY_RAYLET_PID": "12"}), "unlike_conditions") == []


def test_nodes_of_two_ordered_kinds_are_not_compared() -> None:
    cluster = StandInSystem(nodes=4)
    for index in (2, 3):
        for gpu in cluster.facts[index]["gpus"]:
            gpu["name"] = "NVIDIA L40S"
        cluster.conditions[f"id{index}"]["readings"]["setting vm/swappiness"] = "10"
    kinds = {"NVIDIA H100 80GB HBM3": 2, "NVIDIA L40S": 2}
    assert noted(run_system(cluster, gpu_model=kinds, nodes=4), "unlike_conditions") == []
    assert len(noted(run_system(cluster), "unlike_conditions")) == 1


def test_every_left_out_reading_has_a_reason() -> None:
    assert all(len(reason) > 10 for reason in read_table().left_out.values())


@pytest.mark.parametrize("keys", [{}, {"low": 1, "one_of": ["a"]}, {"high": float("nan")}])
def test_a_row_without_one_limit_is_an_error(keys: dict[str, Any]) -> None:
    row = {
        "of": "cpus usable",
        "code": "HOST-CPUSET",
        "text": "x",
        "because": "y y",
        "threads": [],
    }
    with pytest.raises(ValueError, match=r"limit|expected"):
        Condition(**row, **keys).judge("1")


def test_a_file_with_an_unknown_key_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "conditions.toml"
    file.write_text(conditions.TABLE.read_text().replace("because =", "why ="))
    monkeypatch.setattr(conditions, "TABLE", file)
    with pytest.raises(TableError, match="because"):
        read_table.__wrapped__()


# What this host shows, with real limits, folders and files.


def test_this_host_is_read_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(conditions, "read_session", lambda: ("session", str(tmp_path)))
    answer = conditions.read_conditions("salt", 0, 1)
    assert answer["unreadable"] == {}
    known = {row.of for row in ROWS.values()} - {"name machines with the same", "raylet losses"}
    assert known <= answer["readings"].keys()
    assert SOUND["readings"].keys() - {"variable RAY_RAYLET_PID"} <= answer["readings"].keys()


def in_a_process(code: str, before: Callable[[], None]) -> str:
    """Run code in a process that `before` prepares."""
    words = [sys.executable, "-c", f"from probes.hosts import conditions; print({code})"]
    return subprocess.run(
        words, preexec_fn=before, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_a_real_limit_of_addresses_is_read() -> None:
    lowered = (2**40, 2**40)
    said = in_a_process(
        "conditions.read_limits()['Max address space']",
        lambda: resource.setrlimit(resource.RLIMIT_AS, lowered),
    )
    assert ROWS["address-space"].judge(said.strip()) is Verdict.FAIL


def test_a_real_limit_of_files_ends_a_write(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with conditions.limited(2**20):
        assert conditions.try_allocating(str(tmp_path), "ext4") == "File too large"
        assert conditions.read_limits()["Max file size"] == str(2**20)
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
    assert conditions.try_allocating(str(tmp_path), "ext4") == ""
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_not_there_is_said() -> None:
    assert conditions.try_allocating("/proc/nothing", "ext4") == "No such file or directory"


@pytest.mark.parametrize(
    ("kernel", "reserved", "count"),
    [
        ("32768 60999", "", "0"),
        ("10002 19999", "", "9998"),
        ("1024 65535", "10002-19999", "0"),
        ("1024 65535", "10002-19990,19999", "8"),
        ("19999 60999", "", "1"),
    ],
)
def test_ports_of_the_kernels_range(tmp_path: Path, kernel: str, reserved: str, count: str) -> None:
    (tmp_path / "ip_local_port_range").write_text(kernel.replace(" ", "\t"))
    (tmp_path / "ip_local_reserved_ports").write_text(reserved)
    assert conditions.read_ports(str(tmp_path)) == {"of Ray in the kernel's range": count}


def test_no_secret_is_kept_and_yet_a_difference_is_seen() -> None:
    proxies = [f"http://bob:{word}@proxy:3128" for word in ("swordfish", "hunter2")]
    read = [conditions.read_variables({"http_proxy": one, "SHELL": "x"}, "salt") for one in proxies]
    assert read[0] != read[1]
    assert read[0].keys() == {"http_proxy"}
    assert not any(word in str(read) for word in ("swordfish", "hunter2", "bob"))
    again = conditions.read_variables({"http_proxy": proxies[0]}, "another")
    assert again != read[0], "the hash of one run says nothing in another"


@pytest.mark.parametrize(
    ("ray", "usable", "share"),
    [(2, 2, "1"), (8, 2, "1"), (2, 1, "0.5"), (2, 1.5, "0.75"), (1, 2, "1"), (0, 2, "1")],
)
def test_cpus_that_ray_counts_and_no_worker_can_use(
    monkeypatch: pytest.MonkeyPatch, ray: float, usable: float, share: str
) -> None:
    """Ray may count more than the machine has, as on emulated nodes."""
    monkeypatch.setattr(conditions.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(conditions, "usable_cpus", lambda: usable)
    assert conditions.read_cpus(ray)["share of Ray's"] == share


def test_a_cache_elsewhere_is_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hardened machines mount /tmp with noexec, and set the folder of torch's cache."""
    monkeypatch.setattr(conditions, "read_session", lambda: ("session", "/proc"))
    monkeypatch.setattr(conditions.system_facts, "find_temporary_folder", lambda: "/proc")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it at its import
    before = conditions.read_folders()
    assert before["torch cache path"] == "/proc"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    after = conditions.read_folders()
    assert (after["torch cache path"], after["torch cache execution"]) == (str(tmp_path), "allowed")


@pytest.mark.parametrize("text", ["", "none", "-1", "nan", "1e999"])
def test_a_text_that_is_no_number_proves_nothing(text: str) -> None:
    assert ROWS["map-count"].judge(text) is Verdict.UNPROVEN
