"""Signs a run folder and reads its signatures."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from reports.acceptance import AcceptanceSummary
from reports.record import Waiver
from reports.run_folder.files import SUMS
from reports.run_folder.store import utc_time
from reports.sanitize import one_line
from reports.signing import ssh_keygen
from reports.signing.files import (
    NEVER_REPLACED,
    SignatureFileError,
    digest_of_sums,
    list_names,
    read_signature_file,
    write_signature_files,
)
from reports.signing.statement import (
    MAX_BYTES,
    MAX_WORDS,
    PARTIES,
    Statement,
    StatementError,
    parse_statement,
)


class SigningError(ValueError):
    """Raised if a run cannot be signed, or a signature cannot be read; one sentence."""


@dataclass(frozen=True)
class SignedBy:
    """Claims of a statement, for page and terminal. The key has not been checked."""

    party: str
    name: str
    decision: str
    time: str


def signed_by(run: Path) -> list[SignedBy]:
    """List the signed statements of this folder WITHOUT checking a key. Raises nothing.

    A statement is left out if its signature is missing or its checksums are not this folder's.
    """
    found = []
    for party in PARTIES:
        with suppress(OSError, ValueError):
            statement, _ = read_signature(run, party)
            if (statement.party, statement.sums) == (party, digest_of_sums(run)):
                found.append(SignedBy(party, statement.name, statement.decision, statement.time))
    return found


def read_signature(run: Path, party: str) -> tuple[Statement, bytes]:
    """Read the statement of a party and its signature. Raises SigningError with the reason."""
    files = {f"{party}.txt": MAX_BYTES, f"{party}.txt.sig": ssh_keygen.MAX_BYTES}
    contents = []
    for name, limit in files.items():
        try:
            contents.append(read_signature_file(run, name, limit))
        except FileNotFoundError:
            missing = f"signatures/{name} is missing, and the other file of the pair is there"
            raise SigningError(missing) from None
        except SignatureFileError as error:
            raise SigningError(str(error)) from None
    try:
        return parse_statement(contents[0]), contents[1]
    except StatementError as error:
        raise SigningError(f"signatures/{party}.txt is no statement of seatrial: {error}") from None


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
    for sentence in summary.integrity.problems:
        raise SigningError(f"{run} does not verify and must not be signed: {sentence}")
    for sentence in list_doubts(run, summary):
        raise SigningError(f"{run} cannot be signed because it cannot be verified: {sentence}")
    if {f"{party}.txt", f"{party}.txt.sig"} & {*_names(run)}:
        raise SigningError(f"{run} has a signature of the {party} already: {NEVER_REPLACED}")
    try:
        return Statement(
            **run_facts(run, summary),
            party=party,
            name=one_line(name),
            decision=decision,
            conditions=tuple(one_line(words) for words in conditions),
            time=utc_time(),
            version=seatrial_version(),
        )
    except StatementError as error:
        raise SigningError(f"this cannot be signed: {error}") from None


def list_doubts(run: Path, summary: AcceptanceSummary) -> list[str]:
    """List why a run cannot be verified: its doubts, and missing SHA256SUMS, which are signed."""
    cut_off = f"{SUMS} is missing, which a run writes last"
    return [*summary.integrity.doubts, *([] if digest_of_sums(run) else [cut_off])]


def _names(run: Path) -> list[str]:
    try:
        return list_names(run)
    except SignatureFileError as error:
        raise SigningError(str(error)) from None


def sign_statement(run: Path, statement: Statement, key: Path) -> str:
    """Sign with `key`, write both files, return the key's fingerprint. Raises SigningError."""
    content, party = statement.text().encode(), statement.party
    try:
        signature = ssh_keygen.sign_text(content, key)
        fingerprint = ssh_keygen.fingerprint_of_signer(content, signature)
        _refuse_key_of_other_party(run, party, fingerprint)
        write_signature_files(run, {f"{party}.txt": content, f"{party}.txt.sig": signature})
    except (ssh_keygen.SshError, SignatureFileError) as error:
        raise SigningError(str(error)) from None
    except OSError as error:
        raise SigningError(f"{run}/signatures cannot be written: {error.strerror}") from None
    return fingerprint


def _refuse_key_of_other_party(run: Path, party: str, fingerprint: str) -> None:
    """Raise SigningError if the other party signed with this key; `verify` would fail later."""
    (other,) = {*PARTIES} - {party}
    with suppress(SigningError, ssh_keygen.SshError):
        statement, signature = read_signature(run, other)
        if ssh_keygen.fingerprint_of_signer(statement.text().encode(), signature) == fingerprint:
            fingerprint = ""
    if not fingerprint:
        raise SigningError(f"the {other} signed with this key: each party needs a key of its own")


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


def seatrial_version() -> str:
    """Return the version of seatrial that reads and judges here; `unknown` if not installed."""
    try:
        return metadata.version("seatrial")
    except metadata.PackageNotFoundError:
        return "unknown"
