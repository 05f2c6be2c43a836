"""What the page shows of nodes, of evidence and of times: exact texts of small made-up parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import load_summary
from reports.page.sections import (
    COLUMNS,
    LINES,
    TAIL_BYTES,
    EvidenceReader,
    Inventory,
    build_inventory,
    build_timeline,
    cluster_size,
    fact_text,
    read_tail,
    split_place,
)
from reports.record import Evidence, ProbeResult
from reports.run_folder.event_log import hash_file
from tests.support.paths import RECORDINGS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        ("", "none"),
        ([], "none"),
        (0, "0"),
        (True, "yes"),
        (False, "no"),
        (["a", 1, 2.5], "a, 1, 2.5"),
        ([{"a": 1}], '{"a": 1}'),
        ([{"a": 1}, {"a": 1}], '2 x {"a": 1}'),
        ([{"a": 1}, {"a": 2}], '{"a": 1}, {"a": 2}'),
        (["a", {"b": 1}], '"a", {"b": 1}'),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], '2 x {"a": 1, "b": 2}'),
        ("x" * 160, "x" * 160),
        ("x" * 161, "x" * 160 + " ..."),
    ],
)
def test_one_fact_is_one_text(value: object, text: str) -> None:
    assert fact_text(value) == text


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ({"nodes": [{"gpus": 8}, {"gpus": 8}], "ranks": 4, "resource": "CPU"}, "2 nodes, 16 GPUs"),
        ({"nodes": [{"gpus": [{}, {}]}]}, "1 node, 2 GPUs"),
        ({"nodes": [{}], "ranks": 4, "resource": "CPU"}, "1 node, 4 CPUs"),
        ({"nodes": [{}], "ranks": "many"}, "1 node"),
    ],
)
def test_emulated_gpus_are_counted_where_there_are_no_others(
    cluster: dict[str, Any], text: str
) -> None:
    assert cluster_size(cluster) == text


def test_what_all_nodes_share_stands_once_and_names_come_first() -> None:
    nodes = [
        {"cpus": 8, "os": "a", "name": "node0", "gpus": 2},
        {"cpus": 8, "os": "b", "name": "node1", "gpus": 2, "more": "x"},
    ]
    assert build_inventory({"name": "atlas", "nodes": nodes}) == Inventory(
        facts=[("name", "atlas")],
        common=[("cpus", "8"), ("gpus", "2")],
        header=["name", "os", "more"],
        rows=[["node0", "a", "-"], ["node1", "b", "x"]],
    )


def test_one_node_shares_nothing_with_others() -> None:
    found = build_inventory({"nodes": [{"cpus": 8, "name": "node0"}]})
    assert (found.common, found.header, found.rows) == ([], ["name", "cpus"], [["node0", "8"]])


@pytest.mark.parametrize("nodes", ["no list", [{"name": "a"}, "no table"], None])
def test_nodes_that_are_no_tables_are_one_fact(nodes: Any) -> None:
    found = build_inventory({"nodes": nodes})
    assert found.rows == []
    assert [key for key, _ in found.facts] == ["nodes"]
    assert cluster_size({"nodes": nodes}) == "size unknown"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a", "b"], "a\nb"),
        ([str(i) for i in range(LINES)], "\n".join(str(i) for i in range(LINES))),
        (
            [str(i) for i in range(LINES + 1)],
            "\n".join([f"... the last {LINES} lines", *(str(i) for i in range(1, LINES + 1))]),
        ),
        (["x" * COLUMNS, "x" * (COLUMNS + 1)], f"{'x' * COLUMNS}\n{'x' * COLUMNS} ..."),
    ],
)
def test_the_end_of_a_file_is_shown(lines: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    assert read_tail(tmp_path / "a.log") == expected


def test_of_a_long_file_the_last_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("first\n" + "y" * TAIL_BYTES)
    assert read_tail(tmp_path / "a.log").splitlines() == [
        "... the last 1 lines",
        "y" * COLUMNS + " ...",
    ]
    (tmp_path / "b.log").write_text("z" * (TAIL_BYTES - 1) + "\n")
    assert read_tail(tmp_path / "b.log") == "z" * COLUMNS + " ..."


def test_evidence_is_linked_and_checked(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    path = tmp_path / "evidence" / "a.log"
    path.write_text("text\n")
    entry = Evidence(
        kind="log", path="evidence/a.log", caption="a", bytes=5, sha256=hash_file(path)
    )
    reader = EvidenceReader(tmp_path, "my runs")
    assert reader.view(entry).tail == "text"
    assert reader.view(entry).link == "my%20runs/evidence/a.log"
    assert EvidenceReader(None).link(entry.path) == "./evidence/a.log"
    full = EvidenceReader(tmp_path)
    full.chars_left = 0
    assert full.view(entry).tail == "", "the page has no room for another"
    outside = entry.model_copy(update={"path": "../a.log"})
    assert (
        reader.view(outside).problem
        == "the path is outside the run folder, so the file was not read"
    )
    path.write_text("other\n")
    assert reader.view(entry).problem == "the file is not the file that the run wrote"
    path.unlink()
    assert (reader.view(entry).link, reader.view(entry).problem) == (None, "the file is missing")


def test_a_place_has_a_line_or_none() -> None:
    assert split_place("evidence/a.log:12") == ("evidence/a.log", "12")
    assert split_place("evidence/a.log") == ("evidence/a.log", "")


def test_a_bar_begins_and_ends_where_its_probe_did() -> None:
    record = load_summary(RECORDINGS / "healthy-lab").record
    start = record.started

    def at(second: int, seconds: float) -> ProbeResult:
        started = start.replace(":12.", f":{12 + second}.")
        update = {"started": started, "seconds": seconds}
        return record.results[0].model_copy(update=update)

    results = [at(0, 9.0), at(9, 1.0), at(10, 0.001)]
    spans = build_timeline(record.model_copy(update={"results": results}))
    assert [(span.began, span.seconds) for span in spans] == [(0.0, 9.0), (9.0, 1.0), (10.0, 0.001)]
    places = [(round(span.left), round(span.width)) for span in spans]
    assert places == [(0, 324), (324, 36), (358, 2)]
