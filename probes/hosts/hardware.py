"""Finds faults of the machines and their GPUs, from the facts of each node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any

from probes.cluster.nvml import DRIVER_MISMATCH, DRIVER_NOT_LOADED, GPU_IS_LOST
from probes.cluster.software import SYSTEM_PARTS
from probes.findings import finding, join_names, name_gpu
from reports.record import Finding

Facts = Mapping[str, Any]
CODES = {
    DRIVER_NOT_LOADED: "HOST-NO-DRIVER",
    GPU_IS_LOST: "HOST-GPU-LOST",
    DRIVER_MISMATCH: "HOST-DRIVER-MISMATCH",
}
MEMORY_TOLERANCE = 0.01  # boards of one model differ by less; ECC on GDDR takes 6 %


def find_nvml_faults(fact: Facts, expected: bool) -> list[Finding] | None:
    """Find the NVML errors of a node; None if its GPUs are AMD's.

    If no GPU is `expected`, a missing library or driver is no fault: the node may have none.
    """
    nvml, name = fact["nvml"], fact["name"]
    if not nvml["library"]:
        if expected and fact["amd_driver"]:
            return None
        text = f"{name}: GPUs are expected there, and libnvidia-ml.so.1 was not found"
        return [finding("HOST-NO-NVML", text, [name])] if expected else []
    if (error := nvml["error"]) and (expected or error["code"] != DRIVER_NOT_LOADED):
        return [_explain_error(name, "the node's GPUs", error, {})]
    return [
        _explain_error(name, gpu_name(gpu), gpu["error"], gpu)
        for gpu in fact["gpus"]
        if "error" in gpu
    ]


def _explain_error(node: str, what: str, error: Facts, gpu: Facts) -> Finding:
    text = f"{node}: NVML does not answer for {what}: error {error['code']}, {error['text']}"
    code = CODES.get(error["code"], "HOST-NVML-ERROR")
    return finding(code, text, [node], names=name_gpu(gpu.get("uuid"), gpu.get("index")))


def gpu_name(gpu: Facts) -> str:
    """Name a GPU: `GPU 3 (GPU-uuid)`, or a MIG instance: `GPU 3 MIG 1 (MIG-uuid)`."""
    name = f"GPU {gpu['index']}" + (f" MIG {gpu['mig']}" if "mig" in gpu else "")
    return f"{name} ({gpu['uuid']})" if gpu["uuid"] else name


def find_odd_gpus(facts: Sequence[Facts]) -> list[Finding]:
    """Find the nodes whose GPU model or memory differs from that of most GPUs."""
    models = [(gpu["name"], fact["name"]) for fact in facts for gpu in _answering(fact)]
    sizes = [gpu["memory_gib"] for fact in facts for gpu in _answering(fact)]
    usual = median_low([size for size in sizes if size is not None] or [0])
    by_node = [
        (_size_text(gpu["memory_gib"], usual), fact["name"])
        for fact in facts
        for gpu in _answering(fact)
    ]
    return [*_find_minority("GPU model", models), *_find_minority("GPU memory", by_node)]


def _answering(fact: Facts) -> list[Facts]:
    return [gpu for gpu in fact["gpus"] if "error" not in gpu]


def _size_text(size: float | None, usual: float) -> str:
    if size is None:
        return "no size"
    return f"{usual if abs(size - usual) <= MEMORY_TOLERANCE * usual else size:g} GiB"


def _find_minority(
    what: str, values: list[tuple[str, str]], code: str = "HOST-GPU-MODEL"
) -> list[Finding]:
    """Make one finding if not all parts have the same value.

    Suspects are the nodes without the most common value.  If two values tie, they are all nodes.
    """
    counts = Counter(value for value, _ in values).most_common()
    if len(counts) < 2:
        return []
    tied = counts[0][1] == counts[1][1]
    nodes: dict[str, dict[str, None]] = defaultdict(dict)
    for value, node in values:
        nodes[value][node] = None
    parts = [f"{value or 'no name'} on {join_names(nodes[value])}" for value, _ in counts[::-1]]
    odd = [value for value, _ in counts[0 if tied else 1 :]]
    suspects = list(dict.fromkeys(node for value in odd for node in nodes[value]))
    return [finding(code, f"{what}: {'; '.join(parts)}", suspects)]


def find_odd_systems(facts: Sequence[Facts]) -> list[Finding]:
    """Find the nodes whose kernel, OFED, firmware, or setting of GPUs is not as on most."""
    kernels = [
        one
        for part in SYSTEM_PARTS
        for one in _find_minority(
            part,
            [
                (fact["software"][part] or "none", fact["name"])
                for fact in facts
                if part in fact["software"]
            ],
            "HOST-KERNEL",
        )
    ]
    return [*kernels, *_find_odd_firmware(facts), *_find_odd_settings(facts)]


def _find_odd_settings(facts: Sequence[Facts]) -> list[Finding]:
    """Find GPUs of a model that are set otherwise than most, and GPUs and NICs in other places."""
    values: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for fact in facts:
        boards = fact.get("gpu_health", {}).get("boards", ())
        for board in boards:
            model = board.get("name") or "GPUs"
            if "persistence" in board:
                mode = "on" if board["persistence"] else "off"
                values[f"persistence mode of {model}"].append((mode, fact["name"]))
            if "clock_mhz" in board:
                clock = f"{board['clock_mhz']} MHz"
                values[f"application clock of {model}"].append((clock, fact["name"]))
        for what, parts in (("GPUs", boards), ("RDMA devices", fact.get("nics", ()))):
            places = [part.get("numa", "") for part in parts]
            if places and all(places):
                pair = (", ".join(places), fact["name"])
                values[f"NUMA nodes of {len(places)} {what}"].append(pair)
    return [
        one
        for what, pairs in values.items()
        for one in _find_minority(what, pairs, "HOST-GPU-SETTINGS")
    ]


def _find_odd_firmware(facts: Sequence[Facts]) -> list[Finding]:
    """Find GPUs of a model, and NICs of a board, with other firmware than most."""
    versions: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for fact in facts:
        for board in fact.get("gpu_health", {}).get("boards", ()):
            if "vbios" in board:
                what = f"vBIOS of {board.get('name') or 'GPUs'}"
                versions[what].append((board["vbios"], fact["name"]))
        for nic in fact.get("nics", ()):
            if nic["board"] and nic["firmware"]:
                versions[f"firmware of {nic['board']}"].append((nic["firmware"], fact["name"]))
    return [
        one
        for what, values in versions.items()
        for one in _find_minority(what, values, "HOST-FIRMWARE")
    ]


def find_shared_gpus(facts: Iterable[Facts]) -> list[Finding]:
    """Find each GPU whose UUID several nodes show, or one node at several indices."""
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for fact in facts:
        for gpu in fact["gpus"]:
            if gpu["uuid"]:
                places[gpu["uuid"]].append((fact["name"], gpu_name(gpu)))
    return [
        finding(
            "HOST-GPU-TWICE",
            f"{join_names((f'{gpu} on {node}' for node, gpu in found))} are the same GPU",
            list(dict.fromkeys(node for node, _ in found)),
            names={"gpu": uuid},
        )
        for uuid, found in places.items()
        if len(found) > 1
    ]


def find_shared_machines(facts: Iterable[Facts]) -> list[Finding]:
    """Find each machine that several nodes run on, by its boot id."""
    machines: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        if fact["boot_id"]:
            machines[fact["boot_id"]].append(fact["name"])
    return [
        finding("HOST-SAME-MACHINE", f"{join_names(names)} run on the same machine", names)
        for names in machines.values()
        if len(names) > 1
    ]
