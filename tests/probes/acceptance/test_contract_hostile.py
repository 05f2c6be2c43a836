"""Contracts that mean harm, or are damaged: one printable sentence, exit 4, and no waiting."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from probes.check.declarations import REACH, Check
from probes.check.registry import CRITERIA
from probes.cli.main import main
from probes.contract.contract import ContractError, load, parse
from probes.contract.limits import LimitTerms
from probes.contract.validation import MAX_BYTES
from probes.toml_tables import MAX_SENTENCE
from tests.probes.acceptance.test_contract import GOOD, WAIVER
from tests.probes.acceptance.test_contract_refusals import busbw, delay, network, ordered

SECONDS = 5  # for a sentence; what hangs takes a minute and more
DIGITS = "9" * 5000
DOTS = ".".join(["a"] * 3000)
PLACED = 'schema = 1\ntier = "standard"\n[cluster]\n'
MANY = f'{PLACED}nodes = 100000\ngpus_per_node = 8000\ncomponents = {{a = "all"}}\n'
LARGEST = f'{PLACED}nodes = 20000\ngpus_per_node = 64\ncomponents = {{a = "0-3"}}\n'

TEXTS = {
    "schema of 5000 digits": (f"schema = {DIGITS}\n", "expected lines of at most 2048 bytes"),
    "nodes of 5000 digits": (ordered(f"nodes = {DIGITS}"), "found 5008"),
    "nodes of 1900 digits": (ordered(f"nodes = {DIGITS[:1900]}"), "expected 20000 or less, found"),
    "bound of 1900 digits": (busbw(f"at_least = {DIGITS[:1900]}"), "expected a number, found"),
    "nodes 10^9": (ordered("nodes = 1000000000\ngpus_per_node = 1000000"), "20000 or less"),
    "nodes 10^5 with components": (MANY, "'nodes': expected 20000 or less"),
    "gpus_per_node": (ordered("gpus_per_node = 65"), "expected 64 or less or a table, found 65"),
    "the largest cluster": (LARGEST, "no component on 4-1279999"),
    "line rate inf": (ordered("line_rate_gbps = inf"), "expected a finite number, found inf"),
    "line rate nan": (ordered("line_rate_gbps = nan"), "expected a finite number, found nan"),
    "line rate 1e400": (ordered("line_rate_gbps = 1e400"), "expected a finite number, found inf"),
    "pace inf": (ordered("pace_seconds = inf"), "expected a finite number, found inf"),
    "at_most nan": (delay("at_most = nan"), "'at_most': expected a finite number, found nan"),
    "at_least -1e9": (busbw("at_least = -1e9"), "found -1e+09: the measure is never negative"),
    "at_least 1e300": (busbw("at_least = 1e300"), "expected at_least to be 100000 or less"),
    "at_least > at_most": (delay("at_least = 5\nat_most = 3"), "found at_least = 5"),
    "quoted schema": ('schema = "1"\n', "expected schema = 1, found '1'"),
    "waivers 5": ("schema = 1\nwaivers = 5\n", "expected [[waivers]] tables, found 5"),
    "waivers [5]": ("schema = 1\nwaivers = [5]\n", "[[waivers]]: expected a table, found 5"),
    "name a list": ('schema = 1\nname = ["a"]\n', "name: expected at most"),
    "name ../../x": ('schema = 1\nname = "../../x"\n', "name: expected at most"),
    "name ESC": ('schema = 1\nname = "\\u001b[32mPASS"\n', "name: expected at most"),
    "name of 400": (f'schema = 1\nname = "{"a" * 400}"\n', "at most 60 characters"),
    "title a table": ("schema = 1\n[title]\na = 1\n", "title: expected text in quotes"),
    "title blank": ('schema = 1\ntitle = "  "\n', "title: expected words, found ' '"),
    "title without ink": ('schema = 1\ntitle = "\\u3164\\u2800"\n', "title: expected words"),
    "because dots": (GOOD.replace("85 % of 400", "...."), "reason of this limit in words"),
    "because without ink": (GOOD.replace("85 % of 400", "\\u3164" * 4), "limit in words"),
    "one_of blank": (network('one_of = ["\\u200b"]'), "expected a word in one_of"),
    "waiver id": (WAIVER.replace('"W1"', '""'), "'id': expected words, found none"),
    "waiver reason": (WAIVER.replace('"known"', '" "'), "'reason': expected words, found none"),
    "waiver name": (WAIVER.replace("A. Ops", "\\u3164"), "'name': expected words, found none"),
    "until a number": (WAIVER.replace("2026-12-31", "5"), "expected a date without quotes"),
    "until an hour": (WAIVER.replace("2026-12-31", "10:00:00"), "found '10:00:00'"),
    "until with an hour": (
        WAIVER.replace("2026-12-31", "2026-12-31T00:00:00Z"),
        "'until': expected a date without quotes, such as 2026-12-31, found '2026-12-31T00:00:00+",
    ),
    "until 31 February": (WAIVER.replace("2026-12-31", "2026-02-31"), "not TOML"),
    "unknown criterion": (WAIVER.replace("GANG", "\\u001b[31mG"), "unknown criterion '\\x1b[31mG'"),
    "not_provable": (
        'schema = 1\n[cluster]\naccelerators = "emulated"\n[GANG]\nnot_provable = ". . ."\n',
        "expected a sentence: why",
    ),
    "shared relative": (ordered('shared = "data"'), "expected an absolute path on every node"),
    "shared NUL": (ordered('shared = "/data\\u0000"'), "expected an absolute path on every node"),
    "shared ESC": (ordered('shared = "/\\u001b[31m"'), "expected an absolute path on every node"),
    "fabric ESC": (ordered('fabric = "e\\u001b"'), "expected the name of an interface"),
    "fabric blank": (ordered('fabric = "a b"'), "expected the name of an interface"),
    "tp 0": (ordered("parallel = {tp = 0, pp = 1, dp = -1}"), "'parallel.tp': expected 1 or more"),
    "arrays in arrays": ("schema = 1\nx = " + "[\n" * 3000, "nested too deeply"),
    "tables in tables": ("schema = 1\nx = " + "{a = " * 400, "nested too deeply"),
    "closed arrays": (f"schema = 1\nx = {'[' * 250}{']' * 250}\n", "unknown key 'x'"),
    "nodes in arrays": (ordered(f"nodes = {'[' * 250}{']' * 250}"), "expected a whole number"),
    "many dots": (f"schema = 1\n{DOTS} = 1\n", "expected lines of at most 2048 bytes"),
    "10 MB": ("schema = 1\n" + "#\n" * 5_000_000, "larger than 64 KiB. Expected: a contract"),
    "a key of 1900": (f"schema = 1\n{'k' * 1900} = 1\n", "unknown key 'kkkk"),
    "a key of a criterion": (f"schema = 1\n[FABRIC.{'k' * 1900}]\n", "unknown key FABRIC.kkkk"),
    "a key that paints": ('schema = 1\n"\\u001b[32mk\\nACCEPTED" = 1\n', "unknown key '\\x1b[32mk"),
    "a CI command": ('schema = 1\n"::add-mask::x" = 1\n', "unknown key ': :add-mask::x'"),
    "NUL": ("schema = 1\n\0", "not TOML"),
    "empty": ("", "expected schema = 1, found none. Add it as the first line"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_a_hostile_contract_gets_one_printable_sentence(tmp_path: Path, case: str) -> None:
    text, says = TEXTS[case]
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    begun = time.process_time()
    done = CliRunner().invoke(main, ["contract", "check", str(file)])
    assert time.process_time() - begun < SECONDS
    assert done.exit_code == 4, done.output
    assert says in done.output
    assert_one_sentence(done.output.removesuffix("\n"))


def assert_one_sentence(sentence: str) -> None:
    """It is one line of ours: printable, of some length, without a library's words."""
    assert sentence.isprintable()
    assert len(sentence) < MAX_SENTENCE + 20
    foreign = ("Input should", "pydantic", "validation error", "Traceback", "depth", "set_int_max")
    assert not [word for word in foreign if word in sentence]


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00s", b"schema = 1\ntitle = '\xed\xa0\x80'\n", os.urandom(5000)],
    ids=["UTF-16", "surrogate", "noise"],
)
def test_other_bytes_than_text_are_refused(content: bytes) -> None:
    with pytest.raises(ContractError) as refused:
        parse(content, "mine.toml")
    assert_one_sentence(str(refused.value))


def test_a_byte_that_is_no_text_is_found_in_its_line() -> None:
    with pytest.raises(ContractError, match="expected text in UTF-8, found other bytes in line 3"):
        parse(b"schema = 1\n\ntitle = '\xff'\n", "mine.toml")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


FILES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": a_socket,
    "folder": Path.mkdir,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "null": lambda path: path.symlink_to("/dev/null"),
    "loop": lambda path: path.symlink_to(path),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "missing": lambda path: None,
}


@pytest.mark.parametrize("kind", FILES)
def test_only_a_regular_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    FILES[kind](Path("c.toml"))
    done = CliRunner().invoke(main, ["contract", "check", "./c.toml"])
    assert done.exit_code == 4
    assert_one_sentence(done.output.removesuffix("\n"))
    assert done.output.startswith("error: contract c.toml")


@pytest.mark.parametrize(
    "name",
    ["x" * 300, "./" + "x" * 300, "/tmp/" + "a/" * 20_000, "a\0.toml", "a\0", "./\x1b[2J\nOK.toml"],
    ids=lambda name: repr(name[:12]),
)
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ContractError) as refused:
        load(name)
    assert_one_sentence(str(refused.value))


def test_a_contract_may_be_as_large_as_it_says(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes((GOOD.encode() + b"#\n" * MAX_BYTES)[:MAX_BYTES])
    assert load(str(file)).limit("FABRIC", "busbw")


def test_what_a_contract_says_takes_no_line_of_its_own(tmp_path: Path) -> None:
    text = GOOD.replace("85 % of 400", "all\\u001b[32m\\nACCEPTED: all\\u202e ::error::x")
    file = tmp_path / "c.toml"
    file.write_text(f'title = "\\u001b[31mx\\nACCEPTED: 6 of 6"\n{text}')
    done = CliRunner().invoke(main, ["contract", "check", "--limits", str(file)])
    assert done.exit_code == 0
    assert "all ACCEPTED: all : :error::x" in " ".join(done.output.split())
    assert done.output.replace("\n", "").isprintable()
    assert not [line for line in done.output.splitlines() if line.startswith("ACCEPTED")]


BOUNDS = [
    ({"at_least": 5.0, "at_most": 3.0}, "expected at_least <= at_most"),
    ({"at_least": 5.0, "exactly": 3.0}, "expected only `exactly`"),
    ({"at_most": 5.0, "exactly": 3.0}, "expected only `exactly`"),
    ({"exactly": 3.0, "marginal": 3.0}, "marginal needs exactly one"),
    ({"at_least": 1.0, "at_most": 9.0, "marginal": 3.0}, "marginal needs exactly one"),
    ({"at_least": 5.0, "marginal": 4.0}, r"marginal of 5 \(at_least\) or more, found 4"),
    ({"at_most": 5.0, "marginal": 6.0}, r"marginal of 5 \(at_most\) or less, found 6"),
    ({"at_least": -1e9}, "the measure is never negative"),
    ({"at_most": -1.0}, "the measure is never negative"),
    ({"marginal": 3.0}, "has no bound"),
    ({}, "has no bound"),
]


@pytest.mark.parametrize(("bounds", "says"), BOUNDS)
def test_bounds_of_both_sides_leave_room_for_a_value(bounds: dict[str, float], says: str) -> None:
    terms = LimitTerms(because="as agreed", unit="s", **bounds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        terms.to_limit(Check("waited", "s"), "mine.toml")


def test_every_number_that_a_contract_may_limit_has_a_reach() -> None:
    agreeable = [m for row in CRITERIA.values() for m in row.measures.values() if m.agreeable]
    units = {measure.unit for measure in agreeable if measure.better != "word"}
    assert units == set(REACH), "add the unit to REACH of probes/check/declarations.py"
