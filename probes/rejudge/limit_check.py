"""Recomputes every limit of a run from the contract in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probes.acceptance.contract import ContractError, parse
from probes.rejudge.new_judge import NewJudge
from reports.acceptance import AcceptanceSummary, load_summary, with_problems
from reports.baseline.choice import is_run
from reports.exports import check_renderings
from reports.measurement import Limit
from reports.record import RunRecord
from reports.redact import redact
from reports.run_folder.files import UnreadableRun, open_regular
from reports.run_folder.store import CONTRACT, json_value
from reports.version import describe_version, same_version

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
            self.differences.append(f"a {kind} cannot be judged again: {error!r:.80}")

    def _begin(self, start: dict[str, Any]) -> None:
        """Read the contract.  Without an agreed one nothing is checked: the run accepts nothing."""
        told = start.get("versions") or {"seatrial": "of an unknown version"}
        self.wrote = {key: str(value) for key, value in told.items()}
        if not start["contract"]["agreed"]:
            return
        try:
            with open_regular(self.path) as file:
                contract = parse(file.read(MAX_CONTRACT), self._file_name(start))
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
            self.differences.append(
                f"the run is not marked as a rehearsal, but {CONTRACT} declares one"
            )
        if _without_texts(facts) != _without_texts(start["contract"]):
            self.differences.append(
                f"the record's facts of the contract are not those of {CONTRACT}"
            )

    @staticmethod
    def _file_name(start: dict[str, Any]) -> str:
        """Return the name of the contract's file: a contract without a name has that name."""
        return f"{start['contract']['name']}.toml"

    def _compare(self, kind: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if kind == "run_owes":
            self.says_owed = True
            same = old == new
            text = "the run does not owe what its contract asks for"
        elif kind == "measurement":
            rest = ("value", "judged", "note")
            same = all(old.get(key) == new.get(key) for key in rest)
            same = same and _bounds(old.get("limit")) == _bounds(new.get("limit"))
            text = _difference(old, new)
        elif kind == "control":
            same = old.get("caught") == new.get("caught")
            before, after = old.get("observed", []), new.get("observed", [])
            same = same and _all_bounds(before) == _all_bounds(after)
            text = f"control {old.get('name')!r:.40} was not caught by the limits of {CONTRACT}"
        else:
            return
        if not same and redact(json_value(new)) != old:
            self.differences.append(text)

    def result(self) -> tuple[list[str], list[str]]:
        """Return (problems, doubts)."""
        if self.judge and not self.says_owed:
            self.differences.append("no event says what the run owes")
        if not self.differences:
            return [], []
        if same_version(self.wrote) and not self.judged_again:
            return self.differences[:5], []
        more = f", and {len(self.differences) - 1} more" if len(self.differences) > 1 else ""
        wrote = f"seatrial {describe_version(self.wrote)} wrote it"
        return [], [f"{wrote}. This one reads it anew: {self.differences[0]}{more}"]


def read_summary(run: Path) -> AcceptanceSummary:
    """Read a run folder and verify it, its limits included.  Raises UnreadableRun."""
    return load_summary(run, LimitCheck(run))


def read_whole(run: Path) -> AcceptanceSummary:
    """Read a run folder and verify all of it, also its renderings.  Raises UnreadableRun."""
    summary = read_summary(run)
    # All renderings of a folder that does not verify differ: they would report that.
    problems = [] if summary.integrity.problems else check_renderings(run, summary)[0]
    return with_problems(summary, problems) if problems else summary


def read_verified(run: Path) -> RunRecord:
    """Read the record of a run folder.  Raises UnreadableRun, also where it does not verify."""
    summary = read_summary(run)
    if problems := summary.integrity.problems:
        raise UnreadableRun(f"{run} does not verify: {problems[0]}")
    return summary.record


def check_baseline(path: Path) -> None:
    """Check a run, or a folder of runs, before it is compared with.  Raises UnreadableRun."""
    if is_run(path):
        read_verified(path)
    elif not path.is_dir():
        raise UnreadableRun(f"{path}: expected a run or a folder of runs, found none")


def _without_texts(facts: dict[str, Any]) -> dict[str, Any]:
    facts = redact(json_value(facts))
    criteria = [{k: v for k, v in one.items() if k not in TEXTS} for one in facts["criteria"]]
    return {**facts, "criteria": criteria}


def _bounds(limit: dict[str, Any] | None) -> list[Any]:
    return [limit.get(key) for key in BOUNDS] if limit else []


def _all_bounds(observed: list[dict[str, Any]]) -> list[list[Any]]:
    return [_bounds(one.get("limit")) for one in observed]


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Describe how a measurement differs from what the contract gives.

    Example: `busbw on cluster was held to >= 100 GB/s, contract.toml gives >= 340 GB/s`.
    """
    what = f"{old.get('name')} on {old.get('subject')}"
    if _bounds(old.get("limit")) == _bounds(new.get("limit")):
        return f"{what} is not a value that is judged like this"
    before, now = (Limit(**limit) if limit else "nothing" for limit in (old["limit"], new["limit"]))
    return f"{what} was judged by {before}, {CONTRACT} gives {now}"
