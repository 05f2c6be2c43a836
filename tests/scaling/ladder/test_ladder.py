"""The ladder's rungs: which, with how much work each, and one that sends nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.contract.terms import ClusterTerms
from probes.scaling.run_ladder import train_config
from reference_trainer.config import TrainConfig
from reference_trainer.data.documents import DataError
from reference_trainer.data.shard_assignment import validate_shard_set
from reference_trainer.data.shards import COMMON_KEYS, VOCAB
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.model.size import estimate_memory
from scaling.ladder.ladder import (
    Rung,
    first_node,
    run_on_fake_group,
    run_rung,
    rung_sizes,
    skip_collectives,
    strong_scaling_config,
    worker_groups,
)
from scaling.ladder.step_breakdown import Step
from scaling.loss.ladder_result import Ladder


def test_rungs_double_up_to_all_nodes() -> None:
    assert rung_sizes(1) == [1]
    assert rung_sizes(4) == [1, 2, 4]
    assert rung_sizes(6) == [1, 2, 4, 6]
    assert rung_sizes(24, [8, 16, 32]) == [1, 8, 16, 24]
    assert rung_sizes(4, [4, 2]) == [1, 2, 4]
    assert rung_sizes(1, [2, 4]) == [1]


def test_a_short_ladder_has_four_rungs_at_most() -> None:
    sizes = {nodes: rung_sizes(nodes, short=True) for nodes in (1, 2, 4, 8, 9, 16, 24, 64, 512)}
    assert sizes == {
        1: [1], 2: [1, 2], 4: [1, 2, 4], 8: [1, 2, 4, 8], 9: [1, 2, 4, 9], 16: [1, 2, 4, 16],
        24: [1, 2, 4, 24], 64: [1, 2, 8, 64], 512: [1, 2, 64, 512],
    }  # fmt: skip
    assert rung_sizes(64, [4, 16, 32], short=True) == [1, 4, 16, 32, 64], "as agreed"


def test_no_worker_is_two_ranks_of_a_rung() -> None:
    gang = cast(Gang, SimpleNamespace(places=[SimpleNamespace(node=f"n{at}") for at in range(8)]))
    assert len(worker_groups(gang, 8)[0]) == 8
    with pytest.raises(GangError, match="10 nodes is not possible: the test has 8 nodes"):
        worker_groups(gang, 10)
    assert worker_groups(gang, 2) == [[0, 1]]
    assert worker_groups(gang, 3, first=6) == [[0, 6, 7]]


@pytest.mark.parametrize(("nodes", "runs"), [(4, 2), (6, 1), (8, 2), (11, 1), (16, 2)])
def test_each_node_has_its_turn_among_several(nodes: int, runs: int) -> None:
    """Two runs suffice, one where the rungs below the largest have room for all."""
    places = [SimpleNamespace(node=f"n{node}") for node in range(nodes) for _ in range(2)]
    gang, rungs = cast(Gang, SimpleNamespace(places=places)), rung_sizes(nodes)
    turns = [0] * nodes
    for run in range(runs):
        for count in rungs[1:]:
            (group,) = worker_groups(gang, count, first_node(rungs, count, run))
            assert group == sorted(group)
            assert len(group) == 2 * count
            for node in {worker // 2 for worker in group}:
                turns[node] += count < nodes
    assert min(turns) >= 1
    assert worker_groups(gang, nodes, first_node(rungs, nodes, 1)) == [[*range(2 * nodes)]]


def missing_shards(nodes: int, shard_of: Callable[[int, int], tuple[int, int]]) -> list[int]:
    """List the rungs of four runs on `nodes` nodes whose ranks do not hold a whole set of shards.

    `shard_of(node, count)` is (number, of how many) of the shard on a node for a rung.
    """
    places = [SimpleNamespace(node=f"n{node}") for node in range(nodes)]
    gang, rungs, found = cast(Gang, SimpleNamespace(places=places)), rung_sizes(nodes), list[int]()
    common = dict.fromkeys(COMMON_KEYS, "")
    for run in range(4):
        for count in rungs[1:]:
            (group,) = worker_groups(gang, count, first_node(rungs, count, run))
            held = [shard_of(node, count) for node in group]
            contents = [{**common, "node": node, "nodes": of, "files": node} for node, of in held]
            try:
                validate_shard_set([(f"n{node}", one) for node, one in enumerate(contents)])
            except DataError as error:
                if "no node has shard" not in str(error):
                    raise
                found.append(count)
    return found


def test_shards_of_all_data_are_complete_on_each_rung() -> None:
    """The recipe of docs/use/training.md holds for every number of nodes; shares do not."""
    assert not any(missing_shards(nodes, lambda node, count: (0, 1)) for nodes in range(2, 65))
    assert missing_shards(12, lambda node, count: (node % count, count))


def test_the_first_run_of_a_rung_of_two_is_on_the_first_nodes() -> None:
    assert [first_node([1, 2, 4, 8], count) for count in (1, 2, 4, 8)] == [0, 0, 2, 0]
    assert [first_node([1, 2, 4, 8], count, 1) for count in (1, 2, 4, 8)] == [0, 6, 0, 0]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_strong_scaling_keeps_the_work_of_a_step(count: int) -> None:
    config = TrainConfig(batch=3, pace_s=0.4)
    work = strong_scaling_config(config, count, 8)
    assert work.batch * count == 3 * 8
    assert work.pace_s * count == pytest.approx(0.4 * 8)
    assert work.batch / work.accumulate == 3  # what must fit into memory at once


def test_strong_scaling_of_what_cannot_be_dealt_evenly_is_refused() -> None:
    with pytest.raises(ValueError, match="6 sequences a step cannot be split evenly over 4 nodes"):
        strong_scaling_config(TrainConfig(batch=1), 4, 6)


def test_tokens_per_rank_are_those_of_one_job() -> None:
    step = Step(1.0, {"forward": 1.0})
    alone = Rung(1, ["a", "a", "b", "b"], [[step]] * 4, tokens_per_step=512, non_finite=0)
    assert alone.tokens_per_rank == 256  # two jobs side by side, of two ranks each
    whole = Rung(2, ["a", "a", "b", "b"], [[step]] * 4, tokens_per_step=1024, non_finite=0)
    assert whole.tokens_per_rank == 256
    assert whole.load_text == "256 tokens per GPU and step"


def test_the_rung_of_one_node_is_judged_by_its_median_node_in_all_figures() -> None:
    """A slow node beside two sound ones costs the rung of 1 nothing: each is a job of its own."""
    steps = [[Step(seconds, {"forward": seconds})] for seconds in (2.0, 2.0, 8.0)]
    alone = Rung(1, ["a", "b", "c"], steps, 1024, 0, flops=2.0, peak_flops=1024)
    assert alone.seconds == 2
    assert alone.tokens_per_second == 512
    assert alone.mfu == 1
    assert Ladder(rungs=[alone], calls=[], fits={}, base_repeats=[]).efficiency(alone) == 1


def test_a_rung_begins_at_the_first_node_and_its_silent_twin_runs_each_node_alone() -> None:
    config = TrainConfig(steps=2, digest=False, device="cpu")
    result = run_on_fake_group(1, replace(config, steps=4))
    asked: list[Any] = []

    def run(*work: Any, groups: list[list[int]], **_: Any) -> list[dict[str, Any]]:
        asked.append((*work[1:-1], groups))
        return [result] * sum(map(len, groups))

    places = [SimpleNamespace(node=node) for node in "aabbcc"]
    gang, names = cast(Gang, SimpleNamespace(places=places, run=run)), {n: n for n in "abc"}
    rung = run_rung(gang, names, 2, config)
    assert (rung.count, rung.nodes) == (2, [*"aabb"])
    assert [len(steps) for steps in rung.steps] == [2] * 4  # the first two are not counted
    silent = skip_collectives(gang, names, 2, config)
    assert (silent.count, silent.nodes) == (1, [*"aabbcc"])
    assert asked == [([[0, 1, 2, 3]],), (4, [[0, 1], [2, 3], [4, 5]])]  # sharded as on 4 ranks


def test_mfu_is_the_share_of_one_gpus_peak() -> None:
    step = Step(0.5, {"forward": 0.5})
    rung = Rung(2, ["a", "b"], [[step]] * 2, 2000, 0, flops=6e9, peak_flops=1e15)
    assert rung.mfu == pytest.approx(6e9 * 1000 / 0.5 / 1e15)
    assert Rung(2, ["a", "b"], [[step]] * 2, 2000, 0, flops=6e9).mfu is None
    assert Rung(2, ["a", "b"], [[step]] * 2, 2000, 0, peak_flops=1e15).mfu == 0


@pytest.mark.parametrize(("clock", "hidden"), [("host", False), ("cuda events", True)])
def test_only_on_a_gpu_collectives_may_be_hidden(clock: str, hidden: bool) -> None:
    step = Step(0.5, {"forward": 0.5})
    assert Rung(1, ["a"], [[step]], 2000, 0, clock=clock).overlaps is hidden


def test_one_rank_alone_is_a_rung() -> None:
    config = TrainConfig(steps=2, digest=False, device="cpu")
    result = run_on_fake_group(1, replace(config, steps=4))
    places = [SimpleNamespace(node="a")]
    gang = cast(Gang, SimpleNamespace(places=places, run=lambda *_, **__: [result]))
    rung = run_rung(gang, {"a": "node a"}, 1, config)
    assert (rung.nodes, rung.clock, rung.non_finite) == (["node a"], "host", 0)
    assert rung.tokens_per_rank == config.batch * config.seq


def test_a_hushed_rank_holds_its_shard_and_waits_for_nobody() -> None:
    config = TrainConfig(steps=2, digest=False, device="cpu")
    result = run_on_fake_group(4, config)
    assert result["world"] == 4
    assert result["tokens_per_step"] == 4 * config.batch * config.seq
    assert len(result["steps"]) == 2


@pytest.mark.parametrize(
    ("device", "peak", "devices", "known"),
    [("H100", 9.0, "H100", 9.0), ("L4", None, "H100, L4", None), ("A100", 3.0, "A100, H100", None)],
)
def test_a_peak_is_known_only_where_it_is_every_ranks(
    device: str, peak: float | None, devices: str, known: float | None
) -> None:
    """One node of another GPU must not be held to the first one's peak, or hold others to its."""
    config = TrainConfig(steps=2, digest=False, device="cpu")
    result = run_on_fake_group(1, TrainConfig(steps=4, digest=False, device="cpu"))
    assert result["device_name"] == "CPU"
    ranks = [
        {**result, "device_name": "H100", "peak_flops": 9.0},
        {**result, "device_name": device, "peak_flops": peak},
    ]
    places = [SimpleNamespace(node="a"), SimpleNamespace(node="b")]
    gang = cast(Gang, SimpleNamespace(places=places, run=lambda *_, **__: ranks))
    rung = run_rung(gang, {"a": "a", "b": "b"}, 1, config)
    assert (rung.devices, rung.peak_flops) == (devices, known)


@pytest.mark.parametrize(
    ("devices", "kinds"),
    [
        ("H200 L40S H200 H200", {"a": ("H200, L40S", None), "b": ("H200", 9.0)}),
        ("L40S H200 L40S H200", {"a": ("H200, L40S", None), "b": ("H200, L40S", None)}),
        ("L40S L40S H200 H200", {"a": ("L40S", 3.0), "b": ("H200", 9.0)}),
        ("H200 H200 H200 H200", {}),
    ],
)
def test_a_node_with_different_gpus_is_of_none_of_their_kinds(
    devices: str, kinds: dict[str, tuple[str, float | None]]
) -> None:
    """Neither GPU's peak is that of all ranks of the node."""
    result = run_on_fake_group(1, TrainConfig(steps=4, digest=False, device="cpu"))
    peaks = {"H200": 9.0, "L40S": 3.0}
    ranks = [{**result, "device_name": one, "peak_flops": peaks[one]} for one in devices.split()]
    places = [SimpleNamespace(node=node) for node in "aabb"]
    gang = cast(Gang, SimpleNamespace(places=places, run=lambda *_, **__: ranks))
    config = TrainConfig(steps=2, digest=False, device="cpu")
    assert run_rung(gang, {"a": "a", "b": "b"}, 1, config).gpus == kinds


def test_the_base_of_several_kinds_is_the_median_node_of_the_slowest() -> None:
    steps = [[Step(seconds, {"forward": seconds})] for seconds in (1, 1, 1, 1, 4, 5, 9)]
    gpus: dict[str, tuple[str, float | None]] = {
        node: ("H200", 9.0) if node < "e" else ("L40S", 3.0) for node in "abcdefg"
    }
    alone = Rung(1, [*"abcdefg"], steps, 1024, 0, gpus=gpus)
    assert (alone.seconds, alone.tokens_per_s) == (5, 1024 / 5)
    assert replace(alone, gpus={}).seconds == 1
    for nodes, seconds in (("ab", 1), ("ef", 5), ("ae", 5)):
        larger = Rung(2, [*nodes], steps[:2], 2048, 0)
        assert alone.of_kinds(larger).seconds == seconds, "all ranks of a rung wait for its slowest"
    assert replace(alone, gpus={}).of_kinds(larger).seconds == 1


@pytest.mark.parametrize(
    ("count", "groups"), [(4, [[0, 1], [2, 3]]), (5, [[0, 1], [2, 3, 4]]), (1, [[0]])]
)
def test_the_halves_of_a_node_train_apart_and_are_judged_as_one_job(
    count: int, groups: list[list[int]]
) -> None:
    result = run_on_fake_group(1, TrainConfig(steps=4, digest=False, device="cpu"))
    asked: list[Any] = []

    def run(*_: Any, groups: Any, **__: Any) -> list[Any]:
        asked.append(groups)
        return [result] * count

    gang = cast(Gang, SimpleNamespace(places=[SimpleNamespace(node="a")] * count, run=run))
    config = TrainConfig(steps=2, digest=False, device="cpu")
    rung = run_rung(gang, {"a": "a"}, 1, config, as_one_job=True, halves=True)
    assert (asked, rung.nodes) == ([groups], ["a"] * count)
    assert bool(rung.disagreements) is (count > 1), "the ranks used the same samples"


@pytest.mark.parametrize("nodes", ["aabbbbcccc", "aaaabbcc", "aaaabbbb"])
def test_the_speed_of_a_rank_is_that_of_its_own_jobs_tokens(nodes: str) -> None:
    """Nodes with 4 and 8 GPUs: by another node's tokens the speed would be half, or twice."""
    config = TrainConfig(steps=2, digest=False, device="cpu")
    alone = run_on_fake_group(1, replace(config, steps=4))
    ranks = [
        {**alone, "world": nodes.count(node), "peak_flops": 1e9,
         "tokens_per_step": nodes.count(node) * alone["tokens_per_step"]}
        for node in nodes
    ]  # fmt: skip
    places = [SimpleNamespace(node=node) for node in nodes]
    gang = cast(Gang, SimpleNamespace(places=places, run=lambda *_, **__: ranks))
    rung = run_rung(gang, {node: node for node in nodes}, 1, config)
    assert rung.tokens_per_rank == config.batch * config.seq
    assert rung.mfu == pytest.approx(
        rung.flops * config.batch * config.seq / rung.seconds / rung.peak_flops
    )


def test_the_rank_that_is_fullest_gives_the_memory_of_a_rung() -> None:
    config = TrainConfig(steps=2, digest=False, device="cpu")
    result = run_on_fake_group(1, replace(config, steps=4))
    need = estimate_memory(replace(config, steps=4), 1).total
    ranks = [{**result, "peak_memory_bytes": share * need} for share in (1.5, 2.5, 0)]
    places = [SimpleNamespace(node=node) for node in "abc"]
    gang = cast(Gang, SimpleNamespace(places=places, run=lambda *_, **__: ranks))
    assert run_rung(gang, dict(zip("abc", "abc", strict=True)), 1, config).memory_ratio == 2.5


@pytest.mark.parametrize(
    ("terms", "wanted"), [(None, ["", ""]), ("/d/{nodes}/x", ["/d/1/x", "/d/2/x"])]
)
def test_each_rung_reads_the_shards_for_its_number_of_nodes(
    terms: str | None, wanted: list[str]
) -> None:
    """Shards have one token more than a CPU's synthetic data, and fewer than a GPU's."""
    agreed = ClusterTerms(shards=terms)
    loads = [train_config(agreed, steps=2, gpu_gib=memory) for memory in (None, 79.6)]
    assert [load.vocab >= VOCAB for load in loads] == [terms is not None, True]
    asked = []

    def run(function: Any, config: TrainConfig, **_: Any) -> Any:
        asked.append(config.data)
        raise GangError("enough seen")

    places = [SimpleNamespace(node="a"), SimpleNamespace(node="b")]
    gang = cast(Gang, SimpleNamespace(places=places, run=run))
    for count in (1, 2):
        with pytest.raises(GangError):
            run_rung(gang, {}, count, loads[0])
    assert asked == wanted
