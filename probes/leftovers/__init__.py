"""Finds and removes what a run left whose driver and cleanup process were both killed."""
