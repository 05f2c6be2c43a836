"""Records a rank's progress: steps, waits, events, heartbeat."""
