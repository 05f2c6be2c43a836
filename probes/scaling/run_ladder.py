"""Runs the ladder: the same job on more and more nodes, under a fixed load."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any

from probes.check.recorder import Recorder
from probes.cluster.network_facts import counter_growth, join_fabric, main_device, read_counters
from probes.contract.terms import ClusterTerms
from probes.fabric.detect import find_crowd, find_slow_links
from probes.fabric.node_pairs import run_pair_search
from probes.findings import finding
from probes.scaling import criterion as check
from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.data.shards import VOCAB
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from reference_trainer.model.size import GIB, estimate_memory, parameter_count
from reports.measurement import Limit, Verdict
from scaling.collectives.line_rate import Fit
from scaling.ladder.ladder import Rung, first_node, load_text, run_rung, worker_groups
from scaling.loss import predict
from scaling.loss.causes import noise_limit
from scaling.loss.explain import SlowLink, is_link_cause
from scaling.loss.ladder_result import MAX_REPEATS, Ladder, base_doubt
from scaling.loss.significance import median_error


@dataclass(frozen=True)
class LadderRig:
    """Environment of a ladder: the gang, node names by Ray's id, and the recorder."""

    gang: Gang
    node_names: dict[str, str]
    measure: Recorder


@dataclass(frozen=True)
class Plan:
    """Work of a ladder: node counts, load, and the collectives of a step in their order.

    `fabric` is the agreed fabric; None if it is not known.  `timeout_s` limits one rung, in
    seconds.  Without `replays`, the collectives of a rung are not timed.
    """

    node_counts: list[int]
    config: TrainConfig
    order: Sequence[predict.ReplayItem]
    fabric: str | None = None
    timeout_s: float = 300
    replays: bool = True

    @property
    def load(self) -> str:
        """Tokens that each GPU takes in a step, as text."""
        return load_text(self.config.batch * self.config.seq)


def node_count_text(count: int) -> str:
    """Format a node count: `1 node`, `4 nodes`."""
    return f"{count} nodes" if count > 1 else "1 node"


# 8192 tokens per GPU and step.  Efficiency depends on them: the same cluster drops from 96 to 77 %
# with an eighth of the tokens.
TOKENS = {"seq": 2048, "batch": 4, "dropout": 0.0, "deterministic": False}
# The first load that fits is trained: for a GPU of 80 GB, of 40 GB, of less.
GPU_LOADS: Sequence[dict[str, Any]] = (
    {**PRESETS["1B"], **TOKENS},
    {**PRESETS["1B"], **TOKENS, "recompute": True},
    {**PRESETS["125M"], **TOKENS},
)
USABLE = 0.9  # of a GPU's memory: the rest is CUDA's context, NCCL's buffers, and gaps


def train_config(
    terms: ClusterTerms, steps: int, gpu_gib: float | None = None, ranks: int = 1
) -> TrainConfig:
    """Choose the training configuration; it uses the shards that the contract names, if any.

    `gpu_gib` is the memory of the smallest GPU in GiB (None: emulated).  `ranks` is the number of
    ranks on the base rung.
    """
    shape: dict[str, Any] = {} if gpu_gib is None else _fitting_load(gpu_gib, ranks)
    if terms.shards:
        shape |= {"data": terms.shards, "vocab": max(VOCAB, shape.get("vocab", 0))}
    return TrainConfig(steps=steps, pace_s=terms.pace_seconds, digest=False, **shape)


def _fitting_load(gpu_gib: float, ranks: int) -> dict[str, Any]:
    for load in GPU_LOADS:
        if estimate_memory(TrainConfig(**load), ranks).total <= USABLE * gpu_gib * GIB:
            break
    return dict(load)


def describe_load(load: TrainConfig, gpu_gib: float | None) -> str:
    """Describe the load: `trained 133,440 parameters, 256 tokens per rank and step`.

    If it is not the largest load, the reason is added.
    """
    text = f"trained {parameter_count(load):,} parameters"
    text += f", {load.batch * load.seq} tokens per rank and step"
    whole = gpu_gib is None or (load.dim, load.recompute) == (GPU_LOADS[0]["dim"], False)
    return text if whole else f"{text} (chosen for a GPU of {gpu_gib:.0f} GiB)"


def least_gpu_memory(facts: Sequence[dict[str, Any]]) -> float:
    """Find the smallest GPU's memory, GiB; infinite if no GPU reports it.

    Then the largest load is chosen, and the ranks show whether it fits.
    """
    sizes = [gpu.get("memory_gib") for fact in facts for gpu in fact["gpus"]]
    return min((size for size in sizes if size), default=float("inf"))


@dataclass(frozen=True)
class Replay:
    """Result of replaying a rung's collectives without the trainer.

    `after` and `before` are the seconds of each step, after and before the rung (empty: not timed).
    `fits` is the alpha-beta fit of each collective.  `off_fabric` maps each node whose bytes left
    the agreed fabric to the interface that it used.
    """

    after: Sequence[float] = ()
    fits: Mapping[str, Fit] = field(default_factory=dict)
    off_fabric: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[float] = ()

    @property
    def seconds(self) -> float | None:
        """Seconds of a typical step: mean of both medians; None without `after`."""
        known = [statistics.median(steps) for steps in (self.before, self.after) if steps]
        return statistics.fmean(known) if self.after else None

    @property
    def drift(self) -> float:
        """Seconds by which the medians before and after the rung differ; 0 if one is missing."""
        if not (self.before and self.after):
            return 0.0
        return abs(statistics.median(self.after) - statistics.median(self.before))


def replace_lost_workers(gang: Gang, error: GangError) -> None:
    """Replace workers that died, or that wait for a failed rank, so that later runs can start."""
    if isinstance(error, WorkerLost):
        if error.ranks:
            gang.replace_workers(error.ranks)
        else:
            gang.replace_waiting()


def replay_collectives(
    rig: LadderRig, rungs: Sequence[Rung], plan: Plan, groups: Sequence[Sequence[int]], repeats: int
) -> Replay:
    """Replay the collectives of at most `repeats` steps without the trainer, in groups of workers.

    An emulated accelerator leaves work for the CPU core: the time of one node's step beyond
    `pace_s`.  If the replay fails, that is noted and an empty Replay is returned.
    """
    gang, blocks = rig.gang, sum(moment is None for moment in plan.order)
    sleep_s, busy = plan.config.pace_s / blocks, core_work(rungs[0], plan) / blocks
    timeout_s = 60 + 4 * repeats * rungs[-1].seconds  # to connect, and to replay the steps
    nodes = [rig.node_names[gang.places[worker].node] for group in groups for worker in group]
    try:
        before = gang.run(read_counters, groups=groups, timeout=60)
        played = gang, groups, plan.order, sleep_s, busy, repeats
        steps, fits = predict.time_collectives(*played, timeout=timeout_s)
        after = gang.run(read_counters, groups=groups, timeout=60)
    except GangError as error:  # the measurement of the rung remains valid
        on = node_count_text(len(set(nodes)))
        rig.measure.covered(f"communication on {on} was not timed: {error}")
        replace_lost_workers(gang, error)
        return Replay()
    sent = {node: counter_growth(b, a) for node, b, a in zip(nodes, before, after, strict=True)}
    crossed = len(groups) == 1 and len(sent) > 1  # otherwise all ranks are on one node
    min_bytes = predict.min_bytes_sent(plan.order, len(nodes), len(steps)) if crossed else math.inf
    return Replay(steps, fits, nodes_off_fabric(sent, plan.fabric, min_bytes))


def core_work(base: Rung, plan: Plan) -> float:
    """Compute the seconds of a step that an emulated accelerator leaves for the core; 0 if real."""
    pace = plan.config.pace_s
    return max(0.0, base.seconds - pace) if pace else 0.0


def replay_uncertainty(replay: Replay, single: Replay, base: Rung, plan: Plan) -> float:
    """Estimate by how many seconds a rung's replay, minus one node's, may be wrong.

    It is the noise of both replays, plus the drift during the rung, plus a step's work for the
    core.  Where ranks share cores, that work makes them wait differently each time.
    """
    noise = math.hypot(median_error(replay.after), median_error(single.after))
    return noise_limit(noise, len(replay.after)) + replay.drift + core_work(base, plan)


def nodes_off_fabric(
    sent: Mapping[str, Mapping[str, int | None]], fabric: str | None, min_bytes: float
) -> dict[str, str]:
    """Find the nodes that sent most bytes over another interface than the agreed one, and which.

    `sent` holds bytes by node and interface.  A node had to send `min_bytes`; it is left out if its
    main interface sent no more than half of them.
    """
    off_fabric = {}
    for node, counted in sent.items():
        by_interface = join_fabric(counted, fabric)
        interface = main_device(by_interface)
        if fabric and interface != fabric and (by_interface.get(interface) or 0) > min_bytes / 2:
            off_fabric[node] = interface
    return off_fabric


LadderRun = tuple[list[Rung], dict[int, Replay]]  # the rungs that ran, and their replays by count


def run_ladder(rig: LadderRig, plan: Plan) -> LadderRun:
    """Run the rungs that can be run, each with a replay of its collectives."""
    done: LadderRun = ([], {})
    for count in plan.node_counts:
        on = node_count_text(count)
        rig.measure.progress(f"scaling: {count} of {plan.node_counts[-1]} nodes")
        try:
            add_rung(rig, done, plan, count)
        except GangError as error:
            rig.measure(check.EFFICIENCY, None, on=f"{on}, {plan.load}", note=str(error))
            rig.measure.explain(finding("SCALE-RUNG-FAILED", f"the job on {on} failed: {error}"))
            if not done[0]:
                break  # there is nothing to compare with
            replace_lost_workers(rig.gang, error)
        if is_stuck(rig.gang, done[1], [count]):
            break  # the next rung would collide with what still runs
    return done


def rerun_ladder(rig: LadderRig, first: LadderRun, plan: Plan, runs: int) -> list[LadderRun]:
    """Run all rungs `runs` more times: runs differ more than steps.  Return the runs that ended.

    The first entry is `first`.  Each run takes other nodes where it can.  A run that fails is the
    last.
    """
    ladders = [first]
    for run in range(2, runs + 2):
        rig.measure.progress(f"scaling: all numbers of nodes, run {run} of {runs + 1}")
        done: LadderRun = ([], {})
        try:
            for rung in first[0]:
                add_rung(rig, done, plan, rung.count, run - 1)
        except GangError as error:
            rig.measure(check.EFFICIENCY, None, on=f"run {run}, {plan.load}", note=str(error))
            failed = finding("SCALE-RUNG-FAILED", f"run {run} of the job failed: {error}")
            rig.measure.explain(failed)
            break
        ladders.append(done)
    return ladders


def repeat_base(rig: LadderRig, base: Rung, plan: Plan) -> list[Rung]:
    """Repeat the rung of one node, after the larger rungs, until its fastest run is confirmed."""
    repeats: list[Rung] = []
    while len(repeats) < MAX_REPEATS:
        rig.measure.progress("scaling: 1 node again, to confirm its speed")
        try:
            repeats.append(run_rung(rig.gang, rig.node_names, 1, plan.config, 0, plan.timeout_s))
        except GangError as error:
            rig.measure.covered(f"the run on 1 node was not repeated: {error}")
            replace_lost_workers(rig.gang, error)
            break
        fastest, *others = sorted([base, *repeats], key=attrgetter("seconds"))
        if not base_doubt(fastest, [rung.seconds for rung in others]):
            break
    return repeats


def worst_run(ladders: Sequence[LadderRun]) -> tuple[LadderRun, list[list[Rung]]]:
    """Select the run whose largest rung is the least efficient; return it and the others' rungs.

    A job meets what comes and goes too: the median would hide it.
    """
    chosen = min(ladders, key=lambda run: top_efficiency(run[0]))
    return chosen, [run[0] for run in ladders if run is not chosen]


def top_efficiency(rungs: Sequence[Rung]) -> float:
    """Compute the efficiency of the largest rung."""
    return rungs[0].of_kinds(rungs[-1]).seconds / rungs[-1].seconds


def is_stuck(gang: Gang, replays: Mapping[int, Replay], nodes: Sequence[int]) -> bool:
    """Return whether one of these rungs, or its collectives, failed and still runs in the gang."""
    return any(replays.get(count, Replay()).seconds is None for count in nodes) and gang_hangs(gang)


def gang_hangs(gang: Gang) -> bool:
    """Return whether ranks still run an earlier call, or do not answer."""
    return bool(gang.busy() or gang.silent())


def add_rung(rig: LadderRig, done: LadderRun, plan: Plan, count: int, run: int = 0) -> None:
    """Add a rung to a run of the ladder, and replay its collectives before and after it.

    Two replays show whether other work on the machines changed meanwhile.  `run` counts the runs
    before this one.  Raises GangError when the rung fails.
    """
    (rungs, replays), first = done, first_node(plan.node_counts, count, run)
    groups = worker_groups(rig.gang, count, first)
    early = late = Replay()
    if rungs and plan.replays:
        early = replay_collectives(rig, rungs, plan, groups, predict.REPLAY_STEPS // 2)
    rungs.append(run_rung(rig.gang, rig.node_names, count, plan.config, first, plan.timeout_s))
    if plan.replays:
        late = replay_collectives(rig, rungs, plan, groups, predict.REPLAY_STEPS)
    replays[count] = replace(late, before=early.after)


def build_ladder(
    chosen: LadderRun,
    other_ladders: Sequence[Sequence[Rung]],
    plan: Plan,
    agreed: Limit | None,
    base_repeats: Sequence[Rung],
) -> Ladder:
    """Build the ladder of the `chosen` run, with the step times of the other runs.

    `agreed` is the limit of bus bandwidth.  The base is the fastest of one node's rung and its
    `base_repeats`: a slower base would flatter the larger rungs.
    """
    (first, *larger), replays = chosen
    fastest, *slower = sorted([first, *base_repeats], key=attrgetter("seconds"))
    rungs, single = [fastest, *larger], replays.get(1, Replay())
    return Ladder(
        rungs=[
            replace(
                with_replay(rung, replays[rung.count], (rungs[0], single), plan, agreed),
                other_runs=[predict.step_seconds(run[index].judged_steps) for run in other_ladders],
            )
            for index, rung in enumerate(rungs)
        ],
        calls=predict.count_calls(plan.order),
        fits=dict(replays[rungs[-1].count].fits),
        base_repeats=slower,
    )


def with_replay(
    rung: Rung, replay: Replay, base: tuple[Rung, Replay], plan: Plan, agreed: Limit | None
) -> Rung:
    """Add to the rung the time that its collectives took, as far as it is known."""
    ranks, (base_rung, single) = len(rung.judged_steps), base
    if replay.seconds is None:
        return rung
    rung = replace(rung, replay_s=replay.seconds, off_fabric=dict(replay.off_fabric))
    if not replay.fits or ranks < 2:  # of unequal nodes the median one may have one rank
        return rung
    if agreed is not None and agreed.low:
        saved_s = predict.saved_at_agreed_rate(plan.order, replay.fits, ranks, agreed.low)
        rung = replace(rung, agreed_s=replay.seconds - saved_s)
    if single.seconds is not None:
        rung = replace(rung, uncertainty_s=replay_uncertainty(replay, single, base_rung, plan))
    return replace(rung, alpha_beta_s=predict.modelled_seconds(plan.order, replay.fits, ranks))


def locate_slow_links(rig: LadderRig, ladder: Ladder, limit: Limit | None) -> Ladder:
    """Add the slow links to the ladder, if a judged rung lost time to links.

    Pairs of nodes are measured, as in FABRIC.  That takes some seconds, so it is done only where a
    limit is broken.
    """
    rungs, measure = ladder.rungs[1:], rig.measure
    suspected = [
        cause
        for rung, loss in zip(rungs, ladder.explanations(required_efficiency(limit)), strict=True)
        for cause in loss.causes
        if is_link_cause(cause) and limit
        if limit.judge(ladder.efficiency(rung)) is not Verdict.PASS
    ]
    if not suspected:
        return ladder
    measure.progress("scaling: every pair of nodes, to find a slow link")
    try:
        found = run_pair_search(rig.gang, rig.node_names)
    except GangError as error:
        measure.covered(f"seatrial did not search for slow links: {error}")
        return ladder
    measure.covered(f"seatrial searched for slow links: {found.speed.coverage}")
    crowd, pairs = find_crowd(found.speed, found.alone)
    crowded = tuple(chain(*({*found.speed.slow_links} - {*pairs.slow_links})))
    places = [SlowLink(crowded, one.statement, tuple(one.suspects)) for one in crowd]
    places += [SlowLink(tuple(one.suspects), one.statement) for one in find_slow_links(pairs)]
    return replace(ladder, slow_links=places)


def required_efficiency(limit: Limit | None) -> float | None:
    """Return the lowest efficiency that passes: the end of the marginal band, if there is one."""
    if limit is None:
        return None
    # A limit of 0 requires nothing: every rung passes it.
    return (limit.low if limit.marginal_low is None else limit.marginal_low) or None
