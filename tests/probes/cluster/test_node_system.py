"""Readers of a node's limits, cgroups, room and raylets, on trees of files as kernels show them."""

from __future__ import annotations

import errno
import os
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster import system_facts as facts_system
from probes.cluster.system_facts import (
    count_threads,
    find_cgroups,
    find_temporary_folder,
    name_file_system,
    parse_limit,
    read_limits,
    read_raylets,
    read_room,
    read_settings,
    read_system,
    read_thread_room,
)

LIMITS = """Limit                     Soft Limit           Hard Limit           Units     
Max processes             4096                 unlimited            processes 
Max open files            1024                 524288               files     
Max stack size            8388608              unlimited            bytes     
Max locked memory         8388608              unlimited            bytes     
"""  # noqa: W291 - as the kernel writes it
ALL_IDS = "         0          0 4294967295\n"


def make_proc(root: Path, pid: str = "7", **more: str) -> Path:
    """Make a /proc with one process; `more` replaces files of it."""
    files = {
        "limits": LIMITS,
        "status": status(),
        "uid_map": ALL_IDS,
        "cgroup": "0::/\n",
        **more,
    }
    for name, text in files.items():
        path = root / pid / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "loadavg").write_text("0.1 0.2 0.3 2/1000 4711\n")
    (root / "sys/kernel").mkdir(parents=True, exist_ok=True)
    (root / "sys/kernel/pid_max").write_text("32768\n")
    (root / "sys/kernel/threads-max").write_text("200000\n")
    return root


def status(uid: int = 1000, capabilities: int = 0, threads: int = 40) -> str:
    return f"Uid:\t{uid}\t9\t9\t9\nThreads:\t{threads}\nCapEff:\t{capabilities:016x}\n"


def test_limits_are_read_with_what_does_not_hold(tmp_path: Path) -> None:
    limits = read_limits("7", str(make_proc(tmp_path)))
    assert limits == {
        "open_files": [1024, 524288],
        "locked_bytes": [8388608, -1],
        "stack_bytes": [8388608, -1],
        "processes": [4096, -1],
        "locks_any": False,
        "starts_any": False,
    }
    with pytest.raises(ValueError, match="no row 'Max signals'"):
        parse_limit(LIMITS, "Max signals")
    with pytest.raises(OSError, match="No such file"):
        read_limits("8", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "ids", "locks", "starts"),
    [
        (status(), ALL_IDS, False, False),
        (status(uid=0), ALL_IDS, False, True),  # root of a container without capabilities
        (status(uid=0), "0 1000 1\n", False, False),  # root of a user namespace
        (status(capabilities=1 << 14), ALL_IDS, True, False),
        (status(capabilities=1 << 14), "0 1000 65536\n", False, False),
        (status(capabilities=1 << 21), ALL_IDS, False, True),
        (status(capabilities=1 << 24), ALL_IDS, False, True),
        (status(capabilities=~(1 << 14 | 1 << 21 | 1 << 24) & 2**41 - 1), ALL_IDS, False, False),
    ],
)
def test_root_and_capabilities_are_not_bound(
    tmp_path: Path, text: str, ids: str, locks: bool, starts: bool
) -> None:
    limits = read_limits("7", str(make_proc(tmp_path, status=text, uid_map=ids)))
    assert (limits["locks_any"], limits["starts_any"]) == (locks, starts)


def room(root: Path, cgroups: Path, pid: str = "7") -> dict[str, int]:
    return read_thread_room(read_limits(pid, str(root)), pid, str(root), str(cgroups))


def test_threads_of_the_user_count_and_those_of_others_do_not(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc")
    make_proc(proc, "8", status=status(threads=60))
    make_proc(proc, "9", status=status(uid=2000, threads=500))
    (proc / "10").mkdir()  # it ends while it is looked at
    assert count_threads("1000", str(proc)) == 100
    assert room(proc, tmp_path) == {
        "kernel.pid_max": 31768,
        "kernel.threads-max": 199000,
        "RLIMIT_NPROC": 3996,
    }


def test_a_user_who_is_not_bound_has_the_kernels_room_alone(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc", status=status(uid=0))
    assert room(proc, tmp_path).keys() == {"kernel.pid_max", "kernel.threads-max"}
    unlimited = LIMITS.replace("4096     ", "unlimited")
    proc = make_proc(tmp_path / "other", limits=unlimited)
    assert room(proc, tmp_path).keys() == {"kernel.pid_max", "kernel.threads-max"}


def make_group(path: Path, most: str, used: int) -> None:
    """Make a cgroup with this bound of processes."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "pids.max").write_text(f"{most}\n")
    (path / "pids.current").write_text(f"{used}\n")


def test_each_cgroup_above_a_process_bounds_it(tmp_path: Path) -> None:
    """As systemd and Slurm make them (version 2): a bound of the slice holds for all in it."""
    cgroups, proc = tmp_path / "cgroup", make_proc(tmp_path / "proc", cgroup="0::/slice/job/step\n")
    make_group(cgroups / "slice", "5000", 4900)
    make_group(cgroups / "slice/job", "max", 100)
    make_group(cgroups / "slice/job/step", "2000", 100)
    bounds = room(proc, cgroups)
    assert bounds[f"pids.max of {cgroups}/slice"] == 100
    assert bounds[f"pids.max of {cgroups}/slice/job/step"] == 1900
    assert f"pids.max of {cgroups}/slice/job" not in bounds


def test_a_container_sees_its_own_group_as_the_mount(tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroup"
    paths = "12:pids:/kubepods/pod1/abc\n1:name=systemd:/kubepods\n0::/system.slice/containerd\n"
    proc = make_proc(tmp_path / "proc", cgroup=paths)
    make_group(cgroups / "pids", "1024", 1024)
    assert room(proc, cgroups)[f"pids.max of {cgroups}/pids"] == 0
    proc = make_proc(tmp_path / "second", cgroup="0::/\n")
    make_group(cgroups, "300", 400)  # lowered below what is in use
    assert room(proc, cgroups)[f"pids.max of {cgroups}"] == 0
    found = [str(group) for group in find_cgroups("pids", "7", str(proc), str(cgroups))]
    assert found == [str(cgroups), f"{cgroups}/unified"]


def test_the_group_of_a_hybrid_machine_is_found(tmp_path: Path) -> None:
    cgroups, proc = tmp_path / "cgroup", make_proc(tmp_path / "proc", cgroup="0::/a\n")
    make_group(cgroups / "unified/a", "77", 7)
    assert room(proc, cgroups)[f"pids.max of {cgroups}/unified/a"] == 70
    (cgroups / "unified/a/pids.current").unlink()
    with pytest.raises(OSError, match="No such file"):
        room(proc, cgroups)


def test_a_folder_has_its_room(tmp_path: Path) -> None:
    found, size = read_room(str(tmp_path)), os.statvfs(tmp_path)
    assert found["error"] == ""
    assert found["size_gib"] == round(size.f_blocks * size.f_frsize / 2**30, 6)
    assert found["free_share"] == pytest.approx(size.f_bavail / size.f_blocks, abs=0.01)
    assert 0 < found["free_gib"] <= found["size_gib"]
    assert not list(tmp_path.iterdir()), "the file that was tried is gone"
    gone = read_room(str(tmp_path / "gone"))
    assert gone["error"] == "No such file or directory"
    assert "size_gib" not in gone


@pytest.mark.parametrize("files", [0, 1, 100])
def test_the_room_is_what_an_ordinary_user_may_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: int
) -> None:
    known = {"f_blocks": 1000, "f_bfree": 300, "f_bavail": 250, "f_frsize": 2**21}
    inodes = {"f_files": files, "f_ffree": files, "f_favail": files * 0.4}
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(**known, **inodes))
    found = read_room(str(tmp_path))
    assert (found["size_gib"], found["free_gib"]) == (1.953125, 0.488281)
    assert found["free_share"] == 0.25
    has_files = (files * 0.4, 0.4) if files else (None, 1.0)
    assert (found["free_files"], found["free_files_share"]) == has_files


def test_a_folder_that_takes_names_and_no_data_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Full(BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: Full())
    assert read_room(str(tmp_path))["error"] == "No space left on device"


def test_a_file_system_without_a_size_takes_no_file_or_has_no_limit() -> None:
    found = read_room("/proc")
    assert found["error"]
    assert (found["size_gib"], found["free_share"], found["free_files"]) == (0, 1.0, None)


def test_the_file_system_is_the_deepest_and_latest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /tmp rw shared:1 - ext4 /dev/sdb1 rw\n"
        "3 2 0:6 / /tmp rw shared:1 master:2 - tmpfs tmpfs\n"
        "4 1 0:7 / /tmp/a\\040b rw - xfs /dev/sdc1 rw\n"
        "5 4\n"
    )
    assert name_file_system("/var/x", str(mounts)) == "ext4 at /"
    assert name_file_system("/tmp", str(mounts)) == "tmpfs at /tmp"
    assert name_file_system("/tmp/ray/s", str(mounts)) == "tmpfs at /tmp"
    assert name_file_system("/tmp/a b/c", str(mounts)) == "xfs at /tmp/a b"
    assert name_file_system("/tmpfile", str(mounts)) == "ext4 at /"
    assert name_file_system("/tmp", str(tmp_path / "gone")) == ""


def test_where_no_temporary_folder_can_be_used_tmp_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("tempfile.gettempdir", refuse)
    assert find_temporary_folder() == "/tmp"


def make_process(proc: Path, pid: str, comm: str, *words: str) -> None:
    (proc / pid).mkdir(parents=True)
    (proc / pid / "comm").write_text(f"{comm}\n")
    (proc / pid / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))


def test_raylets_are_told_apart_by_their_session(tmp_path: Path) -> None:
    ray = "/opt/ray/raylet"
    make_process(tmp_path, "1", "systemd", "/sbin/init")
    make_process(tmp_path, "20", "raylet", ray, "--session-name=ours", "--gcs-address=a:1")
    make_process(tmp_path, "21", "renamed", ray, "--session_name=ours")  # a spare one of our own
    make_process(tmp_path, "30", "raylet", ray, "--session-name=theirs")
    make_process(tmp_path, "29", "raylet", ray, "--node_ip_address=10.0.0.1")
    make_process(tmp_path, "31", "raylet")  # it has ended, and is not collected
    make_process(tmp_path, "40", "python", "python", "-m", "raylet", "--session-name=theirs")
    (tmp_path / "41").mkdir()  # it ends while it is looked at
    assert read_raylets("ours", str(tmp_path)) == {
        "own": 2,
        "others": [{"pid": 29, "session": ""}, {"pid": 30, "session": "theirs"}],
        "hidden": False,
    }


def test_hidden_processes_are_known_to_be_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_process(tmp_path, "20", "raylet", "raylet", "--session-name=ours")
    assert read_raylets("ours", str(tmp_path))["hidden"] is True  # hidepid=2: process 1 is not seen
    make_process(tmp_path, "1", "systemd", "/sbin/init")
    assert read_raylets("ours", str(tmp_path))["hidden"] is False
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.parent.name == "1":
            raise PermissionError
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    found = read_raylets("ours", str(tmp_path))
    assert found == {"own": 1, "others": [], "hidden": True}


def test_settings_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal: 2097152 kB\nSwapTotal: 1048576 kB\nSwapFree: 0 kB\n"
    )
    for cpu, governor in (("cpu0", "powersave"), ("cpu1", "performance"), ("cpu2", "powersave")):
        folder = tmp_path / "devices/system/cpu" / cpu / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    huge = tmp_path / "kernel/mm/transparent_hugepage"
    huge.mkdir(parents=True)
    (huge / "enabled").write_text("always [madvise] never\n")
    for node in ("node0", "node1"):
        (tmp_path / "devices/system/node" / node).mkdir(parents=True)
    assert read_settings(str(tmp_path), str(tmp_path)) == {
        "ram_gib": 2.0,
        "swap_gib": 1.0,
        "cpus": os.cpu_count(),
        "governor": "performance, powersave",
        "huge_pages": "madvise",
        "numa_nodes": 2,
    }
    nothing: dict[str, Any] = read_settings(str(tmp_path / "a"), str(tmp_path / "b"))
    assert nothing["ram_gib"] is None
    assert nothing["swap_gib"] is None
    assert (nothing["governor"], nothing["huge_pages"], nothing["numa_nodes"]) == ("", "", 0)


def test_a_part_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session() -> tuple[str, str]:
        raise AttributeError("no node")

    monkeypatch.setattr(facts_system, "SHARED_MEMORY", str(tmp_path))
    found = read_system(no_session)
    assert found["raylets"] == found["session"] == {"unreadable": "AttributeError: no node"}
    assert found["shared_memory"]["path"] == str(tmp_path)
    assert found["limits"]["open_files"][0] > 0
    assert min(found["threads"].values()) > 0
