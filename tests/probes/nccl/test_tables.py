"""Tables of phrases and remedies: each name in them is known, and what is wrong is one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probes.findings import CATALOGUE
from probes.nccl import patterns
from probes.nccl import patterns as phrases
from probes.nccl.calls import find_cause
from probes.nccl.patterns import TRACES, read_patterns, read_phrases, read_remedies
from probes.nccl.rows import LineRow, read_rows
from probes.toml_tables import TableError

PHRASES, REMEDIES = phrases.FILE.read_text(), patterns.REMEDIES.read_text()
FIRST = 'kind = "no-verbs"'


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (FIRST, "", "'phrase.0': 'kind' is missing"),
        (FIRST, f'{FIRST}\norder = "X"', "unknown key 'phrase.0.order'"),
        ('severity = "news"', 'severity = "new"', "'phrase.0.severity': expected 'error', "),
        ('versions = "2.2-2.30"', "versions = 2.2", "expected text in quotes, found 2.2"),
        (PHRASES, "", "'phrase' is missing"),
        (PHRASES, "phrase = []", "'phrase': expected 1 or more entries, found []"),
        (PHRASES, PHRASES.partition("libibverbs'")[0], "not TOML: "),
        ("libibverbs'", "libibverbs", "not TOML: "),
        (
            "libibverbs'",
            "libibverbs('",
            "'phrase.0.pattern': expected a regular expression, found ",
        ),
    ],
)
def test_a_wrong_phrase_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, complaint: str
) -> None:
    file = tmp_path / "phrases.toml"
    file.write_text(PHRASES.replace(before, after, 1))
    monkeypatch.setattr(phrases, "FILE", file)
    monkeypatch.setattr(patterns, "FILE", file)
    monkeypatch.setattr(patterns, "read_phrases", read_phrases.__wrapped__)
    with pytest.raises(TableError, match=r"^[^\n]*$") as raised:
        read_patterns.__wrapped__()
    assert str(raised.value).startswith(f"{file}: ")
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("[phases]", "[phase]", "'phases' is missing"),
        ('graphs = "', 'graphs = 1 # "', "'phases.graphs': expected text in quotes, found 1"),
        (r"'timed out|with -?110\b'", "'timed('", "expected a regular expression, found 'timed('"),
        ('reason = "failed"', "pattern = 'a'", "'causes.connect.8': 'reason' is missing"),
        (
            'reason = "failed"',
            "pattern = 'a'\nreason = \"failed\"",
            "'causes.connect': expected a last cause without a pattern, for any text",
        ),
        (REMEDIES, "", "'shared' is missing"),
        (REMEDIES, "shared = 1", "'shared': expected a table, found 1"),
        (REMEDIES, REMEDIES[:500], "not TOML: "),
    ],
)
def test_a_wrong_remedy_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, complaint: str
) -> None:
    file = tmp_path / "remedies.toml"
    file.write_text(REMEDIES.replace(before, after, 1))
    monkeypatch.setattr(patterns, "REMEDIES", file)
    with pytest.raises(TableError, match=r"^[^\n]*$") as raised:
        read_remedies.__wrapped__()
    assert str(raised.value).startswith(f"{file}: ")
    assert complaint in str(raised.value)


def test_each_kind_that_is_named_has_a_phrase() -> None:
    kinds = read_patterns().keys()
    assert {kind for phrase in read_phrases() for kind in phrase.over} <= kinds
    assert kinds >= TRACES
    assert {row.kind for row in read_rows()} - {""} <= kinds


def test_each_text_is_used_and_each_that_is_used_is_there() -> None:
    source = "".join(path.read_text() for path in patterns.FILE.parent.glob("*.py"))
    texts = read_remedies().texts
    assert set(re.findall(r"say\(['\"](\w+)['\"]", source)) <= texts.keys()
    used = {name for name in texts if re.search(f"['\"]{name}['\"]", source)}
    compared = {"desync", "waiting", "timeout"}  # compare_calls names one of them
    assert used | compared == texts.keys()


def test_all_phrases_of_a_kind_have_one_severity() -> None:
    found: dict[str, set[str]] = {}
    for phrase in read_phrases():
        found.setdefault(phrase.kind, set()).add(phrase.severity)
    assert {kind for kind, severities in found.items() if len(severities) > 1} == set()


def test_a_code_stands_in_the_first_row_of_its_kind_with_its_problem() -> None:
    first = {phrase.kind: phrase for phrase in reversed(read_phrases())}
    keys = ("code", "problem", "over", "note", "advice", "blocks")
    coded = [one for one in read_phrases() if any(getattr(one, key) for key in keys)]
    assert [phrase for phrase in coded if first[phrase.kind] is not phrase] == []
    assert [phrase for phrase in coded if phrase.code and not phrase.problem] == []
    assert {phrase.code for phrase in coded} - {""} <= CATALOGUE.keys()


def test_shared_texts_are_filled_in() -> None:
    known = read_remedies()
    assert known.phases["topo"].startswith(known.shared["driver"])
    causes = [one for event in known.causes.values() for one in event]
    texts = [*known.phases.values(), *(one.remedy for one in causes)]
    assert [text for text in texts if "{" in text] == []


def test_a_text_that_fits_no_cause_has_the_last_one() -> None:
    assert read_remedies().causes.keys() == {"qp_setup", "qp_break", "connect"}
    for causes in read_remedies().causes.values():
        assert find_cause(causes, "nothing that is known") is causes[-1]


def test_each_row_has_a_role_that_is_known() -> None:
    """Those of the docstring of LineRow: each is asked for by its name."""
    named = set(re.findall(r"(?:- |; )([\w-]+):", LineRow.__doc__ or ""))
    assert {row.role for row in read_rows()} == named


def test_each_form_of_a_line_is_used_and_each_that_is_used_is_there() -> None:
    source = "".join(path.read_text() for path in patterns.FILE.parent.glob("*.py"))
    known = patterns.read_form_table()
    for table, names in (("LINE", known.line), ("TEXT", known.text), ("WORDS", known.words)):
        assert set(re.findall(rf"{table}\[['\"](\w+)['\"]\]", source)) <= names.keys()
        assert [name for name in names if f'"{name}"' not in source] == []
