"""Contracts: what is refused, in which words, and what a limit means."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from probes.check.declarations import Check
from probes.check.registry import CRITERIA
from probes.cli.main import main
from probes.contract import contract as contract_module
from probes.contract.contract import ContractError, find_gaps, load, parse, shipped_contracts
from probes.contract.derived_limits import size_contract
from probes.contract.limits import LimitTerms, lacks_speed_limit
from probes.contract.terms import ClusterTerms
from reports.measurement import Limit, Verdict

GOOD = """schema = 1
[FABRIC.busbw]
at_least = 340
marginal = 368
unit = "GB/s"
because = "85 % of 400"
"""
INVARIANT = """schema = 1
[FABRIC.wrong_elements]
at_most = 3
unit = "elements"
because = "some"
"""

FROM_RUN = """schema = 1
[HOSTS.nodes]
exactly = 8
unit = "nodes"
because = "ordered"
"""
WAIVER = """schema = 1
[[waivers]]
id = "W1"
criterion = "GANG"
reason = "known"
name = "A. Ops"
until = 2026-12-31
"""

ONE_RAIL = 'schema = 1\n[cluster]\nfabric = "rdma"\nline_rate_gbps = 400\n'

REFUSED = [
    ("schema = 2\n", "expected schema = 1, found 2"),
    ("x =\n", "not TOML"),
    ("schema = 1\n[clutser]\n", "unknown key 'clutser', did you mean 'cluster'?"),
    ("schema = 1\n[cluster]\nnode = 3\n", "unknown key 'node', did you mean 'nodes'?"),
    ("schema = 1\n[cluster]\nnodes = 0\n", "'nodes'"),
    (GOOD.replace("busbw", "busbandw"), "FABRIC.busbandw, did you mean 'busbw'? FABRIC"),
    (GOOD.replace("because", "becuse"), "[FABRIC.busbw]"),
    (GOOD.replace('because = "85 % of 400"\n', ""), "'because' is missing"),
    (GOOD.replace("GB/s", "Gb/s"), "expected unit 'GB/s', found 'Gb/s'"),
    (GOOD.replace("340", '"fast"'), "found 'fast'"),
    (GOOD.replace("at_least = 340\n", ""), "no bound"),
    (GOOD.replace("368", "300"), "or more, found 300"),
    (GOOD.replace("marginal", "margnal"), "did you mean 'marginal'?"),
    (INVARIANT, "and no contract may change it: remove this"),
    (FROM_RUN, "follows from [cluster] nodes"),
    (WAIVER.replace("GANG", "GNAG"), "did you mean 'GANG'?"),
    ("schema = 1\nFABRIC = 3\n", "FABRIC: expected a table"),
    ('schema = 1\n[[waivers]]\nid = "W1"\n', "[[waivers]]"),
    (ONE_RAIL, "[cluster]: expected rails with line_rate_gbps = 400 (the rate of one rail)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_a_bad_contract_gets_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ContractError) as refused:
        parse(text.encode(), "mine.toml")
    sentence = str(refused.value)
    assert says in sentence
    assert sentence.startswith("mine.toml")
    assert "\n" not in sentence


def test_whole_numbers_are_numbers() -> None:
    keys = 'line_rate_gbps = 400\nrails = 8\nfabric = "rdma"\nram_gib = 1000\nsave_minutes = 15'
    cluster = parse(f"schema = 1\n[cluster]\n{keys}\n".encode(), "f").cluster
    assert (cluster.line_rate_gbps, cluster.ram_gib, cluster.save_minutes) == (400.0, 1000.0, 15.0)


def test_what_was_ordered_of_each_node_is_read() -> None:
    keys = """
    gpu_model = ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    gpu_memory_gib = 79
    versions = {torch = "2.13.0+cu130", driver = ">=550.54", ray = ">= 2.40"}
    """
    cluster = parse(f"schema = 1\n[cluster]\n{keys}\n".encode(), "f").cluster
    assert cluster.gpu_model == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    assert cluster.versions == {"torch": "2.13.0+cu130", "driver": ">=550.54", "ray": ">= 2.40"}


@pytest.mark.parametrize("name", ["h100-ndr400", "h200-ndr400", "ethernet"])
def test_a_shipped_contract_of_hardware_says_what_was_ordered(name: str) -> None:
    contract = load(name)
    assert not contract.rehearsal
    assert contract.tier == "standard"
    assert contract.cluster.nodes is None, "it comes from --nodes"
    if name != "ethernet":
        model = {"h100-ndr400": "NVIDIA H100 80GB HBM3", "h200-ndr400": "NVIDIA H200"}[name]
        assert contract.cluster.gpu_model == model
        assert contract.cluster.gpu_memory_gib
        assert contract.cluster.cpus_per_node
        assert contract.cluster.ram_gib
        assert contract.cluster.versions


def test_a_file_without_a_slash_is_told_how_to_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContractError, match=r"this folder has a file of this name: \./ours"):
        load("ours")
    assert load("./ours").limit("FABRIC", "busbw")


def test_limits_of_a_good_contract() -> None:
    contract = parse(GOOD.encode(), "mine.toml")
    busbw = contract.limit("FABRIC", "busbw")
    assert busbw is not None
    assert [busbw.judge(v) for v in (339.0, 340.0, 368.0)] == [
        Verdict.FAIL,
        Verdict.MARGINAL,
        Verdict.PASS,
    ]
    assert busbw.source == "mine.toml [FABRIC.busbw]"


def test_at_most_has_its_marginal_band_below() -> None:
    limit_text = 'at_most = 5\nmarginal = 3\nunit = "s"\nbecause = "ray ticks"\n'
    text = f"schema = 1\n[GANG.placement_delay]\n{limit_text}"
    limit = parse(text.encode(), "mine.toml").limit("GANG", "placement_delay")
    assert limit is not None
    assert [limit.judge(v) for v in (2.0, 4.0, 6.0)] == [
        Verdict.PASS,
        Verdict.MARGINAL,
        Verdict.FAIL,
    ]


def test_a_marginal_bound_that_is_the_bound_leaves_no_band() -> None:
    text = GOOD.replace("marginal = 368", "marginal = 340")
    assert text != GOOD
    busbw = parse(text.encode(), "mine.toml").limit("FABRIC", "busbw")
    assert busbw is not None
    assert [busbw.judge(v) for v in (339.0, 341.0)] == [Verdict.FAIL, Verdict.PASS]


def test_a_marginal_bound_that_is_the_upper_bound_leaves_no_band() -> None:
    limit_text = 'at_most = 5\nmarginal = 5\nunit = "s"\nbecause = "ray ticks"\n'
    text = f"schema = 1\n[GANG.placement_delay]\n{limit_text}"
    limit = parse(text.encode(), "mine.toml").limit("GANG", "placement_delay")
    assert limit is not None
    assert [limit.judge(v) for v in (4.9, 5.1)] == [Verdict.PASS, Verdict.FAIL]


@pytest.mark.parametrize("name", shipped_contracts())
def test_shipped_contracts_hold(name: str) -> None:
    contract = load(name)
    assert contract.agreed
    assert len(contract.sha256) == 64
    for id, row in CRITERIA.items():
        for measure in row.measures:
            limit = contract.limit(id, measure)
            assert limit is None or limit.because


WITHOUT_FABRIC = ("local", "h100-one-node")


@pytest.mark.parametrize("name", [n for n in shipped_contracts() if n not in WITHOUT_FABRIC])
def test_a_real_contract_leaves_no_fabric_limit_open(name: str) -> None:
    contract = size_contract(load(name), 4, 32)
    open_ = {
        name
        for name, measure in CRITERIA["FABRIC"].measures.items()
        if contract.limit("FABRIC", name) is None and not measure.from_run
    }
    # A share of the all-reduce, or of the other nodes, judges them everywhere.
    figures = {"all_gather_busbw", "reduce_scatter_busbw", "alltoall_busbw"}
    figures |= {"all_reduce_inside_node"}
    rack = set() if name == "gb200-nvl72" else {"nvlink_busbw"}
    over_tcp = name in ("lab", "ethernet", "l40s-ethernet")
    assert open_ == rack | (figures if over_tcp else set())
    assert contract.limit("SCALING", "efficiency") is not None
    assert not contract.optional


def test_the_contract_of_one_node_judges_what_is_inside_it() -> None:
    contract = load("h100-one-node")
    assert (contract.cluster.nodes, contract.cluster.gpus_per_node) == (1, 8)
    assert {id: [*limits] for id, limits in contract.limits.items() if limits} == {
        "FABRIC": ["all_reduce_inside_node"]
    }
    assert contract.limit("FABRIC", "all_reduce_inside_node") == load("h100-ndr400").limit(
        "FABRIC", "all_reduce_inside_node"
    ).model_copy(update={"source": "h100-one-node.toml [FABRIC.all_reduce_inside_node]"})


def test_local_says_what_it_cannot_prove() -> None:
    assert set(load("local").optional) == {"FABRIC", "SCALING"}
    assert all(
        not c.required for c in load("local").facts().criteria if c.id in ("FABRIC", "SCALING")
    )


def test_waivers_carry_reason_name_and_end() -> None:
    (waiver,) = parse(WAIVER.encode(), "mine.toml").waivers
    assert waiver.until == date(2026, 12, 31)


def test_check_command(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(GOOD)
    bad.write_text(GOOD.replace("busbw", "busbandw"))
    told = CliRunner().invoke(main, ["contract", "check", "--limits", str(good)])
    assert told.exit_code == 0
    assert "busbw" in told.output
    assert ">= 340 GB/s" in told.output
    told = CliRunner().invoke(main, ["contract", "check", str(bad)])
    assert told.exit_code == 4
    assert "did you mean 'busbw'" in told.output
    told = CliRunner().invoke(main, ["contract", "check", "h100-ndr40"])
    assert told.exit_code == 4
    assert "did you mean 'h100-ndr400'? Give one of" in told.output


def test_explain_command() -> None:
    told = CliRunner().invoke(main, ["explain", "fab-wrong-interface"])
    assert told.exit_code == 0
    assert "do      Make NCCL and gloo on NODE use the agreed fabric" in told.output
    assert "\nfixed when: During a run, the byte counters" in told.output
    told = CliRunner().invoke(main, ["explain", "FAB-WRONG-INTERFCE"])
    assert told.exit_code == 4
    assert "did you mean FAB-WRONG-INTERFACE" in told.output


def test_a_line_rate_gives_the_bandwidth_limit_where_none_is_agreed() -> None:
    text = 'schema = 1\n[cluster]\nfabric = "rdma"\nrails = 8\nline_rate_gbps = 400\n'
    limit = parse(text.encode(), "mine.toml").limit("FABRIC", "busbw")
    assert limit is not None
    assert limit.low == pytest.approx(320)
    assert limit.marginal_low == pytest.approx(344)
    assert "8 x 400" in limit.because


def test_only_an_rdma_contract_may_claim_rdma() -> None:
    titles = {n: load(n).facts().criteria[0].title for n in shipped_contracts()}
    assert titles["h100-ndr400"] == "RDMA is in use"
    assert {titles[n] for n in ("lab", "local", "ethernet")} == {"the agreed fabric is in use"}
    proven = {n: load(n).criterion("FABRIC").proven for n in shipped_contracts()}
    assert proven["h100-ndr400"] == " over RDMA"
    assert {proven[n] for n in ("lab", "local", "ethernet")} == {" over the agreed fabric"}


def test_shards_are_at_one_path_on_every_node() -> None:
    text = 'schema = 1\nname = "n"\ntitle = "t"\n[cluster]\nshards = "{}/shards-{{nodes}}"\n'
    assert parse(text.format("/data").encode(), "f").cluster.shards == "/data/shards-{nodes}"
    with pytest.raises(
        ContractError, match="'shards': expected an absolute path on every node, found 'x/"
    ):
        parse(text.format("x").encode(), "f")


def test_only_of_rdma_the_number_of_rails_must_be_said() -> None:
    limits = [
        parse(text.encode(), "f").limit("FABRIC", "busbw")
        for text in (ONE_RAIL.replace("rdma", "eth0"), f"{ONE_RAIL}rails = 1\n")
    ]
    assert [limit and limit.low for limit in limits] == [pytest.approx(40.0)] * 2
    assert parse(GOOD.encode(), "f").cluster.rails is None


def test_a_limit_may_be_one_value() -> None:
    def limit(least: float) -> Limit:
        terms = LimitTerms(at_least=least, at_most=5, unit="s", because="as agreed")
        return terms.to_limit(Check("waited", "s"), "mine.toml")

    assert (limit(5).low, limit(5).high) == (5, 5)
    with pytest.raises(ValueError, match="at_least"):
        limit(5.1)


def test_a_reason_has_three_letters_at_least() -> None:
    assert LimitTerms(at_least=1, because="why").because == "why"
    with pytest.raises(ValueError, match="the reason of this limit"):
        LimitTerms(at_least=1, because="no")


def test_all_there_is_may_be_agreed() -> None:
    share = Check("share", "ratio", better="higher")
    limit = LimitTerms(at_least=1, unit="ratio", because="as agreed").to_limit(share, "mine.toml")
    assert [limit.judge(value) for value in (1.0, 0.99)] == [Verdict.PASS, Verdict.FAIL]


PORTS = {"interfaces": {"ib0": {"address": ""}}, "rdma": [{"netdev": "ib0"}]}
FACTS = {"alive": 4, "on_gpu": True, "kind": "local", "ranks": 32, "nodes": [PORTS]}


@pytest.mark.parametrize(
    ("fabric", "facts", "shape"),
    [
        (None, {}, (0, False, False, 0, True)),
        ("eth1", {"kind": "slurm", "nodes": [PORTS]}, (0, False, False, 0, True)),
        ("rdma", FACTS, (4, True, True, 32, False)),
    ],
)
def test_what_a_run_owes_follows_from_the_facts_of_its_cluster(
    monkeypatch: pytest.MonkeyPatch,
    fabric: str | None,
    facts: dict[str, Any],
    shape: tuple[Any, ...],
) -> None:
    def given(*words: object, **shape: object) -> dict[str, object]:
        return {"words": words, **shape}

    monkeypatch.setattr(contract_module, "owed_event", given)
    agreed, terms = load("lab"), ClusterTerms(fabric=fabric)
    assert agreed.owed_event("standard", ["GANG"], terms, facts) == {
        "words": ("standard", agreed.tier, ["GANG"]),
        "terms": terms,
        "agreed": agreed.limited_names,
        "not_provable": frozenset(agreed.optional),
        "not_countable": frozenset(),
        **dict(zip(("nodes", "on_gpu", "one_host", "ranks", "ip_fabric"), shape, strict=True)),
    }


def test_the_fabric_of_the_cluster_is_the_one_network_that_is_right() -> None:
    network = parse(f"{ONE_RAIL}rails = 1\n".encode(), "f").limit("FABRIC", "network")
    assert network is not None
    assert network.one_of == ["rdma"]
    assert parse(GOOD.encode(), "f").limit("FABRIC", "network") is None


def test_the_guide_is_found_from_the_folder_of_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('schema = 1\n[launch]\ndocument = "guide.md"\nvalues = {TRAIN = "{command}"}\n')
    with pytest.raises(ContractError, match="expected a file, found none"):
        load(str(path))
    (tmp_path / "guide.md").write_text("# Run\n")
    assert load(str(path)).guide == str(tmp_path / "guide.md")


def test_none_of_a_count_may_be_agreed() -> None:
    text = 'schema = 1\n[HOSTS.system_differences]\nat_most = 0\nunit = "differences"\n'
    limit = parse((text + 'because = "one image"\n').encode(), "a.toml").limit(
        "HOSTS", "system_differences"
    )
    assert limit is not None
    assert [limit.judge(value) for value in (0, 1)] == [Verdict.PASS, Verdict.FAIL]


def test_what_a_contract_lacks_is_asked_of_the_ordered_number_of_nodes() -> None:
    alone = load("h100-one-node")
    open_number = alone.cluster.model_copy(update={"nodes": None})
    assert not [*find_gaps(alone.model_copy(update={"cluster": open_number}), nodes=1)]
    ((_, text),) = find_gaps(load("l40s-ethernet"), nodes=1)
    assert "FABRIC.all_reduce_inside_node" in text
    assert not [*find_gaps(load("l40s-ethernet"), nodes=8)]


@pytest.mark.parametrize(
    ("models", "lacks"),
    [
        (["NVIDIA H100 80GB HBM3", "NVIDIA T400"], False),  # the second draws a screen
        (["NVIDIA T400"], True),
        ([], False),  # as ordered
    ],
)
def test_models_without_a_published_speed_prevent_acceptance_only_alone(
    models: list[str], lacks: bool
) -> None:
    assert [text for _, text in find_gaps(load("h100-ndr400"), models, nodes=8)] == (
        [lacks_speed_limit(models)] if lacks else []
    )
