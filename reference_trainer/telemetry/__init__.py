"""What a rank writes of its progress: steps, waits, events, heartbeat."""
