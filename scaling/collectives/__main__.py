"""`torchrun -m scaling.collectives`: times collectives without Ray."""

from scaling.collectives.nccl_tests_format import main

main()
