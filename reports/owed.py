"""What a run owes: fixed before any probe is selected, and held against what there is.

A probe that has no result, and a measure or control that a result lacks, become UNPROVEN entries of
the record: every rendering then shows them, by whatever means they went missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

NOT_RUN = "not run"  # state of a result that stands for a probe without any


def complete_results(
    results: list[dict[str, Any]], owed: Iterable[dict[str, Any]], partial: str
) -> list[dict[str, Any]]:
    """Return the results with an entry for all that is owed and missing.

    `results` and `owed` are ProbeResults and OwedProbes as JSON; `partial` is why not all was asked
    for.  Measures and controls are owed by results that came to their end: of others the state
    tells already that nothing is proven.
    """
    by_probe = {entry["probe"]: entry for entry in owed}
    complete = [
        {**result, **_missing_entries(result, by_probe[result["probe"]])}
        if result["probe"] in by_probe and result.get("state") == "finished"
        else result
        for result in results
    ]
    ran = {result["probe"] for result in results}
    return complete + [_not_run(entry, partial) for id, entry in by_probe.items() if id not in ran]


def _missing_entries(result: dict[str, Any], owed: dict[str, Any]) -> dict[str, Any]:
    """Return the lists of a result with an entry for each measure and control it lacks."""
    measurements, controls = result.get("measurements", []), result.get("controls", [])
    note = "this probe owes it, and never wrote it"
    missing = _not_in(owed.get("measures", []), measurements)
    no_values = [{"name": name, "value": None, "note": note} for name in missing]
    absent = _not_in(owed.get("controls", []), controls)
    fault = "{} (this probe owes it, and never ran it)"
    not_caught = [{"name": name, "fault": fault.format(name)} for name in absent]
    return {"measurements": measurements + no_values, "controls": controls + not_caught}


def _not_in(names: list[str], entries: list[dict[str, Any]]) -> Iterator[str]:
    written = {entry.get("name") for entry in entries if entry.get("judged", True)}
    return (name for name in names if name not in written)


def _not_run(entry: dict[str, Any], partial: str) -> dict[str, Any]:
    """Return the result of a probe that was owed and has none."""
    reason = f"tier {entry.get('tier', '')} owes this probe, and it has no result"
    return {
        "probe": entry["probe"],
        "criterion": entry["criterion"],
        "state": NOT_RUN,
        "error": f"{reason}; {partial}" if partial else reason,
    }
