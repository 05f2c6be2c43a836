"""One node's own speed: as slow everywhere is slow, though nothing is lost to scaling."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from probes.check.recorder import Recorder, Trial
from probes.cli.main import main
from probes.cluster.cluster import Cluster
from probes.contract.contract import Contract, load, parse
from probes.contract.derived_limits import derive_contract
from probes.scaling import base_speed
from probes.scaling.base_speed import (
    SpeedTest,
    control_bad_base,
    derived_limit,
    judge_speed,
    speed_tests,
)
from probes.scaling.judge import judge_ladder
from probes.scaling.run_ladder import LadderRig
from probes.session.rejudge import rejudge_run
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reports.measurement import Measurement, Verdict
from reports.numbers import quantity
from reports.record import Finding, ProbeResult
from reports.run_folder.integrity import load as load_record
from reports.run_folder.store import Store
from scaling.ladder.ladder import Rung
from scaling.loss.ladder_result import Ladder, load_ladder
from tests.support.simulated_ladder import ladder, slower, throttled, with_rung
from tests.support.simulated_steps import TOKENS

H100, PEAK = "NVIDIA H100 80GB HBM3", 989e12
NODES = ["node0", "node1", "node2", "node3"]
ORDER = 'schema = 1\nname = "order"\n[SCALING.efficiency]\nat_least = 0.9\nunit = "ratio"\n'
ORDER += 'because = "as agreed"\n'
AGREED_TOKENS = '[SCALING.tokens_per_s]\nat_least = 5500\nunit = "tokens/s per rank"\n'
AGREED_TOKENS += 'because = "two thirds of the 8192 that were shown"\n'


def contract(*more: str) -> Contract:
    return parse("".join([ORDER, *more]).encode(), "order.toml")


def on_gpu(
    found: Ladder, mfu: float = 0.42, device: str = H100, peak: float | None = PEAK
) -> Ladder:
    """The same on GPUs of which a step of one second takes this share."""
    flops = mfu * PEAK * found.rungs[0].seconds / TOKENS
    return with_rung(found, 0, flops=flops, peak_flops=peak, devices=device)


def judged(folder: Path, found: Ladder, agreed: Contract, emulated: bool = False) -> ProbeResult:
    """What the probe writes of a ladder whose base repeats."""
    store = Store(folder)
    store.start(
        agreed.text, id="run", started="2026-01-01T00:00:00Z", command="x", tier="quick",
        contract=agreed.facts().model_dump(mode="json"),
    )  # fmt: skip
    measure = Recorder(store, agreed, "p", "SCALING", "claim", "again", lambda words: None)
    limits = partial(agreed.limit, "SCALING")
    found = replace(found, base_repeats=[found.rungs[0]])
    judge_ladder(found, limits, measure)
    judge_speed(found.rungs[0], speed_tests(found.rungs[0], limits, emulated), measure)
    measure.keep("ladder.json", found.to_dict(), kind="series", caption="the ladder")
    result = measure.finish("finished", 1.0)
    store.event("run_finished", finished="2026-01-01T00:01:00Z", state="finished")
    store.save()
    store.close()
    return result


def figure(result: ProbeResult, name: str) -> Measurement:
    """The one of the base."""
    on = f"1 node, {TOKENS:,} tokens per GPU and step"
    (found,) = [one for one in result.measurements if (one.name, one.subject) == (name, on)]
    return found


def verdicts(result: ProbeResult, name: str) -> set[Verdict | None]:
    return {one.verdict for one in result.measurements if one.name == name and one.judged}


def slow_bases(result: ProbeResult) -> list[Finding]:
    return [one for one in result.findings if one.code == "SCALE-SLOW-BASE"]


SOUND = {"communication": 0.02}


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "GPUs"])
def test_a_fleet_at_half_pace_is_slow_and_a_sound_one_is_not(
    tmp_path: Path, emulated: bool
) -> None:
    name, found = (
        ("tokens_per_s", ladder(**SOUND)) if emulated else ("mfu", on_gpu(ladder(**SOUND)))
    )
    agreed = contract(AGREED_TOKENS if emulated else "")
    sound = judged(tmp_path / "sound", found, agreed, emulated)
    assert figure(sound, name).verdict is Verdict.PASS
    assert not sound.findings
    half = judged(tmp_path / "half", throttled(found, *NODES), agreed, emulated)
    assert verdicts(half, "efficiency") == {Verdict.PASS}
    assert verdicts(half, "straggler") == {Verdict.PASS}
    assert figure(half, name).verdict is Verdict.FAIL
    (slow,) = slow_bases(half)
    assert slow.suspects == NODES
    limit, value = figure(half, name).limit, figure(half, name).value
    assert limit
    assert (
        f"): {'MFU ' * (name == 'mfu')}{quantity(value, limit.unit)}. Expected: {limit}"
        in slow.statement
    )


A100, A100_PEAK = "NVIDIA A100-SXM4-80GB", 312e12


@pytest.mark.parametrize(
    ("by", "slow", "verdict"),
    [
        pytest.param(1.0, "node2", Verdict.PASS, marks=pytest.mark.near_miss("SCALING.mfu")),
        (3.0, "node2", Verdict.FAIL),
        (3.0, "node0", Verdict.FAIL),
    ],
)
def test_nodes_of_each_model_keep_a_share_of_their_own_peak(
    tmp_path: Path, by: float, slow: str, verdict: Verdict
) -> None:
    """An A100 that takes 3.2 times as long as an H100 computes as well, and no longer."""
    other = {"node0": "node1", "node2": "node3"}[slow]
    found = throttled(mixed(ladder(**SOUND)), slow, other, by=by)
    gpus = found.rungs[0].gpus
    result = judged(tmp_path / "run", found, contract())
    seen = {one.subject: one.verdict for one in result.measurements if one.name == "mfu"}
    (bad,) = (at for at in seen if at.startswith(gpus[slow][0]))
    assert len(seen) == 2
    assert seen == dict.fromkeys(seen, Verdict.PASS) | {bad: verdict}
    nodes = [[slow, other]] if verdict is Verdict.FAIL else []
    assert [one.suspects for one in slow_bases(result)] == nodes
    assert verdicts(result, "straggler") == {Verdict.PASS}


def mixed(found: Ladder) -> Ladder:
    """The same where two nodes have a GPU that takes 3.2 times as long."""
    found = throttled(on_gpu(found, 0.6), "node2", "node3", by=PEAK / A100_PEAK)
    gpus = {node: (H100, PEAK) if node < "node2" else (A100, A100_PEAK) for node in NODES}
    return with_rung(found, 0, gpus=gpus, peak_flops=None, devices=f"{A100}, {H100}")


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        pytest.param(
            0.02,
            Verdict.PASS,
            marks=pytest.mark.near_miss("SCALING.efficiency", "SCALING.straggler"),
        ),
        (0.2, Verdict.FAIL),
    ],
)
def test_what_scaling_costs_is_compared_with_the_slowest_kind_of_each_number_of_nodes(
    tmp_path: Path, lost: float, verdict: Verdict
) -> None:
    """All ranks wait for that kind, and no node of it is to blame."""
    alike = ladder(communication=lost)
    found = mixed(alike)
    result = judged(tmp_path / "run", found, contract())
    seen = {m.subject: m for m in result.measurements if m.name == "efficiency"}
    two, four = (seen[f"{n} nodes, {TOKENS:,} tokens per GPU and step"] for n in (2, 4))
    expected = [alike.efficiency(rung) for rung in alike.rungs[1:]]
    assert [two.value, four.value] == pytest.approx(expected, abs=0.02)
    assert (two.verdict, four.verdict) == (Verdict.PASS, verdict)
    assert not {"SCALE-SLOW-NODE", "SCALE-STRAGGLER"} & {one.code for one in result.findings}
    again = load_ladder(json.loads((tmp_path / "run/evidence/ladder.json").read_text()))
    assert [again.efficiency(rung) for rung in again.rungs[1:]] == [two.value, four.value]


def test_nothing_is_predicted_of_more_nodes_of_several_kinds() -> None:
    found = mixed(ladder(**SOUND))
    with pytest.raises(ValueError, match="needs nodes with the same GPUs"):
        found.forecast()
    assert with_rung(found, 0, gpus={}).forecast().predictions


def test_three_of_four_nodes_throttled_fail_though_nothing_is_lost(tmp_path: Path) -> None:
    """The median node is a slow one: efficiency and stragglers are as those of a sound cluster."""
    found = throttled(on_gpu(ladder(**SOUND)), *NODES[1:])
    result = judged(tmp_path / "run", found, contract())
    assert verdicts(result, "efficiency") == verdicts(result, "straggler") == {Verdict.PASS}
    assert figure(result, "mfu").verdict is Verdict.FAIL
    (slow,) = slow_bases(result)
    assert slow.suspects == NODES[1:]


@pytest.mark.parametrize(
    ("mfu", "verdict"),
    [
        pytest.param(0.30, "MARGINAL", marks=pytest.mark.near_miss("SCALING.mfu")),
        (0.24, "FAIL"),
        (0.37, "PASS"),
    ],
)
def test_what_an_h100_must_keep_is_derived_and_says_so(
    tmp_path: Path, mfu: float, verdict: str
) -> None:
    seen = figure(judged(tmp_path / "run", on_gpu(ladder(**SOUND), mfu), contract()), "mfu")
    assert seen.verdict is Verdict(verdict)
    assert seen.limit
    assert seen.limit.source == "derived"
    assert "42 %" in seen.limit.because


def test_an_agreed_share_takes_the_place_of_the_derived_one(tmp_path: Path) -> None:
    agreed = '[SCALING.mfu]\nat_least = 0.4\nunit = "ratio"\nbecause = "shown at the factory"\n'
    result = judged(tmp_path / "run", on_gpu(ladder(**SOUND), 0.37), contract(agreed))
    assert figure(result, "mfu").verdict is Verdict.FAIL
    assert "shown at the factory" in slow_bases(result)[0].statement


def test_a_device_whose_peak_is_unknown_is_unproven_until_its_tokens_are_agreed(
    tmp_path: Path,
) -> None:
    found = on_gpu(ladder(**SOUND), device="NVIDIA L4", peak=None)
    seen = figure(judged(tmp_path / "bare", found, contract()), "mfu")
    assert seen.verdict is Verdict.UNPROVEN
    assert seen.note == (
        "the peak of NVIDIA L4 is unknown: set [SCALING.tokens_per_s] in the contract"
    )
    result = judged(tmp_path / "agreed", found, contract(AGREED_TOKENS))
    assert figure(result, "tokens_per_s").verdict is Verdict.PASS
    assert not verdicts(result, "mfu")


def test_a_known_peak_of_which_no_share_is_known_is_unproven(tmp_path: Path) -> None:
    result = judged(tmp_path / "run", on_gpu(ladder(**SOUND), device="NVIDIA B200"), contract())
    seen = figure(result, "mfu")
    assert (seen.verdict, seen.limit) == (Verdict.UNPROVEN, None)
    assert seen.value == pytest.approx(0.42)


def test_more_than_the_peak_proves_nothing(tmp_path: Path) -> None:
    """A clock that is wrong, or a name."""
    seen = figure(judged(tmp_path / "run", on_gpu(ladder(**SOUND), 1.3), contract()), "mfu")
    assert (seen.verdict, seen.value) == (Verdict.UNPROVEN, None)
    assert "no device exceeds its peak" in seen.note


def test_an_emulated_accelerator_owes_tokens_and_has_no_mfu(tmp_path: Path) -> None:
    result = judged(tmp_path / "run", ladder(**SOUND), contract(), emulated=True)
    assert figure(result, "tokens_per_s").verdict is Verdict.UNPROVEN
    assert "mfu" not in {one.name for one in result.measurements}


def test_tokens_that_nobody_agreed_are_told_and_not_judged(tmp_path: Path) -> None:
    seen = figure(judged(tmp_path / "run", on_gpu(ladder(**SOUND)), contract()), "tokens_per_s")
    assert not seen.judged
    assert seen.value == pytest.approx(TOKENS, rel=0.05)


@pytest.mark.parametrize(
    ("device", "low"),
    [
        ("NVIDIA A100-SXM4-80GB", 0.383),
        (H100, 0.27),
        ("NVIDIA H200", 0.309),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA GH200 480GB", None),
        ("AMD Instinct MI300X", None),
        (f"NVIDIA A100-SXM4-80GB, {H100}", None),
        ("CPU", None),
    ],
)
def test_a_share_is_derived_only_where_such_a_job_is_published(
    device: str, low: float | None
) -> None:
    limit = derived_limit(device)
    assert (limit.low if limit else None) == low


def test_the_labs_contract_catches_half_the_pace_and_spares_busy_cores() -> None:
    agreed, load_of = load("lab"), TrainConfig()
    limit = agreed.limit("SCALING", "tokens_per_s")
    assert limit
    tokens, pace = load_of.batch * load_of.seq, agreed.cluster.pace_seconds
    steps = {pace * 1.02: Verdict.PASS, pace * 1.3: Verdict.MARGINAL, pace * 2: Verdict.FAIL}
    assert {step: limit.judge(tokens / step) for step in steps} == steps


@pytest.mark.parametrize("name", ["local", ""])
def test_where_ranks_share_a_hosts_cores_no_speed_is_judged(name: str) -> None:
    embedded = cast(Cluster, SimpleNamespace(emulated=True, kind="local", facts=[]))
    contract = load(name) if name else derive_contract(embedded)
    speeds = ("tokens_per_s", "mfu", "efficiency", "straggler", "wall_gap", "residual")
    assert [contract.limit("SCALING", speed) for speed in speeds] == [None] * len(speeds)
    assert contract.limit("SCALING", "disagreements")


def test_the_report_of_a_run_says_of_its_base_what_the_page_says(tmp_path: Path) -> None:
    judged(tmp_path / "run", throttled(on_gpu(ladder(**SOUND)), *NODES), contract())
    output = CliRunner().invoke(main, ["scaling", "report", str(tmp_path / "run")]).output
    assert "MFU on 1 node, 8,192 tokens per GPU and step: 21" in output
    assert "SCALE-SLOW-BASE training on one node is too slow (node0, node1, node2, node3)" in output


class Controls(Trial):
    """A recorder in memory, which takes controls."""

    control = Recorder.control

    def __init__(self) -> None:
        super().__init__(contract(AGREED_TOKENS), "p", "SCALING")

    @property
    def seen(self) -> dict[str, bool | None]:
        """Whether each control was caught."""
        return {one.name: one.caught for one in self.result("finished", 1.0).controls}


def controlled(
    base: Rung, monkeypatch: pytest.MonkeyPatch, heed: float = 1.0, spared: str = "", **faults: Any
) -> dict[str, bool | None]:
    """The controls on a cluster whose trainer heeds so much of the delay that is planted.

    `faults` are those of the rung that come of the others. Nodes with the GPU `spared` heed none.
    """

    def run(_: Gang, names: Any, count: int, config: TrainConfig, **how: bool) -> Rung:
        assert (count, config.stall.split("seconds=")[0]) == (1, "data:rank=0:")
        assert how == {"as_one_job": True, "halves": False}
        assert config.lr == config.clip == 1e30
        delay = heed * float(config.stall.split("seconds=")[1])
        heeds = [base.gpus.get(node, ("?", None))[0] != spared for node in base.nodes]
        steps = [
            [slower(step, 1 + here * delay / step.seconds) for step in mine]
            for here, mine in zip(heeds, base.steps, strict=True)
        ]
        return replace(base, steps=steps, **{"non_finite": 4, "disagreements": ("x",), **faults})

    monkeypatch.setattr(base_speed, "run_rung", run)
    controls = Controls()
    rig = LadderRig(cast(Gang, None), {}, controls)
    tests = speed_tests(base, partial(contract(AGREED_TOKENS).limit, "SCALING"), emulated=False)
    assert [test.name for test in tests] == ["tokens_per_s", *["mfu"] * (1 + bool(base.gpus))]
    control_bad_base(rig, TrainConfig(), base, tests)
    return controls.seen


BAD_BASE = ("slow base", "exploding loss", "trained apart")


@pytest.mark.parametrize("mfu", [0.26, 0.42, 0.9])
def test_a_node_that_is_made_slow_must_be_judged_so(
    monkeypatch: pytest.MonkeyPatch, mfu: float
) -> None:
    base = on_gpu(ladder(**SOUND), mfu).rungs[0]
    assert controlled(base, monkeypatch) == dict.fromkeys(BAD_BASE, True)
    assert controlled(base, monkeypatch, heed=0.0)["slow base"] is False


def test_each_kind_of_node_must_be_judged_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    base = mixed(ladder(**SOUND)).rungs[0]
    assert controlled(base, monkeypatch) == dict.fromkeys(BAD_BASE, True)
    for spared in (H100, A100):
        assert controlled(base, monkeypatch, spared=spared)["slow base"] is False


@pytest.mark.parametrize(
    ("fault", "control"),
    [({"non_finite": 0}, "exploding loss"), ({"disagreements": ()}, "trained apart")],
)
def test_each_control_of_a_bad_base_is_caught_for_its_own_measure(
    monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], control: str
) -> None:
    seen = controlled(on_gpu(ladder(**SOUND)).rungs[0], monkeypatch, **fault)
    assert seen == {name: name != control for name in BAD_BASE}


def test_a_control_that_cannot_be_judged_or_run_is_not_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(*_: Any, **__: bool) -> Rung:
        raise GangError("rank 1 died")

    base, controls = on_gpu(ladder(**SOUND)).rungs[0], Controls()
    monkeypatch.setattr(base_speed, "run_rung", lambda *_, **__: base)
    rig = LadderRig(cast(Gang, None), {}, controls)
    control_bad_base(rig, TrainConfig(), base, [SpeedTest("mfu", None)])
    assert controls.seen["slow base"] is None
    unknown, controls = dataclasses.replace(base, peak_flops=None), Controls()
    rig = LadderRig(cast(Gang, None), {}, controls)
    control_bad_base(rig, TrainConfig(), unknown, [SpeedTest("mfu", derived_limit(H100))])
    assert controls.seen["slow base"] is False
    monkeypatch.setattr(base_speed, "run_rung", dies)
    rig = LadderRig(cast(Gang, None), {}, controls := Controls())
    control_bad_base(rig, TrainConfig(), base, [SpeedTest("mfu", derived_limit(H100))])
    assert controls.seen == dict.fromkeys(BAD_BASE)
    assert {one.saw for one in controls.result("finished", 1.0).controls} == {"rank 1 died"}


@pytest.mark.parametrize("ranks", [8, 1])
def test_on_one_ordered_node_the_halves_of_its_ranks_train_apart(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    whole = on_gpu(ladder(**SOUND)).rungs[0]
    base = replace(whole, nodes=["node0"] * ranks, steps=(whole.steps * ranks)[:ranks])
    asked: list[dict[str, Any]] = []

    def run(*_: Any, **options: Any) -> Rung:
        asked.append(options)
        return replace(base, non_finite=4, disagreements=("x",) * (ranks > 1))

    monkeypatch.setattr(base_speed, "run_rung", run)
    rig = LadderRig(cast(Gang, None), {}, controls := Controls())
    control_bad_base(rig, TrainConfig(), base, [SpeedTest("mfu", None)], alone=True)
    assert asked == [{"as_one_job": True, "halves": True}]
    assert controls.seen["trained apart"] is (True if ranks > 1 else None)
    (made,) = (
        one for one in controls.result("finished", 1.0).controls if one.name == "trained apart"
    )
    assert made.fault == "the ranks of the node train in two jobs, instead of one"
    assert (made.saw == "the job has only one rank") is (ranks == 1)


def test_a_speed_without_a_limit_leaves_the_other_faults_of_a_bad_base_to_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = replace(on_gpu(ladder(**SOUND)).rungs[0], non_finite=4, disagreements=("x",))
    monkeypatch.setattr(base_speed, "run_rung", lambda *_, **__: bad)
    rig = LadderRig(cast(Gang, None), {}, controls := Controls())
    control_bad_base(rig, TrainConfig(), bad, [SpeedTest("mfu", None)])
    assert controls.seen == {"slow base": None, "exploding loss": True, "trained apart": True}


def test_a_run_judged_again_keeps_the_limit_that_its_device_gave_and_no_contracts(
    tmp_path: Path,
) -> None:
    agreed = '[SCALING.mfu]\nat_least = 0.4\nunit = "ratio"\nbecause = "shown at the factory"\n'
    for name, before, verdict in (("derived", "", "PASS"), ("agreed", agreed, "UNPROVEN")):
        judged(tmp_path / name, on_gpu(ladder(**SOUND)), contract(before))
        (again,) = load_record(rejudge_run(tmp_path / name, contract())).results
        assert figure(again, "mfu").verdict is Verdict(verdict)
