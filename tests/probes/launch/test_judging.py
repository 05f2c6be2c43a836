"""What LAUNCH makes of a transcript: measures, findings and its control."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.acceptance.measure import Recorder
from probes.launch.documented_path import Transcript
from probes.launch.test_launch import (
    control_missing_variable,
    doctored_options,
    judge_transcript,
)
from reports.measurement import Verdict
from reports.record import ProbeResult

NODES = [{"id": f"id{i}", "name": f"n{i}", "address": f"10.0.0.{i + 1}"} for i in range(2)]


def stand_in(on_gpu: bool = True) -> Any:
    """A cluster of two nodes with one GPU each."""
    return SimpleNamespace(size=2, known_nodes=lambda: NODES, facts=[], on_gpu=on_gpu)


def transcript(exit_code: int = 0, **change: Any) -> Transcript:
    """What a sound job prints; `change` replaces a variable of rank 1, None removes it."""
    lines = []
    for rank in range(2):
        announced = {"node": f"id{rank}", "host": f"n{rank}", "RANK": rank, "WORLD_SIZE": 2,
                     "LOCAL_RANK": 0, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": 29500}  # fmt: skip
        row = {**announced, **(change if rank else {})}
        lines.append("attempt=1 " + " ".join(f"{k}={v}" for k, v in row.items() if v is not None))
    lines += [f"trained RANK={rank} device=cuda:0 gpu=uuid-{rank}" for rank in range(2)]
    return Transcript(lines, exit_code, "ray job submit" if exit_code else "", first_step=9.0)


def judged(recorder: Recorder, said: Transcript, on_gpu: bool = True) -> ProbeResult:
    judge_transcript(stand_in(on_gpu), said, recorder)
    return recorder.finish("finished", 1.0)


def verdicts(result: ProbeResult) -> dict[str, Verdict | None]:
    return {measurement.name: measurement.verdict for measurement in result.measurements}


def test_a_sound_job_passes(recorder: Recorder) -> None:
    result = judged(recorder, transcript())
    assert set(verdicts(result).values()) == {Verdict.PASS}
    assert set(verdicts(result)) == {"wrong_ranks", "exit_code", "ranks", "time_to_first_step"}
    assert result.findings == []


@pytest.mark.near_miss("LAUNCH.time_to_first_step", "LAUNCH.exit_code")
def test_a_first_step_after_nearly_five_minutes_is_in_time(recorder: Recorder) -> None:
    said = transcript()
    said.first_step = 299.0
    assert set(verdicts(judged(recorder, said)).values()) == {Verdict.PASS}


def test_a_first_step_after_more_than_five_minutes_fails(recorder: Recorder) -> None:
    said = transcript()
    said.first_step = 301.0
    assert verdicts(judged(recorder, said))["time_to_first_step"] is Verdict.FAIL


@pytest.mark.near_miss("LAUNCH.wrong_ranks", "LAUNCH.ranks")
def test_ranks_that_announce_themselves_again_are_no_more_ranks(recorder: Recorder) -> None:
    """As after a restart, among other output, and in another order."""
    said = transcript()
    again = [line.replace("attempt=1", "attempt=2") for line in said.lines[:2]]
    said.lines = [*said.lines[:2], "WARNING: rank 0 was lost", *again[::-1], *said.lines[2:]]
    assert set(verdicts(judged(recorder, said)).values()) == {Verdict.PASS}


def test_a_wrong_rank_fails_and_the_finding_tells_found_and_expected(recorder: Recorder) -> None:
    result = judged(recorder, transcript(MASTER_ADDR="127.0.0.1"))
    assert verdicts(result)["wrong_ranks"] is Verdict.FAIL
    [finding] = result.findings
    assert finding.code == "LAUNCH-ENV"
    expected = "rank 1 on n1: MASTER is 127.0.0.1:29500. Expected: 10.0.0.1:29500, as on rank 0."
    assert finding.statement == expected
    assert finding.suspects == ["rank 1", "n1"]


def test_a_rank_elsewhere_is_a_finding_of_its_own(recorder: Recorder) -> None:
    result = judged(recorder, transcript(node="stranger", host="far"))
    assert verdicts(result)["wrong_ranks"] is Verdict.FAIL
    assert [(f.code, f.suspects) for f in result.findings] == [
        ("LAUNCH-ELSEWHERE", ["rank 1", "far"])
    ]


def test_ranks_with_one_problem_are_one_finding(recorder: Recorder) -> None:
    said = transcript()
    said.lines = [line.replace("device=cuda:0", "device=cpu") for line in said.lines]
    result = judged(recorder, said)
    [wrong] = [each for each in result.measurements if each.name == "wrong_ranks"]
    assert (wrong.value, wrong.verdict) == (2, Verdict.FAIL)
    assert [(f.code, f.suspects) for f in result.findings] == [
        ("LAUNCH-DEVICE", ["rank 0", "rank 1", "n0", "n1"])
    ]


def test_the_cpu_is_right_where_accelerators_are_emulated(recorder: Recorder) -> None:
    said = transcript()
    said.lines = [line.replace("device=cuda:0", "device=cpu") for line in said.lines]
    assert judged(recorder, said, on_gpu=False).findings == []


def test_a_command_that_fails_is_a_finding_and_no_rank_is_accused(
    recorder: Recorder,
) -> None:
    said = transcript(exit_code=1)
    # No rank came to its end, so none says on what device.
    said.lines = [*said.lines[:2], "Error: it broke"]
    result = judged(recorder, said)
    assert verdicts(result)["exit_code"] is Verdict.FAIL
    [finding] = result.findings
    assert (finding.code, "it broke" in finding.statement) == ("LAUNCH-FAILED", True)


def test_a_job_that_announces_no_rank_proves_nothing(recorder: Recorder) -> None:
    result = judged(recorder, Transcript(["done"], 0, first_step=9.0))
    assert verdicts(result)["wrong_ranks"] is Verdict.UNPROVEN
    assert verdicts(result)["ranks"] is Verdict.FAIL


def without(setting: str = "MASTER_PORT=29500", exit_code: int = 1, lines: int = 2) -> Transcript:
    said = transcript(exit_code)
    said.lines = [line.replace(f" {setting}", "") for line in said.lines[:lines]]
    said.first_step = None
    return said


@pytest.mark.parametrize(
    ("said", "caught"),
    [
        (without(lines=1), True),
        (without(exit_code=0, lines=1), False),
        (without(exit_code=-9, lines=1), False),  # it hung, and was killed when its time was up
        (without(), False),  # it was launched by as many ranks as ever
        (without("MASTER_ADDR=10.0.0.1", lines=1), False),  # the job failed, too
        (without("WORLD_SIZE=2", lines=1), False),
        (transcript(1, node="stranger"), False),
        (Transcript(["nothing"], 1), None),
    ],
)
def test_the_control_is_caught_for_its_own_fault_alone(
    recorder: Recorder, said: Transcript, caught: bool | None
) -> None:
    control_missing_variable(stand_in(), said, recorder)
    [control] = recorder.finish("finished", 1.0).controls
    assert control.caught is caught


@pytest.mark.parametrize(("size", "fewer"), [(1, None), (2, "1"), (16, "15")])
def test_the_control_takes_a_rank_away_where_one_is_left(size: int, fewer: str | None) -> None:
    workers = ["--workers", fewer] if fewer else []
    assert doctored_options(size) == ["--unset", "MASTER_PORT", *workers]


def test_a_single_rank_is_controlled_for_all_but_the_number_of_ranks(recorder: Recorder) -> None:
    cluster, said = stand_in(), without(lines=1)
    cluster.size = 1
    said.lines = [line.replace("WORLD_SIZE=2", "WORLD_SIZE=1") for line in said.lines]
    control_missing_variable(cluster, said, recorder)
    [control] = recorder.finish("finished", 1.0).controls
    assert control.caught is True
    assert control.proves == ["wrong_ranks", "exit_code", "time_to_first_step"]
