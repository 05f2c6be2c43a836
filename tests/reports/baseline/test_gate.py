"""The gate against an earlier run: what is worse fails; what cannot be compared never passes."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import Contract, parse
from probes.session.rejudge import check_baseline, read_summary
from reports.acceptance import AcceptanceSummary, load_summary
from reports.frames.history import why_unsound
from reports.measurement import Limit, Measurement, Verdict
from reports.regressions import BaselineValue, find_regressions, values_of
from reports.run_folder.event_log import UnreadableRun
from reports.text import acceptance_table
from tests.support.paths import REPO
from tests.support.run_edits import drop_event, edit_events
from tests.support.sound_run import write_sound_run

LAB = (REPO / "probes" / "contract" / "contracts" / "lab.toml").read_text()


def contract(terms: str = 'busbw = "2 %"') -> Contract:
    return parse(f"{LAB}\n[baseline]\n{terms}\n".encode(), "lab.toml")


def run(folder: Path, busbw: float, spread: float = 0.0, **more: Any) -> AcceptanceSummary:
    more = {"contract": contract(), **more}
    write_sound_run(folder, values={"busbw": (busbw, spread)}, **more)
    summary = load_summary(folder)
    assert read_summary(folder).exit_code == summary.exit_code  # recomputed from the contract
    failed = json.loads((folder / "ctrf.json").read_text())["results"]["summary"]["failed"]
    assert failed == {0: 0, 20: 1, 1: 2}[summary.exit_code]  # the decision, and the measure
    return summary


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The first run of a contract with a gate: nothing to compare with."""
    run(tmp_path / "first", 0.120, 0.0005)
    return tmp_path / "first"


def sentences(summary: AcceptanceSummary) -> list[str]:
    """What the rows say of the gate."""
    return [row.problem for row in summary.rows if "[baseline]" in row.problem]


def test_the_first_run_proves_nothing_and_can_be_the_next_ones_baseline(
    first: Path, tmp_path: Path
) -> None:
    summary = load_summary(first)
    assert summary.exit_code == 20
    assert sentences(summary) == [
        "busbw was not compared with an earlier run: no run was given with --baseline."
        " Expected: at most 2 % worse (agreed in the contract's [baseline])"
    ]
    assert summary.record.baseline_text == ""
    second = run(tmp_path / "second", 0.120, 0.0005, baseline=first)
    assert (second.exit_code, sentences(second)) == (0, [])
    told = "first (1 measure compared: none is worse than the contract allows)"
    assert second.record.baseline_text == told
    assert f"<span>baseline <b>{told}</b></span>" in (tmp_path / "second/report.html").read_text()
    assert f"baseline  {told}" in acceptance_table(second, 120)


@pytest.mark.parametrize(
    ("busbw", "spread", "code"),
    [
        (0.120, 0.0, 0),
        (0.130, 0.0, 0),  # better
        (0.1177, 0.0, 0),  # within 2 %
        (0.1170, 0.0, 1),  # 2.5 % worse, beyond the noise of the first run
        (0.1170, 0.005, 20),  # the noise is larger than the change: it cannot be told
        (0.1010, 0.005, 1),
    ],
)
def test_a_measure_is_held_to_the_earlier_value(
    first: Path, tmp_path: Path, busbw: float, spread: float, code: int
) -> None:
    summary = run(tmp_path / "second", busbw, spread, baseline=first)
    assert summary.exit_code == code, summary.reasons
    row = next(one for one in summary.rows if one.criterion.id == "FABRIC")
    assert row.verdict is {0: Verdict.PASS, 1: Verdict.FAIL, 20: Verdict.UNPROVEN}[code]
    assert ("worse than 0.12 GB/s in run first" in row.problem) == (code != 0)
    page = (tmp_path / "second" / "report.html").read_text()
    assert ("worse than 0.12 GB/s in run first" in page) == (code != 0)
    assert ("<code>seatrial compare BASELINE runs/second</code>" in page) == (code != 0)
    assert ("none is worse" in summary.record.baseline_text) == (code == 0)


def test_the_sentence_says_what_was_expected_and_why(first: Path, tmp_path: Path) -> None:
    (sentence,) = sentences(run(tmp_path / "second", 0.101, baseline=first))
    assert sentence == (
        "busbw on cluster: 0.101 GB/s, 15.8 % worse than 0.12 GB/s in run first."
        " Expected: at most 2 % worse (agreed in the contract's [baseline])"
    )


def test_less_is_better_where_the_limit_is_above(tmp_path: Path) -> None:
    gate = contract('GANG.placement_delay = "10 %"')
    for name, value, code in (("a", 1.0, 20), ("b", 1.05, 0), ("c", 1.2, 1), ("d", 0.5, 0)):
        write_sound_run(
            tmp_path / name,
            contract=gate,
            values={"placement_delay": (value, 0.01)},
            baseline=tmp_path / "a" if name != "a" else None,
        )
        assert load_summary(tmp_path / name).exit_code == code, name


BROKEN: dict[str, dict[str, Any]] = {
    "failed": {"partially_held": 1},
    "has 3 nodes, but this run has 4": {"nodes_named": ["node0", "node1", "node2"]},
    "did not finish (state: interrupted)": {"end": False},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_an_unsound_run_is_no_baseline(reason: str, tmp_path: Path) -> None:
    write_sound_run(tmp_path / "old", contract=contract(), **BROKEN[reason])
    summary = run(tmp_path / "now", 0.120, baseline=tmp_path / "old")
    assert summary.exit_code == 20
    assert f"run old {reason}" in sentences(summary)[0]


def test_a_changed_run_is_no_baseline(first: Path, tmp_path: Path) -> None:
    events = first / "events.jsonl"
    events.write_text(events.read_text().replace("0.12", "0.09"))
    summary = run(tmp_path / "now", 0.120, baseline=first)
    assert summary.exit_code == 20
    assert "run first does not verify" in sentences(summary)[0]


def test_the_newest_sound_run_of_a_folder_is_chosen(first: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.move(first, folder / "first")
    write_sound_run(folder / "failed", contract=contract(), partially_held=1)
    (folder / "broken").mkdir()
    (folder / "broken" / "events.jsonl").write_text("no event\n")
    assert run(tmp_path / "second", 0.101, baseline=folder).exit_code == 1
    summary = run(tmp_path / "empty" / "now", 0.12, baseline=tmp_path / "empty")
    assert f"no earlier run of cluster node0 in {tmp_path / 'empty'}" in sentences(summary)[0]
    shutil.rmtree(folder / "first")
    summary = run(tmp_path / "third", 0.120, baseline=folder)
    assert "run failed failed" in sentences(summary)[0]
    assert summary.exit_code == 20


def test_small_steps_do_not_add_up_unseen(tmp_path: Path) -> None:
    """Each run is held to the newest sound run, and to the first that was accepted."""
    folder, codes, busbw = tmp_path / "runs", [], 0.124
    folder.mkdir()
    # It has nothing to compare with: UNPROVEN.
    run(folder / "run00", busbw, started="2026-11-01T00:00:00.000Z")
    for number in range(1, 5):
        busbw *= 0.99
        name, started = f"run{number:02}", f"2026-11-{number + 1:02}T00:00:00.000Z"
        codes.append(run(folder / name, busbw, baseline=folder, started=started).exit_code)
    assert codes == [0, 0, 0, 1]
    (sentence,) = sentences(load_summary(folder / "run04"))
    assert "2.97 % worse than 0.123 GB/s in run run01" in sentence


def test_a_run_of_another_cluster_is_no_baseline(first: Path) -> None:
    before = load_summary(first)
    now = before.record.model_copy(update={"id": "now"})
    assert why_unsound(before, now) == ""
    now.cluster["name"] = "other"
    assert why_unsound(load_summary(first), now) == (
        "run first is of cluster node0, but this run is of other"
    )


@pytest.mark.parametrize(("name", "is_refused"), [("lab", False), ("atlas", True)])
def test_a_run_by_another_contract_is_refused_before_the_run(
    first: Path, name: str, is_refused: bool
) -> None:
    agreed = contract().model_copy(update={"name": name})
    said = r"a run by contract lab\. Expected: a run by atlas"
    with pytest.raises(UnreadableRun, match=said) if is_refused else nullcontext():
        check_baseline(first, agreed)


def test_who_takes_the_comparison_out_of_a_run_proves_nothing(first: Path, tmp_path: Path) -> None:
    run(tmp_path / "second", 0.101, baseline=first)
    edit_events(drop_event("run_updated"))(tmp_path / "second")
    assert load_summary(tmp_path / "second").exit_code in (4, 20)


def measured(subject: str, value: float | None, probe: str = "p", criterion: str = "HOSTS") -> Any:
    one = Measurement(
        name="rate", value=value, unit="GB/s", subject=subject, limit=Limit(low=1, because="agreed")
    )
    return type("Result", (), {"criterion": criterion, "probe": probe, "measurements": [one]})


def before(
    subject: str, value: float | None, probe: str = "p", unit: str = "GB/s"
) -> BaselineValue:
    return BaselineValue(
        criterion="HOSTS", probe=probe, measure="rate", subject=subject, value=value, unit=unit
    )


def judge(old: list[BaselineValue], new: list[Any], problem: str = "") -> list[tuple[str, str]]:
    record: Any = SimpleNamespace(
        contract=SimpleNamespace(baseline={"HOSTS.rate": 5.0}),
        baseline="old", baseline_problem=problem, baseline_values=old,
        results_of=lambda criterion: [one for one in new if one.criterion == criterion],
    )  # fmt: skip
    found = find_regressions(record)
    return [(one.verdict.value, one.sentence.partition(". Expected")[0]) for one in found]


def test_each_node_is_compared_with_itself() -> None:
    old = [before("a", 10), before("b", 5)]
    assert judge(old, [measured("a", 10), measured("b", 5)]) == []
    assert judge(old, [measured("a", 5), measured("b", 10)]) == [
        ("FAIL", "rate on a: 5 GB/s, 50 % worse than 10 GB/s in run old")
    ]


def test_a_node_with_another_name_is_compared_with_the_one_that_left() -> None:
    old = [before("a", 10), before("b", 9)]
    assert judge(old, [measured("a", 10), measured("c", 9)]) == []
    assert judge(old, [measured("a", 10), measured("c", 5)]) == [
        ("FAIL", "rate on c (b in run old): 5 GB/s, 44.4 % worse than 9 GB/s in run old")
    ]
    assert judge(old, [measured("c", 10), measured("d", 2)])[0][0] == "FAIL"


def test_a_measure_of_another_criterion_is_not_compared() -> None:
    old = [before("a", 10)]
    other = measured("a", 1, criterion="FABRIC")
    assert judge(old, [measured("a", 10), other]) == []
    assert judge(old, [other]) == [
        ("UNPROVEN", "rate was not compared with an earlier run: this run did not measure it")
    ]


def test_of_an_earlier_run_only_the_named_measures_are_kept_and_compared() -> None:
    results = [measured("a", 10), measured("b", 1, criterion="FABRIC")]
    (kept,) = values_of(results, {"HOSTS.rate": 5.0})
    assert (kept.criterion, kept.subject, kept.value) == ("HOSTS", "a", 10)
    other = before("b", 1).model_copy(update={"criterion": "FABRIC"})
    assert judge([before("a", 10), other], [measured("a", 10)]) == []


def test_two_probes_are_not_mixed() -> None:
    old = [before("cluster", 10, "inside"), before("cluster", 2, "between")]
    new = [measured("cluster", 5, "inside"), measured("cluster", 2, "between")]
    assert [verdict for verdict, _ in judge(old, new)] == ["FAIL"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ([], [measured("a", 1)], "run old did not measure it"),
        ([before("a", 1)], [], "this run did not measure it"),
        ([before("a", 1)], [measured("a", None)], "1 GB/s in run old, not measured in this run"),
        ([before("a", None)], [measured("a", 1)], "(not measured in run old, 1 GB/s in this run"),
        ([before("a", 1, unit="MB/s")], [measured("a", 1)], "1 MB/s in run old, 1 GB/s in this"),
        (
            [before("a", 1), before("b", 1)],
            [measured("a", 1)],
            "b: measured in run old, but not in this run",
        ),
        ([before("a", 1)], [measured("a", float("nan"))], "not measured in this run"),
        (
            [before("a", 1)],
            [measured("a", 1), measured("a", 1, "q")],
            "a: measured in this run, but not in",
        ),
    ],
)
def test_what_cannot_be_compared_is_unproven(old: Any, new: Any, words: str) -> None:
    ((verdict, sentence),) = judge(old, new)
    assert verdict == "UNPROVEN"
    assert words in sentence


def test_a_value_without_a_direction_is_unproven() -> None:
    one = measured("a", 1)
    one.measurements[0] = one.measurements[0].model_copy(update={"limit": None})
    assert judge([before("a", 1)], [one])[0][0] == "UNPROVEN"


def test_from_nothing_no_share_is_taken() -> None:
    assert judge([before("a", 0)], [measured("a", 0)]) == []
    assert judge([before("a", 0)], [measured("a", -1)])[0][0] == "FAIL"


def test_a_run_that_was_worse_is_no_baseline(first: Path, tmp_path: Path) -> None:
    """Otherwise what the noise hid in one run would be allowed to the next."""
    noisy = run(tmp_path / "noisy", 0.105, 0.02, baseline=first)
    assert noisy.exit_code == 20
    after = run(tmp_path / "after", 0.105, baseline=tmp_path / "noisy")
    assert after.exit_code == 20
    assert "run noisy is worse than its own baseline" in sentences(after)[0]


def test_a_record_alone_is_no_baseline(first: Path, tmp_path: Path) -> None:
    shutil.copy(first / "record.json", tmp_path / "record.json")
    summary = run(tmp_path / "now", 0.120, baseline=tmp_path / "record.json")
    assert summary.exit_code == 20
    assert "run first cannot be verified" in sentences(summary)[0]


def test_a_node_that_is_missing_is_not_hidden_by_one_that_is_new() -> None:
    old = [before("a", 10), before("b", 10), before("c", 10)]
    ((verdict, sentence),) = judge(old, [measured("a", 10), measured("d", 10)])
    assert verdict == "UNPROVEN"
    assert "measured on b, c in run old, but on d in this run" in sentence
