"""An operator's guide as it is typed: its values, its variables, and what it skips."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.environment.rules import RULES
from probes.launch import test_launch
from probes.launch.guide import (
    Command,
    GuidedCluster,
    LaunchPath,
    find_settings,
    lint_guide,
    own_guide,
    parse_guide,
)
from probes.launch.judge import find_harmful_settings, judge_guide
from probes.launch.shell import User
from reference_trainer.rank_environment import TUNING_VARIABLES
from reports.measurement import Verdict
from tests.probes.environment.test_lint import node
from tests.support.controls import MemoryRecorder
from tests.support.controls import recorder as recorder_of
from tests.support.launched_job import cluster_of, launched, transcript

H100 = "NVIDIA H100 80GB HBM3"


def operators(text: str, gpu: str = H100, fabric: str | None = "rdma", **values: str) -> Any:
    """The operator's guide, for two nodes with such GPUs."""
    cluster = cluster_of()
    cluster.facts = [{"node": one["id"], "environment": {}} for one in cluster.nodes]
    cluster.on_each_node = lambda _: {one["id"]: node(gpus=[gpu]) for one in cluster.nodes}
    launch = LaunchTerms(document="ours.md", values={"JOB": "{command}", **values})
    terms = ClusterTerms(launch=launch, fabric=fabric)
    return GuidedCluster(cluster, terms, parse_guide("ours.md", f"```sh\n{text}\n```\n"))


def judged(path: Any, recorder: MemoryRecorder, said: Any = None, given: Any = ()) -> Any:
    """Judge a guide; unless `said` is given, its job's ranks have what its lines set."""
    typed = [] if path.guide.own else path.guide.typed(path.terms.launch.values)
    has = {name: value for _, name, value in find_settings(typed)}
    settings = find_harmful_settings(path, said or transcript(**has), given, recorder)
    judge_guide(path.guide, ["n0", "n1"], recorder, path.terms.launch.values, settings)
    return recorder.finish("finished", 1.0)


def test_what_a_value_brings_in_is_judged_as_it_is_typed(recorder: MemoryRecorder) -> None:
    values = {
        "my job": "sudo -E /root/fix.sh; ssh head1 {command} --master 10.1.2.3",
        "VENV": "/home/operator/venv",
        "SETUP": "# first\nsudo true",
    }
    path = operators("START my job\nsource VENV/bin/activate\nSETUP\ntrue JOB", **values)
    result = judged(path, recorder)
    assert result.measurements[0].value == 3
    assert {(one.suspects[0], one.statement.split(":")[0]) for one in result.findings} == {
        ("line 2", "line 2 of the guide logs in to another machine (ssh)"),
        ("line 2", "line 2 of the guide names one user's home (/root)"),
        ("line 2", "line 2 of the guide names a fixed address (10.1.2.3)"),
        ("line 3", "line 3 of the guide names one user's home (/home/operator)"),
        ("line 4", "line 4 of the guide runs a command as root (sudo)"),
    }


def test_what_a_value_hides_is_still_in_the_guide(recorder: MemoryRecorder) -> None:
    result = judged(operators("sudo start JOB", **{"sudo start": ""}), recorder)
    assert result.measurements[0].value == 1


def test_a_finding_shows_no_secret_of_a_value(recorder: MemoryRecorder) -> None:
    values = {"LOGIN": "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345 && sudo true"}
    (finding,) = judged(operators("LOGIN\ntrue JOB", **values), recorder).findings
    assert "hf_abc" not in finding.statement
    assert "HF_TOKEN=<redacted>" in finding.statement


@pytest.mark.near_miss("LAUNCH.guide_faults")
def test_what_seatrial_fills_in_is_not_accused(recorder: MemoryRecorder) -> None:
    """The addresses, folders and options of its own are right on this cluster."""
    values = {
        "CODE": "{folder}",
        "DATA": "{shared}",
        "PLACE": "{dashboard}",
        "JOB": "{command} --n {name}",
    }
    path = operators("cd CODE; ls DATA\nexport RAY_API_SERVER_ADDRESS=PLACE\nJOB", **values)
    terms = path.terms.model_copy(update={"shared": "/home/shared"})
    path.cluster.dashboard = "http://10.0.0.1:8265"
    ours = LaunchPath(path.cluster, terms, path.guide, User(Path("/root")))
    typed = ours.script("seatrial-1", Path("/root/job"), ["--set", "NCCL_MNNVL_ENABLE=0"])
    assert "10.0.0.1" in typed
    assert "/root/job" in typed
    assert "NCCL_MNNVL_ENABLE=0" in typed
    result = judged(replace(path, terms=terms), recorder)
    assert (result.measurements[0].value, result.findings) == (0, [])


@pytest.mark.near_miss("LAUNCH.guide_faults")
def test_our_own_guide_has_no_fault_with_any_launcher(recorder: MemoryRecorder) -> None:
    path = replace(operators("true JOB"), guide=own_guide(), terms=ClusterTerms(fabric="fab0"))
    given = ["--set", "NCCL_MNNVL_ENABLE=0"]
    noted = covered(recorder)
    for launcher in LaunchTerms().launchers:
        typist = LaunchPath(path.cluster, path.terms, path.guide, User(Path("/tmp")))
        script = typist.script("seatrial-1", Path("/tmp"), ["--launcher", launcher])
        lines = [Command(number, line) for number, line in enumerate(script.splitlines(), 1)]
        assert (lint_guide(lines, ["n0", "node1"]), [*find_settings(lines)]) == ([], [])
    result = judged(path, recorder, transcript(NCCL_MNNVL_ENABLE="0"), given)
    assert (result.measurements[0].value, result.findings, noted) == (0, [], [])


def covered(recorder: MemoryRecorder) -> list[str]:
    """Keep what the probe says of its coverage, which a trial drops."""
    said: list[str] = []
    vars(recorder)["covered"] = said.append
    return said


HARMFUL = "NCCL_P2P_DISABLE=1 NCCL_NET_GDR_LEVEL=LOC NCCL_PROTO=LL NCCL_MAX_NCHANNELS=1"


@pytest.mark.parametrize(
    "line",
    [
        f"export {HARMFUL} CUDA_LAUNCH_BLOCKING=1\nJOB",
        "NCCL_P2P_DISABLE=1 JOB",
        "env TORCH_NCCL_ASYNC_ERROR_HANDLING=0 JOB",
        "srun --export=ALL,NCCL_PROTO=LL,X=1 JOB",
        "docker run -e 'NCCL_IB_DISABLE=1' JOB",
        """ray job submit --runtime-env-json '{"env_vars": {"NCCL_P2P_DISABLE": "1"}}' -- JOB""",
        "cat > env.yaml <<END\nenv_vars:\n  NCCL_IB_TIMEOUT: 0\nEND\nJOB",
        "cat > job.yaml <<END\n- name: NCCL_NET\n  value: Socket\nEND\nJOB",
        'ray job submit --runtime-env-json "{\\"env_vars\\": {\\"NCCL_PROTO\\": \\"LL\\"}}" JOB',
    ],
)
def test_a_variable_that_slows_or_hangs_jobs_is_a_fault_of_its_line(
    line: str, recorder: MemoryRecorder
) -> None:
    result = judged(operators(line), recorder)
    measured = result.measurements[0]
    assert (measured.value, measured.verdict) == (1, Verdict.FAIL)
    assert {finding.code for finding in result.findings} == {"LAUNCH-GUIDE"}
    assert all(" sets " in finding.statement for finding in result.findings)


def test_each_variable_has_its_reason(recorder: MemoryRecorder) -> None:
    result = judged(operators(f"export {HARMFUL} CUDA_LAUNCH_BLOCKING=1\nJOB"), recorder)
    assert len(result.findings) == 4
    assert result.findings[0].statement == (
        "line 2 of the guide sets NCCL_P2P_DISABLE=1: `export NCCL_P2P_DISABLE=1 "
        "NCCL_NET_GDR_LEVEL=LOC NCCL_PROTO=LL NCCL_MAX_NCHANNELS=1 CUDA_LAUNCH_BLOCKING=1`. "
        "Expected: commands that work for any user, on any cluster (GPUs of a node do not use "
        "NVLink)."
    )


@pytest.mark.near_miss("LAUNCH.guide_faults")
@pytest.mark.parametrize(
    "line",
    [
        "export NCCL_DEBUG=INFO NCCL_P2P_LEVEL=NVL NCCL_IB_DISABLE=0",
        "export NCCL_SOCKET_IFNAME=$FABRIC NCCL_PROTO=${NCCL_PROTO:-LL} NCCL_ALGO=<yours>",
        "# never NCCL_P2P_DISABLE=1",
        "true # not NCCL_P2P_DISABLE=1",
        "echo use no NCCL_P2P_DISABLE=1",
        "grep NCCL_P2P_DISABLE=1 job.log",
        "echo $NCCL_P2P_DISABLE=1 > log; unset NCCL_P2P_DISABLE",
        "export NCCL_BUFFSIZE=8388608 NCCL_PROTO=LL,LL128,Simple NCCL_ALGO=Ring,Tree",
        "export NCCL_NET_GDR_LEVEL=LOC NCCL_IB_DISABEL=1 NCCL_MAX_NCHANNELS=8",
        "export NCCL_P2P_DISABLE=0 TORCH_NCCL_ASYNC_ERROR_HANDLING=3 CUDA_LAUNCH_BLOCKING=0",
    ],
)
def test_variables_that_do_no_harm_are_no_fault(line: str, recorder: MemoryRecorder) -> None:
    result = judged(operators(f"{line}\nJOB"), recorder)
    assert (result.measurements[0].value, result.findings) == (0, [])


@pytest.mark.near_miss("LAUNCH.guide_faults")
def test_a_variable_that_may_do_harm_is_noted_with_its_reason(recorder: MemoryRecorder) -> None:
    noted = covered(recorder)
    result = judged(operators("export NCCL_BUFFSIZE=8388608\nJOB"), recorder)
    assert (result.measurements[0].value, result.findings) == (0, [])
    (note,) = noted
    assert note.endswith("NCCL_BUFFSIZE=8388608 (it overrides what this NCCL version would choose)")


@pytest.mark.parametrize(("nodes_without", "faults"), [(0, 0), (1, 1), (2, 1)])
def test_what_all_nodes_have_alike_is_left_to_fabric(
    nodes_without: int, faults: int, recorder: MemoryRecorder
) -> None:
    """FABRIC judges it, and measures with it."""
    path, has = operators("export NCCL_PROTO=LL\nJOB"), [node({"NCCL_PROTO": "LL"})] * 2
    nodes = [node()] * nodes_without + has
    path.cluster.on_each_node = lambda _: dict(zip(("id0", "id1"), nodes, strict=False))
    assert judged(path, recorder).measurements[0].value == faults


@pytest.mark.parametrize(
    ("line", "gpu", "fabric", "faults"),
    [
        ("NCCL_IB_DISABLE=1 JOB", H100, "rdma", 1),
        ("NCCL_IB_DISABLE=1 JOB", H100, "fab0", 0),
        ("NCCL_IB_DISABLE=1 JOB", H100, None, 0),
        ("NCCL_MNNVL_ENABLE=0 JOB", "NVIDIA GB200", "rdma", 1),
    ],
)
def test_the_fabric_and_the_boards_decide(
    line: str, gpu: str, fabric: str | None, faults: int, recorder: MemoryRecorder
) -> None:
    assert judged(operators(line, gpu, fabric), recorder).measurements[0].value == faults


def test_a_node_that_does_not_answer_proves_nothing(recorder: MemoryRecorder) -> None:
    path = operators("export NCCL_DEBUG=WARN\nJOB")
    path.cluster.on_each_node = lambda _: {"id0": node()}
    assert judged(path, recorder).measurements[0].verdict is Verdict.UNPROVEN


@pytest.mark.near_miss("LAUNCH.guide_faults")
@pytest.mark.parametrize(
    "line",
    [
        "sed -i /NCCL_P2P_DISABLE=1/d env.sh",
        "! env | grep -q NCCL_P2P_DISABLE=1",
        "export NCCL_P2P_DISABLE=1; unset NCCL_P2P_DISABLE",
        "true && echo NCCL_P2P_DISABLE=1 is wrong",
    ],
)
def test_a_line_whose_variable_no_rank_has_is_no_fault(line: str, recorder: MemoryRecorder) -> None:
    result = judged(operators(f"{line}\nJOB"), recorder, transcript())
    assert (result.measurements[0].value, result.findings) == (0, [])


def test_sockets_beside_a_plugins_fabric_are_no_fault(recorder: MemoryRecorder) -> None:
    line = "export NCCL_SOCKET_IFNAME=eth0"
    bad = judged(operators(f"{line}\nJOB", fabric="fab0"), recorder)
    assert bad.measurements[0].value == 1
    more = "NCCL_FASTRAK_IFNAME=fab0"
    found = find_harmful_settings(
        operators(f"{line} {more}\nJOB", fabric="fab0"),
        transcript(NCCL_SOCKET_IFNAME="eth0"), (), recorder_of("LAUNCH"),
    )  # fmt: skip
    assert found == []


@pytest.mark.parametrize("filler", [" ", "\\", "\n", "A", ",", '"', " ,"])
def test_a_hostile_guide_is_read_in_bounded_time(filler: str) -> None:
    """Time grows with the text: of 20 times the text, by less than its square."""
    seconds = []
    for size in (5_000, 100_000):
        lines = [Command(n, line) for n, line in enumerate(f"NCCL_A{filler * size}".split("\n"))]
        started = time.process_time()
        list(find_settings(lines))
        seconds.append(time.process_time() - started)
    assert seconds[1] < 0.05 + 100 * seconds[0]


# What a file or module of the guide sets: the job's ranks have it.


def test_a_harmful_variable_that_no_line_shows_is_found_in_the_ranks(
    recorder: MemoryRecorder,
) -> None:
    path = operators("source env.sh\nJOB")
    result = judged(path, recorder, transcript(NCCL_P2P_DISABLE="1"))
    assert result.measurements[0].value == 1
    (finding,) = result.findings
    assert finding.statement.startswith(
        "the guide's job, by no line of the guide, sets NCCL_P2P_DISABLE=1: `in the environment "
        "of rank 1`."
    )


@pytest.mark.near_miss("LAUNCH.guide_faults")
def test_a_harmless_difference_of_the_ranks_is_a_note(recorder: MemoryRecorder) -> None:
    said, noted = transcript(NCCL_SOCKET_IFNAME="=fab0"), covered(recorder)
    result = judged(operators("source env.sh\nJOB"), recorder, said)
    assert (result.measurements[0].value, result.findings) == (0, [])
    assert noted == ["the guide or its job sets what FABRIC did not have: NCCL_SOCKET_IFNAME==fab0"]


def test_ranks_say_all_variables_that_rules_call_harmful() -> None:
    """Others than these are rare, or one rule has the same effect."""
    harmful = {rule.variable for rule in RULES if rule.severity.rdma == "fail"}
    unsaid = harmful - {*TUNING_VARIABLES}
    assert unsaid == {
        *("NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_TOPO_FILE", "NCCL_CUMEM_HOST_ENABLE"),
        "NCCL_ASYNC_ERROR_HANDLING",
    }


def test_values_of_kubernetes_and_lists_are_read_whole() -> None:
    text = ["x --export=NCCL_IB_HCA=mlx5_0,mlx5_1,A=1", "- name: NCCL_NET", "  value: 'IB'"]
    lines = [
        Command(number, line) for number, line in enumerate([*text, "{NCCL_NTHREADS: 2, B: 3}"], 1)
    ]
    assert [(line.line, name, value) for line, name, value in find_settings(lines)] == [
        (1, "NCCL_IB_HCA", "mlx5_0,mlx5_1"),
        (2, "NCCL_NET", "IB"),
        (4, "NCCL_NTHREADS", "2"),
    ]


# What is not typed.


def test_blocks_that_are_skipped_are_said_with_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    block = "<!-- seatrial: skip -->\n```sh\nmodule load x\nmake\n```\n"
    text = f"{block}```sh\ntrue JOB\n```\n<!-- seatrial: skip -->\n\n```\nls\n```\n"
    guide = parse_guide("ours.md", text)
    assert guide.skipped == ((3, 4), (12, 12))
    jobs = launched(guide=guide)
    monkeypatch.setattr(test_launch, "launch_jobs", lambda *_: jobs)
    cluster, recorder = cluster_of(on_gpu=False), recorder_of("LAUNCH")
    terms = LaunchTerms(document="ours.md", values={"JOB": "{command}"})
    lab = ClusterTerms(accelerators="emulated", fabric="fab0", management="eth0", launch=terms)
    noted = covered(recorder)
    test_launch.test_documented_path_starts_a_correct_job(cluster, lab, recorder)
    said = (
        "seatrial did not type 2 blocks of the guide, marked with `<!-- seatrial: skip -->`: lines"
    )
    assert noted[0] == f"{said} 3 to 4, 12 to 12"
    assert own_guide().skipped == ()
