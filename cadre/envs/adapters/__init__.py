"""Other people's programs as environments."""
