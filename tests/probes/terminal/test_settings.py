"""Options of a run: what their values must be, and what is said of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probes.cluster.address import ClusterUnreachable
from probes.contract.contract import ContractError
from probes.session.options import BY_KEY
from probes.session.settings import OptionError, read_settings

NOTHING: dict[str, Any] = {**dict.fromkeys(BY_KEY), "cluster": "auto"}


def test_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_settings(NOTHING)
    assert (found.spec, found.contract_arg, found.agreed) == ("auto", "", None)
    assert (found.tier, found.nodes, found.only, found.nonce) == ("quick", None, [], "")


def test_what_is_given() -> None:
    given = {"contract": "h100-ndr400", "nodes": "8", "only": "gang, FABRIC", "nonce": "a word",
             "run_dir": "x", "wait_for_nodes": "60", "operator": "A. Lovelace\n"}  # fmt: skip
    found = read_settings({**NOTHING, **given})
    assert found.agreed is not None
    assert found.agreed.name == "h100-ndr400"
    assert (found.tier, found.nodes) == ("standard", 8), "the contract names the tier"
    assert (found.only, found.nonce, found.run_dir) == (["FABRIC", "GANG"], "a word", "x")
    assert (found.wait_for_nodes_s, found.operator) == (60, "A. Lovelace")
    assert found.wait_for_room_s == 0
    for text, seconds in {"90": 90, "90s": 90, "30m": 1800, "2h": 7200}.items():
        assert read_settings({**NOTHING, "wait_for_room": text}).wait_for_room_s == seconds
    assert read_settings({**NOTHING, **given, "tier": "soak"}).tier == "soak"


def test_the_contract_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seatrial.toml").write_text("schema = 1\ntier = 'soak'\n[cluster]\nnodes = 8\n")
    assert read_settings(NOTHING).tier == "soak"
    with pytest.raises(ContractError, match=r"9 nodes were requested .* orders 8 nodes: drop one"):
        read_settings({**NOTHING, "nodes": "9"})


@pytest.mark.parametrize(("nodes", "refused"), [(7, True), (8, False), (12, False), (13, True)])
def test_a_number_of_nodes_must_be_in_the_agreed_range(
    tmp_path: Path, nodes: int, refused: bool
) -> None:
    contract = tmp_path / "grows.toml"
    contract.write_text("schema = 1\n[cluster]\nnodes = 8\nnodes_at_most = 12\n")
    given = {**NOTHING, "contract": str(contract), "nodes": str(nodes)}
    if not refused:
        assert read_settings(given).nodes == nodes
        return
    with pytest.raises(ContractError, match=r"orders 8 to 12 nodes: drop one"):
        read_settings(given)


@pytest.mark.parametrize(
    ("key", "value", "error", "says"),
    [
        ("tier", "standart", OptionError, "expected quick, standard, soak; did you mean standard?"),
        ("tier", "all", OptionError, "--tier is 'all', expected quick, standard, soak"),
        ("only", "GANG,FABRICS", OptionError, "--only is FABRICS, .*; did you mean FABRIC?"),
        ("only", "XYZ", OptionError, "expected some of FABRIC, SCALING, GANG, LAUNCH, RESTART"),
        ("nodes", "0", OptionError, "expected a whole number of nodes"),
        ("nonce", "sk-acceptance-2026-lot-7", OptionError, "a text that is not secret, found one"),
        ("wait_for_nodes", "1.5", OptionError, "expected whole seconds"),
        ("wait_for_room", "soon", OptionError, "SEATRIAL_WAIT_FOR_ROOM. is 'soon', expected whole"),
        ("wait_for_room", "25h", OptionError, "at most 24h"),
        ("wait_for_room", "-1", OptionError, "expected whole seconds"),
        ("wait_for_nodes", "60", ContractError, "add --nodes"),
        ("contract", "h100-ndr40", ContractError, "did you mean 'h100-ndr400'"),
        ("cluster", "lcoal", ClusterUnreachable, "did you mean local?"),
    ],
)
def test_what_is_refused(
    key: str, value: str, error: type[Exception], says: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says) as caught:
        read_settings({**NOTHING, key: value})
    assert "\n" not in str(caught.value)
    assert ("did you mean" in str(caught.value)) is ("did you mean" in says)
