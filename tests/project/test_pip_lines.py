"""What docs, examples and messages let pip install: our files, and packages that are known.

seatrial is in no public index.  Who registers its name there would get what an example's runner
has: the cluster and its token.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from probes.toml_tables import tomllib
from reports.command import LIGHT
from tests.support.paths import REPO

# `pip uninstall` and `pip show` bring nothing here.
COMMAND = re.compile(r"\bpip3? +(?:install|download|wheel)\b([^`\n]*)")
IN_BACKTICKS = re.compile(r"`[^`\n]*`")
OTHER_TOOLS = re.compile(r"\b(?:pipx|uvx|uv (?:add|tool)|poetry add|conda install|easy_install)\b")
END = re.compile(r"[;|&#})]")
WITH_VALUE = {
    "-c", "--constraint", "-d", "--dest", "-w", "--wheel-dir", "--find-links", "--only-binary",
    "--python-version", "--platform",
}  # fmt: skip
FILE = re.compile(r"(?:\.|~|/|\$)|.*\.whl$")  # a folder, or a wheel
GIT = re.compile(r"git\+(?:https|ssh)://.*YOUR-")  # the reader writes the address


def known_packages() -> set[str]:
    """Name what the suite requires or is tested with."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    lines = (REPO / "constraints.txt").read_text().splitlines()
    required = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    required += [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(Requirement(line).name) for line in required}


KNOWN = known_packages()


def is_sound(word: str) -> bool:
    """Return whether pip takes this from a file, the reader's own address, or a known package."""
    if FILE.match(word) or GIT.match(word):
        return True
    try:
        return canonicalize_name(Requirement(word).name) in KNOWN
    except InvalidRequirement:
        return False


def unsound_words(text: str) -> list[str]:
    """List what pip would look for in an index, and is no package that is known."""
    found: list[str] = []
    for line in COMMAND.findall(text.replace("\\\n", " ")):
        command = END.split(line)[0].strip()
        if command.endswith("'") and command.count("'") % 2:  # of `sh '...'` in a Jenkinsfile
            command = command[:-1]
        words = shlex.split(command)
        values = {at + 1 for at, word in enumerate(words) if word in WITH_VALUE}
        found += [
            word
            for at, word in enumerate(words)
            if at not in values and not word.startswith("-") and not is_sound(word)
        ]
    return found


def tracked(*patterns: str) -> list[str]:
    """List the files of the checkout that match."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=REPO, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listed.stdout.split("\0") if name and (REPO / name).is_file()]


PAGES = [
    name
    for name in tracked("docs", "*.md", "Makefile", ".ci")
    if Path(name).suffix not in (".png", ".toml") and not name.startswith("tests/")
]
SOURCES = tracked("*.py", "*.toml", ":!tests", ":!benchmarks")


def test_the_examples_are_among_the_pages() -> None:
    assert {"README.md", "docs/use/ci/Jenkinsfile", "docs/use/ci/Dockerfile"} <= {*PAGES}
    assert {"probes/submit/package.py", "reports/run_folder/fold.py"} <= {*SOURCES}
    lines = [line for name in PAGES for line in COMMAND.findall((REPO / name).read_text())]
    assert len(lines) > 10


@pytest.mark.parametrize("name", PAGES)
def test_a_page_installs_only_files_and_known_packages(name: str) -> None:
    text = (REPO / name).read_text()
    assert unsound_words(text) == []
    assert not OTHER_TOOLS.findall(text)


def test_a_message_installs_only_files_and_known_packages() -> None:
    """A message is code: only the command in its backticks is read."""
    found = {
        name: words
        for name in SOURCES
        for text in [" ".join(IN_BACKTICKS.findall((REPO / name).read_text()))]
        if (words := unsound_words(text))
    }
    assert found == {}
    bare = re.compile(r"pip3? +(?:install|download)\b[^`\n]*?[ '\"]seatrial\b(?![-/])")
    assert [name for name in SOURCES if bare.search((REPO / name).read_text())] == []
    assert {*LIGHT} <= KNOWN


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install --no-deps seatrial click", ["seatrial"]),
        ("- .venv/bin/pip install -q 'seatrial[train]>=0.1'  # comment", ["seatrial[train]>=0.1"]),
        ("sh '.venv/bin/pip install --no-deps SeaTrial click'", ["SeaTrial"]),
        ("python3 -m pip install \\\n  --constraint keep.txt seatrial", ["seatrial"]),
        ("pip3 download seatrial==0.1.0 && echo done", ["seatrial==0.1.0"]),
        ("pip install -i https://pypi.org/simple click", ["https://pypi.org/simple"]),
        ("pip install git+https://github.com/seatrial/seatrial",
         ["git+https://github.com/seatrial/seatrial"]),
        ("pip install seatrial-cli torch", ["seatrial-cli"]),
        ("pip install wheels", ["wheels"]),
    ],
)  # fmt: skip
def test_what_an_index_would_be_asked_for_is_found(line: str, found: list[str]) -> None:
    assert unsound_words(line) == found


@pytest.mark.parametrize(
    "line",
    [
        "pip install .",
        "pip install -q -c constraints.txt -e '.[dev]'",
        "sh '.venv/bin/pip install --no-deps wheels/seatrial-*.whl click'",
        "pip install --no-index --find-links wheels wheels/seatrial-*.whl",
        "pip install 'ray[train]' \"pytest>=9\" Jinja2",
        "pip install git+https://YOUR-SERVER/seatrial.git@v0.1.0",
        "pip uninstall seatrial",
        "pip show seatrial",
        "RUN pip install --constraint /tmp/keep.txt /tmp/seatrial-*.whl",
    ],
)
def test_sound_lines_are_left_alone(line: str) -> None:
    assert unsound_words(line) == []
