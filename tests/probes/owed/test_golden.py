"""What a run owes is the golden list, and the comparison names all that is lost or changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.probes.owed.cases import build_case, typical_cases
from tests.probes.owed.golden import (
    GOLDEN,
    build_declared,
    build_owed,
    build_sections,
    compare,
    read_golden,
    write_golden,
)
from tests.probes.owed.product import Case, Owed, Product, read_product

FABRIC = "FABRIC", "test_allreduce_takes_the_fabric_at_line_rate"
GANG = "GANG", "test_strategies_hold"
HEADING = " ".join(FABRIC)
Names = frozenset[str]


@pytest.fixture(scope="module")
def product() -> Product:
    return read_product()


def test_what_is_owed_is_the_golden_list(product: Product) -> None:
    found = build_sections(product)
    assert not [*compare(read_golden(), found)], "if that is meant: python -m tests.probes.owed"
    assert GOLDEN.read_text(encoding="utf-8") == write_golden(found)


def test_what_has_no_control_is_in_the_record_with_its_reason(product: Product) -> None:
    *_, full = typical_cases(product)
    for (criterion, probe), due in product.owed(build_case(full)).items():
        row = product.criteria[criterion]
        planted = frozenset[str]().union(*(row.controls[name] for name in due.controls))
        assert due.uncontrolled == (due.measures & row.no_control.keys()) - planted, probe


def test_each_key_of_a_contract_is_tried(product: Product) -> None:
    with pytest.raises(ValueError, match=r"expected a value of \['new_key'\]"):
        build_owed(replace(product, terms=product.terms | {"new_key"}))


Change = Callable[[Case, Owed], Owed]


def compare_owing(product: Product, change: Change) -> list[str]:
    """Compare where two probes owe something else.  The others are left out, which is faster."""

    def owe(case: Case) -> Owed:
        owed = product.owed(case)
        return change(case, {key: owed[key] for key in (FABRIC, GANG) if key in owed})

    golden = read_golden()
    found = build_owed(replace(product, owed=owe))
    return [*compare({" ".join(key): golden[" ".join(key)] for key in (FABRIC, GANG)}, found)]


def changing(probe: tuple[str, str], **change: Callable[[Names], Names]) -> Change:
    def apply(case: Case, owed: Owed) -> Owed:
        due = owed[probe]
        names = {kind: one(getattr(due, kind)) for kind, one in change.items()}
        return {**owed, probe: replace(due, **names)}

    return apply


def lose_on_two_nodes(case: Case, owed: Owed) -> Owed:
    lose = changing(FABRIC, controls=lambda names: names - {"wrong element"})
    return lose(case, owed) if case.nodes == 2 else owed


def lose_where_many_facts_meet(case: Case, owed: Owed) -> Owed:
    lose = changing(FABRIC, measures=lambda names: names - {"wrong_elements"})
    unset = "shards" not in case.terms and "ram_gib" not in case.terms
    return lose(case, owed) if unset and case.on_gpu and not case.ip_fabric else owed


def lose_a_probe_on_one_node(case: Case, owed: Owed) -> Owed:
    return {key: due for key, due in owed.items() if case.nodes > 1 or key != GANG}


def lose_a_probe(case: Case, owed: Owed) -> Owed:
    return {key: due for key, due in owed.items() if key != GANG}


def move_a_probe_to_soak(case: Case, owed: Owed) -> Owed:
    return {
        key: replace(due, tier="soak") if key == GANG else due
        for key, due in owed.items()
        if case.tier == "soak" or key != GANG
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            changing(FABRIC, measures=lambda names: names - {"wrong_elements"}),
            f"{HEADING}: measure wrong_elements is lost; it was 'always'",
        ),
        (
            changing(FABRIC, controls=lambda names: names - {"late call"}),
            f"{HEADING}: control late call is lost; it was 'not one_host, [cluster] nodes unset/8; "
            "or nodes 2/3/4/8, not one_host'",
        ),
        (
            changing(FABRIC, measures=lambda names: names | {"mfu"}),
            f"{HEADING}: measure mfu is not in the golden list; it is 'always'",
        ),
        (move_a_probe_to_soak, "GANG test_strategies_hold: tier was 'standard', and is 'soak'"),
        (lose_a_probe, "GANG test_strategies_hold: lost"),
        (
            lose_on_two_nodes,
            f"{HEADING}: control wrong element was 'always', and is 'nodes 1/3/4/8'",
        ),
        (
            lose_where_many_facts_meet,
            f"{HEADING}: measure wrong_elements was 'always', and is 'ip_fabric; or not on_gpu; or "
            "[cluster] shards; or [cluster] ram_gib'",
        ),
        (
            lose_a_probe_on_one_node,
            "GANG test_strategies_hold: measure misplaced was 'always', and is 'nodes 2/3/4/8'",
        ),
    ],
)
def test_a_change_of_what_is_owed_is_named(product: Product, change: Change, sentence: str) -> None:
    assert sentence in compare_owing(product, change)


def test_what_is_owed_where_it_is_not_provable_is_named(product: Product) -> None:
    def lose_data(case: Case, owed: Owed) -> Owed:
        lose = changing(FABRIC, measures=lambda names: frozenset())
        return lose(case, owed) if case.not_provable else owed

    found = build_owed(replace(product, owed=lambda case: lose_data(case, product.owed(case))))
    fabric, *others = compare(read_golden(), build_declared(product) | found)
    assert "FABRIC was 'wrong_elements; all" in fabric
    assert "is 'no measure; all controls" in fabric
    assert "GANG was" in others[1]
    assert f"but for {HEADING} measure agreeing_sources, but for" in others[1]


def test_a_probe_that_is_owed_before_its_tier_is_refused(product: Product) -> None:
    def mislabel(case: Case, owed: Owed) -> Owed:
        return {key: replace(due, tier="soak") for key, due in owed.items()}

    with pytest.raises(ValueError, match="or a tier before its own owes it"):
        compare_owing(product, mislabel)


@pytest.mark.parametrize(
    ("table", "name", "value", "sentence"),
    [
        ("measures", "rank_cv", "ratio; default high 0.2", "measures: rank_cv was 'ratio; def"),
        ("measures", "busbw", None, "measures: busbw is lost; it was 'GB/s; without a limit: 80 %"),
        ("controls", "bad sender", {"lost_packets"}, "fail: bad sender was 'lost_packets, slow"),
        ("controls", "bad sender", None, "makes fail: bad sender is lost"),
        ("no_control", "slow_groups", None, "without a control: slow_groups is lost"),
        ("texts", "title", "RDMA", ": title was 'RDMA is in use', and is 'RDMA'"),
    ],
)
def test_a_change_of_a_declaration_is_named(
    product: Product, table: str, name: str, value: object, sentence: str
) -> None:
    row = product.criteria["FABRIC"]
    given = {key: one for key, one in {**getattr(row, table), name: value}.items() if one}
    criteria = {**product.criteria, "FABRIC": replace(row, **{table: given})}
    (found,) = compare_declared(replace(product, criteria=criteria))
    assert found.startswith("FABRIC")
    assert sentence in found


def test_another_order_of_criteria_is_named(product: Product) -> None:
    (found,) = compare_declared(replace(product, run_order=product.run_order[::-1]))
    assert found.startswith("run: order was 'HOSTS, FABRIC,")


def compare_declared(product: Product) -> list[str]:
    """Compare the part that the criteria declare."""
    golden, found = read_golden(), build_declared(product)
    return [*compare({heading: golden[heading] for heading in found}, found)]
