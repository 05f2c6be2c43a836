"""`seatrial plan`: what a run would do; it tests nothing and can never pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from probes.check.owed import disturbances_of
from probes.check.registry import CRITERIA, all_probes
from probes.cli.main import main
from probes.cluster import address
from probes.cluster.address import ClusterUnreachable
from tests.support.paths import REPO

NOTHING = "PLAN: nothing was tested"


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


def section(output: str, criterion: str) -> str:
    """The lines of one criterion, on one line."""
    text = output.partition(f"\n{criterion}  ")[2].partition("\n\n")[0]
    return " ".join(text.split())


@pytest.mark.parametrize("tier", ["quick", "standard", "soak"])
def test_each_probe_of_the_tier_is_shown_with_what_it_disturbs(tier: str) -> None:
    result = plan("--contract", "lab", "--tier", tier)
    assert result.exit_code == 0
    tiers = ("quick", "standard", "soak")
    count = 0
    for duty in all_probes():
        text = section(result.output, duty.criterion).replace("- ", "-")
        runs = tiers.index(duty.tier) <= tiers.index(tier)
        count += runs
        assert (duty.probe.partition("::")[2] in text) is runs, duty
        for words in disturbances_of(duty.probe) if runs else ():
            assert words in section(result.output, duty.criterion), words
    assert f"{count} tests" in result.output
    for id, row in CRITERIA.items():
        assert all(need in section(result.output, id) for need in (row.where, *row.needs))


def test_a_plan_says_whose_commands_are_typed_and_as_whom(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["schema = 1", "[launch]", 'document = "https://x.example/g.md"']
    lines += ["[launch.values]", '"TRAIN" = "rm -rf ~; {command}"', ""]
    (empty_folder / "c.toml").write_text("\n".join(lines))
    ours = section(plan("--contract", "lab").output, "LAUNCH")
    assert "commands the commands of seatrial's own guide run as" in ours
    monkeypatch.setattr("probes.launch.shell.why_no_other_user", lambda own_guide: "no right to")
    monkeypatch.setattr("os.getuid", lambda: 0)
    theirs = section(plan("--contract", "./c.toml").output, "LAUNCH")
    assert "commands of the operator's guide https://x.example/g.md: it cannot create" in theirs
    assert "commands" not in section(plan("--contract", "lab").output, "FABRIC")


def test_a_plan_is_no_result(empty_folder: Path) -> None:
    result = plan("--contract", "lab")
    lines = result.output.splitlines()
    assert lines[-1] == NOTHING
    assert not list(empty_folder.iterdir()), "nothing is written"
    for word in ("ACCEPTED", "PASS", "exit 0"):
        assert word not in result.output
    assert all(len(line) <= 80 for line in lines)


def test_the_usual_time_has_its_source_and_no_gpu() -> None:
    output = " ".join(plan("--contract", "h100-ndr400", "--nodes", "8").output.split())
    assert "ordered 8 nodes, 8 accelerators each" in output
    assert (
        "Times come from a lab of 4 nodes without GPUs (docs/develop/measurements.md). "
        "Expect other times on your cluster." in output
    )
    assert section(plan("--only", "fabric").output, "FABRIC").count("time about 26 s") == 1
    assert "time not measured" in section(plan().output, "HOSTS")
    soak = " ".join(plan("--tier", "soak").output.split())
    assert f"total {len(all_probes())} tests, not measured Times come from" in soak
    assert "total 18 tests, about 4 min" in " ".join(plan("--contract", "lab").output.split())


def test_only_and_a_shorter_tier_are_partial() -> None:
    output = " ".join(
        plan("--contract", "h100-ndr400", "--tier", "quick", "--only", "GANG").output.split()
    )
    assert (
        "PARTIAL only GANG was asked for (--only); tier quick was run, and the contract" in output
    )
    assert not any(f" {id} " in output for id in set(CRITERIA) - {"GANG"})


def test_what_a_contract_cannot_prove_is_said() -> None:
    assert "unproven not provable here: " in section(plan("--contract", "local").output, "FABRIC")
    assert "not provable" not in plan("--contract", "h100-ndr400").output


def test_without_a_contract_nothing_can_be_accepted() -> None:
    output = " ".join(plan().output.split())
    assert (
        "contract none: limits are derived from the cluster, and the run cannot be accepted"
        in output
    )
    assert "ordered number of nodes not given" in output


def test_the_clusters_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read_size(spec: str) -> tuple[int, int]:
        asked.append(spec)
        return 7, 56

    monkeypatch.setattr(address, "read_size", read_size)
    output = plan("--cluster", "auto").output
    assert "cluster     7 nodes, 56 GPUs, as Ray counts them now\n" in output
    assert asked == ["auto"]
    assert "\ncluster " not in plan().output
    output = plan("--cluster", "local:3").output
    assert "3 raylets, which the run starts on this host" in output
    assert asked == ["auto"], "an embedded cluster is not started, and none is joined unasked"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tier", "standart"], "did you mean standard?"),
        (["--cluster", "atuo"], "did you mean auto?"),
        (["--contract", "lba"], "did you mean 'lab'?"),
        (["--contract", "lab", "--nodes", "x"], "expected a whole number"),
        (["--run-dir", "x"], "No such option '--run-dir'"),
    ],
)
def test_what_is_refused(arguments: list[str], says: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 4
    assert says in result.output
    assert NOTHING not in result.output


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: str) -> tuple[int, int]:
        raise ClusterUnreachable("no Ray at 10.0.0.1:6379 (from RAY_ADDRESS: timed out)")

    monkeypatch.setattr(address, "read_size", refuse)
    result = plan("--cluster", "auto")
    assert (result.exit_code, NOTHING in result.output) == (4, False)
    assert "no Ray at 10.0.0.1:6379" in result.output


def test_a_plan_from_a_contract_imports_no_ray() -> None:
    code = """
import sys
from probes.cli.main import main
try: main(['plan', '--contract', 'lab'])
except SystemExit: print('ray' in sys.modules, 'torch' in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == [NOTHING, "False False"]


@pytest.mark.parametrize(("words", "ordered"), [([], "8 to 12 nodes"), (["9"], "9 to 12 nodes")])
def test_a_plan_says_how_many_nodes_may_be_there(
    empty_folder: Path, words: list[str], ordered: str
) -> None:
    text = "schema = 1\n[cluster]\nnodes = 8\nnodes_at_most = 12\n"
    (empty_folder / "grows.toml").write_text(text)
    result = plan("--contract", "./grows.toml", *(["--nodes", *words] if words else []))
    assert ordered in result.output
