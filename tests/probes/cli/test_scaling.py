"""`seatrial scaling`: a ladder told again from a run's evidence, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from probes.check.recorder import Recorder
from probes.cli.main import main
from probes.findings import finding
from probes.scaling.judge import judge_ladder, record_figures, record_prediction
from reports.measurement import Measurement, Verdict
from reports.run_folder.integrity import load
from reports.run_folder.store import Store
from scaling.loss.explain import SlowLink
from scaling.loss.ladder_result import Ladder, load_ladder
from scaling.loss.predict import communication_model, step_seconds
from tests.support.run_folders import replace_evidence
from tests.support.simulated_ladder import agreed, ladder, with_rung
from tests.support.simulated_steps import longer

STRONG = {"nodes": [2, 4], "efficiency": [1.0, 0.75], "tokens_per_gpu_step": [16384, 8192]}
AT_FOUR = "4 nodes, 8,192 tokens per GPU and step"


def save(
    folder: Path,
    found: Ladder | None,
    low: float = 0.9,
    marginal: float | None = None,
    seen: Callable[[Recorder], None] = lambda ledger: None,
) -> Path:
    """A run whose SCALING probe saw this ladder, or none, after it `seen` something else."""
    store, lab = Store(folder), agreed(low, marginal)
    store.start(
        lab.text, id="run", started="2026-01-01T00:00:00Z", command="x", tier="quick",
        contract=lab.facts().model_dump(mode="json"),
    )  # fmt: skip
    ledger = Recorder(store, lab, "p", "SCALING", "claim", "again", lambda words: None)
    limits = partial(lab.limit, "SCALING")
    seen(ledger)
    if found:
        explained = judge_ladder(found, limits, ledger)
        outlook = record_prediction(found, ledger)
        record_figures(found, explained, limits, ledger, STRONG, outlook)
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
    assert load_ladder(json.loads(json.dumps(found.to_dict()))) == found


def test_runs_that_differ_widen_the_interval_and_come_back() -> None:
    once = ladder()
    one, two, four = (step_seconds(rung.judged_steps) for rung in once.rungs)
    slower = [[seconds * share for seconds in four] for share in (1.1, 0.9)]
    others = [[one, one], [two, two], slower]
    rungs = [replace(a, other_runs=b) for a, b in zip(once.rungs, others, strict=True)]
    thrice = replace(once, rungs=rungs)
    low, high = once.intervals[4]
    least, most = thrice.intervals[4]
    assert least < low < high < most
    assert most - least > 2 * (high - low)
    assert load_ladder(json.loads(json.dumps(thrice.to_dict()))) == thrice


def test_the_probe_says_of_each_rung_what_it_lost(run: Path) -> None:
    coverage = load(run).results[0].coverage
    assert "at 4 nodes" in coverage
    assert "waiting for node" in coverage
    assert "predicted, not measured: efficiency" in coverage
    assert "1024 nodes, 8,192 tokens per GPU and step" in coverage


def figures(run: Path, name: str) -> dict[str, Measurement]:
    """By the rung they are of."""
    (result,) = load(run).results
    return {one.subject: one for one in result.measurements if one.name == name}


def codes(run: Path) -> list[str]:
    """Of all findings."""
    return [one.code for result in load(run).results for one in result.findings]


def test_a_rung_in_the_marginal_band_is_told_why(tmp_path: Path) -> None:
    """Too few tokens cost what passes the limit, and not what would have passed well."""
    found = ladder(tokens=0.2)
    efficiency = found.efficiency(found.rungs[-1])
    band = efficiency - 0.05, efficiency + 0.05
    assert "SCALE-TOKENS" in codes(save(tmp_path / "marginal", found, *band))
    assert not codes(save(tmp_path / "passes", found, efficiency - 0.05))


def test_a_link_that_is_slow_or_bytes_astray_are_found_at_their_nodes(tmp_path: Path) -> None:
    found = ladder(link=0.3)
    place = SlowLink(("node3",), "the links of node3 are slow both ways")
    strays = dict.fromkeys(found.rungs[-1].nodes, "eth0")
    for code, nodes, seen in (
        ("SCALE-LINK", ["node3"], replace(found, slow_links=[place])),
        ("SCALE-NETWORK", [*strays], with_rung(found, 2, off_fabric=strays)),
    ):
        run = save(tmp_path / code, seen)
        (result,) = load(run).results
        (one,) = [
            one for one in result.findings if one.code == code and "at 4 nodes" in one.statement
        ]
        assert one.suspects == nodes
        assert f"  {code} {', '.join(nodes)}: " in said("report", run, "--limit", "0.9").output


def test_what_a_rung_is_compared_with_is_told_beside_it(run: Path) -> None:
    for name, value in (("communication_added_in_replay", 0.04), ("modelled_communication", 0.02)):
        assert figures(run, name)["4 nodes"].value == pytest.approx(value)
    spread = figures(run, "efficiency")[AT_FOUR].spread
    assert 0 < (spread or 0) < 0.05


def test_a_segment_that_every_rung_lacks_shows(tmp_path: Path) -> None:
    found = ladder()
    for rung in found.rungs:
        for steps in rung.steps:
            for step in steps:
                step.segments["backward"] *= 0.9
    seen = figures(save(tmp_path / "run", found), "residual")
    assert {on: one.verdict for on, one in seen.items()} == dict.fromkeys(seen, Verdict.FAIL)
    assert {*seen} == {"1 node", "2 nodes", "4 nodes"}


@pytest.mark.parametrize(
    ("wall", "verdict"), [(1.005, "PASS"), (1.03, "FAIL"), (0.97, "FAIL"), (None, "UNPROVEN")]
)
def test_a_rung_whose_steps_do_not_fill_the_hosts_window_shows(
    tmp_path: Path, wall: float | None, verdict: str
) -> None:
    """Also where each step is the sum of its terms, and where one rank's is not."""
    found = ladder()
    late = [[replace(s, wall=wall and wall * s.seconds) for s in found.rungs[1].steps[0]]]
    odd = dataclasses.replace(found.rungs[1], steps=[*late, *found.rungs[1].steps[1:]])
    rungs = [found.rungs[0], odd, found.rungs[2]]
    run = save(tmp_path / "run", dataclasses.replace(found, rungs=rungs, base_repeats=[]))
    seen = {on: one.verdict.name for on, one in figures(run, "wall_gap").items() if one.verdict}
    assert seen == {"1 node": "PASS", "2 nodes": verdict, "4 nodes": "PASS"}
    assert figures(run, "residual")["2 nodes"].verdict is Verdict.PASS


def test_what_one_rung_did_wrong_is_told_of_it_alone(tmp_path: Path) -> None:
    found = ladder()
    wrong = dataclasses.replace(found.rungs[1], non_finite=3, disagreements=("step 3: apart",))
    rungs = [found.rungs[0], wrong]
    run = save(tmp_path / "run", dataclasses.replace(found, rungs=rungs, base_repeats=[]))
    for name, value in (("non_finite", 3), ("disagreements", 1)):
        seen = figures(run, name)
        assert {on: one.value for on, one in seen.items()} == {"1 node": 0, "2 nodes": value}
        assert seen["2 nodes"].verdict is Verdict.FAIL
    codes = {one.code: one.statement for one in load(run).results[0].findings}
    assert codes["SCALE-RANKS-DISAGREE"] == "at 2 nodes, in step 3: apart"
    assert codes["SCALE-NAN"].endswith(
        "at 2 nodes, number of NaN or infinite losses, over all ranks: 3"
    )


def test_many_nodes_that_are_far_better_than_one_prove_nothing(tmp_path: Path) -> None:
    found = ladder()
    slow = [[longer(step, "forward", 1.0) for step in steps] for steps in found.rungs[0].steps]
    disturbed = dataclasses.replace(found.rungs[0], steps=slow)
    ladder_ = dataclasses.replace(found, rungs=[disturbed, *found.rungs[1:]])
    seen = figures(save(tmp_path / "run", ladder_), "efficiency")[AT_FOUR]
    assert seen.verdict is Verdict.UNPROVEN
    assert "a step took longer on one node than on several" in seen.note


def test_waiting_that_cannot_be_told_from_compute_is_not_called_none(run: Path) -> None:
    assert (
        "waiting for collectives: this run cannot separate the wait"
        in load(run).results[0].coverage
    )


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
    assert "2 nodes  efficiency 9" in done.output
    assert "SCALE-DATA node" in done.output
    assert done.output.count("% of a step is lost") == 2
    assert done.output.count(" within one run)") == 2


def named(lines: str) -> list[tuple[str, str]]:
    """(rung, code) of each cause that `report` printed."""
    found, rung = [], ""
    for line in lines.splitlines():
        if " nodes  efficiency " in line:
            rung = line.split("  ")[0]
        elif line.startswith("  SCALE-"):
            found.append((rung, line.split()[0]))
    return found


@pytest.mark.parametrize("low", [0.99, 0.85, 0.2], ids=["all fail", "the largest fails", "pass"])
def test_report_accuses_as_the_page_does(tmp_path: Path, low: float) -> None:
    """By the run's own limit, and no rung that passes it."""
    run = save(tmp_path / "run", ladder(data=0.1, jitter=0.1), low)
    done = said("report", run)
    (result,) = load(run).results
    page = [
        (one.statement[3:10], one.code) for one in result.findings
        if one.code not in ("SCALE-EFFICIENCY", "SCALE-STRAGGLER")
    ]  # fmt: skip
    assert sorted(named(done.output)) == sorted(page)
    assert bool(page) == (low > 0.5)
    verdicts = {on[:7]: one.verdict for on, one in figures(run, "efficiency").items()}
    told = [line for line in done.output.splitlines() if " nodes  efficiency " in line]
    assert {line[:7]: Verdict(line.rsplit(": ")[-1]) for line in told} == verdicts


def test_a_run_that_passes_names_causes_only_where_asked(tmp_path: Path) -> None:
    run = save(tmp_path / "run", ladder(data=0.1), 0.2)
    assert not named(said("report", run).output)
    assert ("4 nodes", "SCALE-DATA") in named(said("report", run, "--limit", "0.99").output)
    assert said("report", run, "--limit", "0").exit_code == 4


def test_a_limit_of_nothing_is_none(tmp_path: Path) -> None:
    """Every efficiency passes it, and explained with it the parts are as without."""
    run = save(tmp_path / "run", ladder(tokens=0.2), 1e-6)
    output = said("report", run).output
    assert not named(output)
    for told in (output, load(run).results[0].coverage):
        assert "waiting for collectives (as long as without training)" in told


def test_report_tells_what_made_a_run_wrong(tmp_path: Path) -> None:
    found = ladder()
    bad = replace(found.rungs[2], non_finite=3, disagreements=("step 3: apart",))
    without = replace(found, rungs=[found.rungs[0], bad])

    def failed(ledger: Recorder) -> None:
        ledger.explain(finding("SCALE-RUNG-FAILED", "2 nodes: rank 1 died"))

    output = said("report", save(tmp_path / "run", without, 0.2, seen=failed)).output
    for words in (
        "SCALE-RUNG-FAILED 2 nodes: rank 1 died",
        "SCALE-NAN at 4 nodes, number of NaN or infinite losses, over all ranks: 3",
        "SCALE-RANKS-DISAGREE at 4 nodes, in step 3: apart",
    ):
        assert output.count(words) == 1


def test_a_run_without_a_ladder_is_refused_with_what_failed(tmp_path: Path) -> None:
    def failed(ledger: Recorder) -> None:
        ledger.explain(finding("SCALE-RUNG-FAILED", "1 node: rank 1 died"))

    done = said("report", save(tmp_path / "run", None, seen=failed))
    assert done.exit_code == 4
    assert "has no efficiency of SCALING; 1 node: rank 1 died. Give a run that" in done.output
    assert len(done.output.splitlines()) == 1


def test_report_tells_who_holds_the_others_up(tmp_path: Path) -> None:
    output = said("report", save(tmp_path / "run", ladder(slow_node=0.5), 0.2)).output
    assert "alone takes" in output
    assert "SCALE-STRAGGLER a step on node" in output


def test_one_rung_is_nothing_to_compare(tmp_path: Path) -> None:
    found = ladder()
    run = save(tmp_path / "run", replace(found, rungs=found.rungs[:1]))
    assert "only one node count was measured" in said("report", run).output
    assert {*figures(run, "efficiency")} == {"1 node, 8,192 tokens per GPU and step"}


def test_report_and_figure_have_the_same_work_on_more_nodes(tmp_path: Path) -> None:
    def informed(ledger: Recorder) -> None:
        ledger.note("strong_efficiency", 0.75, "ratio", on=AT_FOUR)

    run = save(tmp_path / "run", ladder(), seen=informed)
    assert f"strong efficiency on {AT_FOUR}: 75 %" in said("report", run).output
    assert load(run).results[0].series["efficiency"]["strong"] == STRONG


def test_predict_gives_bands_and_assumptions(run: Path) -> None:
    done = said("predict", run, "--nodes", "64", "--nodes", "16")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "predicted, not measured:"
    assert [line.split()[0] for line in lines[1:3]] == ["16", "64"]
    assert all(line.endswith("8,192 tokens per GPU and step") for line in lines[1:3])
    assert any("weak scaling" in line for line in lines)


def test_one_nodes_late_data_are_not_taken_for_communication() -> None:
    sound, late = ladder().forecast(), ladder(data=0.5).forecast()
    assert late.share == pytest.approx(sound.share, rel=0.2)
    assert late.beside == pytest.approx(0.5, rel=0.1)
    for one, other in zip(sound.predictions, late.predictions, strict=True):
        assert other.efficiency == pytest.approx(1 / (1 / one.efficiency + 0.5), rel=0.1)
    assert "lost to causes other than communication (SCALE-DATA node" in late.assumptions[-1]


def test_what_ranks_of_one_node_say_to_each_other_is_no_more_said_by_more_nodes() -> None:
    """A step of one node has that already: the model grows from there."""
    found = ladder()
    several = with_rung(found, 0, alpha_beta_s=0.005)
    for nodes, more in zip((2, 4), (0.01, 0.02), strict=True):
        assert several.fit_growth[nodes] == pytest.approx(more - 0.005)
    per_step = communication_model(found.calls, found.fits, 4)
    unfitted = [replace(rung, alpha_beta_s=None) for rung in found.rungs]
    small = with_rung(replace(found, rungs=unfitted), 0, alpha_beta_s=per_step(4) / 4)
    assert small.forecast().share > 1.2 * found.forecast().share


def test_communication_is_told_where_the_clock_has_names_for_it() -> None:
    """On GPUs its parts are named by their collectives."""
    found = ladder(data=0.5)
    waits = {"forward": {"all-gather": 0.01}, "backward": {"reduce-scatter": 0.02}}
    named = [
        replace(rung, steps=[[replace(one, exposed=waits) for one in mine] for mine in rung.steps])
        for rung in found.rungs[1:]
    ]
    told = replace(found, rungs=[found.rungs[0], *named])
    assert "waiting for all-gather" in str(told.explanations()[-1])
    assert told.forecast().share == pytest.approx(found.forecast().share)


def test_without_timed_collectives_nothing_is_predicted(tmp_path: Path) -> None:
    found = ladder()
    rungs = [replace(rung, replay_s=None, agreed_s=None) for rung in found.rungs]
    untimed = Ladder(rungs=rungs, calls=found.calls, fits={}, base_repeats=[])
    done = said("predict", save(tmp_path / "run", untimed))
    assert done.exit_code == 4
    assert "this run timed none" in done.output


@pytest.mark.parametrize("command", ["report", "predict"])
def test_what_is_no_run_is_refused_with_a_sentence(tmp_path: Path, command: str) -> None:
    done = said(command, tmp_path)
    assert done.exit_code == 4
    assert len(done.output.splitlines()) == 1


def test_a_ladder_that_is_damaged_is_refused_with_a_sentence(tmp_path: Path) -> None:
    run = save(tmp_path / "run", ladder())
    replace_evidence(run, "ladder.json", b'{"rungs": [{}]}')
    done = said("report", run)
    assert done.exit_code == 4
    assert "ladder.json cannot be read" in done.output
    (run / "evidence" / "ladder.json").write_text("{}")
    assert "does not verify" in said("report", run).output
