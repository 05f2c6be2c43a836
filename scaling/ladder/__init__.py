"""The ladder of node counts: its runs, and what a step consists of."""
