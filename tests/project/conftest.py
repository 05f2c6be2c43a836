"""Fixtures of tests of what users install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dist import build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source archive and the wheel of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    build(tmp_path_factory.mktemp("source"), out)
    return out
