"""What a guide leaves outside of its homes is removed and named; what others have stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from probes.cluster.cleanup import (
    OPEN_FOLDERS,
    CleanupProcess,
    list_files_of,
    list_ipc_of,
    remove_files_of,
)
from probes.launch import shell
from tests.probes.launch.another_user import (
    as_root,
    cluster_without_dashboard,
    theirs,
)
from tests.support.small_disk import small_disk


@as_root
def test_what_the_user_left_outside_its_homes_is_removed_and_named(
    user: shell.User, place: Path
) -> None:
    spool, drop = place / "crontabs", place / "drop"
    for folder, mode in ((spool, 0o1730), (drop, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    mine = drop / "of-another"
    mine.write_text("stays")
    lines = [
        *("mkdir -p TMP-a/b/c", "touch TMP-a/f", "chmod 000 TMP-a", "touch /dev/shm/TOKEN"),
        *(f"mkdir -p {drop}/x/y", f"chmod 000 {drop}/x", f"ln -s {mine} {drop}/link"),
        *("ipcmk -M 4096", "ipcmk -Q", "ipcmk -S 1"),
    ]
    token = f"seatrial-test-{os.getpid()}"
    words = [line.replace("TMP", f"/tmp/{token}").replace("TOKEN", token) for line in lines]
    assert theirs(user, *words).follow().exit_code == 0
    (spool / "tab").write_text("* * * * * id")
    os.chown(spool / "tab", user.uid or 0, user.uid or 0)  # as setgid crontab does
    assert user.uid is not None
    shutil.rmtree(user.folder)
    blocks = {f"{kind} {id} (SysV IPC)" for kind, id in list_ipc_of(user.uid)}
    removed, kept, unsearched = remove_files_of(user.uid, (*OPEN_FOLDERS, str(spool)))
    names = {f"/tmp/{token}-a", f"/dev/shm/{token}", f"{drop}/x", f"{drop}/link", f"{spool}/tab"}
    assert ({*removed}, kept, unsearched) == (names | blocks, [], [])
    assert (len(blocks), list_ipc_of(user.uid)) == (3, [])
    assert not any(os.path.lexists(name) for name in names)
    assert mine.read_text() == "stays"


@as_root
def test_a_uid_that_has_a_file_is_not_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another one left is not removed with what a guide left."""
    monkeypatch.setattr(shell, "UIDS", range(61100, 61103))
    (place / "of-another").touch()
    os.chown(place / "of-another", 61101, 61101)
    assert {shell.free_uid() for _ in range(20)} == {61100, 61102}


@as_root
def test_it_is_removed_if_the_driver_dies_too() -> None:
    uid, path = shell.free_uid(), Path(f"/tmp/seatrial-test-{os.getpid()}")
    path.touch()
    os.chown(path, uid, uid)
    keeper = CleanupProcess()
    keeper.register("user", str(uid))
    keeper.close()
    assert not path.exists()


@as_root
def test_what_cannot_be_removed_is_named(user: shell.User, monkeypatch: pytest.MonkeyPatch) -> None:
    left_over = ["/tmp/a\x1b[1m"], ["/tmp/b"] * 7, ["/tmp/c\x1b[1m"]
    monkeypatch.setattr(shell, "remove_files_of", lambda uid, others: left_over)
    monkeypatch.setattr(shell, "list_mounts", lambda: ([], ["/nfs"]))
    said = shell.remove_user(cluster_without_dashboard(), user)
    where = f"of test user {user.uid} outside the home"
    assert said.startswith(f"seatrial removed 1 path {where}: /tmp/a")
    assert f"; seatrial could not remove 7 paths {where}: /tmp/b, " in said
    assert (
        f"; seatrial could not search 2 folders for files of test user {user.uid}: /tmp/c" in said
    )
    assert said.endswith(", /nfs")
    assert "\x1b" not in said
    monkeypatch.undo()


def test_folders_that_are_too_many_to_be_searched_are_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (place / name / "c").mkdir(parents=True)
    monkeypatch.setattr("probes.cluster.cleanup.MAX_ENTRIES", 2)
    found, unsearched = list_files_of(65533, (str(place),))
    assert (found, unsearched) == ([], [str(place / "a"), str(place / "b")])
    monkeypatch.setattr("probes.cluster.cleanup.MAX_ENTRIES", 4)
    assert list_files_of(65533, (str(place),)) == ([], [])
    monkeypatch.setattr("probes.cluster.cleanup.MAX_OTHER", 3)
    assert len(list_files_of(65533, (), (str(place),))[1]) == 2  # which, scandir decides


@as_root
def test_more_files_than_are_kept_in_memory_are_removed_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.cluster.cleanup.MAX_FOUND", 100)
    uid = shell.free_uid()
    for number in range(350):
        (place / str(number)).touch()
        os.chown(place / str(number), uid, uid)
    found, unsearched = list_files_of(uid, (str(place),))
    assert (len(found), unsearched) == (100, [str(place)])
    removed, kept, unsearched = remove_files_of(uid, (str(place),))
    assert (len({*removed}), kept, unsearched) == (350, [], [])
    assert [*place.iterdir()] == []


@as_root
def test_files_that_cannot_be_removed_are_tried_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.cluster.cleanup.MAX_FOUND", 3)
    uid = shell.free_uid()
    (place / "of-root").mkdir(mode=0o755)
    for number in range(5):
        (place / "of-root" / str(number)).touch()
        os.chown(place / "of-root" / str(number), uid, uid)
    removed, kept, unsearched = remove_files_of(uid, (str(place),))
    assert (removed, len(kept), unsearched) == ([], 3, [str(place / "of-root")])


@as_root
def test_what_lies_on_another_file_system_is_removed_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell with the setuid bit, which would wait for the next run with this uid."""
    (place / "shared").mkdir()
    (place / "shared").chmod(0o1777)
    with small_disk(place / "a disk", "1m") as disk:
        os.chmod(disk, 0o1777)
        cluster = cluster_without_dashboard()
        user = shell.make_user(cluster, str(place), own_guide=False, shared=str(place / "shared"))
        assert {disk, str(place / "shared")} <= {*user.others}
        lines = [f"cp /bin/true '{disk}/sh'", f"chmod 4755 '{disk}/sh'", "touch SHARED/x"]
        script = "\n".join(lines).replace("SHARED", f"'{place}/shared'")
        assert theirs(user).ask(f"{script}\n").exit_code == 0
        taken = Path(disk) / "sh"
        assert taken.exists()
        monkeypatch.setattr(shell, "UIDS", [user.uid])
        with pytest.raises(shell.NoUser, match="found no free user id"):
            shell.free_uid(user.others)
        said = shell.remove_user(cluster, user)
        assert [*Path(disk).iterdir(), *(place / "shared").iterdir()] == []
    assert f"removed 2 paths of test user {user.uid} outside the home: {disk}/sh" in said


@as_root
def test_the_other_file_systems_are_known_if_the_driver_dies_too(place: Path) -> None:
    uid = shell.free_uid()
    with small_disk(place / "a disk", "1m") as disk:
        os.chmod(disk, 0o1777)
        (Path(disk) / "x").touch()
        os.chown(f"{disk}/x", uid, uid)
        keeper = CleanupProcess()
        keeper.register("user", shell.User(place, uid, others=[disk]).name)
        keeper.close()
        assert not Path(f"{disk}/x").exists()


MOUNTS = """\
proc /proc proc rw,relatime 0 0
/dev/vda / ext4 rw 0 0
tmpfs {place}/a\\040b tmpfs rw 0 0
tmpfs {place}/closed tmpfs rw 0 0
tmpfs {place}/file tmpfs rw 0 0
tmpfs {place}/ro tmpfs ro,nosuid 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw,hard 0 0
lxcfs /proc/cpuinfo fuse.lxcfs rw 0 0
server:/opt /opt nfs4 ro,hard 0 0
"""


def test_mounts_of_this_host_are_searched_and_those_of_others_are_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("a b", 0o1777), ("closed", 0o755), ("ro", 0o1777)):
        (place / name).mkdir()
        (place / name).chmod(mode)
    (place / "file").touch()
    (place / "file").chmod(0o777)
    (place / "mounts").write_text(MOUNTS.format(place=place))
    monkeypatch.setattr(shell, "MOUNTS", str(place / "mounts"))
    assert shell.list_mounts() == ([f"{place}/a b"], ["/home"])


def test_a_uid_that_only_a_directory_service_knows_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SSSD and LDAP list no accounts, but know each."""

    def knows(one: int) -> Callable[[int], object]:
        return lambda number: object() if number == one else {}[number]

    monkeypatch.setattr(shell.pwd, "getpwuid", knows(61100))
    monkeypatch.setattr(shell.grp, "getgrgid", knows(61101))
    monkeypatch.setattr(shell, "UIDS", range(61100, 61103))
    assert {shell.free_uid() for _ in range(10)} == {61102}
    monkeypatch.setattr(shell, "UIDS", range(61100, 61102))
    with pytest.raises(shell.NoUser, match=r"^seatrial found no free user id from 61100 to 61101 "):
        shell.free_uid()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    why = "seatrial found no free user id from 61100 to 61101 for a test user"
    assert shell.why_no_other_user(own_guide=False) == why
