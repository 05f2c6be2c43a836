"""Judges GPUs: their number, their health, and who can use them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from probes.check.recorder import Recorder
from probes.cluster.nvml import UNKNOWN
from probes.findings import finding, join_names, name_gpu
from probes.hosts import criterion as check
from reference_trainer.model.devices import find_device
from reports.groups import group_pairs
from reports.measurement import Limit, Verdict
from reports.numbers import percent, quantity

Facts = Mapping[str, Any]
AllFacts = Sequence[Facts]  # of several nodes
Board = Mapping[str, Any]
Gpu = TypeVar("Gpu")  # a Board, or what else stands for a GPU

# nvmlDeviceGpuRecoveryAction_t: what the driver asks for.
RECOVERY = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "an end of all peer-to-peer traffic",
    4: "an end of all peer-to-peer traffic, and a reset of the GPU",
    5: "a recovery of the IMEX domain",
    6: "a reset of the PCIe bus",
    7: "a reboot of the system",
}
# Bits of nvmlClocksEventReasons that slow a GPU against its owner's will.  The others are usual:
# the GPU is idle, or at its power limit under load, or an operator has set its clocks.  Bit 0x8
# (hardware slowdown) comes with one of these; alone it may be a change of clocks (nvml.h).
SLOWDOWNS = {0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
PROHIBITED = 2  # nvmlComputeMode_t: no process may use the GPU
FABRIC_STATES = {1: "not started", 2: "in progress"}  # nvmlGpuFabricState_t: 3 is completed
FABRIC_SUCCESS = 0
# nvmlGpuFabricInfo's healthMask: first bit, width, and the values that are faults (nvml.h).
FABRIC_HEALTH = {
    "bandwidth is degraded": (0, 3, {1}),
    "a route is unhealthy": (4, 3, {1}),
    "configuration is wrong": (8, 15, set(range(2, 16))),
}
# Boards of which a whole node connects all NVLinks; a part of one, as a virtual machine has, or a
# board in a PCIe slot connects as many as it was given.
NVSWITCH_BOARD = re.compile(r"SXM|\bH[12]00 80GB HBM3|\bH200$|\bH20$|\bB[23]00\b")
GRACE_BOARD = re.compile(r"\bGB[23]00\b")
WHOLE_NODE, WHOLE_TRAY = 8, 4  # GPUs of an HGX or DGX, and of a GB200 tray
# NVLinks of a GPU of such boards (NVIDIA's data sheets: 900 or 1800 GB/s, and 600 GB/s of an A100).
MODEL_LINKS = {r"\b(H[12]00|H20|G?B[23]00)\b": 18, r"\bA100\b": 12}


@dataclass
class Fleet:
    """What the GPUs of all nodes have: a GPU is compared with those of its model.

    `links` is the usual number of active NVLinks by (model, GPUs of the node).  `answered` holds
    (model, query) of every answer.
    """

    links: dict[tuple[str, int], int] = field(default_factory=dict)
    answered: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, facts: AllFacts) -> Fleet:
        """Read what is usual; of two numbers of links that are as common, the smaller is."""
        fleet, counts = cls(), defaultdict[tuple[str, int], Counter[int]](Counter)
        for fact in facts:
            boards = fact["gpu_health"]["boards"]
            for board in boards:
                model = board.get("name") or ""
                fleet.answered |= {(model, query) for query in board}
                if "nvlinks" in board:
                    counts[model, len(boards)][board["nvlinks"]["active"]] += 1
        for place, active in counts.items():
            fleet.links[place] = max(active, key=lambda number: (active[number], -number))
        return fleet


Describe = Callable[[Board, int, Fleet], str | None]


@dataclass
class HealthCheck:
    """One judged measure: the answers that it needs, and what is wrong with a board.

    One of `needs` must be known of each board.  `describe` gets the board, the number of GPUs of
    its node and the fleet; it returns None where the answers do not decide.  A board that does not
    support the query is sound only where `may_lack` holds and no other of its model answers.
    """

    measure: str
    code: str
    expected: str
    needs: tuple[str, ...]
    may_lack: Callable[[Board, int], bool] = lambda board, gpus: False
    describe: Describe = field(init=False)

    def __call__(self, describe: Describe) -> Describe:
        """Make the function that follows the description of this check."""
        self.describe = describe
        CHECKS.append(self)
        return describe

    def is_sound_without(self, board: Board, gpus: int, fleet: Fleet) -> bool:
        """Return whether a board that does not support the query is sound."""
        model = board.get("name") or ""
        return (
            set(self.needs) <= set(board["unsupported"])
            and self.may_lack(board, gpus)
            and not any((model, need) in fleet.answered for need in self.needs)
        )


def connects_all_links(board: Board, gpus: int) -> bool:
    """Return whether all NVLinks of such a board are connected on a node with so many GPUs."""
    model = board.get("name") or ""
    is_whole = gpus >= WHOLE_NODE and NVSWITCH_BOARD.search(model)
    return bool(is_whole or (gpus >= WHOLE_TRAY and GRACE_BOARD.search(model)))


CHECKS: list[HealthCheck] = []  # in the order in which they are judged


# Drivers before R565 do not know the recovery action; the other checks see its causes.
@HealthCheck(
    *(check.GPUS_TO_RESET, "HOST-GPU-RECOVERY", "no recovery action", ("recovery_action",)),
    may_lack=lambda board, gpus: True,
)
def _describe_recovery(board: Board, _: int, __: Fleet) -> str:
    action = board["recovery_action"]
    return f"the driver asks for {RECOVERY.get(action, f'action {action}')}" if action else ""


@HealthCheck(check.MEMORY_ERRORS, "HOST-ECC", "no uncorrected error", ("uncorrected_errors",))
def _describe_memory_errors(board: Board, _: int, __: Fleet) -> str:
    if errors := board.get("uncorrected_errors"):
        return f"{quantity(errors, 'uncorrected memory errors')} since the driver was loaded"
    is_high = board.get("sram_threshold")
    return "SRAM errors are above the threshold for replacement" if is_high else ""


@HealthCheck(
    *(check.ROW_REMAPS, "HOST-ROW-REMAP", "no pending and no failed remap of a memory row"),
    needs=("remapped_rows", "retired_pending"),
)
def _describe_row_remap(board: Board, _: int, __: Fleet) -> str:
    rows = board.get("remapped_rows") or {}
    if rows.get("failed"):
        return "a memory row could not be remapped"
    is_waiting = rows.get("pending") or board.get("retired_pending")
    return "a memory row waits to be remapped" if is_waiting else ""


@HealthCheck(check.GPUS_WITHOUT_ECC, "HOST-ECC-OFF", "ECC on", ("ecc",))
def _describe_ecc_mode(board: Board, _: int, __: Fleet) -> str | None:
    if board["ecc"]:
        return ""
    if "ecc_default" not in board:
        return None
    return "ECC is off, but its default is on" if board["ecc_default"] else ""


@HealthCheck(check.SLOWED_GPUS, "HOST-GPU-SLOWED", "no slowdown", ("slowdown_reasons",))
def _describe_slowdown(board: Board, _: int, __: Fleet) -> str:
    names = [name for bit, name in SLOWDOWNS.items() if board["slowdown_reasons"] & bit]
    return f"clocks are slowed: {', '.join(names)}" if names else ""


@HealthCheck(check.NARROW_PCIE, "HOST-PCIE", "all lanes", ("pcie_width",))
def _describe_pcie(board: Board, _: int, __: Fleet) -> str:
    width, most = board["pcie_width"], board.get("pcie_max_width") or 0
    return f"PCIe runs x{width} of x{most}" if width < most else ""


# A board in a PCIe slot without a bridge has no links.
@HealthCheck(
    *(check.NVLINKS_DOWN, "HOST-NVLINK", "all links, or as many as on other GPUs of the model"),
    needs=("nvlinks",),
    may_lack=lambda board, gpus: not connects_all_links(board, gpus),
)
def _describe_links(board: Board, gpus: int, fleet: Fleet) -> str:
    links, model = board["nvlinks"], board.get("name") or ""
    least = fleet.links.get((model, gpus), 0)
    if gpus == 1 or board.get("split"):  # no other GPU to reach; MIG trains links of an A100 off
        least = 0
    elif connects_all_links(board, gpus):  # a board may not list a link that it has
        known = [count for name, count in MODEL_LINKS.items() if re.search(name, model)]
        least = max([links["all"], least, *known])
    is_down, most = links["active"] < least, max(links["all"], least)
    return f"{links['active']} of {most} NVLinks are active" if is_down else ""


# Only boards on an NVSwitch register.
@HealthCheck(
    *(check.FABRIC_FAULTS, "HOST-NVSWITCH", "a completed registration, no fault", ("fabric",)),
    may_lack=lambda board, gpus: True,
)
def _describe_fabric(board: Board, _: int, __: Fleet) -> str:
    fabric = board["fabric"]
    if state := FABRIC_STATES.get(fabric["state"]):
        return f"registration with the NVLink fabric is {state}"
    if fabric["state"] and fabric["status"] != FABRIC_SUCCESS:
        return f"registration with the NVLink fabric ended with error {fabric['status']}"
    health = fabric["health"]
    wrong = [text for text, (at, mask, bad) in FABRIC_HEALTH.items() if health >> at & mask in bad]
    return f"NVLink fabric: {', '.join(wrong)}" if wrong else ""


@HealthCheck(
    check.CLOSED_GPUS, "HOST-COMPUTE-MODE", "Default or Exclusive_Process", ("compute_mode",)
)
def _describe_mode(board: Board, _: int, __: Fleet) -> str:
    return "compute mode is Prohibited" if board["compute_mode"] == PROHIBITED else ""


UNCOUNTED = "no worker counted the GPUs"
VERBS = {"Ray": "Ray counts", "NVML": "NVML shows", "torch": "torch sees"}


@dataclass(frozen=True)
class NodeGpus:
    """GPU counts of one node, by source.

    `counts` holds Ray's number and that of each source that is compared with it.  A count is None
    if it is not known, for the reason in `unknown`.  `assigned` is the number of GPUs that torch
    sees in a worker that owns one.  `member` is False for a node where Ray counts no GPU.
    """

    name: str
    ordered: int | None
    counts: dict[str, int | None]
    assigned: int | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    member: bool = True

    @property
    def known(self) -> list[int]:
        """Counts that are known."""
        return [count for count in self.counts.values() if count is not None]

    @property
    def why_unknown(self) -> str:
        """Reasons why counts are not known."""
        return "; ".join(f"{source}: {reason}" for source, reason in self.unknown.items())

    @property
    def mismatches(self) -> int | None:
        """Number of counts that contradict Ray's; None if none does and one is not known."""
        wrong = sum(count != self.counts["Ray"] for count in self.known)
        wrong += self.assigned not in (None, 1)
        return None if self.unknown and not wrong else wrong

    @property
    def value(self) -> int | None:
        """Judged count: the smallest that differs from the order, else the common one (or None)."""
        if self.ordered is not None and (wrong := [n for n in self.known if n != self.ordered]):
            return min(wrong)
        return None if self.unknown else min(self.known)

    @property
    def is_wrong(self) -> bool:
        """Whether counts differ from the order or each other."""
        is_ordered = self.ordered is None or self.value in (None, self.ordered)
        return bool(self.mismatches) or not is_ordered

    @property
    def sentence(self) -> str:
        """Sentence: `node3: 8 GPUs were ordered, Ray counts 8, NVML shows 7, torch sees 7`."""
        parts = ["no number of GPUs was ordered"]
        if self.ordered is not None:
            parts = [f"{self.ordered} GPU{'s were' if self.ordered != 1 else ' was'} ordered"]
        for source, verb in VERBS.items():
            if self.counts.get(source) is not None:
                parts.append(f"{verb} {self.counts[source]}")
            elif reason := self.unknown.get(source):
                parts.append(f"{source} reports no number ({reason})")
            else:
                parts.append(f"{source} is not compared")
        if self.assigned not in (None, 1):
            parts.append(f"a worker with 1 GPU from Ray sees {self.assigned}")
        return f"{self.name}: {', '.join(parts)}"


def compared_sources(kind: str, emulated: bool, facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the sources that must agree with Ray.

    torch does not see emulated accelerators, and NVML is on all of those nodes or on none.  Raylets
    of one host (kind `local`) all see that host's GPUs, so nothing is compared there.
    """
    if kind == "local":
        return []
    if emulated:
        return ["NVML"] if any(fact["nvml"]["library"] for fact in facts) else []
    return ["NVML", "torch"]


def count_gpus(
    fact: Facts, ray_count: int, ordered: int | None, sources: Iterable[str], member: bool = True
) -> NodeGpus:
    """Count the GPUs of one node by each source.  `fact["torch"]` is from `count_torch_devices`."""
    counts: dict[str, int | None] = {"Ray": ray_count}
    unknown: dict[str, str] = {}
    expected, assigned = bool(ray_count or ordered), None
    if "NVML" in sources:
        counts["NVML"], reason = nvml_count(fact, expected)
        if reason:
            unknown["NVML"] = reason
    if "torch" in sources and ray_count:
        seen = fact.get("torch") or {"error": UNCOUNTED}
        assigned = seen.get("assigned")
        if not any("mig" in gpu for gpu in fact["gpus"]):  # torch sees at most one MIG instance
            counts["torch"] = seen.get("all")
        is_assigned = assigned is not None or "assigned by" in seen
        if not is_assigned or counts.get("torch", 0) is None:
            unknown["torch"] = str(seen.get("error") or UNCOUNTED)
    return NodeGpus(fact["name"], ordered, counts, assigned, unknown, member)


def nvml_count(fact: Mapping[str, Any], expected: bool) -> tuple[int | None, str]:
    """Return (number of GPUs that NVML can query, ""), or (None, reason).

    If NVML is missing or fails, the number is 0 where no GPU is `expected`.
    """
    nvml = fact["nvml"]
    if not nvml["library"]:
        if not expected:
            return 0, ""
        amd = "the node has AMD's driver" if fact["amd_driver"] else ""
        return None, amd or "libnvidia-ml.so.1 was not found"
    if nvml["error"]:
        return (None, nvml["error"]["text"]) if expected else (0, "")
    return sum("error" not in gpu for gpu in fact["gpus"]), ""


def nodes_with_fewer_gpus(nodes: Iterable[NodeGpus]) -> list[str]:
    """List the names of the members with fewer GPUs than most, or than their kind was ordered.

    If two counts are equally common, the larger one is taken as right.
    """
    members = [(node, min(node.known)) for node in nodes if node.member]
    if len({node.ordered for node, _ in members}) > 1:  # kinds of nodes were ordered
        return [node.name for node, count in members if count < (node.ordered or 0)]
    sizes = Counter(count for _, count in members)
    most = max(sizes, key=lambda size: (sizes[size], size), default=0)
    return [node.name for node, count in members if count < most]


SHOWN = 4  # boards with one fault in a sentence; the facts that are kept have all of them


def judge_gpu_health(facts: AllFacts, measure: Recorder) -> None:
    """Judge each node's GPUs by what their driver reports."""
    fleet = Fleet.of(facts)
    for fact in facts:
        judge_node_health(fact, fleet, measure)


def judge_node_health(fact: Facts, fleet: Fleet, measure: Recorder) -> None:
    """Judge the GPUs of one node, compared with the fleet's."""
    split = {gpu["index"] for gpu in fact["gpus"] if "mig" in gpu}
    read = [
        {**one, "split": one.get("mig") and one["index"] in split}
        for one in fact["gpu_health"]["boards"]
    ]
    node, boards = fact["name"], [*read, *_missing_boards(fact)]
    for one in CHECKS:
        _judge_check(one, node, boards, fleet, measure)
    _judge_power(node, boards, measure)
    _judge_queries(node, boards, measure)
    _note_state(node, boards, measure)


def _missing_boards(fact: Facts) -> list[Board]:
    """List the GPUs of a node whose health was not read; each counts as one that fails."""
    read = {board["index"] for board in fact["gpu_health"]["boards"]}
    error = fact["gpu_health"]["error"] or {"code": UNKNOWN, "text": "NVML did not list it again"}
    missing = {"uuid": "", "slot": "", "unsupported": [], "failed": {"GPU": error}}
    indices = sorted({gpu["index"] for gpu in fact["gpus"]} - read)
    return [{"index": index, **missing} for index in indices]


def _judge_check(
    health: HealthCheck, node: str, boards: Sequence[Board], fleet: Fleet, measure: Recorder
) -> None:
    known = [board for board in boards if any(need in board for need in health.needs)]
    texts = [health.describe(board, len(boards), fleet) for board in known]
    sick = [(board, text) for board, text in zip(known, texts, strict=True) if text]
    sound = texts.count("") + sum(
        health.is_sound_without(board, len(boards), fleet) for board in boards
    )
    proven = boards and sound + len(sick) == len(boards)
    note = "NVML does not answer for every GPU, or a GPU does not support the query"
    measure(health.measure, len(sick) if sick or proven else None, on=node, note=note)
    explain_boards(measure, health.code, node, sick, health.expected)


def explain_boards(
    measure: Recorder, code: str, node: str, sick: Sequence[tuple[Board, str]], expected: str
) -> None:
    """Make one finding that names the sick boards of a node, those with one fault together."""
    boards = group_pairs((text, board_name(board)) for board, text in sick)
    texts = [f"{join_names(names, SHOWN)} on {node}: {text}" for text, names in boards.items()]
    for board, _ in sick[:1]:
        names = name_gpu(board["uuid"], board["index"], board["slot"])
        statement = f"{'; '.join(texts)}. Expected: {expected}"
        measure.explain(finding(code, statement, [node], names=names))


def judge_worst(
    measure: Recorder,
    name: str,
    node: str,
    values: Sequence[tuple[Gpu, float | None]],
    worst: Callable[..., float | None],
    note: str,
    limit: Limit | None = None,
) -> list[tuple[Gpu, float]]:
    """Judge the worst value of a node's GPUs; return the GPUs whose value fails.

    Where the value of one GPU is not known, only a failure is proven.
    """
    limit = limit or measure.contract.limit(measure.criterion, name)
    known = [(board, value) for board, value in values if value is not None]
    bad = [(board, value) for board, value in known if limit and limit.judge(value) is Verdict.FAIL]
    most = worst((value for _, value in known), default=None)
    proven = most if bad or len(known) == len(values) else None
    measure(name, proven, on=node, note=note, limit=limit)
    return bad


def board_name(board: Board) -> str:
    """Name a GPU: `GPU 3 (GPU-uuid, slot 00000000:9B:00.0)`."""
    known = [board["uuid"], f"slot {board['slot']}" if board["slot"] else ""]
    where = ", ".join(filter(None, known))
    return f"GPU {board['index']} ({where})" if where else f"GPU {board['index']}"


def _judge_power(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Judge the lowest power limit of a node's GPUs, as a share of what the model usually has."""
    note = "NVML does not answer, or a GPU does not support the query"
    shares = [(board, _power_share(board)) for board in boards]
    low = judge_worst(measure, check.POWER_LIMIT, node, shares, min, note)
    text = "power limit is {} of {}"
    sick = [(one, text.format(percent(share), _usual_power(one)[1])) for one, share in low]
    expected = f"{measure.contract.limit('HOSTS', check.POWER_LIMIT)} of it"
    explain_boards(measure, "HOST-POWER-LIMIT", node, sick, expected)


def _power_share(board: Board) -> float | None:
    """Divide the limit by the default, in whole watts: some boards report 699.9 of 700 W."""
    limit, default = board.get("power_limit_mw"), board.get("power_default_mw")
    return round(limit / 1000) / _usual_power(board)[0] if limit and default else None


def _usual_power(board: Board) -> tuple[int, str]:
    """Return the power of a board in W, and what it is: a BIOS may lower the default itself."""
    default = round(board["power_default_mw"] / 1000)
    device = find_device(board.get("name") or "")
    sheet = round((device and device.watts) or 0)
    return (sheet, f"the model's {sheet} W") if sheet > default else (default, "the default")


def _judge_queries(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Judge that NVML answered: an error other than "not supported" hides what it was asked."""
    failed = [board for board in boards if board["failed"]]
    note = "NVML does not answer"
    measure(check.HEALTH_ERRORS, len(failed) if boards else None, on=node, note=note)
    sick = [
        (board, f"NVML does not answer the query {query}: error {error['code']}, {error['text']}")
        for board in failed
        for query, error in list(board["failed"].items())[:1]
        if query != "GPU"  # a board that does not answer at all is a finding of its own
    ]
    explain_boards(measure, "HOST-NVML-ERROR", node, sick, "an answer")


def _note_state(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Note what is worth knowing and no fault: persistence mode, errors of earlier times."""
    off = sum(board.get("persistence") is False for board in boards)
    measure.note("GPUs without persistence mode", off, "GPUs", on=node)
    rows = sum((board.get("remapped_rows") or {}).get("uncorrectable", 0) for board in boards)
    measure.note("memory rows remapped since the GPUs were new", rows, "rows", on=node)
    errors = sum(board.get("lifetime_errors") or 0 for board in boards)
    name = "uncorrected memory errors (ECC) since the GPUs were new"
    measure.note(name, errors, "errors", on=node)
