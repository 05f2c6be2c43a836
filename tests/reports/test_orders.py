"""Names of a case stand in its order and commands, and no name becomes a command."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from reports.orders import (
    KINDS,
    MAX_SHOWN,
    again_command,
    baseline_argument,
    break_command,
    fill,
    in_capitals,
    node_suspects,
    same_command,
    whole_command,
)
from reports.record import Finding, RepairStep, RunRecord
from reports.run_folder.integrity import load
from tests.support.paths import RECORDINGS

HOSTILE = [
    "; rm -rf /",
    "$(reboot)",
    "`reboot`",
    "node3\nrm -rf /",
    "node3 | sh",
    "-rf",
    "--config=/tmp/x",
    "n01\u202e\u200bdrowssap",
    "node3\u2028reboot",
    "a" * 5000,
    "<script>alert(1)</script>",
    "../../etc/shadow",
    "\x1b[31mnode3",
    "node3'",
    'node3"',
    "node3\x00",
    "{node}",
    "n\u00f6de",
    "\u0661\u0662",  # digits, but not of ASCII
    "",
    " ",
    "~root",
    "*",
    "\\",
]
PLAIN = {
    "node": "gpu-01.dc7.example.com",
    "peer": "node3",
    "host": "node3",
    "address": "10.77.0.4",
    "head_address": "fe80::1",
    "peer_address": "10.77.0.5",
    "ray_address": "10.78.0.5",
    "interface": "enp1s0f0np0",
    "device": "mlx5_bond_0",
    "gpu": "GPU-0fb1a5cf-1f9e-5d1c-8a11-5f3c2a9d7e55",
    "slot": "00000000:9B:00.0",
    "port": "6379",
    "folder": "/mnt/shared/a-b",
    "file": "/models/llama/model-00001.safetensors",
    "target": "https://huggingface.co:443/api",
    "variable": "NCCL_IB_HCA",
    "package": "torch",
    "job": "raysubmit_Ab12",
    "rank": "17",
    "pid": "4711",
    "payload": "8972",
    "step": "120",
}
NODE: dict[str, Any] = {
    "name": "node3",
    "address": "10.78.0.4",
    "interfaces": {"fab0": {"address": "10.77.0.4"}, "eth0": {"address": "10.78.0.4"}},
    "rdma": [{"device": "mlx5_0", "netdev": "fab0"}],
    "gpu_health": {"boards": [{"uuid": PLAIN["gpu"], "index": 5, "slot": "00000000:9B:00.0"}]},
}
CLUSTER: dict[str, Any] = {
    "nodes": [{"name": "node2", "interfaces": {"fab0": {"address": "10.77.0.3"}}}, NODE],
    "terms": {"fabric": "fab0", "shared": "/shared"},
}


def make(command: str, names: dict[str, str], **changes: Any) -> Finding:
    return Finding(
        code="X",
        statement="x",
        remedy="x",
        steps=[RepairStep(command=command, means="See {node}: `ls {node}`.", on="{node}")],
        names=names,
        **changes,
    )


def filled_command(command: str, names: dict[str, str], cluster: Any = None) -> str:
    return fill(make(command, names), cluster or {}).steps[0].command


def test_every_kind_takes_a_plain_name() -> None:
    assert PLAIN.keys() == KINDS.keys()
    for kind, name in PLAIN.items():
        assert filled_command(f"show {{{kind}}}", {kind: name}) == f"show {name}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_name_is_in_a_command(kind: str, name: str) -> None:
    command = filled_command(f"show {{{kind}}}", {kind: name})
    assert command == f"show {kind.upper()}"
    assert shlex.split(command) == ["show", kind.upper()]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_facts_are_as_hostile_as_names(name: str) -> None:
    facts = {"name": "node3", "address": name, "interfaces": {name: {"address": name}}}
    cluster = {"nodes": [facts], "terms": {"fabric": name, "shared": name}}
    command = "show {interface} {address} {ray_address} {folder} {device} {slot}"
    shown = filled_command(command, {"node": "node3"}, cluster)
    assert shown == "show INTERFACE ADDRESS RAY_ADDRESS FOLDER DEVICE SLOT"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_shows_a_cleaned_name_on_one_line(name: str) -> None:
    filled = fill(make("show", {"node": name}, order="Repair {node}"), {})
    for text in (filled.order, filled.steps[0].means, filled.steps[0].on):
        assert text.isprintable()
        assert text.count("`") == (2 if text.startswith("See") else 0)
        assert len(text) <= MAX_SHOWN + len("Repair ") + len("See : `ls NODE`.")
    assert "`ls NODE`" in filled.steps[0].means


def test_a_secret_in_a_name_is_not_shown() -> None:
    filled = fill(make("show", {"node": "HF_TOKEN=hf_abcdef"}, order="Repair {node}"), {})
    assert "hf_abcdef" not in filled.order


def test_what_a_finding_lacks_comes_from_the_facts_of_its_node() -> None:
    finding = make(
        "show {interface} {address} {ray_address} {device} {slot} {peer_address} {folder}",
        {"node": "node3", "peer": "node2", "gpu": "5"},
    )
    assert fill(finding, CLUSTER).steps[0].command == (
        "show fab0 10.77.0.4 10.78.0.4 mlx5_0 00000000:9B:00.0 10.77.0.3 /shared"
    )


def test_an_rdma_device_leads_to_its_interface() -> None:
    rails = [{"device": f"mlx5_{n}", "netdev": f"rail{n}"} for n in range(2)]
    interfaces = {f"rail{n}": {"address": f"10.0.{n}.3"} for n in range(2)}
    facts = {"name": "node3", "rdma": rails, "interfaces": interfaces}
    cluster = {"nodes": [facts], "terms": {"fabric": "rdma"}}
    show = "show {device} {interface} {address}"
    named = filled_command(show, {"node": "node3", "device": "mlx5_1"}, cluster)
    assert named == "show mlx5_1 rail1 10.0.1.3"
    assert filled_command(show, {"node": "node3"}, cluster) == "show DEVICE INTERFACE ADDRESS"


def test_names_of_the_finding_come_before_the_facts() -> None:
    names = {"node": "node3", "interface": "eth0", "folder": "/models"}
    command = filled_command("show {interface} {address} {folder} {device}", names, CLUSTER)
    assert command == "show eth0 10.78.0.4 /models DEVICE"


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"nodes": None, "terms": None},
        {"nodes": "node3", "terms": "fab0"},
        {"nodes": [None, "node3", {}, {"name": None}]},
        {"nodes": [{"name": "node3", "interfaces": [], "rdma": {}, "gpu_health": 7}]},
        {"nodes": [{"name": "node3", "interfaces": {"fab0": None}, "rdma": [None, {}]}]},
        {"nodes": [{"name": "node3", "address": 17, "gpu_health": {"boards": [None]}}]},
        {"nodes": [NODE], "terms": {"fabric": ["fab0"], "shared": {}}},
    ],
)
def test_facts_of_another_shape_leave_capitals(cluster: Any) -> None:
    names = {"node": "node3", "gpu": "9"}
    command = filled_command("show {interface} {peer_address} {folder} {slot}", names, cluster)
    assert command == "show INTERFACE PEER_ADDRESS FOLDER SLOT"


def test_a_finding_without_an_order_is_empty() -> None:
    bare = Finding.model_validate({"code": "X", "statement": "x", "suspects": ["a"], "remedy": "x"})
    filled = fill(bare, CLUSTER)
    assert (filled.order, filled.steps, filled.mended) == ("", [], "")


def test_the_nodes_of_an_order_are_its_suspects() -> None:
    suspects = ["rank 3", "job A", "mlx5_0", "rank 4 on n1", "n1", "rail 2 on n2"]
    suspects += ["mlx5_1 on n3", "fab1 on n4", "n5"]
    assert node_suspects(suspects) == ["n1", "n2", "n3", "n4", "n5"]
    finding = make("show", {}, order="Repair {nodes}", suspects=suspects)
    assert fill(finding, {}).order == "Repair n1, n2, n3, n4 and 1 more"
    assert fill(make("show", {}, order="Repair {nodes}"), {}).order == "Repair NODE"
    alone = make("show", {"node": "n7"}, order="Repair {nodes}")
    assert fill(alone, {}).order == "Repair n7"


def test_a_forged_template_stays_on_one_line() -> None:
    finding = make("ls\nreboot", {}, order="Repair\n\x1b[31mit", mended="Done\u2028now.")
    filled = fill(finding, {})
    assert filled.steps[0].command == "ls reboot"
    assert filled.order == "Repair it"
    assert filled.mended.isprintable()


def test_unknown_kinds_stay_capitals() -> None:
    assert filled_command("show {password}", {"password": "x"}) == "show PASSWORD"
    assert in_capitals("Open port {port} from {node}") == "Open port PORT from NODE"


@pytest.mark.parametrize("columns", [20, 40, 72, 1000])
def test_a_broken_command_is_the_same_command(columns: int) -> None:
    command = (
        """pgrep -o raylet | xargs -I PID cat /a | tr "\\0" "\\n" | grep -E 'GPU  Link "x" Info'"""
    )
    lines = break_command(command, columns)
    assert (
        all(len(line) <= columns or " " not in line.strip(" \\") for line in lines) or columns < 40
    )
    read_by_shell = "\n".join(lines).replace("\\\n", "")
    assert shlex.split(read_by_shell) == shlex.split(command)
    assert (len(lines) == 1) == (columns == 1000)


def test_a_command_without_words_is_no_line() -> None:
    assert break_command("", 80) == []


WHERE = "--cluster auto --contract mine.toml"
IN_CHECKOUT = f"pytest 'probes/fabric/test_fabric.py::test_x[a b]' {WHERE} --tier quick --nodes 4"
INSTALLED = f"seatrial run {WHERE} --tier quick --nodes 4 -k test_x"


def run_of(command: str, reproduce: str = IN_CHECKOUT, **changes: Any) -> RunRecord:
    """A run that was started by this command."""
    record = load(RECORDINGS / "healthy-lab")
    results = [one.model_copy(update={"reproduce": reproduce}) for one in record.results]
    return record.model_copy(update={"command": command, "results": results, **changes})


@pytest.mark.parametrize(
    ("command", "same", "whole"),
    [
        (f"seatrial run {WHERE}", f"seatrial run {WHERE}", f"seatrial run {WHERE}"),
        (
            f"seatrial run {WHERE} --only FABRIC,GANG --run-dir '/data/my run' -k 'a or b'",
            f"seatrial run {WHERE} --only FABRIC,GANG -k 'a or b'",
            f"seatrial run {WHERE}",
        ),
        (
            f"python -m pytest probes --run-dir=runs/first --tier=quick {WHERE}",
            f"python -m pytest probes --tier=quick {WHERE}",
            f"python -m pytest probes {WHERE}",
        ),
    ],
)
def test_a_run_is_repeated_in_a_folder_of_its_own(command: str, same: str, whole: str) -> None:
    """The folder of a run exists already: with it the command would be refused."""
    record = run_of(command)
    assert (same_command(record), whole_command(record)) == (same, whole)


@pytest.mark.parametrize(
    ("options", "contract"),
    [(" --nonce=seatrial-1 --contract=mine.toml --nodes=8", " --contract CONTRACT"), ("", "")],
)
def test_a_submitted_run_is_submitted_again(options: str, contract: str) -> None:
    """The machine that has its folder may have no Ray, and the record has the head's command."""
    command = f"python -m seatrial run --cluster=auto{options} --tier=quick --only=GANG"
    changes = {"command": command, "submission": "seatrial-1"}
    record = load(RECORDINGS / "tcp-fallback").model_copy(update=changes)
    whole = f"seatrial submit --address ADDRESS{contract}" + " --nodes=8" * bool(contract)
    assert whole_command(record) == whole
    assert same_command(record) == f"{whole} --tier=quick --only=GANG"
    assert again_command(record, record.results[0]) == f"{whole} --only HOSTS"
    to_pytest = f"{command} --baseline=baseline/x -- -k fabric"  # a folder of the package
    record = record.model_copy(update={"command": to_pytest})
    assert same_command(record) == f"{whole} --tier=quick --only=GANG --baseline BASELINE"
    typed = record.model_copy(update={"command": "something else"})
    assert same_command(typed) == "something else"


@pytest.mark.parametrize("reproduce", [IN_CHECKOUT, INSTALLED], ids=["checkout", "installed"])
@pytest.mark.parametrize("program", ["seatrial", "python -m seatrial"])
def test_after_a_part_that_was_repeated_comes_the_complete_run(
    program: str, reproduce: str
) -> None:
    """`again` repeats a part, and it can only repeat: it is not the command of a complete run."""
    record = run_of(f"{program} again FABRIC --run runs/first --run-dir runs/next", reproduce)
    assert whole_command(record) == f"seatrial run {WHERE} --nodes 4"
    assert same_command(record) == f"{program} again FABRIC --run runs/first"
    nothing = record.model_copy(update={"results": []})
    assert whole_command(nothing) == same_command(record), "no test began, so nothing is known"


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("--baseline runs/first", "runs/first"),
        ("--baseline=/data/runs/first/", "/data/runs/first"),
        ("--baseline '/data/week 1'", "BASELINE"),
        ("--baseline runs", "runs/first"),
        ("", "BASELINE"),
    ],
)
def test_the_baseline_is_named_as_a_folder(named: str, shown: str) -> None:
    """The option names a run or a folder of runs, the record the id of the run."""
    record = run_of(f"seatrial run {named} {WHERE}", baseline="first")
    assert baseline_argument(record) == shown
