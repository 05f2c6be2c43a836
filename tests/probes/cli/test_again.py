"""`seatrial again`: a part of a run, as the run was started."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from probes.cli import run as module
from probes.cli.command import UsageError
from probes.cli.main import main
from probes.contract.contract import load
from reports.acceptance import load_summary
from reports.record import ContractFacts, ProbeResult, RunRecord
from reports.run_folder.integrity import load as load_run
from tests.support.paths import RECORDINGS, REPO
from tests.support.run_folders import rewrite
from tests.support.signing import finished_run
from tests.support.stand_in import CONTRACT, GOOD, STAND_IN

pytest_plugins = ["pytester", "tests.support.stand_in_suite"]
PARTIAL = "PARTIAL a part of a run can fail, but is never accepted\n"


@dataclasses.dataclass
class Started:
    """Calls of run_suite, which are not run."""

    calls: list[tuple[dict[str, Any], list[str]]] = dataclasses.field(default_factory=list)

    def __call__(self, values: dict[str, Any], to_pytest: list[str]) -> int:
        given = {key: value for key, value in values.items() if value is not None}
        self.calls.append((given, to_pytest))
        return 20


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    found = Started()
    monkeypatch.setattr(module, "run_suite", found)
    return found


def again(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["again", *map(str, words)])


def test_a_run_is_repeated_as_it_was_started(
    suite: Any, pytester: pytest.Pytester, started: Started
) -> None:
    pytester.makeconftest(STAND_IN)  # what it owes is what `again` verifies here
    suite("--tier", "quick", "--nodes", "2", broken=GOOD)
    before = sorted(path.name for path in (pytester.path / "run").iterdir())
    result = again("gang", "FABRIC", "--run", "run", "--run-dir", "next", "--", "--maxfail", "1")
    assert result.exit_code == 20, result.output
    where = "--cluster auto --tier quick --contract agreed.toml --nodes 2"
    line = f"again seatrial run {where} --only FABRIC,GANG --run-dir next\n"
    assert result.output == line + PARTIAL
    ((values, to_pytest),) = started.calls
    assert values == {
        "cluster": "auto", "tier": "quick", "contract": "agreed.toml", "nodes": "2",
        "only": "FABRIC,GANG", "run_dir": "next",
    }  # fmt: skip
    assert to_pytest == ["--maxfail", "1"]
    assert sorted(path.name for path in (pytester.path / "run").iterdir()) == before

    (pytester.path / "agreed.toml").write_text(CONTRACT + "# another line\n")
    result = again("GANG", "--run", "run")
    assert result.exit_code == 4
    assert "error: contract agreed.toml changed since run run: sha256 " in result.output
    (pytester.path / "agreed.toml").unlink()
    result = again("GANG", "--run", "run")
    assert (result.exit_code, len(result.output.splitlines())) == (4, 1)
    assert "error: the contract of run run cannot be used: " in result.output
    assert len(started.calls) == 1


def test_the_again_line_of_a_finding_can_be_pasted(suite: Any, pytester: pytest.Pytester) -> None:
    suite("--nodes", "2", broken=GOOD)
    (line, *_) = {one.reproduce for one in load_run(pytester.path / "run").results}
    program, *words = shlex.split(line)
    assert (program, words[-2:]) == ("pytest", ["--nodes", "2"])
    result = pytester.runpytest_subprocess("-p", "probes.plugin", *words, "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["1 test collected*"])


def test_what_a_repetition_changed_is_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = folder_from("local:2", tmp_path)
    criteria = {row.criterion.id: row.verdict for row in load_summary(run).rows}

    def fake(values: dict[str, Any], to_pytest: list[str]) -> int:
        shutil.copytree(RECORDINGS / made, tmp_path / str(values["run_dir"]))
        return 20

    monkeypatch.setattr(module, "run_suite", fake)
    for made in ("healthy-atlas", "tcp-fallback"):
        result = again("fabric", "gang", "--run", run, "--run-dir", f"next-{made}")
        now = {row.criterion.id: row.verdict for row in load_summary(RECORDINGS / made).rows}
        said = result.output.splitlines()[-2:]
        for id, line in zip(("FABRIC", "GANG"), said, strict=True):
            word = module.CHANGES[criteria[id].accepted, now[id].accepted]
            was, new = criteria[id].value, now[id].value
            assert line == f"{word}: {id} was {was} in run run, is {new} now"


@pytest.mark.parametrize("made", [False, True], ids=["no folder", "no record"])
def test_without_a_new_run_nothing_is_compared(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Started
) -> None:
    monkeypatch.chdir(tmp_path)
    if made:
        (tmp_path / "next").mkdir()
    result = again("FABRIC", "--run", folder_from("local:2", tmp_path), "--run-dir", "next")
    assert result.exit_code == 20
    assert result.output.endswith(PARTIAL)


def record_of(reproduce: str, contract: str = "lab", **cluster: Any) -> RunRecord:
    """A record of a run with one result, under a shipped contract, or under none."""
    none = ContractFacts(name="derived", agreed=False, criteria=[])
    agreed = load(contract).facts() if contract else none
    result = ProbeResult(probe="p", criterion="GANG", claim="c", reproduce=reproduce)
    return RunRecord(
        id="run-1", started="2026-11-20T22:17:03Z", command="x", tier="quick", contract=agreed,
        results=[result], cluster={"kind": "ray", **cluster},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            record_of("pytest x --cluster auto --tier soak --contract lab"),
            {"cluster": "auto", "tier": "soak", "contract": "lab"},
        ),
        (
            record_of("pytest x --cluster auto --tier quick --contract lab", terms={"nodes": 4}),
            {"cluster": "auto", "tier": "quick", "contract": "lab", "nodes": "4"},
        ),
        (
            record_of("pytest x --cluster local:4 --tier quick --contract lab", kind="local",
                      terms={"nodes": 4}),
            {"cluster": "local:4", "tier": "quick", "contract": "lab"},
        ),
        (
            record_of("pytest 'a b[c]' --cluster ray://h:1 --tier quick", ""),
            {"cluster": "ray://h:1", "tier": "quick"},
        ),
    ],
    ids=["contract", "nodes of its terms", "embedded", "no contract"],
)  # fmt: skip
def test_what_a_record_says_of_its_start(
    record: RunRecord, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = module.read_options(record)
    assert {key: value for key, value in found.items() if value is not None} == expected


@pytest.mark.parametrize(
    "reproduce",
    [
        "",
        "again",
        "rm -rf / --cluster auto",
        "pytest x --cluster auto --run-dir /etc",
        "pytest x -p evil --cluster auto",
        "pytest x",
        "pytest 'x --cluster auto",
    ],
)
def test_a_record_that_says_something_else_is_refused(reproduce: str) -> None:
    with pytest.raises(UsageError, match="run run-1 cannot be repeated"):
        module.read_options(record_of(reproduce))


def test_a_folder_with_a_contract_is_refused_where_the_run_had_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seatrial.toml").write_text(CONTRACT)
    with pytest.raises(
        UsageError, match=r"had no contract, but the repetition would use seatrial\.toml"
    ):
        module.read_options(record_of("pytest x --cluster auto --tier quick", ""))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["GAGN", "--run", "run"], "CRITERION is GAGN, expected some of FABRIC, SCALING"),
        (["GANG"], "no run folder was given, and runs/ has no run. Give the path of a run"),
        (["--run", "run"], "Missing argument 'CRITERION...'"),
        (["GANG", "--run", "no-such-run"], "no-such-run"),
        (["GANG", "--run", "run", "--tier", "soak"], "No such option '--tier'"),
        (["GANG", "--run", "run"], "its record has no usable command"),
    ],
)
def test_what_is_refused(
    words: list[str], says: str, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished_run(), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    result = again(*words)
    assert (result.exit_code, started.calls) == (4, [])
    assert says in result.output
    assert len(result.output.splitlines()) == 1


def test_a_run_that_does_not_verify_is_not_repeated(tmp_path: Path, started: Started) -> None:
    shutil.copytree(finished_run(), tmp_path / "run")
    events = tmp_path / "run" / "events.jsonl"
    events.write_text(events.read_text().replace("--contract lab", "--contract lib"))
    result = again("GANG", "--run", tmp_path / "run")
    assert (result.exit_code, started.calls) == (4, [])
    assert "does not verify" in result.output


def folder_from(cluster: str, folder: Path, more: str = "") -> Path:
    """Write a consistent folder of a run that names a cluster, and no contract but in `more`."""
    run = shutil.copytree(finished_run(), folder / "run")
    line = f"pytest x --cluster {cluster} --tier quick{more}"
    old, new = '"reproduce": "again"', json.dumps({"reproduce": line})[1:-1]
    record = run / "record.json"
    record.write_text(record.read_text().replace(old, new))
    rewrite(run, lambda events: json.loads(json.dumps(events).replace(old, new)))
    return run


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """Listen as the head of somebody else does; yield its address and who connected."""
    seen: list[str] = []
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):  # closed: the test ends
            while True:
                door, who = server.accept()
                seen.append(str(who))
                door.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"ray://127.0.0.1:{server.getsockname()[1]}", seen
    server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    server.close()


def test_a_folder_alone_makes_no_connection(
    listener: tuple[str, list[str]], tmp_path: Path
) -> None:
    """A folder of somebody else that holds in itself: its address is not believed."""
    address, seen = listener
    run = folder_from(address, tmp_path)
    words = [sys.executable, "-m", "probes.cli.main", "again", "GANG", "--run"]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    begun = subprocess.run(
        [*words, str(run)], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert seen == []
    assert begun.returncode == 4, begun.stdout + begun.stderr
    assert begun.stdout == ""
    assert begun.stderr == (
        f"error: run run was on {address}, an address that only the run folder names. A cluster "
        "that seatrial joins can run code on this machine. If you trust that cluster, enter: "
        f"seatrial again GANG --run {run} --cluster {address}\n"
    )
    begun = subprocess.run(
        [*words, str(run), "--cluster", address], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert begun.returncode == 4
    assert seen  # the user asked for it; no Ray answers there
    assert f"again seatrial run --cluster {address} " in begun.stdout


@pytest.mark.parametrize("cluster", ["auto", "local", "local:3"])
def test_a_cluster_of_this_machine_needs_no_repetition(
    cluster: str, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEATRIAL_CLUSTER", "ray://elsewhere:1")  # of other commands
    result = again("GANG", "--run", folder_from(cluster, tmp_path))
    assert result.exit_code == 20, result.output
    assert [values["cluster"] for values, _ in started.calls] == [cluster]


@pytest.mark.parametrize(
    "cluster",
    [
        "ray://h:1", "'ray://h; rm -rf ~:1'", "10.0.0.1:6379", "AUTO", "'local:3 '", "local:99",
        "locale", "auto,ray://h:1", "''", "http://h:8265", "'\x1b[2Jray://h:1'",
    ],
)  # fmt: skip
def test_each_other_cluster_is_repeated_by_the_user(
    cluster: str, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = folder_from(cluster, tmp_path)
    result = again("FABRIC", "gang", "--run", run, "--run-dir", "my next", "--", "-x")
    assert (result.exit_code, started.calls) == (4, [])
    assert len(result.output.splitlines()) == 1
    assert "\x1b" not in result.output
    (command,) = re.findall(r"enter: seatrial (again .*)$", result.output) or [""]
    if cluster == "ray://h:1":
        result = again(*shlex.split(command)[1:])
        assert result.exit_code == 20, result.output
        ((values, to_pytest),) = started.calls
        assert (values["cluster"], values["run_dir"], to_pytest) == (cluster, "my next", ["-x"])


def test_the_user_may_name_another_cluster(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head has another address by now: what is given counts, and the folder's is said."""
    monkeypatch.chdir(tmp_path)
    result = again(
        "GANG", "--run", folder_from("ray://old:1", tmp_path), "--cluster", "ray://new:1"
    )
    assert result.exit_code == 20, result.output
    assert [values["cluster"] for values, _ in started.calls] == ["ray://new:1"]
    assert "run run was on ray://old:1. The new run is on ray://new:1\n" in result.output


@pytest.mark.parametrize("name", ["run/contract.toml", "./run/../run/contract.toml", "link.toml"])
def test_a_folder_brings_no_contract_of_its_own(
    name: str, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contract is a program, and each run folder has the one of its run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.toml").symlink_to("run/contract.toml")
    run = folder_from("local:2", tmp_path, f" --contract {name}")
    result = again("LAUNCH", "--run", run)
    assert (result.exit_code, started.calls) == (4, [])
    assert result.output == (
        f"error: the contract of run run is {name}, a file in the run folder itself. A contract "
        "can run commands, so seatrial uses none from a run folder. Read the file, copy it to "
        "another folder, and start `seatrial run --contract` with the copy\n"
    )


def test_a_contract_next_to_the_folder_is_taken(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = folder_from("local:2", tmp_path, " --contract agreed.toml")
    shutil.copy(run / "contract.toml", tmp_path / "agreed.toml")
    result = again("LAUNCH", "--run", run)
    assert result.exit_code == 20, result.output
    monkeypatch.chdir(run)  # a shipped contract's name is no file here
    assert again("LAUNCH", "--run", ".").exit_code == 4  # agreed.toml is not at hand
    assert len(started.calls) == 1
