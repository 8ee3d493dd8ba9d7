"""Analyses of runs and of their advantages: comparisons with intervals, sweeps, audits by counterfactuals."""
