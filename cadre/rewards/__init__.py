"""Rewards that several environments share. Nothing here imports torch, and nothing untrusted runs in this process."""
