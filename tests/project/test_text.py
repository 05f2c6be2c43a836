"""Text is plain: messages, findings, reasons, docs and docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.check.registry import CRITERIA
from probes.findings import CATALOGUE
from probes.toml_tables import read_tables
from reports.version import PACKAGES
from tests.project.test_imports import source_files
from tests.project.verbs import begins_with_verb
from tests.support.paths import REPO

# Words of a story, not of an engineer; "of which" makes a sentence that must be read twice.
# Those of the second line have a word of the field: endpoint, fix, must record.
BANNED = re.compile(
    r"(?<![-\w])(?:told|said|road|nobody|whoever|beside|of which"
    r"|entrances?|mend(?:s|ed|ing)?|ow(?:e|es|ing))(?![-\w])",
    re.I,
)
MAX_WORDS = 30  # of a sentence: what is longer is read twice
# Lists of words that people may use.
NO_TEXT = {"reports/share/aliases.py"}
SENTENCE = re.compile(r"(?<=[.?!;:])\s+|\n")
# faults.md names tests, by their parameters too: generated, and no text.
NAMES = REPO / "docs" / "develop" / "faults.md"
PAGES = sorted(page for page in (REPO / "docs").rglob("*.md") if page != NAMES)
# Without contracts: a run knows a contract by its hash, so that its text must stay.
TABLES = [path for part in PACKAGES for path in sorted((REPO / part).rglob("*.toml"))
          if path.parent.name != "contracts"]  # fmt: skip
DOCS = [REPO / "README.md", REPO / "CONTRIBUTING.md", *PAGES]


def docstrings(tree: ast.Module) -> list[ast.Constant]:
    """Return the docstrings of a module, its classes and functions."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
        and isinstance(node.body[0].value.value, str)
    ]


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that is no docstring; X stands for a value in it."""
    skipped = {id(node) for node in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "X" for p in node.values]
            skipped |= {id(part) for part in ast.walk(node)}
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in skipped and " " in str(node.value):
            yield node.lineno, str(node.value)


def table_texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and text of each string in tables of TOML, as `HOST-GPUS.steps.0.means`."""
    if isinstance(value, str):
        yield key, value
    parts = dict(enumerate(value)) if isinstance(value, list) else value
    for name, one in parts.items() if isinstance(parts, dict) else ():
        yield from table_texts(one, f"{key}.{name}".lstrip("."))


def bad_words(text: str) -> list[str]:
    """Return the banned words of a text, without what stands in backticks."""
    return BANNED.findall(re.sub(r"`[^`]*`", "", text))


def long_sentences(text: str) -> list[str]:
    """Return its sentences of more than 30 words; a semicolon ends one."""
    return [one for one in SENTENCE.split(text) if len(one.split()) > MAX_WORDS]


def test_messages_are_plain() -> None:
    complaints = []
    for path in source_files(REPO).values():
        name = str(path.relative_to(REPO))
        if name in NO_TEXT:
            continue
        for line, text in messages(ast.parse(path.read_text())):
            complaints += [f"{name}:{line}: {word!r} in {text!r}" for word in bad_words(text)]
            complaints += [f"{name}:{line}: too long: {one!r}" for one in long_sentences(text)]
    assert complaints == []


@pytest.mark.parametrize("path", TABLES, ids=lambda path: str(path.relative_to(REPO)))
def test_texts_in_tables_are_plain(path: Path) -> None:
    complaints = []
    for key, text in table_texts(read_tables(path)):
        complaints += [f"{key}: {word!r}" for word in bad_words(text)]
        complaints += [f"{key}: too long: {one!r}" for one in long_sentences(text)]
    comments = re.findall(r"^ *#.*", path.read_text(), re.MULTILINE)
    assert [*complaints, *(line for line in comments if bad_words(line))] == []


def test_docstrings_are_plain() -> None:
    complaints = []
    for path in source_files(REPO).values():
        name = path.relative_to(REPO)
        for node in docstrings(ast.parse(path.read_text())):
            words = bad_words(str(node.value))
            complaints += [f"{name}:{node.lineno}: {word!r}" for word in words]
    assert complaints == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(REPO)))
def test_docs_are_plain(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    lines = text.splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if bad_words(line)] == []


def test_a_remedy_is_an_order_in_sentences() -> None:
    for code, entry in CATALOGUE.items():
        assert begins_with_verb(entry.remedy), (
            f"{code}: no verb of tests/project/verbs.py begins it"
        )
        for text in (entry.meaning, entry.remedy):
            assert text[0].isupper() or text.startswith(("libibverbs", "libfabric", "nccl", "/dev"))
            assert text.endswith((".", ".)")), (code, text)


def test_a_reason_is_no_sentence_of_its_own() -> None:
    """It stands in brackets behind a limit."""
    for criterion, row in CRITERIA.items():
        for name, measure in row.measures.items():
            for limit in filter(None, (measure.fixed, measure.default)):
                assert limit.because, (criterion, name)
                assert not limit.because.endswith("."), (criterion, name)


def test_each_rule_can_fail() -> None:
    tree = ast.parse('"""Nobody."""\nx = f"the road of {a} is long"\ny = "one two"\nz = "word"\n')
    assert list(messages(tree)) == [(2, "the road of X is long"), (3, "one two")]
    assert [node.value for node in docstrings(tree)] == ["Nobody."]
    table = {"A": {"x": "a b", "y": [{"z": "road"}], "n": 1}}
    assert [*table_texts(table)] == [("A.x", "a b"), ("A.y.0.z", "road")]
    found = bad_words(
        "Nobody told the railroad of `road`, told-to-leave, of which; mend an entrance"
    )
    assert found == ["Nobody", "told", "of which", "mend", "entrance"]
    assert long_sentences("word " * 30) == []
    assert long_sentences("a b. " + "word " * 31) == [("word " * 31)]
    assert not begins_with_verb("The value.")
    assert begins_with_verb("Returns it.")
