"""`seatrial completion`: the shell's completion of commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(
    short_help="Print the shell's completion.",
    epilog="""\b
    Examples:
      seatrial completion bash > ~/.seatrial.bash    # source it in ~/.bashrc
      seatrial completion zsh > ~/.zfunc/_seatrial
      seatrial completion fish > ~/.config/fish/completions/seatrial.fish""",
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
