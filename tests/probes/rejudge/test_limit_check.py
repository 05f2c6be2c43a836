"""A run whose limits or contract do not fit is not verified, and its reader says why."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from probes.contract.contract import parse
from probes.session.rejudge import LimitCheck, read_summary, read_verified, read_whole
from reports.run_folder.event_log import UnreadableRun
from tests.support.run_edits import first_event, loosen_limit, put_value
from tests.support.run_folders import Events, rewrite
from tests.support.sound_run import write_sound_run

EMULATED = '[cluster]\naccelerators = "emulated"\n'


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "run")


def write_anew(run: Path, *changes: object) -> None:
    """Rewrite the run with these changes of its events."""

    def change(lines: Events) -> Events:
        for one in changes:
            one(lines)  # type: ignore[operator]
        return lines

    rewrite(run, change)


def written_by_another_version(lines: Events) -> None:
    other = {"seatrial": "0.0.9", "seatrial_sources": "0123456789abcdef"}
    first_event(lines, "run_started")["data"]["versions"].update(other)


def test_a_record_is_read_only_from_a_run_that_verifies(run: Path) -> None:
    """A baseline is read so."""
    assert read_verified(run).state == "finished"
    write_anew(run, loosen_limit)
    with pytest.raises(UnreadableRun, match=r"does not verify: busbw on .* was judged by"):
        read_verified(run)


def test_a_contract_that_no_run_can_have_had_is_a_problem(run: Path) -> None:
    """Else a broken contract would switch the check of the limits off."""
    text = b"schema = 1\n[GANG.no_such_measure]\nat_most = 1\n"
    (run / "contract.toml").write_bytes(text)

    def change(lines: Events) -> None:
        contract = first_event(lines, "run_started")["data"]["contract"]
        contract["sha256"] = hashlib.sha256(text).hexdigest()

    write_anew(run, change)
    (problem,) = read_summary(run).integrity.problems
    assert problem.startswith("contract.toml: ")
    assert "no_such_measure" in problem


def test_a_control_must_be_caught_by_the_limits_of_the_contract(run: Path) -> None:
    """Its limits are those of the contract, and yet its value does not break them."""

    def weaken(lines: Events) -> None:
        controls = [line["data"] for line in lines if line["event"] == "control"]
        observed = [one for control in controls for one in control["observed"]]
        assert all(control["caught"] for control in controls)
        next(one for one in observed if one["limit"]["high"] == 0)["value"] = 0

    write_anew(run, weaken)
    problems = read_summary(run).integrity.problems
    assert any(
        "does not follow from the recorded values and contract.toml" in one for one in problems
    )


def test_a_control_must_have_the_limits_of_the_contract(run: Path) -> None:
    """Its value breaks both limits, so that the fault counts as found by both."""

    def tighten(lines: Events) -> None:
        controls = [line["data"] for line in lines if line["event"] == "control"]
        observed = [one for control in controls for one in control["observed"]]
        next(one for one in observed if one["limit"]["high"] == 0)["limit"]["high"] = -1

    write_anew(run, tighten)
    problems = read_summary(run).integrity.problems
    assert any(
        "does not follow from the recorded values and contract.toml" in one for one in problems
    )


def test_a_page_that_was_changed_is_a_problem_of_the_whole_folder(run: Path) -> None:
    assert read_whole(run).integrity.problems == []
    page = run / "report.html"
    page.write_text(page.read_text().replace("</body>", "<p>ACCEPTED</p></body>"))
    write_anew(run)
    assert read_summary(run).integrity.problems == []
    assert any("report.html" in one for one in read_whole(run).integrity.problems)


def test_an_event_that_cannot_be_judged_is_a_difference(tmp_path: Path) -> None:
    """It comes from a file that anybody may have written."""
    agreed = parse(b"schema = 1\n", "c.toml")
    (tmp_path / "contract.toml").write_bytes(agreed.text)
    check = LimitCheck(tmp_path)
    check.see({"event": "probe_started", "data": {}})
    assert check.differences == [], "nothing began yet"
    start = {"id": "r", "contract": agreed.facts().model_dump(mode="json")}
    check.see({"event": "run_started", "data": {**start, "versions": {"seatrial": "1"}}})
    check.see({"event": "run_started", "data": {**start, "versions": {"seatrial": "2"}}})
    assert check.wrote == {"seatrial": "1"}, "the first beginning counts"
    check.see({"event": "measurement", "probe": "p", "data": {}})
    assert any("an event measurement cannot be judged again" in one for one in check.differences)


def test_doubts_of_another_version_count_what_differs(run: Path) -> None:
    write_anew(run, written_by_another_version, loosen_limit)
    (doubt,) = read_summary(run).integrity.doubts
    assert doubt.startswith("another build of seatrial (0.0.9 @ ")
    assert "wrote this run. By the rules of the build in use here, busbw on cluster" in doubt
    assert " more" not in doubt
    write_anew(run, put_value("run_owes", "owed", []))
    (doubt,) = read_summary(run).integrity.doubts
    assert doubt.endswith(", and 1 more")


def test_other_words_for_the_same_limit_accuse_no_run(run: Path) -> None:
    """A later version may word a reason otherwise."""

    def reword(lines: Events) -> None:
        limit = first_event(lines, "measurement", "busbw")["data"]["limit"]
        limit["because"] = "worded otherwise"

    write_anew(run, written_by_another_version, reword)
    integrity = read_summary(run).integrity
    assert (integrity.problems, integrity.doubts) == ([], [])


def test_other_words_for_a_criterion_accuse_no_run(run: Path) -> None:
    """A later version may give it another title."""

    def retitle(lines: Events) -> None:
        for one in first_event(lines, "run_started")["data"]["contract"]["criteria"]:
            one["title"] = "titled otherwise"

    write_anew(run, written_by_another_version, retitle)
    integrity = read_summary(run).integrity
    assert (integrity.problems, integrity.doubts) == ([], [])


def test_a_value_that_cannot_be_is_named(run: Path) -> None:
    def turn_back(lines: Events) -> None:
        first_event(lines, "measurement", "placement_delay")["data"]["value"] = -1.0

    write_anew(run, turn_back)
    problems = read_summary(run).integrity.problems
    text = "placement_delay on cluster has a different value or note when it is judged again"
    assert text in problems


@pytest.mark.parametrize(
    ("text", "cluster", "rehearsal", "accused"),
    [
        ("", {}, "", False),
        (EMULATED, {}, "4 raylets on one host", False),
        (EMULATED, {}, "", True),
        (EMULATED, {"note": "no cluster answers"}, "", False),  # it was never joined
    ],
)
def test_a_rehearsal_of_its_contract_is_marked_as_one(
    tmp_path: Path, text: str, cluster: dict[str, Any], rehearsal: str, accused: bool
) -> None:
    agreed = parse(f"schema = 1\n{text}".encode(), "c.toml")
    (tmp_path / "contract.toml").write_bytes(agreed.text)
    facts = {"contract": agreed.facts().model_dump(mode="json"), "rehearsal": rehearsal}
    check = LimitCheck(tmp_path)
    check.see({"event": "run_started", "data": {"id": "r", "cluster": cluster, **facts}})
    assert check.judge
    assert any("not marked as a rehearsal" in one for one in check.differences) is accused
