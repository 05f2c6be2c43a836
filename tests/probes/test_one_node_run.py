"""A run of one ordered node, from its events to its page: what is accepted, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from probes.check.registry import CRITERIA
from probes.cli.main import main
from probes.contract.contract import Contract, load, parse
from probes.session.rejudge import read_summary
from reports.measurement import Verdict
from reports.text import acceptance_table
from tests.support.sound_run import write_sound_run

LAB = load("lab").text.decode()
INSIDE = '[FABRIC.all_reduce_inside_node]\nat_least = 0.1\nunit = "GB/s"\nbecause = "as measured"\n'
UNTESTED = "One node was ordered: the network between nodes was not tested"
REASON = "the driver of this image has no such counters"


def contract(nodes: int | None = 1, more: str = INSIDE) -> Contract:
    order = f"[cluster]\nnodes = {nodes}" if nodes else "[cluster]"
    return parse((LAB.replace("[cluster]", order) + more).encode(), "lab.toml")


def test_one_node_that_was_ordered_is_accepted_and_says_what_it_does_not_show(
    tmp_path: Path,
) -> None:
    run = write_sound_run(tmp_path / "run", contract=contract(), count=1)
    summary = read_summary(run)  # its contract gives the same facts, owed list and limits
    assert (summary.exit_code, summary.integrity.problems) == (0, [])
    rows = {row.criterion.id: row for row in summary.rows}
    assert all(row.verdict is Verdict.PASS for row in rows.values())
    assert rows["FABRIC"].not_tested == [UNTESTED]
    assert rows["FABRIC"].claim == "All-reduce inside the node runs at 0.1 GB/s"
    assert rows["FABRIC"].criterion.title == "the links inside the node are as fast as agreed"
    assert "RDMA" not in rows["FABRIC"].criterion.title
    assert rows["SCALING"].criterion.title == "training on the node is fast enough"
    table = " ".join(acceptance_table(summary).split())
    page = (run / "report.html").read_text()
    untested = page.partition('id="not-tested"')[2].partition("</section>")[0]
    for row in rows.values():
        (text,) = row.not_tested
        assert text.startswith("One node was ordered: ")
        assert text in table
        assert text in untested
    assert "Run the missing tests" not in page


@pytest.mark.parametrize(("ordered", "found"), [(8, 1), (1, 2)])
def test_another_number_than_was_ordered_owes_all_and_is_not_accepted(
    tmp_path: Path, ordered: int, found: int
) -> None:
    """All the run had to record is sound, but for the number of nodes."""
    summary = read_summary(
        write_sound_run(tmp_path / "run", contract=contract(ordered), count=found)
    )
    fabric = next(row for row in summary.rows if row.criterion.id == "FABRIC")
    assert "busbw" in {m.name for result in fabric.results for m in result.measurements}
    assert fabric.not_tested == []
    failed = {row.criterion.id for row in summary.rows if row.verdict is Verdict.FAIL}
    assert (summary.exit_code, failed) == (1, {"HOSTS"})


def test_a_run_of_one_node_is_no_acceptance_of_eight(tmp_path: Path) -> None:
    run = write_sound_run(tmp_path / "run", contract=contract(), count=1)
    (tmp_path / "eight.toml").write_bytes(contract(8).text)
    words = ["rejudge", str(run), "--contract", str(tmp_path / "eight.toml")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1, done.output
    assert "NOT ACCEPTED" in done.output
    assert "One node was ordered" not in done.output


def test_what_nothing_counts_is_listed_as_not_tested(tmp_path: Path) -> None:
    more = f'[FABRIC.lost_packets]\nnot_countable = "{REASON}"\n'
    run = write_sound_run(tmp_path / "run", contract=contract(4, more))
    summary = read_summary(run)
    fabric = next(row for row in summary.rows if row.criterion.id == "FABRIC")
    names = {m.name for result in fabric.results for m in result.measurements}
    assert (summary.exit_code, "lost_packets" in names) == (0, False)
    assert {"agreeing_sources", "fabric_share"} <= names
    text = f"lost packets not tested, because nothing counts them: {REASON}"
    assert fabric.not_tested == [text]
    assert text in " ".join(acceptance_table(summary).split())
    assert text in (run / "report.html").read_text().partition('id="not-tested"')[2]


def test_a_contract_for_one_node_lacks_no_limit_between_nodes(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_bytes(contract().text)
    text = " ".join(CliRunner().invoke(main, ["contract", "check", str(file)]).output.split())
    assert "nothing between nodes is tested, so no test uses the limits of FABRIC.busbw" in text
    assert "no limit for" not in text
    file.write_bytes(contract(more="").text)
    text = " ".join(CliRunner().invoke(main, ["contract", "check", str(file)]).output.split())
    assert "UNPROVEN no limit for FABRIC.all_reduce_inside_node" in text


def test_each_criterion_says_what_one_node_does_not_show() -> None:
    for row in CRITERIA.values():
        assert row.on_one_node, row.id
        assert row.on_one_node.untested
