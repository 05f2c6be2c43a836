"""The engine: criteria, what a run owes, and the recorder that judges."""
