"""Which torch and Ray will do: a vendor's build by its numbers, what is too old with its reason."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from probes.check.registry import CRITERIA
from probes.requirements import (
    ASYNC_SAVES,
    EVERY,
    NEEDS,
    Need,
    missing,
    missing_feature,
    shortcoming,
)
from reports.measurement import Verdict
from tests.support.paths import REPO

pytest_plugins = ["pytester", "tests.support.stand_in_suite"]

FSDP = Need("FSDP2", "torch", (2, 6), ("SCALING",))
(SAVES,) = [need for need in NEEDS if need.feature == ASYNC_SAVES]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("2.6.0", ""),
        ("2.6.0a0+ecf3bae40a.nv25.01", ""),  # NGC's
        ("2.13.0+cpu", ""),
        ("3", ""),
        ("2.5.1", "FSDP2: torch is 2.5.1. Expected: torch 2.6 or later."),
        ("1.13.1+cu117", "FSDP2: torch is 1.13.1+cu117. Expected: torch 2.6 or later."),
        ("a build of ours", "FSDP2: torch has no usable version (a build of ours)."),
    ],
)
def test_the_first_two_numbers_count(found: str, says: str) -> None:
    said = shortcoming(FSDP, lambda package: found)
    assert said.startswith(says)
    assert bool(said) is bool(says)


def test_what_is_not_installed_is_missing() -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    assert shortcoming(FSDP, absent) == (
        "FSDP2: torch is not installed. Expected: torch 2.6 or later."
    )


@pytest.mark.parametrize(
    ("found", "word"),
    [("2.8.0", "2.9 or later"), ("2.12.1", "any release except 2.11, 2.12"), ("2.10.0", "")],
)
def test_a_release_in_which_it_is_broken_will_not_do(found: str, word: str) -> None:
    said = shortcoming(SAVES, lambda package: found)
    assert word in said
    assert bool(said) is bool(word)


def test_each_criterion_has_its_needs_and_here_they_are_met() -> None:
    named = {id for need in NEEDS for id in need.criteria}
    assert {EVERY} < named <= {EVERY, *CRITERIA}
    assert {missing_feature(id, on_gpu) for id in CRITERIA for on_gpu in (True, False)} == {""}
    assert missing(ASYNC_SAVES) == ""


def test_torch_2_6_trains_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its CPU stream lacks record_event, which FSDP2 calls."""
    found = {"ray": "2.60.0", "torch": "2.6.0a0+ecf3bae"}
    monkeypatch.setattr(shortcoming, "__defaults__", (found.__getitem__,))
    assert missing_feature("SCALING") == ""
    assert "on ranks without a GPU" in missing_feature("SCALING", on_gpu=False)
    assert "torch is 2.6.0a0+ecf3bae. Expected: torch 2.7 or later" in missing_feature(
        "LAUNCH", False
    )
    assert missing_feature("FABRIC", on_gpu=False) == ""


def test_no_bound_of_pip_refuses_a_vendors_build() -> None:
    text = (REPO / "pyproject.toml").read_text()
    assert '"ray[default]",' in text
    assert '"torch",' in text


def test_a_probe_that_lacks_a_feature_is_unproven_and_says_why(suite: Any) -> None:
    old = (
        "from probes import requirements\n"
        "found = {'ray': '2.39.1', 'torch': '2.13.0'}\n"
        "requirements.shortcoming.__defaults__ = (found.__getitem__,)\n"
    )
    result, summary = suite(broken="pass", head=old)
    reasons = [one.error for one in summary.record.results if one.state == "skipped"]
    assert reasons
    assert all("ray is 2.39.1. Expected: ray 2.40 or later." in reason for reason in reasons)
    assert summary.record.verdict("GANG") is Verdict.UNPROVEN
    assert (result.ret, summary.exit_code) == (20, 20)


def test_the_page_has_each_feature() -> None:
    page = (REPO / "docs" / "reference" / "compatibility.md").read_text()
    dotted = lambda release: ".".join(map(str, release))  # noqa: E731
    for need in NEEDS:
        broken = ", ".join(map(dotted, need.broken)) or "-"
        row = f"| {need.feature} | {need.package} | {dotted(need.least)} | {broken} | "
        (found,) = (line for line in page.splitlines() if line.startswith(row))
        assert all(criterion in found for criterion in need.criteria)
