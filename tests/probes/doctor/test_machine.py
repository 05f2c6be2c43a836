"""What stands in the way on the machine that runs the suite."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes import doctor
from probes.check.registry import run_order
from probes.cluster.cluster import ROOT
from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.doctor import (
    FAIL,
    OK,
    UNPROVEN,
    Answer,
    affected,
    ask_machine,
    ask_packages,
    ask_run_folder,
    ask_user,
    ask_versions,
)
from reports.version import PACKAGES

OURS = {name: ["seatrial", "seatrial"] for name in PACKAGES}


def test_our_own_packages_are_sound(tmp_path: Path) -> None:
    assert ask_packages(tmp_path, OURS).state == OK
    assert ask_packages(ROOT, OURS).state == OK, "in a checkout they are the ones that are used"
    assert ask_packages(tmp_path, {}).state == OK, "from a checkout that is not installed"


def test_a_package_of_the_same_name_is_named(tmp_path: Path) -> None:
    answer = ask_packages(tmp_path, {**OURS, "probes": ["seatrial", "satellites"]})
    assert answer.state == FAIL
    assert "probes is also installed by satellites" in answer.found
    (tmp_path / "scaling").mkdir()
    answer = ask_packages(tmp_path, OURS)
    assert f"{tmp_path / 'scaling'} hides seatrial's scaling from pytest" in answer.found
    assert answer.criteria == run_order()


def test_a_package_from_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(origin="/opt/other/reports/__init__.py")
    monkeypatch.setattr(doctor, "find_spec", {"reports": spec}.get)
    assert ask_packages(tmp_path, OURS).found == "Python finds reports at /opt/other/reports"


@pytest.mark.parametrize(
    ("launch", "is_ours"),
    [({}, True), ({"document": "theirs.md", "values": {"x": "{command}"}}, False)],
)
def test_why_no_other_user_is_asked_for_the_guide_that_is_typed(
    launch: dict[str, Any], is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        doctor, "why_no_other_user", lambda *, own_guide: asked.append(own_guide) or ""
    )
    terms = ClusterTerms(launch=LaunchTerms.model_validate(launch))
    questions = [answer.question for answer in ask_machine(terms, on_gpu=False)]
    assert questions == ["packages", "versions", "user", "run folder"]
    assert asked == [is_ours]


def test_versions_that_lack_a_feature_make_their_criteria_unproven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ask_versions(on_gpu=False).state == OK
    monkeypatch.setattr(
        doctor, "missing_feature", lambda id, on_gpu: "FSDP2: torch is 2.4." * (id == "SCALING")
    )
    answer = ask_versions(on_gpu=True)
    assert (answer.state, answer.criteria) == (UNPROVEN, ("SCALING",))
    assert answer.found == "FSDP2: torch is 2.4."


@pytest.mark.parametrize(
    ("why_not", "user", "state"),
    [
        ("", None, OK),
        ("only root can", "own", OK),
        ("only root can", None, UNPROVEN),
        ("user 60706 cannot read /root/.venv/bin/ray", None, UNPROVEN),  # as root
    ],
)
def test_an_ordinary_user_must_be_possible_or_agreed(
    why_not: str, user: str | None, state: str
) -> None:
    terms = ClusterTerms(launch=LaunchTerms.model_validate({"user": user}))
    answer = ask_user(terms, why_not)
    assert answer.state == state
    assert answer.criteria == (("LAUNCH",) if state == UNPROVEN else ())
    assert (why_not in answer.found) is (state == UNPROVEN or not why_not)


def test_on_an_embedded_cluster_no_other_user_is_asked_for() -> None:
    """As in a run there: the user's rights are judged only on hosts of the cluster's own."""
    assert ask_user(ClusterTerms(), "only root can", local=True).state == OK
    assert ask_user(ClusterTerms(), "only root can").state == UNPROVEN


def test_whose_commands_are_typed_and_as_whom_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = {"document": "ours.md", "values": {"x": "{command}"}}
    terms = {
        whose: ClusterTerms(launch=LaunchTerms.model_validate(launch))
        for whose, launch in (
            ("ours", {}),
            ("theirs", operators),
            ("own", {**operators, "user": "own"}),
        )
    }
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    named = "the commands of the operator's guide ours.md (no sha256 in the contract) run as"
    here = "on the host that runs seatrial"
    assert ask_user(terms["theirs"], "").found == f"{named} a user that seatrial creates, {here}"
    agreed = "the user who runs seatrial (user id 1000, because the contract allows it)"
    assert ask_user(terms["own"], "no right to") == Answer("user", f"{named} {agreed}, {here}")
    assert "(user id 1000, because no right to)" in ask_user(terms["ours"], "no right to").found
    refused = ask_user(terms["theirs"], "no right to")
    assert (refused.state, refused.criteria) == (UNPROVEN, ("LAUNCH",))
    assert refused.found.endswith("another user for them (no right to)")
    assert refused.do == 'Run seatrial as root, or set user = "own" in the contract\'s [launch]'
    monkeypatch.setattr("os.getuid", lambda: 0)
    refused = ask_user(terms["own"], "no right to")
    assert (refused.state, refused.found[-38:]) == (
        UNPROVEN,
        "). The commands must never run as root",
    )
    assert refused.do.startswith("Give root the capabilities that are missing (CAP_SETUID, ")
    assert refused.do.endswith("), or run seatrial as an ordinary user")


def test_a_folder_that_takes_no_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask_run_folder(tmp_path).state == OK
    monkeypatch.setattr("os.access", lambda *_: False)
    answer = ask_run_folder(tmp_path)
    assert (answer.state, answer.criteria) == (FAIL, run_order())
    assert str(tmp_path) in answer.found


def test_each_criterion_is_named_once() -> None:
    answers = [
        Answer("a", "x", UNPROVEN, ("LAUNCH", "GANG")),
        Answer("b", "x", FAIL, ("HOSTS",)),
        Answer("c", "x", UNPROVEN, ("GANG",)),
    ]
    assert affected(answers, UNPROVEN) == ["GANG", "LAUNCH"]
    assert affected(answers, FAIL) == ["HOSTS"]
