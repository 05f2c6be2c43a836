"""Provides training data: synthetic tokens, and shards of tokenised documents."""
