"""A museum of runs and their expected verdicts; `python -m tests.recordings.generate` rebuilds it."""
