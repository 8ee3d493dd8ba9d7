"""Changes that a command would ignore: as an option of its own says the same, or as another setting turns them off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from cadre.config.experiment import Config
from cadre.errors import ConfigError
from cadre.settings.yaml_file import parse_overrides


def refuse_ignored(overrides: Sequence[str], of: str, expected: Mapping[str, str]) -> None:
    """Raises ConfigError for `key=value` pairs whose key is in `expected`, which says what to set in its place; `of` is
    what would ignore them."""
    for key, setting in chain.from_iterable(map(_set_by, overrides)):
        if setting in expected:
            raise ConfigError(
                f"{key}: got it for {of}, which would ignore it; expected {expected[setting]}. Set that, or remove it."
            )


def refuse_unused(overrides: Sequence[str], config: Config) -> None:
    """Raises ConfigError for `key=value` pairs that another setting of the training turns off. What a recipe or a run
    says so by itself stays as it is, as it counts again when that is turned on."""
    off = {
        "evaluate.every": (config.evaluate.every, not config.evaluate.tasks, "evaluate.tasks=0"),
        "train.trees_megabytes": (config.train.trees_megabytes, not config.train.trees_kept, "train.trees_kept=0"),
        "trackers.project": (
            config.trackers.project,
            not set(config.trackers.names) - {"tensorboard"},
            f"trackers.names=[{', '.join(config.trackers.names)}]",
        ),
    }
    for key, setting in chain.from_iterable(map(_set_by, overrides)):
        got, is_off, by = off.get(setting, (None, False, ""))
        if got and is_off:
            raise ConfigError(
                f"{key}: got {got} with {by}, under which it has no effect; expected one of the two. Remove it, or "
                f"change {by.partition('=')[0]}."
            )


def _set_by(pair: str) -> Iterator[tuple[str, str]]:
    """What a pair sets: the key as it is written and as the experiment knows it, of which a policy's own changes are a
    part. Sections of a training that are set whole name what they name for the training."""
    key = pair.partition("=")[0]
    section = parse_overrides([pair])[key] if key in ("evaluate", "train", "trackers") else None
    for name in section if isinstance(section, dict) else ():
        yield f"{key}.{name}", f"{key}.{name}"
    parts = key.split(".")
    yield key, ".".join(parts[3:] if parts[:2] == ["team", "policies"] else parts)
