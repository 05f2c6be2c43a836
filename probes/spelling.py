"""Finds what a misspelt word probably means."""

from __future__ import annotations

from collections.abc import Iterable


def closest_name(word: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `word`; "" if none is like it."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")
