"""Run folders: records, kept trees, resuming, trackers, progress and exports."""
