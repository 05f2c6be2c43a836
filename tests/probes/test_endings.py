"""However a run ends, its exit code is that of its record, and each code has its own causes.

1 only where a criterion failed, 2 only where a signal came, 3 where something broke under the run.
A run whose terminal is gone goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.support.ended_run import LONGEST_S, Ended, Stage
from tests.support.lost_cluster import HEADED, NODES
from tests.support.paths import REPO
from tests.support.small_disk import needs_root, small_disk
from tests.support.stand_in import BROKEN, GOOD


@dataclass(frozen=True)
class Fault:
    """A fault in the first of two sound probes, and the end that is due to it.

    `record` is the code of the record where it differs.  `says` stands in what was printed, or in
    the reasons of the record.
    """

    name: str
    code: int
    fault: str = "pass"
    teardown: str = "pass"
    shell: str = ""
    says: str = ""
    value: str = GOOD
    plant: str = ""
    record: int | None = None
    program: str = "pytest"
    whole: bool = True

    def end(self, stage: Stage) -> Ended:
        stage.prepare(self.fault, self.teardown, self.value, self.plant)
        return stage.end(self.program, self.shell)


AS_A_LINK = "shutil.rmtree(RUN / 'evidence'); (RUN / 'evidence').symlink_to('/tmp')"
GARBLE = "(RUN / 'events.jsonl').write_bytes(b'x' * (RUN / 'events.jsonl').stat().st_size)"
KEEP = "measure.keep('a.txt', 'seen', caption='a table')"
JOINING = """
import os, signal, time
def late(spec):
    os.kill(os.getpid(), signal.{})
    time.sleep(300)
probes.session.session.connect = late
"""
BEGUN = """
import os, signal
owe = probes.session.session.RunSession._write_owed
def write(self):
    owe(self)
    os.kill(os.getpid(), signal.{})
probes.session.session.RunSession._write_owed = write
"""
SLOW_END = """
import os, signal
import probes.session.ending as ending
old = ending.write_all
def slow(*a):
    {}
    return old(*a)
ending.write_all = slow
"""
SIGNALS = (
    Fault("SIGINT", 2, "send('SIGINT')", whole=True),
    Fault("SIGINT, seatrial", 2, "send('SIGINT')", program="seatrial"),
    Fault("SIGTERM in a teardown", 2, teardown="send('SIGTERM', wait=1)"),
    Fault("SIGINT twice", 2, "send('SIGINT')", "send('SIGINT', wait=1)", says="One more signal"),
    Fault("SIGINT, SIGTERM", 2, "send('SIGINT')", "send('SIGTERM', wait=1)"),
    Fault("SIGINT, SIGTERM, seatrial", 2, "send('SIGINT')", "send('SIGTERM', wait=1)",
          program="seatrial"),
    Fault("SIGTERM twice", 2, "send('SIGTERM')", "time.sleep(1); send('SIGTERM', wait=1)"),
    Fault("SIGINT three times", 2, "send('SIGINT')",
          "send('SIGINT', wait=1); send('SIGINT', wait=300)"),
    Fault("SIGINT three times, seatrial", 2, "send('SIGINT')",
          "send('SIGINT', wait=1); send('SIGINT', wait=300)", program="seatrial"),
    Fault("three at once", 2, "send('SIGINT', 'SIGINT', 'SIGINT', wait=300)"),
    Fault("SIGHUP", 2, "send('SIGHUP', wait=300)"),
    Fault("SIGUSR1", -10, "send('SIGUSR1', wait=300)", record=2, whole=False),
    Fault("SIGKILL", -9, "send('SIGKILL', wait=300)", record=2, whole=False),
    Fault("SIGHUP under nohup", 0, "send('SIGHUP')", shell="trap '' HUP; exec \"$@\""),
    Fault("a probe that takes no interrupt", 2,
          "try: send('SIGINT', wait=1)\n    except KeyboardInterrupt: pass"),
    Fault("a teardown that fails after SIGINT", 2, "send('SIGINT')", "raise OSError('stuck')",
          says="stuck"),
    *(Fault(f"{name} while the cluster is joined", 2, plant=JOINING.format(name))
      for name in ("SIGINT", "SIGTERM", "SIGHUP")),
    *(Fault(f"{name} at the first event", 2, plant=BEGUN.format(name))
      for name in ("SIGINT", "SIGTERM")),
    Fault("SIGTERM while the report is written", 0,
          plant=SLOW_END.format("os.kill(os.getpid(), signal.SIGTERM)")),
    Fault("SIGINT twice while the report is written", 0,
          plant=SLOW_END.format("[os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]")),
    Fault("a criterion failed, then SIGINT", 2, "send('SIGINT')", value=BROKEN),
    Fault("os._exit(0)", 2, "os._exit(0)", says="os._exit(0). The run ends as interrupted"),
    Fault("os._exit(0), seatrial", 2, "os._exit(0)", program="seatrial"),
    Fault("os._exit(1) in a thread", 2,
          "import threading; t = threading.Thread(target=os._exit, args=[1]); t.start(); t.join()"),
    Fault("a child process that leaves", 0, "os.wait() if os.fork() else os._exit(0)"),
)  # fmt: skip
TERMINAL = (
    Fault("stdout closed", 0, shell='exec "$@" >&-'),
    Fault("stdout and stderr closed", 0, shell='exec "$@" >&- 2>&-'),
    Fault("stdout and stderr closed, seatrial", 0, shell='exec "$@" >&- 2>&-', program="seatrial"),
    Fault("/dev/full", 0, shell='exec "$@" >/dev/full'),
    Fault("both /dev/full", 0, shell='exec "$@" >/dev/full 2>&1'),
    Fault("/dev/full, seatrial", 0, shell='exec "$@" >/dev/full 2>&1', program="seatrial"),
    Fault("/dev/full, a criterion failed", 1, shell='exec "$@" >/dev/full', value=BROKEN),
    Fault("ASCII terminal", 0, shell='LC_ALL=C PYTHONUTF8=0 exec "$@"'),
)
FOLDER = (
    Fault("folder deleted", 3, "shutil.rmtree(RUN)", says="written again"),
    Fault("folder deleted, seatrial", 3, "shutil.rmtree(RUN)", program="seatrial"),
    Fault("folder with evidence deleted", 3, f"{KEEP}; shutil.rmtree(RUN)", says="evidence"),
    Fault("folder renamed", 3, "RUN.rename(str(RUN) + '-2')", says="written again"),
    Fault("folder replaced by a link", 3, "shutil.rmtree(RUN); RUN.symlink_to('/tmp')"),
    Fault("events deleted", 3, "(RUN / 'events.jsonl').unlink()", says="written again"),
    Fault("events truncated", 3, "os.truncate(RUN / 'events.jsonl', 9)", says="written again"),
    Fault("events garbled", 3, GARBLE, says="written again"),
    Fault("events garbled, seatrial", 3, GARBLE, program="seatrial"),
    Fault("evidence/ a link", 3, AS_A_LINK, says="written again"),
    Fault("evidence deleted", 3, f"{KEEP}; shutil.rmtree(RUN / 'evidence')", says="evidence"),
    Fault("record.json a folder", 3, "(RUN / 'record.json').unlink(missing_ok=True); "
          "(RUN / 'record.json').mkdir()", says="record.json"),
    Fault("folder deleted, a criterion failed", 1, "shutil.rmtree(RUN)", value=BROKEN),
    Fault("folder deleted, then SIGINT", 2, "shutil.rmtree(RUN); send('SIGINT')"),
)  # fmt: skip
# The end is written by then: the run is in order, and its folder too.
LEAVING = """
import pathlib, shutil
RUN = pathlib.Path("run").absolute()
def leave(self):
    {}
StandIn.close = leave
"""
EDIT = "p = RUN / 'events.jsonl'; p.write_bytes(p.read_bytes().replace(b'stand-in', b'stand-im'))"
WHILE_LEFT = (
    Fault("folder deleted while the cluster is left", 3, says="written again",
          plant=LEAVING.format("shutil.rmtree(RUN)")),
    Fault("folder deleted while it is left, seatrial", 3, program="seatrial",
          plant=LEAVING.format("shutil.rmtree(RUN)")),
    Fault("events edited while it is left", 3, says="written again", plant=LEAVING.format(EDIT)),
    Fault("page replaced while it is left", 0,  # it is rendered again
          plant=LEAVING.format("(RUN / 'report.html').write_text('x')")),
    Fault("folder deleted while it is left, a criterion failed", 1, value=BROKEN,
          plant=LEAVING.format("shutil.rmtree(RUN)")),
    Fault("leaving takes a while", 0, plant=LEAVING.format("import time; time.sleep(1)")),
    Fault("folder deleted before, and again", 3, "shutil.rmtree(RUN)",
          plant=LEAVING.format("shutil.rmtree(RUN)")),
)  # fmt: skip
BOUNDS = (
    Fault("ulimit -n 40", 0, shell='ulimit -n 40; exec "$@"'),
    Fault("umask 777", 0, shell='umask 777; exec "$@"'),
)
PLUGIN = """
def pytest_sessionfinish(session): raise {}
"""
BROKEN_PLUGINS = (
    Fault("another plugin's end", 3, plant=PLUGIN.format("RuntimeError('it broke')"),
          says="it broke"),
    Fault("another plugin leaves", 3, plant=PLUGIN.format("SystemExit(1)")),
    Fault("an internal error", 3, plant="def pytest_runtest_logfinish(): raise OSError('it broke')",
          says="it broke"),
)  # fmt: skip
KEPT = """
from probes.cluster.cleanup import CleanupProcess
StandIn.cleanup = CleanupProcess()
StandIn.close = lambda self: self.cleanup.close()
"""
KILL = "os.kill(cluster.cleanup._child.pid, signal.SIGKILL)"
CLEANUP = (
    Fault("the process that cleans up dies", 3, f"{KILL}; time.sleep(0.5)", plant=KEPT,
          says="replaces it"),
    Fault("it dies before a folder is kept", 3,
          f"{KILL}; cluster.cleanup.register('folder', '/tmp/none')", plant=KEPT, says="cleanup"),
    Fault("it dies, and a criterion failed", 1, f"{KILL}; time.sleep(0.5)", plant=KEPT,
          value=BROKEN),
)  # fmt: skip
OUR_END = """
import probes.session.ending as ending
def broken(*a): raise TypeError("our end broke")
ending.Ending.write = broken
"""
OURS = (Fault("our own end breaks", 3, plant=OUR_END, record=2, whole=False),)
HEADLESS = "cluster.head.kill(); time.sleep(300)"
DEAF = """cluster.head.kill()
    while True:
        try: time.sleep(300)
        except BaseException: pass"""
MOMENT = """cluster.head.send_signal(signal.SIGSTOP); os.system('sleep 0.2')
    cluster.head.send_signal(signal.SIGCONT); time.sleep(2)"""
OTHER = (
    'measure.explain(__import__("probes.findings").findings.finding('
    '"GANG-PARTIAL", "another finding", ["n0"]))'
)
LOST = "Ray's head at 127.0.0.1:"
CLUSTER = (
    Fault("the head dies", 20, HEADLESS, plant=HEADED, says=LOST),
    Fault("the head dies, seatrial", 20, HEADLESS, plant=HEADED, says=LOST, program="seatrial"),
    Fault("the head dies, and a criterion failed", 1, HEADLESS, plant=HEADED, value=BROKEN),
    Fault("the head dies in a call that does not return", 20, DEAF, plant=HEADED, says=LOST),
    Fault("the head dies, and a teardown waits", 20, HEADLESS, "time.sleep(300)", plant=HEADED),
    Fault("the head dies, and a teardown fails", 20, HEADLESS, "raise OSError", plant=HEADED),
    Fault("the head dies, and a user interrupts", 2,
          "cluster.head.kill(); time.sleep(1); send('SIGINT')", plant=HEADED),
    Fault("the head is silent for a moment", 0, MOMENT, plant=HEADED),
)  # fmt: skip
UNSEEN = f"{NODES}\nwatch.POLL_S = 100.0"  # only who asks sees it
DEAD = "cluster.change(alive=False, reason=2, message='health check failed')"
WAITS = "time.sleep(300)"  # for the node
GONE_LATER = f"cluster = __import__('probes').session.session.connect(''); {DEAD}; time.sleep(1)"
NODE_LOST = "n1: lost (Ray's reason: unexpected termination: health check failed). Seen "
NODE = (
    Fault("a node is lost", 20, f"{DEAD}; {WAITS}", plant=NODES, says=NODE_LOST),
    Fault("a node is lost, seatrial", 20, f"{DEAD}; {WAITS}", plant=NODES, says=NODE_LOST,
          program="seatrial"),
    Fault("a node is lost, and a criterion failed", 1, f"{DEAD}; {WAITS}", plant=NODES,
          value=BROKEN, says=NODE_LOST),
    Fault("a node is lost in a call that does not return", 20,
          f"{DEAD}\n    {DEAF.partition(chr(10))[2].lstrip()}", plant=NODES, says=NODE_LOST),
    Fault("a node is lost, and a teardown fails", 20, f"{DEAD}; {WAITS}", "raise OSError",
          plant=NODES, says=NODE_LOST),
    Fault("a node is lost between two probes", 20, teardown=GONE_LATER, plant=NODES,
          says=NODE_LOST),
    Fault("a node is lost after SIGINT", 2, "send('SIGINT')", f"{GONE_LATER}; time.sleep(3)",
          plant=NODES),
    Fault("a node is drained", 20, "cluster.change(drained_by=time.time() + 29); "
          f"{WAITS}", plant=NODES, says="n1: being drained, it ends in 2"),
    Fault("a node comes back", 20, f"cluster.add(id='9', name='n1'); {DEAD}; {WAITS}",
          plant=NODES, says="n1: lost and back with a different node id"),
    Fault("Ray lists a node no more", 20, f"cluster.drop(); {WAITS}",
          plant=NODES, says="n1: lost, Ray no longer lists it"),
    Fault("one list lacks a node", 0, "cluster.answer(lambda: cluster.states[:1])", plant=NODES),
    Fault("one list is empty", 0, "cluster.answer(list)", plant=NODES),
    Fault("one list is late", 0, "cluster.answer(lambda: time.sleep(1) or cluster.states)",
          plant=NODES),
    Fault("Ray gives no list", 0, "cluster.answer(*[lambda: 1 / 0] * 5)", plant=NODES),
    Fault("the autoscaler ends an idle node", 0,
          "cluster.change(alive=False, reason=4); time.sleep(1)", plant=NODES),
    Fault("a probe ends a node, and says so", 0,
          f"cluster.watched(); cluster.expected_losses.add('2'); {DEAD}; time.sleep(1)",
          plant=NODES),
    Fault("a node that came later is lost", 0,
          "cluster.watched(); cluster.add(id='9'); cluster.drop(); time.sleep(1)", plant=NODES),
)  # fmt: skip
# The machine's clock is set in the middle of a probe.
CLOCK = """
import datetime as real
import reports.run_folder.times as times
class Set(real.datetime):
    shift_s = 0
    @classmethod
    def now(cls, zone=None):
        return real.datetime.now(zone) + real.timedelta(seconds=cls.shift_s)
times.datetime = Set
StandIn.set_clock = lambda self, seconds: setattr(Set, "shift_s", seconds)
"""
YEARS_S = 6 * 365 * 86400
STEPS = (
    Fault("the clock is set back by years", 0, f"cluster.set_clock(-{YEARS_S})", plant=CLOCK,
          says="back by 189216000 s."),
    Fault("the clock is set forward and back", 0,
          "cluster.set_clock(3600); measure.note('a', 1); cluster.set_clock(0)", plant=CLOCK,
          says="forward by 3600 s."),
)  # fmt: skip
FAULTS = (
    *SIGNALS,
    *TERMINAL,
    *FOLDER,
    *WHILE_LEFT,
    *BOUNDS,
    *BROKEN_PLUGINS,
    *CLEANUP,
    *CLUSTER,
    *NODE,
    *STEPS,
    *OURS,
)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A folder of its own for the run."""
    place = tmp_path / "place"
    place.mkdir()
    return Stage(place, place / "run")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_run_ends_with_its_record(stage: Stage, fault: Fault) -> None:
    ended = fault.end(stage)
    assert ended.code == fault.code, ended.text
    due = fault.code if fault.record is None else fault.record
    assert ended.summary.exit_code == due, ended.sentences
    assert "Traceback" not in ended.text.replace("INTERNALERROR> Traceback", "")
    assert fault.says in ended.sentences
    assert ended.is_whole or not fault.whole, ended.sentences
    if fault.whole and "/dev" not in fault.shell and "&-" not in fault.shell:
        assert f"exit {fault.code}" in ended.text, "the table"


@pytest.mark.parametrize("value", [GOOD, BROKEN], ids=["nothing failed", "a criterion failed"])
def test_a_lost_head_is_the_first_finding(stage: Stage, value: str) -> None:
    stage.prepare(f"{OTHER}; {HEADLESS}", value=value, plant=HEADED)
    ended = stage.end()
    assert len(ended.summary.findings) == 2
    assert ended.summary.findings[0].code == "HOST-HEAD", ended.text
    (row,) = [row for row in ended.summary.rows if row.criterion.id == "GANG"]
    assert row.verdict.value == ("UNPROVEN" if value == GOOD else "FAIL")
    assert LOST in row.results[0].error
    assert ended.text.count("report  ") == 1
    assert ended.summary.record.state == "finished"


UNCAUGHT = (
    "trial = measure.trial(); trial('partially_held', 0); "
    "measure.control('one bundle early', 'a fault', trial)"
)
# What a probe sees of a lost node before the watch does.
FOLLOWS = [
    pytest.param(UNCAUGHT, "did not find the planted fault", id="a control"),
    pytest.param(BROKEN, "partially held", id="a measure"),
    pytest.param(OTHER, "another finding", id="a finding"),
    pytest.param("raise RuntimeError('rank 1 died')", "rank 1 died", id="an error"),
]


@pytest.mark.parametrize(("then", "text"), FOLLOWS)
def test_what_follows_from_a_lost_node_is_not_said(stage: Stage, then: str, text: str) -> None:
    stage.prepare(f"{DEAD}; {then}; {WAITS}", plant=UNSEEN)
    ended = stage.end()
    assert ended.code == ended.summary.exit_code == 20, ended.text
    assert [finding.code for finding in ended.summary.findings] == ["HOST-NODE-LOST"]
    assert text not in ended.text
    assert all(control.caught for one in ended.summary.record.results for control in one.controls)


# A raylet that ends a second before Ray counts its node as dead.
SILENT = (
    UNSEEN
    + """
import socket, threading
raylet = socket.create_server(("127.0.0.1", 0))
def serve():
    while True:
        line = raylet.accept()[0]
        line.recv(9), line.send(b"x"), line.close()
threading.Thread(target=serve, daemon=True).start()
watch_states[1] = dataclasses.replace(
    watch_states[1], address="127.0.0.1", port=raylet.getsockname()[1]
)
def leave(self):
    raylet.shutdown(socket.SHUT_RDWR), raylet.close()
    threading.Timer(1, lambda: self.change(alive=False, reason=2)).start()
StandIn.leave = leave
"""
)


def test_a_silent_node_is_waited_for_until_ray_decides(stage: Stage) -> None:
    stage.prepare(f"cluster.watched(); cluster.leave(); {UNCAUGHT}; {WAITS}", plant=SILENT)
    ended = stage.end()
    assert ended.code == 20, ended.text
    assert "did not find the planted fault" not in ended.text
    assert [finding.code for finding in ended.summary.findings] == ["HOST-NODE-LOST"]


def test_a_bad_result_of_a_sound_cluster_stays(stage: Stage) -> None:
    stage.prepare(UNCAUGHT, plant=SILENT)
    ended = stage.end()
    assert ended.code == 20
    assert "did not find the planted fault" in ended.text
    assert ended.summary.findings == []


def test_a_lost_node_ends_what_waits_for_it_at_once(stage: Stage) -> None:
    """A probe would wait for the node for 40 s."""
    stage.prepare(f"{OTHER}; {DEAD}; {WAITS}", plant=NODES)
    ended = stage.end()
    assert [one.code for one in ended.summary.findings] == ["HOST-NODE-LOST", "GANG-PARTIAL"]
    (row,) = [row for row in ended.summary.rows if row.criterion.id == "GANG"]
    first, second = row.results
    assert first.seconds < 40 / 5
    assert (row.verdict.value, second.state) == ("UNPROVEN", "not run")
    assert first.findings[-1].suspects == ["n1"]
    assert first.error == first.findings[-1].statement
    assert "did not find the planted fault" not in ended.text
    assert ended.summary.record.state == "finished"


MOMENTS, FAST = 10, 4  # of a run that takes 3 s, from its first event on; and how many are fast
SEEDS = [
    pytest.param(seed, marks=[pytest.mark.soak(criterion="endings")] * (seed >= FAST))
    for seed in range(2 * MOMENTS)
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_signal_at_any_moment_leaves_one_verdict(stage: Stage, seed: int) -> None:
    random = Random(seed)
    program, name = random.choice(["pytest", "seatrial"]), random.choice(["SIGINT", "SIGTERM"])
    moment = (seed * 3 % MOMENTS + random.random()) * 3 / MOMENTS
    stage.prepare("time.sleep(0.5)", "time.sleep(0.2)")
    child = stage.start(program)
    events, deadline = stage.run / "events.jsonl", time.monotonic() + LONGEST_S
    while not (events.exists() and b"run_owes" in events.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.02)  # between two looks
    time.sleep(moment)  # the moment is the case
    child.send_signal(getattr(signal, name))
    text, _ = child.communicate(timeout=LONGEST_S)
    ended = Ended(child.returncode, text.decode(), stage.run)
    assert ended.code in (0, 2), ended.text
    assert ended.summary.exit_code == ended.code, (moment, ended.sentences)
    assert ended.is_whole, (moment, sorted(ended.folder.iterdir()), ended.sentences)
    assert f"exit {ended.code}" in ended.text


def test_a_file_that_may_not_grow_is_said_before_the_run(stage: Stage) -> None:
    ended = Fault("", 4, shell='ulimit -f 16; exec "$@"').end(stage)
    assert ended.code == 4
    assert "a run needs its own folder" in ended.text
    assert "Traceback" not in ended.text


@pytest.mark.parametrize("program", ["pytest", "seatrial"])
@pytest.mark.parametrize("lines", [1, 9])
def test_a_reader_that_leaves_does_not_end_the_run(stage: Stage, program: str, lines: int) -> None:
    """As with `| head -1`."""
    stage.prepare(fault="time.sleep(1)")
    child = stage.start(program)
    assert child.stdout is not None
    for _ in range(lines):
        child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=LONGEST_S) == 0
    ended = Ended(0, "", stage.run)
    assert ended.summary.exit_code == 0
    assert ended.is_whole


@pytest.mark.parametrize("program", ["pytest", "seatrial"])
def test_the_third_signal_leaves_a_terminal_that_is_stopped(stage: Stage, program: str) -> None:
    """As by Ctrl-S, or a pager: what is printed waits, and so does who prints."""
    stage.prepare("[os.write(2, b'x' * 4096) for _ in range(60)]; time.sleep(1)")
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [*stage.words(program), *(["-s"] if program == "pytest" else ["--", "-s"])],
        cwd=stage.place, env={**os.environ, "PYTHONPATH": str(REPO), "PYTEST_ADDOPTS": ""},
        stdin=subprocess.DEVNULL, stdout=writing, stderr=writing,
    )  # fmt: skip
    try:
        events, deadline = stage.run / "events.jsonl", time.monotonic() + LONGEST_S
        while not (events.exists() and b'"control"' in events.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.02)  # between two looks
        for _ in range(3):
            time.sleep(1)  # it is stopped by then, and each signal is handled
            child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 2
    finally:
        child.kill()
        child.wait()
        os.close(reading)
        os.close(writing)
    ended = Ended(2, "", stage.run)
    assert ended.summary.exit_code == 2
    assert ended.is_whole


# Until the log's last page has room for the events of a test's end: a full disk has no other page.
ROOM = (
    "[measure.note(f'p{{i}}', i) for i in range(40)"
    " if os.path.getsize('{}/run/events.jsonl') % 4096 > 1500]"
)
FILL = "os.system('head -c 400M /dev/zero >{}/fill 2>/dev/null')"
MANY = "[measure.note('n' + str(i), i) for i in range(2000)]"


@needs_root
@pytest.mark.parametrize("program", ["pytest", "seatrial"])
@pytest.mark.parametrize(("more", "code"), [("pass", 0), (MANY, 3)], ids=["few", "many events"])
def test_a_disk_that_stays_full(stage: Stage, program: str, more: str, code: int) -> None:
    """The run keeps room for its end: only events that were lost make it 3, in the record, too."""
    with small_disk(stage.place / "disk", "300m") as disk:
        full = Stage(stage.place, Path(disk) / "run")
        full.prepare(f"{ROOM.format(disk)}; {FILL.format(disk)}; {more}")
        ended = full.end(program)
        assert ended.code == code, ended.text
        assert "INTERNALERROR" not in ended.text
        assert code == 0 or "No space left on device" in ended.text
        assert ended.summary.exit_code == code, ended.sentences


@pytest.mark.parametrize("program", ["pytest", "seatrial"])
def test_usage_is_4_where_the_terminal_is_full(stage: Stage, program: str) -> None:
    stage.prepare()
    (stage.place / "agreed.toml").write_text("schema = 1\n[cluster\n")
    ended = stage.end(program, 'exec "$@" >/dev/full 2>&1')
    assert ended.code == 4


def test_the_next_run_works(stage: Stage) -> None:
    for fault in (SIGNALS[0], FOLDER[0]):
        fault.end(stage)
        stage.clear()
    assert Fault("", 0).end(stage).code == 0


def test_a_step_of_the_clock_is_on_page_1_and_costs_no_verdict(stage: Stage) -> None:
    stage.prepare(
        "cluster.set_clock(-9e7); measure.note('a', 1); cluster.set_clock(0)", plant=CLOCK
    )
    ended = stage.end()
    summary = ended.summary
    back, forward = summary.record.clock_steps
    assert " back by 90000000 s. " in back
    assert " forward by 90000000 s. " in forward
    page = (stage.run / "report.html").read_text()
    assert page.index("forward by 90000000 s") < page.index("Result of each criterion")
    assert (ended.code, summary.exit_code, summary.reasons) == (0, 0, [])
    assert summary.record.started < (summary.record.finished or "")


def test_one_full_disk_is_said_once(stage: Stage) -> None:
    """It ends both probes: each says so in its own place of the page, and none with a traceback."""
    stage.prepare()
    full = "raise OSError(28, 'No space left on device', '/shared/step')"
    for name in ("broken", "sound"):
        file = stage.place / f"test_{name}.py"
        file.write_text(f"{file.read_text().rstrip()}\n    {full}\n")
    ended = stage.end()
    assert ended.code == 20
    assert "Traceback" not in ended.text
    text = "error: No space left on device: /shared/step"
    table = ended.text.partition("= acceptance =")[2]
    assert table.count(f"\n  GANG     {text}") == 1
    page = (stage.run / "report.html").read_text()
    begin, end = page.index("Do next"), page.index("Sign-off")
    assert page[begin:end].count(text) == 1
