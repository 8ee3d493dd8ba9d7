"""The agent programs of the tests, and their roles."""

from __future__ import annotations

from pathlib import Path

AGENTS = str(Path(__file__).parents[1] / "cadre_programs" / "agents.py")


ROLES = ["planner", "coder"]
