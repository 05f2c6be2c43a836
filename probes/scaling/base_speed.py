"""Judges whether one node is fast enough; a fleet that is slow everywhere can still scale well."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names
from probes.scaling.judge import judge_training
from probes.scaling.plan import LadderRig, node_count_text
from probes.scaling.replay import replace_lost_workers
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import GangError
from reports.measurement import Limit, Verdict
from reports.numbers import percent, quantity
from scaling.ladder.ladder import Rung, run_rung

LimitLookup = Callable[[str], Limit | None]

# MFU of a 1B model, 2048 tokens a sequence, bf16, FSDP on one node of eight GPUs (llm-foundry's
# benchmarks).  An H200 has an H100's arithmetic, and faster memory.  For other GPUs no such job is
# published.
PUBLISHED_MFU = {"A100": 0.60, "H100": 0.42, "H200": 0.42}
SAME_ARITHMETIC = {"H200": "H100, whose arithmetic an H200 has"}
# Other boards of these GPUs: their links and power are not those of the published nodes.
OTHER_BOARDS = {"pcie", "nvl"}
# Our job has 8192 tokens per GPU and step (theirs: 28,672), and is not compiled.  The slowest dense
# FSDP (8B, eager, GPUs capped at 500 of 700 W: torchtitan) keeps 0.8 of these figures.  Half the
# speed is below 0.6 of them.
LOW_SHARE, MARGINAL_SHARE = 0.6, 0.8
SLOWED_BY = 1.5  # the control's step, as a multiple of the longest allowed step: beyond any noise
SLOWED_STEPS = 2  # timed steps of the control; the planted wait is the same in each
EXPLODING = 1e30  # learning rate and clipping norm: the next step's loss is not finite


@dataclass(frozen=True)
class SpeedTest:
    """One way to judge a rung's speed: the name of the measure, and its limit (None: no limit)."""

    name: str
    limit: Limit | None

    def read(self, rung: Rung) -> tuple[float | None, str]:
        """Read the rung's value; return (value, ""), or (None, reason)."""
        if self.name == "tokens_per_s":
            return rung.tokens_per_s, ""
        if rung.mfu is None:
            return None, (
                f"no peak is known of {rung.devices or 'this device'}: agree [SCALING.tokens_per_s]"
            )
        if rung.mfu > 1:
            return None, f"{percent(rung.mfu)} of {rung.devices}: no device is faster than its peak"
        return rung.mfu, ""

    def fails(self, rung: Rung) -> bool:
        """Judge whether the rung is too slow."""
        return self.limit is not None and self.limit.judge(self.read(rung)[0]) is Verdict.FAIL

    def slack(self, rung: Rung) -> float:
        """Compute the factor by which a step of the rung may become longer; 1.0 without a limit."""
        value, _ = self.read(rung)
        return value / self.limit.low if value and self.limit and self.limit.low else 1.0


def derived_mfu(devices: str) -> Limit | None:
    """Derive the MFU limit of a GPU from its name; None if no figure is published for it."""
    words = {*re.findall("[a-z0-9]+", devices.lower())}
    known = [name for name in PUBLISHED_MFU if name.lower() in words]
    if len(known) != 1 or words & OTHER_BOARDS:
        return None
    share = PUBLISHED_MFU[known[0]]
    published = SAME_ARITHMETIC.get(known[0], known[0])
    return Limit(
        low=round(LOW_SHARE * share, 3),
        marginal_low=round(MARGINAL_SHARE * share, 3),
        unit="ratio",
        source="derived",
        because=(
            f"{percent(LOW_SHARE)} of the {percent(share)} published for 1B on a node of eight "
            f"{published} (llm-foundry): fewer tokens and no compiler cost less than that, "
            "half the speed costs more"
        ),
    )


def speed_tests(base: Rung, limits: LimitLookup, emulated: bool) -> list[SpeedTest]:
    """List the tests of the base rung: at least one, with or without a limit.

    An emulated accelerator has no peak, so it has no MFU test.  A real accelerator has one if MFU
    has a limit, or if no tokens per second are agreed.
    """
    tokens, agreed = limits("tokens_per_s"), limits("mfu")
    tests = [SpeedTest("tokens_per_s", tokens)] if tokens or emulated else []
    limit = agreed or (derived_mfu(base.devices) if base.mfu is not None else None)
    if not emulated and (limit or not tokens):
        tests.append(SpeedTest("mfu", limit))
    return tests


def judge_speed(base: Rung, tests: Sequence[SpeedTest], measure: Recorder) -> None:
    """Judge the median node alone by each test; name the nodes that are too slow."""
    on, timed = f"{node_count_text(1)}, {base.load_text}", len(base.steps[0])
    for test in tests:
        value, note = test.read(base)
        measure(test.name, value, on=on, limit=test.limit, samples=timed, note=note)
        if test.limit is None:
            words = f"no limit of {test.name} is agreed, or known for {base.devices}"
            remedy = f": agree [SCALING.{test.name}]" if measure.is_provable else ""
            measure.covered(words + remedy)
        elif value is not None and test.fails(base):
            slow = [name for name in dict.fromkeys(base.nodes) if test.fails(only(base, name))]
            words = f"one node alone is too slow ({join_names(slow)}): {test.name} "
            observed = quantity(value, test.limit.unit)
            message = f"{words}{observed}. Expected: {test.limit} ({test.limit.because})"
            measure.explain(finding("SCALE-SLOW-BASE", message, slow))
    judged = {test.name for test in tests}
    if "tokens_per_s" not in judged:
        measure.note("tokens_per_s", base.tokens_per_s, "tokens/s per rank", on=on)
    if "mfu" not in judged and base.mfu is not None:
        measure.note("mfu", base.mfu, "ratio", on=on)


def only(base: Rung, node: str) -> Rung:
    """Reduce the rung to the ranks of one node."""
    ranks = [rank for rank, name in enumerate(base.nodes) if name == node]
    return replace(base, nodes=[node] * len(ranks), steps=[base.steps[rank] for rank in ranks])


def control_bad_base(
    rig: LadderRig, config: TrainConfig, base: Rung, tests: Sequence[SpeedTest]
) -> None:
    """Check that slow nodes, an exploding loss, and nodes that train separately are detected.

    One run has all three faults; each is judged by a measure of its own.
    """
    step_s = SLOWED_BY * max(1.0, *(test.slack(base) for test in tests)) * base.seconds
    delay = step_s - base.seconds
    planted = replace(
        config,
        steps=SLOWED_STEPS,
        stall=f"data:rank=0:seconds={delay}",
        lr=EXPLODING,
        clip=EXPLODING,
    )
    faults = {
        "slow base": f"rank 0 of each node waits {delay:.2g} s for its data in every step, alone",
        "exploding loss": f"the learning rate is {EXPLODING:g}",
        "trained apart": "nodes that each train alone are judged as one job",
    }
    try:
        bad = run_rung(rig.gang, rig.node_names, 1, planted, as_one_job=True)
    except GangError as error:  # the measurement of the base remains valid
        for name, fault in faults.items():
            rig.measure.control(name, fault, None, saw=str(error))
        replace_lost_workers(rig.gang, error)
        return
    trial, limited = rig.measure.trial(), [test for test in tests if test.limit is not None]
    judge_speed(bad, limited, trial)
    judge_training(bad, trial, node_count_text(1))
    judged = {test.name for test in limited}
    without = {"mfu", "tokens_per_s"} - judged
    if limited:
        rig.measure.control("slow base", faults["slow base"], trial, without=without)
    else:
        nothing = "one node's speed has no limit"
        rig.measure.control("slow base", faults["slow base"], None, saw=nothing)
    for name in ("exploding loss", "trained apart"):
        rig.measure.control(name, faults[name], trial)
