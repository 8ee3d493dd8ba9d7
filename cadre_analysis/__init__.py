"""What several runs, or one run's advantages, show: comparisons with intervals, sweeps, audits by counterfactuals."""
