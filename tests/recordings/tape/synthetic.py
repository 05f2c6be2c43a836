"""Writes the tapes of HOSTS on GPUs: synthetic, from what NVML is documented to answer.

python -m tests.recordings.tape.synthetic
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from probes.contract.contract import ClusterTerms
from probes.hosts.test_hosts import test_hosts_are_what_was_ordered as hosts_probe
from tests.recordings.tape.border import CLUSTER_FACTS
from tests.recordings.tape.tape import Tape, name_of
from tests.support.controls import recorder
from tests.support.paths import RECORDINGS
from tests.support.simulated_hosts import H100, StandInHosts, find_blind

TAPES = RECORDINGS.parent / "tapes"
ORDER = {
    "nodes": 8,
    "gpus_per_node": 8,
    "gpu_model": H100,
    "gpu_memory_gib": 79,
    "cpus_per_node": 192,
    "shared": "/shared",
}
VERSIONS = {"python": "3.11.9", "ray": "2.60.0", "torch": "2.13.0+cu130"}
ASKED = ("on_each_node", "known_nodes", "read_facts", "hear_xids")


def sound(cluster: StandInHosts) -> None:
    """Nothing is wrong."""


def lost_gpu(cluster: StandInHosts) -> None:
    """The last GPU of n7 does not answer NVML: it has fallen off the bus."""
    error = {"code": 15, "text": "GPU is lost"}
    unknown = {"uuid": "", "name": "", "memory_gib": None}
    cluster.facts[7]["gpus"][7] |= {**unknown, "error": error}
    lost = {"index": 7, "uuid": "", "slot": "", "unsupported": [], "failed": {"GPU": error}}
    cluster.facts[7]["gpu_health"]["boards"][7] = lost
    cluster.torch["id7"]["all"] = 7


def other_model(cluster: StandInHosts) -> None:
    """n3 has the smaller H100."""
    for gpu in [*cluster.facts[3]["gpus"], *cluster.facts[3]["gpu_health"]["boards"]]:
        gpu["name"] = "NVIDIA H100 PCIe"


def pods_of_one_machine(cluster: StandInHosts) -> None:
    """n0 and n1 are two pods of one machine, and see the same GPUs."""
    cluster.facts[1]["boot_id"] = cluster.facts[0]["boot_id"]
    cluster.facts[1]["gpus"] = [dict(gpu) for gpu in cluster.facts[0]["gpus"]]


def other_driver(cluster: StandInHosts) -> None:
    """n5 was left out when the driver was updated."""
    cluster.facts[5]["software"]["driver"] = "550.54.15"


def sick_gpus(cluster: StandInHosts) -> None:
    """Memory of a GPU of n2 has failed, and links of one of n4; a power supply of n6 is off."""
    boards = {name: cluster.facts[name]["gpu_health"]["boards"] for name in (2, 4, 6)}
    boards[2][5] |= {"uncorrected_errors": 2, "recovery_action": 1}
    boards[4][0]["nvlinks"] = {"active": 16, "all": 18}
    for board in boards[6]:
        board["slowdown_reasons"] = 0x88  # hardware, by the power brake


CASES: dict[str, Callable[[StandInHosts], None]] = {
    "gpus-sound": sound,
    "gpus-one-lost": lost_gpu,
    "gpus-other-model": other_model,
    "gpus-pods-of-one-machine": pods_of_one_machine,
    "gpus-other-driver": other_driver,
    "gpus-sick": sick_gpus,
}


def write_tape(path: Path, plant: Callable[[StandInHosts], None]) -> None:
    """Run the probe over a made-up cluster, and keep what it is answered."""
    cluster, tape = StandInHosts(8, 8), Tape(path)
    for fact in cluster.facts:
        fact["software"] |= VERSIONS
    plant(cluster)
    told = {name: getattr(cluster, name) for name in CLUSTER_FACTS if hasattr(cluster, name)}
    tape.write(
        "run",
        {
            "synthetic": plant.__doc__,
            "probe": "probes/hosts/test_hosts.py::test_hosts_are_what_was_ordered",
            "criterion": "HOSTS",
            "params": {},
            "tier": "quick",
            "contract": "h100-ndr400",
            "terms": ORDER,
            "cluster": told,
        },
    )
    for name in ASKED:
        setattr(cluster, name, _kept(tape, name, getattr(cluster, name)))
    own = {"find_blind_nodes": find_blind, "software_versions": lambda: VERSIONS | {"driver": ""}}
    with ExitStack() as stack:
        for name, answer in own.items():
            stack.enter_context(patch(f"probes.hosts.inventory.{name}", _kept(tape, name, answer)))
        hosts_probe(cast(Any, cluster), ClusterTerms(**ORDER), recorder("HOSTS"))
    tape.file.close()


def _kept(tape: Tape, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*arguments: Any, **more: Any) -> Any:
        question = name_of(name, arguments) if name in ASKED else name
        return tape.keep(question, lambda: ask(*arguments, **more))

    return asked


if __name__ == "__main__":
    for name, plant in CASES.items():
        write_tape(TAPES / name / "hosts_are_what_was_ordered.tape.gz", plant)
