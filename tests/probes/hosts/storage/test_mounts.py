"""What is mounted at the shared folder, at the start of a run and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probes.hosts.storage_round import find_mount, read_mount
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.probes.hosts.test_closing import ended
from tests.support.simulated_hosts import (
    StandInHosts,
    findings,
    healthy_mount,
    not_passed,
    run_closing,
)

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
310 22 0:48 / /shared rw,relatime - nfs4 filer:/export rw,vers=4.2
311 310 0:49 /sub /shared/deep\\040er ro - fuse.juicefs JuiceFS:data ro
312 22 0:50 / /shared rw,relatime - tmpfs tmpfs rw,size=16m
a line of something else
"""
LOST = "storage_lost /shared"


def closing(**nodes: dict[str, Any] | None) -> ProbeResult:
    """Close a run in which these nodes now have another mount; None: they do not answer."""
    cluster = ended()
    for node, mount in nodes.items():
        if mount is None:
            del cluster.mounts_now[node]
        else:
            cluster.mounts_now[node] = mount
    return run_closing(cluster, shared="/shared")


@pytest.mark.near_miss("HOSTS.storage_lost")
def test_a_folder_that_is_still_there() -> None:
    result = closing()
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert ("lost mount", True) in {(one.name, one.caught) for one in result.controls}
    assert "mounted_again" not in {m.name for m in result.measurements}


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (healthy_mount(system="tmpfs tmpfs (root /) at /shared"),
         "the mount at the start was nfs4 filer:/export (root /) at /shared; now it is tmpfs"),
        (healthy_mount(system=""), "; now it is nothing"),
        (healthy_mount(error="Read-only file system"),
         "no file can be written there any more: Read-only file system"),
        (healthy_mount(error="Stale file handle"), "Stale file handle"),
    ],
)  # fmt: skip
def test_a_folder_that_went_away_is_named(now: dict[str, Any], says: str) -> None:
    result = closing(id1=now)
    assert not_passed(result) == {LOST: "FAIL"}
    assert findings(result) == [("HOST-STORAGE-LOST", ["n1"])]
    assert result.findings[0].statement.startswith("/shared on n1: ")
    assert says in result.findings[0].statement


@pytest.mark.near_miss("HOSTS.storage_lost")
def test_a_folder_that_was_mounted_again_is_the_same() -> None:
    result = closing(id2=healthy_mount(mount="405 0:61"))
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert [m.value for m in result.measurements if m.name == "mounted_again"] == ["n2"]


@pytest.mark.near_miss("HOSTS.storage_lost")
def test_a_folder_that_was_read_only_from_the_start_is_not_lost() -> None:
    """Other measures judge that."""
    cluster = ended()
    cluster.shared_mounts["id1"] = healthy_mount(error="Read-only file system")
    cluster.mounts_now["id1"] = healthy_mount(error="Read-only file system")
    assert not_passed(run_closing(cluster, shared="/shared")) == {}


def test_what_is_not_known_proves_nothing() -> None:
    result = closing(id0=None)
    assert not_passed(result) == {LOST: "UNPROVEN"}
    (note,) = [m.note for m in result.measurements if m.name == "storage_lost"]
    assert note == "n0: no answer, or what was mounted at the start is not known"
    assert not_passed(closing(id0=None, id1=healthy_mount(error="full"))) == {LOST: "FAIL"}


def test_a_mount_that_was_never_read_proves_nothing() -> None:
    cluster = ended()
    cluster.shared_mounts = {}
    result = run_closing(cluster, shared="/shared")
    assert not_passed(result) == {LOST: "UNPROVEN"}
    (note,) = [m.note for m in result.measurements if m.name == "storage_lost"]
    assert note.startswith("n0, n1, n2: no answer, or")
    (control,) = [one for one in result.controls if one.name == "lost mount"]
    assert (control.caught, control.saw) == (None, "no mount was read at the start")
    cluster = ended()
    cluster.shared_mounts["id1"] = healthy_mount(system="")
    assert not_passed(run_closing(cluster, shared="/shared")) == {LOST: "UNPROVEN"}
    cluster = ended()
    del cluster.shared_mounts["id1"]  # it did not answer then
    assert not_passed(run_closing(cluster, shared="/shared")) == {LOST: "UNPROVEN"}


@pytest.mark.near_miss("HOSTS.storage_lost")
def test_a_node_that_came_later_had_no_mount_at_the_start() -> None:
    cluster = ended()
    del cluster.facts[2], cluster.shared_mounts["id2"]
    assert run_closing(cluster, shared="/shared").verdict is Verdict.PASS


def test_a_victim_that_does_not_answer_is_no_control() -> None:
    cluster = ended()
    del cluster.mounts_now["id2"]
    result = run_closing(cluster, shared="/shared")
    (control,) = [one for one in result.controls if one.name == "lost mount"]
    assert (control.caught, control.saw) == (None, "n2 does not answer")
    assert control.fault == "n2 reads the mount of /proc instead of /shared"


def test_where_no_node_of_the_start_is_left_nothing_is_proven() -> None:
    cluster = ended()
    cluster.later, cluster.known = [], []
    result = run_closing(cluster, shared="/shared")
    assert not_passed(result)[LOST] == "UNPROVEN"


def test_a_node_that_left_is_not_asked() -> None:
    cluster: StandInHosts = ended()
    assert cluster.later is not None
    del cluster.known[1], cluster.later[1]
    result = run_closing(cluster, shared="/shared")
    assert not_passed(result) == {"nodes_changed cluster": "FAIL"}


def test_without_a_shared_folder_no_mount_is_judged() -> None:
    assert "storage_lost" not in {m.name for m in run_closing(ended()).measurements}


@pytest.mark.parametrize(
    ("folder", "system", "mount"),
    [
        ("/shared", "tmpfs tmpfs (root /) at /shared", "312 0:50"),  # the later one covers it
        ("/shared/deep er/x", "fuse.juicefs JuiceFS:data (root /sub) at /shared/deep er",
         "311 0:49"),
        ("/sharedother", "ext4 /dev/vda (root /) at /", "22 254:0"),
    ],
)  # fmt: skip
def test_the_mount_that_holds_a_folder_is_found(folder: str, system: str, mount: str) -> None:
    assert find_mount(MOUNTINFO, folder) == {"system": system, "mount": mount}


def test_without_a_mount_nothing_is_known() -> None:
    assert find_mount("", "/shared") == {"system": "", "mount": ""}


def test_a_mount_is_read_with_what_hinders_writing(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 254:0 / / rw - ext4 /dev/vda rw\n33 22 0:9 / {tmp_path} rw - nfs a:/b")
    assert read_mount(str(tmp_path), str(mounts)) == {
        "system": f"nfs a:/b (root /) at {tmp_path}",
        "mount": "33 0:9",
        "error": "",
    }
    assert read_mount("/proc", str(mounts))["error"]
