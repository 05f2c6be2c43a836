"""Faults of what a node's image and disks hold: versions of packages, files of a model.

A fault is a pair of functions, as in `faults`.
"""

from __future__ import annotations

import sysconfig

from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.node import Node
from tests.lab.shell import LabError

PACKAGES = sysconfig.get_paths()["purelib"]
LAYER = "/tmp/layer"  # on the node's own tmpfs
MODEL = "/tmp/model"
FILE_BYTES = 3_000_000  # of each file of the model: several blocks are read of none


def _other_version(lab: Lab, name: str, package: str, version: str) -> str:
    """Rename the package's metadata in a layer over the node's packages."""
    node = lab.node(name)
    for part in ("upper", "work"):
        node.run("mkdir", "-p", f"{LAYER}/{part}")
    layers = f"lowerdir={PACKAGES},upperdir={LAYER}/upper,workdir={LAYER}/work"
    node.run("mount", "-t", "overlay", "overlay", "-o", layers, PACKAGES)
    folders = node.run("find", PACKAGES, "-maxdepth", "1", "-name", f"{package}-*.dist-info")
    if len(folders.split()) != 1:
        _usual_versions(lab, name, package, version)
        raise LabError(f"{package!r} is not the name of one package in {PACKAGES}")
    node.run("mv", folders.strip(), f"{PACKAGES}/{package}-{version}.dist-info")
    return f"{node.name}: {package} has the version {version}"


def _usual_versions(lab: Lab, name: str, _package: str, _version: str) -> str:
    node = lab.node(name)
    if node.pid:
        node.run("umount", "-l", PACKAGES)
        node.run("rm", "-rf", LAYER)
    return f"{node.name}: packages as on the other nodes"


def _model(lab: Lab, name: str, kind: str) -> str:
    if kind not in ("missing", "torn", "changed", "sound"):
        raise LabError(f"a model is missing, torn, changed or sound, found {kind!r}")
    for node in lab.nodes:
        _write_model(node)
    node = lab.node(name)
    if kind == "missing":
        node.run("rm", "-rf", MODEL)
    elif kind == "torn":
        node.run("truncate", "-s", str(FILE_BYTES // 2), f"{MODEL}/weights-2")
    elif kind == "changed":
        node.run("dd", "if=/dev/urandom", f"of={MODEL}/weights-1", "bs=64", "count=1",
                 "conv=notrunc", "status=none")  # fmt: skip
    return f"{node.name}: {MODEL} is {kind}"


def _write_model(node: Node) -> None:
    node.run("mkdir", "-p", MODEL)
    for file in ("weights-1", "weights-2"):
        node.run("truncate", "-s", str(FILE_BYTES), f"{MODEL}/{file}")


def _no_model(lab: Lab, _name: str, _kind: str) -> str:
    for node in lab.nodes:
        if node.pid:
            node.run("rm", "-rf", MODEL)
    return f"{MODEL} is gone from all nodes"


# name: (arguments, explanation, (break, heal)), as in `faults`
IMAGE_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "version": (
        ["node", "package", "version"],
        "NODE's Python has PACKAGE in another VERSION, by its metadata.",
        (_other_version, _usual_versions),
    ),
    "model": (
        ["node", "kind"],
        f"All nodes have a model in {MODEL}; NODE's is missing, torn, changed or sound.",
        (_model, _no_model),
    ),
}
