"""DCGM's own diagnostics: what a stand-in program prints, as NVIDIA documents it, and its judge."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from probes.check.recorder import Recorder
from probes.cluster import dcgm
from probes.cluster.ask import Answers
from probes.cluster.dcgm import parse_diagnostics, run_diagnostics
from probes.hosts.closing import judge_diagnostics
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.simulated_hosts import StandInHosts, findings, not_passed, run_probe


def dcgm3(status: str = "PASS", warning: str = "") -> dict[str, Any]:
    """SYNTHETIC: output of DCGM 3, with one result of this status."""
    memory = {"gpu_ids": "3", "status": status, **({"warnings": warning} if warning else {})}
    tests = [
        {"name": "Denylist", "results": [{"gpu_ids": "0,1,2,3", "status": "PASS"}]},
        {"name": "Memory", "results": [memory, {"gpu_ids": "4", "status": "Skip"}]},
    ]
    categories = [{"category": "Deployment", "tests": tests}]
    return {"DCGM GPU Diagnostic": {"test_categories": categories, "version": "3.3.5"}}


def dcgm4(status: str = "Pass", warning: str = "") -> dict[str, Any]:
    """SYNTHETIC: output of DCGM 4, with one result of this status."""
    warnings = [{"error_id": 1, "warning": warning}] if warning else []
    result = {"entity_group": "GPU", "entity_id": 3, "status": status, "warnings": warnings}
    tests = [{"name": "memory", "results": [result], "test_summary": {"status": status}}]
    return {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}


@pytest.mark.parametrize("output", [dcgm3(), dcgm4(), dcgm3("Warn"), dcgm4("Skip")])
def test_what_passes_warns_or_is_skipped_has_not_failed(output: dict[str, Any]) -> None:
    answer = parse_diagnostics(json.dumps(output), 0)
    assert (answer["error"], answer["failed"]) == ("", [])


@pytest.mark.parametrize(
    "output",
    [dcgm3("FAIL", "ECC error"), dcgm3("Fail", "ECC error"), dcgm4("Fail", "ECC error")],
)
def test_a_failed_test_is_found_with_its_gpu(output: dict[str, Any]) -> None:
    answer = parse_diagnostics(json.dumps(output), 226)
    (failed,) = answer["failed"]
    assert (failed["test"].lower(), failed["where"], failed["text"]) == ("memory", "3", "ECC error")
    assert answer["error"] == ""


@pytest.mark.parametrize(
    ("output", "code", "errors", "error"),
    [
        ("", 1, "Error: unable to connect to\nthe host engine", "to connect to the host engine"),
        ("Error: no such GPU", 255, "", "Error: no such GPU"),
        ("", 3, "", "exit code 3"),
        ("{}", 0, "", "dcgmi returned no result"),
        (json.dumps(dcgm3()), 205, "", "exit code 205, but no test failed"),
    ],
)
def test_a_diagnostic_that_did_not_run_is_an_error(
    output: str, code: int, errors: str, error: str
) -> None:
    answer = parse_diagnostics(output, code, errors)
    assert answer["error"].endswith(error)
    assert answer["failed"] == []


PROGRAM = """#!/bin/sh
test "$1 $2" = "diag -r" || exit 9
test "$5" = "-i" && {{ echo "Error: GPU $6 is not there" >&2; exit 255; }}
test "$3" = "3" && exec sleep 60
echo '{output}'
exit {code}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a dcgmi with this output and exit code on the PATH."""

    def write(output: dict[str, Any], code: int = 0) -> None:
        file = tmp_path / "dcgmi"
        file.write_text(PROGRAM.format(output=json.dumps(output), code=code))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return write


def test_the_program_is_run_at_its_level(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program(dcgm4("Fail", "row remap"), 226)
    assert run_diagnostics(1)["failed"][0]["text"] == "row remap"
    assert run_diagnostics(1, "999")["error"] == "Error: GPU 999 is not there"
    monkeypatch.setitem(dcgm.LEVEL_SECONDS, 3, 0.2)
    assert run_diagnostics(3)["error"] == "dcgmi did not end within 0 s"


def test_a_node_without_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_diagnostics(1)["error"] == "dcgmi is not installed"


def answered(
    tests: tuple[str, ...] = ("software", "pcie", "memory"),
    gpus: int = 8,
    **changed: str,
) -> dict[str, Any]:
    """Return what a node with 8 GPUs answers at level 2; `changed` is by test, of GPU 3."""
    results = [
        {"test": test, "where": str(gpu), "text": "",
         "status": changed.get(test, "Pass") if gpu == 3 else "Pass"}
        for test in tests
        for gpu in range(gpus)
    ]  # fmt: skip
    return {"error": "", "failed": [], "results": results}


SOUND = answered()
NO_GPU = {"error": "no such GPU", "failed": []}


def judged(answer: dict[str, Any] | None, planted: dict[str, Any] | None = NO_GPU) -> ProbeResult:
    """Judge three nodes, of which the second gives this answer; None for silence."""
    answers = {"id0": SOUND, "id1": answer, "id2": SOUND}
    known = {id: one for id, one in answers.items() if one is not None}
    second = {"id2": planted} if planted else {}
    runs = [Answers(known, {"id1": "no answer within 180 s"}), Answers(second)]
    with patch("probes.hosts.closing._run_on", side_effect=runs):
        return run_probe(lambda measure: judge_diagnostics(StandInHosts(), measure))  # type: ignore[arg-type]


@pytest.mark.near_miss("HOSTS.diag_failures")
def test_sound_nodes_pass_and_the_control_is_caught() -> None:
    result = judged(SOUND)
    assert result.verdict is Verdict.PASS
    assert findings(result) == []
    (control,) = result.controls
    assert (control.name, control.caught, control.proves) == (
        "missing GPU", True, ["diag_failures"],
    )  # fmt: skip
    assert result.coverage == "dcgmi diag -r 2 was called on 3 of 3 nodes"


@pytest.mark.parametrize(
    ("answer", "verdict", "note"),
    [
        (answered(memory="Skip"), "UNPROVEN", "memory passed on 7 of 8 GPUs (Skip)"),
        (answered(pcie="Not Run"), "UNPROVEN", "pcie passed on 7 of 8 GPUs (Not Run)"),
        (answered(gpus=1), "UNPROVEN", "software passed on 1 of 8 GPUs (no result)"),
        (answered(("software",)), "UNPROVEN", "pcie passed on 0 of 8 GPUs (no result)"),
        (answered(memory="Warn"), "MARGINAL", ""),
    ],
)
def test_what_was_not_tested_proves_nothing_and_a_warning_is_marginal(
    answer: dict[str, Any], verdict: str, note: str
) -> None:
    result = judged(answer)
    assert not_passed(result) == {"diag_failures n1": verdict}
    assert note in next(m.note for m in result.measurements if m.subject == "n1")


@pytest.mark.near_miss("HOSTS.diag_failures")
def test_dcgm_3_names_several_gpus_at_once_and_optional_tests_may_be_skipped() -> None:
    passed = {"gpu_ids": "0,1,2,3,4,5,6,7", "status": "PASS"}
    names = ("NVML Library", "PCIe", "GPU Memory")
    tests = [{"name": name, "results": [passed]} for name in names]
    tests.append({"name": "EUD Test", "results": [{**passed, "status": "Skip"}]})
    tests.append({"name": "Denylist", "results": [{"status": "PASS"}]})
    answer = parse_diagnostics(json.dumps({"tests": tests}), 0)
    assert judged(answer).verdict is Verdict.PASS
    tests[2]["results"] = [{**passed, "gpu_ids": "0,1,2"}, {**passed, "status": "Skip"}]
    answer = parse_diagnostics(json.dumps({"tests": tests}), 0)
    assert not_passed(judged(answer)) == {"diag_failures n1": "UNPROVEN"}


@pytest.mark.parametrize(("tier", "level"), [("quick", 1), ("standard", 2), ("soak", 3)])
def test_the_level_is_that_of_the_contracts_tier(tier: str, level: int) -> None:
    asked = []

    def run_on(nodes: Any, level: int, gpus: str = "") -> Any:
        asked.append((level, gpus))
        return Answers({"id2": NO_GPU if gpus else SOUND})

    def judge(measure: Recorder) -> None:
        measure.contract = measure.contract.model_copy(update={"tier": tier})
        judge_diagnostics(StandInHosts(1), measure)  # type: ignore[arg-type]

    with patch("probes.hosts.closing._run_on", run_on):
        run_probe(judge)
    assert asked == [(level, ""), (1, "999")]


def test_of_many_failed_tests_the_first_are_named() -> None:
    failed = [{"test": f"t{n}", "where": "", "text": ""} for n in range(5)]
    result = judged({"error": "", "failed": failed})
    assert "t0 failed, t1 failed, t2 failed and 2 more" in result.findings[0].statement


def test_failed_tests_of_a_node_are_named() -> None:
    failed = [
        {"test": "memory", "where": "3", "text": "ECC error"},
        {"test": "pcie", "where": "", "text": ""},
    ]
    result = judged({"error": "", "failed": failed})
    assert not_passed(result) == {"diag_failures n1": "FAIL"}
    assert findings(result) == [("HOST-DCGM", ["n1"])]
    assert result.findings[0].statement == (
        "n1: memory of GPU 3 failed (ECC error), pcie failed. Expected: no failed test"
    )
    (value,) = [m.value for m in result.measurements if m.subject == "n1"]
    assert value == 2


def test_a_diagnostic_that_did_not_run_fails() -> None:
    result = judged({"error": "dcgmi is not installed", "failed": []})
    assert not_passed(result) == {"diag_failures n1": "FAIL"}
    assert "n1: diagnostic failed (dcgmi is not installed)" in result.findings[0].statement


def test_a_silent_node_proves_nothing_and_neither_does_a_silent_control() -> None:
    result = judged(None)
    assert not_passed(result) == {"diag_failures n1": "UNPROVEN"}
    (control,) = judged(SOUND, None).controls
    assert (control.caught, control.saw) == (None, "n2 does not answer")


@pytest.mark.parametrize(("level", "seconds"), [(1, 120), (2, 480), (3, 3600)])
def test_each_level_has_twice_the_time_that_nvidia_gives_it(
    level: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(command: list[str], timeout: float, **_: Any) -> Any:
        asked.append((command, timeout))
        raise dcgm.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(dcgm.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(dcgm.subprocess, "run", run)
    assert run_diagnostics(level)["error"] == f"dcgmi did not end within {seconds} s"
    assert asked == [(["/usr/bin/dcgmi", "diag", "-r", str(level), "-j"], seconds)]
