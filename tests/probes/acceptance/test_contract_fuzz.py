"""Random contracts: each is read, and then makes sense, or is refused in one printable sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime, time, timezone
from importlib import resources
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.check.declarations import Check
from probes.check.registry import CRITERIA
from probes.contract.contract import (
    NOT_PROVABLE,
    TOP_KEYS,
    Contract,
    ContractError,
    parse,
    shipped_contracts,
)
from probes.contract.drafts import toml_text
from probes.contract.limits import NEVER_ZERO, LimitTerms
from probes.contract.terms import ClusterTerms
from probes.contract.validation import has_words
from probes.toml_tables import MAX_SENTENCE
from reports.measurement import Verdict
from reports.record import Waiver
from reports.sanitize import one_line

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None, max_examples=200)
SHIPPED = [
    (resources.files("probes.contract") / "contracts" / f"{name}.toml").read_bytes()
    for name in shipped_contracts()
]


def writes(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(writes, value))}]"
    if isinstance(value, dict):
        pairs = (f"{toml_text(key)} = {writes(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value)


words = st.sampled_from(
    ["rdma", "eth0", "/data", "all", "0-3", "real", "emulated", "soak", "GB/s", "s", "ratio",
     "as agreed by both", "", " ", "\x1b[31m", "::error::x", "\u202e", "2.1", ">=5", "a" * 300]
) | st.text(max_size=9)  # fmt: skip
numbers = st.sampled_from(
    [0, 1, 8, -1, 10**9, 10**400, 0.5, -0.0, 1e-300, 1e300, math.inf, -math.inf, math.nan]
) | st.integers(-3, 400) | st.floats()  # fmt: skip
moments = st.sampled_from([date(2026, 12, 31), datetime(1, 1, 1, tzinfo=timezone.utc), time(1, 2)])
scalars = st.booleans() | numbers | words | moments
few = st.lists(scalars, max_size=2) | st.dictionaries(words, scalars, max_size=2)
values = scalars | few | st.lists(few, max_size=2)


def table(keys: Iterable[str], value: Any = values) -> Any:
    """A table of some of these keys, and seldom of another."""
    return st.dictionaries(st.sampled_from([*keys, "odd", "\x1b"]), value, max_size=4) | values


limit = table(LimitTerms.model_fields)
parts = {
    **dict.fromkeys(TOP_KEYS[1:4], values),
    "cluster": table(ClusterTerms.model_fields),
    "waivers": st.lists(table(Waiver.model_fields), max_size=2) | values,
    **{id: table([*row.measures, NOT_PROVABLE], limit) for id, row in CRITERIA.items()},
}
contracts = st.lists(
    st.one_of([st.tuples(st.just(key), part) for key, part in parts.items()]), max_size=3
).map(dict)


def read(content: bytes) -> Contract | None:
    """The contract, where it is one; else the sentence is looked at."""
    try:
        return parse(content, "mine.toml")
    except ContractError as refused:
        sentence = str(refused)
        assert one_line(sentence) == sentence
        assert len(sentence) <= MAX_SENTENCE + 3
        assert "validation error" not in sentence
        assert sentence.startswith("mine.toml: ")
        return None


def assert_sense(contract: Contract) -> None:
    """Each limit can be kept and broken, has its reason, and all of it can be recorded."""
    assert contract.facts().model_dump_json()
    assert not contract.title or has_words(contract.title)
    for id, limits in contract.limits.items():
        for name, agreed in limits.items():
            bounds = [agreed.low, agreed.marginal_low, agreed.marginal_high, agreed.high]
            given = [bound for bound in bounds if bound is not None]
            assert given == sorted(given)
            assert all(math.isfinite(bound) for bound in given)
            assert given or agreed.one_of, (id, name)
            assert has_words(agreed.because)


@steady
@given(contracts)
def test_any_tables_are_a_contract_or_one_sentence(tables: dict[str, Any]) -> None:
    text = "".join(f"{toml_text(key)} = {writes(value)}\n" for key, value in tables.items())
    if contract := read(f"schema = 1\n{text}".encode()):
        assert_sense(contract)


agreeable = [
    (id, name, measure)
    for id, row in CRITERIA.items()
    for name, measure in row.measures.items()
    if measure.agreeable and measure.better != "word"
]


@steady
@given(st.sampled_from(agreeable), st.data())
def test_any_bounds_are_a_limit_that_can_be_kept_or_one_sentence(
    known: tuple[str, str, Check], data: st.DataObject
) -> None:
    id, name, measure = known
    bound = {"higher": "at_least", "lower": "at_most"}[measure.better]
    figures = st.floats(0, 2) | numbers
    terms = data.draw(st.fixed_dictionaries({bound: figures}, optional={"marginal": figures}))
    terms |= {"because": data.draw(words), "unit": measure.unit}
    lines = "".join(f"{key} = {writes(value)}\n" for key, value in terms.items())
    if contract := read(f'schema = 1\ntier = "standard"\n[{id}.{name}]\n{lines}'.encode()):
        assert_sense(contract)
        assert terms[bound] > 0 or (bound == "at_most" and measure.unit not in NEVER_ZERO)
        agreed = contract.limit(id, name)
        assert agreed is not None
        assert agreed.judge(terms[bound]) in (Verdict.PASS, Verdict.MARGINAL)


@steady
@given(st.binary(max_size=400))
def test_any_bytes_are_a_contract_or_one_sentence(content: bytes) -> None:
    for start in (b"", b"schema = 1\n", b"schema = 1\n[cluster]\n"):
        if contract := read(start + content):
            assert_sense(contract)


@steady
@given(st.data())
def test_a_shipped_contract_that_is_damaged_is_a_contract_or_one_sentence(
    data: st.DataObject,
) -> None:
    content = bytearray(data.draw(st.sampled_from(SHIPPED)))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 30))
        word = data.draw(st.sampled_from([b"-", b"0", b"=", b"[", b"]", b'"', b"\n", b"inf"]))
        content[at : at + length] = word * data.draw(st.integers(0, 3))
    if contract := read(bytes(content)):
        assert_sense(contract)
