"""Words that come from elsewhere: host names, log lines, error texts.

Nobody vouches for them, so they are made harmless where they are shown.  The record keeps
them as they were seen.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import quote

# ECMA-48: CSI sequences, then OSC/DCS/SOS/PM/APC strings up to their end, then lone escapes.
ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 but tab and newline, DEL, C1; zero-width and direction marks, which can reorder or hide
# words (the "Trojan source" trick); line separators; lone surrogates; letters without ink (fillers
# of Hangul and Braille, joiners, selectors, tags), by which two names look alike.
INVISIBLE_CHARS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
# Marks of commands that a CI runner obeys in the output of a job: GitHub's `::name ...::` where a
# line begins with it, which a wrapped line may; the others anywhere in a line.
CI_COMMAND = re.compile(
    r"#(?=#(?:vso|teamcity)?\[)"
    r"|:(?=:(?:add-mask|add-matcher|add-path|debug|echo|endgroup|error|group"
    r"|internal-set-repo-path|notice|remove-matcher|save-state|set-env|set-output|stop-commands"
    r"|warning)(?:\s|::|$))",
    re.IGNORECASE,
)
# Where a spreadsheet may see a formula begin: at the start, and after what it may split a cell at.
FORMULA = re.compile(
    r"(?P<before>^\s*|;\s*|%0[ad]\s*)(?P<sign>[=+\-@|\uff1d\uff0b\uff0d\uff20])", re.IGNORECASE
)


def clean(text: object) -> str:
    """`text` without escape sequences and invisible characters; newlines and tabs stay.

    A blank within the mark of a CI command breaks it; ids of tests (`file.py::test`) stay whole.
    """
    visible = INVISIBLE_CHARS.sub("", ANSI.sub("", str(text).replace("\r\n", "\n")))
    return CI_COMMAND.sub(r"\g<0> ", visible)


def one_line(text: object) -> str:
    """`clean`, on one line: no word can begin a line of its own."""
    return " ".join(clean(text).split())


def capitalise(text: object) -> str:
    """`one_line`, beginning with a capital."""
    line = one_line(text)
    return line[:1].upper() + line[1:]


def ascii_only(text: str) -> str:
    """What is not ASCII as backslash escapes, for terminals that cannot show it."""
    return text.encode("ascii", "backslashreplace").decode()


def csv_cell(text: object) -> str:
    """A text cell that no spreadsheet takes for a formula: a quote is put before its sign."""
    return FORMULA.sub(r"\g<before>'\g<sign>", one_line(text))


def label_value(text: object) -> str:
    """A Prometheus label value: backslash, quote and newline escaped."""
    return clean(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def relative_link(path: str) -> str | None:
    """A link to a file inside the run folder, or None when the path points anywhere else."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or one_line(path) != path:
        return None
    return "./" + "/".join(quote(part, safe="") for part in parts)
