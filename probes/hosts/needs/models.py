"""Judges that the files of the contract's models are on each node, and the same there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names

MISSING = ""  # in place of a file's size and digest
SHOWN = 3  # files in a sentence
# node's name -> path -> {"files", "error", "unknown"} of `read_model_files`
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]


def judge_models(
    paths: Sequence[str], answers: Answers, silent: Sequence[str], measure: Recorder
) -> None:
    """Judge how many files of each node are missing, or not as on most nodes.

    A path that is missing or unreadable counts as one file.  `silent` nodes prove nothing.
    """
    problems = {path: find_odd_files(path, answers) for path in paths}
    for node in answers:
        unknown = [answers[node][path]["unknown"] for path in paths]
        count = sum(len(problems[path].get(node, ())) for path in paths)
        note = join_names(filter(None, unknown))
        measure("model_differences", None if note and not count else count, on=node, note=note)
    for node in silent:
        measure("model_differences", None, on=node, note="the node does not answer")
    for path in paths:
        groups: dict[str, list[str]] = defaultdict(list)
        for node, texts in problems[path].items():
            groups[join_names(texts, SHOWN)].append(node)
        for text, nodes in groups.items():
            statement = f"{path} on {join_names(nodes)}: {text}. Expected: the same on every node"
            measure.explain(finding("HOST-MODEL-FILES", statement, nodes, names={"file": path}))


def find_odd_files(path: str, answers: Answers) -> dict[str, list[str]]:
    """Find what is wrong with this path, by node.

    If two versions of a file are as common, it is wrong on all nodes that have it.
    """
    found = {node: paths[path] for node, paths in answers.items()}
    odd: dict[str, list[str]] = defaultdict(list)
    for node, one in found.items():
        if one["error"]:
            odd[node].append(one["error"])
    complete = {n: one["files"] for n, one in found.items() if not one["error"] + one["unknown"]}
    for name in sorted({name for files in complete.values() for name in files}):
        versions = {node: files.get(name, MISSING) for node, files in complete.items()}
        usual = find_usual(versions.values())
        for node, version in versions.items():
            if version != usual:
                odd[node].append(_describe_file(name, version, usual))
    return dict(odd)


def find_usual(versions: Any) -> str | None:
    """Find the most common version; None for a tie.  A file that is there wins over MISSING."""
    counts = Counter(versions)
    most = max(counts.values())
    usual = [version for version, count in counts.items() if count == most]
    there = [version for version in usual if version != MISSING]
    return usual[0] if len(usual) == 1 else there[0] if len(there) == 1 else None


def _describe_file(name: str, version: str, usual: str | None) -> str:
    if version == MISSING:
        return f"{name} is missing"
    if usual is None:
        return f"{name} is not the same on all nodes"
    if usual == MISSING:
        return f"{name} is missing on most nodes"
    size, expected = version.split()[0], usual.split()[0]
    if size != expected:
        return f"{name} has {size} bytes in place of {expected}"
    return f"{name} has other content"
