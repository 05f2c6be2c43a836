"""Judges whether nodes see each other's files, and the same ones, when they use them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names
from probes.hosts.network.ports import blame_nodes
from probes.hosts.storage.races import CREATED
from probes.hosts.storage.storage_round import Link
from reports.numbers import quantity
from reports.record import Finding

Answers = Mapping[Link, Mapping[str, Any] | None]
Names = Mapping[str, str]
SILENT = "{} did not answer"
ALONE = "fewer than two nodes share the folder"


def judge_exchange(answers: Answers, names: Names, folder: str, measure: Recorder) -> list[str]:
    """Judge that each node reads what others wrote, and how soon; return the nodes apart.

    A node apart does not see some file of the others, or they do not see its file.
    """
    known = {link: one for link, one in answers.items() if one is not None}
    failed = {link: str(one["problem"]) for link, one in known.items() if one["problem"]}
    silent = sorted({names[reader] for reader, writer in answers if (reader, writer) not in known})
    note = SILENT.format(join_names(silent)) if silent else ("" if answers else ALONE)
    unknown = not answers or bool(silent)
    measure("unseen_files", None if unknown and not failed else len(failed), on=folder, note=note)
    delays = [one["seconds"] for one in known.values() if one["seconds"] is not None]
    slowest = max(delays, default=None)
    is_late = measure.would_fail("seen_after", slowest)
    value = slowest if is_late or not (unknown or failed) else None
    why = note or ("some files were not seen" if failed else "")
    measure("seen_after", value, on=folder, note=why if value is None else "")
    blame = blame_nodes(list(known), list(failed))
    measure.explain(find_unseen(blame, failed, names, folder))
    if is_late:
        measure.explain(find_late(known, names, folder, measure))
    ends = {node for link in blame.pairs for node in link}
    return sorted({*blame.unreached, *blame.unreaching, *ends})


def find_unseen(blame: Any, failed: Mapping[Link, str], names: Names, folder: str) -> list[Finding]:
    """Explain the files that were not seen, by nodes where that is possible."""
    found = []
    both = set(blame.unreached) & set(blame.unreaching)
    for node in dict.fromkeys([*blame.unreaching, *blame.unreached]):
        name = names[node]
        if node in both:
            text = f"{name} does not see files of the others in {folder}, nor they its files"
        elif node in blame.unreaching:
            problem = next(text for link, text in failed.items() if link[0] == node)
            text = f"{name}: {problem} files of the other nodes in {folder}"
        else:
            text = f"Other nodes do not see the files of {name} in {folder}"
        found.append(finding("HOST-SHARED", text, [name], names={"folder": folder}))
    for reader, writer in blame.pairs:
        problem = failed[reader, writer]
        text = f"{names[reader]}: {problem} the file of {names[writer]} in {folder}"
        suspects, known = [names[reader], names[writer]], {"folder": folder, "peer": names[writer]}
        found.append(finding("HOST-SHARED", text, suspects, names=known))
    return found


def find_late(
    known: Mapping[Link, Mapping[str, Any]], names: Names, folder: str, measure: Recorder
) -> list[Finding]:
    """Explain the files that were seen too late, by nodes where that is possible."""
    late = {
        link: one["seconds"]
        for link, one in known.items()
        if measure.would_fail("seen_after", one["seconds"])
    }
    tried = [link for link, one in known.items() if one["seconds"] is not None]
    blame = blame_nodes(tried, list(late))
    nodes = list(dict.fromkeys([*blame.unreaching, *blame.unreached]))
    nodes = nodes or list(dict.fromkeys(node for link in blame.pairs for node in link))
    who = [names[node] for node in nodes]
    seconds = quantity(max(late.values()), "s")
    text = f"Files of other nodes are seen in {folder} only after {seconds}: {join_names(who)}"
    return [finding("HOST-STORAGE-LATE", text, who, names={"folder": folder})]


def judge_races(
    answers: Mapping[str, Mapping[str, Any]],
    among: Sequence[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge what nodes did with the same files at once.  `answers` are as in StorageRound.race."""
    judge_created(answers, among, names, folder, measure)
    judge_replaced(answers, among, names, folder, measure)
    judge_traces(answers, folder, measure)


def judge_created(
    answers: Mapping[str, Mapping[str, Any]],
    among: Sequence[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge that each file was created by exactly one node, with O_EXCL."""
    mine = {id: answers[id]["created"].get("mine") for id in among if id in answers}
    missing = [names[id] for id in among if mine.get(id) is None]
    owners: dict[int, list[str]] = {number: [] for number in range(CREATED)}
    for id, numbers in mine.items():
        for number in numbers or ():
            owners[number].append(id)
    wrong = [ids for ids in owners.values() if len(ids) > 1]
    unknown = bool(missing) or len(among) < 2
    wrong += [ids for ids in owners.values() if not ids and not unknown]
    note = _why_missing(answers, among, names, "created")
    measure("double_creations", None if unknown and not wrong else len(wrong), on=folder, note=note)
    if wrong:
        times = Counter(id for ids in wrong for id in ids)
        always = [id for id in times if times[id] == len(wrong)]
        suspects = [names[id] for id in (always if len(always) == 1 else times)]
        text = f"{len(wrong)} of {CREATED} files in {folder} were not created by exactly one node"
        text += f" with O_EXCL: {join_names(suspects)}" if suspects else " with O_EXCL"
        measure.explain(finding("HOST-STORAGE-EXCL", text, suspects, names={"folder": folder}))


def judge_replaced(
    answers: Mapping[str, Mapping[str, Any]],
    among: Sequence[str],
    names: Names,
    folder: str,
    measure: Recorder,
) -> None:
    """Judge that readers always found a complete version of a file that was replaced."""
    parts = {id: answers[id]["replaced"] for id in among if "replaced" in answers.get(id, {})}
    readers = {id: part for id, part in parts.items() if "reads" in part}
    gaps = {id: part["gaps"] for id, part in readers.items() if part["gaps"]}
    blind = [names[id] for id, part in readers.items() if not part["reads"]]
    note = _why_missing(answers, among, names, "replaced")
    if blind:
        note = f"{join_names(blind)} did not see the file"
    unknown = bool(note) or not readers
    total = sum(gaps.values())
    measure("rename_gaps", None if unknown and not total else total, on=folder, note=note)
    measure.note("stale_handles", sum(part["stale"] for part in readers.values()), "reads")
    if gaps:
        reads = sum(part["reads"] for part in readers.values())
        who = [names[id] for id in gaps]
        text = (
            f"While a file in {folder} was replaced by rename, {total} of {reads} reads found no "
            f"file or a part of one: {join_names(who)}"
        )
        measure.explain(finding("HOST-STORAGE-RENAME", text, who, names={"folder": folder}))


def _why_missing(
    answers: Mapping[str, Mapping[str, Any]], among: Sequence[str], names: Names, key: str
) -> str:
    """Describe why a part of the answers is missing; "" if none is."""
    if len(among) < 2:
        return ALONE
    silent = [names[id] for id in among if id not in answers]
    if silent:
        return SILENT.format(join_names(silent))
    errors = {
        names[id]: answers[id][key]["error"] for id in among if "error" in answers[id].get(key, {})
    }
    return join_names((f"{name}: {error}" for name, error in errors.items()), 3)


def judge_traces(answers: Mapping[str, Mapping[str, Any]], folder: str, measure: Recorder) -> None:
    """Judge, where that is agreed, that no appended line and no addition under a lock was lost.

    Many sound clusters do not promise it: NFS appends without atomicity, and locks of Lustre and
    NFS may hold on one node alone.
    """
    parts = [one for id, one in answers.items() if id]
    left = answers.get("", {})
    appended = [part.get("appended", {}) for part in parts if "appended" in part]
    locked = [part.get("locked", {}) for part in parts if "locked" in part]
    rows = (
        ("lost_lines", "lines", "lines", "lines", appended, "HOST-STORAGE-APPEND"),
        ("lost_updates", "updates", "times", "number", locked, "HOST-STORAGE-LOCK"),
    )
    for name, unit, own, trace, done, code in rows:
        errors = sorted({one["error"] for one in done if "error" in one})
        wanted = sum(one.get(own, 0) for one in done)
        known = len(done) > 1 and trace in left and wanted > 0 and not errors
        value = max(0, wanted - left[trace]) if known else None
        note = "" if known else join_names(errors, 3) or "the nodes did not do it"
        judge_if_agreed(measure, name, value, unit, on=folder, note=note)
        if value and measure.would_fail(name, value):
            text = f"{value} of {wanted} {unit} were lost in {folder}, of {len(done)} nodes at once"
            measure.explain(finding(code, text, names={"folder": folder}))


def judge_if_agreed(
    measure: Recorder, name: str, value: float | None, unit: str, *, on: str, note: str = ""
) -> None:
    """Judge a value if the contract has a limit for it; otherwise record that it informs."""
    if measure.contract.limit("HOSTS", name) is None:
        measure.note(name, value, unit, on=on, note=note)
    else:
        measure(name, value, on=on, note=note)
