"""Environments: classes with their settings, wrappers, the check of the contract, images, splits, data sets."""
