"""Where a probe asks for something that only a cluster can answer."""

from __future__ import annotations

from dataclasses import dataclass

from probes.faults.process_faults import FaultInjector
from probes.restart.faulted_run import FaultedRun

CLUSTER_FACTS = (
    *("kind", "emulated", "nodes", "bystanders", "node_names", "head_node_id", "resource", "size"),
    *("ray_gpu_count", "facts", "gpus_by_node", "dashboard", "address", "on_gpu"),
)
CLUSTER_CALLS = ("on_each_node", "known_nodes", "groups_named", "read_facts", "hear_xids")
GANG_CALLS = ("run", "ask", "busy", "silent", "replace_workers", "replace_waiting")
# Functions by the module that calls them.
FUNCTIONS = {
    "probes.hosts.inventory": ("find_blind_nodes", "software_versions"),
    "probes.launch.test_launch": ("launch_jobs",),
    "probes.restart.test_restart": ("run_with_faults", "run_kill_rerun", "run_world_sizes"),
    "probes.restart.judge": ("rank_processes", "find_orphans"),
    "probes.restart.scenarios": ("rank_processes", "find_orphans"),
    "probes.restart.reference_run": ("find_folder_problem",),
    "probes.scaling.base_speed": ("find_blind_nodes",),
}


@dataclass
class SeenFault:
    """What is known of a fault once it has been done."""

    rank: int
    count: int
    injected_at: float
    sent: float
    error: str
    target: str

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Tell who was to meet the fault."""
        return self.target


def as_data(answer: object, node_names: dict[str, str]) -> object:
    """The answer, without what is alive in it."""
    if not isinstance(answer, FaultedRun) and not (
        isinstance(answer, tuple) and answer and isinstance(answer[0], FaultedRun)
    ):
        return answer
    run = answer[0] if isinstance(answer, tuple) else answer
    seen: list[FaultInjector] = [
        SeenFault(
            *(one.rank, one.count, one.injected_at, one.sent, one.error),
            one.describe_target(node_names),
        )
        for one in run.injectors
    ]
    run.injectors = seen
    return answer
