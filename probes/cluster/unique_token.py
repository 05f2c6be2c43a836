"""Makes tokens that mark the resources of one run, on the cluster and on disk.

A process id is not unique: two drivers in two containers easily have the same one.
"""

from __future__ import annotations

import uuid

# The first 12 hexadecimal digits of a uuid4 are random (the 13th is not), and names stay short.
# Among 10,000 tokens in use, two are the same with a probability of 1 in 5 million.
TOKEN_DIGITS = 12


def make_unique_token() -> str:
    """Make a token that no other run has.

    The caller must pass on the name that it builds: a second call returns another token.
    """
    return uuid.uuid4().hex[:TOKEN_DIGITS]
