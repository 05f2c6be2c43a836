"""HOSTS on the limits, the room and the raylets of each node."""

from __future__ import annotations

from typing import Any, cast

import pytest

from probes.contract.contract import ClusterTerms, load
from probes.hosts.limits import judged_measures
from reports.measurement import Limit, Verdict
from reports.record import ProbeResult
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_system import ALL, RDMA, StandInSystem, run_system

KERNELS_MOST = 1_048_576  # fs.nr_open: no process may open more, whatever its limit is
OTHER = {"pid": 4711, "session": "session_of_bob"}


def changed(**parts: dict[str, Any]) -> ProbeResult:
    """Run the probe over three nodes; the second has these parts of its facts changed."""
    cluster = StandInSystem()
    for name, change in parts.items():
        cluster.facts[1]["system"][name] |= change
    return run_system(cluster, **RDMA)


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in (*ALL, "clock_offset")))
def test_sound_nodes_pass_and_each_control_is_caught() -> None:
    result = run_system(StandInSystem(), **RDMA)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    assert {c.name: (c.caught, c.proves) for c in result.controls} == {
        "strained process": (True, ALL),
        "lost clock": (True, ["clock_offset"]),
        "other image": (True, ["image_differences"]),
        "hidden devices": (True, ["rdma_closed"]),
        "short files": (True, ["breaking_conditions"]),
    }
    assert all(control.fault.count("n2") == 1 for control in result.controls)
    judged = {
        f"{name} n{index}"
        for name in (*ALL, "rdma_closed", "breaking_conditions")
        for index in range(3)
    }
    assert verdicts(result).keys() == judged | {"clock_offset cluster", "image_differences cluster"}
    assert result.coverage == "3 of 3 nodes answered"


FAULTS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "open_files", "HOST-OPEN-FILES", {"limits": {"open_files": [4095, 524288]}},
        "n1: a worker can open 4095 files (hard limit: 524288)",
    ),
    (
        "locked_memory", "HOST-LOCKED-MEMORY", {"limits": {"locked_bytes": [8 * 2**20, -1]}},
        "n1: a worker can lock 8192 KiB of memory",
    ),
    (
        "shared_memory", "HOST-SHARED-MEMORY",
        {"shared_memory": {"size_gib": 0.0625, "free_gib": 0.03, "free_share": 0.5}},
        "n1: /dev/shm has 64 MiB, 50 % of it free",
    ),
    (
        "shared_memory", "HOST-SHARED-MEMORY", {"shared_memory": {"error": "Permission denied"}},
        "n1: no file can be written in /dev/shm: Permission denied",
    ),
    (
        "processes", "HOST-PROCESSES", {"threads": {"pids.max of /sys/fs/cgroup": 2047}},
        "n1: the user of a worker can start 2047 more threads for 8 ranks "
        "(limit: pids.max of /sys/fs/cgroup)",
    ),
    (
        "temp_room", "HOST-TEMP-FULL", {"session": {"free_share": 0.049, "free_gib": 86.2}},
        "n1: /tmp/ray/session_2026-11-25_08-00-00_000000_1 (ext4 at /) has 4.9 % (86.2 GiB) free, "
        "and 110000000 free inodes",
    ),
    (
        "temp_room", "HOST-TEMP-FULL",
        {"temporary": {"free_share": 0.01, "free_gib": 0.9, "free_files": None}},
        "n1: /tmp (ext4 at /) has 1 % (0.9 GiB) free",
    ),
    (
        "temp_room", "HOST-TEMP-FULL",
        {"temporary": {"free_files": 49_000, "free_files_share": 0.02}},
        "n1: /tmp (ext4 at /) has 70 % (1.23e+03 GiB) free, and 49000 free inodes",
    ),
    (
        "temp_room", "HOST-TEMP-FULL",
        {"session": {"error": "No space left on device", "file_system": ""}},
        "n1: no file can be written in /tmp/ray/session_2026-11-25_08-00-00_000000_1 "
        "(unknown file system): No space left on device",
    ),
    (
        "stray_raylets", "HOST-STRAY-RAYLET", {"raylets": {"others": [OTHER]}},
        "n1: raylets of another cluster are running: process 4711 (session_of_bob)",
    ),
    (
        "stray_raylets", "HOST-STRAY-RAYLET",
        {"raylets": {"others": [OTHER, {"pid": 5, "session": ""}], "hidden": True}},
        "n1: raylets of another cluster are running: process 4711 (session_of_bob)",
    ),
    (
        "temp_room", "HOST-TEMP-FULL",
        {"temporary": {"error": "Read-only file system"}, "session": {"free_share": 0.9}},
        "n1: no file can be written in /tmp (ext4 at /): Read-only file system",
    ),
    (
        "stack", "HOST-STACK", {"limits": {"stack_bytes": [8 * 2**20 - 1, -1]}},
        "n1: the stack size limit of a worker is 8191 KiB",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "parts", "statement"), FAULTS)
def test_a_fault_of_one_node_is_named(
    name: str, code: str, parts: dict[str, Any], statement: str
) -> None:
    result = changed(**parts)
    assert not_passed(result) == {f"{name} n1": "FAIL"}
    assert findings(result) == [(code, ["n1"])]
    assert result.findings[0].statement == statement


NEAR = [
    ("open_files", {"limits": {"open_files": [4096, 4096]}}),
    ("open_files", {"limits": {"open_files": [-1, -1]}}),
    ("locked_memory", {"limits": {"locked_bytes": [4 * 2**30, -1]}}),
    ("locked_memory", {"limits": {"locked_bytes": [65536, 65536], "locks_any": True}}),
    ("shared_memory", {"shared_memory": {"size_gib": 1.0}}),
    ("shared_memory", {"shared_memory": {"size_gib": 0.0}}),  # tmpfs without a size of its own
    ("processes", {"threads": {"RLIMIT_NPROC": 2048}}),
    ("temp_room", {"session": {"free_share": 0.05}}),
    ("temp_room", {"temporary": {"free_share": 0.01, "free_gib": 1.0}}),  # a large disk
    ("temp_room", {"temporary": {"free_files": 50_000, "free_files_share": 0.01}}),
    ("temp_room", {"temporary": {"free_files": 100, "free_files_share": 0.9}}),  # a small tmpfs
    ("temp_room", {"session": {"free_files": None}}),  # btrfs
    ("stray_raylets", {"raylets": {"own": 3}}),  # our own spare raylets
    ("stray_raylets", {"raylets": {"hidden": False, "own": 1}}),
    ("stack", {"limits": {"stack_bytes": [-1, -1]}}),
]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        pytest.param(name, parts, marks=pytest.mark.near_miss(f"HOSTS.{name}"))
        for name, parts in NEAR
    ],
)
def test_what_is_just_enough_passes(name: str, parts: dict[str, Any]) -> None:
    result = changed(**parts)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    assert verdicts(result)[f"{name} n1"] is Verdict.PASS


UNREADABLE = {"unreadable": "PermissionError: denied"}


@pytest.mark.parametrize(
    ("part", "measures"),
    [
        ("limits", ["open_files", "locked_memory", "stack"]),
        ("threads", ["processes"]),
        ("shared_memory", ["shared_memory"]),
        ("temporary", ["temp_room"]),
        ("session", ["temp_room"]),
        ("raylets", ["stray_raylets"]),
        ("settings", ["locked_memory"]),
    ],
)
def test_a_part_that_cannot_be_read_proves_nothing(part: str, measures: list[str]) -> None:
    cluster = StandInSystem()
    cluster.facts[1]["system"][part] = UNREADABLE
    result = run_system(cluster, **RDMA)
    assert not_passed(result) == {f"{name} n1": "UNPROVEN" for name in measures}
    assert findings(result) == []
    notes = {m.note for m in result.measurements if m.judged and m.value is None}
    assert notes == {"could not be read: PermissionError: denied"}


@pytest.mark.parametrize(
    ("name", "parts", "note"),
    [
        ("locked_memory", {"settings": {"ram_gib": None}}, "the node's memory could not be read"),
        (
            "shared_memory",
            {"shared_memory": {"size_gib": 0.0}, "settings": {"ram_gib": None}},
            "the sizes of /dev/shm and of memory could not be read",
        ),
        (
            "stray_raylets",
            {"raylets": {"own": 0, "others": [{"pid": 5, "session": ""}]}},
            "the command line of a raylet does not show its session",
        ),
        ("stray_raylets", {"raylets": {"own": 0}}, "own raylet is not among the processes"),
        ("stray_raylets", {"raylets": {"hidden": True}}, "hidepid"),
    ],
)
def test_what_is_not_known_proves_nothing(name: str, parts: dict[str, Any], note: str) -> None:
    result = changed(**parts)
    assert not_passed(result)[f"{name} n1"] == "UNPROVEN"
    assert findings(result) == []
    (why,) = [m.note for m in result.measurements if (m.name, m.subject) == (name, "n1")]
    assert note in why


def test_nodes_without_facts_prove_nothing() -> None:
    cluster = StandInSystem()
    silent = cluster.facts.pop(1)
    del cluster.facts[0]["system"]
    result = run_system(cluster, **RDMA)
    names = [f"{name} {node}" for name in ALL for node in ("n0", silent["name"])]
    names += [f"rdma_closed {silent['name']}", "image_differences cluster"]
    names += [f"breaking_conditions {silent['name']}"]
    assert not_passed(result) == dict.fromkeys(names, "UNPROVEN")
    assert result.coverage == "2 of 3 nodes answered"
    cluster.facts.clear()
    assert run_system(cluster, **RDMA).verdict is Verdict.UNPROVEN


def test_the_same_fault_of_several_nodes_is_one_finding() -> None:
    cluster = StandInSystem(4)
    for fact in cluster.facts[:2]:
        fact["system"]["limits"]["open_files"] = [1024, 524288]
    cluster.facts[3]["system"]["limits"]["open_files"] = [256, 256]
    result = run_system(cluster)
    assert findings(result) == [
        ("HOST-OPEN-FILES", ["n0", "n1"]),
        ("HOST-OPEN-FILES", ["n3"]),
    ]
    assert result.findings[0].statement.startswith("n0, n1: a worker can open 1024 files")


def test_a_node_without_gpus_in_ray_has_one_rank() -> None:
    cluster = StandInSystem(2, 1)
    cluster.facts[1]["system"]["threads"] = {"RLIMIT_NPROC": 256}
    assert run_system(cluster).verdict is Verdict.PASS
    cluster.facts[1]["system"]["threads"] = {"RLIMIT_NPROC": 255}
    assert not_passed(run_system(cluster)) == {"processes n1": "FAIL"}


def test_memory_is_locked_for_rdma_alone() -> None:
    cluster = StandInSystem()
    cluster.facts[2]["system"]["limits"]["locked_bytes"] = [2**26, 2**26]
    result = run_system(cluster, fabric="eth0")
    assert result.verdict is Verdict.PASS
    (note,) = [m for m in result.measurements if m.name == "locked_memory"]
    assert (note.judged, note.value, note.unit, note.subject) == (False, 2**-4, "GiB", "n2")
    (control,) = [c for c in result.controls if c.name == "strained process"]
    assert (control.caught, control.proves) == (True, [t for t in ALL if t != "locked_memory"])


def test_where_no_limit_holds_the_kernels_own_does() -> None:
    result = changed(limits={"open_files": [-1, -1]})
    (found,) = [m for m in result.measurements if (m.name, m.subject) == ("open_files", "n1")]
    assert found.value == KERNELS_MOST


@pytest.mark.near_miss("HOSTS.processes", "HOSTS.temp_room")
def test_an_embedded_cluster_has_the_limits_of_a_shell() -> None:
    cluster = StandInSystem(2, 1)
    cluster.kind = "local"
    for fact in cluster.facts:
        system = fact["system"]
        system["limits"]["open_files"] = [256, 1024]
        system["shared_memory"]["size_gib"] = 0.0625
        system["raylets"]["others"] = [OTHER]
    result = run_system(cluster)
    assert result.verdict is Verdict.PASS
    assert {m.name for m in result.measurements if m.judged} == {
        *("processes", "temp_room", "clock_offset")
    }
    noted = {m.name: m.value for m in result.measurements if not m.judged}
    assert (noted["open_files"], noted["stray_raylets"]) == (256, 1)
    assert "host limits are not judged" in result.coverage
    cluster.facts[0]["system"]["limits"] = UNREADABLE
    noted = {m.name: m.value for m in run_system(cluster).measurements if not m.judged}
    assert noted["open_files"] == 256
    terms = ClusterTerms(fabric="rdma")
    assert judged_measures(cast(Any, cluster), terms) == ["processes", "temp_room"]


def test_a_contract_may_agree_on_other_limits() -> None:
    contract = load("h100-ndr400")
    limits = {**contract.limits, "HOSTS": {"open_files": Limit(low=1024, because="agreed")}}
    contract = contract.model_copy(update={"limits": limits})
    cluster = StandInSystem()
    cluster.facts[1]["system"]["limits"]["open_files"] = [1024, 1024]
    result = run_system(cluster, contract)
    assert result.verdict is Verdict.PASS


def informs(cluster: StandInSystem) -> dict[tuple[str, str], Any]:
    """Run the probe; return the values that only inform, by name and subject."""
    result = run_system(cluster, **RDMA)
    assert result.verdict is Verdict.PASS
    return {(m.name, m.subject): m.value for m in result.measurements if not m.judged}


def test_settings_inform_and_name_the_node_that_differs() -> None:
    cluster = StandInSystem()
    assert informs(cluster) == {
        ("cpu_governor", "each node"): "performance",
        ("huge_pages", "each node"): "always",
        ("numa_nodes", "each node"): 2,
        ("machine_cpus", "each node"): 192,
        ("gpu_peer_memory", "n0, n1, n2"): "nvidia_peermem",
        ("swap_in_use", "n0"): 0.0,
        ("shared_memory_free", "n0"): 0.99,
    }
    cluster.facts[1]["system"]["settings"] |= {"governor": "powersave", "swap_gib": 3.5}
    cluster.facts[2]["system"]["settings"]["governor"] = ""
    cluster.facts[2]["system"]["shared_memory"]["free_share"] = 0.2
    values = informs(cluster)
    assert values["cpu_governor", "n0"] == "performance"
    assert values["cpu_governor", "n1"] == "powersave"
    assert values["swap_in_use", "n1"] == 3.5
    assert values["shared_memory_free", "n2"] == 0.2


def test_a_shared_memory_that_is_full_is_too_small() -> None:
    full = {"shared_memory": {"size_gib": 64.0, "free_gib": 0.001, "free_share": 0.0}}
    result = changed(**full)
    assert not_passed(result) == {"shared_memory n1": "FAIL"}
    assert "/dev/shm has 65536 MiB, 0 % of it free" in result.findings[0].statement


@pytest.mark.near_miss("HOSTS.shared_memory")
@pytest.mark.parametrize(("size", "free"), [(64.0, 1.0), (1.0, 0.76)])
def test_a_shared_memory_with_room_for_nccl_passes(size: float, free: float) -> None:
    room = {"size_gib": size, "free_gib": free, "free_share": free / size}
    assert not_passed(changed(shared_memory=room)) == {}
