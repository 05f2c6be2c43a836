"""Reads a record.json without its run folder.

A record alone has no chain of events, no checksums and no contract. So nothing shows that its
values and limits are those of a run, and an edit leaves no trace. Two rules follow.
Its verdicts are computed again from its values and limits, never read from the file. And it can
fail, but it is never accepted: its best exit code is 20 (see `ALONE`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reports.record import RunRecord
from reports.run_folder.event_log import EVENT_LISTS, FILE, MAX_LOG, parse_json
from reports.run_folder.files import UnreadableRun, open_regular
from reports.run_folder.fold import fold_events

ALONE = "it is a record without its run folder, so its values and limits may have been changed"
RUN_KEYS = {"criterion", "claim", "reproduce"}  # of a result, known when its probe starts


def read_record(path: Path) -> RunRecord:
    """Read a record.json. Raises UnreadableRun.

    A file that lies in a run folder is refused: its folder can be verified, so it must be.
    """
    folder = path.absolute().parent
    if (folder / FILE).exists() or (folder.parent / FILE).exists():
        raise UnreadableRun(f"{path} lies in a run folder: give the folder, which can be verified")
    with open_regular(path) as file:
        text = file.read(MAX_LOG + 1)
    if len(text) > MAX_LOG:
        raise UnreadableRun(f"{path}: expected at most {MAX_LOG >> 20} MiB, found more")
    try:
        record = parse_json(text)
    except ValueError as error:
        raise UnreadableRun(
            f"{path}: expected the record of a run, found no JSON: {error}"
        ) from None
    results = record.get("results") if isinstance(record, dict) else None
    if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
        raise UnreadableRun(f"{path}: expected the record of a run, found other JSON")
    return fold_events(_events(record))


def _events(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield events that fold into the record, so that it is checked as a run folder is."""
    start = {key: value for key, value in record.items() if key != "results"}
    yield {"event": "run_started", "data": start}
    for result in record["results"]:
        rest = dict(result)
        about = {"probe": rest.pop("probe", "")}
        yield {
            "event": "probe_started",
            **about,
            "data": {k: rest.pop(k) for k in RUN_KEYS & rest.keys()},
        }
        for kind, key in EVENT_LISTS.items():
            for entry in rest.pop(key, []):
                yield {"event": kind, **about, "data": entry}
        for name, values in rest.pop("series", {}).items():
            yield {"event": "series", **about, "data": {"name": name, "values": values}}
        yield {"event": "probe_finished", **about, "data": rest}
