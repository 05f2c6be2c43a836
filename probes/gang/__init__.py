"""GANG: gang scheduling works under contention."""
