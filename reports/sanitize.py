"""Cleans text that others wrote, and finds names that are spelled alike."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import PurePosixPath
from urllib.parse import quote

# ECMA-48: CSI sequences, then OSC/DCS/SOS/PM/APC strings up to their end, then lone escapes.
ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 except tab and newline, DEL, C1; zero-width and direction marks, which can reorder or hide
# words (the "Trojan source" attack); line separators; lone surrogates; invisible letters (Hangul
# and Braille fillers, joiners, selectors, tags), which make different names look equal. XML has no
# U+FFFE and U+FFFF.
INVISIBLE_CHARS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
# Markers of commands that a CI runner executes from the output of a job. GitHub's `::name ...::`
# works at the start of a line, where wrapping may put it. The others work anywhere in a line.
CI_COMMAND = re.compile(
    r"#(?=#(?:vso|teamcity)?\[)"
    r"|:(?=:(?:add-mask|add-matcher|add-path|debug|echo|endgroup|error|group"
    r"|internal-set-repo-path|notice|remove-matcher|save-state|set-env|set-output|stop-commands"
    r"|warning)(?:\s|::|$))",
    re.IGNORECASE,
)
# Places where a spreadsheet may start a formula: the start of a cell, and after a cell separator.
FORMULA = re.compile(
    r"(?P<before>^\s*|;\s*|%0[ad]\s*)(?P<sign>[=+\-@|\uff1d\uff0b\uff0d\uff20])", re.IGNORECASE
)


def clean(text: object) -> str:
    """Remove escape sequences and invisible characters; newlines and tabs stay.

    A space inserted into the marker of a CI command disables it. Test ids (`file.py::test`) stay
    unchanged.
    """
    visible = INVISIBLE_CHARS.sub("", ANSI.sub("", str(text).replace("\r\n", "\n")))
    return CI_COMMAND.sub(r"\g<0> ", visible)


def one_line(text: object) -> str:
    """Clean the text and put it on one line, so that no word can start a new line."""
    return " ".join(clean(text).split())


def last_line(text: object, otherwise: str = "") -> str:
    """Return the last line of a text, as of an error with its traceback; `otherwise` for none."""
    return (str(text).strip().splitlines() or [otherwise])[-1]


def capitalise(text: object) -> str:
    """Return `one_line` of the text with a capital first letter."""
    line = one_line(text)
    return line[:1].upper() + line[1:]


def probe_words(probe: str) -> str:
    """Write the name of a probe's test in words: `a.py::test_it_ends` is "it ends"."""
    return probe.rpartition("::")[2].removeprefix("test_").replace("_", " ")


def known_address(text: object) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; None for another text."""
    try:
        return ip_address(str(text))
    except ValueError:
        return None


def ascii_only(text: str) -> str:
    """Replace non-ASCII characters with backslash escapes, for terminals that lack them."""
    return text.encode("ascii", "backslashreplace").decode()


def csv_cell(text: object) -> str:
    """Return a text cell that no spreadsheet reads as a formula: a quote precedes its sign."""
    return FORMULA.sub(r"\g<before>'\g<sign>", one_line(text))


def label_value(text: object) -> str:
    """Escape backslash, quote and newline for a Prometheus label value."""
    return clean(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def relative_link(path: str) -> str | None:
    """Return a link to a file inside the run folder; None if the path points anywhere else."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or one_line(path) != path:
        return None
    return "./" + "/".join(quote(part, safe="") for part in parts)


def closest_name(word: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `word`; "" if none is like it."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")
