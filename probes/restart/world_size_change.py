"""Resumes a run on fewer ranks than saved it: the same samples, and a loss within the noise.

Another number of ranks adds the same gradients in another order, so the last bits differ.  The
noise is the distance of two runs of both sizes that were not resumed.  It is measured here, never
assumed.  Dropout is off, because its random numbers differ between ranks.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

from probes.acceptance.criteria.criterion import exactly
from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.faults.injection import SAVE_EVERY
from probes.findings import finding
from probes.restart.equality import loss_distance
from probes.restart.reference_run import STEPS, TIMEOUT_SECONDS, Results, small_config
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.launchers import train_rank
from reports.measurement import Limit, Verdict

MAX_RANKS = 4  # with more, one sample is too small a part of a step to be seen
MARGIN = 3  # rounding differences grow from step to step, faster in some runs than in others


@dataclass(frozen=True, kw_only=True)
class WorldSizeRuns:
    """Four runs of the same samples.

    `full` has all ranks, `fewer` one rank less.  `resumed` has one rank less after step 4.  `late`
    is as `resumed`, but its data begins one sample further on.
    """

    full: Results
    fewer: Results
    resumed: Results
    late: Results


def run_world_sizes(cluster: Cluster, folder: Path) -> WorldSizeRuns:
    """Run all four on at most MAX_RANKS ranks.  Needs at least two ranks."""
    size = min(cluster.size, MAX_RANKS)
    with cluster.gang(size) as gang:
        config = small_config(STEPS, folder / "whole", dropout=0, batch=2 * (size - 1))
        full = gang.run(train_rank, config, timeout=TIMEOUT_SECONDS)
        base = dataclasses.replace(config, batch=2 * size, save_every=0)  # equal samples per step
        return WorldSizeRuns(
            full=full,
            fewer=_run_fewer(gang, dataclasses.replace(base, checkpoints=str(folder / "fewer"))),
            resumed=_resume_with_fewer_ranks(gang, base, folder / "resumed"),
            late=_resume_with_fewer_ranks(
                gang, dataclasses.replace(base, forget="data"), folder / "mistaken"
            ),
        )


def samples_differ(reference: Results, results: Results) -> list[int]:
    """List the steps whose samples, over all ranks in order, differ from the reference."""
    return [
        step["step"]
        for index, step in enumerate(results[0]["steps"])
        if _sample_ids(results, index) != _sample_ids(reference, step["step"] - 1)
    ]


def _sample_ids(results: Results, index: int) -> list[int]:
    return [sample for result in results for sample in result["steps"][index]["ids"]]


def _run_fewer(gang: Gang, config: TrainConfig) -> Results:
    return gang.run(train_rank, config, timeout=TIMEOUT_SECONDS, groups=[range(gang.size - 1)])


def _resume_with_fewer_ranks(gang: Gang, config: TrainConfig, copy: Path) -> Results:
    """Resume with one rank less, from a copy of the checkpoint of step 4.

    The newer one is left out, so that more steps are compared.
    """
    saved = Path(str(config.checkpoints))
    shutil.copytree(saved / f"step-{SAVE_EVERY}", copy / f"step-{SAVE_EVERY}")
    return _run_fewer(gang, dataclasses.replace(config, checkpoints=str(copy)))


def judge_world_sizes(runs: WorldSizeRuns, measure: Recorder) -> None:
    """Run the control; judge that the smaller run takes the same samples, within the noise."""
    because = f"{MARGIN} times the distance between runs of both sizes that were not resumed"
    noise = loss_distance(runs.full, runs.fewer)  # the two runs that were not resumed
    limit = Limit(high=MARGIN * noise, because=because)
    trial = measure.trial()
    _judge_smaller(runs.full, runs.late, limit, trial)
    fault = "the run that is resumed with fewer ranks skips one sample"
    measure.control("resumed one sample further on", fault, trial)
    measure.note("noise", noise)
    (start,) = {result["start_step"] for result in runs.resumed}
    measure(
        "resumed_from",
        start,
        limit=exactly(SAVE_EVERY, "step", "the checkpoint that it was given"),
    )
    _judge_smaller(runs.full, runs.resumed, limit, measure)


def _judge_smaller(full: Results, smaller: Results, limit: Limit, measure: Recorder) -> None:
    """Judge the samples and the loss of a run by fewer ranks."""
    differ = samples_differ(full, smaller)
    measure("samples_differ", len(differ), samples=len(smaller[0]["steps"]))
    drift = loss_distance(full, smaller)
    measure("drift", drift, limit=limit)
    if differ or limit.judge(drift) is Verdict.FAIL:
        loss_text = f"the loss differs by {drift:.3g}"
        difference = f"steps {differ} have other samples" if differ else loss_text
        measure.explain(
            finding("RESTART-UNEQUAL", f"resumed with one rank fewer than before, {difference}")
        )
