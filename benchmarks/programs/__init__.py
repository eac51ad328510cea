"""Programs that measure what ``gcomm bench`` does not."""
