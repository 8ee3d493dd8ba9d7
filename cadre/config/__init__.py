"""Configurations: YAML and overrides, validation, and what an experiment resolves to."""
