"""Judges a recorded run again, by another contract, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probes.check.declarations import Check, exactly
from probes.check.recorder import is_red
from probes.check.registry import CRITERIA, measures_by_term
from probes.contract.contract import ClusterTerms, Contract, ContractError, is_one_node, parse
from probes.contract.derived_limits import size_contract
from probes.toml_tables import show
from reports import acceptance
from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.exports import check_renderings, render_all, write_all
from reports.frames.history import is_run
from reports.measurement import Limit, Measurement, Verdict
from reports.record import SCHEMA, RunRecord
from reports.redact import redact
from reports.run_folder.event_log import CONTRACT, SUMS, EventReader, UnreadableRun, open_regular
from reports.run_folder.integrity import read_run
from reports.run_folder.store import Store, json_value, make_free_folder, write_new
from reports.version import describe_version, same_version


class NewJudge:
    """The new contract, applied to the events of a run that was measured under `old` terms."""

    def __init__(self, contract: Contract, run_id: str) -> None:
        self.contract, self.run_id = contract, run_id
        self.old: dict[str, Any] = {}
        self.other: list[str] = []  # keys of [cluster] whose value differs now
        self.probes: dict[str, str] = {}  # probe -> its criterion
        self.new_limits: dict[tuple[str, str], Any] = {}  # by criterion and measure, as JSON
        self.finished = False  # as its own last event states
        self.start: dict[str, Any] = {}  # of the run, as recorded

    def replace(self, kind: str, probe: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an event under this contract; other kinds of events stay unchanged."""
        if kind == "run_finished":
            self.finished = data.get("state") == "finished"
        elif kind == "probe_started":
            self.probes[probe] = data["criterion"]
        replacements = {
            "run_started": self._start_run,
            "run_owes": self._owe,
            "measurement": self._judge_measurement,
            "control": self._judge_control,
        }
        return replacements[kind](probe, data) if kind in replacements else data

    def _start_run(self, _: str, data: dict[str, Any]) -> dict[str, Any]:
        cluster = data.get("cluster", {})
        self.start, self.old = data, dict(cluster.get("terms", {}))
        size = [cluster.get(key) for key in ("alive", "ranks")]
        if all(isinstance(count, int) for count in size):  # an older or modified record may lack it
            self.contract = size_contract(self.contract, *size)
        if data.get("rehearsal"):  # on one host, also where no contract declares it
            self.old["accelerators"] = "emulated"
        self.other = self.contract.cluster.overrides(self.old)
        alone = is_one_node(self._terms(), data.get("cluster", {}))
        facts = self.contract.facts(alone).model_dump(mode="json")
        return {**data, "schema_version": SCHEMA, "id": self.run_id, "contract": facts}

    def _owe(self, _: str, data: dict[str, Any]) -> dict[str, Any]:
        """Compute what the new contract's tier must record: the run may have covered less."""
        tier, cluster = self.start["tier"], self.start.get("cluster", {})
        return self.contract.owed_event(tier, data["only"], self._terms(), cluster)

    def _terms(self) -> ClusterTerms:
        """Return the contract's terms; --nodes of the run fills in a missing number of nodes."""
        terms, ordered = self.contract.cluster, self.old.get("nodes")
        most = terms.nodes_at_most  # up to it, --nodes orders more than the contract
        same = most and most == self.old.get("nodes_at_most")
        fill_in = ordered and (terms.nodes is None or (same and ordered > terms.nodes))
        return terms.model_copy(update={"nodes": ordered}) if fill_in else terms

    def _judge_measurement(self, probe: str, data: dict[str, Any]) -> dict[str, Any]:
        criterion, name = self.probes[probe], data["name"]
        row = CRITERIA.get(criterion)
        measure = row.measures.get(name) if row else None
        if measure is None or not data.get("judged", True):
            return data
        value, note = measure.plausible_value(data.get("value"))
        data = {**data, "value": value, "note": note or data.get("note", "")}
        if reason := self._measured_otherwise(criterion, measure):
            return {**data, "limit": None, "note": reason}
        if measure.ordered_by:
            return self._judge_order(data, measure)
        return {**data, "limit": self._limit(criterion, name, measure, data)}

    def _judge_control(self, probe: str, data: dict[str, Any]) -> dict[str, Any]:
        """Judge a control again: its fault may pass looser limits, and is then not caught.

        A limit that follows from what the control injected is kept.
        """
        criterion, caught = self.probes[probe], data.get("caught")
        row = CRITERIA.get(criterion)
        known = [one for one in data.get("observed", []) if row and one["name"] in row.measures]
        if row is None or not known:
            return data
        measures = row.measures
        limits = [self._limit(criterion, (n := one["name"]), measures[n], one) for one in known]
        observed = [{**one, "limit": limit} for one, limit in zip(known, limits, strict=True)]
        if caught:
            caught = all(is_red(criterion, Measurement(**one)) for one in observed)
        return {**data, "observed": observed, "caught": caught}

    def _judge_order(self, data: dict[str, Any], measure: Check) -> dict[str, Any]:
        """Judge what was read of the nodes by the new order.

        Without an order there is no limit, and only an exact one counts as judged.
        """
        key = measure.ordered_by
        order = getattr(self._terms(), key)
        if order is None:
            return {**data, "limit": None, "judged": measure.order == "exactly"}
        if measure.order == "at least":
            limit = Limit(low=order, unit=data["unit"], because="ordered")
        elif measure.order == "exactly" and isinstance(order, int):
            most = self._terms().nodes_at_most if measure == "nodes" else None
            limit = exactly(order, data["unit"], "ordered", most)
        else:  # the old order chose the value, or what its node must have
            other = key in self.other
            return {**data, "limit": None, "note": self._describe_change(key)} if other else data
        return {**data, "limit": limit.model_dump(mode="json")}

    def _limit(self, criterion: str, name: str, measure: Check, data: dict[str, Any]) -> Any:
        """Return the new contract's limit of a measure; keep one that only the run could know."""
        if measure.from_run:
            return data.get("limit")
        kept = data.get("limit") or {}
        if (criterion, name) not in self.new_limits:
            limit = self.contract.limit(criterion, name)
            self.new_limits[criterion, name] = limit and limit.model_dump(mode="json")
        new = self.new_limits[criterion, name]
        if new is None and measure.derived_in_run:
            return kept if kept.get("source") == "derived" else None
        return new

    def _measured_otherwise(self, criterion: str, measure: Check) -> str:
        """Describe the terms of its measurement that differ now; "" if there are none.

        Its own order is left out: the value is judged by it, also if the old order differed. So is
        another name of all GPUs: nodes are compared by kind only where a table orders kinds.
        """
        depends, left_out = measures_by_term(), {measure.ordered_by}
        left_out |= {"nodes_at_most"} if self.old.get("nodes_at_most") else set()
        models = self.old.get("gpu_model"), self.contract.cluster.gpu_model
        left_out |= set() if dict in map(type, models) else {"gpu_model"}
        keys = [key for key in self.other if key not in left_out]
        keys = [key for key in keys if measure in depends[key][criterion]]
        return "; ".join(self._describe_change(key) for key in keys)

    def _describe_change(self, key: str) -> str:
        before, now = self.old.get(key), getattr(self.contract.cluster, key)
        measured = f"with {key} = {show(before)}" if before is not None else f"without {key}"
        demanded = f"no {key}" if now is None else f"{key} = {show(now)}"
        return f"measured {measured}, but the contract has {demanded}"


MAX_CONTRACT = 1 << 20  # bytes: the largest shipped contract has under 2 kB
BOUNDS = ("low", "high", "marginal_low", "marginal_high", "one_of", "unit")
TEXTS = ("how", "title")  # of a criterion: they decide nothing, and a later version may reword them


class LimitCheck:
    """Judges a run by its own contract again: the result must equal what was recorded.

    A difference is a problem.  It is only a doubt where another version of seatrial wrote the run,
    for that may compute a limit differently, or where the run was rejudged.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / CONTRACT
        self.judge: NewJudge | None = None
        self.wrote: dict[str, str] = {}  # versions of what wrote the run
        self.differences: list[str] = []
        self.says_owed = self.judged_again = False

    def see(self, event: dict[str, Any]) -> None:
        """Check the next event, as it was recorded."""
        kind, probe, data = event["event"], event.get("probe", ""), event["data"]
        try:
            if kind == "run_started" and not self.wrote:
                self._begin(data)
            elif self.judge and kind in ("run_owes", "probe_started", "measurement", "control"):
                self._compare(kind, data, self.judge.replace(kind, probe, dict(data)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.differences.append(f"an event {kind} cannot be judged again: {error!r:.80}")

    def _begin(self, start: dict[str, Any]) -> None:
        """Read the contract.  Without an agreed one nothing is checked: the run accepts nothing."""
        versions = start.get("versions") or {"seatrial": "of an unknown version"}
        self.wrote = {key: str(value) for key, value in versions.items()}
        if not start["contract"]["agreed"]:
            return
        try:
            with open_regular(self.path) as file:
                # A contract without a name has that of its file.
                contract = parse(file.read(MAX_CONTRACT), f"{start['contract']['name']}.toml")
        except UnreadableRun:
            return  # the check of the folder's files reports that it is missing
        except ContractError as error:
            self.differences.append(f"{CONTRACT}: {error}")
            return
        self.judge = NewJudge(contract, start["id"])
        self.judged_again = bool(start.get("judged_again"))
        facts = self.judge.replace("run_started", "", start)["contract"]
        if not start.get("judged_again"):
            self.judge.other = []  # the run was measured under its own terms
        emulated = self.judge.contract.rehearsal and "note" not in start["cluster"]
        if emulated and not start.get("rehearsal"):
            text = f"the run is not marked as a rehearsal, but {CONTRACT} declares one"
            self.differences.append(text)
        if _without_texts(facts) != _without_texts(start["contract"]):
            self.differences.append(f"the contract in the run's events differs from {CONTRACT}")

    def _compare(self, kind: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if kind == "run_owes":
            self.says_owed = True
            same, text = old == new, "the run lists other tests than its contract requires"
        elif kind == "measurement":
            same = all(old.get(key) == new.get(key) for key in ("value", "judged", "note"))
            same = same and _bounds(old.get("limit")) == _bounds(new.get("limit"))
            text = _difference(old, new)
        elif kind == "control":
            same = old.get("caught") == new.get("caught") and _all_bounds(old) == _all_bounds(new)
            text = (
                f"planted fault {old.get('name')!r:.40}: the recorded result does not follow from "
                f"the recorded values and {CONTRACT}"
            )
        else:
            return
        if not same and redact(json_value(new)) != old:
            self.differences.append(text)

    def result(self) -> tuple[list[str], list[str]]:
        """Return (problems, doubts)."""
        if self.judge and not self.says_owed:
            self.differences.append("no event lists the tests that the run must record")
        if not self.differences:
            return [], []
        if same_version(self.wrote) and not self.judged_again:
            return self.differences[:5], []
        more = f", and {len(self.differences) - 1} more" if len(self.differences) > 1 else ""
        doubt = f"{self.differences[0]}{more}"
        if not self.judged_again:  # otherwise the run that was judged again says it
            build = f"another build of seatrial ({describe_version(self.wrote)}) wrote this run"
            doubt = f"{build}. By the rules of the build in use here, {doubt}"
        return [], [doubt]


def read_summary(run: Path) -> AcceptanceSummary:
    """Read a run folder and verify it, its limits included.  Raises UnreadableRun."""
    return load_summary(run, LimitCheck(run))


def read_whole(run: Path) -> AcceptanceSummary:
    """Read a run folder and verify all of it, also its renderings.  Raises UnreadableRun."""
    summary = read_summary(run)
    # All renderings of a folder that does not verify differ: they would report that.
    problems = [] if summary.integrity.problems else check_renderings(run, summary)[0]
    return acceptance.with_problems(summary, problems) if problems else summary


def read_verified(run: Path) -> RunRecord:
    """Read the record of a run folder.  Raises UnreadableRun, also where it does not verify."""
    return _read_sound(run).record


def _read_sound(run: Path) -> AcceptanceSummary:
    summary = read_summary(run)
    if problems := summary.integrity.problems:
        raise UnreadableRun(f"{run} does not verify: {problems[0]}")
    return summary


def check_baseline(path: Path, agreed: Contract | None) -> None:
    """Check a run, or a folder of runs, before it is compared with.  Raises UnreadableRun."""
    if is_run(path):
        record = read_verified(path)
        if agreed and record.contract.name != agreed.name:
            raise UnreadableRun(
                f"--baseline {path}: a run by contract {record.contract.name}. Expected: a run by "
                f"{agreed.name}, because other clusters and other terms cannot be compared"
            )
    elif not path.is_dir():
        raise UnreadableRun(f"{path}: expected a run or a folder of runs, found none")


def read_paths(path: Path, agreed: Contract | None) -> RunRecord:
    """Read the run whose meetings of nodes FABRIC carries on.  Raises UnreadableRun if none can."""
    record, doubts = (summary := _read_sound(path)).record, summary.integrity.doubts
    verdict = record.verdict("FABRIC")
    series = {name for one in record.results_of("FABRIC") for name in one.series}
    reasons = {
        "is not of this contract": not agreed or agreed.sha256 != record.contract.sha256,
        "cannot be verified": bool(doubts or record.unverified),
        "has a FABRIC that failed or is not complete": verdict.rank > Verdict.MARGINAL.rank,
        "found a slow pair of nodes, or left none to test": "paths" not in series,
    }
    for reason in (text for text, holds in reasons.items() if holds):
        raise UnreadableRun(f"--paths-from {path}: the run {reason}: nothing can be carried on")
    return record


def _without_texts(facts: dict[str, Any]) -> dict[str, Any]:
    facts = redact(json_value(facts))
    criteria = [{k: v for k, v in one.items() if k not in TEXTS} for one in facts["criteria"]]
    # Keys without a value: a record of an earlier version may lack them.
    return {k: v for k, v in {**facts, "criteria": criteria}.items() if v is not None}


def _bounds(limit: dict[str, Any] | None) -> list[Any]:
    return [limit.get(key) for key in BOUNDS] if limit else []


def _all_bounds(control: dict[str, Any]) -> list[list[Any]]:
    return [_bounds(one.get("limit")) for one in control.get("observed", [])]


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Describe how a measurement differs from what the contract gives.

    Example: `busbw on cluster was held to >= 100 GB/s, contract.toml gives >= 340 GB/s`.
    """
    what = f"{old.get('name')} on {old.get('subject')}"
    if _bounds(old.get("limit")) == _bounds(new.get("limit")):
        return f"{what} has a different value or note when it is judged again"
    limits = (old["limit"], new["limit"])
    before, now = (Limit(**limit) if limit else "no limit" for limit in limits)
    return f"{what} was judged by {before}, but {CONTRACT} has {now}"


def rejudge_run(run: Path, contract: Contract) -> Path:
    """Write `<run>-by-<contract>` next to `run` and return it; existing folders stay unchanged.

    Limits that came from the probe's own set-up (such as a save interval) are kept: no contract
    gives them.  Raises UnreadableRun, also where `run` does not verify, because the new folder
    would.
    """
    before = _read_sound(run)
    run, record = run.resolve(), before.record  # "." has no name
    store = Store(make_free_folder(run.with_name(f"{run.name}-by-{contract.name}")))
    _copy_evidence(run, record, store.path)
    doubts = [*record.unverified, *before.integrity.doubts]
    more = {"unverified": doubts, "judged_again": record.id, "clock_steps": record.clock_steps}
    judge = NewJudge(contract, store.path.name)
    for event in EventReader(run):
        kind, probe = event["event"], event.get("probe", "")
        data = judge.replace(kind, probe, dict(event["data"]))
        if kind == "run_started":
            store.start(contract.text, **{**data, **more})
        else:
            store.event(kind, probe, **data)
    if judge.finished and not (run / SUMS).is_file():  # its end was never written
        store.event("run_problem", **acceptance.NO_SUMS.model_dump())
    store.save()
    write_all(store.path, render_all(store.path, summarize_acceptance(*read_run(store.path))))
    store.close()
    return store.path


def _copy_evidence(run: Path, record: RunRecord, target: Path) -> None:
    """Copy the files that the record names, unchanged."""
    for entry in (entry for result in record.results for entry in result.evidence):
        with open_regular(run / entry.path) as old:
            write_new(target / entry.path, old.read())
