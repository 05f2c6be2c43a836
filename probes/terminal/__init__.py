"""Options of a run, which probes it selects, and what pytest prints while it runs."""
