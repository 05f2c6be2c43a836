"""What a ladder loses, explained by causes, and predicted for more nodes."""
