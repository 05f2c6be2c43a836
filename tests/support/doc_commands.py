"""Finds the commands in pages, and the words of them that seatrial does not have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from probes.check.registry import CRITERIA
from probes.cli.main import main
from probes.session.options import OPTIONS
from reference_trainer.__main__ import main as trainer
from scaling.collectives.line_rate import main as collectives
from tests.lab.__main__ import main as lab

PROGRAMS: dict[str, click.Command] = {
    "seatrial": main,
    "python -m reference_trainer": trainer,
    "python -m tests.lab": lab,
    "python -m scaling.collectives": collectives,
}
FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:seatrial|pytest|python -m|make) [^`\n]+)`")
# Where a command begins: seatrial is an argument of others, too.
BEGIN = r"(?:^|[;&|(:'\"]|(?<=\s)--|bin/|\b(?:do|then|exec)\b|\bdocker exec [^\n;&|]*?)[ \t]*"
MODULE = r"-m[ \t]+(?:reference_trainer|scaling\.collectives|tests\.lab)"  # also of torchrun
START = re.compile(rf"(?:{BEGIN}(seatrial)|({MODULE}))[ \t]+(\S[^\n]*)", re.MULTILINE)
PYTEST = re.compile(r"(?<![\w=./-])pytest[ \t]+(probes|-p probes\S*)\b([^\n]*)")
END_OF_COMMAND = re.compile(r"[;|&)#>]| -- ")  # what stands after ` -- ` goes to pytest


def find_commands(text: str) -> list[tuple[str, str]]:
    """Find program and words of each command of ours in fenced blocks; a backslash joins lines."""
    return _find(FENCED.findall(text))


def find_inline(text: str) -> list[tuple[str, str]]:
    """Find the same in the backticks of sentences."""
    return _find(INLINE.findall(FENCED.sub("", text)))


def _find(parts: list[str]) -> list[tuple[str, str]]:
    return [
        (name or re.sub(r"^-m\s+", "python -m ", module), words)
        for part in parts
        for name, module, words in START.findall(part.replace("\\\n", " "))
    ]


def find_wrong_words(program: str, words: str) -> list[str]:
    """Find the words of a command that its program does not have."""
    command, given = PROGRAMS[program], _split(END_OF_COMMAND.split(words)[0])
    while isinstance(command, click.Group):
        if given and given[0].strip("[]").isupper():  # a placeholder, as COMMAND
            return []
        context = click.Context(command)
        known = command.get_command(context, given[0]) if given else None
        if known is None:
            options = {name for one in command.params for name in one.opts} | {"--help"}
            return [] if given and given[0] in options else [" ".join(given) or "no command"]
        command, given = known, given[1:]
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    names |= {"--help"}
    options = (word.partition("=")[0] for word in given if word.startswith("-") and word != "-")
    wrong = [word for word in options if word not in names]
    only = (given[index + 1] for index, word in enumerate(given) if word == "--only")
    return wrong + [name for value in only for name in value.split(",") if name not in CRITERIA]


def find_wrong_pytest_words(text: str) -> Iterator[str]:
    """Find options of the suite that a pytest command of a page misspells."""
    known = {one.name for one in OPTIONS} | {"--pyargs", "--junitxml", "--collect-only"}
    for _, words in PYTEST.findall(text.replace("\\\n", " ")):
        given = re.split(r"[`;|&)#]", words)[0].split()
        yield from (w for w in given if w.startswith("--") and w.partition("=")[0] not in known)


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError:  # a quote that ends on another line
        return [word.strip("\"'") for word in words.split()]
