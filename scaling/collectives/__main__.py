"""Runs `torchrun -m scaling.collectives`, which times collectives without Ray."""

from scaling.collectives.line_rate import main

main()
