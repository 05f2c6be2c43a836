"""Runs `torchrun -m scaling.collectives`, which times collectives without Ray."""

from scaling.collectives.nccl_tests_format import main

main()
