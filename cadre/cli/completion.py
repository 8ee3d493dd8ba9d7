"""What arguments are completed to in a shell: `cadre --install-completion` sets that up."""

from __future__ import annotations

from pathlib import Path


def recipes(incomplete: str) -> list[str]:
    """Bundled recipes, and YAML files here."""
    from cadre.config.recipes import recipes as bundled

    return _matching([*bundled(), *map(str, Path().glob("*.yaml"))], incomplete)


def runs(incomplete: str) -> list[str]:
    """Folders of runs where `cadre train` puts them, or below what is typed."""
    above = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent if incomplete else Path("runs")
    return _matching([str(path.parent) for path in above.glob("*/config.yaml")], incomplete)


def targets(incomplete: str) -> list[str]:
    """Runs and recipes."""
    return [*runs(incomplete), *recipes(incomplete)]


def _matching(names: list[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
