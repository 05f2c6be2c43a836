"""The `seatrial` command.  Everything heavy is imported inside the commands."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import resources
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from probes.cli.command import PATH, UsageError, command, refuse, terminal_width
from probes.cli.contract import contract
from probes.cli.on_cluster import cleanup, doctor, reach
from probes.cli.report import compare, explain, history, rejudge, report, show
from probes.cli.run import again, plan, run
from probes.cli.scaling import scaling
from probes.cli.sign import sign, verify
from probes.cli.submit import submit
from reports.command import CommandGroup

SHELLS = ("bash", "zsh", "fish")


@command(
    "Print a script for shell completion.",
    "seatrial completion bash > ~/.seatrial.bash    # source it in ~/.bashrc",
    "seatrial completion zsh > ~/.zfunc/_seatrial",
    "seatrial completion fish > ~/.config/fish/completions/seatrial.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and their values."""
    root = context.find_root()
    found = get_completion_class(shell)
    assert found is not None, shell  # click knows each of SHELLS
    name = "seatrial"
    click.echo(found(root.command, {}, name, f"_{name.upper()}_COMPLETE").source())


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from reports.version import version_line

    click.echo(version_line())
    context.exit()


# Commands of the help, in the order in which a user needs them.
SECTIONS = {
    "Before a run": ("contract", "doctor", "plan"),
    "Run": ("run", "submit", "again"),
    "Read a run": ("show", "report", "explain", "compare", "history", "rejudge", "scaling"),
    "Sign a run": ("sign", "verify"),
    "Look at a cluster": ("nccl-log", "reach", "cleanup"),
    "Other": ("example", "schema", "completion"),
}


class SectionedGroup(CommandGroup):
    """The command, whose help lists its commands by SECTIONS."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose."""
        for title, names in SECTIONS.items():
            rows = [(name, self.commands[name].get_short_help_str(limit=80)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name.ljust(10), text) for name, text in rows])


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    *("-V", "--version"),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version, the commit and a hash of the sources.",
)
def main() -> None:
    """Acceptance tests for GPU training clusters that run Ray.

    A test passes only if it also found a planted fault on this cluster.
    """


COMMANDS = (
    *(again, cleanup, compare, completion, contract, doctor, explain, history, plan),
    *(reach, rejudge, report, run, scaling, show, sign, submit, verify),
)
for each in COMMANDS:
    main.add_command(each)


@command("Print the schema of record.json.", "seatrial schema", parent=main)
def schema() -> None:
    """Print the JSON schema of record.json."""
    from reports.exports import read_schema

    click.echo(read_schema(), nl=False)


@command(
    "Show which network NCCL used, from its log.",
    "seatrial nccl-log /logs/nccl.*.log",
    "seatrial nccl-log --json job.out",
    "seatrial nccl-log -    # paste, and end with Ctrl-D",
    parent=main,
    name="nccl-log",
)
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--explain", "explained", is_flag=True, help="Also explain each finding.")
@click.option(
    "--whole",
    is_flag=True,
    help="FILES are the complete logs of all ranks: a hang and missing ranks are then reported.",
)
def nccl_log(files: tuple[Path, ...], as_json: bool, explained: bool, whole: bool) -> None:
    """Show which network NCCL used, from the FILES (or folders of files) that one job wrote.

    FILES may be - for standard input. The findings come first, each with its remedy, then what is
    certain, then what the log cannot show and what to collect. A part of a log does not prove a
    hang. Give --whole if FILES are the complete logs of all ranks.

    Exit code 0: NCCL used RDMA, or the job ran on one host, and the log shows no problem; 1: the
    log shows a problem; 20: the log is not enough to decide.
    """
    import json

    from probes.nccl.lines import UnreadableLog
    from probes.nccl.log_files import find_logs
    from probes.nccl.report import analyse_files

    with refuse(UnreadableLog):
        result = analyse_files(*find_logs(files), whole=whole)
    # Escape ##, which marks a CI command; in JSON it only occurs inside strings.
    text = json.dumps(result.to_json(), indent=2).replace("##", "#\\u0023")
    click.echo(text if as_json else result.text(terminal_width()))
    if explained and not as_json:
        for code in dict.fromkeys(finding.code for finding in result.findings):
            click.echo()
            explain.main([code], standalone_mode=False)
    sys.exit(result.exit_code)


@command("Write an FSDP training job into a folder.", "seatrial example myjob", parent=main)
@click.argument("folder", type=PATH)
def example(folder: Path) -> None:
    """Write an ordinary FSDP training job into FOLDER, ready for `ray job submit`."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: give a new or an empty folder")
    target, readme = folder / "reference_trainer", folder / "README.md"
    for path in (target, readme):
        if os.path.lexists(path):  # a broken link is somebody's, too
            raise UsageError(f"{path} exists already: give an empty or new folder")
    with resources.as_file(resources.files("reference_trainer")) as source:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(str(resources.files("probes.launch") / "launch.md"), readme)
    click.echo(f"wrote {target}; see {readme}")


if __name__ == "__main__":
    main()
