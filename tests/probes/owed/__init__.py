"""The golden list of what a run owes; `python -m tests.probes.owed` writes it anew."""
