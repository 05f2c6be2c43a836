"""Measures what one sweep does not show: all-reduce inside nodes, and FSDP's own collectives."""
