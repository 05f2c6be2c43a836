"""Formats that other tools read: JUnit, CTRF, Prometheus, GitHub, and the record's JSON schema."""
