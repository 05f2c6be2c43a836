"""Controls of HOSTS: false facts of a node, a larger order, another folder, sick GPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from probes.check.judging import plant
from probes.check.recorder import Recorder, Trial
from probes.cluster import nvml as codes
from probes.cluster.cluster import Cluster
from probes.cluster.gpu_health import read_gpu_health
from probes.cluster.node_facts import SYSTEM_PARTS, node_facts
from probes.cluster.nvml import NvmlWith, import_nvml, read_gpus
from probes.contract.contract import ClusterTerms
from probes.hosts import criterion as check
from probes.hosts.closing import judge_gpu_changes, judge_wear, judge_xids, read_planted_xid
from probes.hosts.gpu_health import WHOLE_NODE, Facts, Fleet, compared_sources, judge_node_health
from probes.hosts.inventory import judge_folder, judge_hosts, judge_order, judge_parity

DOCTORED = "0.0.0+doctored"  # the version, and the model, that the doctored node reports


def read_doctored_facts(lies: Facts | None) -> Facts:
    """Read this node's facts; with `lies`, replace some of them by false values."""
    facts = node_facts()
    return facts if lies is None else doctor_facts(facts, lies)


def doctor_facts(facts: Facts, lies: Facts) -> dict[str, Any]:
    """Replace facts of a node by false values.

    All versions are DOCTORED, CPUs are 0.5, RAM and disks are 0.01 GiB, and the last GPU is lost.
    The first GPU gets another model and 0.5 GiB.  `lies` are the boot id and the GPU UUID of
    another node.
    Software parts and GPUs that the node does not report are not added.
    """
    software = dict.fromkeys(facts["software"], DOCTORED)
    gpus = [dict(gpu) for gpu in facts["gpus"]]
    if gpus:
        gpus[-1]["error"] = {"code": codes.GPU_IS_LOST, "text": "doctored"}
        gpus[0] |= {"name": DOCTORED, "memory_gib": 0.5, "uuid": lies["uuid"]}
    scarce = {"cpus": 0.5, "ram_gib": 0.01, "disk_gib": 0.01, "boot_id": lies["boot_id"]}
    return {**facts, "software": software, "gpus": gpus, **scarce}


def control_doctored_node(
    cluster: Cluster, terms: ClusterTerms, facts: Sequence[Facts], measure: Recorder
) -> None:
    """Check that each false fact of a node about its hardware and software is detected."""
    victim, other = facts[-1], facts[0]
    fault = f"{victim['name']} reports hardware and software that it does not have"
    gpus = [gpu["uuid"] for gpu in other["gpus"]]
    lies = {"boot_id": other["boot_id"], "uuid": gpus[0] if gpus else ""}
    each = {node["id"]: lies if node["id"] == victim["node"] else None for node in cluster.nodes}
    answers = cluster.on_each_node(read_doctored_facts, each=each)
    if victim["node"] not in answers:
        measure.control(check.DOCTORED_NODE, fault, None, saw=f"{victim['name']} does not answer")
        return
    known = [fact for fact in facts if fact["node"] in answers]
    doctored = [{**fact, **answers[fact["node"]], "torch": fact.get("torch")} for fact in known]
    trial = measure.trial()
    judge_hosts(cluster, terms, doctored, [], trial)
    # What was agreed to differ would hide the difference.
    judge_parity(cluster, terms.model_copy(update={"agreed_differences": None}), doctored, trial)
    judge_order(doctored, terms, trial)
    without = _find_unaffected(cluster, facts, trial)
    if without.issuperset(check.DOCTORED_NODE.fails):
        return  # a node alone, of which nothing is ordered, is compared with nothing
    measure.control(check.DOCTORED_NODE, fault, trial, without=without)


def _find_unaffected(cluster: Cluster, facts: Sequence[Facts], trial: Trial) -> set[str]:
    """Name the measures that false facts cannot fail here: not ordered, or not compared."""
    without: set[str] = {name for name in check.ORDERED_PARTS if not trial.has_measured(name)}
    if len(facts) < 2:
        without |= {check.DUPLICATE_GPUS, check.NODES_WITH_FEWER_GPUS}
        without |= {check.DIFFERENCES, check.SYSTEM_DIFFERENCES}
    if len(facts) < 2 or cluster.kind == "local":
        without.add(check.MACHINES)
    if not any(part in fact["software"] for fact in facts for part in SYSTEM_PARTS):
        without.add(check.SYSTEM_DIFFERENCES)  # the nodes do not report them
    if "NVML" not in compared_sources(cluster.kind, cluster.emulated, facts):
        without |= {check.COUNT_MISMATCHES, check.NODES_WITH_FEWER_GPUS, check.NVML_ERRORS}
        without |= {check.DUPLICATE_GPUS, check.GPUS}  # the order is compared with Ray's count only
    return without


def control_larger_order(
    cluster: Cluster, terms: ClusterTerms, facts: Sequence[Facts], measure: Recorder
) -> None:
    """Check that an order of a node more, and of a GPU more on each node, fails.

    It asks for more than was ordered, and than there is: the cluster may have more than its order.
    """
    of_nodes = [int(node["resources"].get("GPU", 0)) for node in cluster.nodes]
    most = max([*of_nodes, *(len(fact.get("gpus") or ()) for fact in facts)], default=0)
    seen = {"nodes": len(cluster.nodes), "gpus_per_node": most}
    orders = {"nodes": check.NODES, "gpus_per_node": check.GPUS}
    known = {key: getattr(terms, key) for key in orders if getattr(terms, key) is not None}
    raised = {key: _raise_order(order, seen[key]) for key, order in known.items()}
    larger = terms.model_copy(update={**raised, "nodes_at_most": None})
    without = {name for key, name in orders.items() if key not in known}
    unable = "" if known else "the contract orders no number of nodes or GPUs"
    fault = "each number in the order (nodes, GPUs of a node) is raised above what is there"
    judge = partial(judge_hosts, cluster, larger, facts, [])
    plant(measure, check.LARGER_ORDER, fault, judge, unable=unable, without=without)


def _raise_order(order: int | dict[int, int], seen: int) -> int | dict[int, int]:
    """Return an order of more than was ordered and is there; of kinds of nodes, of more GPUs."""
    if isinstance(order, dict):
        return {gpus + seen + 1: nodes for gpus, nodes in order.items()}
    return max(order, seen) + 1


def control_own_folder(cluster: Cluster, folder: str, measure: Recorder) -> None:
    """Check that a node that writes and reads its own folder, not the shared one, is detected."""
    if len(cluster.nodes) < 2:
        return  # a single node shares its folder with no other
    victim, own = cluster.nodes[-1], tempfile.gettempdir()
    judge = partial(judge_folder, cluster, folder, elsewhere={victim["id"]: own})
    plant(measure, check.OWN_FOLDER, f"{victim['name']} writes to {own}, not to {folder}", judge)


NODE_REBOOT, HARDWARE_THERMAL, PROHIBITED, IN_PROGRESS = 2, 0x40, 2, 2  # codes of nvml.h
LINKS = 18  # NVLinks of an H100; the first of the sick GPU is inactive


def _ask_for_reboot(nvml: Any, _: Any) -> Any:
    values = (nvml.c_nvmlFieldValue_t * 1)()
    values[0].value.uiVal = NODE_REBOOT
    return values


def _keep_links(nvml: Any, link: int) -> int:
    if link >= LINKS:
        raise nvml.NVMLError(codes.INVALID_ARGUMENT)
    return 1


def _register_for_ever(_: Any, info: Any) -> None:
    info._obj.state = IN_PROGRESS  # `info` is ctypes.byref of the structure


def _recover_links(nvml: Any, fields: Sequence[tuple[int, int]]) -> Any:
    """Answer as a Blackwell, which counts recoveries of its NVLinks in a field."""
    recoveries = getattr(nvml, "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", None)
    values = (nvml.c_nvmlFieldValue_t * len(fields))()
    for value, (field, _) in zip(values, fields, strict=True):
        value.value.ullVal = 2**31 if field == recoveries else 0
    return values


def _fail(nvml: Any) -> int:
    raise nvml.NVMLError(codes.UNKNOWN)


# NVML's call -> what it answers for the sick GPU, from the module and the call's other arguments.
SICK_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetName": lambda nvml: "NVIDIA H100 80GB HBM3",  # a board with all links connected
    "nvmlDeviceGetFieldValues": _ask_for_reboot,
    "nvmlDeviceGetEccMode": lambda nvml: [0, 0],  # off, now and after a reboot
    "nvmlDeviceGetDefaultEccMode": lambda nvml: [1],
    "nvmlDeviceGetTotalEccErrors": lambda nvml, *_: 1,
    "nvmlDeviceGetRemappedRows": lambda nvml: (0, 1, 1, 0),  # a row waits
    "nvmlDeviceGetCurrentClocksEventReasons": lambda nvml: HARDWARE_THERMAL,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda nvml: 700_000,  # mW
    "nvmlDeviceGetEnforcedPowerLimit": lambda nvml: 7_000,  # mW; a contract agrees on more than 1 %
    "nvmlDeviceGetMaxPcieLinkWidth": lambda nvml: 16,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda nvml: 1,
    "nvmlDeviceGetNvLinkState": lambda nvml, link: _keep_links(nvml, link) if link else 0,
    "nvmlDeviceGetGpuFabricInfoV": _register_for_ever,
    "nvmlDeviceGetMigMode": lambda nvml: [0, 0],  # MIG trains links of an A100 off
    "nvmlDeviceGetComputeMode": lambda nvml: PROHIBITED,
    "nvmlDeviceGetPersistenceMode": _fail,
}


# What it answers for a GPU whose counters have gained much since the run began.
WORN_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetPcieReplayCounter": lambda nvml: 2**31,
    # In ns: more than any run lasts.
    "nvmlDeviceGetViolationStatus": lambda nvml, _: SimpleNamespace(violationTime=2**62),
    "nvmlDeviceGetNvLinkState": _keep_links,
    "nvmlDeviceGetNvLinkErrorCounter": lambda nvml, *_: 2**31,
    "nvmlDeviceGetFieldValues": _recover_links,
    "nvmlDeviceGetTotalEccErrors": lambda nvml, *_: 2**31,
}
# Calls that some boards lack: the sick GPU lacks them too, so that the control takes its real way.
ASKED_FIRST = {"nvmlDeviceGetNvLinkErrorCounter"}


def sicken_gpu(nvml: Any, index: int, answers: Facts = SICK_ANSWERS) -> NvmlWith:
    """Make an NVML that gives other answers for the GPU `index`."""
    sick: list[Any] = []  # its handles

    def get_handle(asked: int) -> Any:
        handle = nvml.nvmlDeviceGetHandleByIndex(asked)
        if asked == index:
            sick.append(handle)
        return handle

    def answer(name: str, gpu: Any, *arguments: Any) -> Any:
        is_sick = any(gpu is one for one in sick)
        if is_sick and name not in ASKED_FIRST:
            return answers[name](nvml, *arguments)
        known = getattr(nvml, name)(gpu, *arguments)  # raises where the board lacks it
        return answers[name](nvml, *arguments) if is_sick else known

    calls = {name: partial(answer, name) for name in answers}
    return NvmlWith(nvml, {**calls, "nvmlDeviceGetHandleByIndex": get_handle})


def hide_last_gpu(nvml: Any) -> NvmlWith:
    """Make an NVML that no longer lists the last GPU."""
    return NvmlWith(nvml, {"nvmlDeviceGetCount": lambda: nvml.nvmlDeviceGetCount() - 1})


def read_sick_health(index: int) -> dict[str, Any]:
    """Read this node's GPU health; the GPU `index` answers as a sick one."""
    return read_gpu_health(sicken_gpu(import_nvml(), index))


def read_worn_health(index: int) -> dict[str, Any]:
    """Read this node's GPU health; the counters of the GPU `index` are very high."""
    return read_gpu_health(sicken_gpu(import_nvml(), index, WORN_ANSWERS))


def read_fewer_gpus(_: int) -> list[dict[str, Any]]:
    """List this node's GPUs without the last."""
    gpus: list[dict[str, Any]] = read_gpus(nvml=hide_last_gpu(import_nvml()))["gpus"]
    return gpus


def _judge_sick(facts: Sequence[Facts], victim: Facts, health: Any, trial: Trial) -> None:
    sick = {**victim, "gpu_health": health}
    others = [fact for fact in facts if fact["node"] != victim["node"]]
    judge_node_health(sick, Fleet.of([*others, sick]), trial)


def _judge_worn(facts: Sequence[Facts], victim: Facts, health: Any, trial: Trial) -> None:
    judge_wear(facts, [{**victim, "gpu_health": health}], trial)


def _judge_fewer(facts: Sequence[Facts], victim: Facts, gpus: Any, trial: Trial) -> bool:
    judge_gpu_changes(facts, [{**victim, "gpus": gpus}], trial)
    return True  # a GPU that is gone is named by its UUID alone


def _judge_xid(_: Sequence[Facts], victim: Facts, heard: Any, trial: Trial) -> None:
    judge_xids({victim["name"]: heard}, {}, [], trial)


# Control: (fault with the node's name and the GPU's index, how it is read, how it is judged).
SICK = ("NVML on {} reports GPU {} with every kind of fault", read_sick_health, _judge_sick)
HEATED = "NVML on {} reports time lost to heat and many errors of GPU {}"
GPU_FAULTS: dict[str, tuple[str, Callable[[int], Any], Callable[..., bool | None]]] = {
    check.SICK_GPU: SICK,
    check.GPU_THAT_SICKENS: SICK,
    check.WORN_GPU: (HEATED, read_worn_health, _judge_worn),
    check.VANISHED_GPU: ("NVML on {} no longer lists GPU {}", read_fewer_gpus, _judge_fewer),
    check.FALLEN_GPU: ("NVML on {} reports Xid 79 of GPU {}", read_planted_xid, _judge_xid),
}


def control_gpu(
    cluster: Cluster, facts: Sequence[Facts], victim: Facts, measure: Recorder, control: str
) -> None:
    """Check that a fault of the victim's last GPU is detected, on the GPU that has it.

    `facts` are of all nodes: those that health is compared with, or those of the run's start.
    """
    fault, read, judge = GPU_FAULTS[control]
    boards, name = victim["gpu_health"]["boards"], victim["name"]
    index = boards[-1]["index"] if boards else 0
    answer = cluster.on_each_node(read, each={victim["node"]: index}).get(victim["node"])
    # A GPU of a smaller node may have any number of links: it is compared with others.
    without = () if len(boards) >= WHOLE_NODE else (check.NVLINKS_DOWN,)
    unable = f"{name} does not answer" if answer is None else ""

    def judge_it(trial: Trial) -> bool:
        return judge(facts, victim, answer, trial) or names_gpu(trial, index)

    plant(measure, control, fault.format(name, index), judge_it, unable=unable, without=without)


def names_gpu(trial: Trial, index: int) -> bool:
    """Return whether each finding names the GPU."""
    return all(f"GPU {index} " in one.statement for one in trial.findings)
