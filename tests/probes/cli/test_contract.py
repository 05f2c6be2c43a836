"""`seatrial contract new`: what a run found, as a contract that can be read."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from probes.check.recorder import Recorder
from probes.cli.main import main
from probes.contract.contract import Contract, load, parse
from probes.contract.contract import load as load_contract
from probes.contract.derived_limits import derive_contract
from probes.contract.drafts import list_odd, toml_text
from probes.submit.follow import SubmitError
from probes.submit.verify import what_was_asked
from probes.toml_tables import tomllib
from reports.run_folder.store import Store
from tests.support.paths import RECORDINGS

H100 = "NVIDIA H100 80GB HBM3"
SOFTWARE = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0+cu130", "driver": "580.65"}
HOSTILE = 'n"0\\\n[FABRIC.busbw]\x1b[31m\u202e\x7f\U0001f600 = '


def seatrial(*words: str | Path) -> Result:
    """The command, run in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])


def node(number: int, **other: Any) -> dict[str, Any]:
    """The facts of one node of eight H100 and eight rails."""
    gpu = {"name": H100, "uuid": "u", "memory_gib": 79.65}
    port = {"port": "1", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    return {
        "name": f"n{number}",
        "node": str(number),
        "host": f"n{number}",
        "gpus": [gpu] * 8,
        "rdma": [{**port, "device": f"mlx5_{n}", "state": "4: ACTIVE"} for n in range(8)],
        "interfaces": {"eth0": {"address": "10.0.0.1", "speed": 25_000}},
        "environment": {},
        "cpus": 192,
        "ram_gib": 2014.37,
        "software": SOFTWARE,
        **other,
    }  # fmt: skip


def run_of(
    folder: Path, nodes: list[dict[str, Any]], agreed: Contract | None = None, rehearsal: str = ""
) -> Path:
    """A run on these nodes, which measured bandwidth."""
    contract, store = agreed or derive_contract(None), Store(folder)
    terms = contract.cluster.model_dump(exclude_none=True)
    store.start(
        contract.text, id="run", started="2026-01-01T00:00:00Z", command="x", tier="standard",
        contract=contract.facts().model_dump(mode="json"), rehearsal=rehearsal,
        cluster={"name": nodes[0]["name"] if nodes else "", "nodes": nodes, "terms": terms},
    )  # fmt: skip
    probe = Recorder(store, contract, "p", "FABRIC", "claim", "again", lambda words: None)
    probe("busbw", 380.0, limit=contract.limit("FABRIC", "busbw"))
    probe.finish("finished", 1.0)
    store.close()
    return folder


def drafted(run: Path, file: Path) -> Contract:
    """The contract drafted from a run; `contract check` reads it."""
    made = seatrial("contract", "new", "--from", run, file)
    assert made.exit_code == 0, made.output
    checked = seatrial("contract", "check", file)
    assert checked.exit_code == 0, checked.output
    return load(str(file))


def test_a_contract_says_what_the_run_found(tmp_path: Path) -> None:
    contract = drafted(run_of(tmp_path / "run", [node(n) for n in range(4)]), tmp_path / "my.toml")
    terms = contract.cluster.model_dump(exclude_defaults=True)
    assert terms == {
        "nodes": 4,
        "gpus_per_node": 8,
        "gpu_model": H100,
        "gpu_memory_gib": 79.0,
        "cpus_per_node": 192,
        "ram_gib": 1974.0,
        "versions": SOFTWARE,
        "fabric": "rdma",
        "rails": 8,
        "line_rate_gbps": 400.0,
    }  # fmt: skip
    assert not contract.rehearsal
    assert contract.tier == "standard"
    busbw, network = contract.limit("FABRIC", "busbw"), contract.limit("FABRIC", "network")
    assert busbw is not None
    assert busbw.low == pytest.approx(320)
    assert network is not None
    assert network.one_of == ["rdma"]
    assert contract.limit("SCALING", "efficiency") is not None
    text = (tmp_path / "my.toml").read_text()
    assert (
        "# Each value is what run found. Change it to what was ordered, then remove `draft`."
        in text
    )


def test_the_best_node_tells_what_all_should_have(tmp_path: Path) -> None:
    """A lost GPU, lost memory, a board of another model: none becomes the order."""
    short = node(1, gpus=node(0)["gpus"][:7], ram_gib=1950.0, cpus=96)
    odd = node(2, gpus=[{"name": "Tesla T4", "memory_gib": 15.0}] * 8)
    down = node(3)
    for port in down["rdma"][4:]:
        port.update(state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    run = run_of(tmp_path / "run", [node(0), short, odd, down])
    terms = drafted(run, tmp_path / "my.toml").cluster
    assert (terms.nodes, terms.gpus_per_node, terms.gpu_model) == (4, 8, H100)
    assert (terms.gpu_memory_gib, terms.cpus_per_node, terms.ram_gib) == (79.0, 192, 1974.0)
    assert (terms.rails, terms.line_rate_gbps) == (8, 400.0)
    text = (tmp_path / "my.toml").read_text()
    assert "7 on n1" in text
    assert "also seen: Tesla T4" in text


def test_kinds_of_nodes_are_drafted_where_they_were_ordered(tmp_path: Path) -> None:
    gpus = [{"name": "NVIDIA H200", "memory_gib": 140.4}] * 8
    nodes = [node(number, **({"gpus": gpus} if number > 2 else {})) for number in range(5)]
    terms = drafted(run_of(tmp_path / "run", nodes), tmp_path / "my.toml").cluster
    assert (terms.gpu_model, terms.gpu_memory_gib) == (H100, 140), "of a mix, nobody ordered it"
    agreed = parse(
        b'schema = 1\ntitle = "t"\n[cluster]\nnodes = 5\ngpus_per_node = { 8 = 4, 4 = 1 }\n'
        b'gpu_model = { "NVIDIA H200" = 2, "NVIDIA H100" = 3 }\n', "f",
    )  # fmt: skip
    again = drafted(run_of(tmp_path / "again", nodes, agreed), tmp_path / "again.toml").cluster
    kinds = {"NVIDIA H200": 2, "NVIDIA H100": 3}
    assert (again.gpus_per_node, again.gpu_model) == ({8: 4, 4: 1}, kinds)
    checked = " ".join(seatrial("contract", "check", tmp_path / "again.toml").output.split())
    assert "NVIDIA H200 on 2 nodes, NVIDIA H100 on 3 nodes" in checked
    text = (tmp_path / "again.toml").read_text().replace("draft = true", "")
    (tmp_path / "again.toml").write_text(text)
    planned = " ".join(seatrial("plan", "--contract", tmp_path / "again.toml").output.split())
    assert "NVIDIA H200 on 2 nodes, NVIDIA H100 on 3 nodes" in planned


def test_what_was_ordered_comes_before_what_was_seen(tmp_path: Path) -> None:
    agreed = load_contract("h100-ndr400")
    cluster = agreed.cluster.model_copy(update={"nodes": 8})
    run = run_of(tmp_path / "run", [node(0)], agreed.model_copy(update={"cluster": cluster}))
    contract = drafted(run, tmp_path / "my.toml")
    assert contract.cluster.nodes == 8
    assert contract.cluster.gpu_memory_gib == agreed.cluster.gpu_memory_gib
    mine, theirs = (one.limit("FABRIC", "busbw") for one in (contract, agreed))
    assert mine is not None
    assert theirs is not None
    assert (mine.low, mine.marginal_low, mine.because) == (320, 345, theirs.because)


def test_an_emulated_run_gives_a_contract_of_a_rehearsal(tmp_path: Path) -> None:
    local = load_contract("local")
    run = run_of(tmp_path / "run", [node(0, gpus=[])], local, "1 raylets embedded on one host")
    contract = drafted(run, tmp_path / "my.toml")
    assert contract.rehearsal
    assert contract.optional == local.optional
    assert contract.cluster.gpu_model is None
    assert contract.cluster.gpus_per_node == 1
    run = run_of(tmp_path / "lab", [node(0, gpus=[])], load_contract("lab"), "emulated")
    assert drafted(run, tmp_path / "lab.toml").cluster.pace_seconds == 0.25
    run = run_of(tmp_path / "none", [node(0, gpus=[])], None, "1 raylets embedded on one host")
    assert drafted(run, tmp_path / "none.toml").rehearsal, "also where no contract declares it"


def test_words_of_the_record_are_only_words(tmp_path: Path) -> None:
    gpu = {"name": HOSTILE, "memory_gib": float("nan")}
    hostile = node(0, name=HOSTILE, gpus=[gpu] * 8, cpus="many", ram_gib=None)
    hostile["software"] = {"torch": HOSTILE, '"]\nschema = 2\n[x': "1.0", "ray": ["2"]}
    hostile["environment"] = {"NCCL_IB_HCA": HOSTILE, "NCCL_SOCKET_IFNAME": 3}
    hostile["interfaces"] = {HOSTILE: None}
    short = node(1, name=HOSTILE, gpus=[])
    contract = drafted(run_of(tmp_path / "run", [hostile, short]), tmp_path / "my.toml")
    model = contract.cluster.gpu_model
    assert isinstance(model, str)
    assert model.startswith('n"0\\ [FABRIC.busbw]')
    assert set(contract.limits["FABRIC"]) <= {"busbw", "network"}
    lines = (tmp_path / "my.toml").read_text().splitlines()
    assert not [line for line in lines if line.startswith("[FABRIC.busbw]") and "=" in line]


@pytest.mark.parametrize("text", [HOSTILE, "", '"""', "\\U0000", "\ud800", "\t\r\n", "ü€"])
def test_any_text_is_a_string_of_toml(text: str) -> None:
    read = tomllib.loads(f"title = {toml_text(text)}\n")
    assert read == {"title": text.encode("utf-8", "replace").decode()}


def test_a_draft_is_taken_only_after_its_line_is_removed(tmp_path: Path) -> None:
    run, file = run_of(tmp_path / "run", [node(n) for n in range(2)]), tmp_path / "my.toml"
    assert drafted(run, file).draft
    checked = seatrial("contract", "check", file).output
    assert "draft     change each value to what was ordered, then remove" in checked
    assert "; it is a draft, which no run takes" in " ".join(checked.split())
    for words in (["plan"], ["rejudge", run]):
        refused = seatrial(*words, "--contract", file)
        assert refused.exit_code == 4
        assert f"{file} is a draft: change each value" in "".join(refused.output.splitlines())
    with pytest.raises(SubmitError, match="is a draft: no run takes it"):
        what_was_asked({"contract": str(file)}, "id", rehearsal=None)
    file.write_text(
        "".join(
            line
            for line in file.read_text().splitlines(True)
            if not line.startswith("draft = true")
        )
    )
    assert not load(str(file)).draft
    assert seatrial("plan", "--contract", file).exit_code == 0


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"gpus_per_node": 7}, ["gpus_per_node = 7. Usual with NVIDIA H100 80GB HBM3: 8"]),
        (
            {"rails": 4, "line_rate_gbps": 200.0},
            [
                "rails = 4 x 200 Gbit/s. Usual with NVIDIA H100 80GB HBM3: 8 x 400 or 32 x 100 "
                "Gbit/s"
            ],
        ),
        ({}, []),
        ({"rails": 32, "line_rate_gbps": 100.0}, []),
        ({"gpu_model": "NVIDIA A40", "gpus_per_node": 4, "rails": 2}, []),
        ({"gpu_model": "NVIDIA A40", "gpus_per_node": 3},
         ["gpus_per_node = 3. Usual with NVIDIA A40: 1 or 2 or 4 or 8 or 16"]),
        ({"gpus_per_node": None}, []),
    ],
)  # fmt: skip
def test_hardware_that_no_usual_node_has_is_contradicted(
    terms: dict[str, Any], said: list[str]
) -> None:
    usual = {"gpu_model": H100, "gpus_per_node": 8, "rails": 8, "line_rate_gbps": 400.0}
    assert list(list_odd({**usual, **terms})) == said


def test_a_draft_names_what_is_odd(tmp_path: Path) -> None:
    odd = node(0)
    odd["gpus"] = odd["gpus"][:7]
    drafted(run_of(tmp_path / "run", [odd]), tmp_path / "my.toml")
    assert "# CHECK gpus_per_node = 7. Usual with" in (tmp_path / "my.toml").read_text()


def test_a_file_that_exists_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run", [node(0)])
    monkeypatch.chdir(tmp_path)
    assert seatrial("contract", "new", "--from", "run").exit_code == 0
    (tmp_path / "seatrial.toml").write_text("ours")
    again = seatrial("contract", "new", "--from", run)
    assert again.exit_code == 4
    assert "seatrial.toml exists already: give a different name" in again.output
    assert (tmp_path / "seatrial.toml").read_text() == "ours"


@pytest.mark.parametrize("kind", ["no run", "no nodes", "no folder", "a key of another type"])
def test_what_cannot_be_drafted_is_one_sentence(tmp_path: Path, kind: str) -> None:
    run = run_of(tmp_path / "run", [] if kind == "no nodes" else [node(0)])
    file = tmp_path / ("missing/my.toml" if kind == "no folder" else "my.toml")
    if kind == "no run":
        shutil.rmtree(run)
    if kind == "a key of another type":
        log = run / "events.jsonl"
        first, _, rest = log.read_text().partition("\n")
        event = json.loads(first)
        event["data"]["cluster"]["terms"]["shared"] = {"a": 1}
        log.write_text(f"{json.dumps(event)}\n{rest}")
    made = seatrial("contract", "new", "--from", run, file)
    assert made.exit_code == 4, made.output
    assert "Traceback" not in made.output
    assert made.output.startswith("error: ")
    assert len(made.output.splitlines()) == 1
    assert not file.exists()


@pytest.mark.parametrize(
    "run", sorted({p.parent.name for p in RECORDINGS.glob("*/events.jsonl")} - {"hostile"})
)
def test_every_recording_gives_a_contract(run: str, tmp_path: Path) -> None:
    drafted(RECORDINGS / run, tmp_path / "my.toml")


# Whose commands a contract brings along.

BROUGHT = """schema = 1
[launch]
document = "{document}"
user = "own"
[launch.values]
"TRAIN" = "rm -rf ~; {{command}}"
"""


def checked(folder: Path, document: str, guide: str = "") -> Result:
    """`contract check` of a contract with this guide."""
    (folder / "ours.md").write_text(guide or "# Run\n```sh\ncd x\x1b[1m\nTRAIN --fast\n```\n")
    (folder / "c.toml").write_text(BROUGHT.format(document=document))
    return seatrial("contract", "check", folder / "c.toml")


def test_the_commands_that_a_contract_brings_are_shown(tmp_path: Path) -> None:
    lines = checked(tmp_path, "ours.md").output.splitlines()
    place = next(
        number for number, line in enumerate(lines) if "sha256 " in line and "(" not in line
    )
    assert " ".join(" ".join(lines[:place]).split()).endswith(
        "the operator's guide ours.md (no sha256 in the contract) on the host where you start "
        "seatrial. If you start seatrial as root, the commands run as a new user that seatrial "
        "creates, never as root. Otherwise the commands run as you"
    )
    shown = [line.strip() for line in lines[place : place + 3]]
    assert shown[0] == f"sha256 {hashlib.sha256((tmp_path / 'ours.md').read_bytes()).hexdigest()}"
    assert shown[1].startswith("$ cd x")
    assert shown[2] == "$ rm -rf ~; {command} --fast"
    assert not any("\x1b" in line for line in lines)


def test_of_a_guide_elsewhere_what_the_contract_puts_in_is_shown(tmp_path: Path) -> None:
    output = checked(tmp_path, "https://x.invalid/ours.md").output
    assert "'TRAIN' is replaced by 'rm -rf ~; {command}'" in output
    ours = seatrial("contract", "check", "lab").output
    assert "commands  seatrial types the commands of seatrial's own guide" in ours
    assert "Otherwise the commands run as you lab is a valid" in " ".join(ours.split())


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("lab", "lab is a valid contract: 1 line to complete (marked UNPROVEN above). --limits"
         " shows the limit of each measure."),
        ("local", "local is a valid contract: 1 line to complete"),
    ],
)  # fmt: skip
def test_the_check_ends_in_one_sentence_and_fits_the_terminal(
    name: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = seatrial("contract", "check", name).output
    assert end in " ".join(output.split())
    assert "busbw" not in output
    limits = seatrial("contract", "check", name, "--limits").output
    assert "busbw" in limits
    assert "--limits" not in limits
    assert max(map(len, limits.splitlines())) <= 80


@pytest.mark.parametrize(
    ("guide", "says"),
    [
        ("no commands", "has no commands"),
        ("```sh\nother\n```\n", "contains 'TRAIN': correct this key"),
    ],
)
def test_a_guide_that_cannot_be_typed_is_refused(tmp_path: Path, guide: str, says: str) -> None:
    refused = checked(tmp_path, "ours.md", guide)
    assert refused.exit_code == 4
    assert says in refused.output
