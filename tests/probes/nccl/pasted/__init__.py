"""Cases of pasted pieces of logs, by what they are about; all are SYNTHETIC."""
