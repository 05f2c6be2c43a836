"""Asks for the terms of a contract, one question at a time; each answer is checked at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from reports.sanitize import one_line

if TYPE_CHECKING:
    from probes.acceptance.contract import Contract
    from reports.measurement import Limit

ABOUT_TIERS = "quick: minutes; standard: for a handover; soak: longer, for rare faults"
OPEN = "-"  # the answer that leaves a question open
INTRODUCTION = f"""\
Each question: Enter keeps what stands in [ ], ? explains, {OPEN} leaves it open where it may.
Write what was ordered, not what is there: the run finds the difference.
"""


def ask_contract(template: str | None) -> str:
    """Ask for all terms; return the contract's text.  `template` answers the first question."""
    from probes.acceptance.cluster_terms import ClusterTerms
    from probes.acceptance.contract import load
    from probes.acceptance.drafts import from_answers as drafts
    from reports.record import TIERS

    click.echo(INTRODUCTION)
    template = template or _ask_template(drafts.real_contracts(), drafts.OTHER)
    shipped = load(template) if template != drafts.OTHER else None
    name = _ask("What is the name of the cluster?", "", True, "", _check_name)
    tier = _ask("Which tier proves it?", TIERS[1], True, ABOUT_TIERS, _check_tier(name, template))
    answers: dict[str, Any] = {}
    for question in drafts.list_questions(shipped):
        if drafts.is_asked(question.key, answers):
            check = _check_term(question.key, shipped, answers)
            kept = "" if question.kept is None else question.kept
            answers[question.key] = _ask(question.text, kept, question.needed, question.help, check)
    if shipped is not None:
        return drafts.fill_template(name, template, tier, answers)
    given = {key: value for key, value in answers.items() if value is not None}
    limits = drafts.propose_limits(ClusterTerms(**given))
    for measure, limit in limits.items():

        def check_limit(changed: Limit, measure: str = measure) -> None:
            _check_text(drafts.write_contract(name, tier, answers, {**limits, measure: changed}))

        limits[measure] = _ask_limit(measure, limit, check_limit)
    return drafts.write_contract(name, tier, answers, limits)


def _check_text(text: str) -> None:
    from probes.acceptance.contract import parse

    parse(text.encode(), "this contract")


def _ask_template(titles: Mapping[str, str], other: str) -> str:
    for name, title in titles.items():
        click.echo(f"  {name:14} {title}")
    click.echo(f"  {other:14} hardware that is not in this list\n")
    words = [*titles, other]

    def check(answer: str) -> str:
        return _check_word(answer, words)

    about = f"limits and reasons of that contract are taken over; {other}: you are asked for all"
    return str(_ask("Which hardware?", "h100-ndr400", True, about, check))


def _check_tier(name: str, template: str) -> Callable[[str], str]:
    """Return a check of the tier: a shipped contract may have limits that quick never measures."""
    from probes.acceptance.drafts.from_answers import OTHER, fill_template
    from reports.record import TIERS

    def check(answer: str) -> str:
        _check_word(answer, TIERS)
        try:
            if template != OTHER:
                _check_text(fill_template(name, template, answer, {}))
        except ValueError:
            raise ValueError(f"tier {answer} measures too little for {template}") from None
        return answer

    return check


def _ask(text: str, kept: Any, needed: bool, about: str, check: Callable[[str], Any]) -> Any:
    """Ask until an answer passes its check; return its value, None where it stays open."""
    while True:
        default = kept if kept != "" else (None if needed else OPEN)
        shown = f"{kept:g}" if isinstance(kept, float) else default
        shown = ", ".join(kept) if isinstance(kept, list) else shown
        answer = str(click.prompt(text, default=shown, type=str)).strip()
        if answer == "?":
            click.echo(f"  {about or 'a word that the report shows'}")
        elif answer == OPEN:
            if not needed:
                return None
            click.echo("  expected an answer: the contract needs this one")
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
    from probes.acceptance.contract import NAME

    if not NAME.fullmatch(answer):
        raise ValueError(
            f"expected a word of at most 60 letters: A-Z a-z 0-9 _ . -, found {answer!r}"
        )
    return answer


def _check_term(
    key: str, shipped: Contract | None, answers: Mapping[str, Any]
) -> Callable[[str], Any]:
    """Return a check of one answer together with those before it."""
    from probes.acceptance.cluster_terms import ClusterTerms
    from probes.acceptance.drafts.from_answers import read_answer
    from probes.acceptance.validation import ContractError, validate_terms

    def check(answer: str) -> Any:
        value = read_answer(key, answer)
        before = shipped.cluster.model_dump(exclude_defaults=True) if shipped else {}
        given = {name: each for name, each in answers.items() if each is not None}
        try:
            validate_terms(ClusterTerms, {**before, **given, key: value}, key)
        except ContractError as error:
            raise ValueError(str(error).removeprefix(f"{key}: ")) from None
        return value

    return check


def _ask_limit(measure: str, proposed: Limit, check: Callable[[Limit], None]) -> Limit:
    """Ask for the bound of one limit, and for the reason of another one than proposed."""

    def check_bound(answer: str) -> float:
        try:
            bound = float(answer)
        except ValueError:
            raise ValueError(f"expected a number, found {answer!r}") from None
        check(proposed.model_copy(update={"low": bound, "marginal_low": None}))
        return bound

    band = f" (MARGINAL below {proposed.marginal_low:g})" if proposed.marginal_low else ""
    click.echo(f"\n{measure}: at least {proposed.low:g} {proposed.unit}{band} is proposed,")
    click.echo(f"  because {proposed.because}")
    bound = _ask("Which bound was agreed?", proposed.low, True, proposed.because, check_bound)
    if bound == proposed.low:
        return proposed
    because = _ask("Because?", "", True, "The report prints the reason.", _check_reason)
    click.echo("  this limit has no MARGINAL band: add `marginal` to the file if one was agreed")
    return proposed.model_copy(update={"low": bound, "marginal_low": None, "because": because})


def _check_reason(answer: str) -> str:
    from probes.acceptance.limit_terms import MIN_REASON_CHARS
    from probes.acceptance.validation import has_words

    if len(answer) < MIN_REASON_CHARS or not has_words(answer):
        raise ValueError("expected the reason in words")
    return answer
