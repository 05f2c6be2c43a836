"""The names of seatrial for notebooks and scripts: `from seatrial import read_run`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from seatrial.own import find_foreign

if TYPE_CHECKING:
    from reports import read_comparison, read_history, read_run

EXIT_USAGE = 4
WINDOWS = (
    "seatrial needs Linux; this is Windows. Use seatrial in WSL (wsl --install). "
    "Any browser can show report.html"
)
__all__ = ["read_comparison", "read_history", "read_run"]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for.  Raises ImportError where `reports` is not seatrial's."""
    if name not in __all__:
        raise AttributeError(f"module 'seatrial' has no attribute {name!r}")
    if problem := find_foreign():
        raise ImportError(problem)
    import reports

    return getattr(reports, name)


def main() -> None:
    """Run the `seatrial` command, if the system can and its packages are seatrial's own."""
    if problem := WINDOWS if sys.platform == "win32" else find_foreign():
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    from probes.cli.main import main as command

    command(prog_name="seatrial")
