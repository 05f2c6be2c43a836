"""Judges the PCIe link of each GPU under load; its control is a link of the first generation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from probes.acceptance.measure import Recorder
from probes.hosts.compute.controls import UNFOLLOWED, find_victim, is_located
from probes.hosts.compute.fleet import WorkFleet
from probes.hosts.compute.results import count_by_node, explain_by_node

JUDGED = frozenset({"generation", "most_generation", "width", "most_width"})
OLD_LINK = {"generation": 1}  # what the control plants
Link = Mapping[str, int]
Links = Mapping[str, Mapping[str, Any]]  # answers of `AcceleratorWorker.read_link` by accelerator


def judge_links(fleet: WorkFleet, links: Links, measure: Recorder) -> None:
    """Judge that each GPU's PCIe link runs at its highest generation and width under load."""
    known = {key: one["link"] for key, one in links.items() if one["link"].keys() >= JUDGED}
    models = defaultdict[str, list[Link]](list)
    for key, link in known.items():
        models[fleet.accelerators[key].model].append(link)
    slow, unknown = {}, {}
    for key, one in fleet.accelerators.items():
        if key not in links:
            unknown[key] = fleet.why_unknown(key)
        elif key not in known:
            why = links[key]["error"] or "NVML does not support a query of its PCIe link"
            unknown[key] = f"{one.label}: {why}"
        elif text := describe_slow_link(known[key], models[one.model]):
            slow[key] = text
    count_by_node("slow_pcie", fleet.accelerators, slow, unknown, measure)
    explain_by_node("HOST-PCIE", fleet.accelerators, slow, measure)


def describe_slow_link(link: Link, model: Sequence[Link]) -> str:
    """Describe a link that is slower than it, or most links of its model, can be; "" for others.

    A BIOS may limit a slot: the maximum of this GPU is then low as well.
    """
    generation, width = (
        max(link[name], median_low(one[name] for one in model))
        for name in ("most_generation", "most_width")
    )
    if link["generation"] >= generation and link["width"] >= width:
        return ""
    now = f"PCIe {link['generation']} x{link['width']} under load"
    return f"{now}. Expected: {generation} x{width}"


def note_clocks(fleet: WorkFleet, links: Links, measure: Recorder) -> None:
    """Note the lowest SM clock under load of each node, as a share of the highest that it can have.

    It is no fault by itself: the power limit sets it, and GEMMs of a slow GPU show it.
    """
    nodes = defaultdict[str, list[float]](list)
    for key, one in links.items():
        link = one["link"]
        if link.get("most_sm_mhz") and "sm_mhz" in link:
            nodes[fleet.accelerators[key].node].append(link["sm_mhz"] / link["most_sm_mhz"])
    for node, shares in nodes.items():
        measure.note("sm_clock", min(shares), "ratio", on=node)


def control_old_link(fleet: WorkFleet, links: Links, measure: Recorder) -> None:
    """Check that a GPU whose PCIe link stays at the first generation is detected."""
    victim = find_victim(fleet)
    if victim is None:
        measure.control("old link", "the last GPU has an old PCIe link", None, saw=UNFOLLOWED)
        return
    planted = fleet.read_links([victim.key], OLD_LINK)
    trial = measure.trial()
    judge_links(fleet, {**links, **planted}, trial)
    fault = f"{victim.label} runs PCIe {OLD_LINK['generation']} under load, as NVML reports"
    located = victim.key in planted and is_located(trial, victim)
    measure.control("old link", fault, trial, located=located)
