"""`seatrial contract new` asks for what was ordered, and checks each answer at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from probes.cli.main import main
from probes.contract.contract import load, shipped_contracts
from probes.contract.drafts import fill_template, read_answer, real_contracts

REAL = sorted(real_contracts())


def asked(file: Path, answers: list[str], *words: str) -> Result:
    """The command, with these lines typed."""
    typed = "".join(f"{line}\n" for line in answers)
    return CliRunner().invoke(main, ["contract", "new", *words, str(file)], input=typed)


@pytest.mark.parametrize("template", REAL)
def test_each_template_needs_few_answers(template: str, tmp_path: Path) -> None:
    machines = ["8", "8", "NVIDIA L40S"] if template == "ethernet" else ["8"]
    done = asked(tmp_path / "my.toml", ["atlas", "", *machines, *[""] * 12], "--template", template)
    assert done.exit_code == 0, done.output
    mine, shipped = load(str(tmp_path / "my.toml")), load(template)
    assert (mine.name, mine.cluster.nodes, mine.tier) == ("atlas", 8, shipped.tier)
    assert mine.limits == {
        id: {
            name: limit.model_copy(update={"source": mine.limits[id][name].source})
            for name, limit in own.items()
        }
        for id, own in shipped.limits.items()
    }, "the template's limits and reasons"
    changed = mine.cluster.overrides(shipped.cluster.model_dump(mode="json"))
    assert set(changed) <= {"nodes", "gpus_per_node", "gpu_model"}


def test_other_hardware_gets_limits_with_reasons(tmp_path: Path) -> None:
    answers = ["atlas", "quick", "16", "4", "NVIDIA A100-SXM4-80GB", "", "", ""]
    answers += ["rdma", "4", "200", "/data", "", "", "", "0.85", "the training team needs it"]
    done = asked(tmp_path / "my.toml", answers, "--template", "other")
    assert done.exit_code == 0, done.output
    contract = load(str(tmp_path / "my.toml"))
    busbw, efficiency = (
        contract.limit(*key) for key in (("FABRIC", "busbw"), ("SCALING", "efficiency"))
    )
    assert busbw is not None
    assert busbw.low == pytest.approx(0.8 * 4 * 200 / 8)
    assert busbw.because.startswith("80 % of 4 x 200 Gbit/s")
    assert efficiency is not None
    assert (efficiency.low, efficiency.because) == (0.85, "the training team needs it")
    network = contract.limit("FABRIC", "network")
    assert network is not None
    assert network.one_of == ["rdma"]
    assert contract.cluster.shared == "/data"
    assert not contract.rehearsal


def test_sockets_are_asked_for_another_interface(tmp_path: Path) -> None:
    answers = ["atlas", "", "2", "8", "NVIDIA L40S", "", "", "", "ens5", "ens5", "ens6"]
    done = asked(tmp_path / "my.toml", [*answers, *[""] * 3], "--template", "ethernet")
    assert done.exit_code == 0, done.output
    assert "expected management to be another interface than the fabric" in done.output
    contract = load(str(tmp_path / "my.toml"))
    network = contract.limit("FABRIC", "network")
    assert network is not None
    assert network.one_of == [contract.cluster.fabric] == ["ens5"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["no name", "atlas"], "expected at most 60 characters of"),
        (
            ["atlas", "quick"],
            "contract a3-mega-tcpxo has limits that tier quick does not measure: choose",
        ),
        (["atlas", "fast"], "expected one of quick, standard, soak"),
        (["atlas", "", "many"], "expected a whole number, found 'many'"),
        (["atlas", "", "0"], "\n  'nodes': expected 1 or more, found 0"),
        (["atlas", "", "8", "", "-1"], "expected 1 or more, found -1"),
        (["atlas", "", "8", "", "", "", "data"], "expected an absolute path on every node"),
    ],
)
def test_a_wrong_answer_is_refused_at_once_and_asked_again(
    wrong: list[str], text: str, tmp_path: Path
) -> None:
    template = "a3-mega-tcpxo" if "a3-mega-tcpxo" in text else "h100-ndr400"
    done = asked(tmp_path / "my.toml", wrong, "--template", template)
    assert text in done.output
    assert done.exit_code == 4, "it asks again, and there is no answer"
    assert "and no terminal to ask: give --set " in done.output
    assert not (tmp_path / "my.toml").exists()


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("500", "the line rate of 1 x 100 Gbit/s, found 500"),
        ("0", "more than 0"),
        ("x", "a number"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_at_once(bound: str, text: str, tmp_path: Path) -> None:
    answers = ["atlas", "", "2", "8", "NVIDIA L40S", "", "", "", "ens5", "100", "", "", "", ""]
    done = asked(tmp_path / "my.toml", [*answers, bound, "", ""], "--template", "other")
    assert text in done.output
    assert done.exit_code == 0, done.output


def test_a_question_is_explained_and_may_stay_open(tmp_path: Path) -> None:
    answers = ["?", "h100-ndr400", "?", "atlas", "?", "", "?", "8", "", "-", *[""] * 4]
    done = asked(tmp_path / "my.toml", answers)
    assert done.exit_code == 0, done.output
    assert "Number of nodes with accelerators." in done.output
    contract = load(str(tmp_path / "my.toml"))
    assert contract.cluster.cpus_per_node is None
    assert "# cpus_per_node =" in (tmp_path / "my.toml").read_text()


def test_a_needed_answer_cannot_stay_open(tmp_path: Path) -> None:
    done = asked(tmp_path / "my.toml", ["atlas", "", "-"], "--template", "h100-ndr400")
    assert "expected an answer: a contract needs this value" in done.output


@pytest.mark.parametrize("word", ["roce", "RoCEv2", "InfiniBand", "ib", "RDMA", "mlx5_0", "efa"])
def test_rdma_is_no_interface(word: str, tmp_path: Path) -> None:
    answers = ["atlas", "", "2", "8", "NVIDIA L40S", "", "", "", word, "rdma", "8", "400"]
    done = asked(tmp_path / "my.toml", [*answers, *[""] * 5], "--template", "other")
    assert f'or "rdma" alone for InfiniBand, RoCE and EFA, found {word!r}' in done.output
    contract = load(str(tmp_path / "my.toml"))
    assert (contract.cluster.fabric, contract.cluster.rails) == ("rdma", 8)


def test_kinds_of_nodes_are_read_as_a_table() -> None:
    text = "NVIDIA H200 = 4, NVIDIA L40S = 2"
    assert read_answer("gpu_model", text) == {"NVIDIA H200": 4, "NVIDIA L40S": 2}
    assert read_answer("gpu_model", "NVIDIA H200 = x") == {"NVIDIA H200": " x"}


def test_several_models_and_interfaces(tmp_path: Path) -> None:
    answers = ["atlas", "", "2", "8", "NVIDIA L40S, NVIDIA L40", "", "", "", "ens5, ens6", "100"]
    done = asked(tmp_path / "my.toml", [*answers, *[""] * 6], "--template", "other")
    assert done.exit_code == 0, done.output
    contract = load(str(tmp_path / "my.toml"))
    assert contract.cluster.gpu_model == ["NVIDIA L40S", "NVIDIA L40"]
    network, busbw = (contract.limit("FABRIC", name) for name in ("network", "busbw"))
    assert network is not None
    assert network.one_of == ["ens5,ens6"]
    assert busbw is not None
    assert busbw.low == pytest.approx(20)
    assert busbw.because.startswith("80 % of 2 x 100 Gbit/s")


def test_a_folder_that_is_missing_is_named_first(tmp_path: Path) -> None:
    done = asked(tmp_path / "missing" / "my.toml", [])
    assert done.exit_code == 4
    assert "missing cannot be written, or is not a folder. Make it writable" in done.output


def test_the_check_begins_with_what_was_ordered(tmp_path: Path) -> None:
    asked(tmp_path / "my.toml", ["atlas", "", "8", *[""] * 8], "--template", "h100-ndr400")
    file = tmp_path / "my.toml"
    gate = '[baseline]\nbusbw = "2 %"\n\n[FABRIC.busbw]'
    file.write_text(file.read_text().replace("[FABRIC.busbw]", gate))
    words = ["contract", "check", "--limits", str(file)]
    lines = CliRunner(env={"COLUMNS": "200"}).invoke(main, words).output.splitlines()
    assert lines[1:8] == [
        "tier      standard",
        "ordered   8 nodes, 8 x NVIDIA H100 80GB HBM3",
        "fabric    rdma, 8 x 400 Gbit/s per node",
        "terms     gpu_memory_gib = 79, cpus_per_node = 96, ram_gib = 1280, versions.driver = "
        '">=550.54",',
        '          versions.torch = ">=2.6", versions.ray = ">=2.40", versions.python = ">=3.10"',
        "MARGINAL  at most 3 measures",
        "baseline  FABRIC.busbw: at most 2 % worse than in the baseline run",
    ]
    assert not [line for line in lines if line.startswith("UNPROVEN")]
    assert [line for line in lines if ">= 320 GB/s, MARGINAL below 345 GB/s" in line]
    other = CliRunner().invoke(main, ["contract", "check", "b200-ndr400"]).output
    assert "UNPROVEN  no number of nodes: write `nodes` in [cluster], or run with --nodes" in other


@pytest.mark.parametrize(
    ("terms", "is_named"),
    [
        ('fabric = "eth0"', True),
        ('fabric = "eth0"\nmanagement = "eth1"', False),
        ('fabric = "rdma"', False),
        ("", False),
        ('fabric = "eth0"\n[FABRIC]\nnot_provable = "all nodes are one host"', False),
    ],
)
def test_a_self_test_that_lacks_its_interface_is_named(
    tmp_path: Path, terms: str, is_named: bool
) -> None:
    (tmp_path / "my.toml").write_text(f"schema = 1\n[cluster]\nnodes = 2\n{terms}\n")
    text = CliRunner().invoke(main, ["contract", "check", str(tmp_path / "my.toml")]).output
    lacks = "UNPROVEN no second interface to self-test FABRIC: write `management` in [cluster]"
    assert (lacks in " ".join(text.split())) is is_named, text


SPEED = "UNPROVEN no limit for the speed of one node: none is published for"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('gpu_model = "NVIDIA L40S"', f"{SPEED} NVIDIA L40S. Add [SCALING.mfu] or"),
        ('gpu_model = ["NVIDIA T4", "NVIDIA L40S"]', f"{SPEED} NVIDIA T4, NVIDIA L40S. Add"),
        ('gpu_model = ["NVIDIA H200", "NVIDIA L40S"]', ""),  # all nodes may have the first
        ('gpu_model = { "NVIDIA H200" = 1, "NVIDIA L40S" = 1 }', f"{SPEED} NVIDIA L40S. Add"),
        ('gpu_model = { "NVIDIA H200" = 1, "NVIDIA H100 80GB HBM3" = 1 }', ""),
        ('gpu_model = "NVIDIA H100 PCIe"', f"{SPEED} NVIDIA H100 PCIe. Add"),
        ("", f"{SPEED} GPUs other than A100, H100, H200 (write `gpu_model`). Add"),
        ('gpu_model = "NVIDIA H100 80GB HBM3"', ""),
        ('gpu_model = "NVIDIA L40S"\n[SCALING.mfu]\nat_least = 0.2\nunit = "ratio"\n'
         'because = "as agreed"', ""),
        ('[SCALING.tokens_per_s]\nat_least = 9000\nunit = "tokens/s per rank"\n'
         'because = "as agreed"', ""),
        ('accelerators = "emulated"', ""),
        ('[SCALING]\nnot_provable = "one node"', ""),
    ],
)  # fmt: skip
def test_a_contract_that_cannot_be_accepted_for_its_gpus_is_named(
    tmp_path: Path, lines: str, says: str
) -> None:
    (tmp_path / "my.toml").write_text(f"schema = 1\n[cluster]\nnodes = 2\n{lines}\n")
    text = CliRunner().invoke(main, ["contract", "check", str(tmp_path / "my.toml")]).output
    said = " ".join(text.split())
    assert (says in said) if says else (SPEED not in said), text
    can_be_accepted = "until then, no run under this contract can be accepted" not in said
    assert can_be_accepted is ("emulated" in lines or "is a valid contract" not in said)


def test_an_mfu_limit_of_gpus_without_a_known_peak_is_named(tmp_path: Path) -> None:
    agreed = '[SCALING.mfu]\nat_least = 0.2\nunit = "ratio"\nbecause = "as agreed"'
    text = f'schema = 1\n[cluster]\ngpu_model = "NVIDIA A40"\n{agreed}\n'
    (tmp_path / "my.toml").write_text(text)
    said = CliRunner().invoke(main, ["contract", "check", str(tmp_path / "my.toml")]).output
    assert (
        "UNPROVEN no peak is known for NVIDIA A40, so SCALING.mfu is not measured. Replace "
        "[SCALING.mfu] by [SCALING.tokens_per_s]" in " ".join(said.split())
    )


def test_the_limits_of_a_check_follow_from_the_number_of_nodes(tmp_path: Path) -> None:
    text = load("h100-ndr400").text.decode()
    (tmp_path / "my.toml").write_text(text.replace("[cluster]\n", "[cluster]\nnodes = 2\n"))
    checked = [
        CliRunner().invoke(main, ["contract", "check", "--limits", name]).output
        for name in (str(tmp_path / "my.toml"), "h100-ndr400")
    ]
    two, any_number = (" ".join(output.split()) for output in checked)
    assert "alltoall_busbw >= 56.2 GB/s (75 % of what a busbw of 320 GB/s lets expect on 2" in two
    assert "alltoall_busbw not agreed: over RDMA 75 % of what the limit of `busbw`" in any_number


@pytest.mark.parametrize(
    "name", ["b200-ndr400", "gb200-nvl72", "h100-ndr400", "l40s-ethernet", "p5-efa"]
)
def test_a_shipped_contract_lacks_nothing_but_the_number_of_nodes(name: str) -> None:
    lines = CliRunner().invoke(main, ["contract", "check", name]).output.splitlines()
    open_ones = [line for line in lines if line.startswith("UNPROVEN")]
    assert open_ones == [
        "UNPROVEN  no number of nodes: write `nodes` in [cluster], or run with --nodes"
    ]


def test_a_limit_that_is_missing_is_named_before_the_rest(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("schema = 1\n[cluster]\nnodes = 2\n")
    text = CliRunner().invoke(main, ["contract", "check", str(tmp_path / "my.toml")]).output
    told = "UNPROVEN no limit for FABRIC.busbw, FABRIC.network, SCALING.efficiency. Add a table"
    assert told in " ".join(text.split())
    gpus = "UNPROVEN no number of GPUs per node: write `gpus_per_node` in [cluster]"
    assert gpus in " ".join(text.split())
    assert "my.toml is a valid contract: 3 lines to complete" in " ".join(text.split())
    terms = 'nodes = 1\ngpus_per_node = 0\naccelerators = "emulated"'
    (tmp_path / "my.toml").write_text(f"schema = 1\n[cluster]\n{terms}\n")
    text = CliRunner().invoke(main, ["contract", "check", str(tmp_path / "my.toml")]).output
    assert "GPUs per node" not in text, "0 is a number"
    assert "ordered   1 node, 0 x GPUs (any model)\n" in text


def test_nothing_is_asked_where_the_file_exists(tmp_path: Path) -> None:
    (tmp_path / "my.toml").symlink_to(tmp_path / "nowhere")
    done = asked(tmp_path / "my.toml", [])
    assert done.exit_code == 4
    assert done.output.startswith("error: ")
    assert "exists already" in done.output


@pytest.mark.parametrize(
    "words",
    [["--template", "lab"], ["--template", "x"], ["--from", "r", "--template", "b200-ndr400"]],
)
def test_what_cannot_be_begun_with(words: list[str], tmp_path: Path) -> None:
    done = asked(tmp_path / "my.toml", [], *words)
    assert done.exit_code == 4
    known = ("expected ", "--from asks no questions", "contract show lab > mine.toml")
    assert any(one in done.output for one in known)


@pytest.mark.parametrize("name", shipped_contracts())
def test_a_shipped_contract_is_shown_as_it_is(name: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["contract", "show", name]).output
    (tmp_path / "my.toml").write_text(shown)
    assert load(str(tmp_path / "my.toml")).sha256 == load(name).sha256


def test_a_name_of_any_letters_is_only_text() -> None:
    text = fill_template("n", "ethernet", "standard", {"gpu_model": 'a"\\1 [x]\ny = 2'})
    assert 'gpu_model = "a\\U00000022\\U0000005C1 [x]\\U0000000Ay = 2"' in text


def written(tmp_path: Path, *words: str) -> Result:
    """The command without a terminal, and with nothing typed."""
    return asked(tmp_path / "my.toml", [], *words)


def test_a_script_answers_with_options(tmp_path: Path) -> None:
    words = ["--template", "h100-ndr400", "--set", "name=atlas", "--set", "nodes=8", "--yes"]
    done = written(tmp_path, *words, "--set", "shared=/data", "--set", "cpus_per_node=-")
    assert done.exit_code == 0, done.output
    *unnamed, last = done.output.splitlines()
    assert last == f"wrote {tmp_path}/my.toml. Next: `seatrial contract check {tmp_path}/my.toml`"
    assert " ".join(unnamed) == (
        "proposed by the template, and not changed: gpu_memory_gib = 79, ram_gib = 1280, "
        'versions.driver = ">=550.54", versions.torch = ">=2.6", versions.ray = ">=2.40", '
        'versions.python = ">=3.10"'
    )
    made = load(str(tmp_path / "my.toml"))
    assert (made.name, made.tier, made.cluster.nodes, made.cluster.shared) == (
        *("atlas", "standard", 8, "/data"),
    )
    assert made.cluster.cpus_per_node is None


def test_a_script_agrees_other_limits_with_their_reason(tmp_path: Path) -> None:
    answers = {
        "name": "atlas", "tier": "quick", "nodes": "16", "gpus_per_node": "4", "fabric": "rdma",
        "gpu_model": "NVIDIA A100-SXM4-80GB", "rails": "4", "line_rate_gbps": "200",
        "SCALING.efficiency": "0.85", "SCALING.efficiency.because": "the training team needs it",
    }  # fmt: skip
    given = [word for key, answer in answers.items() for word in ("--set", f"{key}={answer}")]
    done = written(tmp_path, "--template", "other", "--yes", *given)
    assert done.exit_code == 0, done.output
    limit = load(str(tmp_path / "my.toml")).limit("SCALING", "efficiency")
    assert limit is not None
    assert (limit.low, limit.because) == (0.85, "the training team needs it")


def test_an_answer_may_say_what_the_template_says(tmp_path: Path) -> None:
    words = ["--set", "name=a", "--set", "nodes=8", "--set", "rails=8", "--set", "gpus_per_node=8"]
    done = written(tmp_path, "--template", "h100-ndr400", "--yes", *words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no answer to `Which hardware?`, and no terminal to ask: give --template NAME, or"),
        (["--yes"], "--yes: 3 questions have no proposed answer. Add --template NAME --set "
         "name=... --set nodes=..."),
        (["--template", "h100-ndr400", "--yes"], "answer. Add --set name=... --set nodes=..."),
        (["--template", "h100-ndr400", "--set", "name=a", "-y"], "1 question has no proposed"),
        (["--template", "other", "--set", "name=a", "-y", "--set", "fabric=rdma"],
         "Add --set nodes=... --set gpus_per_node=... --set gpu_model=... --set rails=... --set "
         "line_rate_gbps=..."),
        (["--template", "h100-ndr400", "--set", "name=a", "-y", "--set", "nodes=8", "--set",
          "rails=4"], "--set rails: the limits of h100-ndr400 hold only for rails = 8. For other "
         "hardware, use another template, or --template other"),
        (["--template", "h100-ndr400", "--set", "name=a"], "to ask: give --set tier=..., or"),
        (["--set", "name"], "--set: expected KEY=ANSWER, each KEY once, found 'name'"),
        (["--set", "name=a", "--set", "name=b"], "each KEY once, found 'name=b'"),
        (["--template", "h100-ndr400", "--set", "name=a", "-y", "--set", "nodes=many"],
         "--set nodes: expected a whole number, found 'many'"),
        (["--template", "h100-ndr400", "--set", "name=a", "-y", "--set", "nodes=-"],
         "--set nodes: expected an answer: a contract needs this value"),
        (["--template", "h100-ndr400", "--set", "name=a", "-y", "--set", "nodes=8", "--set",
          "nods=9"], "found 'nods'; did you mean nodes?"),
        (["--template", "h100-ndr400", "--set", "name=a", "-y", "--set", "nodes=8", "--set",
          "versions.ray=2.60"], "found 'versions.ray'. Write other keys into the file"),
        (["--from", "x", "--set", "name=a"], "--from asks no questions: drop --template, --set"),
    ],
)  # fmt: skip
def test_what_a_script_lacks_is_said(words: list[str], says: str, tmp_path: Path) -> None:
    done = written(tmp_path, *words)
    assert done.exit_code == 4
    assert says in done.output
    assert not (tmp_path / "my.toml").exists()


def test_questions_have_numbers_and_fit_the_terminal(tmp_path: Path) -> None:
    done = asked(
        tmp_path / "my.toml", ["atlas", "", "?", "8", *[""] * 9], "--template", "h100-ndr400"
    )
    assert done.exit_code == 0, done.output
    assert "1/9 What is the name of the cluster?" in done.output
    assert "9/9 " in done.output
    assert max(map(len, done.output.splitlines()[:-1])) <= 80
