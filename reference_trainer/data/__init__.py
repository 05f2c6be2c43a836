"""Training data: synthetic tokens, and shards of tokenised documents."""
