"""The engine: criteria, what a run must record, and the recorder that judges."""
