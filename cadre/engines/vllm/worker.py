"""What vLLM's worker processes import by name: the weight transfer back-ends are then known there.

The entry point in pyproject.toml does the same where Cadre is installed; this also serves a checkout on the path.
"""

from __future__ import annotations

from cadre.engines.vllm import weight_transfer

weight_transfer.register()


class WorkerExtension:
    """Adds nothing to vLLM's worker: it is there for the import."""
