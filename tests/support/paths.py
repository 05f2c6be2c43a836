"""Paths of the checkout and its test data."""

from __future__ import annotations

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
RECORDINGS = REPO / "tests" / "recordings" / "runs"
