"""Judging a run by another contract needs no cluster and leaves the run alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from probes.check.declarations import Circumstances, exactly
from probes.check.recorder import Recorder
from probes.check.registry import CRITERIA, measures_by_term
from probes.cli.main import main
from probes.contract.contract import load as contract
from probes.contract.contract import parse
from probes.contract.terms import ClusterTerms
from probes.session.rejudge import NewJudge, read_whole, rejudge_run
from reports.acceptance import load_summary, summarize_acceptance
from reports.measurement import Limit, Verdict
from reports.run_folder.event_log import UnreadableRun
from reports.run_folder.integrity import load
from reports.run_folder.store import Store
from tests.support.controls import write_control
from tests.support.rejudged_runs import (
    BOUGHT,
    HEALTHY,
    measured,
    rejudged,
    say_owed,
    verdicts,
)
from tests.support.run_folders import Events, read_lines, rewrite, without_chain, write_lines

STRICT = """schema = 1
name = "strict"
[GANG.placement_delay]
at_most = 0.1
unit = "s"
because = "agreed anew"
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one probe, judged by the lab's contract."""
    store, lab = Store(tmp_path / "run"), contract("lab")
    facts = lab.facts().model_dump(mode="json")
    store.start(
        lab.text, id="run", started="2026-01-01T00:00:00Z", command="x", tier="quick",
        contract=facts,
    )  # fmt: skip
    ledger = Recorder(store, lab, "p", "GANG", "claim", "again", lambda words: None)
    ledger("placement_delay", 0.5)
    ledger("partially_held", 0)
    ledger.covered("4 nodes")
    ledger.covered("not node4")
    write_control(ledger)
    ledger.keep("samples.json", [1], caption="samples")
    ledger.finish("finished", 1.0)
    other = Recorder(store, lab, "q", "RESTART", "claim", "again", lambda words: None)
    interval = Limit(high=4, unit="steps", because="it saves every 4 steps")
    other("steps_lost", 2, limit=interval)
    write_control(other)
    other.finish("finished", 1.0)
    store.event("run_finished", finished="2026-01-01T00:01:00Z", state="finished")
    store.save()
    store.close()
    return tmp_path / "run"


def test_all_that_was_covered_is_said(run: Path) -> None:
    assert load(run).results[0].coverage == "4 nodes; not node4"


def test_a_stricter_contract_turns_pass_into_fail(run: Path, tmp_path: Path) -> None:
    assert load(run).verdict("GANG") is Verdict.PASS
    (tmp_path / "strict.toml").write_text(STRICT)
    told = CliRunner().invoke(
        main, ["rejudge", str(run), "--contract", str(tmp_path / "strict.toml")]
    )
    assert told.exit_code == 1, told.output
    judged = load(tmp_path / "run-by-strict")
    assert judged.verdict("GANG") is Verdict.FAIL
    assert judged.contract.name == "strict"
    assert judged.id == "run-by-strict"
    assert judged.verdict("RESTART") is Verdict.PASS, "limits of the probe's own set-up stay"
    assert (tmp_path / "run-by-strict" / "evidence" / "samples.json").is_file()
    assert load(run).verdict("GANG") is Verdict.PASS


def test_another_order_is_judged_anew(run: Path, tmp_path: Path) -> None:
    """A contract that orders eight nodes must not pass a run of four."""
    store = Store(tmp_path / "four")
    store.start(contract("lab").text, **read_lines(run)[0]["data"])
    ledger = Recorder(store, contract("lab"), "h", "HOSTS", "claim", "again", lambda words: None)
    ledger("nodes", 4, limit=exactly(4, "nodes", "ordered"))
    write_control(ledger)
    ledger.finish("finished", 1.0)
    store.close()
    assert load(tmp_path / "four").verdict("HOSTS") is Verdict.PASS
    (tmp_path / "eight.toml").write_text("schema = 1\n[cluster]\nnodes = 8\n")
    CliRunner().invoke(
        main, ["rejudge", str(tmp_path / "four"), "--contract", str(tmp_path / "eight.toml")]
    )
    assert load(tmp_path / "four-by-eight").verdict("HOSTS") is Verdict.FAIL


@pytest.mark.parametrize(
    ("agreed", "verdict"),
    [("save_minutes = 30", Verdict.PASS), ("save_minutes = 5", Verdict.UNPROVEN),
     ("save_gb = 840", Verdict.UNPROVEN)],
)  # fmt: skip
def test_a_share_of_another_time_between_saves_is_not_judged_by_this_one(
    run: Path, tmp_path: Path, agreed: str, verdict: Verdict
) -> None:
    store = Store(tmp_path / "saves")
    terms = {"nodes": 4, "save_minutes": 30.0}
    start = read_lines(run)[0]["data"] | {"cluster": {"terms": terms}}
    store.start(contract("lab").text, **start)
    ledger = Recorder(store, contract("lab"), "s", "SCALING", "claim", "again", lambda words: None)
    ledger("checkpoint_overhead", 0.008)
    write_control(ledger)
    ledger.finish("finished", 1.0)
    store.close()
    (tmp_path / "new.toml").write_text(f"schema = 1\n[cluster]\n{agreed}\n")
    CliRunner().invoke(
        main, ["rejudge", str(tmp_path / "saves"), "--contract", str(tmp_path / "new.toml")]
    )
    assert load(tmp_path / "saves-by-new").verdict("SCALING") is verdict


# What the probes measure of a healthy cluster.
@pytest.fixture
def bought(tmp_path: Path) -> Path:
    """A run that passes in all, measured under BOUGHT."""
    return measured(tmp_path / "bought", BOUGHT)


def test_the_same_contract_gives_the_same_verdicts(bought: Path) -> None:
    assert set(verdicts(load(bought)).values()) == {Verdict.PASS}
    assert verdicts(rejudged(bought, BOUGHT)) == verdicts(load(bought))


def test_every_key_of_cluster_says_what_it_was_measured_for() -> None:
    named = {key for key, rows in measures_by_term().items() if any(rows.values())}
    assert named == set(ClusterTerms.model_fields)
    declared = {key for row in CRITERIA.values() for one in row.checks for key in one.terms}
    declared |= {key for row in CRITERIA.values() for key in row.depends}
    assert declared <= set(ClusterTerms.model_fields)


class AskedTerms:
    """Terms that note which of their keys a condition reads."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getattr__(self, key: str) -> Any:
        self.asked.add(key)
        return getattr(ClusterTerms(), key)


def test_what_is_owed_under_a_term_depends_on_that_term() -> None:
    """Else a value that was measured under other terms would be judged as if under these."""
    for id, row in CRITERIA.items():
        for check in filter(lambda one: one.when, row.checks):
            terms = AskedTerms()
            check.when(Circumstances("soak", cast("ClusterTerms", terms), 8, True))
            for key in terms.asked:
                assert check in measures_by_term()[key][id], f"{id}.{check}: name {key} in its When"


OTHER_TERMS = [
    ("rails = 8", ["FABRIC", "HOSTS"], "measured with rails = 4, but the contract has rails = 8"),
    (
        *('management = "eth1"', ["FABRIC", "LAUNCH"]),
        "measured without management, but the contract has management = 'eth1'",
    ),
    ("management_gbps = 25", ["FABRIC"], "without management_gbps, but the contract has"),
    ('shards = "/data"', ["SCALING"], "measured without shards, but the contract has shards"),
    ("save_minutes = 5", ["SCALING"], "with save_minutes = 30.0, but the contract has"),
    ("save_gb = 840", ["SCALING"], "measured without save_gb, but the contract has"),
    ('queue = "kueue"', ["GANG"], "measured without queue, but the contract has queue = 'kueue'"),
    ('components = {"a,b" = "all"}', ["GANG"], "measured without components, but the contract"),
    ("parallel = {tp = 8, pp = 1, dp = 4}", ["GANG"], "measured without parallel"),
    ('shared = "/s"', ["RESTART", "SCALING"], "without shared, but the contract has shared = '/s'"),
    (
        *('gpu_model = {"NVIDIA H200" = 3, "NVIDIA L40S" = 1}', ["HOSTS", "FABRIC", "SCALING"]),
        "measured without gpu_model, but the contract has gpu_model = ",
    ),
    ('accelerators = "emulated"', list(HEALTHY), "with accelerators = 'real', but the contract"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "criteria", "says"), OTHER_TERMS)
def test_what_was_measured_under_other_terms_passes_nothing(
    bought: Path, key: str, criteria: list[str], says: str
) -> None:
    other = key if key.startswith("rails") else f"rails = 4\n{key}"
    judged = rejudged(bought, BOUGHT.replace("rails = 4", other))
    expected = {id: Verdict.UNPROVEN if id in criteria else Verdict.PASS for id in HEALTHY}
    assert verdicts(judged) == expected
    for id in criteria:
        (result,) = judged.results_of(id)
        open_ = [m for m in result.measurements if m.verdict is Verdict.UNPROVEN]
        assert all(says in m.note for m in open_)
        assert any(says in sentence for sentence in result.problems())


TABLE = '{ "NVIDIA H200" = 3, "NVIDIA L40S" = 1 }'
PER_KIND = {
    "HOSTS": {"gpu_model", "differences", "system_differences"},
    "FABRIC": {
        "rails", "slowest_rail", "all_reduce_inside_node", "all_reduce_inside_node_against_others",
    },
    "SCALING": {"mfu", "straggler"},
}  # fmt: skip


def test_only_what_is_compared_within_a_kind_depends_on_the_kinds() -> None:
    assert {id: {*rows} for id, rows in measures_by_term()["gpu_model"].items() if rows} == PER_KIND


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ("", TABLE, Verdict.UNPROVEN),
        ('"NVIDIA H200"', TABLE, Verdict.UNPROVEN),
        (TABLE, '"NVIDIA H200"', Verdict.UNPROVEN),
        (TABLE, TABLE, Verdict.PASS),
        ("", '"NVIDIA H200"', Verdict.PASS),  # all nodes were compared, then and now
        ('"NVIDIA H200"', '["NVIDIA H200", "NVIDIA H200 NVL"]', Verdict.PASS),
    ],
)
def test_what_was_compared_over_all_nodes_is_not_judged_as_within_kinds(
    tmp_path: Path, before: str, now: str, verdict: Verdict
) -> None:
    old, new = (f"rails = 4\n{'gpu_model = ' * bool(one)}{one}" for one in (before, now))
    run = measured(tmp_path / "run", BOUGHT.replace("rails = 4", old))
    judged = verdicts(rejudged(run, BOUGHT.replace("rails = 4", new)))
    found = {id: judged[id] for id in PER_KIND}
    assert found == dict.fromkeys(PER_KIND, verdict)
    assert {judged[id] for id in HEALTHY if id not in PER_KIND} == {Verdict.PASS}


def test_another_fabric_leaves_all_of_fabric_open(bought: Path) -> None:
    """And of HOSTS the memory that a worker may lock, and of LAUNCH the network of a job."""
    text = BOUGHT.replace('"rdma"', '"eth0"')
    assert verdicts(rejudged(bought, text)) == {
        id: Verdict.UNPROVEN if id in ("FABRIC", "HOSTS", "LAUNCH") else Verdict.PASS
        for id in HEALTHY
    }


def test_a_rehearsal_proves_nothing_of_real_accelerators(tmp_path: Path) -> None:
    """Also one on a single host, whose contract does not declare it."""
    emulated = BOUGHT.replace("[cluster]", '[cluster]\naccelerators = "emulated"')
    paced = emulated.replace("rails = 4", "rails = 4\npace_seconds = 0.4")
    run = measured(tmp_path / "run", BOUGHT, rehearsal="4 raylets embedded on one host")
    assert set(verdicts(rejudged(run, BOUGHT)).values()) == {Verdict.UNPROVEN}
    assert set(verdicts(rejudged(run, emulated)).values()) == {Verdict.PASS}
    assert verdicts(rejudged(run, paced))["SCALING"] is Verdict.UNPROVEN


def test_the_number_of_machines_is_held_to_the_new_order(bought: Path) -> None:
    for key, verdict in (("nodes = 8", Verdict.FAIL), ("", Verdict.PASS)):
        judged = rejudged(bought, BOUGHT.replace("nodes = 4", key))
        assert judged.verdict("HOSTS") is verdict, "--nodes filled in what is left open"
    judged = rejudged(bought, BOUGHT.replace("gpus_per_node = 8", "gpus_per_node = 7"))
    assert judged.verdict("HOSTS") is Verdict.FAIL
    judged = rejudged(bought, BOUGHT.replace("gpus_per_node = 8", ""))
    assert judged.verdict("HOSTS") is Verdict.UNPROVEN, "what nobody ordered is not proven"


@pytest.mark.parametrize(
    ("measured_under", "low"),
    [
        ({"nodes": 8, "nodes_at_most": 12}, 8),
        ({"nodes": 10, "nodes_at_most": 12}, 10),  # --nodes 10
        ({"nodes": 6, "nodes_at_most": 12}, 8),
    ],
)
def test_a_range_of_nodes_is_that_of_the_contract_and_no_wider_than_the_run_asked(
    measured_under: dict[str, Any], low: int
) -> None:
    text = b"schema = 1\n[cluster]\nnodes = 8\nnodes_at_most = 12\n"
    judge = NewJudge(parse(text, "f"), "again")
    judge.replace("run_started", "", {"cluster": {"terms": measured_under}})
    judge.replace("probe_started", "h", {"criterion": "HOSTS"})
    limit = exactly(3, "nodes", "ordered").model_dump(mode="json")
    data = {"name": "nodes", "value": 9, "unit": "nodes", "limit": limit}
    found = judge.replace("measurement", "h", data)
    assert (found["limit"]["low"], found["limit"]["high"], found["note"]) == (low, 12, "")


def test_nodes_that_no_range_was_ordered_of_are_not_proven_by_one() -> None:
    """Without a range, a node that did not answer counts as one that is there."""
    judge = NewJudge(parse(b"schema = 1\n[cluster]\nnodes = 8\nnodes_at_most = 12\n", "f"), "again")
    judge.replace("run_started", "", {"cluster": {"terms": {"nodes": 8}}})
    judge.replace("probe_started", "h", {"criterion": "HOSTS"})
    data = {"name": "nodes", "value": 9, "unit": "nodes", "limit": None}
    found = judge.replace("measurement", "h", data)
    assert (found["limit"], found["note"]) == (
        None, "measured without nodes_at_most, but the contract has nodes_at_most = 12",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "note"),
    [
        ("NVIDIA H100", ""),
        (
            "NVIDIA H200",
            "measured with gpu_model = 'NVIDIA H100', "
            "but the contract has gpu_model = 'NVIDIA H200'",
        ),
    ],
)
def test_what_the_old_order_chose_is_judged_by_no_other(model: str, note: str) -> None:
    text = BOUGHT.replace("rails = 4", f'rails = 4\ngpu_model = "{model}"')
    judge = NewJudge(parse(text.encode(), "f"), "again")
    terms = {"nodes": 4, "fabric": "rdma", "gpu_model": "NVIDIA H100"}
    judge.replace("run_started", "", {"cluster": {"terms": terms}})
    judge.replace("probe_started", "h", {"criterion": "HOSTS"})
    limit = exactly(0, "GPUs", "ordered").model_dump(mode="json")
    data = {"name": "gpu_model", "value": 0, "unit": "GPUs", "limit": limit}
    found = judge.replace("measurement", "h", data)
    assert (found["limit"], found["note"]) == (None if note else limit, note)


@pytest.mark.parametrize(("nodes", "low"), [(2, 56.25), (8, 33.75)])
def test_limits_that_follow_from_the_number_of_nodes_are_those_of_the_run(
    nodes: int, low: float
) -> None:
    judge = NewJudge(contract("h100-ndr400"), "again")
    terms = contract("h100-ndr400").cluster.model_dump(exclude_none=True)
    cluster = {"alive": nodes, "ranks": 8 * nodes, "terms": terms}
    judge.replace("run_started", "", {"cluster": cluster})
    judge.replace("probe_started", "f", {"criterion": "FABRIC"})
    data = {"name": "alltoall_busbw", "value": 40.0, "unit": "GB/s", "limit": None}
    limit = judge.replace("measurement", "f", data)["limit"]
    assert (limit["low"], limit["source"]) == (low, "derived")


def test_what_a_run_without_an_order_counted_is_no_order(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", BOUGHT, keep=False)
    assert rejudged(run, BOUGHT.replace("nodes = 4", "")).verdict("HOSTS") is Verdict.UNPROVEN


def test_an_earlier_result_is_not_overwritten(bought: Path) -> None:
    first = rejudge_run(bought, parse(BOUGHT.encode(), "f"))
    kept = (first / "events.jsonl").read_bytes()
    again = [rejudge_run(bought, parse(BOUGHT.encode(), "f")).name for _ in range(2)]
    assert [first.name, *again] == ["bought-by-bought", "bought-by-bought-2", "bought-by-bought-3"]
    assert (first / "events.jsonl").read_bytes() == kept
    assert load(bought.with_name(again[0])).id == again[0]


def test_a_negative_time_passes_no_upper_limit(bought: Path) -> None:

    def negative(events: Events) -> Events:
        return json.loads(json.dumps(events).replace('"value": 20.0', '"value": -480.0'))  # type: ignore[no-any-return]

    rewrite(bought, negative)
    assert load(bought).verdict("RESTART") is Verdict.PASS
    judged = rejudged(bought, BOUGHT)
    assert judged.verdict("RESTART") is Verdict.UNPROVEN
    assert "the value was -480 s" in judged.results_of("RESTART")[0].problems()[0]


def test_what_is_not_a_run_is_one_sentence(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["rejudge", str(tmp_path), "--contract", "lab"])
    assert told.exit_code == 4
    assert "Traceback" not in told.output
    told = CliRunner().invoke(main, ["report", str(tmp_path / "missing")])
    assert told.exit_code == 4


def test_what_the_new_contract_owes_is_owed(run: Path, tmp_path: Path) -> None:
    """A quick run proves nothing by a contract of the standard tier."""
    say_owed(run)
    longer = parse(STRICT.replace("[GANG", 'tier = "standard"\n[GANG').encode(), "longer.toml")
    judged = load(rejudge_run(run, longer))
    asks = "tier quick was run, and the contract asks for tier standard"
    assert judged.partial == asks
    assert len([probe for probe in judged.owed if probe.tier == "standard"]) > 10
    assert judged.verdict("GANG") is Verdict.FAIL
    assert judged.verdict("RESTART") is Verdict.UNPROVEN
    assert summarize_acceptance(judged).word == "NOT ACCEPTED (PARTIAL)"


def test_a_run_whose_end_was_not_written_stays_so(run: Path) -> None:
    """The disk was full: judging again must not give the folder the sums it lacks."""
    (run / "SHA256SUMS").unlink()
    judged = rejudge_run(run, contract("lab"))
    assert [problem.kind for problem in load(judged).problems] == ["rendering"]
    assert load_summary(judged).exit_code == 3


def test_the_new_folder_is_complete_and_has_no_problem_of_its_own(run: Path) -> None:
    judged = rejudge_run(run, contract("lab"))
    names = {path.name for path in judged.iterdir()}
    assert {"record.json", "report.html", "junit.xml", "SHA256SUMS"} <= names
    assert read_whole(judged).integrity.problems == []
    assert load(judged).problems == []


def test_a_run_without_a_chain_is_not_judged_again(run: Path) -> None:
    write_lines(run, without_chain(read_lines(run)))
    (run / "SHA256SUMS").unlink()
    with pytest.raises(UnreadableRun, match="line 1 has event number None"):
        rejudge_run(run, contract("lab"))
