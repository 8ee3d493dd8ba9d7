"""Training: the loop, asynchronous sampling, checkpoints and reward models."""
