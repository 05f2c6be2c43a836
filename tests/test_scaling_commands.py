"""`seatrial scaling`: a ladder told again from a run's evidence, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from probes import test_scaling
from probes.cli import main
from probes.contract import load as contract
from probes.ledger import Ledger
from probes.test_scaling import draw, foresee, judge
from reference_trainer.gang import GangError
from reports.record import Measurement, Verdict
from reports.store import Store, load
from scaling.alphabeta import Fit
from scaling.ladder import Rung
from scaling.predict import Call, step_seconds
from scaling.retold import Ladder, retold
from tests.simulated_steps import Cluster, longer

FITS = {"all_gather": Fit(50.0, 0.1, 0.02, 6)}
CALLS = [Call("all_gather", 200_000, 4)]


def ladder(**planted: Any) -> Ladder:
    """Rungs of 1, 2 and 4 simulated nodes."""
    whole = Cluster(nodes=4, steps=24, seed=3, **planted)
    two = Cluster(nodes=2, steps=24, seed=4).largest()
    rungs = [whole.base(), two, whole.largest()]
    talk = {1: 0.0, 2: whole.predicted / 2, 4: whole.predicted}
    return Ladder(rungs=rungs, talk=talk, calls=CALLS, fits=FITS)


def save(folder: Path, found: Ladder, limit: float = 0.9) -> Path:
    """A run whose SCALING probe saw this ladder."""
    store, lab = Store(folder), contract("lab")
    store.event(
        "run_started", id="run", started="2026-01-01T00:00:00Z", command="x", tier="quick",
        contract=lab.facts().model_dump(mode="json"),
    )  # fmt: skip
    ledger = Ledger(store, lab, "p", "SCALING", "claim", "again", lambda words: None)
    limits = {"efficiency": SimpleNamespace(low=limit, judge=lambda value: None),
              "straggler": lab.limit("SCALING", "straggler")}.__getitem__  # fmt: skip
    explained = judge(found, limits, ledger)
    foresee(found, ledger)
    draw(found, explained, limits, ledger)
    ledger.finish("finished", 1.0)
    store.event("run_finished", finished="2026-01-01T00:01:00Z", state="finished")
    store.save()
    store.close()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("runs") / "run", ladder(data=0.2))


def said(*words: object) -> Result:
    return CliRunner().invoke(main, ["scaling", *map(str, words)])


def test_a_ladder_comes_back_as_it_was_told() -> None:
    found = ladder()
    assert retold(json.loads(json.dumps(found.told()))) == found


def test_runs_that_differ_widen_the_interval_and_come_back() -> None:
    once = ladder()
    one, two, four = (step_seconds(rung.judged) for rung in once.rungs)
    slower = [[seconds * share for seconds in four] for share in (1.1, 0.9)]
    thrice = replace(once, again={1: [one, one], 2: [two, two], 4: slower})
    low, high = once.intervals[4]
    least, most = thrice.intervals[4]
    assert least < low < high < most
    assert most - least > 2 * (high - low)
    assert retold(json.loads(json.dumps(thrice.told()))) == thrice


def test_the_probe_says_of_each_rung_what_it_lost(run: Path) -> None:
    coverage = load(run).results[0].coverage
    assert "at 4 nodes" in coverage
    assert "waiting for node" in coverage
    assert "predicted, not measured: efficiency" in coverage


def figures(run: Path, name: str) -> dict[str, Measurement]:
    """By the rung they are of."""
    (result,) = load(run).results
    return {one.subject: one for one in result.measurements if one.name == name}


def test_a_segment_that_every_rung_lacks_shows(tmp_path: Path) -> None:
    found = ladder()
    for rung in found.rungs:
        for steps in rung.steps:
            for step in steps:
                step.segments["backward"] *= 0.9
    seen = figures(save(tmp_path / "run", found), "residual")
    assert {on: one.verdict for on, one in seen.items()} == dict.fromkeys(seen, Verdict.FAIL)
    assert {*seen} == {"1 node", "2 nodes", "4 nodes"}


def test_what_one_rung_did_wrong_is_told_of_it_alone(tmp_path: Path) -> None:
    found = ladder()
    wrong = dataclasses.replace(found.rungs[1], non_finite=3, disagreements=("step 3: apart",))
    run = save(tmp_path / "run", dataclasses.replace(found, rungs=[found.rungs[0], wrong]))
    for name, value in (("non_finite", 3), ("disagreements", 1)):
        seen = figures(run, name)
        assert {on: one.value for on, one in seen.items()} == {"1 node": 0, "2 nodes": value}
        assert seen["2 nodes"].verdict is Verdict.FAIL
    codes = {one.code: one.statement for one in load(run).results[0].findings}
    assert codes["SCALE-APART"] == "at 2 nodes in step 3: apart"
    assert codes["SCALE-NAN"].startswith("at 2 nodes 3 losses")


def test_many_nodes_that_are_far_better_than_one_prove_nothing(tmp_path: Path) -> None:
    found = ladder()
    slow = [[longer(step, "forward", 1.0) for step in steps] for steps in found.rungs[0].steps]
    disturbed = dataclasses.replace(found.rungs[0], steps=slow)
    ladder_ = dataclasses.replace(found, rungs=[disturbed, *found.rungs[1:]])
    seen = figures(save(tmp_path / "run", ladder_), "efficiency")["4 nodes"]
    assert seen.verdict is Verdict.UNPROVEN
    assert "one node was slower alone" in seen.note


def test_waiting_that_cannot_be_told_from_compute_is_not_called_none(run: Path) -> None:
    assert "exposed communication: not separable here" in load(run).results[0].coverage


def test_no_node_is_accused_for_the_beginning_of_its_name(tmp_path: Path) -> None:
    found = ladder(data=0.2)
    named = {"node0": "node1", "node1": "node11", "node2": "node111", "node3": "node1111"}
    rungs = [
        dataclasses.replace(rung, nodes=[named[name] for name in rung.nodes])
        for rung in found.rungs
    ]
    run = save(tmp_path / "run", dataclasses.replace(found, rungs=rungs))
    late = [one for one in load(run).results[0].findings if one.code == "SCALE-DATA"]
    assert late
    assert all(len(one.suspects) == 1 for one in late)


def test_report_tells_the_rungs_and_names_the_cause(run: Path) -> None:
    done = said("report", run, "--limit", "0.9")
    assert done.exit_code == 0, done.output
    assert "2 nodes  efficiency 0." in done.output
    assert "SCALE-DATA node" in done.output
    assert done.output.count("% is lost") == 2


def test_predict_gives_bands_and_assumptions(run: Path) -> None:
    done = said("predict", run, "--nodes", "64", "--nodes", "16")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "predicted, not measured:"
    assert [line.split()[0] for line in lines[1:3]] == ["16", "64"]
    assert any("weak scaling" in line for line in lines)


def test_without_timed_collectives_nothing_is_predicted(tmp_path: Path) -> None:
    found = ladder()
    untimed = Ladder(rungs=found.rungs, talk={}, calls=found.calls, fits={})
    done = said("predict", save(tmp_path / "run", untimed))
    assert done.exit_code == 4
    assert "none were timed on this ladder" in done.output


@pytest.mark.parametrize("command", ["report", "predict"])
def test_what_is_no_run_is_refused_with_a_sentence(tmp_path: Path, command: str) -> None:
    done = said(command, tmp_path)
    assert done.exit_code == 4
    assert len(done.output.splitlines()) == 1


def test_a_ladder_that_is_damaged_is_refused_with_a_sentence(tmp_path: Path) -> None:
    run = save(tmp_path / "run", ladder())
    (run / "evidence" / "ladder.json").write_text('{"rungs": [{}]}')
    done = said("report", run)
    assert done.exit_code == 4
    assert "ladder.json cannot be read" in done.output


class Notes:
    """A ledger that only remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.found: list[str] = []

    def __call__(self, name: str, value: Any, **more: Any) -> None:
        self.seen.append((name, value, more.get("on")))

    def note(self, name: str, value: Any, unit: str, on: str = "") -> None:
        self.seen.append((name, value, on))

    def explain(self, *found: Any) -> None:
        self.found += [one.code for one in found]

    def progress(self, _: str) -> None:
        pass


def climbs(monkeypatch: pytest.MonkeyPatch, *ladders: Any) -> None:
    """What each further climb finds: a rung, or an error."""
    found = iter([rung for rungs in ladders for rung in rungs])

    def climb(*_: Any) -> Any:
        one = next(found)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(test_scaling, "climb", climb)


def slower(found: Ladder, share: float) -> list[Rung]:
    """Its rungs; the largest took so much longer."""
    *below, top = found.rungs
    steps = [[replace(one, seconds=one.seconds * share) for one in mine] for mine in top.steps]
    return [*below, replace(top, steps=steps)]


def test_of_several_runs_the_median_one_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    once, notes = ladder(), Notes()
    usual, slow, slowest = [*once.rungs], slower(once, 1.2), slower(once, 1.5)
    climbs(monkeypatch, slow, slowest)
    ladders, whole = test_scaling.repeat(None, {}, usual, None, 2, notes)
    assert whole
    assert ladders == [usual, slow, slowest]
    chosen, again = test_scaling.typical(ladders, notes)
    assert chosen == slow
    assert {count: len(runs) for count, runs in again.items()} == {1: 2, 2: 2, 4: 2}
    told = [one for one in notes.seen if one[0] == "efficiency_again"]
    assert [on for _, _, on in told] == ["4 nodes, other run 1", "4 nodes, other run 2"]
    assert any(one[2] == "2 nodes, other run 2" for one in notes.seen)  # its losses are looked at
    assert test_scaling.typical([usual], notes) == (usual, {})


def test_a_further_run_that_fails_is_told_and_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    once, notes = ladder(), Notes()
    climbs(monkeypatch, [once.rungs[0], GangError("ranks [3] died")])
    ladders, whole = test_scaling.repeat(None, {}, [*once.rungs], None, 2, notes)
    assert not whole
    assert ladders == [[*once.rungs]]
    assert notes.seen == [("efficiency", None, "run 2")]
    assert notes.found == ["SCALE-RUNG"]
