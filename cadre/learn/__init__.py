"""Learning in plain torch: the loss, the optimiser with its schedule, and how sequences are packed into batches."""
