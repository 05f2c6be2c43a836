"""Commands that join a cluster and run no probe."""
