"""Is a gang placed whole or not at all, when two jobs want more than there is?"""

import math
import time

import pytest

from probes.findings import finding
from probes.rivals import Watch, half_held, settled, two_jobs

CONTENTION_SECONDS = {"quick": 2.0, "standard": 10.0, "soak": 60.0}


@pytest.mark.criterion("GANG")
def test_two_gangs_compete_and_one_waits_whole(cluster, measure, tier):
    """Of two jobs that each want 75 % of what is free, one gets all of it and one holds nothing.

    A third process looks at least 20 times a second.  When the first lets go, the other starts.
    """
    total = settled(cluster, cluster.size, 5)
    if total < 2:
        pytest.fail(f"contention needs 2 free {cluster.resource}s, found {total}", pytrace=False)
    need = math.ceil(0.75 * total)
    with two_jobs(cluster) as (a, b):
        watch, placed, took = contend(cluster, a, b, need, CONTENTION_SECONDS[tier])
        measure.covered(
            f"two jobs of {need} of {total} free {cluster.resource}s, {len(watch.samples)} samples"
        )
        control, samples = naive(a, b, total, need)
        for job in (a, b):  # a Ray Client's job outlives its client for a while
            job.ask("release")
    halves = [sample for sample in watch.samples if half_held(sample["held"], need)]
    measure("half_held", len(halves), samples=len(watch.samples))
    measure("placed_at_once", len(placed))
    measure("handoff", took, note="the waiting gang was not placed within 30 s")
    rate = watch.rate
    measure(
        "sample_rate",
        rate if rate >= 20 else None,
        samples=len(watch.samples),
        note=f"only {rate:.1f} samples a second",
    )
    for job in half_held(halves[0]["held"], need) if halves else []:
        said = f"job {job} held {halves[0]['held'][job]} of {need} while it waited"
        measure.explain(finding("GANG-HALF", said, [f"job {job}"]))
    measure.note("longest_gap", watch.longest_gap, "s", on="sampling")
    if took is None:
        said = f"{len(placed)} of 2 gangs were placed; last seen {watch.samples[-1]['state']}"
        measure.explain(finding("GANG-STUCK", said))
    measure.control(
        "naive actors",
        "two jobs take single actors in turns, without a gang",
        caught=len(control) > 0,
        saw=f"half-scheduled jobs: {', '.join(control) or 'none'}",
    )
    measure("left_behind", total - settled(cluster, total, 15))
    measure.keep("gang-samples.json", watch.samples, kind="series", caption="who held what, when")
    measure.series(
        "gang",
        {
            "samples": watch.samples,
            "need": {"A": need, "B": need},
            "total": total,
            "control": samples,
        },
    )


def contend(cluster, a, b, need, seconds):
    """Both ask at once; look; the winner lets go; look until the other is whole.

    Returns the watch, the jobs placed while both wanted, and the hand-off's seconds (or None).
    """
    watch = Watch(cluster, {"A": a.group, "B": b.group})
    watch.sample()
    a.tell("gang", need)
    b.tell("gang", need)
    watch.until(lambda sample: need in sample["held"].values(), 30)
    watch.until(lambda sample: False, seconds)
    placed = [job for job, count in watch.samples[-1]["held"].items() if count == need]
    for job in (a, b):
        job.answer()
    if len(placed) != 1:
        return watch, placed, None
    winner, loser = (a, b) if placed == ["A"] else (b, a)
    winner.tell("release")
    took = watch.until(lambda sample: sample["held"][loser.name] == need, 30)
    winner.answer()
    loser.ask("release")
    return watch, placed, took


def naive(a, b, total, need):
    """Single actors taken in turns: each job ends up with a part, and neither with all."""
    for turn in range(2 * need):
        (a, b)[turn % 2].ask("naive", 1)
    samples, begun = [], time.monotonic()
    while time.monotonic() - begun < 60:
        held = {"A": a.ask("alive"), "B": b.ask("alive")}
        samples.append({"t": time.monotonic() - begun, "held": held})
        if sum(held.values()) == total:
            break
        time.sleep(0.05)
    return half_held(samples[-1]["held"], need), samples
