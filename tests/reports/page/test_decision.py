"""Page 1: the limits, the lines below the verdict, and where the rows lead."""

from __future__ import annotations

import dataclasses
import html
import re
from typing import Any

import pytest

from reports.acceptance import (
    AcceptanceSummary,
    load_summary,
    summarize_acceptance,
    with_problems,
)
from reports.measurement import Limit, Measurement, Verdict
from reports.page.decision import _name_some, build_lead, choose_next_step
from reports.page.render import render
from reports.page.sections import (
    ControlCounts,
    blast_text,
    build_node_matrix,
    cause_text,
    count_controls,
    count_suspect_gpus,
    join_words,
    limit_text,
    only_lacks_limits,
    others_text,
    planted_faults,
    section_anchors,
)
from reports.record import Finding, ProbeResult, RunProblem, Severity
from reports.run_folder.integrity import load
from tests.support.paths import RECORDINGS


def summary(name: str) -> AcceptanceSummary:
    return load_summary(RECORDINGS / name)


def test_a_problem_without_a_finding_points_at_what_was_found_before() -> None:
    record = summary("tcp-fallback").record
    (fabric,) = (one for one in record.results if one.criterion == "FABRIC")
    codes = ", ".join(one.code for one in fabric.findings if one.severity is Severity.BLOCKS)
    (scaling,) = (one for one in record.results if one.criterion == "SCALING")
    assert codes
    before = f"First fix what FABRIC found ({codes}): it can be the cause of this problem."
    assert cause_text(scaling, record) == before
    unproven = scaling.model_copy(update={"measurements": [], "findings": []})
    alone = record.model_copy(update={"results": [fabric, unproven]})
    unknown = "seatrial found no cause. Read the section SCALING, and test again."
    assert cause_text(unproven, alone) == unknown, "it has its own reason"
    alone = record.model_copy(update={"results": [scaling, fabric]})
    assert cause_text(scaling, alone) == unknown, "it was found later"
    sound = fabric.model_copy(update={"findings": []})
    alone = record.model_copy(update={"results": [sound, scaling]})
    assert cause_text(scaling, alone) == unknown
    notes = [one.model_copy(update={"severity": Severity.NOTES}) for one in fabric.findings]
    noted = fabric.model_copy(update={"findings": notes})
    alone = record.model_copy(update={"results": [noted, scaling]})
    assert cause_text(scaling, alone) == unknown, "a note blocks nothing"
    skipped = scaling.model_copy(update={"state": "skipped"})
    alone = record.model_copy(update={"results": [fabric, skipped]})
    assert cause_text(skipped, alone) == "Do this, then test again:"
    (missed,) = summary("control-missed").record.results_of("FABRIC")
    alone = record.model_copy(update={"results": [missed]})
    assert cause_text(missed, alone).startswith("Test again. If the test misses the fault a second")
    unplanted = [one.model_copy(update={"caught": None}) for one in missed.controls]
    unplanted = missed.model_copy(update={"controls": unplanted})
    alone = record.model_copy(update={"results": [unplanted]})
    assert cause_text(unplanted, alone).startswith("Test again. If the fault cannot be planted")
    for state in ("not run", "interrupted"):
        absent = scaling.model_copy(update={"state": state})
        alone = record.model_copy(update={"results": [fabric, absent]})
        assert cause_text(absent, alone) == "", "why it has no result is said already"


@pytest.mark.parametrize(
    ("suspects", "text", "gpus"),
    [
        (["atlas07"], "Failed: FABRIC and SCALING.", 8),
        (["atlas07", "atlas01"], "Failed: FABRIC and SCALING.", 16),
        (["the fabric"], "Failed: FABRIC.", 0),
        ([], "Failed: FABRIC.", 0),
    ],
)
def test_a_finding_holds_up_its_row_and_those_with_its_suspects(
    suspects: list[str], text: str, gpus: int
) -> None:
    record = summary("tcp-fallback").record
    mine = Finding(code="X", statement="x", suspects=suspects, remedy="x")
    others = Finding(code="Y", statement="y", suspects=["atlas07"], remedy="y")
    found = {"FABRIC": [mine], "SCALING": [others], "LAUNCH": [others]}
    results = [
        one.model_copy(update={"findings": found.get(one.criterion, [])}) for one in record.results
    ]
    told = summarize_acceptance(record.model_copy(update={"results": results}))
    assert blast_text(mine, told) == text
    assert count_suspect_gpus(mine, record) == gpus


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), ([*"abc"], "a, b and c")]
)
def test_words_are_joined_as_people_do(words: list[str], text: str) -> None:
    assert join_words(words) == text


def test_the_lead_has_the_worst_fact() -> None:
    lead = build_lead(summary("tcp-fallback"))
    assert lead.worst == "FABRIC: All-reduce runs at 41.2 GB/s. Expected: >= 340 GB/s"
    assert lead.counts.startswith("3 of 6 required criteria proven, 2 failed, 1 unproven.")
    assert lead.proof == "Self-test passed (planted faults found: 6 of 6)."


def test_the_lead_of_an_accepted_run_has_no_worst_fact() -> None:
    assert build_lead(summary("healthy-atlas")).worst == ""
    assert build_lead(summary("healthy-lab")).worst == ""  # FABRIC need not be proven there


def test_a_value_without_a_limit_is_not_the_worst_fact_where_no_contract_was_agreed() -> None:
    assert build_lead(summary("no-contract")).worst == ""


def test_a_row_lacks_more_than_a_limit_if_one_of_its_tests_does() -> None:
    run = summary("no-contract")
    record = run.record
    (hosts,) = record.results_of("HOSTS")
    silent = hosts.model_copy(update={"probe": "other", "measurements": []})
    both = record.model_copy(update={"results": [*record.results, silent]})
    assert build_lead(summarize_acceptance(both)).worst.startswith("HOSTS: ")


def test_a_control_that_was_missed_is_counted() -> None:
    missed = summary("control-missed")
    counts = count_controls(missed.record.results)
    assert (counts.missed, counts.not_run) == (1, 0)
    assert counts.sentence == f"Self-test failed (planted faults found: {counts.found} of 6)."
    id, control = planted_faults(missed.record)[0]
    assert (id, control.verdict, control.name) == ("FABRIC", Verdict.UNPROVEN, "wrong network")
    (fabric,) = [row for row in missed.rows if row.criterion.id == "FABRIC"]
    assert count_controls(fabric.results).text == "0 of 1"
    unplanted = missed.record.results[1].controls[0].model_copy(update={"caught": None})
    more = missed.record.results[0].model_copy(update={"controls": [unplanted]})
    counts = count_controls([*missed.record.results, more])
    assert (counts.missed, counts.not_run) == (1, 1)


@pytest.mark.parametrize(
    ("counts", "text", "sentence"),
    [
        ((3, 0, 0), "3 of 3", "Self-test passed (planted faults found: 3 of 3)."),
        ((2, 1, 0), "2 of 3", "Self-test failed (planted faults found: 2 of 3)."),
        ((1, 0, 2), "1 of 1, 2 not planted",
         "Self-test passed (planted faults found: 1 of 1). "
         "Not planted: 2 faults (reasons: section Self-test)."),
        ((0, 0, 4), "none, 4 not planted",
         "Not planted: 4 faults (reasons: section Self-test)."),
        ((0, 0, 0), "none", ""),
    ],
)  # fmt: skip
def test_what_was_not_planted_is_not_counted_as_missed(
    counts: tuple[int, int, int], text: str, sentence: str
) -> None:
    found = ControlCounts(*counts)
    assert (found.text, found.sentence) == (text, sentence)


def test_without_controls_nothing_is_said_of_proof() -> None:
    assert count_controls(summary("empty").rows[0].results).text == "none"
    assert build_lead(summary("empty")).proof == ""


def test_a_row_has_the_limit_of_its_value() -> None:
    rows = {row.criterion.id: row for row in summary("tcp-fallback").rows}
    assert {id: limit_text(row) for id, row in rows.items()} == {
        "FABRIC": ">= 340 GB/s", "SCALING": ">= 90 %", "GANG": "<= 5 s", "LAUNCH": "<= 300 s",
        "RESTART": "", "HOSTS": "8 nodes",  # RESTART has no value
    }  # fmt: skip
    (fabric, *_) = (row for row in summary("healthy-lab").rows if row.is_only_information)
    assert limit_text(fabric) == "", "it is held to none here"
    assert limit_text(summary("empty").rows[0]) == ""
    derived = [limit_text(row) for row in summary("no-contract").rows]
    assert any(text.endswith(" (derived)") for text in derived)


def test_sections_have_the_names_of_their_criteria() -> None:
    anchors = section_anchors(summary("healthy-atlas").rows)
    assert set(anchors) == set(anchors.values()) == {row.criterion.id for row in RUN.rows}
    hostile = section_anchors(summary("hostile").rows)
    assert all(re.fullmatch(r"[A-Z]+|c\d+", anchor) for anchor in hostile.values())
    plain = summary("healthy-atlas").rows[1]
    first = plain.criterion.model_copy(update={"id": "not plain"})
    rows = [dataclasses.replace(plain, criterion=first), plain]
    assert section_anchors(rows) == {"not plain": "c1", plain.criterion.id: plain.criterion.id}
    assert len(set(hostile.values())) == len(hostile)


RUN = summary("healthy-atlas")


def result(
    criterion: str, *measured: tuple[str, str, float], suspects: tuple[str, ...] = ()
) -> ProbeResult:
    none = Limit(high=0, because="for this test")
    found = [Finding(code="X", statement="x", suspects=list(suspects), remedy="x")]
    return ProbeResult(
        probe=f"p{criterion}",
        criterion=criterion,
        measurements=[
            Measurement(name=name, subject=on, value=value, limit=none)
            for name, on, value in measured
        ],
        findings=found if suspects else [],
    )


def matrix(*results: ProbeResult, nodes: Any = None) -> dict[str, list[tuple[Any, str, bool]]]:
    record = load(RECORDINGS / "healthy-lab")
    known = [{"name": f"node{i}"} for i in range(3)] if nodes is None else nodes
    built = build_node_matrix(
        record.model_copy(update={"results": list(results), "cluster": {"nodes": known}})
    )
    return {
        name: [(cell.verdict and cell.verdict.value, cell.failed, cell.suspected) for cell in cells]
        for name, cells in built.rows
    }


def test_a_node_has_the_worst_verdict_of_what_was_measured_on_it() -> None:
    found = matrix(
        result("HOSTS", ("a", "node0", 0), ("b", "node0", 0), ("a", "node1", 0), ("b", "node1", 2)),
        result("FABRIC", ("slow", "node1 - node2", 1), suspects=("node2",)),
    )
    nothing = (None, "", False)
    assert found == {
        "node1": [("FAIL", "b", False), nothing],  # the finding names the other end
        "node2": [nothing, ("FAIL", "slow", True)],
        "node0": [("PASS", "", False), nothing],
    }
    assert list(found) == ["node2", "node1", "node0"]  # suspects first, sound nodes last
    pair = matrix(result("FABRIC", ("slow", "node1 - node2", 1)))
    assert pair["node1"] == pair["node2"] == [("FAIL", "slow", False)], "nobody knows which end"
    both = matrix(result("FABRIC", ("slow", "node1 - node2", 0), suspects=("node2",)))
    assert both["node1"] == [("PASS", "", False)], "a sound pair shows that both ends are sound"


def test_a_node_without_a_measure_is_as_sound_as_one_that_passes() -> None:
    assert list(matrix(result("HOSTS", ("a", "node0", 0)))) == ["node0", "node1", "node2"]


def test_a_cell_names_few_measures() -> None:
    found = matrix(result("HOSTS", *((name, "node0", 1) for name in "abcde")))
    assert found["node0"] == [("FAIL", "a, b, c and 2 more", False)]
    found = matrix(result("HOSTS", *((name, "node0", 1) for name in "abc")))
    assert found["node0"] == [("FAIL", "a, b, c", False)]


def test_a_part_of_a_node_belongs_to_it() -> None:
    found = matrix(result("FABRIC", ("rate", "node0 fab0", 1), ("cluster", "cluster", 1)))
    assert found["node0"] == [("FAIL", "rate", False)]
    assert found["node1"] == [(None, "", False)]


@pytest.mark.parametrize("nodes", ["", "node0", 5, [], ["node0"], [{"name": 3}], [{}]])
def test_without_node_names_there_is_no_matrix(nodes: Any) -> None:
    assert matrix(result("HOSTS", ("a", "node0", 0)), nodes=nodes) == {}


FOLDER = "runs/2026-11-20T221703Z-atlas"
AGAIN = "pytest probes --cluster ray://10.20.0.1:10001 --contract h100-ndr400"


SIGN = f"seatrial sign {FOLDER} --as customer --key KEY --decision"
WHOLE = "{}. Then do a complete run: only a complete run can be accepted."
CLEANUP = f"seatrial cleanup {AGAIN.removeprefix('pytest probes ')}"


@pytest.mark.parametrize(
    ("name", "begins", "commands"),
    [
        ("healthy-atlas",
         "Sign this run, on paper or with your ssh key (KEY: the file of the key). To accept the",
         [f"{SIGN} accepted", f"{SIGN} conditions --condition TEXT"]),
        ("healthy-lab", "Run the suite on the head node of the real cluster",
         ["seatrial run --cluster auto --contract CONTRACT"]),
        ("killed-run", "The run was stopped before its end", [AGAIN]),
        ("partial", "An acceptance needs a complete run (6 tests of the tier quick):", [AGAIN]),
        ("no-contract", "Draft a contract from this run:",
         [f"seatrial contract new --from {FOLDER} seatrial.toml",
          "pytest probes --cluster ray://10.20.0.1:10001 --contract seatrial.toml"]),
        ("not-run", "Run the missing tests.", []),
        ("teardown", "Show what the test left on the cluster:",
         [CLEANUP, f"{CLEANUP} --remove", AGAIN]),
        ("tcp-fallback", WHOLE.format("Fix the 3 problems below, and test again"), [AGAIN]),
        ("hosts-fail", WHOLE.format("Fix the 2 problems below, and test again"), [AGAIN]),
        ("control-missed", WHOLE.format("Do the step below"), [AGAIN]),
        ("skipped", WHOLE.format("Do the step below"), [AGAIN]),
    ],
)  # fmt: skip
def test_each_decision_has_its_next_step(name: str, begins: str, commands: list[str]) -> None:
    """Where findings or failures have steps of their own, a complete run comes after them."""
    shown = html.unescape(render(summary(name), RECORDINGS / name))
    between = shown.partition("<h2>Do next</h2>")[2].partition("</section>")[0]
    text = re.sub('<div class="steps">.*?</div>\n</div>', "", between, flags=re.DOTALL)
    assert f"<p>{begins}" in text
    found = [re.sub("<[^>]*>", "", one) for one in re.findall("<code.*?</code>", text)]
    assert [one.strip() for one in found] == commands


def test_a_contract_is_written_once_into_the_command() -> None:
    record = summary("no-contract").record
    given = record.model_copy(update={"command": "seatrial run --contract=derived --only FABRIC"})
    step = choose_next_step(
        summarize_acceptance(given), open_blocks=1, is_shared=False, untested=False
    )
    assert step.first[1].command == "seatrial run --contract seatrial.toml"


def test_an_acceptance_without_a_doubt_is_signed_with_one_command() -> None:
    record = summary("healthy-atlas").record
    rows = [one for one in record.results if one.criterion != "SCALING"]
    criteria = [one for one in record.contract.criteria if one.id != "SCALING"]
    contract = record.contract.model_copy(update={"criteria": criteria})
    sound = record.model_copy(update={"results": rows, "contract": contract})
    step = choose_next_step(
        summarize_acceptance(sound), open_blocks=0, is_shared=False, untested=False
    )
    text = "Sign this run, on paper or with your ssh key (KEY: the file of the key):"
    assert step == (((text, f"{SIGN} accepted"),), "", ())


def test_too_many_marginal_measures_are_mended_before_the_next_run() -> None:
    record = summary("healthy-atlas").record
    contract = record.contract.model_copy(update={"max_marginal": 0})
    told = summarize_acceptance(record.model_copy(update={"contract": contract}))
    assert told.exit_code == 20
    step = choose_next_step(told, open_blocks=0, is_shared=False, untested=False)
    ((text, command),) = step.first
    assert (text.startswith("Find why each"), command) == (True, AGAIN)
    assert step.answers.startswith("1 measure MARGINAL: SCALING.")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("collection", "not all tests could be loaded"),
        ("internal", "seatrial had an error"),
        ("rendering", "the run folder is incomplete"),
        ("disk", "the run folder is incomplete"),
        ("cleanup", "the suite could not remove all that it made"),
        ("other test", "the run had an error outside its tests"),
    ],
)
def test_a_problem_outside_the_tests_is_named_first(kind: str, why: str) -> None:
    problem = RunProblem(kind=kind, where="here", text="no room")
    record = summary("healthy-atlas").record.model_copy(update={"problems": [problem]})
    told = summarize_acceptance(record)
    assert build_lead(told).why == why
    step = choose_next_step(told, open_blocks=0, is_shared=False, untested=False)
    assert step.first == (("Run the suite again:", AGAIN),)
    assert f"{kind.capitalize()} error in here: no room" in render(told, None)


def test_a_row_names_what_failed_besides_its_value() -> None:
    rows = {row.criterion.id: others_text(row) for row in summary("tcp-fallback").rows}
    others = "network (eth0), fabric share (12 %), slowest pair (1.27 %)"
    assert rows["FABRIC"] == f"Also failed: {others}"
    assert rows["SCALING"] == rows["GANG"] == ""
    (row,) = (row for row in summary("tcp-fallback").rows if row.criterion.id == "FABRIC")
    (result,) = row.results
    measured = [m.model_copy(update={"name": f"m{i}"}) for i, m in enumerate(result.measurements)]
    many = dataclasses.replace(row, results=[result.model_copy(update={"measurements": measured})])
    assert others_text(many).endswith(" more")
    assert others_text(many).startswith("Also failed: m0 (")


def test_the_worst_fact_stands_once_before_the_table() -> None:
    """What has no finding begins the next step itself."""
    text = render(summary("control-missed"), None).partition("<table")[0]
    assert text.count("did not find the planted fault") == 1
    assert "<b>FABRIC: All-reduce runs at 41.2 GB/s" in render(summary("tcp-fallback"), None)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("healthy-atlas", "SCALING is close to the limit"),
        ("healthy-lab", ""),
        ("tcp-fallback", "FABRIC and SCALING failed, RESTART is not proven"),
        ("killed-run", "nothing is accepted"),
        ("teardown", "a test did not remove all that it made"),
        ("hostile", "do not sign"),
        ("no-contract", "no contract was agreed"),
        ("partial", "only a part was tested"),
        ("control-missed", "FABRIC is not proven"),
        ("empty", "6 criteria are not proven"),
    ],
)
def test_the_first_line_tells_why(name: str, why: str) -> None:
    assert build_lead(summary(name)).why == why


@pytest.mark.parametrize(
    ("criteria", "words"),
    [
        (["GANG"], "GANG is"),
        (["GANG", "HOSTS", "LAUNCH"], "GANG, HOSTS and LAUNCH are"),
        (["FABRIC", "GANG", "HOSTS", "LAUNCH"], "4 criteria are"),
    ],
)
def test_up_to_three_criteria_are_named_in_the_first_line(criteria: list[str], words: str) -> None:
    assert _name_some(criteria) == words


def test_a_part_of_the_cluster_that_was_measured_is_named_first() -> None:
    """An acceptance of 512 GPUs must not hide that 64 of them were measured."""
    record = summary("healthy-atlas").record
    nodes = [{"name": f"n{number}", "gpus": 8} for number in range(64)]
    large = record.model_copy(update={"cluster": {**record.cluster, "nodes": nodes}})
    why = "SCALING is close to the limit and SCALING was measured on 64 of 512 GPUs"
    assert build_lead(summarize_acceptance(large)).why == why
    step = choose_next_step(
        summarize_acceptance(large), open_blocks=0, is_shared=False, untested=False
    )
    begins = f"To accept the run with a condition, because {why} (TEXT: "
    assert step.first[1].text.startswith(begins)
    unknown = [{"name": node["name"]} for node in nodes]
    large = record.model_copy(update={"cluster": {**record.cluster, "nodes": unknown}})
    assert build_lead(summarize_acceptance(large)).why.endswith("was measured on 8 of 64 nodes")


def test_one_fault_is_fixed_and_more_are_counted() -> None:
    for name, count, begins in (
        ("tcp-fallback", 1, "Fix the problem below, and test again"),
        ("tcp-fallback", 2, "Fix the 2 problems below, and test again"),
        ("control-missed", 1, "Do the step below. Then"),
    ):
        told = summarize_acceptance(summary(name).record.model_copy(update={"full_run_s": 350}))
        step = choose_next_step(told, open_blocks=count, is_shared=False, untested=False)
        assert step.first[0].text.startswith(begins)
        assert step.last == (("Complete run (about 6 min):", AGAIN),)


def test_what_a_test_left_is_removed_an_hour_after_the_run() -> None:
    record = summary("teardown").record
    for finished, time in (
        ("2026-11-20T22:26:15Z", " at 2026-11-20 23:26 UTC or later"),
        (None, ""),
    ):
        told = summarize_acceptance(record.model_copy(update={"finished": finished}))
        step = choose_next_step(told, open_blocks=0, is_shared=False, untested=False)
        assert step.first[1].text.startswith(f"Remove what the test left{time} (cleanup keeps")


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("healthy-atlas", []),
        ("tcp-fallback", ["accepted"]),
        ("skipped", ["accepted"]),
        ("partial", ["accepted", "accepted with conditions"]),
        ("no-contract", ["accepted", "accepted with conditions"]),
        ("killed-run", ["accepted", "accepted with conditions"]),
    ],
)
def test_the_form_closes_what_a_party_must_not_sign(name: str, closed: list[str]) -> None:
    text = html.unescape(render(summary(name), RECORDINGS / name))
    assert re.findall("<s>\u25a1 ([^<]*)</s>", text) == closed
    assert "<span>\u25a1 refused</span>" in text


def test_what_a_changed_folder_says_is_not_on_page_1() -> None:
    changed = with_problems(summary("tcp-fallback"), [f"{name} differs" for name in "abcde"])
    text = render(changed, None).partition('<section id="nodes"')[0]
    assert "The run folder does not verify: a differs; b differs; c differs; and 2 more" in text
    assert 'class="finding' not in text
    assert "All-reduce runs at 41.2 GB/s.</b>" not in text
    whole = render(changed, RECORDINGS / "tcp-fallback")
    assert "Do not sign this run" in whole
    assert 'class="parties"' not in whole
    assert 'class="parties"' in render(summary("tcp-fallback"), RECORDINGS / "tcp-fallback")


def test_a_reason_that_no_step_answers_stays() -> None:
    """The next steps of a part that failed are those of its findings."""
    partial = {"partial": "only FABRIC was requested (--only)"}
    record = summary("tcp-fallback").record.model_copy(update=partial)
    text = render(summarize_acceptance(record), None)
    assert (
        "PARTIAL run: only FABRIC was requested (--only). An acceptance needs a complete run"
        in text
    )
    assert "PARTIAL run: " not in render(summary("partial"), None).partition("<h2>Do next")[0]


def test_a_name_of_a_run_is_no_sentence() -> None:
    assert "run <b>not a valid name</b>" in render(summary("hostile"), None)


def test_the_form_names_what_is_not_proven() -> None:
    text = html.unescape(render(summary("no-contract"), None))
    assert "Not proven: HOSTS (" in text
    assert "Everything in tier" not in text
    assert "Failed: FABRIC, SCALING. Not proven: RESTART (" in render(summary("tcp-fallback"), None)


def test_a_folder_that_does_not_verify_is_not_signed() -> None:
    for name, count in (("healthy-atlas", 0), ("control-missed", 1), ("no-contract", 0)):
        edited = with_problems(summary(name), ["record.json was changed"])
        step = choose_next_step(edited, open_blocks=count, is_shared=False, untested=False)
        assert step.first[0].text.startswith("Do not sign.")
        assert step.first[0].command == f"seatrial show {FOLDER}"


def test_a_result_that_lacks_more_than_a_limit_keeps_its_own_step() -> None:
    (hosts,) = summary("no-contract").record.results_of("HOSTS")
    assert only_lacks_limits(hosts)
    record = summary("no-contract").record
    assert cause_text(hosts, record) == "Write the agreed limit into the contract."
    (agreed,) = summary("healthy-atlas").record.results_of("HOSTS")
    assert not only_lacks_limits(agreed)
    sound = Measurement(name="a", value=1.0, limit=Limit(high=2, because="agreed"), judged=True)
    both = hosts.model_copy(update={"measurements": [*hosts.measurements, sound]})
    assert only_lacks_limits(both), "what passes lacks nothing"
    missed = [one.model_copy(update={"caught": False}) for one in hosts.controls]
    empty = [one.model_copy(update={"value": None}) for one in hosts.measurements]
    for change in (
        {"controls": []},
        {"controls": missed},
        {"controls": [*hosts.controls, *missed]},
        {"measurements": empty},
        {"measurements": [*hosts.measurements, *empty[:1]]},
        {"measurements": []},
        {"state": "error"},
    ):
        assert not only_lacks_limits(hosts.model_copy(update=change))


def test_a_secret_of_the_command_is_not_in_the_next_step() -> None:
    record = summary("killed-run").record
    secret = record.model_copy(
        update={"command": f"{AGAIN} --token hf_abcdefghijklmnopqrstuvwxyz012345"}
    )
    step = choose_next_step(
        summarize_acceptance(secret), open_blocks=0, is_shared=True, untested=True
    )
    ((_, command),) = step.first
    assert command.startswith(AGAIN)
    assert "hf_abc" not in command


def test_a_copy_says_where_the_form_is() -> None:
    shared = render(summary("healthy-atlas"), None)
    assert "The original report has the form to sign." in shared
    assert "Sign the original of this run" in shared
    assert '<p class="fill">signature</p>' not in shared
    assert '<p class="fill">signature</p>' in render(
        summary("healthy-atlas"), RECORDINGS / "healthy-atlas"
    )
