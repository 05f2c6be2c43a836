"""A copy of the suite that tests may break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scratch_suite import copy_suite


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A copy of the suite in a scratch folder."""
    return copy_suite(tmp_path)
