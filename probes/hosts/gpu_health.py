"""Judges the health of each GPU by what its driver reports."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.nvml import UNKNOWN
from probes.findings import finding, join_names
from reports.numbers import percent, quantity
from reports.record import Finding

Facts = Mapping[str, Any]
Board = Mapping[str, Any]
ActiveLinks = Mapping[str, int]  # model -> usual number of active NVLinks

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
# the GPU is idle, or it is at its power limit under load, or an operator has set its clocks.
SLOWDOWNS = {
    0x8: "hardware",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
PROHIBITED = 2  # nvmlComputeMode_t: no process may use the GPU
FABRIC_STATES = {1: "not started", 2: "in progress"}  # nvmlGpuFabricState_t: 3 is completed
FABRIC_SUCCESS = 0
# Counter of a board -> its rate's name, and the rate's factor: of ns to a share, of 1/s to 1/min.
RATES = {"heat_ns": ("heat_share", 1e-9), "pcie_replays": ("replays_per_minute", 60.0)}
# nvmlGpuFabricInfo's healthMask: first bit, width, and the values that are faults (nvml.h).
FABRIC_HEALTH = {
    "bandwidth is degraded": (0, 3, {1}),
    "a route is unhealthy": (4, 3, {1}),
    "configuration is wrong": (8, 15, set(range(2, 16))),
}
# Boards that an NVSwitch or each other's NVLinks always connect; a PCIe board may have no bridge.
NVSWITCH_BOARD = re.compile(r"SXM|\bH[12]00 80GB HBM3|\bH200$|\bH20$|\bB[23]00\b|\bGB[23]00\b")
# A GPU that waits for its fans to start may slow down for a moment; in a sound rack none does for
# longer.  1 % is what SCALING can tell from noise.
MAX_HEAT_SHARE = 0.01
MAX_REPLAYS = 8.0  # per minute: DCGM's health watch warns above (DCGM_FR_PCI_REPLAY_RATE)
LEAST_S = 60.0  # a rate is taken over a minute at least: one event in a short run is no rate
SHOWN = 4  # boards with one fault in a sentence; the facts that are kept have all of them


@dataclass(frozen=True)
class HealthCheck:
    """One judged measure: the answers that it needs, and what is wrong with a board.

    One of `needs` must be known of each board.  Where `may_lack`, a board that does not support
    them is sound.
    """

    measure: str
    code: str
    needs: tuple[str, ...]
    describe: Callable[[Board, ActiveLinks], str]
    expected: str
    may_lack: bool = False


def _describe_recovery(board: Board, _: ActiveLinks) -> str:
    action = board["recovery_action"]
    return f"the driver asks for {RECOVERY.get(action, f'action {action}')}" if action else ""


def _describe_ecc_mode(board: Board, _: ActiveLinks) -> str:
    return (
        "ECC is off, which is not its default"
        if board.get("ecc_default") and not board["ecc"]
        else ""
    )


def _describe_memory_errors(board: Board, _: ActiveLinks) -> str:
    if errors := board.get("uncorrected_errors"):
        return f"{quantity(errors, 'uncorrected memory errors')} since the driver was loaded"
    return (
        "SRAM errors are above the threshold for replacement" if board.get("sram_threshold") else ""
    )


def _describe_row_remap(board: Board, _: ActiveLinks) -> str:
    rows = board.get("remapped_rows") or {}
    if rows.get("failed"):
        return "a memory row could not be remapped"
    if rows.get("pending") or board.get("retired_pending"):
        return "a memory row waits to be remapped"
    return ""


def _describe_slowdown(board: Board, _: ActiveLinks) -> str:
    if (share := board.get("heat_share", 0)) > MAX_HEAT_SHARE:
        return f"heat slowed the clocks for {percent(share)} of the run"
    names = [name for bit, name in SLOWDOWNS.items() if board["slowdown_reasons"] & bit]
    return f"clocks are slowed: {', '.join(names)}" if names else ""


def _describe_pcie(board: Board, _: ActiveLinks) -> str:
    if (rate := board.get("replays_per_minute", 0)) > MAX_REPLAYS:
        return f"PCIe repeated {quantity(rate, 'packets')} per minute"
    width, most = board["pcie_width"], board.get("pcie_max_width") or 0
    return f"PCIe runs x{width} of x{most}" if width < most else ""


def _describe_links(board: Board, usual: ActiveLinks) -> str:
    links = board["nvlinks"]
    switched = NVSWITCH_BOARD.search(board.get("name") or "")
    least = links["all"] if switched else usual.get(board.get("name") or "", 0)
    return (
        f"{links['active']} of {links['all']} NVLinks are active" if links["active"] < least else ""
    )


def _describe_fabric(board: Board, _: ActiveLinks) -> str:
    fabric = board["fabric"]
    if state := FABRIC_STATES.get(fabric["state"]):
        return f"registration with the NVLink fabric is {state}"
    if fabric["state"] and fabric["status"] != FABRIC_SUCCESS:
        return f"registration with the NVLink fabric ended with error {fabric['status']}"
    wrong = [
        text
        for text, (first, mask, faults) in FABRIC_HEALTH.items()
        if fabric["health"] >> first & mask in faults
    ]
    return f"NVLink fabric: {', '.join(wrong)}" if wrong else ""


def _describe_mode(board: Board, _: ActiveLinks) -> str:
    return "compute mode is Prohibited" if board["compute_mode"] == PROHIBITED else ""


CHECKS = (
    HealthCheck(
        *("gpus_to_reset", "HOST-GPU-RECOVERY", ("recovery_action",), _describe_recovery),
        expected="no recovery action",
        may_lack=True,  # drivers before R565 do not know it; the other checks see its causes
    ),
    HealthCheck(
        *("memory_errors", "HOST-ECC", ("uncorrected_errors",), _describe_memory_errors),
        expected="none",
    ),
    HealthCheck(
        *(
            "row_remaps",
            "HOST-ROW-REMAP",
            ("remapped_rows", "retired_pending"),
            _describe_row_remap,
        ),
        expected="no row that waits or failed",
    ),
    HealthCheck("ecc_off", "HOST-ECC-OFF", ("ecc",), _describe_ecc_mode, expected="ECC on"),
    HealthCheck(
        *("slowed_gpus", "HOST-GPU-SLOWED", ("slowdown_reasons",), _describe_slowdown),
        expected="no slowdown",
    ),
    HealthCheck(
        *("pcie_faults", "HOST-PCIE", ("pcie_width",), _describe_pcie),
        expected="all lanes, at most 8 repeated packets per minute",
    ),
    HealthCheck(
        *("nvlinks_down", "HOST-NVLINK", ("nvlinks",), _describe_links),
        expected="all links, as on the other GPUs of the model",
        may_lack=True,  # a PCIe board without a bridge has none
    ),
    HealthCheck(
        *("fabric_faults", "HOST-NVSWITCH", ("fabric",), _describe_fabric),
        expected="completed without a fault",
        may_lack=True,  # only boards on an NVSwitch register
    ),
    HealthCheck(
        *("closed_gpus", "HOST-COMPUTE-MODE", ("compute_mode",), _describe_mode),
        expected="Default or Exclusive_Process",
    ),
)


def add_rates(facts: Sequence[Facts], before: Sequence[Facts]) -> list[Facts]:
    """Add to each GPU what its counters gained since `before`: `heat_share`, `replays_per_minute`.

    A GPU that was not there, or whose counter went back, gets no rate.
    """
    earlier = {fact["node"]: fact["gpu_health"] for fact in before}
    return [
        {**fact, "gpu_health": _with_rates(fact["gpu_health"], earlier[fact["node"]])}
        if fact["node"] in earlier
        else fact
        for fact in facts
    ]


def _with_rates(now: Facts, before: Facts) -> dict[str, Any]:
    boards = {board["uuid"]: board for board in before["boards"]}
    seconds = max(now["clock"] - before["clock"], LEAST_S)
    return {
        **now,
        "boards": [
            {**board, **_rates(board, boards.get(board["uuid"], {}), seconds)}
            for board in now["boards"]
        ],
    }


def _rates(now: Board, before: Board, seconds: float) -> dict[str, float]:
    rates = {}
    for counter, (name, per_second) in RATES.items():
        gained = now.get(counter, 0) - before.get(counter, now.get(counter, 0))
        if gained > 0:
            rates[name] = gained * per_second / seconds
    return rates


def judge_gpu_health(facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge each node's GPUs by what their driver reports."""
    usual = usual_links(facts)
    for fact in facts:
        judge_node_health(fact, usual, measure)


def judge_node_health(fact: Facts, usual: ActiveLinks, measure: Recorder) -> None:
    """Judge the GPUs of one node; `usual` is from `usual_links`."""
    node, boards = fact["name"], [*fact["gpu_health"]["boards"], *_missing_boards(fact)]
    for check in CHECKS:
        _judge_check(check, node, boards, usual, measure)
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


def usual_links(facts: Sequence[Facts]) -> dict[str, int]:
    """Return the most common number of active NVLinks by model; of two, the larger.

    A node with a single GPU is left out: it may be a part of a board, without links.
    """
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for fact in facts:
        boards = fact["gpu_health"]["boards"]
        for board in boards if len(boards) > 1 else []:
            if "nvlinks" in board:
                counts[board.get("name") or ""][board["nvlinks"]["active"]] += 1
    return {
        name: max(active, key=lambda number: (active[number], number))
        for name, active in counts.items()
    }


def _judge_check(
    check: HealthCheck, node: str, boards: Sequence[Board], usual: ActiveLinks, measure: Recorder
) -> None:
    if check.measure == "nvlinks_down" and len(boards) == 1:
        boards, usual = [{**boards[0], "name": ""}], {}  # no other GPU to connect to
    known = [board for board in boards if any(need in board for need in check.needs)]
    lacking = [board for board in boards if set(check.needs) <= set(board["unsupported"])]
    sick = [(board, text) for board in known if (text := check.describe(board, usual))]
    sound = len(known) + (len(lacking) if check.may_lack else 0)
    proven = boards and sound == len(boards)
    note = "NVML does not support the query here" if lacking else "NVML does not answer"
    measure(check.measure, len(sick) if sick or proven else None, on=node, note=note)
    measure.explain(_explain(check.code, node, sick, check.expected))


def _explain(
    code: str, node: str, sick: Sequence[tuple[Board, str]], expected: str
) -> list[Finding]:
    """Make one finding that names the sick boards of a node, those with one fault together."""
    boards: dict[str, list[str]] = defaultdict(list)
    for board, text in sick:
        boards[text].append(board_name(board))
    texts = [f"{join_names(names, SHOWN)} on {node}: {text}" for text, names in boards.items()]
    return [finding(code, f"{'; '.join(texts)}. Expected: {expected}", [node])] if texts else []


def board_name(board: Board) -> str:
    """Name a GPU: `GPU 3 (GPU-uuid, slot 00000000:9B:00.0)`."""
    known = [board["uuid"], f"slot {board['slot']}" if board["slot"] else ""]
    where = ", ".join(filter(None, known))
    return f"GPU {board['index']} ({where})" if where else f"GPU {board['index']}"


def _judge_power(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Judge the lowest power limit of a node's GPUs, as a share of the model's default."""
    shares = [_power_share(board) for board in boards]
    known = [share for share in shares if share is not None]
    lowest = min(known) if known else None
    low = lowest is not None and measure.would_fail("power_limit", lowest)
    complete = len(known) == len(boards) or low
    note = "NVML does not answer, or does not support the query here"
    measure("power_limit", lowest if complete else None, on=node, note=note)
    sick = [
        (board, f"power limit is {percent(share)} of the default")
        for board, share in zip(boards, shares, strict=True)
        if share is not None and measure.would_fail("power_limit", share)
    ]
    measure.explain(_explain("HOST-POWER-LIMIT", node, sick, "the default power limit"))


def _power_share(board: Board) -> float | None:
    limit, default = board.get("power_limit_mw"), board.get("power_default_mw")
    return limit / default if limit and default else None


def _judge_queries(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Judge that NVML answered: an error other than "not supported" hides what it was asked."""
    failed = [board for board in boards if board["failed"]]
    note = "NVML does not answer"
    measure("health_errors", len(failed) if boards else None, on=node, note=note)
    sick = [
        (board, f"NVML does not answer for {query}: error {error['code']}, {error['text']}")
        for board in failed
        for query, error in list(board["failed"].items())[:1]
        if query != "GPU"  # a board that does not answer at all is a finding of its own
    ]
    measure.explain(_explain("HOST-NVML-ERROR", node, sick, "an answer"))


def _note_state(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Note what is worth knowing and no fault: persistence mode, errors of earlier times."""
    off = sum(board.get("persistence") is False for board in boards)
    measure.note("GPUs without persistence mode", off, "GPUs", on=node)
    errors = sum(board.get("lifetime_errors") or 0 for board in boards)
    measure.note("uncorrected errors in the GPUs' lifetime", errors, "errors", on=node)
