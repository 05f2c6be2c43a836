"""The training job of seatrial, an ordinary one with FSDP. It contains no code of the probes."""
