"""Pages: each link resolves, each command is one that there is, each term is documented."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from probes.check.registry import CRITERIA
from probes.contract.contract import TOP_KEYS, parse
from probes.contract.limits import LimitTerms
from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.findings import CATALOGUE
from probes.toml_tables import tomllib
from reports.formats.prometheus import EXIT_CODES
from reports.record import Waiver
from tests.project.commands_page import COMMANDS_PAGE, leaves
from tests.project.contracts_page import CONTRACTS_PAGE
from tests.project.measures_page import MEASURES_PAGE
from tests.project.pages import FINDINGS
from tests.support.doc_commands import (
    FENCED,
    PROGRAMS,
    SHELL,
    find_commands,
    find_inline,
    find_wrong_pytest_words,
    find_wrong_words,
)
from tests.support.paths import REPO

README = REPO / "README.md"
PAGES = [README, REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MAX_README = 75  # lines: one screen and a half, with its two tables
CLICKS = 2  # from README to each page

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = FENCED.sub("", page.read_text())
    found = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def broken_links(page: Path) -> list[str]:
    """Links of a page that lead to no file, or to no heading of it."""
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        missing = anchor and path.suffix == ".md" and path.is_file() and anchor not in anchors(path)
        if not path.exists() or missing:
            broken.append(link)
    return broken


def linked_pages(page: Path) -> set[Path]:
    """Pages that a page links to."""
    links = {link.partition("#")[0] for link in LINK.findall(page.read_text())}
    found = {(page.parent / link).resolve() for link in links if link and "://" not in link}
    return {path for path in found if path.suffix == ".md" and path.is_file()}


# ------------------------------------------------------------------------------------------ links


@every_page
def test_each_link_resolves(page: Path) -> None:
    assert broken_links(page) == []


def test_each_page_is_two_clicks_away() -> None:
    near = {README}
    for _ in range(CLICKS):
        near |= {target for page in near for target in linked_pages(page)}
    assert [str(page.relative_to(REPO)) for page in PAGES if page.resolve() not in near] == []


def test_readme_is_one_screen_and_a_half() -> None:
    assert len(README.read_text().splitlines()) <= MAX_README
    assert (REPO / "docs" / "use" / "report.png").stat().st_size > 10_000


# --------------------------------------------------------------------------------------- commands


@every_page
def test_each_command_is_one_that_there_is(page: Path) -> None:
    text = page.read_text()
    found = [*find_commands(text), *find_inline(text)]
    assert [
        (words, wrong) for name, words in found if (wrong := find_wrong_words(name, words))
    ] == []
    assert [*find_wrong_pytest_words(text)] == []


@every_page
def test_each_target_of_make_is_one_that_there_is(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([a-z]+)\b", page.read_text(), re.MULTILINE)
    assert [name for name in named if name not in targets] == []


@every_page
def test_each_shell_block_is_shell(page: Path) -> None:
    for block in SHELL.findall(page.read_text()):
        text = re.sub(r"<(?:run|this repository)>", "X", block)
        done = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (block, done.stderr)


@every_page
def test_each_block_of_code_is_read(page: Path) -> None:
    for language, block in BLOCK.findall(page.read_text()):
        if language == "python":
            ast.parse(block)
        if language == "toml":
            tomllib.loads(block)
            if "schema = " in block:
                parse(block.encode(), page.name)


# ------------------------------------------------------------------------ everything is documented


def test_each_command_and_option_is_documented() -> None:
    text = COMMANDS_PAGE.read_text()
    for program, command in PROGRAMS.items():
        for words, one in leaves(command):
            title = f"\n## {f'{program} {words}'.strip()}\n"
            part = text.partition(title)[2].partition("\n## ")[0]
            assert part, title
            options = {name for each in one.params for name in each.opts if name.startswith("--")}
            assert {name for name in options - {"--help"} if name not in part} == set()


def test_each_exit_code_is_documented() -> None:
    codes = set(re.findall(r"^\| (\d+) \|", COMMANDS_PAGE.read_text(), re.MULTILINE))
    assert codes == {*"012345", "20"}
    assert set(re.findall(r"\d+", EXIT_CODES)) <= codes


def test_each_key_of_a_contract_is_documented() -> None:
    text, alone = CONTRACTS_PAGE.read_text(), ("not_provable", "not_countable")
    keys = {*TOP_KEYS, *alone}
    for model in (ClusterTerms, LaunchTerms, LimitTerms, Waiver):
        keys |= {*model.model_fields}
        for name, field in model.model_fields.items():
            assert field.description, name
            assert field.description.endswith("."), name
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) | {*alone}
    assert keys <= rows
    assert all(f"{key} = " in text for key in alone)


def test_each_measure_is_documented() -> None:
    for id, row in CRITERIA.items():
        part = MEASURES_PAGE.read_text().partition(f"\n## {id}: ")[2].partition("\n## ")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == {*row.measures}


def test_each_finding_is_documented() -> None:
    assert set(re.findall(r"^### ([A-Z-]+)$", FINDINGS.read_text(), re.MULTILINE)) == {*CATALOGUE}


# ------------------------------------------------------------------------------ each rule can fail


def test_each_rule_can_fail(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` (c)\n[x](page.md#a-b-c) [y](page.md#a) [z](gone.md) [w](https://x/y)\n"
    )
    assert anchors(page) == {"a-b-c"}
    assert broken_links(page) == ["page.md#a", "gone.md"]
    assert linked_pages(page) == {page}
    text = "`seatrial runs`\n```sh\nx; seatrial run \\\n --clusters auto --only HOST > f\n```\n"
    assert find_inline(text) == [("seatrial", "runs")]
    assert find_wrong_words("seatrial", "runs --cluster auto") == ["runs --cluster auto"]
    (command,) = find_commands(text)
    assert find_wrong_words(*command) == ["--clusters", "HOST"]
    assert find_wrong_words("seatrial", "--version") == []
    assert find_wrong_words("seatrial", "run -k x -- --maxfail 1") == []
    assert find_wrong_words("seatrial", 'run --run-dir="$run" -q" && ls -l') == []
    assert find_commands("`seatrial run`\n```\njob-name=seatrial run\n```") == []
    assert find_wrong_words("python -m tests.lab", "fault slow 1") == ["slow 1"]
    assert find_wrong_words("python -m reference_trainer", "launch --stepz 2") == ["--stepz"]
    assert [*find_wrong_pytest_words("pytest probes --clusters auto --tier quick")] == [
        "--clusters"
    ]
