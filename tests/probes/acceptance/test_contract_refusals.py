"""Contracts that are refused: wrong types, no sense, contradictions, the wrong way round."""

from __future__ import annotations

import re

import pytest

from probes.check.registry import CRITERIA
from probes.contract.contract import ContractError, parse
from tests.probes.acceptance.test_contract import GOOD, WAIVER


def busbw(bounds: str) -> str:
    """A contract with these bounds of a measure of which more is better."""
    return f'schema = 1\n[FABRIC.busbw]\n{bounds}\nunit = "GB/s"\nbecause = "85 % of 400"\n'


def delay(bounds: str) -> str:
    """A contract with these bounds of a measure of which less is better."""
    return f'schema = 1\n[GANG.placement_delay]\n{bounds}\nunit = "s"\nbecause = "as agreed"\n'


def ratio(bounds: str) -> str:
    """A contract with these bounds of a share."""
    return f'schema = 1\n[SCALING.efficiency]\n{bounds}\nunit = "ratio"\nbecause = "as agreed"\n'


def network(bounds: str) -> str:
    """A contract with these bounds of a word."""
    return f'schema = 1\n[FABRIC.network]\n{bounds}\nbecause = "as agreed"\n'


def of_hosts(measure: str, unit: str, bounds: str) -> str:
    """A contract with these bounds of a measure of each host."""
    return f'schema = 1\n[HOSTS.{measure}]\n{bounds}\nunit = "{unit}"\nbecause = "as agreed"\n'


def ordered(keys: str) -> str:
    """A contract with these keys of [cluster]."""
    return f"schema = 1\n[cluster]\n{keys}\n"


WRONG_TYPES = [
    (busbw("at_least = true"), "[FABRIC.busbw]: 'at_least': expected a number, found true"),
    (busbw('at_least = "340"'), "'at_least': expected a number, found '340'"),
    (busbw("at_least = [340]"), "'at_least': expected a number, found [340]"),
    (busbw(f"at_least = {'9' * 400}"), "'at_least': expected a number, found"),
    (ordered("nodes = 8.0"), "[cluster]: 'nodes': expected a whole number, found 8.0"),
    (ordered("nodes = true"), "'nodes': expected a whole number, found true"),
    (ordered('nodes = "8"'), "'nodes': expected a whole number, found '8'"),
    (ordered("shared = 5"), "'shared': expected text in quotes, found 5"),
    (ordered("gpu_model = 5"), "expected text in quotes or a table or a list, found 5"),
    (ordered('gpu_model = ["H100", 5]'), "expected text in quotes or a table, found 5"),
    (ordered("versions = 5"), "'versions': expected a table, found 5"),
    (ordered("versions = {torch = 2.1}"), "'versions.torch': expected text in quotes, found 2.1"),
    (ordered("components = {actor = true}"), "expected text in quotes or a whole number, found"),
    ("schema = 1\ncluster = 5\n", "[cluster]: expected a table, found 5"),
    ("schema = true\n", "expected schema = 1, found true"),
    ("schema = 1\ntitle = 5\n", "title: expected text in quotes, found 5"),
    ("schema = 1\nwaivers = 5\n", "expected [[waivers]] tables, found 5"),
    ("schema = 1\n[FABRIC]\nbusbw = 340\n", "[FABRIC.busbw]: expected a table, found 340"),
    (WAIVER.replace("2026-12-31", '"2026-12-31"'), "'until': expected a date without quotes"),
    (f"schema = 1\nx = {'[' * 1900}", "found lists or tables nested too deeply"),
]  # fmt: skip

NO_SENSE = [
    (busbw("at_least = inf"), "'at_least': expected a finite number, found inf"),
    (busbw("at_least = nan"), "'at_least': expected a finite number, found nan"),
    (busbw("at_least = 340\nmarginal = inf"), "'marginal': expected a finite number, found inf"),
    (ordered("line_rate_gbps = inf"), "'line_rate_gbps': expected a finite number, found inf"),
    (
        ordered("nodes = 2\ngpus_per_node = 8\nparallel = {tp = 8, pp = 1, dp = 1}"),
        "expected sizes of at least 1 whose product is 16, found tp 8 x pp 1 x dp 1 = 8",
    ),
    (ordered("ram_gib = nan"), "'ram_gib': expected a finite number, found nan"),
    (busbw("at_least = -340"), "at_least to be 0 or more, found -340: the"),
    (busbw("at_least = 0"), "at_least to be more than 0, found 0: every value meets this"),
    (delay("at_most = 0"), "at_most to be more than 0, found 0: no value meets this"),
    (ratio("at_least = 0.0"), "at_least to be more than 0, found 0"),
    (ratio("at_least = 90"), "at_least to be 1 or less, found 90: a share is at most 1"),
    (ratio("at_least = 0.9\nmarginal = 95"), "marginal to be 1 or less, found 95"),
    (delay("at_most = 1e9"), "at_most to be 86400 or less, found 1e+09: no probe waits"),
    (of_hosts("loopback_names", "names", "at_most = 2"), "1 or less, found 2: a node has one host"),
    (of_hosts("nccl_interface", "interfaces", "at_most = 2"), "1 or less, found 2: NCCL starts"),
    (of_hosts("processes", "threads a rank", "at_least = 5e6"), "to be 4.1943e+06 or less, found"),
    (of_hosts("stack", "MiB", "at_least = 2e9"), "to be 1.07374e+09 or less, found 2e+09"),
    (of_hosts("open_files", "files", "at_least = 2e9"), "to be 1.07374e+09 or less, found 2e+09"),
    (ordered("nodes = 1000000000"), "'nodes': expected 20000 or less, found 1000000000"),
    (ordered("ram_gib = -1"), "'ram_gib': expected more than 0, found -1"),
    (ordered("gpus_per_node = {}"), "such as { 8 = 60, 4 = 4 }; found nothing"),
    (ordered("nodes = 1\ngpus_per_node = { x = 1 }"), "4 = 4 }; found x = 1"),
    (ordered("nodes = 1\ngpus_per_node = { 8 = 0 }"), "4 = 4 }; found 8 = 0"),
    (ordered("nodes = 1\ngpus_per_node = { 65 = 1 }"), "4 = 4 }; found 65 = 1"),
    (ordered("gpus_per_node = { 8 = 2 }"), "expected nodes = 2, the sum of gpus_per_node's kinds"),
    (ordered("nodes = 3\ngpus_per_node = { 8 = 2 }"), "kinds, found nodes = 3"),
    (ordered("nodes_at_most = 12"), "nodes from 2 to 11 with nodes_at_most = 12, found none"),
    (ordered("nodes = 12\nnodes_at_most = 12"), "with nodes_at_most = 12, found 12"),
    (ordered("nodes = 1\nnodes_at_most = 4"), "nodes from 2 to 3 with nodes_at_most = 4, found 1"),
    (
        ordered("nodes = 3\nnodes_at_most = 4\ngpus_per_node = { 8 = 2, 4 = 1 }"),
        "fit one number of nodes: remove them, or nodes_at_most",
    ),
    (
        ordered("nodes = 3\nnodes_at_most = 4\nparallel = {tp = 8, pp = 1, dp = 3}"),
        "fit one number of nodes: remove them, or nodes_at_most",
    ),
    (
        ordered("nodes = 3\nnodes_at_most = 4\ngpu_model = { H200 = 3 }"),
        "fit one number of nodes: remove them, or nodes_at_most",
    ),
    (ordered("gpu_model = {}"), 'such as { "NVIDIA H200" = 4 }; found nothing'),
    (ordered("nodes = 1\ngpu_model = { H200 = 0 }"), '"NVIDIA H200" = 4 }; found H200 = 0'),
    (ordered("gpu_model = { H200 = 2 }"), "expected nodes = 2, the sum of gpu_model's kinds"),
    (ordered("nodes = 3\ngpu_model = { H200 = 2 }"), "kinds, found nodes = 3"),
    (ordered('nodes = 1\ngpu_model = { " " = 1 }'), "'gpu_model': expected the name that NVML"),
    (ordered("gpus_per_node = -1"), "'gpus_per_node': expected 0 or more or a table, found -1"),
    (ordered("save_minutes = 0"), "'save_minutes': expected more than 0, found 0"),
    (GOOD.replace("85 % of 400", "   "), "'because': expected the reason of this limit in words"),
    (GOOD.replace("85 % of 400", ""), "'because': expected the reason of this limit in words"),
    (WAIVER.replace('"known"', '"  "'), "[[waivers]]: 'reason': expected words, found none"),
    (ordered('accelerators = "fake"'), "expected 'real' or 'emulated', found 'fake'"),
    (ordered("rungs = []"), "'rungs': expected numbers of nodes, each once, such as [1, 4, 16]"),
    (ordered("rungs = [2, 2]"), "each once, such as [1, 4, 16], found [2, 2]"),
    (ordered("rungs = [0]"), "'rungs.0': expected 1 or more, found 0"),
    (ordered("fabric = []"), 'expected names of interfaces, such as ["eth1", "eth2"], found []'),
    (ordered("fabric = [1]"), 'expected names of interfaces, such as ["eth1", "eth2"], found [1]'),
    (ordered('fabric = ["eth1", "eth1"]'), "'fabric': expected each interface once, found"),
    (ordered('fabric = ["eth1", "rdma"]'), "'fabric': expected an interface, or \"rdma\" alone"),
    (ordered('fabric = ["eth1", ""]'), "'fabric': expected the name of an interface, found"),
    (
        ordered('fabric = ["eth1", "eth2"]\nmanagement = "eth2"'),
        "expected management to be another interface than the fabric, found 'eth2' for both",
    ),
    (
        ordered('fabric = ["eth1", "eth2"]\nrails = 4'),
        "expected rails = 2, one for each interface of the fabric, found 4: remove rails",
    ),
    (ordered('gpu_model = ""'), "'gpu_model': expected the name that NVML gives"),
    (ordered('gpu_model = [" "]'), "'gpu_model': expected the name that NVML gives"),
    (ordered("gpu_model = []"), "'gpu_model': expected at least one name, found none"),
    (ordered('versions = {torhc = "2.1"}'), "found 'torhc', did you mean 'torch'?"),
    (ordered("egress = []"), "'egress': expected at least one, found none: remove the key"),
    (ordered('egress = ["hub.example"]'), "'egress': expected https://host/path without a user's"),
    (ordered('egress = ["ftp://hub.example/"]'), "found 'ftp://hub.example/'"),
    (ordered('egress = ["https://me:secret@hub.example/"]'), "without a user's name, or host:port"),
    (ordered('egress = ["hub.example:65536"]'), "found 'hub.example:65536'"),
    (ordered('egress = ["https://hub.example:99999/"]'), "or host:port, found"),
    (ordered('egress = ["a:1", "a:1"]'), "32 entries, each once, found 2 (1 without repeats)"),
    (ordered("agreed_differences = []"), "'agreed_differences': expected at least one, found none"),
    (ordered('agreed_differences = ["vBIOS"]'), "'persistence' or 'numa', found 'vBIOS'"),
    (ordered('agreed_differences = ["vbios", "driver"]'), "or 'numa', found 'driver'"),
    (ordered('model_files = ["llama"]'), "'model_files.0': expected an absolute path on"),
    (ordered('versions = {torch = "newest"}'), "'versions': torch: expected \"2.13.0\" (exactly)"),
    (ordered('versions = {torch = "<2.1"}'), "found '<2.1'"),
    (ordered('versions = {torch = ">="}'), "found '>='"),
    (ordered('versions = {torch = ">=2.13.0+cu130"}'), "found '>=2.13.0+cu130'"),
    (ordered('shared = "data"'), "'shared': expected an absolute path on every node"),
    (ordered('fabric = " "'), "'fabric': expected the name of an interface"),
    (ordered('fabric = "RDMA"'), "'fabric': expected an interface, or \"rdma\" alone"),
    ('schema = 1\ntier = "long"\n', "tier: expected one of quick, standard, soak, found 'long'"),
    ('schema = 1\ntier = "standart"\n', "found 'standart', did you mean 'standard'?"),
    ("schema = 1\ntier = 3\n", "tier: expected one of quick, standard, soak, found 3"),
]  # fmt: skip

CONTRADICTORY = [
    (busbw("at_least = 340\nat_most = 300"), "found at_most = 300: higher values of this measure"),
    (busbw("at_least = 340\nexactly = 0"), "found exactly = 0: higher values of this measure"),
    (busbw("at_least = 340\nmarginal = 300"), "marginal of 340 (at_least) or more, found 300"),
    (delay("at_most = 5\nmarginal = 6"), "marginal of 5 (at_most) or less, found 6"),
    (busbw('one_of = ["fast"]'), "expected bounds of a number (at_least, at_most), found one_of"),
    (busbw('at_least = 340\none_of = ["fast"]'), "found one_of"),
    (network("at_least = 3"), "expected words (one_of), found at_least"),
    (network('one_of = ["rdma"]\nmarginal = 3'), "expected words (one_of), found marginal"),
    (network("one_of = []"), "has no bound: give one_of"),
    (network('one_of = [""]'), "expected a word in one_of, found ''"),
    (
        ordered('fabric = "rdma"') + network('one_of = ["eth0"]').removeprefix("schema = 1\n"),
        "[FABRIC.network]: expected 'rdma', the fabric of [cluster], in one_of, found eth0",
    ),
    (
        ordered('fabric = "eth0"\nline_rate_gbps = 100')
        + busbw("at_least = 100").removeprefix("schema = 1\n"),
        "expected at_least = 12.5 or less, the line rate of 1 x 100 Gbit/s, found 100",
    ),
    (ordered("pace_seconds = 0.4"), 'this key, or write accelerators = "emulated" for a rehearsal'),
    (ordered('fabric = "eth0"\nmanagement = "eth0"'), "management to be another interface than"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), [*WRONG_TYPES, *NO_SENSE, *CONTRADICTORY])
def test_what_makes_no_sense_gets_one_sentence_without_a_librarys_words(
    text: str, says: str
) -> None:
    with pytest.raises(ContractError) as refused:
        parse(text.encode(), "mine.toml")
    sentence = str(refused.value)
    assert says in sentence
    assert sentence.startswith("mine.toml: ")
    assert "\n" not in sentence
    assert not [word for word in ("Input should", "pydantic", "valid") if word in sentence]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (busbw("at_most = 340"), "higher values of this measure are better. Write at_least = 340"),
        (busbw("exactly = 340"), "better. Write at_least = 340"),
        (ratio("at_most = 0.9"), "better. Write at_least = 0.9"),
        (ratio("at_least = 0.9\nat_most = 1"), "better. Drop at_most"),
        (delay("at_least = 5"), "lower values of this measure are better. Write at_most = 5"),
        (delay("exactly = 5"), "better. Write at_most = 5"),
        (delay("at_least = 60").replace("GANG.placement_delay", "RESTART.recovery_time"),
         "[RESTART.recovery_time]: expected at_most"),
    ],
)  # fmt: skip
def test_a_limit_the_wrong_way_round_is_refused(text: str, says: str) -> None:
    with pytest.raises(ContractError, match=re.escape(says)):
        parse(text.encode(), "mine.toml")


def test_every_number_that_a_contract_may_limit_knows_which_way_is_better() -> None:
    open_ = {
        f"{id}.{name}": measure.better
        for id, row in CRITERIA.items()
        for name, measure in row.measures.items()
        if measure.agreeable
    }
    assert [name for name, better in open_.items() if not better] == []
    assert [name for name, better in open_.items() if better == "word"] == ["FABRIC.network"]
    higher = {name for name, better in open_.items() if better == "higher"}
    assert {"FABRIC.busbw", "SCALING.efficiency", "FABRIC.slowest_pair"} <= higher
    assert not higher & {"RESTART.recovery_time", "GANG.large_gang_wait", "SCALING.straggler"}


EMULATED = 'schema = 1\n[cluster]\naccelerators = "emulated"\n[GANG]\nnot_provable = {}\n'
REASON = '"all raylets share one host"'


@pytest.mark.parametrize("reason", ["false", "true", '""', "[]", "0", '"  "', '"no reason"'])
def test_a_criterion_is_left_out_only_for_a_reason(reason: str) -> None:
    with pytest.raises(ContractError, match=r"\[GANG\] not_provable: expected a sentence: why"):
        parse(EMULATED.format(reason).encode(), "mine.toml")


def test_only_a_rehearsal_may_leave_a_criterion_out() -> None:
    for reason in (REASON, '"one shared host"'):
        assert set(parse(EMULATED.format(reason).encode(), "f").optional) == {"GANG"}
    for text in (
        EMULATED.format(REASON).replace("emulated", "real"),
        f"schema = 1\n[GANG]\nnot_provable = {REASON}\n",
    ):
        with pytest.raises(ContractError, match="expected only in the contract of a rehearsal"):
            parse(text.encode(), "mine.toml")


def test_a_criterion_that_only_informs_has_no_limit() -> None:
    limit = '[GANG.placement_delay]\nat_most = 9\nunit = "s"\nbecause = "agreed"'
    message = r"\[GANG.placement_delay\]: expected no limit, because \[GANG\] is not_provable"
    with pytest.raises(ContractError, match=message):
        parse(f"{EMULATED.format(REASON)}{limit}".encode(), "mine.toml")


OVERHEAD = '[SCALING.checkpoint_overhead]\nat_most = 0.02\nunit = "ratio"\nbecause = "agreed"'
WAIT = '[GANG.large_gang_wait]\nat_most = 9\nunit = "s"\nbecause = "agreed"'


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        (OVERHEAD, "[SCALING.checkpoint_overhead]"),
        (f'[cluster]\nqueue = "kueue"\n{WAIT}', "[GANG.large_gang_wait]"),
        ('[cluster]\ncomponents = {"a,b" = "all"}', "[cluster] components"),
    ],
)
def test_what_no_probe_of_the_tier_measures_is_refused(terms: str, named: str) -> None:
    """It would be agreed in vain: the run ends well, and nobody looked."""
    way_out = 'uses it. Write tier = "standard" at the top, or remove this key'
    with pytest.raises(ContractError, match=re.escape(f"{named}: no test of tier quick {way_out}")):
        parse(f"schema = 1\n{terms}".encode(), "ours.toml")
    assert parse(f'schema = 1\ntier = "standard"\n{terms}'.encode(), "ours.toml")


@pytest.mark.parametrize("tier", ["quick", "standard"])
def test_a_key_that_no_tier_uses_is_to_be_removed(tier: str) -> None:
    """Another tier would help nobody."""
    head = f'schema = 1\ntier = "{tier}"\n[cluster]\naccelerators = "emulated"\n'
    informs = f"[GANG]\nnot_provable = {REASON}\n"
    gate = '[baseline]\nGANG.placement_delay = "2 %"\n'
    text = f"[baseline] GANG.placement_delay: no test of tier {tier} uses it. Remove this key"
    with pytest.raises(ContractError, match=re.escape(text)):
        parse(f"{head}{informs}{gate}".encode(), "ours.toml")


@pytest.mark.parametrize(
    ("name", "bound", "needed"),
    [
        ("GANG.large_gang_wait", 'at_most = 9\nunit = "s"', "queue"),
        ("FABRIC.slowest_rail", 'at_least = 0.5\nunit = "ratio"', 'fabric (for example "rdma")'),
        ("HOSTS.checkpoint_room", 'at_least = 3\nunit = "saves"', "save_gb and shared"),
    ],
)
def test_what_needs_a_term_that_is_missing_is_refused(name: str, bound: str, needed: str) -> None:
    terms = f'schema = 1\ntier = "standard"\n[{name}]\n{bound}\nbecause = "agreed"'
    text = f"no test measures [{name}]. Remove [{name}], or set {needed} in [cluster]"
    with pytest.raises(ContractError, match=re.escape(text)):
        parse(terms.encode(), "ours.toml")


def test_real_accelerators_are_at_least_one() -> None:
    with pytest.raises(ContractError, match="expected gpus_per_node of 1 or more"):
        parse(b"schema = 1\n[cluster]\ngpus_per_node = 0", "ours.toml")
    emulated = b'schema = 1\n[cluster]\ngpus_per_node = 0\naccelerators = "emulated"'
    assert parse(emulated, "ours.toml").cluster.gpus_per_node == 0


UNCOUNTED = "schema = 1\n[FABRIC.lost_packets]\nnot_countable = {}\n"
WHY = '"this driver has no such counters"'


def test_two_measures_may_be_agreed_as_not_countable() -> None:
    text = UNCOUNTED.format(WHY) + f"[FABRIC.link_changes]\nnot_countable = {WHY}\n"
    agreed = parse(text.encode(), "f")
    assert {*agreed.not_countable} == {"FABRIC.lost_packets", "FABRIC.link_changes"}
    facts = {one.id: one.not_countable for one in agreed.facts().criteria}
    assert {*facts.pop("FABRIC")} == {"lost_packets", "link_changes"}
    assert not any(facts.values())


@pytest.mark.parametrize("reason", ["true", '""', "0", "[]", '"no counters"'])
def test_a_measure_is_not_countable_only_for_a_reason(reason: str) -> None:
    message = r"\[FABRIC.lost_packets\] not_countable: expected a sentence: why nothing counts it"
    with pytest.raises(ContractError, match=message):
        parse(UNCOUNTED.format(reason).encode(), "mine.toml")


@pytest.mark.parametrize("name", ["FABRIC.busbw", "FABRIC.nonsense", "HOSTS.nodes", "FABRIC.rails"])
def test_no_other_measure_may_be_left_uncounted(name: str) -> None:
    message = "expected only in FABRIC.lost_packets and FABRIC.link_changes, which some devices"
    with pytest.raises(ContractError, match=message):
        parse(f"schema = 1\n[{name}]\nnot_countable = {WHY}\n".encode(), "mine.toml")


def test_what_nothing_counts_has_no_limit() -> None:
    limit = 'at_most = 0.01\nunit = "ratio"\nbecause = "agreed"\n'
    with pytest.raises(ContractError, match="not_countable: expected alone"):
        parse((UNCOUNTED.format(WHY) + limit).encode(), "mine.toml")
