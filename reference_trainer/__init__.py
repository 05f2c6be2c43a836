"""An ordinary FSDP training job that anyone could have written.  Knows nothing of probes."""
