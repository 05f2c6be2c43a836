"""Defines SCALING: its measures with their limits, its probes, and its controls."""

from __future__ import annotations

from probes.check.criterion import (
    Condition,
    CriterionRow,
    Duty,
    Measure,
    default_measure,
    fixed_measure,
    wrong_data,
)

MEASURES = {
    "efficiency": Measure("ratio", better="higher"),
    # Both are of the median node, running alone.  Without an agreed limit `mfu` gets a limit derived
    # from the GPU's name.
    "mfu": Measure("ratio", better="higher", derived_in_run=True),
    "tokens_per_s": Measure("tokens/s per rank", better="higher"),
    "non_finite": wrong_data("losses", "training has failed if the loss is NaN or infinite"),
    "disagreements": wrong_data(
        "steps", "ranks must train the same model; otherwise their speed proves nothing"
    ),
    "residual": fixed_measure(
        "ratio", "the terms must add up to the step time that they explain", high=1e-6
    ),
    "wall_gap": fixed_measure(
        "ratio",
        "the step times must add up to the measured time on the host's clock, whose error is far below 1 %",
        high=0.01,
    ),
    "straggler": default_measure(
        "ratio",
        "ranks with equal work differ only by noise; a rank that makes all others wait for 15 % of a step is a fault",
        high=0.15,
        marginal_high=0.1,
    ),
    "checkpoint_overhead": default_measure(
        "ratio",
        "share of the agreed time between two saves; large jobs save every 15 to 30 minutes (NVIDIA on nvCOMP), so 2 % is 36 s of 30 minutes; healthy clusters lose 2 to 4 % to scaling in total",
        high=0.02,
        marginal_high=0.01,
    ),
}

CONTROLS = {
    "slow base": ("mfu", "tokens_per_s"),
    "exploding loss": ("non_finite",),
    "trained apart": ("disagreements",),
    "planted delay": ("efficiency", "straggler"),
    "slow save": ("checkpoint_overhead",),
}
NO_CONTROL = {
    "residual": "it checks our own sums: no fault of a cluster breaks them",
    "wall_gap": "it checks our own clock: no fault of a cluster breaks it",
}
CONDITIONS: dict[str, Condition] = {
    "checkpoint_overhead": lambda here: here.tier != "quick",
    "slow save": lambda here: here.tier != "quick",
    "mfu": lambda here: not here.speed_in_tokens,
    "tokens_per_s": lambda here: here.speed_in_tokens or "SCALING.tokens_per_s" in here.agreed,
}
DUTIES = (
    Duty(
        "scaling/test_scaling.py::test_each_node_adds_its_share",
        "quick",
        (
            *("efficiency", "residual", "wall_gap", "non_finite", "disagreements", "straggler"),
            *("mfu", "tokens_per_s", "checkpoint_overhead"),
        ),
        ("slow base", "exploding loss", "trained apart", "planted delay", "slow save"),
    ),
)

SCALING = CriterionRow(
    title="scaling is close to linear",
    how="a real FSDP job timed on more and more nodes; the causes of every lost percent, which add up to the loss",
    headlines={
        "efficiency": "{work} ({value})",
        "mfu": "training reaches {value} of the peak",
        "tokens_per_s": "training reaches {value}",
    },
    measures=MEASURES,
    duties=DUTIES,
    controls=CONTROLS,
    no_control=NO_CONTROL,
    conditions=CONDITIONS,
)
