"""What outlives the driver and clears up: the keeper, and the embedded cluster's own end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from probes.cluster.cleanup import MAX_DEATHS, CleanupProcess, remove_path
from probes.contract.contract import ClusterTerms
from probes.session.fixtures import shared_folder
from reports.run_folder.integrity import load
from tests.support.paths import REPO

pytestmark = pytest.mark.alone


def gone(path: Path, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not path.exists()


def test_a_shared_folder_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    """Not even root makes a folder in /proc."""
    keeper = CleanupProcess()
    cluster = SimpleNamespace(cleanup=keeper, kind="ray")
    store = SimpleNamespace(path=tmp_path)
    try:
        for shared, made in (("/proc", False), (str(tmp_path), True), ("/no/such/folder", False)):
            terms = ClusterTerms(shared=shared)
            with shared_folder(
                SimpleNamespace(cluster=cluster, store=store, terms=terms)
            ) as folder:
                assert (folder is not None) is made, shared
            assert not [*tmp_path.iterdir()]
    finally:
        keeper.close()


def test_what_is_kept_is_removed_and_what_is_forgotten_stays(tmp_path: Path) -> None:
    kept, stays = tmp_path / "kept", tmp_path / "stays"
    kept.mkdir()
    stays.mkdir()
    (kept / "file").write_text("x")
    keeper = CleanupProcess()
    keeper.register("folder", str(kept))
    keeper.register("folder", str(stays))
    keeper.unregister("folder", str(stays))
    keeper.close()
    assert not kept.exists()
    assert stays.exists()


@pytest.mark.parametrize("told", ["only the keeper", "the driver first"])
def test_a_folder_into_which_a_rank_still_saves_goes_too(tmp_path: Path, told: str) -> None:
    """Its rank dies 2 s after the driver, and makes its folder anew until then."""
    folder = tmp_path / "kept"
    folder.mkdir()
    script = (
        "import contextlib, pathlib, sys, time; end = time.monotonic() + 2; n = 0\n"
        "while time.monotonic() < end:\n"
        "    step = pathlib.Path(sys.argv[1], f'step-{n}'); n += 1\n"
        "    with contextlib.suppress(FileNotFoundError):  # the parent went in that moment\n"
        "        step.mkdir(parents=True, exist_ok=True)\n"
        "    time.sleep(0.3)"
    )
    rank = subprocess.Popen([sys.executable, "-c", script, str(folder)])
    assert any(time.sleep(0.01) or any(folder.iterdir()) for _ in range(1000))
    keeper = CleanupProcess()
    keeper.register("folder", str(folder))
    if told == "the driver first":
        with patch("shutil.rmtree"):  # as if it had been filled at that moment
            keeper.remove_now(folder)
    keeper.close()
    assert rank.wait(timeout=10) == 0
    assert not folder.exists()


def test_a_process_is_ended_with_its_group() -> None:
    victim = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
    keeper = CleanupProcess()
    keeper.register("process", str(victim.pid))
    keeper.close()
    assert victim.wait(timeout=10) == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.killpg(victim.pid, 0)


def test_the_keeper_works_when_its_driver_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[2])\n"
        "from probes.cluster.cleanup import CleanupProcess\n"
        "k = CleanupProcess(); k.register('folder', sys.argv[1]); print('kept', flush=True)\n"
        "import time; time.sleep(600)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(REPO)], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    with driver.stdout as out:
        assert out.readline() == "kept\n"
        driver.kill()
        driver.wait()
    assert gone(folder)


def test_sigkill_of_a_driver_with_an_embedded_cluster(tmp_path: Path) -> None:
    run, before = tmp_path / "run", set(Path("/tmp").glob("sea-*/ray"))
    driver = subprocess.Popen(
        [*[sys.executable, "-m", "pytest", "probes/gang", "-q"],
         *["-p", "no:cacheprovider"],
         *["--cluster", "local:2", "--contract", "local", "--run-dir", str(run)]],
        cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        events = run / "events.jsonl"
        deadline = time.monotonic() + 90
        while not (events.exists() and "probe_started" in events.read_text()):
            assert time.monotonic() < deadline
            assert driver.poll() is None
            time.sleep(0.1)
        facts = json.loads(events.read_text().splitlines()[0])["data"]["cluster"]
        assert len(facts["nodes"]) == 2
        folders = [one for one in Path("/tmp").glob("sea-*/ray") if one not in before]
        assert folders
    finally:
        driver.kill()
        driver.wait()
    for folder in folders:
        assert gone(folder, seconds=15)
    deadline = time.monotonic() + 15
    while (left := raylets(folders)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []
    assert load(run).state == "interrupted"


def raylets(folders: list[Path]) -> list[str]:
    """Command lines of processes that name one of the folders."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(str(folder) in line for folder in folders):
            found.append(line[:100])
    return found


def leashed(*words: str) -> subprocess.Popen[bytes]:
    """A command on torchrun's leash."""
    leash = [sys.executable, str(REPO / "reference_trainer" / "launch" / "torchrun_child.py")]
    return subprocess.Popen([*leash, *words], stdin=subprocess.PIPE)


def test_a_leash_ends_with_its_command_and_with_its_code() -> None:
    held = leashed("sh", "-c", "exit 7")
    assert held.wait(timeout=10) == 7
    assert held.stdin is not None
    held.stdin.close()


def test_a_leash_ends_its_command_when_nobody_holds_it(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    held = leashed("sh", "-c", f"echo $$ > {told}; exec sleep 60")
    deadline = time.monotonic() + 10
    while not (told.exists() and told.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)  # between two looks
    child = int(told.read_text())
    assert held.stdin is not None
    held.stdin.close()
    held.wait(timeout=10)
    assert gone(Path(f"/proc/{child}"))


def kill(keeper: CleanupProcess) -> int:
    """Kill the process that cleans up; return its pid."""
    pid = keeper._child.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def replaced(keeper: CleanupProcess, pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while keeper._child.pid == pid and time.monotonic() < deadline:
        time.sleep(0.02)  # between two looks
    return keeper._child.pid != pid


def test_one_that_dies_is_replaced_and_the_next_knows_what_is_kept(tmp_path: Path) -> None:
    kept, stays, late = (tmp_path / name for name in ("kept", "stays", "late"))
    for folder in (kept, stays, late):
        folder.mkdir()
    keeper = CleanupProcess()
    keeper.register("folder", str(kept))
    keeper.register("folder", str(stays))
    keeper.unregister("folder", str(stays))
    pid = kill(keeper)
    keeper.register("folder", str(late))
    assert replaced(keeper, pid)
    keeper.close()
    assert (kept.exists(), stays.exists(), late.exists()) == (False, True, False)
    ((place, text),) = keeper.problems
    assert place == f"the process that cleans up ({pid})"
    assert text.startswith("it ended before the end of the run, with exit code -9. Process ")


def test_one_that_dies_again_and_again_is_not_replaced_for_ever(tmp_path: Path) -> None:
    """What is left is then removed by the driver itself."""
    kept = tmp_path / "kept"
    kept.mkdir()
    keeper = CleanupProcess()
    keeper.register("folder", str(kept))
    for _ in range(MAX_DEATHS):
        assert replaced(keeper, kill(keeper))
    kill(keeper)
    deadline = time.monotonic() + 10
    while len(keeper.problems) <= MAX_DEATHS and time.monotonic() < deadline:
        time.sleep(0.02)  # between two looks
    assert keeper.problems[-1][1].endswith("wait one hour, then run `seatrial cleanup --remove`")
    keeper.unregister("folder", "/tmp/none")
    keeper.close()
    assert not kept.exists()


@pytest.mark.parametrize(
    "error", [OSError(12, "Cannot allocate memory"), RuntimeError("no thread")]
)
def test_one_that_has_no_successor_is_said(tmp_path: Path, error: Exception) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    keeper = CleanupProcess()
    keeper.register("folder", str(kept))
    with patch.object(keeper, "_start", side_effect=error):
        pid = kill(keeper)
        deadline = time.monotonic() + 10
        while not keeper.problems and time.monotonic() < deadline:
            time.sleep(0.02)  # between two looks
    ((place, text),) = keeper.problems
    assert place == f"the process that cleans up ({pid})"
    assert text == (
        f"it ended before the end of the run, with exit code -9. It is not replaced ({error}). "
        "If seatrial is killed, wait one hour, then run `seatrial cleanup --remove`"
    )
    keeper.close()
    assert not kept.exists()


def test_one_that_dies_while_it_cleans_up_is_no_error(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    keeper = CleanupProcess()
    keeper.register("folder", str(kept))
    with patch.object(keeper, "_watch"):
        keeper._is_closing = True
        kill(keeper)
        keeper.close()
    assert not kept.exists()


def test_one_that_is_not_done_in_time_is_said() -> None:
    keeper = CleanupProcess()
    os.kill(keeper._child.pid, signal.SIGSTOP)
    keeper.close(seconds=0.2)
    assert keeper.problems[0][1] == (
        "it did not end within 0 s after the run. Run `seatrial cleanup --remove`"
    )
    os.kill(keeper._child.pid, signal.SIGCONT)
    assert keeper._child.wait(timeout=10) == 0


def test_what_a_registered_link_leads_to_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "theirs", tmp_path / "ours"
    target.mkdir()
    (target / "file").touch()
    link.symlink_to(target)
    assert remove_path(link) == ""
    assert not os.path.lexists(link)
    assert (target / "file").exists()


def test_of_a_folder_as_much_as_possible_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / "ours" / name).mkdir(parents=True)
    rmdir = os.rmdir

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == "b":
            raise PermissionError(13, "Permission denied")
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refuse)
    assert "Permission denied" in remove_path(tmp_path / "ours")
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["b"]
    assert remove_path(tmp_path / "nothing") == ""
