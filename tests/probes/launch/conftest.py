"""A recorder of LAUNCH's, in memory."""

from __future__ import annotations

import pytest

from tests.support import controls


@pytest.fixture
def recorder() -> controls.MemoryRecorder:
    return controls.recorder("LAUNCH")
