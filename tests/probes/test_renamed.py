"""What was written with old names: run folders of an earlier commit, contracts, codes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from probes.acceptance.contract import ContractError, parse
from probes.acceptance.contract import load as load_contract
from probes.acceptance.control_targets import CONTROLS as CONTROL_TARGETS
from probes.acceptance.criteria import CRITERIA
from probes.cli.main import main
from probes.findings.catalogue import CATALOGUE
from probes.rejudge.rejudge import rejudge_run
from reports.acceptance import OLD_RUN, load_summary, summarize_acceptance
from reports.frames.compare import compare
from reports.record import RunRecord
from reports.renamed import CODES, CONTROLS, MEASURES, PROBE_FILES, with_current_names
from reports.run_folder.event_log import read_events
from reports.run_folder.integrity import load
from tests.support.paths import REPO

OLD = REPO / "tests" / "recordings" / "commit-7b46e02"
RUNS = ["healthy", "failed", "interrupted"]
CONTRACT = b"""
schema = 1
[FABRIC.road]
one_of = ["fab0"]
because = "the agreed network"
[RESTART.back_to_work]
at_most = 90
unit = "s"
because = "agreed"
"""


def seatrial(*words: str | Path) -> Result:
    """The command, run in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old run folder."""
    return Path(shutil.copytree(OLD / request.param, tmp_path / request.param))


every_old_run = pytest.mark.parametrize("old_run", RUNS, indirect=True)


def test_the_table_leads_from_names_that_are_gone_to_names_that_are() -> None:
    assert {*CODES.values()} <= CATALOGUE.keys()
    assert not CODES.keys() & CATALOGUE.keys()
    for criterion, renamed in MEASURES.items():
        files = (REPO / "probes" / criterion.lower()).rglob("*.py")
        noted = set(re.findall(r'note\(\s*"(\w+)"', "".join(path.read_text() for path in files)))
        assert {*renamed.values()} <= CRITERIA[criterion].measures.keys() | noted
        assert not renamed.keys() & CRITERIA[criterion].measures.keys()
        assert len({*renamed.values()}) == len(renamed)
    assert len({*CODES.values()}) == len(CODES)


@every_old_run
def test_an_old_run_has_names_of_today_and_the_verdict_it_had(old_run: Path) -> None:
    written = RunRecord(**json.loads((old_run / "record.json").read_text()))
    record = load(old_run)
    names = {(r.criterion, m.name) for r in record.results for m in r.measurements}
    before = {(r.criterion, m.name) for r in written.results for m in r.measurements}
    assert before - names, "the folder has old names"
    judged = {(r.criterion, m.name) for r in record.results for m in r.measurements if m.judged}
    assert all(name in CRITERIA[id].measures for id, name in judged)
    assert {f.code for r in record.results for f in r.findings} <= CATALOGUE.keys()
    assert summarize_acceptance(record).exit_code == summarize_acceptance(written).exit_code
    assert [r.verdict for r in record.results] == [r.verdict for r in written.results]


@every_old_run
def test_an_old_run_is_rendered_and_compared_and_its_ladder_told(old_run: Path) -> None:
    rendered, record = seatrial("report", old_run), load(old_run)
    same = summarize_acceptance(record)
    assert rendered.exit_code == same.exit_code, rendered.output
    assert "notice" not in rendered.output
    digest = hashlib.sha256((old_run / "record.json").read_bytes()).hexdigest()
    assert digest in (old_run / "report.html").read_text()  # what was signed is still what it says
    for old in (name for renamed in MEASURES.values() for name in renamed if "_" in name):
        assert f"{old} " not in (old_run / "measurements.csv").read_text()
    assert compare(same, same).changes == {}
    told = seatrial("scaling", "report", old_run)
    has_ladder = (old_run / "evidence" / "ladder.json").exists()
    assert (told.exit_code == 0) is has_ladder, told.output


def test_an_old_run_is_judged_again_by_a_contract_of_today(tmp_path: Path) -> None:
    folder = shutil.copytree(OLD / "healthy", tmp_path / "healthy")
    judged = load(rejudge_run(folder, load_contract("lab")))
    assert [r.verdict for r in judged.results] == [r.verdict for r in load(folder).results]
    summary = summarize_acceptance(judged)
    chainless = "an older version wrote it, without a chain of hashes"
    reasons = [f"the run that is judged again cannot be verified: {chainless}", OLD_RUN]
    assert (summary.exit_code, summary.reasons) == (20, reasons), "what it owed is not known"


@every_old_run
def test_the_probes_of_an_old_run_are_where_it_says(old_run: Path) -> None:
    for result in load(old_run).results:
        file, _, function = result.probe.partition("[")[0].partition("::")
        assert f"def {function}(" in (REPO / file).read_text()
        again = [result.reproduce, *(one.reproduce for one in result.findings)]
        assert all(result.probe in text for text in again if text)


def test_what_an_old_run_owed_and_its_controls_saw_have_names_of_today() -> None:
    old = {"measures": ["ecc_off"], "uncontrolled": {"ecc_off": "none"}, "controls": ["wrong road"]}
    saw = {"name": "sick GPU", "observed": [{"name": "ecc_off", "unit": "witnesses"}, "hostile"]}
    events = [
        {"event": "run_owes", "data": {"owed": [{"criterion": "HOSTS", **old}, "hostile"]}},
        {"event": "probe_started", "probe": "p", "data": {"criterion": "HOSTS"}},
        {"event": "control", "probe": "p", "data": saw},
    ]
    (owes, _, control) = (event["data"] for event in with_current_names(events))
    assert owes["owed"] == [
        {
            "criterion": "HOSTS",
            "measures": ["gpus_without_ecc"],
            "uncontrolled": {"gpus_without_ecc": "none"},
            "controls": ["wrong network"],
        },
        "hostile",
    ]
    assert control["observed"] == [{"name": "gpus_without_ecc", "unit": "sources"}, "hostile"]


def test_every_moved_probe_is_in_its_file() -> None:
    for function, file in PROBE_FILES.items():
        (path,) = (REPO / "probes").rglob(f"{file}.py")
        assert f"def {function}(" in path.read_text()


def test_an_old_run_is_a_baseline_for_the_same_probes_of_today(tmp_path: Path) -> None:
    old = shutil.copytree(OLD / "healthy", tmp_path / "old")
    today = shutil.copytree(OLD / "healthy", tmp_path / "today")
    events = [*with_current_names(read_events(old))]
    (today / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert compare(load_summary(today), load_summary(old)).changes == {}


def test_judging_again_by_an_old_contract_says_what_is_called_what(tmp_path: Path) -> None:
    folder = shutil.copytree(OLD / "healthy", tmp_path / "healthy")
    (tmp_path / "ours.toml").write_bytes(CONTRACT)
    judged = seatrial("rejudge", folder, "--contract", tmp_path / "ours.toml")
    assert "notice: ours.toml: [FABRIC.road] is now called [FABRIC.network]" in judged.output


def test_a_hostile_log_has_any_values_for_names() -> None:
    events = [
        {"event": "probe_started", "probe": ["p"], "data": {"criterion": ["FABRIC"]}},
        {"event": "measurement", "probe": ["p"], "data": {"name": {}, "unit": [], "limit": 3}},
        {"event": "finding", "data": {"code": None}},
    ]
    assert list(with_current_names(events)) == events


def test_a_contract_with_old_keys_is_read_and_says_so() -> None:
    contract = parse(CONTRACT, "ours.toml")
    assert contract.limits["FABRIC"]["network"].one_of == ["fab0"]
    assert contract.limits["RESTART"]["recovery_time"].high == 90
    assert contract.notices == [
        "ours.toml: [FABRIC.road] is now called [FABRIC.network]",
        "ours.toml: [RESTART.back_to_work] is now called [RESTART.recovery_time]",
    ]
    assert load_contract("lab").notices == []


def test_one_limit_under_two_names_is_refused() -> None:
    both = CONTRACT + b'[FABRIC.network]\none_of = ["eth0"]\nbecause = "agreed too"\n'
    with pytest.raises(ContractError, match=re.escape("both [FABRIC.road] and [FABRIC.network]")):
        parse(both, "ours.toml")


@pytest.mark.parametrize("code", ["SCALE-LOSS", "fab-wrong-road"])
def test_an_old_code_is_explained(code: str) -> None:
    explained = seatrial("explain", code)
    new = CODES[code.upper()]
    assert explained.exit_code == 0
    assert f"{code.upper()} is now called {new}" in explained.output
    assert CATALOGUE[new].remedy in " ".join(explained.output.split())


def test_controls_of_older_runs_have_their_current_names() -> None:
    targets = {name for controls in CONTROL_TARGETS.values() for name in controls}
    assert {*CONTROLS.values()} <= targets
    assert not CONTROLS.keys() & targets
    owed = [{"probe": "p", "controls": ["wrong road", "bad sender", 3]}, "hostile", {"controls": 1}]
    events = [
        {"event": "run_owes", "data": {"owed": owed}},
        {"event": "run_owes", "data": {"owed": "hostile"}},
        {"event": "control", "data": {"name": "other witness", "caught": True}},
    ]
    owes, hostile, control = (event["data"] for event in with_current_names(events))
    assert owes["owed"] == [
        {"probe": "p", "controls": ["wrong network", "bad sender", 3]}, "hostile", {"controls": 1},
    ]  # fmt: skip
    assert hostile == {"owed": "hostile"}
    assert control == {"name": "other report", "caught": True}
