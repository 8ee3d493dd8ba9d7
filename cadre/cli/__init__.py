"""The command line: parses, calls, prints."""

from cadre.cli.stopping import stoppable

__all__ = ["main"]


def main() -> None:
    """Run the command line; one Ctrl-C, SIGTERM or SIGHUP ends it in order from the first import on."""
    with stoppable():
        from cadre.cli.app import main as run

        run()
