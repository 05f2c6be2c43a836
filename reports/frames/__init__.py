"""Tables of results as pandas frames: one run, several runs compared, the history of runs."""
