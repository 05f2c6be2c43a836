"""Reads the guide that a user follows: the commands of its fenced blocks, in their order."""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

SHELLS = frozenset(("sh", "bash", "shell", "zsh", "console", "shell-session", "terminal"))
SKIP = "<!-- seatrial: skip -->"  # before a block that is no step of the path
MAX_BYTES = 1 << 20
FETCH_SECONDS = 15
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
HEADING = re.compile(r"^(?P<level>#{1,6})\s+(?P<title>.*?)\s*#*$")


class GuideError(RuntimeError):
    """Raised when a guide cannot be read, or has no commands; the message says what to do."""


@dataclass(frozen=True)
class Command:
    """A line that a user types, and where it stands in the guide."""

    line: int
    text: str


@dataclass(frozen=True)
class Guide:
    """A guide: its name, its text, and the commands in it."""

    name: str
    text: str
    own: bool  # seatrial's, not the operator's
    commands: tuple[Command, ...]

    @property
    def sha256(self) -> str:
        """Hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def script(self, values: Mapping[str, str]) -> str:
        """Return the commands as a shell script; each key of `values` is replaced by its value.

        Raises GuideError for a key that no command has: the guide has changed since.
        """
        script = "".join(f"{command.text}\n" for command in self.commands)
        for placeholder in values:
            if placeholder not in script:
                raise GuideError(
                    f"{self.name}: no command has {placeholder!r}: correct the key in the "
                    "contract's [launch.values]"
                )
        # All at once: what one value brings in is no placeholder of another.
        keys = sorted(values, key=len, reverse=True)
        pattern = "|".join(map(re.escape, keys))
        return re.sub(pattern, lambda match: values[match[0]], script) if keys else script


def own_guide() -> Guide:
    """Read seatrial's own guide."""
    text = (resources.files("probes.launch") / "launch.md").read_text(encoding="utf-8")
    return parse_guide("launch.md", text, own=True)


def read_guide(source: str, section: str | None = None) -> Guide:
    """Read the operator's guide from a path or a URL.  Raises GuideError."""
    try:
        if source.startswith(("http://", "https://")):
            with urllib.request.urlopen(source, timeout=FETCH_SECONDS) as answer:  # noqa: S310  (of http)
                content = answer.read(MAX_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise GuideError(f"the guide {source} cannot be read: {error}") from None
    if len(content) > MAX_BYTES:
        raise GuideError(f"the guide {source}: expected at most {MAX_BYTES >> 20} MiB, found more")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise GuideError(f"the guide {source}: expected text in UTF-8, found other bytes") from None
    return parse_guide(source, text, section=section)


def parse_guide(name: str, text: str, *, own: bool = False, section: str | None = None) -> Guide:
    """Parse a guide's Markdown.  Raises GuideError without commands, or without the section."""
    lines = text.splitlines()
    first, last = _section(name, lines, section) if section else (0, len(lines))
    blocks = list(_fenced_blocks(lines, first, last))
    marked = [block for info, block in blocks if info in SHELLS]
    chosen = marked or [block for info, block in blocks if not info]
    commands = [command for block in chosen for command in _typed(block)]
    if not commands:
        where = f" under the heading {section!r}" if section else ""
        raise GuideError(
            f"the guide {name} has no commands{where}: expected a fenced block marked sh, bash or "
            "console"
        )
    return Guide(name, text, own, tuple(commands))


def _section(name: str, lines: list[str], title: str) -> tuple[int, int]:
    """Return the lines of a section, up to the next heading of its level or above."""
    in_block, found, level = "", None, 0
    for number, line in enumerate(lines):
        if fence := FENCE.match(line):
            in_block = "" if in_block and fence["fence"].startswith(in_block) else fence["fence"]
        heading = None if in_block else HEADING.match(line)
        if heading and found is not None and len(heading["level"]) <= level:
            return found, number
        if heading and found is None and heading["title"].lower() == title.strip().lower():
            found, level = number, len(heading["level"])
    if found is None:
        raise GuideError(f"the guide {name} has no heading {title!r}: correct [launch] section")
    return found, len(lines)


def _fenced_blocks(lines: list[str], first: int, last: int) -> Iterator[tuple[str, list[Command]]]:
    """Yield the language and the commands of each fenced block that is not to be skipped."""
    opening: re.Match[str] | None = None
    block: list[Command] = []
    info, before = "", ""
    for number in range(first, last):
        line = lines[number]
        fence = FENCE.match(line)
        if opening is None:
            if fence:
                opening, block = fence, []
                info = (fence["info"].split() or [""])[0].strip("{}.").lower()
                info = SKIP if before == SKIP else info
            before = line.strip() or before
        elif fence and fence["fence"].startswith(opening["fence"]) and not fence["info"].strip():
            yield info, block
            opening, before = None, ""
        else:
            indent = len(opening["indent"])
            text = line[indent:] if not line[:indent].strip() else line
            block.append(Command(number + 1, text))


def _typed(block: list[Command]) -> list[Command]:
    """Return what a user types: all lines, or those after a prompt where the block shows output."""
    if not any(command.text.startswith("$ ") for command in block):
        return [command for command in block if command.text.strip()]
    typed, goes_on = [], False
    for command in block:
        prompt = command.text.startswith("$ ")
        continued = goes_on and command.text.startswith("> ")
        if prompt or continued or goes_on:
            text = command.text[2:] if prompt or continued else command.text
            typed.append(Command(command.line, text))
        goes_on = bool(typed) and (prompt or goes_on) and command.text.endswith("\\")
    return typed
