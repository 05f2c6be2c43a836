"""Makes a ladder of simulated nodes, with the times of its collectives."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import Any

from probes.contract.contract import Contract, parse
from scaling.collectives.line_rate import Fit
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.ladder_result import Ladder
from scaling.loss.predict import CollectiveCall
from tests.support.simulated_steps import Cluster

FITS = {"all_gather": Fit(50.0, 0.1, 0.02, 6)}
CALLS = [CollectiveCall("all_gather", 200_000, 4)]


def ladder(**planted: Any) -> Ladder:
    """Make rungs of 1, 2 and 4 simulated nodes."""
    whole = Cluster(nodes=4, steps=24, seed=3, **planted)
    two = Cluster(nodes=2, steps=24, seed=4).largest()
    seconds, agreed = whole.talk.replayed or 0.0, whole.talk.at_agreed_rate or 0.0
    rungs = [
        replace(whole.base(), replay_s=0.0),
        replace(two, replay_s=seconds / 2, agreed_s=agreed / 2, alpha_beta_s=0.01),
        replace(whole.largest(), replay_s=seconds, agreed_s=agreed, alpha_beta_s=0.02),
    ]
    return Ladder(rungs=rungs, calls=CALLS, fits=FITS, base_repeats=[rungs[0]])


def with_rung(found: Ladder, index: int, **known: Any) -> Ladder:
    """Return the ladder with other values in one rung."""
    rungs = [*found.rungs]
    rungs[index] = replace(rungs[index], **known)
    return replace(found, rungs=rungs)


def throttled(found: Ladder, *names: str, by: float = 2.0) -> Ladder:
    """Make these nodes, alone, and every rung with one of them take `by` times as long."""

    def slow(rung: Rung) -> Rung:
        held_up = rung.count > 1 and {*names} & {*rung.nodes}
        steps = [
            [slower(step, by) if held_up or node in names else step for step in mine]
            for node, mine in zip(rung.nodes, rung.steps, strict=True)
        ]
        return replace(rung, steps=steps)

    return replace(found, rungs=[slow(rung) for rung in found.rungs])


def slower(step: Step, by: float) -> Step:
    segments = {name: by * seconds for name, seconds in step.segments.items()}
    return replace(step, seconds=by * step.seconds, wall=by * step.seconds, segments=segments)


def agreed(low: float, marginal: float | None) -> Contract:
    """Return the lab's contract with another limit of efficiency."""
    text = (resources.files("probes.contract") / "contracts" / "lab.toml").read_text()
    other = f"at_least = {low}" + (f"\nmarginal = {marginal}" if marginal else "")
    assert "at_least = 0.55\nmarginal = 0.65" in text
    return parse(text.replace("at_least = 0.55\nmarginal = 0.65", other).encode(), "lab.toml")
