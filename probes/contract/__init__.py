"""The contract: its terms, limits and drafts."""
