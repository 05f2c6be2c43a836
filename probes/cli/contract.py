"""`seatrial contract`: check, list, show and write contracts."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probes.cli.command import PATH, UsageError, command, refuse_unusable, terminal_width
from reports.numbers import quantity
from reports.sanitize import closest_name, one_line

if TYPE_CHECKING:
    from probes.check.declarations import Check
    from probes.contract.contract import Contract
    from probes.contract.terms import ClusterTerms
    from reports.measurement import Limit


@click.group(short_help="Check, list, show and write contracts.")
def contract() -> None:
    """Contracts: the criteria and limits agreed before a run."""


@command(
    "Check a contract.",
    "seatrial contract check mine.toml",
    "seatrial contract check mine.toml --limits",
    parent=contract,
)
@click.argument("file")
@click.option("--limits", "show_limits", is_flag=True, help="Show the limit of each measure.")
def check(file: str, show_limits: bool) -> None:
    """Check that FILE (or the shipped contract of this name) is valid, and show its terms."""
    from probes.check.owed import MANY_NODES, judged_names
    from probes.contract.contract import NOT_ACCEPTED, load
    from probes.contract.derived_limits import size_contract
    from probes.launch.guide import GuideError, list_typed

    with refuse_unusable(GuideError):
        loaded = load(file)
        typed = list(list_typed(loaded))
    nodes, gpus = loaded.cluster.nodes or 0, loaded.cluster.total_gpus
    loaded = size_contract(loaded, nodes if gpus else 0, gpus)
    count = 1 if nodes == 1 else MANY_NODES
    judged = judged_names(loaded.tier, loaded.cluster, loaded.limited_names, count)
    rows = list(_summary(loaded, judged))
    for word, text in (("contract", f"{loaded.name} @ {loaded.sha256[:8]}: {loaded.title}"), *rows):
        _show(text, f"{word:9} ")
    for line in typed:
        click.echo(f"{'':9}   {one_line(line)}")
    if show_limits:
        _show_limits(loaded, judged)
    open_count = sum(word == "UNPROVEN" for word, _ in rows)
    todo = f"{quantity(open_count, 'lines')} to complete (marked UNPROVEN above)"
    todo += "" if loaded.rehearsal else f": until then, {NOT_ACCEPTED}"
    todo = todo if open_count else "nothing is missing"
    todo += "; it is a draft, which no run takes" * loaded.draft
    more = "" if show_limits else ". --limits shows the limit of each measure"
    _show(f"{file} is a valid contract: {todo}{more}.", "")


def _show_limits(loaded: Contract, judged: Collection[str]) -> None:
    from probes.check.registry import CRITERIA

    for id, row in CRITERIA.items():
        reason = f"  (not required: {loaded.optional[id]})" if id in loaded.optional else ""
        _show(f"{loaded.title_of(id, loaded.cluster.nodes == 1)}{reason}", f"{id}  ")
        for name, measure in row.measures.items():
            limit, is_judged = loaded.limit(id, name), f"{id}.{name}" in judged
            text = _without_limit(measure, is_judged)
            if limit and (is_judged or loaded.cluster.nodes != 1):
                text = f"{limit}{_band(limit)}  ({limit.because})"
            _show(text, f"  {name:26} ")


def _show(text: str, first: str) -> None:
    """Print a text, broken at the width of the terminal below where it begins."""
    lines = textwrap.wrap(
        one_line(text), terminal_width(), initial_indent=first, subsequent_indent=" " * len(first),
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    click.echo("\n".join(lines))


def _summary(loaded: Contract, judged: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what was ordered, what stays UNPROVEN for lack of a limit, and whose commands run."""
    from probes.contract.contract import END_DRAFT, find_gaps
    from probes.contract.drafts import list_odd
    from probes.launch.shell import describe_typists

    terms = loaded.cluster
    if loaded.draft:
        yield "draft", END_DRAFT
    yield "tier", loaded.tier
    each = terms.gpus_per_node
    gpus = f"{terms.gpus_text}:" if isinstance(each, dict) else f"{each} x"
    gpus = "any number of" if each is None else gpus
    models = terms.models_text or "GPUs (any model)"
    yield "ordered", f"{terms.nodes_text}, {gpus} {models}"
    fabric = terms.fabric or "not in the contract: read from the cluster"
    if terms.line_rate_gbps:
        fabric = f"{fabric}, {terms.rail_count} x {terms.line_rate_gbps:g} Gbit/s per node"
    yield "fabric", str(fabric)
    if others := _other_terms(terms):
        yield "terms", others
    for text in () if loaded.rehearsal else list_odd(terms.model_dump()):
        yield "CHECK", text
    most = loaded.max_marginal
    yield "MARGINAL", "no maximum was agreed" if most is None else f"at most {most} measures"
    for waiver in loaded.waivers:
        yield "waiver", f"{waiver.id}: {waiver.criterion} until {waiver.until}, by {waiver.name}"
    if terms.nodes == 1:
        unused = ", ".join(sorted(loaded.limited_names.difference(judged)))
        also = f", so no test uses the limits of {unused}" if unused else ""
        yield "one node", f"nothing between nodes is tested{also}"
    for name, reason in loaded.not_countable.items():
        yield "uncounted", f"{name} is not tested where nothing counts it: {reason}"
    for name, percent in loaded.baseline.items():
        yield "baseline", f"{name}: at most {percent:g} % worse than in the baseline run"
    for _, text in find_gaps(loaded):
        yield "UNPROVEN", text
    yield "commands", describe_typists(terms)


OWN_LINES = ["nodes", "gpus_per_node", "gpu_model", "fabric", "rails", "line_rate_gbps", "launch"]


def _other_terms(terms: ClusterTerms, *, besides: Collection[str] = ()) -> str:
    """Format the terms that have no line of their own: `ram_gib = 1280, shared = "/data"`."""
    from probes.contract.drafts import value_text

    texts = []
    for key, value in terms.model_dump(exclude_defaults=True).items():
        if key not in (*OWN_LINES, *besides):
            texts += [
                f"{key}.{part}".rstrip(".") + f" = {value_text(each)}"
                for part, each in (value if isinstance(value, dict) else {"": value}).items()
            ]
    return ", ".join(texts)


def _band(limit: Limit) -> str:
    from probes.contract.drafts import marginal_bound

    bound = marginal_bound(limit)
    side = "below" if limit.high is None else "above"
    return f", MARGINAL {side} {quantity(bound, limit.unit)}" if bound is not None else ""


def _without_limit(measure: Check, is_judged: bool) -> str:
    """Describe where the limit of a measure comes from if the contract has none."""
    if not is_judged:
        without = measure.without_limit if measure.only_agreed else ""
        return f"not agreed: {without}" if without else "not judged by this contract"
    if measure.derived_in_run:
        return "derived from the GPU model, if seatrial knows that model"
    where = "set by" if measure.ordered_by else "from the run:"
    return f"{where} {measure.from_run}" if measure.from_run else "no limit: UNPROVEN"


@command("List the contracts of seatrial.", "seatrial contract list", parent=contract, name="list")
def list_() -> None:
    """List the contracts that come with seatrial."""
    from probes.contract.contract import load, shipped_contracts

    for name in shipped_contracts():
        click.echo(f"{name:14} {load(name).title}")


@command(
    "Print a contract of seatrial.",
    "seatrial contract show h100-ndr400 > mine.toml",
    parent=contract,
)
@click.argument("name")
def show(name: str) -> None:
    """Print the file of the shipped contract NAME, to copy it."""
    from probes.contract.contract import load, shipped_contracts

    if name not in shipped_contracts() and "/" not in name and Path(name).is_file():
        raise UsageError(
            f"expected the name of a contract of seatrial, found the file {name}. "
            "`seatrial contract list` shows the names"
        )
    with refuse_unusable():
        click.echo(load(name).text.decode(), nl=False)


@command(
    "Write a contract, from answers or from a run.",
    "seatrial contract new mine.toml",
    "seatrial contract new --template h100-ndr400 mine.toml",
    "seatrial contract new --from runs/first mine.toml",
    "seatrial contract new --template p5-efa --set name=atlas --set nodes=8 --yes",
    parent=contract,
)
@click.option(
    "--from",
    "run",
    type=PATH,
    metavar="RUN",
    help="Run folder: write the values that this run found, without questions.",
)
@click.option(
    "--template",
    metavar="NAME",
    help="Start from this contract of `seatrial contract list`. `other`: start from no contract.",
)
@click.option(
    *("--set", "given"),
    metavar="KEY=ANSWER",
    multiple=True,
    help="Answer a question. KEY is name, tier, or a key of [cluster] that is asked; without a "
    "template also CRITERION.measure. May be repeated.",
)
@click.option(
    "--yes", "-y", "keep", is_flag=True, help="Take the proposed answer where --set gives none."
)
@click.argument("file", type=PATH, default="seatrial.toml")
def new(
    run: Path | None, template: str | None, given: tuple[str, ...], keep: bool, file: Path
) -> None:
    """Write a contract to FILE (default: seatrial.toml), with the reason of each limit.

    Without --from, the command asks what was ordered. Where there is no terminal, answer with --set
    and --yes. With --from, the command writes the values that a run found: change each value to
    what was ordered. A file that exists is never overwritten.
    """
    from probes.contract.contract import parse

    if run and (template or given or keep):
        raise UsageError("--from asks no questions: drop --template, --set and --yes")
    exists = UsageError(f"{file} exists already: give a different name, or move the file")
    if os.path.lexists(file):
        raise exists
    if not os.access(file.absolute().parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{file.absolute().parent} cannot be written, or is not a folder. Make it writable, or "
            "give a FILE in another folder"
        )
    interview = Interview(given, keep=keep)
    text = _draft_from(run) if run else _ask_user(template, interview)
    with refuse_unusable():
        written = parse(text.encode(), f"the contract for {file}")
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise exists from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    if keep and (others := _other_terms(written.cluster, besides=interview.answers)):
        _show(f"proposed by the template, and not changed: {others}", "")
    todo = "change each value to what was ordered, remove `draft = true`, then " if run else ""
    click.echo(f"wrote {one_line(file)}. Next: {todo}`seatrial contract check {one_line(file)}`")


def _draft_from(run: Path) -> str:
    from probes.contract.drafts import draft_contract
    from probes.session.rejudge import read_verified

    with refuse_unusable():
        record = read_verified(run)
        try:
            return draft_contract(record, run.resolve().name)
        except ValueError as error:
            raise UsageError(f"cannot write a contract from {run}: {error}") from None


def _ask_user(template: str | None, interview: Interview) -> str:
    from probes.contract.contract import shipped_contracts
    from probes.contract.drafts import OTHER, real_contracts

    names = [*real_contracts(), OTHER]
    if template in shipped_contracts() and template not in names:
        shown = f"Copy and edit it: `seatrial contract show {template} > mine.toml`"
        raise UsageError(
            f"--template: the contract {template} is for a rehearsal, and has no questions. {shown}"
        )
    if template is not None and template not in names:
        raise UsageError(f"--template: expected one of {', '.join(names)}, found {template!r}")
    return ask_contract(template, interview)


ABOUT_TIERS = "quick takes minutes; standard is for a handover; soak takes longest, for rare faults"
OPEN = "-"  # the answer that leaves a question open
NEEDED = "expected an answer: a contract needs this value"
INTRODUCTION = f"""\
Press Enter for the answer in [ ]. Type ? for help, or {OPEN} to skip a question.
What you skip is not judged in a run. Answer with what you ordered, not with
what the cluster has. A run reports each difference.
"""


def _option(key: str) -> str:
    """Return the option that answers a question."""
    return "--template NAME" if key == "template" else f"--set {key}=..."


class Interview:
    """Questions to the user, with the answers that were given beforehand as KEY=ANSWER.

    With `keep`, a question that has no answer keeps what is proposed.  Raises UsageError for an
    answer of another form, or where there is no answer and no terminal.
    """

    def __init__(self, given: Sequence[str], *, keep: bool) -> None:
        self.answers: dict[str, str] = {}
        for one in given:
            key, sign, answer = one.partition("=")
            if not sign or key in self.answers:
                raise UsageError(f"--set: expected KEY=ANSWER, each KEY once, found {one!r}")
            self.answers[key] = answer
        self.keep = keep
        self.count = 0  # questions in all, as far as is known
        self.keys: list[str] = []  # of the questions so far

    def ask(
        self, key: str, text: str, kept: Any, needed: bool, about: str, check: Callable[[str], Any]
    ) -> Any:
        """Ask until an answer passes its check; return its value, None where it stays open."""
        self.keys.append(key)
        if key in self.answers:
            try:
                return None if self._is_open(key, needed) else check(self.answers[key])
            except ValueError as error:  # ContractError among them
                raise UsageError(f"--set {key}: {error}") from None
        if self.keep:
            if kept == "" and needed:
                self.need([key])
            return None if kept == "" else kept
        place = f"{len(self.keys)}/{max(self.count, len(self.keys))} " if self.count else ""
        try:
            return _ask(place + text, kept, needed, about, check)
        except click.Abort:
            if sys.stdin.isatty():
                raise  # Ctrl-C
            hint = f"give {_option(key)}" + ", or --yes for the proposed answer" * (kept != "")
            raise UsageError(f"no answer to `{text}`, and no terminal to ask: {hint}") from None

    def _is_open(self, key: str, needed: bool) -> bool:
        if self.answers[key] == OPEN and needed:
            raise ValueError(NEEDED)
        return self.answers[key] == OPEN

    def need(self, keys: Sequence[str]) -> None:
        """Raise UsageError for questions without a proposal and without an answer."""
        lacking = [key for key in keys if key not in self.answers] if self.keep else []
        if lacking:
            what, have = quantity(len(lacking), "questions"), "has" if len(lacking) == 1 else "have"
            raise UsageError(
                f"--yes: {what} {have} no proposed answer. Add {' '.join(map(_option, lacking))}"
            )

    def check_all_used(self, template: str, hardware: Mapping[str, Any]) -> None:
        """Raise UsageError for an answer to a question that is not asked.

        `hardware` are the terms that the limits of the template are for.
        """
        same = {key for key, value in hardware.items() if self.answers.get(key) == str(value)}
        other = next((key for key in self.answers if key not in {*self.keys, *same}), None)
        if other is None:
            return
        if other in hardware:
            raise UsageError(
                f"--set {other}: the limits of {template} hold only for {other} = "
                f"{hardware[other]}. For other hardware, use another template, or --template other"
            )
        close = closest_name(other, self.keys)
        meant = f"; did you mean {close}?" if close else ". Write other keys into the file"
        raise UsageError(f"--set: expected one of {', '.join(self.keys)}, found {other!r}{meant}")


def ask_contract(template: str | None, interview: Interview) -> str:
    """Ask for all terms; return the contract's text.  `template` answers the first question."""
    from probes.contract import drafts
    from probes.contract.contract import load
    from probes.contract.terms import ClusterTerms
    from reports.record import TIERS

    ask = interview.ask
    if not interview.keep:
        click.echo(INTRODUCTION)
    if template is None:
        interview.need(["template", "name", "nodes"])
    template = template or _ask_template(drafts.real_contracts(), drafts.OTHER, interview)
    shipped = load(template) if template != drafts.OTHER else None
    questions = list(drafts.list_questions(shipped))
    needed = [q.key for q in questions if q.needed and q.kept is None]
    interview.need(["name", *(key for key in needed if drafts.is_asked(key, interview.answers))])
    interview.count = len(interview.keys) + 2 + sum(drafts.is_asked(q.key, {}) for q in questions)
    name = ask("name", "What is the name of the cluster?", "", True, "", _check_name)
    tiers = partial(_check_tier, name, template)
    tier = ask("tier", "Which tier must a run have?", TIERS[1], True, ABOUT_TIERS, tiers)
    answers: dict[str, Any] = {}
    for one in questions:
        if drafts.is_asked(one.key, answers):
            check = partial(_check_term, one.key, shipped, answers)
            kept = "" if one.kept is None else one.kept
            answers[one.key] = ask(one.key, one.text, kept, one.needed, one.help, check)
    if shipped is not None:
        interview.check_all_used(template, drafts.hardware_of(shipped.cluster))
        return drafts.fill_template(name, template, tier, answers)
    given = {key: value for key, value in answers.items() if value is not None}
    limits = drafts.propose_limits(ClusterTerms(**given))
    for measure, limit in limits.items():

        def check_limit(changed: Limit, measure: str = measure) -> None:
            _check_text(drafts.write_contract(name, tier, answers, {**limits, measure: changed}))

        limits[measure] = _ask_limit(measure, limit, check_limit, interview)
    interview.check_all_used(template, {})
    return drafts.write_contract(name, tier, answers, limits)


def _check_text(text: str) -> None:
    from probes.contract.contract import parse

    parse(text.encode(), "this contract")


def _ask_template(titles: Mapping[str, str], other: str, interview: Interview) -> str:
    for name, title in titles.items() if not interview.keep else ():
        click.echo(f"  {name:14} {title}")
    if not interview.keep:
        click.echo(f"  {other:14} hardware that is not in this list\n")

    check = partial(_check_word, words=[*titles, other])
    about = f"limits and reasons come from the contract that you name. {other}: you give each limit"
    kept = "" if interview.keep else "h100-ndr400"  # nobody orders hardware by default
    return str(interview.ask("template", "Which hardware?", kept, True, about, check))


def _check_tier(name: str, template: str, answer: str) -> str:
    """Check the tier: a shipped contract may have limits that quick never measures."""
    from probes.contract.drafts import OTHER, fill_template
    from reports.record import TIERS

    _check_word(answer, TIERS)
    try:
        if template != OTHER:
            _check_text(fill_template(name, template, answer, {}))
    except ValueError:
        raise ValueError(
            f"contract {template} has limits that tier {answer} does not measure: choose a "
            "longer tier"
        ) from None
    return answer


def _ask(text: str, kept: Any, needed: bool, about: str, check: Callable[[str], Any]) -> Any:
    """Ask until an answer passes its check; return its value, None where it stays open."""
    if sys.stdin is None:  # as after `<&-`
        raise UsageError("standard input is closed: give --set and --yes, or --from RUN")
    while True:
        default = kept if kept != "" else (None if needed else OPEN)
        shown = f"{kept:g}" if isinstance(kept, float) else default
        shown = ", ".join(kept) if isinstance(kept, list) else shown
        answer = str(click.prompt(text, default=shown, type=str)).strip()
        if answer == "?":
            _show(about or "a name of your choice: the report shows it", "  ")
        elif answer == OPEN:
            if not needed:
                return None
            click.echo(f"  {NEEDED}")
        elif answer == str(shown) and kept != "":
            return kept
        else:
            try:
                return check(answer)
            except ValueError as error:  # ContractError among them
                click.echo(f"  {one_line(error)}")


def _check_word(answer: str, words: Collection[str]) -> str:
    if answer not in words:
        raise ValueError(f"expected one of {', '.join(words)}, found {answer!r}")
    return answer


def _check_name(answer: str) -> str:
    from probes.contract.contract import NAME

    if not NAME.fullmatch(answer):
        raise ValueError(f"expected at most 60 characters of A-Z a-z 0-9 _ . -, found {answer!r}")
    return answer


def _check_term(key: str, shipped: Contract | None, answers: Mapping[str, Any], answer: str) -> Any:
    """Check one answer together with those before it; return its value."""
    from probes.contract.drafts import read_answer
    from probes.contract.terms import ClusterTerms
    from probes.contract.validation import ContractError, validate_terms

    value = read_answer(key, answer)
    before = shipped.cluster.model_dump(exclude_defaults=True) if shipped else {}
    given = {name: each for name, each in answers.items() if each is not None}
    try:
        validate_terms(ClusterTerms, {**before, **given, key: value}, key)
    except ContractError as error:
        raise ValueError(str(error).removeprefix(f"{key}: ")) from None
    return value


def _ask_limit(
    measure: str, proposed: Limit, check: Callable[[Limit], None], interview: Interview
) -> Limit:
    """Ask for the bound of one limit, and for the reason of another one than proposed."""

    def check_bound(answer: str) -> float:
        try:
            bound = float(answer)
        except ValueError:
            raise ValueError(f"expected a number, found {answer!r}") from None
        check(proposed.model_copy(update={"low": bound, "marginal_low": None}))
        return bound

    band = f" (MARGINAL below {proposed.marginal_low:g})" if proposed.marginal_low else ""
    if not interview.keep:
        _show(f"{measure}: at least {proposed.low:g} {proposed.unit}{band} is proposed,", "\n")
        _show(f"because {proposed.because}", "  ")
    text, reason = "Which minimum was agreed?", proposed.because
    bound = interview.ask(measure, text, proposed.low, True, reason, check_bound)
    if bound == proposed.low:
        return proposed
    about = "The report prints the reason."
    because = interview.ask(
        f"{measure}.because", "Why this minimum?", "", True, about, _check_reason
    )
    click.echo("  this limit has no warning band. If one was agreed, add `marginal` to the file")
    return proposed.model_copy(update={"low": bound, "marginal_low": None, "because": because})


def _check_reason(answer: str) -> str:
    from probes.contract.limits import MIN_REASON_CHARS
    from probes.contract.validation import has_words

    if len(answer) < MIN_REASON_CHARS or not has_words(answer):
        raise ValueError("expected the reason in words")
    return answer
