"""Reads on each node what is mounted at the shared folder, and judges whether it is still there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.folder_room import try_writing
from probes.findings import finding, join_names

MOUNTS = "/proc/self/mountinfo"
OTHER_FOLDER = "/proc"  # another file system than any shared one, on every node
Mount = Mapping[str, Any]


def read_mount(folder: str, mounts: str = MOUNTS) -> dict[str, Any]:
    """Read {"system", "mount", "error"} of a folder: what is mounted, and why it is not writable.

    `system` is the kind of file system with its source, and the path in it.  `mount` is the mount's
    id and device.
    """
    error = try_writing(folder)  # first, for an automounter mounts what is used
    text = Path(mounts).read_text(errors="replace")
    return {**find_mount(text, folder), "error": error}


def find_mount(text: str, folder: str) -> dict[str, str]:
    """Find the mount of a folder in the text of mountinfo; {"system": ""} if there is none."""
    real = Path(folder).resolve()
    found, longest = {"system": "", "mount": ""}, -1
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 2:
            continue
        point = Path(fields[4].replace(r"\040", " "))
        deeper = len(point.parts) >= longest  # of two at one point, the later mount is seen
        if deeper and (point == real or point in real.parents):
            system = f"{kind[0]} {kind[1]} (its {fields[3]}) at {point}"
            found, longest = (
                {"system": system, "mount": f"{fields[0]} {fields[2]}"},
                len(point.parts),
            )
    return found


def judge_mounts(
    cluster: Cluster,
    started: Sequence[str],
    before: Mapping[str, Mount],
    folder: str,
    measure: Recorder,
) -> None:
    """Judge that each node still has the folder that it had, and can write there.

    `started` are the ids of the nodes that answered when the run began.
    """
    names = {node["id"]: node["name"] for node in cluster.nodes if node["id"] in started}
    now = cluster.on_each_node(read_mount, each=dict.fromkeys(names, folder)) if names else {}
    judge_lost(before, now, names, folder, measure)


def judge_lost(
    before: Mapping[str, Mount],
    now: Mapping[str, Mount],
    names: Mapping[str, str],
    folder: str,
    measure: Recorder,
) -> None:
    """Judge what these nodes have in place of the folder's file system of the start.

    Nodes that left the cluster are judged elsewhere.  A file system that was mounted again is the
    same: automounters do that.
    """
    known = [id for id in names if id in now and before.get(id, {}).get("system")]
    lost = {names[id]: text for id in known if (text := describe_loss(before[id], now[id]))}
    unknown = [names[id] for id in names if id not in known]
    note = f"{join_names(unknown)}: no answer, or what was mounted at the start is not known"
    is_known = bool(known) and not unknown
    measure(
        "storage_lost",
        len(lost) if lost or is_known else None,
        on=folder,
        note="" if is_known else note if unknown else "no node of the start is left",
    )
    for name, text in lost.items():
        statement, known_names = f"{folder} on {name}: {text}", {"folder": folder}
        measure.explain(finding("HOST-STORAGE-LOST", statement, [name], names=known_names))
    again = [names[id] for id in known if before[id]["mount"] != now[id]["mount"]]
    if again and not lost:
        measure.note("mounted_again", join_names(again), on=folder)


def describe_loss(before: Mount, now: Mount) -> str:
    """Describe what happened to the folder's mount on a node; "" for nothing."""
    if now["system"] != before["system"]:
        return f"at the start it was {before['system']}, now it is {now['system'] or 'nothing'}"
    if now["error"] and not before["error"]:
        return f"no file can be written there any more: {now['error']}"
    return ""


def control_mount(
    cluster: Cluster, before: Mapping[str, Mount], folder: str, measure: Recorder
) -> None:
    """Check that a node is detected that has another file system than at the start."""
    names = {node["id"]: node["name"] for node in cluster.nodes if node["id"] in before}
    fault = f"a node reads the mount of {OTHER_FOLDER} in place of {folder}"
    if not names:
        measure.control("lost mount", fault, None, saw="no mount was read at the start")
        return
    victim = list(names)[-1]
    fault = f"{names[victim]} reads the mount of {OTHER_FOLDER} in place of {folder}"
    now = cluster.on_each_node(read_mount, each={victim: OTHER_FOLDER})
    if victim not in now:
        measure.control("lost mount", fault, None, saw=f"{names[victim]} does not answer")
        return
    trial = measure.trial()
    judge_lost(before, now, {victim: names[victim]}, folder, trial)
    measure.control("lost mount", fault, trial)
