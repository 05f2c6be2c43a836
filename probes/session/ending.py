"""Ends a run: writes its end, and decides its exit code.  Nothing here raises.

The end is written before what the run made is torn down, and again where the teardown adds to it.
The events in memory decide where the run folder cannot be read.  Exit code 1 is for a criterion
that failed, 2 for a signal, 3 for what broke in the suite or under it, as a disk or a folder.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probes.session.signals import EXIT, INTERRUPTED, SIGNALS
from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.exports import render_all, write_all
from reports.formats.github import report_to_github
from reports.frames.history import Baseline, choose_baseline
from reports.record import RunProblem, RunRecord
from reports.redact import redact_text
from reports.run_folder.event_log import FOLDERS, UnreadableRun
from reports.run_folder.integrity import Integrity, read_run
from reports.sanitize import one_line
from reports.streams import flush_streams, wait_for

if TYPE_CHECKING:
    from probes.session.session import RunSession

Problem = tuple[str, str, str]  # kind, where, text, as in RunProblem
FINISHED, CUT_OFF = "finished", "interrupted"  # states of a run
WRITE_S = 10.0  # for an end that is being written when the third signal comes; it takes 3 s
# What follows from a lost cluster is no problem of the suite.
FOLLOWS = ("teardown", "internal")


@dataclass(frozen=True)
class EndOptions:
    """What the end of a run needs of pytest's options; `show` prints a summary."""

    loaded: list[str]
    show: Callable[[AcceptanceSummary], None]
    baseline: Path | None = None
    junit: str = ""


class Ending:
    """The end of one run; threads may call every method."""

    def __init__(self, run: RunSession, options: EndOptions) -> None:
        self.run, self._options = run, options
        self.summary: AcceptanceSummary | None = None  # as it was written last
        self.lost = ""  # why the run ends, where its cluster is lost
        self._lock = threading.RLock()
        self._unwritten: list[Problem] = []  # problems that the event log does not have
        self._before: Baseline | None = None
        self._ended = threading.Event()
        self._is_shown = False
        self._is_sealed = False  # the files on disk are those of the last event
        self._sound: AcceptanceSummary | None = None  # of a folder that was read and verified
        SIGNALS.leave = self.leave_now
        run.on_lost = self.lose

    def write(self, state: str, problems: Iterable[Problem] = ()) -> AcceptanceSummary:
        """Write the end and every rendering; return what a later look at the run will say."""
        with self._lock:
            new = [one for one in problems if not (self.lost and one[0] in FOLLOWS)]
            if self.summary and not new and self.run.store.end_state == state and self._is_kept():
                return self.summary
            self.run.store.free_room()
            for problem in new:
                self._report(*problem)
            self._compare()
            if self.run.store.end_state != state:
                self._try("the run's files", lambda: self._finish(state))
            if not self._try("the run's files", self._write_files):
                self._write_what_goes()
            self.summary = self._look(state)
            return self.summary

    def close(self, state: str, problems: Iterable[Problem] = ()) -> AcceptanceSummary:
        """Write the end, leave the cluster, and write the end again if that fails."""
        SIGNALS.wait_for("the report is written")
        self.write(state, problems)
        SIGNALS.wait_for("seatrial has left the cluster")
        more = []
        try:
            self.run.leave()
        except Exception as error:  # noqa: BLE001 - the run must end, whatever the cluster does
            more = [("teardown", "the cluster", describe(error))]
        SIGNALS.wait_for("the report is written")
        with self._lock:
            summary = self.write(state, [*more, *self.run.take_problems()])
            self._close_store()
            self._ended.set()
        with suppress(Exception):
            report_to_github(summary)
        return summary

    def show(self) -> None:
        """Print the summary, once, whatever pytest prints."""
        with self._lock:
            if self.summary and not self._is_shown:
                self._is_shown = True
                with suppress(Exception):
                    self._options.show(self.summary)

    def lose(self, sentence: str, seconds: float) -> None:
        """End the run because its cluster is lost; the main thread may be blocked by it."""
        self.lost = sentence
        SIGNALS.lose(sentence)
        outlive = threading.Thread(target=self._outlive, args=(seconds,), daemon=True)
        outlive.name = "seatrial outlives"
        outlive.start()

    def _outlive(self, seconds: float) -> None:
        """End the run from here if the main thread has not done so in time."""
        if self._ended.wait(seconds):
            return
        with suppress(Exception):
            self.run.end_current(self.lost)
        summary = self.write(CUT_OFF if SIGNALS.came_in_time else FINISHED)
        wait_for(self.show)
        with suppress(Exception):
            report_to_github(summary)
        self._leave(summary.exit_code)

    def leave_now(self) -> None:
        """Write the end of an interrupted run, and leave with 2, whatever is still to be done."""
        if self.summary and self._ended.is_set():  # only this process is left to end
            self._leave(self.summary.exit_code)
        if self._lock.acquire(timeout=WRITE_S):
            summary = self.write(CUT_OFF)
            report = f"report  {self.run.store.path / 'report.html'}"
            lines = "stopped before the end of the run.", *map(one_line, (summary.headline, report))
            SIGNALS.say("\n".join(lines))
        self._leave(INTERRUPTED)

    def _leave(self, code: int) -> None:
        self._close_store()
        wait_for(flush_streams)
        EXIT(code)

    def _close_store(self) -> None:
        """Take no more events: one of another thread would take the sums back."""
        if self.run.store.end_state:
            with suppress(Exception):
                self.run.store.close()

    def _compare(self) -> None:
        """Choose the run to compare with, and record it with what was loaded; once."""
        if self._before is not None:
            return
        self._before = Baseline()
        store, loaded = self.run.store, self._options.loaded

        def compare() -> None:
            if self._options.baseline:
                self._before = choose_baseline(self._options.baseline, store.record())
            assert self._before is not None
            event = self._before.event(self.run.contract.baseline)
            store.event("run_updated", loaded=loaded, **event)

        self._try("the baseline", compare)

    def _finish(self, state: str) -> None:
        self.run.store.event("run_finished", finished=self.run.store.run_time, state=state)

    def _write_files(self) -> None:
        """Write record, renderings and sums, of a folder that verifies; raises Exception."""
        error, self._is_sealed = None, False
        try:
            self._write_once()
        except Exception as failure:  # noqa: BLE001 - the folder may be the cause
            error = failure
        if found := self._find_damage():
            self.run.store.write_again(found)
            self._write_once()
        elif error:
            raise error

    def _write_once(self) -> None:
        self._render(self.run.store.save())
        self._seal()

    def _write_what_goes(self) -> None:
        """Write the files again, now with the problem; leave out what cannot be written."""
        with suppress(OSError):  # no file is better than a wrong one
            Path(self._options.junit or self.run.store.path / "junit.xml").unlink()
        store = self.run.store
        for step in (store.save, lambda: self._render(store.record()), self._seal):
            with suppress(Exception):
                step()

    def _seal(self) -> None:
        """Write the sums of a run that has its end: without it, it was cut off."""
        self._is_sealed = False
        if self.run.store.end_state:
            self.run.store.seal()
            self._is_sealed = True

    def _render(self, record: RunRecord) -> None:
        folder, junit = self.run.store.path, self._options.junit
        summary = summarize_acceptance(record, self._integrity())
        before = self._before.summary if self._before else None
        write_all(folder, render_all(folder, summary, before))
        if junit:
            Path(junit).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / "junit.xml", junit)

    def _find_damage(self) -> str:
        """Read the run folder; return what is not as the run wrote it."""
        store, self._sound = self.run.store, None
        try:
            record, integrity = read_run(store.path)
            added = [path.name for path in store.path.iterdir() if path.is_dir()]
        except (UnreadableRun, OSError) as error:
            return describe(error) if isinstance(error, OSError) else str(error)
        problems = [*integrity.problems]
        problems += [f"{name}/ was added" for name in added if name not in FOLDERS]
        problems += ["the events of the run were changed"] * (integrity.head != store.head)
        if not problems and self._is_sealed:
            self._sound = summarize_acceptance(record, integrity)
        return next(iter(problems), "")

    def _is_kept(self) -> bool:
        """Whether a folder that was sound still is: others may change it as the cluster is left."""
        return not self._sound or not self._find_damage()

    def _integrity(self) -> Integrity:
        """Return what is known of a folder that holds what the run wrote."""
        return Integrity(events=self.run.store.count, head=self.run.store.head)

    def _look(self, state: str) -> AcceptanceSummary:
        """Return what a later look says; what the events in memory say where that is not theirs."""
        store = self.run.store
        if self._sound and self._sound.integrity.head == store.head:
            return self._sound
        if not self._unwritten and store.end_state:
            with suppress(UnreadableRun, OSError):
                summary = load_summary(store.path)
                if summary.integrity.head == store.head:
                    self._sound = None if summary.integrity.problems else summary
                    return summary
        record = store.record()
        problems = [RunProblem(kind=k, where=w, text=t) for k, w, t in self._unwritten]
        more = {"state": state, "problems": [*record.problems, *problems]}
        return summarize_acceptance(record.model_copy(update=more), self._integrity())

    def _try(self, where: str, step: Callable[[], None]) -> bool:
        """Take a step; an error becomes a problem of the run."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - after any error, the run must not end in 0
            self._report("rendering", where, describe(error))
            return False
        return True

    def _report(self, kind: str, where: str, text: str) -> None:
        """Record a problem: a run with one accepts nothing."""
        try:
            self.run.report_problem(kind, where, text)
        except Exception:  # noqa: BLE001 - it is kept here
            problem = (kind, where, redact_text(text))
            self._unwritten += [problem] * (problem not in self._unwritten)


def describe(error: BaseException) -> str:
    """Describe an error in one line: the system's words and the file, else its type and text."""
    if isinstance(error, OSError) and error.strerror:
        name = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
        return one_line(f"{error.strerror}{name}")
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
