"""Checks `ladder.json`: a damaged file is refused with one sentence, never read in part."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from reference_trainer.telemetry.injected_delay import SEGMENTS
from scaling.collectives.alpha_beta import Fit
from scaling.collectives.operations import OPERATIONS
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.predict import CollectiveCall

APART = 0.01  # share of a step by which its parts may differ from it; more means damage


def describe_damage(error: ValidationError) -> str:
    """Describe the first error in one sentence: what was expected, and what was found."""
    first = error.errors()[0]
    message, found = first["msg"], reprlib.repr(first["input"])
    if first["type"] == "missing":
        message = "expected a value, found none"
    elif first["type"] == "dataclass_type":
        message = f"expected an object, found {found}"
    else:
        # A tuple here is a list in JSON.
        message = message.replace("Input should be", "expected").replace("tuple", "list")
        message = f"{message}, found {found}"
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {message}" if where else message


def check_rungs(rungs: Sequence[Rung], base_repeats: Sequence[Rung] = ()) -> None:
    """Refuse rungs that no ladder can have.

    Raises ValueError with what was expected and what was found.
    """
    for name, each in (("rungs", rungs), ("base_repeats", base_repeats)):
        for index, rung in enumerate(each):
            for rank, steps in enumerate(rung.steps):
                for number, step in enumerate(steps):
                    _check_step(step, f"{name}.{index}.steps.{rank}.{number}")
            _check_rung(rung, f"{name}.{index}")
    counts = [rung.count for rung in rungs]
    if counts[:1] != [1] or counts != sorted(set(counts)):
        found = ", ".join(map(str, counts)) or "none"
        raise ValueError(f"expected rungs that rise from 1 node, found {found}")
    for rung in rungs:
        if strange := sorted({*rung.nodes} - {*rungs[0].nodes}):
            found = f"{', '.join(strange)} on the rung of {rung.count}"
            raise ValueError(f"expected nodes that ran alone too, found {found}")
    for rung in base_repeats:
        if rung.count != 1 or {*rung.nodes} != {*rungs[0].nodes}:
            found = f"{rung.count} on {', '.join(sorted({*rung.nodes}))}"
            raise ValueError(f"expected base_repeats of the rung of 1 node, found {found}")


def _check_step(step: Step, where: str) -> None:
    if {*step.segments} != {*SEGMENTS}:
        found = ", ".join(step.segments) or "none"
        raise ValueError(f"{where}: expected the segments {', '.join(SEGMENTS)}, found {found}")
    whole = sum(step.segments.values())
    if abs(whole - step.seconds) > APART * step.seconds:
        raise ValueError(f"{where}: expected segments of {step.seconds} s, found {whole} s")
    for name, waits in step.exposed.items():
        within, waited = step.segments.get(name), sum(waits.values())
        if within is None or waited > within + APART * step.seconds:
            known = "no such segment" if within is None else f"{within} s"
            raise ValueError(f"{where}: expected waits within {name}, found {waited} s of {known}")


def _check_rung(rung: Rung, where: str) -> None:
    ranks, nodes = len(rung.nodes), len({*rung.nodes})
    if not ranks or len(rung.steps) != ranks or (rung.count > 1 and nodes != rung.count):
        raise ValueError(
            f"{where}: expected the steps of each rank on {rung.count} nodes, found those of "
            f"{len(rung.steps)} for {ranks} ranks on {nodes} nodes"
        )
    job = ranks if rung.count > 1 else ranks // nodes  # on one node: the ranks of one job
    if rung.tokens_per_step < job:
        few = f"{job} ranks, found {rung.tokens_per_step}"
        raise ValueError(f"{where}: expected a token per step for each of {few}")
    counted = {len(steps) for steps in rung.steps}
    if len(counted) > 1 or 0 in counted or not all(rung.other_runs):
        found = ", ".join(map(str, sorted({*counted, *map(len, rung.other_runs)})))
        raise ValueError(f"{where}: expected as many steps of each rank, 1 or more, found {found}")


def check_collectives(calls: Iterable[CollectiveCall], fits: Mapping[str, Fit]) -> None:
    """Refuse calls of unknown collectives, or of collectives without a fit.

    Raises ValueError with what was expected and what was found. `fits` may be empty.
    """
    called = {call.operation for call in calls}
    if unknown := sorted((called | {*fits}) - {*OPERATIONS}):
        known = ", ".join(OPERATIONS)
        raise ValueError(f"expected collectives of {known}, found {', '.join(unknown)}")
    if fits and (bare := sorted(called - {*fits})):
        raise ValueError(f"expected a fit of each collective, found none of {', '.join(bare)}")
