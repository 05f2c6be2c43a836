"""Controls of FABRIC: faults planted live, judged by the probe's own judges and limits."""
