"""Keys under which pytest's config and items keep the objects of a run."""

from __future__ import annotations

from typing import Any

import pytest

RUN: pytest.StashKey[Any] = pytest.StashKey()  # config: the RunSession
RECORDER: pytest.StashKey[Any] = pytest.StashKey()  # item: its probe's recorder
JUNIT: pytest.StashKey[str] = pytest.StashKey()  # config: the path of --junitxml
VERDICT: pytest.StashKey[Any] = pytest.StashKey()  # item: its verdict; config: the run's summary
