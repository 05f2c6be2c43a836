"""Runs and their expected verdicts; `python -m tests.recordings.generate` rebuilds them."""
