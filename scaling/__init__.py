"""How speed changes with size: collectives, the ladder, and where the lost percent went."""
