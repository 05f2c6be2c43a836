"""Reads a guide, checks its text, and follows its commands literally."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shlex
import shutil
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from probes.cluster.ask import make_unique_token
from probes.cluster.cluster import ROOT, Cluster
from probes.cluster.dashboard import AnswerTooLong, read_answer
from probes.contract.contract import Contract
from probes.contract.terms import ClusterTerms
from probes.launch import shell
from probes.launch.shell import RunningScript, Transcript, User
from probes.toml_tables import ClosedTable, fill_shared, read_tables, validate

RULES = Path(__file__).with_name("rules.toml")
SHELLS = frozenset(("sh", "bash", "shell", "zsh", "console", "shell-session", "terminal"))
SKIP = "<!-- seatrial: skip -->"  # before a block that is no step of the path
MAX_BYTES = 1 << 20
FETCH_SECONDS = 15  # for all of it
URLS = ("http://", "https://")
# Neither has two ways to match a text: a line of a guide may have MAX_BYTES.
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}(?!`)|~{3,}(?!~))(?P<info>[^`]*)$")
HEADING = re.compile(r"^(?P<level>#{1,6})\s+(?P<title>.*)$")


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
    skipped: tuple[tuple[int, int], ...] = ()  # first and last lines of blocks marked with SKIP

    @property
    def sha256(self) -> str:
        """Hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def script(self, values: Mapping[str, str]) -> str:
        """Return the lines that a user types, as a shell script.  Raises GuideError."""
        return "".join(f"{command.text}\n" for command in self.typed(values))

    def typed(self, values: Mapping[str, str]) -> list[Command]:
        """Return the lines that a user types; each key of `values` is replaced by its value.

        Raises GuideError for a key that no command has: the guide has changed since.
        """
        for placeholder in values:
            if not any(placeholder in command.text for command in self.commands):
                raise GuideError(
                    f"no command of the guide {self.name} contains {placeholder!r}: correct this "
                    "key in the contract's [launch.values]"
                )
        # All at once: what one value brings in is no placeholder of another.
        keys = sorted(values, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, keys)) or r"(?!)")
        return [
            Command(command.line, line)
            for command in self.commands
            for line in pattern.sub(lambda match: values[match[0]], command.text).split("\n")
        ]


def list_typed(contract: Contract) -> Iterator[str]:
    """Yield what of the operator's words is typed: the guide's commands, or what is known of them.

    Nothing is fetched: of a guide at a URL the values alone are known.  Raises GuideError.
    """
    launch = contract.cluster.launch
    if contract.guide:
        guide = read_guide(contract.guide, launch.section, launch.sha256)
        yield f"sha256 {guide.sha256}"
        yield from (f"$ {line}" for line in guide.script(launch.values).splitlines())
    elif launch.document:
        yield from (f"{text!r} is replaced by {value!r}" for text, value in launch.values.items())


def own_guide() -> Guide:
    """Read seatrial's own guide."""
    text = (resources.files("probes.launch") / "launch.md").read_text(encoding="utf-8")
    return parse_guide("launch.md", text, own=True)


def read_guide(source: str, section: str | None = None, sha256: str | None = None) -> Guide:
    """Read the operator's guide from a path or a URL, and check its hash.  Raises GuideError."""
    try:
        content = _fetch(source) if source.startswith(URLS) else _read_file(source)
    except AnswerTooLong:
        most = MAX_BYTES >> 20
        raise GuideError(f"the guide {source} is too large: at most {most} MiB is read") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise GuideError(f"the guide {source} cannot be read: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, found):
        raise GuideError(
            f"the guide {source} has sha256 {found}. Expected: {sha256} (from the contract). If "
            "the new text is agreed, correct `sha256` in the contract's [launch]"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise GuideError(f"the guide {source} is not UTF-8 text: save it as UTF-8") from None
    return parse_guide(source, text, section=section)


class _ToHttps(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https alone: on any other way the text may be changed."""

    max_redirections = 5

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """Raise ValueError for another scheme."""
        if not newurl.startswith("https://"):
            fp.close()
            raise ValueError(f"it redirects to {newurl!r}. Expected: an https URL")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read_file(path: str) -> bytes:
    """Read a file.  Raises OSError, AnswerTooLong."""
    with Path(path).open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise AnswerTooLong
    return content


def _fetch(url: str) -> bytes:
    """Fetch a guide, whole.  Raises OSError, AnswerTooLong, ValueError, HTTPException.

    A thread fetches, so that one deadline holds for names, connection, headers and content.
    """
    content: futures.Future[bytes] = futures.Future()
    threading.Thread(target=_read_url, args=[url, content], daemon=True).start()
    try:
        return content.result(FETCH_SECONDS)
    except (TimeoutError, futures.TimeoutError):  # the thread's deadline is the same
        raise TimeoutError(f"no complete answer within {FETCH_SECONDS} s") from None


def _read_url(url: str, content: futures.Future[bytes]) -> None:
    try:
        with urllib.request.build_opener(_ToHttps).open(url, timeout=FETCH_SECONDS) as answer:
            content.set_result(read_answer(answer, FETCH_SECONDS, MAX_BYTES))
    except Exception as error:  # noqa: BLE001  (raised again by who waits)
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        content.set_exception(error)


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
            f"the guide {name} has no commands{where}: put them into a fenced block marked sh, "
            "bash or console"
        )
    skipped = tuple((block[0].line, block[-1].line) for info, block in blocks if info == SKIP)
    return Guide(name, text, own, tuple(commands), skipped)


def _section(name: str, lines: list[str], title: str) -> tuple[int, int]:
    """Return the lines of a section, up to the next heading of its level or above."""
    in_block, found, level = "", None, 0
    for number, line in enumerate(lines):
        if fence := FENCE.match(line):
            in_block = "" if in_block and fence["fence"].startswith(in_block) else fence["fence"]
        heading = None if in_block else HEADING.match(line)
        if heading and found is not None and len(heading["level"]) <= level:
            return found, number
        text = heading["title"].rstrip("#").rstrip() if heading else ""
        if heading and found is None and text.lower() == title.strip().lower():
            found, level = number, len(heading["level"])
    if found is None:
        raise GuideError(
            f"the guide {name} has no heading {title!r}: correct `section` in the contract's "
            "[launch]"
        )
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
            if block:
                yield info, block
            opening, before = None, ""
        else:
            indent = len(opening["indent"])
            block.append(Command(number + 1, line[indent:] if not line[:indent].strip() else line))


def _typed(block: list[Command]) -> list[Command]:
    """Return what a user types: all lines, or those after a prompt where the block shows output."""
    if not any(command.text.startswith("$ ") for command in block):
        return [command for command in block if command.text.strip()]
    typed, goes_on = [], False
    for command in block:
        if goes_on or command.text.startswith("$ "):
            text = command.text[2:] if command.text.startswith(("$ ", "> ")) else command.text
            typed.append(Command(command.line, text))
            goes_on = command.text.endswith("\\")
    return typed


class LintRule(ClosedTable):
    """What no line of a guide should have, and why: a pattern, where `it` is what is named.

    A test finds the rule in its `example`, and not in the `harmless` line.
    """

    pattern: re.Pattern[str]
    found: str
    why: str = "an ordinary user has no right to do this"
    example: str = ""
    harmless: str = ""


class GuideRules(ClosedTable):
    """The file rules.toml: each `rule`, and how a line sets a variable, or sets none.

    `setting` finds a variable that NCCL, torch or CUDA reads, with its value: as a shell, YAML or
    JSON sets it, or as `name` and `value` of Kubernetes.  `${NAME:-value}` sets none.  Nor does
    `no_setting`: a line that only prints or searches, and what follows on a line.
    """

    shared: dict[str, str]
    rule: list[LintRule]
    setting: re.Pattern[str]
    no_setting: re.Pattern[str]


@cache
def read_rules() -> GuideRules:
    """Read the file, once.  Raises TableError."""
    tables = read_tables(RULES)
    return validate(GuideRules, fill_shared(tables, tables.get("shared", {})), str(RULES))


def lint_guide(
    commands: Iterable[Command], hosts: Sequence[str] = ()
) -> list[tuple[Command, str, str]]:
    """Find the faults of each line, in order; `hosts` are the names of the cluster's nodes.

    A fault is a line, what it does, and why it should not.
    """
    rules = [*read_rules().rule, *_host_rule(hosts)]
    return [
        (command, f"{rule.found} ({match['it']})", rule.why)
        for command in commands
        if not command.text.lstrip().startswith("#")
        for rule in rules
        if (match := rule.pattern.search(command.text))
    ]


def find_settings(commands: Sequence[Command]) -> Iterator[tuple[Command, str, str]]:
    """Yield each variable of NCCL, torch or CUDA that a line sets, with a value that is known."""
    text = read_rules().no_setting.sub("", "\n".join(command.text for command in commands))
    line = at = 0
    for match in read_rules().setting.finditer(text):
        line, at = line + text.count("\n", at, match.start()), match.start()
        value = match["quoted"] or (match["bare"] or "").rstrip(",")
        if value and not {*"$`<{"} & {*value}:
            yield commands[line], match["name"], value


def _host_rule(hosts: Sequence[str]) -> list[LintRule]:
    short = {host.partition(".")[0] for host in hosts}
    short = {name for name in short if not name.isdecimal()}  # of a host that is its address
    # A name without a digit or hyphen may be any word of a command.
    names = "|".join(sorted(re.escape(name) for name in short if re.search(r"[-\d]", name)))
    if not names:
        return []
    pattern = rf"(?P<it>(?:(?<=//)|(?<![\w./-]))(?:{names})(?:\.[\w.-]+)?(?![\w-]))"
    why = "the job may run on different nodes: let the scheduler choose"
    return [LintRule(pattern=re.compile(pattern), found="names a node", why=why)]


# Variables of a user of a cluster with token authentication (Ray 2.52 and later).  The token itself
# is in the user's home.
AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_ENABLE_K8S_TOKEN_AUTH")
STEPS = 20  # enough for the loss to fall, and for its bytes to stand out
CHECKS = ("--digest-start", "--validate", "4")
# Words of launch.md: its job's name, its export's folder, its last words, and a variable that it
# gives to the job.
OWN_NAME, OWN_EXPORT, OWN_END = "--name myjob", "--export model", "--show MYJOB_STAGE"
OWN_VARIABLES = {"MYJOB_STAGE": "first"}


@dataclass(frozen=True)
class GuidedCluster:
    """A guide with its terms, for a cluster."""

    cluster: Cluster
    terms: ClusterTerms
    guide: Guide

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that the guide gives to the job."""
        return OWN_VARIABLES if self.guide.own else self.terms.launch.variables


@dataclass(frozen=True)
class LaunchPath(GuidedCluster):
    """What is followed: a guide, by a user."""

    user: User

    def job_command(self, name: str, extra: Sequence[str] = ()) -> str:
        """Return the command that starts the job on Ray, with further options."""
        words = ["python", "-m", "reference_trainer", "launch", "--workers", "all"]
        words += ["--steps", str(STEPS), "--name", name, *CHECKS, *export_options(name)]
        return shlex.join([*words, *self.show_options(), *extra])

    def show_options(self, more: Iterable[str] = ()) -> list[str]:
        """Return the option that lets each rank print the guide's variables, and `more`."""
        shown = ",".join([*self.variables, *more])
        return ["--show", shown] if shown else []

    def script(self, name: str, folder: Path, extra: Sequence[str] = ()) -> str:
        """Return what is typed, for a job of this name.  Raises GuideError."""
        if self.guide.own:
            own = {
                OWN_NAME: shlex.join(["--name", name]),
                OWN_EXPORT: shlex.join(export_options(name)),
                OWN_END: " ".join([OWN_END, *map(shlex.quote, extra)]),
            }
            return self.guide.script(own)
        known = {
            "{command}": self.job_command(name, extra),
            "{folder}": str(folder),
            "{name}": name,
            "{dashboard}": self.cluster.dashboard,
            "{nodes}": str(len(self.cluster.nodes)),
            "{ranks}": str(self.cluster.size),
            "{shared}": self.terms.shared or "",
        }
        pattern = re.compile("|".join(map(re.escape, known)))
        values = self.terms.launch.values.items()
        filled = {key: pattern.sub(lambda match: known[match[0]], text) for key, text in values}
        return self.guide.script(filled)

    def login_env(self, home: Path) -> dict[str, str]:
        """Make the environment of a user who has just logged in.

        Our own guide asks for Ray and seatrial on the PATH, and for the dashboard's address.
        """
        own = {
            "PATH": f"{Path(sys.executable).parent}:{shell.SYSTEM_PATH}",
            "RAY_API_SERVER_ADDRESS": self.cluster.dashboard,
        }
        return {
            "PATH": shell.SYSTEM_PATH,
            **{name: os.environ[name] for name in AUTH_VARIABLES if name in os.environ},
            "HOME": str(home),
            "USER": shell.NAME,
            "LOGNAME": shell.NAME,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            **(own if self.guide.own else {}),
        }

    def follow(self, extra: Sequence[str] = ()) -> Transcript:
        """Type the guide's commands in a fresh home; stop at the first that fails.

        `extra` words are appended to the job's own command (for controls).  Raises GuideError.
        """
        with self.start(extra) as running:
            return running.wait()

    def start(
        self, extra: Sequence[str] = (), change: Mapping[str, str] | None = None
    ) -> RunningScript:
        """Start typing the guide's commands; `change` replaces texts of them, as a typo does.

        Raises GuideError, also where they may not be typed as this user.
        """
        if why := shell.why_not_typed(self.terms, self.user.uid, self.user.why_same):
            raise GuideError(why)
        name = new_name()
        with self.user.new_home() as home:
            folder = home / "job"
            if not self.guide.own:
                copy_job(folder)
            script = self.script(name, folder, extra)
            for text, instead in (change or {}).items():
                script = script.replace(text, instead)
            shell.write_script(home, script)
        return self.run_script(home, name)

    def ask(self, script: str) -> Transcript:
        """Run a script of ours in the user's shell, in a fresh home."""
        with self.user.new_home() as home:
            shell.write_script(home, script)
        with self.run_script(home, new_name()) as running:
            return running.wait()

    def ask_identity(self) -> Transcript:
        """Ask who the user is: uid, group and groups."""
        return self.ask("id -u\nid -g\nid -G\n")

    def run_script(self, home: Path, name: str) -> RunningScript:
        """Start the script that a home has, in the user's shell."""
        login, environment = not self.guide.own, self.login_env(home)
        return RunningScript(self.cluster, self.user, home, name, environment, login)


def export_options(name: str) -> list[str]:
    """Return where a test's job exports to: anybody can write there, and the job removes it."""
    return ["--export", f"/tmp/{name}", "--no-keep-export"]


def new_name() -> str:
    """Make a name that no other job has."""
    return f"seatrial-{make_unique_token()}"


def copy_job(folder: Path) -> None:
    """Write the user's own training job into a folder: an ordinary package, and nothing else."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "reference_trainer", folder / "reference_trainer", ignore=ignored)
