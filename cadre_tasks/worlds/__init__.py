"""Tasks with a real component each: a search index, tools, Python packages with a bug (docs/worlds.md)."""
