"""The trainer on 1, 2, 4, 8 nodes: one rung after the other, in one gang."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import train_rank
from reference_trainer.model.flops import flops_per_token
from scaling.bounds import Count, CountOrZero, Part, Seconds
from scaling.ladder.rank_consistency import find_disagreements
from scaling.ladder.skew import waits_separable
from scaling.ladder.step_breakdown import Step, mean_seconds, parse_steps

NODES_PLACEHOLDER = "{nodes}"  # in the name of a folder of shards: how many nodes it is for
HOST_CLOCK = "host"  # of the trainer's clocks (spans.py) the one that knows no stream of a GPU
WARM_UP_STEPS = 2  # connections, allocator and kernels: not what a step costs
Unsaved = Field(exclude=True)


@dataclass(frozen=True)
class Rung:
    """One node count: the timed steps of every rank, by node.

    `steps[r][k]` is rank r's k-th timed step; `nodes[r]` its node's name.  A rung of one node is
    run on every node at once, each a job of its own, so that a slow node is seen as such.

    Seconds of a step that are known only where its collectives were replayed without the trainer:
    `replay_s` is such a step; `agreed_s` what it would be on links of the agreed rate, where there
    is one; `uncertainty_s` by how much the replay may be off; `alpha_beta_s` what the fits say of
    the step's collectives.
    """

    count: Annotated[Count, Field(alias="nodes")]
    nodes: Annotated[list[str], Field(alias="ranks")]
    steps: list[list[Step]]
    tokens_per_step: Count
    non_finite: CountOrZero
    disagreements: tuple[str, ...] = ()  # steps that were not one job's, in words
    separable: bool = False  # whether waiting for collectives was timed apart from compute
    clock: str = HOST_CLOCK  # what the segments' boundaries were read from
    replay_s: Annotated[Part | None, Field(alias="played")] = None
    agreed_s: Annotated[Part | None, Field(alias="at_agreed_rate")] = None
    uncertainty_s: Annotated[Part | None, Field(alias="replay_doubt")] = None
    alpha_beta_s: Annotated[Part | None, Field(alias="alpha_beta")] = None
    # By node whose bytes took another road than the agreed one: which.
    off_fabric: Annotated[dict[str, str], Field(alias="strays")] = field(default_factory=dict)
    # Seconds of each step of the rung's other runs, where there were more than one.
    other_runs: Annotated[list[list[Seconds]], Field(alias="again")] = field(default_factory=list)
    # What follows is not written to a ladder.json.
    flops: Annotated[float, Unsaved] = 0.0  # of forward and backward, per token
    # FLOP/s of a rank's GPU, where it is known and the same of all; their names, in words.
    peak_flops: Annotated[float | None, Unsaved] = None
    devices: Annotated[str, Unsaved] = ""
    # The largest share of a rank's estimated bytes that one had in use.
    memory_ratio: Annotated[float | None, Unsaved] = None
    # By rank: what the trainer tells of each.
    saves: Annotated[Sequence[Sequence[dict[str, Any]]], Unsaved] = ()
    save_errors: Annotated[tuple[str, ...], Unsaved] = ()  # why saves failed, in words

    @property
    def mfu(self) -> float | None:
        """Share of the GPUs' peak that the model's arithmetic takes; None where it is not known."""
        if not self.peak_flops:
            return None
        return self.flops * self.tokens_per_s / self.peak_flops

    @property
    def overlaps(self) -> bool:
        """Whether collectives may be hidden behind compute, and how much of them is not known."""
        return self.clock != HOST_CLOCK

    @property
    def seconds(self) -> float:
        """Mean seconds of a step, over steps and the ranks that are judged: T_n."""
        return mean_seconds(self.judged_steps)

    @property
    def tokens_per_second(self) -> float:
        """Tokens that one job of the rung takes in per second."""
        return self.tokens_per_step / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens that each rank takes in per second; of the median node's, where it is one's."""
        return self.tokens_per_rank / self.seconds

    @property
    def tokens_per_rank(self) -> int:
        """Tokens that each rank takes in per step: what an efficiency means nothing without."""
        return self.tokens_per_step // len(self.judged_steps)

    @property
    def load_text(self) -> str:
        """The same in words, to stand beside every efficiency."""
        return load_text(self.tokens_per_rank)

    @property
    def judged_steps(self) -> list[list[Step]]:
        """What an efficiency is made of: the steps of all ranks, or of the median node's."""
        return self.steps if self.count > 1 else self.median_node()

    def median_node(self) -> list[list[Step]]:
        """The steps of the ranks on the node whose step time is the median: one rung's base."""
        node_s = self.node_seconds()
        return self.steps_on(sorted(node_s, key=lambda name: node_s[name])[(len(node_s) - 1) // 2])

    def node_seconds(self) -> dict[str, float]:
        """Mean seconds of a step on each node."""
        return {node: mean_seconds(self.steps_on(node)) for node in dict.fromkeys(self.nodes)}

    def steps_on(self, node: str) -> list[list[Step]]:
        """The steps of the ranks on one node."""
        return [steps for name, steps in zip(self.nodes, self.steps, strict=True) if name == node]


def load_text(tokens: int) -> str:
    """What each GPU takes in, in words."""
    return f"{tokens:,} tokens per GPU and step"


def rung_sizes(nodes: int) -> list[int]:
    """1, 2, 4, 8 ... up to `nodes`, and `nodes` itself."""
    sizes = [1 << power for power in range(nodes.bit_length()) if 1 << power <= nodes]
    return sizes if sizes[-1] == nodes else [*sizes, nodes]


def first_node(nodes: Sequence[int], count: int, run: int = 0) -> int:
    """The node at which a rung of `count` nodes begins, among rungs of so many `nodes` each.

    Each rung begins where the one before it ended, and each run of the ladder where the last did,
    so that every node has its turn among several nodes that are not yet all of them.
    """
    partial = [size for size in nodes if 1 < size < nodes[-1]]
    if count not in partial:
        return 0
    return (run * sum(partial) + sum(size for size in partial if size < count)) % nodes[-1]


def worker_groups(gang: Gang, count: int, first: int = 0) -> list[list[int]]:
    """The workers of `count` nodes in a row, from the gang's `first` on, as one group; of each
    node, for count 1.  Raises GangError for more nodes than the gang has."""
    order = list(dict.fromkeys(place.node for place in gang.places))
    if count > len(order):  # else a worker would be two ranks of one job, which hangs
        raise GangError(f"a rung of {count} nodes was asked of a gang of {len(order)}")
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
) -> Rung:
    """Run one rung on `count` nodes from the gang's `first` on (on all, one by one, for count 1).

    Weak scaling: every rank keeps its batch.  The first steps are not counted.  `{nodes}` in the
    config's folder of shards becomes the rung's number of nodes, for shards are made for one.
    `as_one_job` is a fault: nodes that train each by itself are looked at as if they were one job.
    """
    groups = worker_groups(gang, count, first)
    work = [train_rank]
    return _run_groups(gang, names, groups, count, config, work, timeout, as_one_job)


def skip_collectives(
    gang: Gang, names: dict[str, str], count: int, config: TrainConfig, timeout: float = 300
) -> Rung:
    """Every node alone, with the model sharded as among `count` nodes, and nothing sent.

    A control: what such a step takes longer than one node's is no communication.
    """
    ranks = sum(map(len, worker_groups(gang, count)))
    synthetic = dataclasses.replace(config, data="")  # no shard is whole without the other ranks
    solo = worker_groups(gang, 1)
    return _run_groups(gang, names, solo, 1, synthetic, [run_on_fake_group, ranks], timeout)


def strong_scaling_config(config: TrainConfig, count: int, max_nodes: int) -> TrainConfig:
    """Strong scaling: the step of `most` nodes, done by `count` of them, part by part.

    An emulated accelerator takes as many times longer for it.  ValueError where the sequences
    cannot be dealt evenly.
    """
    sequences = config.batch * max_nodes
    if sequences % count:
        raise ValueError(f"{sequences} sequences a step cannot be dealt evenly to {count} nodes")
    return dataclasses.replace(
        config,
        batch=sequences // count,
        accumulate=config.accumulate * -(-max_nodes // count),  # a part fits into memory as before
        pace_s=config.pace_s * max_nodes / count,
    )


def run_on_fake_group(size: int, config: TrainConfig) -> dict[str, Any]:
    """One rank's run as one of `size` ranks of which no other is there: torch's fake group.

    Its numbers mean nothing, for it has a part of the weights only; its time does.  So its rung
    disagrees in every step.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        return train_rank(config)
    finally:
        dist.destroy_process_group()


def _run_groups(
    gang: Gang,
    names: dict[str, str],
    groups: list[list[int]],
    count: int,
    config: TrainConfig,
    work: list[Any],
    timeout: float,
    as_one_job: bool = False,
) -> Rung:
    shards = config.data.replace(NODES_PLACEHOLDER, str(count))  # made for so many nodes
    timed_config = dataclasses.replace(config, steps=config.steps + WARM_UP_STEPS, data=shards)
    results: list[dict[str, Any]] = gang.run(*work, timed_config, groups=groups, timeout=timeout)
    members = [worker for group in groups for worker in group]
    remaining = iter(results)
    jobs = [[next(remaining) for _ in group] for group in groups]
    jobs = [results] if as_one_job else jobs
    peaks = {result["peak_flops"] for result in results}
    return Rung(
        count=count,
        nodes=[names[gang.places[worker].node] for worker in members],
        steps=[parse_steps(result["spans"])[WARM_UP_STEPS:] for result in results],
        tokens_per_step=results[0]["tokens_per_step"],
        non_finite=sum(not math.isfinite(s["loss"]) for r in results for s in r["steps"]),
        disagreements=tuple(message for job in jobs for message in find_disagreements(job)),
        separable=waits_separable([span for result in results for span in result["spans"]]),
        clock=results[0]["spans"][0]["clock"],
        flops=flops_per_token(timed_config),
        peak_flops=peaks.pop() if len(peaks) == 1 else None,
        devices=", ".join(sorted({result["device_name"] for result in results})),
        memory_ratio=max(
            (r["peak_memory_bytes"] / r["state_bytes"] for r in results if r["peak_memory_bytes"]),
            default=None,
        ),
        saves=[result["checkpoints"] for result in results],
        save_errors=tuple(
            dict.fromkeys(failure["error"] for r in results for failure in r["unsaved"])
        ),
    )
