"""What every recording renders to and what nccl-log says of every case, kept as text.

A change that must not change what users read (a move, a rename) leaves these files as they are;
one that must is read in their diff, line by line.
"""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

from probes.nccl.report import analyse_files
from reports.acceptance import load_summary
from reports.formats.junit import ctrf, junit
from reports.formats.prometheus import prometheus
from reports.frames.measurements import csv_text
from reports.page.render import render
from reports.text import acceptance_table
from tests.recordings.generate.nccl_logs import VERSIONS, Job, faulty
from tests.support.paths import RECORDINGS

GOLDENS = RECORDINGS.parent / "goldens"
WIDTH = 100  # columns of the terminal that is kept


class _PageText(HTMLParser):
    """Collects the words of a page, one text node a line, without style sheet and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._in_style = False
        self._code = ""
        self._in_code = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style, self._in_code = tag == "style", self._in_code or tag == "code"
        shown = dict(attrs)
        self.lines += [shown[key] or "" for key in ("aria-label", "title", "href") if key in shown]

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False
        if tag == "code":  # a command is one line, whatever marks its words
            self._in_code, text, self._code = False, self._code, ""
            self.handle_data(text)

    def handle_data(self, data: str) -> None:
        if self._in_code:
            self._code += data
            return
        lines = [re.sub(r"\s+", " ", line).strip() for line in data.splitlines()]
        self.lines += [line for line in lines if line and not self._in_style]


def page_text(page: str) -> str:
    """Returns what a reader of an HTML page sees or is told, one piece a line."""
    parser = _PageText()
    parser.feed(page)
    return "\n".join(parser.lines) + "\n"


def of_run(run: Path) -> dict[str, str]:
    """Returns the renderings of one run folder by file name."""
    summary = load_summary(run)
    return {
        "record.json": summary.record.model_dump_json(indent=1) + "\n",
        "terminal.txt": acceptance_table(summary, WIDTH) + "\n",
        "page.txt": page_text(render(summary, run)),
        "measurements.csv": csv_text(summary.record.frame()),
        "metrics.prom": prometheus(summary),
        "ctrf.json": json.dumps(ctrf(summary), indent=1) + "\n",
        "junit.xml": junit(summary),
    }


WHOLE = ("INIT-MISSING-RANK", "INIT-HANG")


def of_nccl_log(version: str) -> str:
    """Returns what nccl-log says of a sound job and of each fault, in one version's words.

    All ranks write into one file.  It is whole where it could not show the fault otherwise.
    """
    jobs = {"none": Job(version), **faulty(version)}
    return "\n".join(f"== {code}\n{_said(job.text(), code in WHOLE)}" for code, job in jobs.items())


def _said(log: str, whole: bool) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        path.write_text(log)
        answer = analyse_files([path], whole=whole)
    return f"{answer.text(WIDTH)}\nexit {answer.exit_code}\n"


def built(runs: list[Path]) -> dict[str, str]:
    """Returns every golden text by its path in the folder."""
    texts = {f"{run.name}/{name}": text for run in runs for name, text in of_run(run).items()}
    return texts | {f"nccl-{version}.txt": of_nccl_log(version) for version in VERSIONS}


def write(runs: list[Path]) -> None:
    """Writes all of them anew; look at `git diff` before keeping it."""
    shutil.rmtree(GOLDENS, ignore_errors=True)
    for name, text in built(runs).items():
        path = GOLDENS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
