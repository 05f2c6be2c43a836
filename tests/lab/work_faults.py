"""Fault of the work of a node's accelerators: GEMMs.  The fault `slow-cpu` makes them slow.

A fault is a pair of functions, as in `faults`.  A stand-in changes torch's GEMM in the node's
workers, because no CPU here computes wrongly.
"""

from __future__ import annotations

from pathlib import Path

from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.shell import LabError

STANDIN = Path(__file__).with_name("standin_sums")


def _break_gemm(lab: Lab, name: str, what: str) -> str:
    if what not in ("wrong", "fails"):
        raise LabError(f"a GEMM is wrong or fails, found {what!r}")
    node = lab.node(name)
    node.plant({"environment": {"PYTHONPATH": str(STANDIN), "SEATRIAL_LAB_GEMM": what}})
    node.power_off()
    lab.start_ray([node])
    return f"{node.name}: each GEMM of torch {'fails' if what == 'fails' else 'is wrong'}"


def _heal_gemm(lab: Lab, name: str, _what: str) -> str:
    node = lab.node(name)
    node.plant({})
    node.power_off()
    lab.start_ray([node])
    return f"{node.name}: torch adds rightly"


# name: (arguments, explanation, (break, heal)), as in `faults`
WORK_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "gemm": (
        ["node", "what"],
        "Each GEMM of torch on NODE has a `wrong` element, or `fails`; Ray restarts there.",
        (_break_gemm, _heal_gemm),
    ),
}
