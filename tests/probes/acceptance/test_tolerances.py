"""[baseline] of a contract: what it may name, and what it says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from probes.check.declarations import Check
from probes.contract import limits
from probes.contract.contract import ContractError, parse
from probes.contract.limits import read_tolerances
from tests.support.paths import REPO

LAB = (REPO / "probes" / "contract" / "contracts" / "lab.toml").read_text()


def terms(text: str) -> dict[str, float]:
    return parse(f"{LAB}\n[baseline]\n{text}\n".encode(), "mine.toml").baseline


def test_a_share_is_read_by_measure() -> None:
    assert terms('busbw = "2 %"\nGANG.placement_delay = "12.5%"') == {
        "FABRIC.busbw": 2.0,
        "GANG.placement_delay": 12.5,
    }
    assert terms("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('busbw = "2"', """expected a share like "2 %", found '2'"""),
        ("busbw = 2", """expected a share like "2 %", found 2"""),
        ('busbw = "100 %"', "expected a share"),
        ('busbw = "-2 %"', "expected a share"),
        ('busbw = "nan %"', "expected a share"),
        ('busbw = "٢ %"', "expected a share"),
        ('busbv = "2 %"', "unknown measure 'busbv', did you mean 'busbw'?"),
        ('GANG.busbw = "2 %"', "unknown measure 'GANG.busbw', did you mean 'busbw'?"),
        ('busbw = "2 %"\nFABRIC.busbw = "3 %"', "found FABRIC.busbw twice: keep one"),
        ('network = "2 %"', "expected a measure where higher or lower is better"),
        ('not_released = "2 %"', "not_released: expected a measure where higher or lower is"),
        ('SCALING.mfu = "2 %"', "SCALING.mfu"),  # not judged in a rehearsal
    ],
)
def test_what_cannot_be_held_is_refused(text: str, words: str) -> None:
    with pytest.raises(ContractError) as refused:
        terms(text)
    assert str(refused.value).startswith("mine.toml: ")
    assert words in str(refused.value)


def test_a_measure_of_two_criteria_needs_its_criterion(monkeypatch: pytest.MonkeyPatch) -> None:
    delay, text = Check("delay", "s", better="lower"), Check("delay", better="word")
    homes = {id: SimpleNamespace(measures={"delay": delay}) for id in ("GANG", "LAUNCH")}
    homes["HOSTS"] = SimpleNamespace(measures={"delay": text})
    monkeypatch.setattr(limits, "CRITERIA", homes)
    which = "delay belongs to several criteria: write GANG.delay or LAUNCH.delay"
    with pytest.raises(ContractError, match=f"{which}$"):
        read_tolerances({"delay": "2 %"}, "mine.toml")
    assert read_tolerances({"LAUNCH.delay": "2 %"}, "mine.toml") == {"LAUNCH.delay": 2.0}
    del homes["GANG"]
    assert read_tolerances({"delay": "2 %"}, "mine.toml") == {"LAUNCH.delay": 2.0}


def test_what_only_informs_is_held_to_no_earlier_value() -> None:
    head = 'schema = 1\n[cluster]\naccelerators = "emulated"\n'
    informs = '[GANG]\nnot_provable = "all raylets share one host"\n'
    gate = '[baseline]\nGANG.placement_delay = "2 %"\n'
    assert parse(f"{head}{gate}".encode(), "mine.toml").baseline == {"GANG.placement_delay": 2.0}
    with pytest.raises(
        ContractError, match=r"\[baseline\] GANG.placement_delay: no test of tier quick"
    ):
        parse(f"{head}{informs}{gate}".encode(), "mine.toml")


def test_it_is_a_table() -> None:
    with pytest.raises(ContractError, match=r"\[baseline\]: expected a table, found 3"):
        parse(LAB.replace("schema = 1", "schema = 1\nbaseline = 3").encode(), "mine.toml")


def test_the_record_keeps_it() -> None:
    contract = parse(f'{LAB}\n[baseline]\nbusbw = "2 %"\n'.encode(), "mine.toml")
    assert contract.facts().baseline == {"FABRIC.busbw": 2.0}
