"""A museum of runs with their expected verdicts: `python -m tests.recordings` rebuilds it."""
