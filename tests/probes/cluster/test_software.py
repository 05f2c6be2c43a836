"""Software that is not the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from probes.cluster.node_facts import software_differences

DRIVER = {
    "python": "3.11.7",
    "ray": "2.60.0",
    "torch": "2.13.0",
    "driver": "",
    "cuda": "",
    "kernel": "6.1.0",
    "ofed": "",
}


def facts(*torches: str) -> list[dict[str, Any]]:
    return [{"name": f"n{i}", "software": {**DRIVER, "torch": t}} for i, t in enumerate(torches)]


def test_versions_in_parity_and_not() -> None:
    assert software_differences(facts("2.13.0", "2.13.0"), DRIVER) == {}
    (said,) = software_differences(facts("2.13.0", "2.12.1"), DRIVER)
    assert said.startswith("torch: 2.12.1 on n1; 2.13.0 on n0, the host that runs seatrial")
    (said,) = software_differences(facts("2.13.0", ""), DRIVER)
    assert "none on n1" in said


@pytest.mark.parametrize(
    ("torches", "suspects"),
    [
        (("2.13.0", "2.13.0", "2.12.1"), ["n2"]),
        (("2.12.1", "2.13.0", "2.12.0", "2.13.0", "2.13.0"), ["n0", "n2"]),
        (("2.13.0", "2.12.1"), []),
        (("2.12.1", "2.12.1"), []),  # only the driver has another one
        (("2.13.0", "2.12.1", "2.12.1"), []),  # with the driver it is two against two
        (("", "", "2.13.0"), []),  # most have none
        (("2.13.0", "2.13.0", "2.12.1", "2.12.0"), []),  # half is no majority
    ],
)
def test_nodes_without_the_version_of_most_are_suspects(
    torches: tuple[str, ...], suspects: list[str]
) -> None:
    assert [*software_differences(facts(*torches), DRIVER).values()] == [suspects]


def test_where_none_is_suspected_all_nodes_are_named() -> None:
    (text,) = software_differences(facts(*["2.13.0"] * 20, *["2.12.1"] * 20), DRIVER)
    assert all(f"n{number}," in text or f"n{number};" in text for number in range(40))


def test_systems_are_compared_apart() -> None:
    two = facts("2.13.0", "2.13.0")
    two[1]["software"] |= {"kernel": "6.8.0", "ofed": "24.10"}
    assert software_differences(two, DRIVER) == {}


@pytest.mark.parametrize(
    ("part", "version", "other"),
    [
        ("driver", "570.86", "570.12"),
        ("cuda", "13.0", "12.8"),
    ],
)
def test_the_drivers_own_machine_is_no_difference(part: str, version: str, other: str) -> None:
    two = facts("2.13.0", "2.13.0")
    for fact in two:
        fact["software"][part] = version
    assert software_differences(two, DRIVER) == {}
    two[1]["software"][part] = other
    (said,) = software_differences(two, DRIVER)
    assert said.startswith(f"{part}: ")
    assert f"{other or 'none'} on n1" in said


def test_another_build_of_torch_on_the_driver_is_no_difference() -> None:
    on_nodes, driver = facts("2.13.0+cu128", "2.13.0+cu128"), {**DRIVER, "torch": "2.13.0+cpu"}
    assert software_differences(on_nodes, driver) == {}
    (said,) = software_differences(facts("2.13.0+cu128", "2.13.0+cpu"), driver)
    assert "2.13.0+cpu on " in said
    (said,) = software_differences(on_nodes, {**DRIVER, "torch": "2.12.0+cpu"})
    assert "the host that runs seatrial" in said
