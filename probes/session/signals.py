"""Handles the signals that end a run: SIGINT, SIGTERM and SIGHUP.

The first one ends the probe that runs, the second one says what is being waited for, and the third
one leaves.  GitHub cancels with SIGINT and then SIGTERM, Slurm and Docker repeat SIGTERM, and ssh
ends with SIGHUP.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from reports.streams import flush_streams, wait_for

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVING = 3  # so many signals leave a run; one more does not wait for its record
INTERRUPTED = 2  # exit code
EXIT = os._exit  # at once; while a run lasts, os._exit is `Signals.refuse`


class RunLost(KeyboardInterrupt):
    """Ends the run because the cluster is lost.  Like Ctrl-C it passes `except Exception`."""


class Signals:
    """Signals of one run; only the main thread handles them, as Python asks."""

    def __init__(self) -> None:
        self._old: dict[int, Any] = {}
        self._is_taken = False
        self._screen = -1
        self._since = 0.0
        self._what = ""  # is being waited for; empty while probes run
        self._reason = ""  # of the next signal, which `lose` sends
        self._is_held = self._came_held = False  # a signal waits for `release`; one does
        self.count = 0
        self.came_in_time = False  # before the end of the run began
        self.lost = ""  # why the run ended, where its cluster was lost before
        self.leave: Callable[[], None] | None = None  # writes the end, and does not return

    @property
    def ends_run(self) -> bool:
        """Whether no further probe may begin."""
        return self.came_in_time or bool(self.lost)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle the signals meanwhile; inside another such block nothing changes."""
        if self._is_taken or threading.current_thread() is not threading.main_thread():
            yield
            return
        self.count, self._since, self._what, self.leave = 0, 0.0, "", None
        self.came_in_time, self.lost, self._reason = False, "", ""
        self._is_held = self._came_held = False
        with suppress(OSError):  # pytest captures the file of that number
            self._screen = os.dup(2)
        self._is_taken = True
        self.take()
        vars(os)["_exit"] = partial(self.refuse, os.getpid())
        try:
            yield
        finally:
            vars(os)["_exit"] = EXIT
            for number, old in self._old.items():
                signal.signal(number, old)
            self._old, self._is_taken = {}, False
            if self._screen >= 0:
                os.close(self._screen)
            self._screen = -1

    def take(self) -> None:
        """Handle the signals from now on, again if others took them: Ray takes SIGTERM.

        What was ignored from the start, as SIGHUP under nohup, stays so.
        """
        for number in ENDING if self._is_taken else ():
            old = self._old.setdefault(number, signal.getsignal(number))
            signal.signal(number, old if old == signal.SIG_IGN else self._handle)

    def settle(self, code: int) -> None:
        """Let a signal end this process with the code of its run, which is over.

        Python's own end takes some 0.3 s, and resets every handler of Python but SIG_IGN.
        """

        def leave(*_: object) -> None:
            wait_for(flush_streams)
            EXIT(code)

        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                signal.signal(number, leave)
            atexit.register(_ignore)

    def wait_for(self, what: str) -> None:
        """Note what the end of the run waits for; from now on a signal does not interrupt."""
        self._since = self._since or time.monotonic()
        self._what = what

    def hold(self) -> None:
        """Let signals wait for `release`: a run that has begun has nothing yet that ends it."""
        self._is_held = self._is_taken

    def release(self) -> None:
        """Handle signals again, and the one that waited."""
        self._is_held = False
        if self._came_held:
            self._came_held = False
            self._handle()

    def lose(self, sentence: str) -> None:
        """Raise RunLost in the main thread, which a call may block; safe in other threads."""
        self._reason = sentence
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def say(self, text: str) -> None:
        """Print a line on the terminal, whatever pytest captures; not where that is gone."""

        def write() -> None:
            with suppress(OSError):
                os.write(self._screen, f"\nseatrial: {text}\n".encode())

        wait_for(write)  # a terminal may be stopped (Ctrl-S), and the signal must do its work

    def _handle(self, *_: object) -> None:
        if self._is_held:
            self._came_held = True
            return
        reason, self._reason = self._reason, ""
        if reason:
            if not self._what:
                self.lost = reason
                self.wait_for("the running test stops")
                raise RunLost(reason)
            return
        self.count += 1
        if self.count == 1 and not self._what:
            self.came_in_time = True
            self.wait_for("the running test stops")
            raise KeyboardInterrupt
        if self.count < LEAVING:
            seconds = time.monotonic() - self._since
            more = LEAVING - self.count
            once = "One more signal ends" if more == 1 else f"{more} more signals end"
            waits = f"the run has been ending for {seconds:.0f} s: it waits until {self._what}"
            self.say(f"{waits}. {once} the run at once.")
        elif self.count == LEAVING and self.leave:
            # The main thread goes on: it may hold the lock of what has to be written.
            threading.Thread(target=self.leave, name="seatrial leaves", daemon=True).start()
        else:
            EXIT(INTERRUPTED)

    def refuse(self, pid: int, code: int) -> None:
        """Leave as an interrupted run, if a test calls os._exit: a gate reads the code.

        Child processes leave as they want; `pid` is that of the run.
        """
        if os.getpid() == pid:
            self.say(f"a library or test called os._exit({code}). The run ends as interrupted.")
            if self.leave:
                self.leave()
            code = INTERRUPTED
        EXIT(code)


def _ignore() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


SIGNALS = Signals()
