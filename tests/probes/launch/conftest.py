"""A recorder of LAUNCH's that writes into a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.check.recorder import Recorder
from probes.contract.contract import load as contract
from reports.run_folder.store import Store


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    store = Store(tmp_path / "run")
    yield Recorder(store, contract("lab"), "p", "LAUNCH", "claim", "again", lambda words: None)
    store.close()
