"""Command line of the lab: up, status, exec, run, fault, down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import click

from tests.lab.faults import FAULTS, clear, inject
from tests.lab.lab import Lab
from tests.lab.node import AUTH_TOKEN
from tests.lab.shell import LabError

GPUS = click.option("--gpus", default=1, show_default=True, help="Emulated accelerators per node.")
NVML = click.option(
    "--nvml", "with_nvml", is_flag=True, help="A stand-in NVML on each node shows its GPUs."
)
AUTH = click.option(
    "--auth",
    default="",
    type=click.Choice(["", AUTH_TOKEN]),
    help="Ray asks for a token (file `auth_token`).",
)
RAILS = click.option(
    "--rails", default=1, show_default=True, help="Fabrics of each node: fab0, up to fab3."
)
LEAVES = click.option("--leaves", default=1, show_default=True, help="Switches behind uplinks.")
LARGER = click.option("--larger", default=0, help="Nodes with twice as many accelerators.")
ANYTHING: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--name", default="sea", show_default=True, help="Which lab; two can be up at once.")
@click.pass_context
def main(context: click.Context, name: str) -> None:
    """A real multi-node Ray cluster on this machine, to rehearse on."""
    context.obj = Lab(name)


@main.command()
@click.option("--nodes", default=4, show_default=True)
@click.option("--fabric", default="", help="Rate of a rail as tc writes it (1gbit).")
@click.option("--management", default="", help="Rate of eth0 (200mbit).")
@GPUS
@NVML
@AUTH
@RAILS
@LEAVES
@LARGER
@click.pass_obj
def up(lab: Lab, nodes: int, fabric: str, management: str, **size: Any) -> None:
    """Start the lab; does nothing when it is up."""
    lab.up(nodes, fabric, management, **size)
    click.echo(f"lab {lab.name}: {nodes} nodes up")


@main.command()
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def status(lab: Lab, as_json: bool) -> None:
    """What is up, how fast, and which faults were planted and not cleared."""
    state = lab.status()
    if as_json:
        click.echo(json.dumps(state, indent=1))
        return
    click.echo(f"lab {lab.name}: {'up' if state['up'] else 'down'}")
    for node in state["nodes"]:
        links = "  ".join(f"{i} {node[i]['address']} {node[i]['rate']}" for i in lab.state["rates"])
        click.echo(f"  {node['name']:8} {'on ' if node['on'] else 'off'} {links}")
    for fault in state["faults"]:
        click.echo(f"  fault: {' '.join(fault)}")


@main.command("exec", context_settings=ANYTHING)
@click.argument("node")
@click.argument("command", nargs=-1, required=True)
@click.pass_obj
def exec_(lab: Lab, node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND inside NODE; its exit code is ours."""
    sys.exit(_foreground(lab, node, command))


@main.command(context_settings=ANYTHING)
@click.option("--nodes", default=4, show_default=True)
@GPUS
@NVML
@AUTH
@RAILS
@LEAVES
@LARGER
@click.argument("command", nargs=-1, required=True)
@click.pass_obj
def run(lab: Lab, command: tuple[str, ...], nodes: int, **size: Any) -> None:
    """Up, COMMAND on node 0, down; COMMAND's exit code is ours."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        lab.up(nodes, **size)
        code = _foreground(lab, "0", command)
    finally:
        lab.down()
    click.echo(
        "lab     removed. To try what the report says: `python -m tests.lab up`, then "
        "`python -m tests.lab exec 0 -- COMMAND`"
    )
    sys.exit(code)


def _foreground(lab: Lab, node: str, command: tuple[str, ...]) -> int:
    """Run a command in the node on our terminal and return its exit code.

    Ctrl-C reaches the command, which then ends by itself.
    """
    target = lab.node(node)
    environment = {**target.environment(), "SEATRIAL_NODES": str(len(lab.nodes))}
    for name in ("TERM", "NO_COLOR", "COLUMNS", "CI", "PYTEST_ADDOPTS"):
        if name in os.environ:
            environment[name] = os.environ[name]
    child = subprocess.Popen(target.command(*command), env=environment)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue
        except SystemExit:
            child.terminate()
            raise


@main.group()
def fault() -> None:
    """Break something, or heal it all with `fault clear`."""


def _add_fault(name: str) -> None:
    arguments, explain, _ = FAULTS[name]

    @fault.command(name, help=explain)
    @click.pass_obj
    def command(lab: Lab, **given: str) -> None:
        click.echo(inject(lab, name, *given.values()))

    for argument in arguments:
        click.argument(argument)(command)


for _name in FAULTS:
    _add_fault(_name)


@fault.command("clear")
@click.pass_obj
def fault_clear(lab: Lab) -> None:
    """Heal every fault."""
    for line in clear(lab):
        click.echo(line)


@main.command()
@click.pass_obj
def down(lab: Lab) -> None:
    """Remove everything the lab made; safe after a crash."""
    lab.down()
    click.echo(f"lab {lab.name}: down")


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except LabError as error:
        click.echo(f"lab: {error}", err=True)
        sys.exit(4)
    except click.ClickException as error:
        error.show()
        sys.exit(4)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(2)
