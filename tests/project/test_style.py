"""Figures of layout and names that the four packages keep."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.project.test_imports import source_files
from tests.project.verbs import begins_with_verb
from tests.support.paths import REPO

MAX_MODULES = 20  # in one package: what is seen at a glance
MAX_LINES = 600  # of a file
MIN_CODE = 110  # lines of code a file, on average: fewer are fragments
MAX_IMPORT_SHARE = 0.09  # of the lines of code
# Lines of code without blanks, comments and docstrings.  Who needs more raises a row in the commit
# that needs it, and says why.
BUDGET = {
    # A message names who, what, and what to do: some 900 of them take a line more.
    # Sentences name each way out, a missing value, and why a recovery time is not known.
    # The criteria have a sentence for each measure that can fail.
    # Its files: plugin, doctor, findings, leftovers, requirements, TOML.  The plugin has the hooks
    # around a run that no error of another plugin passes.  leftovers.py knows whose a job is, and
    # the folders of embedded clusters.
    # What a contract lacks, also of a run's GPUs.
    "probes": 1011,  # a package of another project ends a run; a held signal is always released
    # Ranks that fail in a control prove nothing, for each criterion.
    "probes/check": 712,  # the recorder asks whether a node was lost before it records a bad result
    # submit says what differs; plan and contract check say who types a guide; again asks for an
    # address that only a run folder names.
    # compare and history list what changed; --all has the rest.  The newest run is the default.
    # `contract new` takes its answers from options, and says which one is missing.  `explain` knows
    # measures and criteria.  The help has sections.
    # submit says which job is lost, and what a lost head means.
    # plan and check say how many nodes a contract allows.
    "probes/cli": 2049,  # what a template orders, which answers lack, what `again` changed
    # ask.py has the sets of actors that hosts had.  cleanup.py ends a guide's user, bounds answers,
    # and is replaced where its process dies; a lost head or node ends the run.  room.py and
    # address.py say which job, or which run, has the cluster.  variables.py knows whose values a
    # record may have.  The folder of an embedded cluster is locked by its owner, and a model is
    # read from regular files alone.  One deadline holds for all of an answer.
    # cleanup.py ends a user whose processes kill or stop who comes for them, and removes its files
    # in bounded memory.
    # MPS has a server on each GPU.
    # AMD's GPUs are refused.
    # Pairs that met before.
    "probes/cluster": 3365,  # who tries whom; ranks are kept; what joins no group
    # Keys of a contract say what holds without them.
    # The limit of all-to-all by nodes; what a contract lacks, for three commands.
    "probes/contract": 1665,  # kinds of nodes; a key names its parts; limits by size; one node
    "probes/environment": 835,  # boards without NVLink; what slows or hangs every job
    # NVLink by domain; ports on which RDMA alone passes.
    "probes/fabric": 3735,  # NVLink by domain; rails at once and both ways; ports of RDMA alone
    "probes/faults": 333,
    "probes/gang": 2037,  # strategies on one ordered node
    "probes/hosts": 5566,  # what a contract agrees on is a note; which Xids follow a kill
    # A guide is another party's program: who types it, its hash, one deadline, output in bounds.
    # A shell is ended in bounded time, and reaped last; mounts are searched, or named; a user has
    # no name in any directory, and a home before anything is typed.
    # A guide is judged as typed, with its variables; bytes of a job may be those of others.
    "probes/launch": 2457,  # both self-tests run at once
    # rows.py reads what other programs report, as data; calls.py compares a watchdog's lines.
    "probes/nccl": 2265,  # GPUDirect on EFA by GPU; forms of lines, phrases and texts are tables
    "probes/restart": 1590,  # copies of checkpoints are links
    "probes/scaling": 939,  # MFU of each GPU model; where it cannot be proven, only its data
    # ending.py and signals.py: every run ends with its record, also where a node was lost.  The
    # header says what others hold.  A nonce that a run cannot keep is refused; the id of a
    # submission is kept.
    # Usual times of probes; os._exit ends a run as a signal does; a signal waits for the first
    # event's end.
    # A run says what its contract lacks.
    # A run carries on with the pairs of nodes of an earlier one.
    "probes/session": 1613,  # a probe that failed is written in its criterion's words
    # What comes back is verified, and judged, by the standard library alone.
    "probes/submit": 1070,
    # Variables of the environment that are changed for a while, in one place.
    # Ranks say which variables of NCCL they have.
    "reference_trainer": 3730,  # a group that is kept for the next call; who hears of a kill
    # The store keeps the events in memory and writes a damaged folder again; streams.py outlives
    # a terminal.  token_shapes.py has the forms of tokens and the commands that take passwords.
    # A shared copy has no names of jobs and people.  Events have a time that is never set.
    # The end does not wait for a stopped terminal; a wheel knows its commit.  Planted faults are
    # counted by what became of them.  Findings that differ in a node alone are one; one command
    # tests a criterion again.  Metrics name their run in one place.
    # The next step and its command for each decision; why the decision is what it is, in its line;
    # what a changed folder says is not on page 1.
    # Each step of page 1 has its command; a complete run comes after repairs; decision.py has both.
    # A failed measure has its criterion's sentence on the terminal, too.
    "reports": 6874,  # facts of nodes in several lines; the commands of a submitted run
    "scaling": 3028,  # which pairs met, over several runs; groups that are kept; a short ladder
    "seatrial": 57,  # names for notebooks, and whether the other packages are ours
}
LONG_FUNCTION, MAX_LONG_SHARE = 30, 0.03  # lines, and how many functions may have more
MAX_ONE_WORD_SHARE = 0.35  # of module-level functions: what well-named libraries have
MIN_REASONED_SHARE = 0.95  # of numeric constants: a few, such as a port, need none
MIN_VERB_SHARE = 0.95  # of docstrings of functions: some verb is always missing in a list


@dataclass
class Figures:
    """What is counted over all files."""

    modules: Counter[str] = field(default_factory=Counter)  # by folder
    lines: dict[str, int] = field(default_factory=dict)  # by file
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    functions: list[str] = field(default_factory=list)  # at module level
    lengths: list[int] = field(default_factory=list)  # of all functions
    constants: list[bool] = field(default_factory=list)  # has each numeric one a comment
    docstrings: list[bool] = field(default_factory=list)  # does each begin with a verb
    code: Counter[str] = field(default_factory=Counter)  # lines of code, by package of BUDGET
    imports: int = 0  # lines of them

    def add(self, name: str, text: str) -> None:
        """Count one file."""
        lines, tree = text.splitlines(), ast.parse(text)
        self.modules[str(Path(name).parent)] += not name.endswith("__init__.py")
        self.lines[name] = len(lines)
        self.code[package_of(name)] += count_code(lines, tree)
        self.imports += sum(
            (node.end_lineno or 0) - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name].append(name)
            elif isinstance(node, ast.FunctionDef) and not is_entry_point(node.name):
                self.functions.append(node.name)
            elif isinstance(node, ast.Assign) and is_number(node.value):
                above = lines[node.lineno - 2].lstrip()
                self.constants.append("#" in lines[node.lineno - 1] or above.startswith("#"))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        self.lengths += [(node.end_lineno or 0) - node.lineno + 1 for node in functions]
        self.docstrings += [
            begins_with_verb(text)
            for node in functions
            if (text := ast.get_docstring(node)) and not is_exempt(node)
        ]

    def complaints(self) -> list[str]:
        """One sentence for each rule that does not hold."""
        code, files = self.code.total(), sum(self.modules.values())
        one_word = [name for name in self.functions if "_" not in name.strip("_")]
        long = sum(length > LONG_FUNCTION for length in self.lengths)
        bare = self.constants.count(False)
        sentences = [
            *(f"{f} has {n} modules" for f, n in self.modules.items() if n > MAX_MODULES),
            *(f"{f} has {n} lines" for f, n in self.lines.items() if n > MAX_LINES),
            *(f"class {c} is in {' and '.join(f)}" for c, f in self.classes.items() if len(f) > 1),
            *(f"{p} has {n} lines of code" for p, n in self.code.items() if n > BUDGET.get(p, n)),
        ]
        if code < MIN_CODE * files:
            sentences.append(f"{code} lines of code are {files} files")
        if self.imports > MAX_IMPORT_SHARE * code:
            sentences.append(f"{self.imports} of {code} lines of code are imports")
        if len(one_word) > MAX_ONE_WORD_SHARE * len(self.functions):
            sentences.append(f"{len(one_word)} of {len(self.functions)} functions have one word")
        if long and long >= MAX_LONG_SHARE * len(self.lengths):
            sentences.append(f"{long} of {len(self.lengths)} functions are too long")
        if len(self.constants) - bare < MIN_REASONED_SHARE * len(self.constants):
            sentences.append(f"{bare} of {len(self.constants)} constants have no reason")
        if sum(self.docstrings) < MIN_VERB_SHARE * len(self.docstrings):
            count = self.docstrings.count(False)
            sentences.append(f"{count} of {len(self.docstrings)} docstrings begin with no verb")
        return sentences


def package_of(name: str) -> str:
    """Return the row of BUDGET that counts this file."""
    folder = "/".join(name.split("/")[:2])
    return folder if folder in BUDGET else name.partition("/")[0]


def count_code(lines: list[str], tree: ast.Module) -> int:
    """Count lines that are no blank, comment or docstring."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docs = {
        number
        for node in ast.walk(tree)
        if isinstance(node, kinds) and ast.get_docstring(node) is not None
        for number in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in docs
        for number, line in enumerate(lines, 1)
    )


def is_exempt(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether its docstring is no sentence about an action: a property, or a claim."""
    names = [one.id for one in node.decorator_list if isinstance(one, ast.Name)]
    return "property" in names or node.name.startswith(("test_", "__"))


def is_entry_point(name: str) -> bool:
    """Whether pytest or Python gave the name."""
    return name.startswith(("test_", "pytest_", "__")) or name == "main"


def is_number(value: ast.expr) -> bool:
    """Whether it is a number, True and False excluded."""
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


@cache
def read_figures() -> Figures:
    """Count all files of the product."""
    figures = Figures()
    for path in source_files(REPO).values():
        figures.add(str(path.relative_to(REPO)), path.read_text())
    return figures


def test_layout_and_names_stay_as_agreed() -> None:
    assert read_figures().complaints() == []


def test_each_package_has_a_budget() -> None:
    figures = read_figures()
    assert figures.code.keys() == BUDGET.keys()
    spare = {name: BUDGET[name] - figures.code[name] for name in BUDGET}
    assert all(room <= 50 for room in spare.values()), "lower the rows that shrank"


def test_each_rule_can_fail() -> None:
    figures = Figures()
    long = "def run_it():\n" + "    pass\n" * LONG_FUNCTION
    for number in range(MAX_MODULES + 1):
        figures.add(f"reports/m{number}.py", f"class A{number}:\n    pass\n")
    figures.add("reports/charts/a.py", "class A0:\n    pass\n" + "\n" * MAX_LINES)
    figures.add("reports/page/b.py", f"\n\nLIMIT = 3\n\n\ndef go():\n    pass\n\n\n{long}")
    figures.add("reports/page/c.py", 'class C:\n    def a(self):\n        """The value."""\n')
    figures.add("probes/gang/d.py", "import os\n" * 500 + "A = os\n" * 1700)
    assert figures.complaints() == [
        "reports has 21 modules",
        "reports/charts/a.py has 602 lines",
        "probes/gang/d.py has 2200 lines",
        "class A0 is in reports/m0.py and reports/charts/a.py",
        "probes/gang has 2200 lines of code",
        "2280 lines of code are 25 files",
        "500 of 2280 lines of code are imports",
        "1 of 2 functions have one word",
        "1 of 3 functions are too long",
        "1 of 1 constants have no reason",
        "1 of 1 docstrings begin with no verb",
    ]
