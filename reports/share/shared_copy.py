"""Writes the shared copy of a run: the record with aliases, and its renderings."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from reports.acceptance import AcceptanceSummary, summarize_acceptance
from reports.exports import SCHEMA_FILE, render_all, write_all
from reports.measurement import Measurement, RecordModel, Verdict
from reports.record import RunRecord
from reports.redact import redact
from reports.run_folder.event_log import UnreadableRun
from reports.run_folder.store import record_text
from reports.sanitize import clean, one_line
from reports.share.aliases import Aliases, shorten
from reports.share.collect import JOB_ID, NAME_KEYS, SERIAL, collect_names

# Fields that stay: words of the suite or the contract that decide or are looked up. All other text
# of the record may contain a name, also the text of fields that are added later.
KEPT = {
    "RunRecord": {"schema_version", "started", "finished", "state", "tier", "only", "head"},
    "ContractFacts": {"sha256", "tier", "baseline"},
    "BaselineValue": {"criterion", "probe", "measure", "unit"},
    "Criterion": {"id"},
    "Waiver": {"id", "criterion"},
    "OwedProbe": {"probe", "criterion", "tier", "measures", "controls"},
    "RunProblem": {"kind"},
    "ProbeResult": {"probe", "criterion", "state"},
    "Measurement": {"name", "unit"},
    "Limit": {"unit"},
    "Control": {"name"},
    "Finding": {"code"},
    "Evidence": {"kind", "sha256"},
}
PLACES = {"subject", "suspects"}  # fields of models that name a place
VERSIONS = {"versions", "software"}  # keys under which 1.2.3.4 is not an address
OTHERWISE = " (written differently)"
Model = TypeVar("Model", bound=RecordModel)


class ShareRefused(UnreadableRun):
    """Raised if the copy cannot be written; one sentence with the reason."""


def write_shared(run: Path, summary: AcceptanceSummary, target: Path | None = None) -> list[Path]:
    """Write the copy of a run into a new folder, by default `<run>-shared`; return its files.

    `summary` is the summary of the run. The copy has no evidence. Raises ShareRefused if the run
    does not verify, or the folder exists already or cannot be written, and RuntimeError if aliases
    changed the decision.
    """
    if problems := summary.integrity.problems:
        raise ShareRefused(f"{run} does not verify: {problems[0]}. No copy was written")
    record, aliases = share_record(summary.record)
    doubts = [aliases.text(clean(doubt)) for doubt in summary.integrity.doubts]
    shared = summarize_acceptance(record, dataclasses.replace(summary.integrity, doubts=doubts))
    # A difference is an error of the suite: names must not decide anything.
    if _decisive_facts(shared) != _decisive_facts(summary):
        raise RuntimeError("the copy differs in a verdict or count: nothing was written")
    texts = {"record.json": record_text(record), **render_all(None, shared)}
    del texts[SCHEMA_FILE]  # a copy has only what is of the run
    run = run.resolve()  # "." has no name
    return _write_folder(target or run.with_name(f"{run.name}-shared"), texts)


def _write_folder(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write files into a new folder and return their paths. Raises ShareRefused."""
    try:
        folder.mkdir(mode=0o700)  # the same mode as the run folder
        write_all(folder, texts)
    except FileExistsError:
        raise ShareRefused(f"{folder} already exists: move it, or name another folder") from None
    except OSError as error:
        raise ShareRefused(f"{folder} cannot be written: {error.strerror}") from None
    return [folder / name for name in texts]


def _decisive_facts(summary: AcceptanceSummary) -> list[Any]:
    """List what aliases must not change: decision, counts, verdicts, values, codes."""
    rows = [(row.criterion.id, row.criterion.required, row.verdict) for row in summary.rows]
    results = []
    for one in summary.record.results:
        measured = [(m.name, m.unit, m.verdict, _number(m.value)) for m in one.measurements]
        codes, caught = [f.code for f in one.findings], [control.caught for control in one.controls]
        results.append((one.state, one.verdict, measured, codes, caught, len(one.evidence)))
    return [summary.headline, summary.decision, summary.counts, rows, results]


def _number(value: object) -> object:
    return "text" if isinstance(value, str) else value


def share_record(record: RunRecord) -> tuple[RunRecord, Aliases]:
    """Replace every name in a record by its alias; return it and the table, which is not shared."""
    for name in ("nonce", "operator"):  # chosen by people: any text, or a name
        if text := getattr(record, name):
            command = _hide_word(record.command, text, f"<{name}>")
            record = record.model_copy(update={name: f"<{name}>", "command": command})
    texts = list(_texts(record))
    own = {word for kept, text in texts if kept for word in re.findall("[a-z]+", text.lower())}
    aliases = collect_names(record, (clean(shorten(t)) for kept, t in texts if not kept), own)
    aliases.close()
    _share_model(record, aliases)  # finds the names that only their shape reveals
    aliases.close()
    return _share_model(record, aliases), aliases


def _hide_word(command: str, text: str, alias: str) -> str:
    """Replace a text in a command, also where the shell's quotes or spaces change its form."""
    try:
        words = shlex.split(command)
    except ValueError:  # a record that nobody wrote as a command
        return command.replace(text, alias)
    hidden = (one_line(word) if text in one_line(word) else word for word in words)
    return shlex.join(word.replace(text, alias) for word in hidden)


def _texts(value: Any, is_kept: bool = False) -> Iterator[tuple[bool, str]]:
    """Yield (is kept, string) for each string of a part of the record, keys of facts included."""
    if isinstance(value, RecordModel):
        for field, item in value:
            yield from _texts(item, field in KEPT.get(type(value).__name__, ()))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (*_texts(str(key), is_kept), *_texts(item, is_kept))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, is_kept)
    elif isinstance(value, str) and not isinstance(value, Enum):
        yield is_kept and not value.startswith("/"), value


def _share_model(model: Model, aliases: Aliases) -> Model:
    """Return a part of the record with aliases in all fields but KEPT."""
    kept = KEPT.get(type(model).__name__, set())
    fields = {
        name: _share_id(value, aliases)
        if name in kept
        else _share_value(value, aliases, name, name in PLACES)
        for name, value in model
    }
    shared = type(model)(**fields)
    # `GPU-01` and `gpu-01` have one alias: a FAIL stays one.
    failed = isinstance(model, Measurement) and model.verdict is Verdict.FAIL
    if failed and isinstance(shared, Measurement) and shared.verdict is not Verdict.FAIL:
        return shared.model_copy(update={"value": f"{shared.value}{OTHERWISE}"})
    return shared


def _share_id(value: Any, aliases: Aliases) -> Any:
    """Return an id unchanged, but with an alias for the absolute path of a foreign probe."""
    if isinstance(value, str) and value.startswith("/"):
        file, separator, name = value.partition("::")
        return aliases.of("path", file) + separator + name
    return value


def _share_value(value: Any, aliases: Aliases, key: str, place: bool = False) -> Any:
    """Return a value with aliases; other numbers, dates and members of an enum are unchanged."""
    of_job = JOB_ID.search(key.lower())
    if str(value).isdecimal() and (of_job or SERIAL.search(key.lower())):
        return aliases.of("job" if of_job else "id", str(value))
    if isinstance(value, RecordModel):
        return _share_model(value, aliases)
    if isinstance(value, list):
        return [_share_value(item, aliases, key, place) for item in value]
    if isinstance(value, dict):
        return _share_facts(value, aliases, key)
    if isinstance(value, str) and not isinstance(value, Enum):
        return _share_text(value, aliases, key, place)
    return value


def _share_facts(facts: dict[str, Any], aliases: Aliases, key: str) -> dict[str, Any]:
    """Return facts with aliases in keys and values; different keys stay different."""
    shared: dict[str, Any] = {}
    for name, item in facts.items():
        alias = _share_text(name, aliases, "", place=key in ("nodes", "capacity"))
        while alias in shared:
            alias += "'"
        inner = key if key in VERSIONS else name
        shared[alias] = _share_value(item, aliases, inner, name.lower() in NAME_KEYS)
    return shared


def _share_text(text: str, aliases: Aliases, key: str, place: bool) -> str:
    """Return one string without secrets, invisible characters and names."""
    cleaned = clean(redact(shorten(text), key))
    if len(cleaned.strip()) < min(len(text), 3):  # a limit's `because` needs three characters
        return "(no text)"  # never "": that would mean that there is no text
    return aliases.subject(cleaned) if place else aliases.text(cleaned, versions=key in VERSIONS)
