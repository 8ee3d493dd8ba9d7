"""A taskset and environment of verifiers made of an environment of Cadre."""

from cadre_tasks.integrations.verifiers_environment import make_verifiers_environment

SignalsTaskset, SignalsEnv = make_verifiers_environment(f"{__file__.rpartition('/packages/')[0]}/signals.py:Signals")

__all__ = ["SignalsEnv", "SignalsTaskset"]
