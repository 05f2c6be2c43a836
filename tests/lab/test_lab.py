"""The lab itself: its contract of DESIGN, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import cgroups, network
from tests.lab.faults import clear, inject
from tests.lab.lab import HOMES, Lab
from tests.lab.node_init import nvml_libraries
from tests.lab.shell import LabError, sh
from tests.support.paths import REPO

COMMAND = [sys.executable, "-m", "tests.lab"]


def command(*words: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=REPO, capture_output=True, text=True, timeout=seconds, check=False
    )


def traces(name: str) -> list[str]:
    """List what a lab of this name has on the machine."""
    found = [f"netns {space}" for space in network.existing(name)]
    found += [str(path) for path in (HOMES / name, cgroups.root() / f"lab-{name}") if path.exists()]
    mounts = Path("/proc/mounts").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if f"{HOMES}/{name}" in line]
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if f"/lab-{name}/" in path.read_text():
                found.append(f"process {path.parent.name}")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_status_tells_nodes_links_and_faults(lab: Lab) -> None:
    inject(lab, "slow-link", "2", "300mbit")
    told = command("--name", lab.name, "status", "--json")
    state = json.loads(told.stdout)
    assert [node["name"] for node in state["nodes"]] == ["node0", "node1", "node2", "node3"]
    assert all(node["on"] for node in state["nodes"])
    assert [node["fab0"]["rate"] for node in state["nodes"]] == [
        "1Gbit",
        "1Gbit",
        "300Mbit",
        "1Gbit",
    ]
    assert state["nodes"][1]["eth0"] == {"address": "10.78.0.2", "rate": "200Mbit"}
    assert state["faults"] == [["slow-link", "2", "300mbit"]]
    assert "300Mbit -> 1Gbit" in clear(lab)[0]


def test_a_node_is_a_machine_of_its_own(lab: Lab) -> None:
    node = lab.nodes[3]
    assert node.run("hostname").strip() == "node3"
    assert node.run("sh", "-c", "ls /sys/class/net").split() == ["eth0", "fab0", "lo"]
    assert node.run("getent", "hosts", "node0").split()[0] == "10.78.0.1"
    assert "default" not in node.run("ip", "route")
    boot_ids = {one.run("cat", "/proc/sys/kernel/random/boot_id") for one in lab.nodes}
    assert len(boot_ids) == 4, "nodes look like one machine"
    assert Path("/proc/sys/kernel/random/boot_id").read_text() not in boot_ids
    node.run("sh", "-c", "echo here > /tmp/mine; echo all > /shared/ours")
    assert lab.nodes[0].run("sh", "-c", "cat /tmp/mine 2>&1 || true").startswith("cat:")
    assert lab.nodes[0].run("cat", "/shared/ours") == "all\n"
    assert int(node.run("sh", "-c", "ps ax | wc -l")) < 40, "it sees other nodes' processes"
    assert not Path("/shared/ours").exists(), "the host sees the lab's shared folder"


def test_exec_hands_on_the_exit_code(lab: Lab) -> None:
    assert command("--name", lab.name, "exec", "1", "--", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["exec", "9", "true"], "no node '9'"),
        (["fault", "slow-link", "1", "lots"], "a rate is written as tc does"),
        (["fault", "slow-cpu", "1", "7"], "a share is a fraction of one CPU"),
        (["fault", "block-pair", "1", "1"], "a pair is two nodes"),
        (["fault", "kill-node", "0"], "kill another node"),
        (["fault", "same-machine", "2", "2"], "a pair is two nodes"),
        (["fault", "nvml", "1", "gpus=7"], "has no NVML"),
        (["fault", "lose-packets", "1", "both", "3"], "a way is sends or receives"),
        (["fault", "lose-packets", "1", "sends", "60"], "a loss is 0.01 to 50 percent"),
        (["fault", "lose-packets", "1", "sends", "0"], "a loss is 0.01 to 50 percent"),
        (["fault", "lose-packets", "1", "sends", "nan"], "a loss is 0.01 to 50 percent"),
        (["fault", "flap-link", "1", "6", "6"], "a link is down for 0.1 s or more of a longer"),
        (["fault", "flap-link", "1", "1", "9999"], "up to an hour, as 1 of 6, found '1' of '9999'"),
        (["fault", "detour", "1", "1"], "a pair is two nodes"),
        (["fault", "duplicate-address", "3", "3"], "a pair is two nodes"),
        (["fault", "gemm", "1", "slow"], "a GEMM is wrong or fails"),
        (["up", "--nodes", "5"], "is up with 4 nodes"),
        (["up", "--nodes", "4", "--nvml"], "NVML: no), 4 nodes (GPUs of each: 1; NVML: yes)"),
        (["up", "--nodes", "4", "--auth", "token"], "NVML: no; authentication: token) were asked"),
        (["fault", "open-dashboard"], "asks for no token: start it with `up --auth token`"),
        (["fault", "flood"], "No such command"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    lab: Lab, words: list[str], says: str
) -> None:
    told = command("--name", lab.name, *words)
    assert told.returncode == 4
    assert says in told.stderr
    assert "Traceback" not in told.stderr
    assert lab.state["faults"] == []


def test_up_twice_is_up_once(lab: Lab) -> None:
    before = [node.pid for node in lab.nodes]
    assert command("--name", lab.name, "up", "--nodes", "4").returncode == 0
    assert [node.pid for node in lab.nodes] == before


def test_workers_run_the_code_that_was_shipped(lab: Lab) -> None:
    script = (
        "from probes.cluster.cluster import connect; c = connect('auto')\n"
        "def where(): import probes, scaling; return [probes.__file__, scaling.__file__]\n"
        "print(sorted(f for fs in c.on_each_node(where).values() for f in fs)); c.close()\n"
    )
    told = lab.nodes[0].run("env", f"PYTHONPATH={REPO}", sys.executable, "-c", script, seconds=120)
    assert told.count("/runtime_resources/py_modules_files/") == 8
    assert str(REPO) not in told


def test_the_host_joins_no_cluster_of_a_lab(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host sees the lab's raylets, but has no way to them: nothing is sent."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words = [sys.executable, "-m", "probes.cli.main", "run", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 4, said
    assert "found Ray at 10.78.0.1:6379 in another network namespace" in said
    assert "Traceback" not in said
    node = lab.nodes[0].run(sys.executable, "-c", FIND, seconds=60)
    assert node.strip() == "10.78.0.1:6379"


FIND = "from probes.cluster.address import find_address as f; print(f('auto'))"


def test_a_second_lab_lives_beside_the_first(lab: Lab) -> None:
    other = Lab("second")
    try:
        other.up(1)
        assert other.nodes[0].run("hostname").strip() == "node0"
        assert other.nodes[0].run("sh", "-c", "ls /shared").strip() == ""
        assert all(node.pid for node in lab.nodes)
    finally:
        other.down()
    assert traces("second") == []
    assert all(node.pid for node in lab.nodes)
    assert lab.nodes[1].run("sh", "-c", "mount | grep -c ' /shared '").strip() == "2"


def test_down_after_a_crash_leaves_nothing(lab: Lab) -> None:
    up = subprocess.Popen([*COMMAND, "--name", "crash", "up", "--nodes", "2"], cwd=REPO)
    deadline = time.monotonic() + 60
    while not any("process" in trace for trace in traces("crash")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(up.pid, signal.SIGKILL)
    up.wait()
    assert traces("crash"), "the crash came too early to leave anything"
    assert command("--name", "crash", "down").returncode == 0
    assert traces("crash") == []
    assert command("--name", "crash", "down").returncode == 0, "down is safe to repeat"


def test_a_killed_command_takes_its_lab_down() -> None:
    run = subprocess.Popen(
        [*COMMAND, "--name", "ended", "run", "--nodes", "1", "--", "sleep", "600"], cwd=REPO
    )
    deadline = time.monotonic() + 60
    while "sleep" not in sh("ps", "-eo", "args") and time.monotonic() < deadline:
        time.sleep(0.2)
    run.terminate()
    run.wait(timeout=60)
    assert traces("ended") == []


def test_without_root_one_sentence_names_the_way_out() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT RUN: needs root to become somebody else")
    script = (
        # All imports first: the other user may not be allowed to read this Python's library.
        "import os, sys; sys.path.insert(0, '.')\n"
        "from tests.lab.shell import require_machine\n"
        "os.setuid(65534); require_machine()"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=False
    )
    last = told.stderr.strip().splitlines()[-1]
    assert "needs root" in last
    assert "--cluster local" in last


def test_a_lab_that_is_down_says_how_to_start_one() -> None:
    with pytest.raises(LabError, match="up --nodes 4"):
        _ = Lab("nothing").state


def test_the_hosts_nvml_is_found_where_the_loader_looks() -> None:
    """What the loader's cache says is read right: each is hidden in a node."""
    cache = (
        "1021 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1\n"
        "\tlibnvidia-ml.so.1 (libc6) => /usr/lib/i386-linux-gnu/libnvidia-ml.so.1\n"
        "\tlibm.so.6 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libm.so.6\n"
    )
    assert nvml_libraries(cache) == [
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "/usr/lib/i386-linux-gnu/libnvidia-ml.so.1",
    ]
