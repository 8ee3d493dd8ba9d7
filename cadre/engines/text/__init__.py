"""The text side of models: prompts of conversations, calls of tools, control tokens. Needs no weights."""
