"""A run is resumed by fewer ranks than saved it: the same samples, and a loss within the noise.

Another number of ranks adds the same gradients in another order, so the last bits differ and no
more can be asked than this: no further from the run that kept its size than a run of the other size
is, which nobody resumed.  That distance is measured here, never assumed.  Dropout is off: its
random numbers are a rank's own.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from probes.acceptance.criteria import exactly
from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.findings import finding
from probes.restart.reference_run import NEWEST, SAVE_EVERY, STEPS, TIMEOUT_SECONDS, Results
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.launchers import rank
from reports.record import Limit, Verdict

MOST = 4  # ranks
GROWTH = 3  # a difference of rounding grows from step to step, faster in one run than in another


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Four runs of the same samples: by all ranks, by one less, and by one less after step 4.

    `mistaken` is as `resumed`, but one sample further on.
    """

    whole: Results
    fewer: Results
    resumed: Results
    mistaken: Results

    @property
    def noise(self) -> float:
        """The largest distance of loss between the two runs that nobody resumed, any step."""
        return distance(self.whole, self.fewer)


def resize(cluster: Cluster, folder: Path) -> Sizes:
    """Run all four, on a few ranks: of many, one sample is too small a part of a step to be seen.

    Needs two.
    """
    size = min(cluster.size, MOST)
    with cluster.gang(size) as gang:
        config = _config(folder / "whole", batch=2 * (size - 1))
        whole = gang.run(rank, config, timeout=TIMEOUT_SECONDS)
        less = dataclasses.replace(config, batch=2 * size, save_every=0)  # as many samples a step
        return Sizes(
            whole=whole,
            fewer=_run(gang, dataclasses.replace(less, checkpoints=str(folder / "fewer"))),
            resumed=_resume(gang, less, folder / "resumed"),
            mistaken=_resume(gang, dataclasses.replace(less, forget="data"), folder / "mistaken"),
        )


def distance(reference: Results, other: Results) -> float:
    """The largest difference of the loss, over the steps that both have; it is all ranks' mean.

    NaN where a loss is no number.
    """
    wanted = {step["step"]: step["loss"] for step in reference[0]["steps"]}
    gaps = [abs(step["loss"] - wanted[step["step"]]) for step in other[0]["steps"]]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def samples_differ(reference: Results, other: Results) -> list[int]:
    """Steps whose samples, of all ranks together, are others or in another order."""
    return [
        step["step"]
        for at, step in enumerate(other[0]["steps"])
        if _ids(other, at) != _ids(reference, step["step"] - 1)
    ]


def _ids(results: Results, at: int) -> list[int]:
    return [id for result in results for id in result["steps"][at]["ids"]]


def _config(folder: Path, batch: int) -> TrainConfig:
    return TrainConfig(
        steps=STEPS,
        dim=32,
        seq=32,
        dropout=0,
        batch=batch,
        save_every=SAVE_EVERY,
        keep_last=STEPS,
        checkpoints=str(folder),
    )


def _run(gang: Gang, config: TrainConfig) -> Results:
    return gang.run(rank, config, timeout=TIMEOUT_SECONDS, groups=[range(gang.size - 1)])


def _resume(gang: Gang, config: TrainConfig, copy: Path) -> Results:
    """By one rank less, from a copy of the checkpoint of step 4."""
    saved = Path(str(config.checkpoints))
    assert NEWEST > SAVE_EVERY  # there is a newer one, which is left out so that more is compared
    shutil.copytree(saved / f"step-{SAVE_EVERY}", copy / f"step-{SAVE_EVERY}")
    return _run(gang, dataclasses.replace(config, checkpoints=str(copy)))


def judge_sizes(sizes: Sizes, measure: Ledger) -> None:
    """That the smaller run takes the same samples, and is within the noise; first the control."""
    because = f"{GROWTH} times the distance of two runs of both sizes that nobody resumed"
    limit = Limit(high=GROWTH * sizes.noise, because=because)
    far = distance(sizes.whole, sizes.mistaken)
    other_samples = bool(samples_differ(sizes.whole, sizes.mistaken))
    measure.control(
        "resumed one sample further on",
        "the smaller run is resumed with its data one sample further on",
        caught=limit.judge(far) is Verdict.FAIL and other_samples,
        saw=f"a distance of {far:.3g}",
    )
    differ = samples_differ(sizes.whole, sizes.resumed)
    measure("samples_differ", len(differ), samples=len(sizes.resumed[0]["steps"]))
    (began,) = {result["start_step"] for result in sizes.resumed}
    measure("resumed_from", began, limit=exactly(SAVE_EVERY, "step", "the one that it was given"))
    drift = distance(sizes.whole, sizes.resumed)
    measure("drift", drift, limit=limit)
    measure.note("noise", sizes.noise)
    if differ or limit.judge(drift) is Verdict.FAIL:
        far_off = f"the loss differs by {drift:.3g}"
        said = f"steps {differ} have other samples" if differ else far_off
        measure.explain(finding("RESTART-UNEQUAL", f"resumed by one rank less, {said}"))
