"""The ranks that the documented path starts, judged."""

from __future__ import annotations

from typing import Any

import pytest

from probes.launch.ranks import (
    AnnouncedJob,
    NodeIdentity,
    WrongRank,
    all_lack,
    identify_nodes,
    is_loopback,
    wrong_ranks,
)
from probes.launch.training import (
    announced_ranks,
    count_job_parameters,
    ids_of,
    logged_losses,
    numbers_of,
)

Rows = list[dict[str, str]]


def ranks(nodes: int = 2, per_node: int = 2) -> Rows:
    """What a sound job announces: `per_node` ranks, each with a GPU, on each of `nodes` nodes."""
    return [
        {"node": f"id{node}", "host": f"n{node}", "RANK": str(node * per_node + local),
         "WORLD_SIZE": str(nodes * per_node), "LOCAL_RANK": str(local),
         "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": str(node),
         "LOCAL_WORLD_SIZE": str(per_node), "device": "cuda:0", "gpu": f"uuid-{node}-{local}"}
        for node in range(nodes) for local in range(per_node)
    ]  # fmt: skip


def known(count: int = 2, one_host: bool = False) -> dict[str, NodeIdentity]:
    """The nodes n0, n1, ... of the cluster under test."""
    identities = {}
    for i in range(count):
        address = "10.0.0.1" if one_host else f"10.0.0.{i + 1}"
        aliases = frozenset({address, f"n{i}.cluster.example", f"10.9.0.{i + 1}", "127.0.0.1"})
        identities[f"id{i}"] = NodeIdentity(f"n{i}", address, aliases)
    return identities


def judged(rows: Rows, size: int = 4, on_gpu: bool = True, **more: Any) -> list[WrongRank]:
    nodes = more.pop("nodes", None) or known()
    return wrong_ranks(AnnouncedJob(rows, size, nodes, on_gpu, **more))


def said(wrong: list[WrongRank]) -> dict[str, tuple[str, str]]:
    return {each.rank: (each.problem.code, each.problem.found) for each in wrong}


def test_right_ranks_are_right() -> None:
    assert judged(ranks()) == []


def test_a_launcher_may_number_the_nodes_as_torchrun_does() -> None:
    rows = ranks()
    for row in rows:
        row["GROUP_RANK"] = row["NODE_RANK"]
    assert judged(rows) == []
    del rows[2]["GROUP_RANK"]
    assert said(judged(rows)) == {"2": ("LAUNCH-ENV", "GROUP_RANK not set")}


@pytest.mark.parametrize(
    ("rank", "name", "value", "found"),
    [
        (1, "MASTER_PORT", None, "MASTER_PORT not set"),
        (0, "MASTER_ADDR", None, "MASTER_ADDR not set"),
        (2, "LOCAL_RANK", None, "LOCAL_RANK not set"),
        (1, "WORLD_SIZE", None, "WORLD_SIZE not set"),
        (3, "LOCAL_WORLD_SIZE", None, "LOCAL_WORLD_SIZE not set"),
        (2, "NODE_RANK", None, "NODE_RANK not set"),
        (3, "GROUP_RANK", "4", "GROUP_RANK is 4"),
        (2, "WORLD_SIZE", "3", "WORLD_SIZE is 3"),
        (3, "MASTER_ADDR", "10.0.0.9", "MASTER_ADDR:MASTER_PORT is 10.0.0.9:29500"),
        (3, "MASTER_PORT", "29501", "MASTER_ADDR:MASTER_PORT is 10.0.0.1:29501"),
        (1, "LOCAL_RANK", "zero", "LOCAL_RANK is 'zero'"),
        (1, "LOCAL_RANK", "2", "LOCAL_RANK is 2"),
        (3, "LOCAL_WORLD_SIZE", "4", "LOCAL_WORLD_SIZE is 4"),
        (2, "NODE_RANK", "2", "NODE_RANK is 2"),
    ],
)
def test_a_wrong_variable_is_named(rank: int, name: str, value: str | None, found: str) -> None:
    rows = ranks()
    if value is None:
        del rows[rank][name]
    else:
        rows[rank][name] = value
    assert said(judged(rows))[str(rank)] == ("LAUNCH-ENV", found)


def test_a_rank_that_is_missing_is_wrong_and_its_neighbour_is_not() -> None:
    wrong = judged([row for row in ranks() if row["RANK"] != "0"])
    assert said(wrong) == {"0": ("LAUNCH-ENV", "no process reported this rank")}


def test_a_rank_that_is_there_twice_is_wrong_and_so_is_the_one_it_replaces() -> None:
    rows = ranks()
    rows[3]["RANK"] = "2"
    assert [(each.rank, each.problem.found) for each in judged(rows)] == [
        ("2", "2 processes have RANK 2"),
        ("2", "2 processes have RANK 2"),
        ("3", "no process reported this rank"),
    ]


def test_a_rank_beyond_the_world_is_wrong() -> None:
    rows = [*ranks(), {**ranks()[3], "RANK": "7"}]
    assert said(judged(rows))["7"] == ("LAUNCH-ENV", "RANK is 7")


def test_local_ranks_that_do_not_count_from_0_are_wrong() -> None:
    """100 to 107 on nodes of eight."""
    rows = ranks(2, 8)
    for row in rows:
        row["LOCAL_RANK"] = str(100 + int(row["LOCAL_RANK"]))
    wrong = judged(rows, 16)
    assert len(wrong) == 16
    assert wrong[0].problem.found == "LOCAL_RANK is 100"
    assert wrong[0].problem.expected.startswith("0 to 7")


def test_a_local_rank_that_is_there_twice_is_wrong() -> None:
    rows = ranks()
    rows[3]["LOCAL_RANK"] = "0"
    found = ("LAUNCH-ENV", "2 ranks of a node have LOCAL_RANK 0")
    assert said(judged(rows)) == {"2": found, "3": found}


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [("0000", "0123"), ("1100", ""), ("0122", "0123"), ("0111", "0123")],
)
def test_each_node_has_a_number_of_its_own(numbers: str, wrong: str) -> None:
    rows = ranks()
    for row, number in zip(rows, numbers, strict=True):
        row["NODE_RANK"] = number
    assert list(said(judged(rows))) == [*wrong]


def test_a_rank_on_another_cluster_is_wrong_with_its_host() -> None:
    rows = ranks()
    rows[2] |= {"node": "elsewhere0123", "host": "far"}
    wrong = judged(rows)
    assert said(wrong) == {"2": ("LAUNCH-ELSEWHERE", "the rank ran on node elsewher of host far")}
    assert wrong[0].host == "far"


def test_a_whole_job_on_another_cluster_is_wrong() -> None:
    """All its variables are right: it is the cluster that is not ours."""
    wrong = judged(ranks(), nodes={"other": NodeIdentity("n9", "10.1.0.1", frozenset())})
    assert [each.problem.code for each in wrong] == ["LAUNCH-ELSEWHERE"] * 4


def test_a_job_on_a_smaller_cluster_is_elsewhere_before_its_size_is_wrong() -> None:
    """Seen live: the size is what was named, and the cluster was not."""
    row = {**ranks()[0], "node": "elsewhere0123", "host": "far", "WORLD_SIZE": "1"}
    wrong = said(judged([row]))
    assert wrong["0"] == ("LAUNCH-ELSEWHERE", "the rank ran on node elsewher of host far")


def test_a_rank_that_does_not_say_where_it_ran_is_wrong() -> None:
    rows = ranks()
    del rows[1]["node"]
    assert said(judged(rows))["1"][0] == "LAUNCH-ELSEWHERE"


def with_master(address: str, rows: Rows) -> Rows:
    return [{**row, "MASTER_ADDR": address} for row in rows]


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "10.9.0.1", "n0", "N0.cluster.example", "n0.local"]
)
def test_any_name_of_the_node_of_rank_0_is_a_right_master(address: str) -> None:
    assert judged(with_master(address, ranks())) == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.1.1", "localhost", "::1", "0.0.0.0", "10.0.0.2", "n1", "10"]
)
def test_another_master_is_wrong_on_every_rank(address: str) -> None:
    wrong = judged(with_master(address, ranks()))
    assert [each.problem.found for each in wrong] == [f"MASTER_ADDR is {address}"] * 4
    assert "n0" in wrong[0].problem.expected


def test_loopback_is_right_where_all_ranks_share_a_host() -> None:
    assert judged(with_master("127.0.0.1", ranks(1, 4))) == []
    assert judged(with_master("localhost", ranks()), nodes=known(one_host=True)) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"device": "cpu", "gpu": ""}, "computing on cpu"),
        ({"device": None, "gpu": ""}, "no computing device reported"),
        ({"gpu": "uuid-0-0"}, "ranks 0, 3 share GPU uuid-0-0"),
        ({"gpu": ""}, "no GPU reported"),
    ],
)
def test_a_rank_without_a_gpu_of_its_own_is_wrong(change: dict[str, Any], found: str) -> None:
    rows = ranks()
    changed = {**rows[3], **change}
    rows[3] = {name: value for name, value in changed.items() if value is not None}
    assert said(judged(rows))["3"] == ("LAUNCH-DEVICE", found)
    assert judged(rows, on_gpu=False) == []


def test_an_index_counts_on_its_own_node() -> None:
    rows = ranks()
    for row in rows:
        row["gpu"] = row["LOCAL_RANK"]
    assert judged(rows) == []
    rows[1]["gpu"] = "0"
    assert set(said(judged(rows))) == {"0", "1"}


def test_ranks_of_a_node_follow_each_other() -> None:
    """Dealt out to the nodes one by one: each ring would go through the network at every hop."""
    rows = ranks()
    rows[1]["RANK"], rows[2]["RANK"] = "2", "1"
    assert {found for _, found in said(judged(rows)).values()} == {
        "the node has ranks 0, 2",
        "the node has ranks 1, 3",
    }


def test_a_rank_that_never_reached_the_first_is_wrong() -> None:
    rows = [{**row, "master": "10.0.0.1"} for row in ranks()]
    assert judged(rows, ended=True) == []
    del rows[3]["master"]
    found = "trained without a connection to 10.0.0.1:29500"
    assert said(judged(rows, ended=True)) == {"3": ("LAUNCH-ENV", found)}
    assert judged(rows) == []  # the job failed: no rank has said it


def test_a_name_that_leads_to_the_loopback_is_wrong_on_other_nodes_alone() -> None:
    """As where /etc/hosts of each node has its own name at 127.0.1.1."""
    rows = [{**row, "master": "127.0.1.1", "MASTER_ADDR": "n0"} for row in ranks()]
    found = ("LAUNCH-ENV", "n0 resolves to 127.0.1.1")
    assert said(judged(rows, ended=True)) == {"2": found, "3": found}
    assert judged(rows, ended=True, nodes=known(one_host=True)) == []


def test_each_rank_has_the_variables_that_the_job_was_given() -> None:
    rows = [{**row, "STAGE": "first"} for row in ranks()]
    assert judged(rows, variables={"STAGE": "first"}) == []
    del rows[0]["STAGE"]
    rows[3]["STAGE"] = "second"
    assert said(judged(rows, variables={"STAGE": "first"})) == {
        "0": ("LAUNCH-ENV", "STAGE not set"),
        "3": ("LAUNCH-ENV", "STAGE is 'second'"),
    }


def test_two_ranks_that_see_one_accelerator_are_wrong_also_where_it_is_emulated() -> None:
    rows = [{**row, "CUDA_VISIBLE_DEVICES": row["LOCAL_RANK"]} for row in ranks()]
    assert judged(rows, on_gpu=False) == []
    rows[3]["CUDA_VISIBLE_DEVICES"] = "0"
    assert {found for _, found in said(judged(rows, on_gpu=False)).values()} == {
        "CUDA_VISIBLE_DEVICES is 0 on 2 ranks of the node"
    }
    for row in rows:
        row["CUDA_VISIBLE_DEVICES"] = "0,1"  # all of the node's, chosen by LOCAL_RANK
    assert judged(rows, on_gpu=False) == []


def test_only_the_missing_variable_on_every_rank_counts_as_that() -> None:
    rows = [{k: v for k, v in row.items() if k != "MASTER_PORT"} for row in ranks()]
    assert all_lack(judged(rows), "MASTER_PORT", 4)
    assert not all_lack(judged(rows[:3]), "MASTER_PORT", 4)  # one rank never came
    assert not all_lack(judged(with_master("127.0.0.1", ranks())), "MASTER_PORT", 4)
    assert not all_lack([], "MASTER_PORT", 4)
    del rows[2]["RANK"]
    assert not all_lack(judged(rows), "MASTER_PORT", 4)


def test_announced_ranks_are_read_from_a_log() -> None:
    text = (
        "noise\nattempt=1 node=id0 host=n0 pid=4 RANK=0 WORLD_SIZE=2\n"
        "attempt=2 node=id0 host=n0 pid=7 RANK=0 WORLD_SIZE=2\n"
        "\x1b[36m(pid=1)\x1b[0m attempt=2 node=id1 host=n1 pid=8 RANK=1 WORLD_SIZE=2\n"
        "trained RANK=1 device=cuda:0 gpu=u1\n"
        "last available logs\nattempt=2 node=id0 host=n0 pid=7 RANK=0 WORLD_SIZE=2\n"
    )
    rows = announced_ranks(text)
    assert [(row["RANK"], row["pid"]) for row in rows] == [("0", "7"), ("1", "8")]
    assert [row.get("gpu") for row in rows] == [None, "u1"]
    assert announced_ranks("no rank") == []


def test_ranks_of_another_launcher_say_at_the_end_where_they_are() -> None:
    rows = announced_ranks("trained RANK=0 host=n0 A=a%20b\ntrained RANK=1 host=n1 odd =x\n")
    assert [row["host"] for row in rows] == ["n0", "n1"]
    assert rows[0]["A"] == "a b"


def test_losses_and_samples_are_read_with_care() -> None:
    text = "step 2/3  loss 4.5\nstep 1/3  loss 5.0\n(pid=1) step 2/3  loss 4.4 x\nstep 3/3  loss ?"
    assert logged_losses(text)[:2] == [5.0, 4.4]
    assert str(logged_losses(text)[2]) == "nan"
    assert count_job_parameters("4 ranks on cuda:0, 8030261248 parameters") == 8030261248
    assert count_job_parameters("") is None
    assert ids_of({"samples": "0-2,7"}) == {0, 1, 2, 7}
    for wrong in ("", "a-b", "0-999999999999", "1-", "-1"):
        assert ids_of({"samples": wrong}) in (None, {1})
    assert ids_of({}) is None
    assert str(numbers_of({"losses": "1,x"}, "losses")) == "[1.0, nan]"


def test_two_processes_of_one_rank_are_two() -> None:
    text = "attempt=1 node=a host=n pid=1 RANK=0\nattempt=1 node=a host=n pid=2 RANK=0\n"
    assert len(announced_ranks(text)) == 2


def test_a_node_is_known_by_all_its_names() -> None:
    nodes = [{"id": "a", "name": "n0", "address": "10.0.0.1"},
             {"id": "b", "name": "n1/b123", "address": "10.0.0.2"}]  # fmt: skip
    interfaces = {"lo": {"address": "127.0.0.1"}, "ib0": {"address": "10.9.0.1"}}
    facts = [{"node": "a", "host": "n0", "interfaces": {**interfaces, "ib1": {"address": None}}}]
    identities = identify_nodes(nodes, facts)
    assert identities["a"].aliases == {"n0", "10.0.0.1", "10.9.0.1", "127.0.0.1"}
    assert identities["b"].aliases == {"n1", "10.0.0.2"}


@pytest.mark.parametrize(
    ("address", "yes"), [("127.8.0.1", True), ("::1", True), ("10.0.0.1", False), ("n0", False)]
)
def test_loopback(address: str, yes: bool) -> None:
    assert is_loopback(address) is yes
