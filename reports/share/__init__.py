"""A copy of a run for other parties: names are replaced by aliases, the decision is the same."""
