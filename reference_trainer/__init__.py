"""An ordinary FSDP training job. It contains no code of the probes."""
