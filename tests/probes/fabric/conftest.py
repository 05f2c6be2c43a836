"""A recorder of FABRIC's that writes into a real store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.contract.contract import load as contract
from reports.run_folder.store import Store

LAB = contract("lab")


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """`recorder(contract)`: a real one, of FABRIC."""
    stores: list[Store] = []

    def make(agreed: Any = LAB) -> Recorder:
        stores.append(Store(tmp_path / f"run-{len(stores)}"))
        return Recorder(stores[-1], agreed, "p", "FABRIC", "claim", "again", lambda words: None)

    yield make
    for store in stores:
        store.close()
