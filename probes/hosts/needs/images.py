"""Judges that all nodes run the same image: operating system and Python packages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.image import list_packages
from probes.findings import finding, join_names

Facts = Mapping[str, Any]
SHOWN = 4  # packages that differ, in a sentence
MOST_ASKED = 4  # kinds of other images whose packages are compared one by one


def judge_images(cluster: Cluster, facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge how many nodes have another image than most; on a tie all nodes count."""
    images = {fact["name"]: fact.get("image") or {} for fact in facts}
    known = {name: image for name, image in images.items() if image.get("digest")}
    odd = find_odd_images(known)
    unread = [name for name in images if name not in known]
    count = None if (unread or not known) and not odd else len(odd)
    note = f"packages were not read on {join_names(unread)}" if unread else "no node answers"
    measure("image_differences", count, note=note)
    if odd:
        lists = _ask_packages(cluster, facts, odd, known)
        _explain_images(odd, known, lists, measure)


def find_odd_images(images: Mapping[str, Facts]) -> list[str]:
    """Find the nodes whose image is not the most common one; all of them if two are as common."""
    kinds = {name: (image["os"], image["digest"]) for name, image in images.items()}
    common = Counter(kinds.values()).most_common(2)
    if len(common) < 2:
        return []
    is_tied = common[0][1] == common[1][1]
    return [name for name, kind in kinds.items() if is_tied or kind != common[0][0]]


def _ask_packages(
    cluster: Cluster, facts: Sequence[Facts], odd: Sequence[str], images: Mapping[str, Facts]
) -> dict[str, list[str]]:
    """Ask one node of the usual image, and one of each of some others, for their packages."""
    first: dict[str, str] = {}
    for name in sorted(images, key=lambda name: name in odd):  # the usual image first
        first.setdefault(images[name]["digest"], name)
    asked = set(list(first.values())[: MOST_ASKED + 1])
    names = {fact["node"]: fact["name"] for fact in facts}
    nodes = [node for node in cluster.nodes if names.get(node["id"]) in asked]
    answers = cluster.on_each_node(list_packages, nodes=nodes)
    return {images[names[id]]["digest"]: packages for id, packages in answers.items()}


def _explain_images(
    odd: Sequence[str],
    images: Mapping[str, Facts],
    lists: Mapping[str, list[str]],
    measure: Recorder,
) -> None:
    usual_name = next((name for name in images if name not in odd), odd[0])
    usual = images[usual_name]
    groups: dict[str, list[str]] = defaultdict(list)
    for name in odd:
        if text := describe_image(images[name], usual, lists):
            groups[text].append(name)
    for text, names in groups.items():
        statement = f"{join_names(names)}: {text}. Expected: as on {usual_name}"
        measure.explain(finding("HOST-IMAGE", statement, names))


def describe_image(image: Facts, usual: Facts, lists: Mapping[str, list[str]]) -> str:
    """Describe how an image differs from the usual one; "" for not at all."""
    parts = []
    if image["os"] != usual["os"]:
        parts.append(f"{image['os'] or 'no name'} in place of {usual['os'] or 'no name'}")
    if image["digest"] != usual["digest"]:
        here, there = lists.get(image["digest"]), lists.get(usual["digest"])
        if here is None or there is None:
            parts.append(f"other Python packages ({image['packages']})")
        else:
            parts.extend(_describe_packages(here, there))
    return "; ".join(parts)


def _describe_packages(here: Sequence[str], there: Sequence[str]) -> list[str]:
    more, less = sorted(set(here) - set(there)), sorted(set(there) - set(here))
    texts = [f"Python has {join_names(more, SHOWN)}"] if more else []
    return texts + ([f"Python lacks {join_names(less, SHOWN)}"] if less else [])
