"""Lists what may be wrong with a GPU, by what its driver reports."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.numbers import quantity

Facts = Mapping[str, Any]
Board = Mapping[str, Any]

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


@dataclass
class Fleet:
    """What the GPUs of all nodes have: a GPU is compared with those of its model.

    `links` is the usual number of active NVLinks by (model, GPUs of the node).  `answered` holds
    (model, query) of every answer.
    """

    links: dict[tuple[str, int], int] = field(default_factory=dict)
    answered: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, facts: Sequence[Facts]) -> Fleet:
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


@dataclass(frozen=True)
class HealthCheck:
    """One judged measure: the answers that it needs, and what is wrong with a board.

    One of `needs` must be known of each board.  `describe` gets the board, the number of GPUs of
    its node and the fleet; it returns None where the answers do not decide.  A board that does not
    support the query is sound only where `may_lack` holds and no other of its model answers.
    """

    measure: str
    code: str
    needs: tuple[str, ...]
    describe: Callable[[Board, int, Fleet], str | None]
    expected: str
    may_lack: Callable[[Board, int], bool] = lambda board, gpus: False

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


def _describe_recovery(board: Board, _: int, __: Fleet) -> str:
    action = board["recovery_action"]
    return f"the driver asks for {RECOVERY.get(action, f'action {action}')}" if action else ""


def _describe_memory_errors(board: Board, _: int, __: Fleet) -> str:
    if errors := board.get("uncorrected_errors"):
        return f"{quantity(errors, 'uncorrected memory errors')} since the driver was loaded"
    is_high = board.get("sram_threshold")
    return "SRAM errors are above the threshold for replacement" if is_high else ""


def _describe_row_remap(board: Board, _: int, __: Fleet) -> str:
    rows = board.get("remapped_rows") or {}
    if rows.get("failed"):
        return "a memory row could not be remapped"
    is_waiting = rows.get("pending") or board.get("retired_pending")
    return "a memory row waits to be remapped" if is_waiting else ""


def _describe_ecc_mode(board: Board, _: int, __: Fleet) -> str | None:
    if board["ecc"]:
        return ""
    if "ecc_default" not in board:
        return None
    return "ECC is off, which is not its default" if board["ecc_default"] else ""


def _describe_slowdown(board: Board, _: int, __: Fleet) -> str:
    names = [name for bit, name in SLOWDOWNS.items() if board["slowdown_reasons"] & bit]
    return f"clocks are slowed: {', '.join(names)}" if names else ""


def _describe_pcie(board: Board, _: int, __: Fleet) -> str:
    width, most = board["pcie_width"], board.get("pcie_max_width") or 0
    return f"PCIe runs x{width} of x{most}" if width < most else ""


def _describe_links(board: Board, gpus: int, fleet: Fleet) -> str:
    links, model = board["nvlinks"], board.get("name") or ""
    least = fleet.links.get((model, gpus), 0)
    if gpus == 1 or board.get("mig"):  # no other GPU to reach; MIG trains links of an A100 off
        least = 0
    elif connects_all_links(board, gpus):
        least = links["all"]
    is_down = links["active"] < least
    return f"{links['active']} of {links['all']} NVLinks are active" if is_down else ""


def _describe_fabric(board: Board, _: int, __: Fleet) -> str:
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


def _describe_mode(board: Board, _: int, __: Fleet) -> str:
    return "compute mode is Prohibited" if board["compute_mode"] == PROHIBITED else ""


CHECKS = (
    HealthCheck(
        measure="gpus_to_reset",
        code="HOST-GPU-RECOVERY",
        needs=("recovery_action",),
        describe=_describe_recovery,
        expected="no recovery action",
        # Drivers before R565 do not know it; the other checks see its causes.
        may_lack=lambda board, gpus: True,
    ),
    HealthCheck(
        measure="memory_errors",
        code="HOST-ECC",
        needs=("uncorrected_errors",),
        describe=_describe_memory_errors,
        expected="none",
    ),
    HealthCheck(
        measure="row_remaps",
        code="HOST-ROW-REMAP",
        needs=("remapped_rows", "retired_pending"),
        describe=_describe_row_remap,
        expected="no row that waits or failed",
    ),
    HealthCheck(
        measure="gpus_without_ecc",
        code="HOST-ECC-OFF",
        needs=("ecc",),
        describe=_describe_ecc_mode,
        expected="ECC on",
    ),
    HealthCheck(
        measure="slowed_gpus",
        code="HOST-GPU-SLOWED",
        needs=("slowdown_reasons",),
        describe=_describe_slowdown,
        expected="no slowdown",
    ),
    HealthCheck(
        measure="narrow_pcie",
        code="HOST-PCIE",
        needs=("pcie_width",),
        describe=_describe_pcie,
        expected="all lanes",
    ),
    HealthCheck(
        measure="nvlinks_down",
        code="HOST-NVLINK",
        needs=("nvlinks",),
        describe=_describe_links,
        expected="all links, as on the other GPUs of the model",
        # A board in a PCIe slot without a bridge has none.
        may_lack=lambda board, gpus: not connects_all_links(board, gpus),
    ),
    HealthCheck(
        measure="fabric_faults",
        code="HOST-NVSWITCH",
        needs=("fabric",),
        describe=_describe_fabric,
        expected="completed without a fault",
        may_lack=lambda board, gpus: True,  # only boards on an NVSwitch register
    ),
    HealthCheck(
        measure="closed_gpus",
        code="HOST-COMPUTE-MODE",
        needs=("compute_mode",),
        describe=_describe_mode,
        expected="Default or Exclusive_Process",
    ),
)
