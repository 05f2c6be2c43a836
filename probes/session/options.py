"""Defines the suite's options: pytest and the commands declare them from here."""

from __future__ import annotations

from dataclasses import dataclass

from reports.redact import redact


@dataclass(frozen=True)
class RunOption:
    """Option of a run; its environment twin is SEATRIAL_<NAME>."""

    name: str
    metavar: str
    help: str

    @property
    def key(self) -> str:
        """Name as an attribute: run_dir for --run-dir."""
        return self.name.strip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of its environment twin."""
        return f"SEATRIAL_{self.key.upper()}"


OPTIONS = (
    RunOption(
        "--cluster",
        "WHERE",
        "where to run: auto (the Ray cluster of this machine), ray://host:port, or local:N (a "
        "rehearsal with N emulated nodes on this machine)",
    ),
    RunOption(
        "--contract",
        "NAME|FILE",
        "the agreed criteria and limits: a file, or a name of `seatrial contract list` (default: "
        "seatrial.toml of this folder). Without a contract, limits are derived from the cluster, "
        "and the run is not accepted",
    ),
    RunOption(
        "--tier",
        "TIER",
        "how long to test: quick, standard or soak (default: as the contract says, else quick)",
    ),
    RunOption(
        "--only",
        "CRITERION",
        "run only these criteria, such as FABRIC,GANG. The run is then PARTIAL, and never accepted",
    ),
    RunOption(
        "--nodes",
        "N",
        "how many nodes were ordered, if the contract does not say, or allows several numbers",
    ),
    RunOption(
        "--wait-for-nodes",
        "SECONDS",
        "how long to wait until all nodes of the order have joined, such as 600 or 10m "
        "(default: 0)",
    ),
    RunOption(
        "--wait-for-room",
        "SECONDS",
        "how long to wait until no other job holds accelerators, such as 1800 or 30m (default: 0)",
    ),
    RunOption("--run-dir", "DIR", "new folder for this run (default: runs/<utc>-<cluster>)"),
    RunOption(
        "--baseline",
        "RUN|FOLDER",
        "earlier run to compare with: its run folder, or a folder of runs. Of a folder of runs, "
        "the newest complete run of this cluster is used",
    ),
    RunOption(
        "--paths-from",
        "RUN",
        "earlier run whose FABRIC tested some pairs of nodes: this run tests pairs that did not "
        "meet there. Both need the same contract",
    ),
    RunOption("--operator", "NAME", "who runs the test; the report shows this name"),
    RunOption(
        "--nonce",
        "TEXT",
        "text that the customer chooses before the run: a run with this text was made afterwards",
    ),
)
BY_KEY = {option.key: option for option in OPTIONS}


def check_nonce(nonce: str) -> str:
    """Return why a run cannot keep this nonce as it is; "" if it can."""
    if redact({"nonce": nonce.encode("utf-8", "replace").decode()}) == {"nonce": nonce}:
        return ""
    return (
        "--nonce: expected a text that is not secret, found one that looks like a token or a "
        "password. A run folder must hold no secret: choose another word, such as customer-42"
    )
