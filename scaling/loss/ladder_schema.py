"""`ladder.json`, checked: what is damaged is refused in a sentence, never half read."""

from __future__ import annotations

import reprlib
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from reference_trainer.telemetry.injected_delay import SEGMENTS
from scaling.collectives.operations import OPERATIONS
from scaling.ladder.ladder import HOST_CLOCK

# No step is shorter than a tick of its clock, or longer than a life.
SHORTEST, LONGEST = 1e-9, 1e9
MOST = 10**15  # of anything that is counted
APART = 0.01  # of a step, by which its parts and the whole may be off: else it is damaged

Seconds = Annotated[float, Field(strict=True, ge=SHORTEST, le=LONGEST, allow_inf_nan=False)]
# A share of a step, or a difference of two.
Part = Annotated[float, Field(strict=True, ge=-LONGEST, le=LONGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Amount = Annotated[float, Field(strict=True, ge=0, le=1e18, allow_inf_nan=False)]


class ToldStep(BaseModel):
    """One rank's step, as in `decompose.Step`."""

    seconds: Seconds
    segments: dict[str, Part]
    exposed: dict[str, dict[str, Part]] = {}
    wall: Seconds | None = None

    @model_validator(mode="after")
    def _cut(self) -> ToldStep:
        if {*self.segments} != {*SEGMENTS}:
            found = ", ".join(self.segments) or "none"
            raise ValueError(f"expected the segments {', '.join(SEGMENTS)}, found {found}")
        whole = sum(self.segments.values())
        if abs(whole - self.seconds) > APART * self.seconds:
            raise ValueError(f"expected segments of {self.seconds} s, found {whole} s")
        for name, waits in self.exposed.items():
            within, waited = self.segments.get(name), sum(waits.values())
            if within is None or waited > within + APART * self.seconds:
                known = "no such segment" if within is None else f"{within} s"
                raise ValueError(f"expected waits within {name}, found {waited} s of {known}")
        return self


class ToldRung(BaseModel):
    """One rung; `ranks` are the node of each.

    `played` is s of a step whose collectives were replayed without the trainer (None: none was),
    `at_agreed_rate` the same, were links as fast as agreed, `replay_doubt` s by which it may be
    off, `alpha_beta` s of the step's collectives by their fits.  `again` are seconds [run][step]
    of its other runs.
    """

    nodes: Count
    ranks: list[str]
    steps: list[list[ToldStep]]
    tokens_per_step: Count
    non_finite: Annotated[int, Field(strict=True, ge=0, le=MOST)]
    disagreements: list[str] = []
    separable: bool = False
    clock: str = HOST_CLOCK
    played: Part | None = None
    at_agreed_rate: Part | None = None
    replay_doubt: Part | None = None
    alpha_beta: Part | None = None
    strays: dict[str, str] = {}
    again: list[list[Seconds]] = []

    @model_validator(mode="after")
    def _whole(self) -> ToldRung:
        ranks, nodes = len(self.ranks), len({*self.ranks})
        if not ranks or len(self.steps) != ranks or (self.nodes > 1 and nodes != self.nodes):
            raise ValueError(
                f"expected the steps of each rank on {self.nodes} nodes, found those of "
                f"{len(self.steps)} for {ranks} ranks on {nodes} nodes"
            )
        job = ranks if self.nodes > 1 else ranks // nodes  # one node's are a job of their own
        if self.tokens_per_step < job:
            few = f"{job} ranks, found {self.tokens_per_step}"
            raise ValueError(f"expected a token per step for each of {few}")
        counted = {len(steps) for steps in self.steps}
        if len(counted) > 1 or 0 in counted or not all(self.again):
            found = ", ".join(map(str, sorted({*counted, *map(len, self.again)})))
            raise ValueError(f"expected as many steps of each rank, 1 or more, found {found}")
        return self


class ToldCall(BaseModel):
    """As `predict.Call`."""

    operation: str
    size: Amount
    times: Count


class ToldFit(BaseModel):
    """As `alphabeta.Fit`, with its bandwidth of infinity."""

    latency_us: Amount
    bandwidth: Annotated[float, Field(strict=True, ge=1e-12, allow_inf_nan=True)]
    residual: Amount
    points: Count


class ToldPlace(BaseModel):
    """As `explain.Place`."""

    nodes: list[str]
    said: str


class Told(BaseModel):
    """The whole ladder; `fits` are of the largest rung, `places` None where no pairs were tried."""

    rungs: list[ToldRung]
    calls: list[ToldCall]
    fits: dict[str, ToldFit]
    places: list[ToldPlace] | None = None

    @model_validator(mode="after")
    def _climbs(self) -> Told:
        counts = [rung.nodes for rung in self.rungs]
        if counts[:1] != [1] or counts != sorted(set(counts)):
            found = ", ".join(map(str, counts)) or "none"
            raise ValueError(f"expected rungs that rise from 1 node, found {found}")
        for rung in self.rungs:
            if strange := sorted({*rung.ranks} - {*self.rungs[0].ranks}):
                found = f"{', '.join(strange)} on the rung of {rung.nodes}"
                raise ValueError(f"expected nodes that ran alone too, found {found}")
        called = {call.operation for call in self.calls}
        if unknown := sorted((called | {*self.fits}) - {*OPERATIONS}):
            known = ", ".join(OPERATIONS)
            raise ValueError(f"expected collectives of {known}, found {', '.join(unknown)}")
        if self.fits and (bare := sorted(called - {*self.fits})):
            raise ValueError(f"expected a fit of each collective, found none of {', '.join(bare)}")
        return self


def checked(content: Any) -> Told:
    """The content of a `ladder.json`.  ValueError with what was expected first, and was found."""
    try:
        return Told.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
    said, found = first["msg"].removeprefix("Value error, "), reprlib.repr(first["input"])
    if first["type"] == "missing":
        said = "expected a value, found none"
    elif first["type"] == "model_type":
        said = f"expected an object, found {found}"
    elif first["type"] != "value_error":  # those are sentences of ours
        said = f"{said.replace('Input should be', 'expected')}, found {found}"
    where = ".".join(map(str, first["loc"]))
    raise ValueError(f"{where}: {said}" if where else said)
