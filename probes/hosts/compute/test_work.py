"""Tests that each accelerator computes rightly, and as fast as the others of its model."""

from contextlib import closing

import pytest

from probes.hosts.compute.agreed_rates import judge_agreed
from probes.hosts.compute.controls import control_slowed, control_tiring, control_wrong_sums
from probes.hosts.compute.drift import judge_drift
from probes.hosts.compute.fleet import WorkFleet
from probes.hosts.compute.links import control_old_link, judge_links, note_clocks
from probes.hosts.compute.peer_copies import note_peer_copies
from probes.hosts.compute.speed_judge import judge_speed, note_launches
from probes.hosts.compute.sum_judge import judge_errors, judge_sums
from probes.hosts.compute.trial_runs import long_length, run_length, run_long, run_work


@pytest.mark.criterion("HOSTS")
def test_each_gpu_computes_rightly_and_as_fast_as_the_others(cluster, measure):
    """Every GPU gives right sums, the same bits and the same speed as others of its model.

    All compute and copy at once.  Slow ones run again, and then alone.  The PCIe link of each GPU
    is read under load.
    """
    alone = len(cluster.nodes) == 1 and not cluster.on_gpu
    without = {"slow_gpus", "gemm_hash_differs"} if alone else set()
    with closing(WorkFleet.start(cluster)) as fleet:
        measure.covered(fleet.coverage())
        sums, runs = fleet.check_sums(fleet.working), run_work(fleet)
        measure.keep("work.json", describe_work(fleet, sums, runs), caption=CAPTION)
        judge_errors(fleet, sums, [runs.first, runs.second, runs.alone], measure)
        judge_sums(fleet, sums, measure, hashes=not alone)
        if alone:
            measure.covered("there is no other accelerator to compare it with")
        else:
            judge_speed(fleet, runs, measure)
        judge_agreed(fleet, runs.first, measure)
        note_launches(fleet, runs.first, measure)
        control_wrong_sums(fleet, sums, measure, without)
        control_slowed(fleet, runs, run_length(fleet), measure, without)
        if cluster.on_gpu:
            links = fleet.read_links(fleet.working)
            measure.keep("links.json", describe_links(fleet, links), caption=LINKS_CAPTION)
            judge_links(fleet, links, measure)
            note_clocks(fleet, links, measure)
            control_old_link(fleet, links, measure)
    if cluster.on_gpu:
        note_peer_copies(cluster, measure)


@pytest.mark.tier("standard")
@pytest.mark.criterion("HOSTS")
def test_no_gpu_slows_down_under_load(cluster, tier, measure):
    """Every GPU is as fast at the end of long work as at its beginning, and its sums are right.

    The work takes a minute at the tier standard, and ten at the tier soak.
    """
    with closing(WorkFleet.start(cluster)) as fleet:
        measure.covered(fleet.coverage())
        parts = run_long(fleet, tier)
        measure.keep("long_work.json", describe_parts(fleet, parts), caption=LONG_CAPTION)
        sums = fleet.check_sums(fleet.working)
        judge_errors(fleet, sums, parts, measure)
        judge_drift(fleet, parts, measure)
        judge_sums(fleet, sums, measure, hashes=False)
        without = {"gemm_hash_differs"}
        control_wrong_sums(fleet, sums, measure, without)
        control_tiring(fleet, parts, long_length(fleet, tier), measure)


CAPTION = "sums and rates of every accelerator"
LINKS_CAPTION = "PCIe link and clock of every GPU under load"
LONG_CAPTION = "rates of every accelerator, part by part"


def describe_work(fleet, sums, runs):
    """Describe what each accelerator computed, and how fast, as evidence."""
    return [
        {
            "gpu": one.label,
            "model": one.model,
            "build": one.build,
            "error": one.error or fleet.errors.get(key, ""),
            "sums": sums.get(key),
            "all at once": describe_speed(runs.first.get(key)),
            "again": describe_speed(runs.second.get(key)),
            "alone": describe_speed(runs.alone.get(key)),
        }
        for key, one in fleet.accelerators.items()
    ]


def describe_links(fleet, links):
    """Describe what NVML answered of each GPU under load, as evidence."""
    return {one.label: links.get(key) for key, one in fleet.accelerators.items()}


def describe_parts(fleet, parts):
    """Describe the rates of each accelerator in each part of the long work, as evidence."""
    return {
        one.label: [describe_speed(part.get(key)) for part in parts]
        for key, one in fleet.accelerators.items()
    }


def describe_speed(speed):
    """Describe the rates of one run; None if there are none."""
    if speed is None:
        return None
    return {**speed.typical, "launch_us": speed.launch_us, "celsius": speed.celsius}
