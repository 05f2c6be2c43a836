"""Says in seconds what stands in the way of a run, and disturbs nothing."""
