"""The `seatrial` command.  Everything heavy is imported inside the commands."""

from __future__ import annotations

import shutil
import sys
from importlib import resources
from pathlib import Path

import click

from probes.cli.contract import contract
from probes.cli.errors import PATH_TYPE, CommandGroup, UsageError, refuse_unusable
from probes.cli.run import run
from probes.cli.scaling import scaling
from probes.cli.sign import sign, verify


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seatrial")
def main() -> None:
    """Acceptance tests for GPU training clusters that run Ray.

    PASS means proven, every probe has been seen failing, every number has its reason.
    """


@main.command()
@click.argument("run_folder", type=PATH_TYPE)
@click.option("--baseline", type=PATH_TYPE, help="A run to compare with.")
def report(run_folder: Path, baseline: Path | None) -> None:
    """Render RUN_FOLDER again; needs no cluster."""
    _render_run(run_folder, baseline)


@main.command()
@click.argument("run_folder", type=PATH_TYPE)
@click.option("--contract", required=True, metavar="NAME|FILE")
def rejudge(run_folder: Path, contract: str) -> None:
    """Judge what RUN_FOLDER measured by another contract, into a folder beside it."""
    from probes.acceptance.contract import load
    from probes.acceptance.rejudge import rejudge_run

    with refuse_unusable():
        agreed = load(contract)
        for notice in agreed.notices:
            click.echo(f"notice: {notice}")
        target = rejudge_run(run_folder, agreed)
    _render_run(target, None)


def _render_run(folder: Path, baseline: Path | None) -> None:
    """Write all renderings of a run, show the table, exit with the run's code."""
    from reports.acceptance import load_summary
    from reports.exports import write_all
    from reports.text import acceptance_table

    with refuse_unusable():
        summary = load_summary(folder)
        write_all(folder, summary, load_summary(baseline) if baseline else None)
    width = min(shutil.get_terminal_size().columns, 100)
    unicode = "utf" in (sys.stdout.encoding or "").lower()
    click.echo(acceptance_table(summary, width=width, color=sys.stdout.isatty(), unicode=unicode))
    click.echo(f"report  {folder / 'report.html'}")
    sys.exit(summary.exit_code)


main.add_command(contract)
main.add_command(run)
main.add_command(scaling)
main.add_command(sign)
main.add_command(verify)


@main.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """What a finding's CODE means and what to do; without CODE, all of them."""
    import difflib

    from probes.findings.catalogue import CATALOGUE
    from reports.renamed import CODES

    if code is None:
        for name, entry in CATALOGUE.items():
            click.echo(f"{name:24} {entry.meaning}")
        return
    name = CODES.get(code.upper(), code.upper())
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, [*CATALOGUE, *CODES], 1)
        hint = "; `seatrial explain` lists them"
        if close:
            hint = f", did you mean {CODES.get(close[0], close[0])}?"
        raise UsageError(f"no finding has the code {code!r}{hint}")
    if name != code.upper():
        click.echo(f"{code.upper()} is now called {name}")
    entry = CATALOGUE[name]
    click.echo(f"{name}: {entry.meaning}")
    click.echo(f"cause   {entry.cause.value}\nremedy  {entry.remedy}")


@main.command("nccl-log")
@click.argument("files", nargs=-1, required=True, type=PATH_TYPE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, schema 1.")
def nccl_log(files: tuple[Path, ...], as_json: bool) -> None:
    """Say which road NCCL took, from the FILES (or folders of files) that one job wrote.

    Exit code 0: RDMA, or a single host, and nothing found; 1: something is wrong; 20: the log
    cannot prove it.
    """
    import json

    from probes.nccl.report import analyse_files

    if missing := [path for path in files if not path.exists()]:
        raise UsageError(f"expected a log file, found nothing at {missing[0]}")
    paths = [p for file in files for p in (sorted(file.rglob("*")) if file.is_dir() else [file])]
    result = analyse_files(path for path in paths if not path.is_dir())
    width = min(shutil.get_terminal_size().columns, 100)
    click.echo(json.dumps(result.to_json(), indent=2) if as_json else result.text(width))
    sys.exit(result.exit_code)


@main.command()
@click.argument("folder", type=PATH_TYPE)
def example(folder: Path) -> None:
    """Write an ordinary FSDP training job into FOLDER, ready for `ray job submit`."""
    target = folder / "reference_trainer"
    if target.exists():
        raise UsageError(f"{target} exists already: give an empty or new folder")
    with resources.as_file(resources.files("reference_trainer")) as source:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(str(resources.files("probes.launch") / "launch.md"), folder / "README.md")
    click.echo(f"wrote {target}; see {folder / 'README.md'}")


if __name__ == "__main__":
    main()
