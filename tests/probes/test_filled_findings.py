"""What a technician reads of twenty faults, written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from probes.findings import finding, name_gpu, name_port
from reports.orders import FilledFinding, fill
from reports.record import Finding

UUID = "GPU-0fb1a5cf-1f9e-5d1c-8a11-5f3c2a9d7e55"


def node(name: str, last: int) -> dict[str, Any]:
    return {
        "name": name,
        "address": f"10.78.0.{last}",
        "interfaces": {
            "fab0": {"address": f"10.77.0.{last}"},
            "eth0": {"address": f"10.78.0.{last}"},
        },
        "rdma": [{"device": "mlx5_0", "netdev": "fab0"}],
        "gpu_health": {"boards": [{"uuid": UUID, "index": 3, "slot": "00000000:9B:00.0"}]},
    }


CLUSTER = {
    "nodes": [node("node0", 1), node("node2", 3), node("node3", 4)],
    "terms": {"fabric": "fab0", "shared": "/shared"},
}
CASES: list[
    tuple[Finding, str, str, str]
] = [  # finding, order, second line: place$ command, mended
    (
        finding("FAB-SLOW-LINK", "slow", ["node3"]),
        "Repair the slow fabric link of node3 (fab0)",
        'node3$ ethtool -S fab0 | grep -iE "err|drop|discard|crc"',
        "The links of node3 are as fast as those of the other nodes.",
    ),
    (
        finding("FAB-PAIR-BLOCKED", "blocked", ["node2", "node3"], names={"peer": "node3"}),
        "Let node2 and node3 reach each other on the fabric: check routes and packet filters",
        "node2$ tracepath -n 10.77.0.4",
        "node2 and node3 reach each other by TCP over the fabric.",
    ),
    (
        finding("FAB-LINK-FLAPS", "flaps", ["node3"], names=name_port("eth0")),
        "Find why the link of eth0 on node3 went down or up: "
        "cable, transceiver, card or switch port",
        "node3$ ethtool -m eth0",
        "eth0 of node3 keeps its carrier during a whole run.",
    ),
    (
        finding("FAB-LINK-ERRORS", "errors", ["node3"], names=name_port("mlx5_0/1")),
        "Clean or replace cable and transceiver of fab0 on node3",
        "node3$ mlxlink -d mlx5_0 -m -c",
        "Errors per packet of fab0 stay below their limit.",
    ),
    (
        finding("FAB-MTU", "mtu", ["node2", "node3"], names={"peer": "node3", "payload": 8972}),
        "Set one MTU on the fabric of all nodes and switches",
        "node2$ ping -c 3 -M do -s 8972 10.77.0.4",
        "All nodes have the same MTU on fab0, and full-size packets pass between them.",
    ),
    (
        finding("FAB-DUPLICATE-ADDRESS", "two", ["node2"], names={"address": "10.77.0.3"}),
        "Find which machine has the address 10.77.0.3 of node2 by mistake, and give that machine "
        "another address",
        "another node$ arping -I fab0 -c 3 10.77.0.3",
        "`arping` gets answers from one hardware address only.",
    ),
    (
        finding("HOST-GPU-LOST", "lost", ["node3"], names=name_gpu(UUID, 3)),
        f"Power-cycle node3, and replace GPU {UUID} if it is lost again",
        "node3$ nvidia-smi -L",
        "`nvidia-smi -L` lists all GPUs of node3, also after a day of work.",
    ),
    (
        finding("HOST-PCIE", "narrow", ["node3"], names=name_gpu("", 3)),
        "Reseat GPU 3 in slot 00000000:9B:00.0 of node3",
        'node3$ lspci -vv -s 00000000:9B:00.0 | grep -E "LnkCap|LnkSta"',
        "GPU 3 has all lanes at full speed, and retransmits no packets.",
    ),
    (
        finding("HOST-WRONG-SUM", "wrong", ["node0"], names=name_gpu(UUID, 3)),
        f"Test GPU {UUID} in slot 00000000:9B:00.0 of node0, and replace it if a result is wrong "
        "again",
        f"node0$ nvidia-smi -q -d ECC,ROW_REMAPPER -i {UUID}",
        f"All results of GPU {UUID} are right in two runs.",
    ),
    (
        finding(
            "HOST-PORT-CLOSED",
            "closed",
            ["node2", "node3"],
            names={"node": "node3", "peer": "node2", "port": 10002, "address": "10.78.0.4"},
        ),
        "Open port 10002 from node2 to node3",
        "node3$ nft list ruleset",
        "Each port that Ray uses can be reached from every node.",
    ),
    (
        finding("HOST-NAMES", "names", ["node3"], names={"host": "gpu-3.example.com"}),
        "Make gpu-3.example.com resolve to its node on all nodes",
        "node3$ resolvectl status",
        "gpu-3.example.com resolves to its node on all nodes.",
    ),
    (
        finding("HOST-STORAGE-FULL", "full", ["node2"], names={"folder": "/mnt/lustre"}),
        "Make room in /mnt/lustre",
        "node2$ df -i /mnt/lustre",
        "/mnt/lustre has room for the agreed number of checkpoints.",
    ),
    (
        finding("HOST-MODEL-FILES", "files", ["node2"], names={"file": "/models/a.bin"}),
        "Put the same model files on node2 as on the other nodes",
        "node2$ sha256sum /models/a.bin",
        "Every node has the same files of the model.",
    ),
    (
        finding("HOST-STRAY-RAYLET", "stray", ["node0", "node2"], names={"pid": 4711}),
        "End the raylet of another cluster on node0, node2",
        "node0$ kill 4711",
        "One raylet runs on node0.",
    ),
    (
        finding("HOST-NO-ANSWER", "silent", ["node2"]),
        "Make workers start on node2",
        "node2$ tail -n 50 /tmp/ray/session_latest/logs/runtime_env_agent.log",
        "A worker answers on node2.",
    ),
    (
        finding("ENV-HARMFUL", "env", ["node0", "node3"], names={"variable": "NCCL_IB_DISABLE"}),
        "Correct NCCL_IB_DISABLE on node0, node3",
        "node0$ grep -s NCCL_IB_DISABLE /root/.nccl.conf /etc/nccl.conf",
        "NCCL_IB_DISABLE no longer has the value that this finding names.",
    ),
    (
        finding("INIT-HANG", "hang", ["rank 3 on node2"]),
        "Find why the ranks that are behind have stopped",
        "node2$ nvidia-smi",
        "All ranks complete init and each collective.",
    ),
    (
        finding("GANG-NOT-REMOVED", "stays", ["job A"], names={"job": "A"}),
        "Remove the placement group that test job A left behind",
        "the head$ ray list jobs",
        "No placement group is left after a job has ended.",
    ),
    (
        finding("RESTART-NO-FOLDER", "folder", ["node2", "node3"]),
        "Mount a shared folder on every node",
        "node2$ ls -ld /shared",
        "Each node sees the files of the other nodes in /shared.",
    ),
    (
        finding("SCALE-LINK", "links", ["node9"]),
        "Find which links slow the collectives, and repair them",
        'node9$ ethtool -S INTERFACE | grep -iE "err|drop|discard|crc"',
        "Links are as fast as agreed, and collectives take no longer in training than without "
        "training.",
    ),
    (
        finding("SCALE-THROTTLING", "hot", ["node3"]),
        "Find why steps became slower during the run: check cooling, clocks and links",
        "node3$ nvidia-smi -q -d PERFORMANCE",
        "The last minutes of a run are as fast as the first.",
    ),
]


def second(filled: FilledFinding) -> str:
    step = filled.steps[1]
    return f"{step.on}$ {step.command}"


@pytest.mark.parametrize(("one", "order", "command", "mended"), CASES)
def test_a_finding_is_filled(one: Finding, order: str, command: str, mended: str) -> None:
    filled = fill(one, CLUSTER)
    assert filled.order == order
    assert second(filled) == command
    assert filled.mended == mended


def test_twenty_kinds_are_filled() -> None:
    assert len({one.code for one, *_ in CASES}) >= 20


def test_hostile_suspects_leave_the_commands_in_capitals() -> None:
    names = ["; rm -rf /", "$(reboot)", "n\u202e1", "a\nb", "x" * 3000]
    for name in names:
        filled = fill(finding("FAB-SLOW-LINK", "slow", [name]), {"nodes": [{"name": name}]})
        assert [step.command for step in filled.steps][:1] == ["ethtool INTERFACE"]
        assert filled.order.isprintable()
        assert len(filled.order) < 200
