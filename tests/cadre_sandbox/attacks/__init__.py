"""The catalogue of attacks that the sandbox must hold against, for the tests and the benchmark."""

from cadre_sandbox.probes import GROUP_PROBES, PROBES, Attack, Runner
from tests.cadre_sandbox.attacks import endurance, files, kernel, network, processes, resources, spoils

ATTACKS: list[Attack] = [
    *PROBES, *GROUP_PROBES, *endurance.ATTACKS, *resources.ATTACKS, *processes.ATTACKS, *files.ATTACKS,
    *network.ATTACKS, *kernel.ATTACKS, *spoils.ATTACKS,
]  # fmt: skip
# Kinds of attacks that take their time, or that may rightly end in more than one way.
SLOW = (
    "endless work", "waiting", "ignored signals", "threads", "allocation", "caught shortage", "flood", "disk", "crash",
)  # fmt: skip
# Kinds of attacks on files, which Landlock has to stop, whatever its version.
ON_FILES = (
    "secrets by path", "secrets by call", "listing", "new files", "overwriting", "emptying", "metadata", "tree",
    "locks", "devices",
)  # fmt: skip


def suited(sandbox: Runner) -> list[Attack]:
    """The attacks that can be tried at the sandbox's level: without a writable folder there is none to fill."""
    return [item for item in ATTACKS if sandbox.level == "isolated" or not item.limits.folder_mb]
