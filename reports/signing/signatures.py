"""Signs a run: what is stated, by whom, and for which record."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.run_folder.event_log import SUMS
from reports.sanitize import one_line
from reports.signing import files
from reports.signing.files import SigningError, digest_of_sums
from reports.version import own_version

if TYPE_CHECKING:  # the command line declares its options from here, with click alone
    from reports.acceptance import AcceptanceSummary
    from reports.record import Waiver

FORMAT = "seatrial sign-off 1"
PARTIES = ("provider", "customer")
REHEARSED = "REHEARSAL PASSED"  # verdict of a rehearsal with exit code 0
DECISIONS = ("accepted", "conditions", "refused")
MAX_BYTES = 64 * 1024  # a page of text has 3 KiB; a sign-off has at most 20 pages
MAX_WORDS = 1000  # characters of a name or a condition; a person reads it before signing

LISTS = ("waivers", "conditions")  # one line per entry
OPTIONAL = ("nonce", "head", "name")  # no line if the field is empty
SHA256 = r"[0-9a-f]{64}"
SHAPES = {
    "party": "|".join(PARTIES),
    "decision": "|".join(DECISIONS),
    "exit_code": r"[0-9]{1,3}",
    "sums": SHA256,
    "head": SHA256,
    "time": r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z",
}


class StatementError(ValueError):
    """Raised for a statement that seatrial would not write; one sentence with the reason."""


@dataclass(frozen=True)
class Statement:
    """Statement of one party. Up to `head`, fields are facts of the run folder, as `run_facts`.

    The others are the party's: `decision` is not the run's `verdict`. `sums` is the sha256 of
    SHA256SUMS, `head` the sha256 of the last event. Optional fields are "" if absent.
    """

    run: str
    verdict: str
    exit_code: str
    waivers: tuple[str, ...]
    nonce: str
    sums: str
    head: str
    party: str
    name: str
    decision: str
    conditions: tuple[str, ...]
    time: str
    version: str

    def __post_init__(self) -> None:
        """Raise StatementError unless the fields make a valid statement."""
        for field, title in TITLES.items():
            for words in self.lines(field):
                _check_words(title, words, SHAPES.get(field))
            if not getattr(self, field) and field not in (*LISTS, *OPTIONAL):
                raise StatementError(f"the line '{title}' is missing")
        if len(self.text().encode()) > MAX_BYTES:
            raise StatementError(f"it has more than {MAX_BYTES} bytes: make it shorter")
        if wrong := self._wrong_decision():
            raise StatementError(wrong)

    def _wrong_decision(self) -> str:
        """Return why the decision does not fit the run or the conditions; "" if it fits."""
        if self.decision == "accepted" and self.conditions:
            return "'accepted' must not have conditions, use the decision 'conditions'"
        if self.decision == "accepted" and self.exit_code != "0":
            return (
                f"the run ended in {self.verdict}, exit code {self.exit_code}: accept it with the "
                "decision 'conditions', because 'accepted' would claim that the run was proven"
            )
        if self.decision == "accepted" and self.verdict == REHEARSED:
            return "a rehearsal accepts no cluster: use --decision conditions --condition TEXT"
        if self.decision == "conditions" and not self.conditions:
            return "the decision 'conditions' needs at least one condition (--condition TEXT)"
        return ""

    def lines(self, field: str) -> list[str]:
        """List the text of a field, one entry per line."""
        value = getattr(self, field)
        return list(value) if field in LISTS else [value] * bool(value)

    def text(self) -> str:
        """Return the text of the statement, which the party signs."""
        lines = [f"{title}: {words}" for f, title in TITLES.items() for words in self.lines(f)]
        return "\n".join([FORMAT, *lines]) + "\n"


# Field of a statement -> the words its line begins with, in the order of the lines.
TITLES = {one.name: one.name.replace("_", " ") for one in fields(Statement)}
TITLES |= {"waivers": "waiver", "sums": "sha256 of SHA256SUMS", "head": "run fingerprint"}
TITLES |= {"conditions": "condition", "version": "seatrial version"}
FIELDS = {title: field for field, title in TITLES.items()}


def _check_words(title: str, words: str, shape: str | None) -> None:
    """Raise StatementError for text that is empty, too long, malformed or partly invisible."""
    shown = one_line(words)[:80]  # characters: enough to find the line
    if not words or words != one_line(words):
        message = f"the value of '{title}' is empty or has invisible characters: {shown}"
        raise StatementError(message)
    if len(words) > MAX_WORDS:
        raise StatementError(f"'{title}' has {len(words)} characters, expected at most {MAX_WORDS}")
    if shape and not re.fullmatch(shape, words):
        raise StatementError(f"'{title}: {shown}' does not have the format of this line")


def parse_statement(content: bytes) -> Statement:
    """Parse a statement. Unknown, repeated, missing and moved lines raise StatementError."""
    try:
        first, *lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise StatementError("it is not UTF-8 text") from None
    if first != FORMAT:
        raise StatementError(f"its first line is '{one_line(first)[:80]}', expected '{FORMAT}'")
    values: dict[str, Any] = {field: () if field in LISTS else "" for field in TITLES}
    for line in lines[:-1]:
        title, _, words = line.partition(": ")
        field = FIELDS.get(title)
        if field is None:
            raise StatementError(f"it has a line that is not known: '{one_line(line)[:80]}'")
        if field not in LISTS and values[field]:
            raise StatementError(f"it has the line '{title}' twice")
        values[field] = (*values[field], words) if field in LISTS else words
    statement = Statement(**values)
    if statement.text().encode() != content:
        raise StatementError("its lines are not in the order in which seatrial writes them")
    return statement


def signed_by(run: Path) -> list[Statement]:
    """List the signed statements of this folder WITHOUT checking a key. Raises nothing.

    A statement is left out if its signature is missing or its checksums are not this folder's.
    """
    found = []
    for party in PARTIES:
        with suppress(OSError, ValueError):
            statement, _ = read_signature(run, party)
            if (statement.party, statement.sums) == (party, digest_of_sums(run)):
                found.append(statement)
    return found


def read_signature(run: Path, party: str) -> tuple[Statement, bytes]:
    """Read the statement of a party and its signature. Raises SigningError with the reason."""
    text = files.read_signature_file(run, f"{party}.txt", MAX_BYTES)
    signature = files.read_signature_file(run, f"{party}.txt.sig", files.MAX_BYTES)
    try:
        return parse_statement(text), signature
    except StatementError as error:
        raise SigningError(f"signatures/{party}.txt is not a valid statement: {error}") from None


def prepare_statement(
    run: Path,
    summary: AcceptanceSummary,
    party: str,
    *,
    name: str,
    decision: str,
    conditions: tuple[str, ...],
) -> Statement:
    """Build the statement that `party` is to sign for a run that verifies. Raises SigningError.

    `summary` is the summary of the run, including the verification result of its folder.
    """
    from reports.run_folder.times import utc_time

    for sentence in summary.integrity.problems:
        raise SigningError(f"{run} does not verify and must not be signed: {sentence}")
    for sentence in list_doubts(run, summary):
        raise SigningError(f"{run} cannot be signed because it cannot be verified: {sentence}")
    if decision == "conditions" and (reason := summary.why_incomplete):
        raise SigningError(f"{run} cannot be accepted with conditions: {reason}")
    if {f"{party}.txt", f"{party}.txt.sig"} & {*files.list_names(run)}:
        raise SigningError(f"{run} already has a signature of the {party}: {files.NEVER_REPLACED}")
    try:
        return Statement(
            **run_facts(run, summary),
            party=party,
            name=one_line(name),
            decision=decision,
            conditions=tuple(one_line(words) for words in conditions),
            time=utc_time(),
            version=own_version(),
        )
    except StatementError as error:
        raise SigningError(f"the statement cannot be signed: {error}") from None


def list_doubts(run: Path, summary: AcceptanceSummary) -> list[str]:
    """List why a run cannot be verified: its doubts, and missing SHA256SUMS, which are signed."""
    cut_off = f"{SUMS} is missing (a run writes it at its end)"
    return [*summary.integrity.doubts, *([] if digest_of_sums(run) else [cut_off])]


def sign_statement(run: Path, statement: Statement, key: Path) -> str:
    """Sign with `key`, write both files, return the key's fingerprint. Raises SigningError."""
    content, party = statement.text().encode(), statement.party
    try:
        signature = files.sign_text(content, key)
        fingerprint = files.fingerprint_of_signer(content, signature)
        _refuse_key_of_other_party(run, party, fingerprint)
        files.write_signature_files(run, {f"{party}.txt": content, f"{party}.txt.sig": signature})
    except OSError as error:
        raise SigningError(f"{run}/signatures cannot be written: {error.strerror}") from None
    return fingerprint


def _refuse_key_of_other_party(run: Path, party: str, fingerprint: str) -> None:
    """Raise SigningError if the other party signed with this key; `verify` would fail later."""
    (other,) = {*PARTIES} - {party}
    with suppress(SigningError):
        statement, signature = read_signature(run, other)
        if files.fingerprint_of_signer(statement.text().encode(), signature) == fingerprint:
            fingerprint = ""
    if not fingerprint:
        raise SigningError(f"the {other} signed with this key: each party needs its own key")


def run_facts(run: Path, summary: AcceptanceSummary) -> dict[str, Any]:
    """Return the facts of the run that a statement contains, by field."""
    return {
        "run": _line(summary.record.id),
        "verdict": _line(summary.word),
        "exit_code": str(summary.exit_code),
        "waivers": tuple(_line(_waiver(one)) for one in summary.record.contract.waivers),
        "nonce": _line(summary.record.nonce),
        "sums": digest_of_sums(run),
        "head": summary.integrity.head,
    }


def _waiver(waiver: Waiver) -> str:
    return (
        f"{waiver.id} for {waiver.criterion}, by {waiver.name}, until {waiver.until}: "
        f"{waiver.reason}"
    )


def _line(words: object) -> str:
    return one_line(words)[:MAX_WORDS].strip()
