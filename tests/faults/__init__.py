"""Every probe seen red, and the healthy lab seen green."""
