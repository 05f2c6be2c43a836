"""Verifies that a run folder is unchanged since its parties signed it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reports.acceptance import WORDS, AcceptanceSummary
from reports.sanitize import one_line
from reports.signing import files, signatures
from reports.signing.signatures import PARTIES, TITLES, Statement
from reports.version import own_version

EXIT_WRONG, EXIT_UNKNOWN = 4, 20  # it does not verify; it cannot be verified
FILES = [f"{party}.txt{end}" for party in PARTIES for end in ("", ".sig")]
SHOWN_NAMES = 5  # of foreign files; the folder itself shows the others
# Facts that the reader computes: another version of seatrial may compute them differently.
WORKED_OUT = ("verdict", "exit_code", "waivers")


@dataclass
class Verification:
    """Result of a verification. `facts` are (word, sentence) pairs in the order of display.

    `problems` are reasons why the run does not verify, `doubts` why it cannot be verified.
    """

    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # party -> fingerprint of the key
    decisions: dict[str, str] = field(default_factory=dict)  # of the parties whose signature holds
    verdict: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the run is ACCEPTED, and so did the customer and each party that signed."""
        decisions = {"customer": "none", **self.decisions}
        verdict = self.verdict.startswith(f"{WORDS[0]},")  # REHEARSAL PASSED is none
        return verdict and {*decisions.values()} == {"accepted"}

    @property
    def exit_code(self) -> int:
        """Exit code: 0 verified, 4 does not verify, 20 cannot be verified."""
        return EXIT_WRONG if self.problems else EXIT_UNKNOWN if self.doubts else 0


@dataclass(frozen=True)
class Signers:
    """Files of keys that may sign: ALLOWED SIGNERS and KEY REVOCATION LISTS of ssh-keygen(1)."""

    allowed: Path
    revoked: Path | None = None


def verify_signed_run(
    run: Path,
    summary: AcceptanceSummary,
    signers: Signers,
    *,
    nonce: str = "",
    required: tuple[str, ...] = (),
) -> Verification:
    """Check each signature; `required` parties must have signed.

    `summary` is the summary of the run, including the verification result of its folder. `nonce`
    is the expected one; "" compares none.
    """
    integrity = summary.integrity
    found = Verification([], [*integrity.problems], signatures.list_doubts(run, summary))
    try:
        facts = signatures.run_facts(run, summary)
        names = files.list_names(run)
    except files.SignatureFileError as error:
        found.problems.append(str(error))
        return found
    found.verdict = f"{facts['verdict']}, exit code {facts['exit_code']}"
    found.facts += [
        ("run", facts["run"]),
        ("verdict", found.verdict),
        ("events", f"{integrity.events}, fingerprint {integrity.head or 'missing'}"),
    ]
    found.facts.append(("SHA256SUMS", facts["sums"] or "missing"))
    _check_nonce(found, facts["nonce"], nonce)
    signed = [party for party in PARTIES if {f"{party}.txt", f"{party}.txt.sig"} & {*names}]
    for party in signed:
        _check_party(found, run, facts, signers, party)
    _check_parties(found, signed, required)
    if foreign := [one_line(name) for name in names if name not in FILES]:
        listed = ", ".join(foreign[:SHOWN_NAMES])
        found.problems.append(f"signatures/ has unknown files ({len(foreign)}): {listed}")
    return found


def _check_nonce(found: Verification, seen: str, expected: str) -> None:
    """Compare the nonce with the expected one: an old run shown again has another nonce."""
    checked = "" if expected else " (not compared, because --nonce was not given)"
    found.facts.append(("nonce", f"{seen}{checked}" if seen else "none"))
    if expected and one_line(expected) != seen:
        found.problems.append(
            f"nonce of the run: {seen or 'missing'}. Expected: {one_line(expected)}. "
            "This is not the run that was requested"
        )


def _check_party(
    found: Verification, run: Path, facts: dict[str, Any], signers: Signers, party: str
) -> None:
    """Compare what one party signed with this folder, and its key with the signers."""
    before = len(found.problems)
    try:
        statement, signature = signatures.read_signature(run, party)
        content = statement.text().encode()
        _compare(found, statement, facts, party)
        found.keys[party] = files.fingerprint_of_signer(content, signature)
        files.verify_text(content, signature, party, signers.allowed, signers.revoked)
    except files.SshError as error:
        found.problems.append(_key_problem(found.keys.get(party), party, signers, error))
    except files.SigningError as error:
        found.problems.append(str(error))
    if len(found.problems) > before:
        return
    found.decisions[party] = statement.decision
    name = f" by {statement.name}" if statement.name else ""
    signed = f"signed{name} at {statement.time} with {found.keys[party]}: {statement.decision}"
    found.facts += [(party, signed), *(("  condition", words) for words in statement.conditions)]


def _key_problem(key: str | None, party: str, signers: Signers, reason: files.SshError) -> str:
    """Explain why a signature does not count; without a key it does not fit the statement."""
    if key is None:
        return f"signatures/{party}.txt.sig is not a signature of {party}.txt: {reason}"
    return (
        f"the key {key}, which signed for the {party}, is not in {signers.allowed} as a key of the "
        f"{party}, or it is revoked or expired: {reason}"
    )


def _compare(found: Verification, statement: Statement, facts: dict[str, Any], party: str) -> None:
    """Compare the statement with the run folder that contains it."""
    version = own_version()
    for name, expected in {**facts, "party": party}.items():
        signed = getattr(statement, name)
        if signed == expected:
            continue
        signed, expected = (_shown(value) for value in (signed, expected))
        sentence = f"the {party} signed '{TITLES[name]}: {signed}', but this folder has {expected}"
        if name in WORKED_OUT and statement.version != version:
            other = f"signed with seatrial {statement.version}, verified with {version}"
            found.doubts.append(f"{sentence} ({other})")
        else:
            found.problems.append(sentence)


def _shown(value: str | tuple[str, ...]) -> str:
    return (value if isinstance(value, str) else "; ".join(value)) or "none"


def _check_parties(found: Verification, signed: list[str], required: tuple[str, ...]) -> None:
    """Check who signed, and that each used its own key."""
    found.facts += [(party, "has not signed") for party in PARTIES if party not in signed]
    missing = [party for party in required if party not in signed]
    found.problems += [f"the {party} has not signed, but must sign" for party in missing]
    if len(found.keys) > len({*found.keys.values()}):
        found.problems.append("one key signed for both parties: each party needs its own key")
    if not signed and not required:
        found.doubts.append("no party has signed this run")
