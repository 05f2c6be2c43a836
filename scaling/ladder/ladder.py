"""Runs the trainer on 1, 2, 4, 8 nodes: one rung after the other, in one gang."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import train_rank
from reference_trainer.model.size import estimate_memory, flops_per_token
from reference_trainer.process_group import drop_group, joins
from reports.groups import group_pairs
from reports.numbers import quantity
from scaling.bounds import Count, CountOrZero, Part, Seconds
from scaling.ladder import step_breakdown
from scaling.ladder.step_breakdown import Step, mean_seconds, waits_separable

MEANINGS = {"loss": "loss", "norm": "gradient norm"}  # of the values that all ranks share
Result = dict[str, Any]  # the trainer's result of one rank
LOSS_TOLERANCE = 1e-3  # relative; float32 losses are averaged in another order


def find_disagreements(results: Sequence[Result]) -> list[str]:
    """List the steps in which these results are not those of one job, with the first difference.

    `results` are the trainer's results of every rank of one job, in order of rank.
    """
    wrong_world = [r for r in results if r["world"] != len(results)]
    world_message = ""
    if wrong_world:
        rank, world = wrong_world[0]["rank"], quantity(wrong_world[0]["world"], "ranks")
        world_message = f"rank {rank} is in a job of {world}. Expected: {len(results)}"
    tokens = results[0]["tokens_per_step"]
    rows = zip(*(result["steps"] for result in results), strict=True)
    found = [(row[0]["step"], world_message or _step_disagreement(row, tokens)) for row in rows]
    return [f"step {step}: {message}" for step, message in found if message]


def _step_disagreement(ranks: Sequence[dict[str, Any]], step_tokens: int) -> str:
    """Describe why these are not one job's step of `step_tokens` tokens; "" if they agree.

    `ranks` are the records of one step, in order of rank.
    """
    for name in MEANINGS:
        if len({rank[f"{name}_hex"] for rank in ranks}) > 1:
            return f"the ranks have different values of the {MEANINGS[name]}"
    ids = [id for rank in ranks for id in rank["ids"]]
    if len(set(ids)) < len(ids):
        return "a sample was used twice. Expected: each sample once"
    tokens = sum(rank["tokens"] for rank in ranks)
    if tokens != step_tokens:
        return f"{tokens} tokens were used. Expected: {step_tokens}"
    loss = ranks[0]["loss"]
    mean = sum(rank["local_loss"] * rank["tokens"] for rank in ranks) / tokens
    if math.isfinite(loss) and not math.isclose(mean, loss, rel_tol=LOSS_TOLERANCE):
        return f"the loss is {loss:.6g}, the mean of the ranks' losses is {mean:.6g}"
    return ""


NODES_PLACEHOLDER = "{nodes}"  # in a folder name of shards: the number of nodes they are made for
HOST_CLOCK = "host"  # name of the trainer's clock (step_timer.py) that cannot time GPU streams
WARM_UP_STEPS = 2  # they pay for connections, allocator and kernels
Unsaved = Field(exclude=True)


@dataclass(frozen=True)
class Rung:
    """One node count: the timed steps of every rank.

    `steps[r][k]` is rank r's k-th timed step. `nodes[r]` is the name of its node. A rung of one
    node runs on every node at once. Each node has a job of its own, so that a slow node is
    seen.

    Four fields are seconds of a step. They are None if its collectives were not replayed
    without the trainer. `replay_s` is a replayed step. `agreed_s` is a replayed step on links
    of the agreed rate, if one was agreed. `uncertainty_s` is the possible error of the replay.
    `alpha_beta_s` is the time of the step's collectives by their fits.
    """

    count: Count
    nodes: list[str]
    steps: list[list[Step]]
    tokens_per_step: Count
    non_finite: CountOrZero
    disagreements: tuple[str, ...] = ()  # texts of steps that were not those of one job
    separable: bool = False  # whether waits for collectives were timed separately from compute
    clock: str = HOST_CLOCK  # the clock that timed the segments
    replay_s: Part | None = None
    agreed_s: Part | None = None
    uncertainty_s: Part | None = None
    alpha_beta_s: Part | None = None
    # By node whose bytes did not use the agreed interface: the interface that was used.
    off_fabric: dict[str, str] = field(default_factory=dict)
    # Seconds of each step in the rung's other runs; empty if it was run once.
    other_runs: list[list[Seconds]] = field(default_factory=list)
    # By node, where nodes have different GPUs: the names of its GPUs, and the FLOP/s of each; None
    # if that is unknown, or the node's GPUs differ.
    gpus: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    # The fields below are not written to a ladder.json.
    flops: Annotated[float, Unsaved] = 0.0  # FLOPs of forward and backward per token
    # FLOP/s of a rank's GPU; None if unknown or not the same for all. `devices` are the GPU names.
    peak_flops: Annotated[float | None, Unsaved] = None
    devices: Annotated[str, Unsaved] = ""
    # Largest ratio over ranks of peak memory in use to what was estimated before the first step.
    memory_ratio: Annotated[float | None, Unsaved] = None
    # By rank: the trainer's records of its saves.
    saves: Annotated[Sequence[Sequence[dict[str, Any]]], Unsaved] = ()
    save_errors: Annotated[tuple[str, ...], Unsaved] = ()  # texts of the reasons why saves failed

    @property
    def mfu(self) -> float | None:
        """Share of the GPUs' peak FLOP/s that the model's arithmetic uses.

        None if the peak is unknown.
        """
        return self.flops * self.tokens_per_s / self.peak_flops if self.peak_flops else None

    @property
    def overlaps(self) -> bool:
        """Whether collectives may be hidden behind compute.

        How much of them is hidden is not known.
        """
        return self.clock != HOST_CLOCK

    @property
    def seconds(self) -> float:
        """Mean seconds of a step, over steps and judged ranks: T_n."""
        return mean_seconds(self.judged_steps)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of one job of the rung."""
        return self.tokens_per_step / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of each judged rank; on one node, the ranks of the median node."""
        return self.tokens_per_rank / self.seconds

    @property
    def tokens_per_rank(self) -> int:
        """Tokens per step of each rank.

        An efficiency has no meaning without it.
        """
        return self.tokens_per_step // len(self.judged_steps)

    @property
    def load_text(self) -> str:
        """`tokens_per_rank` in words, printed with every efficiency."""
        return load_text(self.tokens_per_rank)

    @property
    def judged_steps(self) -> list[list[Step]]:
        """Steps behind the efficiency: those of all ranks, or of the median node's ranks."""
        return self.steps if self.count > 1 else self.median_node()

    def median_node(self) -> list[list[Step]]:
        """Return the steps of the ranks on the node with the median step time.

        They are the base that larger rungs are compared with. Where nodes have different GPUs, it
        is the median node of the slowest kind: in a larger job all ranks wait for that kind.
        """
        kinds = [sorted(kind.items(), key=lambda one: one[1]) for kind in self.kinds()]
        medians = [kind[(len(kind) - 1) // 2] for kind in kinds]
        return self.steps_on(max(medians, key=lambda one: one[1])[0])

    def kinds(self) -> list[dict[str, float]]:
        """Return the mean seconds of a step by node, for the nodes of each kind of GPU."""
        node_s = self.node_seconds()
        kinds = group_pairs((self.gpus.get(node), node) for node in node_s)
        return [{node: node_s[node] for node in kind} for kind in kinds.values()]

    def of_kinds(self, rung: Rung) -> Rung:
        """Reduce the rung of one node to the nodes with the same GPUs as a node of `rung`."""
        kinds = {self.gpus.get(node) for node in rung.nodes}
        chosen = [node for node in self.nodes if self.gpus.get(node) in kinds]
        return self if chosen == self.nodes else self.only(*chosen)

    def only(self, *chosen: str) -> Rung:
        """Reduce the rung of one node to the ranks of these nodes.

        Its GPUs are those of the first of them. The other runs were of all nodes.
        """
        ranks = [rank for rank, name in enumerate(self.nodes) if name in chosen]
        nodes, steps = [self.nodes[rank] for rank in ranks], [self.steps[rank] for rank in ranks]
        device, peak = self.gpus.get(chosen[0], (self.devices, self.peak_flops))
        part = dataclasses.replace(self, nodes=nodes, steps=steps, devices=device, peak_flops=peak)
        tokens = self.tokens_per_rank * len(part.judged_steps)  # another node may have fewer GPUs
        return dataclasses.replace(part, tokens_per_step=tokens, other_runs=[])

    def node_seconds(self) -> dict[str, float]:
        """Return the mean seconds of a step on each node."""
        return {node: mean_seconds(self.steps_on(node)) for node in dict.fromkeys(self.nodes)}

    def steps_on(self, node: str) -> list[list[Step]]:
        """Return the steps of the ranks on one node."""
        return [steps for name, steps in zip(self.nodes, self.steps, strict=True) if name == node]


def load_text(tokens: int) -> str:
    """Describe the tokens of each GPU in one step."""
    return f"{tokens:,} tokens per GPU and step"


MOST_FULL = 8  # nodes up to which a short ladder has every power of two


def rung_sizes(nodes: int, agreed: Sequence[int] | None = None, short: bool = False) -> list[int]:
    """List the `agreed` sizes up to `nodes`, else 1, 2, 4, 8 ...; always 1 and `nodes` too.

    On more than MOST_FULL nodes a `short` ladder has four: 1, 2, one between, and all. Each rung
    takes as long as on few nodes, but more of them, and the loss shows on few.
    """
    powers = [1 << power for power in range(nodes.bit_length())]
    if short and nodes > MOST_FULL:
        middle = max(4, 1 << round(math.log2(nodes / MOST_FULL)))  # nodes: next to an eighth
        powers = [1, 2, middle]
    return sorted({1, nodes, *(size for size in agreed or powers if size < nodes)})


def first_node(nodes: Sequence[int], count: int, run: int = 0) -> int:
    """Return the index of the node at which a rung of `count` nodes begins.

    `nodes` are the node counts of all rungs. Each rung of several but not all nodes begins
    where the previous rung ended. Each run of the ladder begins where the last run ended. So
    every node takes part in such rungs.
    """
    partial = [size for size in nodes if 1 < size < nodes[-1]]
    if count not in partial:
        return 0
    return (run * sum(partial) + sum(size for size in partial if size < count)) % nodes[-1]


def worker_groups(gang: Gang, count: int, first: int = 0) -> list[list[int]]:
    """Group the workers of `count` nodes in a row, from the gang's node `first` on, into one group.

    For count 1, each node's workers are a group. Raises GangError for more nodes than the gang
    has.
    """
    order = list(dict.fromkeys(place.node for place in gang.places))
    if count > len(order):  # else a worker would be two ranks of one job, and hang
        raise GangError(f"a run on {count} nodes is not possible: the test has {len(order)} nodes")
    workers = {node: [w for w, p in enumerate(gang.places) if p.node == node] for node in order}
    if count == 1:
        return [workers[node] for node in order]
    chosen = sorted((first + index) % len(order) for index in range(count))
    return [[worker for index in chosen for worker in workers[order[index]]]]


def run_rung(
    gang: Gang,
    names: dict[str, str],
    count: int,
    config: TrainConfig,
    first: int = 0,
    timeout: float = 300,
    as_one_job: bool = False,
    work: Sequence[Any] = (),
    halves: bool = False,
) -> Rung:
    """Run one rung on `count` nodes from the gang's node `first` on; for count 1, on each alone.

    Weak scaling: every rank keeps its batch. The first WARM_UP_STEPS steps are not counted.
    `{nodes}` in the config's folder of shards becomes the rung's number of nodes, as shards are
    made for one number. `as_one_job` injects a fault: nodes that train separately are checked
    as if they were one job; with `halves`, so are the halves of each node's ranks. `work` is
    what a rank runs instead of the trainer, with its first arguments.
    """
    groups = worker_groups(gang, count, first)
    if halves:
        cuts = [(group, len(group) // 2) for group in groups]
        groups = [half for group, cut in cuts for half in (group[:cut], group[cut:]) if half]
    shards = config.data.replace(NODES_PLACEHOLDER, str(count))  # made for one node count
    timed_config = dataclasses.replace(config, steps=config.steps + WARM_UP_STEPS, data=shards)
    results = iter(gang.run(*(work or (train_rank,)), timed_config, groups=groups, timeout=timeout))
    jobs = [[next(results) for _ in group] for group in groups]
    members = [worker for group in groups for worker in group]
    nodes = [names[gang.places[worker].node] for worker in members]
    return _make_rung(count, nodes, timed_config, jobs, as_one_job)


def skip_collectives(gang: Gang, names: dict[str, str], count: int, config: TrainConfig) -> Rung:
    """Run every node alone, with the model sharded as on `count` nodes, but send nothing.

    This is a control: what such a step takes longer than one node's step is not communication.
    """
    ranks = sum(map(len, worker_groups(gang, count)))
    synthetic = dataclasses.replace(config, data="")  # real shards need all ranks
    return run_rung(gang, names, 1, synthetic, work=(run_on_fake_group, ranks))


def strong_scaling_config(config: TrainConfig, count: int, max_nodes: int) -> TrainConfig:
    """Build the config of strong scaling: `count` nodes do the step of `max_nodes` nodes, in parts.

    An emulated accelerator takes max_nodes / count times as long. Raises ValueError if the
    sequences cannot be split evenly.
    """
    sequences = config.batch * max_nodes
    if sequences % count:
        raise ValueError(f"{sequences} sequences a step cannot be split evenly over {count} nodes")
    return dataclasses.replace(
        config,
        batch=sequences // count,
        accumulate=config.accumulate * -(-max_nodes // count),  # a part still fits into memory
        pace_s=config.pace_s * max_nodes / count,
    )


@joins("fake")
def run_on_fake_group(size: int, config: TrainConfig) -> Result:
    """Run one rank as one of `size` ranks without the others, in torch's fake process group.

    Its losses have no meaning, because it has only its part of the weights; its step time is
    valid. So its rung has disagreements in every step.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    drop_group()
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        return train_rank(config)
    finally:
        dist.destroy_process_group()


def _make_rung(
    count: int, nodes: list[str], config: TrainConfig, jobs: list[list[Result]], as_one_job: bool
) -> Rung:
    """Make a rung of the results of its jobs, by rank."""
    results = [result for job in jobs for result in job]
    need = estimate_memory(config, config.shard or min(map(len, jobs)))
    jobs = [results] if as_one_job else jobs
    peak_of = {one["device_name"]: one["peak_flops"] for one in results}
    found = group_pairs((n, one["device_name"]) for n, one in zip(nodes, results, strict=True))
    kinds = {node: ", ".join(sorted({*devices})) for node, devices in found.items()}
    peaks, gpus = {*peak_of.values()}, {n: (kind, peak_of.get(kind)) for n, kind in kinds.items()}
    per_rank = results[0]["tokens_per_step"] // results[0]["world"]  # each rank keeps its batch
    rung = Rung(
        count=count,
        nodes=nodes,
        steps=[step_breakdown.parse_steps(result["spans"])[WARM_UP_STEPS:] for result in results],
        tokens_per_step=per_rank,
        non_finite=sum(not math.isfinite(s["loss"]) for r in results for s in r["steps"]),
        disagreements=tuple(message for job in jobs for message in find_disagreements(job)),
        separable=waits_separable([span for result in results for span in result["spans"]]),
        clock=results[0]["spans"][0]["clock"],
        flops=flops_per_token(config),
        peak_flops=peaks.pop() if len(peaks) == 1 else None,
        devices=", ".join(sorted(peak_of)),
        gpus=gpus if len(peak_of) > 1 else {},
        memory_ratio=max(
            (r["peak_memory_bytes"] / need.total for r in results if r["peak_memory_bytes"]),
            default=None,
        ),
        saves=[result["checkpoints"] for result in results],
        save_errors=tuple(dict.fromkeys(each["error"] for r in results for each in r["unsaved"])),
    )
    # Of one node, those of the median node's job: nodes may have different numbers of GPUs.
    return dataclasses.replace(rung, tokens_per_step=per_rank * len(rung.judged_steps))


# Ranks write equal shares into one file system. The others wait for a node if it writes more than
# SLOW_RATIO times as long as they do, and the excess is more than MIN_STALL_SHARE of the stall.
SLOW_RATIO, MIN_STALL_SHARE = 2.0, 0.5


@dataclass(frozen=True)
class CheckpointSave:
    """One save of one job.

    `stall_s` is the seconds by which it stalled the job, `size_bytes` the size of the complete
    checkpoint. `write_s` is each rank's own seconds of writing, without its waits for others.
    """

    step: int
    stall_s: float
    size_bytes: int
    write_s: tuple[float, ...]


def collect_saves(rung: Rung) -> list[CheckpointSave]:
    """Collect the saves in a rung's timed steps that every rank made, in order.

    A save's stall is its time on the critical path (step_breakdown.py), which counts each moment
    once.
    """
    stalls = step_breakdown.critical_path(rung.steps).local_by_step("checkpoint")
    by_rank = [{save["step"]: save for save in saves} for saves in rung.saves]
    common = set.intersection(*map(set, by_rank))
    steps = [step for step in by_rank[0] if step > WARM_UP_STEPS and step in common]
    return [
        CheckpointSave(
            step=step,
            stall_s=stalls[step - WARM_UP_STEPS - 1],
            size_bytes=by_rank[0][step]["bytes"],
            write_s=tuple(rank_saves[step]["own"] for rank_saves in by_rank),
        )
        for step in steps
    ]


def median_save(saves: Sequence[CheckpointSave]) -> CheckpointSave:
    """Pick the save with the median stall (of two, the longer). Needs one save or more."""
    return sorted(saves, key=lambda save: save.stall_s)[len(saves) // 2]


def slowest_writer(write_s: Sequence[float]) -> tuple[int, float, float]:
    """Return (rank of the longest writing, its seconds, median seconds of the others).

    Needs two ranks or more. `write_s` may also be by node: then the index is the node's.
    """
    index = max(range(len(write_s)), key=write_s.__getitem__)
    return index, write_s[index], statistics.median([*write_s[:index], *write_s[index + 1 :]])


def slow_writer_node(save: CheckpointSave, nodes: Sequence[str]) -> str | None:
    """Return the node whose writing a save waits for; None if it is no single node.

    `nodes` are the ranks' nodes, in order of rank.
    """
    node_s: dict[str, float] = {}
    for node, seconds in zip(nodes, save.write_s, strict=True):
        node_s[node] = max(seconds, node_s.get(node, 0.0))
    if len(node_s) < 2:
        return None
    index, own_s, peers_s = slowest_writer([*node_s.values()])
    stands_out = own_s > SLOW_RATIO * peers_s and own_s - peers_s > MIN_STALL_SHARE * save.stall_s
    return [*node_s][index] if stands_out else None
