"""What LAUNCH makes of a guide's job: measures, findings and controls."""

from __future__ import annotations

from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.launch import judge
from probes.launch.guide import own_guide, parse_guide
from probes.launch.shell import Transcript
from probes.launch.training import JobBytes
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.launched_job import (
    SENT,
    bytes_of,
    cluster_of,
    guided,
    identity,
    transcript,
)


def judged(recorder: Recorder, said: Transcript, on_gpu: bool = True) -> ProbeResult:
    path = guided(cluster_of(on_gpu=on_gpu))
    judge.judge_training(judge.judge_ranks(path, said, recorder), said, recorder)
    return recorder.finish("finished", 1.0)


def verdicts(result: ProbeResult) -> dict[str, Verdict | None]:
    return {one.name: one.verdict for one in result.measurements if one.judged}


def red(result: ProbeResult) -> set[str]:
    return {name for name, verdict in verdicts(result).items() if verdict is not Verdict.PASS}


@pytest.mark.near_miss(
    "LAUNCH.ranks_with_other_weights",
    "LAUNCH.ranks_with_other_validation",
    "LAUNCH.misplaced_samples",
    "LAUNCH.wrong_exports",
)
def test_a_sound_job_passes(recorder: Recorder) -> None:
    result = judged(recorder, transcript())
    assert red(result) == set()
    assert len(verdicts(result)) == 11
    assert result.findings == []


@pytest.mark.near_miss("LAUNCH.time_to_first_step", "LAUNCH.exit_code")
def test_a_first_step_after_nearly_five_minutes_is_in_time(recorder: Recorder) -> None:
    said = transcript()
    said.first_step = 299.0
    assert red(judged(recorder, said)) == set()


def test_a_first_step_after_more_than_five_minutes_fails(recorder: Recorder) -> None:
    said = transcript()
    said.first_step = 301.0
    assert red(judged(recorder, said)) == {"time_to_first_step"}


@pytest.mark.near_miss("LAUNCH.wrong_ranks", "LAUNCH.ranks")
def test_ranks_that_announce_themselves_again_are_no_more_ranks(recorder: Recorder) -> None:
    """As after a restart, among other output, and in another order."""
    said = transcript()
    again = [line.replace("attempt=1", "attempt=2") for line in said.lines[:2]]
    said.lines = [*said.lines[:2], "WARNING: rank 0 was lost", *again[::-1], *said.lines[2:]]
    assert red(judged(recorder, said)) == set()


def test_a_wrong_rank_fails_and_the_finding_tells_found_and_expected(recorder: Recorder) -> None:
    result = judged(recorder, transcript(MASTER_ADDR="127.0.0.1"))
    assert red(result) == {"wrong_ranks"}
    [finding] = result.findings
    assert finding.code == "LAUNCH-ENV"
    assert finding.statement == (
        "rank 1 on n1: MASTER_ADDR:MASTER_PORT is 127.0.0.1:29500. "
        "Expected: 10.0.0.1:29500, as on rank 0."
    )
    assert finding.suspects == ["rank 1", "n1"]


def test_a_rank_elsewhere_is_a_finding_of_its_own(recorder: Recorder) -> None:
    result = judged(recorder, transcript(node="stranger", host="far"))
    assert verdicts(result)["wrong_ranks"] is Verdict.FAIL
    assert ("LAUNCH-ELSEWHERE", ["rank 1", "far"]) in [
        (finding.code, finding.suspects) for finding in result.findings
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


def test_a_command_that_fails_is_a_finding_and_no_rank_is_accused(recorder: Recorder) -> None:
    said = transcript(exit_code=1)
    # No rank came to its end, so none says what it trained.
    said.lines = [*said.lines[:2], "Error: it broke"]
    result = judged(recorder, said)
    assert verdicts(result)["exit_code"] is Verdict.FAIL
    assert verdicts(result)["loss_ratio"] is Verdict.UNPROVEN
    [finding] = result.findings
    assert (finding.code, "it broke" in finding.statement) == ("LAUNCH-FAILED", True)


def test_a_job_that_announces_no_rank_proves_nothing(recorder: Recorder) -> None:
    result = judged(recorder, Transcript(["done"], 0, first_step=9.0))
    assert verdicts(result)["wrong_ranks"] is Verdict.UNPROVEN
    assert verdicts(result)["ranks"] is Verdict.FAIL
    assert Verdict.PASS not in {
        verdicts(result)[name] for name in ("ranks_with_other_weights", "misplaced_samples")
    }


# What the job trained.


@pytest.mark.parametrize(
    ("change", "broken", "code", "says"),
    [
        ({"start": "zz"}, "ranks_with_other_weights", "LAUNCH-WEIGHTS",
         "rank 1 on n1: the hash of the weights before the first step is zz, on other ranks aa."),
        ({"end": "zz"}, "ranks_with_other_weights", "LAUNCH-WEIGHTS", "the last step is zz"),
        ({"end": None}, "ranks_with_other_weights", "LAUNCH-WEIGHTS", "the last step is missing"),
        ({"validation": "zz"}, "ranks_with_other_validation", "LAUNCH-DATA", "data is zz"),
        ({"samples": "0-79", "seen": 80}, "misplaced_samples", "LAUNCH-DATA",
         "rank 0, rank 1 on n0, n1: trained on the same samples 0, 1, 2, 3, 8, 9, 10, 11 and 32"),
        ({"seen": 84}, "misplaced_samples", "LAUNCH-DATA",
         "rank 1 on n1: trained 4 times on a sample that it had already used."),
        ({"samples": "4-7", "seen": 4}, "misplaced_samples", "LAUNCH-DATA",
         "no rank trained on samples 12, 13, 14, 15,"),
        ({"exported": "ee"}, "wrong_exports", "LAUNCH-EXPORT",
         "rank 0, rank 1 exported the model. Expected: only rank 0 exports it."),
        ({"loaded_loss": "3.6"}, "export_error", "LAUNCH-EXPORT", "5.9 % off the trained"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.islower() else None,
)  # fmt: skip
def test_what_one_rank_trains_otherwise_is_named(
    recorder: Recorder, change: dict[str, Any], broken: str, code: str, says: str
) -> None:
    result = judged(recorder, transcript(**change))
    assert red(result) == {broken}
    assert verdicts(result)[broken] is Verdict.FAIL
    assert {finding.code for finding in result.findings} == {code}
    assert any(says in finding.statement for finding in result.findings), result.findings


def test_no_export_is_wrong_too(recorder: Recorder) -> None:
    said = transcript(loaded=None, loaded_loss=None)
    said.lines = [line.replace(" exported=dd", "") for line in said.lines]
    result = judged(recorder, said)
    assert verdicts(result)["wrong_exports"] is Verdict.FAIL
    assert verdicts(result)["export_error"] is Verdict.UNPROVEN
    statement = result.findings[0].statement
    assert statement == "no rank exported the model. Expected: only rank 0 exports it."


def test_an_export_that_another_file_was_loaded_for_proves_nothing(recorder: Recorder) -> None:
    assert red(judged(recorder, transcript(loaded="ee"))) == {"export_error"}


@pytest.mark.near_miss("LAUNCH.metric_error", "LAUNCH.export_error", "LAUNCH.loss_ratio")
def test_what_rounding_does_is_no_error(recorder: Recorder) -> None:
    said = transcript(loaded_loss="3.43")
    said.lines = [
        line.replace("loss 5.6000", "loss 5.6020").replace("loss 3.7000", "loss 3.7010")
        for line in said.lines
    ]
    assert red(judged(recorder, said)) == set()


def logged(said: Transcript, old: str, new: str) -> Transcript:
    said.lines = [line.replace(old, new) if "loss" in line else line for line in said.lines]
    return said


def test_the_loss_of_one_rank_is_not_the_mean(recorder: Recorder) -> None:
    result = judged(recorder, logged(transcript(), "loss 5.5000", "loss 5.5050"))
    assert red(result) == {"metric_error"}
    expected = (
        "the loss that the job logged for step 2 is 0.09 % off the mean of its ranks. "
        "Expected: the mean of all ranks."
    )
    assert [finding.statement for finding in result.findings] == [expected]


@pytest.mark.parametrize("loss", ["nan", "inf", "no-number"])
def test_a_loss_that_is_no_number_passes_nothing(recorder: Recorder, loss: str) -> None:
    said = logged(transcript(), "loss 3.7000", f"loss {loss}")
    assert {"metric_error", "loss_ratio"} <= red(judged(recorder, said))


def test_a_step_that_was_not_logged_proves_no_mean(recorder: Recorder) -> None:
    said = transcript()
    said.lines = [line for line in said.lines if not line.startswith("step 7/")]
    assert red(judged(recorder, said)) == {"metric_error"}


def test_a_loss_that_stays_fails(recorder: Recorder) -> None:
    result = judged(recorder, logged(transcript(), "loss 3.7000", "loss 5.5000"))
    assert verdicts(result)["loss_ratio"] is Verdict.FAIL
    assert (
        "the logged loss was 5.60 in the first step and 5.50 after 20 steps. "
        "Expected: it falls clearly."
    ) in [finding.statement for finding in result.findings]


# The guide, and who follows it.


def test_our_own_guide_has_no_fault(recorder: Recorder) -> None:
    judge.judge_guide(own_guide(), ["node0", "node1"], recorder)
    assert red(recorder.finish("finished", 1.0)) == set()


def test_each_faulty_line_of_a_guide_is_named(recorder: Recorder) -> None:
    text = "# Start\n```sh\nmodule load ray\nsudo ray start\nssh node3 ls\n```\n"
    judge.judge_guide(parse_guide("ours.md", text), ["node3"], recorder)
    result = recorder.finish("finished", 1.0)
    assert (result.measurements[0].value, red(result)) == (2, {"guide_faults"})
    assert result.findings[0].statement == (
        "line 4 of the guide runs a command as root (sudo): `sudo ray start`. Expected: commands "
        "that work for any user, on any cluster (an ordinary user has no right to do this)."
    )
    assert [finding.suspects for finding in result.findings] == [["line 4"], ["line 5"], ["line 5"]]


@pytest.mark.parametrize(
    ("said", "why_same", "verdict"),
    [
        pytest.param(
            *(identity(), "", Verdict.PASS),
            marks=pytest.mark.near_miss("LAUNCH.rights_of_user"),
            id="ordinary",
        ),
        pytest.param(identity(0), "", Verdict.FAIL, id="root"),
        pytest.param(identity(1000, 27), "", Verdict.FAIL, id="of-a-group"),
        pytest.param(identity(), "only root can", Verdict.UNPROVEN, id="same-user"),
        pytest.param(Transcript(["id: not found"], 127), "", Verdict.UNPROVEN, id="silent"),
    ],
)
def test_who_follows_the_guide_is_judged(
    recorder: Recorder, said: Transcript, why_same: str, verdict: Verdict
) -> None:
    judge.judge_user(said, why_same, recorder)
    result = recorder.finish("finished", 1.0)
    assert verdicts(result) == {"rights_of_user": verdict}
    codes = {finding.code for finding in result.findings}
    assert codes == ({"LAUNCH-USER"} if verdict is Verdict.FAIL else set())


# The network of the job's own bytes.


def judged_network(
    recorder: Recorder,
    sent: JobBytes,
    said: Transcript | None = None,
    fabric: str = "fab0",
    idle: JobBytes | None = None,
) -> Any:
    said = said or transcript()
    job = judge.read_job(guided(cluster_of()), said)
    judge.judge_network(job, fabric, sent, said, recorder, idle)
    return recorder.finish("finished", 1.0)


@pytest.mark.near_miss("LAUNCH.share_on_agreed_network")
def test_control_traffic_of_ray_beside_a_sound_job_passes(recorder: Recorder) -> None:
    sent = bytes_of(fab0=SENT, eth0=3_000_000)
    sent.sent["n1"]["eth0"] = 50_000_000  # the head sends the job's code to many nodes
    result = judged_network(recorder, sent)
    assert (red(result), result.measurements[0].value) == (set(), 1.0)


@pytest.mark.near_miss("LAUNCH.share_on_agreed_network")
def test_traffic_that_was_there_before_the_job_is_not_taken_for_its_own(
    recorder: Recorder,
) -> None:
    sent, idle = bytes_of(fab0=SENT, eth0=50 * SENT), bytes_of(fab0=0, eth0=5 * SENT)
    sent.seconds, idle.seconds = 20.0, 2.0
    result = judged_network(recorder, sent, idle=idle)
    assert (red(result), result.measurements[0].value) == (set(), 1.0)


@pytest.mark.parametrize(
    "sent",
    [
        {"rdma": SENT, "eth0": 14_000_000},  # storage traffic over RDMA, the job's on eth0
        {"rdma": 4_800_000, "eth0": 11_200_000},  # 30 % and 70 % of a job in fp32
        {"rdma": SENT, "eth0": 7_000_000, "eth1": 7_000_000},
    ],
    ids=["storage", "fp32", "two others"],
)
def test_bytes_of_a_job_that_left_the_fabric_do_not_pass_by_those_of_others(
    recorder: Recorder, sent: dict[str, int]
) -> None:
    result = judged_network(recorder, bytes_of(**sent), fabric="rdma")
    assert verdicts(result) == {"share_on_agreed_network": Verdict.UNPROVEN}
    assert "eth0 on n0 sent" in result.measurements[0].note
    assert "these may be the job's bytes" in result.measurements[0].note


def test_a_job_that_leaves_the_fabric_on_one_node_is_named(recorder: Recorder) -> None:
    sent = bytes_of()
    sent.sent["n1"] = {"fab0": 20_000, "eth0": SENT}
    result = judged_network(recorder, sent)
    assert verdicts(result) == {"share_on_agreed_network": Verdict.FAIL}
    [finding] = result.findings
    assert (finding.code, finding.suspects) == ("LAUNCH-NETWORK", ["n1"])
    assert finding.statement == (
        "the agreed fabric (fab0) carried only 0.2 % of the job's bytes on n1. "
        "On n1, eth0 sent 40 MB. Expected: fab0 carries the job's bytes."
    )


def test_a_node_without_a_rank_carries_nothing_and_is_not_accused(recorder: Recorder) -> None:
    sent = bytes_of(3)
    sent.sent["n2"] = {"fab0": 0, "eth0": 1000}
    assert red(judged_network(recorder, sent)) == set()


@pytest.mark.parametrize(
    "sent",
    [bytes_of(nodes=1), bytes_of(fab0=None, eth0=SENT), bytes_of(eth0=SENT), JobBytes()],
    ids=["one-node-silent", "unreadable", "no-such-device", "nobody"],
)
def test_bytes_that_are_not_known_prove_nothing(recorder: Recorder, sent: JobBytes) -> None:
    assert verdicts(judged_network(recorder, sent)) == {"share_on_agreed_network": Verdict.UNPROVEN}


def test_a_job_that_sent_nothing_known_proves_no_network(recorder: Recorder) -> None:
    for said in (Transcript(["done"], 0), transcript(exit_code=1)):
        result = judged_network(recorder, bytes_of(fab0=0), said)
        assert verdicts(result) == {"share_on_agreed_network": Verdict.UNPROVEN}
