"""Which nodes share a folder.  Nodes are stand-ins, each with its own view of real files."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from probes.cluster import shared_folder
from probes.cluster.shared_folder import FolderUnknown, find_blind_nodes, write_token

FOLDER = "/seatrial-test-folder"


class StandInNodes:
    """Nodes n0, n1 ...; node i sees `views[i]` at FOLDER, None: nothing is there."""

    def __init__(self, views: list[Path | None]) -> None:
        self.views = {str(i): view for i, view in enumerate(views)}
        self.nodes = [{"id": id, "name": f"n{id}"} for id in self.views]
        self.cleanup, self.kept, self.told = self, set[str](), list[str]()
        self.silent, self.read_only = set[str](), set[str]()
        self.interrupt = ""  # the function at which the driver is interrupted

    def register(self, kind: str, path: str) -> None:
        self.kept.add(path)
        self.told.append(path)

    def unregister(self, kind: str, path: str) -> None:
        self.kept.remove(path)

    def on_each_node(
        self, function: Callable[..., Any], *words: str, each: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        if function.__name__ == self.interrupt:
            raise KeyboardInterrupt
        answers = {}
        for id, view in self.views.items():
            words_here = [*words, *([each[id]] if each else [])]
            here = [word.replace(FOLDER, str(view or "/nowhere")) for word in words_here]
            if function is write_token and id in self.read_only:
                answers[id] = "Read-only file system"
            elif id not in self.silent:
                answers[id] = function(*here)
        return answers


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def test_a_driver_that_cannot_write_there_accuses_nobody(shared: Path) -> None:
    assert not os.path.exists(FOLDER), "the driver does not see the nodes' folder"
    assert find_blind_nodes(StandInNodes([shared] * 3), FOLDER) == []
    assert list(shared.iterdir()) == []


def test_a_node_with_a_folder_of_its_own_or_none_is_named(shared: Path, own: Path) -> None:
    assert find_blind_nodes(StandInNodes([shared, own, shared]), FOLDER) == ["n1"]
    assert find_blind_nodes(StandInNodes([shared, shared, None]), FOLDER) == ["n2"]
    assert list(own.iterdir()) == []


def test_a_node_that_cannot_write_is_named_and_one_that_does_not_answer_is_not(
    shared: Path,
) -> None:
    """Of a node that does not answer nothing is known: its folder is not at fault."""
    nodes = StandInNodes([shared] * 4)
    nodes.read_only, nodes.silent = {"1"}, {"3"}
    assert find_blind_nodes(nodes, FOLDER) == ["n1"]
    nodes.read_only = set()
    with pytest.raises(FolderUnknown, match="no answer from n3"):
        find_blind_nodes(nodes, FOLDER)


def test_where_no_node_can_write_nobody_is_accused(shared: Path) -> None:
    with pytest.raises(FolderUnknown, match="No such file"):
        find_blind_nodes(StandInNodes([None, None]), FOLDER)
    nodes = StandInNodes([shared] * 2)
    nodes.read_only = {"0", "1"}
    with pytest.raises(FolderUnknown, match="Read-only"):
        find_blind_nodes(nodes, FOLDER)
    nodes.silent = {"0", "1"}
    with pytest.raises(FolderUnknown):
        find_blind_nodes(nodes, FOLDER)


def test_nodes_that_all_see_another_folder_are_all_named(
    shared: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_blind_nodes(StandInNodes([shared, own]), FOLDER) == ["n0", "n1"]
    see = shared_folder.list_tokens
    monkeypatch.setattr(  # what the driver sees decides
        shared_folder, "list_tokens", lambda token, at: see(token, at.replace(FOLDER, str(own)))
    )
    assert find_blind_nodes(StandInNodes([shared, own]), FOLDER) == ["n0"]


def test_a_node_that_a_control_sends_elsewhere_is_named(shared: Path, own: Path) -> None:
    nodes = StandInNodes([shared, shared, shared])
    assert find_blind_nodes(nodes, FOLDER, {"2": str(own)}) == ["n2"]
    assert list(own.iterdir()) == list(shared.iterdir()) == []


@pytest.mark.parametrize("call", ["write_token", "list_tokens"])
def test_an_interrupted_driver_leaves_nothing(shared: Path, call: str) -> None:
    nodes = StandInNodes([shared] * 2)
    nodes.interrupt = call
    with pytest.raises(KeyboardInterrupt):
        find_blind_nodes(nodes, FOLDER)
    assert list(shared.iterdir()) == []
    assert len(nodes.told) == 2
    assert not nodes.kept


def test_what_a_dead_driver_left_the_node_removes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert write_token(str(path), seconds=1) == ""
    assert path.exists()
    deadline = time.monotonic() + 10
    while path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_node_reports_what_hinders_it(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    assert "No such file" in write_token(str(tmp_path / "token"))
