"""Verifies that a run which came back is whole, and is the run that was submitted.

Needs the standard library alone.  The head belongs to the party under test: its word is not enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.submit.follow import SubmitError
from probes.submit.package import ACCEPTED, parse_toml, read_contract, recorded_code
from probes.submit.recount import Recount, table
from reports.run_folder import event_log
from reports.run_folder.event_log import CONTRACT, RECORD, SUMS, EventReader, UnreadableRun
from reports.run_folder.times import seconds_between, utc_time
from reports.sanitize import one_line

NEEDED = (SUMS, RECORD, "metrics.prom")
FACTS = ("run_started", "run_owes", "run_finished")  # events that are compared
CLOCKS_S = 3600.0  # by which the head's clock may be ahead of this machine's
AGREED = "if a rehearsal was agreed, give the --contract of the rehearsal, or --rehearsal"
MAX_SHOWN = 5  # differences that are printed


@dataclass(frozen=True)
class Submitted:
    """What a run must say of itself; what is None was not asked for, and is not compared.

    `id` is that of the submission, `contract` the text that was sent.  A run may be a `rehearsal`
    if that was agreed.
    """

    id: str
    nonce: str | None = None
    contract: bytes | None = None
    tier: str | None = None
    nodes: int | None = None
    rehearsal: bool = True


def what_was_asked(options: Mapping[str, str], id: str, rehearsal: bool | None) -> Submitted:
    """Return what the options of a submission ask for.  Raises SubmitError.

    Unless `rehearsal` says it, a rehearsal is agreed where the contract's accelerators are
    emulated.
    """
    content = read_contract(options["contract"]) if "contract" in options else None
    facts = parse_toml(content) if content else {}
    if facts.get("draft"):
        raise SubmitError(f"{options['contract']} is a draft: no run takes it")
    is_emulated = table(facts, "cluster").get("accelerators") == "emulated"
    nodes = options.get("nodes", "")
    count = int(nodes) if nodes.isdecimal() else None
    agreed = is_emulated if rehearsal is None else rehearsal
    return Submitted(id, options.get("nonce"), content, options.get("tier"), count, agreed)


def find_differences(run: Path, asked: Submitted, code: int) -> list[str]:
    """Return what is wrong with a run folder that ended with this exit code; [] if nothing is."""
    facts, named, recount = {}, [], Recount()
    try:
        files, log = event_log.list_files(run), EventReader(run)
        for event in log:
            recount.see(event)
            if event["event"] in FACTS:
                facts[event["event"]] = event["data"]
            if event["event"] == "evidence":
                named.append((event["data"].get("path"), event["data"].get("sha256")))
        found = [
            *(f"{name} {event_log.MISSING}" for name in NEEDED if name not in files),
            *log.problems,
            *event_log.check_sums(run, files),
            *event_log.check_head(run, log.head),
        ]
        sums = event_log.read_sums(run) if SUMS in files else {}
    except UnreadableRun as error:
        return [one_line(str(error))]
    if not found and isinstance(sums, dict):  # they are those of the files
        found = [*compare_sums(sums, named, asked)]
    found += compare_facts(facts, asked, accepted=code == ACCEPTED)
    if code == ACCEPTED and asked.contract is not None and not found:
        found += recount.reasons(parse_toml(asked.contract))
    found += filter(None, [describe_code(run, code)])
    return [one_line(text) for text in found]


def describe_code(run: Path, code: int) -> str:
    """Return how the exit code in the run folder differs from that of Ray's job; "" if equal."""
    if (own := recorded_code(run)) == code:
        return ""
    return f"exit code in the run folder: {show(own)}. Expected: {code} (that of Ray's job)"


def compare_sums(
    sums: Mapping[str, str], named: Sequence[tuple[Any, Any]], asked: Submitted
) -> Iterator[str]:
    """Yield a sentence for each file that is not the one that an event names, or that was sent."""
    if asked.contract is not None and sums.get(CONTRACT) != event_log.hash_line(asked.contract):
        yield f"{CONTRACT} is not the contract that was submitted"
    seen: set[str] = set()
    for path, sha256 in ((show(path), sha256) for path, sha256 in named):
        if path in seen:
            yield f"two events name {path:.80} as evidence, and only one may"
        elif not path.startswith("evidence/") or sums.get(path) != sha256:
            yield f"{path:.80} is not the file that the run wrote"
        seen.add(path)
    for path in sums:
        if path.startswith("evidence/") and path not in seen:
            yield f"{path:.80} is in evidence/, but no event in events.jsonl names it"


def compare_facts(
    facts: Mapping[str, Mapping[str, Any]], asked: Submitted, *, accepted: bool
) -> Iterator[str]:
    """Yield a sentence for each fact of a run that is not as it was asked for.

    No run before the submission can have its id, whatever the head's clock says.
    """
    start, owes = facts.get("run_started", {}), facts.get("run_owes", {})
    contract, cluster = table(start, "contract"), table(start, "cluster")
    sent = None if asked.contract is None else event_log.hash_line(asked.contract)
    pairs = [
        ("submission", start.get("submission") or start.get("nonce"), asked.id),
        ("nonce", start.get("nonce"), asked.nonce),
        ("sha256 of the contract", contract.get("sha256"), sent),
        ("tier", start.get("tier"), asked.tier),
    ]
    for name, found, expected in pairs:
        if expected is not None and found != expected:
            yield f"{name}: {show(found)}. Expected: {show(expected)} (as submitted)"
    if (ahead := seconds_between(utc_time(), start.get("started"))) is None:
        yield f"start time: {show(start.get('started'))}. Expected: a time"
    elif ahead > CLOCKS_S:
        hours = f"{ahead / 3600:.1f} h from now"
        yield f"start of the run: {hours}. Set the clock of the head node, or of this machine"
    if not accepted:
        return
    if sent is None:
        yield "the run was accepted, but no contract was submitted"
    nodes = cluster.get("nodes")
    count = len(nodes) if isinstance(nodes, list) else 0
    least = asked.nodes or count
    most = max(least, table(parse_toml(asked.contract or b""), "cluster").get("nodes_at_most", 0))
    if not least <= count <= most:
        allowed = f"{least} to {most}" if most > least else least
        yield f"nodes of the run: {count}. Expected: {allowed} (--nodes)"
    if start.get("rehearsal") and not asked.rehearsal:
        yield f"the run is a rehearsal: {start['rehearsal']}. Expected: no rehearsal ({AGREED})"
    because = "the job's exit code says that the run is accepted"
    if owes.get("partial"):
        yield f"the run is PARTIAL: {owes['partial']}"
    if not owes:
        listed = "list of probes in the run's event log"
        yield f"{listed}: missing. Expected: all that must run ({because})"
    if (state := facts.get("run_finished", {}).get("state")) != "finished":
        yield f"last state in the run's event log: {show(state)}. Expected: finished ({because})"


def show(value: object) -> str:
    """Write a value of a run's log into a sentence; a missing one has a word."""
    return "missing" if value is None else f"{value!s:.80}" or "empty"
