"""What a record amounts to, row by row: what decides, what only informs, what contradicts."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import (
    NO_SUMS,
    load_summary,
    summarize_acceptance,
    summary_sentence,
    with_problems,
)
from reports.measurement import Measurement, Verdict
from reports.record import Criterion, RunRecord, Waiver
from reports.run_folder.event_log import SUMS
from reports.run_folder.integrity import Integrity
from tests.reports.test_record import AGREED, CAUGHT, OWED, good, result, run
from tests.support.paths import RECORDINGS

NOT_AGREED = AGREED.model_copy(update={"agreed": False})


def with_criteria(record: RunRecord, *more: Criterion) -> RunRecord:
    facts = record.contract.model_copy(update={"criteria": [*record.contract.criteria, *more]})
    return record.model_copy(update={"contract": facts})


def row(record: RunRecord, id: str) -> Any:
    return next(one for one in summarize_acceptance(record).rows if one.criterion.id == id)


HERE = "raylets share one host"
LOCAL = Criterion(id="LOCAL", title="t", how="h", required=False, not_provable=HERE)


@pytest.mark.parametrize(
    ("results", "informs", "is_expected"),
    [
        ([result(good())], True, True),
        ([result()], True, True),  # it ended, and proves nothing, as was to be expected
        ([], False, True),
        ([result(state="not run")], False, True),
        ([result(good(), state="error")], False, False),
        ([result(good()), result(good(), state="skipped")], False, False),
        ([result(good(0))], False, False),
    ],
)
def test_a_row_that_cannot_be_proven_informs_where_it_ended_without_failure(
    results: list[Any], informs: bool, is_expected: bool
) -> None:
    here = [one.model_copy(update={"criterion": "LOCAL"}) for one in results]
    local = row(with_criteria(run(*here), LOCAL), "LOCAL")
    assert local.is_only_information is informs
    assert (local.sentence == "this cluster cannot prove it") is is_expected
    provable = LOCAL.model_copy(update={"not_provable": ""})
    assert row(with_criteria(run(*here), provable), "LOCAL").is_only_information is False


@pytest.mark.parametrize("counted", [False, True])
def test_what_was_judged_is_no_longer_listed_as_not_countable(counted: bool) -> None:
    why = {"lost_packets": "no counter"}
    agreed = Criterion(id="LOCAL", title="t", how="h", not_countable=why)
    lost = [Measurement(name="lost_packets", value=0.0)] if counted else []
    found = result(good(), *lost).model_copy(update={"criterion": "LOCAL"})
    local = row(with_criteria(run(found), agreed), "LOCAL")
    text = "lost packets not tested, because nothing counts them: no counter"
    assert local.not_tested == ([] if counted else [text])
    assert local.label == ("" if counted else text)


def test_what_decides_comes_first_and_the_worst_of_it() -> None:
    others = [
        Criterion(id=id, title="t", how="h", required=required)
        for id, required in (("A", False), ("B", True), ("C", False))
    ]
    failing = result(good(0)).model_copy(update={"criterion": "C"})
    passing = result(good()).model_copy(update={"criterion": "A"})
    summary = summarize_acceptance(with_criteria(run(result(good()), failing, passing), *others))
    assert [one.criterion.id for one in summary.worst_first] == ["C", "B", "FABRIC", "A"]
    assert {one.criterion.id: one.can_decide for one in summary.rows} == {
        "FABRIC": True,
        "A": False,
        "B": True,
        "C": True,
    }


def test_the_counts_name_what_is_not_required() -> None:
    assert "Not required" not in summarize_acceptance(run(result(good()))).counts_text
    text = summarize_acceptance(with_criteria(run(result(good())), LOCAL)).counts_text
    assert "1 of 1 required criteria proven. Not required: LOCAL" in text


@pytest.mark.parametrize(
    ("owed", "ran", "text"),
    [
        ("p", "p", "the only test ran"),
        ("pq", "p", "1 of 2 tests ran"),
        ("pq", "pq", "all 2 tests ran"),
        ("pq", "", "0 of 2 tests ran"),
        ("", "p", "1 test ran"),
    ],
)
def test_the_counts_name_how_many_tests_of_the_tier_ran(owed: str, ran: str, text: str) -> None:
    results = [result(good()).model_copy(update={"probe": probe}) for probe in ran]
    record = run(*results, more={"owed": [{**OWED, "probe": probe} for probe in owed]})
    assert summarize_acceptance(record).counts_text.endswith(f". Tier quick: {text}")


@pytest.mark.parametrize(
    ("until", "meaning"),
    [
        ("2026-11-19", "EXPIRED before this run: it has no effect"),
        ("2026-11-20", "the verdict stays FAIL"),  # its last day is the day of the run
    ],
)
def test_a_waiver_holds_on_its_last_day(until: str, meaning: str) -> None:
    waiver = Waiver(
        id="w", criterion="FABRIC", reason="r", name="n", until=date.fromisoformat(until)
    )
    agreed = AGREED.model_copy(update={"waivers": [waiver]})
    record = run(result(good(0)), agreed=agreed)
    ((_, note),) = summarize_acceptance(record).waiver_notes
    assert note.endswith(f"({meaning})")
    other = with_criteria(record, Criterion(id="GANG", title="t", how="h"))
    assert (row(other, "FABRIC").label, row(other, "GANG").label) == (note, "")


def test_without_a_contract_the_criteria_without_a_limit_are_named() -> None:
    """A value that is only noted needs none."""
    text = load_summary(RECORDINGS / "no-contract").counts_text
    assert (
        "5 of 6 criteria meet the limits derived from the cluster. Without a limit: HOSTS." in text
    )
    noted = Measurement(name="m", value=1.0, unit="s", judged=False)
    record = run(result(good(), noted), agreed=NOT_AGREED)
    assert "1 of 1 criteria meet" in summarize_acceptance(record).counts_text


def test_what_no_contract_names_is_not_required_and_not_hidden() -> None:
    stray = result(good()).model_copy(update={"criterion": "STORAGE"})
    found = row(run(result(good()), stray), "STORAGE")
    assert (found.criterion.required, found.criterion.title) == (False, "not in the contract")


def unlimited(value: Any) -> Measurement:
    return Measurement(name="busbw", value=value)


@pytest.mark.parametrize(
    ("results", "consistent"),
    [
        ([result(unlimited(3.0))], 1),  # only the limit is missing
        ([result(good(), Measurement(name="note", judged=False))], 1),
        ([result(good())], 1),
        ([result(good(3, low=1, marginal_low=5))], 1),  # MARGINAL
        ([result(unlimited(None))], 0),
        ([result(good(0))], 0),
        ([result(unlimited(3.0), unlimited(None))], 0),
        ([result(good(), controls=[])], 0),
        ([result(good()), result(good(), controls=[])], 0),
        ([result(good(), state="error")], 0),
        ([result()], 0),
        ([], 0),
    ],
)
def test_without_a_contract_a_criterion_may_show_no_contradiction(
    results: list[Any], consistent: int
) -> None:
    summary = summarize_acceptance(run(*results, agreed=NOT_AGREED))
    assert summary.counts["consistent"] == consistent


def test_a_control_that_was_missed_contradicts_beside_one_that_was_caught() -> None:
    missed = CAUGHT.model_copy(update={"caught": False})
    for controls, count in (([CAUGHT], 1), ([CAUGHT, missed], 0)):
        record = run(result(good(), controls=controls), agreed=NOT_AGREED)
        assert summarize_acceptance(record).counts["consistent"] == count


@pytest.mark.parametrize("state", ["finished", "interrupted"])
def test_a_run_that_ended_without_its_last_file_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    from reports import acceptance

    record, untouched = run(result(good()), state=state), summarize_acceptance(run())
    monkeypatch.setattr(acceptance, "read_run", lambda *_: (record, untouched.integrity))
    problems = load_summary(tmp_path).record.problems
    assert problems == ([NO_SUMS] if state == "finished" else [])
    (tmp_path / SUMS).write_text("")
    assert load_summary(tmp_path).record.problems == []


@pytest.mark.parametrize(
    ("again", "text"), [("", "the run"), ("r0", "the run that is judged again")]
)
def test_what_cannot_be_verified_is_the_run_or_the_one_that_is_judged_again(
    again: str, text: str
) -> None:
    more = {"judged_again": again, "unverified": ["no sums"]}
    found = summarize_acceptance(run(result(good()), more=more))
    assert (found.exit_code, found.reasons) == (20, [f"{text} cannot be verified: no sums"])


def test_more_problems_of_the_folder_are_added() -> None:
    told = summarize_acceptance(run(result(good())), Integrity(["of the folder"]))
    more = with_problems(told, ["of the limits"])
    assert more.integrity.problems == ["of the folder", "of the limits"]
    assert more.record == told.record


PLAIN = Criterion(id="FABRIC", title="fabric", how="")  # without sentences


def test_a_passing_result_is_told_by_its_key_measure() -> None:
    other = good().model_copy(update={"name": "latency"})
    assert summary_sentence(result(other, good()), PLAIN) == other.sentence()
    told = PLAIN.model_copy(update={"headlines": {"busbw": "it runs at {value}"}})
    sentence = good().sentence("it runs at {value}")
    assert sentence.startswith("it runs at ")
    assert summary_sentence(result(other, good()), told) == sentence


def test_an_unfinished_result_is_told_by_its_state_unless_a_limit_is_missed() -> None:
    unread = good().model_copy(update={"value": None})
    ended = result(unread, state="error", error="no route")
    assert summary_sentence(ended, PLAIN) == "error: no route"
    assert summary_sentence(result(good(0), state="error"), PLAIN) == good(0).sentence()


def test_a_problem_comes_before_a_key_measure_that_passes() -> None:
    missed = result(good(), controls=[])
    assert summary_sentence(missed, PLAIN) == missed.problems()[0]
    assert missed.problems()[0].startswith("no fault was planted (no self-test)")


@pytest.mark.parametrize(
    ("recording", "problems", "word", "code"),
    [
        ("healthy-atlas", [], "ACCEPTED", 0),
        ("healthy-atlas", ["an event was changed"], "DOES NOT VERIFY", 4),
        ("killed-run", [], "INTERRUPTED", 2),
        ("tcp-fallback", [], "NOT ACCEPTED", 1),
        ("skipped", [], "NOT ACCEPTED", 20),
    ],
)
def test_the_decision_has_a_word_for_its_exit_code(
    recording: str, problems: list[str], word: str, code: int
) -> None:
    summary = with_problems(load_summary(RECORDINGS / recording), problems)
    assert (summary.word, summary.exit_code) == (word, code)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("healthy-atlas", Verdict.MARGINAL),
        ("tcp-fallback", Verdict.FAIL),
        ("killed-run", Verdict.UNPROVEN),  # exit code 2
        ("teardown", Verdict.UNPROVEN),  # 3
        ("hostile", Verdict.UNPROVEN),  # 4
        ("empty", Verdict.UNPROVEN),
    ],
)
def test_only_a_run_that_proves_or_fails_is_coloured_so(name: str, verdict: Verdict) -> None:
    assert load_summary(RECORDINGS / name).shown_verdict is verdict


def close_to_limit(name: str, subject: str = "cluster") -> Measurement:
    return good(5, low=1, marginal_low=8).model_copy(update={"name": name, "subject": subject})


@pytest.mark.parametrize(("most", "code"), [(None, 0), (2, 0), (1, 20), (0, 20)])
def test_marginal_has_a_price_where_one_was_agreed(most: int | None, code: int) -> None:
    """A measure counts once for all its nodes."""
    names = close_to_limit("a", "n0"), close_to_limit("a", "n1"), close_to_limit("b")
    agreed = AGREED.model_copy(update={"max_marginal": most})
    summary = summarize_acceptance(
        run(result(*names, good()), agreed=agreed, more={"owed": [OWED]})
    )
    text = "2 measures MARGINAL: FABRIC.a, FABRIC.b. Expected: at most {} ([accept] max_marginal"
    assert summary.exit_code == code
    said = any(reason.startswith(text.format(most)) for reason in summary.reasons)
    assert said is (code == 20)
    bound = "no maximum of MARGINAL measures was agreed" in summary.headline
    assert bound is (most is None)


def test_what_fails_is_no_matter_of_price() -> None:
    agreed = AGREED.model_copy(update={"max_marginal": 0})
    failing = run(result(close_to_limit("a"), good(0)), agreed=agreed, more={"owed": [OWED]})
    assert summarize_acceptance(failing).exit_code == 1
