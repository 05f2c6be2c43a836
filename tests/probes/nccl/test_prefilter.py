"""No phrase is lost to the filter that spares most lines the search."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.nccl.patterns import read_hints, read_patterns
from tests.recordings.generate.nccl_logs import Job
from tests.support.nccl_report import codes, told

# NCCL writes these as warnings, and every warning is searched.
WARNINGS_ONLY = {
    rb"mnnvl\.cc",
    rb"Invalid rank requested",
    rb"wrong magic",
    rb"MNNVL \(cliqueSize",
    rb"Too many open files",
    rb"NET/IB : \S+ GID table changed",
    rb'Missing "(?:(?:amd_)?iommu|HSA_FORCE_FINE_GRAIN_PCIE)=',
    rb"Attribute \w+ of node nic not found",
    rb"Attribute \w+ of node (?!nic\b)\w+ not found",
    rb"XML Parse(?: error)? ?:",
    rb"Could not open XML (?:topology|graph) file",
    rb"Could not find real path of /sys",
    rb"Could not find NET with id",
    rb"NET/OFI .{0,100}(?:endpoint|[Rr]egister|\bMR\b|\bCQ\b).{0,160}Cannot allocate memory",
    rb"\bargcheck\.c\w+ ",
    rb"falling back to simple order",
    rb"Cannot get incoming CPU",
    rb"Could not find a path for pattern",
    rb"NUMA auto balancing",
    rb"Kernel .{0,60}?not (?:qualified|supported)",
    rb"\bdeprecated\b",
    rb"[Uu]nable to (?:find|read) NUMA",
    rb"Could not get speed",
    rb"libnuma",
}


def alternatives(pattern: bytes) -> list[bytes]:
    """The parts of `a|b(?:c|d)` that stand outside brackets: a, b(?:c|d)."""
    parts, depth = [b""], 0
    for token in re.findall(rb"\\.|\[[^]]*\]|.", pattern):
        depth += (token == b"(") - (token == b")")
        if token == b"|" and not depth:
            parts.append(b"")
        else:
            parts[-1] += token
    return parts


@pytest.mark.parametrize(
    "phrase",
    sorted({part for one in read_patterns().values() for part in alternatives(one.pattern)}),
    ids=lambda phrase: phrase.decode(),
)
def test_every_phrase_passes_the_prefilter(phrase: bytes) -> None:
    @settings(max_examples=30, suppress_health_check=list(HealthCheck), database=None)
    @given(st.from_regex(re.compile(phrase), fullmatch=True))
    def passes(text: bytes) -> None:
        assert any(word in text for word in read_hints())

    if phrase in WARNINGS_ONLY:
        with pytest.raises(AssertionError):
            passes()
    else:
        passes()


def test_the_phrases_are_cut_where_they_branch() -> None:
    assert alternatives(rb"a\|b|c(?:d|e)[|]f|g") == [rb"a\|b", rb"c(?:d|e)[|]f", rb"g"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            "transport/nvls.cc:598 Cuda failure 1 'invalid argument' during Init of NVLS",
            "INIT-NVLS",
        ),
        ("misc/ibvwrap.cc:1 async fatal event after Init of port: port error", "NCCL-ERROR"),
    ],
)
def test_a_warning_with_the_word_init_is_searched(tmp_path: Path, words: str, code: str) -> None:
    found = told(tmp_path, Job("2.28.9", warn={2: [words]}).text())
    assert codes(found) == {code}


TIMEOUT = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
ROW = "  1048576  262144  float  sum  -1  91.5  11.46  17.19  1  90.1  11.63  17.45  0"
LINES = Job().text().splitlines()


@pytest.mark.parametrize(("text", "code"), [(TIMEOUT, "NCCL-ERROR"), (ROW, "NCCL-CORRUPT")])
@pytest.mark.parametrize(
    "torn",
    [
        lambda line, text: f"{line}\n{text}\n",
        lambda line, text: f"{text}\n{line}\n",
        lambda line, text: f"{line[:50]}{text}\n{line[50:]}\n",
        lambda line, text: f"{text[:30]}{line}\n{text}\n",
    ],
    ids=["after", "before", "within", "torn"],
)
def test_one_line_of_others_among_nccls_own_is_read(
    tmp_path: Path, text: str, code: str, torn: Callable[[str, str], str]
) -> None:
    """A chunk in which NCCL alone wrote is not searched for lines of others."""
    for at in (0, len(LINES) // 2, len(LINES) - 1):
        lines = [f"{line}\n" for line in LINES]
        lines[at] = torn(LINES[at], text)
        found = told(tmp_path, "".join(lines * 2))  # the second time all prefixes are known
        assert code in codes(found), (at, found.text())


def test_text_of_others_before_a_line_of_nccl_is_read(tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    assert codes(told(tmp_path, text + TIMEOUT + text)) == {"NCCL-ERROR"}
