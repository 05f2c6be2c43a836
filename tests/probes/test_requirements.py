"""What seatrial requires and an environment lacks is named before anything runs."""

from __future__ import annotations

import os
from importlib import metadata

import pytest

from probes import requirements
from probes.cli.command import UsageError
from probes.cli.run import run_suite
from probes.doctor import FAIL, ask_versions
from probes.requirements import lacking_sentence, list_missing
from reports.command import Refusal, refusals

pytest_plugins = ["pytester"]
LACKS = ["nosuch>=3", "torch"]


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in ("nosuch", "torch"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(requirements.metadata, "requires", lambda name: [*LACKS, "click"])
    monkeypatch.setattr(requirements.metadata, "version", version)


def test_a_requirement_is_missing_by_name_version_and_marker() -> None:
    here = metadata.version("click")
    asked = ["nosuch", f"click=={here}", "click<1", 'nosuch; python_version < "3"', "torch"]
    assert list_missing(asked) == ["nosuch", "click<1"]


@pytest.mark.parametrize("version", ["2.6.0a0+df5bbc09d1.nv24.12", "no version at all"])
def test_a_vendors_build_is_not_missing(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(requirements.metadata, "version", lambda name: version)
    assert list_missing(["torch", "ray[default]"]) == []


def test_nothing_is_missing_here() -> None:
    assert lacking_sentence() == ""


def test_only_on_the_path_nothing_says_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "DISTRIBUTION", "nosuchproject")
    assert lacking_sentence() == ""


def test_a_run_names_what_is_missing_and_starts_nothing(
    lacking: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # a run sets variables of pytest
    with pytest.raises(UsageError, match="lacks: nosuch>=3, torch") as error:
        run_suite({"cluster": "local:2"}, [])
    assert error.value.exit_code == 4
    assert "Use the cluster's versions of Ray and torch" in str(error.value)


def test_the_plugin_and_the_doctor_name_it_too(lacking: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("")
    done = pytester.runpytest_inprocess("-p", "probes.plugin", "--cluster", "local:2")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["*lacks: nosuch>=3, torch*"])
    answer = ask_versions(on_gpu=True)
    assert answer.state == FAIL
    assert "nosuch>=3" in answer.found


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("pandas", 4, "needs the Python module pandas, which is not installed"),
        ("probes.nosuch", 3, "internal error of seatrial: ModuleNotFoundError"),
    ],
    ids=["of a library", "of our own"],
)
def test_a_command_without_its_module_says_which(name: str, code: int, text: str) -> None:
    with pytest.raises(Refusal, match=text) as error, refusals():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert error.value.exit_code == code
