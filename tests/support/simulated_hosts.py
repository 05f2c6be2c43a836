"""Simulates a cluster for HOSTS: the facts of its nodes, and the probe run over them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

from probes.check.recorder import Recorder
from probes.cluster.node_facts import software_versions
from probes.cluster.shared_folder import FolderUnknown
from probes.contract.contract import ClusterTerms, Contract, load
from probes.hosts.closing import read_boot_id, read_planted_xid
from probes.hosts.controls import (
    doctor_facts,
    read_doctored_facts,
    read_fewer_gpus,
    read_sick_health,
    read_worn_health,
)
from probes.hosts.storage_round import OTHER_FOLDER, read_mount
from probes.hosts.test_hosts import test_hosts_are_what_was_ordered as hosts_probe
from probes.hosts.test_hosts import test_hosts_stay_healthy_to_the_end as closing_probe
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.controls import recorder

H100 = "NVIDIA H100 80GB HBM3"
FABRIC = {"state": 3, "status": 0, "health": 0, "cluster": "00" * 16, "clique": 0}


def node_facts(index: int, gpus: int = 8) -> dict[str, Any]:
    """Return the facts of a healthy node of H100s."""
    return {
        "node": f"id{index}",
        "name": f"n{index}",
        "host": f"n{index}",
        "address": f"10.0.0.{index}",
        "software": {**software_versions(), "driver": "570.86.15"},
        "nvml": {"library": True, "error": None},
        "gpus": [
            {"index": i, "uuid": f"GPU-{index}-{i}", "name": H100, "memory_gib": 79.65}
            for i in range(gpus)
        ],
        "gpu_health": {
            "error": None,
            "boards": [healthy_board(index, i) for i in range(gpus)],
            "clock": 1000.0,
        },
        "amd_driver": False,
        "boot_id": f"boot-{index}",
        "cpus": 192,
        "ram_gib": 2015.5,
        "system": healthy_system(),
        "disk_gib": 28615.6,
        "image": {"os": "Debian", "packages": 3, "digest": "usual"},
        "peer_memory": "nvidia_peermem",
        "rdma_access": {f"mlx5_{nic}": "" for nic in range(8)},
        "nics": [
            {
                "device": f"mlx5_{nic}",
                "board": "MT_0000000838",
                "firmware": "28.43.2026",
                "numa": "0",
            }
            for nic in range(8)
        ],
    }


def healthy_board(node: int, index: int) -> dict[str, Any]:
    """Return what NVML reports of the health of an H100 on an NVSwitch."""
    return {
        "index": index,
        "uuid": f"GPU-{node}-{index}",
        "name": H100,
        "slot": f"00000000:{16 + index:02X}:00.0",
        "unsupported": ["retired_pending"],
        "failed": {},
        "vbios": "96.00.89.00.01",
        "recovery_action": 0,
        "ecc": True,
        "ecc_default": True,
        "uncorrected_errors": 0,
        "lifetime_errors": 0,
        "sram_threshold": False,
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": 0, "failed": 0},
        "slowdown_reasons": 1,
        "power_limit_mw": 700_000,
        "power_default_mw": 700_000,
        "pcie_width": 16,
        "pcie_max_width": 16,
        "pcie_replays": 0,
        "heat_ns": 0,
        "nvlinks": {"active": 18, "all": 18},
        "nvlink_errors": 0,
        "fabric": FABRIC,
        "mig": False,
        "compute_mode": 0,
        "persistence": True,
        "clock_mhz": 1980,
        "numa": str(index // 4),
    }


def sick_board(board: dict[str, Any]) -> dict[str, Any]:
    """Return a board with each fault that `SICK_ANSWERS` has."""
    return {
        **board,
        "failed": {"persistence": {"code": 999, "text": "Unknown Error"}},
        "name": H100,
        "mig": False,
        "recovery_action": 2,
        "ecc": False,
        "uncorrected_errors": 1,
        "remapped_rows": {"correctable": 0, "uncorrectable": 1, "pending": 1, "failed": 0},
        "slowdown_reasons": 0x40,
        "power_limit_mw": 7_000,
        "pcie_width": 1,
        "nvlinks": {"active": 17, "all": 18},
        "fabric": {**FABRIC, "state": 2},
        "compute_mode": 2,
    }


def worn_board(board: dict[str, Any]) -> dict[str, Any]:
    """Return a board with what `WORN_ANSWERS` changes."""
    errors = {"uncorrected_errors": 2**31, "lifetime_errors": 2**31, "pcie_replays": 2**31}
    return {**board, "heat_ns": 2**62, "nvlink_errors": 18 * 2 * 2**31, **errors}


def healthy_system() -> dict[str, Any]:
    """Return the limits, the room and the settings of a healthy node, as a worker reads them."""
    disk = {
        "path": "/tmp",
        "file_system": "ext4 at /",
        "error": "",
        "size_gib": 1760.0,
        "free_gib": 1232.0,
        "free_share": 0.7,
        "free_files": 110_000_000,
        "free_files_share": 0.98,
    }
    shared = {"path": "/dev/shm", "file_system": "tmpfs at /dev/shm", "size_gib": 1007.8}
    session = "/tmp/ray/session_2026-11-25_08-00-00_000000_1"
    return {
        "limits": {
            "open_files": [65536, 1048576],
            "locked_bytes": [-1, -1],
            "stack_bytes": [8 * 2**20, -1],
            "processes": [-1, -1],
            "locks_any": False,
            "starts_any": False,
        },
        "threads": {"kernel.pid_max": 4_190_000, "kernel.threads-max": 16_000_000},
        "shared_memory": {**disk, **shared, "free_gib": 1007.0, "free_share": 0.99},
        "temporary": disk,
        "session": {**disk, "path": session},
        "raylets": {"own": 1, "others": [], "hidden": False},
        "settings": {
            "ram_gib": 2015.5,
            "swap_gib": 0.0,
            "cpus": 192,
            "governor": "performance",
            "huge_pages": "always",
            "numa_nodes": 2,
        },
    }


def healthy_mount(**changes: str) -> dict[str, Any]:
    """Return what `read_mount` reads of a folder of NFS."""
    system = "nfs4 filer:/export (root /) at /shared"
    return {"system": system, "mount": "310 0:48", "error": "", **changes}


class StandInHosts:
    """Cluster of healthy nodes; a test changes what Ray, NVML, torch or a node reports."""

    kind, emulated = "ray", False

    def __init__(self, nodes: int = 3, gpus: int = 8, bystanders: int = 0) -> None:
        self.facts = [node_facts(i, gpus) for i in range(nodes)]
        self.others = [node_facts(i, 0) for i in range(nodes, nodes + bystanders)]
        for fact in self.others:
            hide_nvml(fact)
        self.by_ray = {fact["node"]: gpus for fact in self.facts}
        self.torch: dict[str, dict[str, Any]] = {
            id: {"all": count, "assigned": 1} for id, count in self.by_ray.items()
        }
        self.known = [{"id": f["node"], "name": f["name"]} for f in [*self.facts, *self.others]]
        self.lost: list[str] = []
        self.drained: list[str] = []
        self.later: list[dict[str, Any]] | None = None  # facts at the end, where others than now
        self.errors: dict[str, str] = {}
        self.xids: dict[str, dict[str, Any]] = {
            fact["node"]: {"error": None, "seconds": 300.0, "events": []} for fact in self.facts
        }
        self.xid_errors: dict[str, str] = {}
        self.shared_mounts = {fact["node"]: healthy_mount() for fact in self.facts}
        self.mounts_now = copy.deepcopy(self.shared_mounts)  # where a node answers
        self.blind: list[str] | None = []

    @property
    def on_gpu(self) -> bool:
        return not self.emulated

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Nodes on which Ray counts GPUs."""
        return [
            {**node, "resources": {"GPU": self.by_ray[node["id"]]}}
            for node in self.known
            if self.by_ray.get(node["id"])
        ]

    @property
    def bystanders(self) -> list[dict[str, Any]]:
        return [node for node in self.known if not self.by_ray.get(node["id"])]

    @property
    def node_names(self) -> dict[str, str]:
        return {node["id"]: node["name"] for node in self.known}

    def known_nodes(self) -> list[dict[str, Any]]:
        alive = [{**node, "alive": True} for node in self.known]
        gone = [{"id": name, "name": name, "alive": False} for name in self.lost]
        state = {"alive": False, "drained": True, "resources": {"GPU": 8.0}}
        drained = [{"id": name, "name": name, **state} for name in self.drained]
        return [*alive, *gone, *drained]

    def read_facts(self, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ids = {node["id"] for node in nodes}
        facts = self.facts if self.later is None else self.later
        return [fact for fact in (*facts, *self.others) if fact["node"] in ids]

    def hear_xids(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        return self.xids, self.xid_errors

    def on_each_node(
        self, function: Any, *_: Any, each: Any = None, nodes: Any = (), gpus: int = 0
    ) -> dict[str, Any]:
        if function is read_doctored_facts:
            return {
                fact["node"]: doctor_facts(fact, lies) if (lies := each[fact["node"]]) else fact
                for fact in copy.deepcopy(self.facts)
                if fact["node"] in each
            }
        if function in (read_sick_health, read_worn_health, read_fewer_gpus):
            facts = self.facts if self.later is None else self.later
            (victim,) = [fact for fact in copy.deepcopy(facts) if fact["node"] in each]
            if function is read_fewer_gpus:
                return {victim["node"]: victim["gpus"][:-1]}
            change = sick_board if function is read_sick_health else worn_board
            boards = victim["gpu_health"]["boards"]
            boards[-1:] = [change(board) for board in boards[-1:]]
            return {victim["node"]: victim["gpu_health"]}
        if function is read_planted_xid:
            ((id, index),) = each.items()
            return {id: {"error": None, "seconds": 0.1, "events": [xid_event(79, index)]}}
        if function is read_boot_id:
            return {node["id"]: "another boot" for node in nodes}
        if function is read_mount:
            proc = {"system": "proc proc (root /) at /proc", "mount": "21 0:21", "error": "no"}
            return {
                id: proc if each[id] == OTHER_FOLDER else self.mounts_now[id]
                for id in each
                if id in self.mounts_now
            }
        assert (function.__name__, gpus) == ("count_torch_devices", 1)
        return copy.deepcopy(self.torch)


def xid_event(
    xid: int, index: int = 3, ago: float = 1.0, after_kill: float | None = None
) -> dict[str, Any]:
    """Return what a listener has heard of a GPU; `after_kill` are seconds after a kill there."""
    slot = f"00000000:{16 + index:02X}:00.0"
    gpu = {"index": index, "uuid": f"GPU-1-{index}", "slot": slot}
    return {**gpu, "xid": xid, "ago": ago, "after_kill": after_kill}


def find_blind(cluster: StandInHosts, _: str, elsewhere: Any = None) -> list[str]:
    """Return the blind nodes, in place of find_blind_nodes."""
    if cluster.blind is None:
        raise FolderUnknown("Read-only file system")
    return [*cluster.blind, *(cluster.node_names[id] for id in elsewhere or ())]


def emulated(nodes: int = 3, gpus: int = 1) -> StandInHosts:
    """Make a rehearsal cluster: Ray counts GPUs that do not exist."""
    cluster = StandInHosts(nodes, gpus)
    cluster.emulated, cluster.torch = True, {}
    for fact in cluster.facts:
        hide_nvml(fact)
    return cluster


def board_of(cluster: StandInHosts, node: int, gpu: int) -> dict[str, Any]:
    """Return what NVML reports of a GPU of a node."""
    board: dict[str, Any] = cluster.facts[node]["gpu_health"]["boards"][gpu]
    return board


def cluster_with(board: dict[str, Any], without: str = "") -> StandInHosts:
    """Return a cluster in which GPU 3 of n1 reports this."""
    cluster = StandInHosts()
    changed = board_of(cluster, 1, 3)
    changed |= board
    if without:
        del changed[without]
        if without not in changed["failed"]:
            changed["unsupported"].append(without)
    return cluster


def hide_nvml(fact: dict[str, Any]) -> None:
    """Change a node's facts to those of a node without NVML."""
    error = {"code": 12, "text": "not found"}
    fact |= {"nvml": {"library": False, "error": error}, "gpus": []}
    fact["gpu_health"] = {"error": error, "boards": [], "clock": 1000.0}


def run_hosts(cluster: StandInHosts, **terms: Any) -> ProbeResult:
    """Run the HOSTS probe, unchanged, over the stand-in."""
    return run_probe(
        lambda recorder: hosts_probe(cast(Any, cluster), ClusterTerms(**terms), recorder)
    )


def run_closing(cluster: StandInHosts, **terms: Any) -> ProbeResult:
    """Run HOSTS' closing probe, unchanged, over the stand-in."""
    return run_probe(
        lambda recorder: closing_probe(cast(Any, cluster), ClusterTerms(**terms), recorder)
    )


def run_probe(probe: Callable[[Recorder], None], contract: Contract | None = None) -> ProbeResult:
    """Run a judge with a recorder, and return its result."""
    measure = recorder("HOSTS", contract or load("h100-ndr400"))
    with patch("probes.hosts.inventory.find_blind_nodes", find_blind):
        probe(measure)
    result = measure.finish("finished", 1.0)
    return result.model_copy(update={"coverage": "; ".join(measure._coverage)})


def verdicts(result: ProbeResult) -> dict[str, Verdict | None]:
    """Return `{"gpus n1": FAIL}` for every judged measurement."""
    return {f"{m.name} {m.subject}": m.verdict for m in result.measurements if m.judged}


def not_passed(result: ProbeResult) -> dict[str, str]:
    """Return `{"gpus n1": "FAIL"}` for those that did not pass."""
    return {name: v.value for name, v in verdicts(result).items() if v and v is not Verdict.PASS}


def findings(result: ProbeResult) -> list[tuple[str, list[str]]]:
    """Return code and suspects of each finding."""
    return [(finding.code, finding.suspects) for finding in result.findings]
