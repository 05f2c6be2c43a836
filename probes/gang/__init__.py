"""Tests the criterion GANG: gang scheduling works under contention."""
