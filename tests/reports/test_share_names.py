"""Every name of a record gets its alias, and no word of ours becomes one."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.check.registry import CRITERIA
from probes.contract.contract import shipped_contracts
from probes.findings import CATALOGUE
from reports.acceptance import load_summary
from reports.record import Finding, ProbeResult, RunRecord
from reports.share.aliases import Aliases
from reports.share.shared_copy import share_record
from tests.recordings.generate import h100_cluster as atlas
from tests.support.paths import RECORDINGS


def aliases_of(*hosts: str) -> Aliases:
    """Make the table of a run on these hosts, of which nothing else is known."""
    cluster = {"name": "local", "nodes": [{"name": host} for host in hosts]}
    return share_record(bare_record(cluster))[1]


def bare_record(cluster: dict[str, Any]) -> RunRecord:
    """Build a run of which nothing is known but its cluster."""
    changes = {"cluster": cluster, "results": [], "command": "pytest probes"}
    return atlas.record().model_copy(update=changes)


def test_one_name_has_one_alias_everywhere() -> None:
    names = aliases_of("gpu-01", "gpu-02")
    assert names.text("GPU-01 gpu-01.dc1.example.com gpu-02 gpu-01") == "node1 node1 node2 node1"
    two = aliases_of("gpu-01.east.acme.com", "gpu-01.west.acme.com")
    one, other, short = two.text("gpu-01.east.acme.com gpu-01.west.acme.com gpu-01").split()
    assert len({one, other, short}) == 3


def test_the_names_of_one_node_are_one_node() -> None:
    nodes = [{"name": "vm/b160", "host": "vm"}, {"name": "vm/dde4", "host": "vm"}]
    nodes += [{"name": "10.1.2.3", "host": "fox", "address": "10.1.2.3"}]
    shared, names = share_record(bare_record({"nodes": nodes}))
    aliases = [(node["name"], node["host"]) for node in shared.cluster["nodes"]]
    assert aliases[0][0] != aliases[1][0]
    assert aliases[0][1] == aliases[1][1] != aliases[0][0]
    assert set(aliases[2]) == {shared.cluster["nodes"][2]["address"]}
    assert names.text("evidence/ras-vm-b160.txt") == f"evidence/ras-{aliases[0][0]}.txt"


def test_who_ran_the_test_is_not_in_a_copy_to_share() -> None:
    command = "seatrial run --operator 'Ada Lovelace' --nonce 'monday 7'"
    named = {"operator": "Ada Lovelace", "nonce": "monday 7", "command": command}
    shared, _ = share_record(bare_record({}).model_copy(update=named))
    assert (shared.operator, shared.nonce) == ("<operator>", "<nonce>")
    assert shared.command == "seatrial run --operator '<operator>' --nonce '<nonce>'"


@pytest.mark.parametrize(
    "written",
    [
        "--operator 'Conan  O'\"'\"'Brien'",
        "--operator='Conan O'\"'\"'Brien'",
        "--operator Conan\\ O\\'Brien",
    ],
)
def test_who_ran_the_test_is_found_in_every_form_of_the_command(written: str) -> None:
    named = {"operator": "Conan O'Brien", "command": f"seatrial run {written} --tier quick"}
    shared, _ = share_record(bare_record({}).model_copy(update=named))
    assert "Brien" not in shared.command
    assert "<operator>" in shared.command
    assert shared.command.endswith("--tier quick")


def test_no_alias_is_a_name_that_the_run_had() -> None:
    shared, names = share_record(load_summary(RECORDINGS / "healthy-lab").record)
    assert not set(names.known.values()) & set(names.known)
    assert shared.cluster["nodes"][0]["name"] == "node4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-01:12345:12399 [0] NCCL INFO", "node1:12345:12399 [0] NCCL INFO"),
        ("gpu-01/mlx5_0", "node1/mlx5_0"),
        ("gpu-01->gpu-02, gpu-01's port", "node1->node2, node1's port"),
        ("node:gpu-01", "node:node1"),
        ("ray://10.0.0.1:10001 10.0.0.1:6379", "ray://address1:10001 address1:6379"),
        ("10.0.0.1. Then 10.0.0.2/24", "address1. Then address2/24"),
        ("ip 127.0.0.1 and 0.0.0.0 and ::1", "ip 127.0.0.1 and 0.0.0.0 and ::1"),
        ("[2001:db8::17]:80", "[address1]:80"),
        ("gpu-0123 x-gpu-01 gpu-01x", "node3 x-node1 gpu-01x"),
        ("/data/a/b:/home/eve/c", "path1:path2"),
        ("--out=/data/a/b.", "--out=path1."),
        ("eve.adams@acme.org", "user1@host1"),
        ("login.acme.internal", "host1"),
        ("3-gpu-01.dc1.acme.org is slow", "3-node1 is slow"),
        ("gpu-01.log and gpu-02_rank3.json", "node1.log and node2_rank3.json"),
    ],
)
def test_names_inside_other_words_are_found(text: str, expected: str) -> None:
    assert aliases_of("gpu-01", "gpu-02").text(text) == expected


OURS = [
    "busbw 4.9 GB/s, NET/Socket and/or NET/IB/0/GDRDMA at 22:17:03.120 of 2026-11-20",
    "ray.exceptions.RayTaskError: torch.nn.Linear in train.py, line 3: tokens/s/GPU",
    "torch 2.13.0+cpu, driver 570.86.15, NCCL 2.21.5+cuda12.4, libnccl.so.2.21.5, 0.0.0-doctored",
    "loss_hex 0x1.4398b00000000p+2, digest 0d828722065d..., 0000:3b:00.0 mlx5_0:1",
    "pytest probes/gang/test_gang.py::test_it[newest-bit-flipped] --cluster auto --contract lab",
    "rank 3 of job A: 0[0] -> 8[0] [send], 16 of 64 GPUs; node 8, on 8 nodes; n=20; 2(n-1)/n",
    "4 of 4 nodes, 256 tokens per GPU; __0_0.distcp has 25769 bytes; see /proc/self/maps, /dev/shm",
    "h100-ndr400 @ 3f9a1c0e7b5d on NVIDIA H100 80GB HBM3, 5 +/- 0.2, ~0.5 s, e.g. this, i.e. that",
    *(entry.meaning for entry in CATALOGUE.values()),
    *(entry.remedy for entry in CATALOGUE.values()),
    *(words for row in CRITERIA.values() for words in (row.title, row.how)),
]


@pytest.mark.parametrize(
    "hosts", [("gpu-01", "gpu-02"), ("fabric", "node", "n1", "rank", "a", "8")]
)
def test_the_words_of_the_suite_stay(hosts: tuple[str, ...]) -> None:
    names = aliases_of(*hosts)
    for text in OURS:
        assert names.text(text) == text


def test_hosts_called_like_words_are_aliased_where_they_stand_for_a_host() -> None:
    hosts = ["fabric", "node", "n1", "rank", "a", "8"]
    record = atlas.record()
    result = record.results[1]
    subjects = [
        *hosts,
        "fabric -> rank",
        "8 alone",
        "rank 0 (a) in other",
        "8 nodes",
        "node mlx5_1",
    ]
    measurements = [result.measurements[0].model_copy(update={"subject": s}) for s in subjects]
    finding = Finding(code="FAB-TCP", statement="slow", suspects=hosts, remedy="rank:4121:4180")
    results = [result.model_copy(update={"measurements": measurements, "findings": [finding]})]
    cluster = {"nodes": [{"name": host} for host in hosts], "fabric": "8 x 400", "rank": 8}
    record = record.model_copy(update={"cluster": cluster, "results": results})
    shared, names = share_record(record)
    alias = [names.known[host] for host in hosts]
    assert [m.subject for m in shared.results[0].measurements] == [
        *alias,
        f"{alias[0]} -> {alias[3]}",
        f"{alias[5]} alone",
        f"rank 0 ({alias[4]}) in other",
        "8 nodes",
        f"{alias[1]} mlx5_1",
    ]
    assert shared.results[0].findings[0].suspects == alias
    assert shared.results[0].findings[0].remedy == f"{alias[3]}:4121:4180"
    assert shared.cluster == {"nodes": [{"name": a} for a in alias], "fabric": "8 x 400", "rank": 8}
    assert shared.results[0].coverage == result.coverage


def test_nodes_that_only_a_series_or_a_suspect_names_are_found() -> None:
    gang = {"capacity": {"zeppelin": 2}, "samples": [{"nodes": {"graf": {"A": 1}}}]}
    series = {"gang": gang, "pairs": {"nodes": ["eckener"], "cells": []}}
    finding = Finding(code="X", statement="x", remedy="x", suspects=["hindenburg", "job A"])
    error = "zeppelin, graf and eckener wait for hindenburg"
    result = ProbeResult(
        probe="p", criterion="GANG", error=error, series=series, findings=[finding]
    )
    record = bare_record({}).model_copy(update={"results": [result]})
    shared = share_record(record)[0].results[0]
    assert shared.error == "node1, node2 and node3 wait for node4"
    assert list(shared.series["gang"]["capacity"]) == ["node1"]
    assert shared.findings[0].suspects == ["node4", "job A"]


def test_nodes_that_only_the_names_of_a_finding_hold_are_found() -> None:
    names = {"node": "zeppelin", "peer": "graf", "host": "eckener", "port": "6379"}
    finding = Finding(
        code="X", statement="graf and zeppelin", remedy="see eckener", order="Mend {node}",
        names=names,
    )  # fmt: skip
    result = ProbeResult(probe="p", criterion="GANG", findings=[finding])
    record = bare_record({}).model_copy(update={"results": [result]})
    shared = share_record(record)[0].results[0].findings[0]
    assert shared.names == {"node": "node1", "peer": "node2", "host": "node3", "port": "6379"}
    assert (shared.statement, shared.remedy) == ("node2 and node1", "see node3")
    assert shared.order == "Mend {node}"


def test_users_and_mounts_are_known_by_where_they_stand() -> None:
    facts = {"terms": {"shared": "/vol"}, "environment": {"USER": "kim"}}
    record = bare_record(facts).model_copy(
        update={"command": "pytest --run-dir /home/eve/x", "partial": "eve and kim filled /vol"}
    )
    shared = share_record(record)[0]
    assert shared.partial == "user2 and user1 filled path1"
    assert shared.command == "pytest --run-dir path2"


def test_the_id_of_a_foreign_probe_loses_its_folder() -> None:
    probe = "/home/eve adams/acme/test_it.py::test_speed"
    result = ProbeResult(probe=probe, criterion="GANG", error="eve left")
    record = bare_record({}).model_copy(update={"results": [result]})
    shared = share_record(record)[0].results[0]
    assert (shared.probe, shared.error) == ("path1::test_speed", "user1 left")


def test_two_keys_do_not_become_one() -> None:
    facts = {"nodes": [{"name": "gpu-01"}], "load": {"gpu-01": 1, "GPU-01": 2}}
    shared, _ = share_record(bare_record(facts))
    assert list(shared.cluster["load"].values()) == [1, 2]


POD = "raycluster-falcon-gpu-worker-x7k2p"
IN_TEXTS = [  # (text of an error, what must not be in its copy)
    ("cannot write /home/jdoe/My Runs/falcon/x: full", "Runs falcon jdoe My"),
    ("cannot write '/home/jdoe/My Own Runs/falcon': full", "Own Runs falcon jdoe"),
    ("FileNotFoundError: '/shared/Team Falcon Runs/ckpt'", "Team Falcon Runs"),
    ("cd /shared/My\\ Runs/falcon && ls", "Runs falcon"),
    ("open(/data/The Big Set/falcon.parquet)", "Big Set falcon"),
    (f"pod {POD} was evicted", "falcon x7k2p"),
    ("deployment falcon-api-7d4b9c6f5d-x2x9z is not ready", "falcon 7d4b9c6f5d x2x9z"),
    ("raycluster-falcon-head-xkqzp and raycluster-falcon-worker-h-bcdfg", "falcon xkqzp bcdfg"),
    ("srun --partition=acme_h100 --job-name falcon-pre --account=acme-ml x", "acme falcon"),
    ("SLURM_JOB_PARTITION=acme_h100 SLURM_JOB_NAME='falcon pre' ended", "acme_h100 falcon"),
    ("export SLURM_JOB_ACCOUNT=acme, POD_NAME=falcon-0: acme and falcon-0 wait", "acme falcon-0"),
    ("GPU 3 (serial 165492200603, board serial: MT2203X172) fell off", "165492200603 MT2203X172"),
    ("S/N 1320221004567 or Serial Number: 0324018012345", "1320221004567 0324018012345"),
    ("certificate of CN=jane.doe,OU=Falcon Team,O=Acme is old: jane.doe", "jane.doe Falcon Acme"),
    ("subject=/C=DE/O=Acme Corp/CN=head.falcon", "Acme falcon"),
    ("SLURM_JOB_ID=81234, Slurm job 81235, JobId=81236: job_id: 81237", "81234 81235 81236 81237"),
    ("serial 12345678 and S/N: 345678", "12345678 345678"),
    ("namespace: falcon-ns, reservation=acme-week7 of falcon-ns", "falcon-ns acme-week7"),
]  # fmt: skip
IN_FACTS = {
    "pod": POD, "pod_name": "falcon-worker-0", "namespace": "falcon-ns", "partition": "acme_h100",
    "SLURM_JOB_NAME": "falcon-pretrain", "job_name": "falcon-7b", "account": "acme-ml",
    "reservation": "acme-week7", "qos": "acme-high", "board_serial": "MT2203X17244",
    "serial_number": "1654922006031", "cluster_name": "acme-east",
    "run_path": "/vol/My Runs/falcon",
    "subject": "CN=jane.doe",
}  # fmt: skip


@pytest.mark.parametrize(("text", "names"), IN_TEXTS, ids=[text for text, _ in IN_TEXTS])
def test_names_of_jobs_and_people_are_not_in_the_copy(text: str, names: str) -> None:
    result = ProbeResult(probe="p", criterion="GANG", error=f"{text}; 8 of 16 GPUs at 4.9 GB/s")
    shared = share_record(bare_record({}).model_copy(update={"results": [result]}))[0]
    copied = shared.results[0].error
    assert [name for name in names.split() if re.search(rf"\b{re.escape(name)}\b", copied)] == []
    assert copied.endswith("; 8 of 16 GPUs at 4.9 GB/s")


@pytest.mark.parametrize("key", IN_FACTS)
def test_names_known_from_facts_are_in_no_text(key: str) -> None:
    name = IN_FACTS[key]
    error = f"lost {name}, of {name.upper()}: see {name}/a.log. Expected: 8 GPUs"
    result = ProbeResult(probe="p", criterion="GANG", error=error)
    cluster = {"nodes": [{"name": "gpu-01", "job": {key: name}}]}
    shared = share_record(bare_record(cluster).model_copy(update={"results": [result]}))[0]
    text = json.dumps(shared.model_dump(mode="json")).lower()
    own = name.lower().removeprefix("cn=").removeprefix("/vol/")
    assert own not in text
    assert not re.search("falcon|acme|my runs", text)
    assert shared.results[0].error.endswith("Expected: 8 GPUs")


@pytest.mark.parametrize("key", ["SLURM_JOB_ID", "job_id", "jobid", "serial", "board_serial"])
@pytest.mark.parametrize("number", ["81234", 81234])
def test_numbers_known_from_facts_get_an_alias(key: str, number: object) -> None:
    shared = share_record(bare_record({"nodes": [{"name": "gpu-01", "job": {key: number}}]}))[0]
    assert "81234" not in json.dumps(shared.cluster)
    assert share_record(bare_record({"job": {"ids": number, "count": number}}))[0].cluster == {
        "job": {"ids": number, "count": number}
    }


def test_a_command_in_a_fact_is_no_path() -> None:
    cluster = {"nodes": [{"name": "gpu-01", "how": "/bin/train --steps 20 on 8 GPUs"}]}
    shared = share_record(bare_record(cluster))[0]
    assert shared.cluster["nodes"][0]["how"] == "path1 --steps 20 on 8 GPUs"


def test_words_that_facts_have_for_a_job_stay_if_they_are_ours() -> None:
    cluster = {"nodes": [{"name": "gpu-01", "job": "running", "partition": "gpu", "qos": "normal"}]}
    error = "job 812 is running on a gpu of a normal node, CN = 3, DC=4 V, O=2, see node, job id 7"
    result = ProbeResult(probe="p", criterion="GANG", error=error)
    shared = share_record(bare_record(cluster).model_copy(update={"results": [result]}))[0]
    assert shared.results[0].error == error


@pytest.mark.parametrize("name", ["acme-week-1", "Acme Falcon", "falcon"])
def test_the_name_of_a_contract_is_not_in_the_copy(name: str) -> None:
    record = bare_record({})
    contract = record.contract.model_copy(update={"name": name, "title": f"{name}: 8 x H100"})
    command = f"seatrial run --contract '{name}.toml' --cluster auto"
    record = record.model_copy(update={"contract": contract, "command": command})
    shared = share_record(record)[0]
    assert shared.contract.name == "contract1"
    assert shared.contract.title == "contract1: 8 x H100", "the title stays, without known names"
    assert not re.search("acme|falcon", json.dumps(shared.model_dump(mode="json")).lower())


def test_a_file_of_a_contract_may_have_another_name() -> None:
    record = bare_record({}).model_copy(update={"command": "seatrial run --contract falcon.toml"})
    assert "falcon" not in share_record(record)[0].command


@pytest.mark.parametrize("name", shipped_contracts())
def test_a_shipped_contract_keeps_its_name(name: str) -> None:
    record = bare_record({})
    contract = record.contract.model_copy(update={"name": name})
    command = f"seatrial run --contract {name}"
    shared = share_record(record.model_copy(update={"contract": contract, "command": command}))[0]
    assert (shared.contract.name, shared.command) == (name, command)


def test_a_contract_called_like_its_gpus_leaves_their_model_alone() -> None:
    cluster = {"nodes": [{"name": "gpu-01", "gpus": [{"model": "NVIDIA H100 80GB HBM3"}]}]}
    record = bare_record(cluster)
    contract = record.contract.model_copy(update={"name": "H100"})
    shared = share_record(record.model_copy(update={"contract": contract}))[0]
    assert shared.cluster["nodes"][0]["gpus"] == [{"model": "NVIDIA H100 80GB HBM3"}]


def record_with(error: str) -> RunRecord:
    """Build a run with an error of one probe."""
    result = ProbeResult(probe="p", criterion="GANG", error=error)
    cluster = {"nodes": [{"name": "gpu-01"}], "name": "acme-east"}
    return bare_record(cluster).model_copy(update={"results": [result]})


def test_a_word_as_long_as_no_name_is_left_out() -> None:
    shared = share_record(record_with(f"lost gpu-01: {'gpu-01.' * 10_000} and gpu-01"))[0]
    assert shared.results[0].error == "lost node1: (a word of 70000 characters) and node1"
    sound = "x" * 4096
    assert share_record(record_with(sound))[0].results[0].error == sound


@pytest.mark.parametrize(
    "unit", ["a", "a.", "a-", "gpu-01.", "/a", "/a b", "/a B ", "'/a ", "a@", "CN=", "CN=a,", "a=",
             "partition=", "serial ", "1.", "a1b2", "--contract ", "\\ ", "/a\\ b"],
)  # fmt: skip
@pytest.mark.parametrize("glue", ["", " "])
def test_twice_the_text_takes_at_most_four_times_as_long(unit: str, glue: str) -> None:
    times = []
    for size in (2**14, 2**15):
        record = record_with((unit + glue) * (size // len(unit + glue)))
        start = time.process_time()
        share_record(record)
        times.append(time.process_time() - start)
    assert times[1] < 4 * times[0]


WORD = st.sampled_from(
    ["rank 3", "GB/s", "lost", "of 8 nodes", "on", "->", "(", ")", ":", "/", "\\n"]
)
LABEL = st.from_regex(r"[a-z]{2,8}-?[0-9]{1,3}", fullmatch=True)
NAME = st.one_of(LABEL, st.builds("{}.{}.example.com".format, LABEL, LABEL), LABEL.map(str.upper))


@settings(max_examples=60, deadline=None)
@given(hosts=st.lists(NAME, min_size=1, max_size=4), data=st.data())
def test_no_host_survives_in_free_text(hosts: list[str], data: st.DataObject) -> None:
    pieces = st.lists(st.one_of(WORD, st.sampled_from(hosts)), max_size=12)
    between = data.draw(st.sampled_from([" ", "-", "_", ","]))
    text = between.join(data.draw(pieces))
    names = aliases_of(*hosts)
    shared = names.text(text)
    for host in hosts:
        if not names.is_plain(host):
            assert not re.search(
                rf"(?<![a-z0-9]){re.escape(host.lower())}(?![a-z0-9])", shared.lower()
            )
    assert names.text(text) == shared
    if between == " ":  # without, "/-GB/s" is a path
        assert re.findall(r"GB/s|lost|rank 3", shared) == re.findall(r"GB/s|lost|rank 3", text)
