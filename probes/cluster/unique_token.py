"""What tells the things of one run apart from those of every other run, on the cluster and on disk.

A process id cannot: two drivers in two containers easily have the same one.
"""

from __future__ import annotations

import uuid

# All of these hexadecimal digits of a uuid4 are random (the 13th is not), and a name stays short:
# of 10,000 that stand at a time, two are the same with a chance of 1 in 5 million.
TOKEN_DIGITS = 12


def make_unique_token() -> str:
    """Make a token that no other run has.  Whoever makes a name from it hands on the name."""
    return uuid.uuid4().hex[:TOKEN_DIGITS]
