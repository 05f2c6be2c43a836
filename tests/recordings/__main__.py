"""Rebuild the museum: `python -m tests.recordings`; look at `git diff` before keeping it."""

from __future__ import annotations

from pathlib import Path

from tests.recordings.museum import exhibits
from tests.recordings.shelf import write


def main() -> None:
    """Write every exhibit beside this file."""
    for recording in exhibits():
        print(write(recording, Path(__file__).parent))


if __name__ == "__main__":
    main()
