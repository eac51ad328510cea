"""Training with DistributedDataParallel: hooks side by side."""
