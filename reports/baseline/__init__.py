"""The gate against an earlier run: measures that the contract names may not become worse."""
