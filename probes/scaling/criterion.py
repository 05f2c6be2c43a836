"""Declares SCALING: its checks with their limits, its controls, and its probe."""

from __future__ import annotations

# fmt: off
# isort: off
from probes.check.declarations import (
    ALL_GPUS, LONGER_TIER, ONE_NODE, TRAFFIC, Check, Circumstances, ControlRow, CriterionRow,
    OnOneNode, Probe, When, default_check, fixed_check, wrong_data,
)


def agrees_on_tokens(here: Circumstances) -> bool:
    """Return whether the contract has a limit for tokens/s."""
    return f"SCALING.{TOKENS_PER_S}" in here.agreed


def judges_tokens(here: Circumstances) -> bool:
    """Return whether speed is judged by tokens/s alone: mfu has no meaning, or no limit."""
    return here.emulated or (agrees_on_tokens(here) and f"SCALING.{MFU}" not in here.agreed)


SPEED_IN_TOKENS = When(judges_tokens)

EFFICIENCY = Check(
    "efficiency", "ratio", better="higher", when=~ONE_NODE,
    without_limit="UNPROVEN; in a run without a contract: 80 %",
)
# Both are of the median node, running alone.  Without an agreed limit `mfu` gets a limit derived
# from the GPU's name.
MFU = Check(
    "mfu", "ratio", derived_in_run=True, better="higher", when=~SPEED_IN_TOKENS, depends=("gpu_model",),
    without_limit="75 % of the MFU that is known for the GPU model; UNPROVEN if none is "
    "known and `tokens_per_s` is not agreed",
)
TOKENS_PER_S = Check(
    "tokens_per_s", "tokens/s per rank", better="higher",
    without_limit="not judged on GPUs; UNPROVEN in a rehearsal",
    when=SPEED_IN_TOKENS | When(agrees_on_tokens),
)
NON_FINITE = wrong_data(
    "non_finite", "losses", "training has failed if the loss is NaN or infinite",
    failing="the loss became NaN or infinite: {value}",
)
DISAGREEMENTS = wrong_data(
    "disagreements", "steps",
    "in each step all ranks must have the same loss and gradient norm, and each sample is used once; "
    "otherwise they do not train one model, and their speed proves nothing",
    failing="ranks differ in loss or gradient, or used the same samples, in {value}",
)
RESIDUAL = fixed_check(
    "residual", "ratio", "the parts of a step must add up to its time", high=1e-06,
    no_control="this measure checks seatrial's own sums, not the cluster",
    failing="the parts of a step do not add up to its time: {value} is missing",
)
WALL_GAP = fixed_check(
    "wall_gap", "ratio",
    "the step times must add up to the measured time on the host's clock, whose error is far "
    "below 1 %", high=0.01, no_control="this measure checks seatrial's own clock, not the cluster",
    failing="step times and the clock differ by {value}",
)
STRAGGLER = default_check(
    "straggler", "ratio",
    "ranks with equal work differ only by noise; a rank that makes all others wait for 15 % of a "
    "step is a fault", high=0.15, marginal_high=0.1, depends=("gpu_model",),
    failing="a rank or node is slower than the others, by {value} of a step{on}",
)
CHECKPOINT_OVERHEAD = default_check(
    "checkpoint_overhead", "ratio",
    "large jobs save every 15 to 30 minutes (NVIDIA on nvCOMP); 2 % of 30 minutes is 36 s",
    high=0.02, marginal_high=0.01, when=LONGER_TIER, depends=("save_gb", "save_minutes", "shared",),
    failing="saving checkpoints costs {value} of the training time",
)

SLOW_BASE = ControlRow("slow base", MFU, TOKENS_PER_S)
EXPLODING_LOSS = ControlRow("exploding loss", NON_FINITE)
TRAINED_APART = ControlRow("trained apart", DISAGREEMENTS)
PLANTED_DELAY = ControlRow("planted delay", EFFICIENCY, STRAGGLER)
SLOW_SAVE = ControlRow("slow save", CHECKPOINT_OVERHEAD)

PROBES = (
    Probe(
        "test_scaling.py::test_each_node_adds_its_share",
        tier="quick", usual_s=40,
        checks=(EFFICIENCY, RESIDUAL, WALL_GAP, NON_FINITE, DISAGREEMENTS, STRAGGLER, MFU,
        TOKENS_PER_S, CHECKPOINT_OVERHEAD),
        controls=(SLOW_BASE, EXPLODING_LOSS, TRAINED_APART, PLANTED_DELAY, SLOW_SAVE),
        disturbs=(ALL_GPUS, TRAFFIC,
        "writes checkpoints into the shared folder, from tier standard on"),
    ),
)

CRITERION = CriterionRow(
    title="scaling is close to linear",
    how="a real FSDP job is timed on a rising number of nodes; each lost percent is assigned "
    "to a cause", where="one rank for each GPU, on 1, 2, 4, 8 ... nodes in turn",
    needs=("2 nodes, or one node of several GPUs if one was ordered", "a shared folder that all nodes see, from tier standard on"),
    headlines={
        EFFICIENCY: "{work} ({value})", MFU: "training reaches {value} of the peak",
        TOKENS_PER_S: "training reaches {value}",
    },
    usual_s={"quick": 40, "standard": 58}, depends=("pace_seconds", "rungs", "shards",),
    least_nodes=2,
    on_one_node=OnOneNode(
        untested="how training scales to more nodes", title="training on the node is fast enough",
    ),
)
