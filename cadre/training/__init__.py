"""Training: the loop, asynchronous sampling, checkpoints, warm starts and reward models."""
