"""`seatrial sign` and `seatrial verify`: sign a run, and check that it is unchanged."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from probes.cli import command as cli
from reports.command import EXIT_INTERRUPTED
from reports.sanitize import ascii_only, one_line
from reports.signing.signatures import DECISIONS, PARTIES

LABEL_WIDTH = 12  # columns: the longest label, "  condition", and a blank


@cli.command(
    "Sign a run folder with an ssh key.",
    "seatrial sign runs/first --as customer --key mykey --decision accepted",
)
@click.argument("run", type=cli.PATH)
@click.option("--as", "party", type=click.Choice(PARTIES), required=True, help="Party that signs.")
@click.option(
    "--key",
    type=cli.PATH,
    required=True,
    help="Private ssh key, or the .pub file of a key that ssh-agent or a hardware token holds.",
)
@click.option(
    "--decision",
    type=click.Choice(DECISIONS),
    required=True,
    help="Decision of this party. `conditions`: accepted, with the texts of --condition.",
)
@click.option("--name", default="", metavar="NAME", help="The person who signs.")
@click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="TEXT",
    help="Condition (--decision conditions) or reason (--decision refused). May be repeated.",
)
def sign(
    run: Path, party: str, key: Path, decision: str, name: str, conditions: tuple[str, ...]
) -> None:
    """Sign the folder RUN with an ssh key, as one of the two parties.

    A folder that was changed is not signed. Only a run that ended with exit code 0 can be
    `accepted`. With another exit code, a run can be accepted with conditions (`--decision
    conditions --condition ...`), or `refused`. A partial run, a run that was stopped, and a run
    without a contract can only be `refused`. A rehearsal cannot be `accepted`. A signature says who
    vouches for the folder; it proves nothing about the cluster.
    """
    from probes.session.rejudge import read_whole
    from reports.signing.files import SigningError
    from reports.signing.signatures import prepare_statement, sign_statement

    try:
        with cli.refuse_unusable(SigningError):
            statement = prepare_statement(
                run, read_whole(run), party, name=name, decision=decision, conditions=conditions
            )
            _say(statement.text())
            _say(
                "ssh-keygen signs now. It may ask for a passphrase, or for a touch of the key",
                err=True,
            )
            fingerprint = sign_statement(run, statement, key)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)  # click's own is 1: a criterion failed
    written = f"{party}.txt and {party}.txt.sig in {run / 'signatures'}"
    _say(f"signed with {fingerprint}. Written: {written}")


@cli.command(
    "Check that a signed run is unchanged.", "seatrial verify runs/first --signers allowed_signers"
)
@click.argument("run", type=cli.PATH)
@click.option(
    "--signers",
    type=cli.PATH,
    required=True,
    help="File of the parties' keys: lines `provider KEY`, `customer KEY` (ssh's allowed_signers).",
)
@click.option("--revoked", type=cli.PATH, help="File of revoked keys (ssh's KRL).")
@click.option("--nonce", metavar="TEXT", help="Text that was given to `seatrial run --nonce`.")
@click.option(
    "--require",
    "required",
    type=click.Choice(PARTIES),
    multiple=True,
    help="A party that must have signed; may be repeated (default: at least one party).",
)
@click.option(
    "--require-accepted",
    is_flag=True,
    help="Exit with 1 unless the run is ACCEPTED, and so did the customer and each who signed.",
)
def verify(
    run: Path,
    signers: Path,
    revoked: Path | None,
    nonce: str | None,
    required: tuple[str, ...],
    require_accepted: bool,
) -> None:
    """Check that RUN is unchanged since its parties signed it.

    Exit code 0: the folder is unchanged since the parties signed. Only with --require-accepted does
    it also say that the cluster was accepted; 1: it was not. 4: a check failed, for example
    because the folder was changed or a signature is not valid. 20: the folder cannot be verified,
    for example because the run was killed or has no signature.
    """
    from probes.session.rejudge import read_whole
    from reports.exports import check_renderings
    from reports.signing.verification import Signers, Verification, verify_signed_run

    if nonce is not None and not one_line(nonce):
        message = "--nonce is empty: give the text of `seatrial run --nonce`, or drop --nonce"
        raise cli.UsageError(message)
    for option, file in (("--signers", signers), ("--revoked", revoked)):
        if file:
            _refuse_untrusted(option, file, run)
    with cli.refuse_unusable():
        found: Verification = verify_signed_run(
            run, read_whole(run), Signers(signers, revoked), nonce=nonce or "", required=required
        )
        not_compared = check_renderings(run, read_whole(run))[1]
    how = f"not compared with the events: {not_compared}" if not_compared else ""
    found.facts += [("reports", how or "compared with the events")]
    for label, words in found.facts:
        _say(f"{label:{LABEL_WIDTH}} {one_line(words)}")
    for word, sentences in (("problem", found.problems), ("doubt", found.doubts)):
        for sentence in sentences:
            _say(f"{word}: {one_line(sentence)}")
    verdict = f"The run's own verdict: {found.verdict or 'not known'}."
    conclusion = {
        0: f"VERIFIED: unchanged since it was signed for the {' and the '.join(found.keys)}.",
        4: "DOES NOT VERIFY: see each problem above. Do not rely on this folder.",
        20: "CANNOT BE VERIFIED: see each doubt above. The folder may have been changed.",
    }
    _say(f"{conclusion[found.exit_code]} {verdict}")
    if require_accepted and not found.exit_code and not found.accepted:
        _say("NOT ACCEPTED by the run's own verdict, or by the decision of a party.")
        sys.exit(1)
    sys.exit(found.exit_code)


def _refuse_untrusted(option: str, file: Path, run: Path) -> None:
    """Raise UsageError for a file of keys that is missing or is inside the run to be verified."""
    if not file.is_file():
        raise cli.UsageError(f"{option}: expected a file with keys, found no file {file}")
    if file.resolve().is_relative_to(run.resolve()):
        message = "is inside the run folder: use your own file, outside of that folder"
        raise cli.UsageError(f"{option}: {file} {message}")


def _say(text: str, err: bool = False) -> None:
    """Print a text, in ASCII where the terminal's encoding is not Unicode."""
    shown = text.rstrip("\n")
    click.echo(shown if cli.is_unicode(err) else ascii_only(shown), err=err)
