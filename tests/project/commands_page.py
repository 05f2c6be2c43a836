"""Writes docs/reference/commands.md: every command and option, and the exit codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from tests.support.doc_commands import PROGRAMS
from tests.support.paths import REPO

COMMANDS_PAGE = REPO / "docs" / "reference" / "commands.md"
HEAD = """# Commands

This page is generated from the commands themselves. `seatrial COMMAND --help` prints the same.

## Exit codes

| code | meaning |
|---|---|
| 0 | accepted (marginal results are listed), or a rehearsal that passed and whose contract declares it |
| 1 | a criterion failed |
| 2 | a signal interrupted the run; the folder of a run that was killed reads so, too |
| 3 | something of the suite or under it broke: collection, teardown, an internal error, a full disk, a lost run folder |
| 4 | wrong usage, or the cluster cannot be reached, or another run uses it, or the run folder cannot be read or does not verify |
| 5 | no probe was selected, and no run began |
| 20 | nothing failed, but something required is unproven, the cluster was lost, the run is partial, or nothing was agreed, or a submission was detached |

These are the codes of a run. Where several hold, the first of 4, 2, 1, 3, 20, 5, 0 counts. `report` and `show` end with the
code of the run that they show. `plan` and `--collect-only` test nothing: their 0 says only that they ran. Other commands
give their codes below.

## How a run ends

Every run ends with its record, and with the code of its record:

| what happened | code | what the run does |
|---|---|---|
| SIGINT (Ctrl-C), SIGTERM or SIGHUP | 2 | ends its probe, writes its record, removes what it made, and completes its record |
| a second signal | 2 | goes on, and says what it waits for and for how long |
| a third signal | 2 | leaves at once; its record is complete, and another process removes what it made |
| a signal after the last probe | as without it | writes its report: all probes ran |
| SIGKILL | the shell's | writes nothing more: the folder reads as interrupted (2); another process removes what it made |
| the terminal is gone, or its disk is full | as without it | goes on and prints no more |
| the disk of the run folder is full | 3 if anything was lost | writes its record to space that it had reserved |
| the run folder is removed, moved or changed | 3 | puts what is there aside (`RUN-damaged`), and writes the run again from memory |
| the process that cleans up dies | 3 | starts another one, which knows all that the run made |
| Ray's head is silent for 40 s | 20 | ends its probe, and names the head (HOST-HEAD) before all else |
| a node is lost, drained, or comes back under another node id | 20 | ends its probe at once, and names the node (HOST-NODE-LOST) before all else; what follows from it is not reported |

If a criterion failed before, the code is 1 instead of 3 or 20. Under `nohup`, SIGHUP stays ignored. Where not one byte can be
written any more, the exit code is 3, and the folder reads as interrupted.

## Variables

Each option of a run has a variable, for example `SEATRIAL_CLUSTER` for `--cluster`. An option overrides its variable.
`NO_COLOR` turns colours off everywhere.

## Completion of the shell

`seatrial completion bash` prints the completion of commands, options and values. Source it in `~/.bashrc`:

```sh
seatrial completion bash > ~/.seatrial.bash
echo 'source ~/.seatrial.bash' >> ~/.bashrc
```

For `zsh` and `fish` see `seatrial completion --help`.
"""


def write_commands() -> str:
    """Return the page: a heading for each command."""
    parts = [HEAD]
    for program, command in PROGRAMS.items():
        parts += [_write(f"{program} {words}".strip(), one) for words, one in leaves(command)]
    return "\n".join(parts)


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is no group, with its words; the lab's faults together."""
    if not isinstance(command, click.Group) or command.name == "fault":
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        if one := command.get_command(context, name):
            yield from leaves(one, f"{path} {name}".strip())


def _write(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, **command.context_settings)
    usage = " ".join(command.collect_usage_pieces(context))
    text = inspect.cleandoc(command.help or "")
    parts = [f"## {name}\n", f"`{name} {usage}`\n", f"{_escape(text)}\n"]
    if isinstance(command, click.Group):
        faults = [
            f"| `{' '.join([n, *_arguments(one)])}` | {_escape(one.get_short_help_str(200))} |"
            for n, one in sorted(command.commands.items())
        ]
        parts.append("\n".join(["| fault | what it does |", "|---|---|", *faults]) + "\n")
    if rows := [row for one in command.params if (row := _option(one, context))]:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n")
    if examples := re.findall(r"^.*?(seatrial .*)$", command.epilog or "", re.MULTILINE):
        parts.append("\n".join(["```sh", *examples, "```", ""]))
    return "\n".join(parts)


def _arguments(command: click.Command) -> list[str]:
    return command.collect_usage_pieces(click.Context(command))[1:]


def _option(one: click.Parameter, context: click.Context) -> str:
    record = one.get_help_record(context)
    if record is None or isinstance(one, click.Argument) or "--help" in one.opts:
        return ""
    return f"| `{_escape(record[0])}` | {_escape(record[1])} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
