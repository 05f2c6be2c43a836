"""Writes the golden list: `python -m tests.probes.owed`.  Look at `git diff` before keeping it."""

from __future__ import annotations

from tests.probes.owed.golden import GOLDEN, build_sections, compare, read_golden, write_golden
from tests.probes.owed.product import read_product


def main() -> None:
    """Write it, and print what is another than before."""
    found = build_sections(read_product())
    for sentence in compare(read_golden(), found):
        print(sentence)
    GOLDEN.write_text(write_golden(found), encoding="utf-8")


if __name__ == "__main__":
    main()
