"""The museum: faults that people reported in public, and what seatrial says of each today."""
