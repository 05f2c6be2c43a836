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
# words (the "Trojan source" trick); line separators; lone surrogates.
INVISIBLE_CHARS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069"
    "\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
FORMULA_START = re.compile(r"^\s*[=+\-@\t\r]")


def clean(text: object) -> str:
    """`text` without escape sequences and invisible characters; newlines and tabs stay."""
    return INVISIBLE_CHARS.sub("", ANSI.sub("", str(text).replace("\r\n", "\n")))


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
    """A text cell that no spreadsheet takes for a formula: a quote is put before = + - @."""
    cell = one_line(text)
    return "'" + cell if FORMULA_START.match(cell) else cell


def label_value(text: object) -> str:
    """A Prometheus label value: backslash, quote and newline escaped."""
    return clean(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def relative_link(path: str) -> str | None:
    """A link to a file inside the run folder, or None when the path points anywhere else."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or one_line(path) != path:
        return None
    return "./" + "/".join(quote(part, safe="") for part in parts)
