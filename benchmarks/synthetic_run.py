"""Writes a run of synthetic measurements, for benchmarks of what reads and shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probes.check.recorder import Recorder
from probes.contract.contract import load
from reports.run_folder.store import Store
from reports.version import suite_version


@contextmanager
def write_run(folder: Path) -> Iterator[Recorder]:
    """Begin a run with one probe of FABRIC, give its recorder, and end both."""
    contract, store = load("h100-ndr400"), Store(folder)
    store.start(
        contract.text,
        id="large",
        started="2026-01-01T00:00:00Z",
        command="x",
        tier="quick",
        versions=suite_version(),
        contract=contract.facts().model_dump(mode="json"),
    )
    measure = Recorder(store, contract, "p", "FABRIC", "claim", "again", lambda words: None)
    yield measure
    measure.finish("finished", 1.0)
    store.event("run_finished", finished="2026-01-01T01:00:00Z", state="finished")
    store.save()
    store.close()
